"""Subtrees over a node store: opened into memory, and sealed into files (format, section 4).

The only place where a rewrite meets nodes that are read or written, and so where it is proved (``proof``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from trinitylake_core import spec
from trinitylake_core.errors import CorruptNode
from trinitylake_core.tree.node import Messages, Node, merge_messages
from trinitylake_core.tree.proof import EVERYWHERE, Proof, Range, ranges
from trinitylake_core.tree.search import apply_messages, leaves_ahead
from trinitylake_core.tree.subtree import DeletedPivot, NodeSink, Policy, Ref, Work, count_subtrees, route_messages

_PIECES: Final = 4
"""Pieces of work per task, at least: tasks are about as heavy as one another then."""


class SubtreeStore:
    """Opens and seals subtrees.

    With ``prove`` every node that is opened or written goes through a :class:`~trinitylake_core.tree.proof.Proof`. No
    message may stay in a buffer then, unless the rewrite is ``partial``.

    Attributes:
        largest_bytes: the uncompressed size of the largest node that was written with messages in its buffer.
    """

    def __init__(self, store: NodeSink, created_at_millis: int, *, prove: bool = False, partial: bool = False) -> None:
        self.store = store
        self.stamp = created_at_millis
        self.proof = Proof(partial=partial) if prove else None
        self.largest_bytes = 0

    def ref_of(self, node: Node, within: Range = EVERYWHERE) -> Ref:
        """Return a root node that was read as a subtree in memory; all its keys lie ``within`` a range."""
        if node.height is None:
            node.height = self._measure_height(node)
        ref = Ref(node.height, within=within, few=True)
        ref.work = self._work(node, ref)
        return ref

    def _measure_height(self, node: Node) -> int:
        height = 0
        while node.children:
            node = self.store.read(node.children[0])
            height += 1
            if height > spec.VERSION_BITS:
                raise CorruptNode("the pointers of the tree run in a circle", invariant="I10")
        return height

    def open(self, ref: Ref, read: Node | None = None) -> Work:
        """Return the root of a subtree in memory, its messages handed to pivots and children. At most one read.

        ``read`` is its node, if it has been read already.

        ENSURES: nothing is pending for the subtree itself any more; a node that was not written yet never will be.
        """
        if ref.work is not None:
            return ref.work
        if ref.path is None:
            raise AssertionError("a subtree is a file or a node in memory")
        node = self.store.take_back(ref.path) or read or self.store.read(ref.path)
        is_other_height = node.height is not None and node.height != ref.height
        if is_other_height or node.is_leaf != (ref.height == 0):
            raise CorruptNode(
                f"node file {ref.path!r} has height {node.height} where {ref.height} is expected: "
                "the pointer to it leads astray or in a circle",
                path=ref.path,
                invariant="I8",
            )
        ref.work = self._work(node, ref)
        ref.path = None
        return ref.work

    def _work(self, node: Node, ref: Ref) -> Work:
        """Return a node that was read as a node in memory, its messages and those pending for it handed on."""
        if self.proof is not None:
            self.proof.read(node, ref.path, ref.within, ref.pending)
        messages = merge_messages(node.pending, ref.pending)
        ref.pending = Messages()
        if node.is_leaf and len(messages):
            return Work(*apply_messages(node.keys, node.values, messages))
        work = Work([*node.keys], [*node.values])  # copies: the node may be in a cache
        if not node.is_leaf:
            work.refs = self._refs_below(node, ref)
            route_messages(work, messages)
        return work

    def _refs_below(self, node: Node, ref: Ref) -> list[Ref]:
        uncounted = [None] * len(node.children)
        keys = node.child_keys or uncounted
        messages = node.child_messages or uncounted
        children = []
        for path, keys_inside, messages_inside in zip(node.children, keys, messages, strict=True):
            children.append(Ref(ref.height - 1, path, keys=keys_inside, messages=messages_inside))
        if self.proof is not None:
            for child, within in zip(children, ranges(node, ref.within), strict=True):
                child.within = within
        return children

    def seal(self, ref: Ref) -> Ref:
        """Give a subtree in memory to the store, bottom up, and return it as a file.

        REQUIRES: its root has ``max_keys`` keys at most.
        """
        if ref.work is not None:
            node, children = self._node(ref.work, ref.height)
            if len(node.buffer):
                self.largest_bytes = max(self.largest_bytes, node.estimated_bytes())
            ref.path = self.store.add(node)
            if self.proof is not None:
                ref.within = self.proof.add_written(node, ref.path, children)
            ref.keys, ref.messages = node.subtree_keys, node.subtree_messages
            ref.few = len(node.keys) < self.store.min_keys
            ref.work = None
        return ref

    def node_of(self, ref: Ref) -> Node:
        """Return the node for the root of a subtree, which is the caller's to write; everything below it is sealed."""
        node, children = self._node(self.open(ref), ref.height)
        if self.proof is not None:
            ref.within = self.proof.add_written(node, None, children)
        return node

    def _node(self, work: Work, height: int) -> tuple[Node, list[Range]]:
        """Return a node in memory as a node to write, and the ranges of its children, which are sealed."""
        system = {spec.CREATED_AT_MILLIS: str(self.stamp)}
        node = Node(work.keys, work.values, height=height, system=system)
        for child in work.refs:
            self.seal(child)
            node.children.append(child.path or "")
            node.buffer.extend(child.pending)
        if work.refs:
            # What deleted a pivot waits in the node, for the pivot still separates its children.
            for key, value in zip(work.keys, work.values, strict=True):
                if isinstance(value, DeletedPivot):
                    node.buffer.append(key, None, value.txn)
        count_subtrees(node, work.refs)
        return node, [child.within for child in work.refs]

    def enter(self, ref: Ref) -> None:
        """Add a subtree on disk and its pending messages to the proof: another rewriter hands it over."""
        if self.proof is not None:
            self.proof.add_subtree(ref.path, ref.within, ref.pending)

    def leave(self, ref: Ref) -> None:
        """Remove a subtree on disk and its pending messages from the proof: it is handed over to another rewriter."""
        if self.proof is not None:
            self.proof.remove_subtree(ref.path, ref.within, ref.pending)

    def is_proved(self) -> bool:
        """Return whether what was written means what was there before. ``False`` without ``prove``."""
        return self.proof is not None and self.proof.holds()

    # -- ahead of a flush ----------------------------------------------------------------------

    def frontier(self, ref: Ref, tasks: int) -> list[Ref]:
        """Return the dirty subtrees below a subtree in memory that so many tasks can share evenly.

        What is heavier than a fourth of a task's share is opened, if there are inner nodes below it: opening a node
        above the leaves would make pieces of single nodes. All of one level are read at the same time. Messages above
        the subtrees hang on them when this returns.
        """
        dirty = [child for child in self.open(ref).refs if child.weight()]
        return self.split_heavy(dirty, tasks)

    def split_heavy(self, level: list[Ref], tasks: int) -> list[Ref]:
        """Return subtrees, those opened that are too heavy for so many tasks; see :meth:`frontier`."""
        total = sum(ref.weight() for ref in level)
        limit = total / (_PIECES * tasks)
        found: list[Ref] = []
        while level:
            heavy: list[Ref] = []
            for ref in level:
                is_heavy = ref.weight() > limit and ref.height > 1
                (heavy if is_heavy else found).append(ref)
            self.open_all(heavy)
            level = []
            for ref in heavy:
                level += [child for child in self.open(ref).refs if child.weight()]
        return found

    def leaf_paths_ahead(self, ref: Ref, *, choose: Policy) -> Iterator[str]:
        """Yield the leaves that a flush of a subtree reads, in its order; open the nodes above them."""

        def chosen_below(refs: Sequence[Ref]) -> Sequence[Ref]:
            self.open_all(refs)
            below: list[Ref] = []
            for each in refs:
                work = self.open(each)
                chosen = choose(work) or ()
                below += [work.refs[index] for index in sorted(chosen)]
            return below

        for leaf in leaves_ahead([ref], ref.height, chosen_below):
            if leaf.path is not None:
                yield leaf.path

    def open_right_edges(self, refs: Sequence[Ref]) -> None:
        """Open the nodes along the right edges of subtrees, which a join with what follows opens one by one.

        One ``get`` each, those of a level at the same time.
        """
        level = list(refs)
        while level:
            self.open_all(level)
            works = [self.open(ref) for ref in level]
            level = [work.refs[-1] for work in works if work.refs]

    def open_all(self, refs: Iterable[Ref]) -> None:
        """Open subtrees, those on disk read at the same time."""
        on_disk = []
        paths = []
        for ref in refs:
            if ref.path is not None:
                on_disk.append(ref)
                paths.append(ref.path)
        for ref, node in zip(on_disk, self.store.read_many(paths), strict=True):
            self.open(ref, node)

"""Changing a tree: build, join and flush (format, section 4; ``docs/architecture.md``).

Everything that changes a tree is one of three functions over *subtrees* (``subtree``). A child that
needs nothing stays the file it is, unread. A full flush joins the neighbours of dead pivots without them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from operator import add
from typing import Final

import mmh3

from trinitylake_core import spec
from trinitylake_core.errors import CorruptNode
from trinitylake_core.node import Messages, Node, merged
from trinitylake_core.subtree import Dead, NodeSink, Policy, Ref, Work, count_subtrees, hand_down, normal
from trinitylake_core.tree import Batch, applied

_HASH_MASK: Final = 2**128 - 1


class Rewriter:
    """Builds, joins and flushes subtrees over one node store.

    With ``prove`` it sums an order-independent hash over the entries that opened nodes and their
    messages mean (``before``) and over the entries of all nodes written (``after``). After a full
    flush the two agree, or entries were lost; clean subtrees are in neither.
    """

    def __init__(self, store: NodeSink, created_at_millis: int, *, prove: bool = False) -> None:
        self.store = store
        self.before = 0
        self.after = 0
        self.stamp = created_at_millis
        self._prove = prove

    # -- opening and sealing -------------------------------------------------------------------

    def ref_of(self, node: Node, path: str | None = None) -> Ref:
        """Return a root node that was read as a subtree in memory."""
        if node.height is None:
            node.height = self._measured_height(node)
        ref = Ref(node.height, path=path, few=True)
        ref.work = self._work(node, ref)
        ref.path = None
        return ref

    def _measured_height(self, node: Node) -> int:
        height = 0
        while node.children:
            node = self.store.read(node.children[0])
            height += 1
            if height > spec.VERSION_BITS:
                raise CorruptNode("the pointers of the tree run in a circle", invariant="I10")
        return height

    def open(self, ref: Ref) -> Work:
        """Return the root of a subtree in memory, its messages handed to pivots and children. At most one read."""
        if ref.work is not None:
            return ref.work
        if ref.path is None:
            raise AssertionError("a subtree is a file or a node in memory")
        node = self.store.take_back(ref.path)
        ours = node is not None
        if node is None:
            node = self.store.read(ref.path)
        elif self._prove:
            self.after -= self._entries_hash(node.keys, node.values)
        if (node.height is not None and node.height != ref.height) or node.is_leaf != (ref.height == 0):
            raise CorruptNode(
                f"node file {ref.path!r} has height {node.height} where {ref.height} is expected: "
                "the pointer to it leads astray or in a circle",
                path=ref.path,
                invariant="I8",
            )
        ref.work = self._work(node, ref, count=not ours)
        ref.path = None
        return ref.work

    def _work(self, node: Node, ref: Ref, *, count: bool = True) -> Work:
        messages = merged(node.pending, ref.pending)
        if self._prove and count:
            self._count_before(node, ref.pending, messages)
        ref.pending = Messages()
        if node.is_leaf:
            return (
                Work(*applied(node.keys, node.values, messages))
                if len(messages)
                else Work([*node.keys], [*node.values])
            )
        unknown = [None] * len(node.children)
        counts = zip(node.children, node.child_keys or unknown, node.child_messages or unknown, strict=True)
        refs = [Ref(ref.height - 1, path, None, keys, inside) for path, keys, inside in counts]
        work = Work([*node.keys], [*node.values], refs)
        hand_down(work, messages)
        return work

    def seal(self, ref: Ref) -> Ref:
        """Give a subtree in memory to the store, bottom up, and return it as a file."""
        if ref.work is not None:
            node = self.node_of(ref)
            ref.path = self.store.add(node)
            ref.keys, ref.messages = node.subtree_keys, node.subtree_messages
            ref.few = len(node.keys) < self.store.min_keys
            ref.work = None
        return ref

    def node_of(self, ref: Ref) -> Node:
        """Return the node for the root of a subtree in memory; everything below it is sealed."""
        work = self.open(ref)
        node = Node(work.keys, work.values, height=ref.height, system={spec.CREATED_AT_MILLIS: str(self.stamp)})
        for child in work.refs:
            self.seal(child)
            node.children.append(child.path or "")
            node.buffer.extend(child.pending)
        for key, value in zip(work.keys, work.values, strict=True) if work.refs else ():
            if isinstance(value, Dead):
                node.buffer.append(key, None, value.txn)
        count_subtrees(node, work.refs)
        if self._prove:
            self.after += self._entries_hash(node.keys, node.values)
        return node

    # -- join ----------------------------------------------------------------------------------

    def join(self, left: Ref, key: str, value: str, right: Ref) -> Ref:
        """Return one tree of all in ``left`` < ``key`` < all in ``right``.

        The lower tree is attached to the spine of the higher; cost: nodes opened = difference in height.
        """
        left, right = normal(left), normal(right)
        if left.height == right.height:
            return self._join_level(left, key, value, right)
        if left.height > right.height:
            work = self.open(left)
            if right.height == left.height - 1 and self._full(right):
                work.keys.append(key)
                work.values.append(value)
                work.refs.append(right)
                return self.fit(work, left.height)
            pivot, kept, last = work.keys.pop(), work.values.pop(), work.refs.pop()
            return self.join(Ref(left.height, work=work), pivot, kept, self.join(last, key, value, right))
        work = self.open(right)
        if left.height == right.height - 1 and self._full(left):
            work.keys.insert(0, key)
            work.values.insert(0, value)
            work.refs.insert(0, left)
            return self.fit(work, right.height)
        pivot, kept, first = work.keys.pop(0), work.values.pop(0), work.refs.pop(0)
        return self.join(self.join(left, key, value, first), pivot, kept, Ref(right.height, work=work))

    def _join_level(self, left: Ref, key: str, value: str, right: Ref) -> Ref:
        if self._full(left) and self._full(right):
            return Ref(left.height + 1, work=Work([key], [value], [left, right]))
        one, two = self.open(left), self.open(right)
        middle = [] if left.height == 0 and isinstance(value, Dead) else [(key, value)]
        keys = [*one.keys, *(k for k, _ in middle), *two.keys]
        values = [*one.values, *(v for _, v in middle), *two.values]
        return self.fit(Work(keys, values, one.refs + two.refs), left.height)

    def join_without_key(self, left: Ref, right: Ref) -> Ref:
        """Return one tree of all in ``left`` < all in ``right``: the last key of ``left`` becomes the pivot."""
        popped = self._split_last(normal(left))
        if popped is None:
            return normal(right)
        rest, key, value = popped
        return self.join(rest, key, value, right)

    def _split_last(self, ref: Ref) -> tuple[Ref, str, str] | None:
        work = self.open(ref)
        if ref.height == 0:
            if not work.keys:
                return None
            key, value = work.keys.pop(), work.values.pop()
            return self.fit(work, 0), key, value
        popped = self._split_last(work.refs.pop())
        if not work.keys:
            return popped
        pivot, kept = work.keys.pop(), work.values.pop()
        rest = normal(ref)
        if popped is None:
            return self._split_last(rest) if isinstance(kept, Dead) else (rest, pivot, kept)
        last, key, value = popped
        if isinstance(kept, Dead):
            return self.join_without_key(rest, last), key, value
        return self.join(rest, pivot, kept, last), key, value

    def _full(self, ref: Ref) -> bool:
        return not ref.few if ref.work is None else len(ref.work.keys) >= self.store.min_keys

    def fit(self, work: Work, height: int) -> Ref:
        """Return a tree of a node of any width: as it is if it fits, else cut evenly, level by level."""
        while len(work.keys) > self.store.max_keys:
            pieces = -(-(len(work.keys) + 1) // self.store.order)
            each, longer = divmod(len(work.keys) - pieces + 1, pieces)
            above, start = Work(), 0
            for piece in range(pieces):
                stop = start + each + (piece < longer)
                part = Work(work.keys[start:stop], work.values[start:stop], work.refs[start : stop + 1])
                above.refs.append(Ref(height, work=part))
                if stop < len(work.keys):
                    above.keys.append(work.keys[stop])
                    above.values.append(work.values[stop])
                start = stop + 1
            work, height = above, height + 1
        return Ref(height, work=work)

    # -- flush ---------------------------------------------------------------------------------

    def flush(self, ref: Ref, choose: Policy, descend: Callable[[Ref], Ref] | None = None) -> Ref:
        """Return the subtree with its messages pushed down as ``choose`` says.

        ``descend`` flushes a chosen child; by default this very function, one node a level in memory.
        """
        work = self.open(ref)
        if ref.height == 0:
            return self.fit(work, 0)
        chosen = choose(work)
        if chosen is None:
            return ref
        if descend is None:
            self.store.prefetch([path for index in chosen if (path := work.refs[index].path) is not None])
        flushed = set(chosen)
        down = descend or (lambda child: self.flush(child, choose))
        tree = normal(down(work.refs[0]) if 0 in flushed else work.refs[0])
        for index, (key, value) in enumerate(zip(work.keys, work.values, strict=True), 1):
            child = work.refs[index]
            tree = self._append(tree, key, value, normal(down(child)) if index in flushed else child, ref.height)
        return self._fitted(tree)

    def _fitted(self, tree: Ref) -> Ref:
        return self.fit(tree.work, tree.height) if tree.work is not None else tree

    def frontier(self, ref: Ref, want: int) -> list[Ref]:
        """Return the dirty subtrees below a subtree in memory, the heaviest opened until there are ``want``.

        Messages above them hang on them when this returns. One read a subtree opened.
        """
        heap: list[tuple[int, int, Ref]] = []
        done: list[Ref] = []

        def push(children: Iterable[Ref]) -> None:
            for child in children:
                if child.weight():
                    heappush(heap, (-child.weight(), id(child), child))

        push(self.open(ref).refs)
        while heap and len(heap) + len(done) < want:
            _, _, heaviest = heappop(heap)
            if heaviest.height < 2:  # its children are leaves: opening it makes tasks of one node
                done.append(heaviest)
            else:
                push(self.open(heaviest).refs)
        return done + [child for _, _, child in heap]

    def _append(self, tree: Ref, key: str, value: str, child: Ref, height: int) -> Ref:
        wide = tree.work if tree.height == height else None
        if isinstance(value, Dead):
            tree = self.join_without_key(self._fitted(tree), child)
        elif wide is not None and child.height == height - 1 and self._full(child):
            wide.keys.append(key)
            wide.values.append(value)
            wide.refs.append(child)
        else:
            tree = self.join(self._fitted(tree), key, value, child)
        self._seal_left_of_spine(tree)
        return tree

    def _seal_left_of_spine(self, tree: Ref) -> None:
        node = tree.work
        while node is not None and node.refs:
            index = len(node.refs) - 2
            while index >= 0 and node.refs[index].work is not None:
                self.seal(node.refs[index])
                index -= 1
            node = node.refs[-1].work

    # -- build ---------------------------------------------------------------------------------

    def build(self, batches: Iterable[Batch], fill: float = 0.9) -> Ref:
        """Return a tree of sorted keys, packed bottom up; nodes hold ``fill`` of what they may.

        REQUIRES: keys strictly ascending over all batches. Memory: one node a level and one batch.
        """
        width = min(self.store.max_keys, max(self.store.min_keys, round(self.store.max_keys * fill)))
        levels = [Work()]
        for keys, values in batches:
            leaf = levels[0]
            leaf.keys += keys
            leaf.values += values
            start = 0
            while len(leaf.keys) - start > 2 * width + 1:
                stop = start + width
                part = Ref(0, work=Work(leaf.keys[start:stop], leaf.values[start:stop]))
                self._climb(levels, 1, self.seal(part), leaf.keys[stop], leaf.values[stop], width)
                start = stop + 1
            del leaf.keys[:start], leaf.values[:start]
        tree = self.fit(levels[0], 0)
        for height, work in enumerate(levels[1:], 1):
            if work.refs:
                key, value = work.keys.pop(), work.values.pop()
                tree = self.join(self.fit(work, height), key, value, tree)
        return tree

    def _climb(self, levels: list[Work], height: int, ref: Ref, key: str, value: str, width: int) -> None:
        if height == len(levels):
            levels.append(Work())
        work = levels[height]
        work.refs.append(ref)
        work.keys.append(key)
        work.values.append(value)
        if len(work.keys) > 2 * width + 1:
            part = Ref(height, work=Work(work.keys[:width], work.values[:width], work.refs[: width + 1]))
            key, value = work.keys[width], work.values[width]
            del work.keys[: width + 1], work.values[: width + 1], work.refs[: width + 1]
            self._climb(levels, height + 1, self.seal(part), key, value, width)

    # -- proof ---------------------------------------------------------------------------------

    def _count_before(self, node: Node, newer: Messages, messages: Messages) -> None:
        """Add what a node means: its rows that no message touches, and the sets of its own buffer that hold."""
        self.before += self._entries_hash(node.keys, node.values)
        shadowed = messages.keys if len(messages) < len(node.keys) else set(messages.keys).intersection(node.keys)
        for key in shadowed:
            row = node.position(key)
            if row is not None:
                self.before -= mmh3.hash128(key + node.values[row])
        newest = set(newer.keys)
        own = zip(node.pending.keys, node.pending.values, strict=True)
        self.before += sum(mmh3.hash128(k + v) for k, v in own if v is not None and k not in newest)

    def count_pending(self, messages: Messages, sign: int = 1) -> None:
        """Add (or with ``sign`` −1 hand over to somebody else) what sorted messages set."""
        rows = zip(messages.keys, messages.values, strict=True)
        self.before += sign * sum(mmh3.hash128(k + v) for k, v in rows if v is not None)

    def _entries_hash(self, keys: list[str], values: list[str]) -> int:
        # Not `hash` of a tuple: two rows that swap their values often leave the sum of those as it is.
        return sum(map(mmh3.hash128, map(add, keys, values)))

    def proved(self) -> bool:
        """Return whether what was written means what was there before."""
        return not (self.before - self.after) & _HASH_MASK

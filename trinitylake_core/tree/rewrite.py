"""Changing a tree: build, join and flush (format, section 4; ``docs/architecture.md``).

Everything that changes a tree is one of three functions over *subtrees* (``subtree``). A child that
needs nothing stays the file it is, unread. A full flush joins the neighbours of dead pivots without them.

What holds of every subtree that goes in or comes out (``proof`` proves it of every node that is written):

* its keys ascend strictly from left to right, pivots among them;
* all its leaves have the same depth, which is ``Ref.height``;
* every node in it but its root has ``min_keys`` to ``max_keys`` keys; the root may have fewer (``few``) or, while
  it is in memory, more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from trinitylake_core.tree.leafbuild import LeafBuilder
from trinitylake_core.tree.leafflush import flush_runs
from trinitylake_core.tree.leafrun import Columns
from trinitylake_core.tree.subtree import DeletedPivot, Policy, Ref, Work, collapse_single_child
from trinitylake_core.tree.subtree_store import SubtreeStore


class Rewriter(SubtreeStore):
    """Builds, joins and flushes subtrees over one node store."""

    # -- join ----------------------------------------------------------------------------------

    def join(self, left: Ref, key: str, value: str, right: Ref) -> Ref:
        """Return one tree of all in ``left`` < ``key`` < all in ``right``.

        The lower tree is attached to the spine of the higher; cost: nodes opened = difference in height.

        REQUIRES: every key of ``left`` is less than ``key``, every key of ``right`` greater; no root is too wide.
        ENSURES: the tree is as high as the higher one, or higher by one; both arguments are used up.
        """
        left, right = collapse_single_child(left), collapse_single_child(right)
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
        middle = [] if left.height == 0 and isinstance(value, DeletedPivot) else [(key, value)]
        keys = [*one.keys, *(k for k, _ in middle), *two.keys]
        values = [*one.values, *(v for _, v in middle), *two.values]
        return self.fit(Work(keys, values, one.refs + two.refs), left.height)

    def join_without_key(self, left: Ref, right: Ref) -> Ref:
        """Return one tree of all in ``left`` < all in ``right``: the last key of ``left`` becomes the pivot.

        REQUIRES: every key of ``left`` is less than every key of ``right``; either may be empty.
        """
        popped = self._split_last(collapse_single_child(left))
        if popped is None:
            return collapse_single_child(right)
        rest, key, value = popped
        return self.join(rest, key, value, right)

    def _split_last(self, ref: Ref) -> tuple[Ref, str, str] | None:
        """Return a tree without its last live key, and that key with its value; ``None`` if there is no live key.

        Dead pivots behind the last live key are dropped: nothing is right of them. One node opened per level.
        """
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
        rest = collapse_single_child(ref)
        if popped is None:
            return self._split_last(rest) if isinstance(kept, DeletedPivot) else (rest, pivot, kept)
        last, key, value = popped
        if isinstance(kept, DeletedPivot):
            return self.join_without_key(rest, last), key, value
        return self.join(rest, pivot, kept, last), key, value

    def _full(self, ref: Ref) -> bool:
        return not ref.few if ref.work is None else len(ref.work.keys) >= self.store.min_keys

    def fit(self, work: Work, height: int) -> Ref:
        """Return a tree of a node of any width: as it is if it fits, else cut evenly, level by level.

        ENSURES: pieces hold ``min_keys`` at least. There are ⌈(n + 1) / order⌉ of them, so each is more than half full.
        """
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
        """Return the subtree with its messages pushed down as ``choose`` decides.

        ``descend`` flushes a chosen child; by default this very function, one node per level in memory.

        Without ``descend`` everything is read ahead.

        ENSURES: what is left of the right edge of the result is sealed. Only a policy that never answers ``None``
        drops all dead pivots.
        """
        if descend is not None:
            return self._flush(ref, choose, descend)
        with self.store.prefetch(self.leaf_paths_ahead(ref, choose=choose)):
            return self._flush(ref, choose, None)

    def _flush(self, ref: Ref, choose: Policy, descend: Callable[[Ref], Ref] | None) -> Ref:
        work = self.open(ref)
        if ref.height == 0:
            return self.fit(work, 0)
        chosen = choose(work)
        if chosen is None:
            return ref
        if ref.height == 1 and descend is None:
            chosen = self._without_runs(work, chosen)
        flushed = set(chosen)
        down = descend or (lambda child: self._flush(child, choose, None))
        tree = collapse_single_child(down(work.refs[0]) if 0 in flushed else work.refs[0])
        for index, (key, value) in enumerate(zip(work.keys, work.values, strict=True), 1):
            child = work.refs[index]
            tree = self._append(
                tree, key, value, collapse_single_child(down(child)) if index in flushed else child, ref.height
            )
        return self._fit_root(tree)

    def _without_runs(self, work: Work, chosen: Collection[int]) -> Collection[int]:
        """Flush leaves as columns where that is possible; return the chosen ones of which each is left to flush."""
        return chosen if self.proof is None else flush_runs(self.store, work, chosen, self.stamp, self.proof)

    def flush_apart(self, ref: Ref, choose: Policy) -> Work:
        """Flush chosen leaves below a node; return what became of them, and the pivots between, not joined yet.

        For a part of a node (:meth:`part_of`). The rewriter of the rest joins the two, as if it had flushed the whole
        node. REQUIRES: the children are leaves.
        """
        work = self.open(ref)
        with self.store.prefetch(self.leaf_paths_ahead(ref, choose=choose)):
            for index in self._without_runs(work, choose(work) or ()):
                work.refs[index] = collapse_single_child(self._flush(work.refs[index], choose, None))
        return work

    def _fit_root(self, tree: Ref) -> Ref:
        return self.fit(tree.work, tree.height) if tree.work is not None else tree

    def _append(self, tree: Ref, key: str, value: str, child: Ref, height: int) -> Ref:
        wide = tree.work if tree.height == height else None
        if isinstance(value, DeletedPivot):
            tree = self.join_without_key(self._fit_root(tree), child)
        elif wide is not None and child.height == height - 1 and self._full(child):
            wide.keys.append(key)
            wide.values.append(value)
            wide.refs.append(child)
        else:
            tree = self.join(self._fit_root(tree), key, value, child)
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

    def build(self, batches: Iterable[Columns], fill: float = 0.9) -> Ref:
        """Return a tree of sorted entries, packed bottom up; nodes hold ``fill`` of what they may.

        REQUIRES: keys strictly ascending over all batches; their reader feeds them to the proof, if there is one.
        Memory: one node per level and one batch. Raises ``Corrupt`` if keys do not ascend.

        A node is closed only when more than ``2 * width + 1`` keys wait on its level: ``width`` go into it, one becomes
        the pivot behind it, and ``width + 1`` or more remain. So whenever the input ends, the last node of a level has
        ``min_keys`` at least, and nothing that was closed needs to be opened again.
        """
        width = min(self.store.max_keys, max(self.store.min_keys, round(self.store.max_keys * fill)))
        levels = [Work()]
        builder = LeafBuilder(self.store, width, self.stamp, self.proof)
        for leaf, key, value in builder.leaves(batches):
            self._climb(levels, 1, leaf, key, value, width)
        tree = self.fit(Work(*builder.rest()), 0)
        for height, work in enumerate(levels[1:], 1):
            if work.refs:
                key, value = work.keys.pop(), work.values.pop()
                tree = self.join(self.fit(work, height), key, value, tree)
        return tree

    def _climb(self, levels: list[Work], height: int, ref: Ref, key: str, value: str, width: int) -> None:
        """Append a closed subtree and the pivot behind it to a level; close a node there if it is wide enough.

        REQUIRES: ``ref`` has height ``height - 1``; its keys lie between those of the level and ``key``.
        ENSURES: every level holds as many keys as subtrees: the pivot behind its last subtree waits for what comes.
        """
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

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
        left = collapse_single_child(left)
        right = collapse_single_child(right)
        if left.height > right.height:
            return self._join_at_right_edge(left, key, value, right)
        if left.height < right.height:
            return self._join_at_left_edge(left, key, value, right)
        return self._join_level(left, key, value, right)

    def _join_at_right_edge(self, tree: Ref, key: str, value: str, lower: Ref) -> Ref:
        work = self.open(tree)
        if lower.height == tree.height - 1 and self._is_full(lower):
            work.append(key, value, lower)
            return self.fit(work, tree.height)
        # Go down along the edge, to where the heights fit.
        pivot, pivot_value, last_child = work.pop_last()
        right = self.join(last_child, key, value, lower)
        return self.join(Ref(tree.height, work=work), pivot, pivot_value, right)

    def _join_at_left_edge(self, lower: Ref, key: str, value: str, tree: Ref) -> Ref:
        work = self.open(tree)
        if lower.height == tree.height - 1 and self._is_full(lower):
            work.prepend(lower, key, value)
            return self.fit(work, tree.height)
        first_child, pivot, pivot_value = work.pop_first()
        left = self.join(lower, key, value, first_child)
        return self.join(left, pivot, pivot_value, Ref(tree.height, work=work))

    def _join_level(self, left: Ref, key: str, value: str, right: Ref) -> Ref:
        if self._is_full(left) and self._is_full(right):
            return Ref(left.height + 1, work=Work([key], [value], [left, right]))
        one = self.open(left)
        two = self.open(right)
        joined = Work([*one.keys], [*one.values], one.refs + two.refs)
        # A dead pivot separates two children. In a leaf it separates nothing, and is gone.
        if left.height > 0 or not isinstance(value, DeletedPivot):
            joined.keys.append(key)
            joined.values.append(value)
        joined.keys += two.keys
        joined.values += two.values
        return self.fit(joined, left.height)

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
            key = work.keys.pop()
            value = work.values.pop()
            return self.fit(work, 0), key, value
        popped = self._split_last(work.refs.pop())
        if not work.keys:
            return popped
        pivot = work.keys.pop()
        pivot_value = work.values.pop()
        is_dead = isinstance(pivot_value, DeletedPivot)
        rest = collapse_single_child(ref)
        if popped is None:  # nothing lives behind the pivot
            return self._split_last(rest) if is_dead else (rest, pivot, pivot_value)
        last, key, value = popped
        if is_dead:
            return self.join_without_key(rest, last), key, value
        return self.join(rest, pivot, pivot_value, last), key, value

    def _is_full(self, ref: Ref) -> bool:
        """Whether the root of a subtree has as many keys as a node below another one must have."""
        if ref.work is None:
            return not ref.few
        return len(ref.work.keys) >= self.store.min_keys

    def fit(self, work: Work, height: int) -> Ref:
        """Return a tree of a node of any width: as it is if it fits, else cut evenly, level by level.

        ENSURES: pieces hold ``min_keys`` at least. There are ⌈(n + 1) / order⌉ of them, so each is more than half full.
        """
        while len(work.keys) > self.store.max_keys:
            work = self._cut_evenly(work, height)
            height += 1
        return Ref(height, work=work)

    def _cut_evenly(self, work: Work, height: int) -> Work:
        """Return the node above the pieces of a node that is too wide."""
        count = len(work.keys)
        pieces = -(-(count + 1) // self.store.order)
        keys_inside = count - (pieces - 1)  # one key between two pieces is their pivot
        keys_each, longer_pieces = divmod(keys_inside, pieces)
        above = Work()
        start = 0
        for piece in range(pieces):
            stop = start + keys_each
            if piece < longer_pieces:
                stop += 1
            above.refs.append(Ref(height, work=work.cut(start, stop)))
            if stop < count:
                above.keys.append(work.keys[stop])
                above.values.append(work.values[stop])
            start = stop + 1
        return above

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
            chosen = self._flush_runs(work, chosen)
        to_flush = set(chosen)
        tree = self._flush_child(work, 0, to_flush, choose, descend)
        tree = collapse_single_child(tree)
        for index, key in enumerate(work.keys):
            child = self._flush_child(work, index + 1, to_flush, choose, descend)
            tree = self._append(tree, key, work.values[index], child, ref.height)
        return self._fit_root(tree)

    def _flush_child(
        self, work: Work, index: int, to_flush: set[int], choose: Policy, descend: Callable[[Ref], Ref] | None
    ) -> Ref:
        """Return a child of a node in memory, flushed if it is one of those to flush; others are not opened."""
        child = work.refs[index]
        if index not in to_flush:
            return child
        flushed = self._flush(child, choose, None) if descend is None else descend(child)
        return collapse_single_child(flushed)

    def _flush_runs(self, work: Work, chosen: Collection[int]) -> Collection[int]:
        """Flush leaves as columns where that is possible; return the chosen ones of which each is left to flush."""
        if self.proof is None:  # a run is proved by itself, which only makes sense within a proof
            return chosen
        return flush_runs(self.store, work, chosen, self.stamp, self.proof)

    def _fit_root(self, tree: Ref) -> Ref:
        if tree.work is None:
            return tree
        return self.fit(tree.work, tree.height)

    def _append(self, tree: Ref, key: str, value: str, child: Ref, height: int) -> Ref:
        """Join a child to the right of those before it, whose node of ``height`` may be too wide for now."""
        if isinstance(value, DeletedPivot):
            tree = self.join_without_key(self._fit_root(tree), child)
        elif tree.work is not None and tree.height == height and child.height == height - 1 and self._is_full(child):
            # The ordinary case: the node is cut once, when all of its children have come.
            tree.work.append(key, value, child)
        else:
            tree = self.join(self._fit_root(tree), key, value, child)
        self._seal_left_of_spine(tree)
        return tree

    def _seal_left_of_spine(self, tree: Ref) -> None:
        """Give away what no later join opens again: so a flush holds one node per level in memory."""
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
        width = round(self.store.max_keys * fill)
        width = min(self.store.max_keys, max(self.store.min_keys, width))
        levels = [Work()]
        builder = LeafBuilder(self.store, width, self.stamp, self.proof)
        for leaf, key, value in builder.leaves(batches):
            self._climb(levels, 1, leaf, key, value, width)
        tree = self.fit(Work(*builder.rest()), 0)
        for height, level in enumerate(levels[1:], 1):
            if level.refs:
                key = level.keys.pop()
                value = level.values.pop()
                tree = self.join(self.fit(level, height), key, value, tree)
        return tree

    def _climb(self, levels: list[Work], height: int, ref: Ref, key: str, value: str, width: int) -> None:
        """Append a closed subtree and the pivot behind it to a level; close a node there if it is wide enough.

        REQUIRES: ``ref`` has height ``height - 1``; its keys lie between those of the level and ``key``.
        ENSURES: every level holds as many keys as subtrees: the pivot behind its last subtree waits for what comes.
        """
        if height == len(levels):
            levels.append(Work())
        level = levels[height]
        level.refs.append(ref)
        level.keys.append(key)
        level.values.append(value)
        if len(level.keys) <= 2 * width + 1:
            return
        closed = Ref(height, work=level.cut(0, width))
        pivot = level.keys[width]
        pivot_value = level.values[width]
        level.drop_first(width + 1)
        self._climb(levels, height + 1, self.seal(closed), pivot, pivot_value, width)

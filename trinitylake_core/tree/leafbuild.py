"""Leaves of a new tree, cut from columns (format, section 4).

``rewrite`` packs a tree bottom up. Its leaves are slices of Arrow columns, and only the pivots between them become
Python objects.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, TypeAlias

import numpy as np

from trinitylake_core.errors import Corrupt
from trinitylake_core.tree.leafrun import Columns, Leaves, in_order
from trinitylake_core.tree.proof import Proof, Range
from trinitylake_core.tree.search import Batch
from trinitylake_core.tree.subtree import NodeSink, Ref

KeyedLeaf: TypeAlias = tuple[Ref, str, str]
"""A leaf that was written, with the pivot behind it: its key and its value."""
_BUG: Final = "nothing was committed, please report this as a bug"
_ROWS: Final = 1 << 14
"""How many rows become leaves at once, some 5 MiB: what is at work stays in the caches of the processor."""


class LeafBuilder:
    """Cuts sorted columns into leaves of ``width`` entries, the entry behind each being its pivot.

    What is left over in the end, ``width + 1`` to ``2 * width + 1`` entries unless there never were as many, is
    :meth:`rest`; it is not written.
    """

    def __init__(self, sink: NodeSink, width: int, stamp: int, proof: Proof | None) -> None:
        self._sink = sink
        self._width = width
        self._entries_each = width + 1  # with the pivot behind it
        self._stamp = stamp
        self._proof = proof
        self._left = Columns.of([], [])
        self._last: str | None = None

    def leaves(self, batches: Iterable[Columns]) -> Iterator[KeyedLeaf]:
        """Yield leaves that were given to the sink, each with the pivot behind it.

        REQUIRES: keys strictly ascending over all batches.

        Raises:
            Corrupt: they do not ascend.
        """
        for rows in _together(batches):
            yield from self._go_on(rows)

    def _go_on(self, rows: Columns) -> Iterator[KeyedLeaf]:
        """Yield the leaves of what is left over and of more rows; of many, only those are copied that complete one."""
        missing = -len(self._left) % self._entries_each
        if len(rows) < missing + self._entries_each:
            together = Columns.join([self._left, rows])
            yield from self._cut(together, keep=self._entries_each)
            return
        if len(self._left):
            completed = Columns.join([self._left, rows.slice(0, missing)])
            yield from self._cut(completed, keep=0)
        others = rows.slice(missing, len(rows))
        yield from self._cut(others, keep=self._entries_each)

    def _cut(self, rows: Columns, *, keep: int) -> Iterator[KeyedLeaf]:
        """Yield leaves of the rows behind those before; ``keep`` rows at the least are left over."""
        available = max(0, len(rows) - keep)
        end = available - available % self._entries_each
        step = max(1, _ROWS // self._entries_each) * self._entries_each
        for start in range(0, end, step):
            stop = min(start + step, end)
            some = self._in_order(rows.slice(start, stop))
            yield from self._write_leaves(some)
        left = rows.slice(end, len(rows))
        self._left = self._in_order(left)

    def _in_order(self, rows: Columns) -> Columns:
        """Return rows whose keys ascend, behind those of all leaves before. Raises ``Corrupt``: they do not."""
        if not in_order(rows.keys, self._last, None):
            raise Corrupt(f"the keys of a new tree do not ascend: {_BUG}")
        return rows

    def rest(self) -> Batch:
        """Return the last entries, for which there was no leaf."""
        keys = self._left.keys.to_pylist()
        values = self._left.values.to_pylist()
        if self._proof is not None:
            self._proof.cut(self._left)
            self._proof.add_entries(keys, values)
        return keys, values

    def _write_leaves(self, rows: Columns) -> Iterator[KeyedLeaf]:
        counts = np.full(len(rows) // self._entries_each, self._width, dtype=np.int64)
        leaves = Leaves(rows, counts)
        paths = self._sink.new_paths(len(counts))
        self._sink.add_leaves(leaves, paths, self._stamp, lambda: None)
        ranges: list[Range] = []
        for first, last in leaves.edges():
            ranges.append((first, last + "\0"))
        keys, values = leaves.pivots()
        if self._proof is not None:
            self._proof.cut(rows)
            new = zip(paths, ranges, strict=True)
            self._proof.replace_subtrees(old=[], old_pivots=([], []), new=new, new_pivots=(keys, values))
        self._last = keys[-1]
        for path, within, key, value in zip(paths, ranges, keys, values, strict=True):
            leaf = Ref(0, path, keys=self._width, messages=0, within=within)
            yield leaf, key, value


def _together(batches: Iterable[Columns]) -> Iterator[Columns]:
    """Yield small batches together, and large ones as they are."""
    waiting: list[Columns] = []
    for batch in batches:
        waiting.append(batch)
        if sum(map(len, waiting)) >= _ROWS:
            *small, large = waiting
            if small:
                yield Columns.join(small)
            yield large
            waiting = []
    if waiting:
        yield Columns.join(waiting)

"""Leaves of a new tree, cut from columns (format, section 4).

``rewrite`` packs a tree bottom up. Its leaves are slices of Arrow columns, and only the pivots between them become
Python objects.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

import numpy as np

from trinitylake_core.errors import Corrupt
from trinitylake_core.tree.leafrun import Columns, Leaves, in_order
from trinitylake_core.tree.proof import Proof, Range
from trinitylake_core.tree.search import Batch
from trinitylake_core.tree.subtree import NodeSink, Ref

if TYPE_CHECKING:
    import numpy.typing as npt

_BUG: Final = "nothing was committed, please report this as a bug"
_ROWS: Final = 1 << 15
"""How many rows are put together before they are cut: with two leaves left over each time, that copies few of them."""


class LeafBuilder:
    """Cuts sorted columns into leaves of ``width`` entries, the entry behind each being its pivot.

    What is left over in the end, ``width + 1`` to ``2 * width + 1`` entries unless there never were as many, is
    :meth:`rest`; it is not written.
    """

    def __init__(self, sink: NodeSink, width: int, stamp: int, proof: Proof | None) -> None:
        self._sink = sink
        self._width = width
        self._stamp = stamp
        self._proof = proof
        self._left = Columns.of([], [])
        self._last: str | None = None

    def leaves(self, batches: Iterable[Columns]) -> Iterator[tuple[Ref, str, str]]:
        """Yield leaves that were given to the sink, each with the pivot behind it.

        REQUIRES: keys strictly ascending over all batches.

        Raises:
            Corrupt: they do not ascend.
        """
        entries_each = self._width + 1  # with the pivot behind it
        for some in _together(batches):
            rows = Columns.join([self._left, *some])
            if not in_order(rows.keys, self._last, None):
                raise Corrupt(f"the keys of a new tree do not ascend: {_BUG}")
            count = max(0, (len(rows) - entries_each) // entries_each)
            stop = count * entries_each
            self._left = rows.slice(stop, len(rows))
            if count:
                counts = np.full(count, self._width, dtype=np.int64)
                yield from self._write_leaves(rows.slice(0, stop), counts)

    def rest(self) -> Batch:
        """Return the last entries, for which there was no leaf."""
        keys = self._left.keys.to_pylist()
        values = self._left.values.to_pylist()
        if self._proof is not None:
            self._proof.cut(self._left)
            self._proof.add_entries(keys, values)
        return keys, values

    def _write_leaves(self, rows: Columns, counts: npt.NDArray[np.int64]) -> Iterator[tuple[Ref, str, str]]:
        leaves = Leaves(rows.views(), counts)
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


def _together(batches: Iterable[Columns]) -> Iterator[list[Columns]]:
    """Yield small batches together, and large ones in parts: what is at work stays in the caches of the processor."""
    waiting: list[Columns] = []
    for batch in batches:
        for start in range(0, len(batch), _ROWS):
            stop = min(start + _ROWS, len(batch))
            waiting.append(batch.slice(start, stop))
            if sum(map(len, waiting)) >= _ROWS:
                yield waiting
                waiting = []
    if waiting:
        yield waiting

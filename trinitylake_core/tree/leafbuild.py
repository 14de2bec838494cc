"""Leaves of a new tree, cut from columns (format, section 4).

``rewrite`` packs a tree bottom up. Where its entries come as Arrow columns, its leaves are slices of them, and only
the pivots between them become Python objects. The files are those that lists would have become.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from trinitylake_core import spec
from trinitylake_core.errors import Corrupt
from trinitylake_core.tree.leafflush import ColumnSink
from trinitylake_core.tree.leafrun import Columns, Slices, end_to_end, in_order, slices_of
from trinitylake_core.tree.proof import Proof, Range
from trinitylake_core.tree.search import Batch
from trinitylake_core.tree.subtree import Ref

_STRING: Final = pa.string()
_BUG: Final = "nothing was committed, please report this as a bug"
_ROWS: Final = 1 << 15
"""How many rows are put together before they are cut: with two leaves left over each time, that copies few of them."""


class LeafBuilder:
    """Cuts sorted columns into leaves of ``width`` entries, the entry behind each being its pivot.

    What is left over in the end, ``width + 1`` to ``2 * width + 1`` entries unless there never were as many, is
    :meth:`rest`; it is not written.
    """

    def __init__(self, sink: ColumnSink, width: int, stamp: int, proof: Proof | None) -> None:
        self._sink = sink
        self._width = width
        self._system = {spec.CREATED_AT_MILLIS: str(stamp)}
        self._proof = proof
        self._left = columns_of([], [])
        self._last: str | None = None

    def leaves(self, batches: Iterable[Columns]) -> Iterator[tuple[Ref, str, str]]:
        """Yield leaves that were given to the sink, each with the pivot behind it.

        REQUIRES: keys strictly ascending over all batches.

        Raises:
            Corrupt: they do not ascend.
        """
        for some in _together(batches):
            rows = _joined([self._left, some])
            if not in_order(rows.keys, self._last, None):
                raise Corrupt(f"the keys of a new tree do not ascend: {_BUG}")
            count = max(0, (len(rows) - self._width - 1) // (self._width + 1))
            each = self._width + 1
            starts = np.arange(count, dtype=np.int64) * each
            parts = Slices(rows, starts, np.full(count, self._width, dtype=np.int64))
            pivots = rows.rows(starts + self._width)
            self._left = rows.slice(count * each, len(rows))
            if self._proof is not None:
                self._proof.cut(rows.slice(0, count * each))
            left = Slices(
                rows,
                np.append(parts.starts, count * each),
                np.append(parts.counts, len(self._left)),
            )
            if not end_to_end(rows, left, pivots):
                raise Corrupt(f"cutting leaves lost entries: {_BUG}")
            yield from self._written(parts, pivots)

    def rest(self) -> Batch:
        """Return the last entries, for which there was no leaf."""
        keys, values = self._left.keys.to_pylist(), self._left.values.to_pylist()
        if self._proof is not None:
            self._proof.cut(self._left)
            self._proof.add_entries(keys, values)
        return keys, values

    def _written(self, parts: Sequence[Columns], pivots: Sequence[tuple[str, str]]) -> Iterator[tuple[Ref, str, str]]:
        if not parts:
            return
        run = slices_of(parts)
        paths = self._sink.add_leaves(run, self._system)
        ranges: list[Range] = [(first, last + "\0") for first, last in run.edges()]
        if self._proof is not None:
            between = [key for key, _ in pivots], [value for _, value in pivots]
            self._proof.replaced([], ([], []), zip(paths, ranges, strict=True), between)
        self._last = pivots[-1][0]
        for path, count, within, (key, value) in zip(paths, run.counts.tolist(), ranges, pivots, strict=True):
            yield Ref(0, path, keys=count, messages=0, within=within), key, value


def columns_of(keys: Sequence[str], values: Sequence[str]) -> Columns:
    """Return entries given as lists as columns."""
    return Columns(pa.array(keys, _STRING), pa.array(values, _STRING))


def _together(batches: Iterable[Columns]) -> Iterator[Columns]:
    """Yield small batches together."""
    waiting: list[Columns] = []
    for batch in batches:
        waiting.append(batch)
        if sum(map(len, waiting)) >= _ROWS:
            yield _joined(waiting)
            waiting = []
    if waiting:
        yield _joined(waiting)


def _joined(parts: Sequence[Columns]) -> Columns:
    return Columns(pa.concat_arrays([part.keys for part in parts]), pa.concat_arrays([part.values for part in parts]))

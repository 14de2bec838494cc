"""The proof that a rewrite kept the rows of a group of files, before it counts.

``counts`` compares what manifests hold of the files: rows, nulls of each column, and bounds. It is free, and finds a
file that was dropped or written twice, a lost column, and values beyond the bounds. ``hash`` compares the rows: how
many there are, and the sum of a 128-bit hash of each, whatever their order. A change passes with a chance of about one
in 2 to the 128.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import mmh3
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from trinitylake_core.iceberg.file_figures import ColumnFigures

_LANES: Final = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F))
"""The hash of a row has two halves, which begin with different numbers."""
_MIX: Final = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_COLUMN: Final = np.uint64(0xD6E8FEB86659FD93)
_NULL: Final = np.uint64(0xA0761D6478BD642F)
_MASK: Final = (1 << 64) - 1


class ProofFailed(Exception):
    """The rows after a rewrite are not those before it."""


def refuse_other_counts(before: ColumnFigures, after: ColumnFigures, deleted: int = 0) -> None:
    """Compare the figures of files before and after a rewrite. Pure.

    ``deleted`` rows were deleted by position before, and are not written any more; then nulls may be fewer. Raises
    ``ProofFailed``, which names the column.
    """
    rows = before.rows - deleted
    if rows != after.rows:
        raise ProofFailed(f"there were {rows:,} rows, and {after.rows:,} were written")
    for name, nulls in before.nulls.items():
        written = after.nulls.get(name)
        if not after.rows or written is None:
            continue
        if not nulls - deleted <= written <= nulls:
            raise ProofFailed(f"column {name!r} had {nulls:,} nulls, and {written:,} were written")
    for name, (low, high) in after.bounds.items():
        known = before.bounds.get(name)
        if known is not None and not known[0] <= low <= high <= known[1]:
            raise ProofFailed(f"column {name!r} has values beyond the bounds that it had")


@dataclass(frozen=True, slots=True)
class RowsHash:
    """Rows without their order: how many, and the sums of the halves of their hashes."""

    rows: int = 0
    sums: tuple[int, int] = (0, 0)

    def __add__(self, other: RowsHash) -> RowsHash:
        first, second = ((a + b) & _MASK for a, b in zip(self.sums, other.sums, strict=True))
        return RowsHash(self.rows + other.rows, (first, second))


def refuse_other_rows(before: RowsHash, after: RowsHash) -> None:
    """Compare the rows before and after a rewrite. Raises ``ProofFailed``."""
    if before.rows != after.rows:
        raise ProofFailed(f"there were {before.rows:,} rows, and {after.rows:,} were written")
    if before.sums != after.sums:
        raise ProofFailed(f"the rows are not the same: {before.rows:,} rows have another hash")


def hash_rows(batches: Iterable[pa.RecordBatch]) -> RowsHash:
    """Return the hash of rows, by the values of their columns in their order. Memory: one batch."""
    total = RowsHash()
    for batch in batches:
        total += _hash_batch(batch)
    return total


def _hash_batch(batch: pa.RecordBatch) -> RowsHash:
    rows = batch.num_rows
    if not rows:
        return RowsHash()
    halves = [np.full(rows, start, dtype=np.uint64) for start in _LANES]
    for number, column in enumerate(batch.columns):
        values = _hash_column(column)
        place = np.uint64((number + 1) * int(_COLUMN) & _MASK)
        for lane, value in enumerate(values):
            halves[lane] = _mix((halves[lane] * _MIX[lane]) ^ (value + place))
    first, second = (int(np.sum(half, dtype=np.uint64)) for half in halves)
    return RowsHash(rows, (first, second))


def _mix(values: Any) -> Any:
    """Return numbers of 64 bits whose bits depend on all of theirs: the end of splitmix64, one to one."""
    values = (values ^ (values >> np.uint64(30))) * _MIX[0]
    values = (values ^ (values >> np.uint64(27))) * _MIX[1]
    return values ^ (values >> np.uint64(31))


def _hash_column(column: pa.Array) -> tuple[Any, Any]:
    """Return both halves of the hashes of a column's values. Nulls have a hash of their own."""
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    words = _words_of(column)
    if words is None:
        first, second = _hash_texts(column)
    else:
        first, second = (np.full(len(column), start, dtype=np.uint64) for start in _LANES)
        for word in words:
            first = _mix(first ^ word)
            second = _mix(second + word)
    if column.null_count:
        is_null = column.is_null().to_numpy(zero_copy_only=False)
        first = np.where(is_null, _NULL, first)
        second = np.where(is_null, _NULL, second)
    return first, second


def _words_of(column: pa.Array) -> list[Any] | None:
    """Return the values of a column of a fixed width as numbers of 64 bits; ``None`` for other types."""
    kind = column.type
    if pa.types.is_boolean(kind):
        return [pc.fill_null(column, False).cast(pa.uint8()).to_numpy(zero_copy_only=False).astype(np.uint64)]
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_temporal(kind)
    if not is_number and not pa.types.is_decimal128(kind):
        return None
    width = kind.bit_width // 8
    cells_of_all = column.buffers()[1]
    if cells_of_all is None:
        return []
    data = np.frombuffer(cells_of_all, dtype=np.uint8)
    begin = column.offset * width
    cells = data[begin : begin + len(column) * width]
    if width == 16:
        pairs = cells.view(np.uint64).reshape(-1, 2)
        return [pairs[:, 0].copy(), pairs[:, 1].copy()]
    return [cells.view(f"u{width}").astype(np.uint64)]


def _hash_texts(column: pa.Array) -> tuple[Any, Any]:
    """Return both halves of the hashes of texts, bytes, and values that contain others."""
    first = np.zeros(len(column), dtype=np.uint64)
    second = np.zeros(len(column), dtype=np.uint64)
    known: dict[Any, tuple[int, int]] = {}
    for number, value in enumerate(column.to_pylist()):
        if value is None:
            continue
        text = value if isinstance(value, str | bytes) else repr(value)
        halves = known.get(text)
        if halves is None:
            low, high = mmh3.hash64(text, signed=False)
            halves = known[text] = (low, high)
            if len(known) > _KNOWN:
                known.clear()
        first[number], second[number] = halves
    return first, second


_KNOWN: Final = 100_000
"""So many values of a batch are hashed once."""

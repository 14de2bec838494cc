"""The proof that a rewrite kept the rows of a group of files, before it counts.

``counts`` compares what manifests hold of the files: rows, nulls of each column, and bounds. It is free, and finds a
file that was dropped or written twice, a lost column, and values beyond the bounds. ``hash`` compares the rows: how
many there are, and the sum of a 128-bit hash of each, whatever their order. A change passes with a chance of about one
in 2 to the 128. And it compares what the manifest says of each new file with its rows (``ClaimedColumns``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import mmh3
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from trinitylake_core.iceberg.file_figures import ColumnClaim, ColumnFigures

_LANES: Final = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F))
"""The hash of a row has two halves, which begin with different numbers."""
_MIX: Final = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_COLUMN: Final = np.uint64(0xD6E8FEB86659FD93)
_NULL: Final = np.uint64(0xA0761D6478BD642F)
_MASK: Final = (1 << 64) - 1
_FIELD_ID: Final = b"PARQUET:field_id"
_TOGETHER: Final = 1 << 14
_LONG: Final = 64
"""Texts and bytes above that are hashed one by one: a round over the others costs what the longest of them takes."""
_LARGE: Final = (pa.large_string(), pa.large_binary())
_BITS_OF: Final = np.array([(1 << 8 * size) - 1 for size in range(9)], dtype=np.uint64)
"""The bits of the first bytes of eight, by how many they are."""
_Halves = tuple[Any, Any]
"""Two arrays of numbers of 64 bits, one of each for a value."""


class ProofFailed(Exception):
    """The rows after a rewrite are not those before it."""


def refuse_other_counts(before: ColumnFigures, after: ColumnFigures) -> None:
    """Compare the figures of files before and after a rewrite. Pure. Raises ``ProofFailed``, which names the column."""
    _refuse_other_number(before.rows, after.rows)
    for name, nulls in before.nulls.items():
        written = after.nulls.get(name)
        if not after.rows or written is None:
            continue
        if written != nulls:
            raise ProofFailed(f"column {name!r} had {nulls:,} nulls, and {written:,} were written")
    for name, (low, high) in after.bounds.items():
        known = before.bounds.get(name)
        if known is not None and not known[0] <= low <= high <= known[1]:
            raise ProofFailed(f"column {name!r} has values beyond the bounds that it had")


def _refuse_other_number(before: int, after: int) -> None:
    if before != after:
        raise ProofFailed(f"there were {before:,} rows, and {after:,} were written")


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
    _refuse_other_number(before.rows, after.rows)
    if before.sums != after.sums:
        raise ProofFailed(f"the rows are not the same: {before.rows:,} rows have another hash")


class ClaimedColumns:
    """What the manifest says of the columns of a file, beside what its rows say: a second way to these figures.

    An engine skips files by them: a wrong one loses rows of queries, or deletes rows that do not match.
    """

    def __init__(self, claims: Mapping[int, ColumnClaim]) -> None:
        self._claims = claims
        self._nulls: Counter[int] = Counter()
        self._nans: Counter[int] = Counter()

    def add(self, columns: Sequence[int], batch: pa.RecordBatch) -> None:
        """Count the values of some rows, by field IDs of their columns. Raises ``ProofFailed``: beyond a bound."""
        for number, column in zip(columns, batch.columns, strict=True):
            claim = self._claims.get(number)
            if claim is None:
                continue
            self._nulls[number] += column.null_count
            values = column.drop_null()
            if claim.nans is not None:
                is_nan = pc.is_nan(values)
                self._nans[number] += is_nan.true_count
                values = values.filter(pc.invert(is_nan))
            if len(values):
                self._refuse_beyond(claim, values)

    def _refuse_beyond(self, claim: ColumnClaim, values: pa.Array) -> None:
        found = pc.min_max(values)
        low, high = _plain_value(found["min"]), _plain_value(found["max"])
        is_below = claim.low is not None and low < claim.low
        if is_below or (claim.high is not None and high > claim.high):
            raise ProofFailed(f"the manifest has bounds of column {claim.name!r} beyond which values were written")

    def refuse_others(self) -> None:
        """Compare the counts, when all rows were added. Raises ``ProofFailed``."""
        for number, claim in self._claims.items():
            nans = None if claim.nans is None else self._nans[number]
            if (self._nulls[number], nans) != (claim.nulls, claim.nans):
                raise ProofFailed(
                    f"the manifest has other counts of NULL or NaN of column {claim.name!r} than its rows"
                )


def _plain_value(value: pa.Scalar) -> Any:
    """Return a value as the bounds of manifests have it: dates and times are numbers there."""
    return value.value if pa.types.is_temporal(value.type) else value.as_py()


def hash_file(
    data: bytes, columns: Sequence[int], claimed: ClaimedColumns | None = None, *, batch_rows: int = _TOGETHER
) -> RowsHash:
    """Return the hash of the rows of a Parquet file, by the values of columns in the order of their field IDs.

    ``claimed`` is told what the rows are, and refuses what its manifest says otherwise of them. Arrow's dataset scanner
    reads the file, which no rewrite uses. Memory: a row group, whose size was measured before, and some eight times
    what ``batch_rows`` rows of it take.
    """
    from pyarrow import dataset  # it imports pandas, and Dagster loads this module for its options

    in_memory = dataset.ParquetFragmentScanOptions(pre_buffer=False)
    fragment = dataset.ParquetFileFormat(default_fragment_scan_options=in_memory).make_fragment(pa.BufferReader(data))
    places: dict[int, int] = {}
    for number, field in enumerate(fragment.physical_schema):
        identity = int(field.metadata[_FIELD_ID])
        places[identity] = number
    order = [places[column] for column in columns]
    scanner = fragment.scanner(
        batch_size=min(batch_rows, _TOGETHER),
        batch_readahead=0,
        fragment_readahead=0,
        use_threads=False,
    )

    def read() -> Iterator[pa.RecordBatch]:
        for each in scanner.to_batches():
            batch = each.select(order)
            if claimed is not None:
                claimed.add(columns, batch)
            yield batch

    total = hash_rows(read())
    if claimed is not None:
        claimed.refuse_others()
    return total


def hash_rows(batches: Iterable[pa.RecordBatch]) -> RowsHash:
    """Return the hash of rows, by the values of their columns in their order. Memory: one batch."""
    total = RowsHash()
    for batch in batches:
        first, second = _hash_parts(batch.num_rows, batch.columns)
        low = int(np.sum(first, dtype=np.uint64))
        high = int(np.sum(second, dtype=np.uint64))
        total += RowsHash(batch.num_rows, (low, high))
    return total


def _mix(values: Any) -> Any:
    """Return numbers of 64 bits whose bits depend on all of theirs: the end of splitmix64, one to one."""
    mixed = values ^ (values >> np.uint64(30))
    mixed *= _MIX[0]
    mixed ^= mixed >> np.uint64(27)
    mixed *= _MIX[1]
    mixed ^= mixed >> np.uint64(31)
    return mixed


def _hash_values(column: pa.Array) -> _Halves:
    """Return both halves of the hashes of a column's values: of their bits, so -0.0 is not 0.0. Nulls have their own.

    What is nested is hashed by itself, with its place: NULL is not an empty list, nor a struct of nulls.
    """
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    kind = column.type
    if pa.types.is_struct(kind):
        halves = _hash_parts(len(column), column.flatten())
    elif pa.types.is_map(kind):
        halves = _hash_lists(column.offsets, [column.keys, column.items])
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        halves = _hash_lists(column.offsets, [column.values])
    else:
        words = _words_of(column)
        halves = _hash_texts(column) if words is None else _hash_words(len(column), words)
    if column.null_count:
        is_null = column.is_null().to_numpy(zero_copy_only=False)
        first = np.where(is_null, _NULL, halves[0])
        second = np.where(is_null, _NULL, halves[1])
        return first, second
    return halves


def _hash_parts(rows: int, parts: Iterable[pa.Array]) -> _Halves:
    """Return the hashes of rows of which each has a value of some columns."""
    halves = _start(rows)
    for number, part in enumerate(parts):
        place = np.uint64((number + 1) * int(_COLUMN) & _MASK)
        for lane, values in enumerate(_hash_values(part)):
            mixed = halves[lane] * _MIX[lane]
            halves[lane] = _mix(mixed ^ (values + place))
    return halves[0], halves[1]


def _hash_lists(offsets: pa.Array, values: Iterable[pa.Array]) -> _Halves:
    """Return the hashes of lists: how many values, and the sum of those with their places.

    Batches share the arrays of ``values`` with the other rows of their row group.
    """
    bounds = offsets.to_numpy(zero_copy_only=False).astype(np.int64)
    first = bounds[0]
    last = bounds[-1]
    begins = bounds[:-1] - first
    ends = bounds[1:] - first
    lengths = ends - begins
    count = last - first
    place_in_list = np.arange(count) - np.repeat(begins, lengths)
    places = _mix(place_in_list.astype(np.uint64) + _COLUMN)
    own = [each.slice(first, count) for each in values]
    halves_of_values = _hash_parts(count, own)
    sizes = lengths.astype(np.uint64) * _COLUMN
    halves = _start(len(lengths))
    for lane, of_values in enumerate(halves_of_values):
        placed = _mix(of_values ^ places)
        sums = np.zeros(len(placed) + 1, dtype=np.uint64)
        np.cumsum(placed, out=sums[1:])
        of_lists = sums[ends] - sums[begins]
        mixed = halves[lane] * _MIX[lane]
        halves[lane] = _mix(mixed ^ (of_lists + sizes))
    return halves[0], halves[1]


def _hash_words(rows: int, words: Sequence[Any]) -> _Halves:
    """Return the hashes of values of one or two numbers of 64 bits."""
    first, second = _start(rows)
    for word in words:
        first = _mix(first ^ word)
        second = _mix(second + word)
    return first, second


def _start(rows: int) -> list[Any]:
    return [np.full(rows, start, dtype=np.uint64) for start in _LANES]


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
        words = cells.view(np.uint64)
        low = words[0::2]
        high = words[1::2]
        return [low, high]
    return [cells.view(f"u{width}").astype(np.uint64)]


def _hash_texts(column: pa.Array) -> _Halves:
    """Return both halves of the hashes of texts and bytes, of all at once, eight bytes after eight."""
    if not len(column):
        return _hash_words(0, [])
    begins, sizes = _places_of(column)
    if column.null_count:  # what lies below a NULL may be anything
        sizes[column.is_null().to_numpy(zero_copy_only=False)] = 0
    first, second = _hash_words(len(column), [sizes.astype(np.uint64)])
    words = _words_at(column.buffers()[-1], begins, sizes)
    is_long = sizes > _LONG
    chosen = np.flatnonzero((sizes > 0) & ~is_long)
    done = 0
    while len(chosen):
        left = sizes[chosen] - done
        bits = _BITS_OF[np.minimum(left, 8)]
        places = begins[chosen] - begins[0] + done
        word = words[places] & bits
        first[chosen] = _mix(first[chosen] ^ word)
        second[chosen] = _mix(second[chosen] + word)
        chosen = chosen[left > 8]
        done += 8
    if is_long.any():
        long = column.filter(pa.array(is_long))
        first[is_long], second[is_long] = _hash_long(long)
    return first, second


def _places_of(column: pa.Array) -> _Halves:
    """Return where the bytes of each value begin, and how many there are."""
    kind = column.type
    rows = len(column)
    if pa.types.is_fixed_size_binary(kind):
        width = kind.byte_width
        places = np.arange(rows) + column.offset
        return places * width, np.full(rows, width)
    is_large = kind in _LARGE
    cells = column.buffers()[1]
    ends = np.frombuffer(cells, dtype=np.int64 if is_large else np.int32)
    bounds = ends[column.offset : column.offset + rows + 1].astype(np.int64)
    return bounds[:-1], np.diff(bounds)


def _words_at(data: pa.Buffer | None, begins: Any, sizes: Any) -> Any:
    """Return the eight bytes from each byte on, as a number, beginning with the first value."""
    end = begins[-1] + sizes[-1]
    padded = np.zeros(end - begins[0] + 8, dtype=np.uint8)
    padded[:-8] = np.frombuffer(data or b"", dtype=np.uint8)[begins[0] : end]
    return np.ndarray((len(padded) - 7,), "<u8", padded, strides=(1,))


def _hash_long(column: pa.Array) -> _Halves:
    """Return both halves of the hashes of long texts and bytes; each distinct one of a batch is hashed once.

    Texts are hashed by their bytes: no writer need have made them UTF-8.
    """
    encoded = column.dictionary_encode()
    known: list[tuple[int, int]] = []
    for text in encoded.dictionary:
        halves = mmh3.hash64(text.as_buffer().to_pybytes(), signed=False)
        known.append(halves)
    numbers = encoded.indices.to_numpy()
    found = np.array(known, dtype=np.uint64)[numbers]
    return found[:, 0], found[:, 1]

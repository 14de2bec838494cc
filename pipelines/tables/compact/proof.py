"""The proof that a rewrite kept the rows of a group of files, before it counts.

``counts`` compares what manifests hold of the files: rows, nulls of each column, and bounds. It is free, and finds a
file that was dropped or written twice, a lost column, and values beyond the bounds. ``hash`` compares the rows in their
order, which a rewrite keeps: how many there are, and a 128-bit hash of all values of each column. A change passes with
a chance of about one in 2 to the 128. And it compares what the manifest says of each new file with its rows
(``ClaimedColumns``).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import mmh3
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from trinitylake_core.iceberg.rewriting.file_figures import ColumnClaim, ColumnFigures

_FIELD_ID: Final = b"PARQUET:field_id"
_TOGETHER: Final = 1 << 14
_LARGE: Final = (pa.large_string(), pa.large_binary())
_Place = tuple[int, ...]
"""A part of the rows: the number of a column, and of what is in it."""


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


class RowsHash:
    """Rows in their order: how many, and hashes of what their columns have.

    How the rows are cut into batches means nothing. Each part of a column has its hashes, what is nested, too: of where
    the NULLs are, of how many values or bytes each other value has, and of the bits of all these. So NULL is not an
    empty list, nor a struct of NULLs, and -0.0 is not 0.0; what lies below a NULL means nothing.
    """

    def __init__(self) -> None:
        self.rows = 0
        self._hashes: defaultdict[tuple[_Place, str], Any] = defaultdict(mmh3.mmh3_x64_128)
        self._values: Counter[_Place] = Counter()

    def add(self, batch: pa.RecordBatch) -> None:
        """Add some rows. Memory: about what they take."""
        self.rows += batch.num_rows
        for number, column in enumerate(batch.columns):
            self._add((number,), column)

    def digests(self) -> dict[tuple[_Place, str], bytes]:
        """Return the hashes, by what they are of."""
        return {about: each.digest() for about, each in self._hashes.items()}

    def _add(self, place: _Place, column: pa.Array) -> None:
        if isinstance(column, pa.ExtensionArray):
            column = column.storage
        before = self._values[place]
        self._values[place] += len(column)
        if column.null_count:
            is_null = column.is_null().to_numpy(zero_copy_only=False)
            self._hash(place, "nulls", np.flatnonzero(is_null) + before)
            column = column.drop_null()
        kind = column.type
        if not len(column):
            return
        if pa.types.is_struct(kind):
            self._add_parts(place, column.flatten())
        elif pa.types.is_map(kind):
            self._add_lists(place, column.offsets, [column.keys, column.items])
        elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
            self._add_lists(place, column.offsets, [column.values])
        elif pa.types.is_boolean(kind):
            self._hash(place, "values", column.cast(pa.uint8()).to_numpy())
        else:
            self._add_plain(place, column)

    def _add_parts(self, place: _Place, parts: Sequence[pa.Array]) -> None:
        for number, part in enumerate(parts):
            self._add((*place, number), part)

    def _add_lists(self, place: _Place, offsets: pa.Array, values: Sequence[pa.Array]) -> None:
        """Add lists. Batches share the arrays of ``values`` with the other rows of their row group."""
        bounds = offsets.to_numpy(zero_copy_only=False).astype(np.int64)
        self._hash(place, "sizes", np.diff(bounds))
        first = bounds[0]
        own = [each.slice(first, bounds[-1] - first) for each in values]
        self._add_parts(place, own)

    def _add_plain(self, place: _Place, column: pa.Array) -> None:
        """Add values of a fixed width, or texts and bytes. No writer need have made the texts UTF-8."""
        first = column.offset
        end = first + len(column)
        _, cells, *texts = column.buffers()
        width = 1
        if texts:
            kind = np.int64 if column.type in _LARGE else np.int32
            bounds = np.frombuffer(cells, kind)[first : end + 1]
            sizes = np.diff(bounds.astype(np.int64))
            self._hash(place, "sizes", sizes)
            cells = texts[0] or b""
            first = bounds[0]
            end = bounds[-1]
        else:
            width = column.type.bit_width // 8
        data = np.frombuffer(cells, np.uint8)
        self._hash(place, "values", data[first * width : end * width])

    def _hash(self, place: _Place, about: str, values: Any) -> None:
        self._hashes[place, about].update(np.ascontiguousarray(values))


def refuse_other_rows(before: RowsHash, after: RowsHash) -> None:
    """Compare the rows before and after a rewrite. Raises ``ProofFailed``."""
    _refuse_other_number(before.rows, after.rows)
    if before.digests() != after.digests():
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
                nans = is_nan.true_count
                self._nans[number] += nans
                values = values.filter(pc.invert(is_nan)) if nans else values
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


def hash_files(
    contents: Sequence[bytes],
    columns: Sequence[int],
    total: RowsHash,
    claimed: ClaimedColumns | None = None,
    *,
    batch_rows: int = _TOGETHER,
) -> None:
    """Add the rows of Parquet files, one after the other, to a hash, with the columns in the order of some field IDs.

    ``claimed`` is told what the rows are, and refuses what its manifest says otherwise of them. Arrow's dataset scanner
    reads the files, which no rewrite uses: those of one schema together, because a scan takes as long to begin as to
    read 10,000 rows. Memory: two row groups, whose sizes were measured before, and some times what ``batch_rows`` rows
    of one take.
    """
    from pyarrow import dataset  # it imports pandas, and Dagster loads this module for its options

    in_memory = dataset.ParquetFragmentScanOptions(pre_buffer=False)
    form = dataset.ParquetFileFormat(default_fragment_scan_options=in_memory)
    fragments = (form.make_fragment(pa.BufferReader(data)) for data in contents)
    for _, alike in groupby(fragments, lambda each: each.physical_schema.serialize()):
        some = list(alike)
        schema = some[0].physical_schema
        places = {int(field.metadata[_FIELD_ID]): number for number, field in enumerate(schema)}
        order = [places[column] for column in columns]
        scanner = dataset.FileSystemDataset(some, schema, form).scanner(
            batch_size=min(batch_rows, _TOGETHER),
            batch_readahead=0,
            fragment_readahead=1,
            use_threads=False,
        )
        for each in scanner.to_batches():
            batch = each.select(order)
            if claimed is not None:
                claimed.add(columns, batch)
            total.add(batch)
    if claimed is not None:
        claimed.refuse_others()

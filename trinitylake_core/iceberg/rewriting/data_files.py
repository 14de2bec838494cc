"""Parquet files of a partition become fewer, as they are: Arrow reads rows and writes them, and nothing is translated.

A file that is not exactly of the table's current schema, or that this process could not write as the properties of the
table want it, is Spark's. Whatever Arrow and PyIceberg raise for the content of a file becomes one error, of constant
words.
"""

from __future__ import annotations

import inspect
import io
import math
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet
from pyiceberg import types
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
    schema_to_pyarrow,
)
from pyiceberg.schema import Schema, sanitize_column_names
from pyiceberg.table.metadata import TableMetadata

from trinitylake_core.iceberg.border import PARQUET, in_our_words
from trinitylake_core.iceberg.reading.errors import Malformed
from trinitylake_core.iceberg.reading.parquet_pages import MaybeTooLarge, TooLarge, Unpacked, measure, refuse_footer
from trinitylake_core.iceberg.reading.references import UnreadableTable
from trinitylake_core.iceberg.rewriting.rewritten import DataFile
from trinitylake_core.table_places import Located

_ROW_GROUP_BYTES: Final = 128 << 20
"""A row group of a new file has at the most so many bytes of rows, unpacked: they are in memory at once."""
_FIELD_ID: Final = b"PARQUET:field_id"
_SHORT: Final = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}
"""Types that are one in Parquet: a file says in which its writer held the values."""


class NeedsSpark(Exception):
    """A group of files that this process does not merge as it is, and why."""


# -- reading ---------------------------------------------------------------------------------------------

OpenedFile = tuple[parquet.ParquetFile, Unpacked]
"""A Parquet file, and what it takes to unpack it."""


class DataFileReader:
    """Reads the rows of data files that have the current schema of their table."""

    def __init__(self, metadata: TableMetadata, located: Located) -> None:
        self._located = located
        self._schema = schema_to_pyarrow(sanitize_column_names(metadata.schema()))

    def content(self, file: DataFile) -> bytes:
        """Return a data file. One ``get``, which asks for no more than the manifest says that there is.

        Raises:
            UnreadableTable: it has another size.
            FileMissing, StorageError.
        """
        storage, path = self._located.find(file.uri)
        data = storage.read_range(path, 0, file.size + 1)
        if len(data) != file.size:
            raise UnreadableTable(f"it has another size than the {file.size:,} bytes in its manifest", path=file.uri)
        return data

    def open(self, file: DataFile, data: bytes) -> OpenedFile:
        """Return a data file whose rows can be read.

        Raises:
            NeedsSpark: it is no Parquet file, or may be too large here.
            UnreadableTable: it contradicts itself.
            TooLarge: a part of it that is unpacked at once takes too much memory.
        """
        if file.entry.file_format != PARQUET or file.entry.key_metadata is not None:
            raise NeedsSpark(f"{file.uri} is no Parquet file, or an encrypted one")
        try:
            return open_parquet(file.uri, data)
        except MaybeTooLarge as error:
            raise NeedsSpark(str(error)) from None

    def rows(self, file: DataFile, content: OpenedFile) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a data file in their order, by the fields of the table, some 64 MiB at a time at the most.

        Raises:
            NeedsSpark: it has another schema than the table has now.
            UnreadableTable: it contradicts itself.
        """
        opened, unpacked = content
        with in_our_words(f"the data file {file.uri}"):
            found = opened.schema_arrow
        try:
            order = _order_in(self._schema, found)
        except NeedsSpark as error:
            raise NeedsSpark(f"{file.uri} has another schema than the table has now: {error}") from None
        with in_our_words(f"the data file {file.uri}"):
            for batch in opened.iter_batches(unpacked.batch_rows, use_threads=False):
                yield batch.select(order).cast(self._schema)


def open_parquet(uri: str, data: bytes) -> OpenedFile:
    """Return a Parquet file that can be unpacked in bounds. Raises ``UnreadableTable``, ``TooLarge``."""
    try:
        refuse_footer(data)
        with in_our_words(f"the data file {uri}"):
            opened = parquet.ParquetFile(pa.BufferReader(data), pre_buffer=False)
        return opened, measure(data, opened.metadata)
    except TooLarge as error:
        raise type(error)(f"{uri}: {error}") from None
    except Malformed as error:
        raise UnreadableTable(str(error), path=uri) from None


def _order_in(wanted: pa.Schema, found: pa.Schema) -> list[int]:
    """Return where the columns of a table are in a file. Raises ``NeedsSpark``: they are others."""
    places = {_id_of(each): number for number, each in enumerate(found)}
    order: list[int] = []
    for each in wanted:
        place = places.get(_id_of(each))
        if place is None or not _is_like(each, found.field(place)):
            raise NeedsSpark(f"column {each.name!r} is not in it, or has another ID, name or type there")
        order.append(place)
    if len(order) != len(found):
        raise NeedsSpark("it has other columns")
    return order


def _id_of(field: pa.Field) -> int | None:
    """Return the ID of a field: what holds the keys and values of a map has none."""
    if field.metadata is None:
        return None
    text = field.metadata.get(_FIELD_ID, b"")
    return int(text) if text.isdigit() else None


def _is_like(wanted: pa.Field, found: pa.Field, *, is_named: bool = True) -> bool:
    """Whether a field of a file is the table's. Writers give the parts of lists and maps names of their own."""
    if _id_of(wanted) != _id_of(found) or (is_named and wanted.name != found.name):
        return False
    if found.nullable and not wanted.nullable:
        return False
    ours = wanted.type
    theirs = found.type
    if not ours.num_fields:
        return theirs in (ours, _SHORT.get(ours))
    is_list = pa.types.is_large_list(ours) and pa.types.is_list(theirs)
    if not (is_list or theirs.id == ours.id) or theirs.num_fields != ours.num_fields:
        return False
    are_named = pa.types.is_struct(ours) and _id_of(wanted) is not None
    inner = ((ours.field(number), theirs.field(number)) for number in range(ours.num_fields))
    return all(_is_like(*each, is_named=are_named) for each in inner)


# -- writing ---------------------------------------------------------------------------------------------

_CODECS: Final = {
    "uncompressed": "none",
    "snappy": "snappy",
    "gzip": "gzip",
    "zstd": "zstd",
    "lz4": "lz4",
    "lz4_raw": "lz4",
    "brotli": "brotli",
}
_LEVELS: Final = {"gzip": range(1, 10), "zstd": range(1, 23), "brotli": range(1, 12)}
_PARQUET: Final = "write.parquet."
_BLOOM: Final = f"{_PARQUET}bloom-filter-enabled.column."
_BLOOM_SHARE: Final = f"{_PARQUET}bloom-filter-fpp.column."
_BLOOM_SHARE_DEFAULT: Final = 0.01
_BLOOM_SHARE_LEAST: Final = 1e-6
"""A filter that is wrong less often is larger than what it saves; there is no end to how large a property makes it."""
_BLOOM_LEAST: Final = 32
"""Bytes of the smallest bloom filter that Arrow makes; the others are powers of two."""
_BLOOM_MOST: Final = 128 << 20
"""Bytes of the bloom filters of all row groups that one writer makes: they are in memory until their file is closed."""
_SAMPLE_ROWS: Final = 1 << 14
_REPEATING: Final = 2 / 3
"""A column is written without a dictionary if more than so many of the values of the sample are distinct."""
_WRITER_OPTIONS: Final = inspect.signature(parquet.ParquetWriter.__init__).parameters
"""What this release of Arrow can be told."""


class RowWriter:
    """Writes rows of one partition as new Parquet files of a table, in memory, as its properties want them.

    Their names are made here: below ``data`` in the directory of the table, whatever its properties say.
    """

    def __init__(self, metadata: TableMetadata) -> None:
        """Raise ``NeedsSpark``: the properties of the table ask for what Arrow does not write."""
        self._metadata = metadata
        self._schema = sanitize_column_names(metadata.schema())
        self._properties = {name: str(value) for name, value in metadata.properties.items()}
        self._refuse_others()
        self._packing = self._options()
        self._bloom_left = _BLOOM_MOST

    def write(
        self, batches: Iterable[pa.RecordBatch], like: DataFile, note_written: Callable[[int], object]
    ) -> tuple[DataFile, bytes] | None:
        """Return a new file with all rows of some batches, and its content; ``None`` if there are no rows.

        ``like`` is a file of the partition, by whose spec the new one is written, too. ``note_written`` is called with
        the bytes of the file so far, when a row group is written and before more rows are taken. Memory: one row group,
        and the file. Raises ``ValidationError``, ``NeedsSpark``.
        """
        nans = NanCounts(self._schema)
        stream = io.BytesIO()
        writer: Any = None
        bloom: dict[str, Any] = {}
        size = 0
        for gathered in _gather(batches, self._number("row-group-size-bytes", _ROW_GROUP_BYTES)):
            if writer is None:
                bloom, size = self._bloom_filters(sum(each.num_rows for each in gathered))
            self._bloom_left -= size
            if self._bloom_left < 0:
                raise NeedsSpark(f"its properties ask for bloom filters of more than {_BLOOM_MOST:,} bytes")
            with in_our_words("the new data file"):
                if writer is None:
                    repeats = self._repeating_columns(gathered)
                    options = self._packing | bloom | {"use_dictionary": repeats}
                    writer = parquet.ParquetWriter(stream, gathered[0].schema, **options)
                nans.add(gathered)
                table = pa.Table.from_batches(gathered)
                writer.write_table(table, row_group_size=max(1, table.num_rows))
            note_written(stream.tell())
        if writer is None:
            return None
        with in_our_words("the new data file"):
            writer.close()
            data = stream.getvalue()
        with in_our_words("PyIceberg does not make the figures of its new files", NeedsSpark):
            figures = self._figures(writer.writer.metadata, nans.counts)
        location = f"{self._metadata.location.rstrip('/')}/data/{uuid.uuid4()}.parquet"
        return like.replaced_by(location, len(data), figures), data

    def _figures(self, footer: parquet.FileMetaData, nans: Mapping[int, int]) -> dict[str, Any]:
        """Return what a manifest has of a new file."""
        plan = compute_statistics_plan(self._schema, self._metadata.properties)
        paths = parquet_path_to_id_mapping(self._schema)
        made = data_file_statistics_from_parquet_metadata(footer, plan, paths).to_serialized_dict()
        counted = made["value_counts"]
        made["nan_value_counts"] = {number: count for number, count in nans.items() if number in counted}
        for number in _without_bounds(footer, paths):
            for name in ("lower_bounds", "upper_bounds"):
                made[name].pop(number, None)
        return made

    def _refuse_others(self) -> None:
        """Refuse what only Iceberg's own writer can do. Raises ``NeedsSpark``."""
        asked = self._properties
        if asked.get("write.format.default", "parquet").lower() != "parquet":
            raise NeedsSpark("its property write.format.default asks for files of another format")
        others = [each for each in asked if each.startswith((f"{_PARQUET}stats-enabled.", "encryption."))]
        if others:
            raise NeedsSpark(f"its property {others[0]!r} asks for what only Iceberg's own writer does")
        codec = asked.get(f"{_PARQUET}compression-codec", "zstd").lower()
        if codec not in _CODECS:
            raise NeedsSpark("its property write.parquet.compression-codec asks for a codec that Arrow does not write")
        if self._bloom_columns() and "bloom_filter_options" not in _WRITER_OPTIONS:
            raise NeedsSpark("its properties ask for bloom filters, which this release of Arrow does not write")

    def _options(self) -> dict[str, Any]:
        """Return how files are written, by the properties of the table; Iceberg's defaults where they say nothing."""
        codec = _CODECS[self._properties.get(f"{_PARQUET}compression-codec", "zstd").lower()]
        options: dict[str, Any] = {
            "compression": codec,
            "data_page_size": self._number("page-size-bytes", 1 << 20),
            "max_rows_per_page": self._number("page-row-limit", 20_000),
            "dictionary_pagesize_limit": self._number("dict-size-bytes", 2 << 20),
            "data_page_version": "2.0" if self._properties.get(f"{_PARQUET}page-version") == "v2" else "1.0",
            "store_decimal_as_integer": True,
            "store_schema": False,
            "write_page_index": True,
        }
        level = self._number("compression-level", 0)
        if level in _LEVELS.get(codec, ()):
            options["compression_level"] = level
        if "max_rows_per_page" not in _WRITER_OPTIONS:
            del options["max_rows_per_page"]
        return options

    def _repeating_columns(self, batches: Sequence[pa.RecordBatch]) -> list[str]:
        """Return the columns of a file, by their paths, that are written with a dictionary: first rows tell.

        A dictionary of values that hardly repeat makes a file larger, and takes longer than all the rest.
        """
        first = pa.Table.from_batches(batches).slice(0, _SAMPLE_ROWS)
        unlike: set[str] = set()
        for name in first.column_names:
            if _hardly_repeats(first.column(name)):
                unlike.add(name)
        return [path for path in parquet_path_to_id_mapping(self._schema) if path not in unlike]

    def _number(self, name: str, default: int) -> int:
        """Return a number among the properties, which their writer may have made up; no row group is larger."""
        text = self._properties.get(f"{_PARQUET}{name}", "")
        is_number = text.isascii() and text.isdecimal() and len(text) <= 10 and int(text) > 0
        return min(int(text), _ROW_GROUP_BYTES) if is_number else default

    def _bloom_columns(self) -> list[str]:
        found = []
        for name, value in self._properties.items():
            if name.startswith(_BLOOM) and value.lower() == "true":
                found.append(name.removeprefix(_BLOOM))
        return found

    def _bloom_filters(self, rows: int) -> tuple[dict[str, Any], int]:
        """Return for which columns bloom filters are written, and their bytes in a row group, at the most.

        Raises ``NeedsSpark``: one is no column of a file.
        """
        columns = self._bloom_columns()
        if not columns:
            return {}, 0
        leaves = parquet_path_to_id_mapping(self._schema)
        asked = self._number("bloom-filter-max-bytes", 1 << 20)
        most = 1 << max(asked, _BLOOM_LEAST).bit_length() - 1
        options: dict[str, Any] = {}
        size = 0
        for each in columns:
            if each not in leaves:
                raise NeedsSpark(f"its properties ask for a bloom filter of {each!r}, which is no column of a file")
            share = _share(self._properties.get(f"{_BLOOM_SHARE}{each}", ""))
            bits = -8 / math.log1p(-(share**0.125))
            values = max(1, min(int(most * 8 / bits), rows))
            options[each] = {"ndv": values, "fpp": share}
            needed = math.ceil(values * bits / 8)
            size += max(_BLOOM_LEAST, 1 << (needed - 1).bit_length())
        return {"bloom_filter_options": options}, size


def _hardly_repeats(column: pa.ChunkedArray) -> bool:
    """Whether most values of a column are distinct; of what is nested nobody asks."""
    if pa.types.is_nested(column.type) or isinstance(column.type, pa.BaseExtensionType):
        return False
    distinct = pc.count_distinct(column).as_py()
    values = len(column) - column.null_count
    return bool(distinct > values * _REPEATING)


def _share(text: str) -> float:
    """Return a share in a property; a hundredth where it is none, or one that takes too large a filter."""
    try:
        share = float(text)
    except ValueError:
        return _BLOOM_SHARE_DEFAULT
    return share if _BLOOM_SHARE_LEAST <= share < 1 else _BLOOM_SHARE_DEFAULT


def _gather(batches: Iterable[pa.RecordBatch], most: int) -> Iterator[list[pa.RecordBatch]]:
    """Yield batches in lists, each enough for a row group."""
    gathered: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        gathered.append(batch)
        size += batch.nbytes
        if size >= most:
            yield gathered
            gathered = []
            size = 0
    if gathered:
        yield gathered


# -- figures of new files --------------------------------------------------------------------------------


class NanCounts:
    """Counts values that are no numbers, in columns of floating point and in those of structs."""

    def __init__(self, schema: Schema) -> None:
        self._fields = schema.fields
        self.counts: dict[int, int] = {}

    def add(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Count those of batches by this schema."""
        for batch in batches:
            self._add(self._fields, batch.columns)

    def _add(self, fields: Iterable[types.NestedField], columns: Iterable[pa.Array]) -> None:
        for field, column in zip(fields, columns, strict=True):
            kind = field.field_type
            if isinstance(kind, types.StructType):
                inner = column.flatten()
                self._add(kind.fields, inner)
            elif isinstance(kind, types.FloatType | types.DoubleType):
                number = field.field_id
                is_nan = pc.is_nan(column)
                found = pc.sum(is_nan).as_py()
                before = self.counts.get(number, 0)
                self.counts[number] = before + (found or 0)


def _without_bounds(footer: parquet.FileMetaData, paths: Mapping[str, int]) -> Iterator[int]:
    """Yield the columns of which a row group with values has no bounds: those of the others are not those of the file.

    Arrow leaves out bounds of more than 4 KiB, and of values that are all no numbers.
    """
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        for at in range(group.num_columns):
            column = group.column(at)
            found = column.statistics
            if found is None or (not found.has_min_max and found.null_count != column.num_values):
                yield paths[column.path_in_schema]

"""Reading and writing data files of Iceberg tables for a rewrite: rows by the table's schema, and new Parquet files.

What PyIceberg and Arrow raise for the content of a file becomes one error, of constant words.
"""

from __future__ import annotations

import io
import uuid
from collections.abc import Iterable, Iterator
from typing import Any, Final

import pyarrow as pa
from pyarrow import parquet
from pyiceberg.exceptions import ValidationError
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.fileformat import FileFormatFactory
from pyiceberg.io.pyarrow import (
    ArrowScan,
    _to_requested_schema,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
    schema_to_pyarrow,
)
from pyiceberg.schema import sanitize_column_names
from pyiceberg.table import FileScanTask
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.sorting import SortDirection
from pyiceberg.transforms import IdentityTransform

from trinitylake_core.iceberg.border import PARQUET, in_our_words
from trinitylake_core.iceberg.buffered_io import BufferedIO
from trinitylake_core.iceberg.references import UnreadableTable
from trinitylake_core.iceberg.rewritten import DataFile
from trinitylake_core.tables import Located

MOST_UNPACKED: Final = 4 << 30
"""Bytes of a data file, unpacked, by its own footer."""
_ROW_GROUP_BYTES: Final = 64 << 20
_CODEC: Final = "write.parquet.compression-codec"
_LEVEL: Final = "write.parquet.compression-level"
_CODECS: Final = {"uncompressed": "none", "snappy": "snappy", "gzip": "gzip", "zstd": "zstd", "lz4": "lz4"}


class RowReader:
    """Reads the rows of data files by the newest schema of their table."""

    def __init__(self, metadata: TableMetadata, located: Located) -> None:
        self._metadata = metadata
        self._located = located
        self._schema = metadata.schema()

    @property
    def located(self) -> Located:
        """The storages of the files of the table."""
        return self._located

    @property
    def schema(self) -> pa.Schema:
        """The schema of the rows, in Arrow's types."""
        return schema_to_pyarrow(self._schema, include_field_ids=False)

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

    def rows(self, file: DataFile, data: bytes) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a data file in their order. No request.

        Raises:
            UnreadableTable: it would take too much memory.
            ValidationError: it is no such file.
        """
        files = BufferedIO(self._located)
        files.hold(file.uri, data)
        with in_our_words(f"the data file {file.uri}"):
            if file.entry.file_format == PARQUET:
                _refuse_bomb(data, file.uri)
            scan = ArrowScan(self._metadata, files, self._schema, AlwaysTrue())
            yield from scan.to_record_batches([FileScanTask(file.entry)])


def _refuse_bomb(data: bytes, uri: str) -> None:
    """Refuse a file that says that it unpacks to more than a process should hold."""
    footer = parquet.read_metadata(io.BytesIO(data))
    unpacked = sum(footer.row_group(number).total_byte_size for number in range(footer.num_row_groups))
    if not 0 <= unpacked <= MOST_UNPACKED:
        raise UnreadableTable(f"it unpacks to more than {MOST_UNPACKED:,} bytes", path=uri)


class RowWriter:
    """Writes rows of one partition as new Parquet files of a table, in memory.

    Their names are made here: below ``data`` in the directory of the table, whatever its properties say.
    """

    def __init__(self, metadata: TableMetadata) -> None:
        self._metadata = metadata
        self._schema = metadata.schema()
        self._file_schema = sanitize_column_names(self._schema)
        self._arrow_schema = schema_to_pyarrow(self._file_schema, include_field_ids=True)

    def write(self, batches: Iterable[pa.RecordBatch], like: DataFile) -> tuple[DataFile, bytes] | None:
        """Return a new file with all rows of some batches, and its content; ``None`` if there are no rows.

        ``like`` is a file of the partition, by whose spec the new one is written, too. Memory: one row group, and the
        file. Raises ``ValidationError``.
        """
        with in_our_words("the new data file"):
            stream = io.BytesIO()
            writer: Any = None
            for gathered in _gather(self._to_requested(batch) for batch in batches):
                table = pa.Table.from_batches(gathered)
                if writer is None:
                    writer = parquet.ParquetWriter(
                        stream, table.schema, store_decimal_as_integer=True, **self._packing()
                    )
                writer.write_table(table)
            if writer is None:
                return None
            writer.close()
            data = stream.getvalue()
            figures = data_file_statistics_from_parquet_metadata(
                parquet_metadata=writer.writer.metadata,
                stats_columns=compute_statistics_plan(self._file_schema, self._metadata.properties),
                parquet_column_mapping=parquet_path_to_id_mapping(self._file_schema),
            )
            location = f"{self._metadata.location.rstrip('/')}/data/{uuid.uuid4()}.parquet"
            return like.replaced_by(location, len(data), figures.to_serialized_dict()), data

    def _to_requested(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows under the names, and with the IDs, that a file has."""
        requested = _to_requested_schema(
            requested_schema=self._file_schema,
            file_schema=self._schema,
            batch=batch,
            include_field_ids=True,
            format_model=FileFormatFactory.get(PARQUET),
        )
        # Columns that a file lacks come with larger types than those of the others.
        return requested.cast(self._arrow_schema)

    def _packing(self) -> dict[str, Any]:
        """Return how pages are packed, by the properties of the table; zstd where they say nothing that is known."""
        properties = self._metadata.properties
        codec = _CODECS.get(str(properties.get(_CODEC, "zstd")).lower(), "zstd")
        level = str(properties.get(_LEVEL, ""))
        if codec in {"zstd", "gzip"} and level.isascii() and level.isdecimal() and 1 <= int(level[:3]) <= 9:
            return {"compression": codec, "compression_level": int(level[:3])}
        return {"compression": codec}


def _gather(batches: Iterable[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    """Yield batches in lists, each enough for a row group."""
    gathered: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        gathered.append(batch)
        size += batch.nbytes
        if size >= _ROW_GROUP_BYTES:
            yield gathered
            gathered = []
            size = 0
    if gathered:
        yield gathered


def sort_keys(metadata: TableMetadata) -> list[tuple[str, str]]:
    """Return the columns by which Arrow sorts rows in a table's sort order.

    Raises ``ValidationError``: it has none, or one by computed values.
    """
    fields = metadata.sort_order().fields
    if not fields:
        raise ValidationError("it has no sort order: set one, or compact it with the strategy 'binpack'")
    keys: list[tuple[str, str]] = []
    for each in fields:
        name = metadata.schema().find_column_name(each.source_id)
        if not isinstance(each.transform, IdentityTransform) or name is None or "." in name:
            raise ValidationError("it is sorted by computed or nested values, which needs engine 'spark'")
        keys.append((name, "ascending" if each.direction == SortDirection.ASC else "descending"))
    return keys

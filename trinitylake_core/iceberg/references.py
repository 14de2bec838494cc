"""Which files the metadata of an Iceberg table refers to: manifest lists, manifests, data files, statistics.

Only what marking needs is decoded, for a cleaning reads the metadata of all tables and versions: JSON without a model,
and of Avro two columns, by a reader that is made once for each schema.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple, cast

from pyiceberg.avro.decoder import StreamingBinaryDecoder, new_decoder
from pyiceberg.avro.file import META_SCHEMA, SYNC_SIZE, AvroFileHeader
from pyiceberg.avro.reader import Reader, StructReader
from pyiceberg.avro.resolver import construct_reader
from pyiceberg.table import TableProperties
from pyiceberg.typedef import Record
from pyiceberg.types import StructType

from trinitylake_core.errors import Corrupt
from trinitylake_core.tables import full_uri

GC_ENABLED: Final = "gc.enabled"
"""The property by which the owner of a table forbids to delete its files."""
WRITTEN_PATHS: Final = (TableProperties.WRITE_DATA_PATH, TableProperties.WRITE_METADATA_PATH)
PACKED: Final = ".gz.metadata.json"
_DELETED: Final = 2
_LIST: Final = (500,)
"""``manifest_path`` of a manifest list, by the IDs that the Iceberg specification gives to columns."""
_MANIFEST: Final = (0, 2)
"""``status`` and ``data_file`` of a manifest."""
_DATA_FILE: Final = (100, 104, 134)
"""``file_path``, ``file_size_in_bytes`` and ``content`` of a data file; without the last it holds data."""
_OPTIONAL: Final = frozenset({134})


class UnreadableTable(Corrupt):
    """A file of a table is not what it should be."""


@dataclass(frozen=True, slots=True)
class References:
    """What a metadata file refers to, as URIs in one spelling.

    Attributes:
        uuid: the table's identity.
        location: the directory of the table.
        directories: where its files are written: ``location``, and other places that its properties name.
        manifest_lists: one of each snapshot.
        manifests: those that a snapshot of format version 1 names itself.
        statistics: files of statistics and of partition statistics.
        forbidden: whether its owner forbids others to delete its files (``gc.enabled``).
    """

    uuid: str
    location: str
    directories: frozenset[str]
    manifest_lists: frozenset[str]
    manifests: frozenset[str]
    statistics: frozenset[str]
    forbidden: bool


def decoded(data: bytes, location: str) -> dict[str, Any]:
    """Return table metadata as JSON. Raises ``UnreadableTable``."""
    try:
        found = json.loads(gzip.decompress(data) if location.endswith(PACKED) else data)
    except (ValueError, EOFError, OSError) as error:
        raise UnreadableTable(f"it is not a file of table metadata: {repr(error)[:200]}", path=location) from error
    if not isinstance(found, dict):
        raise UnreadableTable("it is not a file of table metadata: it is no JSON object", path=location)
    return found


def references(data: bytes, location: str) -> References:
    """Return the files that the metadata file at ``location`` refers to. Raises ``UnreadableTable``."""
    return references_in(decoded(data, location), location)


def references_in(found: dict[str, Any], location: str) -> References:
    """Return the files that table metadata, as JSON, refer to. Raises ``UnreadableTable``."""
    try:
        snapshots = found.get("snapshots") or []
        statistics = [*(found.get("statistics") or []), *(found.get("partition-statistics") or [])]
        properties = found.get("properties") or {}
        written = [properties[name] for name in WRITTEN_PATHS if properties.get(name)]
        return References(
            str(found.get("table-uuid") or ""),
            full_uri(str(found["location"])).rstrip("/"),
            _uris(found["location"], *written),
            _uris(*(each["manifest-list"] for each in snapshots if "manifest-list" in each)),
            _uris(*(path for each in snapshots if "manifest-list" not in each for path in each["manifests"])),
            _uris(*(each["statistics-path"] for each in statistics)),
            str(properties.get(GC_ENABLED, "true")).strip().lower() == "false",
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnreadableTable(f"it is not a file of table metadata: {repr(error)[:200]}", path=location) from error


def _uris(*locations: Any) -> frozenset[str]:
    return frozenset(full_uri(str(each)).rstrip("/") for each in locations)


def manifests_in(data: bytes, location: str) -> Iterator[str]:
    """Yield the URIs of the manifests in a manifest list. Raises ``UnreadableTable``."""
    return (full_uri(row[0]) for row in _rows(data, location, _LIST))


class TableFile(NamedTuple):
    """A data or delete file: its URI, its size in bytes, and whether it holds deletes."""

    uri: str
    size: int
    deletes: bool


def files_in(data: bytes, location: str) -> Iterator[TableFile]:
    """Yield the data and delete files in a manifest, without those that are DELETED. Raises ``UnreadableTable``."""
    for status, file in (tuple(row) for row in _rows(data, location, _MANIFEST)):
        if status != _DELETED:
            content = file[2] if len(file) > _DATA_FILE.index(134) else 0
            yield TableFile(full_uri(file[0]), file[1], bool(content))


def _rows(data: bytes, location: str, wanted: tuple[int, ...]) -> Iterator[Any]:
    """Yield the rows of an Avro file with only the columns that are wanted; a file that ends early is an error.

    The fast decoder of PyIceberg reads beyond the end of what it is given, so it is given whole blocks only.
    """
    try:
        frames = StreamingBinaryDecoder(data)
        header: AvroFileHeader = construct_reader(META_SCHEMA, {-1: AvroFileHeader}).read(frames)
        reader, codec = _reader(header.meta["avro.schema"], wanted), header.compression_codec()
        while frames.tell() < len(data):
            count, block = frames.read_int(), frames.read_bytes()
            if frames.read(SYNC_SIZE) != header.sync:
                raise ValueError("a block does not end where it should")
            rows = new_decoder(codec.decompress(block) if codec is not None else block)
            for _ in range(count):
                yield reader.read(rows)
    except Exception as error:
        raise UnreadableTable(f"it is not a readable Avro file: {repr(error)[:200]}", path=location) from error


@lru_cache(maxsize=256)
def _reader(schema: str, wanted: tuple[int, ...]) -> Reader:
    """Return a reader of rows with these columns, in this order; it skips the others."""
    struct = AvroFileHeader(b"", {"avro.schema": schema}, b"").get_schema().as_struct()
    return _only(struct, construct_reader(struct), wanted)


def _only(struct: StructType, whole: Reader, wanted: tuple[int, ...]) -> Reader:
    if not isinstance(whole, StructReader):
        raise TypeError(f"{struct} is not a struct")
    readers: list[tuple[int | None, Reader]] = []
    for each, (_, reader) in zip(struct.fields, whole.field_readers, strict=True):
        position, inner = wanted.index(each.field_id) if each.field_id in wanted else None, each.field_type
        taken = position is not None and isinstance(inner, StructType)
        readers.append((position, _only(cast("StructType", inner), reader, _DATA_FILE) if taken else reader))
    missing = {wanted.index(each) for each in wanted if each not in _OPTIONAL} - {position for position, _ in readers}
    if missing:
        raise ValueError(f"there are no columns {wanted}")
    return StructReader(tuple(readers), Record, struct)

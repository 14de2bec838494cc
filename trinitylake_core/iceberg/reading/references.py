"""Which files the metadata of an Iceberg table refers to: manifest lists, manifests, data files, statistics.

Only what marking needs is decoded, for a cleaning reads the metadata of all tables and versions. Nothing is guessed: a
file that says anything that this page of code does not understand makes its table unreadable, and whoever deletes files
leaves alone what an unreadable table may need.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from trinitylake_core.iceberg.reading.avro_file import avro_rows
from trinitylake_core.iceberg.reading.errors import Malformed, UnreadableTable
from trinitylake_core.iceberg.reading.metadata_json import JsonObject, decode_metadata
from trinitylake_core.iceberg.reading.paths import directory_uri, file_uri
from trinitylake_core.iceberg.reading.rows import Column

__all__ = [
    "GC_ENABLED",
    "PACKED",
    "WRITTEN_PATHS",
    "DescribedFile",
    "ListedManifest",
    "References",
    "TableFile",
    "UnreadableTable",
    "current_snapshot",
    "decode_metadata",
    "described_files_in",
    "files_in",
    "forbids_deletes",
    "listed_in",
    "manifests_in",
    "references",
    "references_in",
]

GC_ENABLED: Final = "gc.enabled"
"""The property by which the owner of a table forbids to delete its files."""
WRITTEN_PATHS: Final = ("write.data.path", "write.metadata.path")
PACKED: Final = ".gz.metadata.json"
_VERSIONS: Final = (1, 2, 3)
"""The versions of Iceberg's table format that are understood."""
_LAST_MILLIS: Final = 253_402_300_799_999
"""The end of the year 9999."""
_ADDED_OR_EXISTING: Final = (0, 1)
_DELETED: Final = 2
_CONTENTS: Final = (0, 1, 2)
"""Of a data file: data, position deletes and deletion vectors, equality deletes."""
_LIST: Final = (Column(500), Column(501), *(Column(number, optional=True) for number in (502, 517, 504, 505)))
"""``manifest_path``, ``manifest_length``, ``partition_spec_id``, and what version 1 may lack: ``content``, and how many
files were added and exist.

By the IDs that the Iceberg specification gives to columns.
"""
_MANIFEST: Final = (Column(0), Column(2, (Column(100), Column(104), Column(134, optional=True))))
"""``status``, and of ``data_file``: ``file_path``, ``file_size_in_bytes``, and ``content``, which version 1 lacks."""
_MORE: Final = (
    Column(103),
    Column(102, optional=True, raw=True),
    Column(143, optional=True),
    Column(144, optional=True),
)
_DESCRIBED: Final = (Column(0), Column(2, (*_MANIFEST[1].inside, *_MORE)), Column(1, optional=True))
"""The same of a manifest, ``record_count``, ``partition``, ``referenced_data_file`` and ``content_offset``, and the
``snapshot_id`` of the entry."""
_COUNT: Final = re.compile("[0-9]{1,18}", re.ASCII)
_WRITTEN_ANEW: Final = frozenset({
    "current-snapshot-id", "last-sequence-number", "last-updated-ms", "metadata-log", "next-row-id",
    "partition-statistics", "refs", "snapshot-log", "snapshots", "statistics",
})  # fmt: skip
"""What a commit that leaves the rows of a table as they are may change in its metadata."""


@dataclass(frozen=True, slots=True)
class References:
    """What a metadata file refers to, as URIs in one spelling.

    Attributes:
        uuid: the table's identity; empty where version 1 has none.
        location: the directory of the table.
        directories: where its files are written: ``location``, and other places that its properties name.
        manifest_lists: one of each snapshot, and how many data files that has, as its summary says.
        manifests: those that a snapshot of format version 1 names itself.
        statistics: files of statistics and of partition statistics.
        forbidden: whether its owner forbids others to delete its files (``gc.enabled``).
    """

    uuid: str
    location: str
    directories: frozenset[str]
    manifest_lists: Mapping[str, int]
    manifests: frozenset[str]
    statistics: frozenset[str]
    forbidden: bool


def references(data: bytes, location: str) -> References:
    """Return the files that the metadata file at ``location`` refers to. Raises ``UnreadableTable``."""
    return references_in(decode_metadata(data, location), location)


def references_in(found: JsonObject, location: str) -> References:
    """Return the files that table metadata, as JSON, refer to.

    Raises ``UnreadableTable``: a path in them is not absolute, something is not of its type, the format version is not
    known, or the current snapshot is not there. The message names the member, and does not quote it.
    """
    try:
        return _references(found)
    except Malformed as error:
        raise UnreadableTable(f"it is not a file of table metadata: {error}", path=location) from None


def _references(found: JsonObject) -> References:
    version = found.get("format-version")
    if type(version) is not int or version not in _VERSIONS:
        raise Malformed("its format-version is none of 1, 2 and 3")
    uuid = found.get("table-uuid", "")
    if not isinstance(uuid, str):
        raise Malformed("its table-uuid is no text")
    properties = _object(found.get("properties"), "properties")
    directories = {_uri_at(found.get("location"), "location", directory_uri)}
    for name in WRITTEN_PATHS:
        if properties.get(name):
            directories.add(_uri_at(properties[name], f"property {name}", directory_uri))
    lists, manifests = _of_snapshots(found)
    statistics: set[str] = set()
    for member in ("statistics", "partition-statistics"):
        for where, each in _objects(found, member):
            statistics.add(_uri_at(each.get("statistics-path"), f"{where}.statistics-path", file_uri))
    return References(
        uuid,
        _uri_at(found.get("location"), "location", directory_uri),
        frozenset(directories),
        lists,
        frozenset(manifests),
        frozenset(statistics),
        forbids_deletes(properties),
    )


def forbids_deletes(properties: JsonObject) -> bool:
    """Whether the owner of a table forbids others to delete its files; as in Java, all but ``true`` does."""
    return str(properties.get(GC_ENABLED, "true")).lower() != "true"


def _of_snapshots(found: JsonObject) -> tuple[dict[str, int], set[str]]:
    """Return the manifest lists, and the manifests, that snapshots name."""
    lists: dict[str, int] = {}
    manifests: set[str] = set()
    numbers: set[int | None] = set()
    for where, each in _objects(found, "snapshots"):
        number = each.get("snapshot-id")
        if type(number) is not int:
            raise Malformed(f"its {where}.snapshot-id is no number")
        numbers.add(number)
        if "manifest-list" in each:
            lists[_uri_at(each["manifest-list"], f"{where}.manifest-list", file_uri)] = count_files(each)
            continue
        named = each.get("manifests")
        if not isinstance(named, list):
            raise Malformed(f"its {where} names neither a manifest list nor manifests")
        manifests.update(_uri_at(path, f"{where}.manifests", file_uri) for path in named)
    _refuse_unknown(found.get("current-snapshot-id"), "current-snapshot-id", numbers | {-1, None})
    for ref in _object(found.get("refs"), "refs").values():
        _refuse_unknown(_object(ref, "refs").get("snapshot-id"), "refs", numbers)
    return lists, manifests


def count_files(snapshot: Mapping[str, Any]) -> int:
    """Return how many data files a snapshot has at least, as its summary says. Raises ``Malformed``."""
    total = str(_object(snapshot.get("summary"), "summary").get("total-data-files", 0))
    return int(total) if _COUNT.fullmatch(total) else 1


def _refuse_unknown(number: Any, member: str, known: set[int | None]) -> None:
    if isinstance(number, dict | list) or number not in known:
        raise Malformed(f"its {member} names a snapshot that is not among its snapshots")


def _objects(found: JsonObject, member: str) -> Iterator[tuple[str, JsonObject]]:
    """Yield the objects in an array, which may be absent, with the place of each in words."""
    array = found.get(member)
    if array is None:
        return
    if not isinstance(array, list):
        raise Malformed(f"its {member} is no array")
    for number, each in enumerate(array):
        where = f"{member}[{number}]"
        if not isinstance(each, dict):
            raise Malformed(f"its {where} is no object")
        yield where, each


def _object(value: Any, member: str) -> JsonObject:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise Malformed(f"its {member} is no object")
    return value


def _uri_at(path: Any, where: str, uri: Callable[[Any], str]) -> str:
    """Return the URI of a path; an error says where the path stands."""
    try:
        return uri(path)
    except Malformed as error:
        raise Malformed(f"its {where} {error}") from None


def current_snapshot(found: JsonObject, location: str) -> JsonObject | None:
    """Return the current snapshot in table metadata, as JSON, with a ``timestamp-ms``; ``None`` if there is none.

    Raises ``UnreadableTable``: it is not among the snapshots, or its time is none.
    """
    number = found.get("current-snapshot-id")
    if number in (None, -1):
        return None
    try:
        if type(number) is not int:
            raise Malformed("its current-snapshot-id is no number")
        for where, each in _objects(found, "snapshots"):
            if each.get("snapshot-id") == number:
                _refuse_no_time(each.get("timestamp-ms"), where)
                return each
        raise Malformed("its current-snapshot-id names a snapshot that is not among its snapshots")
    except Malformed as error:
        raise UnreadableTable(f"it is not a file of table metadata: {error}", path=location) from None


def have_same_rows(before: JsonObject, after: JsonObject) -> bool:
    """Whether later metadata of a table, as JSON, have the rows of earlier ones: files were merged, snapshots expired.

    Every branch stands where it stood, or is led back there by snapshots that say that they replaced files by others
    with the same rows. Everything else is equal, but for what each commit writes anew. No file is read, so this decides
    what people are asked again, and never what is deleted.
    """
    for name in before.keys() | after.keys():
        if name not in _WRITTEN_ANEW and before.get(name) != after.get(name):
            return False
    try:
        later = {each.get("snapshot-id"): each for _, each in _objects(after, "snapshots")}
        old = _heads(before)
        new = _heads(after)
        commits = _last_sequence_number(after) - _last_sequence_number(before)
        return old.keys() == new.keys() and all(_leads_back(later, new[name], old[name], commits) for name in old)
    except Malformed:
        return False


def _heads(found: JsonObject) -> dict[str, Any]:
    """Return the snapshots of the branches and tags in table metadata; the current one is without a name there."""
    refs = _object(found.get("refs") or {}, "refs")
    named = {name: _object(each, f"refs.{name}").get("snapshot-id") for name, each in refs.items()}
    return {**named, "": found.get("current-snapshot-id")}


def _last_sequence_number(found: JsonObject) -> int:
    """Return how many commits changed the files of a table; 0 in format version 1, which does not count them."""
    number = found.get("last-sequence-number", 0)
    if type(number) is not int:
        raise Malformed("its last-sequence-number is no number")
    return number


def _leads_back(snapshots: Mapping[Any, JsonObject], number: Any, wanted: Any, commits: int) -> bool:
    """Whether a snapshot is the wanted one, or came from it by replacing files alone.

    Where the wanted one has expired, nothing names it: then each of the ``commits`` since has to be on the way.
    """
    seen = set()
    while number != wanted:
        snapshot = snapshots.get(number)
        if snapshot is None or number in seen:
            return False
        seen.add(number)
        if _object(snapshot.get("summary") or {}, "summary").get("operation") != "replace":
            return False
        number = snapshot.get("parent-snapshot-id")
        if number is None:
            return len(seen) == commits
    return True


def _refuse_no_time(millis: Any, where: str) -> None:
    if type(millis) is not int or not 0 <= millis <= _LAST_MILLIS:
        raise Malformed(f"its {where}.timestamp-ms is no time")


class ListedManifest(NamedTuple):
    """A manifest as a manifest list names it, and what that says of the files in it; 0 where nothing tells.

    Attributes:
        uri: its URI, and its ``size`` in bytes.
        spec_id: the partition spec of its files.
        content: 1 if they are delete files.
        files: how many there are; ``None`` where nothing tells.
    """

    uri: str
    size: int = 0
    spec_id: int = 0
    content: int = 0
    files: int | None = None


def refuse_cut(listed: Iterable[ListedManifest], files: int, location: str) -> None:
    """Refuse a manifest list that names fewer data files than its snapshot has: it was cut where a block ends.

    Raises ``UnreadableTable``.
    """
    named = 0
    for each in listed:
        if each.files is None:
            return
        if not each.content:
            named += each.files
    if named < files:
        raise UnreadableTable(f"it names {named} data files, and its snapshot has {files}: it was cut", path=location)


def listed_in(data: bytes, location: str) -> Iterator[ListedManifest]:
    """Yield the manifests in a manifest list. Raises ``UnreadableTable``."""
    for number, (path, size, spec_id, content, added, existing) in enumerate(avro_rows(data, location, _LIST), 1):
        try:
            uri = file_uri(path)
        except Malformed as error:
            raise UnreadableTable(f"the manifest_path in row {number} {error}", path=location) from None
        if size is None or size < 0:
            raise UnreadableTable(f"the manifest_length in row {number} is no size", path=location)
        files = (added or 0) + (existing or 0) or None  # DuckDB says of older ones in version 1 that they have none
        yield ListedManifest(uri, size, spec_id or 0, content or 0, files)


def manifests_in(data: bytes, location: str) -> Iterator[str]:
    """Yield the URIs of the manifests in a manifest list. Raises ``UnreadableTable``."""
    return (each.uri for each in listed_in(data, location))


class TableFile(NamedTuple):
    """A data or delete file: its URI, its size in bytes, and whether it holds deletes."""

    uri: str
    size: int
    deletes: bool


def files_in(data: bytes, location: str) -> Iterator[TableFile]:
    """Yield the data and delete files in a manifest, without those that are DELETED. Raises ``UnreadableTable``."""
    for number, (status, file) in enumerate(avro_rows(data, location, _MANIFEST), 1):
        if status != _DELETED:
            path, size, content = file or (None, None, None)  # BigQuery writes that it may be null
            yield _file_in_row(number, status, path, size, content, location)


class DescribedFile(NamedTuple):
    """A data or delete file, and what decides about a rewrite of it.

    Attributes:
        uri, size: as of a :class:`TableFile`.
        content: 0 data, 1 position deletes and deletion vectors, 2 equality deletes.
        rows: its rows, or the deletes in it.
        partition: the bytes of its partition: equal for files of one partition and one writer.
        snapshot_id: the snapshot that added it; ``None`` where that has to be guessed.
        vector_of: the URI of the data file of which it is the deletion vector.
    """

    uri: str
    size: int
    content: int
    rows: int
    partition: bytes
    snapshot_id: int | None
    vector_of: str | None = None


def described_files_in(data: bytes, location: str) -> Iterator[DescribedFile]:
    """Yield the files in a manifest with what is known of each, without DELETED ones. Raises ``UnreadableTable``."""
    for number, (status, file, snapshot_id) in enumerate(avro_rows(data, location, _DESCRIBED), 1):
        if status == _DELETED:
            continue
        path, size, content, rows, partition, data_file, offset = file or (None,) * 7
        found = _file_in_row(number, status, path, size, content, location)
        if rows is None or rows < 0:
            raise UnreadableTable(f"row {number}: its record_count is no number of rows", path=location)
        vector_of = None
        if data_file is not None and offset is not None:  # else it is a file of its own
            try:
                vector_of = file_uri(data_file)
            except Malformed as error:
                raise UnreadableTable(f"row {number}: its referenced_data_file {error}", path=location) from None
        yield DescribedFile(found.uri, found.size, content or 0, rows, partition or b"", snapshot_id, vector_of)


def _file_in_row(
    number: int, status: Any, path: Any, size: int | None, content: int | None, location: str
) -> TableFile:
    """Return a file by the row of its manifest, which counts from 1."""
    try:
        if status not in _ADDED_OR_EXISTING:
            raise Malformed("status is none of 0, 1 and 2")
        if content is not None and content not in _CONTENTS:
            raise Malformed("content is none of 0, 1 and 2")
        if size is None or size < 0:
            raise Malformed("file_size_in_bytes is no size")
        uri = _named_in_row(path)
    except Malformed as error:
        raise UnreadableTable(f"row {number}: its {error}", path=location) from None
    return TableFile(uri, size, bool(content))


def _named_in_row(path: Any) -> str:
    try:
        return file_uri(path)
    except Malformed as error:
        raise Malformed(f"file_path {error}") from None

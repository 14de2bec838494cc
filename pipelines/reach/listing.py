"""The files below a root URI: a listing in shards, or an inventory that another program made (format, section 2).

The optimised names spread files over directories ``[01]{4}/[01]{4}/``. The driver lists those two levels
(17 requests or so), a shard is one directory of the second. A directory of any other name belongs to
another program or a nested lakehouse: it is reported, and never listed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from itertools import islice
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyarrow import csv, parquet

from pipelines.engine.model import LONG, TEXT
from trinitylake_core.errors import FileMissing, InvalidInput
from trinitylake_core.iceberg.reading.codecs import gunzip
from trinitylake_core.iceberg.reading.errors import Malformed
from trinitylake_core.locations import parse
from trinitylake_core.storage import FileInfo, Options, Storage, is_scratch, open_storage, root_uri
from trinitylake_core.tables import DIRECTORY
from trinitylake_core.versions import to_millis

UNPACKED_MAX_BYTES: Final = 1 << 30


def expand_gzip(data: bytes, name: str, most: int = UNPACKED_MAX_BYTES) -> bytes:
    """Return the content of a gzip file, all its members one after the other.

    Raises:
        InvalidInput: it is not a valid gzip file, is cut short, or holds more than ``most`` bytes.
    """
    try:
        return gunzip(data, most)
    except Malformed as error:
        raise InvalidInput(
            f"{name} is not a valid gzip file, or is cut short, or unpacks to more than {most >> 20} MiB: {error}; cut "
            "it into smaller files, or leave it unpacked"
        ) from None


UNKNOWN: Final = "unknown"
FIXED: Final = "fixed"
"""Kind of hint and boundary."""
ROOT: Final = "root"
TRANSACTION: Final = "transaction"
CANDIDATES: Final = frozenset({"node", TRANSACTION, "namespace", "table", "view", "definition", "lakehouse_def"})
"""Kinds of files that may be orphans; of roots only those below the boundary."""
TABLE_FILES: Final = frozenset({"metadata", "manifest", "statistics", "data"})
"""Kinds of files of Iceberg tables that may be orphans."""
_TABLE_DIRECTORY: Final = re.compile(rf"{DIRECTORY}([^/]+)/([^/]+)-[0-9a-f]{{12}}/")
_TABLE_FILE: Final = re.compile(
    rf"{_TABLE_DIRECTORY.pattern}(?:metadata/(?:(?P<metadata>[^/]+\.metadata\.json)|(?P<manifest>[^/]+\.avro)|"
    r"(?P<statistics>[^/]+\.(?:stats|puffin)))|data/"
    r"(?P<data>.+\.(?:parquet|parq|orc|avro|puffin)|(?:.+/)?\d{6}_\d+(?:_copy_\d+)?))(?:\.crc)?"
)
"""What writers of Iceberg name their files, in the directory that this catalog gave a table; by kind."""
SCHEMA: Final = pa.schema({"path": TEXT, "bytes": LONG, "modified_millis": LONG, "kind": TEXT, "version": LONG})
BATCH: Final = 10_000
_NAMESPACE_DIRECTORY: Final = re.compile(f"{DIRECTORY}[^/]+/")
_FIRST: Final = re.compile(r"[01]{4}/")
_SECOND: Final = re.compile(r"[01]{4}/[01]{4}/")
_SUFFIXES: Final = (".parquet", ".csv", ".csv.gz")
_FIRST_MILLIS: Final = 100_000_000_000
"""In March 1973. The same number of seconds is in the year 5138."""
_COLUMNS: Final = {
    "path": ("path", "key"),
    "size": ("size", "bytes"),
    "modified": ("modified", "modified_millis", "last_modified", "lastmodified", "last_modified_date"),
}


Wanted = Callable[[str], bool]
"""Whether a file is wanted, by its path."""


class Listed(NamedTuple):
    """One listed file. ``modified_millis`` is ``None`` where it is unknown; ``version`` is set for roots."""

    path: str
    bytes: int
    modified_millis: int | None
    kind: str
    version: int | None


def kind_of(path: str) -> tuple[str, int | None]:
    """Return the kind of a file by its name, and the version of a root."""
    if path.startswith(DIRECTORY):
        table_file = _TABLE_FILE.fullmatch(path)
        if table_file is not None:
            return next(kind for kind, found in table_file.groupdict().items() if found), None
    parsed = parse(path)
    if parsed is None:
        return UNKNOWN, None
    if parsed.kind == ROOT:
        return (UNKNOWN, None) if parsed.legacy else (ROOT, parsed.version)
    if parsed.kind in CANDIDATES:
        return parsed.kind, None
    return FIXED, None


def listed_file(path: str, size: int, modified_millis: int | None) -> Listed:
    """Return a listed file with its kind."""
    return Listed(path, size, modified_millis, *kind_of(path))


# -- listing -------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Shards:
    """The uppermost levels: ``files`` found there, directories to list, and those that are none of ours.

    ``scratch`` are directories of proofs of the storage, which a killed process left.
    """

    files: list[Listed] = field(default_factory=list)
    prefixes: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    scratch: list[str] = field(default_factory=list)


def shards(storage: Storage) -> Shards:
    """Return the shards of a listing. One ``list`` for the root, then one a directory of the first level, at once."""
    return _list_levels(storage, "", _FIRST, _SECOND, everything)


def table_shards(storage: Storage, wanted: Wanted) -> Shards:
    """Return the directories of tables as shards of a listing, where the path of the directory is wanted.

    One ``list`` for the area, then one for each namespace, at once. A directory that this catalog did not make is not
    listed.
    """
    return _list_levels(storage, DIRECTORY, _NAMESPACE_DIRECTORY, _TABLE_DIRECTORY, wanted)


def _list_levels(storage: Storage, top: str, first: re.Pattern[str], second: re.Pattern[str], wanted: Wanted) -> Shards:
    """Return what is below a directory: ours are the directories of such names, two levels deep."""
    found = Shards()
    directories, files = storage.list_dirs(top)
    found.files += map(_of_info, files)
    ours = []
    for directory in directories:
        if first.fullmatch(directory):
            ours.append(directory)
        elif is_scratch(directory):
            found.scratch.append(directory)
        else:
            found.unknown.append(directory)
    for directories, files in storage.map(ours, storage.list_dirs):
        found.files += map(_of_info, files)
        for directory in directories:
            if not second.fullmatch(directory):
                found.unknown.append(directory)
            elif wanted(directory):
                found.prefixes.append(directory)
    return found


def label_of_directory(directory: str) -> str:
    """Return ``NAMESPACE.TABLE`` of the directory of a table."""
    return _TABLE_DIRECTORY.sub(r"\1.\2", directory)


def everything(path: str) -> bool:
    """Want every file."""
    del path
    return True


def maybe_transaction(path: str) -> bool:
    """Want files whose names may be those of saved transactions: only they need to be examined."""
    return "-txn-" in path


def list_shards(storage: Storage, prefixes: Iterable[str], wanted: Wanted | None = None) -> Iterator[Listed]:
    """Yield the files of shards that are wanted, as :meth:`Storage.list_many` lists some shards at a time."""
    remaining = iter(prefixes)
    while some := list(islice(remaining, BATCH)):
        yield from map(_of_info, storage.list_many(some, wanted))


def _of_info(info: FileInfo) -> Listed:
    return listed_file(info.path, info.size, info.modified_millis)


# -- inventories ---------------------------------------------------------------------------------------


def split_uri(uri: str) -> tuple[str, str]:
    """Return the directory and the name of a file, by its URI or path. Raises ``InvalidInput``."""
    uri = root_uri(uri)
    above, slash, name = uri.rpartition("/")
    if "://" not in uri or not slash or not name or above.endswith(":/"):
        raise InvalidInput(f"{uri!r} is not the URI of a file; write file:///path/name or s3://bucket/path/name")
    return above + "/", name


def inventory_files(uri: str, options: Options) -> list[str]:
    """Return the URIs of the Parquet and CSV files of an inventory: one, or those of a directory.

    Raises:
        InvalidInput: there is none.
    """
    uri = root_uri(uri)
    if uri.endswith(_SUFFIXES):
        return [uri]
    storage = open_storage(uri, options)
    return [storage.root + info.path for info in _in_directory(storage, uri)]


def inventory_millis(uri: str, options: Options) -> int:
    """Return the time of an inventory, by its storage: that of its oldest file. One ``head``, or a ``list``.

    Raises:
        InvalidInput: there is none.
    """
    if not uri.endswith(_SUFFIXES):
        return min(info.modified_millis for info in _in_directory(open_storage(uri, options), uri))
    above, name = split_uri(uri)
    try:
        return open_storage(above, options).info(name).modified_millis
    except FileMissing:
        raise InvalidInput(f"there is no inventory at {uri}") from None


def _in_directory(storage: Storage, uri: str) -> list[FileInfo]:
    found = sorted((info for info in storage.list() if info.path.endswith(_SUFFIXES)), key=lambda info: info.path)
    if not found:
        raise InvalidInput(f"there is no inventory at {uri}: no {', '.join(_SUFFIXES)}")
    return found


def read_inventory(uri: str, options: Options, root: str) -> Iterator[Listed]:
    """Yield the files that one file of an inventory lists below ``root``. One ``get``.

    Columns: ``path`` (relative to the root, or a full URI), ``size``, ``modified`` (a time, ISO 8601, or epoch
    milliseconds). A file without a time stays: its age is unknown.

    Raises:
        InvalidInput: a column is missing, or a time is a number of seconds.
    """
    above, name = split_uri(uri)
    data = open_storage(above, options).read(name)
    for batch in _batches(data, name):
        columns = [_column(batch, what, names, uri) for what, names in _COLUMNS.items()]
        for path_or_uri, size, modified in zip(*columns, strict=True):
            text = str(path_or_uri)
            if "://" in text and not text.startswith(root):
                continue
            path = text.removeprefix(root)
            yield listed_file(path, int(size or 0), _millis(modified, uri))


def _batches(data: bytes, name: str) -> Iterator[pa.RecordBatch]:
    try:
        if name.endswith(".parquet"):
            yield from parquet.ParquetFile(pa.BufferReader(data)).iter_batches(BATCH)
        else:
            text = expand_gzip(data, name) if name.endswith(".gz") else data
            yield from csv.open_csv(pa.BufferReader(text))
    except (pa.ArrowException, OSError) as error:
        raise InvalidInput(f"inventory {name} cannot be read: {error}") from None


def _column(batch: pa.RecordBatch, what: str, names: tuple[str, ...], uri: str) -> list[Any]:
    for index, name in enumerate(batch.schema.names):
        if name.lower() in names:
            values: list[Any] = batch.column(index).to_pylist()
            return values
    raise InvalidInput(f"inventory {uri} has no column {what!r}; it has {', '.join(batch.schema.names)}")


def _millis(modified: Any, uri: str) -> int | None:
    """Return a time of an inventory in epoch milliseconds, ``None`` where it has none.

    A time without a zone is in UTC; 0 stands for no time. Raises ``InvalidInput``: a number in another unit.
    """
    if isinstance(modified, date):
        return _millis_of_day(modified)
    if modified is None or modified == "":
        return None
    try:
        millis = float(modified)
    except ValueError:
        return to_millis(str(modified))
    if not millis or math.isnan(millis):  # what tables of numbers have for none
        return None
    if not _FIRST_MILLIS <= millis < math.inf:  # taken for milliseconds, every file would be old
        raise InvalidInput(
            f"inventory {uri} has the time {modified!r}, which is no time in epoch milliseconds (in seconds, perhaps); "
            "write ISO 8601 or milliseconds. Nothing was deleted"
        )
    return int(millis)


def _millis_of_day(modified: date) -> int:
    """Return a date or a time in epoch milliseconds; a date begins at midnight, UTC."""
    if not isinstance(modified, datetime):
        modified = datetime.combine(modified, time(), UTC)
    if modified.tzinfo is None:
        modified = modified.replace(tzinfo=UTC)
    return to_millis(modified)

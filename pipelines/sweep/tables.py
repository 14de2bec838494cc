"""List, mark, minus and act over the files of Iceberg tables: the same sweep, over another area and by other marks.

The area is one directory for each table below ``tables/``. Marked is what the metadata that retained versions name
refer to: their manifest lists, manifests, data and delete files, statistics, and they themselves. Each file is read
once, whichever tables, snapshots and versions share it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Final, TypeVar

import pyarrow as pa

from pipelines.engine.model import READ_AHEAD, TEXT, Engine, Row, Rows, Work
from pipelines.files.listing import TABLE_FILES, Listed, Wanted, kind_of, table_shards
from pipelines.job import Progress
from pipelines.sweep.sweep import Sweep
from pipelines.trees.walk import NAMED as NAMED_BY_A_NODE
from pipelines.trees.walk import Start, walk
from trinitylake_core.definitions import TableDef, decode_table, decode_view
from trinitylake_core.errors import Corrupt, CorruptDefinition, FileMissing, InvalidInput, InvalidLocation, StorageError
from trinitylake_core.keys import TABLE, VIEW
from trinitylake_core.storage import Storage
from trinitylake_core.tables import (
    DIRECTORY,
    EXTERNAL,
    ICEBERG,
    VIEW_METADATA_LOCATION,
    Located,
    area_path,
    base_uri,
    metadata_uri,
    path_below,
    table_location,
)

DEFINITION: Final = "definition"
METADATA: Final = "metadata"
LIST: Final = "manifest list"
MANIFEST: Final = "manifest"
LIVE: Final = "live"
CLAIM: Final = "claim"
DOUBT: Final = "doubt"
"""What a row says of its path: a file to read or a live one, a directory that a table claims, or one in doubt."""
_FOUND: Final = pa.schema({"role": TEXT, "path": TEXT, "owner": TEXT, "about": TEXT})
"""``owner`` is the table, or the directory of the table that a manifest or a list belongs to; ``about`` is the identity
of a table that claims a directory, or why a directory is in doubt."""
_PATHS: Final = pa.schema({"path": TEXT})
_LABEL: Final = re.compile(r"(?:.*/)?\d{8}-table-(.+)-[0-9a-f-]{36}\.binpb")
_SHARED: Final = "another table claims this directory, too"
_EXTERNAL: Final = "it is EXTERNAL, and those are never cleaned"
_FORBIDDEN: Final = "its owner forbids it (gc.enabled=false)"
T = TypeVar("T")
Found = Iterator[tuple[str, str, str, str]]


@dataclass(frozen=True, slots=True)
class Doubt:
    """A directory of which nothing is deleted.

    Attributes:
        table: the table, as far as it is known.
        directory: the directory; empty where it is not known, or lies elsewhere.
        reason: why.
    """

    table: str
    directory: str
    reason: str

    @property
    def is_wanted(self) -> bool:
        """Whether its owner wants this, so that nobody has to do anything about it."""
        return self.reason in {_EXTERNAL, _FORBIDDEN}


class TableSweep(Sweep):
    """The state of one sweep over the files of tables.

    Attributes:
        doubts: directories of which nothing is deleted, by the last marking.
        read: how many distinct files of each kind were read to mark.
    """

    candidates = TABLE_FILES

    def __init__(self, engine: Engine, storage: Storage, order: int, progress: Progress, wanted: Wanted) -> None:
        super().__init__(engine, storage, order, progress)
        self.doubts: list[Doubt] = []
        self.read: dict[str, int] = {}
        self._wanted = wanted
        self._levels: list[Rows] = []
        self._asked: dict[str, list[Rows]] = {}
        self._found: list[Rows] = []

    def _may_go(self, boundary: int) -> str:
        return super()._may_go(0)

    def may_go(self, file: Listed, boundary: int) -> bool:
        """Return whether a file of this name may ever be deleted: no root is one of a table."""
        return super().may_go(file, 0)

    # -- list ----------------------------------------------------------------------------------------

    def _first_listing(self) -> Rows:
        self.list_transactions()
        return self._in_shards(table_shards(self._storage, self._wanted))

    # -- mark ----------------------------------------------------------------------------------------

    def mark(self, starts: Sequence[Start], paths: AbstractSet[str], *, afresh: bool = False) -> None:
        """Mark the files of the tables in the trees of roots; what is marked already is not read again.

        A file that is missing or cannot be read is a doubt about its table. Raises ``Corrupt`` for a node or a
        definition, for then nobody knows which table.
        """
        del paths  # what a saved transaction changed is in the tree of its running root
        if afresh:
            self._forget_marks()
        walked = walk(self.engine, self._trees, starts, self._mark_progress, self._levels)
        self.nodes_read += walked.nodes_read
        self._levels += walked.levels
        known = len(self._found)
        named = (
            self.engine.sql(f"SELECT path, '' AS owner FROM level WHERE role = {NAMED_BY_A_NODE}", level=level)
            for level in walked.levels
        )
        self._stage(DEFINITION, _definitions, list(named))
        for role, work in ((METADATA, _metadata), (LIST, _lists), (MANIFEST, _manifests)):
            query = f"SELECT path, owner FROM found WHERE role = {role!r}"
            self._stage(role, work, [self.engine.sql(query, found=each) for each in self._found[known:]])
        self._protect()

    def _stage(self, role: str, work: Work, sources: Sequence[Rows]) -> None:
        """Read the files of a kind that were not read before, and keep what they say."""
        if not sources:
            return
        tables = {f"source{number}": rows for number, rows in enumerate(sources)}
        known = {f"known{number}": rows for number, rows in enumerate(self._asked.get(role, ()))}
        every = " UNION ALL ".join(f"SELECT path, owner FROM {name}" for name in tables)
        absent = "".join(f" AND NOT EXISTS (SELECT 1 FROM {name} k WHERE k.path = a.path)" for name in known)
        query = f"SELECT a.path, min(a.owner) AS owner FROM ({every}) a WHERE 1 = 1{absent} GROUP BY a.path"
        pending = self.engine.sql(query, **tables, **known).keep("path", repeatable=True)
        self._asked.setdefault(role, []).append(pending)
        self.read[role] = self.read.get(role, 0) + pending.count()
        found = self.engine.map(work, pending, _FOUND, self._storage, each=READ_AHEAD)
        kept = found.keep("path", repeatable=True, progress=partial(self._read_progress, role))
        self._found.append(kept)
        self._live.append(kept)

    def _read_progress(self, role: str, rows: int) -> None:
        self._progress(f"read {role}s", rows, None)

    def _protect(self) -> None:
        """Mark every file in a directory that is in doubt."""
        if not self._found:
            return
        doubt = f"SELECT path, owner, about FROM found WHERE role = {DOUBT!r} GROUP BY path, owner, about"
        doubts = [Doubt(row["owner"], row["path"], row["about"]) for row in self._ask_found(doubt)]
        claimed = f"""SELECT path, min(owner) AS one, max(owner) AS other FROM found WHERE role = {CLAIM!r}
            GROUP BY path HAVING min(about) <> max(about)"""
        doubts += [Doubt(f"{row['one']}, {row['other']}", row["path"], _SHARED) for row in self._ask_found(claimed)]
        self.doubts = sorted(doubts, key=lambda each: (each.directory, each.table, each.reason))
        directories = sorted({each.directory for each in doubts if each.directory})
        if directories:
            table = self.engine.table([{"path": each} for each in directories], _PATHS)
            query = "SELECT f.path FROM files f JOIN held h ON substr(f.path, 1, length(h.path)) = h.path"
            self._live.append(self.engine.sql(query, files=self._listed(), held=table).keep("path"))

    def _ask_found(self, query: str) -> list[dict[str, Any]]:
        return self.engine.sql(query, found=self._union(self._found)).list()

    def _forget_marks(self) -> None:
        for rows in (*self._levels, *(each for asked in self._asked.values() for each in asked)):
            rows.drop()
        self._levels, self._asked, self._found, self.read = [], {}, [], {}
        super()._forget_marks()


# -- what files say ------------------------------------------------------------------------------------


def _contents(rows: Iterator[Row], read: Callable[[Row], Any], storage: Storage) -> Iterator[tuple[Row, Any]]:
    while some := list(islice(rows, READ_AHEAD)):
        yield from zip(some, storage.map(some, read), strict=True)


def _definitions(rows: Iterator[Row], storage: Storage) -> Found:
    """Yield what definitions of tables and views name. One ``get`` each; objects of other kinds are not read."""
    objects = (row for row in rows if kind_of(row["path"])[0] in {TABLE, VIEW})
    for row, data in _contents(objects, lambda row: storage.read_or_missing(row["path"]), storage):
        path = row["path"]
        if isinstance(data, FileMissing):
            message = f"definition {path!r} is missing, so the files that it names are unknown"
            raise CorruptDefinition(message, path=path)
        match = _LABEL.fullmatch(path)
        if kind_of(path)[0] == TABLE:
            yield from _defined(decode_table(data, path), match[1] if match else path, storage)
        elif metadata := decode_view(data, path).properties.get(VIEW_METADATA_LOCATION):
            yield from _live(storage, [metadata if "://" in metadata else f"{base_uri(storage.root)}{metadata}"])


def _defined(table: TableDef, label: str, storage: Storage) -> Found:
    root = storage.root
    try:
        metadata = metadata_uri(root, table) if table.table_format == ICEBERG else None
        location = _inside(root, table_location(root, table))
    except InvalidLocation as error:
        yield DOUBT, "", label, str(error)
        return
    if metadata is None:
        if location:
            yield DOUBT, location, label, "it has a location and names no metadata, so nothing tells its files"
        return
    external = table.table_type == EXTERNAL
    if external and (held := _directory(root, metadata) or location):
        yield DOUBT, held, label, _EXTERNAL
    yield METADATA, metadata, label, EXTERNAL if external else ""


def _metadata(rows: Iterator[Row], storage: Storage) -> Found:
    """Yield what metadata files refer to. One ``get`` each."""
    from trinitylake_core.iceberg.references import References, references

    located = Located(storage)
    for row, refs in _contents(rows, lambda row: _parsed(row["path"], located, references), storage):
        uri, label = row["path"], row["owner"]
        inside = _directory(storage.root, uri)
        if not isinstance(refs, References):
            yield DOUBT, inside, label, f"its metadata file {uri} {refs}"
            continue
        yield from _live(storage, [uri])
        directories = [each for each in (_inside(storage.root, uri) for uri in sorted(refs.directories)) if each]
        if not inside:
            yield from ((DOUBT, each, label, "its metadata lie elsewhere") for each in directories)
            continue
        own = _inside(storage.root, refs.location)
        if not own:
            yield DOUBT, inside, label, f"its metadata say that it lies at {refs.location}: it was copied, or moved"
        if refs.forbidden:
            yield from ((DOUBT, each, label, _FORBIDDEN) for each in directories)
        yield from ((CLAIM, each, label, refs.uuid) for each in directories)
        yield from _live(storage, refs.statistics)
        yield from ((LIST, each, own or inside, "") for each in refs.manifest_lists)
        yield from ((MANIFEST, each, own or inside, "") for each in refs.manifests)


def _lists(rows: Iterator[Row], storage: Storage) -> Found:
    """Yield the manifests in manifest lists. One ``get`` each."""
    from trinitylake_core.iceberg.references import manifests_in

    parse = partial(_all_of, manifests_in)
    located = Located(storage)
    for row, found in _contents(rows, lambda row: _parsed(row["path"], located, parse), storage):
        if isinstance(found, str):
            yield DOUBT, row["owner"], "", f"its manifest list {row['path']} {found}"
        else:
            yield from _live(storage, [row["path"]])
            yield from ((MANIFEST, each, row["owner"], "") for each in found)


def _manifests(rows: Iterator[Row], storage: Storage) -> Found:
    """Yield the files in manifests. One ``get`` each."""
    from trinitylake_core.iceberg.references import files_in

    parse = partial(_all_of, files_in)
    located = Located(storage)
    for row, found in _contents(rows, lambda row: _parsed(row["path"], located, parse), storage):
        if isinstance(found, str):
            yield DOUBT, row["owner"], "", f"its manifest {row['path']} {found}"
        else:
            yield from _live(storage, [row["path"], *(each.uri for each in found)])


def _all_of(parse: Callable[[bytes, str], Iterable[T]], data: bytes, uri: str) -> list[T]:
    return list(parse(data, uri))


def _parsed(uri: str, located: Located, parse: Callable[[bytes, str], Any]) -> Any:
    """Return what is in a file, or in a text why that is not known.

    Raises ``StorageError`` if the storage of the lakehouse fails; that of others may refuse to be read.
    """
    try:
        storage, path = located.find(uri)
        return parse(storage.read(path), uri)
    except FileMissing:
        return "is missing"
    except (Corrupt, InvalidInput) as error:
        return f"cannot be read: {error}"
    except StorageError as error:
        if located.is_own(uri):
            raise
        return f"cannot be read: {error}"


def _live(storage: Storage, uris: Iterable[str]) -> Found:
    """Yield files of the area as live; on a disk with the checksum file that Hadoop's writers put beside each."""
    for uri in uris:
        if (path := area_path(storage.root, uri)) is not None:
            yield LIVE, path, "", ""
            if storage.root.startswith("file:"):
                above, _, name = path.rpartition("/")
                yield LIVE, f"{above}/.{name}.crc", "", ""


def _inside(root: str, location: str | None) -> str:
    """Return the path of a directory in the area, with a slash at its end; empty where it lies elsewhere."""
    path = path_below(root, location) if location else None
    return f"{path}/" if path is not None and f"{path}/".startswith(DIRECTORY) else ""


def _directory(root: str, metadata: str) -> str:
    """Return the directory of the table with this metadata file; empty where that is not in the area."""
    above = metadata.rpartition("/")[0].removesuffix("/metadata")
    return _inside(root, above)

"""From the trees of versions to the files of their Iceberg tables: definitions, metadata, manifest lists, manifests.

Each file is read once, whichever tables, snapshots and versions share it. What it refers to becomes a row with the file
itself as ``parent``, so the tables that need a file, or a file that is missing, are found by going back up.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from pipelines.engine.counting import (
    ask_of_kept,
    keep_counted,
    keep_mapped,
    refuse_other_names,
)
from pipelines.engine.model import READ_AHEAD, TEXT, Engine, Row, Rows, Work, not_among
from pipelines.job import Progress
from pipelines.reach.listing import UNKNOWN as UNKNOWN_KIND
from pipelines.reach.listing import kind_of
from pipelines.reach.table_files import EVERY, describe_unseen, in_sample
from pipelines.reach.walk import NAMED
from trinitylake_core.definitions import (
    NamespaceDef,
    TableDef,
    ViewDef,
    decode_namespace,
    decode_table,
    decode_view,
    has_checksum,
)
from trinitylake_core.errors import (
    Corrupt,
    CorruptDefinition,
    FileMissing,
    InvalidInput,
    InvalidLocation,
    NotAFile,
    OutsidePlaces,
    StorageError,
)
from trinitylake_core.file_identity import LocalLinks, ends_in_area, file_keys, is_plain, plain_name
from trinitylake_core.grounds import BELOW, HELD, identity_of
from trinitylake_core.keys import TABLE, VIEW
from trinitylake_core.storage import Storage
from trinitylake_core.table_places import Located, TablePlaces
from trinitylake_core.tables import (
    DIRECTORY,
    EXTERNAL,
    ICEBERG,
    MANAGED,
    METADATA_LOCATION,
    VIEW_METADATA_LOCATION,
    base_uri,
    former_root,
    here,
    metadata_uri,
    path_below,
    shared_directory,
    table_location,
    view_metadata_uri,
)

if TYPE_CHECKING:
    from trinitylake_core.iceberg.reading.references import References

DEFINITION: Final = "definition"
METADATA: Final = "metadata"
LIST: Final = "manifest list"
MANIFEST: Final = "manifest"
LIVE: Final = "live"
_NOUNS: Final = {METADATA: "metadata files"}
"""What several files of a role are called, where an s is not enough."""
BESIDE: Final = "beside"
ALIAS: Final = "alias"
CLAIM: Final = "claim"
GROUND: Final = "ground"
DOUBT: Final = "doubt"
ASTRAY: Final = "astray"
OUTSIDE: Final = "outside"
UNREADABLE: Final = "unreadable"
UNKNOWN: Final = "unknown"
UNSEEN: Final = "unseen"
"""What a row says of its path: a file to read or a live one, the checksum file of Hadoop beside one, the key of a file
that may be named otherwise here (:func:`file_keys`), a directory that a table claims, one that a definition holds or
that is above such a one, one in doubt (if empty: it is not known which), a table whose location is none, a file that
lies outside the places of the table that names it, one that is missing or cannot be read, one elsewhere that this
process has no storage for, or one elsewhere whose storage gave no answer, or refused our credentials."""
_WORDS: Final = {LIVE: "file"}
"""What a person is told of a role, where that is no word."""
_NUMBERED: Final = {
    ALIAS: "aliases",
    ASTRAY: "astray",
    DOUBT: "doubts",
    LIST: "lists",
    MANIFEST: "manifests",
    METADATA: "metadata",
    OUTSIDE: "outside",
    UNKNOWN: "not_known",
    UNREADABLE: "unreadable",
    UNSEEN: "unseen",
}
"""Roles whose rows are numbered where they are counted, and the columns: of what has no rows nothing need be asked."""
OF_OUTSIDE: Final = f"UNION ALL SELECT x.parent AS path, x.about FROM found x WHERE x.role = {OUTSIDE!r}"
"""The end of a query of files with what is wrong with each: those that name one outside the places of their table."""
_FOUND: Final = pa.schema(
    {"role": TEXT, "path": TEXT, "parent": TEXT, "label": TEXT, "about": TEXT, "size": pa.int64()}
)
"""``path`` lies below the root, or is a URI. ``parent`` is the file that names it; ``label`` the table, of a key the
role of its file.
``about``: the identity of a table that claims a directory; which part of an identity a ground is; why a directory
is in doubt, or what is wrong with a file; of a key the name that the file is given; of lists and manifests the root
that their table was written below, if that was another one. Their ``label`` has the places of their table, and that of
a file outside of them the role that it would have."""
_KEYS: Final = pa.schema({"path": TEXT, "size": pa.int64(), "key": TEXT})
_LISTED_TOGETHER: Final = 10_000
"""How many files keep a task busy that makes keys of them."""
_EXTERNAL: Final = "it is EXTERNAL, and those are never cleaned"
_FORBIDDEN: Final = "its owner forbids it (gc.enabled=false)"
_IN_NAMESPACE: Final = "its metadata lie where namespaces have the directories of their tables, not in one of its own"
_CUT: Final = (
    "its definition names no metadata, and has no checksum, no type or no SQL: it is damaged, and `mend --from` may "
    "put it back, or is one of 0.1.0, and gets a checksum when the table or view is changed"
)
BY_WISH: Final = frozenset({_EXTERNAL, _FORBIDDEN})
"""Doubts that the owner of a table wants."""
_OWN_DIRECTORY: Final = re.compile(f"{DIRECTORY}[^/]+/[^/]+/")
_LABEL: Final = re.compile(r"(?:.*/)?\d{8}-table-(.+)-[0-9a-f-]{36}\.binpb")
_DEFINE_TABLES: Final = frozenset({TABLE, VIEW, "definition", UNKNOWN_KIND})
"""Kinds of definitions, by their names, that may be those of tables or views."""
_SILENT: Final = 16
"""So many files that the storage does not give may be the fault of a few tables."""
_HOPS: Final = 4
"""From a data file to its manifest, the manifest list and the metadata."""
Found = Iterator[tuple[str, str, str, str, str, int | None]]


class Lost(NamedTuple):
    """Why it is not known what is in a file: :data:`UNREADABLE`, :data:`UNKNOWN` or :data:`UNSEEN`, and a predicate."""

    role: str
    why: str
    failed: bool = False
    """Whether the storage of the lakehouse failed, so that it may be known another time."""


Parse = Callable[[bytes, str], Any]
Inner = Callable[[bytes, str, int], Iterable[tuple[str, str, int | None]]]
"""Yields role, URI and size of what is in a file, of which a snapshot has so many data files."""


class TableWalk:
    """What the metadata of tables refer to, in tables of an engine.

    Attributes:
        found: rows of what was found, kept by ``path``.
        read: how many distinct files of each kind were read.
    """

    def __init__(
        self,
        engine: Engine,
        storage: Storage,
        progress: Progress,
        *,
        share: float = EVERY,
        lenient: bool = False,
        managed: bool = False,
        copy: Storage | None = None,
    ) -> None:
        """Begin without anything.

        Args:
            engine: where files are read.
            storage: that of the lakehouse.
            progress: called with how many files of a kind were read.
            share: the share of the tables that is examined.
            lenient: examine EXTERNAL tables elsewhere, too; a definition that cannot be read is no error.
            managed: examine MANAGED tables only, wherever below the root they lie.
            copy: where a definition is read that cannot be read here; if it cannot be read there either, its table is
                in doubt.
        """
        self._engine = engine
        self._storage = storage
        self._copies = [] if copy is None else [copy]
        self._progress = progress
        self._definitions = partial(_definitions, share=share, lenient=lenient, managed=managed)
        self._strict = lenient or managed
        self._repeatable = lenient
        self._metadata = partial(_metadata, strict=self._strict)
        self._asked: dict[str, list[Rows]] = {}
        self._numbers: list[dict[str, int]] = []
        self.found: list[Rows] = []
        self.read: dict[str, int] = {}

    def follow(self, levels: Sequence[Rows]) -> list[Rows]:
        """Go on from the definitions that a walk kept; return the rows of ``found`` that are new.

        One ``get`` for each file that was not read before. A file of a table that is missing or cannot be read is a
        row. If it fails, nothing counts as read that was not before.

        A definition that cannot be read is in doubt: it is unknown which files are needed.
        """
        known, asked = len(self.found), {role: len(files) for role, files in self._asked.items()}
        try:
            return self._follow(levels)
        except BaseException:
            self._forget_since(known, asked)
            raise

    def _follow(self, levels: Sequence[Rows]) -> list[Rows]:
        known = len(self.found)
        columns = "path, '' AS label, '' AS about, CAST(NULL AS BIGINT) AS size"
        self._stage(
            DEFINITION, self._definitions, levels, f"SELECT {columns} FROM named WHERE role = {NAMED}", *self._copies
        )
        # Each names the files of the next one.
        works = {
            METADATA: self._metadata,
            LIST: partial(_inner, role=LIST, parse=_in_list, strict=self._strict),
            MANIFEST: partial(_inner, role=MANIFEST, parse=_in_manifest, strict=self._strict),
        }
        for role, work in works.items():
            if self.has(role, since=known):
                query = f"SELECT path, label, about, size FROM named WHERE role = {role!r}"
                self._stage(role, work, self.found[known:], query)
            else:
                self.read.setdefault(role, 0)
        return self.found[known:]

    def _forget_since(self, known: int, asked: dict[str, int]) -> None:
        """Forget what was found, and what was read, since there was so much of it."""
        for role, files in self._asked.items():
            _drop_since(files, asked.get(role, 0))
        _drop_since(self.found, known)
        del self._numbers[known:]

    def _stage(self, role: str, work: Work, tables: Sequence[Rows], query: str, *copies: Storage) -> None:
        """Read the files of a kind that tables name and that were not read before, and keep what they contain.

        ``query`` asks the table ``named`` for these files.
        """
        if not tables:
            return
        unread, known = not_among("a.path", "known", self._asked.get(role, ()))
        named = f"FROM ({query}) a WHERE {unread}"
        columns = "min(a.label) AS label, min(a.about) AS about, min(a.size) AS size"
        pending = self._engine.sql(f"SELECT a.path, {columns} {named} GROUP BY a.path", named=tables, **known)
        pending = pending.keep("path", repeatable=True)
        self._asked.setdefault(role, []).append(pending)
        what = _NOUNS.get(role, f"{role}s")
        query = f"SELECT a.path {named}"
        asked = refuse_other_names(self._engine, f"names of {what}", pending, "path", query, named=tables, **known)
        files = asked.rows
        self.read[role] = self.read.get(role, 0) + files

        # A file has many rows, and a person waits for files. In tasks nobody counts them: there the end is told.
        def report_read(given: int) -> None:
            self._progress(f"read {what}", given, files)

        found, _, sums = keep_mapped(
            self._engine,
            what,
            work,
            pending,
            "path",
            asked,
            _FOUND,
            self._storage,
            *copies,
            by="path",
            more=[
                f"coalesce(sum(CASE WHEN role = {role!r} THEN 1 END), 0) AS {column}"
                for role, column in _NUMBERED.items()
            ],
            repeatable=self._repeatable,
            progress=report_read,
        )
        self.found.append(found)
        self._numbers.append({role: sums[column] for role, column in _NUMBERED.items()})
        report_read(files)

    def has(self, *roles: str, since: int = 0) -> bool:
        """Whether there are rows of some roles in the tables of ``found`` from one on. No query."""
        return any(numbers[role] for numbers in self._numbers[since:] for role in roles)

    def ask(self, query: str, **tables: Rows) -> Rows:
        """Return the result of a query of the table ``found``, and of others."""
        return self._engine.sql(query, found=self.found, **tables)

    def keep_asked(self, what: str, query: str, columns: str, **tables: Rows) -> Rows:
        """Return the distinct rows of a query of the table ``found``, and of others; see :func:`keep_counted`."""
        return keep_counted(self._engine, what, query, columns, found=self.found, **tables)

    def owners(self, files: Rows) -> Rows:
        """Return the tables that need files: ``origin``, which is the file, ``label``, ``metadata``, ``definition``.

        ``files`` are kept, with the column ``path``. Raises ``StorageError``: the engine lost rows.
        """
        columns = "origin, label, metadata, definition"
        joined = "FROM found f JOIN asked a ON a.path = f.path"
        query = "SELECT path, path AS origin FROM files"
        asked = keep_counted(self._engine, "names of files", query, "path, origin", files=files)
        owners = []
        for _ in range(_HOPS):
            query = f"""SELECT a.origin, f.label, f.path AS metadata, f.parent AS definition {joined}
                WHERE f.role = {METADATA!r}"""
            owners.append(self.keep_asked("tables that need files", query, columns, asked=asked))
            query = f"""SELECT f.parent AS path, a.origin {joined}
                WHERE f.role IN ({LIST!r}, {MANIFEST!r}, {LIVE!r})"""
            asked = self.keep_asked("files that need files", query, "path, origin", asked=asked)
            if not asked.count():
                break
        return keep_counted(self._engine, "tables that need files", "SELECT * FROM owners", columns, owners=owners)

    def drop(self) -> None:
        """Forget everything."""
        for rows in (*self.found, *(each for asked in self._asked.values() for each in asked)):
            rows.drop()
        self.found, self._numbers, self._asked, self.read = [], [], {}, {}


def _drop_since(kept: list[Rows], count: int) -> None:
    for rows in kept[count:]:
        rows.drop()
    del kept[count:]


# -- what files contain --------------------------------------------------------------------------------


def _contents(rows: Iterator[Row], read: Callable[[Row], Any], storage: Storage) -> Iterator[tuple[Row, Any]]:
    """Yield rows with what is read of each. Raises ``StorageError`` where the storage fails for many of them."""
    silent = 0
    while some := list(islice(rows, READ_AHEAD)):
        for row, found in zip(some, storage.map(some, read), strict=True):
            silent += isinstance(found, Lost) and found.failed
            yield row, found
        if silent > _SILENT:
            raise StorageError(
                f"{silent} files of tables could not be read: the storage does not answer; try again later"
            )


def _definitions(
    rows: Iterator[Row], storage: Storage, copy: Storage | None = None, *, share: float, lenient: bool, managed: bool
) -> Found:
    """Yield what definitions of tables and views name. One ``get`` each; objects of other kinds are not read."""
    names = _Names(storage.root)
    is_swept = not (lenient or managed)
    wanted = _choose_definitions(rows, share)
    for row, data in _contents(wanted, lambda row: storage.read_or_missing(row["path"]), storage):
        path = row["path"]
        try:
            definitions = _read_definition(data, path, row["kind"], copy)
        except Corrupt as error:
            if not lenient:  # else the pass over the definitions reports it
                yield DOUBT, "", path, _label_of(path), f"its definition cannot be read: {error}", None
            continue
        for definition in definitions:
            if isinstance(definition, ViewDef):
                found = list(_view(definition, path, names))
                may_be_damaged = _may_be_damaged_view(definition, row["kind"], data)
            elif managed and definition.table_type == EXTERNAL:
                continue
            else:
                found = list(_table(definition, path, names, any_format=is_swept, grounds=lenient))
                # What has lost its end parses, and so does a definition of another kind, which has no type.
                is_iceberg = definition.table_format in {"", ICEBERG}
                is_cut = (is_iceberg or definition.table_type == MANAGED) and not has_checksum(data)
                may_be_damaged = is_cut or not definition.table_type
            if is_swept and not found and may_be_damaged:
                found = [(DOUBT, "", path, _label_of(path), _CUT, None)]
            yield from found


def _may_be_damaged_view(view: ViewDef, kind: str, data: bytes) -> bool:
    """Whether a view without metadata may have had some: only those of Iceberg have a schema, and no other relation."""
    if kind != VIEW or view.HasField("substrait_read_rel"):
        return False
    return not view.sql_representations or (view.HasField("schema") and not has_checksum(data))


def _choose_definitions(rows: Iterator[Row], share: float) -> Iterator[Row]:
    """Yield path and kind of what may define a table or a view, of a share of them."""
    for row in rows:
        path = row["path"]
        kind, _ = kind_of(path)
        if kind in _DEFINE_TABLES and in_sample(path, share):
            yield {"path": path, "kind": kind}


def _read_definition(data: bytes | FileMissing, path: str, kind: str, copy: Storage | None) -> list[TableDef | ViewDef]:
    """Return what is in a file, or else in its copy. A ``get`` of that where it is needed. Raises ``Corrupt``."""
    try:
        if isinstance(data, FileMissing):
            message = f"definition {path!r} is missing, so the files that it names are unknown"
            raise CorruptDefinition(message, path=path)
        return list(_decode_definition(data, path, kind))
    except Corrupt:
        if copy is not None:
            with suppress(Corrupt):
                return _read_definition(copy.read_or_missing(path), path, kind, None)
        raise


def _decode_definition(data: bytes, path: str, kind: str) -> Iterator[TableDef | ViewDef]:
    """Yield the definition in a file; where its name does not tell the kind, all that it can be. Raises ``Corrupt``."""
    if kind == TABLE:
        yield decode_table(data, path)
    elif kind == VIEW:
        yield decode_view(data, path)
    else:
        found: list[Any] = []
        for decode in (decode_table, decode_view, decode_namespace):
            with suppress(Corrupt):
                found.append(decode(data, path))
        if not found:
            raise CorruptDefinition(f"{path}: neither a table, nor a view, nor a namespace", path=path)
        yield from (each for each in found if not isinstance(each, NamespaceDef))


def _view(view: ViewDef, path: str, names: _Names) -> Found:
    """Yield the metadata file of a view. A path that no reader follows still protects the file that it may mean."""
    try:
        uri = view_metadata_uri(names.root, view)
        yield from names.rows(path, [(LIVE, uri, None)] if uri else [])
    except InvalidLocation:
        yield from names.aliases(LIVE, view.properties[VIEW_METADATA_LOCATION], path)


def _table(table: TableDef, path: str, names: _Names, *, any_format: bool, grounds: bool) -> Found:
    """Yield the metadata file of a table, and its directory where nothing else tells its files.

    With ``grounds`` also the directories that only one table may have, and those above them.
    """
    from trinitylake_core.iceberg.reading.errors import Malformed
    from trinitylake_core.iceberg.reading.paths import file_uri

    root, label = names.root, _label_of(path)
    try:
        uri = metadata_uri(root, table) if any_format or table.table_format == ICEBERG else None
        file = None if uri is None else _spell(root, file_uri(uri))
    except (InvalidLocation, Malformed) as error:
        yield DOUBT, "", path, label, f"its metadata location is no path of a file: {error}", None
        return
    try:
        location = _directory_meant(root, table_location(root, table))
    except InvalidLocation as error:  # its metadata tell its files all the same, if it has any
        location = ""
        yield DOUBT if file is None else ASTRAY, "", path, label, str(error), None
    if file is None:
        if location:
            why = "it has a location and names no metadata, so nothing tells its files"
            yield DOUBT, location, path, label, why, None
        elif METADATA_LOCATION in table.format_properties:
            yield DOUBT, "", path, label, "its metadata location is empty, so its files may be any below tables/", None
        return
    if table.table_type == EXTERNAL and (held := directory_of(file) or location):
        yield DOUBT, held, path, label, _EXTERNAL, None
    yield METADATA, file, path, label, "", None
    yield from names.aliases(METADATA, file, path)
    if grounds:
        for part, directory in identity_of(root, table).parts(root):
            if part in (HELD, BELOW):
                yield GROUND, directory, path, label, part, None


def _label_of(path: str) -> str:
    """Return the label of the table with a definition."""
    match = _LABEL.fullmatch(path)
    return match[1] if match else path


def _metadata(rows: Iterator[Row], storage: Storage, *, strict: bool) -> Found:
    """Yield what metadata files refer to, wherever they lie. One ``get`` each."""
    from trinitylake_core.iceberg.reading.references import references

    located = Located(storage)
    root = storage.root
    names = _Names(root)

    def read(row: Row) -> Any:
        return _parse_file(row["path"], located, references, strict=strict)

    for row, refs in _contents(rows, read, storage):
        path = row["path"]
        label = row["label"]
        if isinstance(refs, Lost):
            why = f"its metadata file {uri_of(root, path)} {refs.why}"
            yield refs.role, path, path, label, why, None
            continue
        yield from _name_checksum_file(root, path)
        yield from _name_held_directories(path, label, refs, root)
        former = "" if "://" in path else former_root(root, path, refs.location)  # only what lies here came along
        places = TablePlaces.of(storage, uri_of(root, path))
        # Nothing tells the size of a list. In its place stands how many data files its snapshot has, below zero.
        lists = [(LIST, each, -files or None) for each, files in sorted(refs.manifest_lists.items())]
        yield from names.rows(path, lists, former, places)
        for role, uris in ((LIVE, refs.statistics), (MANIFEST, refs.manifests)):
            yield from names.rows(path, [(role, each, None) for each in sorted(uris)], former, places)


def _name_held_directories(path: str, label: str, refs: References, root: str) -> Found:
    """Yield the directory that the table of a metadata file claims, and those of which nothing may be deleted.

    A claim covers the table's own directory, the one that its metadata are in: whatever its properties say, it keeps no
    other table's files, as far as nothing refers to them.
    """
    inside = directory_of(path)
    shared = shared_directory(root, uri_of(root, path))
    if shared is not None:  # no cleaning lists what lies right in it, so nothing has to be held
        above, _, _ = path.rpartition("/")
        yield DOUBT, f"{above}/.", path, label, _IN_NAMESPACE, None
    if inside:
        directories = [inside]
    else:
        below = [_inside(root, uri) for uri in sorted(refs.directories)]
        directories = [each for each in below if each]
    for directory in directories:
        if not inside:
            yield DOUBT, directory, path, label, "its metadata lie elsewhere", None
        elif not _is_here(root, refs.location):
            why = f"its metadata say that it lies at {refs.location}: it was copied, or moved"
            yield DOUBT, directory, path, label, why, None
        if refs.forbidden:
            yield DOUBT, directory, path, label, _FORBIDDEN, None
        yield CLAIM, directory, path, label, refs.uuid, None


def _inner(rows: Iterator[Row], storage: Storage, *, role: str, parse: Inner, strict: bool) -> Found:
    """Yield what is in manifest lists, or in manifests. One ``get`` each."""
    root = storage.root
    located = Located(storage)
    names = _Names(root)

    def read(row: Row) -> Any:
        own = located.within(TablePlaces.parse_label(storage, row["label"]))
        size = row["size"] or 0

        def parse_all(data: bytes, uri: str) -> list[tuple[str, str, int | None]]:
            return list(parse(data, uri, -size))  # here, so that its errors are those of the reading

        return _parse_file(row["path"], own, parse_all, strict=strict, least=size)

    for row, inner in _contents(rows, read, storage):
        path = row["path"]
        if isinstance(inner, Lost):
            why = f"its {role} {uri_of(root, path)} {inner.why}"
            yield inner.role, path, path, "", why, None
            continue
        yield from _name_checksum_file(root, path)
        yield from names.rows(path, inner, row["about"], TablePlaces.parse_label(storage, row["label"]))


def _in_list(data: bytes, uri: str, files: int) -> Iterator[tuple[str, str, int | None]]:
    from trinitylake_core.iceberg.reading.references import listed_in, refuse_cut

    listed = list(listed_in(data, uri))
    refuse_cut(listed, files, uri)
    return ((MANIFEST, each.uri, each.size) for each in listed)


def _in_manifest(data: bytes, uri: str, _: int) -> Iterator[tuple[str, str, int | None]]:
    from trinitylake_core.iceberg.reading.references import files_in

    return ((LIVE, each.uri, each.size) for each in files_in(data, uri))


def _parse_file(path: str, located: Located, parse: Parse, *, strict: bool, least: int = 0) -> Any:
    """Return the content of a file, or a :class:`Lost`; raise ``StorageError`` only if that is ``strict``.

    A file that has fewer bytes than ``least`` was cut: what is left of a manifest may look whole.
    """
    from trinitylake_core.iceberg.reading.files import read_file

    uri = uri_of(located.storage.root, path)
    try:
        return ask_for_file(
            path, located, lambda storage, inside: parse(read_file(storage, inside, uri, least=least), uri)
        )
    except Corrupt as error:
        return Lost(UNREADABLE, f"cannot be read: {error}")
    except StorageError as error:
        if strict:
            raise
        return Lost(UNREADABLE, f"cannot be read now: {error}; try again when the storage answers", failed=True)


def ask_for_file(path: str, located: Located, ask: Callable[[Storage, str], Any]) -> Any:
    """Return the answer about a file, or a :class:`Lost` where it is missing or cannot be reached.

    Raises ``StorageError`` if the storage of the lakehouse fails. One elsewhere costs what lies there: the answer is
    that it was not seen, which is neither that it is there, nor that it is gone, nor that it is none of our business.
    """
    uri = uri_of(located.storage.root, path)
    try:
        return ask(*located.find(uri))
    except FileMissing:
        return Lost(UNREADABLE, "is missing")
    except NotAFile as error:
        return Lost(UNREADABLE, f"cannot be read: {error}")
    except InvalidInput as error:  # a URI may be fine where somebody has the credentials; a path below the root is not
        return Lost(UNKNOWN if "://" in path else UNREADABLE, f"cannot be read: {error}")
    except StorageError as error:
        if "://" not in path:
            raise
        return Lost(UNSEEN, describe_unseen(error))


# -- places ----------------------------------------------------------------------------------------------


def uri_of(root: str, path: str) -> str:
    """Return the URI of a file as rows name it."""
    return path if "://" in path else f"{base_uri(root)}{path}"


def _spell(root: str, uri: str, former: str = "") -> str:
    """Return a file as rows name it: the path below the root, or below the former one, else the URI."""
    uri = here(root, uri, former)
    try:
        return path_below(root, uri) or uri
    except InvalidLocation:  # with an empty name in it, which only some stores tell from the path without
        return uri


class _Names:
    """How files are named in rows, so that each file that may be meant is met, however a URI spells it."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._links = LocalLinks()
        self._disk = base_uri(root).removeprefix("file://") if root.startswith("file:") else ""

    def rows(
        self,
        parent: str,
        files: Iterable[tuple[str, str, int | None]],
        former: str = "",
        places: TablePlaces | None = None,
    ) -> Found:
        """Yield files, given as role, URI and size, that ``parent`` names; those outside of ``places`` as such."""
        prefixes = () if places is None else places.prefixes
        own = set()
        for prefix in prefixes:
            _, _, name = prefix.rstrip("/").rpartition("/")
            own.add(name)
        for role, uri, size in files:
            path = _spell(self.root, uri, former)
            outside = None if places is None else self._why_outside(path, places)
            if outside:
                yield OUTSIDE, path, parent, role, f"its {_WORDS.get(role, role)} {outside}", size
            elif role == LIVE:
                yield role, path, parent, "", former, size
            else:
                yield role, path, parent, "" if places is None else places.label(), former, size
            for each in self.aliases(role, path, parent, size):
                _, key, _, _, _, _ = each
                directory, _, _ = key.partition("/")
                if places is None or directory in own:
                    yield each
                else:
                    yield ALIAS, key, parent, OUTSIDE, path, size
            yield from _name_checksum_file(self.root, path) if role == LIVE else ()

    def _why_outside(self, path: str, places: TablePlaces) -> OutsidePlaces | None:
        """Return why a file is not opened; ``None``: it lies in the places of its table."""
        try:
            places.require(uri_of(self.root, path))
        except OutsidePlaces as error:
            return error
        return None

    def aliases(self, role: str, path: str, parent: str, size: int | None = None) -> Found:
        """Yield the keys of a file that may be another one here than its path says: by a link, or another spelling."""
        names = [] if is_plain(path) else [path]
        target = self._target(path)
        if target is not None:
            names.append(target)
        if names:
            keys = {key for name in names for key in file_keys(name)}
            yield from ((ALIAS, key, parent, role, path, size) for key in sorted(keys))

    def _target(self, path: str) -> str | None:
        """Return where a link leads that a file on a disk is, or lies behind; ``None`` if there is none."""
        if "://" in path:
            return self._links.target(path)
        return self._links.target_of_path(f"{self._disk}{path}") if self._disk else None


def key_files(engine: Engine, files: Rows, *, plain: bool = False) -> Rows:
    """Return listed files, given as path and size, under each of their keys: path, size, key. No request.

    With ``plain`` the key is the path as it is without percent signs.

    Raises ``StorageError``: the engine lost rows.
    """
    work = _plain_names_of_listed if plain else _keys_of_listed
    asked = ask_of_kept(engine, files, "path")
    how: dict[str, Any] = {"by": "key", "repeatable": False, "each": _LISTED_TOGETHER}
    return keep_mapped(engine, "names of files", work, files, "path", asked, _KEYS, **how).rows


def _keys_of_listed(rows: Iterator[Row]) -> Iterator[tuple[str, int | None, str]]:
    for row in rows:
        yield from ((row["path"], row["size"], key) for key in file_keys(row["path"]))


def _plain_names_of_listed(rows: Iterator[Row]) -> Iterator[tuple[str, int | None, str]]:
    for row in rows:
        yield row["path"], row["size"], plain_name(row["path"])


def _name_checksum_file(root: str, path: str) -> Found:
    """Yield the checksum file that Hadoop's writers put beside each file on a disk."""
    if root.startswith("file:") and "://" not in path:
        above, _, name = path.rpartition("/")
        yield BESIDE, f"{above}/.{name}.crc", path, "", "", None


def _inside(root: str, location: str | None) -> str:
    """Return the path of a table's directory in the area, with a slash at its end; empty where it lies elsewhere.

    Nobody's directory is that of all tables, or of a namespace. Raises nothing: an odd location is no directory.
    """
    if not location:
        return ""
    try:
        path = path_below(root, LocalLinks().target(location) or location)
    except InvalidLocation:
        path = None
    return "" if path is None else _as_own(f"{path}/")


def directory_of(metadata: str) -> str:
    """Return the directory of the table with this metadata file; empty where that is not in the area."""
    above = metadata.rpartition("/")[0].removesuffix("/metadata")
    return _as_own(f"{above}/")


def _directory_meant(root: str, location: str | None) -> str:
    """Return the directory of the area that a location may mean, by its end if it is elsewhere; else empty."""
    inside = _inside(root, location)
    if inside or not location:
        return inside
    return next(ends_in_area(f"{location}/x"), "x").removesuffix("x")


def _as_own(directory: str) -> str:
    return directory if _OWN_DIRECTORY.match(directory) else ""


def _is_here(root: str, location: str) -> bool:
    """Whether a location lies below the root, or is the root."""
    try:
        return path_below(root, f"{location}/tables") is not None
    except InvalidLocation:
        return True

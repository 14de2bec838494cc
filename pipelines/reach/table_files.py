"""The files of Iceberg tables, at the locations in the definitions: below the root, or anywhere else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from importlib.util import find_spec
from typing import Any, Final

import mmh3

from trinitylake_core import Change, Lakehouse
from trinitylake_core.catalog import ObjectEntry
from trinitylake_core.check import Violation, violation
from trinitylake_core.definitions import TableDef, decode_table
from trinitylake_core.errors import (
    Corrupt,
    FileMissing,
    InvalidInput,
    InvalidLocation,
    NotAFile,
    StorageDenied,
    StorageError,
)
from trinitylake_core.extras import install_command
from trinitylake_core.grounds import foreign_place
from trinitylake_core.keys import TABLE
from trinitylake_core.recovery.patterns import Pattern
from trinitylake_core.recovery.selection import matching
from trinitylake_core.storage import Storage
from trinitylake_core.table_places import Located
from trinitylake_core.tables import (
    ICEBERG,
    MANAGED,
    METADATA_LOCATION,
    PREVIOUS_METADATA_LOCATION,
    SNAPSHOT_BYTES,
    SNAPSHOT_ID,
    SNAPSHOT_MILLIS,
    SNAPSHOT_ROWS,
    former_root,
    metadata_uri,
    path_below,
    whole_number,
)
from trinitylake_core.versions import from_millis

TABLES: Final = "tables"
TABLES_UNKNOWN: Final = "tables unknown"
"""What is counted: metadata files that were searched, and those that cannot be reached from here."""
UNSEEN: Final = "-"
"""Takes the place of an invariant where a store gave no answer: nothing is known to be wrong, and nothing is proved."""
EVERY: Final = 1.0
"""The share of tables that means all of them."""
_UNREADABLE: Final = (Corrupt, FileMissing, InvalidInput, StorageError)
_SHARES: Final = 1_000_000
_REWRITES: Final = 1000
"""So many tables are examined before a plan is void because of them."""
_MOVES: Final = (
    METADATA_LOCATION,
    PREVIOUS_METADATA_LOCATION,
    SNAPSHOT_ID,
    SNAPSHOT_MILLIS,
    SNAPSHOT_ROWS,
    SNAPSHOT_BYTES,
)
"""What each commit of an Iceberg table changes in its definition."""

Named = tuple[str, str, TableDef]
"""Label of a table, path of its definition, and the content of that."""


@dataclass(frozen=True, slots=True)
class TableState:
    """Where a table stands in a version: its Iceberg snapshot, and when that was made; ``None`` if it has none.

    ``known`` is false where neither the definition nor the metadata file has it.
    """

    namespace: str
    name: str
    metadata_location: str | None
    snapshot_id: int | None = None
    snapshot_at: datetime | None = None
    known: bool = True


def refuse_no_iceberg() -> None:
    """Raise ``InvalidInput``, which names the extra, where PyIceberg is not installed."""
    if find_spec("pyiceberg") is None:
        raise InvalidInput(f"tables need the extra 'iceberg': {install_command('iceberg')}")


def why_unreadable(error: BaseException) -> str:
    """Return for people why a table, or a file that its metadata name, cannot be read."""
    from trinitylake_core.iceberg.errors import words_of  # brings PyIceberg along
    from trinitylake_core.iceberg.reading.errors import UnreadableTable

    if isinstance(error, FileMissing):
        return f"a file is missing: {error}"
    if isinstance(error, UnreadableTable):
        return f"{error.path} cannot be read: {error}"
    return words_of(error)


def tables_of(lake: Lakehouse, pattern: str | None) -> Iterator[ObjectEntry]:
    """Yield the tables of a version whose names match a pattern such as ``sales.*``, or all, in key order.

    Reads only nodes that hold names with the beginning of the pattern. Raises ``InvalidInput`` for a bad pattern.
    """
    if pattern is None:
        return lake.objects(kind=TABLE)
    return matching(lake.nodes, lake.root_node.node, lake.codec, Pattern(pattern), (TABLE,))


def iceberg_tables(
    storage: Storage, entries: Iterable[ObjectEntry], failures: dict[str, str]
) -> Iterator[tuple[ObjectEntry, TableDef]]:
    """Yield those of some tables that are Iceberg tables with metadata. One ``get`` for each definition.

    A definition that is missing or cannot be read is a failure, by the name of its table.
    """
    entries = list(entries)
    for entry, (path, data) in zip(entries, storage.read_many([each.path for each in entries]), strict=True):
        try:
            if isinstance(data, FileMissing):
                raise data
            table = decode_table(data, path)
        except (Corrupt, FileMissing) as error:
            failures[f"{entry.namespace}.{entry.name}"] = f"its definition cannot be read: {error}"
            continue
        if table.table_format == ICEBERG and table.format_properties.get(METADATA_LOCATION):
            yield entry, table


def refuse_no_share(share: float | None) -> None:
    """Refuse a share of tables that is none. Raises ``InvalidInput``."""
    if share is not None and not 0 <= share <= 1:
        raise InvalidInput(f"the share of tables must be between 0 and 1, not {share}")


def in_sample(path: str, share: float) -> bool:
    """Whether the table with this definition is in the sample: the same tables in every process."""
    return mmh3.hash(path, signed=False) % _SHARES < share * _SHARES


def _with_metadata(tables: Iterable[Named]) -> Iterator[Named]:
    """Yield the tables whose definitions name a metadata file."""
    for each in tables:
        _, _, table = each
        if table.format_properties.get(METADATA_LOCATION):
            yield each


def describe_unseen(error: StorageError) -> str:
    """Return why a file was not seen, as the predicate of a sentence."""
    if isinstance(error, StorageDenied):
        return f"was not seen, because its store refused our credentials: {error}"
    return f"was not seen, because its store gave no answer: {error}"


def finding_of_unseen(file: str, message: str) -> Violation:
    """Return what takes the place of a finding about a file that was not seen."""
    return Violation(UNSEEN, file, message, "run it again when the store answers, and takes our credentials")


class TableFiles:
    """Looks at metadata files of tables through the storages that hold them, with the credentials of the lakehouse."""

    def __init__(self, storage: Storage, counts: Counter[str] | None = None) -> None:
        self._storage = storage
        self._located = Located(storage)
        self.counts: Counter[str] = Counter() if counts is None else counts

    def missing(self, tables: Iterable[Named]) -> Iterator[Violation]:
        """Yield the tables whose metadata file does not exist (I19). One ``head`` each, in parallel.

        A location that this process cannot open is counted and is no finding. One whose store gave no answer, or
        refused our credentials, is :data:`UNSEEN`.
        """
        for (label, path, table), exists in self._storage.map(_with_metadata(tables), self._look):
            if isinstance(exists, str):
                where = table.format_properties[METADATA_LOCATION]
                yield finding_of_unseen(where, f"table {label!r}: its metadata file {where} {exists}")
                continue
            if exists is None:
                self.counts[TABLES_UNKNOWN] += 1
                continue
            self.counts[TABLES] += 1
            if not exists:
                where = table.format_properties[METADATA_LOCATION]
                if table.table_type == MANAGED:
                    where = f"{self._storage.root}{where}"
                yield violation("I19", path, f"the metadata file of table {label!r} does not exist: {where}")

    def _look(self, named: Named) -> tuple[Named, bool | str | None]:
        """Return a table with what :meth:`_exists` says of it."""
        _, _, table = named
        return named, self._exists(table)

    def _exists(self, table: TableDef) -> bool | str | None:
        """Return whether the metadata file exists; ``None`` if it is no file of ours, a text if it was not seen."""
        try:
            storage, path = self._find(table)
            storage.info(path)
        except (FileMissing, NotAFile):
            return False
        except InvalidInput:
            return None
        except StorageError as error:
            return describe_unseen(error)
        return True

    def has_lost_files(self, table: TableDef) -> bool | None:
        """Whether the metadata file, or the manifest list of its oldest snapshot, is gone; ``None`` if unknown.

        One ``get`` and one ``head``. Whatever expires snapshots deletes the oldest manifest lists first.
        """
        from trinitylake_core.iceberg.reading.references import references_in

        try:
            metadata, uri = self._read(table), metadata_uri(self._storage.root, table) or ""
            location = references_in(metadata, uri).location
            snapshots = metadata.get("snapshots") or []
            if snapshots and (first := snapshots[0].get("manifest-list")):
                storage, path = self._located.of(uri, location).find(first)
                storage.info(path)
        except FileMissing:
            return True
        except (Corrupt, InvalidInput, StorageError):
            return None
        return False

    def find_foreign_place(self, table: TableDef) -> str | None:
        """Return a directory in a table's metadata that its definition lacks, so that no client gets the table.

        ``None`` if there is none, or nobody can tell. One ``get``.
        """
        from trinitylake_core.iceberg.reading.references import references_in

        root = self._storage.root
        try:
            uri = metadata_uri(root, table) or ""
            found = references_in(self._read(table), uri)
            former = ""
            if path_below(root, uri) is not None:
                former = former_root(root, uri, found.location)
            return foreign_place(root, table, uri, former, sorted(found.directories))
        except _UNREADABLE:
            return None

    def _find(self, table: TableDef) -> tuple[Storage, str]:
        """Return the storage of a table's metadata file, and its path there. Raises ``InvalidInput``, StorageError."""
        uri = metadata_uri(self._storage.root, table)
        if uri is None:
            raise InvalidLocation("the definition names no metadata file")
        return self._located.find(uri)

    def states(self, tables: Iterable[tuple[str, str, TableDef]]) -> Iterator[TableState]:
        """Yield where tables stand, given as namespace, name and definition.

        No request where the definition contains it, as those of our catalog do; else one ``get`` of the metadata.
        """
        return self._storage.map(tables, lambda each: self._state(*each))

    def _state(self, namespace: str, name: str, table: TableDef) -> TableState:
        facts = table.format_properties
        location = facts.get(METADATA_LOCATION)
        snapshot = whole_number(facts.get(SNAPSHOT_ID, ""))
        millis = whole_number(facts.get(SNAPSHOT_MILLIS, ""))
        if snapshot is not None and millis is not None:
            return TableState(namespace, name, location, snapshot, from_millis(millis))
        from trinitylake_core.iceberg.reading.references import current_snapshot

        if not location or "uuid" in facts:  # nothing written yet, or written by us without a snapshot
            return TableState(namespace, name, location or None)
        try:
            found = current_snapshot(self._read(table), location)
            if found is None:
                return TableState(namespace, name, location)
            return TableState(namespace, name, location, found["snapshot-id"], from_millis(found["timestamp-ms"]))
        except _UNREADABLE:
            return TableState(namespace, name, location, known=False)

    def have_same_rows(self, before: TableDef, after: TableDef) -> bool:
        """Whether two definitions are of one table with the same rows. Two ``get``. Raises as the storage does."""
        from trinitylake_core.iceberg.reading.references import have_same_rows

        if before.table_format != ICEBERG or _without_moves(before) != _without_moves(after):
            return False
        return have_same_rows(self._read(before), self._read(after))

    def _read(self, table: TableDef) -> Any:
        from trinitylake_core.iceberg.reading.files import read_file
        from trinitylake_core.iceberg.reading.metadata_json import decode_metadata

        storage, path = self._find(table)
        return decode_metadata(read_file(storage, path, path), path)


def _without_moves(table: TableDef) -> TableDef:
    """Return a definition without what each commit of its table changes."""
    left = TableDef()
    left.CopyFrom(table)
    for name in _MOVES:
        left.format_properties.pop(name, None)
    return left


def are_rewrites(storage: Storage, changes: Iterable[Change]) -> bool:
    """Whether changes leave the rows of all tables, and all other objects, as they were.

    Compactions and expirations of tables do. Two ``get`` of definitions and two of metadata for each table; at most
    1000 tables are examined. What cannot be read is no rewrite.
    """
    files = TableFiles(storage)
    for number, each in enumerate(changes):
        if number == _REWRITES or each.kind != TABLE or each.old_path is None or each.new_path is None:
            return False
        try:
            before = decode_table(storage.read(each.old_path), each.old_path)
            after = decode_table(storage.read(each.new_path), each.new_path)
            if not files.have_same_rows(before, after):
                return False
        except _UNREADABLE:
            return False
    return True


def states_after(storage: Storage, changes: Iterable[Change]) -> tuple[TableState, ...]:
    """Return the locations of the tables that changes bring back, or change. One ``get`` each, for the definition."""
    named: list[Change] = []
    paths: list[str] = []
    for each in changes:
        if each.kind == TABLE and each.new_path is not None:
            named.append(each)
            paths.append(each.new_path)

    def read_tables() -> Iterator[Named]:
        for each, (path, data) in zip(named, storage.read_many(paths), strict=True):
            if not isinstance(data, FileMissing):
                yield each.namespace, each.name or "", decode_table(data, path)

    return tuple(TableFiles(storage).states(read_tables()))

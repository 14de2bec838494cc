"""Replacing data files of tables by others with the same rows: one REPLACE snapshot each, validated at the commit.

PyIceberg writes no such snapshot. New files have the sequence number of the new snapshot, so deletes that came since
the rewrite began would not apply to them, and deleted rows would come back: with any such delete the rewrite is lost.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyiceberg.exceptions import CommitFailedException, ValidationError
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import (
    Operation,
    Snapshot,
    SnapshotSummaryCollector,
    Summary,
    update_snapshot_summaries,
)
from pyiceberg.table.update import AddSnapshotUpdate, SetSnapshotRefUpdate, TableUpdate

from trinitylake_core import clock
from trinitylake_core.errors import FileMissing, InvalidLocation
from trinitylake_core.iceberg import border
from trinitylake_core.iceberg.errors import words_of
from trinitylake_core.iceberg.names import CatalogName
from trinitylake_core.iceberg.reading import references as refer
from trinitylake_core.iceberg.reading.files import read_file
from trinitylake_core.iceberg.reading.health import read_manifests
from trinitylake_core.iceberg.rewriting.buffered_io import BufferedIO
from trinitylake_core.iceberg.rewriting.rewritten import DataFile, FileRewrite
from trinitylake_core.iceberg.rights.metadata_files import MetadataFiles, Stored
from trinitylake_core.table_places import Located
from trinitylake_core.tables import full_uri

LAST_VERSION: Final = 2
"""The newest version of the table format that PyIceberg writes."""
_POSITION_DELETES: Final = 1


def may_concern(deletes: DataFile, replaced: Sequence[DataFile]) -> bool:
    """Whether a delete file may apply to some data files: those of its partition, or by equality without one to all.

    Position deletes by another spec than theirs may, too: DuckDB writes and applies such.
    """
    if any(each.group == deletes.group for each in replaced):
        return True
    if deletes.entry.content == _POSITION_DELETES:
        return any(each.entry.spec_id != deletes.entry.spec_id for each in replaced)
    return not len(deletes.entry.partition)


class RewriteLost(CommitFailedException):
    """Others changed tables in a way that a rewrite of them cannot stand on.

    Attributes:
        tables: those tables, each with the reason.
    """

    def __init__(self, tables: Mapping[CatalogName, str]) -> None:
        super().__init__("; ".join(f"{name}: {why}" for name, why in tables.items()))
        self.tables = dict(tables)


class _Changed(Exception):
    """The table is not what the rewrite has read."""


@dataclass(frozen=True)
class LiveFiles:
    """The files of the current snapshot of a table.

    Attributes:
        files: reads them, and holds the manifests.
        manifests: the manifests in the order of the list, each with the URIs in it.
        located: the storages of its files.
    """

    files: BufferedIO
    manifests: tuple[tuple[Any, frozenset[str]], ...]
    located: Located

    def data_files(self, wanted: frozenset[str] | None = None) -> Iterator[DataFile]:
        """Yield data files: all, or those of some URIs. Reads no manifest without one of them."""
        for manifest, uris in self.manifests:
            if border.holds_deletes(manifest) or (wanted is not None and not uris & wanted):
                continue
            for entry in border.entries_in(self.files, manifest):
                file = DataFile.of(entry.data_file)
                if wanted is None or file.uri in wanted:
                    yield file

    def list_delete_files(self) -> Iterator[DataFile]:
        """Yield the delete files."""
        for manifest, _ in self.manifests:
            if border.holds_deletes(manifest):
                for entry in border.entries_in(self.files, manifest):
                    yield DataFile.of(entry.data_file)

    def list_delete_uris(self) -> frozenset[str]:
        """Return the URIs of the delete files."""
        found: set[str] = set()
        for manifest, uris in self.manifests:
            if border.holds_deletes(manifest):
                found |= uris
        return frozenset(found)


def live_files(located: Located, table: Stored) -> LiveFiles:
    """Return the files of the current snapshot of a table; empty without one.

    One ``get`` for its manifest list and for each manifest, by our own reader, in its bounds: PyIceberg gets nothing
    else. Memory: the manifests, and the URIs in them.

    Raises:
        UnreadableTable, ValidationError, FileMissing, StorageError, InvalidInput.
    """
    located = located.of(table.metadata_location, table.metadata.location)
    files = BufferedIO(located)
    snapshot = table.metadata.current_snapshot()
    if snapshot is None:
        return LiveFiles(files, (), located)
    manifest_list = snapshot.manifest_list
    storage, path = located.find(manifest_list)
    data = read_file(storage, path, manifest_list)
    files.hold(manifest_list, data)
    listed = {each.uri: each for each in refer.listed_in(data, manifest_list)}

    def parse(content: bytes, uri: str) -> Iterator[str]:
        files.hold(uri, content)
        return (each.uri for each in refer.described_files_in(content, uri))

    named: dict[str, frozenset[str]] = {}
    for each, uris in read_manifests(located, listed, parse):
        named[each.uri] = frozenset(uris)
    manifests: list[tuple[Any, frozenset[str]]] = []
    for manifest in border.manifests_in(files, manifest_list):
        manifests.append((manifest, named[full_uri(manifest.manifest_path)]))
    return LiveFiles(files, tuple(manifests), located)


# -- the new snapshot ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class NewSnapshot:
    """A snapshot that replaces files: its number, the updates that make it current, and the files to be stored."""

    number: int
    updates: tuple[TableUpdate, ...]
    files: BufferedIO


def replacing_snapshot(places: MetadataFiles, table: Stored, rewrite: FileRewrite) -> NewSnapshot:
    """Return the snapshot that makes a rewrite count on top of the newest metadata of a table. Nothing is stored.

    Costs what :func:`live_files` does. Raises ``CommitFailedException``: others changed the table in a way that the
    rewrite cannot stand on, or its files can no longer be read.
    """
    try:
        return _Replacement(places, table, rewrite).snapshot()
    except _Changed as error:
        raise CommitFailedException(str(error)) from None
    except (refer.UnreadableTable, FileMissing, InvalidLocation, ValidationError) as error:
        raise CommitFailedException(f"it cannot be read any more: {words_of(error)}") from None


def set_main(metadata: TableMetadata, number: int) -> SetSnapshotRefUpdate:
    """Return the update that makes a snapshot the current one; what the branch ``main`` keeps stays as it is."""
    main = metadata.refs.get(MAIN_BRANCH)
    fields: dict[str, Any] = {} if main is None else main.model_dump()
    fields |= {"ref-name": MAIN_BRANCH, "type": SnapshotRefType.BRANCH, "snapshot-id": number}
    return SetSnapshotRefUpdate(**fields)


class _Replacement:
    def __init__(self, places: MetadataFiles, table: Stored, rewrite: FileRewrite) -> None:
        self._metadata: TableMetadata = table.metadata
        self._rewrite = rewrite
        self._refuse_other_table()
        self._live = live_files(Located(places.storage), table)
        self._files = self._live.files
        self._number = self._metadata.new_snapshot_id()
        self._prefix = f"{self._metadata.location.rstrip('/')}/metadata"
        self._uuid = uuid.uuid4()
        self._written = 0

    def _refuse_other_table(self) -> None:
        if str(self._metadata.table_uuid) != self._rewrite.uuid:
            raise _Changed("another table has its name now")
        if self._metadata.format_version > LAST_VERSION:
            raise _Changed(f"it is of format version {self._metadata.format_version} now, which Spark rewrites")

    def snapshot(self) -> NewSnapshot:
        self._refuse_new_deletes()
        manifests = [*self._write_added(), *self._write_kept()]
        parent = self._metadata.current_snapshot()
        made = Snapshot(
            snapshot_id=self._number,
            parent_snapshot_id=None if parent is None else parent.snapshot_id,
            sequence_number=self._metadata.next_sequence_number(),
            timestamp_ms=max(clock.now_millis(), self._metadata.last_updated_ms + 1),
            manifest_list=f"{self._prefix}/snap-{self._number}-0-{self._uuid}.avro",
            summary=self._summary(parent),
            schema_id=self._metadata.current_schema_id,
        )
        border.write_list(self._metadata, manifests, made, self._files)
        to_main = set_main(self._metadata, self._number)
        return NewSnapshot(self._number, (AddSnapshotUpdate(snapshot=made), to_main), self._files)

    def _refuse_new_deletes(self) -> None:
        """Refuse delete files that came since the rewrite began and may concern what it replaces."""
        if not self._rewrite.replaced or self._live.list_delete_uris() <= self._rewrite.delete_files:
            return
        for file in self._live.list_delete_files():
            is_new = file.uri not in self._rewrite.delete_files
            if is_new and (file.entry.content != _POSITION_DELETES or may_concern(file, self._rewrite.replaced)):
                raise _Changed("a writer deleted rows of the files that were rewritten")

    def _write_added(self) -> list[Any]:
        """Write a manifest for the new files of each partition spec."""
        by_spec: dict[int, list[Any]] = {}
        for file in self._rewrite.added:
            by_spec.setdefault(file.entry.spec_id, []).append(border.added_entry(self._number, file.entry))
        return [self._write(spec_id, entries) for spec_id, entries in by_spec.items()]

    def _write_kept(self) -> list[Any]:
        """Return the manifests that stay; write those again from which files go."""
        wanted = frozenset(each.uri for each in self._rewrite.replaced)
        found: set[str] = set()
        kept: list[Any] = []
        for manifest, uris in self._live.manifests:
            going = uris & wanted
            if border.holds_deletes(manifest) or not going:
                if uris:
                    kept.append(manifest)
                continue
            found |= going
            entries = self._entries_after(manifest, going)
            kept.append(self._write(manifest.partition_spec_id, entries))
        if found != wanted:
            raise _Changed("a writer replaced or deleted files that were rewritten")
        return kept

    def _entries_after(self, manifest: Any, going: frozenset[str]) -> list[Any]:
        """Return the entries of a manifest as they will be, when some files have gone."""
        entries = []
        for entry in border.entries_in(self._files, manifest):
            if full_uri(entry.data_file.file_path) in going:
                entries.append(border.new_entry(border.STATUS_DELETED, self._number, entry))
            else:
                entries.append(border.new_entry(border.STATUS_EXISTING, entry.snapshot_id, entry))
        return entries

    def _write(self, spec_id: int, entries: list[Any]) -> Any:
        to = f"{self._prefix}/{self._uuid}-m{self._written}.avro"
        self._written += 1
        return border.write_entries(self._metadata, spec_id, entries, self._number, self._files, to)

    def _summary(self, parent: Snapshot | None) -> Summary:
        """Return the summary of the snapshot, with the sums of the table after it."""
        specs = self._metadata.specs()
        schema = self._metadata.schema()
        sums = SnapshotSummaryCollector()
        for file in self._rewrite.added:
            sums.add_file(file.entry, schema, specs[file.entry.spec_id])
        for file in self._rewrite.replaced:
            sums.remove_file(file.entry, schema, specs[file.entry.spec_id])
        known = Summary(operation=Operation.OVERWRITE, **sums.build(), **self._rewrite.facts)
        before = None if parent is None else parent.summary
        summed = update_snapshot_summaries(known, before)  # which knows no REPLACE
        return Summary(operation=Operation.REPLACE, **summed.additional_properties)

"""Changing tables: a commit writes a new metadata file, and a definition that names it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    NoSuchIcebergTableError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
    ValidationError,
    ViewAlreadyExistsError,
)
from pyiceberg.io import FileIO
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import CommitTableResponse, StagedTable, Table, TableProperties
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortOrder
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertCreate,
    SetPropertiesUpdate,
    TableRequirement,
    TableUpdate,
    update_table_metadata,
)
from pyiceberg.typedef import EMPTY_DICT, Identifier, Properties

from trinitylake_core.errors import AlreadyExists
from trinitylake_core.iceberg.border import in_our_words, refuse_code
from trinitylake_core.iceberg.change import Attempt
from trinitylake_core.iceberg.errors import no_table, translated
from trinitylake_core.iceberg.fields import table_fields
from trinitylake_core.iceberg.places import MovedIO, Stored
from trinitylake_core.iceberg.snapshot_expiration import Expiring, PlannedSnapshots, SnapshotRules, expiring
from trinitylake_core.iceberg.table_reader import TableReader
from trinitylake_core.iceberg.table_updates import updated
from trinitylake_core.keys import TABLE, VIEW
from trinitylake_core.storage.root_uris import refuse_credentials

if TYPE_CHECKING:
    import pyarrow as pa

TableCommit = tuple[str | Identifier, tuple[TableRequirement, ...], tuple[TableUpdate, ...]]
"""What a client wants of one table: its name, what must hold, and what to change."""
_NAMED: Final = 3
"""So many tables of one commit are named in the history."""


class Tables(TableReader):
    """The part of the catalog that changes tables."""

    # -- creating ------------------------------------------------------------------------------

    def create_table(
        self,
        identifier: str | Identifier,
        schema: Schema | pa.Schema,
        location: str | None = None,
        partition_spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
        sort_order: SortOrder = UNSORTED_SORT_ORDER,
        properties: Properties = EMPTY_DICT,
    ) -> Table:
        """Create a table, below the root unless a location or a warehouse is given.

        Raises:
            TableAlreadyExistsError: a table or a view of this name is there.
            NoSuchNamespaceError: the namespace is not there.
            ForbiddenError: the location is outside what this catalog may write.
            BadRequestError: a name that the lakehouse cannot hold.
            NotImplementedError: a format version that PyIceberg cannot write.
        """
        staged = self._create_staged_table(identifier, schema, location, partition_spec, sort_order, properties)
        namespace, name = self._split(identifier, NoSuchNamespaceError)

        def create(change: Attempt) -> Table:
            self._add(change, namespace, name, staged)
            return self._table(namespace, name, staged.metadata, staged.metadata_location)

        with translated():
            return self._change(create, f"create table {namespace}.{name}")

    def register_table(self, identifier: str | Identifier, metadata_location: str, overwrite: bool = False) -> Table:  # noqa: FBT001, FBT002 - PyIceberg's signature
        """Add a table that is already written, where it is; with ``overwrite`` in place of one of this name.

        Raises:
            TableAlreadyExistsError: a table or a view of this name is there, and ``overwrite`` is not set.
            NoSuchNamespaceError: the namespace is not there.
            FileNotFoundError, ValidationError: there are no table metadata at this location.
            ValueError: the location holds credentials, which every reader of the definition would see.
        """
        namespace, name = self._split(identifier, NoSuchNamespaceError)

        def register(change: Attempt) -> Table:
            self._need_namespace(change.txn, namespace)
            metadata = self._places.read(metadata_location)
            replaced = None
            with suppress(NoSuchTableError, NoSuchIcebergTableError, FileNotFoundError, ValidationError):
                if overwrite:
                    replaced_at = self._metadata_location(change.txn, namespace, name)
                    replaced = Stored(self._places.read(replaced_at), replaced_at)
            self._set(change, namespace, name, metadata, metadata_location, replace=overwrite)
            change.take_over(metadata, metadata_location, replaced)
            return self._table(namespace, name, metadata, metadata_location)

        with translated():
            refuse_credentials(metadata_location, "location")
            return self._change(register, f"register table {namespace}.{name}")

    def stage_table(
        self,
        identifier: str | Identifier,
        schema: Schema | pa.Schema,
        location: str | None = None,
        partition_spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
        sort_order: SortOrder = UNSORTED_SORT_ORDER,
        properties: Properties = EMPTY_DICT,
    ) -> StagedTable:
        """Return a table that is only in memory; a commit that requires that there is none creates it.

        Raises what :meth:`create_table` raises.
        """
        namespace, name = self._split(identifier, NoSuchNamespaceError)
        if self.table_exists((*namespace.split("."), name)):
            raise TableAlreadyExistsError(f"Table already exists: {namespace}.{name}")
        return self._create_staged_table(identifier, schema, location, partition_spec, sort_order, properties)

    def _create_staged_table(
        self,
        identifier: str | Identifier,
        schema: Schema | pa.Schema,
        location: str | None = None,
        partition_spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
        sort_order: SortOrder = UNSORTED_SORT_ORDER,
        properties: Properties = EMPTY_DICT,
    ) -> StagedTable:
        """Return a table that is only in memory. Nothing is written."""
        namespace, name = self._split(identifier, NoSuchNamespaceError)
        parent = self.load_namespace_properties(namespace).get("location")
        with in_our_words("the property 'format-version' of the new table"):
            version: Any = int(properties.get(TableProperties.FORMAT_VERSION, TableProperties.DEFAULT_FORMAT_VERSION))
        iceberg_schema = self._convert_schema_if_needed(schema, version)
        where = location.rstrip("/") if location else self._places.new_location(namespace, name, parent)
        refuse_code(properties, f"table {namespace}.{name}")
        with in_our_words("the new table"):
            metadata = new_table_metadata(iceberg_schema, partition_spec, sort_order, where, dict(properties))
        metadata_location = self._places.new_metadata_file(metadata)
        with translated():
            self._places.check(metadata, metadata_location)
            io = self._places.file_io(metadata_location)
        return StagedTable(self._identifier(namespace, name), metadata, metadata_location, io, self)

    def _add(self, change: Attempt, namespace: str, name: str, staged: Stored | StagedTable) -> None:
        """Write the metadata of a new table, and add its definition."""
        self._make_namespace(change, namespace)
        self._set(change, namespace, name, staged.metadata, staged.metadata_location, replace=False)
        change.write_metadata(staged.metadata, staged.metadata_location)

    def _set(
        self, change: Attempt, namespace: str, name: str, metadata: TableMetadata, location: str, *, replace: bool
    ) -> None:
        """Create the definition of a table, or with ``replace`` make it name other metadata.

        Raises ``TableAlreadyExistsError``.
        """
        stored = self._places.stored(location)
        try:
            old = self._definition(change.txn, namespace, name) if replace else None
        except NoSuchTableError:
            old = None
        if old is not None:
            change.txn.alter_table(namespace, name, **table_fields(metadata, stored, old))
            return
        self._make_namespace(change, namespace)
        try:
            change.txn.need_absent(VIEW, namespace, name)
        except AlreadyExists:
            raise TableAlreadyExistsError(f"View with same name already exists: {namespace}.{name}") from None
        try:
            change.txn.create_table(namespace, name, **table_fields(metadata, stored))
        except AlreadyExists:
            raise TableAlreadyExistsError(f"Table already exists: {namespace}.{name}") from None

    # -- changing ------------------------------------------------------------------------------

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        """Apply updates to the newest metadata of a table, if they still meet the requirements.

        One ``put`` more than a commit of the lakehouse, and one ``get``. The requirements are proved again after each
        lost race over this table; commits to other tables are no race.

        Raises:
            CommitFailedException: a requirement is not met.
            CommitStateUnknownException: the storage failed, and the commit may have been made.
            NoSuchTableError: the table is not there.
            ForbiddenError: the catalog is read-only, or a location is outside what it may write.
        """
        return self.commit_tables([(table.name(), requirements, updates)])[0]

    def commit_tables(self, commits: Sequence[TableCommit]) -> list[CommitTableResponse]:
        """Apply the updates of several tables as one version, or those of none. Costs and errors as for one each."""
        names = [self._split(identifier, NoSuchTableError) for identifier, _, _ in commits]

        def update(change: Attempt) -> list[CommitTableResponse]:
            made: list[CommitTableResponse] = []
            for (namespace, name), (_, requirements, updates) in zip(names, commits, strict=True):
                try:
                    location = self._metadata_location(change.txn, namespace, name)
                    current = Stored(self._places.base_of_commit(location), location)
                except NoSuchTableError:
                    current = None
                new = self._staged(current, self._identifier(namespace, name), requirements, updates)
                if current is not None and new.metadata == current.metadata:
                    new = current
                    change.txn.need_unchanged(TABLE, namespace, name)  # that there is nothing to do has to stay true
                elif current is None:
                    self._places.check(new.metadata, new.metadata_location)
                    self._add(change, namespace, name, new)
                else:
                    self._places.check(new.metadata, new.metadata_location, current)
                    change.write_metadata(new.metadata, new.metadata_location, current)
                    self._set(change, namespace, name, new.metadata, new.metadata_location, replace=True)
                made.append(CommitTableResponse(metadata=new.metadata, metadata_location=new.metadata_location))
            return made

        named = [f"{_what(updates)} {'.'.join(name)}" for name, (_, _, updates) in zip(names, commits, strict=True)]
        what = ", ".join(named[:_NAMED])
        with translated():
            return self._change(update, what if len(names) <= _NAMED else f"{what}, ... ({len(names)} tables)")

    def expire_snapshots(
        self, identifiers: Sequence[Identifier], rules: SnapshotRules | PlannedSnapshots, now_millis: int
    ) -> dict[Identifier, Expiring]:
        """Remove snapshots and references of several tables as one version; return what each of them lost.

        Their own properties decide, and ``rules`` where they have none. No file is deleted, so a rollback brings the
        snapshots back. Tables that are gone, or have nothing to remove, are left out. One ``get`` and one ``put`` for
        each table, side by side, and a commit.

        Raises:
            ValueError: a property that must be a number is none, or a table forbids it.
            FileNotFoundError, ValidationError: metadata that cannot be read.
            CommitFailedException, CommitStateUnknownException, ForbiddenError: as :meth:`commit_table`.
        """
        names = [self._split(each, NoSuchTableError) for each in identifiers]

        def expire(change: Attempt) -> dict[Identifier, Expiring]:
            found: dict[Identifier, Expiring] = {}
            staged: list[tuple[Table, Stored]] = []
            for current in self._load_many(change.txn, names):
                if isinstance(current.io, MovedIO):
                    raise current.io.refusal(".".join(current.name()))
                losing = expiring(current.metadata, rules, now_millis)
                if updates := losing.updates():
                    found[current.name()] = losing
                    before = Stored(current.metadata, current.metadata_location)
                    staged.append((current, self._staged(before, current.name(), (), updates)))

            def write(each: tuple[Table, Stored]) -> tuple[Table, Stored]:
                before = Stored(each[0].metadata, each[0].metadata_location)
                change.write_metadata(each[1].metadata, each[1].metadata_location, before)
                return each

            for current, new in self._places.storage.map(staged, write):
                namespace, name = self._split(current.name(), NoSuchTableError)
                self._set(change, namespace, name, new.metadata, new.metadata_location, replace=True)
            return found

        with translated():
            return self._change(expire, f"expire snapshots of {len(names)} tables")

    def _staged(
        self,
        current: Stored | None,
        identifier: Identifier,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> Stored:
        """Return the metadata after a commit, and the location of a new file for them. Nothing is written.

        Raises:
            CommitFailedException: a requirement is not met.
            NoSuchTableError: there is no table, and the commit does not require that there is none.
            ValidationError: updates that do not fit the table, or properties that name code.
        """
        full_name = ".".join(identifier)
        with in_our_words(f"the commit to {full_name}"):
            for requirement in requirements:
                requirement.validate(current and current.metadata)
        if current is None and not any(isinstance(each, AssertCreate) for each in requirements):
            raise no_table(".".join(identifier[:-1]), identifier[-1])
        for update in updates:
            if isinstance(update, SetPropertiesUpdate):
                refuse_code(update.updates, f"table {full_name}")
        with in_our_words(f"the commit to {full_name}"):
            if current is None:
                metadata = update_table_metadata(self._empty_table_metadata(), updates, enforce_validation=True)
            else:
                metadata = updated(current, updates)
        number = 0 if current is None else self._parse_metadata_version(current.metadata_location) + 1
        return Stored(metadata, self._places.new_metadata_file(metadata, number))

    def rename_table(self, from_identifier: str | Identifier, to_identifier: str | Identifier) -> Table:
        """Rename a table, in one version. Its files stay where they are.

        Raises:
            NoSuchTableError, NoSuchNamespaceError: the table, or the new namespace, is not there.
            TableAlreadyExistsError: a table or a view of the new name is there.
        """
        namespace, name = self._split(from_identifier, NoSuchTableError)
        to_namespace, to_name = self._split(to_identifier, NoSuchNamespaceError)

        def rename(change: Attempt) -> Table:
            self._definition(change.txn, namespace, name)
            self._rename(change, TABLE, (namespace, name), (to_namespace, to_name))
            return self._load(change.txn, to_namespace, to_name)

        with translated():
            return self._change(rename, f"rename table {namespace}.{name} to {to_namespace}.{to_name}")

    def _rename(self, change: Attempt, kind: str, old: tuple[str, str], new: tuple[str, str]) -> None:
        """Rename a table or a view; raise PyIceberg's error for a name that one of them has."""
        other, taken = (VIEW, TableAlreadyExistsError) if kind == TABLE else (TABLE, ViewAlreadyExistsError)
        rename = change.txn.rename_table if kind == TABLE else change.txn.rename_view
        self._make_namespace(change, new[0])
        found = other
        try:
            change.txn.need_absent(other, *new)
            found = kind
            rename(*old, *new)
        except AlreadyExists:
            raise taken(f"Cannot rename {'.'.join(old)} to {'.'.join(new)}. {found.title()} already exists") from None

    def drop_table(self, identifier: str | Identifier) -> None:
        """Drop a table. Its files stay: older versions and snapshots read them. Raises ``NoSuchTableError``.

        A cleaning of tables removes them once no retained version and no snapshot of the lakehouse needs them; those of
        a table that lies outside the lakehouse stay.
        """
        self._drop(identifier, "drop")

    def purge_table(self, identifier: str | Identifier) -> None:
        """Drop a table, as :meth:`drop_table` does: nothing that an older version or a rollback needs is deleted.

        To have its files gone soon, expire the versions that name it, and clean tables.
        """
        self._drop(identifier, "purge")

    def _drop(self, identifier: str | Identifier, what: str) -> None:
        namespace, name = self._split(identifier, NoSuchTableError)

        def drop(change: Attempt) -> None:
            self._definition(change.txn, namespace, name)
            change.txn.drop_table(namespace, name)

        with translated():
            self._change(drop, f"{what} table {namespace}.{name}")

    def _delete_old_metadata(self, io: FileIO, base: TableMetadata, metadata: TableMetadata) -> None:  # type: ignore[override]  # static there
        """Delete metadata files by the table's own properties, once the commit is made."""
        self._after_commit(lambda: Catalog._delete_old_metadata(io, base, metadata))  # noqa: SLF001 - PyIceberg's hook


def _what(updates: tuple[TableUpdate, ...]) -> str:
    """Return the operation of a commit, in a word, for the history of the lakehouse."""
    added = (update.snapshot.summary for update in updates if isinstance(update, AddSnapshotUpdate))
    done = {str(summary.operation.value) for summary in added if summary is not None}
    return "overwrite" if len(done) > 1 else next(iter(done), "update")  # an overwrite deletes, then it appends

"""PyIceberg's catalog over a lakehouse: every change is a version, and old versions can be opened.

What a change does is in ``namespaces``, ``tables`` and ``views``, as functions over one attempt. Here is how an attempt
begins, is tried again, and ends, and what PyIceberg's callers call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from pyiceberg.catalog import URI, WAREHOUSE_LOCATION, MetastoreCatalog, PropertiesUpdateSummary
from pyiceberg.exceptions import (
    CommitFailedException,
    ForbiddenError,
    NoSuchNamespaceError,
    NoSuchPropertyException,
    NoSuchTableError,
    NoSuchViewError,
    TableAlreadyExistsError,
)
from pyiceberg.io import FileIO
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table import CommitTableResponse, StagedTable, Table, TableProperties
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortOrder
from pyiceberg.table.update import AssertRefSnapshotId, TableRequirement, TableUpdate
from pyiceberg.typedef import EMPTY_DICT, Identifier, Properties
from pyiceberg.types import transform_dict_value_to_str
from pyiceberg.view.metadata import ViewVersion

from trinitylake_core.catalog import CatalogView
from trinitylake_core.definitions import TableDef
from trinitylake_core.errors import (
    CommitConflict,
    Corrupt,
    InvalidInput,
    NotFound,
    OutcomeUnknown,
    StorageDenied,
    TransactionExpired,
    VersionExpired,
)
from trinitylake_core.grounds import NOBODY, full_name
from trinitylake_core.iceberg import border, namespaces, tables
from trinitylake_core.iceberg.attempt import Attempt, Claims
from trinitylake_core.iceberg.commit_rules.added import TableFilesVoid
from trinitylake_core.iceberg.commit_rules.snapshot_expiration import Expiring, PlannedSnapshots, SnapshotRules
from trinitylake_core.iceberg.errors import MetadataMissing, keep_own_errors, translate_errors
from trinitylake_core.iceberg.names import AnyName, CatalogName, name_of, namespace_of, new_name_of, new_namespace_of
from trinitylake_core.iceberg.options import file_io_properties, storage_options
from trinitylake_core.iceberg.rewriting.replacing import set_main
from trinitylake_core.iceberg.rewriting.rewritten import FileRewrite
from trinitylake_core.iceberg.rights.locations import Locations, Place
from trinitylake_core.iceberg.rights.metadata_files import MetadataFiles, Stored
from trinitylake_core.iceberg.staged import StagedTables
from trinitylake_core.iceberg.version3 import VERSION, TableOfVersion3
from trinitylake_core.iceberg.views import catalog_views as views
from trinitylake_core.iceberg.views.catalog_views import NewView, StoredView, ViewCommit
from trinitylake_core.lakehouse import Lakehouse
from trinitylake_core.recovery.target import parse_moment
from trinitylake_core.storage import root_uri
from trinitylake_core.storage.root_uris import refuse_credentials
from trinitylake_core.table_index import TableIndex
from trinitylake_core.tables import as_directory, metadata_uri
from trinitylake_core.transactions.requests import current_request, lifetime_of_keys

if TYPE_CHECKING:
    import pyarrow as pa

_T = TypeVar("_T")
GROUP_COMMITS: Final = "group-commits"
"""The property by which changes that threads make at the same time become one version."""
ALLOWED_LOCATIONS: Final = "allowed-locations"
"""The property with prefixes, separated by commas, in which tables and views may name any place."""
REASON: Final = "reason"
"""The property with what the history says before each change."""
ATTEMPTS: Final = 10
"""How often a change is tried again after others changed the same object; each try stands on what they made."""
_MAY_HAVE_EXPIRED: Final = (Corrupt, MetadataMissing, TransactionExpired, VersionExpired)
"""What is raised where files of a version are gone: rightly, if it has expired."""
_NAMED: Final = 3
"""So many tables of one commit are named in the history."""
TableCommit = tuple[AnyName, tuple[TableRequirement, ...], tuple[TableUpdate, ...]]
"""What a client wants of one table: its name, what must hold, and what to change."""


class TrinityLakeCatalog(MetastoreCatalog):
    """The tables, views and namespaces of a lakehouse as a PyIceberg catalog. Thread-safe.

    Every method reads the newest version, with what a ``refresh`` costs, and every change is a version of its own.

    Args:
        name: the name of the catalog; it is not stored in the lakehouse.
        **properties: ``uri``, the root of the lakehouse; ``warehouse``, where new tables lie if not below the root;
            ``allowed-locations``, further prefixes in which tables may lie, separated by commas;
            ``version`` (also ``HEAD~1``, a snapshot, a time, ``-2h``), ``timestamp`` (also an age such as ``2h``) or
            ``snapshot``, to open it as it was, read-only; ``storage.NAME``, the storage
            options of the lakehouse (``docs/storage.md``); options of PyIceberg's FileIO, such as ``s3.endpoint``;
            ``group-commits``, "true" where many threads change the catalog at the same time; ``reason``, why it is
            changed: the history has it before what each change is.

    Raises:
        NoSuchPropertyException: no ``uri``.
        ValueError: there is no lakehouse at the root, or no such version, or a property that cannot be.
        ForbiddenError: the storage refused the credentials.
    """

    def __init__(self, name: str, **properties: str) -> None:
        given = properties.get(URI)
        if not given:
            raise NoSuchPropertyException("the property 'uri' is required: the root URI or the path of a lakehouse")
        try:
            root = root_uri(given)
            lake = Lakehouse.open(root, storage_options=storage_options(root, properties))
            self._past = _open_past(lake, properties)
            self._stand_on(name, lake, properties)
        except (InvalidInput, NotFound) as error:
            raise ValueError(f"cannot open a lakehouse as catalog {name!r}: {error}") from error
        except StorageDenied as error:
            raise ForbiddenError(str(error)) from error

    @classmethod
    def over(cls, lake: Lakehouse, name: str = "lake", **properties: str) -> Self:
        """Return the catalog over a lakehouse that is open already.

        It reads the newest version, or the one that ``version``, ``timestamp`` or ``snapshot`` name. No request, but
        for those. Raises what ``Lakehouse.at`` raises.
        """
        made = cls.__new__(cls)
        made._past = _open_past(lake, properties)  # noqa: SLF001 - another way to make one
        made._stand_on(name, lake, {**properties, URI: lake.root})  # noqa: SLF001
        return made

    def _stand_on(self, name: str, lake: Lakehouse, properties: dict[str, str]) -> None:
        _, options = lake.storage.spec()
        defaults = file_io_properties(lake.root, options)
        super().__init__(name, **{**defaults, **properties})
        self._backend = lake.backend
        is_grouped = properties.get(GROUP_COMMITS, "").lower() == "true"
        self._group = lake.group() if is_grouped else None
        why = properties.get(REASON)
        self._because = f"{why}: " if why else ""
        warehouse = properties.get(WAREHOUSE_LOCATION)
        locations = Locations(lake.root, warehouse, _allowed_locations(properties))
        self._places = MetadataFiles(lake.storage, locations, self.properties)
        self._index = TableIndex(lake.backend)
        self._claims = Claims()
        self._staged = StagedTables()

    def serve_clients(self) -> None:
        """Let others than the operator choose: tables and views keep to their own directories and to allowed prefixes.

        Metadata that this commits are held from now on. REQUIRES: no caller changes metadata.
        """
        self._places.serve_clients()

    # -- how changes are made ------------------------------------------------------------------

    @property
    def root(self) -> str:
        """The URI below which the lakehouse lies. No request."""
        return self._places.storage.root

    @property
    def lakehouse(self) -> Lakehouse:
        """A handle of the version that this catalog reads: the newest one, unless it was opened in the past."""
        if self._past is not None:
            return self._past
        root = self._backend.newest()
        self._backend.note_newest(root)
        return Lakehouse(self._backend, root)

    def _read(self, act: Callable[[CatalogView], _T]) -> _T:
        """Read something of the newest version, of a version of the past, or of a transaction.

        ``act`` may be called again, with a newer version, if the first one expired and was cleaned under its hands.
        """
        for _ in range(ATTEMPTS):
            lake = self.lakehouse
            try:
                return act(lake)
            except _MAY_HAVE_EXPIRED:
                if self._past is not None or not self._has_expired(lake.version):
                    raise
        return act(self.lakehouse)

    def _has_expired(self, version: int) -> bool:
        """Whether a version is no longer kept, so that its files may rightly be gone. Three ``get``."""
        return version < self._backend.newest().oldest_version

    def _begin(self, reason: str | None, isolation: str | None = None, *, fresh: bool = True) -> Attempt:
        """Begin a change; without ``fresh`` at the newest version that was seen, which costs no request."""
        if self._past is not None:
            raise ForbiddenError(
                f"catalog {self.name!r} is open at version {self._past.version}, read-only; open it without 'version', "
                "'timestamp' and 'snapshot' to change it"
            )
        lake = self.lakehouse if fresh else Lakehouse(self._backend, self._backend.newest_seen)
        key = None if self._group is None else current_request()
        txn = lake.transaction(reason=reason, isolation=isolation, group=self._group, request=key)
        return Attempt(txn, self._places, self._index, self._claims)

    def _change(self, act: Callable[[Attempt], _T], reason: str) -> _T:
        """Carry out a change. ``act`` may be called again, after a conflict, with a newer version to stand on."""
        lost: Exception | None = None
        reason = f"{self._because}{reason}"
        for number in range(ATTEMPTS):
            fresh = self._group is None or number > 0
            try:
                attempt = self._begin(reason, fresh=fresh)
            except OutcomeUnknown:
                if fresh:
                    raise
                continue  # what is unknown below a version of long ago may be known by now
            try:
                result = act(attempt)
            except _MAY_HAVE_EXPIRED:
                attempt.discard()
                if self._has_expired(attempt.txn.base_version):
                    continue
                raise
            except Exception:
                attempt.discard()
                if not fresh:  # another process may have made what is missing here
                    continue
                raise
            except BaseException:
                attempt.discard()
                raise
            if not fresh and not attempt.writes_anything:  # another process may have made what would be undone here
                attempt.discard()
                continue
            try:
                attempt.commit()
            except TableFilesVoid:
                raise
            except (CommitConflict, TransactionExpired) as error:  # certainly not committed
                lost = error
                continue
            return result
        raise CommitFailedException(f"{reason}: {ATTEMPTS} races were lost to other writers; last: {lost}") from lost

    def lifetime_of_keys(self) -> int:
        """Return for how many milliseconds a client may send a request again. No request."""
        definition = self._backend.definition(self._backend.newest_seen)
        return lifetime_of_keys(definition.txn_ttl_millis)

    def transaction(self, *, reason: str | None = None, isolation: str | None = None) -> CatalogTransaction:
        """Return a catalog of which all changes become one version: use it in a ``with`` block.

        ``isolation``: SNAPSHOT or SERIALIZABLE; by default that of the lakehouse definition. Raises ``ForbiddenError``:
        the catalog, or the lakehouse, is read-only.
        """
        with translate_errors():
            return CatalogTransaction(self, self._begin(reason, isolation))

    def _load_file_io(self, properties: Properties = EMPTY_DICT, location: str | None = None) -> FileIO:
        """Return the FileIO for a location, by the options of the catalog; the properties of a table choose nothing."""
        return self._places.file_io(location or self._places.base)

    # -- namespaces ----------------------------------------------------------------------------

    def namespace_exists(self, namespace: AnyName) -> bool:
        """Return whether a namespace exists, by itself or because one below it does."""
        try:
            text = namespace_of(namespace)
        except NoSuchNamespaceError:
            return False
        with translate_errors():
            return self._read(lambda view: namespaces.has_namespace(view, text))

    def create_namespace(self, namespace: AnyName, properties: Properties = EMPTY_DICT) -> None:
        """Create a namespace.

        Raises:
            NamespaceAlreadyExistsError: it is there.
            NoSuchNamespaceError: the name is empty.
            BadRequestError: the name is too long, holds a space or a control character, or cannot be addressed.
            ValidationError: a property names code.
        """
        text, values = new_namespace_of(namespace), transform_dict_value_to_str(dict(properties))
        border.refuse_code(values, f"namespace {text}")
        with translate_errors():
            create = partial(namespaces.create_namespace, namespace=text, properties=values)
            self._change(create, f"create namespace {text}")

    def drop_namespace(self, namespace: AnyName) -> None:
        """Drop an empty namespace.

        Raises:
            NoSuchNamespaceError: it is not there.
            NamespaceNotEmptyError: it holds tables or views, or there are namespaces below it.
        """
        text = namespace_of(namespace)
        with translate_errors():
            self._change(partial(namespaces.drop_namespace, namespace=text), f"drop namespace {text}")

    def list_namespaces(self, namespace: AnyName = ()) -> list[Identifier]:
        """Return the namespaces right below one, or those of the top level. Raises ``NoSuchNamespaceError``."""
        parent = namespace_of(namespace) if namespace else ""
        with translate_errors():
            return self._read(partial(namespaces.namespaces_right_below, parent=parent))

    def load_namespace_properties(self, namespace: AnyName) -> Properties:
        """Return the properties of a namespace. Raises ``NoSuchNamespaceError``."""
        text = namespace_of(namespace)
        with translate_errors():
            return self._read(partial(namespaces.properties_of_namespace, namespace=text))

    def update_namespace_properties(
        self, namespace: AnyName, removals: set[str] | None = None, updates: Properties = EMPTY_DICT
    ) -> PropertiesUpdateSummary:
        """Remove and set properties of a namespace.

        Raises:
            NoSuchNamespaceError: it is not there.
            ValueError: a property is both removed and set, or its value is ``None``.
            ValidationError: a property names code.
        """
        text, values = namespace_of(namespace), transform_dict_value_to_str(dict(updates))
        self._check_for_overlap(removals, values)
        border.refuse_code(values, f"namespace {text}")
        change = partial(namespaces.change_properties, namespace=text, removals=removals or set(), updates=values)
        with translate_errors():
            return self._change(change, f"update namespace {text}")

    def _names_in(
        self, namespace: AnyName, list_names: Callable[[CatalogView, str], Iterable[str]]
    ) -> list[Identifier]:
        text = namespace_of(namespace)
        with translate_errors():
            return self._read(lambda view: namespaces.objects_in(view, text, list_names))

    # -- tables: reading -----------------------------------------------------------------------

    def list_tables(self, namespace: AnyName) -> list[Identifier]:
        """Return the tables in a namespace, of all formats. Raises ``NoSuchNamespaceError``."""
        return self._names_in(namespace, lambda view, text: view.tables(text))

    def load_table(self, identifier: AnyName) -> Table:
        """Return a table. What looking up its definition costs, and one ``get`` for its metadata.

        Raises:
            NoSuchTableError: there is none.
            NoSuchIcebergTableError: it is of another format, or nothing has written its metadata yet.
            FileNotFoundError: its metadata file is gone.
            ValidationError: its metadata file is garbage.
        """
        name = name_of(identifier, NoSuchTableError)
        with translate_errors():
            return self._table(name, self._read(lambda view: tables.load_table(view, self._places, name)))

    def table_exists(self, identifier: AnyName) -> bool:
        """Return whether there is an Iceberg table of this name. Its metadata are not read."""
        try:
            return bool(self.metadata_location(identifier))
        except NoSuchTableError:
            return False

    def metadata_location(self, identifier: AnyName) -> str:
        """Return the location of a table's newest metadata file, which never changes. The file is not read.

        Raises ``NoSuchTableError``, ``NoSuchIcebergTableError``.
        """
        name = name_of(identifier, NoSuchTableError)
        with translate_errors():
            return self._read(lambda view: tables.location_of_metadata(view, self._places, name))

    def is_of_one_table(self, identifier: Identifier, directory: str, staged: TableMetadata | None = None) -> bool:
        """Whether a directory is that of one table in the newest version that was seen, and no other one's in any part.

        One that is staged has no claim yet, so only a directory is its own that this catalog made for it. Costs what
        ``TableIndex.names_of`` does.
        """
        name = name_of(identifier, NoSuchTableError)
        if self._places.locations.is_for_many(directory):
            return False
        owners = self._index.names_of(NOBODY, self._backend.newest_seen, [directory])
        if staged is None:
            return owners == {full_name(*name)}
        made = self._staged.directories_of(name, staged) or ()
        return not owners and directory in map(as_directory, made)

    def metadata_of(self, table: TableDef) -> TableMetadata:
        """Return the metadata that the definition of an Iceberg table names. One ``get``.

        Raises:
            FileNotFoundError: the file is gone, or nothing was written yet.
            ValidationError, ValueError: it is garbage.
        """
        location = metadata_uri(self._places.storage.root, table)
        if location is None:
            raise FileNotFoundError("nothing has written its metadata yet")
        return self._places.read(location)

    def _table(self, name: CatalogName, table: Stored) -> Table:
        io = self._places.file_io_of(table)
        kind = TableOfVersion3 if table.metadata.format_version == VERSION else Table
        return kind(name.identifier, table.metadata, table.metadata_location, io, self)

    # -- tables: creating ----------------------------------------------------------------------

    def create_table(
        self,
        identifier: AnyName,
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
            BadRequestError: a name that the lakehouse cannot hold, or that cannot be addressed.
            ValidationError: a property names code; or a format version that is not known, or lacks a type or a default
                value of the schema.
        """
        staged = self._create_staged_table(identifier, schema, location, partition_spec, sort_order, properties)
        name, new = new_name_of(identifier), Stored(staged.metadata, staged.metadata_location)
        own = self._staged.directories_of(name, new.metadata) or []
        self._staged.forget(new.metadata)
        with translate_errors():
            self._change(partial(tables.create_table, name=name, new=new, own=own), f"create table {name}")
            return self._table(name, new)

    def register_table(self, identifier: AnyName, metadata_location: str, overwrite: bool = False) -> Table:  # noqa: FBT001, FBT002 - PyIceberg's signature
        """Add a table that is already written, where it is; with ``overwrite`` in place of one of this name.

        The first time one ``get`` for each table of the lakehouse, to see that no other one is the same.

        Raises:
            TableAlreadyExistsError: a table or a view of this name is there, and ``overwrite`` is not set; or another
                table has the same UUID or metadata file.
            NoSuchNamespaceError: the namespace is not there.
            FileNotFoundError, ValidationError: there are no table metadata at this location.
            ForbiddenError: the metadata name places that are not absolute, or that clients may not use.
            ValueError: the location holds credentials, which every reader of the definition would see.
        """
        name = new_name_of(identifier)
        with translate_errors():
            refuse_credentials(metadata_location, "location")
            self._places.locations.refuse_unreadable(metadata_location)
            register = partial(
                tables.register_table, name=name, metadata_location=metadata_location, overwrite=overwrite
            )
            return self._table(name, self._change(register, f"register table {name}"))

    def stage_table(
        self,
        identifier: AnyName,
        schema: Schema | pa.Schema,
        location: str | None = None,
        partition_spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
        sort_order: SortOrder = UNSORTED_SORT_ORDER,
        properties: Properties = EMPTY_DICT,
    ) -> StagedTable:
        """Return a table that is only in memory; a commit that requires that there is none creates it.

        On a disk the directory of its metadata is made: clients write manifests there before they commit, and DuckDB
        makes none. Raises what :meth:`create_table` raises.
        """
        name = new_name_of(identifier)
        if self.table_exists(name.identifier):
            raise TableAlreadyExistsError(f"Table already exists: {name}")
        staged = self._create_staged_table(identifier, schema, location, partition_spec, sort_order, properties)
        with translate_errors():
            own = self._staged.directories_of(name, staged.metadata) or ()
            self._refuse_taken(name, self._places.refuse_new(staged.metadata, own))
            self._places.make_directory(staged.metadata_location)
        return staged

    def _refuse_taken(self, name: CatalogName, directories: Sequence[str]) -> None:
        """Refuse directories that another table has. No request without one. Raises ``TableForbidden``."""
        if directories:
            attempt = self._begin(f"stage table {name}")
            try:
                attempt.claim(name, directories=directories)
            finally:
                attempt.discard()

    def _create_staged_table(
        self,
        identifier: AnyName,
        schema: Schema | pa.Schema,
        location: str | None = None,
        partition_spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
        sort_order: SortOrder = UNSORTED_SORT_ORDER,
        properties: Properties = EMPTY_DICT,
    ) -> StagedTable:
        """Return a table that is only in memory. Nothing is written."""
        name = new_name_of(identifier)
        with border.in_our_words("the property 'format-version' of the new table"):
            version: Any = int(properties.get(TableProperties.FORMAT_VERSION, TableProperties.DEFAULT_FORMAT_VERSION))
        iceberg_schema = self._convert_schema_if_needed(schema, version)
        with translate_errors():
            where, own = self._location_of_new(name, location)
            metadata = border.new_table(str(name), iceberg_schema, partition_spec, sort_order, where, properties)
            self._places.refuse_new(metadata, own)
            metadata_location = self._places.new_metadata_file(metadata)
            io = self._places.file_io(metadata_location)
        self._staged.add(name, metadata, own)
        return StagedTable(name.identifier, metadata, metadata_location, io, self)

    def _location_of_new(self, name: CatalogName, given: str | None) -> tuple[str, list[str]]:
        """Return the location of a new table or view, and the directories that are its own: one that is made here.

        Raises ``NoSuchNamespaceError``, ``TableForbidden``.
        """
        parent = self.load_namespace_properties(name.namespace).get("location")
        if given:
            return given.rstrip("/"), []
        if parent:
            self._places.locations.refuse_outside([Place(f"the location of namespace {name.namespace}", parent)])
        made = self._places.locations.new_directory(name, parent)
        return made, [made] if self._places.locations.is_made_here(made) else []

    # -- tables: changing ----------------------------------------------------------------------

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
            ValidationError: updates that do not fit the table, or properties that name code.
        """
        return self.commit_tables([(table.name(), requirements, updates)])[0]

    def commit_tables(self, commits: Sequence[TableCommit]) -> list[CommitTableResponse]:
        """Apply the updates of several tables as one version, or those of none. Costs and errors as for one each."""
        wanted: list[tables.Commit] = []
        for identifier, requirements, updates in commits:
            wanted.append(tables.Commit(name_of(identifier, NoSuchTableError), requirements, updates))
            if wanted[-1].creates:
                new_name_of(identifier)

        def commit_all(attempt: Attempt) -> list[Stored]:
            return [tables.commit_table(attempt, each, self._staged) for each in wanted]

        reason = _name_some([f"{each.operation} {each.name}" for each in wanted])
        with translate_errors():
            made = self._change(commit_all, reason)
        for commit, new in zip(wanted, made, strict=True):
            if commit.creates:
                self._staged.forget(new.metadata)
        return [CommitTableResponse(metadata=each.metadata, metadata_location=each.metadata_location) for each in made]

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
            CommitFailedException, ForbiddenError: as :meth:`commit_table`.
            OutcomeUnknown, StorageError: the storage failed, and the commit may have been made.
        """
        names = [name_of(each, NoSuchTableError) for each in identifiers]
        expire = partial(tables.expire_snapshots, names=names, rules=rules, now_millis=now_millis)
        with keep_own_errors(), translate_errors():
            lost = self._change(expire, f"expire snapshots of {len(names)} tables")
        return {name.identifier: each for name, each in lost.items()}

    def replace_files(self, rewrites: Mapping[Identifier, FileRewrite]) -> dict[Identifier, int]:
        """Make rewrites of several tables count as one version, or none; return the new snapshot of each.

        What the rewrites have read is compared with the newest metadata, again after each lost race: the files that
        they replace are there still, and nobody deleted rows of them. Costs what ``tables.replace_files`` does, and a
        commit.

        Raises:
            RewriteLost: some of them cannot count, each with the reason; the others may be tried without them.
            CommitFailedException, ForbiddenError, ValidationError: as :meth:`commit_table`.
            OutcomeUnknown, StorageError: the storage failed, and the commit may have been made.
        """
        wanted = {name_of(each, NoSuchTableError): rewrite for each, rewrite in rewrites.items()}
        with keep_own_errors(), translate_errors():
            made = self._change(partial(tables.replace_files, rewrites=wanted), f"compact {_name_some(list(wanted))}")
        return {name.identifier: number for name, number in made.items()}

    def take_snapshots_back(self, identifier: Identifier, newest: int, back_to: int) -> None:
        """Make an older snapshot of a table the current one again, if ``newest`` still is. One commit.

        Raises:
            CommitFailedException: somebody has written since, and nothing was changed.
            NoSuchTableError, ForbiddenError: or what else :meth:`commit_table` raises.
        """
        table = self.load_table(identifier)
        required = AssertRefSnapshotId(ref=MAIN_BRANCH, **{"snapshot-id": newest})
        change = set_main(table.metadata, back_to)
        self.commit_table(table, (required,), (change,))

    def stored_table(self, identifier: Identifier) -> tuple[MetadataFiles, Stored]:
        """Return the newest metadata of a table, with what reads and writes beside them.

        Raises as ``load_table``, and ``ForbiddenError``: files would be written where the table has no place.
        """
        name = name_of(identifier, NoSuchTableError)
        with translate_errors():
            return self._places, self._read(lambda view: tables.load_table(view, self._places, name, writes=True))

    def rename_table(self, from_identifier: AnyName, to_identifier: AnyName) -> Table:
        """Rename a table, in one version. Its files stay where they are.

        Raises:
            NoSuchTableError, NoSuchNamespaceError: the table, or the new namespace, is not there.
            TableAlreadyExistsError: a table or a view of the new name is there.
            BadRequestError: a name that the lakehouse cannot hold, or that cannot be addressed.
        """
        old, new = name_of(from_identifier, NoSuchTableError), new_name_of(to_identifier)

        def rename(attempt: Attempt) -> Stored:
            tables.rename_table(attempt, old, new)
            return tables.load_table(attempt.txn, self._places, new)

        with translate_errors():
            return self._table(new, self._change(rename, f"rename table {old} to {new}"))

    def drop_table(self, identifier: AnyName) -> None:
        """Drop a table. Its files stay: older versions and snapshots read them. Raises ``NoSuchTableError``.

        A cleaning of tables removes them once no retained version and no snapshot of the lakehouse needs them; those of
        a table that lies outside the lakehouse stay.
        """
        self._drop_table(identifier, "drop")

    def purge_table(self, identifier: AnyName) -> None:
        """Drop a table, as :meth:`drop_table` does: nothing that an older version or a rollback needs is deleted.

        To have its files gone soon, expire the versions that name it, and clean tables.
        """
        self._drop_table(identifier, "purge")

    def _drop_table(self, identifier: AnyName, what: str) -> None:
        name = name_of(identifier, NoSuchTableError)
        with translate_errors():
            self._change(partial(tables.drop_table, name=name), f"{what} table {name}")

    def _delete_old_metadata(self, io: FileIO, base: TableMetadata, metadata: TableMetadata) -> None:  # type: ignore[override]  # static there
        """Delete nothing: the metadata log is text that others wrote, and may name files of any table.

        A cleaning of tables removes old metadata files, and asks all retained versions before.
        """

    # -- views ---------------------------------------------------------------------------------

    def list_views(self, namespace: AnyName) -> list[Identifier]:
        """Return the views in a namespace. Raises ``NoSuchNamespaceError``."""
        return self._names_in(namespace, lambda view, text: view.views(text))

    def view_exists(self, identifier: AnyName) -> bool:
        """Return whether there is a view of this name."""
        with suppress(NoSuchViewError), translate_errors():
            name = name_of(identifier, NoSuchViewError)
            self._read(partial(views.definition_of_view, name=name))
            return True
        return False

    def load_view(self, identifier: AnyName) -> StoredView:
        """Return a view. Raises ``NoSuchViewError``, ``ValidationError``."""
        name = name_of(identifier, NoSuchViewError)
        with translate_errors():
            definition = self._read(partial(views.definition_of_view, name=name))
            return views.view_of(self._places, name, definition)

    def create_view(
        self,
        identifier: AnyName,
        schema: Schema | pa.Schema,
        view_version: ViewVersion,
        location: str | None = None,
        properties: Properties = EMPTY_DICT,
    ) -> StoredView:
        """Create a view.

        Raises:
            ViewAlreadyExistsError: a view or a table of this name is there.
            NoSuchNamespaceError: the namespace is not there.
            BadRequestError, ValidationError: a name, or a view, that the lakehouse cannot hold.
            ForbiddenError: a location outside what this catalog may write.
        """
        fresh = assign_fresh_schema_ids(self._convert_schema_if_needed(schema))
        return self.create_view_as_is(identifier, fresh, view_version, location, properties)

    def create_view_as_is(
        self,
        identifier: AnyName,
        schema: Schema,
        view_version: ViewVersion,
        location: str | None = None,
        properties: Properties = EMPTY_DICT,
    ) -> StoredView:
        """Create a view whose columns keep the IDs that the schema gives them. Raises as :meth:`create_view`."""
        name = new_name_of(identifier)
        border.refuse_code(properties, f"view {name}")
        with translate_errors():
            where, own = self._location_of_new(name, location)
            metadata = views.new_view(schema, view_version, where, properties)
            directories = self._places.refuse_new_view(metadata, own)
            create = partial(views.create_view, name=name, new=NewView(metadata), directories=directories)
            return self._change(create, f"create view {name}")

    def register_view(self, identifier: AnyName, metadata_location: str) -> StoredView:
        """Create a view that is equal to the newest version in a file of view metadata.

        Raises what :meth:`create_view` raises, and ``FileNotFoundError``.
        """
        name = new_name_of(identifier)
        with translate_errors():
            self._places.locations.refuse_unreadable(metadata_location)
            register = partial(views.register_view, name=name, metadata_location=metadata_location)
            return self._change(register, f"register view {name}")

    def commit_view(self, identifier: AnyName, commit: ViewCommit) -> StoredView:
        """Apply updates to a view, if it still meets the requirements. One ``put`` more than a commit of the lakehouse.

        Raises:
            CommitFailedException: a requirement is not met.
            ValidationError: an update that cannot be carried out.
            NoSuchViewError: the view is not there.
            ForbiddenError: a location outside what this catalog may write.
        """
        name = name_of(identifier, NoSuchViewError)
        with translate_errors():
            return self._change(partial(views.commit_view, name=name, commit=commit), f"replace view {name}")

    def drop_view(self, identifier: AnyName) -> None:
        """Drop a view. Raises ``NoSuchViewError``."""
        name = name_of(identifier, NoSuchViewError)
        with translate_errors():
            self._change(partial(views.drop_view, name=name), f"drop view {name}")

    def rename_view(self, from_identifier: AnyName, to_identifier: AnyName) -> None:
        """Rename a view, in one version.

        Raises:
            NoSuchViewError, NoSuchNamespaceError: the view, or the new namespace, is not there.
            ViewAlreadyExistsError: a view or a table of the new name is there.
            BadRequestError: a name that the lakehouse cannot hold, or that cannot be addressed.
        """
        old, new = name_of(from_identifier, NoSuchViewError), new_name_of(to_identifier)
        with translate_errors():
            self._change(partial(views.rename_view, old=old, new=new), f"rename view {old} to {new}")


class CatalogTransaction(TrinityLakeCatalog):
    """A catalog of which all changes become one version of the lakehouse, or none.

        with catalog.transaction() as t:
            t.load_table("sales.orders").append(orders)
            t.load_table("sales.items").append(items)

    Tables must come from it, not from the catalog it began at. Others see nothing before the end. A race that is lost
    at the end is a ``CommitFailedException``, and everything is undone: run the block again. Data files and manifests
    that PyIceberg wrote by then stay, as after any failed commit of it. Not thread-safe.

    Attributes:
        version: the version it became; ``None`` before the end.
    """

    def __init__(self, catalog: TrinityLakeCatalog, pending: Attempt) -> None:
        MetastoreCatalog.__init__(self, catalog.name, **catalog.properties)
        self._places = catalog._places  # noqa: SLF001 - this is a part of it
        self._staged = catalog._staged  # noqa: SLF001
        self._catalog = catalog
        self._pending = pending
        self.version: int | None = None

    @property
    def lakehouse(self) -> Lakehouse:
        """A handle of the version that the catalog reads at which this began."""
        return self._catalog.lakehouse

    def transaction(self, *, reason: str | None = None, isolation: str | None = None) -> CatalogTransaction:
        """Refuse a transaction in a transaction. Raises ``ForbiddenError``."""
        raise ForbiddenError("this is a transaction already: change its tables, or begin another one at its catalog")

    def _read(self, act: Callable[[CatalogView], _T]) -> _T:
        return self._call(act, self._pending.txn)

    def _change(self, act: Callable[[Attempt], _T], reason: str) -> _T:
        return self._call(act, self._pending)

    def _call(self, act: Callable[[Any], _T], what: Attempt | CatalogView) -> _T:
        try:
            return act(what)
        except (Corrupt, VersionExpired) as error:
            began = self._pending.txn.base_version
            if not self._catalog._has_expired(began):  # noqa: SLF001 - this is a part of it
                raise
            raise CommitFailedException(f"version {began}, at which this began, has expired; run it again") from error

    def commit(self) -> int:
        """Commit and return the version.

        Raises:
            CommitFailedException: another writer changed what this changes; nothing was committed.
            CommitStateUnknownException: the storage failed; it may have been committed.
        """
        with translate_errors():
            self.version = self._pending.commit()
        return self.version

    def abort(self) -> None:
        """Give all changes up."""
        self._pending.discard()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.commit()
        else:
            self.abort()


def _name_some(names: Sequence[object]) -> str:
    """Return the first few of the tables of a change for the history, and how many there are."""
    named = ", ".join(str(each) for each in names[:_NAMED])
    return named if len(names) <= _NAMED else f"{named}, ... ({len(names)} tables)"


def _allowed_locations(properties: dict[str, str]) -> list[str]:
    """Return the prefixes in which tables and views may name any place."""
    listed = properties.get(ALLOWED_LOCATIONS, "").split(",")
    return [each.strip() for each in listed if each.strip()]


def _open_past(lake: Lakehouse, properties: dict[str, str]) -> Lakehouse | None:
    """Return a handle of the version that ``version``, ``timestamp`` or ``snapshot`` name, if one of them is set."""
    version, timestamp = properties.get("version"), properties.get("timestamp")
    snapshot = properties.get("snapshot")
    if version is None and timestamp is None and snapshot is None:
        return None
    when = _parse_time(timestamp)
    return lake.at(version=None if version is None else str(version), timestamp=when, snapshot=snapshot)


def _parse_time(timestamp: str | None) -> datetime | str | None:
    """Return a time that is written as ISO 8601, as an age, or in epoch milliseconds. Raises ``InvalidInput``."""
    text = str(timestamp)
    if timestamp is None or not (text.isascii() and text.isdecimal()):
        return parse_moment(timestamp)
    try:
        return datetime.fromtimestamp(int(text[:20]) / 1000, UTC)
    except (OverflowError, OSError, ValueError):
        raise InvalidInput(f"{text[:20]!r} is no time in epoch milliseconds") from None

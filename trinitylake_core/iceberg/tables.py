"""Tables: functions over one view of the catalog, which read, and over one attempt at a change.

A definition names the newest metadata file of an Iceberg table. A commit writes a new one, and a definition that names
it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchIcebergTableError,
    NoSuchTableError,
    TableAlreadyExistsError,
    ValidationError,
)
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertCreate,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
)

from trinitylake_core.catalog import CatalogView
from trinitylake_core.definitions import TableDef
from trinitylake_core.errors import AlreadyExists, InvalidName, ObjectNotFound
from trinitylake_core.grounds import foreign_place, identity_of
from trinitylake_core.iceberg import border
from trinitylake_core.iceberg.attempt import Attempt
from trinitylake_core.iceberg.commit_rules.deletion_vectors import refuse_lost_vectors
from trinitylake_core.iceberg.commit_rules.snapshot_expiration import (
    Expiring,
    PlannedSnapshots,
    SnapshotRules,
    ancestors,
    expiring,
)
from trinitylake_core.iceberg.commit_rules.table_updates import meet_requirements, number_of_next_file, update_metadata
from trinitylake_core.iceberg.errors import MetadataMissing, TableForbidden, no_table
from trinitylake_core.iceberg.fields import table_fields
from trinitylake_core.iceberg.names import CatalogName
from trinitylake_core.iceberg.namespaces import make_namespace, rename_object, require_namespace
from trinitylake_core.iceberg.rewriting.replacing import NewSnapshot, RewriteLost, replacing_snapshot
from trinitylake_core.iceberg.rewriting.rewritten import FileRewrite
from trinitylake_core.iceberg.rights.identities import directories_left, identity_of_metadata
from trinitylake_core.iceberg.rights.locations import directories_of
from trinitylake_core.iceberg.rights.metadata_files import MetadataFiles, Stored
from trinitylake_core.iceberg.rights.moved import refusal_of_moved
from trinitylake_core.iceberg.staged import StagedTables
from trinitylake_core.keys import TABLE, VIEW
from trinitylake_core.table_places import Located
from trinitylake_core.tables import ICEBERG, TABLE_UUID, metadata_uri

UNREADABLE: Final = (NoSuchTableError, NoSuchIcebergTableError, MetadataMissing, ValidationError)
"""Errors of a table that cannot be read, or is not there."""


class Commit(NamedTuple):
    """What a client wants of one table: its name, what must hold, and what to change."""

    name: CatalogName
    requirements: tuple[TableRequirement, ...]
    updates: tuple[TableUpdate, ...]

    @property
    def creates(self) -> bool:
        """Whether there must be no table yet."""
        return any(isinstance(each, AssertCreate) for each in self.requirements)

    @property
    def operation(self) -> str:
        """The operation in a word, for the history of the lakehouse."""
        done: set[str] = set()
        for update in self.updates:
            if isinstance(update, AddSnapshotUpdate) and update.snapshot.summary is not None:
                done.add(str(update.snapshot.summary.operation.value))
        if len(done) > 1:
            return "overwrite"  # which deletes, then it appends
        return done.pop() if done else "update"


# -- reading -----------------------------------------------------------------------------------------


def definition_of_table(view: CatalogView, name: CatalogName) -> TableDef:
    """Return the definition of an Iceberg table. Raises ``NoSuchTableError``, ``NoSuchIcebergTableError``."""
    try:
        table = view.table(*name)
    except (ObjectNotFound, InvalidName):
        raise no_table(*name) from None
    if table.table_format != ICEBERG:
        raise NoSuchIcebergTableError(f"{name} is a table of the format {table.table_format!r}")
    return table


def location_of_metadata(view: CatalogView, places: MetadataFiles, name: CatalogName) -> str:
    """Return the location of a table's newest metadata file. Raises as :func:`definition_of_table`."""
    location = metadata_uri(places.storage.root, definition_of_table(view, name))
    if location is None:
        raise NoSuchIcebergTableError(f"nothing has written metadata of {name} yet")
    return location


def load_table(view: CatalogView, places: MetadataFiles, name: CatalogName, *, writes: bool = False) -> Stored:
    """Return a table. What looking up its definition costs, and one ``get``.

    Raises what :func:`location_of_metadata` and ``MetadataFiles.read`` raise; ``TableForbidden``: clients, or a job
    that ``writes`` files, would write them at a place that is not the table's.
    """
    location = location_of_metadata(view, places, name)
    table = Stored(places.read(location), location)
    if writes or places.serves_clients:
        _refuse_foreign(view, places, name, table)
    return table


def _refuse_foreign(view: CatalogView, places: MetadataFiles, name: CatalogName, table: Stored) -> None:
    """Refuse metadata with a directory that the definition lacks: clients with many rights would write there."""
    named = [each.location for each in directories_of(table.metadata)]
    definition, former = definition_of_table(view, name), places.former_root(table)
    foreign = foreign_place(places.storage.root, definition, table.metadata_location, former, named)
    if foreign is not None:
        raise _refusal_of_place(name, foreign)


def _refusal_of_place(name: CatalogName, place: str) -> TableForbidden:
    return TableForbidden(
        f"{name}: a place that it names, {place}, is not the table's by its definition: somebody has overwritten its "
        "metadata file. If the place is the table's, have the operator register the file again (`register_table` with "
        "`overwrite`)"
    )


def load_tables(
    view: CatalogView, places: MetadataFiles, names: Sequence[CatalogName]
) -> Iterator[tuple[CatalogName, Stored]]:
    """Yield those of several tables that are there. One ``get`` each, side by side. Raises as :func:`load_table`."""
    found: list[tuple[CatalogName, str]] = []
    for name in names:
        with suppress(NoSuchTableError):
            location = location_of_metadata(view, places, name)
            found.append((name, location))

    def load(each: tuple[CatalogName, str]) -> tuple[CatalogName, Stored]:
        name, location = each
        metadata = places.read(location)
        return name, Stored(metadata, location)

    return places.storage.map(found, load)


# -- creating ----------------------------------------------------------------------------------------


def create_table(attempt: Attempt, name: CatalogName, new: Stored, own: Sequence[str] = ()) -> None:
    """Write the metadata of a new table, and add its definition. ``own`` are directories that were made for it.

    Raises ``TableAlreadyExistsError``, ``NoSuchNamespaceError``, ``TableForbidden``.
    """
    make_namespace(attempt, name.namespace)
    directories = attempt.places.refuse_new(new.metadata, own)
    attempt.claim(name, directories=directories)
    add_definition(attempt, name, new)
    attempt.write_metadata(name, new.metadata, new.metadata_location)


def register_table(attempt: Attempt, name: CatalogName, metadata_location: str, *, overwrite: bool) -> Stored:
    """Add a table that is already written, where it is; with ``overwrite`` in place of one of this name.

    Raises:
        TableAlreadyExistsError: there is one of this name; or another table has the UUID or the metadata file.
        ValidationError: the metadata are none, contradict themselves, or name code or places without a scheme.
        TableForbidden: they name a place that this table may not use.
    """
    places = attempt.places
    require_namespace(attempt.txn, name.namespace)
    attempt.require_owners(name, metadata_location)  # before it is looked at whether there is such a file
    new = Stored(places.read_as_written(metadata_location), metadata_location)
    border.refuse_code(new.metadata.properties, f"table {name}")
    border.refuse_large_numbers(border.as_json(new.metadata))  # which is what clients get of it
    directories = _refuse_unregistrable(places, name, new)
    replaced = None
    if overwrite:
        with suppress(*UNREADABLE, TableForbidden):
            replaced = load_table(attempt.txn, places, name)
    claim_identity(attempt, name, new)
    attempt.claim(name, directories=directories)
    _put_definition(attempt, name, new, overwrite=overwrite)
    attempt.take_over(name, new.metadata, metadata_location, replaced)
    return new


def _refuse_unregistrable(places: MetadataFiles, name: CatalogName, new: Stored) -> list[str]:
    """Refuse metadata of which this catalog could not serve the table afterwards, or which reach beyond the table.

    Return the directories that no other table may have.
    """
    if not places.serves_clients:
        places.refuse_ambiguous(new.metadata)
        return []
    former = places.former_root(new)
    if former:
        raise refusal_of_moved(str(name), places.storage.root, former)
    own = places.own_directory(new.metadata_location)
    return places.refuse_new(new.metadata, [] if own is None else [own])


def claim_identity(attempt: Attempt, name: CatalogName, new: Stored) -> None:
    """Require that no other table has the UUID, the metadata file, or what a client says is its own directory."""
    identity = identity_of_metadata(attempt.places.storage.root, new.metadata, new.metadata_location)
    attempt.claim(name, identity, identity.directories if attempt.places.serves_clients else ())


def add_definition(attempt: Attempt, name: CatalogName, new: Stored, left: Sequence[str] = ()) -> None:
    """Add the definition of a table; ``left`` are directories of another one, in whose place it comes.

    Raises ``TableAlreadyExistsError``.
    """
    make_namespace(attempt, name.namespace)
    try:
        attempt.txn.need_absent(VIEW, *name)
    except AlreadyExists:
        raise TableAlreadyExistsError(f"View with same name already exists: {name}") from None
    try:
        stored = attempt.places.type_and_location(new.metadata_location)
        made = attempt.txn.create_table(*name, **table_fields(new.metadata, stored, left=left))
    except AlreadyExists:
        raise TableAlreadyExistsError(f"Table already exists: {name}") from None
    attempt.note(name, identity_of(attempt.places.storage.root, made))


def _put_definition(attempt: Attempt, name: CatalogName, new: Stored, *, overwrite: bool) -> None:
    """Make a definition name other metadata, or add it where there is none; another table's is replaced as a whole."""
    old = None
    if overwrite:
        with suppress(NoSuchTableError):
            old = definition_of_table(attempt.txn, name)
    if old is None:
        add_definition(attempt, name, new)
    elif identity_of(attempt.places.storage.root, old).uuid == str(new.metadata.table_uuid):
        _change_definition(attempt, name, new, allowed=None)  # registering has looked at all that they name
    else:
        left = directories_left(attempt.places.storage.root, old, *new)
        attempt.txn.drop_table(*name)
        add_definition(attempt, name, new, left)


def _change_definition(
    attempt: Attempt, name: CatalogName, new: Stored, allowed: Collection[str] | None = frozenset()
) -> None:
    """Make the definition of a table name other metadata of it, and the directories that it is ``allowed`` to get.

    A metadata file may be another one than was committed: its writer can overwrite it. So the definition says which
    UUID and directories the table has, and a change brings those that it was allowed; ``None``: whichever it names.

    Raises ``TableForbidden``.
    """
    root = attempt.places.storage.root
    old = definition_of_table(attempt.txn, name)
    if old.format_properties.get(TABLE_UUID, "").lower() not in {"", str(new.metadata.table_uuid)}:
        raise TableForbidden(f"{name}: its metadata file has another UUID than the table: somebody has overwritten it")
    stored = attempt.places.type_and_location(new.metadata_location)
    left = directories_left(root, old, *new)
    made = attempt.txn.alter_table(*name, **table_fields(new.metadata, stored, old, left))
    identity = identity_of(root, made)
    held = tuple(identity_of(root, old).directories)
    gained = [each for each in identity.directories if not each.startswith(held)]
    for each in gained:
        if allowed is not None and each not in allowed:
            raise _refusal_of_place(name, each)
        attempt.places.locations.refuse_others(f"{name}: a place that it names", each)
    attempt.claim(name, directories=gained)
    attempt.note(name, identity)


# -- changing ----------------------------------------------------------------------------------------


def commit_table(attempt: Attempt, commit: Commit, staged: StagedTables) -> Stored:
    """Apply the updates of a commit to the newest metadata of a table, if they still meet the requirements.

    One that has been applied already, and is sent again, changes nothing.

    ``staged`` are the tables that this process made for clients to create.

    Raises:
        CommitFailedException: a requirement is not met.
        NoSuchTableError: there is no table, and the commit does not require that there is none.
        TableForbidden: a place that the table may not use.
        ValidationError: updates that do not fit the table, or properties that name code.
        LostVectors: a snapshot brings deleted rows back.
    """
    try:
        location = location_of_metadata(attempt.txn, attempt.places, commit.name)
        current = Stored(attempt.places.base_of_commit(location), location)
    except NoSuchTableError:
        current = None
    if current is None:
        return _create_by_commit(attempt, commit, staged)
    if _is_applied(commit.updates, current.metadata):
        return _show(attempt, commit.name, current)
    new = _update_metadata(attempt.places, commit, current)
    if new.metadata == current.metadata:
        attempt.txn.need_unchanged(TABLE, *commit.name)  # that there is nothing to do has to stay true
        return _show(attempt, commit.name, current)
    # What a commit must keep true is asked here: nothing has been written yet.
    directories = attempt.places.refuse_change(new, current)
    attempt.claim(commit.name, directories=directories)
    _refuse_lost_vectors(attempt.places, commit.name, current, new)
    attempt.write_metadata(commit.name, new.metadata, new.metadata_location, current)
    _change_definition(attempt, commit.name, new, directories)
    return new


def _is_applied(updates: Sequence[TableUpdate], metadata: TableMetadata) -> bool:
    """Return whether all snapshots that a commit adds are there, and below the references that it sets. No request.

    A refusal (409) says that a commit was not applied, and DuckDB deletes the files of it then. So one that a client
    sends again, because it got no answer, is answered as the first time.

    A snapshot is the same one if its ID and its manifest list are: writers choose both by chance. A commit is applied
    as a whole or not at all, so the snapshots stand for its other updates. One that adds no snapshot is never told.
    """
    known = {each.snapshot_id: each for each in metadata.snapshots}
    has_snapshots = False
    for each in updates:
        if isinstance(each, AddSnapshotUpdate):
            has_snapshots = True
            there = known.get(each.snapshot.snapshot_id)
            if there is None or there.manifest_list != each.snapshot.manifest_list:
                return False
        elif isinstance(each, SetSnapshotRefUpdate):
            ref = metadata.refs.get(each.ref_name)
            if ref is None:
                return False
            line = ancestors(ref.snapshot_id, known)
            if all(snapshot.snapshot_id != each.snapshot_id for snapshot in line):
                return False
    return has_snapshots


def _show(attempt: Attempt, name: CatalogName, table: Stored) -> Stored:
    """Return a table that a commit left as it is. To clients as :func:`load_table`: raises ``TableForbidden``."""
    if attempt.places.serves_clients:
        _refuse_foreign(attempt.txn, attempt.places, name, table)
    return table


def _refuse_lost_vectors(places: MetadataFiles, name: CatalogName, current: Stored, new: Stored) -> None:
    """Refuse snapshots that bring deleted rows back. Costs what :func:`refuse_lost_vectors` does."""
    located = Located(places.storage).of(current.metadata_location, current.metadata.location)
    refuse = places.locations.refuse_unreadable if places.serves_clients else None
    refuse_lost_vectors(located, str(name), current.metadata, new.metadata, refuse)


def _create_by_commit(attempt: Attempt, commit: Commit, staged: StagedTables) -> Stored:
    """Create the table that a client has staged, here or with another process, or made up."""
    name, places = commit.name, attempt.places
    new = _update_metadata(places, commit, None)
    directory = f"{new.metadata.location.rstrip('/')}/"
    own = staged.directories_of(name, new.metadata)
    is_ours = own is not None
    if own is None:
        own = [directory] if places.locations.is_new_directory_of(name, new.metadata.location) else []
    directories = places.refuse_new(new.metadata, own)
    make_namespace(attempt, name.namespace)
    if not is_ours:
        claim_identity(attempt, name, new)
    attempt.claim(name, directories=directories)
    add_definition(attempt, name, new)
    attempt.write_metadata(name, new.metadata, new.metadata_location)
    return new


def _update_metadata(places: MetadataFiles, commit: Commit, current: Stored | None) -> Stored:
    """Return the metadata after a commit, and the location of a new file for them. Nothing is written."""
    name = str(commit.name)
    meet_requirements(name, current, commit.requirements)
    if current is None and not commit.creates:
        raise no_table(*commit.name)
    metadata = update_metadata(name, current, commit.updates)
    return Stored(metadata, places.new_metadata_file(metadata, number_of_next_file(current)))


def expire_snapshots(
    attempt: Attempt, names: Sequence[CatalogName], rules: SnapshotRules | PlannedSnapshots, now_millis: int
) -> dict[CatalogName, Expiring]:
    """Remove snapshots and references of several tables; return what each of them lost.

    One ``get`` and one ``put`` for each table, side by side.

    Raises:
        ValueError: a property that must be a number is none, or a table forbids it.
        MetadataMissing, ValidationError: metadata that cannot be read.
        TableForbidden: a table whose new metadata would be written elsewhere.
    """
    places = attempt.places
    found: dict[CatalogName, Expiring] = {}
    changes: list[_Change] = []
    for name, current in load_tables(attempt.txn, places, names):
        former = places.former_root(current)
        if former:
            raise refusal_of_moved(str(name), places.storage.root, former)
        losing = expiring(
            current.metadata,
            rules,
            now_millis,
            name=str(name),
            location=current.metadata_location,
        )
        updates = losing.updates()
        if updates:
            found[name] = losing
            changes.append(_plan_change(places, name, current, updates))
    _make_changes(attempt, changes)
    return found


def replace_files(attempt: Attempt, rewrites: Mapping[CatalogName, FileRewrite]) -> dict[CatalogName, int]:
    """Make rewrites of several tables count; return the snapshot of each.

    For each table one ``get`` for its metadata, manifest list and manifests, and one ``put`` for each new manifest, the
    list and the metadata.

    Raises:
        RewriteLost: others changed some of the tables in a way that their rewrites cannot stand on; it names them all.
        TableForbidden: a table whose new metadata would be written elsewhere.
        ValidationError, UnreadableTable: metadata that cannot be read.
    """
    places = attempt.places
    lost = dict.fromkeys(rewrites, "it was dropped or renamed")

    def replace_in(found: tuple[CatalogName, Stored]) -> tuple[CatalogName, _Change | str]:
        name, current = found
        try:
            made = replacing_snapshot(places, current, rewrites[name])
            return name, _plan_change(places, name, current, made.updates, made)
        except CommitFailedException as error:
            return name, str(error)

    changes: list[_Change] = []
    loaded = list(load_tables(attempt.txn, places, list(rewrites)))
    for name, outcome in places.storage.map(loaded, replace_in, nested=True):
        if isinstance(outcome, _Change):
            del lost[name]
            changes.append(outcome)
        else:
            lost[name] = outcome
    if lost:
        raise RewriteLost(lost)
    _make_changes(attempt, changes)
    return {each.name: each.snapshot.number for each in changes if each.snapshot is not None}


class _Change(NamedTuple):
    """The metadata of a table before and after a change, and the new snapshot whose files are to be stored."""

    name: CatalogName
    current: Stored
    new: Stored
    snapshot: NewSnapshot | None


def _plan_change(
    places: MetadataFiles,
    name: CatalogName,
    current: Stored,
    updates: tuple[TableUpdate, ...],
    snapshot: NewSnapshot | None = None,
) -> _Change:
    """Return a change of a table. Raises ``TableForbidden``: its new metadata would be written elsewhere."""
    new = _update_metadata(places, Commit(name, (), updates), current)
    places.refuse_change(new, current)
    return _Change(name, current, new, snapshot)


def _make_changes(attempt: Attempt, changes: Sequence[_Change]) -> None:
    """Change several tables. One ``put`` for each, side by side, and for each file of a new snapshot."""
    for each in changes:  # before a file is written where a table may have nothing
        _change_definition(attempt, each.name, each.new)

    def write(each: _Change) -> None:
        if each.snapshot is not None:
            each.snapshot.files.store()
        attempt.write_metadata(each.name, each.new.metadata, each.new.metadata_location, each.current)

    stores_files = any(each.snapshot is not None for each in changes)
    for _ in attempt.places.storage.map(changes, write, nested=stores_files):
        pass


def rename_table(attempt: Attempt, old: CatalogName, new: CatalogName) -> None:
    """Rename a table. Its files stay where they are.

    Raises ``NoSuchTableError``, ``NoSuchNamespaceError``, ``TableAlreadyExistsError``.
    """
    identity = identity_of(attempt.places.storage.root, definition_of_table(attempt.txn, old))
    rename_object(attempt, TABLE, old, new)
    attempt.note(old, None)
    attempt.note(new, identity)


def drop_table(attempt: Attempt, name: CatalogName) -> None:
    """Drop a table; its files stay. Raises ``NoSuchTableError``."""
    definition_of_table(attempt.txn, name)
    attempt.txn.drop_table(*name)
    attempt.note(name, None)

"""Namespaces and tables of another Iceberg catalog, registered in a lakehouse where they are, as one version."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    BadRequestError,
    ForbiddenError,
    NoSuchTableError,
    TableAlreadyExistsError,
    ValidationError,
)
from pyiceberg.typedef import Identifier

from trinitylake_core.errors import AlreadyExists, InvalidInput, ObjectNotFound
from trinitylake_core.iceberg import border
from trinitylake_core.iceberg.attempt import Attempt, Claims
from trinitylake_core.iceberg.errors import translate_errors, words_of
from trinitylake_core.iceberg.fields import table_fields
from trinitylake_core.iceberg.names import CatalogName
from trinitylake_core.iceberg.rights.identities import directories_left
from trinitylake_core.iceberg.rights.locations import Locations
from trinitylake_core.iceberg.rights.metadata_files import MetadataFiles, Stored
from trinitylake_core.iceberg.tables import add_definition, claim_identity
from trinitylake_core.lakehouse import Lakehouse
from trinitylake_core.short_repr import first_of
from trinitylake_core.table_index import TableIndex
from trinitylake_core.tables import METADATA_LOCATION, TABLE_UUID

REFUSE: Final = "refuse"
SKIP: Final = "skip"
REPLACE: Final = "replace"
_NAMED: Final = 20
_LISTED: Final = 1000
_REFUSED: Final = (BadRequestError, ForbiddenError, TableAlreadyExistsError, ValidationError)
"""Why one table is left out: its name, its places, its identity, or what its metadata say."""
Told = Callable[[str, int, int | None], None]


@dataclass(slots=True)
class Registered:
    """What was registered, or on a dry run would be.

    Attributes:
        source: the name of the other catalog.
        version_before: what it was compared with.
        version_after: the version it became; ``None`` on a dry run, or when nothing had changed.
        namespaces_added: and so on: counts. ``changed`` are tables at another metadata file than before.
        tables_skipped: there is another table of this name here, which was left alone.
        tables_unread: listed by the other catalog, and gone, or of another format, when they were to be read.
        tables_refused: how many were left out because of what their metadata say.
        refused: which these are and why, the first 1000.
        changes: what changes, by name, the first 1000.
    """

    source: str
    version_before: int
    version_after: int | None = None
    dry_run: bool = False
    namespaces_added: int = 0
    namespaces_changed: int = 0
    namespaces_unchanged: int = 0
    tables_added: int = 0
    tables_changed: int = 0
    tables_replaced: int = 0
    tables_unchanged: int = 0
    tables_skipped: int = 0
    tables_unread: int = 0
    tables_refused: int = 0
    changes: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    def note(self, what: str, name: str) -> None:
        """Count a change, and name it."""
        setattr(self, what, getattr(self, what) + 1)
        if len(self.changes) < _LISTED:
            self.changes.append(f"{what.replace('_', ' ').replace('s ', ' ', 1)}: {name}")

    def note_refused(self, name: str, why: str) -> None:
        """Count a table that is left out, and say why."""
        self.tables_refused += 1
        if len(self.refused) < _LISTED:
            self.refused.append(f"{name}: {why}")


def open_catalog(name: str, properties: Mapping[str, str]) -> Catalog:
    """Open a catalog as PyIceberg does: by properties, the environment, or ``~/.pyiceberg.yaml``.

    Raises ``InvalidInput``: there is none, or it cannot be opened.
    """
    try:
        return border.open_catalog(name, properties)
    except Exception as error:  # the drivers of SQL, REST, Glue and Hive raise errors of their own
        raise InvalidInput(f"cannot open the Iceberg catalog {name!r}: {words_of(error)}") from error


def register_all(
    lake: Lakehouse,
    source: Catalog,
    *,
    existing: str = REFUSE,
    reason: str | None = None,
    review: Callable[[Registered], bool] | None = None,
    progress: Told | None = None,
    before_commit: Callable[[], None] | None = None,
) -> Registered:
    """Register all namespaces and tables of a catalog, as one version; repeated, only what changed since.

    A table that is here with the same UUID follows the other catalog. What the other catalog dropped stays.
    Costs what loading each table costs there, one ``get`` for each definition that is here, one ``put`` for each that
    changes, and a commit. A table whose metadata are odd, or that another one here is already, is left out and named.

    Args:
        lake: any handle of the lakehouse; it moves to the newest version.
        source: the other catalog.
        existing: what becomes of another table of the same name that is here: ``refuse`` everything, ``skip`` the
            table, or ``replace`` the one here.
        reason: why, for the history.
        review: called with what would be registered; ``False`` writes nothing.
        progress: called with phase, done and total.
        before_commit: called right before the root is created; raising there gives it up.

    Raises:
        InvalidName: a name of a namespace that the lakehouse cannot hold.
        AlreadyExists: another table of one of the names is here, and ``existing`` is ``refuse``.
        CommitConflict: another writer changed the same objects; nothing was changed.
        ReadOnly, StorageError.
    """
    if existing not in (REFUSE, SKIP, REPLACE):
        raise InvalidInput(f"existing must be {REFUSE}, {SKIP} or {REPLACE}, not {existing!r}")
    txn = lake.refresh().transaction(reason=reason or f"tables of the Iceberg catalog {source.name}")
    report = Registered(source.name, lake.version, dry_run=review is not None)
    attempt = Attempt(txn, MetadataFiles(lake.storage, Locations(lake.root)), TableIndex(lake.backend), Claims())
    work = _Registration(attempt, existing, report)
    namespaces = list(_namespaces(source))
    for done, namespace in enumerate(namespaces):
        if progress is not None:
            progress("namespaces", done, len(namespaces))
        work.add_namespace(".".join(namespace), dict(source.load_namespace_properties(namespace)))
        for identifier in source.list_tables(namespace):
            work.add_table(source, identifier)
    if work.taken:
        raise AlreadyExists(
            f"other tables of these names are here already: {first_of(work.taken, _NAMED)}; nothing was changed; "
            "skip them, or replace them"
        )
    if review is not None and not review(report):
        return report
    report.dry_run = False
    if txn.change.writes:
        report.version_after = txn.commit(before_commit=before_commit)
        lake.catch_up()
    return report


def _namespaces(source: Catalog, parent: Identifier = ()) -> Iterator[Identifier]:
    """Yield all namespaces, a parent before its children."""
    for namespace in sorted(source.list_namespaces(parent)):
        yield namespace
        yield from _namespaces(source, namespace)


class _Registration:
    """What is done with each namespace and each table of the other catalog, in one attempt at a change."""

    def __init__(self, attempt: Attempt, existing: str, report: Registered) -> None:
        self._attempt = attempt
        self._existing = existing
        self._report = report
        self.taken: list[str] = []

    def add_namespace(self, name: str, properties: dict[str, str]) -> None:
        """Create a namespace, or give it the properties that it has there. Those that name code are left out."""
        txn = self._attempt.txn
        code = border.properties_that_name_code(properties)
        wanted = {key: value for key, value in properties.items() if key not in code}
        try:
            here = dict(txn.namespace(name).properties)
        except ObjectNotFound:
            txn.create_namespace(name, wanted)
            self._report.note("namespaces_added", name)
            return
        if here | wanted == here:
            self._report.namespaces_unchanged += 1
        else:
            txn.alter_namespace(name, wanted)
            self._report.note("namespaces_changed", name)

    def add_table(self, source: Catalog, identifier: Identifier) -> None:
        """Register a table, or follow it; one whose metadata are odd is left out and named."""
        name = CatalogName(".".join(identifier[:-1]), identifier[-1])
        try:
            table = border.load_from(source, identifier)
            new = Stored(table.metadata, table.metadata_location)
            with translate_errors():
                self._attempt.places.refuse_ambiguous(new.metadata)
                self._put(name, new)
        except (NoSuchTableError, FileNotFoundError):
            self._report.tables_unread += 1
        except _REFUSED as error:
            self._report.note_refused(str(name), str(error))

    def _put(self, name: CatalogName, new: Stored) -> None:
        attempt = self._attempt
        where = attempt.places.type_and_location(new.metadata_location)
        try:
            here = attempt.txn.table(*name)
        except ObjectNotFound:
            claim_identity(attempt, name, new)
            add_definition(attempt, name, new)
            self._note(name, new, "tables_added")
            return
        left = directories_left(attempt.places.storage.root, here, *new)
        if here.format_properties.get(METADATA_LOCATION) == where[1]:
            self._report.tables_unchanged += 1
        elif here.format_properties.get(TABLE_UUID) == str(new.metadata.table_uuid):
            attempt.txn.alter_table(*name, **table_fields(new.metadata, where, here, left))
            self._note(name, new, "tables_changed")
        elif self._existing == REPLACE:
            claim_identity(attempt, name, new)
            attempt.txn.drop_table(*name)
            add_definition(attempt, name, new, left)
            self._note(name, new, "tables_replaced")
        elif self._existing == SKIP:
            self._report.tables_skipped += 1
        else:
            self.taken.append(str(name))

    def _note(self, name: CatalogName, new: Stored, what: str) -> None:
        self._attempt.take_over(name, new.metadata, new.metadata_location, None)
        self._report.note(what, str(name))

"""Hand-made changes: a YAML or JSON list of them, carried out as one transaction.

    - create_namespace: {namespace: sales, properties: {owner: emea}}
    - create_table:
        namespace: sales
        name: orders
        schema:
          - {name: id, type: bigint, nullable: false}
          - {name: price, type: "decimal(10, 2)"}
        primary_keys: [id]
    - drop_view: {namespace: sales, name: top}

See ``entries`` for what an entry may be.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from pipelines.job import NEVER_CANCELLED, Cancel, Review, dry_run
from pipelines.reports.summary import DRY_RUN, Table, changes_table
from pipelines.source.entries import WrittenChange, parse_change
from trinitylake_core import Lakehouse, Transaction
from trinitylake_core.definitions import TableDef, describe_difference
from trinitylake_core.errors import (
    AlreadyExists,
    InvalidInput,
    InvalidName,
    NamespaceNotEmpty,
    ObjectNotFound,
    Refused,
)
from trinitylake_core.short_repr import ShortRepr
from trinitylake_core.tree.search import lookup


@dataclass(frozen=True, slots=True)
class ChangedObject:
    """One object that the transaction changes: ``added``, ``changed`` or ``removed``."""

    change: str
    kind: str
    namespace: str
    name: str | None


@dataclass(frozen=True, slots=True, repr=False)
class Report(ShortRepr):
    """The changes that were, or would be, committed.

    ``losses`` are the columns that new schemas leave out, and the primary keys that they make nullable.
    """

    version_before: int
    version_after: int | None
    dry_run: bool
    entries: int
    transaction: str
    isolation: str
    changes: list[ChangedObject]
    losses: list[str] = field(default_factory=list)

    def summary(self) -> Iterator[str]:
        """Yield what was committed, or would be, and what is lost by it."""
        if self.version_after is None:
            yield DRY_RUN
        else:
            yield f"version {self.version_after} committed"
        for each in self.losses:
            yield f"lost: {each}"

    def summary_tables(self) -> Iterator[Table]:
        """Yield the objects that change."""
        yield changes_table(self.changes, len(self.changes))


def run(
    lake: Lakehouse,
    entries: Sequence[WrittenChange],
    *,
    reason: str | None = None,
    isolation: str | None = None,
    allow_loss: bool = False,
    review: Review[Report] | None = None,
    cancel: Cancel | None = None,
) -> Report:
    """Carry out changes as one transaction, all or none.

    Args:
        lake: the lakehouse, at the version that the changes are made to.
        entries: the changes.
        reason: why, for the history.
        isolation: the isolation level of the transaction.
        allow_loss: a new schema may leave out columns, or make a primary key nullable.
        review: called with the changes and the losses; ``False`` commits nothing.
        cancel: checked before it commits.

    Raises:
        Refused: a new schema loses columns or keys, and ``allow_loss`` is not set.
        InvalidInput, AlreadyExists, ObjectNotFound, NamespaceNotEmpty: an entry cannot be carried out; the
            message names it. Nothing was changed.
        CommitConflict: another writer changed the same objects.
        ReadOnly, StorageError.
    """
    transaction = lake.transaction(isolation=isolation, reason=reason)
    with suppress(InvalidName):  # reported with the entry that has it
        transaction.look_ahead([entry.object() for entry in entries])
    losses: list[str] = []
    for entry in entries:
        losses += _carry_out(transaction, entry)
    # A dry run shows the losses. It need not be allowed to cause them.
    if losses and not allow_loss and review is not dry_run:
        transaction.abort()
        raise Refused(f"{'; '.join(losses)}: a schema lists every column that stays; --allow-loss drops them")
    planned = Report(
        version_before=lake.version,
        version_after=None,
        dry_run=True,
        entries=len(entries),
        transaction=transaction.id,
        isolation=transaction.isolation,
        changes=_list_changes(lake, transaction),
        losses=losses,
    )
    if review is not None and not review(planned):
        transaction.abort()
        return planned
    transaction.commit(before_commit=(cancel or NEVER_CANCELLED).check)
    return replace(planned, version_after=transaction.version, dry_run=False)


def _carry_out(transaction: Transaction, entry: WrittenChange) -> list[str]:
    """Carry out an entry, and return what a new schema of a table loses."""
    change_object = getattr(transaction, entry.action)
    try:
        before = _altered_table(transaction, entry)
        change_object(*entry.names(), **entry.definition())
        after = _altered_table(transaction, entry)
    except (InvalidInput, AlreadyExists, ObjectNotFound, NamespaceNotEmpty) as error:
        raise type(error)(f"{entry}: {error}") from error
    if before is None or after is None:
        return []
    return [f"{entry}: {loss}" for loss in _list_losses(before, after)]


def _altered_table(transaction: Transaction, entry: WrittenChange) -> TableDef | None:
    """Return the table whose schema an entry alters, ``None`` if it alters none."""
    if entry.action != "alter_table" or "schema" not in entry.arguments:
        return None
    return transaction.table(*entry.names())


def _list_losses(before: TableDef, after: TableDef) -> Iterator[str]:
    """Yield what a table has no more after its schema was altered."""
    for each in describe_difference(before, after):
        if each["what"] == "column" and each["change"] == "removed":
            yield f"column {each['name']!r} is dropped"
    old_columns = {column.id: column for column in before.schema.columns}
    new_columns = {column.id: column for column in after.schema.columns}
    for key in before.primary_keys:
        column = new_columns.get(key)
        if column is not None and column.nullable and not old_columns[key].nullable:
            yield f"the primary key {column.name!r} becomes nullable"


def _list_changes(lake: Lakehouse, transaction: Transaction) -> list[ChangedObject]:
    found = []
    for key, path, _ in transaction.change.messages():
        is_there = lookup(lake.nodes, lake.root_node.node, key) is not None
        if path is not None:
            if is_there:
                change = "changed"
            else:
                change = "added"
        elif is_there:
            change = "removed"
        else:
            continue  # created and dropped again by the same list
        found.append(ChangedObject(change, *lake.codec.split(key)))
    return found


# -- reading the list ------------------------------------------------------------------------------------


def parse(text: str, name: str = "the list of changes") -> list[WrittenChange]:
    """Return the entries in a YAML or JSON text.

    Raises:
        InvalidInput: it is neither, or an entry is not one; the message names the entry.
    """
    values = _load(text, name)
    if not isinstance(values, list):
        raise InvalidInput(
            f"{name} must hold a list of changes, each such as '- create_namespace: {{namespace: sales}}'"
        )
    if not values:
        raise InvalidInput(f"{name} holds no changes")
    changes: list[WrittenChange] = []
    for number, value in enumerate(values, 1):
        changes.append(parse_change(f"entry {number}", value))
    return changes


def _load(text: str, name: str) -> Any:
    if text.lstrip().startswith("["):  # JSON, or YAML that looks like it
        try:
            return json.loads(text, object_pairs_hook=_refuse_double_keys)
        except (RecursionError, ValueError):  # the message of YAML's loader has the place
            pass
    from trinitylake_core import yaml_text

    return yaml_text.load(text, name, what="neither YAML nor JSON")


def _refuse_double_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key appears twice")  # YAML's loader names it, and its line
    return found

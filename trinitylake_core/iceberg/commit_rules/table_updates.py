"""The updates of a commit to a table, with the IDs that fit the table's newest metadata."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

from pyiceberg.catalog import MetastoreCatalog
from pyiceberg.exceptions import ValidationError
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import MetadataLogEntry, SnapshotLogEntry
from pyiceberg.table.sorting import SortOrder
from pyiceberg.table.update import (
    AddPartitionSpecUpdate,
    AddSchemaUpdate,
    AddSortOrderUpdate,
    RemovePropertiesUpdate,
    SetCurrentSchemaUpdate,
    SetDefaultSortOrderUpdate,
    SetDefaultSpecUpdate,
    SetPropertiesUpdate,
    TableRequirement,
    TableUpdate,
    _TableMetadataUpdateContext,
    _update_table_metadata_log,
)

from trinitylake_core import clock
from trinitylake_core.iceberg.border import in_our_words, refuse_code, revalidate
from trinitylake_core.iceberg.rights.metadata_files import Stored
from trinitylake_core.iceberg.schemas import schema_meaning
from trinitylake_core.iceberg.version3 import apply_update, refuse_newer_schemas

Entry = TypeVar("Entry", MetadataLogEntry, SnapshotLogEntry)
_LAST_ADDED: Final = -1
_NUMBERED: Final = re.compile(r"/(\d{1,9})-[0-9a-f-]{36}(?:\.gz)?\.metadata\.json$")
"""A name that catalogs of Iceberg give to metadata files."""
_RESOLVED: Final = (AddSchemaUpdate, AddPartitionSpecUpdate, AddSortOrderUpdate, RemovePropertiesUpdate)
"""Where none of these is among the updates, all are applied as they are."""


def meet_requirements(name: str, current: Stored | None, requirements: Sequence[TableRequirement]) -> None:
    """Compare what a client requires with a table; ``None``: there is none. Raises ``CommitFailedException``."""
    with in_our_words(f"the commit to {name}"):
        for requirement in requirements:
            requirement.validate(None if current is None else current.metadata)


def update_metadata(name: str, current: Stored | None, updates: Sequence[TableUpdate]) -> TableMetadata:
    """Return the metadata of a table with the updates of a commit; without ``current`` those of a new table.

    Raises:
        CommitFailedException: others changed the table since the client read it.
        ValidationError: updates that do not fit the table, change its UUID, or set properties that name code.
    """
    for update in updates:
        if isinstance(update, SetPropertiesUpdate):
            refuse_code(update.updates, f"table {name}")
    with in_our_words(f"the commit to {name}"):
        if current is None:
            empty = MetastoreCatalog._empty_table_metadata()  # noqa: SLF001 - what PyIceberg builds new tables from
            return _create(empty, updates)
        after = _apply(current, updates)
    if after.table_uuid != current.metadata.table_uuid:
        raise ValidationError(f"the commit to {name} assigns another UUID, and that of a table never changes")
    return after


def number_of_next_file(current: Stored | None) -> int:
    """Return the number that the name of a table's next metadata file begins with."""
    if current is None:
        return 0
    match = _NUMBERED.search(current.metadata_location)
    return int(match[1]) + 1 if match else 0


def _create(empty: TableMetadata, updates: Sequence[TableUpdate]) -> TableMetadata:
    """Return the metadata of a new table, validated as those of a file are. Raises what PyIceberg raises."""
    after = _apply_all(empty, updates, _TableMetadataUpdateContext())
    if empty.last_updated_ms == after.last_updated_ms:
        after = after.model_copy(update={"last_updated_ms": clock.now_millis()})
    _refuse_unfit(after, updates)
    return revalidate(after)


def _apply_all(
    before: TableMetadata, updates: Iterable[TableUpdate], context: _TableMetadataUpdateContext
) -> TableMetadata:
    after = before
    for update in updates:
        after = apply_update(update, after, context)
    return after


def _refuse_unfit(after: TableMetadata, updates: Iterable[TableUpdate]) -> None:
    """Refuse metadata whose parts do not fit each other. Raises what PyIceberg raises, or ``ValidationError``."""
    refuse_newer_schemas(updates, after)
    after.spec().check_compatible(after.schema())
    after.sort_order().check_compatible(after.schema())


def _apply(current: Stored, updates: Sequence[TableUpdate]) -> TableMetadata:
    """Return the metadata of a table with updates applied.

    This is PyIceberg's ``update_table_metadata`` without its deep copy, which takes as long as all the rest: so the
    result shares parts with ``current``, and both must stay as they are. Raises what PyIceberg raises.
    """
    before, context = current.metadata, _TableMetadataUpdateContext()
    after = _apply_all(before, _resolve(before, updates), context)
    if context.has_changes():
        after = _update_table_metadata_log(after, current.metadata_location, before.last_updated_ms)
        if before.last_updated_ms == after.last_updated_ms:
            after = after.model_copy(update={"last_updated_ms": clock.now_millis()})
        after = order_times(after, after.last_updated_ms)
    _refuse_unfit(after, updates)
    return after


def order_times(metadata: TableMetadata, newest_millis: int) -> TableMetadata:
    """Return metadata of which no update is later than ``newest_millis``, and none later than the one behind it.

    Iceberg's own readers refuse metadata whose logs fall, or that were updated before the last entry of one of them;
    and their writers take the time of now. So a commit during which a clock was a year ahead would keep engines out for
    a year. The times of the logs say when, and decide nothing: they come down. Snapshots themselves stay as they are.
    """
    updated = min(metadata.last_updated_ms, newest_millis)
    times = {
        "last_updated_ms": updated,
        "metadata_log": _lower_times(metadata.metadata_log, updated),
        "snapshot_log": _lower_times(metadata.snapshot_log, updated),
    }
    if all(getattr(metadata, name) == value for name, value in times.items()):
        return metadata
    return metadata.model_copy(update=times)


def _lower_times(log: Sequence[Entry], newest_millis: int) -> list[Entry]:
    """Return a log in which each entry is at most as late as the one behind it, and the last one as a given time."""
    lowered: list[Entry] = []
    for entry in reversed(log):
        if entry.timestamp_ms > newest_millis:
            lowered.append(entry.model_copy(update={"timestamp_ms": newest_millis}))
        else:
            newest_millis = entry.timestamp_ms
            lowered.append(entry)
    lowered.reverse()
    return lowered


def _resolve(metadata: TableMetadata, updates: Sequence[TableUpdate]) -> Sequence[TableUpdate]:
    """Return updates that mean what the client wants, although the table may have changed since the client read it.

    Two clients that replace a table at the same time give their new schema, spec and order the same IDs. As in
    Iceberg's own server, one that the table has is used again, and another one gets a free ID. Properties that are not
    there need not be removed.
    """
    if not any(isinstance(each, _RESOLVED) for each in updates):
        return updates
    schemas = _Numbered(metadata.schemas, "schema_id", schema_meaning)
    specs = _Numbered(metadata.partition_specs, "spec_id", _spec)
    orders = _Numbered(metadata.sort_orders, "order_id", _order)
    properties, found = set(metadata.properties), []
    for update in updates:
        match update:
            case AddSchemaUpdate():
                found += schemas.resolve_addition(update, "schema_")
            case AddPartitionSpecUpdate():
                found += specs.resolve_addition(update, "spec")
            case AddSortOrderUpdate():
                found += orders.resolve_addition(update, "sort_order")
            case SetCurrentSchemaUpdate():
                found.append(schemas.resolve_choice(update, "schema_id"))
            case SetDefaultSpecUpdate():
                found.append(specs.resolve_choice(update, "spec_id"))
            case SetDefaultSortOrderUpdate():
                found.append(orders.resolve_choice(update, "sort_order_id"))
            case SetPropertiesUpdate():
                properties |= update.updates.keys()
                found.append(update)
            case RemovePropertiesUpdate():
                there = [each for each in update.removals if each in properties]
                found.append(update.model_copy(update={"removals": there}))
                properties -= set(update.removals)
            case _:
                found.append(update)
    return tuple(found)


class _Numbered:
    """The schemas, specs or orders of a table: what is there under which ID, and which ID the client gave it."""

    def __init__(self, things: Iterable[Any], number: str, meaning: Callable[[Any], object]) -> None:
        self._by_meaning = {meaning(each): getattr(each, number) for each in things}
        self._number = number
        self._meaning = meaning
        self._ids: dict[int, int] = {}

    def resolve_addition(self, update: Any, field: str) -> list[Any]:
        """Return an update that adds a thing under a free ID; nothing, if the table has it."""
        thing = getattr(update, field)
        own = getattr(thing, self._number)
        meaning = self._meaning(thing)
        known = self._by_meaning.get(meaning)
        if known is not None:
            self._remember(own, known)
            return []
        free = self._free_id(own)
        self._by_meaning[meaning] = free
        self._remember(own, free)
        numbered = thing.model_copy(update={self._number: free})
        return [update.model_copy(update={field: numbered})]

    def _free_id(self, wanted: int) -> int:
        """Return an ID that nothing has: the one that the client gave, if it can be."""
        taken = self._by_meaning.values()
        return max(taken) + 1 if wanted in taken else wanted

    def _remember(self, given: int, number: int) -> None:
        """Remember which ID in the table the one stands for that the client gave, and that it was the last."""
        self._ids[given] = number
        self._ids[_LAST_ADDED] = number

    def resolve_choice(self, update: Any, field: str) -> Any:
        """Return an update that chooses a thing by its ID in the table."""
        given = getattr(update, field)
        return update.model_copy(update={field: self._ids.get(given, given)})


def _spec(spec: PartitionSpec) -> object:
    return tuple((each.source_id, str(each.transform), each.name) for each in spec.fields)


def _order(order: SortOrder) -> object:
    return tuple((each.source_id, str(each.transform), each.direction, each.null_order) for each in order.fields)

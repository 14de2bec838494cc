"""The plan of a compaction of tables: by their metadata, which files of which partitions are to be replaced."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pipelines.tables.changing import NamedTable
from pipelines.tables.compact.decision import GroupDecision, decide_table, manifests_to_merge, take_within
from pipelines.tables.compact.model import PlannedGroup, PlannedTable, Policy
from pipelines.tables.compact.stored import StoredTable
from trinitylake_core.errors import InvalidInput
from trinitylake_core.iceberg.reading.file_groups import TARGET_DEFAULT, FileGroup, GroupKey, target_of
from trinitylake_core.iceberg.reading.health import CurrentFiles, grouped_files, read_current
from trinitylake_core.storage import Storage
from trinitylake_core.table_places import Located
from trinitylake_core.tables import former_root, metadata_uri

if TYPE_CHECKING:
    from trinitylake_core.iceberg import TrinityLakeCatalog

_SWITCHED_OFF: Final = "self-optimizing.enabled"
"""The property by which owners of tables switch such jobs off, Amoro's as well as this one."""

_FOREIGN_TO_SPARK: Final = frozenset({"time", "timestamp_ns", "timestamptz_ns"})
"""Types of which Iceberg makes none of Spark: Spark reads no row of a table with such a column."""


class LeftAlone(Exception):
    """A table that is not compacted, because of what its owner or its place says."""


def plan_table(
    located: Located,
    table: NamedTable,
    policy: Policy,
    now_millis: int,
    by_plan: Mapping[str, StoredTable] | None = None,
) -> PlannedTable:
    """Return what is to be replaced in a table, perhaps nothing: by its policy, or by a stored plan.

    One ``get`` for its metadata, for its manifest list, and for each manifest. ``by_plan``: the tables of the plan, by
    UUID.

    Raises:
        LeftAlone: its owner switched this off, or it came here with its lakehouse from elsewhere.
        InvalidInput: it has changed since the plan was made.
        FileMissing, UnreadableTable, InvalidInput, StorageError: it cannot be read.
    """
    location = metadata_uri(located.storage.root, table.definition) or ""
    read = read_current(located, location, with_old=False)
    properties = read.properties
    if str(properties.get(_SWITCHED_OFF, "true")).lower() != "true":
        raise LeftAlone(f"it has the property {_SWITCHED_OFF}, and it is not true")
    former = former_root(located.storage.root, location, read.references.location)
    if former:
        raise LeftAlone(f"it was written below {former} and came here with its lakehouse: nothing writes it here")
    target = target_of(properties, policy.rules.target or TARGET_DEFAULT)
    groups = grouped_files(read, target)
    empty = PlannedTable(
        name=table.name,
        identifier=(*table.namespace.split("."), table.own),
        uuid=read.references.uuid,
        metadata_location=location,
        snapshot_id=int(read.snapshot.get("snapshot-id", -1)),
        format_version=int(read.document["format-version"]),
        target=target,
        groups=(),
        equality_deletes=sum(each.equality_deletes for each in groups.values()),
        manifests=manifests_to_merge(_sizes_of_manifests(read), policy.manifests),
        refs=_refs_of(read),
        foreign_to_spark=type_foreign_to_spark(read.document),
    )
    if by_plan is not None:
        stored = by_plan.get(empty.uuid)
        return replace(empty, manifests=0) if stored is None else stored.applied_to(empty, groups)
    decided = decide_table(groups, target, policy.rules, now_millis)
    return replace(empty, groups=tuple(_plan_group(groups[key], key, each) for key, each in decided.groups))


def _plan_group(group: FileGroup, key: GroupKey, decision: GroupDecision) -> PlannedGroup:
    paths = group.paths if decision.deletes else group.small_paths
    if decision.merge is not None:
        paths = {**group.small_paths, **group.large_paths}
    return PlannedGroup(
        key.spec_id,
        tuple(paths),
        tuple(paths.values()),
        decision,
        group.delete_files,
        group.deletes_elsewhere,
    )


def _sizes_of_manifests(read: CurrentFiles) -> Collection[Sequence[int]]:
    """Return the sizes of the manifests of data files, of each partition spec."""
    sizes: dict[int, list[int]] = {}
    for each in read.manifests.values():
        if not each.content:
            sizes.setdefault(each.spec_id, []).append(each.size)
    return sizes.values()


def _refs_of(read: CurrentFiles) -> tuple[str, ...]:
    """Return the names of tags, and of branches but ``main``."""
    refs: Mapping[str, object] = read.document.get("refs") or {}
    return tuple(sorted(name for name in refs if name != "main"))


def type_foreign_to_spark(document: Mapping[str, Any]) -> str:
    """Return the type of a column of the current schema for which Spark has none; empty without one.

    Nobody has checked the schema yet: what is no schema has no such column.
    """
    schemas = document.get("schemas")
    for schema in schemas if isinstance(schemas, list) else [document.get("schema")]:
        if isinstance(schema, dict) and schema.get("schema-id", 0) == document.get("current-schema-id", 0):
            found = _FOREIGN_TO_SPARK.intersection(_types_in(schema))
            return min(found, default="")
    return ""


def _types_in(schema: object) -> Iterator[str]:
    """Yield the types in a part of a schema."""
    if isinstance(schema, str):
        yield schema
    elif isinstance(schema, list):
        for each in schema:
            yield from _types_in(each)
    elif isinstance(schema, dict):
        for name in ("type", "element", "key", "value", "fields"):
            yield from _types_in(schema.get(name))


class _GroupOfTable(NamedTuple):
    """A group, and the number of its table among those that are planned."""

    table: int
    group: PlannedGroup


def within_budget(tables: Sequence[PlannedTable], budget_bytes: int | None) -> tuple[list[PlannedTable], int]:
    """Return the tables with those groups that a budget is enough for, the best of all first, and how many are left.

    Manifests are no part of a budget.
    """
    groups: list[_GroupOfTable] = []
    kept: dict[int, list[PlannedGroup]] = {}
    for number, table in enumerate(tables):
        groups += [_GroupOfTable(number, each) for each in table.groups]
        if table.manifests:
            kept[number] = []
    decisions = [each.group.decision for each in groups]
    left = len(groups)
    for taken in take_within(decisions, budget_bytes):
        chosen = groups[taken]
        kept.setdefault(chosen.table, []).append(chosen.group)
        left -= 1
    rest = [replace(tables[number], groups=tuple(some)) for number, some in kept.items()]
    return rest, left


def refuse_no_budget(budget_bytes: int | None) -> None:
    """Refuse a budget of nothing. Raises ``InvalidInput``."""
    if budget_bytes is not None and budget_bytes <= 0:
        raise InvalidInput("a budget of no bytes rewrites nothing: give a size above zero, or leave it out")


def within_condition(
    catalog: TrinityLakeCatalog, storage: Storage, table: PlannedTable, where: str, now_millis: int
) -> PlannedTable:
    """Return a table with those groups whose partitions lie wholly within a condition.

    What ``live_files`` costs. Raises ``ValidationError``: the condition does not parse.
    """
    from trinitylake_core.iceberg.rewriting.partition_filter import partition_filter
    from trinitylake_core.iceberg.rewriting.replacing import live_files

    _, stored = catalog.stored_table(table.identifier)
    is_within = partition_filter(stored.metadata, where, now_millis)
    firsts = frozenset(each.paths[0] for each in table.groups)
    found = {each.uri: is_within(each) for each in live_files(Located(storage), stored).data_files(firsts)}
    return replace(table, groups=tuple(each for each in table.groups if found.get(each.paths[0])))

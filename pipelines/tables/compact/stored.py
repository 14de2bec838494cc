"""Plans of compactions of tables as data: a row for each file that is to be replaced."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from pipelines.reach import plans
from pipelines.reach.kept_roots import gc_roots
from pipelines.reach.listing import Listed
from pipelines.tables.compact.decision import GroupDecision, files_of_size
from pipelines.tables.compact.model import PlannedGroup, PlannedTable
from trinitylake_core import Lakehouse
from trinitylake_core.errors import InvalidInput
from trinitylake_core.iceberg.reading.file_groups import FileGroup, GroupKey
from trinitylake_core.storage import Options

JOB: Final = "tables compact"
_PLANNED: Final = "it is in the plan"
_CHANGED: Final = "it has changed since the plan was made; make a new plan"
_ROW: Final = re.compile(
    r"(?P<uuid>[0-9a-f-]{36})/(?P<snapshot>-?\d{1,20})/(?P<group>\d{1,9})/(?P<spec>\d{1,9})/(?P<uri>.+)", re.DOTALL
)
"""What a row names: a table, its snapshot, a group of files, their partition spec, and a file."""


@dataclass(slots=True)
class _Group:
    spec_id: int
    sizes: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class StoredTable:
    """What a plan has about one table: the snapshot that it was made at, and the groups of files."""

    snapshot_id: int
    groups: dict[int, _Group] = field(default_factory=dict)

    def applied_to(self, table: PlannedTable, known: Mapping[GroupKey, FileGroup]) -> PlannedTable:
        """Return a table with the groups of the plan, and with what is known of the deletes that apply to them.

        ``known`` are the files as they are. Raises ``InvalidInput``: the table has changed since.
        """
        if self.snapshot_id != table.snapshot_id:
            raise InvalidInput(_CHANGED)
        firsts = {next(iter(each.sizes)): each for each in self.groups.values()}
        groups: list[PlannedGroup] = []
        for key, group in known.items():
            for first in firsts.keys() & group.paths.keys():
                groups.append(_planned_group(firsts.pop(first), key, group, table.target))
        if firsts:
            raise InvalidInput(_CHANGED)
        return replace(table, groups=tuple(groups), manifests=0)


def _planned_group(stored: _Group, key: GroupKey, group: FileGroup, target: int) -> PlannedGroup:
    paths = tuple(stored.sizes)
    sizes = tuple(stored.sizes.values())
    files = len(paths)
    size = sum(sizes)
    after = files_of_size(size, target)
    deletes = group.delete_files if files == group.files else 0
    decision = GroupDecision(True, _PLANNED, files, size, after, files - after, max(1, 2 * size), deletes)
    return PlannedGroup(key.spec_id, paths, sizes, decision, group.delete_files, group.deletes_elsewhere)


def write_plan(uri: str, options: Options, lake: Lakehouse, tables: Sequence[PlannedTable]) -> None:
    """Write what is to be replaced. One ``put``."""
    rows = list(_rows_of(tables))
    head = plans.header(JOB, lake.backend, gc_roots(lake.backend), (len(rows), sum(each.file.bytes for each in rows)))
    plans.write(uri, options, head, rows)


def _rows_of(tables: Sequence[PlannedTable]) -> Iterator[plans.PlanRow]:
    for table in sorted(tables, key=lambda each: each.name):
        for number, group in enumerate(table.groups):
            above = f"{table.uuid}/{table.snapshot_id}/{number}/{group.spec_id}"
            for path, size in zip(group.paths, group.sizes, strict=True):
                file = Listed(f"{above}/{path}", size, None, "data", None)
                yield plans.PlanRow(file, f"{table.name}: {group.decision.reason}")


def read_plan(uri: str, options: Options, lake: Lakehouse) -> dict[str, StoredTable]:
    """Return what a plan has about each table, by UUID. Raises ``InvalidInput``, ``PlanOutdated``."""
    plan = plans.StoredPlan(uri, options)
    plans.refuse_other(plan.header, JOB, lake.backend, gc_roots(lake.backend))
    found: dict[str, StoredTable] = {}
    for file in plan.files():
        row = _ROW.fullmatch(file.path)
        if row is None:
            raise InvalidInput(f"the plan {uri} names {file.path!r}, which is no file of a table")
        snapshot = int(row["snapshot"])
        table = found.setdefault(row["uuid"], StoredTable(snapshot))
        number = int(row["group"])
        spec_id = int(row["spec"])
        group = table.groups.setdefault(number, _Group(spec_id))
        group.sizes[row["uri"]] = file.bytes
    return found

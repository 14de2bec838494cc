"""A run of a job that changes many tables, each by the policy that counts for its name, after a plan."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from pipelines.job import JobRun, Meter
from pipelines.reach import plans
from pipelines.reach.table_files import iceberg_tables
from trinitylake_core.catalog import ObjectEntry
from trinitylake_core.definitions import TableDef
from trinitylake_core.keys import label
from trinitylake_core.recovery.patterns import Pattern, first_match
from trinitylake_core.tables import MANAGED

_P = TypeVar("_P")
_R = TypeVar("_R")


@dataclass(frozen=True, slots=True)
class NamedTable:
    """A MANAGED Iceberg table: its namespace, its own name, which may have dots as well, and its definition."""

    namespace: str
    own: str
    definition: TableDef

    @property
    def name(self) -> str:
        """Both names, for people."""
        return label(self.namespace, self.own)


class TablesRun(JobRun[Any, _R], Generic[_P, _R]):
    """One run. Its ``config`` is a policy itself, for tables that no other one counts for, and has plans."""

    def __post_init__(self) -> None:
        from trinitylake_core.iceberg import TrinityLakeCatalog

        config = self.config
        self.meter = Meter(self.lake.storage)
        self.now: int = config.now()
        self.policies = [(Pattern(each.pattern or "*"), each) for each in config.policies]
        self.plan: str | None = config.plan or config.plan_to
        self.options = plans.options_of(self.plan, config.plan_options, self.lake.storage)
        self.catalog = TrinityLakeCatalog.over(self.lake, reason=config.reason or "")
        self.failures: dict[str, str] = {}

    def list_managed(self, entries: Iterable[ObjectEntry]) -> tuple[list[NamedTable], int]:
        """Return the MANAGED Iceberg tables among some that have metadata, and how many EXTERNAL ones there are."""
        managed = []
        external = 0
        for entry, table in iceberg_tables(self.lake.storage, entries, self.failures):
            if table.table_type == MANAGED:
                managed.append(NamedTable(entry.namespace, entry.name or "", table))
            else:
                external += 1
        return managed, external

    def policy_of(self, table: NamedTable) -> _P:
        """Return the policy that counts for a table."""
        policy: _P = first_match(self.policies, table.namespace, table.own, self.config)
        return policy

    def idle_policies(self, tables: Sequence[NamedTable]) -> tuple[str, ...]:
        """Return the patterns of policies that count for none of the tables."""
        counting = {self.policy_of(each) for each in tables}
        return tuple(each.pattern or "*" for each in self.config.policies if each not in counting)

    def with_costs(self, found: _R) -> _R:
        """Return a report with what it has cost so far."""
        report: Any = found
        costs = {"requests": self.meter.by_kind(), "seconds": dict(self.watch.seconds)}
        with_costs: _R = replace(report, failures=dict(self.failures), **costs)
        return with_costs

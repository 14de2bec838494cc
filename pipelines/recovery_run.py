"""What a rollback and a restore share: their reports, and the steps from a proved plan to its commit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pipelines.integrity.definition_prover import DefinitionProver
from pipelines.job import JobRun
from pipelines.summary import Table, recovery_tables
from pipelines.tables.files import TableState, states_after
from trinitylake_core import RecoveryPlan
from trinitylake_core.short_repr import ShortRepr
from trinitylake_core.storage import Storage

_K = TypeVar("_K")
_R = TypeVar("_R")


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class RecoveryReport(ShortRepr):
    """The result of a rollback or a restore, or of its dry run. ``version_after`` is ``None`` where nothing changed.

    Attributes:
        tables_checked: Iceberg tables whose metadata file exists; ``tables_unknown`` cannot be checked from here.
        tables: on a dry run, the snapshot that each table among the changes goes back to, and its time.
    """

    version_before: int
    version_after: int | None
    dry_run: bool
    plan: RecoveryPlan
    engine: str
    definitions_checked: int
    bytes_read: int
    seconds: dict[str, float] = field(default_factory=dict)
    tables_checked: int = 0
    tables_unknown: int = 0
    tables: tuple[TableState, ...] = ()

    def summary_tables(self) -> Iterator[Table]:
        """Yield what changes, where Iceberg tables go back to, and what is undone."""
        yield from recovery_tables(self.plan, self.tables, self.tables_unknown)


class RecoveryRun(JobRun[_K, _R]):
    """One run."""

    def prover(self, storage: Storage, tables: float | None) -> DefinitionProver:
        """Return what proves the definitions that come back, and the metadata files of a share of the tables."""
        config: Any = self.config
        return DefinitionProver(
            storage,
            self.spark,
            config.engine,
            config.spark_from_files,
            tables=tables,
            progress=self.progress,
        )

    def finish(
        self,
        plan: RecoveryPlan,
        storage: Storage,
        commit: Callable[[RecoveryPlan, Callable[[], None]], RecoveryPlan],
        report: Callable[..., _R],
    ) -> _R:
        """Have a proved plan reviewed, and commit it. ``storage`` has the definitions that come back."""
        tables: tuple[TableState, ...] = ()
        if self.review is not None:
            tables = states_after(storage, plan.changes)
            self.watch.lap("all")
            planned = report(plan, tables=tables, dry_run=True, seconds=dict(self.watch.seconds))
            if not self.review(planned):
                return planned
        done = commit(plan, self.cancel.check)
        if done.version_after is not None:
            self.lake.catch_up()  # no request: an error now would report a job that is done as a failure
        self.watch.lap("all")
        return report(done, tables=tables, dry_run=False, seconds=dict(self.watch.seconds))

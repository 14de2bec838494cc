"""Rollback: return the whole catalog to an older version (format, section 6).

Plan, prove, commit: one comparison with the newest version finds what changes, and proves the nodes and definitions of
the target that the newest version does not share. Then the changes are reviewed, and one commit follows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

from pipelines.integrity.definition_prover import DefinitionProver
from pipelines.job import NEVER_CANCELLED, Cancel, JobRun, Meter, Progress, Review, Session, refuse_unknown, silent
from pipelines.reach.table_files import EVERY, TableState, are_rewrites, refuse_no_share, states_after
from pipelines.reports.summary import DRY_RUN, Table, changes_table, count, qualify_name, utc, versions_table
from trinitylake_core import Lakehouse, RecoveryPlan, RecoveryTarget
from trinitylake_core.recovery.plan import require_reason
from trinitylake_core.recovery.rollback import plan_rollback
from trinitylake_core.short_repr import ShortRepr
from trinitylake_core.storage import Storage

_K = TypeVar("_K")
_R = TypeVar("_R")


@dataclass(frozen=True, slots=True)
class Config:
    """The options of a rollback. Its target is one of ``version``, ``timestamp`` and ``snapshot``.

    Attributes:
        version: the target: a number, ``HEAD~1``, a snapshot, a time, or an age such as ``-2h``.
        timestamp: the target by time, ISO 8601, UTC, or an age such as ``-2h``.
        snapshot: the target by the name of a snapshot.
        reason: why; required, and recorded in the history.
        force: also undo what other writers commit while this runs.
        expected_version: the newest version when the plan that you reviewed was made.
        engine: of the proof: ``spark``, ``local`` or ``auto``, Spark on other machines from ``spark_from_files`` files
            on.
        spark_from_files: where ``auto`` changes from this process to Spark.
        tables: of which share of the Iceberg tables that come back the metadata file must exist; ``None``: of none.
    """

    version: int | str | None = None
    timestamp: datetime | str | None = None
    snapshot: str | None = None
    reason: str | None = None
    force: bool = False
    expected_version: int | None = None
    engine: str = "auto"
    spark_from_files: int = 400_000
    tables: float | None = EVERY

    def __post_init__(self) -> None:
        refuse_unknown(self.engine)
        refuse_no_share(self.tables)
        require_reason(self.reason)
        self.target.refuse_ambiguous("say what to roll back to: one of version, timestamp and snapshot")

    @property
    def target(self) -> RecoveryTarget:
        """The three as one."""
        return RecoveryTarget(self.version, self.timestamp, self.snapshot)


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
        yield from _recovery_tables(self.plan, self.tables, self.tables_unknown)


class RecoveryRun(JobRun[_K, _R]):
    """One run of a rollback or a restore: the steps from a proved plan to its commit."""

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


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Report(RecoveryReport):
    """The result of a rollback, or of its dry run.

    Attributes:
        tables_checked: Iceberg tables whose metadata file exists; ``tables_unknown`` cannot be checked from here.
        tables: on a dry run, the snapshot that each table among the changes goes back to, and its time.
    """

    nodes_checked: int
    requests: int

    def summary(self) -> Iterator[str]:
        """Yield what the rollback did, or would do, and what was read to prove its target."""
        then = f"version {self.plan.target_version} of {utc(self.plan.target_created_at)}"
        if self.version_after is None:
            yield f"{DRY_RUN}: version {self.version_before + 1} would have the content of {then}"
        else:
            yield f"version {self.version_after} committed, with the content of {then}"
        nodes = count(self.nodes_checked, "node")
        definitions = count(self.definitions_checked, "definition")
        yield (
            f"{nodes} below the root and {definitions} read, all intact; the rest was not read: the newest version "
            "uses it"
        )


def run(
    lake: Lakehouse,
    config: Config,
    spark: Session = None,
    *,
    review: Review[Report] | None = None,
    cancel: Cancel | None = None,
    progress: Progress | None = None,
) -> Report:
    """Roll the lakehouse back; the handle moves to the newest version.

    The arguments are those of every job (:mod:`pipelines.job`), and:
        review: called with every change named, when the target is proved; ``False`` writes nothing.
        cancel: checked right before the root is created.

    Raises:
        InvalidInput, VersionNotFound, VersionExpired, SnapshotNotFound.
        Corrupt: a file of the target is missing or damaged; the message names it.
        PlanOutdated: another writer changed objects since the plan, or rows of tables, and ``force`` is not set.
        ReadOnly, StorageError.
    """
    return _Rollback(lake, config, spark, review, cancel or NEVER_CANCELLED, progress or silent).run()


class _Rollback(RecoveryRun[Config, Report]):
    """One run."""

    def run(self) -> Report:
        config = self.config
        storage = self.lake.storage
        meter = Meter(storage)
        prover = self.prover(storage, config.tables)
        rollback = plan_rollback(
            self.backend,
            config.target,
            config.reason,
            force=config.force,
            expected_version=config.expected_version,
            is_same=partial(are_rewrites, storage),
        )
        # The nodes are proved while the versions are compared, and the definitions here, or in tasks.
        for changes in rollback.changes_to_prove():
            rollback.add_findings(prover.find_damaged(changes))

        def report(plan: RecoveryPlan, **more: Any) -> Report:
            requests = meter.requests() + prover.requests_in_tasks
            return Report(nodes_checked=plan.nodes_proved, requests=requests, **prover.figures_of(plan), **more)

        return self.finish(rollback.proved_plan(), storage, rollback.commit, report)


def _recovery_tables(plan: RecoveryPlan, states: Sequence[TableState], unknown: int) -> Iterator[Table]:
    """Yield the changes of a rollback or a restore, the target snapshots of Iceberg tables, and the undone versions."""
    counts = ", ".join(f"{number} {what}" for what, number in plan.counts.items())
    total = sum(plan.counts.values())
    yield changes_table(plan.changes, total, f"objects: {counts}")
    yield _snapshots_table(states, unknown)
    yield _holes_table(plan)
    if plan.versions_undone:
        caption = f"versions undone: {plan.versions_undone}"
        yield versions_table("undone", plan.since, caption, plan.versions_undone)


def _snapshots_table(states: Sequence[TableState], unknown: int) -> Table:
    """Return the snapshots that Iceberg tables go back to."""
    rows = []
    for each in states:
        if each.metadata_location is None:
            continue  # no Iceberg table
        snapshot: int | str = "unknown"
        if each.known:
            snapshot = each.snapshot_id or "none"
        name = qualify_name(each.namespace, each.name)
        rows.append([name, snapshot, each.snapshot_at])
    caption = []
    if unknown:
        caption.append(f"the metadata files of {count(unknown, 'table')} cannot be looked for from here")
    if rows:
        caption.append("Iceberg tables, and the snapshots they go back to:")
    return Table(
        title="Iceberg tables",
        columns=("table", "snapshot", "of"),
        rows=rows,
        caption="\n".join(caption),
    )


def _holes_table(plan: RecoveryPlan) -> Table:
    """Return the ranges of keys that could not be compared."""
    rows = []
    for each in plan.not_compared:
        after = each.after or "the beginning"
        before = each.before or "the end"
        rows.append([after, before, each.file, each.why])
    caption = ""
    if rows:
        caption = "not compared, because the newest version cannot be read there; all of it will be as in the target:"
    return Table(
        title="not compared",
        columns=("after", "before", "file", "why"),
        rows=rows,
        caption=caption,
    )

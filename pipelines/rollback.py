"""Rollback: return the whole catalog to an older version (format, section 6).

Plan, prove, commit: one comparison with the newest version finds what changes, and proves the nodes and definitions of
the target that the newest version does not share. Then the changes are reviewed, and one commit follows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial

from pipelines.integrity.definition_prover import DefinitionProver
from pipelines.job import (
    Cancel,
    Meter,
    Progress,
    Review,
    Session,
    Stopwatch,
    refuse_unknown,
    silent,
)
from pipelines.summary import DRY_RUN, Table, count, recovery_tables, utc
from pipelines.tables.files import EVERY, TableState, are_rewrites, refuse_no_share, states_after
from trinitylake_core import Lakehouse, RecoveryPlan, RecoveryTarget
from trinitylake_core.recovery.plan import require_reason
from trinitylake_core.recovery.rollback import Rollback, plan_rollback
from trinitylake_core.short_repr import ShortRepr


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


@dataclass(frozen=True, slots=True, repr=False)
class Report(ShortRepr):
    """The result of a rollback, or of its dry run.

    Attributes:
        tables_checked: Iceberg tables whose metadata file exists; ``tables_unknown`` cannot be checked from here.
        tables: on a dry run, the snapshot that each table among the changes goes back to, and its time.
    """

    version_before: int
    version_after: int | None
    dry_run: bool
    plan: RecoveryPlan
    engine: str
    nodes_checked: int
    definitions_checked: int
    bytes_read: int
    requests: int
    seconds: dict[str, float] = field(default_factory=dict)
    tables_checked: int = 0
    tables_unknown: int = 0
    tables: tuple[TableState, ...] = ()

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

    def summary_tables(self) -> Iterator[Table]:
        """Yield what changes, where Iceberg tables go back to, and what is undone."""
        yield from recovery_tables(self.plan, self.tables, self.tables_unknown)


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
    watch = Stopwatch()
    meter = Meter(lake.storage)
    prover = DefinitionProver(
        storage=lake.storage,
        spark=spark,
        engine=config.engine,
        spark_from_files=config.spark_from_files,
        tables=config.tables,
        progress=progress or silent,
    )
    rollback = plan_rollback(
        lake.backend,
        config.target,
        config.reason,
        force=config.force,
        expected_version=config.expected_version,
        is_same=partial(are_rewrites, lake.storage),
    )
    plan = _prove(rollback, prover)
    tables: tuple[TableState, ...] = ()
    if review is not None:
        tables = states_after(lake.storage, plan.changes)
        planned = _report(plan, tables, prover, meter, watch)
        if not review(planned):
            return planned
    before_commit = None
    if cancel is not None:
        before_commit = cancel.check
    plan = rollback.commit(plan, before_commit)
    lake.catch_up()  # no request: an error now would report a job that is done as a failure
    return _report(plan, tables, prover, meter, watch)


def _prove(rollback: Rollback, prover: DefinitionProver) -> RecoveryPlan:
    """Prove what comes back: the nodes while the versions are compared, and the definitions here, or in tasks."""
    for changes in rollback.changes_to_prove():
        rollback.add_findings(prover.find_damaged(changes))
    return rollback.proved_plan()


def _report(
    plan: RecoveryPlan,
    tables: tuple[TableState, ...],
    prover: DefinitionProver,
    meter: Meter,
    watch: Stopwatch,
) -> Report:
    watch.lap("all")
    return Report(
        dry_run=plan.version_after is None,
        nodes_checked=plan.nodes_proved,
        requests=meter.requests() + prover.requests_in_tasks(),
        seconds=dict(watch.seconds),
        tables=tables,
        **prover.figures_of(plan),
    )

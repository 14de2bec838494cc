"""Rollback: return the whole catalog to an older version (format, section 6).

Plan, prove, commit: one comparison with the newest version finds what changes, and proves the nodes and definitions of
the target that the newest version does not share. Then the changes are reviewed, and one commit follows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from pipelines.job import NEVER_CANCELLED, Cancel, Meter, Progress, Review, Session, refuse_unknown, silent
from pipelines.recovery_run import RecoveryReport, RecoveryRun
from pipelines.summary import DRY_RUN, count, utc
from pipelines.tables.files import EVERY, are_rewrites, refuse_no_share
from trinitylake_core import Lakehouse, RecoveryPlan, RecoveryTarget
from trinitylake_core.recovery.plan import require_reason
from trinitylake_core.recovery.rollback import plan_rollback


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
            requests = meter.requests() + prover.requests_in_tasks()
            return Report(nodes_checked=plan.nodes_proved, requests=requests, **prover.figures_of(plan), **more)

        return self.finish(rollback.proved_plan(), storage, rollback.commit, report)

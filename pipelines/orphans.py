"""Orphan removal (``clean``): list, mark, minus, act (format, section 6).

1. **list** everything below the root, before anything is marked;
2. **mark** what the kept versions, snapshots and live saved transactions reach, each shared node read once;
3. **minus**: what was listed, is old enough, has a name of the format, and is not marked, is an orphan;
4. **act**: mark what was committed since, take that off too, then delete, each failure counted.

Doubt aborts: a root or node that cannot be read stops everything before anything is deleted.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from pipelines.durations import DAY, millis, shown
from pipelines.files import plans
from pipelines.files.deletion import Deleted
from pipelines.files.listing import Listed
from pipelines.files.retained import Kept, Saved, kept, live_transactions, paths_of, refuse_guarded, slack
from pipelines.job import Meter, Progress, Session, Stopwatch, engine_for_all, proceed, refuse_unknown, silent
from pipelines.sweep import open_sweep
from pipelines.sweep.model import Report, Totals
from trinitylake_core import Lakehouse
from trinitylake_core.commit import now_millis, refuse_foreign
from trinitylake_core.errors import Corrupt, InvalidInput, PlanOutdated

_LEDGER: Final = logging.getLogger("pipelines.ledger")
SAFETY_AGE_SECONDS: Final = 3 * DAY
SAFE_FROM_SECONDS: Final = DAY
_RESTARTS: Final = 5
_TEMPORARY_AGE_SECONDS: Final = 3600.0

__all__ = ["SAFETY_AGE_SECONDS", "Config", "Report", "plan", "run"]


@dataclass(frozen=True, slots=True)
class Config:
    """How to clean.

    Attributes:
        engine: ``spark``, ``local`` (this process, never starts Spark), or ``auto``: Spark for large lakehouses.
        older_than_seconds: the safety age; only files older than that, strictly, are removed.
        allow_recent: allow a safety age below 24 hours. Files of commits that are under way may be that young.
        dry_run: plan, print, delete nothing.
        inventory: URI of a listing (Parquet or CSV) to use instead of listing. Nothing younger than
            ``txn_ttl_millis`` is removed then: it may belong to a saved transaction that is not listed.
        plan_to: URI to write the plan to; deletes nothing.
        plan: URI of a plan to carry out, if it still holds.
        plan_options: storage options for these three; by default those of the lakehouse.
        now_millis: the time, for tests.
        before_commit: called right before anything is deleted; raising there deletes nothing.
    """

    engine: str = "spark"
    older_than_seconds: float = SAFETY_AGE_SECONDS
    allow_recent: bool = False
    dry_run: bool = False
    inventory: str | None = None
    plan_to: str | None = None
    plan: str | None = None
    plan_options: Mapping[str, Any] | None = None
    now_millis: int | None = None
    before_commit: Callable[[], None] | None = None

    def __post_init__(self) -> None:
        refuse_unknown(self.engine)
        if self.older_than_seconds < 0:
            raise InvalidInput("the safety age must not be negative")
        if self.older_than_seconds < SAFE_FROM_SECONDS and not self.allow_recent:
            raise InvalidInput(
                f"a safety age of {shown(self.older_than_seconds)} may remove files of commits that are under way; "
                "24h or more, or --allow-recent if nobody writes"
            )
        if self.plan is not None and (self.plan_to is not None or self.inventory is not None or self.dry_run):
            raise InvalidInput("a plan is carried out as it is: no --dry-run, --plan-to or --inventory with --plan")


def run(spark: Session, lake: Lakehouse, config: Config | None = None, progress: Progress | None = None) -> Report:
    """Remove what nothing reaches, or say what that would be.

    Costs a listing, one ``get`` a node of all kept versions together, and one ``delete`` for a thousand orphans.

    Raises:
        Refused: the lakehouse forbids deleting (``maintenance.delete.enabled``).
        PlanOutdated: the plan no longer holds.
        Corrupt: something that must be marked cannot be read; nothing was deleted.
        ReadOnly, InvalidInput, StorageError.
    """
    config = config or Config()
    work = _Clean(spark, lake, config, progress or silent)
    try:
        report = work.carry_out() if config.plan is not None else work.run()
    finally:
        work.sweep.release()
    if report.attempted:
        _LEDGER.info("clean %s: %s", report.root, json.dumps(asdict(report), sort_keys=True))
    return report


def plan(spark: Session, lake: Lakehouse, config: Config | None = None, progress: Progress | None = None) -> Report:
    """Return what :func:`run` would do, as a report of a dry run. Changes nothing."""
    return run(spark, lake, replace(config or Config(), dry_run=True), progress)


class _Clean:
    """One cleaning."""

    def __init__(self, spark: Session, lake: Lakehouse, config: Config, progress: Progress) -> None:
        self.files = lake.files
        self.config = config
        self.still_wanted = config.before_commit or proceed
        self.now = now_millis() if config.now_millis is None else config.now_millis
        newest = self.files.newest()
        self.files.saw(newest)
        refuse_foreign(self.files, newest)
        self.definition = self.files.definition(newest)
        self.deletes = not config.dry_run and config.plan_to is None
        if self.deletes:
            refuse_guarded(self.definition)
        self.engine = engine_for_all(config.engine, newest)
        self.meter = Meter(lake.storage)
        order = self.definition.order
        self.sweep = open_sweep(self.engine, spark, self.files.storage, order, progress)
        self.options = config.plan_options if config.plan_options is not None else dict(self.files.storage.spec()[1])
        self.report = Report(lake.root, newest.version, 0, self.engine, not self.deletes, self.safety_age())
        self.watch = Stopwatch(self.report.seconds)

    def safety_age(self) -> float:
        """Return how old an orphan must be, in seconds.

        An inventory may be older than a saved transaction that is alive; what that one wrote is younger than its ttl.
        """
        if self.config.inventory is None:
            return self.config.older_than_seconds
        ttl = self.definition.txn_ttl_millis
        return max(self.config.older_than_seconds, (ttl + slack(ttl)) / 1000)

    # -- the four steps ------------------------------------------------------------------------------

    def run(self) -> Report:
        self.report.listed = self.sweep.list_files(self.config.inventory, self.options)
        self.watch.lap("list")
        marked, saved = self.mark()
        self.watch.lap("mark")
        cutoff = self.now - millis(self.report.safety_age_seconds)
        totals = self.sweep.subtract(marked.boundary, cutoff)
        self.report.young, self.report.unknown_age = totals.young, totals.unknown_age
        self.count(totals)
        self.watch.lap("minus")
        if self.deletes:
            self.act(marked, saved)
        elif self.config.plan_to is not None:
            self.write_plan(self.config.plan_to, marked, totals)
        return self.done()

    def mark(self) -> tuple[Kept, Saved]:
        """Mark everything that is kept. When something vanished because less is kept by now, mark again."""
        for _ in range(_RESTARTS):
            now_kept, saved = self.roots()
            try:
                self.sweep.mark(now_kept.starts() + saved.starts, saved.paths, afresh=True)
            except Corrupt:
                again, saved_again = self.roots()
                same = (again.boundary, again.snapshots) == (now_kept.boundary, now_kept.snapshots)
                if same and saved_again.starts == saved.starts:
                    raise
                continue
            self.report.version, self.report.boundary = now_kept.newest.version, now_kept.boundary
            self.report.snapshots, self.report.transactions = len(now_kept.snapshots), len(saved.paths)
            self.report.dead_transactions = saved.dead
            return now_kept, saved
        raise Corrupt("what is kept changed again and again while it was marked; nothing was deleted, try again later")

    def roots(self) -> tuple[Kept, Saved]:
        """Return what is kept now. Transactions first: one that was committed meanwhile is a version by then."""
        ttl = self.definition.txn_ttl_millis
        saved = live_transactions(self.files.storage, self.sweep.transactions(), ttl, self.now)
        return kept(self.files), saved

    def act(self, marked: Kept, saved: Saved) -> None:
        """Take off what was committed since the marking, then delete."""
        again, saved_again = self.roots()
        refuse_guarded(again.definition)
        if again.boundary < marked.boundary:
            raise PlanOutdated(f"the boundary fell from {marked.boundary} to {again.boundary}; nothing was deleted")
        known = paths_of(saved.starts)
        starts = again.starts(since=marked) + [each for each in saved_again.starts if each.path not in known]
        if starts:
            self.sweep.mark(starts, saved_again.paths)
            self.count(self.sweep.subtract_again())
        self.watch.lap("mark again")
        self.still_wanted()
        self.record(self.sweep.act())
        self.still_wanted()
        age = max(self.config.older_than_seconds, _TEMPORARY_AGE_SECONDS)
        self.report.temporary_removed = self.files.storage.sweep_temporary(age)
        self.watch.lap("delete")

    # -- plans ---------------------------------------------------------------------------------------

    def write_plan(self, uri: str, marked: Kept, totals: Totals) -> None:
        reason = (
            f"not reached from versions {marked.boundary} to {marked.newest.version}, {self.report.snapshots} "
            f"snapshots and {self.report.transactions} saved transactions; older than "
            f"{shown(self.report.safety_age_seconds)}"
        )
        total = (totals.files, totals.bytes)
        head = plans.header("clean", self.files, marked, total, age=self.report.safety_age_seconds)
        rows = (plans.PlanRow(file, reason) for file in self.sweep.orphans())
        plans.write(uri, self.options, head, rows)
        self.report.plan = uri
        self.watch.lap("plan")

    def carry_out(self) -> Report:
        """Act on a plan: prove that what is kept by now reaches none of its files, then delete them.

        Saved transactions are found by a listing; of the versions only those since the plan are walked.
        """
        uri = str(self.config.plan)
        plan = plans.Plan(uri, self.options)
        self.report.plan, self.report.safety_age_seconds = uri, plan.header.safety_age_seconds
        plans.refuse_other(plan.header, "clean", self.files, kept(self.files))
        self.report.listed = self.sweep.list_files(None, {})
        self.watch.lap("list")
        marked, saved = self.mark_since(plan.header)
        self.watch.lap("mark")
        self.sweep.load(_checked(plan.files(), marked.boundary))
        reached = self.sweep.reached()
        if reached:
            raise PlanOutdated(
                f"{len(reached)} or more files of the plan are in use by now, {reached[0]} for one; nothing was "
                "deleted, make a new plan"
            )
        self.count(self.sweep.subtract_again())
        self.watch.lap("minus")
        self.act(marked, saved)
        return self.done()

    def mark_since(self, head: plans.Header) -> tuple[Kept, Saved]:
        now_kept, saved = self.roots()
        plans.refuse_other(head, "clean", self.files, now_kept)
        starts = [each for each in now_kept.starts() if each.last > head.version]
        self.sweep.mark(starts + saved.starts, saved.paths)
        self.report.version, self.report.boundary = now_kept.newest.version, now_kept.boundary
        self.report.snapshots, self.report.transactions = len(now_kept.snapshots), len(saved.paths)
        self.report.dead_transactions = saved.dead
        return now_kept, saved

    # -- the report ----------------------------------------------------------------------------------

    def count(self, totals: Totals) -> None:
        self.report.orphans = totals.kinds
        self.report.orphan_files, self.report.orphan_bytes = totals.files, totals.bytes

    def record(self, done: Deleted) -> None:
        report = self.report
        report.attempted, report.deleted, report.already_gone = done.attempted, done.deleted, done.already_gone
        report.failed, report.bytes, report.failures = done.failed, done.bytes, done.failures
        if self.engine == "spark":
            report.requests["delete in tasks"] = done.requests

    def done(self) -> Report:
        self.report.requests |= self.meter.by_kind()
        self.report.nodes_read = self.sweep.nodes_read
        self.report.foreign = self.sweep.foreign
        return self.report


def _checked(files: Iterator[Listed], boundary: int) -> Iterator[Listed]:
    for file in files:
        if not file.may_go(boundary):
            raise InvalidInput(f"the plan names {file.path!r}, which `clean` never deletes; nothing was deleted")
        yield file

"""Orphan removal (``clean``): list, mark, minus, act (format, section 6).

1. **list** everything below the root, before anything is marked;
2. **mark** what the kept versions, snapshots and live saved transactions reach, each shared node read once;
3. **minus**: what was listed, is old enough, has a name of the format, and is not marked, is an orphan;
4. **act**: commit a fence, a root that makes files of that age void for whoever commits later; mark what came
   in between, saved transactions listed anew, and take that off too; then delete, each failure counted.

So a commit after the fence knows of it, one before it is marked, and there is nothing in between: safety does not
rest on ages, which only spare jobs under way from starting over. Without orphans nothing is committed.

Doubt aborts: a root or node that cannot be read stops everything before anything is deleted.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, Final, cast

from pipelines.durations import DAY, millis, shown
from pipelines.files import plans
from pipelines.files.deletion import Deleted
from pipelines.files.listing import Listed, inventory_millis
from pipelines.files.retained import (
    Retained,
    SavedTransactions,
    live_transactions,
    paths_of,
    refuse_guarded,
    retained,
    retained_at,
    slack,
)
from pipelines.job import Meter, Progress, Session, Stopwatch, engine_for_all, proceed, refuse_unknown, silent
from pipelines.sweep import Sweep, open_sweep
from pipelines.sweep.model import Report, Totals
from pipelines.trees.walk import Start
from trinitylake_core import Lakehouse
from trinitylake_core.commits.changes import Fence, facts
from trinitylake_core.commits.commit import commit, now_millis, require_writable
from trinitylake_core.commits.fences import storage_time
from trinitylake_core.errors import Corrupt, InvalidInput, PlanOutdated
from trinitylake_core.versions import Root, raise_boundary

_LOG: Final = logging.getLogger(__name__)
_LEDGER: Final = logging.getLogger("pipelines.ledger")
SAFETY_AGE_SECONDS: Final = 3 * DAY
SAFE_FROM_SECONDS: Final = DAY
_RESTARTS: Final = 5
"""How often what is kept may change under the marking before a cleaning gives up."""
_TRIES: Final = 20
"""How often saved transactions may come and go while they are marked."""
_TEMPORARY_AGE_SECONDS: Final = 3600.0

__all__ = ["SAFETY_AGE_SECONDS", "Config", "Report", "plan", "run"]


@dataclass(frozen=True, slots=True)
class Config:
    """How to clean.

    Attributes:
        engine: ``spark``, ``local`` (this process, never starts Spark), or ``auto``: Spark for large lakehouses.
        older_than_seconds: the safety age; only files older than that, strictly, are removed.
        allow_recent: allow a safety age below 24 hours. That is safe, but jobs under way may have to start over.
        dry_run: plan, print, delete nothing.
        inventory: URI of a listing (Parquet or CSV) to use instead of listing. Nothing is removed then that was not
            ``txn_ttl_millis`` old when the inventory was made: it may belong to a saved transaction that is not listed.
        plan_to: URI to write the plan to; deletes nothing.
        plan: URI of a plan to carry out, if it still holds.
        plan_options: storage options for these three; by default those of the lakehouse that apply to them.
        now_millis: the time instead of the storage's, for tests.
        before_commit: called right before the fence is committed and before anything is deleted; raising there deletes
            nothing.
    """

    engine: str = "spark"
    older_than_seconds: float = SAFETY_AGE_SECONDS
    allow_recent: bool = False
    dry_run: bool = False
    inventory: str | None = None
    plan_to: str | None = None
    plan: str | None = None
    plan_options: Mapping[str, Any] | None = field(default=None, repr=False)
    now_millis: int | None = None
    before_commit: Callable[[], None] | None = None

    def __post_init__(self) -> None:
        refuse_unknown(self.engine)
        if self.older_than_seconds < 0:
            raise InvalidInput("the safety age must not be negative")
        if self.older_than_seconds < SAFE_FROM_SECONDS and not self.allow_recent:
            raise InvalidInput(
                f"with a safety age of {shown(self.older_than_seconds)} jobs under way may have to start over; "
                "24h or more, or --allow-recent if that does not matter"
            )
        if self.plan is not None and (self.plan_to is not None or self.inventory is not None or self.dry_run):
            raise InvalidInput("a plan is carried out as it is: no --dry-run, --plan-to or --inventory with --plan")


def run(spark: Session, lake: Lakehouse, config: Config | None = None, progress: Progress | None = None) -> Report:
    """Remove what nothing reaches, or say what that would be.

    Costs a listing, one ``get`` per node of all kept versions together, and one ``put`` and ``head`` for the storage's
    time. With orphans another listing, a commit, and one ``delete`` for a thousand of them.

    Raises:
        Refused: the lakehouse forbids deleting (``maintenance.delete.enabled``).
        PlanOutdated: the plan no longer holds.
        Corrupt: something that must be marked cannot be read; nothing was deleted.
        ReadOnly, InvalidInput, StorageError.
    """
    config = config or Config()
    work = _Clean(spark, lake, config, progress or silent)
    try:
        report = work.run()
    finally:
        work.sweep.release()
    if report.attempted:
        _LEDGER.info("clean %s: %s", report.root, json.dumps(asdict(report), sort_keys=True))
    return report


def plan(spark: Session, lake: Lakehouse, config: Config | None = None, progress: Progress | None = None) -> Report:
    """Return what :func:`run` would do, as a report of a dry run. Changes nothing."""
    return run(spark, lake, replace(config or Config(), dry_run=True), progress)


class _Vanished(Exception):
    """Something that was kept when the fence was committed is kept no longer."""


class _Clean:
    """One cleaning."""

    saved: SavedTransactions
    marked: Retained | None = None

    def __init__(self, spark: Session, lake: Lakehouse, config: Config, progress: Progress) -> None:
        self.files = lake.files
        self.config = config
        self.still_wanted = config.before_commit or proceed
        newest = self.files.newest()
        self.files.saw(newest)
        require_writable(self.files, newest)
        self.definition = self.files.definition(newest)
        self.deletes = not config.dry_run and config.plan_to is None
        if self.deletes:
            refuse_guarded(self.definition)
        self.engine = engine_for_all(config.engine, newest)
        self.meter = Meter(lake.storage)
        order = self.definition.order
        self.new_sweep = partial(open_sweep, self.engine, spark, self.files.storage, order, progress)
        self.sweep: Sweep = self.new_sweep()
        self.options = plans.options_of(config.plan or config.plan_to, config.plan_options, self.files.storage)
        self.inventory_options = plans.options_of(config.inventory, config.plan_options, self.files.storage)
        self.report = Report(lake.root, newest.version, 0, self.engine, not self.deletes, self.safety_age())
        self.plan = self.read_plan(config.plan) if config.plan is not None else None
        self.watch = Stopwatch(self.report.seconds)

    # -- ages ----------------------------------------------------------------------------------------

    def safety_age(self) -> float:
        """Return how old an orphan must be, in seconds.

        An inventory may be older than a saved transaction that is alive; what that one wrote is younger than its ttl.
        """
        if self.config.inventory is None:
            return self.config.older_than_seconds
        return max(self.config.older_than_seconds, self.lifetime_millis() / 1000)

    def lifetime_millis(self) -> int:
        """Return how long a saved transaction can be alive."""
        ttl = self.definition.txn_ttl_millis
        return ttl + slack(ttl)

    def time(self) -> int:
        """Return the time that ages count from: that of the storage, for it is what stamped the files.

        A dry run writes nothing, and is content with this machine's.
        """
        now = storage_time(self.files) if self.deletes else now_millis()
        return now if self.config.now_millis is None else self.config.now_millis

    def cutoff(self, now: int) -> int:
        """Return the time before which a file must have been written, by the storage's clock."""
        cutoff = now - millis(self.report.safety_age_seconds)
        if self.config.inventory is None:
            return cutoff
        return min(cutoff, inventory_millis(self.config.inventory, self.inventory_options) - self.lifetime_millis())

    # -- the steps -----------------------------------------------------------------------------------

    def run(self) -> Report:
        """Clean, from the start again whenever what is kept changed under the marking."""
        for _ in range(_RESTARTS):
            try:
                return self.attempt()
            except _Vanished as vanished:
                _LOG.info("starting over: %s", vanished)
            except Corrupt as error:
                if not self.moved_on():
                    raise
                _LOG.info("starting over: %s", error)
            self.sweep.release()
            self.sweep = self.new_sweep()
        raise Corrupt("what is kept changed again and again while it was marked; nothing was deleted, try again later")

    def attempt(self) -> Report:
        """Look, and if there is anything to delete, fence it off, look at what came in between, and delete."""
        self.marked = None
        now = self.time()
        cutoff = self.cutoff(now)
        self.report.listed = self.sweep.list_files(self.config.inventory, self.inventory_options)
        self.watch.lap("list")
        marked = self.mark(now)
        self.watch.lap("mark")
        totals = self.sweep.subtract(marked.boundary, cutoff)
        self.report.young, self.report.unknown_age = totals.young, totals.unknown_age
        gone = 0
        if self.plan is not None:
            totals, gone = self.agreed(self.plan, marked, cutoff)
        self.count(totals)
        self.watch.lap("minus")
        if self.deletes:
            self.act(marked, cutoff, now, gone)
        elif self.config.plan_to is not None:
            self.write_plan(self.config.plan_to, marked, totals)
        return self.done()

    def mark(self, now: int) -> Retained:
        """Mark everything that is kept. Transactions first: one that was committed meanwhile is a version by then."""

        def starts(saved: SavedTransactions) -> list[Start]:
            self.marked = marked = retained(self.files)
            if self.plan is not None:
                plans.refuse_other(self.plan.header, "clean", self.files, marked)
            return saved.starts + marked.starts()

        self.saved = self.mark_saved(now, starts, afresh=True)
        marked = cast("Retained", self.marked)
        self.report.version, self.report.boundary = marked.newest.version, marked.boundary
        self.report.snapshots, self.report.transactions = len(marked.snapshots), len(self.saved.paths)
        self.report.dead_transactions = self.saved.dead
        return marked

    def mark_saved(
        self, now: int, starts: Callable[[SavedTransactions], list[Start]], *, afresh: bool = False
    ) -> SavedTransactions:
        """Mark saved transactions that are alive, and what else there is to start from; return the transactions.

        One that is committed, aborted or saved again in between loses its running root: then what is alive is read
        again. That must come before what is kept is, for what was committed is a version by then.

        Raises:
            Corrupt: something else cannot be read.
        """
        for _ in range(_TRIES):
            saved = self.live(now)
            try:
                self.sweep.mark(starts(saved), saved.paths, afresh=afresh)
            except Corrupt:
                if self.live(now).starts == saved.starts:
                    raise
            else:
                return saved
        raise _Vanished("saved transactions changed again and again")

    def live(self, now: int) -> SavedTransactions:
        return live_transactions(self.files.storage, self.sweep.transactions(), self.definition.txn_ttl_millis, now)

    def moved_on(self) -> bool:
        """Whether what could not be read may be something that is no longer kept."""
        if self.marked is None:
            return False
        again = retained(self.files)
        same = (again.boundary, again.snapshots) == (self.marked.boundary, self.marked.snapshots)
        return not same or again.newest.oldest_version != self.marked.newest.oldest_version

    # -- acting --------------------------------------------------------------------------------------

    def act(self, marked: Retained, cutoff: int, now: int, gone: int) -> None:
        """Fence the orphans off, mark what is kept since the first look, and delete what is left of them."""
        if self.report.orphan_files:
            fence = self.fence(marked, cutoff)
            self.heal_boundary(fence)
            self.mark_since(marked, fence, now)
            self.count(self.sweep.subtract_again())
            self.watch.lap("mark again")
            self.still_wanted()
            self.record(self.sweep.act())
        self.report.attempted += gone
        self.report.already_gone += gone
        self.still_wanted()
        age = max(self.config.older_than_seconds, _TEMPORARY_AGE_SECONDS)
        self.report.temporary_removed = self.files.storage.remove_temporary(age)
        self.watch.lap("delete")

    def heal_boundary(self, fence: Root) -> None:
        """Raise the boundary file to what the chain says, before anything is deleted that only expired versions reach.

        It says less where an expiration died after its commit. One ``get``, rarely one more and a ``put`` or two. The
        newest root is read after that, and before anything is deleted: a rollback over a root that cannot be read any
        more relies on the file (see ``Expiration.prove_root``).
        """
        if self.files.versions.boundary() < fence.oldest_version:
            self.files.refuse_no_compare_and_set(fence)
            raise_boundary(self.files.versions, fence.oldest_version)

    def fence(self, marked: Retained, cutoff: int) -> Root:
        """Commit the fence: who commits after it knows that files before ``cutoff`` are void."""
        summary = facts(safety_age_seconds=self.report.safety_age_seconds, orphan_files=self.report.orphan_files)
        root = commit(self.files, marked.newest, Fence(cutoff, summary), before_commit=self.still_wanted)
        self.report.version_after = root.version
        self.watch.lap("fence")
        return root

    def mark_since(self, marked: Retained, fence: Root, now: int) -> None:
        """Mark what is kept as of the fence and was not marked before it, and what was committed since.

        The fence itself reaches what the version below it does. What was committed since cannot reach an orphan, unless
        a program made it that knows no fences. Saved transactions are listed anew: one that was saved since the first
        listing may have looked for fences before this one was there. (With an inventory no orphan is that old.)

        Raises:
            _Vanished: what is kept as of the fence began to expire, so it need not be what was marked under its name.
                What a job took over from it before would be lost.
        """
        if self.config.inventory is None:
            self.sweep.list_transactions()
        known = paths_of(self.saved.starts) | {fence.path}

        def starts(saved: SavedTransactions) -> list[Start]:
            again = retained(self.files)
            refuse_guarded(again.definition)
            if again.boundary < marked.boundary:
                raise PlanOutdated(f"the boundary fell from {marked.boundary} to {again.boundary}; nothing was deleted")
            since = again.starts(since=marked) + retained_at(self.files, fence.version, fence).starts(since=marked)
            return [each for each in dict.fromkeys(saved.starts + since) if each.path not in known]

        self.mark_saved(now, starts)
        if self.files.newest().oldest_version > fence.oldest_version:
            raise _Vanished(f"versions below {self.files.tip.version} expired meanwhile")

    def agreed(self, plan: plans.Plan, marked: Retained, cutoff: int) -> tuple[Totals, int]:
        """Take the files of a plan that are orphans still; return them, and how many are gone already.

        Raises:
            PlanOutdated: something that is kept by now reaches one of them.
        """
        self.sweep.load(_checked(plan.files(), marked.boundary))
        reached = self.sweep.reached()
        if reached:
            raise PlanOutdated(
                f"at least {len(reached)} files of the plan are in use, such as {reached[0]}; nothing was "
                "deleted, make a new plan"
            )
        return self.sweep.agree(cutoff)

    # -- plans ---------------------------------------------------------------------------------------

    def read_plan(self, uri: str) -> plans.Plan:
        plan = plans.Plan(uri, self.options)
        self.report.plan, self.report.safety_age_seconds = uri, plan.header.safety_age_seconds
        return plan

    def write_plan(self, uri: str, marked: Retained, totals: Totals) -> None:
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
        self.report.foreign = self.sweep.unknown
        return self.report


def _checked(files: Iterator[Listed], boundary: int) -> Iterator[Listed]:
    for file in files:
        if not file.may_go(boundary):
            raise InvalidInput(f"the plan names {file.path!r}, which `clean` never deletes; nothing was deleted")
        yield file

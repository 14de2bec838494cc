"""Orphan removal (``clean``): list, mark, minus, act (format, section 6).

1. **list** everything below the root, before anything is marked;
2. **mark** all files that the kept versions, snapshots and live saved transactions reach; read each shared node once;
3. **minus**: a listed file that is old enough, has a name of the format, and is not marked, is an orphan;
4. **act**: commit a fence, a root that makes files of that age void for all later commits. List saved transactions
   again, mark all that came in between, and subtract that, too. Then delete, and count each failure.

A commit after the fence has read it, and a commit before the fence is marked. There is no third case: safety does not
rest on ages, which only spare running jobs from starting over. Without orphans nothing is committed.

If any root or node is unreadable, nothing is deleted.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from typing import ClassVar, Final

from pipelines.engine.choice import choose_engine_for_all
from pipelines.job import (
    NEVER_CANCELLED,
    Cancel,
    JobRun,
    Meter,
    Progress,
    Review,
    Session,
    dry_run,
    refuse_unknown,
    silent,
)
from pipelines.reach import plans
from pipelines.reach.kept_roots import GcRoots, SavedTransactions, refuse_guarded, slack
from pipelines.reach.listing import Listed, inventory_millis
from pipelines.reach.sweep import Deleted, Marking, RootsExpired, Size, Sweep, Totals, UnknownFiles
from pipelines.reports.summary import (
    Table,
    count,
    describe_deletion,
    describe_no_change,
    failures_table,
    files_of,
    human_bytes,
)
from trinitylake_core import Lakehouse, clock
from trinitylake_core.commits.changes import Fence, commit_summary
from trinitylake_core.commits.commit import commit, require_writable
from trinitylake_core.commits.fences import storage_time
from trinitylake_core.durations import DAY, describe_duration, millis
from trinitylake_core.errors import CommitConflict, Corrupt, InvalidInput, PlanOutdated
from trinitylake_core.storage import remove_scratch
from trinitylake_core.tables import DIRECTORY
from trinitylake_core.versions import Root, objects_of, raise_boundary

_LOG: Final = logging.getLogger(__name__)
_LEDGER: Final = logging.getLogger("pipelines.ledger")
SAFETY_AGE_SECONDS: Final = 3 * DAY
SAFE_FROM_SECONDS: Final = DAY
_RESTARTS: Final = 5
"""How often what is kept may change under the marking before a cleaning gives up."""
_NAMES: Final = 5
"""How many foreign files and directories are named."""
_TEMPORARY_AGE_SECONDS: Final = 3600.0

__all__ = ["SAFETY_AGE_SECONDS", "Config", "Report", "run"]


@dataclass(frozen=True, slots=True)
class Config(plans.PlannedConfig):
    """How to clean.

    Attributes:
        engine: ``spark``, ``local`` (this process, never starts Spark), or ``auto``: Spark on
            other machines for large lakehouses.
        older_than_seconds: the safety age; only files older than that, strictly, are removed.
        allow_recent: allow a safety age below 24 hours. That is safe, but jobs under way may have to start over.
        inventory: URI of a listing (Parquet or CSV) to use instead of listing. Nothing is removed then that was not
            ``txn_ttl_millis`` old when the inventory was made: it may belong to a saved transaction that is not listed.
            Where something is to be removed, the storage is listed once, for such transactions.
        plan_to: URI to write the plan to, before it is reviewed; without a review nothing is deleted.
        plan: URI of a plan to carry out, if it still holds.
        plan_options: storage options for these three; by default those of the lakehouse that apply to them.
        now_millis: the time instead of the storage's, for tests.
        reason: why, for the history.
    """

    as_it_is: ClassVar[str] = "--plan cannot be combined with --dry-run, --plan-to or --inventory"
    engine: str = "auto"
    older_than_seconds: float = SAFETY_AGE_SECONDS
    allow_recent: bool = False
    inventory: str | None = None

    def __post_init__(self) -> None:
        refuse_unknown(self.engine)
        if self.older_than_seconds < 0:
            raise InvalidInput("the safety age must not be negative")
        if self.older_than_seconds < SAFE_FROM_SECONDS and not self.allow_recent:
            age = describe_duration(self.older_than_seconds)
            raise InvalidInput(
                f"with a safety age of {age} jobs under way may have to start over; "
                "24h or more, or --allow-recent if that does not matter"
            )
        plans.refuse_beside_plan(self, self.inventory)


@dataclass(frozen=True, slots=True)
class Report:
    """What a cleaning did, or on a dry run would do.

    Attributes:
        boundary: the oldest version that was marked; ``version`` the newest.
        version_after: the version that fences the orphans off; ``None`` without orphans, and on a dry run.
        snapshots: snapshots whose trees were marked.
        transactions: saved transactions that are alive, and whose trees were marked.
        dead_transactions: those that are not; their files are orphans.
        listed: everything below the root.
        nodes_read: nodes read to mark, each once.
        orphans: what nothing reaches, by kind; ``orphan_files`` and ``orphan_bytes`` sum it up.
        young: what nothing reaches either, but is younger than the safety age; it stays.
        unknown_age: the same, where the inventory contains no age.
        foreign: unknown files, which belong to other programs, and stay.
        attempted: files that were to be deleted; each is ``deleted``, ``already_gone`` or ``failed``.
        versions_kept: the deleted ones whose content the bucket keeps as an older version.
        bytes: size of the deleted files.
        failures: some that could not be deleted, with the reason.
        temporary_removed: files that killed processes left and that were removed: temporary ones of a local disk, and
            those of proofs of a store.
        replaced_in_buffers: at most how many definitions are in use only because the messages that replaced them, or
            dropped their objects, still wait in write buffers.
        requests: storage requests of this process; those of Spark tasks are ``nodes_read`` and the deletions.
    """

    root: str
    version: int
    boundary: int
    engine: str
    dry_run: bool
    safety_age_seconds: float
    version_after: int | None = None
    snapshots: int = 0
    transactions: int = 0
    dead_transactions: int = 0
    listed: Size = field(default_factory=Size)
    nodes_read: int = 0
    orphans: dict[str, Size] = field(default_factory=dict)
    orphan_files: int = 0
    orphan_bytes: int = 0
    young: Size = field(default_factory=Size)
    unknown_age: Size = field(default_factory=Size)
    foreign: UnknownFiles = field(default_factory=UnknownFiles)
    plan: str | None = None
    attempted: int = 0
    deleted: int = 0
    versions_kept: int = 0
    already_gone: int = 0
    failed: int = 0
    bytes: int = 0
    failures: dict[str, str] = field(default_factory=dict)
    temporary_removed: int = 0
    replaced_in_buffers: int = 0
    requests: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def summary(self) -> Iterator[str]:
        """Yield what the cleaning deleted, or would delete, and what it left alone."""
        kinds = ", ".join(f"{each.files:,} {kind}" for kind, each in self.orphans.items())
        orphans = f"{count(self.orphan_files, 'orphan')} ({human_bytes(self.orphan_bytes)})"
        found = f"{orphans} among {count(self.listed.files, 'file')}{f': {kinds}' if kinds else ''}"
        if not self.orphan_files and not self.attempted:
            yield f"nothing to do: {found}"
            if self.replaced_in_buffers:
                yield (
                    f"what {count(self.replaced_in_buffers, 'message')} in write buffers replaced still counts as "
                    f"used: `compact --full`, and `clean` once the versions before it have expired, would free up to "
                    f"{count(self.replaced_in_buffers, 'file')}"
                )
        else:
            yield f"{describe_no_change(self.plan)}: {found}" if self.dry_run else found
        yield from describe_deletion(self, "file", "")
        if self.young.files:
            age = describe_duration(self.safety_age_seconds)
            yield f"kept, because they are younger than {age}: {files_of(self.young)}"
        if self.unknown_age.files:
            yield f"kept, because their age is unknown: {files_of(self.unknown_age)}"
        directories = [each for each in self.foreign.directories if each != DIRECTORY]
        if DIRECTORY in self.foreign.directories:
            yield f"left alone: {DIRECTORY}, the files of this lakehouse's Iceberg tables; `tables clean` cleans them"
        if self.foreign.files or directories:
            names = ", ".join((*self.foreign.some, *directories)[:_NAMES])
            yield f"not of this lakehouse, left alone: {files_of(self.foreign)}: {names}"

    def summary_tables(self) -> Iterator[Table]:
        """Yield the orphans by kind, and what could not be deleted."""
        rows = [[kind, each.files, each.bytes] for kind, each in self.orphans.items()]
        yield Table("orphans", ("kind", "files", "bytes"), rows, detail=True)
        yield failures_table(self.failures)


def run(
    lake: Lakehouse,
    config: Config | None = None,
    spark: Session = None,
    *,
    review: Review[Report] | None = None,
    cancel: Cancel | None = None,
    progress: Progress | None = None,
) -> Report:
    """Remove what nothing reaches.

    Costs a listing, one ``get`` per node of all kept versions together, and one ``put`` and ``head`` for the storage's
    time. With orphans another listing, a commit, and one ``delete`` for a thousand of them.

    The arguments are those of every job (:mod:`pipelines.job`), and:
        review: called with what would be removed, after the first listing and marking; ``False`` removes nothing.
        cancel: checked before the fence is committed, and before anything is deleted.

    Raises:
        Refused: the lakehouse forbids deleting (``maintenance.delete.enabled``).
        PlanOutdated: the plan no longer holds.
        CommitConflict: what is kept changed each time it was marked; nothing was deleted.
        Corrupt: something that must be marked cannot be read; nothing was deleted.
        ReadOnly, InvalidInput, StorageError.
    """
    config = config or Config()
    return Cleaning(lake, config, spark, review, cancel or NEVER_CANCELLED, progress or silent).run()


class Cleaning(JobRun[Config, Report]):
    """One cleaning.

    Attributes:
        job: what plans of it are called.
        of_tables: whether it cleans the files of tables, and not those of the lakehouse itself.
    """

    job = "clean"
    of_tables = False

    def __post_init__(self) -> None:
        config = self.config
        self.review = plans.review_of(config, self.review)
        newest = self.backend.newest()
        self.backend.note_newest(newest)
        require_writable(self.backend, newest)
        self.definition = self.backend.definition(newest)
        if self.review is not dry_run:
            refuse_guarded(self.definition)
        self.engine = choose_engine_for_all(config.engine, self.spark, newest)
        self.meter = Meter(self.backend.storage)
        self.sweep = self.new_sweep()
        self.options = plans.options_of(config.plan or config.plan_to, config.plan_options, self.backend.storage)
        self.inventory_options = plans.options_of(config.inventory, config.plan_options, self.backend.storage)
        self.plan = None if config.plan is None else plans.StoredPlan(config.plan, self.options)
        self.safety_age_seconds = self.safety_age() if self.plan is None else self.plan.header.safety_age_seconds
        self.marking: Marking | None = None
        self.version_after: int | None = None

    def new_sweep(self) -> Sweep:
        """Return an empty sweep."""
        return Sweep(self.engine, self.backend.storage, self.definition.order, self.progress)

    # -- ages ----------------------------------------------------------------------------------------

    def safety_age(self) -> float:
        """Return the safety age of orphans, in seconds.

        An inventory may be older than a saved transaction that is alive; what that one wrote is younger than its ttl.
        """
        if self.config.inventory is None:
            return self.config.older_than_seconds
        return max(self.config.older_than_seconds, self.lifetime_millis() / 1000)

    def lifetime_millis(self) -> int:
        """Return the time for which a saved transaction can be alive."""
        ttl = self.definition.txn_ttl_millis
        return ttl + slack(ttl)

    def ages_count_from(self) -> tuple[int, int]:
        """Return the time now, and that before which a file must have been written: by the clock that stamped it.

        That is the storage's. A dry run writes nothing, and is content with this machine's.
        """
        if self.review is dry_run:
            now = clock.now_millis()
        else:
            now = storage_time(self.backend)
        if self.config.now_millis is not None:
            now = self.config.now_millis
        cutoff, inventory = now - millis(self.safety_age_seconds), self.config.inventory
        if inventory is None:
            return now, cutoff
        return now, min(cutoff, inventory_millis(inventory, self.inventory_options) - self.lifetime_millis())

    def hold_back(self, cutoff: int, saved: SavedTransactions) -> int:
        """Return the time before which files may go, in view of the saved transactions that are alive."""
        del saved  # what they have written is marked
        return cutoff

    # -- the steps -----------------------------------------------------------------------------------

    def run(self) -> Report:
        """Clean, from the start again whenever what is kept changed under the marking; note what was deleted."""
        for _ in range(_RESTARTS):
            try:
                report = self.attempt()
            except (RootsExpired, Corrupt) as error:
                changed = isinstance(error, RootsExpired) or (self.marking is not None and self.marking.roots_changed())
                if not changed:
                    raise
                _LOG.info("starting over: %s", error)
            else:
                if report.attempted:
                    _LEDGER.info("%s %s: %s", self.job, report.root, json.dumps(asdict(report), sort_keys=True))
                return report
            finally:
                self.sweep.release()
            self.sweep = self.new_sweep()
        raise CommitConflict("what is kept changed again and again while it was marked; nothing was deleted, try again")

    def attempt(self) -> Report:
        """List, mark and subtract, have that reviewed, and act."""
        self.marking = None
        now, cutoff = self.ages_count_from()
        listed = self.sweep.list_files(self.config.inventory, self.inventory_options)
        self.watch.lap("list")
        self.marking = marking = Marking(self.backend, self.sweep, self.definition.txn_ttl_millis, now)
        marked = marking.mark(self.refuse_outdated)
        cutoff = self.hold_back(cutoff, marking.saved)
        self.watch.lap("mark")
        totals, gone = self.sweep.subtract(marked.boundary, cutoff), 0
        found = self.report_listed(listed, marked, marking.saved, totals)
        if self.plan is not None:
            totals, gone = self.take_from_plan(self.plan, marked, cutoff)
        found = _with_totals(found, totals)
        self.watch.lap("minus")
        if self.config.plan_to is not None:
            found = self.write_plan(self.config.plan_to, marked, found)
        if self.review is not None:
            planned = self.with_costs(replace(found, dry_run=True))
            if not self.review(planned):
                return planned
        return self.with_costs(self.act(found, marking, marked, cutoff, gone))

    def with_costs(self, found: Report) -> Report:
        """Return a report with what it has cost so far."""
        return replace(
            found,
            version_after=self.version_after,
            nodes_read=self.sweep.nodes_read,
            requests=found.requests | self.meter.by_kind(),
            seconds=dict(self.watch.seconds),
        )

    def report_listed(self, listed: Size, marked: GcRoots, saved: SavedTransactions, totals: Totals) -> Report:
        """Return a report of the files that were listed."""
        return Report(
            root=self.backend.storage.root,
            version=marked.newest.version,
            replaced_in_buffers=0 if self.of_tables else count_replaced(marked.newest),
            boundary=marked.boundary,
            engine=self.engine.name,
            dry_run=False,
            safety_age_seconds=self.safety_age_seconds,
            snapshots=len(marked.snapshots),
            transactions=len(saved.paths),
            dead_transactions=saved.dead,
            listed=listed,
            young=totals.young,
            unknown_age=totals.unknown_age,
            foreign=self.sweep.unknown,
            plan=self.config.plan,
        )

    def refuse_outdated(self, marked: GcRoots) -> None:
        """Refuse a plan that was made for another history."""
        if self.plan is not None:
            plans.refuse_other(self.plan.header, self.job, self.backend, marked)

    def take_from_plan(self, plan: plans.StoredPlan, marked: GcRoots, cutoff: int) -> tuple[Totals, int]:
        """Take the files of a plan that are orphans still; return them, and how many are gone already.

        Raises:
            InvalidInput: no cleaning deletes one of them.
            PlanOutdated: something that is kept by now reaches one of them.
        """

        def check_files() -> Iterator[Listed]:
            for file in plan.files():
                if not self.sweep.may_go(file, marked.boundary):
                    raise InvalidInput(
                        f"the plan names {file.path!r}, which `{self.job}` never deletes; nothing was deleted"
                    )
                yield file

        self.sweep.load(check_files())
        reached = self.sweep.live_orphans()
        if reached:
            raise PlanOutdated(
                f"at least {len(reached)} files of the plan are in use, such as {reached[0]}; nothing was "
                "deleted, make a new plan"
            )
        return self.sweep.confirm_plan(cutoff)

    def planned_tables(self) -> list[plans.PlanRow]:
        """Return the rows of the tables that a plan is for."""
        return []

    def write_plan(self, uri: str, marked: GcRoots, found: Report) -> Report:
        age = describe_duration(self.safety_age_seconds)
        reason = (
            f"not reached from versions {marked.boundary} to {marked.newest.version}, {found.snapshots} "
            f"snapshots and {found.transactions} saved transactions; older than {age}"
        )
        tables = self.planned_tables()
        total = (found.orphan_files + len(tables), found.orphan_bytes)
        head = plans.header(self.job, self.backend, marked, total, age=self.safety_age_seconds)
        files = (plans.PlanRow(file, reason) for file in self.sweep.orphans())
        plans.write(uri, self.options, head, chain(files, tables))
        self.watch.lap("plan")
        return replace(found, plan=uri)

    # -- acting --------------------------------------------------------------------------------------

    def act(self, found: Report, marking: Marking, marked: GcRoots, cutoff: int, gone: int) -> Report:
        """Commit a fence, mark the files that are kept since the first mark, and delete the remaining orphans."""
        done, in_tasks = Deleted(), dict[str, int]()
        if found.orphan_files:
            fence = self.fence(marked, cutoff, found.orphan_files)
            self.heal_boundary(fence)
            marking.mark_since(fence, lambda again: refuse_guarded(again.definition))
            saved = marking.saved
            found = replace(found, transactions=len(saved.paths), dead_transactions=saved.dead)
            found = _with_totals(found, self.sweep.remove_live())
            self.watch.lap("mark again")
            self.cancel.check()
            done = self.sweep.act()
            if requests := self.engine.not_counted(done.requests):
                in_tasks = {"delete in tasks": requests}
        self.cancel.check()
        age = max(self.config.older_than_seconds, _TEMPORARY_AGE_SECONDS)
        temporary = self.backend.storage.remove_temporary(age)
        temporary += remove_scratch(self.backend.storage, self.sweep.scratch, age)
        self.watch.lap("delete")
        done.attempted += gone
        done.already_gone += gone
        return replace(found, **done.counts(), temporary_removed=temporary, requests=in_tasks)

    def fence(self, marked: GcRoots, cutoff: int, orphan_files: int) -> Root:
        """Commit the fence: who commits after it knows that files before ``cutoff`` are void."""
        counted = {"safety_age_seconds": self.safety_age_seconds, "orphan_files": orphan_files}
        summary = commit_summary(reason=self.config.reason, **counted)
        root = commit(
            self.backend,
            marked.newest,
            Fence(cutoff, summary, of_tables=self.of_tables),
            before_commit=self.cancel.check,
        )
        self.version_after = root.version
        self.watch.lap("fence")
        return root

    def heal_boundary(self, fence: Root) -> None:
        """Raise the boundary file to the boundary in the root, before files of expired versions are deleted.

        The number in the file is smaller where an expiration died after its commit. One ``get``, rarely one more and a
        ``put`` or two. The newest root is read after that, and before anything is deleted: a rollback over a root that
        cannot be read any more relies on the file (see ``advance_boundary`` in ``expire``).
        """
        if self.backend.versions.boundary() < fence.oldest_version:
            self.backend.refuse_no_compare_and_set()
            raise_boundary(self.backend.versions, fence.oldest_version)


def _with_totals(found: Report, totals: Totals) -> Report:
    return replace(found, orphans=totals.kinds, orphan_files=totals.files, orphan_bytes=totals.bytes)


def count_replaced(newest: Root) -> int:
    """Return at most how many definitions a leaf names that waiting messages have replaced or dropped. No request.

    Messages that create objects replace nothing. Where a root counts its objects, their number is known at least.
    """
    node, bounds = newest.node, newest.count_bounds
    if bounds is None:
        objects = objects_of(node)
    else:
        objects = bounds.least.total
    if node.subtree_messages is None or node.subtree_keys is None or objects is None:
        return 0
    created = max(0, objects - node.subtree_keys)
    return max(0, node.subtree_messages - created)

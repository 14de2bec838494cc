"""Expiration (``expire``): remove the oldest versions that no retention rule holds (format, section 6).

One run is one commit, however many versions it removes, and goes on where an earlier one was killed:

1. commit a root with the new ``oldest_version``, and a definition without the snapshots that have expired;
2. advance the boundary file, durably;
3. delete the roots below it, oldest first, those of an interrupted run too.

Files that only these versions reached become orphans, which `clean` removes.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, Final

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
from pipelines.reach.kept_roots import OWN_VERSION, GcRoots, RetentionReason, RetentionRules, gc_roots, refuse_guarded
from pipelines.reach.listing import ROOT, Listed, listed_file
from pipelines.reach.sweep import Deleted, Marking, Sweep, delete
from pipelines.reports.summary import Table, describe_deletion, describe_no_change, failures_table, files_of
from trinitylake_core import Lakehouse, clock, spec
from trinitylake_core.commits.changes import ExpirationChange, commit_summary
from trinitylake_core.commits.commit import commit
from trinitylake_core.commits.confirm import write_hint
from trinitylake_core.commits.fences import refuse_future
from trinitylake_core.definitions import LakehouseDef
from trinitylake_core.durations import DAY, describe_duration
from trinitylake_core.errors import MAYBE_THE_STORE, CorruptNode, InvalidInput, PlanOutdated
from trinitylake_core.short_repr import ShortRepr
from trinitylake_core.versions import Root, raise_boundary

_LEDGER: Final = logging.getLogger("pipelines.ledger")
_FREED_SHOWN: Final = 1000
DEFAULT_KEEP_LAST: Final = 100
DEFAULT_AGE_SECONDS: Final = 7 * DAY


__all__ = ["Config", "Report", "run"]


@dataclass(frozen=True, slots=True)
class Config(plans.PlannedConfig):
    """The retention rules. A version expires only if none of the configured rules keeps it.

    Without a configured rule there are two: keep the newest 100, and keep those of the last 7 days. The newest version
    always stays, and so does every one that is not older than ``txn_ttl_millis`` (the fence of the format).

    Attributes:
        engine: the engine that walks the trees for a review; ``spark``, ``local`` or ``auto``.
        keep_last: keep so many of the newest versions.
        older_than_seconds: keep versions that are not older than that, strictly.
        reason: why, for the history.
        plan_to: URI to write the plan to, before it is reviewed; without a review nothing expires.
        plan: URI of a plan to carry out, if it still holds.
        plan_options: storage options for these two; by default those of the lakehouse that apply to them.
        now_millis: the time, for tests.
    """

    as_it_is: ClassVar[str] = "--plan cannot be combined with rules, --dry-run or --plan-to"
    engine: str = "auto"
    keep_last: int | None = None
    older_than_seconds: float | None = None

    def __post_init__(self) -> None:
        refuse_unknown(self.engine)
        if (self.keep_last or 0) < 0 or (self.older_than_seconds or 0) < 0:
            raise InvalidInput("neither keep_last nor the age may be negative")
        plans.refuse_beside_plan(self, self.keep_last, self.older_than_seconds)

    def rules(self) -> tuple[int | None, float | None]:
        """Return the number of versions to keep, and their age."""
        if self.keep_last is None and self.older_than_seconds is None:
            return DEFAULT_KEEP_LAST, DEFAULT_AGE_SECONDS
        return self.keep_last, self.older_than_seconds


@dataclass(frozen=True, slots=True)
class VersionFreed:
    """What one version holds alone: no other version, snapshot or transaction reaches it."""

    version: int
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Freed:
    """What only expiring versions reach.

    Attributes:
        versions: how many expire.
        files: everything that only they reach, their roots among it; also what several of them share.
        bytes: its size.
        nodes_read: nodes read to find out, each once.
        each: by version what no other one holds, the first thousand.
        snapshots: how many snapshots lie here; what they reach is not freed.
        transactions: how many saved transactions are alive; what they reach is not freed.
    """

    versions: int
    files: int
    bytes: int
    nodes_read: int
    each: tuple[VersionFreed, ...]
    snapshots: int = 0
    transactions: int = 0


@dataclass(frozen=True, slots=True, repr=False)
class Report(ShortRepr):
    """The result of an expiration, or of its dry run.

    Attributes:
        version_before: the newest version then.
        version_after: the version it committed; ``None`` if there was nothing to expire.
        boundary_before: the oldest version then.
        boundary_after: the oldest version now.
        versions_expired: the number of versions between the two.
        snapshots_expired: names of the snapshots dropped because they had expired.
        leftovers: roots that an interrupted run had left, deleted by this one.
        kept: why versions are kept, the rule that keeps most first; on a dry run, and where nothing expires.
        freed: on a dry run, the files that only these versions reach; `clean` removes all of them but the roots.
        attempted: root files that were to be deleted; each is ``deleted``, ``already_gone`` or ``failed``.
        versions_kept: the deleted ones whose content the bucket keeps as an older version.
        bytes: size of the deleted roots.
        failures: some that could not be deleted, with the reason; the next run tries again.
    """

    root: str
    dry_run: bool
    version_before: int
    version_after: int | None
    boundary_before: int
    boundary_after: int
    versions_expired: int = 0
    snapshots_expired: tuple[str, ...] = ()
    leftovers: int = 0
    kept: tuple[RetentionReason, ...] = ()
    freed: Freed | None = None
    plan: str | None = None
    attempted: int = 0
    deleted: int = 0
    versions_kept: int = 0
    already_gone: int = 0
    failed: int = 0
    bytes: int = 0
    failures: dict[str, str] = field(default_factory=dict)
    requests: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def summary(self) -> Iterator[str]:
        """Yield which versions expired, or would expire."""
        last = self.boundary_after - 1
        if self.versions_expired > 1:
            which = f"versions {self.boundary_before} to {last}"
        else:
            which = f"version {last}"
        kept, newest = self.boundary_after, self.version_before
        if kept == newest:
            stay = f"version {newest} stays"
        else:
            stay = f"versions {kept} to {newest} stay"
        if not self.versions_expired:
            yield f"nothing {'would expire' if self.dry_run else 'expires'}: {stay}"
        elif self.dry_run:
            yield f"{describe_no_change(self.plan)}: {which} would expire, {stay}"
        else:
            yield f"version {self.version_after} committed: {which} expired, {stay}"
        if self.freed is not None and self.freed.files:
            if self.dry_run:
                when = "would be deleted now"
            else:
                when = "are deleted now"
            yield f"{files_of(self.freed)} belong only to these versions"
            yield f"their roots {when}, the other files by the next `clean`"
        if self.snapshots_expired:
            yield f"snapshots dropped, for their own time was over: {', '.join(self.snapshots_expired)}"
        yield from describe_deletion(self, "root", "; `clean` removes what else only they held")

    def summary_tables(self) -> Iterator[Table]:
        """Yield why versions are kept, what each expired version alone holds, and what could not be deleted."""
        rows = [[each.rule, each.setting, each.first, each.versions] for each in self.kept]
        yield Table("kept", ("kept by", "set to", "from version", "versions"), rows)
        alone = [[each.version, each.files, each.bytes] for each in ([] if self.freed is None else self.freed.each)]
        yield Table("freed", ("version", "files only it holds", "bytes only it holds"), alone, detail=True)
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
    """Expire versions; the handle moves to the newest one.

    Costs O(log versions) ``get``, one ``create``, two ``put`` (three in the first run of a process on S3), two ``list``
    of the roots, and one ``delete`` for a thousand of them. For a review it also walks the trees of all versions, each
    shared node read once, and lists everything.

    The arguments are those of every job (:mod:`pipelines.job`), and:
        review: called with the plan: the versions that expire and the files that this frees; ``False`` changes nothing.
        cancel: checked before the root is created, before the boundary is raised, and before roots are deleted.

    Raises:
        Refused: the lakehouse forbids deleting (``maintenance.delete.enabled``).
        PlanOutdated: the plan no longer holds.
        UnsafeStorage: the storage cannot compare and set, so that two runs could lower the boundary.
        ReadOnly, InvalidInput, Corrupt, StorageError.
    """
    config = config or Config()
    review = plans.review_of(config, review)
    report = _Expiration(lake, config, spark, review, cancel or NEVER_CANCELLED, progress or silent).run()
    if report.version_after is not None or report.attempted:
        _LEDGER.info("expire %s: %s", report.root, json.dumps(asdict(report), sort_keys=True))
        lake.catch_up()  # no request: an error now would report a job that is done as a failure
    return report


class _Expiration(JobRun[Config, Report]):
    """One run."""

    def __post_init__(self) -> None:
        lake = self.lake
        config = self.config
        self.now = config.now()
        self.meter = Meter(lake.storage)
        acts = self.review is not dry_run
        self.retained: GcRoots = gc_roots(lake.backend, heal=acts)
        newest = self.retained.newest.version
        definition = self.retained.definition
        self.backend.versions.refuse_hole(newest)
        if acts:
            refuse_guarded(definition)
        self.oldest = self.retained.boundary
        plan = config.plan or config.plan_to
        self.options = plans.options_of(plan, config.plan_options, lake.storage)
        self.versions = range(self.oldest, newest + 1)
        self.rules = RetentionRules(*config.rules(), definition.txn_ttl_millis)
        self.report = Report(lake.root, False, newest, None, self.oldest, self.oldest, plan=config.plan)

    def run(self) -> Report:
        if self.config.plan is None:
            boundary = self.wanted_boundary()
        else:
            boundary = self.planned_boundary(self.config.plan)
        expired = tuple(self.expired_snapshots(self.retained.definition))
        self.report = replace(
            self.report, boundary_after=boundary, versions_expired=boundary - self.oldest, snapshots_expired=expired
        )
        shown = self.config.plan is None and (self.review is not None or boundary == self.oldest)
        kept = tuple(self.why(boundary)) if shown else ()
        self.watch.lap("plan")
        if self.review is not None:
            planned = self.report_plan(boundary, kept)
            if not self.review(planned):
                return planned
        self.report = replace(self.report, kept=kept if boundary == self.oldest else ())
        self.backend.refuse_no_compare_and_set()
        self.act(boundary)
        return self.with_costs(self.report)

    def with_costs(self, report: Report) -> Report:
        """Return a report with what it has cost so far."""
        return replace(report, requests=self.meter.by_kind(), seconds=dict(self.watch.seconds))

    def act(self, boundary: int) -> None:
        """Commit a new boundary, write it into its file, and delete what lies below it."""
        if boundary > self.retained.newest.oldest_version or self.report.snapshots_expired:
            if self.config.now_millis is None:
                refuse_future(self.backend, self.now)  # by it every version would be an old one
            boundary = self.commit(boundary)
            self.watch.lap("commit")
        self.cancel.check()
        below = self.advance_boundary(boundary)
        self.watch.lap("boundary")
        self.cancel.check()
        self.delete_roots(below)
        newest = self.backend.newest_seen.version
        if self.report.version_after is None and self.backend.versions.hint() != newest:  # a commit has just written it
            write_hint(self.backend.storage, newest)
        self.watch.lap("delete")

    # -- which versions ------------------------------------------------------------------------------

    def wanted_boundary(self) -> int:
        """Return the first version that a rule holds. O(log versions) ``get``."""
        boundary = self.rules.boundary(self.created_at, self.versions, self.now)
        return self.oldest if self.makes_room_for_itself(boundary) else boundary

    def why(self, boundary: int) -> list[RetentionReason]:
        """Return the rules that keep versions. O(log versions) ``get`` for each of two rules."""
        found = self.rules.reasons(self.created_at, self.versions, self.now)
        if boundary < min(each.first for each in found):
            found.insert(0, RetentionReason(OWN_VERSION, "", boundary, self.versions.stop - boundary))
        return found

    def created_at(self, version: int) -> int:
        return self.root(version).created_at_millis

    def makes_room_for_itself(self, boundary: int) -> bool:
        """Whether a run would only remove one version to make room for the version that it commits itself.

        After an expiration with nothing else committed, that is what the next run finds, and so on for ever.
        """
        own = {spec.OP_EXPIRE: 1, spec.OP_CLEAN: 2}.get(self.retained.newest.operation or "", 0)  # a cleaning follows
        if boundary > self.oldest + own:
            return False
        counted = self.rules.keep_last is not None and boundary == self.rules.first_by_count(self.versions)
        return counted or self.root(self.oldest).operation == spec.OP_EXPIRE

    def root(self, version: int) -> Root:
        """Return the root of a version; of one that cannot be read the next that can, which is younger."""
        root = self.backend.versions.try_readable(version, self.retained.newest)
        if root is None:
            if self.backend.versions.boundary() > version:
                raise PlanOutdated("another expiration is under way; run this one again")
            path = self.backend.versions.path(version)
            raise CorruptNode(
                f"the root {path!r} of version {version} is missing; copy the file from an export of this lakehouse. "
                f"{MAYBE_THE_STORE}",
                path=path,
                invariant="I14",
            )
        return root

    def planned_boundary(self, uri: str) -> int:
        """Return the boundary of a plan that still holds: the same history, from the same version on."""
        plan = plans.StoredPlan(uri, self.options)
        plans.refuse_other(plan.header, "expire", self.backend, self.retained)
        boundary = plan.header.oldest_version
        wanted = {self.backend.versions.path(version) for version in range(self.oldest, boundary)}
        if {file.path for file in plan.files()} != wanted:
            raise PlanOutdated(f"the oldest version is now {self.oldest}, so the plan is outdated; make a new plan")
        limit = self.now - self.rules.ttl_millis
        if boundary > self.oldest and self.created_at(boundary - 1) >= limit:
            raise PlanOutdated("txn_ttl_millis was raised and now protects versions of the plan; make a new plan")
        return boundary

    def expired_snapshots(self, definition: LakehouseDef) -> list[str]:
        times = {name: each.expire_at_millis for name, each in definition.snapshots.items()}
        return sorted(name for name, expires in times.items() if expires and expires <= self.now)

    # -- what it would free --------------------------------------------------------------------------

    def report_plan(self, boundary: int, kept: tuple[RetentionReason, ...]) -> Report:
        """Return the plan of an expiration: versions, reasons to keep the rest, files freed. Write it if configured."""
        freed = self.freed_by(boundary)
        self.watch.lap("walk")
        if self.config.plan_to is not None:
            self.write_plan(self.config.plan_to, boundary)
        return self.with_costs(replace(self.report, dry_run=True, kept=kept, freed=freed))

    def freed_by(self, boundary: int) -> Freed:
        """Return the files that a new boundary frees. A listing, and one ``get`` per node of all versions together."""
        before, ttl = self.retained, self.retained.definition.txn_ttl_millis
        count = boundary - max(before.boundary, before.newest.oldest_version)
        if count == 0:
            return Freed(0, 0, 0, 0, (), len(before.snapshots))

        def refuse_expired(now: GcRoots) -> None:
            if now.boundary != before.boundary:
                raise PlanOutdated("another expiration came in between; plan again")

        engine = choose_engine_for_all(self.config.engine, self.spark, before.newest)
        sweep = Sweep(engine, self.backend.storage, before.definition.order, self.progress)
        try:
            sweep.list_files(None, {})
            marking = Marking(self.backend, sweep, ttl, clock.now_millis())
            marking.mark(refuse_expired)
            total, alone = sweep.exclusive_sizes(boundary)
        finally:
            sweep.release()
        each = [VersionFreed(version, size.files, size.bytes) for version, size in alone.items()]
        marked = len(before.snapshots), len(marking.saved.paths)
        return Freed(count, total.files, total.bytes, sweep.nodes_read, tuple(each[:_FREED_SHOWN]), *marked)

    def describe_rules(self) -> Iterator[str]:
        """Yield why a version goes: what each rule that is given says of it."""
        if self.rules.keep_last is not None:
            yield f"not among the newest {self.rules.keep_last}"
        if self.rules.age_seconds is not None:
            yield f"older than {describe_duration(self.rules.age_seconds)}"

    def write_plan(self, uri: str, boundary: int) -> None:
        rules = ", ".join(self.describe_rules())
        rows: list[plans.PlanRow] = []
        size = 0
        for file in self.roots_below(boundary, self.oldest):
            rows.append(plans.PlanRow(file, f"version {file.version}: {rules}"))
            size += file.bytes
        total = len(rows), size
        header = plans.header("expire", self.backend, self.retained, total, oldest_version=boundary)
        plans.write(uri, self.options, header, rows)
        self.report = replace(self.report, plan=uri)
        self.watch.lap("write")

    # -- what it does --------------------------------------------------------------------------------

    def commit(self, boundary: int) -> int:
        """Commit a root with a new boundary; return the boundary in the root, which is larger if others were faster."""
        self.progress("commit", 0, 1)
        count = boundary - self.oldest
        counted = {"versions_expired": count, "first_expired": self.oldest, "oldest_version": boundary}
        summary = commit_summary(reason=self.config.reason, **counted)
        change = ExpirationChange(self.backend, boundary, summary, self.without_snapshots)
        root = commit(self.backend, self.retained.newest, change, before_commit=self.cancel.check)
        self.report = replace(self.report, version_after=root.version)
        return root.oldest_version

    def without_snapshots(self, definition: LakehouseDef) -> tuple[LakehouseDef, dict[str, Any]]:
        """Return a definition without the expired snapshots; asked again after a lost race."""
        refuse_guarded(definition)
        if definition.txn_ttl_millis > self.rules.ttl_millis:
            raise PlanOutdated("txn_ttl_millis was raised meanwhile; run the expiration again")
        names = self.expired_snapshots(definition)
        self.report = replace(self.report, snapshots_expired=tuple(names))
        edited = LakehouseDef()
        edited.CopyFrom(definition)
        for name in names:
            del edited.snapshots[name]
        return edited, {"snapshots_expired": names} if names else {}

    def advance_boundary(self, boundary: int) -> int:
        """Raise the boundary file to what is committed, and return below which version roots may be deleted.

        That is the number in the file, once it is durable, but never more than that of the newest root: a file can be
        wrong. Two ``get``, and one ``put`` to write it; some ``get`` more if another run was further.

        The root with the boundary is read again after the file has it, too. A rollback over a root that cannot be read
        trusts the file, and keeps what lies above it. If this root became unreadable before the file was raised, that
        rollback may have read the file before, and nothing may be deleted. Raises ``CorruptNode`` then.
        """
        raised = raise_boundary(self.backend.versions, boundary)
        self.report = replace(self.report, boundary_after=raised)
        if self.report.version_after is not None:
            root = self.backend.newest_seen
        else:
            root = self.retained.newest
        self.backend.versions.try_root(root.version)
        if raised == boundary:
            return boundary
        newest = self.backend.newest()
        self.backend.note_newest(newest)
        return min(raised, newest.oldest_version)

    def roots_below(self, boundary: int, first: int = 0) -> list[Listed]:
        """Return root files by version, ascending. One ``list`` a page."""
        files = (listed_file(info.path, info.size, info.modified_millis) for info in self.backend.storage.list("_"))
        found = [each for each in files if each.kind == ROOT and first <= (each.version or 0) < boundary]
        return sorted(found, key=lambda each: each.version or 0)

    def delete_roots(self, below: int) -> None:
        """Delete the roots below a version: expired ones, an interrupted run's leftovers, and those of late writers.

        A writer that created the root of an expired version, and died before it checked, leaves it behind. Counts
        failures.
        """
        found = self.roots_below(below)
        done = Deleted()
        for part in delete(self.backend.storage, ((each.path, each.bytes) for each in found)):
            done.add(part)
            self.progress("delete", done.attempted, len(found))
        self.report = replace(
            self.report, leftovers=sum((each.version or 0) < self.oldest for each in found), **done.counts()
        )

"""Expiring snapshots of Iceberg tables (``tables expire``): many tables are one version, and no file is deleted.

What older versions of the lakehouse name stays readable, and a rollback brings the snapshots back. ``tables clean``
removes their files when those versions have expired. So a table may expire its snapshots as early as it likes.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from pipelines.job import NEVER_CANCELLED, Cancel, Progress, Review, silent
from pipelines.reach import plans
from pipelines.reach.kept_roots import gc_roots
from pipelines.reach.listing import Listed
from pipelines.reach.table_files import refuse_no_iceberg, tables_of
from pipelines.reports.summary import Table, count, describe_no_change, failures_table
from pipelines.tables.changing import NamedTable, TablesRun
from trinitylake_core import Lakehouse
from trinitylake_core.commits.fences import refuse_future
from trinitylake_core.durations import DAY, millis
from trinitylake_core.errors import Corrupt, InvalidInput, LakehouseFrozen, StorageError
from trinitylake_core.tables import former_root, metadata_uri

if TYPE_CHECKING:
    from trinitylake_core.iceberg.commit_rules.snapshot_expiration import Expiring, PlannedSnapshots, SnapshotRules

MAX_AGE_SECONDS: Final = 5 * DAY
"""The default of Iceberg."""
TOGETHER: Final = 100
"""Tables of one version: a conflict over one of them repeats the others, too."""


_JOB: Final = "tables expire"
_ROW: Final = re.compile(r".+/(?P<uuid>[0-9a-f-]{36})/(?:snapshot|ref)/(?P<snapshot>-?\d+)(?:/(?P<ref>.+))?", re.DOTALL)
"""What a row of a plan names: a snapshot of a table, or a branch or tag and the snapshot that it named."""
_SNAPSHOT: Final = "snapshot"
"""The kind of these rows. One of a table has its name, its UUID, and the metadata that the plan was made for."""


@dataclass(frozen=True, slots=True)
class Policy:
    """What expires. The properties of a table decide (``history.expire.*``); this is for tables without them.

    Attributes:
        pattern: only tables of these names: ``sales.*``.
        older_than_seconds: snapshots up to this age stay.
        keep_last: so many snapshots of each branch stay.
        max_ref_age_seconds: tags, and branches but ``main``, up to this age stay; ``None``: all.
    """

    pattern: str | None = None
    older_than_seconds: float = MAX_AGE_SECONDS
    keep_last: int = 1
    max_ref_age_seconds: float | None = None

    def __post_init__(self) -> None:
        if self.older_than_seconds < 0 or (self.max_ref_age_seconds or 0) < 0:
            raise InvalidInput("the age of snapshots must not be negative")
        if self.keep_last < 1:
            raise InvalidInput(
                f"at least one snapshot of each branch stays, so keep_last is at least 1, not {self.keep_last}"
            )

    def rules(self) -> SnapshotRules:
        """Return the rules for tables without properties of their own."""
        from trinitylake_core.iceberg.commit_rules.snapshot_expiration import SnapshotRules

        refs = None if self.max_ref_age_seconds is None else millis(self.max_ref_age_seconds)
        return SnapshotRules(millis(self.older_than_seconds), self.keep_last, refs)


@dataclass(frozen=True, slots=True)
class Config(Policy, plans.PlannedConfig):
    """Which tables to expire, and by which policy.

    Attributes:
        policies: the first whose pattern matches a table counts; those of this object are for tables that none matches.
        plan_to: URI to write the plan to, before it is reviewed; without a review nothing expires.
        plan: URI of a plan to carry out: exactly its snapshots, whatever the rules.
        plan_options: storage options for these two; by default those of the lakehouse that apply to them.
        now_millis: the time, for tests.
        reason: recorded in the history, before what was done.
    """

    policies: tuple[Policy, ...] = ()

    def __post_init__(self) -> None:
        Policy.__post_init__(self)
        plans.refuse_beside_plan(self, self.pattern, *self.policies)


@dataclass(frozen=True, slots=True)
class Expired:
    """What one table lost, or would lose: snapshots, and names of tags and branches."""

    table: str
    snapshots: int
    refs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """What was expired, or on a dry run would be.

    Attributes:
        version: the version that was examined; ``version_after`` the last that was made, ``None`` without one.
        tables: MANAGED Iceberg tables that were examined.
        external: EXTERNAL tables of these names, which are never changed.
        expired: the tables that lose something.
        snapshots: how many they lose together.
        versions: how many versions that made.
        forbidden: tables that were left alone because their owners forbid it (``gc.enabled=false``).
        idle: patterns of policies that count for no MANAGED table.
        failures: tables that were left alone, with the reason.
        plan: URI of the plan that was written, or carried out.
    """

    root: str
    version: int
    dry_run: bool
    version_after: int | None = None
    tables: int = 0
    external: int = 0
    expired: tuple[Expired, ...] = ()
    snapshots: int = 0
    versions: int = 0
    forbidden: tuple[str, ...] = ()
    idle: tuple[str, ...] = ()
    failures: dict[str, str] = field(default_factory=dict)
    requests: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    plan: str | None = None

    def summary(self) -> Iterator[str]:
        """Yield what was expired."""
        what = f"{count(self.snapshots, 'snapshot')} of {count(len(self.expired), 'table')} among {self.tables:,}"
        if not self.expired:
            yield f"nothing to do: no snapshot of {count(self.tables, 'table')} expires"
        else:
            yield f"{describe_no_change(self.plan)}: {what} would expire" if self.dry_run else f"{what} expired"
            yield "no file is deleted: a rollback brings them back; `tables clean` removes what no version needs"
        if self.failures:
            yield f"left alone: {count(len(self.failures), 'table')}"
        if self.forbidden:
            yield f"left alone, because their owners forbid it (gc.enabled=false): {', '.join(self.forbidden)}"
        if self.idle:
            yield f"a policy counts for no table: {', '.join(self.idle)}"

    def summary_tables(self) -> Iterator[Table]:
        """Yield what each table loses, and those that were left alone."""
        rows = [[each.table, each.snapshots, ", ".join(each.refs)] for each in self.expired]
        yield Table("expired", ("table", "snapshots", "tags and branches"), rows, detail=True)
        yield failures_table(self.failures)


def run(
    lake: Lakehouse,
    config: Config | None = None,
    *,
    review: Review[Report] | None = None,
    cancel: Cancel | None = None,
    progress: Progress | None = None,
) -> Report:
    """Remove snapshots of tables from their newest metadata; the handle moves to the newest version.

    Costs the nodes that contain the tables, one ``get`` for each definition and for the metadata of each MANAGED table;
    then for each hundred tables that lose something, a ``get`` and a ``put`` each, and a commit.
    Where something goes, also one ``put`` and one ``head``, for the time of the storage.

    The arguments are those of every job (:mod:`pipelines.job`), and:
        review: called with what would expire; ``False`` changes nothing.
        cancel: checked before each version.

    Raises:
        InvalidInput: PyIceberg is not installed.
        PlanOutdated: the lakehouse has another history than the one that the plan was made for.
        ReadOnly, StorageError.
    """
    refuse_no_iceberg()
    config = config or Config()
    review = plans.review_of(config, review)
    cancel = cancel or NEVER_CANCELLED
    return _SnapshotExpiration(lake.refresh(), config, None, review, cancel, progress or silent).run()


class _SnapshotExpiration(TablesRun[Policy, Report]):
    """One run."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.forbidden: list[str] = []
        self.losers: dict[SnapshotRules | PlannedSnapshots, list[tuple[str, ...]]] = {}
        self.found: list[tuple[str, str, Expiring, Any, str]] = []
        self.by_plan = None if self.config.plan is None else self.read_plan(self.config.plan)

    def run(self) -> Report:
        """Plan, have that reviewed, and expire."""
        managed, external = self.list_managed(tables_of(self.lake, self.config.pattern))
        planned = self.plan_losses(managed)
        self.note_missing(managed)
        self.watch.lap("plan")
        found = self.with_costs(
            Report(
                self.lake.root,
                self.lake.version,
                dry_run=True,
                tables=len(managed),
                external=external,
                forbidden=tuple(self.forbidden),
                idle=self.idle_policies(managed),
                expired=planned,
                snapshots=sum(each.snapshots for each in planned),
                plan=self.plan,
            )
        )
        if self.config.plan_to is not None:
            self.write_plan(self.config.plan_to)
        if self.ends_with(found):
            return found
        return self.act(found) if planned else replace(found, dry_run=False)

    def read_plan(self, uri: str) -> PlannedSnapshots:
        """Return what a plan takes from tables. Raises ``InvalidInput``, ``PlanOutdated``."""
        from trinitylake_core.iceberg.commit_rules.snapshot_expiration import ExpiringTable, PlannedSnapshots

        plan = plans.StoredPlan(uri, self.options)
        plans.refuse_other(plan.header, _JOB, self.lake.backend, gc_roots(self.lake.backend))
        planned = PlannedSnapshots({}, {}, {})
        for text in plan.names_of_kind(plans.TABLE):
            try:
                table = json.loads(text)
                planned.tables[table["uuid"]] = ExpiringTable(table["name"], table["metadata"])
            except (ValueError, KeyError, TypeError):
                raise InvalidInput(
                    f"the plan {uri} names a table in a way that is not known; make a new plan"
                ) from None
        for path in plan.names_of_kind(_SNAPSHOT):
            found = _ROW.fullmatch(path)
            if found is None or found["uuid"] not in planned.tables:
                raise InvalidInput(
                    f"the plan {uri} names {path!r}, which is no snapshot of a table that it was made for"
                )
            if found["ref"] is None:
                planned.snapshots.setdefault(found["uuid"], set()).add(int(found["snapshot"]))
            else:
                planned.refs.setdefault(found["uuid"], {})[found["ref"]] = int(found["snapshot"])
        return planned

    def write_plan(self, uri: str) -> None:
        """Write what each table would lose, a row for it and for each snapshot, branch and tag."""
        rows: list[plans.PlanRow] = []
        for name, uuid, losing, metadata, location in sorted(self.found, key=lambda row: row[:2]):
            if not (losing.snapshots or losing.refs):
                continue
            table = json.dumps({"name": name, "uuid": uuid, "metadata": location})
            rows.append(
                plans.PlanRow(Listed(table, 0, None, plans.TABLE, None), "the plan is for this table as it is here")
            )
            for number in losing.snapshots:
                snapshot = metadata.snapshot_by_id(number)
                when = None if snapshot is None else snapshot.timestamp_ms
                file = Listed(f"{name}/{uuid}/snapshot/{number}", 0, when, _SNAPSHOT, None)
                rows.append(plans.PlanRow(file, "no rule keeps this snapshot"))
            for each in losing.refs:
                path = f"{name}/{uuid}/ref/{metadata.refs[each].snapshot_id}/{each}"
                rows.append(plans.PlanRow(Listed(path, 0, None, _SNAPSHOT, None), "this branch or tag is old"))
        head = plans.header(_JOB, self.lake.backend, gc_roots(self.lake.backend), (len(rows), 0))
        plans.write(uri, self.options, head, rows)
        self.watch.lap("write")

    def plan_losses(self, tables: list[NamedTable]) -> tuple[Expired, ...]:
        """Return the losses of each table."""
        planned = []
        losses = self.lake.storage.map(tables, self.losing)
        for done, (table, (name, found)) in enumerate(zip(tables, losses, strict=True), 1):
            self.progress("metadata", done, len(tables))
            if found is None:
                self.forbidden.append(name)
            elif isinstance(found, str):
                self.failures[name] = found
            elif found.snapshots or found.refs:
                planned.append(found)
                identifier = (*table.namespace.split("."), table.own)
                self.losers.setdefault(self.rules_of(table), []).append(identifier)
        return tuple(planned)

    def note_missing(self, tables: list[NamedTable]) -> None:
        """Name the tables of the plan that are not here any more."""
        if self.by_plan is not None:
            known = {each.name for each in tables} | self.failures.keys()
            gone = {each.name for each in self.by_plan.tables.values()} - known
            self.failures |= dict.fromkeys(sorted(gone), "the plan was made for it, and no table has this name")

    def losing(self, table: NamedTable) -> tuple[str, Expired | str | None]:
        """Return the losses of a table, or why they are unknown; ``None`` if its owner forbids it. One ``get``."""
        from trinitylake_core.iceberg.commit_rules.snapshot_expiration import Forbidden, expiring
        from trinitylake_core.iceberg.errors import REFUSED

        name = table.name
        try:
            metadata, root = self.catalog.metadata_of(table.definition), self.lake.root
            location = metadata_uri(root, table.definition) or ""
            if former := former_root(root, location, metadata.location):
                return name, f"it was written below {former} and came here with its lakehouse: nothing writes it here"
            found = expiring(metadata, self.rules_of(table), self.now, name=name, location=location)
        except Forbidden:
            return name, None
        except (Corrupt, InvalidInput, StorageError, *REFUSED) as error:
            return name, f"{error}"
        if self.config.plan_to is not None:
            self.found.append((name, str(metadata.table_uuid), found, metadata, location))
        return name, Expired(name, len(found.snapshots), found.refs)

    def rules_of(self, table: NamedTable) -> SnapshotRules | PlannedSnapshots:
        """Return what decides about a table: the plan, or the rules of its policy."""
        return self.policy_of(table).rules() if self.by_plan is None else self.by_plan

    def act(self, planned: Report) -> Report:
        """Expire, some tables a version; those that fail are named, and the others go on.

        What spoils a version is found by halves, so one table costs a few more commits, and no other its expiration.
        """
        from trinitylake_core.iceberg.errors import REFUSED

        if self.config.now_millis is None:
            refuse_future(self.lake.backend, self.now)  # by it every snapshot would be an old one
        done: list[Expired] = []
        versions, last = 0, None
        waiting = deque(
            (rules, names[begin : begin + TOGETHER])
            for rules, names in self.losers.items()
            for begin in range(0, len(names), TOGETHER)
        )
        while waiting:
            self.cancel.check()
            rules, some = waiting.popleft()
            try:
                lost = self.catalog.expire_snapshots(some, rules, self.now)
            except (Corrupt, *REFUSED) as error:
                half = len(some) // 2
                if half and not isinstance(error.__cause__, LakehouseFrozen):
                    waiting.extendleft([(rules, some[half:]), (rules, some[:half])])
                else:
                    self.failures |= {".".join(each): f"{error}" for each in some}
                continue
            done += [Expired(".".join(name), len(each.snapshots), each.refs) for name, each in lost.items()]
            if lost:
                versions, last = versions + 1, self.catalog.lakehouse.version
            self.progress("expire", len(done), len(planned.expired))
        self.lake.refresh()
        self.watch.lap("expire")
        snapshots = sum(each.snapshots for each in done)
        return self.with_costs(
            replace(
                planned,
                dry_run=False,
                version_after=last,
                expired=tuple(done),
                snapshots=snapshots,
                versions=versions,
            )
        )

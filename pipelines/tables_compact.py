"""Compaction of Iceberg tables (``tables compact``): small files become few, and many tables become one version.

The rows of a table stay the same, which is proved before it counts. No file is deleted: what older versions of the
lakehouse name stays readable, and a rollback brings the old files back. ``tables expire`` and ``tables clean`` remove
them later.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, Final

from pipelines.job import (
    NEVER_CANCELLED,
    Cancel,
    Progress,
    Review,
    Session,
    dry_run,
    refuse_unknown,
    silent,
)
from pipelines.reach import plans
from pipelines.reach.table_files import refuse_no_iceberg, tables_of, why_unreadable
from pipelines.reports.summary import ByteCount, Table, count, describe_no_change, human_bytes
from pipelines.tables.changing import NamedTable, TablesRun
from pipelines.tables.compact import model
from pipelines.tables.compact.engines import Engines
from pipelines.tables.compact.hold import hold_fence
from pipelines.tables.compact.model import Outcome, PlannedTable, Policy, Settings
from pipelines.tables.compact.plan import (
    LeftAlone,
    plan_table,
    refuse_no_budget,
    within_budget,
    within_condition,
)
from pipelines.tables.compact.stored import StoredTable, read_plan, write_plan
from trinitylake_core import Lakehouse
from trinitylake_core.commits.frozen import refuse_frozen
from trinitylake_core.errors import Corrupt, FileMissing, InvalidInput, StorageError
from trinitylake_core.table_places import Located

__all__ = ["Config", "Policy", "Report", "Settings", "run"]
_NO_PLAN: Final = "manifests cannot be combined with a stored plan, which names files: leave one of them out"


@dataclass(frozen=True, slots=True)
class Config(Policy, plans.PlannedConfig):
    """Which tables to compact, by which policy, and how.

    Attributes:
        policies: the first whose pattern matches a table counts; those of this object are for tables that none matches.
        engine: ``local``, ``spark``, or ``auto``: Spark for tables that the other one cannot rewrite.
        settings: how files are rewritten.
        budget_bytes: no more than that is rewritten, the best gain for its cost first; ``None``: all.
        plan_to: URI to write the plan to, before it is reviewed; without a review nothing is compacted.
        plan: URI of a plan to carry out: exactly its files, of tables that have not changed since.
        plan_options: storage options for these two; by default those of the lakehouse that apply to them.
        now_millis: the time, for tests.
        reason: recorded in the history, before the tables; not where the endpoint of ``settings`` commits.
    """

    policies: tuple[Policy, ...] = ()
    engine: str = "auto"
    settings: Settings = field(default_factory=Settings)
    budget_bytes: int | None = None

    def __post_init__(self) -> None:
        Policy.__post_init__(self)
        refuse_unknown(self.engine)
        refuse_no_budget(self.budget_bytes)
        plans.refuse_beside_plan(self, self.pattern, *self.policies)
        if (self.plan or self.plan_to) and any(each.manifests is not None for each in (self, *self.policies)):
            raise InvalidInput(_NO_PLAN)


@dataclass(frozen=True, slots=True)
class Planned:
    """What is to be done with one table.

    Attributes:
        table: its name.
        engine: what will rewrite it.
        partitions: groups of files, each of one partition by one spec.
        files: the data files that go, of ``bytes``; ``after`` files will be in their place.
        delete_files: delete files that apply to them.
        reason: why, in a few words.
        refs: tags and branches that keep the old files.
        manifests: how many manifests of data files become few.
    """

    table: str
    engine: str
    partitions: int
    files: int
    after: int
    bytes: int
    delete_files: int
    reason: str
    refs: tuple[str, ...] = ()
    manifests: int = 0


@dataclass(frozen=True, slots=True)
class Report:
    """What was compacted, or on a dry run would be.

    Attributes:
        version: the version that was examined; ``version_after`` the last that was made, ``None`` without one.
        engine: what rewrote, or would rewrite, files.
        tables: MANAGED Iceberg tables that were examined; ``external`` others, which are never changed.
        planned: what was to be done.
        files: the data files of the plan, of ``bytes``; ``after`` those that shall be in their place.
        takes_bytes: about how much more space the lakehouse takes until its old versions expire, and are cleaned.
        outcomes: what became of each table.
        files_before: the data files that went, ``files_made`` those that came, with ``bytes_before`` and
            ``bytes_made``: what the plan has brought.
        versions: how many versions that made.
        over_budget: groups of files that are worth a rewrite and were left for the next run.
        left_alone: tables that are not compacted by the wish of their owners, with the reason.
        idle: patterns of policies that count for no MANAGED table.
        failures: tables that were to be compacted and are not, or of which partitions were left, with the reason.
        plan: URI of the plan that was written, or carried out.
    """

    root: str
    version: int
    engine: str
    dry_run: bool
    version_after: int | None = None
    tables: int = 0
    external: int = 0
    planned: tuple[Planned, ...] = ()
    files: int = 0
    after: int = 0
    bytes: int = 0
    takes_bytes: int = 0
    outcomes: tuple[Outcome, ...] = ()
    files_before: int = 0
    files_made: int = 0
    bytes_before: int = 0
    bytes_made: int = 0
    versions: int = 0
    over_budget: int = 0
    left_alone: dict[str, str] = field(default_factory=dict)
    idle: tuple[str, ...] = ()
    failures: dict[str, str] = field(default_factory=dict)
    requests: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    plan: str | None = None

    def summary(self) -> Iterator[str]:
        """Yield what was compacted."""
        done = sum(each.outcome == model.DONE for each in self.outcomes)
        if not self.planned:
            other = "other " if self.failures else ""
            yield f"nothing to do: no {other}file of {count(self.tables, 'table')} is worth a rewrite"
        elif self.dry_run and not self.files:
            yield describe_no_change(self.plan)
        elif self.dry_run:
            yield (
                f"{describe_no_change(self.plan)}: {count(self.files, 'data file')} of "
                f"{count(len(self.planned), 'table')} among {self.tables:,}, {human_bytes(self.bytes)}, would become "
                f"{self.after:,}"
            )
            yield (
                f"that takes about {human_bytes(self.takes_bytes)} more until older versions have expired and "
                "`tables clean` has removed the old files"
            )
        elif not done:
            yield f"no table among {self.tables:,} was compacted"
        elif self.files_before:
            yield (
                f"{count(self.files_before, 'data file')} of {count(done, 'table')} among {self.tables:,} became "
                f"{self.files_made:,}: {human_bytes(self.bytes_before)} to {human_bytes(self.bytes_made)}, in "
                f"{count(self.versions, 'version')}"
            )
            yield "no file is deleted: a rollback brings the old ones back; `tables clean` removes what nothing needs"
        merged = [each.manifests for each in (self.planned if self.dry_run else self.outcomes) if each.manifests]
        if merged:
            manifests = f"{sum(merged):,} manifests of {count(len(merged), 'table')}"
            yield f"{manifests} would become few" if self.dry_run else f"{manifests} became few"
        keeping = [each.table for each in self.planned if each.refs]
        if keeping:
            yield f"tags and branches keep the old files of {count(len(keeping), 'table')}: {', '.join(keeping[:5])}"
        if self.over_budget:
            yield f"left for the next run, because the budget is used: {count(self.over_budget, 'partition')}"
        if self.failures:
            yield f"not compacted, or a part of it: {count(len(self.failures), 'table')}"
        if self.left_alone:
            yield f"left alone, by the wish of their owners: {count(len(self.left_alone), 'table')}"
        if self.idle:
            yield f"a policy counts for no table: {', '.join(self.idle)}"

    def summary_tables(self) -> Iterator[Table]:
        """Yield what is planned, or what became of each table, and those that were not compacted."""
        rows: list[Sequence[Any]] = []
        if self.dry_run:
            columns = ("table", "engine", "partitions", "files", "after", "bytes", "delete_files", "reason", "refs")
            cells = attrgetter(*columns[:-1])
            for each in self.planned:
                shown = replace(each, bytes=ByteCount(each.bytes))
                rows.append([*cells(shown), ", ".join(each.refs)])
            yield Table("planned", columns, rows)
        else:
            columns = ("table", "outcome", "engine", "files", "after", "bytes", "bytes_after", "seconds", "proved")
            rows = [attrgetter(*columns)(each) for each in self.outcomes]
            yield Table("compacted", columns, rows, detail=True)
        yield Table("failures", ("table", "reason"), list(self.failures.items()))


def run(
    lake: Lakehouse,
    config: Config | None = None,
    spark: Session = None,
    *,
    review: Review[Report] | None = None,
    cancel: Cancel | None = None,
    progress: Progress | None = None,
) -> Report:
    """Replace small files of tables by few with the same rows; the handle moves to the newest version.

    To plan it costs the nodes that contain the tables, one ``get`` for each definition, and for each MANAGED table one
    for its metadata, its manifest list and each manifest. Then for each table the same again, a ``get`` for each file
    that is replaced, a ``put`` for each new one; and for up to a hundred tables a commit.

    The arguments are those of every job (:mod:`pipelines.job`), and:
        review: called with what would be compacted; ``False`` changes nothing.
        cancel: checked before each table, each partition and each version.

    Raises:
        InvalidInput: PyIceberg is not installed, no table matches the pattern, or an engine that is not there.
        LakehouseFrozen: nothing is read, for nothing could be committed.
        PlanOutdated: the lakehouse has another history than the one that the plan was made for.
        ReadOnly, StorageError.
    """
    refuse_no_iceberg()
    config = config or Config()
    review = plans.review_of(config, review)
    cancel = cancel or NEVER_CANCELLED
    return _TablesCompaction(lake.refresh(), config, spark, review, cancel, progress or silent).run()


class _TablesCompaction(TablesRun[Policy, Report]):
    """One run: it plans, acts, and plans those tables once more that were lost to a writer."""

    def __post_init__(self) -> None:
        if self.review is not dry_run:
            refuse_frozen(self.backend)
        super().__post_init__()
        config = self.config
        settings = replace(config.settings, reason=config.reason)
        self.engines = Engines(self.lake, config.engine, settings, self.spark, self.cancel)
        self.by_plan: dict[str, StoredTable] | None = None
        if config.plan is not None:
            self.by_plan = read_plan(config.plan, self.options, self.lake)
        self.left_alone: dict[str, str] = {}
        self.over_budget = 0

    def run(self) -> Report:
        """Plan, have that reviewed, and compact."""
        try:
            return self._run()
        finally:
            self.engines.close()

    def _run(self) -> Report:
        tables, external = self._tables()
        planned = self._within_budget(self._plan(tables))
        self.watch.lap("plan")
        found = self.with_costs(self._report_plan(tables, external, planned))
        if self.config.plan_to is not None:
            write_plan(self.config.plan_to, self.options, self.lake, planned)
            self.watch.lap("write")
        if self.ends_with(found):
            return found
        if not planned:
            return replace(found, dry_run=False)
        return self._act(found, planned, tables)

    # -- planning ----------------------------------------------------------------------------------

    def _tables(self) -> tuple[list[NamedTable], int]:
        """Return the MANAGED Iceberg tables of the pattern that have metadata, and how many EXTERNAL ones there are."""
        entries = list(tables_of(self.lake, self.config.pattern))
        if self.config.pattern is not None and not entries:
            raise InvalidInput(
                f"no table has a name like {self.config.pattern!r}; `trinitylake ls {self.lake.root}` lists them"
            )
        return self.list_managed(entries)

    def _plan(self, tables: Sequence[NamedTable]) -> list[PlannedTable]:
        """Return what is to be replaced in tables; those without anything are left out."""
        planned: list[PlannedTable] = []
        looked = self.lake.storage.map(tables, self._plan_one, nested=True)
        for done, (name, found) in enumerate(looked, 1):
            self.progress("metadata", done, len(tables))
            if isinstance(found, LeftAlone):
                self.left_alone[name] = str(found)
            elif isinstance(found, str):
                self.failures[name] = found
            elif found.groups or found.manifests:
                planned.append(found)
        return planned

    def _plan_one(self, table: NamedTable) -> tuple[str, PlannedTable | LeftAlone | str]:
        """Return what is to be replaced in a table, or why nothing is."""
        from trinitylake_core.iceberg.errors import REFUSED

        policy = self.policy_of(table)
        if not policy.enabled:
            return table.name, LeftAlone("its policy says so")
        try:
            found = plan_table(Located(self.lake.storage), table, policy, self.now, self.by_plan)
            if policy.where is not None and found.groups:
                found = within_condition(self.catalog, self.lake.storage, found, policy.where, self.now)
            return table.name, found
        except LeftAlone as error:
            return table.name, error
        except (FileMissing, Corrupt, InvalidInput, StorageError, *REFUSED) as error:
            return table.name, why_unreadable(error)

    def _within_budget(self, tables: Sequence[PlannedTable]) -> list[PlannedTable]:
        """Return what an engine can rewrite, as far as the budget goes; the rest are failures."""
        chosen, self.over_budget = within_budget(self._able(tables), self.config.budget_bytes)
        return chosen

    def _able(self, tables: Sequence[PlannedTable]) -> list[PlannedTable]:
        """Return tables with those partitions that an engine can rewrite, and name the others."""
        able: list[PlannedTable] = []
        for each in tables:
            part, why = self.engines.able_part(each)
            if why is not None:
                # A large file does no harm: where no engine can split it, it stays, and that is no failure.
                merged = each.without_splits()
                part, why = self.engines.able_part(merged) if merged.groups or merged.manifests else (None, None)
            if why is not None:
                self.failures[each.name] = why
            if part is not None:
                able.append(part)
        return able

    def _report_plan(self, tables: Sequence[NamedTable], external: int, planned: Sequence[PlannedTable]) -> Report:
        """Return the report of a plan."""
        engines = {each.name: self.engines.of(each).name for each in planned}
        return Report(
            root=self.lake.root,
            version=self.lake.version,
            engine=", ".join(sorted(set(engines.values()))) or self.engines.default,
            dry_run=True,
            tables=len(tables),
            external=external,
            planned=tuple(_describe_plan(each, engines[each.name]) for each in planned),
            files=sum(each.files for each in planned),
            after=sum(each.after for each in planned),
            bytes=sum(each.bytes for each in planned),
            takes_bytes=sum(each.bytes for each in planned),
            over_budget=self.over_budget,
            left_alone=dict(self.left_alone),
            idle=self.idle_policies(tables),
            plan=self.plan,
        )

    # -- acting ------------------------------------------------------------------------------------

    def _act(self, found: Report, planned: Sequence[PlannedTable], tables: Sequence[NamedTable]) -> Report:
        """Compact, and plan once more what was lost to a writer, or to a cleaning that knows of no hold."""
        outcomes: dict[str, Outcome] = {}
        with hold_fence(self.lake):
            self._rewrite(planned, outcomes)
            lost = {name for name, each in outcomes.items() if each.outcome in {model.LOST, model.VOID}}
            if lost and self.by_plan is None:
                self._rewrite(self._plan_again(lost), outcomes)
        self.lake.refresh()
        self.watch.lap("rewrite")
        for name, each in outcomes.items():
            if each.outcome != model.DONE:
                self.failures[name] = f"{each.outcome}: {each.reason}"
        done = [each for each in outcomes.values() if each.commits]
        return self.with_costs(
            replace(
                found,
                dry_run=False,
                version_after=self.lake.version if done else None,
                outcomes=tuple(outcomes.values()),
                files_before=sum(each.files for each in done),
                files_made=sum(each.after for each in done),
                bytes_before=sum(each.bytes for each in done),
                bytes_made=sum(each.bytes_after for each in done),
                versions=self.engines.versions,
            )
        )

    def _rewrite(self, tables: Iterable[PlannedTable], outcomes: dict[str, Outcome]) -> None:
        """Have the engines rewrite tables, and note what became of each."""
        some = list(tables)
        for done, each in enumerate(self.engines.rewrite(some), 1):
            outcomes[each.table] = model.join_outcomes(outcomes.get(each.table), each)
            self.progress("rewrite", done, len(some))

    def _plan_again(self, names: set[str]) -> list[PlannedTable]:
        """Return what is to be replaced in some tables by now; those with nothing left stay lost."""
        self.lake.refresh()
        entries = tables_of(self.lake, self.config.pattern)
        again = [each for each in entries if f"{each.namespace}.{each.name}" in names]
        tables, _ = self.list_managed(again)
        return self._able(self._plan(tables))


def _describe_plan(table: PlannedTable, engine: str) -> Planned:
    """Return what a report says of a plan for a table."""
    reasons = Counter(each.decision.reason for each in table.groups)
    return Planned(
        table.name,
        engine,
        len(table.groups),
        table.files,
        table.after,
        table.bytes,
        table.delete_files,
        ", ".join(reason for reason, _ in reasons.most_common()) or "many manifests",
        table.refs,
        table.manifests,
    )

"""Restore: bring selected objects back as they were at a version, in one ordinary transaction (format, section 6)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from pipelines import diff
from pipelines.integrity.preflight import Preflight
from pipelines.job import (
    NEVER_CANCELLED,
    Cancel,
    Progress,
    Review,
    Session,
    Stopwatch,
    refuse_unknown,
    silent,
)
from pipelines.summary import DRY_RUN, Table, recovery_tables, utc
from pipelines.tables.files import EVERY, TableState, refuse_no_share, states_after
from trinitylake_core import Change, Lakehouse, RecoveryPlan, RecoveryTarget
from trinitylake_core.errors import InvalidInput
from trinitylake_core.recovery.recover import refuse_no_source, require_reason
from trinitylake_core.short_repr import ShortRepr
from trinitylake_core.storage import open_storage
from trinitylake_core.versions import Root


@dataclass(frozen=True, slots=True)
class Config:
    """What to restore, and from where: one of ``version``, ``timestamp`` and ``snapshot``, or another lakehouse.

    Attributes:
        only: patterns such as ``sales.orders`` or ``sales.*``; ``sales`` alone is the namespace itself.
        version: where from, by number.
        timestamp: where from, by time, ISO 8601, UTC.
        snapshot: where from, by the name of a snapshot.
        source: root URI of another lakehouse, such as a backup: the version is one of its own, by default the newest
            that can be read, and the definitions are copied in. The data of tables is not.
        source_options: storage options for it.
        reason: why; required, and stands in the history.
        exact: also drop objects that match and did not exist then.
        damaged: with ``source``, also bring back objects whose definition file here is missing or damaged.
        expected_version: the newest version when the plan that you reviewed was made.
        engine: ``spark``, ``local`` or ``auto``, Spark on other machines from ``spark_from_files``
            definitions on.
        spark_from_files: where ``auto`` changes from this process to Spark.
        tables: of which share of the Iceberg tables that come back the metadata file must exist; ``None``: of none.
            Not checked where they come from another lakehouse.
    """

    only: Sequence[str] = ()
    version: int | None = None
    timestamp: datetime | str | None = None
    snapshot: str | None = None
    source: str | None = None
    source_options: Mapping[str, Any] | None = field(default=None, repr=False)
    reason: str | None = None
    exact: bool = False
    damaged: bool = False
    expected_version: int | None = None
    engine: str = "auto"
    spark_from_files: int = 400_000
    tables: float | None = EVERY

    def __post_init__(self) -> None:
        refuse_unknown(self.engine)
        refuse_no_share(self.tables)
        require_reason(self.reason)
        if not self.only:
            raise InvalidInput("say which objects to restore: patterns such as 'sales.orders' or 'sales.*'")
        refuse_no_source(self.source, damaged=self.damaged)
        if self.source is not None and not self.target.is_given:
            return
        self.target.refuse_ambiguous("say where to restore from: one of version, timestamp and snapshot")

    @property
    def target(self) -> RecoveryTarget:
        """The three as one."""
        return RecoveryTarget(self.version, self.timestamp, self.snapshot)


@dataclass(frozen=True, slots=True, repr=False)
class Report(ShortRepr):
    """The result of a restore, or of its dry run. ``version_after`` is ``None`` where it changed nothing.

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

    def summary(self) -> Iterator[str]:
        """Yield what the restore did, or would do."""
        then = f"version {self.plan.target_version} of {utc(self.plan.target_created_at)}"
        then += "" if self.plan.source is None else f" at {self.plan.source}"
        if self.version_after is not None:
            yield f"version {self.version_after} committed: these objects are as they were in {then}"
        elif not self.plan.changes:
            yield f"nothing to do: the matching objects are as they were in {then}"
        else:
            yield f"{DRY_RUN}: in version {self.version_before + 1} these objects would be as they were in {then}"

    def summary_tables(self) -> Iterator[Table]:
        """Yield what changes, and where Iceberg tables go back to."""
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
    """Restore objects; the handle moves to the newest version.

    ``review`` is called with every change named, when the definitions are proved; ``cancel`` is checked right before
    the root is created.

    Raises:
        InvalidInput, ObjectNotFound, NamespaceNotEmpty, VersionNotFound, VersionExpired, SnapshotNotFound.
        Corrupt: a definition to restore is missing or damaged; the message names it.
        PlanOutdated: another writer changed objects since ``expected_version``.
        CommitConflict: another writer changed one of these objects.
        ReadOnly, StorageError.
    """
    watch = Stopwatch()
    compare = diff.Config("local" if config.engine == "local" else "auto")
    source = None
    if config.source is not None:
        storage = open_storage(config.source, config.source_options)
        if storage.root == lake.root:
            raise InvalidInput("the other lakehouse is this one: leave it out to restore from an older version")
        source = Lakehouse.open(storage, damaged=True)
    backend = lake.backend if source is None else source.backend
    preflight = Preflight(spark, backend, config.engine, config.spark_from_files, progress or silent)
    preflight.tables = config.tables if source is None else None  # a copy of the catalog holds no files of tables

    def differ(old: Root, new: Root) -> Iterator[Change]:
        return diff.run(Lakehouse(lake.backend, old), Lakehouse(backend, new), compare, spark)

    shown: list[Report] = []
    approved = True

    def reported(plan: RecoveryPlan) -> Report:
        watch.lap("all")
        return Report(
            version_before=plan.version,
            version_after=plan.version_after,
            dry_run=False,
            plan=plan,
            engine=preflight.checked.engine.name,
            definitions_checked=preflight.checked.definitions,
            bytes_read=preflight.checked.bytes,
            seconds=dict(watch.seconds),
            tables_checked=preflight.checked.tables,
            tables_unknown=preflight.checked.tables_unknown,
        )

    def reviewed(plan: RecoveryPlan) -> bool:
        nonlocal approved
        shown.append(replace(reported(plan), dry_run=True, tables=states_after(backend.storage, plan.changes)))
        approved = review is None or review(shown[0])
        return approved

    done = lake.restore(
        config.only,
        **config.target.keywords(),
        source=source,
        reason=config.reason,
        exact=config.exact,
        damaged=config.damaged,
        expected_version=config.expected_version,
        preflight=preflight.definitions,
        differ=differ,
        review=None if review is None else reviewed,
        before_commit=(cancel or NEVER_CANCELLED).check,
    )
    if not approved:
        return shown[0]
    if done.version_after is not None:
        lake.catch_up()  # no request: an error now would report a job that is done as a failure
    return replace(reported(done), tables=shown[0].tables if shown else ())

"""Restore: bring selected objects back as they were at a version, in one ordinary transaction (format, section 6)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Any, Final

from pipelines import diff
from pipelines.job import NEVER_CANCELLED, Cancel, Progress, Review, Session, refuse_unknown, silent
from pipelines.reach.table_files import EVERY, are_rewrites, refuse_no_share
from pipelines.reports.summary import DRY_RUN, utc
from pipelines.rollback import RecoveryReport, RecoveryRun
from trinitylake_core import Change, Lakehouse, RecoveryPlan, RecoveryTarget, VersionExpired, VersionNotFound
from trinitylake_core.definitions import TableDef, decode_table
from trinitylake_core.errors import Corrupt, FileMissing, InvalidInput, Refused
from trinitylake_core.grounds import Identities, identity_of
from trinitylake_core.keys import TABLE
from trinitylake_core.recovery.patterns import Pattern
from trinitylake_core.recovery.plan import require_reason
from trinitylake_core.recovery.restore import Restore, plan_restore, refuse_no_source
from trinitylake_core.recovery.selection import Side
from trinitylake_core.spec import QUIET_OPERATIONS
from trinitylake_core.storage import Storage, open_storage


@dataclass(frozen=True, slots=True)
class Config:
    """What to restore, and from where: one of ``version``, ``timestamp`` and ``snapshot``, or another lakehouse.

    Attributes:
        only: patterns such as ``sales.orders`` or ``sales.*``; ``sales`` alone is the namespace itself.
        version: where from: a number, ``HEAD~1``, a snapshot, a time, or an age such as ``-2h``.
        timestamp: where from, by time, ISO 8601, UTC, or an age such as ``-2h``.
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
    version: int | str | None = None
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


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Report(RecoveryReport):
    """The result of a restore, or of its dry run. ``version_after`` is ``None`` where it changed nothing.

    Attributes:
        tables_checked: Iceberg tables whose metadata file exists; ``tables_unknown`` cannot be checked from here.
        tables: on a dry run, the snapshot that each table among the changes goes back to, and its time.
    """

    def summary(self) -> Iterator[str]:
        """Yield what the restore did, or would do."""
        then = f"version {self.plan.target_version} of {utc(self.plan.target_created_at)}"
        if self.plan.source is not None:
            then += f" at {self.plan.source}"
        if self.version_after is not None:
            yield f"version {self.version_after} committed: these objects are as they were in {then}"
        elif not self.plan.changes:
            yield f"nothing to do: the matching objects are as they were in {then}"
        else:
            yield f"{DRY_RUN}: in version {self.version_before + 1} these objects would be as they were in {then}"


_TAKEN_TOGETHER: Final = 1024
"""So many changes are handed over from the comparison to the restore at once."""


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
    return _Restore(lake, config, spark, review, cancel or NEVER_CANCELLED, progress or silent).run()


def find_version_before_change(lake: Lakehouse, patterns: Sequence[str]) -> int:
    """Return the version before the newest one that changed or dropped an object that a pattern matches.

    A version that created what matches is passed over: before it there was nothing to bring back. Two ``get`` for each
    version that is read, newest first, and the nodes that it does not share with the one before it.

    Raises:
        VersionNotFound: no version that is kept changed or dropped such an object.
    """
    wanted = [Pattern(text) for text in patterns]
    after = lake
    while after.version > 0:
        try:
            before = lake.at(version=after.version - 1)
        except (VersionExpired, Corrupt):
            break  # what the version changed can no longer be told
        if after.info().operation not in QUIET_OPERATIONS:
            for change in before.diff(before, after):
                is_wanted = any(pattern.matches(change.namespace, change.name) for pattern in wanted)
                if is_wanted and change.old_path is not None:
                    return before.version
        after = before
    raise VersionNotFound(
        f"no version that is kept changed or dropped {', '.join(patterns)}; say which one to restore from: --version, "
        "--timestamp or --snapshot"
    )


class _Restore(RecoveryRun[Config, Report]):
    """One run."""

    def run(self) -> Report:
        config = self.config
        source = _open_source(self.lake, config)
        restore = plan_restore(
            self.backend,
            config.only,
            config.target,
            reason=config.reason,
            source=None if source is None else Side(source.backend, source.root_node),
            exact=config.exact,
            damaged=config.damaged,
            expected_version=config.expected_version,
            is_same=partial(are_rewrites, self.lake.storage),
        )
        for part in _compare(restore, config, self.spark):
            restore.select(part)
        plan = restore.plan()
        _refuse_taken(restore, config, self.spark)
        there = restore.there.backend.storage
        # Another lakehouse may be a copy without the files of tables, so they are not looked for there.
        prover = self.prover(there, None if restore.copies else config.tables)
        # The commit reads and proves what it copies, so before it that is proved only for people who see the plan.
        if self.review is not None or not restore.copies:
            restore.refuse_damaged(prover.find_damaged(restore.coming_back()))

        def report(plan: RecoveryPlan, **more: Any) -> Report:
            return Report(**prover.figures_of(plan), **more)

        return self.finish(plan, there, restore.commit, report)


def _open_source(lake: Lakehouse, config: Config) -> Lakehouse | None:
    """Return the other lakehouse that objects come from, if one is named, at the newest version that can be read."""
    if config.source is None:
        return None
    storage = open_storage(config.source, config.source_options)
    if storage.root == lake.root:
        raise InvalidInput("the other lakehouse is this one: leave it out to restore from an older version")
    return Lakehouse.open(storage, damaged=True)


def _compare(restore: Restore, config: Config, spark: Session) -> Iterator[list[Change]]:
    """Yield what differs between the two versions, some of it at once."""
    engine = "auto"
    if config.engine == "local":
        engine = "local"
    here = Lakehouse(restore.here.backend, restore.here.root)
    there = Lakehouse(restore.there.backend, restore.there.root)
    with restore.still_kept():
        changes = diff.run(here, there, diff.Config(engine), spark)
        while part := list(islice(changes, _TAKEN_TOGETHER)):
            yield part


def _refuse_taken(restore: Restore, config: Config, spark: Session) -> None:
    """Refuse to bring a table back whose UUID or directory another one has by now: it was registered, or renamed.

    Only a table that differs between the two versions can. One ``get`` for each that comes back, and for each other
    one that differs; the versions are compared once more. Raises ``Refused``.
    """
    here = restore.here
    root = here.backend.storage.root
    coming = Identities(root)
    tables = [each for each in restore.coming_back() if each.kind == TABLE]
    for each, table in _decode_tables(restore.there.backend.storage, tables, "new_path"):
        name = f"{each.namespace}.{each.name}"
        coming.put(name, identity_of(root, table))
    if not coming.names():
        return
    known = {(change.namespace, change.name) for change in restore.changes()}
    for part in _compare(restore, config, spark):
        others: list[Change] = []
        for each in part:
            is_here = each.kind == TABLE and each.old_path is not None
            if is_here and (each.namespace, each.name) not in known:
                others.append(each)
        for other, table in _decode_tables(here.backend.storage, others, "old_path"):
            identity = identity_of(root, table)
            taken = coming.names_like(identity)
            for directory in sorted(identity.directories):
                taken |= coming.names_over(directory)
            if taken:
                has = f"{other.namespace}.{other.name} has its UUID or directory by now, or one in or above it"
                raise Refused(f"{min(taken)} cannot come back: {has}; rename that one, or drop it, and run it again")


def _decode_tables(storage: Storage, changes: Sequence[Change], side: str) -> Iterator[tuple[Change, TableDef]]:
    """Yield the definitions of tables at one side of changes, as far as they can be read. One ``get`` each."""
    paths = [getattr(each, side) for each in changes]
    for each, (path, data) in zip(changes, storage.read_many(paths), strict=True):
        with suppress(Corrupt):  # what is damaged is refused, or reported, elsewhere
            if not isinstance(data, FileMissing):
                yield each, decode_table(data, path)

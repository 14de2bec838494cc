"""Verifies that a backup, a repeated export, could replace its lakehouse, by reading it (format, section 6).

1. **open** it: is it a lakehouse, and an export of this one without commits of its own;
2. **compare**: its newest version exists at the source, and both have the same content digest;
3. **verify** every invariant of that version, with every definition; definitions that were written before they
   carried a checksum are compared byte for byte with those of the lakehouse;
4. **age**: how long the versions that it lacks have been waiting.

Each problem is reported in a sentence with its remedy. Nothing is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from pipelines import verify
from pipelines.engine_choice import choose_engine_for_all
from pipelines.integrity.copies import compare_definitions, digest
from pipelines.integrity.findings import Finding
from pipelines.job import Progress, Session, Stopwatch, refuse_unknown, silent
from pipelines.summary import Table, findings_table
from pipelines.tables.files import EVERY
from trinitylake_core import Lakehouse
from trinitylake_core.commits.commit import now_millis
from trinitylake_core.errors import Corrupt, InvalidDefinition, NotALakehouse, VersionNotFound
from trinitylake_core.short_repr import ShortRepr
from trinitylake_core.storage import Storage, open_storage, same_place
from trinitylake_core.versions import from_millis


@dataclass(frozen=True, slots=True)
class Config:
    """The requirements on a backup.

    Attributes:
        max_age_seconds: how long a version may be without a backup; ``None``: for ever.
        definitions: also read and parse every definition of the backup.
        tables: also read the metadata of Iceberg tables there, and ask for each of their files.
        engine: ``spark``, ``local`` (this process, never starts Spark), or ``auto``: Spark on
            other machines for large lakehouses.
        now_millis: the time, for tests.
    """

    max_age_seconds: float | None = None
    definitions: bool = True
    tables: bool = False
    engine: str = "auto"
    now_millis: int | None = None

    def __post_init__(self) -> None:
        refuse_unknown(self.engine)


@dataclass(frozen=True, slots=True, repr=False)
class Report(ShortRepr):
    """The result of a check of a backup.

    Attributes:
        problems: the problems, each with its remedy; empty if the backup is good.
        source_version: the newest version of the lakehouse.
        version: the newest version of the backup; ``None`` if it has none.
        unsaved_since: when the first version was committed that the backup lacks; ``None`` if it lacks none.
        digest: the digest of the backup; ``None`` if it was not comparable.
        findings: broken invariants of the backup; ``nodes_read`` counts the nodes read to find them.
        definitions_compared: definitions without a checksum that were compared with those of the lakehouse.
    """

    source: str
    target: str
    engine: str
    source_version: int
    version: int | None = None
    problems: list[str] = field(default_factory=list)
    unsaved_since: datetime | None = None
    digest: str | None = None
    source_digest: str | None = None
    findings: list[Finding] = field(default_factory=list)
    nodes_read: int = 0
    definitions_compared: int = 0
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether the backup is good."""
        return not self.problems

    def summary(self) -> Iterator[str]:
        """Yield what is wrong with the backup and what to do, or that it is good."""
        yield from self.problems
        if self.ok:
            good = f"version {self.version} at {self.target} is intact and matches the lakehouse"
            yield f"{good}: digest {self.digest}"

    def summary_tables(self) -> Iterator[Table]:
        """Yield the findings."""
        yield findings_table(self.findings)


def run(
    lake: Lakehouse,
    target_root: str | Storage,
    config: Config | None = None,
    spark: Session = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Report:
    """Prove the backup of a lakehouse. Reads every node of one version at both roots, and of the backup everything.

    Raises:
        StorageError: one of the storages failed; the state of the backup is unknown.
        Corrupt: the lakehouse itself is damaged.
    """
    config = config or Config()
    target = target_root if isinstance(target_root, Storage) else open_storage(target_root, storage_options)
    lake.refresh()
    lake.backend.versions.refuse_hole(lake.version)
    work = _Proof(spark, lake, target, config, progress or silent)
    problems = list(work.run())
    return replace(work.report, problems=problems, seconds=work.watch.seconds)


@dataclass
class _Proof:
    spark: Session
    lake: Lakehouse
    target: Storage
    config: Config
    progress: Progress

    def __post_init__(self) -> None:
        self.engine = choose_engine_for_all(self.config.engine, self.spark, self.lake.root_node)
        self.report = Report(self.lake.root, self.target.root, self.engine.name, self.lake.version)
        self.watch = Stopwatch()

    def run(self) -> Iterator[str]:
        """Yield what is wrong, the gravest first."""
        try:
            backup = Lakehouse.open(self.target)
        except NotALakehouse:
            yield f"there is no backup at {self.target.root}; export to it"
            return
        except (Corrupt, InvalidDefinition) as error:
            yield f"the backup cannot be opened: {error}; export to another root URI, this one is damaged"
            return
        self.report = replace(self.report, version=backup.version)
        mismatch = self.mismatch(backup) or self.hole(backup)
        if mismatch is not None:
            yield mismatch
            return
        yield from self.compared(backup)
        yield from self.verified(backup)
        yield from self.too_old(backup.version)

    def mismatch(self, backup: Lakehouse) -> str | None:
        """Return the reason for which a lakehouse is no backup of this one; ``None`` if it is one."""
        if same_place(self.target.root, self.lake.root):
            return f"{self.target.root} is the lakehouse itself, and no backup of it; export to another root URI"
        if backup.definition.id != self.lake.definition.id:
            return f"{self.target.root} holds another lakehouse; export to another root URI"
        if backup.version > self.lake.version:
            return (
                f"the backup holds version {backup.version}, newer than version {self.lake.version} of the lakehouse: "
                "one of them was replaced. Find out which one is right before anything overwrites the other"
            )
        kept = backup.version >= self.lake.root_node.oldest_version  # below it a late writer may have left a root
        ours, theirs = self.lake.backend.versions.try_root(backup.version) if kept else None, backup.root_node
        if ours is not None and (ours.txn, ours.created_at_millis) != (theirs.txn, theirs.created_at_millis):
            return (
                f"the backup was written to since it was made: its version {backup.version} is not that of the "
                "lakehouse; export to another root URI"
            )
        return None

    def hole(self, backup: Lakehouse) -> str | None:
        """Return that a root of the backup is missing, where it opens at the version before it; else ``None``."""
        try:
            backup.backend.versions.refuse_hole(backup.version)
        except Corrupt as error:
            return f"the backup is not complete: {error}; export again, which creates the roots that are missing"
        return None

    def compared(self, backup: Lakehouse) -> Iterator[str]:
        try:
            source = self.lake.at(version=backup.version)
        except VersionNotFound:
            yield (
                f"version {backup.version}, the newest one of the backup, has expired at the lakehouse, so they cannot "
                "be compared; export again"
            )
            return
        ours = digest(self.engine, source, self.progress)
        self.report = replace(self.report, source_digest=ours)
        try:
            theirs = digest(self.engine, backup, self.progress)
        except Corrupt as error:
            yield f"the backup cannot be read: {error}; export to another root URI, this one is damaged"
            return
        finally:
            self.watch.lap("compare")
        self.report = replace(self.report, digest=theirs)
        if theirs != ours:
            yield (
                f"version {backup.version} of the backup has another content than that of the lakehouse; export to "
                "another root URI"
            )

    def verified(self, backup: Lakehouse) -> Iterator[str]:
        how = verify.Config(
            backup.version,
            definitions=self.config.definitions,
            engine=self.report.engine,
            tables=EVERY if self.config.tables else None,
            deep=self.config.tables,
        )
        done = verify.run(self.target, how, self.spark, progress=self.progress)
        self.report = replace(self.report, findings=done.findings, nodes_read=done.nodes_read)
        self.watch.lap("verify")
        if not done.ok:
            first = done.findings[0]
            yield (
                f"{len(done.findings) + done.more} invariants of the backup are broken, {first.invariant} for one: "
                f"{first.message} ({first.file}); export to another root URI, this one is damaged"
            )
        elif done.definitions_proved < done.definitions_read and self.report.source_digest is not None:
            # a changed file of the same size cannot be detected otherwise
            found = compare_definitions(self.engine, self.lake.storage, backup, self.progress)
            self.report = replace(self.report, definitions_compared=found.compared)
            if found.different:
                yield (
                    f"{found.different} definitions of the backup are not those of the lakehouse, {found.example} for "
                    "one; verify the lakehouse, then export to another root URI"
                )

    def too_old(self, version: int) -> Iterator[str]:
        if version == self.lake.version:
            return
        roots, newest = self.lake.backend.versions, self.lake.root_node
        first = roots.try_readable(version + 1, newest) or roots.try_readable(newest.oldest_version, newest)
        committed = (first or self.lake.root_node).created_at_millis
        since = from_millis(committed)
        self.report = replace(self.report, unsaved_since=since)
        now = now_millis() if self.config.now_millis is None else self.config.now_millis
        age = (now - committed) / 1000
        if self.config.max_age_seconds is not None and age > self.config.max_age_seconds:
            yield (
                f"what was committed since {since.isoformat(timespec='seconds')} is in no backup: "
                f"it holds version {version}, the lakehouse {self.lake.version}; export again"
            )

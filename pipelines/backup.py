"""Verifies that a backup, a repeated export, could replace its lakehouse, by reading it (format, section 6).

1. **open** it: is it a lakehouse, and an export of this one without commits of its own;
2. **digest**: its newest version exists at the source, and both have the same content;
3. **verify** as `verify` does, with every definition: that version, and each older one that the lakehouse still keeps.
   These expire here next, and then the backup alone has them;
4. **lag**: how long the versions that it lacks have been waiting.

Each problem is reported in a sentence with its remedy. Nothing is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pipelines import verify
from pipelines.copy.damaged_files import is_sound
from pipelines.engine import Engine
from pipelines.engine.choice import choose_engine_for_all
from pipelines.integrity.digest import digest
from pipelines.integrity.findings import Finding, findings_table
from pipelines.job import Progress, Session, Stopwatch, refuse_unknown, silent
from pipelines.reach.table_files import EVERY
from pipelines.reports.summary import Table, count
from trinitylake_core import Lakehouse, clock
from trinitylake_core.errors import Corrupt, InvalidDefinition, NotALakehouse, VersionNotFound
from trinitylake_core.locations import parse
from trinitylake_core.short_repr import ShortRepr
from trinitylake_core.storage import Storage, same_place, storage_at
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
        versions_verified: how many versions of the backup were proved: those that the lakehouse keeps, too.
        is_lost_here: whether the lakehouse itself has nothing better than what the findings are about, and the newest
            version of the backup does not need it: the backup has everything else.
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
    versions_verified: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    is_lost_here: bool = False

    @property
    def ok(self) -> bool:
        """Whether the backup is good."""
        return not self.problems

    def concerns_lost_only(self) -> bool:
        """Return whether the only problem is what the lakehouse has lost, too."""
        return self.is_lost_here and len(self.problems) == 1

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

    Of the backup that is every version that the lakehouse keeps, too; each node that they share is read once.

    Raises:
        StorageError: one of the storages failed; the state of the backup is unknown.
        Corrupt: the lakehouse itself is damaged.
    """
    config = config or Config()
    progress = progress or silent
    target = storage_at(target_root, storage_options)
    lake.refresh()
    lake.backend.versions.refuse_hole(lake.version)
    engine = choose_engine_for_all(config.engine, spark, lake.root_node)
    watch = Stopwatch()
    facts: dict[str, Any] = {}
    problems: list[str] = []
    backup, problem = _open_backup(target)
    if backup is not None:
        facts["version"] = backup.version
        problem = _find_mismatch(lake, backup) or _find_hole(backup)
    if problem is not None:
        problems.append(problem)
    elif backup is not None:
        problems += _compare_digests(engine, lake, backup, facts, progress)
        watch.lap("compare")
        problems += _verify(
            backup,
            lake,
            config,
            engine.name,
            spark,
            facts,
            progress,
        )
        watch.lap("verify")
        problems += _find_lag(lake, backup.version, config, facts)
    return Report(
        source=lake.root,
        target=target.root,
        engine=engine.name,
        source_version=lake.version,
        problems=problems,
        seconds=watch.seconds,
        **facts,
    )


# -- open ----------------------------------------------------------------------------------------------


def _open_backup(target: Storage) -> tuple[Lakehouse | None, str | None]:
    """Return the backup, or why there is none."""
    try:
        return Lakehouse.open(target), None
    except NotALakehouse:
        return None, f"there is no backup at {target.root}; export to it"
    except (Corrupt, InvalidDefinition) as error:
        return None, f"the backup cannot be opened: {error}; export to another root URI, this one is damaged"


def _find_mismatch(lake: Lakehouse, backup: Lakehouse) -> str | None:
    """Return the reason for which a lakehouse is no backup of this one; ``None`` if it is one."""
    if same_place(backup.root, lake.root):
        return f"{backup.root} is the lakehouse itself, and no backup of it; export to another root URI"
    if backup.definition.id != lake.definition.id:
        return f"{backup.root} holds another lakehouse; export to another root URI"
    if backup.version > lake.version:
        return (
            f"the backup holds version {backup.version}, newer than version {lake.version} of the lakehouse, which "
            "WENT BACK IN TIME, unless somebody commits to the backup. It may be the only copy of those between: "
            "do not remove it. Stop the writers, and see the runbook, 'A bucket was set back'"
        )
    if backup.version < lake.root_node.oldest_version:
        return None  # it has expired here; what lies under its name may be of a late writer
    ours = lake.backend.versions.try_root(backup.version)
    theirs = backup.root_node
    if ours is not None and (ours.txn, ours.created_at_millis) != (theirs.txn, theirs.created_at_millis):
        return (
            f"the backup was written to since it was made, or the lakehouse WENT BACK IN TIME and went on: version "
            f"{backup.version} is another one on each side. Do not remove the backup; see the runbook, 'A bucket was "
            "set back', and export to another root URI"
        )
    return None


def _find_hole(backup: Lakehouse) -> str | None:
    """Return that a root of the backup is missing, where it opens at the version before it; else ``None``."""
    try:
        backup.backend.versions.refuse_hole(backup.version)
    except Corrupt as error:
        return f"the backup is not complete: {error}; export again, which creates the roots that are missing"
    return None


# -- digest, verify, lag: each notes its facts, and yields what is wrong ---------------------------------


def _compare_digests(
    engine: Engine,
    lake: Lakehouse,
    backup: Lakehouse,
    facts: dict[str, Any],
    progress: Progress,
) -> Iterator[str]:
    try:
        source = lake.at(version=backup.version)
    except VersionNotFound:
        yield (
            f"version {backup.version}, the newest one of the backup, has expired at the lakehouse, so they cannot "
            "be compared; export again"
        )
        return
    facts["source_digest"] = digest(engine, source, progress)
    try:
        facts["digest"] = digest(engine, backup, progress)
    except Corrupt as error:
        yield f"the backup cannot be read: {error}; export to another root URI, this one is damaged"
        return
    if facts["digest"] != facts["source_digest"]:
        yield (
            f"version {backup.version} of the backup has another content than that of the lakehouse; export to "
            "another root URI"
        )


def _verify(
    backup: Lakehouse,
    lake: Lakehouse,
    config: Config,
    engine: str,
    spark: Session,
    facts: dict[str, Any],
    progress: Progress,
) -> Iterator[str]:
    target = backup.storage
    how = verify.Config(
        verify.ALL,
        oldest=lake.root_node.oldest_version,
        definitions=config.definitions,
        engine=engine,
        tables=EVERY if config.tables else None,
        deep=config.tables,
    )
    done = verify.run(target, how, spark, progress=progress)
    facts["findings"] = done.findings
    facts["versions_verified"] = len(done.versions)
    facts["nodes_read"] = done.nodes_read
    if done.unseen:
        yield f"the backup is not proved: {done.unseen[0].message}"
    if done.findings:
        first = done.findings[0]
        broken = count(len(done.findings) + done.more, "invariant")
        if first.file in first.message:
            place = ""
        else:
            place = f" ({first.file})"
        lost = []
        if "digest" in facts:  # else the newest version cannot be read
            broken_files = {each.file for each in done.findings}  # few, and the objects may be millions
            needed = {each.path for each in backup.objects() if each.path in broken_files}
            lost = [each for each in done.findings if each.file not in needed and _is_lost(lake, backup, each)]
        facts["is_lost_here"] = len(lost) == len(done.findings) + done.more
        if facts["is_lost_here"]:
            yield (
                f"neither the lakehouse nor the backup has what older versions or snapshots need: {broken} broken, "
                f"{first.invariant} for one: {first.message}{place}; the backup has everything else"
            )
            return
        yield (
            f"the backup breaks {broken}, {first.invariant} for one: {first.message}{place}; `trinitylake mend "
            f"{target.root} --from {lake.root} --reason REASON` puts back what the lakehouse has, or export to another "
            "root URI, this one is damaged"
        )


def _is_lost(lake: Lakehouse, backup: Lakehouse, finding: Finding) -> bool:
    """Return whether a finding is about a file that the lakehouse has no better, and no newest version needs.

    REQUIRES: no object of the newest version has its definition there: of one the first version is known that has it.
    Two ``get``.
    """
    known = finding.versions
    is_old = bool(known) and known[-1] < backup.version
    path = finding.file
    if (finding.snapshot is None and not is_old) or parse(path) is None:
        return False
    ours = lake.storage.read_or_missing(path)
    theirs = backup.storage.read_or_missing(path)
    return ours == theirs or not is_sound(path, ours)


def _find_lag(
    lake: Lakehouse,
    version: int,
    config: Config,
    facts: dict[str, Any],
) -> Iterator[str]:
    if version == lake.version:
        return
    roots = lake.backend.versions
    newest = lake.root_node
    first = roots.try_readable(version + 1, newest)
    if not first:  # it has expired
        first = roots.try_readable(newest.oldest_version, newest) or newest
    since = from_millis(first.created_at_millis)
    facts["unsaved_since"] = since
    if config.now_millis is None:
        now = clock.now_millis()
    else:
        now = config.now_millis
    age_seconds = (now - first.created_at_millis) / 1000
    if config.max_age_seconds is not None and age_seconds > config.max_age_seconds:
        yield (
            f"what was committed since {since.isoformat(timespec='seconds')} is in no backup: "
            f"it holds version {version}, the lakehouse {lake.version}; export again"
        )

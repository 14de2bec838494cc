"""Mending: single damaged files, versions that are lost for good, and fences of a clock that was wrong.

* **Files** (``source``): what is missing or damaged is put back from a backup, if the bytes there prove what they are
  (:mod:`pipelines.copy.damaged_files`). Nothing that can be read is ever replaced, but a definition that has lost its
  end, and with it the checksum that its copy has.
* **Versions** (``lost``): those of which nobody has the files any more are marked, so that jobs go on without them.
  What only they reach is kept no longer. The mark stands in the place of the root, before what is there; and the
  lakehouse definition names the version. Where a root is missing, the mark fills the hole in the history.
* **Fences**, without both: every commit of tables is refused until the time of a fence has come that lies in the
  future, because a clock was wrong when a lakehouse or its tables were cleaned. The version that this job commits has
  an earlier one: later than the time of every file that is there now. Why that is safe: format, section 6, "A fence in
  the future".
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pipelines import verify
from pipelines.copy.damaged_files import find_copy, put_back
from pipelines.copy.plan import PREFIXES
from pipelines.job import NEVER_CANCELLED, Cancel, JobRun, Progress, Review, Session, refuse_unknown, silent
from pipelines.reports.summary import Table, count
from trinitylake_core import Lakehouse, spec
from trinitylake_core.commits.changes import MendedFences, NewDefinition, commit_summary
from trinitylake_core.commits.commit import commit, require_writable
from trinitylake_core.commits.fences import CLOCKS_DIFFER_MILLIS, measure_storage_time, show_time
from trinitylake_core.definitions import LakehouseDef, altered_lakehouse, lost_versions
from trinitylake_core.errors import Corrupt, FileMissing, InvalidDefinition, InvalidInput, Refused
from trinitylake_core.locations import parse
from trinitylake_core.recovery.plan import require_reason
from trinitylake_core.short_repr import ShortRepr, first_of
from trinitylake_core.storage import Storage, open_storage, same_place
from trinitylake_core.versions import LOST_MARK, Root
from trinitylake_core.versions.search import listed_versions

_LEDGER: Final = logging.getLogger("pipelines.ledger")
_QUOTED: Final = re.compile("'([^']+)'")
_SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class Config:
    """What is mended, and why: required, and recorded in the history, or in the ledger where no version is made.

    Attributes:
        source: root URI of a backup: put missing and damaged files back from there.
        source_options: storage options of the backup.
        lost: versions to mark as lost.
        engine: the engine that verifies the lakehouse: ``spark``, ``local`` or ``auto``.
    """

    reason: str | None = None
    source: str | None = None
    source_options: Mapping[str, Any] | None = field(default=None, repr=False)
    lost: tuple[int, ...] = ()
    engine: str = "auto"

    def __post_init__(self) -> None:
        require_reason(self.reason)
        refuse_unknown(self.engine)
        if self.source is not None and self.lost:
            raise InvalidInput("put back what the backup has first, then mark what is left: two runs")


@dataclass(frozen=True, slots=True, repr=False)
class Report(ShortRepr):
    """What was mended, or on a dry run would be.

    Attributes:
        version: the newest version before.
        version_after: the version that was committed; ``None`` if nothing was.
        mended: the system rows that lay in the future, each with its time, in epoch milliseconds.
        time_millis: the time that they have now.
        files: what was put back.
        left: what is damaged still, each with the reason.
        lost: the versions that were marked as lost.
    """

    root: str
    version: int
    dry_run: bool
    mended: dict[str, int] = field(default_factory=dict)
    time_millis: int = 0
    version_after: int | None = None
    files: list[str] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)
    lost: list[int] = field(default_factory=list)
    source: str | None = None

    def summary(self) -> Iterator[str]:
        """Yield what was mended."""
        if not (self.mended or self.files or self.left or self.lost):
            yield "nothing to do: " + ("no fence lies in the future" if self.source is None else "no file is damaged")
            return
        if self.dry_run:
            what = "dry run, nothing was changed"
        else:
            what = f"version {self.version_after} committed"
        if self.files:
            named = f"{count(len(self.files), 'file')}: {first_of(self.files, _SHOWN)}"
            if self.dry_run:
                yield f"{what}: to put back from {self.source}: {named}"
            else:
                yield f"put back from {self.source}: {named}"
        for path, why in self.left.items():
            yield f"still damaged: {path}: {why}"
        if self.left:
            yield "`rollback` leaves the newest version behind; `mend --lost V` lets all jobs go on without a version"
        if self.lost:
            versions = first_of([str(each) for each in self.lost], _SHOWN)
            yield f"{what}: marked as lost: {versions}; jobs go on without what only these versions reach"
        then = show_time(self.time_millis)
        for name, before in self.mended.items():
            yield f"{what}: {name} was {show_time(before)}, now {then}"
        if self.mended:
            yield "what writers have written before that and not yet committed is refused: they write it again"

    def summary_tables(self) -> Iterator[Table]:
        """Yield nothing."""
        yield from ()


def run(
    lake: Lakehouse,
    config: Config,
    spark: Session = None,
    *,
    review: Review[Report] | None = None,
    cancel: Cancel | None = None,
    progress: Progress | None = None,
) -> Report:
    """Mend files, versions or fences; the handle moves to the newest version.

    Costs, for fences: a listing of everything below the root, one ``put`` and one ``head`` for the storage's time, and
    a commit. For files: a verification of all versions with their definitions, and once more after each round that put
    something back; a listing of both sides where definitions have no checksum; what
    :mod:`pipelines.copy.damaged_files` costs. For versions: a verification of each, a
    ``create`` or ``put`` in the place of its root, and a commit.

    Raises:
        ClocksDisagree: the storage's clock and that of this process show different times; nothing was committed.
        Refused: a file is dated in the future, too; named.
        CommitConflict: a cleaning came in between; run it again.
        InvalidInput: a version to mark as lost is intact, the newest one, or not kept; or the backup is another one's.
        ReadOnly, StorageError.
    """
    done = _Mending(lake, config, spark, review, cancel or NEVER_CANCELLED, progress or silent).run()
    if done.version_after is not None:
        lake.catch_up()
    return done


class _Mending(JobRun[Config, Report]):
    """One run."""

    def run(self) -> Report:
        if self.config.source is not None:
            return self.mend_files(self.config.source)
        if self.config.lost:
            return self.mark_lost()
        return self.mend_fences()

    def verify(self, versions: int | str) -> verify.Report:
        how = verify.Config(versions, definitions=True, engine=self.config.engine)
        return verify.run(self.lake.storage, how, self.spark, progress=self.progress)

    def mend_files(self, source: str) -> Report:
        """Put back what is damaged, round after round: a root that can be read again names nodes, and these the rest.

        No version says so: what is mended may be the backup of the source, which takes no commits of its own.
        """
        lake = self.lake
        storage = lake.storage
        copy = open_storage(source, self.config.source_options)
        _refuse_other(lake, copy)
        report = Report(root=lake.root, version=lake.version, dry_run=False, source=copy.root)
        while True:
            found = self.verify(verify.ALL)
            names = [each for each in _files_in(found) if each not in report.files]
            if found.definitions_proved < found.definitions_read:
                names += _find_cut(storage, copy)
            outcomes = {path: find_copy(storage, copy, path) for path in names}
            report.left.clear()  # what was put back may prove more of it now
            report.left.update({path: why for path, (data, why) in outcomes.items() if why})
            to_put = [path for path, (data, _) in outcomes.items() if data is not None]
            planned = replace(report, dry_run=True, files=to_put)
            if to_put and not report.files and self.ends_with(planned):
                return planned
            for path in to_put:
                self.cancel.check()
                data, _ = outcomes[path]
                if data is not None:
                    put_back(storage, path, data)
                    report.files.append(path)
            if not to_put:
                break
        if report.files:
            about = {"reason": self.config.reason, "source": copy.root, "files": report.files}
            _LEDGER.info("mend %s: %s", lake.root, json.dumps(about, sort_keys=True))
        return report

    def mark_lost(self) -> Report:
        lake = self.lake
        backend = self.backend
        lost = sorted(set(self.config.lost))
        boundary, last = backend.versions.boundary(), max(listed_versions(backend.versions))
        for version in lost:
            if not boundary <= version < last:
                raise InvalidInput(f"version {version} is not one of those from {boundary} to {last - 1}")
            if self.verify(version).ok:
                raise InvalidInput(f"version {version} is intact; nothing was changed")
        planned = Report(root=lake.root, version=lake.version, dry_run=True, lost=lost)
        if self.ends_with(planned):
            return planned
        for version in lost:
            self.cancel.check()
            _fill_place(lake, version)
        newest = backend.newest()  # after that: a search ends at a hole
        backend.versions.refuse_hole(newest.version)
        backend.note_newest(newest)

        def edit(before: LakehouseDef, base: Root) -> LakehouseDef:
            every = {*lost_versions(before), *lost}
            kept = [str(each) for each in sorted(every) if each >= base.oldest_version]
            return altered_lakehouse(before, properties={spec.LOST_VERSIONS: ",".join(kept)})

        change = NewDefinition(backend, spec.OP_ALTER, commit_summary(reason=self.config.reason, lost=lost), edit)
        made = commit(backend, newest, change, before_commit=self.cancel.check)
        return replace(planned, version=made.version - 1, dry_run=False, version_after=made.version)

    def mend_fences(self) -> Report:
        backend = self.backend
        newest = backend.newest()
        backend.note_newest(newest)
        require_writable(backend, newest)
        now = measure_storage_time(backend)
        mends = MendedFences(now + CLOCKS_DIFFER_MILLIS, commit_summary(reason=self.config.reason))
        ahead = mends.find_ahead(newest)
        if not ahead:
            return Report(root=self.lake.root, version=newest.version, dry_run=False)
        mends.void_before_millis = _find_newest_time(backend.storage, now) + 1
        planned = Report(
            root=self.lake.root,
            version=newest.version,
            dry_run=True,
            mended=ahead,
            time_millis=mends.void_before_millis,
        )
        if self.ends_with(planned):
            return planned
        root = commit(backend, newest, mends, before_commit=self.cancel.check)
        return replace(planned, dry_run=False, version_after=root.version)


# -- files -------------------------------------------------------------------------------------------------


def _refuse_other(lake: Lakehouse, copy: Storage) -> None:
    there = Lakehouse.open(copy, damaged=True)
    if same_place(copy.root, lake.root) or there.definition.id != _find_id(lake):
        raise InvalidInput(f"{copy.root} is no backup of {lake.root}: it is the same place, or another lakehouse")


def _find_id(lake: Lakehouse) -> str:
    """Return the ID in the newest version whose lakehouse definition is here: the root may be one of another lakehouse.

    A ``list`` of the roots, and two ``get`` a version until one is found.
    """
    versions = lake.backend.versions
    for version in sorted(listed_versions(versions), reverse=True):
        (root,) = versions.read_roots([version])
        if root is None or root.unreadable is not None:
            continue
        with suppress(Corrupt, InvalidDefinition):
            return versions.definition_file(root).id
    return lake.definition.id


def _files_in(found: verify.Report) -> list[str]:
    """Return the files that findings name, each once, if their names are of the format."""
    names = []
    for finding in found.findings:
        names += [finding.file, *_QUOTED.findall(finding.message)]
    return [each for each in dict.fromkeys(names) if parse(each) is not None]


def _find_cut(storage: Storage, copy: Storage) -> Iterator[str]:
    """Yield the files that are shorter here than in a copy. Memory: the sizes of a sixteenth of the copy's files."""
    for prefix in PREFIXES:
        sizes = {file.path: file.size for file in copy.list(prefix)}
        for file in storage.list(prefix):
            if file.size < sizes.get(file.path, 0):
                yield file.path


# -- versions ----------------------------------------------------------------------------------------------


def _fill_place(lake: Lakehouse, version: int) -> None:
    """Put the mark where a root is missing, or before what is there. A ``get`` and a write."""
    path = lake.backend.versions.path(version)
    try:
        before = lake.storage.read(path)
    except FileMissing:
        lake.storage.create(path, LOST_MARK)
        return
    if not before.startswith(LOST_MARK):
        lake.storage.replace(path, LOST_MARK + before)


# -- fences ------------------------------------------------------------------------------------------------


def _find_newest_time(storage: Storage, now: int) -> int:
    """Return a time that no file is younger than, by the storage's clock. Raises ``Refused``: one is dated ahead."""
    newest = now
    for file in storage.list():
        if file.modified_millis > now + CLOCKS_DIFFER_MILLIS:
            raise Refused(
                f"{file.path} is dated {show_time(file.modified_millis)}, in the future: it was stored while the "
                "clock was ahead. Give it the time of now (`touch` on a disk, a copy onto itself in an object store), "
                "and run this again"
            )
        newest = max(newest, file.modified_millis)
    return newest

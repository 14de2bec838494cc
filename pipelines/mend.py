"""Mending a fence that lies in the future, because a clock was wrong when a lakehouse or its tables were cleaned.

Every commit of tables is refused until the time of such a fence has come. The version that this job commits has an
earlier one: later than the time of every file that is there now. Why that is safe: format, section 6, "A fence in the
future".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pipelines.job import NEVER_CANCELLED, Cancel, Review
from pipelines.summary import Table
from trinitylake_core import Lakehouse
from trinitylake_core.commits.changes import MendedFences, commit_summary
from trinitylake_core.commits.commit import commit, require_writable
from trinitylake_core.commits.fences import CLOCKS_DIFFER_MILLIS, measure_storage_time, show_time
from trinitylake_core.errors import Refused
from trinitylake_core.recovery.plan import require_reason
from trinitylake_core.short_repr import ShortRepr
from trinitylake_core.storage import Storage


@dataclass(frozen=True, slots=True)
class Config:
    """Why it is mended; required, and recorded in the history."""

    reason: str | None = None

    def __post_init__(self) -> None:
        require_reason(self.reason)


@dataclass(frozen=True, slots=True, repr=False)
class Report(ShortRepr):
    """What was mended, or on a dry run would be.

    Attributes:
        version: the newest version before.
        version_after: the version that was committed; ``None`` if nothing was.
        mended: the system rows that lay in the future, each with its time, in epoch milliseconds.
        time_millis: the time that they have now.
    """

    root: str
    version: int
    dry_run: bool
    mended: dict[str, int]
    time_millis: int
    version_after: int | None = None

    def summary(self) -> Iterator[str]:
        """Yield what was mended."""
        if not self.mended:
            yield "nothing to do: no fence lies in the future"
            return
        then = show_time(self.time_millis)
        if self.dry_run:
            what = "dry run, nothing was changed"
        else:
            what = f"version {self.version_after} committed"
        for name, before in self.mended.items():
            yield f"{what}: {name} was {show_time(before)}, now {then}"
        yield "what writers have written before that and not yet committed is refused: they write it again"

    def summary_tables(self) -> Iterator[Table]:
        """Yield nothing."""
        yield from ()


def run(
    lake: Lakehouse,
    config: Config,
    *,
    review: Review[Report] | None = None,
    cancel: Cancel | None = None,
) -> Report:
    """Commit earlier fences in the place of those that lie in the future.

    Costs a listing of everything below the root, one ``put`` and one ``head`` for the storage's time, and a commit.

    Raises:
        ClocksDisagree: the storage's clock and that of this process show different times; nothing was committed.
        Refused: a file is dated in the future, too; named.
        CommitConflict: a cleaning came in between; run it again.
        ReadOnly, StorageError.
    """
    backend = lake.backend
    newest = backend.newest()
    backend.note_newest(newest)
    require_writable(backend, newest)
    now = measure_storage_time(backend)
    mends = MendedFences(now + CLOCKS_DIFFER_MILLIS, commit_summary(reason=config.reason))
    ahead = mends.find_ahead(newest)
    if not ahead:
        return Report(
            root=lake.root,
            version=newest.version,
            dry_run=False,
            mended={},
            time_millis=0,
        )
    mends.void_before_millis = _find_newest_time(backend.storage, now) + 1
    planned = Report(
        root=lake.root,
        version=newest.version,
        dry_run=True,
        mended=ahead,
        time_millis=mends.void_before_millis,
    )
    if review is not None and not review(planned):
        return planned
    check = (cancel or NEVER_CANCELLED).check
    root = commit(backend, newest, mends, before_commit=check)
    lake.catch_up()
    return Report(
        root=lake.root,
        version=newest.version,
        dry_run=False,
        mended=ahead,
        time_millis=mends.void_before_millis,
        version_after=root.version,
    )


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

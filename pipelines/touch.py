"""A version with the content of the one before: proof that a process may write, and a mark in the history."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from pipelines.job import NEVER_CANCELLED, Cancel, Review
from pipelines.summary import Table
from trinitylake_core import Lakehouse, clock, spec
from trinitylake_core.commits.changes import NewDefinition, SameContent, commit_summary
from trinitylake_core.commits.commit import commit, require_writable
from trinitylake_core.definitions import LakehouseDef, altered_lakehouse
from trinitylake_core.recovery.plan import require_reason
from trinitylake_core.short_repr import ShortRepr
from trinitylake_core.versions import Root


@dataclass(frozen=True, slots=True)
class Config:
    """Why the version is made; required, and recorded in the history.

    With ``accept`` it also says that the history is right as it is: the lakehouse went back in time, and goes on.
    """

    reason: str | None = None
    accept: bool = False

    def __post_init__(self) -> None:
        require_reason(self.reason)


@dataclass(frozen=True, slots=True, repr=False)
class Report(ShortRepr):
    """What was committed, or on a dry run would be.

    Attributes:
        version: the newest version before.
        version_after: the version that was committed; ``None`` on a dry run.
    """

    root: str
    version: int
    dry_run: bool
    version_after: int | None = None

    def summary(self) -> Iterator[str]:
        """Yield what was committed."""
        if self.dry_run:
            yield f"dry run, nothing was changed: a version with the content of version {self.version} would follow it"
        else:
            yield f"version {self.version_after} committed, with the content of the one before"

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
    """Commit a version that changes nothing. It conflicts with nothing, and a frozen lakehouse takes it.

    Costs what any small commit costs: the store's proof, a root and the hint. Nothing below the root is written.

    Raises:
        ReadOnly, UnsafeStorage: this lakehouse, or this store, is not to be written.
        CommitConflict: others committed first, again and again.
        StorageError: among others that these credentials may not write.
    """
    backend = lake.backend
    newest = backend.newest()
    backend.note_newest(newest)
    require_writable(backend, newest)
    planned = Report(root=lake.root, version=newest.version, dry_run=True)
    if review is not None and not review(planned):
        return planned
    check = (cancel or NEVER_CANCELLED).check
    change = SameContent(spec.OP_ALTER, commit_summary(reason=config.reason))
    if config.accept:
        now = str(clock.now_millis())

        def edit(before: LakehouseDef, _: Root) -> LakehouseDef:
            return altered_lakehouse(before, properties={spec.HISTORY_ACCEPTED: now})

        change = NewDefinition(backend, spec.OP_ALTER, commit_summary(reason=config.reason), edit)
    made = commit(backend, newest, change, before_commit=check)
    lake.catch_up()
    return replace(planned, version=made.version - 1, dry_run=False, version_after=made.version)

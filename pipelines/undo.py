"""Undo: find the versions of an author, a reason or a time, and roll back to the version before them.

For the engineer who knows "the deploy bot, a quarter of an hour ago" and not a version number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from pipelines import rollback
from pipelines.history import changes_objects, selector
from pipelines.job import Cancel, Progress, Review, Session, dry_run, refuse_unknown
from pipelines.reports.summary import Table, versions_table
from trinitylake_core import InvalidInput, Lakehouse, Refused, VersionInfo, VersionNotFound
from trinitylake_core.recovery.plan import require_reason
from trinitylake_core.recovery.target import read_moment, refuse_no_moment
from trinitylake_core.short_repr import ShortRepr, first_of
from trinitylake_core.versions import Member

_NAMED: Final = 5
"""How many versions, and how many authors of one, an error names."""


@dataclass(frozen=True, slots=True)
class Config:
    """What to undo: ``last``, or at least one of ``since``, ``author`` and ``matching``.

    With ``since`` alone, all versions that were committed then or later are undone. With an author or a text, the
    newest matching versions in a row are undone; a version that changes no object (compaction, snapshot, ...) does not
    interrupt a row.

    Attributes:
        last: the newest version that changed objects, whoever committed it.
        since: only versions committed at this time or later: ISO 8601, UTC, an age such as ``10m``, or ``HEAD~3``.
        author: the author of the versions, a pattern with ``*`` and ``?``.
        matching: a text that the reason of the versions contains; upper and lower case are the same.
        others: also undo the commits of other authors after them, or in the same version; without it, such commits
            refuse the undo.
        reason: why it is undone; required, and recorded in the history.
        force: also undo what other writers commit while this runs.
        expected_version: the newest version when the plan that you reviewed was made.
        engine: the engine of the proof, as of a rollback.
    """

    since: str | None = None
    author: str | None = None
    matching: str | None = None
    others: bool = False
    reason: str | None = None
    force: bool = False
    expected_version: int | None = None
    engine: str = "auto"
    last: bool = False

    def __post_init__(self) -> None:
        refuse_unknown(self.engine)
        require_reason(self.reason)
        if self.last and (self.since or self.author or self.matching):
            raise InvalidInput("undo takes either last, or one or more of since, author and matching")
        if not (self.last or self.since or self.author or self.matching):
            raise InvalidInput("undo needs at least one of since, author and matching, or last")
        if self.since:
            refuse_no_moment(self.since)


@dataclass(frozen=True, slots=True, repr=False)
class Report(ShortRepr):
    """The result of an undo, or of its dry run.

    Attributes:
        undone: the versions that match, newest first.
        others: versions of other authors after the first of them, which are undone with it; also those of a group
            of transactions of which not all match.
        rollback: the rollback to the version before it.
    """

    undone: tuple[VersionInfo, ...]
    others: tuple[VersionInfo, ...]
    rollback: rollback.Report

    def summary(self) -> Iterator[str]:
        """Yield what the rollback did, or would do."""
        yield from self.rollback.summary()

    def summary_tables(self) -> Iterator[Table]:
        """Yield what was found, what others committed after it, and what the rollback changes."""
        for title, what, versions in (
            ("found", "found", self.undone),
            ("of others", "by others, undone too", self.others),
        ):
            caption = ""
            if versions:
                caption = f"{what}: {len(versions)}"
            yield versions_table(title, versions, caption)
        yield from self.rollback.summary_tables()


def run(
    lake: Lakehouse,
    config: Config,
    spark: Session = None,
    *,
    review: Review[Report] | None = None,
    cancel: Cancel | None = None,
    progress: Progress | None = None,
) -> Report:
    """Undo; the handle moves to the newest version. One ``get`` per version that is read, then as a rollback.

    Raises:
        VersionNotFound: nothing matches.
        Refused: others committed after it, and ``others`` is not set; named.
        InvalidInput, VersionExpired, Corrupt, PlanOutdated, ReadOnly, StorageError: as a rollback.
    """
    newest, undone, others = find_versions(lake, config)
    if others and not (config.others or review is dry_run):
        selects = selector(config.author, config.matching)
        shown = []
        for each in others[:_NAMED]:
            shown.append(f"{each.version} by {_name_others(each, selects)}")
        named = first_of(shown, _NAMED, len(others))
        first = undone[-1].version
        if first < others[-1].version:
            since = f"after version {first}"
        else:
            since = f"in version {first}, or after it"
        raise Refused(
            f"others committed {since}: version {named}; undo these too with --others (in a launchpad `others: true`), "
            "or restore single objects"
        )
    done = rollback.run(
        lake,
        rollback.Config(
            version=undone[-1].version - 1,
            reason=config.reason,
            force=config.force,
            expected_version=newest if config.expected_version is None else config.expected_version,
            engine=config.engine,
        ),
        spark,
        review=None if review is None else lambda planned: review(Report(undone, others, planned)),
        cancel=cancel,
        progress=progress,
    )
    return Report(undone, others, done)


def find_versions(lake: Lakehouse, config: Config) -> tuple[int, tuple[VersionInfo, ...], tuple[VersionInfo, ...]]:
    """Return the newest version, the versions to undo, and those that others have made since the first of them.

    Newest first. A version of a group of which some transactions match and some do not is among both.
    """
    if not lake.unreadable:
        lake.refresh()
    newest = _find_newest(lake)
    since = None
    if config.since:
        since = read_moment(lake.backend, config.since)
    selects = selector(config.author, config.matching)
    is_row = bool(config.author or config.matching)
    undone: list[VersionInfo] = []
    others = list(lake.unreadable)
    for info in lake.history():
        if (since is not None and info.created_at_millis < since) or info.version == 0:
            break
        if not changes_objects(info):
            continue
        matching = [each for each in info.members if selects(each)]
        if undone and is_row and not matching:
            break
        if matching:
            undone.append(info)
        if len(matching) < len(info.members):
            others.append(info)
        if undone and config.last:
            break
    if not undone:
        raise VersionNotFound("no version that is kept matches; `history` lists all of them")
    return newest, tuple(undone), tuple(others)


def _find_newest(lake: Lakehouse) -> int:
    """Return the number of the newest version, which may be one that cannot be read."""
    if lake.unreadable:
        return lake.unreadable[0].version
    return lake.version


def _name_others(info: VersionInfo, selects: Callable[[Member], bool]) -> str:
    """Return the authors of those transactions of a version that do not match."""
    authors = []
    for each in info.members:
        if not selects(each):
            authors.append(each.author or "an unknown author")
    return first_of(list(dict.fromkeys(authors)), _NAMED) or "an unknown author"

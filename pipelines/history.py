"""The history as a table: who made which version, when and why; and which of them were one mistake."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import chain, islice
from typing import Final

from pipelines.reports.summary import Table, count, history_table
from trinitylake_core import InvalidInput, Lakehouse, VersionInfo, spec
from trinitylake_core.recovery.target import parse_moment, read_moment, refuse_no_moment
from trinitylake_core.short_repr import ShortRepr
from trinitylake_core.versions import Member

LIMIT: Final = 1000
"""The default number of versions in a report."""


@dataclass(frozen=True, slots=True)
class Config:
    """The versions to list.

    Attributes:
        limit: at most so many versions, newest first.
        since: only versions created at this time or later: ISO 8601, UTC, an age such as 2h or 3d, or HEAD~3.
        author: only versions with a transaction whose author matches this pattern, with ``*`` and ``?``.
        matching: only those with one whose reason contains this text; upper and lower case are the same.
        operations: only versions made by one of these: commit, compact, rollback, ...
    """

    limit: int = LIMIT
    since: str | None = None
    author: str | None = None
    matching: str | None = None
    operations: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.limit < 0:
            raise InvalidInput(f"the limit must not be negative: {self.limit}")
        if self.since is not None:
            refuse_no_moment(self.since)
            since = parse_moment(self.since)
            if isinstance(since, datetime):  # an age counts from now, not from when the history is read
                object.__setattr__(self, "since", since.isoformat())
        if unknown := sorted({*self.operations} - {*spec.OPERATIONS}):
            raise InvalidInput(f"operations: unknown {', '.join(unknown)}; there are {', '.join(spec.OPERATIONS)}")


@dataclass(frozen=True, slots=True, repr=False)
class Report(ShortRepr):
    """Versions, newest first; ``more`` is ``True`` if there are others which were not listed."""

    root: str
    version: int
    versions: tuple[VersionInfo, ...]
    more: bool

    def summary(self) -> Iterator[str]:
        """Yield how many versions there are."""
        if self.more:
            more = "; there are more"
        else:
            more = ""
        yield f"{count(len(self.versions), 'version')} of {self.root}, newest first{more}"

    def summary_tables(self) -> Iterator[Table]:
        """Yield the versions."""
        yield history_table(self.versions)


def run(lake: Lakehouse, config: Config | None = None) -> Report:
    """Return the history of the version of a handle. One ``get`` per version that is read.

    Versions after it that could not be read come first (``Lakehouse.open`` with ``damaged``).
    """
    config = config or Config()
    found = list(islice(matching(lake, config), config.limit + 1))
    return Report(lake.root, lake.version, tuple(found[: config.limit]), len(found) > config.limit)


def matching(lake: Lakehouse, config: Config) -> Iterator[VersionInfo]:
    """Yield the versions that a configuration selects, newest first. Its limit is not applied."""
    since = None if config.since is None else read_moment(lake.backend, config.since)
    selects = selector(config.author, config.matching)
    for info in chain(lake.unreadable, lake.history()):
        if since is not None and info.created_at_millis < since:
            return
        is_wanted_operation = not config.operations or info.operation in config.operations
        if is_wanted_operation and any(map(selects, info.members)):
            yield info


def selector(author: str | None, reason: str | None) -> Callable[[Member], bool]:
    """Return a predicate that matches a transaction by its author and its reason.

    A version may be of several transactions (group commit): the two must be of the same one.
    """
    pattern = _compile_pattern(author or "*")
    wanted = (reason or "").casefold()

    def selects(member: Member) -> bool:
        if author is not None and not pattern.fullmatch(member.author or ""):
            return False
        return wanted in (member.reason or "").casefold()

    return selects


def _compile_pattern(text: str) -> re.Pattern[str]:
    """Return what matches a whole text: ``*`` is any number of characters, ``?`` is one, all others are themselves."""
    meanings = {"*": ".*", "?": "."}
    parts = [meanings.get(each) or re.escape(each) for each in text]
    return re.compile("".join(parts), re.DOTALL)


def changes_objects(info: VersionInfo) -> bool:
    """Whether a version may have changed objects; a version that cannot be read may have."""
    return info.operation not in spec.QUIET_OPERATIONS

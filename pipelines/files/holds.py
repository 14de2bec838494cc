"""Which versions an expiration keeps: which rule holds how many, and why (``docs/retention.md``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from pipelines.durations import millis, shown

NEWEST: Final = "the newest version"
KEEP_LAST: Final = "keep_last"
OLDER_THAN: Final = "older_than"
TTL: Final = "txn_ttl_millis"
OWN_VERSION: Final = "its own version"


@dataclass(frozen=True, slots=True)
class Hold:
    """What one rule keeps: all versions from one on. Rules overlap; the one that begins first decides.

    Attributes:
        rule: ``keep_last``, ``older_than``, ``txn_ttl_millis``, ``the newest version``, or ``its own version``: nothing
            would go but to make room for the version that the expiration itself commits.
        setting: what it is set to, for people: ``100``, ``7d``.
        first: the oldest version that it keeps.
        versions: how many it keeps.
    """

    rule: str
    setting: str
    first: int
    versions: int


@dataclass(frozen=True, slots=True)
class Rules:
    """What keeps versions, besides that the newest one always stays: each of these as far as it is given.

    Attributes:
        keep_last: that many of the newest versions.
        age_seconds: what is not older than that.
        ttl_millis: the same, of the lakehouse itself.
    """

    keep_last: int | None
    age_seconds: float | None
    ttl_millis: int

    def first_by_count(self, versions: range) -> int:
        """Return the first version that ``keep_last`` keeps, or else the newest one."""
        newest = versions[-1]
        return newest if self.keep_last is None else min(newest, newest - self.keep_last + 1)

    def boundary(self, created_at: Callable[[int], int], versions: range, now_millis: int) -> int:
        """Return the first version that a rule keeps. O(log versions) calls of ``created_at``.

        REQUIRES: ``created_at`` ascends.
        """
        since = now_millis - self.ttl_millis
        if self.age_seconds is not None:
            since = min(since, now_millis - millis(self.age_seconds))
        last = max(versions.start, self.first_by_count(versions))
        return _first_since(created_at, range(versions.start, last), since)

    def holds(self, created_at: Callable[[int], int], versions: range, now_millis: int) -> list[Hold]:
        """Return what each rule keeps, the one that keeps most first. O(log versions) calls for each of two rules.

        REQUIRES: ``created_at`` ascends.
        """

        def found() -> Iterator[Hold]:
            newest, oldest = versions[-1], versions.start
            yield _hold(NEWEST, "", newest, newest)
            if self.keep_last is not None:
                yield _hold(KEEP_LAST, str(self.keep_last), max(oldest, newest - max(self.keep_last, 1) + 1), newest)
            if self.age_seconds is not None:
                first = _first_since(created_at, versions, now_millis - millis(self.age_seconds))
                yield _hold(OLDER_THAN, shown(self.age_seconds), first, newest)
            ttl = self.ttl_millis
            yield _hold(TTL, shown(ttl / 1000), _first_since(created_at, versions, now_millis - ttl), newest)

        return sorted((each for each in found() if each.versions > 0), key=lambda each: each.first)


def _hold(rule: str, setting: str, first: int, newest: int) -> Hold:
    return Hold(rule, setting, first, newest - first + 1)


def _first_since(created_at: Callable[[int], int], versions: range, since: int) -> int:
    """Return the first of ``versions`` created at ``since`` or later; the one after them if there is none."""
    low, high = versions.start, versions.stop
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if created_at(middle) < since else (low, middle)
    return low

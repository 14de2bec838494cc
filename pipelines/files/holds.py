"""Why an expiration keeps versions: which rule holds how many (``docs/retention.md``)."""

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


def holds(
    created_at: Callable[[int], int],
    versions: range,
    now_millis: int,
    *,
    keep_last: int | None,
    age_seconds: float | None,
    ttl_millis: int,
) -> list[Hold]:
    """Return what each rule keeps of ``versions``, the one that keeps most first. O(log versions) calls.

    REQUIRES: ``created_at`` ascends.
    """

    def found() -> Iterator[Hold]:
        newest, oldest = versions[-1], versions[0]
        yield _hold(NEWEST, "", newest, newest)
        if keep_last is not None:
            yield _hold(KEEP_LAST, str(keep_last), max(oldest, newest - max(keep_last, 1) + 1), newest)
        if age_seconds is not None:
            first = _first_since(created_at, versions, now_millis - millis(age_seconds))
            yield _hold(OLDER_THAN, shown(age_seconds), first, newest)
        yield _hold(TTL, shown(ttl_millis / 1000), _first_since(created_at, versions, now_millis - ttl_millis), newest)

    return sorted((each for each in found() if each.versions > 0), key=lambda each: each.first)


def _hold(rule: str, setting: str, first: int, newest: int) -> Hold:
    return Hold(rule, setting, first, newest - first + 1)


def _first_since(created_at: Callable[[int], int], versions: range, since: int) -> int:
    """Return the first version created at ``since`` or later; the one after the newest if there is none."""
    low, high = versions[0], versions[-1] + 1
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if created_at(middle) < since else (low, middle)
    return low

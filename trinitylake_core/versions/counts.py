"""How many objects a version holds: exactly, or between two bounds (format, section 3, "Object counts")."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, TypeAlias

from trinitylake_core import spec

_DIGITS: Final = 40
"""No number in a root has more: far more than any has, and far fewer than Python refuses to read."""
_ROWS: Final = (spec.NAMESPACES, spec.TABLES, spec.VIEWS)
SystemRows: TypeAlias = dict[str, str | None]
"""Rows of a root that describe its version, by name; ``None``: there is none of this name."""


class ObjectCounts(NamedTuple):
    """How many objects a version holds, or by how many it differs from another, by kind."""

    namespaces: int = 0
    tables: int = 0
    views: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return sum(self)

    def plus(self, other: ObjectCounts) -> ObjectCounts:
        """Return the sum."""
        return ObjectCounts(
            self.namespaces + other.namespaces,
            self.tables + other.tables,
            self.views + other.views,
        )

    def less(self, other: ObjectCounts) -> ObjectCounts:
        """Return the difference."""
        return ObjectCounts(
            self.namespaces - other.namespaces,
            self.tables - other.tables,
            self.views - other.views,
        )


class CountBounds(NamedTuple):
    """How many objects a version holds at least and at most; or the same of a difference between versions.

    Each message of which it is not known whether its key is there moves one of the bounds: one that sets a key may
    add an object, one that deletes a key may take one away. So ``least`` may be negative, and that is no error. Sums
    and differences of bounds are exact: those of a version are those of the one before, and what its messages gain.
    """

    least: ObjectCounts = ObjectCounts()
    most: ObjectCounts = ObjectCounts()

    @classmethod
    def exactly(cls, counts: ObjectCounts | None) -> CountBounds | None:
        """Return the bounds of counts that are known; ``None`` of ``None``."""
        return None if counts is None else cls(counts, counts)

    @property
    def exact(self) -> ObjectCounts | None:
        """The number of objects, if it is known."""
        return self.least if self.least == self.most else None

    @property
    def uncertain(self) -> int:
        """The number of messages of which it is not known whether they create or delete an object."""
        return self.most.total - self.least.total

    def plus(self, gained: CountBounds | None) -> CountBounds | None:
        """Return the bounds after a difference; ``None`` if that is unknown."""
        if gained is None:
            return None
        return CountBounds(self.least.plus(gained.least), self.most.plus(gained.most))

    def gained_since(self, before: CountBounds | None) -> CountBounds | None:
        """Return the bounds of the difference from an earlier version; ``None`` if that one has none."""
        if before is None:
            return None
        return CountBounds(self.least.less(before.least), self.most.less(before.most))

    def rows(self) -> SystemRows:
        """Return the system rows of the counts: three where they are exact, else one."""
        if self.exact is not None:
            return dict(zip(_ROWS, map(str, self.least), strict=True))
        pairs = zip(self.least, self.most, strict=True)
        return {spec.COUNT_BOUNDS: ",".join(f"{least},{most}" for least, most in pairs)}


def sum_bounds(gains: Iterable[CountBounds]) -> CountBounds:
    """Return the sum of differences."""
    total = CountBounds()
    for least, most in gains:
        total = CountBounds(total.least.plus(least), total.most.plus(most))
    return total


def is_number(text: str) -> bool:
    """Whether the text of a row is a number, and not one of more digits than Python converts."""
    return text.isascii() and text.isdecimal() and len(text) <= _DIGITS


def counts_in(system: Mapping[str, str]) -> ObjectCounts | None:
    """Return the exact object counts in the system rows of a root; ``None`` where one is missing or no number."""
    texts = [system.get(name, "") for name in _ROWS]
    if not all(map(is_number, texts)):
        return None
    namespaces, tables, views = map(int, texts)
    return ObjectCounts(namespaces, tables, views)


def bounds_in(system: Mapping[str, str]) -> CountBounds | None:
    """Return the bounds of the object counts in the system rows of a root; ``None`` where there are none."""
    exact = CountBounds.exactly(counts_in(system))
    if exact is not None:
        return exact
    numbers = parse_bounds(system.get(spec.COUNT_BOUNDS, ""))
    if numbers is None:
        return None
    return CountBounds(ObjectCounts(*numbers[::2]), ObjectCounts(*numbers[1::2]))


def parse_bounds(text: str) -> list[int] | None:
    """Return the six numbers of the row ``count_bounds``, each least one before its most; ``None`` if it is none."""
    parts = text.split(",")
    if len(parts) != 2 * len(_ROWS) or not all(is_number(part.removeprefix("-")) for part in parts):
        return None
    numbers = [int(part) for part in parts]
    is_in_order = all(least <= most for least, most in zip(numbers[::2], numbers[1::2], strict=True))
    return numbers if is_in_order else None

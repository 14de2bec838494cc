"""What a transaction depends on, and which versions conflict with it (format, section 6)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from trinitylake_core.commits.bulk import BulkDelta
from trinitylake_core.diff import Span
from trinitylake_core.keys import KeyRange
from trinitylake_core.tree.node import Meaning, Messages
from trinitylake_core.versions import Delta

_FOUND: Final = 100
"""So many keys that a bulk version touched are looked for: an error names a few."""


@dataclass(slots=True)
class Footprint:
    """What a transaction depends on, for conflict detection.

    ``needs``: keys that must not be deleted by others; ``closed``: ranges in which others must set
    nothing; ``keys`` and ``ranges``: what was read, which counts under SERIALIZABLE only.
    """

    needs: set[str] = field(default_factory=set)
    closed: list[KeyRange] = field(default_factory=list)
    keys: set[str] = field(default_factory=set)
    ranges: list[KeyRange] = field(default_factory=list)

    def against(self, writes: Mapping[str, object], *, serializable: bool) -> Conflicts:
        """Return a detector of conflicts with this footprint and with the writes of the transaction.

        Costs ranges times log ranges comparisons, once for all the versions that are compared.
        """
        return Conflicts(
            writes=writes,
            needs=frozenset(self.needs),
            closed=MergedRanges(self.closed),
            keys=frozenset(self.keys if serializable else ()),
            ranges=MergedRanges(self.ranges if serializable else ()),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the footprint as JSON data, for a saved transaction."""
        return {
            "needs": sorted(self.needs),
            "keys": sorted(self.keys),
            "closed": [[each.lo, each.hi] for each in self.closed],
            "ranges": [[each.lo, each.hi] for each in self.ranges],
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any] | None) -> Footprint:
        """Return the footprint in the data of :meth:`to_json`."""
        if found is None:
            return cls()
        closed = [KeyRange(lo, hi) for lo, hi in found["closed"]]
        ranges = [KeyRange(lo, hi) for lo, hi in found["ranges"]]
        needs = set(found["needs"])
        keys = set(found["keys"])
        return cls(needs, closed, keys, ranges)


@dataclass(frozen=True, slots=True)
class Conflicts:
    """A footprint that is prepared for comparisons with many versions."""

    writes: Mapping[str, object]
    needs: frozenset[str]
    closed: MergedRanges
    keys: frozenset[str]
    ranges: MergedRanges

    def find_changed(self, delta: Delta) -> list[str]:
        """Return the keys that another version changed and that this one may not overlook; of a bulk version some.

        No request, but of a bulk version: it is asked for what this depends on, or for all that it changed if that is
        less. Memory grows with the dependencies, whatever the other version changed.
        """
        if not isinstance(delta, BulkDelta):
            return self.find_touched(delta.own_messages())
        touched = set[str]()
        for key, value in self._ask(delta):
            if self._forbids(key, value):
                touched.add(key)
            if len(touched) == _FOUND:
                break
        return sorted(touched)

    def _ask(self, delta: BulkDelta) -> Iterator[Meaning]:
        """Yield what a bulk version changed, as far as a key or a range here may be touched by it."""
        keys = sorted({*self.writes, *self.needs, *self.keys})
        if len(keys) > delta.count_changes():
            yield from delta.changes()
            return
        yield from delta.changes_of(keys)
        for each in (*self.closed, *self.ranges):
            yield from delta.changes(each)

    def find_touched(self, messages: Messages) -> list[str]:
        """Return the keys of another transaction's messages that this one may not overlook.

        Costs log ranges comparisons for each message.
        """
        return [key for key, value in zip(messages.keys, messages.values, strict=True) if self._forbids(key, value)]

    def _forbids(self, key: str, value: str | None) -> bool:
        """Whether no other transaction may set a key, or with ``None`` delete it."""
        if key in self.writes or key in self.keys or key in self.ranges:
            return True
        if value is None:
            return key in self.needs
        return key in self.closed


class MergedRanges:
    """The union of ranges, both ends included: as disjoint ranges in order, so that a look-up bisects."""

    __slots__ = ("_ends", "_starts")

    def __init__(self, ranges: Iterable[KeyRange]) -> None:
        self._starts: list[str] = []
        self._ends: list[str] = []
        for lo, hi in sorted((r.lo, r.hi) for r in ranges):
            if self._ends and lo <= self._ends[-1]:
                self._ends[-1] = max(self._ends[-1], hi)
            elif lo <= hi:
                self._starts.append(lo)
                self._ends.append(hi)

    def __len__(self) -> int:
        return len(self._starts)

    def __iter__(self) -> Iterator[Span]:
        for lo, hi in zip(self._starts, self._ends, strict=True):
            yield Span(lo, hi + "\0")

    def __contains__(self, key: str) -> bool:
        index = bisect_right(self._starts, key) - 1
        return index >= 0 and key <= self._ends[index]

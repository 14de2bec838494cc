"""What a transaction depends on: many ranges against many messages, without looking at every pair."""

from __future__ import annotations

import random
from typing import Any

import pytest

from trinitylake_core.keys import EVERYTHING, KeyRange
from trinitylake_core.transactions.dependencies import Footprint, MergedRanges
from trinitylake_core.tree.node import Messages


class Counted(str):
    """A key that counts how often it is compared."""

    __slots__ = ()
    compared = 0

    def _count(self) -> None:
        Counted.compared += 1

    def __lt__(self, other: Any) -> bool:
        self._count()
        return str.__lt__(self, other)

    def __le__(self, other: Any) -> bool:
        self._count()
        return str.__le__(self, other)

    def __gt__(self, other: Any) -> bool:
        self._count()
        return str.__gt__(self, other)

    def __ge__(self, other: Any) -> bool:
        self._count()
        return str.__ge__(self, other)


def _messages(keys: list[str]) -> Messages:
    return Messages.of([(key, "path", "txn") for key in keys])


def test_conflicts_take_messages_and_ranges_once_not_every_pair() -> None:
    """1,000 messages against 3,000 ranges, read and closed: 3 million pairs, some 40,000 comparisons."""
    ranges = [KeyRange(Counted(f"C===n{number:05}"), Counted(f"C===n{number:05}~")) for number in range(3000)]
    footprint = Footprint(ranges=ranges, closed=list(ranges))
    messages = _messages([Counted(f"C===x{number:05}") for number in range(999)] + [Counted("C===n01234 t")])
    Counted.compared = 0
    touched = footprint.against({}, serializable=True).find_touched(messages)
    assert ["C===n01234 t"] == touched
    assert 0 < Counted.compared < 150_000


def test_one_range_read_a_thousand_times_is_one_range() -> None:
    assert 1 == len(MergedRanges([KeyRange("a", "b")] * 1000))
    assert 1 == len(MergedRanges([KeyRange("a", "b"), EVERYTHING, KeyRange("x", "y")]))
    assert 0 == len(MergedRanges([KeyRange("b", "a")]))


@pytest.mark.parametrize("seed", range(20))
def test_merged_ranges_hold_what_one_of_the_ranges_holds(seed: int) -> None:
    """Overlapping, nested, touching, empty ranges and ranges of one key, both ends included."""
    draw = random.Random(seed)
    letters = "abcdefghijkl"
    ranges = [KeyRange(draw.choice(letters), draw.choice(letters)) for _ in range(draw.randint(0, 6))]
    merged = MergedRanges(ranges)
    for key in [*letters, *(letter + "~" for letter in letters), ""]:
        assert any(key in each for each in ranges) == (key in merged), (key, ranges)


def test_what_conflicts_under_each_isolation() -> None:
    """A delete of what is needed, a set in a closed range, a write of the same key: always. Reads: SERIALIZABLE."""
    footprint = Footprint({"need"}, [KeyRange("closed", "closed~")], {"read"}, [KeyRange("range", "range~")])
    messages = Messages.of(
        [
            ("need", None, "t"),
            ("need", "path", "t"),
            ("closed 1", None, "t"),
            ("closed 2", "path", "t"),
            ("read", "path", "t"),
            ("range 1", None, "t"),
            ("written", None, "t"),
            ("else", "path", "t"),
        ]
    )
    snapshot = footprint.against({"written": "path"}, serializable=False).find_touched(messages)
    assert ["need", "closed 2", "written"] == snapshot
    serializable = footprint.against({"written": "path"}, serializable=True).find_touched(messages)
    assert ["need", "closed 2", "read", "range 1", "written"] == serializable
    saved = Footprint.from_json(footprint.to_json())
    assert snapshot == saved.against({"written": "path"}, serializable=False).find_touched(messages)

"""Where messages belong among the keys of a subtree that was not read: between two keys, by what is between them.

Names are read as numbers: each position of a key is a digit, of as many values as there are characters between those
that were seen there, so positions that are the same everywhere do not count. Names that people number, or that are
spread evenly, are well ordered so; where they are not, an estimate is off, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from string import ascii_lowercase, ascii_uppercase, digits
from typing import Final

from trinitylake_core.tree.node import Node
from trinitylake_core.tree.proof import EVERYWHERE, Range

_PRECISE: Final = 2.0**48
"""So many values can be told apart by a float, with room for sums."""


class KeyScale:
    """The keys of a root and of its buffer as numbers.

    Attributes:
        density: how many objects there are between two keys whose numbers differ by one, on average; 0 if unknown.
    """

    def __init__(self, node: Node, lower: Iterable[Range] = ()) -> None:
        """Learn the names of a root; ``lower`` are ranges of nodes further down, whose ends are keys, too."""
        known = [*node.keys, *node.pending.keys]
        known += [end for within in lower for end in within if end not in EVERYWHERE]
        values = 1.0
        self._digits: list[tuple[int, dict[str, float]]] = []
        """Position, and the value of each character there; positions with one character have none."""
        for position, column in enumerate(zip(*known, strict=False)):
            seen = sorted(set(column))
            if len(seen) == 1:
                continue
            follows = bool(self._digits) and self._digits[-1][0] == position - 1
            seen = _fill_gaps(seen, follows=follows)
            values *= len(seen)
            if values > _PRECISE:
                break
            self._digits.append((position, {character: rank / values for rank, character in enumerate(seen)}))
        self.density = self._measure_density(node, known)

    def number(self, key: str) -> float:
        """Return a number from 0 to 1, the larger the later the key comes."""
        return sum(values.get(key[position : position + 1], 0.0) for position, values in self._digits)

    def _measure_density(self, node: Node, known: Sequence[str]) -> float:
        """Return the objects between the first and the last pivot; with fewer, between all keys that are known."""
        counts = node.child_keys
        if counts is None:
            return 0.0
        ends: Sequence[str] = node.keys
        if len(ends) > 1:
            between = sum(counts[1:-1]) + len(node.keys)
        else:
            ends = known
            between = sum(counts) + len(node.keys)
        numbers = [self.number(key) for key in ends]
        distance = max(numbers, default=0.0) - min(numbers, default=0.0)
        return between / distance if distance > 0 else 0.0

    def find_places(self, keys: Sequence[str], within: Range, held: int) -> list[float]:
        """Return about how many keys of a subtree come before each of some keys, which are in order.

        Args:
            keys: the keys, in the range of the subtree.
            within: that range; at an end that is open, keys are taken to be as dense as elsewhere.
            held: how many keys the subtree has.
        """
        low, high = within
        first, last = EVERYWHERE
        begin = self.number(low)
        end = self.number(high)
        numbers = [self.number(key) for key in keys]
        if within == EVERYWHERE:
            found = [held * index / len(keys) for index in range(len(keys))]
        elif high == last:
            found = [(number - begin) * self.density for number in numbers]
        elif low == first:
            found = [held - (end - number) * self.density for number in numbers]
        else:
            dense = held / (end - begin) if end > begin else 0.0
            found = [(number - begin) * dense for number in numbers]
        return [min(float(held), max(0.0, place)) for place in found]


def _fill_gaps(seen: Sequence[str], *, follows: bool) -> list[str]:
    """Return characters with the digits, and the letters, that are between two of them.

    ``follows``: the character before them varies, too, so that a digit here may be any.
    """
    found = set(seen)
    if follows and not found.isdisjoint(digits):
        found.update(digits)
    for alphabet in (digits, ascii_uppercase, ascii_lowercase):
        known = [character for character in seen if character in alphabet]
        if known:
            found.update(alphabet[alphabet.index(known[0]) : alphabet.index(known[-1])])
    return sorted(found)

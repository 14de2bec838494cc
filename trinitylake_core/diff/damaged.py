"""A comparison that goes on where a node cannot be read, and says where it could not look.

A plan must be possible when the newest version is damaged: it is the very thing that a rollback leaves behind.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trinitylake_core.diff.compare import Change, Row, changes, diff_nodes
from trinitylake_core.errors import Corrupt
from trinitylake_core.keys import KeyCodec
from trinitylake_core.tree.node import Node
from trinitylake_core.tree.search import NodeReader, child_height

OLD = "old"
NEW = "new"
_LIMIT = 1000
"""How many unreadable nodes a comparison names; in what lies behind them it looks no more."""


@dataclass(frozen=True, slots=True)
class NotCompared:
    """Objects that could not be compared, because one side of them cannot be read.

    Attributes:
        side: ``old`` or ``new``: whose file it is.
        file: path of the file that cannot be read.
        after: the last object before them, such as ``table sales.orders``; ``None`` = from the beginning.
        before: the first object after them; ``None`` = to the end.
        why: what is wrong with the file.
    """

    side: str
    file: str
    after: str | None
    before: str | None
    why: str


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a node stands: all its keys lie strictly between two pivots."""

    low: str | None
    high: str | None
    parent: Node | None = None


class HoleReader:
    """Reads the nodes of one tree; one that cannot be read is an empty leaf, and its range a hole.

    ENSURES: a hole is known before anything is read that comes after it. Memory: one entry per child of what was read.
    """

    def __init__(self, reader: NodeReader, root: Node, side: str, codec: KeyCodec) -> None:
        self.holes: list[NotCompared] = []
        self._reader = reader
        self._side = side
        self._codec = codec
        self._lows: list[str] = []
        self._highs: list[str | None] = []
        self._places: dict[str, _Place] = {}
        self._place_children(root, _Place(None, None))

    def read(self, path: str) -> Node:
        """Return a node, an empty one if it is missing, damaged, or not of the height that its parent says."""
        place = self._places.get(path, _Place(None, None))
        try:
            node = self._reader.read(path)
            if place.parent is not None:
                child_height(place.parent, path, node)
        except Corrupt as error:
            if len(self.holes) >= _LIMIT:
                raise
            self.hole(error.path or path, place.low, place.high, str(error))
            return Node(height=None)
        self._place_children(node, place)
        return node

    def read_many(self, paths: Sequence[str]) -> Iterator[Node]:
        """Yield nodes in the order of ``paths``, as :meth:`read` returns them."""
        return map(self.read, paths)

    def hole(self, file: str, low: str | None, high: str | None, why: str) -> None:
        """Note that nothing between two keys can be compared. REQUIRES: it begins after all noted before."""
        self._lows.append(low or "")
        self._highs.append(high)
        self.holes.append(NotCompared(self._side, file, self._named(low), self._named(high), why))

    def covers(self, key: str) -> bool:
        """Whether a key lies in a hole."""
        at = bisect_left(self._lows, key) - 1
        if at < 0:
            return False
        high = self._highs[at]
        return high is None or key < high

    def _place_children(self, node: Node, place: _Place) -> None:
        for index, child in enumerate(node.children):
            low, high = node.bounds(index)
            self._places[child] = _Place(low or place.low, high or place.high, node)

    def _named(self, key: str | None) -> str | None:
        if key is None:
            return None
        kind, namespace, name = self._codec.split(key)
        return f"{kind} {namespace}" if name is None else f"{kind} {namespace}.{name}"


def diff_damaged(
    old_reader: NodeReader, old: Node, new_reader: NodeReader, new: Node, codec: KeyCodec
) -> tuple[Iterator[Change], list[NotCompared]]:
    """Return the changes where both sides can be read, and the ranges where not, complete when the changes end.

    REQUIRES: equal key encoding on both sides. Costs as :func:`diff_nodes`, one node after another. Of a side with
    more than a thousand unreadable nodes, what comes after them is one hole.
    """
    before = HoleReader(old_reader, old, OLD, codec)
    after = HoleReader(new_reader, new, NEW, codec)
    found: list[NotCompared] = []

    def rows() -> Iterator[Row]:
        last: str | None = None
        try:
            for row in diff_nodes(before, old, after, new):
                last = row[0]
                if not (before.covers(last) or after.covers(last)):
                    yield row
        except Corrupt as error:
            before.hole(error.path or "", last, None, str(error))
        finally:
            found.extend(before.holes + after.holes)

    return changes(rows(), codec), found

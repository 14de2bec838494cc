"""Two trees from the top down, level by level: which subtrees they do not share.

Of the subtrees that both sides have at one height the shared ones are dropped, and all the others are opened. A
comparison that is dealt out to tasks begins at the subtrees that are left at some height. A comparison that reads ahead
goes down to the leaves in pieces, and gets the paths of the leaves in the order in which it will ask for them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise, tee
from typing import Final

from trinitylake_core.diff.stream import EVERYWHERE, Span, Stream, Subtree
from trinitylake_core.tree.node import Node
from trinitylake_core.tree.search import AheadReader, NodeReader

_OPENED: Final = 32
"""Nodes above the leaves that are opened together on either side, or a few more."""
_OLD: Final = 0
_NEW: Final = 1
Sides = tuple[list[Subtree], list[Subtree]]
"""Subtrees of the old side and of the new one."""


@dataclass(frozen=True, slots=True)
class DifferingSubtrees:
    """Pivots before the subtrees that two trees do not share, as far as the nodes that were opened show.

    ``keys`` counts the keys below each pivot, on both sides; ``finer`` = there are more nodes that could be opened.
    """

    keys: dict[str | None, int]
    finer: bool

    def spans(self, want: int) -> list[Span]:
        """Return spans that cover all keys, about ``want`` of them and about as much work each."""
        lows = sorted(low for low in self.keys if low is not None)
        total = sum(self.keys[low] + 1 for low in lows)
        share = max(1.0, total / want)
        cuts: list[str] = []
        weight = share
        for low in lows:
            if weight >= share:
                cuts.append(low)
                weight = 0
            weight += self.keys[low] + 1
        spans: list[Span] = []
        for lo, hi in pairwise([None, *cuts, None]):
            spans.append(Span(lo, hi))
        return spans


def differing_subtrees(
    old_reader: NodeReader,
    old: Node,
    new_reader: NodeReader,
    new: Node,
    want: int,
) -> DifferingSubtrees:
    """Return ``want`` subtrees or more that two trees do not share, or all of them. Opens no more than that takes.

    REQUIRES: equal key encoding on both sides.
    ENSURES: a key that differs is a pivot that was opened, or lies below one of the subtrees.
    """
    descent = _Descent((old_reader, new_reader), EVERYWHERE)
    parts = descent.tops(old, new)
    old_parts, new_parts = parts

    def are_enough(height: int) -> bool:
        return height == 0 or len(old_parts) + len(new_parts) >= want

    height = descent.descend(parts, are_enough)
    found: dict[str | None, int] = {}
    for part in (*old_parts, *new_parts):
        found[part.low] = found.get(part.low, 0) + part.inside
    return DifferingSubtrees(found, finer=height > 0)


@contextmanager
def reading_ahead(
    old_reader: NodeReader,
    old: Node,
    new_reader: NodeReader,
    new: Node,
    span: Span,
) -> Iterator[None]:
    """Let a comparison of two trees inside of the block find its nodes read already, where readers can do that."""
    if not isinstance(old_reader, AheadReader) or not isinstance(new_reader, AheadReader):
        yield
        return
    leaves = _Descent((old_reader, new_reader), span).leaves(old, new)
    with ExitStack() as stack:
        if old_reader is new_reader:
            stack.enter_context(old_reader.prefetch(path for _, path in leaves))
        else:  # the side that is asked first goes on for both
            for_old, for_new = tee(leaves)
            old_paths = (path for side, path in for_old if side == _OLD)
            new_paths = (path for side, path in for_new if side == _NEW)
            stack.enter_context(old_reader.prefetch(old_paths))
            stack.enter_context(new_reader.prefetch(new_paths))
        yield


class _Descent:
    def __init__(self, readers: tuple[NodeReader, NodeReader], span: Span) -> None:
        self._readers = readers
        self._span = span

    def tops(self, old: Node, new: Node) -> Sides:
        """Return the subtrees below two roots."""
        old_reader, new_reader = self._readers
        return self._below_root(old_reader, old), self._below_root(new_reader, new)

    def _below_root(self, reader: NodeReader, root: Node) -> list[Subtree]:
        stream = Stream(reader, self._span)
        stream.begin(root)
        return stream.subtrees()

    def descend(self, parts: Sides, enough: Callable[[int], bool]) -> int:
        """Drop what is shared and open the highest subtrees, until they are not too high; return their height then."""
        while True:
            _drop_shared(parts)
            heights = [part.height for side in parts for part in side]
            height = max(heights, default=0)
            if enough(height):
                return height
            self._open(parts, height)

    def leaves(self, old: Node, new: Node) -> Iterator[tuple[int, str]]:
        """Yield side and path of each leaf that a comparison will open, in key order.

        The nodes above the lowest inner level are opened at once, those of that level some at a time. They are held
        until the comparison asks for them.
        """
        parts = self.tops(old, new)
        self.descend(parts, lambda height: height < 2)
        for piece in _pieces(parts):
            self._open(piece, 1)
            _drop_shared(piece)
            found = []
            for side, subtrees in enumerate(piece):
                for part in subtrees:
                    found.append((_low(part), side, part.path))
            for _, side, path in sorted(found):
                yield side, path

    def _open(self, parts: Sides, height: int) -> None:
        """Open the subtrees of a height, in place. One read each, ahead."""
        for reader, subtrees in zip(self._readers, parts, strict=True):
            high = [part for part in subtrees if part.height == height]
            subtrees[:] = [part for part in subtrees if part.height != height]
            paths = [part.path for part in high]
            if isinstance(reader, AheadReader):
                nodes = reader.held(paths)
            else:
                nodes = reader.read_many(paths)
            for part, node in zip(high, nodes, strict=True):
                stream = Stream(reader, self._span)
                stream.begin_below(part, node)
                subtrees.extend(stream.subtrees())


def _pieces(parts: Sides) -> Iterator[Sides]:
    """Cut both sides, at pivots that both have: what they share below is on both sides of one piece."""
    old, new = (deque(sorted(side, key=_low)) for side in parts)
    old_pivots = {_low(part) for part in old}
    new_pivots = {_low(part) for part in new}
    cuts = old_pivots & new_pivots
    piece: Sides = [], []
    while old or new:
        low = min(_low(side[0]) for side in (old, new) if side)
        is_large = max(map(len, piece)) >= _OPENED
        if is_large and low in cuts:
            yield piece
            piece = [], []
        for side, taken in zip((old, new), piece, strict=True):
            if side and _low(side[0]) == low:
                taken.append(side.popleft())
    yield piece


def _low(part: Subtree) -> str:
    return part.low or ""


def _drop_shared(parts: Sides) -> None:
    """Take away, in place, the subtrees that are the same on both sides."""
    old, new = parts
    new_by_path = {part.path: part for part in new}
    shared = set()
    for part in old:
        other = new_by_path.get(part.path)
        if other is not None and part.same_as(other):
            shared.add(part.path)
    for side in parts:
        side[:] = [part for part in side if part.path not in shared]

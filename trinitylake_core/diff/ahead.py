"""What a comparison will read, before it gets there: so that nodes are on their way while others are compared.

The same walk as the comparison's, level by level instead of key by key: of what both sides have at one height, what
they share is dropped, and all the rest is opened. Nodes above the lowest inner level are read at once, those of that
level some at a time, and of the leaves only the names are handed on, in the order in which they will be asked for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Final

from trinitylake_core.diff.stream import Span, Stream, Subtree
from trinitylake_core.tree.node import Node
from trinitylake_core.tree.search import AheadReader, NodeReader

_OPENED: Final = 32
"""Nodes above the leaves that are opened together on either side, or a few more."""
Sides = tuple[list[Subtree], list[Subtree]]


@contextmanager
def reading_ahead(old_reader: NodeReader, old: Node, new_reader: NodeReader, new: Node, span: Span) -> Iterator[None]:
    """Let a comparison of two trees inside of the block find its nodes read already, where readers can do that."""
    if not isinstance(old_reader, AheadReader) or not isinstance(new_reader, AheadReader):
        yield
        return
    walk = _Walk(old_reader, old, new_reader, new, span)
    with ExitStack() as stack:
        if old_reader is new_reader:
            stack.enter_context(old_reader.expecting(path for _, path in walk.leaves()))
        else:
            for reader, paths in zip((old_reader, new_reader), _apart(walk.leaves()), strict=True):
                stack.enter_context(reader.expecting(paths))
        yield


def _apart(leaves: Iterator[tuple[int, str]]) -> tuple[Iterator[str], Iterator[str]]:
    """Return the leaves of each side: who asks for one side first goes on for both."""
    waiting: tuple[deque[str], deque[str]] = deque(), deque()

    def paths(side: int) -> Iterator[str]:
        while True:
            while not waiting[side]:
                found = next(leaves, None)
                if found is None:
                    return
                waiting[found[0]].append(found[1])
            yield waiting[side].popleft()

    return paths(0), paths(1)


class _Walk:
    def __init__(self, old_reader: AheadReader, old: Node, new_reader: AheadReader, new: Node, span: Span) -> None:
        self._readers = old_reader, new_reader
        self._span = span
        self._roots = old, new

    def leaves(self) -> Iterator[tuple[int, str]]:
        """Yield side and path of each leaf that will be opened, in key order."""
        tops = [self._below(reader, root) for reader, root in zip(self._readers, self._roots, strict=True)]
        for old, new in self._pieces(self._lowest((tops[0], tops[1]))):
            self._open(old, 0, 1)
            self._open(new, 1, 1)
            drop_shared(old, new)
            found = [(_low(part), side, part.path) for side, parts in enumerate((old, new)) for part in parts]
            yield from ((side, path) for _, side, path in sorted(found))

    def _below(self, reader: NodeReader, root: Node) -> list[Subtree]:
        stream = Stream(reader, self._span)
        stream.begin(root)
        return stream.subtrees()

    def _lowest(self, parts: Sides) -> Sides:
        """Open everything down to the nodes above the leaves, level by level."""
        while True:
            drop_shared(*parts)
            height = max((part.height for side in parts for part in side), default=0)
            if height < 2:
                return parts
            for side in (0, 1):
                self._open(parts[side], side, height)

    def _open(self, parts: list[Subtree], side: int, height: int) -> None:
        open_all(self._readers[side], parts, height, self._span, held=True)

    def _pieces(self, parts: Sides) -> Iterator[Sides]:
        """Cut both sides, at pivots that both have: what they share below is on both sides of one piece."""
        old, new = (deque(sorted(side, key=_low)) for side in parts)
        cuts = set(map(_low, old)) & set(map(_low, new))
        piece: Sides = [], []
        while old or new:
            low = min(_low(side[0]) for side in (old, new) if side)
            if low in cuts and max(map(len, piece)) >= _OPENED:
                yield piece
                piece = [], []
            for side, taken in zip((old, new), piece, strict=True):
                if side and _low(side[0]) == low:
                    taken.append(side.popleft())
        yield piece


def _low(part: Subtree) -> str:
    return part.low or ""


def drop_shared(old: list[Subtree], new: list[Subtree]) -> None:
    """Take away, in place, the subtrees of which both sides say the same."""
    others = {part.path: part for part in new}
    shared = {part.path for part in old if part.path in others and part.same_as(others[part.path])}
    for parts in (old, new):
        parts[:] = [part for part in parts if part.path not in shared]


def open_all(reader: NodeReader, parts: list[Subtree], height: int, span: Span, *, held: bool = False) -> None:
    """Open the subtrees of a height, in place. One read each, ahead; with ``held`` they are at hand when read again."""
    high = [part for part in parts if part.height == height]
    parts[:] = [part for part in parts if part.height != height]
    paths = [part.path for part in high]
    nodes = reader.held(paths) if held and isinstance(reader, AheadReader) else reader.read_many(paths)
    for part, node in zip(high, nodes, strict=True):
        stream = Stream.below(_Known({part.path: node}), part, span)
        stream.open()
        parts += stream.subtrees()


class _Known:
    """A reader of nodes that were read."""

    def __init__(self, nodes: Mapping[str, Node]) -> None:
        self._nodes = nodes

    def read(self, path: str) -> Node:
        """Return one node."""
        return self._nodes[path]

    def read_many(self, paths: Sequence[str]) -> Iterator[Node]:
        """Yield nodes in order."""
        return map(self._nodes.__getitem__, paths)

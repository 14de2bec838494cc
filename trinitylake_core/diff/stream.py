"""One side of a comparison: the entries and the unopened subtrees of a tree, in key order.

A stream starts as the children and pivots of a root. Opening its next subtree replaces that subtree by the children and
pivots of its node, with all messages from above carried out on the pivots and handed down to the children.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple

from trinitylake_core.errors import CorruptNode
from trinitylake_core.tree.node import Messages, Node, merge_messages
from trinitylake_core.tree.search import MAX_HEIGHT, Batch, NodeReader, apply_messages, child_height


@dataclass(frozen=True, slots=True)
class Span:
    """All keys with ``lo <= key < hi``; ``None`` = no end."""

    lo: str | None = None
    hi: str | None = None

    def rows(self, keys: list[str]) -> slice:
        """Return the rows of ascending keys that lie in the span."""
        if self.lo is None:
            start = 0
        else:
            start = bisect_left(keys, self.lo)
        if self.hi is None:
            stop = len(keys)
        else:
            stop = bisect_left(keys, self.hi)
        return slice(start, stop)

    def meets(self, left: str | None, right: str | None) -> bool:
        """Whether a key strictly between two pivots may lie in the span."""
        lies_before = right is not None and self.lo is not None and right <= self.lo
        lies_behind = left is not None and self.hi is not None and left >= self.hi
        return not lies_before and not lies_behind


EVERYWHERE: Final = Span()


@dataclass(slots=True)
class Run:
    """Entries in key order, read from left to right. What was read stays where it is and is never copied.

    Attributes:
        keys: strictly ascending.
        values: one for each key.
        at: the next row. It only grows; ``at == len(keys)`` means that the run is used up.
    """

    keys: Sequence[str]
    values: Sequence[str]
    at: int = 0

    def used_up(self) -> bool:
        """Whether no entry is left."""
        return self.at >= len(self.keys)

    def pass_until(self, last: str | None) -> range:
        """Pass over the entries up to and with ``last``, none if it is ``None``; return their rows.

        ENSURES: every entry left comes after ``last``. Costs a binary search, however long the run is.
        """
        start = self.at
        if last is None:
            self.at = start
        else:
            self.at = bisect_right(self.keys, last, start)
        return range(start, self.at)

    def entries(self, rows: range) -> Iterator[tuple[str, str]]:
        """Yield key and value of rows."""
        return ((self.keys[row], self.values[row]) for row in rows)


@dataclass(frozen=True, slots=True)
class Subtree:
    """A subtree that was not opened.

    Attributes:
        path: of its topmost node.
        parent: the node that points to it.
        messages: sorted messages from above that wait for it.
        low: the pivot before it; ``None`` at the left edge of the tree.
        depth: how many nodes lie above it, less one.
        inside: how many keys it holds, as its parent counts them; 0 where the parent does not.
    """

    path: str
    parent: Node
    messages: Messages
    low: str | None
    depth: int
    inside: int

    @property
    def height(self) -> int:
        """Its height by its parent; 0 where the parent records none."""
        if self.parent.height is None:
            return 0
        return self.parent.height - 1

    def same_as(self, other: Subtree) -> bool:
        """Whether both mean the same: the same file, and the same changes wait for it."""
        if self.path != other.path:
            return False
        mine = self.messages
        theirs = other.messages
        return mine.keys == theirs.keys and mine.values == theirs.values

    def comes_before(self, other: Subtree) -> bool:
        """Whether this subtree must be opened before the other one may be: it begins earlier, or is higher."""
        if self.low != other.low:
            if self.low is None or other.low is None:
                return self.low is None
            return self.low < other.low
        if self.parent.height is None or other.parent.height is None:
            return False
        return self.parent.height > other.parent.height


_NONE: Final = Messages()
"""Shared by all subtrees for which nothing waits; it must not be changed."""


class Stream:
    """One side: its parts in key order, the next one last. ``runs`` are entries that need no node to be opened."""

    def __init__(self, reader: NodeReader, span: Span = EVERYWHERE, runs: Iterable[Run] = ()) -> None:
        self._reader = reader
        self._span = span
        self._runs = iter(runs)
        self._parts: list[Run | Subtree] = []

    def begin(self, root: Node) -> None:
        """Begin with the children and pivots of a root. REQUIRES: the stream is empty."""
        self._expand(self._root(root))

    def begin_below(self, part: Subtree, node: Node) -> None:
        """Begin with the children and pivots of a subtree's node. REQUIRES: the stream is empty."""
        self._expand(self._open(part, node))

    def begin_with(self, root: Node, other: Stream, others: Node) -> None:
        """Begin with two roots, without the children and pivots that are the same in both.

        REQUIRES: both streams are empty and have the same span.
        """
        self._expand_both(self._root(root), other, other._root(others))

    def _root(self, root: Node) -> _Opened:
        messages = self._inside(root.pending)
        return _Opened(root, messages, low=None, depth=0)

    def subtrees(self) -> list[Subtree]:
        """Return the parts that are subtrees, in key order."""
        return [part for part in reversed(self._parts) if isinstance(part, Subtree)]

    def head(self) -> Run | Subtree | None:
        """Return the next part that is not used up, ``None`` at the end."""
        while True:
            if not self._parts:
                self._parts += islice(self._runs, 1)
            part = None
            if self._parts:
                part = self._parts[-1]
            if not isinstance(part, Run) or not part.used_up():
                return part
            self._parts.pop()

    def skip(self) -> None:
        """Pass over the next part. REQUIRES: :meth:`head` returned one."""
        self._parts.pop()

    def open(self) -> None:
        """Open the subtree that comes next. One read. REQUIRES: :meth:`head` returned a subtree."""
        self._expand(self._read())

    def open_with(self, other: Stream) -> None:
        """Open what comes next on both sides, without the children and pivots that are the same in both. Two reads.

        REQUIRES: :meth:`head` returned a subtree on both sides, and both begin after the same pivot.
        """
        self._expand_both(self._read(), other, other._read())

    def _expand_both(self, mine: _Opened, other: Stream, theirs: _Opened) -> None:
        unlike = _unlike(mine, theirs)
        self._expand(mine, unlike)
        other._expand(theirs, unlike)

    def _read(self) -> _Opened:
        part = self._parts.pop()
        if isinstance(part, Run) or part.depth > MAX_HEIGHT:
            raise CorruptNode("the pointers of the tree run in a circle", invariant="I10")
        return self._open(part, self._reader.read(part.path))

    def _open(self, part: Subtree, node: Node) -> _Opened:
        child_height(part.parent, part.path, node)
        messages = merge_messages(node.pending, part.messages)
        inside = self._inside(messages)
        return _Opened(node, inside, low=part.low, depth=part.depth + 1)

    def _inside(self, messages: Messages) -> Messages:
        if self._span is EVERYWHERE:
            return messages
        inside = self._span.rows(messages.keys)
        return messages.slice(inside.start, inside.stop)

    def _expand(self, opened: _Opened, unlike: _Unlike | None = None) -> None:
        """Put the parts of a node first. ENSURES: each message was handed to one child or pivot, in one pass."""
        node = opened.node
        rows = self._span.rows(node.keys)
        if node.is_leaf:
            keys, values = apply_messages(node.keys[rows], node.values[rows], opened.messages)
            self._parts.append(Run(keys, values))
            return
        first = max(0, rows.start - 1)
        end = min(rows.stop + 1, len(node.children))
        reached = range(first, end)
        if unlike is not None:
            children, pivots = unlike
        else:
            children = set(reached)
            pivots = children
        counts = node.child_keys or []
        waiting = _Waiting(opened.messages)
        parts: list[Run | Subtree] = []
        for index in sorted(children | pivots):
            if index not in reached:
                continue
            left, right = node.bounds(index)
            if index in children and self._span.meets(left, right):
                inside = 0
                if index < len(counts):
                    inside = counts[index]
                subtree = Subtree(
                    path=node.children[index],
                    parent=node,
                    messages=waiting.slice_between(left, right),
                    low=left or opened.low,
                    depth=opened.depth,
                    inside=inside,
                )
                parts.append(subtree)
            if index in pivots and rows.start <= index < rows.stop:
                keys, values = waiting.apply_to_pivot(node.keys[index], node.values[index])
                parts.append(Run(keys, values))
        self._parts += reversed(parts)  # the next one is the last


class _Opened(NamedTuple):
    """A node that was read, with all messages that wait for it and what is below it."""

    node: Node
    messages: Messages
    low: str | None
    depth: int


_Unlike = tuple[set[int], set[int]]
"""The children and the pivots of two nodes with the same pivots that may mean something else."""


def _unlike(one: _Opened, two: _Opened) -> _Unlike | None:
    """Return the children and pivots in which two nodes differ, or messages for them; ``None`` if their keys differ."""
    mine = one.node
    theirs = two.node
    if mine.is_leaf or mine.keys != theirs.keys or len(mine.children) != len(theirs.children):
        return None
    children = _unequal_rows(mine.children, theirs.children)
    pivots = _unequal_rows(mine.values, theirs.values)
    my_messages = set(one.messages.meanings())
    their_messages = set(two.messages.meanings())
    changed = my_messages ^ their_messages
    for key, _ in changed:
        index = bisect_left(mine.keys, key)
        if index < len(mine.keys) and mine.keys[index] == key:
            pivots.add(index)
        else:
            children.add(index)
    return children, pivots


def _unequal_rows(mine: Sequence[str], theirs: Sequence[str]) -> set[int]:
    return {row for row, (one, other) in enumerate(zip(mine, theirs, strict=True)) if one != other}


class _Waiting:
    """Sorted messages dealt out to children and pivots from left to right; most of them get none."""

    def __init__(self, messages: Messages) -> None:
        self._messages = messages
        self._keys = messages.keys
        self._next = 0

    def slice_between(self, lo: str | None, hi: str | None) -> Messages:
        """Return the messages strictly between two pivots. REQUIRES: they do not lie before those asked for earlier."""
        keys = self._keys
        start = self._next
        if start == len(keys) or (hi is not None and keys[start] >= hi):
            return _NONE
        if lo is not None:
            start = bisect_right(keys, lo, start)
        if hi is None:
            self._next = len(keys)
        else:
            self._next = bisect_left(keys, hi, start)
        return self._messages.slice(start, self._next)

    def apply_to_pivot(self, key: str, value: str) -> Batch:
        """Return the row of a pivot with its message, if there is one, carried out: none if that deletes it."""
        row = bisect_left(self._keys, key, self._next)
        if row == len(self._keys) or self._keys[row] != key:
            return [key], [value]
        own_message = self._messages.slice(row, row + 1)
        return apply_messages([key], [value], own_message)

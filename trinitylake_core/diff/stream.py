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
        start = 0 if self.lo is None else bisect_left(keys, self.lo)
        return slice(start, len(keys) if self.hi is None else bisect_left(keys, self.hi))

    def meets(self, left: str | None, right: str | None) -> bool:
        """Whether a key strictly between two pivots may lie in the span."""
        below = right is not None and self.lo is not None and right <= self.lo
        return not below and not (left is not None and self.hi is not None and left >= self.hi)


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
        self.at = start if last is None else bisect_right(self.keys, last, start)
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
        return 0 if self.parent.height is None else self.parent.height - 1

    def same_as(self, other: Subtree) -> bool:
        """Whether both mean the same: the same file, and the same changes wait for it."""
        mine, others = self.messages, other.messages
        return self.path == other.path and mine.keys == others.keys and mine.values == others.values

    def comes_before(self, other: Subtree) -> bool:
        """Whether this subtree must be opened before the other one may be: it begins earlier, or is higher."""
        if self.low != other.low:
            return self.low is None or (other.low is not None and self.low < other.low)
        mine, others = self.parent.height, other.parent.height
        return mine is not None and others is not None and mine > others


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
        return _Opened(root, self._inside(root.pending), None, 0)

    def subtrees(self) -> list[Subtree]:
        """Return the parts that are subtrees, in key order."""
        return [part for part in reversed(self._parts) if isinstance(part, Subtree)]

    def head(self) -> Run | Subtree | None:
        """Return the next part that is not used up, ``None`` at the end."""
        while True:
            if not self._parts:
                self._parts += islice(self._runs, 1)
            part = self._parts[-1] if self._parts else None
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
        return _Opened(node, self._inside(merge_messages(node.pending, part.messages)), part.low, part.depth + 1)

    def _inside(self, messages: Messages) -> Messages:
        if self._span is EVERYWHERE:
            return messages
        inside = self._span.rows(messages.keys)
        return messages.slice(inside.start, inside.stop)

    def _expand(self, opened: _Opened, unlike: _Unlike | None = None) -> None:
        """Put the parts of a node first. ENSURES: each message was handed to one child or pivot, in one pass."""
        node, messages = opened.node, opened.messages
        rows = self._span.rows(node.keys)
        if node.is_leaf:
            self._parts.append(Run(*apply_messages(node.keys[rows], node.values[rows], messages)))
            return
        parts: list[Run | Subtree] = []
        counts = node.child_keys or []
        waiting = _Waiting(messages)
        reached = range(max(0, rows.start - 1), min(rows.stop + 1, len(node.children)))
        children, pivots = unlike or (set(reached), set(reached))
        for index in sorted(each for each in children | pivots if each in reached):
            left, right = node.bounds(index)
            if index in children and self._span.meets(left, right):
                inside = counts[index] if index < len(counts) else 0
                below = waiting.slice_between(left, right)
                parts.append(Subtree(node.children[index], node, below, left or opened.low, opened.depth, inside))
            if rows.start <= index < rows.stop and index in pivots:
                row = slice(index, index + 1)
                parts.append(Run(*waiting.applied_to(node.keys[row], node.values[row])))
        self._parts += reversed(parts)


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
    keys = one.node.keys
    same_shape = keys == two.node.keys and len(one.node.children) == len(two.node.children)
    if not same_shape or one.node.is_leaf:
        return None
    children, pivots = (
        {index for index, (mine, theirs) in enumerate(zip(*both, strict=True)) if mine != theirs}
        for both in ((one.node.children, two.node.children), (one.node.values, two.node.values))
    )
    for key, _ in set(one.messages.meanings()) ^ set(two.messages.meanings()):
        at = bisect_left(keys, key)
        (pivots if at < len(keys) and keys[at] == key else children).add(at)
    return children, pivots


class _Waiting:
    """Sorted messages dealt out to children and pivots from left to right; most of them get none."""

    def __init__(self, messages: Messages) -> None:
        self._messages = messages
        self._keys = messages.keys
        self._next = 0

    def slice_between(self, lo: str | None, hi: str | None) -> Messages:
        """Return the messages strictly between two pivots. REQUIRES: they do not lie before those asked for earlier."""
        keys, start = self._keys, self._next
        if start == len(keys) or (hi is not None and keys[start] >= hi):
            return _NONE
        start = start if lo is None else bisect_right(keys, lo, start)
        self._next = len(keys) if hi is None else bisect_left(keys, hi, start)
        return self._messages.slice(start, self._next)

    def applied_to(self, keys: list[str], values: list[str]) -> Batch:
        """Return the row of one pivot with its message, if there is one, carried out."""
        at = bisect_left(self._keys, keys[0], self._next)
        if at == len(self._keys) or self._keys[at] != keys[0]:
            return keys, values
        return apply_messages(keys, values, self._messages.slice(at, at + 1))

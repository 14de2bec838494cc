"""What changed between two versions (``docs/architecture.md``). Structural: shared files are never opened.

A child that both sides point to, with the same messages waiting for it on both, means the same on both
sides and is skipped. The rest is compared as two streams in key order, opening the subtree that comes
first, and of two that start at the same pivot the higher one.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from trinitylake_core.errors import CorruptNode
from trinitylake_core.keys import KeyCodec, ObjectName
from trinitylake_core.node import Messages, Node, merged
from trinitylake_core.tree import MAX_HEIGHT, Batch, NodeReader, applied, child_height, scan

ADDED = "added"
REMOVED = "removed"
CHANGED = "changed"
Row = tuple[str, str | None, str | None]
"""A key that differs, with its value on the old and on the new side."""


@dataclass(frozen=True, slots=True)
class Change:
    """One object that differs: ``added``, ``removed`` or ``changed`` from ``old_path`` to ``new_path``."""

    change: str
    kind: str
    namespace: str
    name: str | None
    key: str
    old_path: str | None
    new_path: str | None


def changes(rows: Iterable[Row], codec: KeyCodec) -> Iterator[Change]:
    """Yield the changes that rows of two versions mean."""
    for key, old, new in rows:
        what = ADDED if old is None else REMOVED if new is None else CHANGED
        yield Change(what, *codec.split(key), key, old, new)


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


def diff_nodes(
    old_reader: NodeReader, old: Node, new_reader: NodeReader, new: Node, span: Span = EVERYWHERE
) -> Iterator[Row]:
    """Yield the keys that differ between two trees of equal key encoding, in key order.

    Reads only nodes that are not shared, or for which messages wait that the other side does not have.
    Of neighbouring spans that cover everything, the rows one after another are the rows of the whole.
    """
    before, after = _Stream(old_reader, span), _Stream(new_reader, span)
    before.begin_with(old, after, new)
    return _compare(before, after)


@dataclass(frozen=True, slots=True)
class Unshared:
    """Where two trees differ, as far as their tops tell: pivots before subtrees that they do not share.

    ``keys`` counts the keys below each pivot, on both sides; ``finer`` = reading more nodes would tell more.
    """

    keys: dict[str | None, int]
    finer: bool


def unshared(old_reader: NodeReader, old: Node, new_reader: NodeReader, new: Node, want: int) -> Unshared:
    """Return ``want`` subtrees or more that two trees do not share, or all of them. Opens no more than that takes."""
    sides = ((old_reader, _subtrees(old_reader, old)), (new_reader, _subtrees(new_reader, new)))
    while True:
        _drop_shared(*(parts for _, parts in sides))
        height = max((_height(part) for _, parts in sides for part in parts), default=0)
        if height == 0 or sum(len(parts) for _, parts in sides) >= want:
            break
        for reader, parts in sides:
            _open_all(reader, parts, height)
    found: dict[str | None, int] = {}
    for _, parts in sides:
        for part in parts:
            found[part.low] = found.get(part.low, 0) + part.inside
    return Unshared(found, finer=height > 0)


def _subtrees(reader: NodeReader, root: Node) -> list[_Part]:
    stream = _Stream(reader)
    stream.begin(root)
    return stream.subtrees()


def _height(part: _Part) -> int:
    return (part.parent.height or 0) - 1 if part.parent is not None else 0


def _drop_shared(old: list[_Part], new: list[_Part]) -> None:
    others = {part.path: part for part in new}
    shared = {part.path for part in old if part.path in others and part.same_messages(others[part.path])}
    for parts in (old, new):
        parts[:] = [part for part in parts if part.path not in shared]


def _open_all(reader: NodeReader, parts: list[_Part], height: int) -> None:
    """Open the subtrees of a height, in place."""
    high = [part for part in parts if _height(part) == height]
    parts[:] = [part for part in parts if _height(part) != height]
    for part in high:
        stream = _Stream.below(reader, part)
        stream.open()
        parts += stream.subtrees()


def diff_foreign(
    old_reader: NodeReader, old: Node, old_codec: KeyCodec, new_reader: NodeReader, new: Node, new_codec: KeyCodec
) -> Iterator[Change]:
    """Yield the changes between trees whose keys are encoded differently. Reads both whole.

    A key is that of the new side, or of the old one for what was removed.
    """
    before = _Entries(_named(scan(old_reader, old), old_codec))
    after = _Entries(_named(scan(new_reader, new), new_codec))
    for text, old_path, new_path in _compare(before, after):
        codec = new_codec if new_path is not None else old_codec
        kind, namespace, name = text.split("\0")
        key = codec.encode(ObjectName(kind, namespace, name or None))
        yield from changes([(key, old_path, new_path)], codec)


def _named(batches: Iterable[Batch], codec: KeyCodec) -> Iterator[Batch]:
    """Yield batches under kind, namespace and name: the same order as that of the keys."""
    for keys, values in batches:
        yield ["\0".join((kind, namespace, name or "")) for kind, namespace, name in map(codec.split, keys)], values


@dataclass(slots=True)
class _Part:
    """A run of entries, or a subtree that was not opened. ``low`` is the pivot before it."""

    keys: list[str]
    values: list[str]
    path: str | None = None
    parent: Node | None = None
    messages: Messages | None = None
    low: str | None = None
    depth: int = 0
    inside: int = 0
    """Keys in the subtree, as its parent counts them; 0 where it does not."""

    def same_messages(self, other: _Part) -> bool:
        """Whether the same changes wait for both subtrees."""
        mine, others = self.messages or _NONE, other.messages or _NONE
        return mine.keys == others.keys and mine.values == others.values

    def comes_before(self, other: _Part) -> bool:
        """Whether this subtree must be opened before the other one may be."""
        if self.low != other.low:
            return self.low is None or (other.low is not None and self.low < other.low)
        mine = self.parent.height if self.parent is not None else None
        others = other.parent.height if other.parent is not None else None
        return mine is not None and others is not None and mine > others

    def take_until(self, key: str | None) -> list[tuple[str, str]]:
        """Remove and return the entries up to and with ``key``."""
        stop = 0 if key is None else bisect_right(self.keys, key)
        taken = list(zip(self.keys[:stop], self.values[:stop], strict=True))
        del self.keys[:stop], self.values[:stop]
        return taken

    def take_all(self) -> list[tuple[str, str]]:
        """Remove and return all entries."""
        taken = list(zip(self.keys, self.values, strict=True))
        self.keys, self.values = [], []
        return taken

    def put_back(self, rows: list[tuple[str, str]]) -> None:
        """Put the last entries back."""
        self.keys, self.values = [key for key, _ in rows], [value for _, value in rows]


def _run(batch: Batch) -> _Part:
    return _Part(list(batch[0]), list(batch[1]))


_NONE: Final = Messages()
"""Shared by all subtrees for which nothing waits; nobody may add to it."""


class _Stream:
    """One side: its parts in key order, the next one last."""

    def __init__(self, reader: NodeReader, span: Span = EVERYWHERE) -> None:
        self._reader = reader
        self._span = span
        self._parts: list[_Part] = []

    @classmethod
    def below(cls, reader: NodeReader, part: _Part) -> _Stream:
        """Return the stream of one subtree."""
        stream = cls(reader)
        stream._parts.append(part)
        return stream

    def begin(self, root: Node) -> None:
        """Begin with the children and pivots of a root."""
        self._expand(self._root(root))

    def begin_with(self, root: Node, other: _Stream, others: Node) -> None:
        """Begin with two roots, without the children and pivots of which both say the same."""
        self._expand_both(self._root(root), other, other._root(others))

    def _root(self, root: Node) -> _Opened:
        return _Opened(root, self._inside(root.pending), None, 0)

    def subtrees(self) -> list[_Part]:
        """Return the parts that are subtrees, in key order."""
        return [part for part in reversed(self._parts) if part.path is not None]

    def head(self) -> _Part | None:
        """Return the next part that is not used up."""
        while self._parts and self._parts[-1].path is None and not self._parts[-1].keys:
            self._parts.pop()
        return self._parts[-1] if self._parts else None

    def skip(self) -> None:
        """Pass over the next part."""
        self._parts.pop()

    def open(self) -> None:
        """Open the subtree that comes next. One read."""
        self._expand(self._read())

    def open_with(self, other: _Stream) -> None:
        """Open what comes next on both sides, without the children and pivots of which both say the same. Two reads."""
        self._expand_both(self._read(), other, other._read())

    def _expand_both(self, mine: _Opened, other: _Stream, theirs: _Opened) -> None:
        unlike = _unlike(mine, theirs)
        self._expand(mine, unlike)
        other._expand(theirs, unlike)

    def _read(self) -> _Opened:
        part = self._parts.pop()
        if part.path is None or part.parent is None or part.depth > MAX_HEIGHT:
            raise CorruptNode("the pointers of the tree run in a circle", invariant="I10")
        child = self._reader.read(part.path)
        child_height(part.parent, part.path, child)
        return _Opened(child, self._inside(merged(child.pending, part.messages)), part.low, part.depth + 1)

    def _inside(self, messages: Messages) -> Messages:
        if self._span is EVERYWHERE:
            return messages
        inside = self._span.rows(messages.keys)
        return messages.slice(inside.start, inside.stop)

    def _expand(self, opened: _Opened, unlike: _Unlike | None = None) -> None:
        node, messages = opened.node, opened.messages
        rows = self._span.rows(node.keys)
        if node.is_leaf:
            self._parts.append(_run(applied(node.keys[rows], node.values[rows], messages)))
            return
        parts: list[_Part] = []
        counts = node.child_keys or []
        waiting = _Waiting(messages)
        reached = range(max(0, rows.start - 1), min(rows.stop + 1, len(node.children)))
        for index in reached if unlike is None else unlike.within(reached):
            left, right = node.bounds(index)
            if self._span.meets(left, right) and (unlike is None or index in unlike.children):
                inside = counts[index] if index < len(counts) else 0
                below = waiting.between(left, right)
                low = left or opened.low
                parts.append(_Part([], [], node.children[index], node, below, low, opened.depth, inside))
            if rows.start <= index < rows.stop and (unlike is None or index in unlike.pivots):
                row = slice(index, index + 1)
                parts.append(_run(waiting.applied_to(node.keys[row], node.values[row])))
        self._parts += reversed(parts)


class _Opened(NamedTuple):
    """A node that was read, with all messages that wait for it and what is below it."""

    node: Node
    messages: Messages
    low: str | None
    depth: int


@dataclass(frozen=True, slots=True)
class _Unlike:
    """The children and the pivots of two nodes with the same pivots that may mean something else."""

    children: frozenset[int]
    pivots: frozenset[int]

    def within(self, reached: range) -> list[int]:
        """Return the indices to look at, in order."""
        return sorted(index for index in self.children | self.pivots if index in reached)


def _unlike(one: _Opened, two: _Opened) -> _Unlike | None:
    """Return where two nodes, or what waits for them, differ; ``None`` where their pivots are not the same."""
    keys = one.node.keys
    same_shape = keys == two.node.keys and len(one.node.children) == len(two.node.children)
    if not same_shape or one.node.is_leaf:
        return None
    children = _different(one.node.children, two.node.children)
    pivots = _different(one.node.values, two.node.values)
    for key, _ in set(one.messages.meanings()) ^ set(two.messages.meanings()):
        at = bisect_left(keys, key)
        (pivots if at < len(keys) and keys[at] == key else children).add(at)
    return _Unlike(frozenset(children), frozenset(pivots))


def _different(one: Sequence[str], two: Sequence[str]) -> set[int]:
    return {index for index, (mine, theirs) in enumerate(zip(one, two, strict=True)) if mine != theirs}


class _Waiting:
    """Sorted messages dealt out to children and pivots from left to right; most of them get none."""

    def __init__(self, messages: Messages) -> None:
        self._messages = messages
        self._keys = messages.keys
        self._next = 0

    def between(self, lo: str | None, hi: str | None) -> Messages:
        """Return the messages strictly between two pivots, which must not lie before those asked for earlier."""
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
        return applied(keys, values, self._messages.slice(at, at + 1))


class _Entries:
    """A stream of entries that are scanned: nothing to skip or open."""

    def __init__(self, batches: Iterator[Batch]) -> None:
        self._batches = batches
        self._part = _Part([], [])

    def head(self) -> _Part | None:
        """Return the next batch that is not used up."""
        while not self._part.keys:
            batch = next(self._batches, None)
            if batch is None:
                return None
            self._part = _run(batch)
        return self._part

    def skip(self) -> None:
        """Never called: entries are no subtree."""
        raise AssertionError("entries cannot be skipped")

    open = skip


_Side = _Stream | _Entries


def _compare(old: _Side, new: _Side) -> Iterator[Row]:
    while True:
        a, b = old.head(), new.head()
        if a is None and b is None:
            return
        if (a is not None and a.path is not None) or (b is not None and b.path is not None):
            yield from _approach(old, a, new, b)
        else:
            yield from _merge(a, b)


def _approach(old: _Side, a: _Part | None, new: _Side, b: _Part | None) -> Iterator[Row]:
    """Skip, open, or pass what comes before a subtree."""
    if a is None or b is None:
        (new if a is None else old).open()
    elif a.path is not None and b.path is not None:
        if a.path == b.path and a.same_messages(b):
            old.skip()
            new.skip()
        elif a.comes_before(b):
            old.open()
        elif b.comes_before(a):
            new.open()
        elif isinstance(old, _Stream) and isinstance(new, _Stream):
            old.open_with(new)
    elif a.path is not None:
        yield from ((key, None, value) for key, value in b.take_until(a.low))
        if b.keys:
            old.open()
    else:
        yield from ((key, value, None) for key, value in a.take_until(b.low))
        if a.keys:
            new.open()


def _merge(a: _Part | None, b: _Part | None) -> Iterator[Row]:
    left = a.take_all() if a is not None else []
    right = b.take_all() if b is not None else []
    if a is None or b is None or not left or not right:
        yield from ((key, value, None) for key, value in left)
        yield from ((key, None, value) for key, value in right)
        return
    last = min(left[-1][0], right[-1][0])
    a.put_back([row for row in left if row[0] > last])
    b.put_back([row for row in right if row[0] > last])
    before = {key: value for key, value in left if key <= last}
    after = {key: value for key, value in right if key <= last}
    for key in sorted(before.keys() | after.keys()):
        if before.get(key) != after.get(key):
            yield key, before.get(key), after.get(key)

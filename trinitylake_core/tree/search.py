"""Reading a tree: search and range scan (format, section 4).

The meaning of a key is its newest message on the path from the root, else its row in a key table,
else it is absent. Given a reader of nodes, touches no storage itself.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Final, Protocol, TypeVar, runtime_checkable

from trinitylake_core.errors import CorruptNode
from trinitylake_core.keys import EVERYTHING, KeyRange
from trinitylake_core.tree.node import Messages, Node, merge_messages

T = TypeVar("T")
_LONG: Final = 8
"""How many messages to a row are so many that rows are put among them, and not each message into a table."""
_OPENED: Final = 32
"""Nodes above the leaves that are opened together, ahead of a scan or a flush."""
MAX_HEIGHT: Final = 64
"""No tree of 2^32 versions is higher; a path that is longer runs in a circle."""

Batch = tuple[list[str], list[str]]
"""Keys in ascending order, and their values."""


class NodeReader(Protocol):
    """Where nodes come from."""

    def read(self, path: str) -> Node:
        """Return one node."""

    def read_many(self, paths: Sequence[str]) -> Iterator[Node]:
        """Yield nodes in order, reading ahead."""


@runtime_checkable
class AheadReader(NodeReader, Protocol):
    """A source of nodes that takes hints on the nodes that follow."""

    def held(self, paths: Sequence[str]) -> Iterator[Node]:
        """Yield nodes, and hold each until it is asked for."""

    def prefetch(self, paths: Iterable[str]) -> AbstractContextManager[None]:
        """Read nodes ahead that will be asked for inside of the block."""


def child_height(parent: Node, path: str, child: Node) -> None:
    """Prove that a child is one level below its parent, where both record their heights: no pointer leads in a circle.

    Raises ``CorruptNode``: the heights do not fit together.
    """
    if parent.height is not None and child.height is not None and child.height != parent.height - 1:
        raise CorruptNode(
            f"node file {path!r} has height {child.height} below a node of height {parent.height}: "
            "the pointer to it leads astray or in a circle",
            path=path,
            invariant="I8",
        )


def lookup(reader: NodeReader, root: Node, key: str) -> str | None:
    """Return the value of a key, or ``None``. One read a level below the root, at the most."""
    node = root
    for _ in range(MAX_HEIGHT):
        decided, found = node.find(key)
        if decided or found is None:
            return found
        child = reader.read(found)
        if node.height is None or child.height != node.height - 1:
            child_height(node, found, child)
        node = child
    raise _circle()


def _circle() -> CorruptNode:
    return CorruptNode("the pointers of the tree run in a circle", invariant="I10")


def lookup_many(reader: NodeReader, node: Node, keys: Sequence[str], depth: int = 0) -> dict[str, str]:
    """Return the values of those of many keys that are there: each node on their ways is read once, ahead.

    At the most one read per key and level below the root, and one per node of the tree.
    REQUIRES: keys in ascending order.
    """
    if depth > MAX_HEIGHT:
        raise _circle()
    here: dict[str, str | None] = dict(zip(node.keys, node.values, strict=True))
    here.update(node.pending.meanings())
    found = {}
    below: dict[int, list[str]] = {}
    for key in keys:
        if key not in here:
            below.setdefault(node.child_index(key), []).append(key)
            continue
        value = here[key]
        if value is not None:
            found[key] = value
    if node.is_leaf:
        return found
    paths = [node.children[index] for index in below]
    for path, child, keys_below in zip(paths, reader.read_many(paths), below.values(), strict=True):
        child_height(node, path, child)
        found |= lookup_many(reader, child, keys_below, depth + 1)
    return found


def waiting_gains(
    reader: NodeReader, node: Node, newer: Messages | None = None, depth: int = 0
) -> Iterator[tuple[str, int]]:
    """Yield each key that messages in a tree wait for, and by how many objects they change what key tables hold.

    That is 1 of a key that they create, -1 of one that they delete, and 0 of one that they change. ``newer`` waits
    above the node. One read per node that has messages, or that some are for.
    """
    if depth > MAX_HEIGHT:
        raise _circle()
    messages = merge_messages(node.pending, newer)
    pivots = set(node.keys)
    below: dict[int, list[tuple[str, str | None, str]]] = {}
    for key, value, txn in messages:
        if key in pivots:
            yield key, -1 if value is None else 0
        elif node.is_leaf:
            yield key, 0 if value is None else 1
        else:
            below.setdefault(node.child_index(key), []).append((key, value, txn))
    uncounted: list[int | None] = [None] * len(node.children)
    counted = node.child_messages or uncounted
    waiting = [index for index, count in enumerate(counted) if index in below or count != 0]
    paths = [node.children[index] for index in waiting]
    for index, path, child in zip(waiting, paths, reader.read_many(paths), strict=True):
        child_height(node, path, child)
        yield from waiting_gains(reader, child, Messages.of(below.get(index, [])), depth + 1)


def keys_before(reader: NodeReader, root: Node, key: str) -> int | None:
    """Return the number of keys in key tables before ``key``; ``None`` where a node does not count its children's keys.

    One read a level below the root, at the most. Messages that wait are left out.
    """
    node, count = root, 0
    for _ in range(MAX_HEIGHT):
        at = bisect_left(node.keys, key)
        count += at
        if node.is_leaf:
            return count
        if node.child_keys is None:
            return None
        count += sum(node.child_keys[:at])
        if at < len(node.keys) and node.keys[at] == key:
            return count + node.child_keys[at]
        child = reader.read(node.children[at])
        child_height(node, node.children[at], child)
        node = child
    raise _circle()


def scan(
    reader: NodeReader,
    root: Node,
    within: KeyRange = EVERYTHING,
    newer: Messages | None = None,
    *,
    children: range | None = None,
) -> Iterator[Batch]:
    """Yield all keys of a range with their values, in batches, in key order; ``newer`` messages override.

    Costs one read a node whose range meets ``within``, ahead and in parallel. With ``children`` only what is below
    these children of the root, and the pivot after each: disjoint runs of them together yield everything once.
    """
    batches = _scan(reader, root, within, newer or Messages(), 0, children)
    if not isinstance(reader, AheadReader) or not 1 < (root.height or 0) <= MAX_HEIGHT:
        yield from batches
        return

    def below(paths: Sequence[str]) -> Sequence[str]:  # opened nodes are held until the scan gets there
        try:
            nodes = list(reader.held(paths))
        except CorruptNode:  # below damaged nodes there is nothing to read: the scan raises
            return ()
        return [path for node in nodes for path in _met(node, within, None)]

    with reader.prefetch(leaves_ahead(_met(root, within, children), (root.height or 0) - 1, below)):
        yield from batches


def leaves_ahead(level: Sequence[T], height: int, below: Callable[[Sequence[T]], Sequence[T]]) -> Iterator[T]:
    """Yield the leaves below nodes of one height, in key order, before they are read.

    ``below`` opens nodes, those of one call together, and returns the children that will be read: a round trip per
    level and ``_OPENED`` nodes, not one per node.
    """
    if height == 0:
        yield from level
        return
    for start in range(0, len(level), _OPENED):
        children = below(level[start : start + _OPENED])
        yield from leaves_ahead(children, height - 1, below)


def _met(node: Node, within: KeyRange, only: range | None) -> Sequence[str]:
    """Return the children of an inner node whose ranges meet a range of keys, of ``only`` some of them."""
    met = overlapping(node, within)
    start, stop = met.start, met.stop
    if only is not None:
        start = max(start, only.start)
        stop = min(stop, only.stop)
    return node.children[start : max(start, stop)]


def overlapping(node: Node, within: KeyRange) -> range:
    """Return the children whose ranges meet a range of keys; of a leaf, which has none, the first alone."""
    if node.is_leaf:
        return range(1)
    first = bisect_left(node.keys, within.lo)
    last = bisect_right(node.keys, within.hi)
    return range(first, last + 1)


def _scan(
    reader: NodeReader, node: Node, within: KeyRange, newer: Messages, depth: int, only: range | None = None
) -> Iterator[Batch]:
    if depth > MAX_HEIGHT:
        raise _circle()
    messages = merge_messages(node.pending, newer)
    first = bisect_left(node.keys, within.lo)
    last = bisect_right(node.keys, within.hi)
    if node.is_leaf:
        if only is None or 0 in only:
            start = bisect_left(messages.keys, within.lo)
            stop = bisect_right(messages.keys, within.hi)
            yield apply_messages(node.keys[first:last], node.values[first:last], messages.slice(start, stop))
        return
    paths = _met(node, within, only)
    first_read = first if only is None else max(first, only.start)
    for index, child in enumerate(reader.read_many(paths), first_read):
        child_height(node, node.children[index], child)
        low, high = node.bounds(index)
        yield from _scan(reader, child, within, messages.slice_between(low, high), depth + 1)
        if index < last:
            pivot = node.keys[index]
            yield apply_messages([pivot], [node.values[index]], messages.on(pivot))


def apply_messages(keys: Sequence[str], values: Sequence[str], messages: Messages) -> Batch:
    """Return key table rows with sorted messages carried out."""
    if not len(messages):
        return list(keys), list(values)
    if len(messages) > _LONG * len(keys):
        return _among(keys, values, messages)
    table: dict[str, str | None] = dict(zip(keys, values, strict=True))
    table.update(messages.meanings())
    if None in messages.values:
        table = {key: value for key, value in table.items() if value is not None}
    ordered = sorted(table)
    return ordered, [table[key] for key in ordered]  # type: ignore[misc]


def _among(keys: Sequence[str], values: Sequence[str], messages: Messages) -> Batch:
    """Return a few rows with many sorted messages carried out: whole slices, without reading each message's key."""
    found: list[str] = []
    meanings: list[str | None] = []
    start = 0
    for key, value in zip(keys, values, strict=True):
        stop = bisect_left(messages.keys, key, start)
        found += messages.keys[start:stop]
        meanings += messages.values[start:stop]
        if stop == len(messages) or messages.keys[stop] != key:
            found.append(key)
            meanings.append(value)
        start = stop
    found += messages.keys[start:]
    meanings += messages.values[start:]
    if None in meanings:
        found = [key for key, value in zip(found, meanings, strict=True) if value is not None]
    left = [value for value in meanings if value is not None]
    return found, left

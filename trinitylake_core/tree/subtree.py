"""Subtrees in memory: what ``rewrite`` builds, joins and flushes, and the policies of a flush.

A subtree is a :class:`Ref`: a node file, or a node in memory, and the *pending* messages that the buffers
above hold for it. A node in memory has no buffer of its own: its messages hang on the children they
belong to, and are put together again when the node is written.

A pivot whose newest message deletes it still separates its neighbours: its value becomes a :class:`DeletedPivot`.
Written, it is a key with a delete message in the same node's buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Final, Protocol, TypeAlias

from trinitylake_core.tree.leafrun import Columns, Leaves
from trinitylake_core.tree.node import Messages, Node
from trinitylake_core.tree.proof import EVERYWHERE, Range
from trinitylake_core.tree.search import Batch, NodeReader

_WORTH: Final = 64
"""A child is rewritten for one message for each so many keys that it has room for: 7 of 511 (``docs/costs.md``)."""
_MANY_MESSAGES: Final = 1 << 40
"""Stands for the number of messages in a subtree that does not count them."""


class DeletedPivot(str):  # noqa: SLOT000 - it carries the transaction
    """The last value of a pivot that its newest message deleted."""

    txn: str = ""
    """The transaction that deleted it."""


@dataclass(slots=True)
class Work:
    """A node in memory that may be changed. ``refs`` is empty in a leaf, else one longer than ``keys``."""

    keys: list[str] = field(default_factory=list)
    values: list[str] = field(default_factory=list)
    refs: list[Ref] = field(default_factory=list)

    def append(self, key: str, value: str, ref: Ref) -> None:
        """Add a child at the right end, and the pivot before it."""
        self.keys.append(key)
        self.values.append(value)
        self.refs.append(ref)

    def prepend(self, ref: Ref, key: str, value: str) -> None:
        """Add a child at the left end, and the pivot behind it."""
        self.keys.insert(0, key)
        self.values.insert(0, value)
        self.refs.insert(0, ref)

    def pop_last(self) -> tuple[str, str, Ref]:
        """Remove the last child and the pivot before it, and return the three."""
        return self.keys.pop(), self.values.pop(), self.refs.pop()

    def pop_first(self) -> tuple[Ref, str, str]:
        """Remove the first child and the pivot behind it, and return the three."""
        return self.refs.pop(0), self.keys.pop(0), self.values.pop(0)

    def cut(self, start: int, stop: int) -> Work:
        """Return rows ``start`` to before ``stop`` as a node, with the children around them."""
        return Work(self.keys[start:stop], self.values[start:stop], self.refs[start : stop + 1])

    def drop_first(self, count: int) -> None:
        """Remove so many rows and children from the left end."""
        del self.keys[:count]
        del self.values[:count]
        del self.refs[:count]

    def live_pivots(self) -> Batch:
        """Return keys and values of the pivots that are not deleted."""
        keys = []
        values = []
        for key, value in zip(self.keys, self.values, strict=True):
            if not isinstance(value, DeletedPivot):
                keys.append(key)
                values.append(value)
        return keys, values

    def count_deleted(self) -> int:
        """Return the number of pivots that are deleted."""
        return sum(isinstance(value, DeletedPivot) for value in self.values)


@dataclass(slots=True)
class Ref:
    """A subtree: ``path`` of its root, or ``work`` in memory. Counts are those of the files, without ``pending``.

    ``few``: the root of a subtree on disk may hold fewer keys than a node below others must.
    ``within`` is the range of a subtree on disk, kept by a rewriter that proves.
    """

    height: int
    path: str | None = None
    work: Work | None = None
    keys: int | None = None
    messages: int | None = None
    pending: Messages = field(default_factory=Messages)
    few: bool = False
    within: Range = EVERYWHERE

    def weight(self) -> int:
        """Return the number of messages for this subtree and inside it; an unknown number counts as a large one."""
        if self.messages is None:
            return len(self.pending) + _MANY_MESSAGES
        return len(self.pending) + self.messages


class NodeSink(NodeReader, Protocol):
    """Where nodes come from and go to. ``min_keys`` holds for every node but the root."""

    order: int
    min_keys: int
    max_keys: int

    def prefetch(self, paths: Iterable[str]) -> AbstractContextManager[None]:
        """Read nodes ahead that will be asked for inside of the block."""

    def add(self, node: Node) -> str:
        """Take a node for writing."""

    def read_columns(self, paths: Sequence[str]) -> list[Columns] | None:
        """Return leaves as columns; ``None`` if one of them is not plain."""

    def new_paths(self, count: int) -> list[str]:
        """Return names for new leaves."""

    def add_leaves(self, leaves: Leaves, paths: Sequence[str], stamp: int, prove: Callable[[], None]) -> None:
        """Take leaves for writing, created at ``stamp``. REQUIRES: none is empty.

        ``prove`` raises ``Corrupt`` if they are wrong. It is called before they are written, perhaps by another thread;
        then a later call, or the end of the writing, raises the error.
        """

    def take_back(self, path: str) -> Node | None:
        """Forget a node that was added and not written yet."""


Choice: TypeAlias = Collection[int] | None
"""Which children of a node are flushed, by their index; ``None``: the node stays as it is, dead pivots too."""
Policy = Callable[[Work], Choice]
"""Chooses the children of a node to flush. None of them is not ``None``: it drops the dead pivots, and joins their
neighbours.
"""


def dirty_children(work: Work) -> Collection[int]:
    """Choose, for a compaction, everything that has messages, or may have."""
    chosen = []
    for index, ref in enumerate(work.refs):
        is_clean = ref.work is None and not len(ref.pending) and ref.messages == 0
        if not is_clean:
            chosen.append(index)
    return chosen


def heaviest_children(target_bytes: int) -> Policy:
    """Return the policy of a commit: the heaviest children, until the node is under its target size."""

    def choose(work: Work) -> Choice:
        paths = [ref.path or "" for ref in work.refs]
        table_bytes = Node(work.keys, work.values, paths).table_bytes()
        sizes = [ref.pending.nbytes() if len(ref.pending) else 0 for ref in work.refs]
        excess = table_bytes + sum(sizes) - target_bytes
        if excess <= 0:
            return None
        heaviest_first = sorted(range(len(sizes)), key=lambda index: -sizes[index])
        chosen = []
        for index in heaviest_first:
            if excess <= 0 or not sizes[index]:
                break
            chosen.append(index)
            excess -= sizes[index]
        return chosen

    return choose


_Light = tuple[int, int, int]
"""A child that is not worth a flush by itself: its pending messages, their bytes, and its place in the node.

No class with names: this is made for every child of every node that a compaction reads.
"""
_MESSAGES: Final = itemgetter(0)


class PayingChildren:
    """The policy of a compaction that pays: it flushes a child when the messages for it are worth its rewriting.

    That is one message for each 64 keys that a node has room for. What is worth less waits in the buffer above, as deep
    as it goes; no node keeps more messages than half of its keys, so that it is read as fast as without (the heaviest
    children go first). A root keeps fewer, ``root_bytes``: every commit writes it. With room for fewer than 128 keys
    every message is worth a node: then all of them go all the way.
    """

    def __init__(self, order: int, root_bytes: int) -> None:
        self._width = max(2, order * 2 // 3)
        """The keys of a node that is about two thirds full."""
        self.worth = max(1, (order - 1) // _WORTH)
        """So many messages are worth a leaf."""
        self.flushes_all = self.worth == 1
        """Whether no message may wait."""
        self._kept = 0 if self.flushes_all else (order - 1) // 2
        self._root_bytes = 0 if self.flushes_all else root_bytes

    def allowed_messages(self, keys: int | None, height: int) -> int:
        """Return how many messages may wait in the buffers of a subtree: those that are left in its inner nodes."""
        inner = 0
        nodes = keys or 0
        for _ in range(height):
            nodes //= self._width
            inner += max(1, nodes // self._width)
        return inner * self._kept

    def over(self, target_bytes: int) -> Policy:
        """Return the policy of a large commit: too large a node flushes the heaviest children, and all that pay."""
        heaviest = heaviest_children(target_bytes)

        def choose(work: Work) -> Choice:
            chosen = heaviest(work)
            if chosen is None:
                return None
            return {*chosen, *(index for index, ref in enumerate(work.refs) if self._pays(ref))}

        return choose

    def of_root(self, work: Work) -> Choice:
        """Choose the children of a root."""
        return self._choose(work, self._root_bytes)

    def of_others(self, work: Work) -> Choice:
        """Choose the children of a node below the root."""
        return self._choose(work, None)

    def _choose(self, work: Work, most_bytes: int | None) -> Choice:
        if self.flushes_all:
            return dirty_children(work)
        chosen: set[int] = set()
        light: list[_Light] = []
        messages = 0
        size = 0
        for place, ref in enumerate(work.refs):
            if self._pays(ref):
                chosen.add(place)
            elif waiting := len(ref.pending):
                waiting_bytes = ref.pending.nbytes()
                light.append((waiting, waiting_bytes, place))
                messages += waiting
                size += waiting_bytes
        light.sort(key=_MESSAGES)
        while light:
            has_room = messages <= self._kept
            if has_room and (most_bytes is None or size <= most_bytes):
                break
            waiting, waiting_bytes, place = light.pop()  # the heaviest
            chosen.add(place)
            messages -= waiting
            size -= waiting_bytes
        if not chosen and messages + work.count_deleted() > self._kept:
            return chosen  # the messages that deleted pivots are too many: nothing else makes them fewer
        return chosen or None

    def _pays(self, ref: Ref) -> bool:
        if ref.work is not None or len(ref.pending) >= self.worth:  # what was opened is written again anyway
            return True
        return ref.height > 0 and ref.weight() > self.allowed_messages(ref.keys, ref.height)


def route_messages(work: Work, messages: Messages) -> None:
    """Hang sorted messages on the pivots and the children they belong to.

    REQUIRES: nothing is pending for the children; they were made from the node a moment ago.
    ENSURES: each message is in the value of its pivot, or pending for the one child whose range holds its key.
    """
    row = 0
    for child, (place, is_pivot) in enumerate(messages.places(work.keys)):
        if place > row:
            work.refs[child].pending = messages.slice(row, place)
        row = place
        if is_pivot:
            ((_, value, txn),) = messages.slice(place, place + 1)
            work.values[child] = _settle_pivot(work.values[child], value, txn)
            row += 1
    if row < len(messages):
        last_child = len(work.keys)
        work.refs[last_child].pending = messages.slice(row)


def _settle_pivot(value: str, new: str | None, txn: str) -> str:
    """Return the value of a pivot after a message, which sets it or deletes the pivot."""
    if new is not None:
        return new
    dead = DeletedPivot(value)
    dead.txn = txn
    return dead


def count_subtrees(node: Node, refs: list[Ref]) -> None:
    """Set the counts of a node for its subtree and for each child's, where the children have them."""
    keys = [ref.keys for ref in refs if ref.keys is not None]
    if len(keys) == len(refs):
        node.subtree_keys = len(node.keys) + sum(keys)
        node.child_keys = keys or None
    messages = [ref.messages for ref in refs if ref.messages is not None]
    if len(messages) == len(refs):
        node.subtree_messages = len(node.buffer) + sum(messages)
        node.child_messages = messages or None


def collapse_single_child(ref: Ref) -> Ref:
    """Return a subtree without roots in memory that have a single child."""
    while ref.work is not None and ref.height and not ref.work.keys:
        ref = ref.work.refs[0]
    return ref

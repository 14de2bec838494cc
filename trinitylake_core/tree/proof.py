"""The proof of a rewrite: what was read means what was written (format, section 4).

Two sums of hashes, computed by code that shares nothing with ``rewrite`` and ``tree``, over nodes as they were
read and over nodes as they were given away for writing:

* ``before``: the entries that nodes and the messages waiting for them mean, and each child *(path, range)*;
* ``after``: the entries that new nodes hold, and each child *(path, range)*.

A node that is opened takes its own *(path, range)* out of ``before``, one that is written out of ``after``. So
every node that was opened, or written and used, cancels out. What remains on both sides are the entries and the
unopened subtrees. A subtree that is dropped, or stands twice, breaks the sum. One that stands in another
place breaks the order, which is proved where a node is written: its keys ascend strictly, and the subtree between
two of them lies between them.

Messages that wait for a child are one hash, which is taken out again where the child is read: another split of them,
or a change on the way, leaves both.

A range is half-open, *(low, high)*: every key below is at least ``low`` and less than ``high``. Costs one hash per
entry and per child, no request. Entries that go from leaf to leaf as columns are proved by ``leafrun``, and cost none.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import pairwise
from operator import add, ge
from typing import Any, Final

import mmh3
import numpy as np

from trinitylake_core.errors import Corrupt, CorruptNode
from trinitylake_core.tree.leafrun import Columns, in_order, is_set
from trinitylake_core.tree.node import Messages, Node
from trinitylake_core.tree.noderows import Texts
from trinitylake_core.tree.search import AheadReader, Batch, NodeReader

Range = tuple[str, str]
EVERYWHERE: Final[Range] = ("", "\U0010ffff")
"""The range of a root: object keys begin with a character of ASCII."""
_FAILED: Final = "the proof of a new node failed"
_BUG: Final = "nothing was committed, please report this as a bug"
_MASK: Final = 2**128 - 1
_MANY: Final = 1000
"""So many messages are proved to be in order as a column."""
_LEAST: Final = "\0"
"""No key holds it: behind a key it makes the smallest text that is larger."""


def entries_hash(keys: Sequence[str], values: Sequence[str]) -> int:
    """Return the sum of the hashes of entries, which does not depend on their order."""
    # Not `hash` of a tuple: two rows that swap their values often leave the sum of those as it is.
    return sum(map(mmh3.hash128, map(add, keys, values)))


def ranges(node: Node, within: Range) -> list[Range]:
    """Return the ranges of the children of a node that holds ``within``."""
    lows = [within[0], *(key + _LEAST for key in node.keys)]
    return list(zip(lows, [*node.keys, within[1]], strict=True))


class Proof:
    """The sums of one rewrite. ``before`` and ``after`` must agree in the end, and nothing may be ``waiting``.

    ``partial`` allows that messages are left in the buffers of new nodes: those that were there for the same children.
    """

    def __init__(self, *, partial: bool = False) -> None:
        self.partial = partial
        self.before = 0
        self.after = 0
        self.waiting = 0
        """Messages that were seen above and have not arrived below yet."""
        self._fed: deque[Columns] = deque()
        self._same = True

    def add_subtree(self, path: str | None, within: Range, pending: Messages) -> None:
        """Add a subtree that another rewriter hands over, and the messages that wait for it."""
        if path is not None:
            self.before += _hash_subtree(path, within)
        self.waiting += _hash_messages([pending])

    def remove_subtree(self, path: str | None, within: Range, pending: Messages) -> None:
        """Remove a subtree that is handed over to another rewriter, and the messages that wait for it."""
        if path is not None:
            self.before -= _hash_subtree(path, within)
        self.waiting -= _hash_messages([pending])

    def read(self, node: Node, path: str | None, within: Range, pending: Messages) -> dict[int, Messages]:
        """Add what a node means for which messages wait; return those that go on, by the index of the child.

        ``path`` is ``None`` for a root, to which nothing points. Raises ``CorruptNode``: keys do not ascend, or a key
        or a message lies outside of the range, where nothing finds it.
        """
        newest = _newest(node.buffer, pending)
        _refuse_disorder(node, newest, path, within)
        rows, below = _carry_out(node, newest)
        self.before += entries_hash(*rows)
        if node.children:
            self.before += sum(map(_hash_subtree, node.children, ranges(node, within)))
        if path is not None:
            self.before -= _hash_subtree(path, within)
        self.waiting += _hash_messages([*below.values()])
        self.waiting -= _hash_messages([pending])
        return below

    def add_entries(self, keys: Sequence[str], values: Sequence[str]) -> None:
        """Add entries that a new tree is built of."""
        self.before += entries_hash(keys, values)

    def fed_columns(self, rows: Columns) -> None:
        """Add entries that the leaves of a new tree are cut from, in their order; :meth:`cut` takes them away."""
        self._fed.append(rows)

    def cut(self, rows: Columns) -> None:
        """Take entries away that were fed as columns and are in leaves, or in the hands of a rewrite, now."""
        start = 0
        while start < len(rows) and self._fed:
            fed = self._fed.popleft()
            stop = min(len(rows), start + len(fed))
            count = stop - start
            if not fed.slice(0, count).equals(rows.slice(start, stop)):
                self._same = False
            if count < len(fed):
                self._fed.appendleft(fed.slice(count, len(fed)))
            start = stop
        if start != len(rows):  # more than was fed
            self._same = False

    def replace_subtrees(
        self,
        old: Sequence[tuple[str, Range, Messages]],
        old_pivots: Batch,
        new: Iterable[tuple[str, Range]],
        new_pivots: Batch,
    ) -> None:
        """Exchange neighbouring subtrees and the pivots between them for others that mean the same.

        REQUIRES: it is proved already that both, with what was pending for the old ones, hold the same entries.
        """
        for path, within, _ in old:
            self.before -= _hash_subtree(path, within)
        self.waiting -= _hash_messages([pending for _, _, pending in old])
        self.before -= entries_hash(*old_pivots)
        self.before += entries_hash(*new_pivots)
        for path, within in new:
            self.after -= _hash_subtree(path, within)

    def add_written(self, node: Node, path: str | None, children: Sequence[Range]) -> Range:
        """Add what a new node holds, prove its order, and return its range, which is as tight as it can be.

        Messages that are left in it wait for its children, or have deleted a pivot. ``path`` is ``None`` for a root;
        ``children`` are the ranges of its children. Raises ``Corrupt``: its keys do not ascend, what hangs between two
        of them does not lie there, or a message is left in a leaf, or where none may be.
        """
        keys = node.keys
        may_wait = self.partial and len(node.children) > 0
        if _stumble(keys) or (len(node.buffer) and not may_wait):
            raise Corrupt(f"{_FAILED}: the rows of a new node do not ascend, or a message is left in it; {_BUG}")
        within = (keys[0], keys[-1] + _LEAST) if keys else EVERYWHERE
        rows = (keys, node.values)
        if node.children or children:
            _refuse_astray(node, children)
            self.after += sum(map(_hash_subtree, node.children, children))
            lowest, _ = children[0]
            _, highest = children[-1]
            within = (lowest, highest)
        if len(node.buffer):
            left = _newest(node.buffer, Messages())
            rows, below = _carry_out(node, left)
            self.waiting -= _hash_messages([*below.values()])
            within = _widen(within, left)
        self.after += entries_hash(*rows)
        if path is not None:
            self.after -= _hash_subtree(path, within)
        return within

    def holds(self) -> bool:
        """Return whether what was written means what was there before."""
        is_cut_up = not any(map(len, self._fed))
        is_equal = (self.before - self.after) & _MASK == 0
        has_arrived = self.waiting & _MASK == 0
        return self._same and is_cut_up and is_equal and has_arrived


def _stumble(keys: Sequence[str]) -> bool:
    """Whether keys do not ascend strictly."""
    return any(map(ge, keys, keys[1:]))


def _refuse_disorder(node: Node, newest: Messages, path: str | None, within: Range) -> None:
    """Raise ``CorruptNode`` if keys do not ascend, or a key or a message lies outside of the range of a node."""
    low, high = within
    keys = node.keys
    if _stumble(keys):
        raise CorruptNode(f"node file {path!r}: keys are not strictly ascending", path=path, invariant="I3")
    if keys and not low <= keys[0] <= keys[-1] < high:
        message = f"node file {path!r}: a key lies outside of the range of the node"
        raise CorruptNode(message, path=path, invariant="I4")
    if not len(newest):
        return
    (first,) = newest.slice(0, 1).keys
    (last,) = newest.slice(-1).keys
    if not low <= first <= last < high:
        raise CorruptNode(f"node file {path!r}: a message lies outside of its range", path=path, invariant="I5")


def _widen(within: Range, messages: Messages) -> Range:
    """Return a range that contains messages in key order, too."""
    low, high = within
    (first,) = messages.slice(0, 1).keys
    (last,) = messages.slice(-1).keys
    return min(low, first), max(high, last + _LEAST)


def _refuse_astray(node: Node, children: Sequence[Range]) -> None:
    """Raise ``Corrupt`` if the children of a new node are not as many, or do not lie where they must."""
    wanted = len(node.keys) + 1
    different = len(set(node.children))
    has_empty = any(low >= high for low, high in children)
    if has_empty or len(children) != wanted or different != wanted:
        raise Corrupt(f"{_FAILED}: a child is missing, there twice, too many, or empty; {_BUG}")
    for key, before, behind in zip(node.keys, children[:-1], children[1:], strict=True):
        _, high_before = before
        low_behind, _ = behind
        if high_before > key or low_behind <= key:
            raise Corrupt(f"{_FAILED}: a child does not lie between the keys around it; {_BUG}")


class Witness:
    """A reader of nodes that adds up by itself what the subtrees read through it mean.

    It shares no code with the scan that it watches: it carries messages down in mappings of its own.
    """

    def __init__(self, reader: NodeReader) -> None:
        self._reader = reader
        self._expected: dict[str, tuple[Messages, Range]] = {}
        self.proof = Proof()

    def begin(self, root: Node, children: Iterable[int] | None = None) -> None:
        """Expect some children of a root, by default all, each with the messages for it and the pivot behind it."""
        rows, below = _carry_out(root, _newest(root.buffer, Messages()))
        if root.is_leaf:
            self.proof.before += entries_hash(*rows)
            return
        values = dict(zip(*rows, strict=True))
        within = ranges(root, EVERYWHERE)
        wanted = range(len(root.children)) if children is None else children
        for index in wanted:
            path = root.children[index]
            pending = below.get(index, Messages())
            self.proof.add_subtree(path, within[index], pending)
            self._expected[path] = pending, within[index]
            if index == len(root.keys):  # nothing stands behind the last child
                continue
            pivot = root.keys[index]
            if pivot in values:
                self.proof.before += entries_hash([pivot], [values[pivot]])

    def read(self, path: str) -> Node:
        """Read one node."""
        return self._examine(path, self._reader.read(path))

    def read_many(self, paths: Sequence[str]) -> Iterator[Node]:
        """Yield nodes in the order of ``paths``, reading ahead."""
        for path, node in zip(paths, self._reader.read_many(paths), strict=True):
            yield self._examine(path, node)

    def held(self, paths: Sequence[str]) -> Iterator[Node]:
        """Yield nodes that will be read later; they are not opened before that."""
        if isinstance(self._reader, AheadReader):
            return self._reader.held(paths)
        return self._reader.read_many(paths)

    def prefetch(self, paths: Iterable[str]) -> AbstractContextManager[None]:
        """Let the reader read ahead, if it can."""
        if isinstance(self._reader, AheadReader):
            return self._reader.prefetch(paths)
        return nullcontext()

    def _examine(self, path: str, node: Node) -> Node:
        if path not in self._expected:
            raise Corrupt(f"node file {path!r} was read where nothing points to it; {_BUG}", path=path)
        pending, within = self._expected.pop(path)
        below = self.proof.read(node, path, within, pending)
        if node.children:
            for index, range_below in enumerate(ranges(node, within)):
                self._expected[node.children[index]] = below.get(index, Messages()), range_below
        return node

    def watch_scan(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Yield what a scan through this reader finds, and prove in the end that this is what the nodes mean.

        Raises ``Corrupt``: it is not; please report it.
        """
        for keys, values in batches:
            self.proof.after += entries_hash(keys, values)
            yield keys, values
        if not self.proof.holds():
            raise Corrupt(f"a scan lost or changed entries; {_BUG}")


def _newest(older: Messages, newer: Messages) -> Messages:
    """Return messages in key order, the newest of each key."""
    if not len(older) or not len(newer):
        alone = older if len(older) else newer
        if _are_in_order(alone):
            return alone
    newest = dict(older.meanings())
    newest.update(newer.meanings())
    keys = sorted(newest)
    values = [newest[key] for key in keys]
    return Messages(keys, values, [""] * len(keys))


def _are_in_order(messages: Messages) -> bool:
    if len(messages) < _MANY:
        return not _stumble(messages.keys)
    return in_order(messages.columns().keys, None, None)


def _carry_out(node: Node, newest: Messages) -> tuple[Batch, dict[int, Messages]]:
    """Return the rows of a node with messages in key order carried out, and those for its children, by their index."""
    if not len(newest):
        return (node.keys, node.values), {}
    rows = dict(zip(node.keys, node.values, strict=True))
    own, below = (newest, {}) if not node.children else _part_by_child(node, newest)
    for key, value in own.meanings():
        if value is None:
            rows.pop(key, None)
        else:
            rows[key] = value
    return ([*rows], [*rows.values()]), below


def _part_by_child(node: Node, newest: Messages) -> tuple[Messages, dict[int, Messages]]:
    """Return the messages for the pivots of a node, and those that lie between them, by the index of the child."""
    find = _finder(newest)
    below: dict[int, Messages] = {}
    for_pivots = []
    start = 0
    for child, pivot in enumerate(node.keys):
        stop, is_there = find(pivot, start)
        if stop > start:
            below[child] = newest.slice(start, stop)
        start = stop
        if is_there:
            for_pivots.append(newest.slice(stop, stop + 1))
            start += 1
    if start < len(newest):
        below[len(node.keys)] = newest.slice(start)
    return Messages.join(for_pivots), below


def _finder(messages: Messages) -> Callable[[str, int], tuple[int, bool]]:
    """Return a function that finds a key behind a row of sorted messages: where it would stand, and whether it does."""
    arrow = messages.arrow
    if arrow is None:
        return partial(_find, messages.keys)
    texts = Texts(arrow[0])
    return lambda key, start: _find(texts, key.encode(errors="surrogatepass"), start)


def _find(keys: Sequence[Any] | Texts, wanted: Any, start: int) -> tuple[int, bool]:
    # In steps that double: few messages lie between two pivots, wherever they lie among all of them.
    step = 16
    last = len(keys)
    while start + step < last and keys[start + step] < wanted:
        start += step
        step *= 2
    stop = bisect_left(keys, wanted, start, min(last, start + step))
    return stop, stop < last and keys[stop] == wanted


def _hash_subtree(path: str, within: Range) -> int:
    low, high = within
    return mmh3.hash128(f"{path}\1{low}\1{high}")


def _hash_messages(waiting: Sequence[Messages]) -> int:
    """Return the sum of a hash of the messages that wait for each subtree.

    It is of their number, and of lengths, texts, and which values are NULL, in key order.
    """
    counts = [len(messages) for messages in waiting if len(messages)]
    if not counts:
        return 0
    # All together as columns, cut where the next subtree begins: one call for each column, not for each message.
    together = Messages.join(waiting).columns()
    cuts = np.cumsum([0, *counts])
    parts = [[count.to_bytes(8, "little") for count in counts], _cut(is_set(together.values), cuts)]
    for column in (together.keys, together.values):
        _, offsets, text = column.buffers()
        ends = np.frombuffer(offsets, np.int32, len(column) + 1, 4 * column.offset)
        lengths = np.diff(ends)
        parts.append(_cut(lengths, 4 * cuts))
        parts.append(_cut(text or b"", ends[cuts]))
    total = 0
    for parts_of_one in zip(*parts, strict=True):
        hasher = mmh3.mmh3_x64_128()
        for part in parts_of_one:
            hasher.update(part)
        total += int.from_bytes(hasher.digest(), "little")
    return total


def _cut(data: Any, cuts: Any) -> list[Any]:
    """Return the bytes of data between two cuts each."""
    view = memoryview(data).cast("B")
    return [view[start:stop] for start, stop in pairwise(cuts.tolist())]

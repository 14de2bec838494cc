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
from itertools import pairwise
from operator import add, ge, gt, lt
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
    """The sums of one rewrite. ``before`` and ``after`` must agree in the end, and nothing may be ``waiting``."""

    def __init__(self) -> None:
        self.before = 0
        self.after = 0
        self.waiting = 0
        """Messages that were seen above and have not arrived below yet."""
        self._fed: deque[Columns] = deque()
        self._same = True

    def add_subtree(self, path: str | None, within: Range, pending: Messages) -> None:
        """Add a subtree that another rewriter hands over, and the messages that wait for it."""
        self.before += 0 if path is None else _subtree(path, within)
        self.waiting += _messages([pending])

    def remove_subtree(self, path: str | None, within: Range, pending: Messages) -> None:
        """Remove a subtree that is handed over to another rewriter, and the messages that wait for it."""
        self.before -= 0 if path is None else _subtree(path, within)
        self.waiting -= _messages([pending])

    def hand_over(self, node: Node, within: Range) -> None:
        """Remove a part of a node, its subtrees and its messages: another rewriter reads the part as a root."""
        part = Proof()
        part.read(node, None, within, Messages())
        self.before -= part.before
        self.waiting -= part.waiting

    def read(self, node: Node, path: str | None, within: Range, pending: Messages) -> dict[int, Messages]:
        """Add what a node means for which messages wait; return those that go on, by the index of the child.

        ``path`` is ``None`` for a root, to which nothing points. Raises ``CorruptNode``: keys do not ascend, or a key
        or a message lies outside of the range, where nothing finds it.
        """
        newest, (low, high), keys = _newest(node.buffer, pending), within, node.keys
        if any(map(ge, keys, keys[1:])):
            raise CorruptNode(f"node file {path!r}: keys are not strictly ascending", path=path, invariant="I3")
        if keys and not low <= keys[0] <= keys[-1] < high:
            message = f"node file {path!r}: a key lies outside of the range of the node"
            raise CorruptNode(message, path=path, invariant="I4")
        ends = newest.slice(0, 1).keys + newest.slice(-1).keys
        if ends and not low <= ends[0] <= ends[-1] < high:
            raise CorruptNode(f"node file {path!r}: a message lies outside of its range", path=path, invariant="I5")
        rows, below = _carried_out(node, newest) if len(newest) else (None, {})
        self.before += _rows(node) if rows is None else entries_hash([*rows], [*rows.values()])
        self.before += sum(map(_subtree, node.children, ranges(node, within))) if node.children else 0
        self.before -= 0 if path is None else _subtree(path, within)
        self.waiting += _messages([*below.values()]) - _messages([pending])
        return below

    def add_entries(self, keys: Sequence[str], values: Sequence[str]) -> None:
        """Add entries that a new tree is built of."""
        self.before += entries_hash(keys, values)

    def remove_entries(self, keys: Sequence[str], values: Sequence[str]) -> None:
        """Remove entries that are handed over to another rewriter."""
        self.before -= entries_hash(keys, values)

    def fed_columns(self, rows: Columns) -> None:
        """Add entries that the leaves of a new tree are cut from, in their order; :meth:`cut` takes them away."""
        self._fed.append(rows)

    def cut(self, rows: Columns) -> None:
        """Take entries away that were fed as columns and are in leaves, or in the hands of a rewrite, now."""
        start = 0
        while start < len(rows) and self._fed:
            fed = self._fed.popleft()
            stop = min(len(rows), start + len(fed))
            self._same &= fed.slice(0, stop - start).equals(rows.slice(start, stop))
            if stop - start < len(fed):
                self._fed.appendleft(fed.slice(stop - start, len(fed)))
            start = stop
        self._same &= start == len(rows)

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
        self.before -= sum(_subtree(path, within) for path, within, _ in old)
        self.waiting -= _messages([pending for _, _, pending in old])
        self.before += entries_hash(*new_pivots) - entries_hash(*old_pivots)
        self.after -= sum(_subtree(path, within) for path, within in new)

    def add_written(self, node: Node, path: str | None, children: Sequence[Range]) -> Range:
        """Add what a new node holds, prove its order, and return its range, which is as tight as it can be.

        ``path`` is ``None`` for a root; ``children`` are the ranges of its children. Raises ``Corrupt``: its keys do
        not ascend, what hangs between two of them does not lie there, or a message is left.
        """
        keys = node.keys
        if any(map(ge, keys, keys[1:])) or len(node.buffer):
            raise Corrupt(f"{_FAILED}: the rows of a new node do not ascend, or a message is left in it; {_BUG}")
        within = (keys[0], keys[-1] + _LEAST) if keys else EVERYWHERE
        self.after += _rows(node)
        if node.children or children:
            lows, highs = [low for low, _ in children], [high for _, high in children]
            if not len(keys) + 1 == len(children) == len(set(node.children)) or any(map(ge, lows, highs)):
                raise Corrupt(f"{_FAILED}: a child is missing, there twice, too many, or empty; {_BUG}")
            if any(map(ge, keys, lows[1:])) or any(map(gt, highs, keys)):
                raise Corrupt(f"{_FAILED}: a child does not lie between the keys around it; {_BUG}")
            self.after += sum(map(_subtree, node.children, children))
            within = (children[0][0], children[-1][1])
        self.after -= 0 if path is None else _subtree(path, within)
        return within

    def holds(self) -> bool:
        """Return whether what was written means what was there before."""
        return (
            self._same
            and not any(map(len, self._fed))
            and not (self.before - self.after) & _MASK
            and not self.waiting & _MASK
        )


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
        rows, below = _carried_out(root, _newest(root.buffer, Messages()))
        if root.is_leaf:
            self.proof.before += entries_hash([*rows], [*rows.values()])
            return
        within = ranges(root, EVERYWHERE)
        for index in range(len(root.children)) if children is None else children:
            path, pending = root.children[index], below.get(index, Messages())
            self.proof.add_subtree(path, within[index], pending)
            self._expected[path] = pending, within[index]
            pivot = root.keys[index : index + 1]
            if pivot and pivot[0] in rows:
                self.proof.before += entries_hash(pivot, [rows[pivot[0]]])

    def read(self, path: str) -> Node:
        """Read one node."""
        return self._examine(path, self._reader.read(path))

    def read_many(self, paths: Sequence[str]) -> Iterator[Node]:
        """Yield nodes in the order of ``paths``, reading ahead."""
        for path, node in zip(paths, self._reader.read_many(paths), strict=True):
            yield self._examine(path, node)

    def held(self, paths: Sequence[str]) -> Iterator[Node]:
        """Yield nodes that will be read later; they are not opened before that."""
        return self._reader.held(paths) if isinstance(self._reader, AheadReader) else self._reader.read_many(paths)

    def prefetch(self, paths: Iterable[str]) -> AbstractContextManager[None]:
        """Let the reader read ahead, if it can."""
        return self._reader.prefetch(paths) if isinstance(self._reader, AheadReader) else nullcontext()

    def _examine(self, path: str, node: Node) -> Node:
        if path not in self._expected:
            raise Corrupt(f"node file {path!r} was read where nothing points to it; {_BUG}", path=path)
        pending, within = self._expected.pop(path)
        below = self.proof.read(node, path, within, pending)
        for index, each in enumerate(ranges(node, within) if node.children else ()):
            self._expected[node.children[index]] = below.get(index, Messages()), each
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
        if len(alone) < _MANY:
            if all(map(lt, alone.keys, alone.keys[1:])):
                return alone
        elif in_order(alone.columns().keys, None, None):
            return alone
    newest = dict(older.meanings())
    newest.update(newer.meanings())
    keys = sorted(newest)
    return Messages(keys, [*map(newest.__getitem__, keys)], [""] * len(keys))


def _carried_out(node: Node, newest: Messages) -> tuple[dict[str, str], dict[int, Messages]]:
    """Return the rows of a node with messages in key order carried out, and those for its children, by their index."""
    rows = dict(zip(node.keys, node.values, strict=True))
    mine, below, hits = newest, dict[int, Messages](), list[Messages]()
    if node.children:
        find, start = _finder(newest), 0
        for child in range(len(node.children)):
            stop, hit = find(node.keys[child], start) if child < len(node.keys) else (len(newest), False)
            if stop > start:
                below[child] = newest.slice(start, stop)
            start = stop + hit
            if hit:
                hits.append(newest.slice(stop, start))
        mine = Messages.join(hits)
    for key, value in mine.meanings():
        if value is None:
            rows.pop(key, None)
        else:
            rows[key] = value
    return rows, below


def _finder(messages: Messages) -> Callable[[str, int], tuple[int, bool]]:
    """Return a function that finds a key behind a row of sorted messages: where it would stand, and whether it does."""
    arrow = messages.arrow
    keys: Sequence[str] | Texts = messages.keys if arrow is None else Texts(arrow[0])

    def find(key: str, start: int) -> tuple[int, bool]:
        wanted: Any = key if arrow is None else key.encode(errors="surrogatepass")
        step, last = 16, len(keys)
        while start + step < last and keys[start + step] < wanted:
            start, step = start + step, 2 * step
        stop = bisect_left(keys, wanted, start, min(last, start + step))
        return stop, stop < last and keys[stop] == wanted

    return find


def _rows(node: Node) -> int:
    return entries_hash(node.keys, node.values)


def _subtree(path: str, within: Range) -> int:
    return mmh3.hash128(f"{path}\1{within[0]}\1{within[1]}")


def _messages(waiting: Sequence[Messages]) -> int:
    """Return the sum of a hash of the messages that wait for each subtree.

    It is of their number, and of lengths, texts, and which values are NULL, in key order.
    """
    counts = [*filter(None, map(len, waiting))]
    if not counts:
        return 0
    together, cuts = Messages.join(waiting).columns(), np.cumsum([0, *counts])
    parts = [[count.to_bytes(8, "little") for count in counts], _cut(is_set(together.values), cuts)]
    for column in (together.keys, together.values):
        _, offsets, text = column.buffers()
        ends = np.frombuffer(offsets, np.int32, len(column) + 1, 4 * column.offset)
        parts += [_cut(np.diff(ends), 4 * cuts), _cut(text or b"", ends[cuts])]
    total = 0
    for each in zip(*parts, strict=True):
        hasher = mmh3.mmh3_x64_128()
        for part in each:
            hasher.update(part)
        total += int.from_bytes(hasher.digest(), "little")
    return total


def _cut(data: Any, cuts: Any) -> list[Any]:
    """Return the bytes of data between two cuts each."""
    view = memoryview(data).cast("B")
    return [view[start:stop] for start, stop in pairwise(cuts.tolist())]

"""Two streams against each other: of two subtrees the one that comes first is opened, entries are merged.

Every entry of a run is compared once, and every subtree that both sides share is passed over, so a comparison costs
in proportion to what the two versions do not share.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import NamedTuple

from trinitylake_core.diff.descent import reading_ahead
from trinitylake_core.diff.stream import EVERYWHERE, Run, Span, Stream, Subtree
from trinitylake_core.errors import Corrupt
from trinitylake_core.keys import KeyCodec, ObjectName, label
from trinitylake_core.tree.node import Node
from trinitylake_core.tree.search import Batch, NodeReader, child_height, scan

ADDED = "added"
REMOVED = "removed"
CHANGED = "changed"
Difference = tuple[str, str | None, str | None]
"""A key that differs, with its value on the old and on the new side."""


@dataclass(frozen=True, slots=True)
class Change:
    """One object that differs: ``added``, ``removed`` or ``changed`` from ``old_path`` to ``new_path``."""

    change: str
    kind: str
    namespace: str
    name: str | None
    key: str = field(repr=False)
    old_path: str | None
    new_path: str | None


def changes(rows: Iterable[Difference], codec: KeyCodec) -> Iterator[Change]:
    """Yield the changes that rows of two versions mean."""
    for key, old, new in rows:
        yield as_change(key, old, new, codec)


def as_change(key: str, old: str | None, new: str | None, codec: KeyCodec) -> Change:
    """Return the change that one row of two versions means."""
    if old is None:
        what = ADDED
    elif new is None:
        what = REMOVED
    else:
        what = CHANGED
    kind, namespace, name = codec.split(key)
    return Change(what, kind, namespace, name, key, old, new)


def diff_nodes(
    old_reader: NodeReader,
    old: Node,
    new_reader: NodeReader,
    new: Node,
    span: Span = EVERYWHERE,
) -> Iterator[Difference]:
    """Yield the keys that differ between two trees of equal key encoding, in key order.

    Reads only nodes that are not shared, or for which messages wait that the other side does not have.

    REQUIRES: equal key encoding on both sides.
    ENSURES: keys strictly ascend and lie in ``span``; a key is yielded if and only if it means something else on the
        two sides. Of neighbouring spans that cover everything, the rows one after another are the rows of the whole.
    """
    before = Stream(old_reader, span)
    after = Stream(new_reader, span)
    before.begin_with(old, after, new)
    with reading_ahead(old_reader, old, new_reader, new, span):
        yield from _compare(before, after)


def diff_trees(
    old_reader: NodeReader,
    old: Node,
    old_codec: KeyCodec,
    new_reader: NodeReader,
    new: Node,
    new_codec: KeyCodec,
) -> Iterator[Change]:
    """Yield the changes from one tree to another. Costs as :func:`diff_nodes`; reads both whole if their keys differ.

    A key is that of the new side, or of the old one for what was removed.
    """
    if old_codec == new_codec:
        yield from changes(diff_nodes(old_reader, old, new_reader, new), new_codec)
        return
    old_runs = _name_batches(scan(old_reader, old), old_codec)
    new_runs = _name_batches(scan(new_reader, new), new_codec)
    before = Stream(old_reader, runs=old_runs)
    after = Stream(new_reader, runs=new_runs)
    for text, old_path, new_path in _compare(before, after):
        if new_path is not None:
            codec = new_codec
        else:
            codec = old_codec
        kind, namespace, name = text.split("\0")
        key = codec.encode(ObjectName(kind, namespace, name or None))
        yield from changes([(key, old_path, new_path)], codec)


def _name_batches(batches: Iterable[Batch], codec: KeyCodec) -> Iterator[Run]:
    """Yield batches under kind, namespace and name: the same order as that of the keys."""
    for keys, values in batches:
        names = []
        for key in keys:
            kind, namespace, name = codec.split(key)
            names.append(f"{kind}\0{namespace}\0{name or ''}")
        yield Run(names, values)


def _compare(old: Stream, new: Stream) -> Iterator[Difference]:
    """Yield the differences: skip or open subtrees, or pass entries, until both sides are at their ends.

    INVARIANT: all that either side has passed lies before all that either side has left.
    """
    while True:
        a = old.head()
        b = new.head()
        if a is None and b is None:
            return
        if isinstance(a, Subtree):
            if isinstance(b, Subtree):
                _descend(old, a, new, b)
                continue
            # What comes before the subtree has no counterpart. If the run ends there, what follows it may.
            if b is not None:
                yield from _as_added(b, b.pass_until(a.low))
            if b is None or not b.used_up():
                old.open()
        elif isinstance(b, Subtree):
            if a is not None:
                yield from _as_removed(a, a.pass_until(b.low))
            if a is None or not a.used_up():
                new.open()
        else:
            yield from merge(a, b)


def _as_added(run: Run, rows: range) -> Iterator[Difference]:
    """Yield rows that only the new side has."""
    for key, value in run.entries(rows):
        yield key, None, value


def _as_removed(run: Run, rows: range) -> Iterator[Difference]:
    """Yield rows that only the old side has."""
    for key, value in run.entries(rows):
        yield key, value, None


def _descend(old: Stream, a: Subtree, new: Stream, b: Subtree) -> None:
    """Skip two subtrees that mean the same, or open the one that must be opened first, or both."""
    if a.same_as(b):
        old.skip()
        new.skip()
    elif a.comes_before(b):
        old.open()
    elif b.comes_before(a):
        new.open()
    else:
        old.open_with(new)


def merge(a: Run | None, b: Run | None) -> Iterator[Difference]:
    """Yield the differences of two runs, as far as both are known: up to where the first of them ends.

    REQUIRES: one of them at least; neither is used up. ``None`` = its side is at its end.
    ENSURES: at least one is used up. Each row passed is compared once, none that is left is touched.

    Raises ``Corrupt``: the keys of a run are not in order, so that a search in it does not end where it does.
    """
    runs = [run for run in (a, b) if run is not None]
    last = min(run.keys[-1] for run in runs)
    if a is None:
        rows_of_a = range(0)
    else:
        rows_of_a = a.pass_until(last)
    if b is None:
        rows_of_b = range(0)
    else:
        rows_of_b = b.pass_until(last)
    if not any(run.used_up() for run in runs):
        raise Corrupt(f"keys of a node before {last!r} are not in order", invariant="I3")
    if a is not None and b is not None:
        if not _are_equal(a, rows_of_a, b, rows_of_b):
            yield from _merge_rows(a, rows_of_a, b, rows_of_b)
    elif a is not None:
        yield from _as_removed(a, rows_of_a)
    elif b is not None:
        yield from _as_added(b, rows_of_b)


def _are_equal(a: Run, rows_of_a: range, b: Run, rows_of_b: range) -> bool:
    """Whether rows of two runs hold the same, which is usual between a tree and its compaction."""
    if len(rows_of_a) != len(rows_of_b):
        return False
    mine = slice(rows_of_a.start, rows_of_a.stop)
    theirs = slice(rows_of_b.start, rows_of_b.stop)
    if a.keys[mine] != b.keys[theirs]:
        return False
    return a.values[mine] == b.values[theirs]


def _merge_rows(
    a: Run,
    rows_of_a: range,
    b: Run,
    rows_of_b: range,
) -> Iterator[Difference]:
    at = rows_of_a.start
    to = rows_of_b.start
    while at < rows_of_a.stop and to < rows_of_b.stop:
        mine = a.keys[at]
        theirs = b.keys[to]
        if mine < theirs:
            yield mine, a.values[at], None
            at += 1
        elif theirs < mine:
            yield theirs, None, b.values[to]
            to += 1
        else:
            if a.values[at] != b.values[to]:
                yield mine, a.values[at], b.values[to]
            at += 1
            to += 1
    yield from _as_removed(a, range(at, rows_of_a.stop))
    yield from _as_added(b, range(to, rows_of_b.stop))


# -- comparison around damage ----------------------------------------------------------------------
#
# A plan must be possible when the newest version is damaged: it is the very thing that a rollback leaves behind.

OLD = "old"
NEW = "new"
_LIMIT = 1000
"""How many unreadable nodes a comparison names; what lies behind them is not compared."""


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


class _Place(NamedTuple):
    """Where a node stands: all its keys lie strictly between two pivots."""

    low: str | None
    high: str | None
    parent: Node | None = None


class HoleReader:
    """Reads the nodes of one tree; one that cannot be read is an empty leaf, and its range a hole.

    ENSURES: a hole is known before anything is read that comes after it. Memory: one entry per child of what was read.
    """

    def __init__(
        self,
        reader: NodeReader,
        root: Node,
        side: str,
        codec: KeyCodec,
    ) -> None:
        self.holes: list[NotCompared] = []
        self._reader = reader
        self._side = side
        self._codec = codec
        self._ranges: list[tuple[str, str | None]] = []
        self._places: dict[str, _Place] = {}
        self._place_children(root, _Place(None, None))

    def read(self, path: str) -> Node:
        """Return a node, an empty one if it is missing, damaged, or not of the height that its parent records."""
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
        self._ranges.append((low or "", high))
        not_compared = NotCompared(
            side=self._side,
            file=file,
            after=self._label_of(low),
            before=self._label_of(high),
            why=why,
        )
        self.holes.append(not_compared)

    def covers(self, key: str) -> bool:
        """Whether a key lies in a hole."""
        behind = bisect_left(self._ranges, key, key=itemgetter(0))
        if behind == 0:
            return False
        _, high = self._ranges[behind - 1]
        return high is None or key < high

    def _place_children(self, node: Node, place: _Place) -> None:
        for index, child in enumerate(node.children):
            low, high = node.bounds(index)
            self._places[child] = _Place(low or place.low, high or place.high, node)

    def _label_of(self, key: str | None) -> str | None:
        if key is None:
            return None
        kind, namespace, name = self._codec.split(key)
        return f"{kind} {label(namespace, name)}"


def diff_damaged(
    old_reader: NodeReader,
    old: Node,
    new_reader: NodeReader,
    new: Node,
    codec: KeyCodec,
) -> tuple[Iterator[Change], list[NotCompared]]:
    """Return the changes where both sides can be read, and the ranges where not, complete when the changes end.

    REQUIRES: equal key encoding on both sides. Costs as :func:`diff_nodes`, one node after another. Of a side with
    more than a thousand unreadable nodes, what comes after them is one hole.
    """
    before = HoleReader(old_reader, old, OLD, codec)
    after = HoleReader(new_reader, new, NEW, codec)
    found: list[NotCompared] = []

    def rows() -> Iterator[Difference]:
        last: str | None = None
        try:
            for row in diff_nodes(before, old, after, new):
                last = row[0]
                if before.covers(last) or after.covers(last):
                    continue
                yield row
        except Corrupt as error:
            before.hole(error.path or "", last, None, str(error))
        finally:
            found.extend(before.holes + after.holes)

    return changes(rows(), codec), found

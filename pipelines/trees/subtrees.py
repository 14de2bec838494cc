"""Flushing subtrees in tasks or processes: what a compaction's driver sends out, and what a task hands back.

A task hands back a subtree as a file, or its root where that is underfull, and the driver takes it over. Where a tree
has too few nodes above the leaves for all tasks, a piece of work is a *slice* of one: some neighbouring leaves, and the
pivots between them. The driver joins the flushed leaves of a slice with the rest of the node, as the task would have
done that flushed the whole node: the content is the same, in nodes that may be cut otherwise.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, Final, TypeAlias

import pyarrow as pa

from pipelines.engine import Engine
from pipelines.engine.counting import refuse_other_sum
from pipelines.engine.model import BINARY, INT, LONG, TEXT, Row
from trinitylake_core.errors import Corrupt
from trinitylake_core.storage import Storage
from trinitylake_core.tree.node import Node
from trinitylake_core.tree.nodefile import decode, encode
from trinitylake_core.tree.nodestore import NodeStore, NodeWriter, WriteBehind
from trinitylake_core.tree.proof import Range
from trinitylake_core.tree.rewrite import Rewriter
from trinitylake_core.tree.subtree import DeletedPivot, PayingChildren, Ref, Work, dirty_children

PIECES: int = 4
"""Slices of a task's share, at least, where the leaves allow it."""


@dataclass(frozen=True, slots=True)
class Slice:
    """Children ``start`` to ``stop`` of a node that the driver holds in memory, handed over as ``node``."""

    ref: Ref
    start: int
    stop: int
    node: Node
    within: Range

    def weight(self) -> int:
        """Return the number of messages in it."""
        if self.node.subtree_messages is None:
            return len(self.node.buffer)
        return self.node.subtree_messages


Piece: TypeAlias = Ref | Slice


def split_for_tasks(rewriter: Rewriter, subtrees: list[Ref], tasks: int) -> list[Piece]:
    """Return subtrees as pieces that so many tasks can share, and take them out of the proof of ``rewriter``.

    A node right above the leaves that is heavier than a task's share is opened and cut between two leaves. Opening one
    costs the driver a ``get`` and, in the end, a ``put``, all of them at the same time; and some memory per leaf.
    """
    total = sum(ref.weight() for ref in subtrees)
    heavy = [ref for ref in subtrees if ref.height == 1 and ref.weight() * tasks > total]
    rewriter.open_all(heavy)
    heavy_ids = {id(ref) for ref in heavy}
    pieces: list[Piece] = []
    for ref in subtrees:
        if id(ref) in heavy_ids:
            pieces += _cut_into_slices(rewriter, ref, total / (PIECES * tasks))
        else:
            rewriter.leave(ref)
            pieces.append(ref)
    return pieces


def _cut_into_slices(rewriter: Rewriter, ref: Ref, limit: float) -> Iterator[Slice]:
    weights = [leaf.weight() for leaf in rewriter.open(ref).refs]
    for start, stop in _cut_weights(weights, limit):
        node, within = rewriter.part_of(ref, start, stop)
        yield Slice(ref, start, stop, node, within)


def _cut_weights(weights: list[int], limit: float) -> Iterator[tuple[int, int]]:
    """Yield the dirty slices of a node, of at most so many messages where its leaves allow it."""
    begin = 0
    end = 0
    heavy = 0
    for index, weight in enumerate(weights):
        if weight == 0:
            continue  # clean: it may be inside a slice, and none begins or ends with it
        if heavy and heavy + weight > limit:
            yield begin, end
            heavy = 0
        if heavy == 0:
            begin = index
        heavy += weight
        end = index + 1
    if heavy:
        yield begin, end


HANDED_BACK: Final = pa.schema(
    {
        "path": TEXT,
        "inline": BINARY,
        "height": INT,
        "low": TEXT,
        "high": TEXT,
        "keys": LONG,
        "messages": LONG,
    }
)
"""The columns of :func:`subtree_result`."""


def subtree_result(rewriter: Rewriter, writer: NodeWriter, tree: Ref) -> dict[str, Any]:
    """Flush the writer, and return what a driver needs to join the subtree; an underfull root as its bytes.

    What is handed over is out of the proof of ``rewriter``; the driver takes it into its own.
    """
    rewriter.open(tree)
    if tree.work is None or len(tree.work.keys) >= writer.min_keys:
        rewriter.leave(rewriter.seal(tree))
        writer.flush()
        return _result_of(tree)
    node = rewriter.node_of(tree)
    writer.flush()
    result = _result_of(tree)
    result["inline"] = bytes(encode(node, writer.order))
    result["keys"] = node.subtree_keys
    result["messages"] = node.subtree_messages
    return result


def _result_of(tree: Ref) -> dict[str, Any]:
    """Return the columns of ``HANDED_BACK`` for a subtree in a file."""
    low, high = tree.within
    return {
        "path": tree.path,
        "inline": None,
        "height": tree.height,
        "low": low,
        "high": high,
        "keys": tree.keys,
        "messages": tree.messages,
    }


def adopt(rewriter: Rewriter, row: Mapping[str, Any]) -> Ref:
    """Return the subtree that :func:`subtree_result` wrote, a file or its underfull root; a rewriter proves it, too."""
    within = (row["low"], row["high"])
    if row["inline"] is not None:
        node = decode(row["inline"], "a node returned by a task")
        return rewriter.ref_of(node, within)
    tree = Ref(row["height"], path=row["path"], keys=row["keys"], messages=row["messages"], within=within)
    rewriter.enter(tree)
    return tree


_TASK_CACHE_BYTES: Final = 32 << 20
_OPENED: Final = 16
"""Subtrees whose topmost nodes a task opens at once; another as many are at work."""
_TAKEN: Final = 2
"""The same of a process that shares subtrees with others."""
_AHEAD: Final = 4
"""Pieces that a worker process is given at once where it reads ahead: it waits for the first reads and last writes."""
_INPUT: Final = pa.schema(
    {
        "task": INT,
        "piece": INT,
        "weight": LONG,
        "path": TEXT,
        "height": INT,
        "low": TEXT,
        "high": TEXT,
        "pending": BINARY,
    }
)
_OUTPUT: Final = pa.schema({"piece": INT, "row": BINARY})
"""A piece by its number, and, pickled, what :meth:`Flush.run` returned, with the nodes and bytes read for it."""


def flush_all(
    engine: Engine,
    store: NodeStore,
    frontier: list[Piece],
    stamp: int,
    tasks: int,
    progress: Callable[[str, int, int | None], None],
    paying: PayingChildren | None = None,
) -> list[Row]:
    """Flush pieces of a tree in at most so many tasks; return the results in the order of ``frontier``.

    ``paying`` is the policy for subtrees; ``None`` flushes all, as slices always are.

    Memory: one subtree's path and its cache per task or process.

    Raises:
        Corrupt, StorageError: of the first subtree that failed; nothing of the others is of use then.
    """
    weights = [piece.weight() for piece in frontier]
    tasks_of: Sequence[int] = range(len(weights))  # processes take one piece after the other
    if engine.name == "spark":
        tasks_of = assign_tasks(weights, min(len(weights), tasks))
    rows = (
        {"task": tasks_of[index], "piece": index, "weight": weights[index], **subtree_row(piece, store.order)}
        for index, piece in enumerate(frontier)
    )
    given = engine.table(rows, _INPUT).keep("task", repeatable=True)
    report = partial(progress, "flush subtrees")
    flushed = engine.map_groups(
        partial(flush_groups, order=store.order, target_bytes=store.target_bytes, stamp=stamp, paying=paying),
        given,
        _OUTPUT,
        store.storage,
        by="task",
        weight="weight",
        ahead=1 if store.storage.concurrency == 1 else _AHEAD,
        progress=report,
    )
    found = {}
    for row in flushed.stream(few=True):
        found[row["piece"]] = pickle.loads(row["row"])  # noqa: S301 - from tasks of this job
    given.drop()
    flushed.drop()
    report(sum(weights), sum(weights))
    # What each has, and what all are together, is proved when they are joined.
    refuse_other_sum("subtrees", len(frontier), len(found))
    return [found[index] for index in range(len(frontier))]


def assign_tasks(weights: Sequence[int], tasks: int) -> list[int]:
    """Return a task for each weight, so that tasks are about as heavy as one another: heaviest first."""
    load = [0] * tasks
    tasks_of = [0] * len(weights)
    heaviest_first = sorted(range(len(weights)), key=lambda index: -weights[index])
    for index in heaviest_first:
        task = load.index(min(load))
        load[task] += weights[index] + 1
        tasks_of[index] = task
    return tasks_of


def subtree_row(piece: Piece, order: int) -> Row:
    """Return the row of a subtree, its messages as a node file: as lists Spark would copy them text by text.

    A slice has no path, and its node in their place.
    """
    if isinstance(piece, Slice):
        path = None
        height = piece.ref.height
        node = piece.node
    else:
        path = piece.path
        height = piece.height
        node = Node(buffer=piece.pending)
    low, high = piece.within
    return {"path": path, "height": height, "low": low, "high": high, "pending": bytes(encode(node, order))}


def _receive(
    store: NodeStore, row: Row, stamp: int, behind: WriteBehind, paying: PayingChildren | None = None
) -> Flush:
    """Return the flush of what is in a row of :func:`subtree_row`."""
    node = decode(row["pending"], "the messages for a task")
    within = (row["low"], row["high"])
    if row["path"] is None:
        return SliceFlush(store, node, within, stamp, behind)
    ref = Ref(row["height"], path=row["path"], pending=node.buffer, within=within)
    return Flush(store, ref, stamp, behind, paying)


def flush_groups(
    groups: Iterable[Sequence[Row]],
    storage: Storage,
    *,
    order: int,
    target_bytes: int,
    stamp: int,
    paying: PayingChildren | None = None,
) -> Iterator[list[tuple[int, bytes]]]:
    """Flush the pieces of each group, in a task or a process; yield rows of the output. See :func:`flush_subtrees`."""
    taken: deque[list[int]] = deque()
    """The numbers of the pieces of each group that is not done."""

    def take_pieces() -> Iterator[Row]:
        for group in groups:
            taken.append([row["piece"] for row in group])
            yield from group

    rows: Iterable[Row] = take_pieces()
    if isinstance(groups, Sequence):  # they are all for this task, which may read ahead
        rows = list(rows)
    store = NodeStore(storage, order, target_bytes, _TASK_CACHE_BYTES)
    done: list[tuple[int, bytes]] = []
    for made in flush_subtrees(store, rows, stamp, paying):
        group = taken[0]
        done.append((group[len(done)], pickle.dumps(made, pickle.HIGHEST_PROTOCOL)))
        if len(done) == len(group):
            taken.popleft()
            yield done
            done = []


def flush_subtrees(
    store: NodeStore, rows: Iterable[Row], stamp: int, paying: PayingChildren | None = None
) -> Iterator[dict[str, Any]]:
    """Flush pieces in rows of :func:`subtree_row` one after another; while one is worked on, the next ones are read.

    Yields for each what :meth:`Flush.run` returns, and what was read: of what is read ahead, the row that comes first
    has the most. When there is nothing more to yield, all is
    written. Of a list many pieces are read ahead, and few of an iterator: what is taken from it no other process takes.
    """
    behind = WriteBehind(store)
    taken = _Taken(store, rows, partial(_receive, store, stamp=stamp, behind=behind, paying=paying))
    before = replace(store.counts)
    with store.prefetch(taken.leaf_paths_ahead()):
        while (flush := taken.next()) is not None:
            made = flush.run()
            now = replace(store.counts)
            made["nodes_read"] = now.nodes_read - before.nodes_read
            made["bytes_read"] = now.bytes_read - before.bytes_read
            before = now
            yield made
            del flush, made  # they are large, and the next piece is about to be read
    behind.finish()


class _Taken:
    """Pieces that were taken and are not flushed yet. No reference to a flushed one remains: it is large.

    What is read ahead is bounded by the store's own window (``NodeStore.prefetch``). This says only which leaves come.
    """

    def __init__(self, store: NodeStore, rows: Iterable[Row], receive: Callable[[Row], Flush]) -> None:
        self._store = store
        self._rows = iter(rows)
        self._most = _TAKEN
        if isinstance(rows, Sequence):
            self._most = min(_OPENED, len(rows))
        self._receive = receive
        self._waiting: deque[Flush] = deque()

    def next(self) -> Flush | None:
        """Return the next piece to flush, or ``None`` when there is none."""
        if not self._waiting:
            self._take(1)
        if not self._waiting:
            return None
        return self._waiting.popleft()

    def leaf_paths_ahead(self) -> Iterator[str]:
        """Yield the leaves that will be read, while the topmost nodes of the next pieces are being read."""
        following = self._opening()
        while some := following:
            following = self._opening()
            while some:
                flush, node = some.popleft()
                if flush.begun:
                    continue
                if node is not None:
                    flush.open(node.result())
                paths = flush.leaf_paths_ahead()
                del flush, node
                yield from paths

    def _opening(self) -> deque[tuple[Flush, Future[Node] | None]]:
        """Take pieces, and begin to read their topmost nodes."""
        found: deque[tuple[Flush, Future[Node] | None]] = deque()
        for flush in self._take(self._most):
            node = None
            if flush.unread:
                node = self._store.storage.submit(partial(self._store.read, flush.ref.path or ""))
            found.append((flush, node))
        return found

    def _take(self, most: int) -> list[Flush]:
        taken = [self._receive(row) for row in islice(self._rows, most)]
        self._waiting += taken
        return taken


class Flush:
    """The flush of one subtree that another rewriter handed over: a writer and a proof of its own.

    Attributes:
        ref: the subtree; in memory as soon as it was opened.
        begun: whether it is being flushed, or was: then there is nothing to read ahead for it.
    """

    def __init__(
        self, store: NodeStore, ref: Ref, stamp: int, behind: WriteBehind, paying: PayingChildren | None = None
    ) -> None:
        self.ref = ref
        self._choose = dirty_children if paying is None else paying.of_others
        self.begun = False
        self._writer = NodeWriter(store, behind)
        self._rewriter = Rewriter(self._writer, stamp, prove=True, partial=paying is not None)
        self._rewriter.enter(ref)

    @property
    def unread(self) -> bool:
        """Whether its topmost node is to be read; a leaf is read as one of many."""
        return self.ref.height > 0 and self.ref.work is None

    def open(self, node: Node) -> None:
        """Open the subtree, whose topmost node was read."""
        self._rewriter.open(self.ref, node)

    def leaf_paths_ahead(self) -> Iterator[str]:
        """Yield the leaves that will be read, in their order, and open the nodes above them."""
        return self._rewriter.leaf_paths_ahead(self.ref, choose=self._choose)

    def run(self) -> dict[str, Any]:
        """Flush the subtree, prove it, and begin to write its nodes; an underfull root comes back inline."""
        self.begun = True
        flushed = self._rewriter.flush(self.ref, self._choose)
        return subtree_result(self._rewriter, self._writer, flushed) | self._counts()

    def _counts(self) -> dict[str, Any]:
        return {
            "nodes_written": len(self._writer.written),
            "bytes_written": self._writer.bytes_written,
            "proved": self._rewriter.is_proved(),
        }


class SliceFlush(Flush):
    """The flush of a slice, whose node is in memory; its leaves are handed back as they are, for the driver to join."""

    def __init__(self, store: NodeStore, node: Node, within: Range, stamp: int, behind: WriteBehind) -> None:
        super().__init__(store, Ref(node.height or 0, within=within), stamp, behind)
        self.ref = self._rewriter.ref_of(node, within)

    def run(self) -> dict[str, Any]:
        """Flush the leaves, prove it, and begin to write them; underfull ones come back inline."""
        self.begun = True
        work = self._rewriter.flush_apart(self.ref, dirty_children)
        leaves = [self._hand_back(leaf) for leaf in work.refs]
        for row, pivot, value in zip(leaves, work.keys, work.values, strict=False):  # none is behind the last one
            row["pivot"] = pivot
            row["value"] = None if isinstance(value, DeletedPivot) else value
        self._rewriter.leave_pivots(work)
        self._writer.flush()
        result = _result_of(self.ref)
        result["path"] = None
        result["keys"] = _count_entries(leaves)
        result["messages"] = None
        return result | self._counts() | {"children": leaves}

    def _hand_back(self, leaf: Ref) -> dict[str, Any]:
        if leaf.work is not None:
            return subtree_result(self._rewriter, self._writer, leaf)
        self._rewriter.leave(leaf)
        return _result_of(leaf)


def adopt_all(rewriter: Rewriter, pieces: Sequence[Piece], done: Sequence[Row]) -> dict[int, Ref]:
    """Return the results of tasks, by the identity of the subtree that each replaces, in the proof of ``rewriter``.

    The results of slices are put into their nodes, and replace nothing else.
    """
    found: dict[int, Ref] = {}
    parts: list[tuple[Slice, Work]] = []
    for piece, row in zip(pieces, done, strict=True):
        if isinstance(piece, Slice):
            part = _adopt_slice(rewriter, row)
            parts.append((piece, part))
            found |= {id(ref): ref for ref in part.refs}
        else:
            found[id(piece)] = adopt(rewriter, row)
    for piece, part in reversed(parts):  # from the right: what is left of a slice keeps its place
        rewriter.replace_children(piece.ref, piece.start, piece.stop, part)
    return found


def _count_entries(leaves: Sequence[Row]) -> int:
    """Return the number of entries in the leaves of a slice and in the pivots between them."""
    in_leaves = sum(row["keys"] or 0 for row in leaves)
    pivots = sum(row["value"] is not None for row in leaves[:-1])
    return in_leaves + pivots


def _adopt_slice(rewriter: Rewriter, row: Row) -> Work:
    leaves = row["children"]
    if _count_entries(leaves) != row["keys"]:  # each side's proof is of what it has: neither would notice
        raise Corrupt("a slice lost leaves on its way: nothing was committed; please report this as a bug")
    keys = []
    values = []
    for leaf in leaves[:-1]:
        value = leaf["value"]
        keys.append(leaf["pivot"])
        values.append(DeletedPivot() if value is None else value)
    return Work(keys, values, [adopt(rewriter, leaf) for leaf in leaves])

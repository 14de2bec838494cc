"""Flushing subtrees in tasks or processes: what a compaction's driver sends out, and what a task hands back.

A task hands back a subtree as a file, or its root where that is underfull, and the driver takes it over. Where a tree
has too few nodes above the leaves for all tasks, a piece of work is a single leaf: the driver joins what becomes of it.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, Final

import pyarrow as pa

from pipelines.engine import Engine
from pipelines.engine.counting import refuse_other_sum
from pipelines.engine.model import BINARY, INT, LONG, TEXT, Row
from trinitylake_core.storage import Storage
from trinitylake_core.tree.node import Node
from trinitylake_core.tree.nodefile import decode, encode
from trinitylake_core.tree.nodestore import NodeStore, NodeWriter, WriteBehind
from trinitylake_core.tree.rewrite import Rewriter
from trinitylake_core.tree.subtree import PayingChildren, Ref, dirty_children


def split_for_tasks(rewriter: Rewriter, subtrees: list[Ref], tasks: int) -> list[Ref]:
    """Return subtrees that so many tasks can share, and take them out of the proof of ``rewriter``.

    A node right above the leaves that is heavier than a task's share is opened: its leaves are handed out. Opening one
    costs the driver a ``get`` and, in the end, a ``put``, all of them at the same time; and some memory per leaf.
    """
    total = sum(ref.weight() for ref in subtrees)
    heavy = [ref for ref in subtrees if ref.height == 1 and ref.weight() * tasks > total]
    rewriter.open_all(heavy)
    pieces: list[Ref] = []
    for ref in subtrees:
        if ref.work is None:
            pieces.append(ref)
        else:
            pieces += [leaf for leaf in ref.work.refs if leaf.weight()]
    for piece in pieces:
        rewriter.leave(piece)
    return pieces


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
    node = None
    if tree.work is None or len(tree.work.keys) >= writer.min_keys:
        rewriter.leave(rewriter.seal(tree))
    else:
        node = rewriter.node_of(tree)
    writer.flush()
    low, high = tree.within
    result: dict[str, Any] = {
        "path": tree.path,
        "inline": None,
        "height": tree.height,
        "low": low,
        "high": high,
        "keys": tree.keys,
        "messages": tree.messages,
    }
    if node is not None:
        result["inline"] = bytes(encode(node, writer.order))
        result["keys"] = node.subtree_keys
        result["messages"] = node.subtree_messages
    return result


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
    frontier: list[Ref],
    stamp: int,
    tasks: int,
    progress: Callable[[str, int, int | None], None],
    paying: PayingChildren | None = None,
) -> list[Row]:
    """Flush pieces of a tree in at most so many tasks; return the results in the order of ``frontier``.

    ``paying`` is the policy for subtrees; ``None`` flushes all.

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


def subtree_row(ref: Ref, order: int) -> Row:
    """Return the row of a subtree, its messages as a node file: as lists Spark would copy them text by text."""
    low, high = ref.within
    pending = bytes(encode(Node(buffer=ref.pending), order))
    return {"path": ref.path, "height": ref.height, "low": low, "high": high, "pending": pending}


def _receive(
    store: NodeStore, row: Row, stamp: int, behind: WriteBehind, paying: PayingChildren | None = None
) -> Flush:
    """Return the flush of what is in a row of :func:`subtree_row`."""
    node = decode(row["pending"], "the messages for a task")
    ref = Ref(row["height"], path=row["path"], pending=node.buffer, within=(row["low"], row["high"]))
    return Flush(store, ref, stamp, behind, paying)


def flush_groups(
    groups: Iterable[Sequence[Row]],
    storage: Storage,
    *,
    order: int,
    target_bytes: int,
    stamp: int,
    paying: PayingChildren | None,
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
        made = subtree_result(self._rewriter, self._writer, flushed)
        return {
            **made,
            "nodes_written": len(self._writer.written),
            "bytes_written": self._writer.bytes_written,
            "proved": self._rewriter.is_proved(),
        }

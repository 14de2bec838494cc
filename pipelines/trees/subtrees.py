"""Flushing subtrees in Spark tasks: what a compaction's driver sends out and gets back."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from pipelines.tasks import BINARY, BOOL, INT, LONG, TEXT, Row, collect, map_rows, spread
from trinitylake_core.storage import Storage
from trinitylake_core.tree.node import Node
from trinitylake_core.tree.nodefile import decode, encode
from trinitylake_core.tree.nodestore import NodeStore, NodeWriter
from trinitylake_core.tree.proof import Range
from trinitylake_core.tree.rewrite import Rewriter
from trinitylake_core.tree.subtree import Ref, dirty_children
from trinitylake_core.tree.writebehind import WriteBehind

if TYPE_CHECKING:  # the command line must not wait for pyspark where no Spark runs
    from pyspark.sql import SparkSession

_TASK_CACHE_BYTES: Final = 32 << 20
_OPENED: Final = 32
"""Subtrees whose topmost nodes a task opens at once."""
_INPUT: Final = pa.schema({"subtree": INT, "path": TEXT, "height": INT, "low": TEXT, "high": TEXT, "pending": BINARY})
HANDED_BACK: Final = pa.schema(
    {
        "path": TEXT, "inline": BINARY, "height": INT, "low": TEXT, "high": TEXT, "keys": LONG, "messages": LONG,
    }
)  # fmt: skip
"""The columns of :func:`handed_back`."""
_OUTPUT: Final = pa.schema(
    [
        ("subtree", INT), *HANDED_BACK, ("nodes_read", LONG), ("nodes_written", LONG), ("bytes_read", LONG),
        ("bytes_written", LONG), ("proved", BOOL),
    ]
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Flushed:
    """What a task made of one subtree: a file, or its root node where that is underfull and will be merged."""

    root: Ref | Node
    within: Range
    nodes_read: int
    nodes_written: int
    bytes_read: int
    bytes_written: int
    proved: bool


def expected_nodes(ref: Ref, order: int) -> int:
    """Return about how many nodes a full flush of a subtree rewrites: those its messages hit by chance."""
    return nodes_hit(ref.weight(), ref.keys, ref.height, order)


def nodes_hit(messages: int, keys: int | None, height: int, order: int) -> int:
    """Return about how many nodes of a subtree so many messages hit by chance."""
    leaves = max(1, (keys or messages) // max(1, order * 2 // 3))
    total, width = 0.0, float(leaves)
    for _ in range(height + 1):
        total += width * (1 - (1 - 1 / width) ** min(messages, 1 << 30)) if width > 1 else 1
        width = max(1.0, width / (order * 2 / 3))
    return max(1, round(total))


def assigned(weights: list[int], tasks: int) -> list[int]:
    """Return a task for each weight, so that tasks are about as heavy as one another: heaviest first."""
    load = [0] * tasks
    task_of = [0] * len(weights)
    for index in sorted(range(len(weights)), key=lambda i: -weights[i]):
        task = load.index(min(load))
        load[task] += weights[index] + 1
        task_of[index] = task
    return task_of


def flush_all(
    spark: SparkSession,
    store: NodeStore,
    frontier: list[Ref],
    stamp: int,
    tasks: int,
    progress: Callable[[str, int, int | None], None],
) -> list[Flushed]:
    """Flush subtrees in at most so many tasks; return the results in the order of ``frontier``."""
    tasks = min(len(frontier), tasks)
    progress("flush subtrees", 0, len(frontier))
    tasks_of = assigned([ref.weight() for ref in frontier], tasks)
    frame = spread(
        spark,
        [subtree_row(index, ref, store.order) for index, ref in enumerate(frontier)],
        _INPUT,
        tasks,
        tasks_of.__getitem__,
    )
    work = partial(_flush, order=store.order, target_bytes=store.target_bytes, stamp=stamp)
    rows = collect(map_rows(frame, work, _OUTPUT, store.storage))
    progress("flush subtrees", len(rows), len(frontier))
    by_subtree = {row["subtree"]: row for row in rows}
    return [flushed(by_subtree[index], store.order) for index in range(len(frontier))]


def subtree_row(index: int, ref: Ref, order: int) -> Row:
    """Return the row of a subtree, its messages as a node file: as lists Spark would copy them text by text."""
    pending = bytes(encode(Node(buffer=ref.pending), order))
    low, high = ref.within
    return {"subtree": index, "path": ref.path, "height": ref.height, "low": low, "high": high, "pending": pending}


def received(row: Mapping[str, Any], order: int) -> Ref:
    """Return the subtree in a row of :func:`subtree_row`."""
    pending = decode(row["pending"], "the messages for a task", order).buffer
    return Ref(row["height"], path=row["path"], pending=pending, within=(row["low"], row["high"]))


def _flush(rows: Iterator[Row], storage: Storage, *, order: int, target_bytes: int, stamp: int) -> Iterator[Row]:
    store = NodeStore(storage, order, target_bytes, _TASK_CACHE_BYTES)
    numbers, refs = [], []
    for row in rows:
        numbers.append(row["subtree"])
        refs.append(received(row, order))
    done = [{"subtree": number, **row} for number, row in zip(numbers, flush_subtrees(store, refs, stamp), strict=True)]
    storage.barrier()
    yield from done


def flush_subtrees(store: NodeStore, refs: Iterable[Ref], stamp: int) -> Iterator[dict[str, Any]]:
    """Flush subtrees one after another; while one is worked on, the next ones are read.

    Yields for each what :meth:`Flush.run` returns, and what was read. When there is nothing more to yield, all is
    written. REQUIRES: the messages for them fit into memory.
    """
    behind = store.write_behind()
    flushes = deque(Flush(store, ref, stamp, behind) for ref in refs)
    read = Reads(store)
    with store.expecting(_coming(store, list(flushes))):
        while flushes:
            yield flushes.popleft().run() | read.since()
    behind.finish()


def _coming(store: NodeStore, flushes: list[Flush]) -> Iterator[str]:
    """Yield the leaves that flushes read, in their order, and open the nodes above, the topmost of some together."""
    while flushes:
        some, flushes[:_OPENED] = flushes[:_OPENED], []
        high = [each for each in some if each.ref.height]
        for each, node in zip(high, store.read_many([each.ref.path or "" for each in high]), strict=True):
            each.open(node)
        for each in some:
            yield from each.coming()


class Flush:
    """The flush of one subtree that somebody else handed over: a writer and a proof of its own.

    Attributes:
        ref: the subtree; in memory as soon as it was opened.
        begun: whether it is being flushed, or was: then there is nothing to read ahead for it.
    """

    def __init__(self, store: NodeStore, ref: Ref, stamp: int, behind: WriteBehind) -> None:
        self.ref = ref
        self.begun = False
        self._writer = NodeWriter(store, behind)
        self._rewriter = Rewriter(self._writer, stamp, prove=True)
        self._rewriter.enter(ref)

    def open(self, node: Node) -> None:
        """Open the subtree, whose topmost node was read."""
        self._rewriter.open(self.ref, node)

    def coming(self) -> Iterator[str]:
        """Yield the leaves that will be read, in their order, and open the nodes above them."""
        return self._rewriter.coming(self.ref, choose=dirty_children)

    def run(self) -> dict[str, Any]:
        """Flush the subtree, prove it, and begin to write its nodes; an underfull root comes back inline."""
        self.begun = True
        writer = self._writer
        root = handed_back(self._rewriter, writer, self._rewriter.flush(self.ref, dirty_children))
        written = {"nodes_written": len(writer.written), "bytes_written": writer.bytes_written}
        return {**root, **written, "proved": self._rewriter.proved()}


class Reads:
    """What is read through a store. Of what is read ahead, the row that comes first has the most."""

    def __init__(self, store: NodeStore) -> None:
        self._counts = store.counts
        self._before = replace(store.counts)

    def since(self) -> dict[str, int]:
        """Return the nodes and bytes read since this was asked last, as a part of a row."""
        now, before = replace(self._counts), self._before
        self._before = now
        return {"nodes_read": now.nodes_read - before.nodes_read, "bytes_read": now.bytes_read - before.bytes_read}


def handed_back(rewriter: Rewriter, writer: NodeWriter, tree: Ref) -> dict[str, Any]:
    """Flush the writer, and return what a driver needs to join the subtree; an underfull root as its bytes.

    What is handed over is out of the proof of ``rewriter``; the driver takes it into its own.
    """
    rewriter.open(tree)
    inline = None
    if tree.work is not None and len(tree.work.keys) < writer.min_keys:
        node = rewriter.node_of(tree)
        inline = bytes(encode(node, writer.order))
        keys, messages = node.subtree_keys, node.subtree_messages
    else:
        rewriter.leave(rewriter.seal(tree))
        keys, messages = tree.keys, tree.messages
    writer.flush()
    low, high = tree.within
    where = {"path": tree.path, "inline": inline, "height": tree.height, "low": low, "high": high}
    return where | {"keys": keys, "messages": messages}


def root_of(row: Mapping[str, Any], order: int) -> Ref | Node:
    """Return the subtree that :func:`handed_back` wrote: a file, or its underfull root."""
    if row["inline"] is None:
        within = row["low"], row["high"]
        return Ref(row["height"], path=row["path"], keys=row["keys"], messages=row["messages"], within=within)
    return decode(row["inline"], "a node returned by a task", order)


def taken_over(rewriter: Rewriter, root: Ref | Node, within: Range) -> Ref:
    """Return what a task handed back as a subtree of a rewriter, and of its proof."""
    if isinstance(root, Node):
        return rewriter.ref_of(root, within)
    rewriter.enter(root)
    return root


def flushed(row: Mapping[str, Any], order: int) -> Flushed:
    """Return what a task made of a subtree from the row it sent back."""
    counts = {name: row[name] for name in ("nodes_read", "nodes_written", "bytes_read", "bytes_written")}
    return Flushed(root_of(row, order), (row["low"], row["high"]), **counts, proved=row["proved"])

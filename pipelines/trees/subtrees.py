"""Flushing subtrees in Spark tasks: what a compaction's driver sends out and gets back."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from pipelines.engine.model import BINARY, BOOL, INT, LONG, TEXT, Row
from pipelines.engine.spark import collect, covered, map_rows, spread
from pipelines.trees.handback import HANDED_BACK, handed_back, root_of, taken_over
from pipelines.trees.slices import Piece, Slice, put_back
from trinitylake_core.errors import Corrupt
from trinitylake_core.storage import Storage
from trinitylake_core.tree.node import Node
from trinitylake_core.tree.nodefile import decode, encode
from trinitylake_core.tree.nodestore import NodeStore, NodeWriter
from trinitylake_core.tree.proof import Range
from trinitylake_core.tree.rewrite import Rewriter
from trinitylake_core.tree.subtree import Dead, Ref, Work, dirty_children
from trinitylake_core.tree.writebehind import WriteBehind

if TYPE_CHECKING:  # the command line must not wait for pyspark where no Spark runs
    from pyspark.sql import SparkSession

_TASK_CACHE_BYTES: Final = 32 << 20
_OPENED: Final = 32
"""Subtrees whose topmost nodes a task opens at once."""
_INPUT: Final = pa.schema({"subtree": INT, "path": TEXT, "height": INT, "low": TEXT, "high": TEXT, "pending": BINARY})
_OUTPUT: Final = pa.schema(
    [
        ("subtree", INT), *HANDED_BACK, ("nodes_read", LONG), ("nodes_written", LONG), ("bytes_read", LONG),
        ("bytes_written", LONG), ("proved", BOOL),
        ("children", pa.list_(pa.struct([*HANDED_BACK, pa.field("pivot", TEXT), pa.field("value", TEXT)]))),
    ]
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Flushed:
    """What a task made of one piece, as :func:`adopted` takes it over.

    Attributes:
        row: of a subtree: a file, or its root node where that is underfull and will be merged; of a slice: the same for
            each of its leaves.
    """

    row: Row
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
    frontier: list[Piece],
    stamp: int,
    tasks: int,
    progress: Callable[[str, int, int | None], None],
) -> list[Flushed]:
    """Flush pieces of a tree in at most so many tasks; return the results in the order of ``frontier``."""
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
    rows = collect(map_rows(frame, work, _OUTPUT, covered(spark, store.storage)))
    progress("flush subtrees", len(rows), len(frontier))
    by_subtree = {row["subtree"]: row for row in rows}
    return [flushed(by_subtree[index]) for index in range(len(frontier))]


def subtree_row(index: int, piece: Piece, order: int) -> Row:
    """Return the row of a subtree, its messages as a node file: as lists Spark would copy them text by text.

    A slice has no path, and its node in their place.
    """
    if isinstance(piece, Slice):
        path, height, node = None, piece.ref.height, piece.node
    else:
        path, height, node = piece.path, piece.height, Node(buffer=piece.pending)
    low, high = piece.within
    pending = bytes(encode(node, order))
    return {"subtree": index, "path": path, "height": height, "low": low, "high": high, "pending": pending}


def _received(store: NodeStore, row: Row, stamp: int, behind: WriteBehind) -> Flush:
    """Return the flush of what is in a row of :func:`subtree_row`."""
    node, within = decode(row["pending"], "the messages for a task", store.order), (row["low"], row["high"])
    if row["path"] is None:
        return SliceFlush(store, node, within, stamp, behind)
    return Flush(store, Ref(row["height"], path=row["path"], pending=node.buffer, within=within), stamp, behind)


def _flush(rows: Iterator[Row], storage: Storage, *, order: int, target_bytes: int, stamp: int) -> Iterator[Row]:
    store = NodeStore(storage, order, target_bytes, _TASK_CACHE_BYTES)
    some = list(rows)
    flushed_rows = flush_subtrees(store, some, stamp)
    done = [{"subtree": row["subtree"], **found} for row, found in zip(some, flushed_rows, strict=True)]
    storage.barrier()
    yield from done


def flush_subtrees(store: NodeStore, rows: Iterable[Row], stamp: int) -> Iterator[dict[str, Any]]:
    """Flush pieces in rows of :func:`subtree_row` one after another; while one is worked on, the next ones are read.

    Yields for each what :meth:`Flush.run` returns, and what was read. When there is nothing more to yield, all is
    written. REQUIRES: the messages for them fit into memory.
    """
    behind = store.write_behind()
    flushes = deque(_received(store, row, stamp, behind) for row in rows)
    unopened = deque(flushes)
    read = Reads(store)
    with store.prefetch(_leaf_paths_ahead(store, unopened)):
        while flushes:
            if unopened and unopened[0] is flushes[0]:
                unopened.popleft()  # it was not read ahead; no reference to a flushed subtree may remain
            yield flushes.popleft().run() | read.since()
    behind.finish()


def _leaf_paths_ahead(store: NodeStore, unopened: deque[Flush]) -> Iterator[str]:
    """Yield the leaves that flushes read, in their order, and open the nodes above, the topmost of some together.

    Holds no subtree that was flushed: it is as large as all that was read and written of it.
    """
    while unopened:
        some = deque(unopened.popleft() for _ in range(min(_OPENED, len(unopened))))
        high = [each for each in some if each.ref.height and each.ref.work is None]
        for each, node in zip(high, store.read_many([each.ref.path or "" for each in high]), strict=True):
            each.open(node)
        del high[:]
        while some:
            yield from some.popleft().leaf_paths_ahead()


class Flush:
    """The flush of one subtree that another rewriter handed over: a writer and a proof of its own.

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

    def leaf_paths_ahead(self) -> Iterator[str]:
        """Yield the leaves that will be read, in their order, and open the nodes above them."""
        return self._rewriter.leaf_paths_ahead(self.ref, choose=dirty_children)

    def run(self) -> dict[str, Any]:
        """Flush the subtree, prove it, and begin to write its nodes; an underfull root comes back inline."""
        self.begun = True
        writer = self._writer
        root = handed_back(self._rewriter, writer, self._rewriter.flush(self.ref, dirty_children))
        written = {"nodes_written": len(writer.written), "bytes_written": writer.bytes_written}
        return {**root, **written, "proved": self._rewriter.proved()}


class SliceFlush(Flush):
    """The flush of a slice, whose node is in memory; its leaves are handed back as they are, for the driver to join."""

    def __init__(self, store: NodeStore, node: Node, within: Range, stamp: int, behind: WriteBehind) -> None:
        super().__init__(store, Ref(node.height or 0, within=within), stamp, behind)
        self.ref = self._rewriter.ref_of(node, within)

    def run(self) -> dict[str, Any]:
        """Flush the leaves, prove it, and begin to write them; underfull ones come back inline."""
        self.begun = True
        rewriter, writer = self._rewriter, self._writer
        low, high = self.ref.within
        work = rewriter.flush_apart(self.ref, dirty_children)
        children = [self._handed_back(child) for child in work.refs]
        for row, pivot, value in zip(children, work.keys, work.values, strict=False):  # none is behind the last one
            row |= {"pivot": pivot, "value": None if isinstance(value, Dead) else value}
        rewriter.leave_pivots(work)
        writer.flush()
        where = {"path": None, "inline": None, "height": self.ref.height, "low": low, "high": high}
        written = {"nodes_written": len(writer.written), "bytes_written": writer.bytes_written}
        counts = {"keys": _counted(children), "messages": None, **written}
        return {**where, **counts, "proved": rewriter.proved(), "children": children}

    def _handed_back(self, leaf: Ref) -> dict[str, Any]:
        if leaf.work is not None:
            return handed_back(self._rewriter, self._writer, leaf)
        self._rewriter.leave(leaf)
        low, high = leaf.within
        where = {"path": leaf.path, "inline": None, "height": leaf.height, "low": low, "high": high}
        return where | {"keys": leaf.keys, "messages": leaf.messages}


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


def flushed(row: Row) -> Flushed:
    """Return the result of a task for a piece, from the row that it sent back."""
    counts = {name: row[name] for name in ("nodes_read", "nodes_written", "bytes_read", "bytes_written")}
    return Flushed(row, **counts, proved=row["proved"])


def adopted(rewriter: Rewriter, pieces: Sequence[Piece], done: Sequence[Flushed]) -> dict[int, Ref]:
    """Return the results of tasks, by the identity of the subtree that each replaces, in the proof of ``rewriter``.

    The results of slices are put into their nodes, and replace nothing else.
    """
    found: dict[int, Ref] = {}
    parts: list[tuple[Slice, Work]] = []
    for piece, each in zip(pieces, done, strict=True):
        if isinstance(piece, Slice):
            part = _part(rewriter, each.row)
            parts.append((piece, part))
            found |= {id(ref): ref for ref in part.refs}
        else:
            found[id(piece)] = _adopted(rewriter, each.row)
    put_back(rewriter, parts)
    return found


def _adopted(rewriter: Rewriter, row: Row) -> Ref:
    return taken_over(rewriter, root_of(row, rewriter.store.order), (row["low"], row["high"]))


def _counted(children: Sequence[Row]) -> int:
    """Return the number of entries in the leaves of a slice and in the pivots between them."""
    pivots = sum(row["value"] is not None for row in children[:-1])
    return pivots + sum(row["keys"] or 0 for row in children)


def _part(rewriter: Rewriter, row: Row) -> Work:
    children = row["children"]
    if _counted(children) != row["keys"]:  # each side's proof is of what it has: neither would notice
        raise Corrupt("a slice lost leaves on its way: nothing was committed; please report this as a bug")
    between = [(row["pivot"], row["value"]) for row in children[:-1]]
    keys, values = [key for key, _ in between], [Dead() if value is None else value for _, value in between]
    return Work(keys, values, [_adopted(rewriter, row) for row in children])

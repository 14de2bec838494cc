"""Walking the trees of many versions, level by level: every node is read once, however many versions share it.

Nodes are told by their height, which is the same in whatever tree they stand: level ``h`` of a walk
reads all distinct nodes of height ``h`` that the levels above found. Each file carries the first and
the last of the walked versions that reach it. On Spark a level is a DataFrame and nothing of the size
of the lakehouse is on the driver; in this process it is a dictionary.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial, reduce
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from pipelines.tasks import INT, LONG, READ_AHEAD, TEXT, Row, collect_one, map_rows, on_disk, slots, table
from pipelines.trees.runs import in_runs
from trinitylake_core.errors import CorruptNode, FileMissing
from trinitylake_core.node import Node
from trinitylake_core.nodefile import decode
from trinitylake_core.storage import Storage
from trinitylake_core.tree import MAX_HEIGHT

if TYPE_CHECKING:  # the command line must not wait for pyspark where no Spark runs
    from pyspark.sql import DataFrame, SparkSession

FOREVER: Final = 1 << 40
"""The version number of what is kept whatever happens: snapshots and saved transactions."""
_START: Final = pa.schema({"path": TEXT, "first": LONG, "last": LONG})
_NODE: Final = pa.schema(
    {
        "path": TEXT, "height": INT, "first": LONG, "last": LONG, "keys": INT, "messages": INT, "bytes": LONG,
        "text_bytes": LONG, "created_at_millis": LONG, "children": pa.list_(TEXT), "files": pa.list_(TEXT),
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Start:
    """A root to walk from: its path, and the first and last version it stands for."""

    path: str
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class TreeSource:
    """What a walk reads from: the storage, the order of its trees, and whether values are wanted."""

    storage: Storage
    order: int
    files: bool = True
    """Whether to collect the definition paths that nodes and roots name."""


def node_row(path: str, node: Node, first: int, last: int, *, files: bool) -> dict[str, Any]:
    """Return what a walk keeps of one node."""
    named: list[str] = []
    if files:
        named = [*node.values, *(value for value in node.buffer.values if value is not None)]
        named += [node.system[row] for row in ("lakehouse_def",) if row in node.system]
    return {
        "path": path,
        "height": node.height,
        "first": first,
        "last": last,
        "keys": len(node.keys),
        "messages": len(node.buffer),
        "bytes": node.nbytes,
        "text_bytes": node.estimated_bytes(),
        "created_at_millis": int(node.system.get("created_at_millis", "0")),
        "children": node.children,
        "files": named,
    }


def read_rows(
    source: TreeSource, starts: Iterable[tuple[str, int, int]], height: int | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the rows of nodes, which must have that height if one is given. One ``get`` each, read ahead.

    Raises:
        CorruptNode: missing, damaged, or of another height. A walk that others act on must not guess.
    """
    remaining = iter(starts)
    while part := list(islice(remaining, READ_AHEAD)):
        contents = source.storage.read_many([path for path, _, _ in part])
        for (path, first, last), (_, data) in zip(part, contents, strict=True):
            if isinstance(data, FileMissing):
                raise CorruptNode(f"node file {path!r} is missing, but a tree points to it", path=path, invariant="I10")
            node = decode(data, path, source.order)
            if node.height is None or node.height > MAX_HEIGHT:
                raise CorruptNode(f"node file {path!r} does not say its height", path=path, invariant="I8")
            if height is not None and node.height != height:
                message = f"node file {path!r} has height {node.height} where {height} is expected"
                raise CorruptNode(message, path=path, invariant="I8")
            yield node_row(path, node, first, last, files=source.files)


def walk_local(
    source: TreeSource, starts: Iterable[Start], known: Container[str] = frozenset()
) -> Iterator[dict[str, Any]]:
    """Yield the rows of all nodes reachable from roots, highest first, in this process.

    ``known`` nodes, and what only they reach, are left out.
    """
    waiting: dict[int, dict[str, tuple[int, int]]] = {}
    roots = [(start.path, start.first, start.last) for start in starts if start.path not in known]
    for row in read_rows(source, roots):
        _note_children(waiting, row)
        yield row
    for height in range(max(waiting, default=-1), -1, -1):
        level = [(path, *versions) for path, versions in waiting.pop(height, {}).items() if path not in known]
        for row in read_rows(source, level, height):
            _note_children(waiting, row)
            yield row


def _note_children(waiting: dict[int, dict[str, tuple[int, int]]], row: Mapping[str, Any]) -> None:
    level = waiting.setdefault(row["height"] - 1, {}) if row["children"] else {}
    for child in row["children"]:
        first, last = level.get(child, (row["first"], row["last"]))
        level[child] = (min(first, row["first"]), max(last, row["last"]))


@dataclass(slots=True)
class SparkWalk:
    """A walk on Spark: one DataFrame a level, on disk, roots first. :meth:`release` gives it back."""

    levels: list[DataFrame] = field(default_factory=list)
    nodes_read: int = 0

    def nodes(self) -> DataFrame:
        """Return all nodes once: path, height, first, last, keys, messages, bytes; not what they hold."""
        return self._rows().where("path IS NOT NULL")

    def named(self) -> DataFrame:
        """Return the files that nodes name: path, and versions that name it; a file more than once."""
        from pyspark.sql import functions as f

        return self._rows().select(f.explode("files").alias("path"), "first", "last")

    def files(self) -> DataFrame:
        """Return every reachable file once: path, and the first and last version that reaches it."""
        from pyspark.sql import functions as f

        every = self.nodes().select("path", "first", "last").unionByName(self.named())
        return every.groupBy("path").agg(f.min("first").alias("first"), f.max("last").alias("last"))

    def children(self, height: int) -> DataFrame:
        """Return the children of that height once: path, first, last."""
        from pyspark.sql import functions as f

        above = self._rows().where(f.col("height") == height + 1)
        children = above.select(f.explode("children").alias("path"), "first", "last")
        return children.groupBy("path").agg(f.min("first").alias("first"), f.max("last").alias("last"))

    def _rows(self) -> DataFrame:
        return reduce(lambda one, two: one.unionByName(two), self.levels)

    def release(self) -> None:
        """Drop the cached levels."""
        for level in self.levels:
            level.unpersist()


def walk_on_spark(
    spark: SparkSession,
    source: TreeSource,
    starts: DataFrame,
    progress: Callable[[str, int, int | None], None],
    known: DataFrame | None = None,
) -> SparkWalk:
    """Walk from a DataFrame of roots (path, first, last). One Spark job a level.

    ``known`` nodes (a column ``path``), and what only they reach, are left out.
    """
    parallelism = slots(spark)
    walk = SparkWalk()
    starts = starts if known is None else starts.join(known, "path", "left_anti")
    ordered = starts.repartitionByRange(parallelism, "first").sortWithinPartitions("first")
    level = on_disk(_read_level(source, ordered))
    walk.levels.append(level)
    count, height = _count(level)
    progress("walk", count, None)
    seen = count
    while height > 0:
        distinct = walk.children(height - 1)
        distinct = distinct if known is None else distinct.join(known, "path", "left_anti")
        level = on_disk(_read_level(source, distinct.repartition(parallelism), height - 1))
        walk.levels.append(level)
        count, _ = _count(level)
        seen += count
        progress("walk", seen, None)
        height -= 1
    walk.nodes_read = seen
    return walk


def starts_frame(spark: SparkSession, starts: Sequence[Start]) -> DataFrame:
    """Return roots as the DataFrame that :func:`walk_on_spark` begins with."""
    return table(spark, [asdict(start) for start in starts], _START)


def _count(level: DataFrame) -> tuple[int, int]:
    from pyspark.sql import functions as f

    row = collect_one(level.agg(f.count("path").alias("nodes"), f.max("height").alias("height")))
    return row["nodes"], row["height"] or 0


def _read_level(source: TreeSource, frame: DataFrame, height: int | None = None) -> DataFrame:
    work = partial(_level_rows, order=source.order, height=height, files=source.files)
    return map_rows(frame.select(_START.names), work, _NODE, source.storage, weight=_weight)


def _level_rows(
    starts: Iterator[Row], storage: Storage, *, order: int, height: int | None, files: bool
) -> Iterator[Row]:
    rows = read_rows(TreeSource(storage, order, files), map(_start, starts), height)
    return in_runs(rows) if height is None else rows


def _start(row: Row) -> tuple[str, int, int]:
    return row["path"], row["first"], row["last"]


def _weight(row: Row) -> int:
    return 1 + len(row["children"]) + len(row["files"])

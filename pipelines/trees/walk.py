"""Walking the trees of many versions, level by level: every node is read once, however many versions share it.

Nodes are told by their height, which is the same in whatever tree they stand: level ``h`` of a walk
reads all distinct nodes of height ``h`` that the levels above found. Each file carries the first and
the last of the walked versions that reach it. On Spark a level is a DataFrame and nothing of the size
of the lakehouse is on the driver; in this process it is a dictionary.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from pipelines.bounded import by_weight, on_disk
from pipelines.session import session_parallelism, ship_packages
from pipelines.trees.runs import in_runs
from trinitylake_core.errors import CorruptNode, FileMissing
from trinitylake_core.node import Node
from trinitylake_core.nodefile import decode
from trinitylake_core.storage import Storage, open_storage
from trinitylake_core.tree import MAX_HEIGHT

if TYPE_CHECKING:  # the command line must not wait for pyspark where no Spark runs
    from pyspark.sql import DataFrame, SparkSession

FOREVER: Final = 1 << 40
"""The version number of what is kept whatever happens: snapshots and saved transactions."""
_NODES_DDL: Final = (
    "path string, height int, first bigint, last bigint, keys int, messages int, bytes bigint, text_bytes bigint, "
    "created_at_millis bigint, children array<string>, files array<string>"
)
_NODES: Final = pa.schema(
    [
        ("path", pa.string()),
        ("height", pa.int32()),
        ("first", pa.int64()),
        ("last", pa.int64()),
        ("keys", pa.int32()),
        ("messages", pa.int32()),
        ("bytes", pa.int64()),
        ("text_bytes", pa.int64()),
        ("created_at_millis", pa.int64()),
        ("children", pa.list_(pa.string())),
        ("files", pa.list_(pa.string())),
    ]
)
_READ_AHEAD: Final = 256


@dataclass(frozen=True, slots=True)
class Start:
    """A root to walk from: its path, and the first and last version it stands for."""

    path: str
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Target:
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


def read_rows(target: Target, starts: Sequence[tuple[str, int, int]]) -> Iterator[dict[str, Any]]:
    """Yield the rows of nodes. One ``get`` each, read ahead.

    Raises:
        CorruptNode: missing, damaged, or without a height. A walk that others act on must not guess.
    """
    for start in range(0, len(starts), _READ_AHEAD):
        part = starts[start : start + _READ_AHEAD]
        for (path, first, last), (_, data) in zip(
            part, target.storage.read_many([path for path, _, _ in part]), strict=True
        ):
            if isinstance(data, FileMissing):
                raise CorruptNode(f"node file {path!r} is missing, but a tree points to it", path=path, invariant="I10")
            node = decode(data, path, target.order)
            if node.height is None or node.height > MAX_HEIGHT:
                raise CorruptNode(f"node file {path!r} does not say its height", path=path, invariant="I8")
            yield node_row(path, node, first, last, files=target.files)


def walk_local(
    target: Target, starts: Iterable[Start], known: Container[str] = frozenset()
) -> Iterator[dict[str, Any]]:
    """Yield the rows of all nodes reachable from roots, highest first, in this process.

    ``known`` nodes, and what only they reach, are left out.
    """
    waiting: dict[int, dict[str, tuple[int, int]]] = {}
    roots = [(start.path, start.first, start.last) for start in starts if start.path not in known]
    for row in read_rows(target, roots):
        _note_children(waiting, row)
        yield row
    for height in range(max(waiting, default=-1), -1, -1):
        level = [(path, *versions) for path, versions in waiting.pop(height, {}).items() if path not in known]
        for row in read_rows(target, level):
            if row["height"] != height:
                raise CorruptNode(
                    f"node file {row['path']!r} has height {row['height']} where {height} is expected",
                    path=row["path"],
                    invariant="I8",
                )
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
    target: Target,
    starts: DataFrame,
    progress: Callable[[str, int, int | None], None],
    known: DataFrame | None = None,
) -> SparkWalk:
    """Walk from a DataFrame of roots (path, first, last). One Spark job a level.

    ``known`` nodes (a column ``path``), and what only they reach, are left out.
    """
    ship_packages(spark)
    parallelism = 3 * session_parallelism(spark)
    walk = SparkWalk()
    starts = starts if known is None else starts.join(known, "path", "left_anti")
    ordered = starts.repartitionByRange(parallelism, "first").sortWithinPartitions("first")
    level = on_disk(_read_level(target, ordered))
    walk.levels.append(level)
    count, height = _count(level)
    progress("walk", count, None)
    seen = count
    while height > 0:
        distinct = walk.children(height - 1)
        distinct = distinct if known is None else distinct.join(known, "path", "left_anti")
        level = on_disk(_read_level(target, distinct.repartition(parallelism), height - 1))
        walk.levels.append(level)
        count, _ = _count(level)
        seen += count
        progress("walk", seen, None)
        height -= 1
    walk.nodes_read = seen
    return walk


def starts_frame(spark: SparkSession, starts: Sequence[Start]) -> DataFrame:
    """Return roots as the DataFrame that :func:`walk_on_spark` begins with."""
    rows = [(start.path, start.first, start.last) for start in starts]
    return spark.createDataFrame(rows, "path string, first bigint, last bigint")


def _count(level: DataFrame) -> tuple[int, int]:
    from pyspark.sql import functions as f

    row = level.agg(f.count("path"), f.max("height")).first()
    return (0, 0) if row is None else (row[0], row[1] or 0)


def _read_level(target: Target, frame: DataFrame, height: int | None = None) -> DataFrame:
    root, options = target.storage.spec()
    work = _task(root, dict(options), target.order, height, files=target.files)
    return frame.select("path", "first", "last").mapInArrow(work, _NODES_DDL)


def _task(
    root: str, options: Mapping[str, Any], order: int, height: int | None, *, files: bool
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def read_partition(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        target = Target(open_storage(root, options), order, files)
        for batch in batches:
            columns = (batch.column(name).to_pylist() for name in ("path", "first", "last"))
            starts = list(zip(*columns, strict=True))
            rows = read_rows(target, starts)
            for some in by_weight(in_runs(rows) if height is None else rows, _weight):
                _refuse_height(some, height)
                yield pa.RecordBatch.from_pylist(some, schema=_NODES)

    return read_partition


def _weight(row: Mapping[str, Any]) -> int:
    return 1 + len(row["children"]) + len(row["files"])


def _refuse_height(rows: Sequence[Mapping[str, Any]], height: int | None) -> None:
    for row in rows:
        if height is not None and row["height"] != height:
            raise CorruptNode(
                f"node file {row['path']!r} has height {row['height']} where {height} is expected",
                path=row["path"],
                invariant="I8",
            )

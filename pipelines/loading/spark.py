"""A load on Spark: read in blocks, sort by ranges of keys, one tree a range. Nothing of its size is on the driver."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from pipelines.bounded import by_weight, checkpointed
from pipelines.job import Progress
from pipelines.loading.model import (
    REFUSE,
    SHOWN,
    SKIP,
    Built,
    Counts,
    New,
    Row,
    Target,
    objects_in,
    packed,
    refuse_homeless,
    refuse_there,
    refuse_twice,
)
from pipelines.session import session_parallelism, ship_packages
from pipelines.source.lines import BLOCK_BYTES, Block, Place, blocks
from pipelines.tasks import own_errors
from trinitylake_core.keys import EVERYTHING, KeyCodec, KeyRange
from trinitylake_core.nodestore import NodeStore
from trinitylake_core.storage import Storage, open_storage
from trinitylake_core.tree import scan
from trinitylake_core.versions import Root, Versions

if TYPE_CHECKING:  # the command line must not wait for pyspark where no Spark runs
    from pyspark.sql import DataFrame, SparkSession

_TASKS_PER_CORE: Final = 3
_BLOCK_BYTES_MIN: Final = 256 << 10
_KEYS_PER_TASK: Final = 100_000
_KEYS_PER_TASK_MIN: Final = 5_000
_BLOCKS: Final = pa.schema(
    [
        ("task", pa.int32()),
        ("file", pa.string()),
        ("begin", pa.int64()),
        ("end", pa.int64()),
        ("size", pa.int64()),
    ]
)
_NEW_DDL: Final = "key string, home string, data binary, file string, offset bigint"
_NEW: Final = pa.schema(
    [
        ("key", pa.string()),
        ("home", pa.string()),
        ("data", pa.binary()),
        ("file", pa.string()),
        ("offset", pa.int64()),
    ]
)
_OLD_DDL: Final = "key string, path string"
_OLD: Final = pa.schema([("key", pa.string()), ("path", pa.string())])
_BUILT_DDL: Final = (
    "first string, path string, inline binary, height int, keys bigint, messages bigint, nodes_written bigint, "
    "bytes_written bigint"
)
_BUILT: Final = pa.schema(
    [
        ("first", pa.string()),
        ("path", pa.string()),
        ("inline", pa.binary()),
        ("height", pa.int32()),
        ("keys", pa.int64()),
        ("messages", pa.int64()),
        ("nodes_written", pa.int64()),
        ("bytes_written", pa.int64()),
    ]
)
Batches = Iterator[pa.RecordBatch]


class SparkLoad:
    """The state of one load, in DataFrames that wait on disk."""

    def __init__(self, spark: SparkSession, source: Storage, target: Target, base: Root, progress: Progress) -> None:
        ship_packages(spark)
        self._spark = spark
        self._source = source
        self._target = target
        self._base = base
        self._progress = progress
        self._tasks = _TASKS_PER_CORE * session_parallelism(spark)
        self._new: DataFrame | None = None
        self._old: DataFrame | None = None
        self._count = 0

    def read(self, files: Sequence[tuple[str, int]]) -> int:
        """Read all objects in files, given by name and size; return how many there are."""
        each = max(_BLOCK_BYTES_MIN, min(BLOCK_BYTES, sum(size for _, size in files) // self._tasks + 1))
        rows = [{"task": index % self._tasks} | asdict(block) for index, block in enumerate(blocks(files, each))]
        if not rows:
            return 0
        frame = self._spark.createDataFrame(pa.Table.from_pylist(rows, schema=_BLOCKS))
        work = _read_task(self._source.spec(), self._target.codec)
        self._progress("read", 0, None)
        with own_errors():
            self._new = checkpointed(frame.repartitionById(self._tasks, "task").mapInArrow(work, _NEW_DDL))
            self._count = self._new.count()
        self._progress("read", self._count, self._count)
        self._refuse_twice(self._new)
        return self._count

    def _refuse_twice(self, new: DataFrame) -> None:
        twice = new.groupBy("key").count().where("count > 1").select("key").orderBy("key").limit(1)
        rows = new.join(twice, "key").select("key", "file", "offset").orderBy("file", "offset").limit(2).collect()
        if rows:
            refuse_twice(self._source, self._target.codec, rows[0]["key"], [_place(row) for row in rows])

    def compare(self, existing: str) -> Counts:
        """Compare with what is there, and decide what to load. One ``get`` a node."""
        self._progress("compare", 0, None)
        new = self._loaded()
        with own_errors():
            self._old = old = checkpointed(self._existing())
        self._refuse_homeless(new, old)
        there = new.join(old.select("key"), "key", "left_semi")
        count = there.count()
        if count and existing == REFUSE:
            rows = there.select("key", "file", "offset").orderBy("key").limit(SHOWN).collect()
            refuse_there(self._source, self._target.codec, [(row["key"], _place(row)) for row in rows], count)
        if existing == SKIP:
            self._new = new.join(old.select("key"), "key", "left_anti")
            return Counts(self._count - count, 0, count)
        self._old = old.join(new.select("key"), "key", "left_anti")
        return Counts(self._count - count, count, 0)

    def _refuse_homeless(self, new: DataFrame, old: DataFrame) -> None:
        homes = new.where("home IS NOT NULL").select(new["home"].alias("key")).distinct()
        missing = homes.join(new.select("key"), "key", "left_anti").join(old.select("key"), "key", "left_anti")
        if rows := missing.orderBy("key").limit(SHOWN + 1).collect():
            refuse_homeless(self._target.codec, [row["key"] for row in rows])

    def _existing(self) -> DataFrame:
        """Return what the base holds: key and path, read in ranges between the pivots of its root."""
        cuts = ["", *self._base.node.keys, EVERYTHING.hi] if self._base.node.children else ["", EVERYTHING.hi]
        rows = [(index % self._tasks, lo, hi) for index, (lo, hi) in enumerate(pairwise(cuts))]
        frame = self._spark.createDataFrame(rows, "task int, lo string, hi string")
        target = self._target
        work = _existing_task(target.storage.spec(), self._base.version, target.order, target.target_bytes)
        return frame.repartitionById(self._tasks, "task").mapInArrow(work, _OLD_DDL)

    def _loaded(self) -> DataFrame:
        if self._new is None:
            raise RuntimeError("nothing was read yet")
        return self._new

    def build(self) -> Sequence[Built]:
        """Write the definitions, and one tree a range of keys. One ``put`` a file."""
        from pyspark.sql import functions as f

        if self._old is None:
            raise RuntimeError("nothing was compared yet")
        self._progress("build", 0, None)
        nothing = (f.lit(None).cast("string").alias("path"), f.lit(None).cast("binary").alias("data"))
        rows = self._loaded().select("key", nothing[0], "data").unionByName(self._old.select("key", "path", nothing[1]))
        keys = self._count + self._old.count()
        tasks = max(keys // _KEYS_PER_TASK, min(self._tasks, keys // _KEYS_PER_TASK_MIN), 1)
        ranges = rows.repartitionByRange(tasks, "key").sortWithinPartitions("key")
        with own_errors():
            found = ranges.mapInArrow(_build_task(self._target), _BUILT_DDL).toArrow().to_pylist()
        return sorted(found, key=lambda built: str(built["first"]))

    def release(self) -> None:
        """Let go of what waits on disk."""
        self._new = self._old = None


def _place(row: Any) -> Place:
    return Place(row["file"], row["offset"])


# -- in tasks --------------------------------------------------------------------------------------------


def _read_task(spec: tuple[str, Mapping[str, Any]], codec: KeyCodec) -> Callable[[Batches], Batches]:
    def read(batches: Batches) -> Batches:
        storage = open_storage(*spec)
        for row in _each(batches):
            block = Block(row["file"], row["begin"], row["end"], row["size"])
            for some in by_weight(objects_in(storage, block, codec), _bytes_of, most=4 << 20):
                rows = [(each.key, each.home, each.data, each.place.file, each.place.offset) for each in some]
                columns = zip(zip(*rows, strict=True), _NEW, strict=True)
                yield pa.RecordBatch.from_arrays([pa.array(values, each.type) for values, each in columns], schema=_NEW)

    return read


def _each(batches: Batches) -> Iterator[dict[str, Any]]:
    for batch in batches:
        yield from batch.to_pylist()


def _bytes_of(each: New) -> int:
    return len(each.key) + len(each.data) + 100


def _existing_task(
    spec: tuple[str, Mapping[str, Any]], version: int, order: int, target_bytes: int
) -> Callable[[Batches], Batches]:
    def read(batches: Batches) -> Batches:
        storage = open_storage(*spec)
        root, store = Versions(storage).root(version).node, NodeStore(storage, order, target_bytes)
        for row in _each(batches):
            for keys, values in scan(store, root, KeyRange(row["lo"], row["hi"])):
                inside = sum(key < row["hi"] for key in keys)  # the pivot above belongs to the next range
                yield pa.RecordBatch.from_arrays([pa.array(keys[:inside]), pa.array(values[:inside])], schema=_OLD)

    return read


def _build_task(target: Target) -> Callable[[Batches], Batches]:
    spec, codec, order, target_bytes, stamp = (
        target.storage.spec(), target.codec, target.order, target.target_bytes, target.stamp,
    )  # fmt: skip

    def build(batches: Batches) -> Batches:
        storage = open_storage(*spec)
        there = Target(storage, codec, order, target_bytes, stamp)
        built = packed(there, _rows(batches))
        storage.barrier()
        if built is not None:
            yield pa.RecordBatch.from_pylist([built], schema=_BUILT)

    return build


def _rows(batches: Batches) -> Iterator[Row]:
    for batch in batches:
        columns = (batch.column(name).to_pylist() for name in ("key", "path", "data"))
        yield from map(Row._make, zip(*columns, strict=True))

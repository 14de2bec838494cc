"""A load on Spark: read in blocks, sort by ranges of keys, one tree a range. Nothing of its size is on the driver."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

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
from pipelines.source.lines import BLOCK_BYTES, Block, Place, blocks
from pipelines.tasks import (
    BINARY,
    LONG,
    TEXT,
    Batches,
    by_weight,
    checkpointed,
    collect,
    count,
    map_batches,
    rows_of,
    slots,
    spread,
)
from pipelines.trees.subtrees import HANDED_BACK
from trinitylake_core.keys import EVERYTHING, KeyCodec, KeyRange
from trinitylake_core.nodestore import NodeStore
from trinitylake_core.storage import Storage
from trinitylake_core.tree import scan
from trinitylake_core.versions import Root, Versions

if TYPE_CHECKING:  # the command line must not wait for pyspark where no Spark runs
    from pyspark.sql import DataFrame, SparkSession

_BLOCK_BYTES_MIN: Final = 256 << 10
_KEYS_PER_TASK: Final = 100_000
_KEYS_PER_TASK_MIN: Final = 5_000
_BLOCK: Final = pa.schema({"file": TEXT, "begin": LONG, "end": LONG, "size": LONG})
_NEW: Final = pa.schema({"key": TEXT, "home": TEXT, "data": BINARY, "file": TEXT, "offset": LONG})
_RANGE: Final = pa.schema({"lo": TEXT, "hi": TEXT})
_OLD: Final = pa.schema({"key": TEXT, "path": TEXT})
_BUILT: Final = pa.schema([("first", TEXT), *HANDED_BACK, ("nodes_written", LONG), ("bytes_written", LONG)])


class SparkLoad:
    """The state of one load, in DataFrames that wait on disk."""

    def __init__(self, spark: SparkSession, source: Storage, target: Target, base: Root, progress: Progress) -> None:
        self._spark = spark
        self._source = source
        self._target = target
        self._base = base
        self._progress = progress
        self._tasks = slots(spark)
        self._new: DataFrame | None = None
        self._old: DataFrame | None = None
        self._count = 0

    def read(self, files: Sequence[tuple[str, int]]) -> int:
        """Read all objects in files, given by name and size; return how many there are."""
        each = max(_BLOCK_BYTES_MIN, min(BLOCK_BYTES, sum(size for _, size in files) // self._tasks + 1))
        rows = [asdict(block) for block in blocks(files, each)]
        if not rows:
            return 0
        self._progress("read", 0, None)
        frame = spread(self._spark, rows, _BLOCK, self._tasks)
        work = partial(_read, codec=self._target.codec)
        self._new = checkpointed(map_batches(frame, work, _NEW, self._source))
        self._count = count(self._new)
        self._progress("read", self._count, self._count)
        self._refuse_twice(self._new)
        return self._count

    def _refuse_twice(self, new: DataFrame) -> None:
        twice = new.groupBy("key").count().where("count > 1").select("key").orderBy("key").limit(1)
        places = new.join(twice, "key").select("key", "file", "offset").orderBy("file", "offset")
        if rows := collect(places.limit(2)):
            refuse_twice(self._source, self._target.codec, rows[0]["key"], [_place(row) for row in rows])

    def compare(self, existing: str) -> Counts:
        """Compare with what is there, and decide what to load. One ``get`` a node."""
        self._progress("compare", 0, None)
        new = self._loaded()
        self._old = old = checkpointed(self._existing())
        self._refuse_homeless(new, old)
        there = new.join(old.select("key"), "key", "left_semi")
        known = count(there)
        if known and existing == REFUSE:
            rows = collect(there.select("key", "file", "offset").orderBy("key").limit(SHOWN))
            refuse_there(self._source, self._target.codec, [(row["key"], _place(row)) for row in rows], known)
        if existing == SKIP:
            self._new = new.join(old.select("key"), "key", "left_anti")
            return Counts(self._count - known, 0, known)
        self._old = old.join(new.select("key"), "key", "left_anti")
        return Counts(self._count - known, known, 0)

    def _refuse_homeless(self, new: DataFrame, old: DataFrame) -> None:
        homes = new.where("home IS NOT NULL").select(new["home"].alias("key")).distinct()
        missing = homes.join(new.select("key"), "key", "left_anti").join(old.select("key"), "key", "left_anti")
        if rows := collect(missing.orderBy("key").limit(SHOWN + 1)):
            refuse_homeless(self._target.codec, [row["key"] for row in rows])

    def _existing(self) -> DataFrame:
        """Return what the base holds: key and path, read in ranges between the pivots of its root."""
        cuts = ["", *self._base.node.keys, EVERYTHING.hi] if self._base.node.children else ["", EVERYTHING.hi]
        rows = [{"lo": lo, "hi": hi} for lo, hi in pairwise(cuts)]
        target = self._target
        work = partial(_existing, version=self._base.version, order=target.order, target_bytes=target.target_bytes)
        return map_batches(spread(self._spark, rows, _RANGE, self._tasks), work, _OLD, target.storage)

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
        keys = self._count + count(self._old)
        tasks = max(keys // _KEYS_PER_TASK, min(self._tasks, keys // _KEYS_PER_TASK_MIN), 1)
        ranges = rows.repartitionByRange(tasks, "key").sortWithinPartitions("key")
        to = self._target
        work = partial(_build, codec=to.codec, order=to.order, target_bytes=to.target_bytes, stamp=to.stamp)
        found = collect(map_batches(ranges, work, _BUILT, to.storage))
        return sorted(found, key=lambda built: str(built["first"]))

    def release(self) -> None:
        """Let go of what waits on disk."""
        self._new = self._old = None


def _place(row: Any) -> Place:
    return Place(row["file"], row["offset"])


# -- in tasks --------------------------------------------------------------------------------------------


def _read(batches: Batches, storage: Storage, *, codec: KeyCodec) -> Batches:
    for row in rows_of(batches):
        block = Block(row["file"], row["begin"], row["end"], row["size"])
        for some in by_weight(objects_in(storage, block, codec), _bytes_of, most=4 << 20):
            rows = [(each.key, each.home, each.data, each.place.file, each.place.offset) for each in some]
            columns = zip(zip(*rows, strict=True), _NEW, strict=True)
            yield pa.RecordBatch.from_arrays([pa.array(values, each.type) for values, each in columns], schema=_NEW)


def _bytes_of(each: New) -> int:
    return len(each.key) + len(each.data) + 100


def _existing(batches: Batches, storage: Storage, *, version: int, order: int, target_bytes: int) -> Batches:
    root, store = Versions(storage).root(version).node, NodeStore(storage, order, target_bytes)
    for row in rows_of(batches):
        for keys, values in scan(store, root, KeyRange(row["lo"], row["hi"])):
            inside = sum(key < row["hi"] for key in keys)  # the pivot above belongs to the next range
            yield pa.RecordBatch.from_arrays([pa.array(keys[:inside]), pa.array(values[:inside])], schema=_OLD)


def _build(
    batches: Batches, storage: Storage, *, codec: KeyCodec, order: int, target_bytes: int, stamp: int
) -> Batches:
    built = packed(Target(storage, codec, order, target_bytes, stamp), _rows(batches))
    storage.barrier()
    if built is not None:
        yield pa.RecordBatch.from_pylist([built], schema=_BUILT)


def _rows(batches: Batches) -> Iterator[Row]:
    for batch in batches:
        columns = (batch.column(name).to_pylist() for name in ("key", "path", "data"))
        yield from map(Row._make, zip(*columns, strict=True))

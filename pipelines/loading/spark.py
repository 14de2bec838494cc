"""A load on Spark: read in blocks, sort by ranges of keys, one tree per range. Never holds it all on the driver."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from pipelines.engine.model import BINARY, INT, LONG, TEXT
from pipelines.engine.spark import (
    Batches,
    by_weight,
    checkpointed,
    collect,
    collect_one,
    count,
    covered,
    map_batches,
    rows_of,
    slots,
    spread,
)
from pipelines.job import Progress
from pipelines.loading.model import (
    REFUSE,
    SKIP,
    Built,
    Counts,
    New,
    Row,
    Tally,
    Target,
    hash_of,
    objects_in,
    packed,
    wrong_in,
)
from pipelines.loading.refusals import SHOWN, Wrong, refuse_homeless, refuse_there, refuse_twice, refuse_wrong
from pipelines.source.lines import BLOCK_BYTES, Block, Place, blocks
from pipelines.trees.handback import HANDED_BACK
from trinitylake_core.errors import InvalidInput
from trinitylake_core.keys import KeyCodec
from trinitylake_core.storage import Storage
from trinitylake_core.tree.node import Node
from trinitylake_core.tree.nodestore import NodeStore
from trinitylake_core.tree.proof import Witness
from trinitylake_core.tree.search import Batch, applied, child_height, scan
from trinitylake_core.versions import Root, Versions

if TYPE_CHECKING:  # the command line must not wait for pyspark where no Spark runs
    from pyspark.sql import DataFrame, SparkSession

_BLOCK_BYTES_MIN: Final = 256 << 10
_KEYS_PER_TASK: Final = 100_000
_KEYS_PER_TASK_MIN: Final = 1_000
"""Each key is a ``put`` of a definition, mostly. A range costs the driver a ``get`` per level, all ranges at once."""
_BLOCK: Final = pa.schema({"file": TEXT, "begin": LONG, "end": LONG, "size": LONG})
_NEW: Final = pa.schema({"key": TEXT, "home": TEXT, "data": BINARY, "file": TEXT, "offset": LONG})
_PART: Final = pa.schema({"child": INT})
_OLD: Final = pa.schema({"key": TEXT, "path": TEXT, "hash": LONG})
_WRONG: Final = pa.schema({"file": TEXT, "offset": LONG, "why": TEXT, "count": LONG})
_BUILT: Final = pa.schema(
    [
        ("first", TEXT), *HANDED_BACK, ("new", LONG), ("unchanged", LONG), ("unchanged_hash", TEXT),
        ("nodes_written", LONG), ("bytes_written", LONG),
    ]
)  # fmt: skip


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
        self.unchanged = Tally()
        """What the new tree must keep of the old one, once they were compared."""

    def read(self, files: Sequence[tuple[str, int]]) -> int:
        """Read all objects in files, given by name and size; return how many there are."""
        each = max(_BLOCK_BYTES_MIN, min(BLOCK_BYTES, sum(size for _, size in files) // self._tasks + 1))
        rows = [asdict(block) for block in blocks(files, each)]
        if not rows:
            return 0
        self._progress("read", 0, None)
        frame = spread(self._spark, rows, _BLOCK, self._tasks)
        work = partial(_read, codec=self._target.codec)
        try:
            self._new = checkpointed(map_batches(frame, work, _NEW, self._source))
        except InvalidInput:
            self._refuse_wrong(frame)
            raise
        self._count = count(self._new)
        self._progress("read", self._count, self._count)
        self._refuse_twice(self._new)
        return self._count

    def _refuse_wrong(self, blocks_: DataFrame) -> None:
        work = partial(_wrong, codec=self._target.codec)
        rows = collect(map_batches(blocks_, work, _WRONG, self._source))
        found = [Wrong(_place(row), row["why"]) for row in rows]
        refuse_wrong(self._source, sum(row["count"] for row in rows), found)

    def _refuse_twice(self, new: DataFrame) -> None:
        twice = new.groupBy("key").count().where("count > 1").select("key").orderBy("key").limit(1)
        places = new.join(twice, "key").select("key", "file", "offset").orderBy("file", "offset")
        if rows := collect(places.limit(2)):
            refuse_twice(self._source, self._target.codec, rows[0]["key"], [_place(row) for row in rows])

    def compare(self, existing: str) -> Counts:
        """Compare with what is there, proved, and decide what to load. One ``get`` per node."""
        self._progress("compare", 0, None)
        new = self._loaded()
        self._old = old = checkpointed(self._existing())
        self._refuse_homeless(new, old)
        there = _tally(old.join(new.select("key"), "key", "left_semi"))
        known = there.count
        if known and existing == REFUSE:
            found = new.join(old.select("key"), "key", "left_semi").select("key", "file", "offset")
            rows = collect(found.orderBy("key").limit(SHOWN))
            refuse_there(self._source, self._target.codec, [(row["key"], _place(row)) for row in rows], known)
        self.unchanged = _tally(old)
        if existing == SKIP:
            self._new = new.join(old.select("key"), "key", "left_anti")
            return Counts(self._count - known, 0, known)
        self.unchanged -= there
        self._old = old.join(new.select("key"), "key", "left_anti")
        return Counts(self._count - known, known, 0)

    def _refuse_homeless(self, new: DataFrame, old: DataFrame) -> None:
        homes = new.where("home IS NOT NULL").select(new["home"].alias("key")).distinct()
        missing = homes.join(new.select("key"), "key", "left_anti").join(old.select("key"), "key", "left_anti")
        if rows := collect(missing.orderBy("key").limit(SHOWN + 1)):
            refuse_homeless(self._target.codec, [row["key"] for row in rows])

    def _existing(self) -> DataFrame:
        """Return the entries of the base: key, path and hash, read child by child of its root."""
        rows = [{"child": index} for index in range(len(self._base.node.children) or 1)]
        target = self._target
        work = partial(_existing, version=self._base.version, order=target.order, target_bytes=target.target_bytes)
        return map_batches(spread(self._spark, rows, _PART, self._tasks), work, _OLD, target.storage)

    def _loaded(self) -> DataFrame:
        if self._new is None:
            raise RuntimeError("nothing was read yet")
        return self._new

    def build(self) -> Sequence[Built]:
        """Write the definitions, and one tree per range of keys. One ``put`` per file."""
        from pyspark.sql import functions as f

        if self._old is None:
            raise RuntimeError("nothing was compared yet")
        self._progress("build", 0, None)
        nothing = (f.lit(None).cast("string").alias("path"), f.lit(None).cast("binary").alias("data"))
        rows = self._loaded().select("key", nothing[0], "data").unionByName(self._old.select("key", "path", nothing[1]))
        keys = self._count + self.unchanged.count
        tasks = max(keys // _KEYS_PER_TASK, min(self._tasks, keys // _KEYS_PER_TASK_MIN), 1)
        ranges = rows.repartitionByRange(tasks, "key").sortWithinPartitions("key")
        to = self._target
        work = partial(_build, codec=to.codec, order=to.order, target_bytes=to.target_bytes, stamp=to.stamp)
        found = collect(map_batches(ranges, work, _BUILT, covered(self._spark, to.storage)))
        return sorted(found, key=lambda built: str(built["first"]))

    def release(self) -> None:
        """Let go of what waits on disk."""
        self._new = self._old = None


def _tally(frame: DataFrame) -> Tally:
    """Return the tally of entries with their hashes."""
    from pyspark.sql import functions as f

    total = f.sum(f.col("hash").cast("decimal(38,0)"))
    row = collect_one(frame.agg(f.count("*").alias("count"), f.coalesce(total, f.lit(0)).cast("string").alias("hash")))
    return Tally(row["count"], int(row["hash"]))


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


def _wrong(batches: Batches, storage: Storage, *, codec: KeyCodec) -> Batches:
    """Yield the first wrong lines of each block; the first of them counts them all."""
    for row in rows_of(batches):
        count, found = wrong_in(storage, Block(row["file"], row["begin"], row["end"], row["size"]), codec)
        rows = [
            {"file": each.place.file, "offset": each.place.offset, "why": each.why, "count": count if not number else 0}
            for number, each in enumerate(found)
        ]
        if rows:
            yield pa.RecordBatch.from_pylist(rows, schema=_WRONG)


def _bytes_of(each: New) -> int:
    return len(each.key) + len(each.data) + 100


def _existing(batches: Batches, storage: Storage, *, version: int, order: int, target_bytes: int) -> Batches:
    root, store = Versions(storage).root(version).node, NodeStore(storage, order, target_bytes)
    for row in rows_of(batches):
        for keys, values in _part(store, root, row["child"]):
            hashes = list(map(hash_of, keys, values))
            yield pa.RecordBatch.from_arrays(
                [pa.array(keys, TEXT), pa.array(values, TEXT), pa.array(hashes, LONG)], schema=_OLD
            )


def _part(store: NodeStore, root: Node, index: int) -> Iterator[Batch]:
    """Yield what a child of a root, and the pivot behind it, mean, and prove it. A leaf is a part of its own."""
    witness = Witness(store)
    witness.begin(root, [index])
    return witness.watched(scan(witness, root) if root.is_leaf else _child_and_pivot(witness, root, index))


def _child_and_pivot(witness: Witness, root: Node, index: int) -> Iterator[Batch]:
    path = root.children[index]
    child = witness.read(path)
    child_height(root, path, child)
    yield from scan(witness, child, newer=root.pending.between(*root.bounds(index)))
    pivot = slice(index, index + 1)
    for key in root.keys[pivot]:
        yield applied(root.keys[pivot], root.values[pivot], root.pending.on(key))


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

"""List, mark, minus and act on Spark: nothing of the size of the lakehouse on the driver.

Listing and orphans are checkpointed, not cached: when a block is lost, the job fails instead of listing anew,
which would list files that were marked by nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from pipelines.bounded import checkpointed
from pipelines.files.deletion import BATCH, DELETED_DDL, Deleted, delete_task
from pipelines.files.listing import BATCH as ROWS
from pipelines.files.listing import (
    CANDIDATES,
    DDL,
    FIXED,
    FOREIGN,
    ROOT,
    SCHEMA,
    TRANSACTION,
    Listed,
    batch_of,
    inventory_files,
    list_shard,
    read_inventory,
    shards,
)
from pipelines.job import Progress
from pipelines.session import session_parallelism, ship_packages
from pipelines.sweep.model import SHOWN, Alone, Foreign, Size, Sizes, Totals
from pipelines.tasks import own_errors
from pipelines.trees.walk import SparkWalk, Start, Target, starts_frame, walk_on_spark
from trinitylake_core.storage import Storage, open_storage

if TYPE_CHECKING:  # the command line must not wait for pyspark where no Spark runs
    from pyspark.sql import Column, DataFrame, SparkSession

_TASKS_PER_CORE: Final = 3
_LOADED: Final = 100_000


class SparkSweep:
    """The state of one sweep, in DataFrames."""

    def __init__(self, spark: SparkSession, storage: Storage, order: int, progress: Progress) -> None:
        ship_packages(spark)
        self._spark = spark
        self._storage = storage
        self._target = Target(storage, order)
        self._progress = progress
        self._tasks = _TASKS_PER_CORE * session_parallelism(spark)
        self._files: DataFrame | None = None
        self._walks: list[SparkWalk] = []
        self._paths: set[str] = set()
        self._orphans: DataFrame | None = None
        self.foreign = Foreign()
        self.nodes_read = 0

    # -- list ----------------------------------------------------------------------------------------

    def list_files(self, inventory: str | None, options: Mapping[str, Any]) -> Size:
        """List everything, or read an inventory, before anything is marked; return how much there is."""
        from pyspark.sql import functions as f

        root, storage_options = self._storage.spec()
        if inventory is None:
            top = shards(self._storage)
            self.foreign.directories = tuple(sorted(top.unknown)[:SHOWN])
            work = _in_tasks(root, dict(storage_options), _list_one)
            frame = self._mapped(top.prefixes, work).unionByName(self._rows(top.files))
        else:
            files = inventory_files(inventory, options)
            one = _read_one(dict(options), root)
            frame = self._mapped(files, _in_tasks(root, dict(storage_options), one))
            oldest = f.max(f.coalesce("modified_millis", f.lit(1 << 62))).alias("modified_millis")
            frame = frame.groupBy("path", "kind", "version").agg(f.max("bytes").alias("bytes"), oldest)
            unknown = f.col("modified_millis") == (1 << 62)
            frame = frame.withColumn("modified_millis", f.when(~unknown, f.col("modified_millis")))
            frame = frame.select(SCHEMA.names)
        with own_errors():
            self._files = checkpointed(frame)
        return self._count_listed(self._files)

    def _count_listed(self, files: DataFrame) -> Size:
        kinds = _by_kind(files)
        foreign = kinds.get(FOREIGN, Size())
        named = files.where(f"kind = '{FOREIGN}'").select("path").orderBy("path").limit(SHOWN).collect()
        self.foreign = Foreign(
            foreign.files, foreign.bytes, self.foreign.directories, tuple(row["path"] for row in named)
        )
        self._progress("list", sum(each.files for each in kinds.values()), None)
        return Size(sum(each.files for each in kinds.values()), sum(each.bytes for each in kinds.values()))

    def _mapped(self, texts: Sequence[str], work: Any) -> DataFrame:
        rows = [(index % self._tasks, text) for index, text in enumerate(texts)]
        frame = self._spark.createDataFrame(rows, "task int, text string")
        return frame.repartitionById(self._tasks, "task").mapInArrow(work, DDL)

    def _rows(self, files: Iterable[Listed]) -> DataFrame:
        table = pa.Table.from_batches([batch_of(files)], schema=SCHEMA)
        if not len(table):  # Spark Connect infers no types from that
            return self._spark.createDataFrame([], DDL).select(SCHEMA.names)
        return self._spark.createDataFrame(table).select(SCHEMA.names)

    def transactions(self) -> list[tuple[str, int]]:
        """Return the saved transactions that were listed, with their age."""
        rows = self._listing().where(f"kind = '{TRANSACTION}'").select("path", "modified_millis").collect()
        return [(row["path"], row["modified_millis"] or 0) for row in rows]

    def _listing(self) -> DataFrame:
        if self._files is None:
            raise RuntimeError("nothing was listed yet")
        return self._files

    # -- mark ----------------------------------------------------------------------------------------

    def mark(self, starts: Sequence[Start], paths: AbstractSet[str], *, afresh: bool = False) -> None:
        """Mark what roots reach, and ``paths``; what is marked already is not read again, unless ``afresh``."""
        if afresh:
            self.release()
        self._paths |= paths
        if not starts:
            return
        known = self._live() if self._walks else None
        with own_errors():
            walk = walk_on_spark(self._spark, self._target, starts_frame(self._spark, starts), self._progress, known)
        self._walks.append(walk)
        self.nodes_read += walk.nodes_read

    def _live(self) -> DataFrame:
        frame = self._spark.createDataFrame([(path,) for path in sorted(self._paths)], "path string")
        for walk in self._walks:
            frame = frame.unionByName(walk.nodes().select("path")).unionByName(walk.named().select("path"))
        return frame

    # -- minus ---------------------------------------------------------------------------------------

    def subtract(self, boundary: int, cutoff_millis: int) -> Totals:
        """Keep as orphans what is listed, old enough, of a name that may go, and not live; return their totals."""
        with own_errors():
            unreached = checkpointed(self._unreached(boundary))
            self._orphans = unreached.where(f"modified_millis < {cutoff_millis}")
            young = _sized(unreached.where(f"modified_millis >= {cutoff_millis}"))
            unknown = _sized(unreached.where("modified_millis IS NULL"))
            return Totals(_by_kind(self._orphans), young, unknown)

    def _unreached(self, boundary: int) -> DataFrame:
        return self._listing().where(_may_go(boundary)).join(self._live(), "path", "left_anti")

    def subtract_again(self) -> Totals:
        """Take what has been marked since off the orphans."""
        with own_errors():
            self._orphans = checkpointed(self._doomed().join(self._live(), "path", "left_anti"))
            return Totals(_by_kind(self._orphans))

    def _doomed(self) -> DataFrame:
        if self._orphans is None:
            raise RuntimeError("nothing was subtracted yet")
        return self._orphans

    def orphans(self) -> Iterator[Listed]:
        """Yield the orphans, a partition in memory at a time."""
        for row in self._doomed().select(SCHEMA.names).toLocalIterator():
            yield Listed(*(row[name] for name in SCHEMA.names))

    def load(self, files: Iterable[Listed]) -> None:
        """Take the orphans of a plan, a piece in memory at a time."""
        remaining, loaded = iter(files), self._rows(())
        while piece := list(islice(remaining, _LOADED)):
            loaded = checkpointed(loaded.unionByName(self._rows(piece)))
        self._orphans = loaded

    def reached(self) -> list[str]:
        """Return some orphans that are live."""
        with own_errors():
            rows = self._doomed().join(self._live(), "path", "left_semi").select("path").limit(SHOWN).collect()
        return [row["path"] for row in rows]

    # -- act -----------------------------------------------------------------------------------------

    def act(self) -> Deleted:
        """Delete the orphans in tasks."""
        from pyspark.sql import functions as f

        root, options = self._storage.spec()
        total = self._doomed().count()
        done = Deleted()
        if total:
            tasks = min(self._tasks, -(-total // BATCH))
            frame = self._doomed().select("path", f.coalesce("bytes", f.lit(0)).alias("bytes")).repartition(tasks)
            with own_errors():
                rows = frame.mapInArrow(delete_task(root, dict(options)), DELETED_DDL).collect()
            for row in rows:
                done.add(Deleted(**row.asDict()))
        self._progress("delete", done.attempted, total)
        return done

    # -- what other jobs ask -------------------------------------------------------------------------

    def alone(self, below: int) -> Alone:
        """Return what only versions below one reach, and of it what a single version holds."""
        from pyspark.sql import functions as f

        reach = self._tags().where(f"last >= 0 AND last < {below}")
        sized = reach.join(self._listing().select("path", "bytes"), "path", "left")
        with own_errors():
            sized = checkpointed(sized)
            total = _sized(sized)
            mine = sized.where("first = last").groupBy("last")
            rows = mine.agg(f.count("*").alias("files"), f.coalesce(f.sum("bytes"), f.lit(0)).alias("bytes")).collect()
        return Alone(total, {row["last"]: Size(row["files"], row["bytes"]) for row in sorted(rows, key=lambda r: r[0])})

    def sizes(self, newest: int, boundary: int) -> Sizes:
        """Return what the newest version reaches, what only the rest of history does, and what nothing does."""
        files = self._listing().join(self._tags(), "path", "left")
        reached = files.where(f"last IS NOT NULL AND kind NOT IN ('{FIXED}', '{FOREIGN}')")
        with own_errors():
            reached = checkpointed(reached)
            return Sizes(
                _sized(reached.where(f"last = {newest}")),
                _sized(reached.where(f"last <> {newest}")),
                _sized(files.where("last IS NULL").where(_may_go(boundary))),
            )

    def _tags(self) -> DataFrame:
        from pyspark.sql import functions as f

        rows = [(path, -1, -1) for path in sorted(self._paths)]
        tags = self._spark.createDataFrame(rows, "path string, first bigint, last bigint")
        for walk in self._walks:
            tags = tags.unionByName(walk.files())
        return tags.groupBy("path").agg(f.min("first").alias("first"), f.max("last").alias("last"))

    def release(self) -> None:
        """Give the memory of the marks back."""
        for walk in self._walks:
            walk.release()
        self._walks, self._paths = [], set()


def _may_go(boundary: int) -> Column:
    from pyspark.sql import functions as f

    return f.col("kind").isin(*sorted(CANDIDATES)) | ((f.col("kind") == ROOT) & (f.col("version") < boundary))


def _by_kind(frame: DataFrame) -> dict[str, Size]:
    from pyspark.sql import functions as f

    rows = frame.groupBy("kind").agg(f.count("*").alias("files"), f.sum("bytes").alias("bytes")).collect()
    return {row["kind"]: Size(row["files"], row["bytes"] or 0) for row in sorted(rows, key=lambda row: row["kind"])}


def _sized(frame: DataFrame) -> Size:
    from pyspark.sql import functions as f

    row = frame.agg(f.count("*").alias("files"), f.sum("bytes").alias("bytes")).first()
    return Size() if row is None else Size(row["files"], row["bytes"] or 0)


def _list_one(storage: Storage, prefix: str) -> Iterator[Listed]:
    return list_shard(storage, prefix)


def _read_one(options: Mapping[str, Any], root: str) -> Callable[[Storage, str], Iterator[Listed]]:
    return lambda _, uri: read_inventory(uri, options, root)


def _in_tasks(
    root: str, options: Mapping[str, Any], one: Callable[[Storage, str], Iterator[Listed]]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def list_partition(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        storage = open_storage(root, options)
        for batch in batches:
            for text in batch.column("text").to_pylist():
                rows = one(storage, text)
                while some := list(islice(rows, ROWS)):
                    yield batch_of(some)

    return list_partition

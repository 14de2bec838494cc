"""List, mark, minus and act on Spark: nothing of the size of the lakehouse on the driver.

Listing and orphans are checkpointed, not cached: when a block is lost, the job fails instead of listing anew,
which would list files that were marked by nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from pipelines.files.deletion import BATCH, DELETED, Deleted, delete_rows
from pipelines.files.listing import BATCH as ROWS
from pipelines.files.listing import (
    CANDIDATES,
    FIXED,
    ROOT,
    SCHEMA,
    TRANSACTION,
    UNKNOWN,
    Listed,
    batch_of,
    inventory_files,
    list_shard,
    read_inventory,
    shards,
)
from pipelines.job import Progress
from pipelines.sweep.model import SHOWN, Alone, Size, Sizes, Totals, UnknownFiles
from pipelines.tasks import (
    LONG,
    TEXT,
    Batches,
    Row,
    checkpointed,
    collect,
    collect_one,
    count,
    map_batches,
    map_rows,
    rows_of,
    slots,
    spread,
    stream,
    table,
    tasks_for,
)
from pipelines.trees.walk import SparkWalk, Start, TreeSource, walk_on_spark
from trinitylake_core.storage import Storage

if TYPE_CHECKING:  # the command line must not wait for pyspark where no Spark runs
    from pyspark.sql import Column, DataFrame, SparkSession

_LOADED: Final = 100_000
_TEXT: Final = pa.schema({"text": TEXT})
_PATH: Final = pa.schema({"path": TEXT})
_REACHED: Final = pa.schema({"path": TEXT, "first": LONG, "last": LONG})


class SparkSweep:
    """The state of one sweep, in DataFrames."""

    def __init__(self, spark: SparkSession, storage: Storage, order: int, progress: Progress) -> None:
        self._spark = spark
        self._storage = storage
        self._trees = TreeSource(storage, order)
        self._progress = progress
        self._files: DataFrame | None = None
        self._walks: list[SparkWalk] = []
        self._paths: set[str] = set()
        self._orphans: DataFrame | None = None
        self._transactions: list[tuple[str, int]] | None = None
        self.unknown = UnknownFiles()
        self.nodes_read = 0

    # -- list ----------------------------------------------------------------------------------------

    def list_files(self, inventory: str | None, options: Mapping[str, Any]) -> Size:
        """List everything, or read an inventory, before anything is marked; return how much there is."""
        from pyspark.sql import functions as f

        if inventory is None:
            frame = self._everything()
        else:
            read = partial(_read_inventory, options=dict(options))
            frame = self._listed(inventory_files(inventory, options), read)
            oldest = f.max(f.coalesce("modified_millis", f.lit(1 << 62))).alias("modified_millis")
            frame = frame.groupBy("path", "kind", "version").agg(f.max("bytes").alias("bytes"), oldest)
            unknown = f.col("modified_millis") == (1 << 62)
            frame = frame.withColumn("modified_millis", f.when(~unknown, f.col("modified_millis")))
            frame = frame.select(SCHEMA.names)
        self._files = checkpointed(frame)
        return self._count_listed(self._files)

    def _everything(self) -> DataFrame:
        top = shards(self._storage)
        self.unknown.directories = tuple(sorted(top.unknown)[:SHOWN])
        return self._listed(top.prefixes, list_shard).unionByName(self._rows(top.files))

    def _count_listed(self, files: DataFrame) -> Size:
        kinds = _by_kind(files)
        unknown_files = kinds.get(UNKNOWN, Size())
        named = collect(files.where(f"kind = '{UNKNOWN}'").select("path").orderBy("path").limit(SHOWN))
        self.unknown = UnknownFiles(
            unknown_files.files, unknown_files.bytes, self.unknown.directories, tuple(row["path"] for row in named)
        )
        self._progress("list", sum(each.files for each in kinds.values()), None)
        return Size(sum(each.files for each in kinds.values()), sum(each.bytes for each in kinds.values()))

    def _listed(self, texts: Sequence[str], read: Callable[[Storage, str], Iterator[Listed]]) -> DataFrame:
        """Return what ``read`` yields in tasks for each text: a directory to list, or a file of an inventory."""
        frame = spread(self._spark, [{"text": text} for text in texts], _TEXT, slots(self._spark))
        return map_batches(frame, partial(_read_each, read=read), SCHEMA, self._storage)

    def _rows(self, files: Iterable[Listed]) -> DataFrame:
        return table(self._spark, [file._asdict() for file in files], SCHEMA)

    def list_transactions(self) -> None:
        """List everything again, and take from it the saved transactions there are now."""
        self._transactions = _transactions_in(self._everything())

    def transactions(self) -> list[tuple[str, int]]:
        """Return the saved transactions that were listed last, with their age."""
        if self._transactions is None:
            self._transactions = _transactions_in(self._listing())
        return self._transactions

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
        walk = walk_on_spark(self._spark, self._trees, starts, self._progress, known)
        self._walks.append(walk)
        self.nodes_read += walk.nodes_read

    def _live(self) -> DataFrame:
        frame = table(self._spark, [{"path": path} for path in sorted(self._paths)], _PATH)
        for walk in self._walks:
            frame = frame.unionByName(walk.nodes().select("path")).unionByName(walk.named().select("path"))
        return frame

    # -- minus ---------------------------------------------------------------------------------------

    def subtract(self, boundary: int, cutoff_millis: int) -> Totals:
        """Keep as orphans what is listed, old enough, of a name that may go, and not live; return their totals."""
        unreached = checkpointed(self._unreached(boundary))
        self._orphans = unreached.where(f"modified_millis < {cutoff_millis}")
        young = _sized(unreached.where(f"modified_millis >= {cutoff_millis}"))
        unknown = _sized(unreached.where("modified_millis IS NULL"))
        return Totals(_by_kind(self._orphans), young, unknown)

    def _unreached(self, boundary: int) -> DataFrame:
        return self._listing().where(_may_go(boundary)).join(self._live(), "path", "left_anti")

    def subtract_again(self) -> Totals:
        """Take what has been marked since off the orphans."""
        self._orphans = checkpointed(self._doomed().join(self._live(), "path", "left_anti"))
        return Totals(_by_kind(self._orphans))

    def _doomed(self) -> DataFrame:
        if self._orphans is None:
            raise RuntimeError("nothing was subtracted yet")
        return self._orphans

    def orphans(self) -> Iterator[Listed]:
        """Yield the orphans, a partition in memory at a time."""
        for row in stream(self._doomed().select(SCHEMA.names)):
            yield Listed(**row)

    def load(self, files: Iterable[Listed]) -> None:
        """Take the orphans of a plan, a piece in memory at a time."""
        remaining, loaded = iter(files), self._rows(())
        while piece := list(islice(remaining, _LOADED)):
            loaded = checkpointed(loaded.unionByName(self._rows(piece)))
        self._orphans = loaded

    def reached(self) -> list[str]:
        """Return some orphans that are live."""
        live = self._doomed().join(self._live(), "path", "left_semi")
        return [row["path"] for row in collect(live.select("path").limit(SHOWN))]

    def agree(self, cutoff_millis: int) -> tuple[Totals, int]:
        """Keep of the plan what is still listed and old enough; return its totals, and how many files are gone."""
        from pyspark.sql import functions as f

        planned, listing = self._doomed().select("path"), self._listing()
        gone = _sized(planned.join(listing, "path", "left_anti").withColumn("bytes", f.lit(0))).files
        old = listing.where(f"modified_millis < {cutoff_millis}").join(planned, "path", "left_semi")
        self._orphans = checkpointed(old.join(self._live(), "path", "left_anti"))
        return Totals(_by_kind(self._orphans)), gone

    # -- act -----------------------------------------------------------------------------------------

    def act(self) -> Deleted:
        """Delete the orphans in tasks."""
        from pyspark.sql import functions as f

        total = count(self._doomed())
        done = Deleted()
        if total:
            files = self._doomed().select("path", f.coalesce("bytes", f.lit(0)).alias("bytes"))
            frame = files.repartition(tasks_for(self._spark, total, BATCH))
            for row in collect(map_rows(frame, delete_rows, DELETED, self._storage)):
                done.add(Deleted(**{**row, "failures": dict(row["failures"])}))
        self._progress("delete", done.attempted, total)
        return done

    # -- what other jobs ask -------------------------------------------------------------------------

    def alone(self, below: int) -> Alone:
        """Return what only versions below one reach, and of it what a single version holds."""
        reach = self._tags().where(f"last >= 0 AND last < {below}")
        ours = self._listing().where(f"kind <> '{UNKNOWN}'")  # the others stay, whoever names them
        sized = reach.join(ours.select("path", "bytes"), "path", "left")
        sized = checkpointed(sized)
        mine = sized.where("first = last").groupBy("last").agg(*_sums())
        versions = {row["last"]: _size(row) for row in collect(mine)}
        return Alone(_sized(sized), dict(sorted(versions.items())))

    def sizes(self, newest: int, boundary: int) -> Sizes:
        """Return what the newest version reaches, what only the rest of history does, and what nothing does."""
        files = self._listing().join(self._tags(), "path", "left")
        reached = files.where(f"last IS NOT NULL AND kind NOT IN ('{FIXED}', '{UNKNOWN}')")
        reached = checkpointed(reached)
        return Sizes(
            _sized(reached.where(f"last = {newest}")),
            _sized(reached.where(f"last <> {newest}")),
            _sized(files.where("last IS NULL").where(_may_go(boundary))),
        )

    def _tags(self) -> DataFrame:
        from pyspark.sql import functions as f

        tags = table(self._spark, [{"path": path, "first": -1, "last": -1} for path in sorted(self._paths)], _REACHED)
        for walk in self._walks:
            tags = tags.unionByName(walk.files())
        return tags.groupBy("path").agg(f.min("first").alias("first"), f.max("last").alias("last"))

    def release(self) -> None:
        """Give the memory of the marks back."""
        for walk in self._walks:
            walk.release()
        self._walks, self._paths = [], set()


def _transactions_in(listing: DataFrame) -> list[tuple[str, int]]:
    rows = collect(listing.where(f"kind = '{TRANSACTION}'").select("path", "modified_millis"))
    return [(row["path"], row["modified_millis"] or 0) for row in rows]


def _may_go(boundary: int) -> Column:
    from pyspark.sql import functions as f

    return f.col("kind").isin(*sorted(CANDIDATES)) | ((f.col("kind") == ROOT) & (f.col("version") < boundary))


def _sums() -> tuple[Column, Column]:
    from pyspark.sql import functions as f

    return f.count("*").alias("files"), f.sum("bytes").alias("bytes")


def _size(row: Row) -> Size:
    return Size(row["files"], row["bytes"] or 0)


def _by_kind(frame: DataFrame) -> dict[str, Size]:
    kinds = {row["kind"]: _size(row) for row in collect(frame.groupBy("kind").agg(*_sums()))}
    return dict(sorted(kinds.items()))


def _sized(frame: DataFrame) -> Size:
    return _size(collect_one(frame.agg(*_sums())))


def _read_inventory(storage: Storage, uri: str, *, options: Mapping[str, Any]) -> Iterator[Listed]:
    return read_inventory(uri, options, storage.root)


def _read_each(batches: Batches, storage: Storage, *, read: Callable[[Storage, str], Iterator[Listed]]) -> Batches:
    for row in rows_of(batches):
        files = read(storage, row["text"])
        while some := list(islice(files, ROWS)):
            yield batch_of(some)

"""Copying immutable files between two roots, in this process or in Spark tasks. Existing files are skipped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from pipelines.tasks import LONG, TEXT, Row, collect, collect_one, map_rows, spread, tasks_for
from trinitylake_core.errors import CorruptDefinition, FileMissing, StorageError
from trinitylake_core.storage import Storage

if TYPE_CHECKING:  # the command line must not wait for pyspark where no Spark runs
    from pyspark.sql import DataFrame, SparkSession

CHUNK: Final = 20_000
"""Paths a Spark job copies: what the driver holds at once."""
_BATCH: Final = 64
"""Files that are worth a task: twice as many as it copies at once. With more, workers of a cluster would have none."""
_PATH: Final = pa.schema({"path": TEXT})
_COPIED: Final = pa.schema({"copied": LONG, "skipped": LONG, "bytes": LONG, "missing": pa.list_(TEXT)})
_NEW: Final = pa.schema({"copied": LONG, "bytes": LONG, "requests": LONG})


@dataclass(slots=True)
class Copied:
    """What a copy did; ``missing`` names files that are not at the source."""

    copied: int = 0
    skipped: int = 0
    bytes: int = 0
    missing: tuple[str, ...] = ()
    requests: int = 0
    """Counted by :func:`copy_new` only."""

    def __add__(self, other: Copied) -> Copied:
        return Copied(
            self.copied + other.copied,
            self.skipped + other.skipped,
            self.bytes + other.bytes,
            self.missing + other.missing,
            self.requests + other.requests,
        )


def copy_files(
    source: Storage, target: Storage, paths: Sequence[str], check: Callable[[str, bytes], None] | None = None
) -> Copied:
    """Copy files in this process. One ``get`` and one ``head`` per file, one ``put`` per file that is not there.

    A target file counts as there if its size is the source's, or was the source's when it was copied:
    immutable files of one name have one content, but a copy that was cut short is shorter.
    """

    def copy(path: str) -> Copied:
        try:
            data = source.read(path)
        except FileMissing:
            return Copied(missing=(path,))
        if check is not None:
            check(path, data)
        if _is_there(target, path, len(data)):
            return Copied(skipped=1)
        target.write_many([(path, data)])
        return Copied(copied=1, bytes=len(data))

    done = sum(_busier(source, target).map(paths, copy), Copied())
    target.barrier()
    return done


def _busier(one: Storage, two: Storage) -> Storage:
    """Return the storage that has more requests under way at the same time: files are copied that many at once."""
    return one if one.concurrency >= two.concurrency else two


def _is_there(target: Storage, path: str, size: int) -> bool:
    try:
        return target.info(path).size == size
    except FileMissing:
        return False


def copy_all(
    spark: SparkSession | None,
    source: Storage,
    target: Storage,
    paths: Iterable[str],
    progress: Callable[[str, int, int | None], None],
) -> Copied:
    """Copy files, on Spark if there is a session. Memory: one chunk of paths.

    Raises:
        CorruptDefinition: a file is not at the source.
    """
    total, remaining = Copied(), iter(paths)
    while chunk := list(islice(remaining, CHUNK)):
        total += copy_files(source, target, chunk) if spark is None else _copy_on_spark(spark, source, target, chunk)
        progress("copy", total.copied + total.skipped, None)
        if total.missing:
            path = total.missing[0]
            raise CorruptDefinition(f"file {path!r} is missing at {source.root}", path=path, invariant="I15")
    return total


def _copy_on_spark(spark: SparkSession, source: Storage, target: Storage, paths: Sequence[str]) -> Copied:
    frame = spread(spark, [{"path": path} for path in paths], _PATH, tasks_for(spark, len(paths), _BATCH))
    results = collect(map_rows(frame, _copied, _COPIED, source, target))
    return sum((Copied(r["copied"], r["skipped"], r["bytes"], tuple(r["missing"])) for r in results), Copied())


def _copied(rows: Iterator[Row], source: Storage, target: Storage) -> Iterator[Row]:
    done = copy_files(source, target, [row["path"] for row in rows])
    yield {"copied": done.copied, "skipped": done.skipped, "bytes": done.bytes, "missing": list(done.missing)}


# -- what is known not to be there ---------------------------------------------------------------------

Check = Callable[[str, bytes], None]
"""Raises ``Corrupt`` if the bytes of a file are not what a file of its name holds."""


def copy_new(source: Storage, target: Storage, paths: Sequence[str], check: Check) -> Copied:
    """Copy files that are not at the target, or are cut short there, and compare what arrived. Durable afterwards.

    One ``get`` at the source, one ``put`` and one ``get`` at the target for each.

    Raises:
        Corrupt: a file is missing or damaged at the source.
        StorageError: what was read back is not what was written.
    """
    before = (source.counts.snapshot(), target.counts.snapshot())

    def copy(path: str) -> int:
        data = _sound(source, path, check)
        target.write_many([(path, data)])
        if target.read(path) != data:
            raise StorageError(f"{target.root}{path} does not hold what was written to it; copy it again")
        return len(data)

    done = Copied()
    for size in _busier(source, target).map(paths, copy):
        done.copied, done.bytes = done.copied + 1, done.bytes + size
    target.barrier()
    done.requests = (source.counts - before[0]).requests() + (target.counts - before[1]).requests()
    return done


def _sound(source: Storage, path: str, check: Check) -> bytes:
    try:
        data = source.read(path)
    except FileMissing:
        raise CorruptDefinition(f"file {path!r} is missing at {source.root}", path=path, invariant="I15") from None
    check(path, data)
    return data


def copy_new_on_spark(
    spark: SparkSession, source: Storage, target: Storage, paths: DataFrame, count: int, check: Check
) -> Copied:
    """Copy the ``count`` files in the column ``path`` as :func:`copy_new` does, in tasks."""
    from pyspark.sql import functions as f

    frame = paths.select("path").repartition(tasks_for(spark, count, _BATCH))
    results = map_rows(frame, partial(_newly_copied, check=check), _NEW, source, target)
    sums = collect_one(results.agg(*(f.sum(name).alias(name) for name in _NEW.names)))
    return Copied(copied=sums["copied"] or 0, bytes=sums["bytes"] or 0, requests=sums["requests"] or 0)


def _newly_copied(rows: Iterator[Row], source: Storage, target: Storage, *, check: Check) -> Iterator[Row]:
    done = copy_new(source, target, [row["path"] for row in rows], check)
    yield {"copied": done.copied, "bytes": done.bytes, "requests": done.requests}

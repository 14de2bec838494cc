"""Copying immutable files between two roots, in this process or in Spark tasks. What is there already is skipped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from pipelines.session import session_parallelism, ship_packages
from pipelines.tasks import own_errors
from trinitylake_core.errors import CorruptDefinition, FileMissing, StorageError
from trinitylake_core.storage import Storage, open_storage

if TYPE_CHECKING:  # the command line must not wait for pyspark where no Spark runs
    from pyspark.sql import DataFrame, SparkSession

CHUNK: Final = 20_000
"""Paths a Spark job copies: what the driver holds at once."""
_BATCH: Final = 256
_OUTPUT_DDL: Final = "copied bigint, skipped bigint, bytes bigint, missing array<string>"
_OUTPUT: Final = pa.schema(
    [("copied", pa.int64()), ("skipped", pa.int64()), ("bytes", pa.int64()), ("missing", pa.list_(pa.string()))]
)


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
    """Copy files in this process. One ``get`` and one ``head`` a file, one ``put`` each that is not there.

    A target file counts as there if its size is the source's, or was the source's when it was copied:
    immutable files of one name have one content, but a copy that was cut short is shorter.
    """
    done = Copied()
    for start in range(0, len(paths), _BATCH):
        batch = paths[start : start + _BATCH]
        files: list[tuple[str, bytes]] = []
        for path, data in source.read_many(batch):
            if isinstance(data, FileMissing):
                done += Copied(missing=(path,))
                continue
            if check is not None:
                check(path, data)
            if _is_there(target, path, len(data)):
                done += Copied(skipped=1)
            else:
                files.append((path, data))
        target.write_many(files)
        done += Copied(copied=len(files), bytes=sum(len(data) for _, data in files))
    target.barrier()
    return done


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
    ship_packages(spark)
    tasks = min(3 * session_parallelism(spark), -(-len(paths) // _BATCH))
    rows = pa.table({"task": pa.array([i % tasks for i in range(len(paths))], pa.int32()), "path": paths})
    work = _task(source.spec(), target.spec())
    results = (
        spark.createDataFrame(rows).repartitionById(tasks, "task").mapInArrow(work, _OUTPUT_DDL).toArrow().to_pylist()
    )
    return sum((Copied(r["copied"], r["skipped"], r["bytes"], tuple(r["missing"])) for r in results), Copied())


def _task(
    source: tuple[str, Mapping[str, Any]], target: tuple[str, Mapping[str, Any]]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def copy_partition(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        one, two = open_storage(*source), open_storage(*target)
        done = Copied()
        for batch in batches:
            done += copy_files(one, two, batch.column("path").to_pylist())
        row = {"copied": done.copied, "skipped": done.skipped, "bytes": done.bytes, "missing": list(done.missing)}
        yield pa.RecordBatch.from_pylist([row], schema=_OUTPUT)

    return copy_partition


# -- what is known not to be there ---------------------------------------------------------------------

Check = Callable[[str, bytes], None]
"""Raises ``Corrupt`` if the bytes of a file are not what a file of its name holds."""
_NEW_DDL: Final = "copied bigint, bytes bigint, requests bigint"
_NEW: Final = pa.schema([("copied", pa.int64()), ("bytes", pa.int64()), ("requests", pa.int64())])


def copy_new(source: Storage, target: Storage, paths: Sequence[str], check: Check) -> Copied:
    """Copy files that are not at the target, or are cut short there, and compare what arrived. Durable afterwards.

    One ``get`` at the source, one ``put`` and one ``get`` at the target for each.

    Raises:
        Corrupt: a file is missing or damaged at the source.
        StorageError: what was read back is not what was written.
    """
    before = (source.counts.snapshot(), target.counts.snapshot())
    done = Copied()
    for start in range(0, len(paths), _BATCH):
        files = [_sound(source, path, data, check) for path, data in source.read_many(paths[start : start + _BATCH])]
        target.write_many(files)
        for (path, data), (_, arrived) in zip(files, target.read_many([path for path, _ in files]), strict=True):
            if arrived != data:
                raise StorageError(f"{target.root}{path} is not what was written to it; copy it again")
        done += Copied(copied=len(files), bytes=sum(len(data) for _, data in files))
    target.barrier()
    done.requests = (source.counts - before[0]).requests() + (target.counts - before[1]).requests()
    return done


def _sound(source: Storage, path: str, data: bytes | FileMissing, check: Check) -> tuple[str, bytes]:
    if isinstance(data, FileMissing):
        raise CorruptDefinition(f"file {path!r} is missing at {source.root}", path=path, invariant="I15")
    check(path, data)
    return path, data


def copy_new_on_spark(
    spark: SparkSession, source: Storage, target: Storage, paths: DataFrame, count: int, check: Check
) -> Copied:
    """Copy the ``count`` files in the column ``path`` as :func:`copy_new` does, in tasks."""
    from pyspark.sql import functions as f

    ship_packages(spark)
    tasks = max(1, min(3 * session_parallelism(spark), -(-count // _BATCH)))
    work = _new_task(source.spec(), target.spec(), check)
    results = paths.select("path").repartition(tasks).mapInArrow(work, _NEW_DDL)
    with own_errors():
        row = results.agg(f.sum("copied"), f.sum("bytes"), f.sum("requests")).first()
    copied, size, requests = (0, 0, 0) if row is None else (value or 0 for value in row)
    return Copied(copied=copied, bytes=size, requests=requests)


def _new_task(
    source: tuple[str, Mapping[str, Any]], target: tuple[str, Mapping[str, Any]], check: Check
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def copy_partition(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        one, two = open_storage(*source), open_storage(*target)
        done = Copied()
        for batch in batches:
            done += copy_new(one, two, batch.column("path").to_pylist(), check)
        row = {"copied": done.copied, "bytes": done.bytes, "requests": done.requests}
        yield pa.RecordBatch.from_pylist([row], schema=_NEW)

    return copy_partition

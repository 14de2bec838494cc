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
_BATCH: Final = 256
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
    done = Copied()
    for start in range(0, len(paths), _BATCH):
        files = [_sound(source, path, data, check) for path, data in source.read_many(paths[start : start + _BATCH])]
        target.write_many(files)
        for (path, data), (_, arrived) in zip(files, target.read_many([path for path, _ in files]), strict=True):
            if arrived != data:
                raise StorageError(f"{target.root}{path} does not hold what was written to it; copy it again")
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

    frame = paths.select("path").repartition(tasks_for(spark, count, _BATCH))
    results = map_rows(frame, partial(_newly_copied, check=check), _NEW, source, target)
    sums = collect_one(results.agg(*(f.sum(name).alias(name) for name in _NEW.names)))
    return Copied(copied=sums["copied"] or 0, bytes=sums["bytes"] or 0, requests=sums["requests"] or 0)


def _newly_copied(rows: Iterator[Row], source: Storage, target: Storage, *, check: Check) -> Iterator[Row]:
    done = copy_new(source, target, [row["path"] for row in rows], check)
    yield {"copied": done.copied, "bytes": done.bytes, "requests": done.requests}

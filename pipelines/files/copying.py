"""Copying immutable files between two roots. Existing files are skipped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final, NamedTuple

import pyarrow as pa

from pipelines.engine.model import LONG, TEXT, Engine, Row
from pipelines.job import Progress
from trinitylake_core.errors import CorruptDefinition, FileMissing, StorageError
from trinitylake_core.storage import Storage

CHUNK: Final = 20_000
"""Paths that are copied before progress is told: what this process holds at once."""
BATCH: Final = 64
"""Files that are worth a task: twice as many as it copies at once. With more, workers of a cluster would have none."""
_PATH: Final = pa.schema({"path": TEXT})
_COPIED: Final = pa.schema({"path": TEXT, "bytes": LONG})
NEW: Final = pa.schema({"copied": LONG, "bytes": LONG, "requests": LONG})
"""What :func:`copy_new` yields, once."""
Check = Callable[[str, bytes], None]
"""Raises ``Corrupt`` if the bytes of a file are not what a file of its name holds."""


class Copied(NamedTuple):
    """How many files were copied, how many were there, and the bytes of the copied ones."""

    copied: int = 0
    skipped: int = 0
    bytes: int = 0


def copy_all(engine: Engine, source: Storage, target: Storage, paths: Iterable[str], progress: Progress) -> Copied:
    """Copy files; return what was done. Memory: one chunk of paths.

    One ``get`` and one ``head`` per file, one ``put`` per file that is not there. A target file counts as there if its
    size is the source's: immutable files of one name have one content, but a copy that was cut short is shorter.

    Raises:
        CorruptDefinition: a file is not at the source.
    """
    copied, size, seen, remaining = 0, 0, 0, iter(paths)
    while chunk := list(islice(remaining, CHUNK)):
        table = engine.table([{"path": path} for path in chunk], _PATH)
        for row in engine.map(_copy, table, _COPIED, source, target, each=BATCH).stream():
            seen += 1
            copied += row["bytes"] is not None
            size += row["bytes"] or 0
        progress("copy", seen, None)
    return Copied(copied, seen - copied, size)


def _copy(rows: Iterator[Row], source: Storage, target: Storage) -> Iterator[tuple[str, int | None]]:
    """Copy files; yield the path and the size of each, or no size where it was there."""

    def copy(path: str) -> tuple[str, int | None]:
        data = _sound(source, path)
        if _is_there(target, path, len(data)):
            return path, None
        target.write_many([(path, data)])
        return path, len(data)

    yield from _busier(source, target).map((row["path"] for row in rows), copy)
    target.barrier()


def _busier(one: Storage, two: Storage) -> Storage:
    """Return the storage that has more requests under way at the same time: files are copied that many at once."""
    return one if one.concurrency >= two.concurrency else two


def _is_there(target: Storage, path: str, size: int) -> bool:
    try:
        return target.info(path).size == size
    except FileMissing:
        return False


def copy_new(rows: Iterator[Row], source: Storage, target: Storage, *, check: Check) -> Iterator[tuple[int, int, int]]:
    """Copy files that are not at the target, or are cut short there, and compare what arrived. Durable afterwards.

    One ``get`` at the source, one ``put`` and one ``get`` at the target for each.

    Raises:
        Corrupt: a file is missing or damaged at the source.
        StorageError: what was read back is not what was written.
    """
    before = (source.counts.snapshot(), target.counts.snapshot())

    def copy(path: str) -> int:
        data = _sound(source, path)
        check(path, data)
        target.write_many([(path, data)])
        if target.read(path) != data:
            raise StorageError(f"{target.root}{path} does not hold what was written to it; copy it again")
        return len(data)

    copied, size = 0, 0
    for each in _busier(source, target).map((row["path"] for row in rows), copy):
        copied, size = copied + 1, size + each
    target.barrier()
    yield copied, size, (source.counts - before[0]).requests() + (target.counts - before[1]).requests()


def _sound(source: Storage, path: str) -> bytes:
    try:
        return source.read(path)
    except FileMissing:
        raise CorruptDefinition(f"file {path!r} is missing at {source.root}", path=path, invariant="I15") from None

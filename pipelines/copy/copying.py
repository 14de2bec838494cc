"""Copying immutable files between two roots. Existing files are skipped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final, NamedTuple

import pyarrow as pa

from pipelines.engine.counting import map_counted
from pipelines.engine.model import LONG, TEXT, Engine, Row
from pipelines.job import Progress
from trinitylake_core.errors import Corrupt, CorruptDefinition, FileMissing, InvalidInput, StorageError
from trinitylake_core.storage import Storage, real_root, same_place

CHUNK: Final = 20_000
"""Paths that are copied before progress is reported: what this process holds at once."""
BATCH: Final = 64
"""Files that are worth a task: twice as many as it copies at once. With more, workers of a cluster would have none."""
_TOGETHER: Final = 256 << 20
"""Bytes of files that are copied at the same time."""
_PORTION: Final = 4_096
_PATH: Final = pa.schema({"path": TEXT})
_COPIED: Final = pa.schema({"path": TEXT, "bytes": LONG})
NEW: Final = pa.schema({"copied": LONG, "bytes": LONG, "requests": LONG, "left": TEXT, "first": LONG, "last": LONG})
"""What :func:`copy_new` yields: how much was done, or a file that was left as it is; of one that neither side has, the
first and the last version that need it."""
Check = Callable[[str, bytes], bool]
"""Whether bytes prove that they are the file of a name; raises ``Corrupt`` if they are not what such a file holds."""


def refuse_near(target: str, root: str) -> None:
    """Raise ``InvalidInput`` for a target at, below or above the lakehouse that is copied to it."""
    there = real_root(target)
    here = real_root(root)
    if same_place(target, root) or there.startswith(here) or here.startswith(there):
        raise InvalidInput(
            f"the target {target} lies at, below or above the lakehouse {root}, where a cleaning or a copy of the "
            "one meets the files of the other; take a place beside it"
        )


class Copied(NamedTuple):
    """How many files were copied, how many were there, and the bytes of the copied ones."""

    copied: int = 0
    skipped: int = 0
    bytes: int = 0


def copy_all(
    engine: Engine,
    source: Storage,
    target: Storage,
    paths: Iterable[str],
    progress: Progress,
) -> Copied:
    """Copy files; return what was done. Memory: one chunk of paths.

    One ``get`` and one ``head`` per file, one ``put`` per file that is not there. A target file counts as there if its
    size is the source's: immutable files of one name have one content, but a copy that was cut short is shorter.

    Raises:
        CorruptDefinition: a file is not at the source.
        StorageError: the engine lost a file.
    """
    copied = 0
    size = 0
    seen = 0
    remaining = iter(paths)
    while chunk := list(islice(remaining, CHUNK)):
        files = [{"path": path} for path in chunk]
        for row in map_counted(engine, "files to copy", _copy, files, _PATH, _COPIED, source, target, each=BATCH):
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

    paths = (row["path"] for row in rows)
    yield from _busier(source, target).map(paths, copy)
    target.barrier()


def _busier(one: Storage, two: Storage) -> Storage:
    """Return the storage that has more requests under way at the same time: files are copied that many at once."""
    if one.concurrency >= two.concurrency:
        return one
    return two


def _is_there(target: Storage, path: str, size: int) -> bool:
    try:
        return target.info(path).size == size
    except FileMissing:
        return False


def copy_new(
    rows: Iterator[Row],
    source: Storage,
    target: Storage,
    *,
    check: Check,
    needed: int,
) -> Iterator[tuple[int, int, int, str | None, int | None, int | None]]:
    """Copy files that are not at the target, or are cut short there, and compare what arrived. Durable at the end.

    One ``get`` at the source, one ``put`` and one ``get`` at the target for each; one ``get`` more where a file of
    another size is there. Memory: twice :data:`_TOGETHER`, or a file that is larger. Yields what was done since it
    yielded last, and each file that stays as it is at the target, because it is missing or damaged at the source, or
    the one there proves what it is. One that is not sound at the target either has the versions that need it, none of
    which is the one that is ``needed``.

    Raises:
        Corrupt: a file is missing or damaged at the source, and not sound at the target; no version is known to need
            it, or the one that is ``needed`` does.
        StorageError: what was read back is not what was written, or was read differently each time.
    """
    before = (source.counts.snapshot(), target.counts.snapshot())

    def copy(row: Row) -> tuple[int, int, int, str | None, int | None, int | None]:
        path = row["path"]
        last = row["last"]
        try:
            data = _sound(source, path)
            check(path, data)
        except Corrupt:
            if _check_file(target, path, check) is not None:
                return 0, 0, 0, path, None, None
            if last is None or last >= needed:
                raise
            if _check_file(source, path, check) is not None:
                raise StorageError(f"{path} was read differently each time; try again") from None
            return 0, 0, 0, path, row["first"], last
        # What lost its checksum with its end parses, as what was written before there were checksums does.
        if row["there"] is not None and _check_file(target, path, check):
            return 0, 0, 0, path, None, None
        target.write_many([(path, data)])
        try:
            there = target.read(path)
        except FileMissing:
            raise StorageError(
                f"{target.root}{path} was written, and is not there: does something delete files at {target.root}? "
                "Stop that, and copy again"
            ) from None
        if there != data:
            raise StorageError(f"{target.root}{path} does not hold what was written to it; copy it again")
        return 1, len(data), 0, None, None, None

    for some in _portions(rows):
        copied = 0
        size = 0
        for done in list(_busier(source, target).map(some, copy)):
            files, bytes_of_file, _, left, _, _ = done
            copied += files
            size += bytes_of_file
            if left is not None:
                yield done
        yield copied, size, 0, None, None, None
    target.barrier()
    at_source = source.counts - before[0]
    at_target = target.counts - before[1]
    yield 0, 0, at_source.requests() + at_target.requests(), None, None, None


def _check_file(storage: Storage, path: str, check: Check) -> bool | None:
    """Return whether a file proves by its checksum that it is the one of its name. One ``get``.

    ``None``: it is missing, or not what a file of its name holds.
    """
    try:
        return check(path, storage.read(path))
    except (Corrupt, FileMissing):
        return None


def _portions(rows: Iterator[Row]) -> Iterator[list[Row]]:
    """Yield the rows of files that fit into memory together; one that does not, by itself."""
    some: list[Row] = []
    size = 0
    for row in rows:
        if some and (size + row["size"] > _TOGETHER or len(some) == _PORTION):
            yield some
            some = []
            size = 0
        some.append(row)
        size += row["size"]
    if some:
        yield some


def _sound(source: Storage, path: str) -> bytes:
    try:
        return source.read(path)
    except FileMissing:
        raise CorruptDefinition(f"file {path!r} is missing at {source.root}", path=path, invariant="I15") from None

"""Definitions without a checksum in a copy, compared byte for byte with the originals, in this process or on Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Final, NamedTuple

import pyarrow as pa

from pipelines.engine.model import LONG, READ_AHEAD, TEXT, Row
from pipelines.engine.spark import collect, map_rows, spread
from pipelines.job import Progress, Session, started
from pipelines.trees.digest import LAST, RANGE, ranges_of
from trinitylake_core import Lakehouse
from trinitylake_core.definitions import has_checksum
from trinitylake_core.errors import FileMissing
from trinitylake_core.keys import KeyRange
from trinitylake_core.storage import Storage
from trinitylake_core.tree.search import scan

_RESULT: Final = pa.schema({"compared": LONG, "different": LONG, "example": TEXT})


class Compared(NamedTuple):
    """How many definitions were compared, how many of them differ, and the path of one that does."""

    compared: int = 0
    different: int = 0
    example: str | None = None


def compare_definitions(spark: Session, source: Storage, copy: Lakehouse, engine: str, progress: Progress) -> Compared:
    """Compare the definitions of the version of a handle that no checksum proves with those at ``source``.

    Reads every definition of the copy, and of the source those that have no checksum in the copy.
    """
    progress("compare definitions", 0, None)
    if engine != "spark":
        return _compared(source, copy, KeyRange("", LAST))
    session = started(spark)
    rows = ranges_of(session, copy)
    work = partial(_compare, version=copy.version)
    frame = map_rows(spread(session, rows, RANGE, len(rows)), work, _RESULT, source, copy.storage)
    return _summed(Compared(**row) for row in collect(frame))


def _compare(rows: Iterator[Row], source: Storage, target: Storage, *, version: int) -> Iterator[Row]:
    copy = Lakehouse.open(target).at(version=version)
    for row in rows:
        yield _compared(source, copy, KeyRange(row["lo"], row["hi"]))._asdict()


def _compared(source: Storage, copy: Lakehouse, within: KeyRange) -> Compared:
    batches = scan(copy.store, copy.root_node.node, within)
    paths = (
        path for keys, paths in batches for key, path in zip(keys, paths, strict=True) if within.lo <= key < within.hi
    )
    return _summed(
        _some_compared(source, copy.storage, some) for some in iter(lambda: list(islice(paths, READ_AHEAD)), [])
    )


def _some_compared(source: Storage, target: Storage, paths: list[str]) -> Compared:
    unproved = {
        path: data for path, data in target.read_many(paths) if isinstance(data, FileMissing) or not has_checksum(data)
    }
    originals = dict(source.read_many(list(unproved)))
    different = [
        path for path, data in unproved.items()
        if isinstance(data, FileMissing) or isinstance(originals[path], FileMissing) or data != originals[path]
    ]  # fmt: skip
    return Compared(len(unproved), len(different), different[0] if different else None)


def _summed(parts: Iterable[Compared]) -> Compared:
    total = Compared()
    for each in parts:
        total = Compared(
            total.compared + each.compared, total.different + each.different, total.example or each.example
        )
    return total

"""The content digest of a version, in this process or on Spark: one range of keys a task, the sums added up."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from pipelines.engine.model import TEXT, Row
from pipelines.engine.spark import collect, map_rows, slots, spread
from pipelines.job import Progress, Session, silent, started
from trinitylake_core import Lakehouse
from trinitylake_core.catalog import content_hash
from trinitylake_core.keys import KeyRange
from trinitylake_core.storage import Storage
from trinitylake_core.tree.search import scan

if TYPE_CHECKING:  # the command line must not wait for pyspark where no Spark runs
    from pyspark.sql import SparkSession

_MODULUS: Final = 2**128
LAST: Final = "\U0010ffff"
"""Behind every key."""
_RANGES_PER_CORE: Final = 12
RANGE: Final = pa.schema({"lo": TEXT, "hi": TEXT})
_SUM: Final = pa.schema({"sum": TEXT})


def digest(spark: Session, lake: Lakehouse, engine: str, progress: Progress = silent) -> str:
    """Return the digest of the version of a handle, as :meth:`Lakehouse.digest`; ``engine`` is spark or local.

    Reads every node; on Spark those between two ranges twice.
    """
    if engine != "spark":
        return lake.digest()
    return _on_spark(started(spark), lake, progress)


def _on_spark(spark: SparkSession, lake: Lakehouse, progress: Progress) -> str:
    rows = ranges_of(spark, lake)
    progress("digest", 0, len(rows))
    ranges = spread(spark, rows, RANGE, len(rows))
    sums = collect(map_rows(ranges, partial(_sums, version=lake.version), _SUM, lake.storage))
    return format(sum(int(row["sum"], 16) for row in sums) % _MODULUS, "032x")


def ranges_of(spark: SparkSession, lake: Lakehouse) -> list[Row]:
    """Return ranges of keys, as rows of :data:`RANGE`, that cut a version into pieces for tasks."""
    cuts = _cuts(lake, slots(spark, _RANGES_PER_CORE))
    return [{"lo": lo, "hi": hi} for lo, hi in pairwise(["", *cuts, LAST])]


def _cuts(lake: Lakehouse, want: int) -> list[str]:
    """Return about ``want`` keys that cut the tree evenly: pivots of the root and, if these are few, of its children.

    At most one ``get`` for each child of the root.
    """
    node = lake.root_node.node
    pivots = [] if node.is_leaf else list(node.keys)
    if not node.is_leaf and len(pivots) < want and (node.height or 0) > 1:
        pivots += [key for child in lake.store.read_many(node.children) for key in child.keys]
    step = max(1, -(-len(pivots) // want))
    return sorted(pivots)[::step]


def _sums(rows: Iterator[Row], storage: Storage, *, version: int) -> Iterator[Row]:
    lake = Lakehouse.open(storage).at(version=version)
    for row in rows:
        yield {"sum": format(_sum(lake, row["lo"], row["hi"]) % _MODULUS, "x")}


def _sum(lake: Lakehouse, lo: str, hi: str) -> int:
    total = 0
    for keys, values in scan(lake.store, lake.root_node.node, KeyRange(lo, hi)):
        for key, path in zip(keys, values, strict=True):
            if lo <= key < hi:  # a scan also yields what is on the bounds
                total += content_hash(*lake.codec.split(key), path)
    return total

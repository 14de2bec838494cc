"""The content digest of a version, in this process or on Spark: one range of keys a task, the sums added up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from pipelines.job import Progress, Session, silent, started
from pipelines.session import session_parallelism, ship_packages
from pipelines.tasks import own_errors
from trinitylake_core import Lakehouse
from trinitylake_core.catalog import content_hash
from trinitylake_core.keys import KeyRange
from trinitylake_core.storage import open_storage
from trinitylake_core.tree import scan

if TYPE_CHECKING:  # the command line must not wait for pyspark where no Spark runs
    from pyspark.sql import SparkSession

_MODULUS: Final = 2**128
_LAST: Final = "\U0010ffff"
_RANGES_PER_TASK_SLOT: Final = 12
_RANGES_DDL: Final = "number int, lo string, hi string"
_OUTPUT: Final = pa.schema([("sum", pa.string())])
_OUTPUT_DDL: Final = "sum string"


def digest(spark: Session, lake: Lakehouse, engine: str, progress: Progress = silent) -> str:
    """Return what :meth:`Lakehouse.digest` does, for the version of a handle; ``engine`` is spark or local.

    Reads every node; on Spark those between two ranges twice.
    """
    if engine != "spark":
        return lake.digest()
    return _on_spark(started(spark), lake, progress)


def _on_spark(spark: SparkSession, lake: Lakehouse, progress: Progress) -> str:
    ship_packages(spark)
    cuts = _cuts(lake, _RANGES_PER_TASK_SLOT * session_parallelism(spark))
    rows = [(number, lo, hi) for number, (lo, hi) in enumerate(pairwise(["", *cuts, _LAST]))]
    progress("digest", 0, len(rows))
    frame = spark.createDataFrame(rows, _RANGES_DDL).repartitionById(len(rows), "number")
    work = _task(*lake.storage.spec(), lake.version)
    with own_errors():
        sums = frame.mapInArrow(work, _OUTPUT_DDL).collect()
    return format(sum(int(row["sum"], 16) for row in sums) % _MODULUS, "032x")


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


def _task(
    uri: str, options: Mapping[str, Any], version: int
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def sum_partition(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        lake = Lakehouse.open(open_storage(uri, options)).at(version=version)
        for batch in batches:
            for row in batch.to_pylist():
                total = _sum(lake, row["lo"], row["hi"]) % _MODULUS
                yield pa.RecordBatch.from_pydict({"sum": [format(total, "x")]}, schema=_OUTPUT)

    return sum_partition


def _sum(lake: Lakehouse, lo: str, hi: str) -> int:
    total = 0
    for keys, values in scan(lake.store, lake.root_node.node, KeyRange(lo, hi)):
        for key, path in zip(keys, values, strict=True):
            if lo <= key < hi:  # a scan also yields what is on the bounds
                total += content_hash(*lake.codec.split(key), path)
    return total

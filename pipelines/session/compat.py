"""What Spark 3.5 and 4.x do differently: the only place that asks which of them runs.

Spark 4.1 is what this library is tested with. What an older one lacks is made up for here, so that the jobs know
nothing of it; over Spark Connect, 3.5 lacks more than can be made up for, and is refused.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import mmh3
import pyarrow as pa

from trinitylake_core.errors import InvalidInput

if TYPE_CHECKING:  # the command line must not wait for pyspark where no Spark runs
    from pyspark.sql import DataFrame, SparkSession

OLDEST_CONNECT: Final = (4, 0)
_SEED: Final = 42
"""Of Spark's hash partitioning."""


def spark_version() -> tuple[int, int]:
    """Return the version of the Spark client of this process."""
    import pyspark

    major, minor = pyspark.__version__.split(".")[:2]
    return int(major), int(minor)


def refuse_old_connect() -> None:
    """Raise ``InvalidInput`` where Spark Connect cannot do what the jobs need."""
    if spark_version() < OLDEST_CONNECT:
        raise InvalidInput(
            f"mode 'connect' needs Spark 4, and pyspark {'.'.join(map(str, spark_version()))} is installed: use mode "
            "'local' or 'master', or install pyspark 4"
        )


def frame_of(spark: SparkSession, table: pa.Table, ddl: str) -> DataFrame:
    """Return a table of the driver as a frame."""
    if spark_version() >= (4, 0) and table.num_rows:
        return spark.createDataFrame(table).select(table.schema.names)
    rows = [tuple(row.values()) for row in table.to_pylist()]
    return spark.createDataFrame(rows, ddl)


def task_label(task: int, tasks: int) -> int:
    """Return an integer by whose hash Spark deals a row to a task."""
    return next(label for label in count() if mmh3.hash(label.to_bytes(4, "little"), _SEED) % tasks == task)


def by_group(frame: DataFrame, groups: int, column: str) -> DataFrame:
    """Return a frame of so many tasks, the rows in each those with its number in a column."""
    from pyspark.sql import functions as f

    if _deals_by_id():
        return frame.repartitionById(groups, f.col(column).cast("int"))
    labels = [f.lit(task_label(task, groups)) for task in range(groups)]
    label_of_group = f.element_at(f.array(*labels), f.col(column) + 1)
    return frame.repartition(groups, label_of_group)


@lru_cache(maxsize=1)
def _deals_by_id() -> bool:
    from pyspark.sql import DataFrame

    return hasattr(DataFrame, "repartitionById")


def rows_of(frame: DataFrame) -> list[dict[str, Any]]:
    """Return all rows; maps as pairs, as Arrow has them."""
    if spark_version() >= (4, 0):
        rows: list[dict[str, Any]] = frame.toArrow().to_pylist()
        return rows
    plain_rows: list[dict[str, Any]] = []
    for row in frame.collect():
        values = row.asDict(recursive=True)
        plain_rows.append({name: plain(value) for name, value in values.items()})
    return plain_rows


def plain(value: Any) -> Any:
    """Return a value of Spark as Arrow would give it."""
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, list):
        return [plain(each) for each in value]
    return value


def held_until_lost(frame: DataFrame) -> DataFrame:
    """Return a frame that is held on the disks of the executors, computed when it is asked for.

    It is computed again where an executor was lost.
    """
    from pyspark import StorageLevel

    return frame.persist(StorageLevel.DISK_ONLY)


def computed_once(frame: DataFrame, copies: int) -> DataFrame:
    """Compute a frame, and return it as held on the disks of so many executors, if there are so many.

    Before Spark 4 one has it, in memory as far as there is room.
    """
    from pyspark import StorageLevel

    if spark_version() >= (4, 0):
        level = StorageLevel(True, False, False, False, copies)
        return frame.localCheckpoint(eager=True, storageLevel=level)
    return frame.localCheckpoint(eager=True)


def without_plan(held: DataFrame) -> DataFrame:
    """Return the rows of a frame that is held as a frame whose plan does not say how they are made. Not over Connect.

    Spark prints the plan of each query, keeps the texts of a thousand, and compares each plan with those of all frames
    that are held; a held frame is part of a plan as often as the query names it. Jobs ask their own results again and
    again: the plans of one verification were nine megabytes long, and the third one filled the heap of the driver.
    """
    from pyspark.sql import DataFrame as ClassicFrame

    session: Any = held.sparkSession
    java: Any = held._jdf  # noqa: SLF001 - each public way from Python sends all rows through Python
    rows = java.toJavaRDD()
    cut = session._jsparkSession.createDataFrame(rows, java.schema())  # noqa: SLF001
    return ClassicFrame(cut, session)


def ship(spark: SparkSession, archive: str, *, connect: bool) -> None:
    """Send a zip file of Python modules to the executors."""
    if connect or spark_version() >= (4, 0):
        spark.addArtifacts(archive, pyfile=True)
    else:
        spark.sparkContext.addPyFile(archive)

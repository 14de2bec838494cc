"""What a Spark session has done: shown to people, and decides nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pipelines.session.spark import is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class SparkUsage:
    """Where a session runs, and what it has done.

    Attributes:
        application_id: the name by which Spark's UI, its history server and the cluster know it.
        master: where its tasks run.
        ui: the address of Spark's own UI; ``None`` where it has none.
        executors: how many processes run tasks; in ``local`` mode the driver is the one, on a cluster it is none.
            ``None``: unknown, as over Spark Connect, whose server does not tell its clients.
        tasks: how many tasks have ended; ``None``: unknown, and so are ``stages`` and ``task_seconds``.
        shuffle_bytes: what tasks wrote for others to read, in bytes; ``None``: unknown.
        stages: how many stages have ended.
        task_seconds: how long the tasks ran, all together.
    """

    application_id: str
    master: str
    ui: str | None = None
    executors: int | None = None
    tasks: int | None = None
    shuffle_bytes: int | None = None
    stages: int = 0
    task_seconds: float = 0.0

    def since(self, before: SparkUsage | None) -> SparkUsage:
        """Return what was done since an earlier measurement of the same session."""
        if before is None or before.tasks is None or self.tasks is None:
            return self
        shuffled = (self.shuffle_bytes or 0) - (before.shuffle_bytes or 0)
        return replace(
            self,
            tasks=self.tasks - before.tasks,
            shuffle_bytes=shuffled,
            stages=self.stages - before.stages,
            task_seconds=round(self.task_seconds - before.task_seconds, 3),
        )


def measure_usage(spark: SparkSession) -> SparkUsage:
    """Return what a session has done so far. A few calls to Spark's Java process, and no job."""
    if is_connect(spark):
        return SparkUsage(
            application_id=spark.conf.get("spark.app.id", None) or "unknown",
            master=spark.conf.get("spark.master", None) or "a Spark Connect server",
        )
    context: Any = spark.sparkContext
    # Spark's public API for Python tells executors and tasks only by its UI, which may be switched off
    store = context._jsc.sc().statusStore()  # noqa: SLF001
    executors = _list_rows(store.executorList(True))
    no_quantiles = context._gateway.new_array(context._jvm.double, 0)  # noqa: SLF001 - the same
    stages = _list_rows(store.stageList(None, False, False, no_quantiles, None))
    workers = sum(each.id() != "driver" and each.isActive() for each in executors)
    return SparkUsage(
        application_id=context.applicationId,
        master=str(context.master),
        ui=context.uiWebUrl,
        executors=workers or int(context._jsc.sc().isLocal()),  # noqa: SLF001 - the same
        tasks=sum(each.completedTasks() for each in executors),
        shuffle_bytes=sum(each.totalShuffleWrite() for each in executors),
        stages=sum(each.status().toString() == "COMPLETE" for each in stages),
        task_seconds=sum(each.executorRunTime() for each in stages) / 1000,  # of the driver its executor has the uptime
    )


def _list_rows(rows: Any) -> list[Any]:
    """Return a sequence of Scala as a list."""
    found = []
    for number in range(rows.size()):
        found.append(rows.apply(number))
    return found

"""How many tasks a Spark session runs at once: by its configuration, or by what is there."""

from __future__ import annotations

import os
import re
import threading
import time
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:  # the command line must not wait for pyspark where no Spark runs
    from pyspark.sql import SparkSession

PARTITIONS: Final = "spark.sql.shuffle.partitions"
PARTITIONS_PER_CORE: Final = 3
_REGISTERED_SECONDS: Final = 15.0
"""How long executors may take to register, as long as there are more and more of them."""
_ASK_AGAIN_SECONDS: Final = 0.5
_QUIET_ASKS: Final = 4
"""So often it is asked in vain for more executors: they register about a second apart on a busy cluster."""
_MOST: Final = 1 << 20
"""More executors or cores than that mean: no limit."""
_LOCAL: Final = re.compile(r"local(?:\[(\*|[1-9][0-9]*)(?:,[0-9]+)?\])?")
_LOCAL_CLUSTER: Final = re.compile(r"local-cluster\[\s*([0-9]+)\s*,\s*([0-9]+)\s*,")


def local_cores(master: str) -> int | None:
    """Return the number of cores of ``local``, ``local[N]`` or ``local[*]`` here; ``None`` for other masters."""
    match = _LOCAL.fullmatch(master)
    if match is None:
        return None
    cores = match[1] or "1"
    return os.cpu_count() or 1 if cores == "*" else int(cores)


def is_connect(spark: SparkSession) -> bool:
    """Return whether a session is one of Spark Connect."""
    return ".connect." in type(spark).__module__


def on_one_machine(spark: SparkSession) -> bool:
    """Return whether tasks of a session run on this machine, as processes beside this one."""
    return not is_connect(spark) and local_cores(spark.conf.get("spark.master") or "") is not None


def session_parallelism(spark: SparkSession) -> int:
    """Return the number of tasks that the session runs at once, at least 1.

    The value of :class:`SessionConfig`, or else that of Spark's configuration, or else what there is. It is asked for
    once a session, when it is needed first: by then executors have registered that had not when the session started.
    While executors come and go (dynamic allocation without an upper limit) it is asked for each time.
    """
    known = _known.setdefault(spark, _Known())
    if known.parallelism is None:
        found = _configured(spark)
        known.parallelism = found if found or _grows(spark) else _settled_parallelism(spark)
    parallelism = known.parallelism or _asked_parallelism(spark)
    if known.chooses_partitions:
        spark.conf.set(PARTITIONS, str(PARTITIONS_PER_CORE * parallelism))
    return parallelism


def wait_for_executor(spark: SparkSession, seconds: float) -> None:
    """Wait until a task has run on another machine. Spark itself waits for its first executor for ever.

    Costs a tiny job, once a session. Where that has no answer in time it stays with Spark, and ends with the session.

    Raises:
        TimeoutError: none has run in so many seconds.
    """
    known = _known.setdefault(spark, _Known())
    if known.has_run_a_task or on_one_machine(spark):
        return
    ended, failures = threading.Event(), list[Exception]()

    def ask() -> None:
        try:
            _run_a_task(spark)
        except Exception as error:  # noqa: BLE001 - raised where it is waited for
            failures.append(error)
        ended.set()

    threading.Thread(target=ask, name="first executor", daemon=True).start()
    if not ended.wait(seconds):
        raise TimeoutError(f"no executor has run a task in {seconds:g} s: none is there, or others keep them busy")
    if failures:
        raise failures[0]


def _run_a_task(spark: SparkSession) -> None:
    """Run a tiny job, which waits for the first executor, unless this session has run one."""
    known = _known.setdefault(spark, _Known())
    if not known.has_run_a_task:
        spark.range(0, 1, 1, 1).count()
        known.has_run_a_task = True


@dataclass(slots=True)
class _Known:
    """The measured facts of a session; ``chooses_partitions``: its number of shuffle partitions is not configured."""

    parallelism: int | None = None
    chooses_partitions: bool = False
    has_run_a_task: bool = False


_known: weakref.WeakKeyDictionary[SparkSession, _Known] = weakref.WeakKeyDictionary()


def _configured(spark: SparkSession) -> int | None:
    """Return the number of tasks at once in the configuration of Spark, ``None`` if it is not configured."""
    configured = _number(spark, "spark.default.parallelism")
    if configured:
        return configured
    master = spark.conf.get("spark.master", "") or ""
    cores = local_cores(master)
    if cores is not None and (not is_connect(spark) or "*" not in master):
        return cores
    if match := _LOCAL_CLUSTER.match(master):
        return max(1, int(match[1]) * int(match[2]))
    each = _number(spark, "spark.executor.cores") or (None if master.startswith("spark:") else 1)
    executors = _number(
        spark, "spark.dynamicAllocation.maxExecutors" if _dynamic(spark) else "spark.executor.instances"
    )
    return _number(spark, "spark.cores.max") or (executors * each if executors and each else None)


def _number(spark: SparkSession, name: str) -> int | None:
    text = spark.conf.get(name, "") or ""
    return int(text) if text.isdecimal() and 0 < int(text) <= _MOST else None


def _dynamic(spark: SparkSession) -> bool:
    return (spark.conf.get("spark.dynamicAllocation.enabled", "") or "").lower() == "true"


def _grows(spark: SparkSession) -> bool:
    return _dynamic(spark) and _configured(spark) is None


def _settled_parallelism(spark: SparkSession) -> int:
    """Ask how many tasks run at once until no more executors have registered for a while, or patience ends.

    Costs a tiny job, which waits for the first executor: without any, Spark's driver claims to run two tasks.
    """
    _run_a_task(spark)
    most, quiet, deadline = _asked_parallelism(spark), 0, time.monotonic() + _REGISTERED_SECONDS
    while quiet < _QUIET_ASKS and time.monotonic() < deadline:
        time.sleep(_ASK_AGAIN_SECONDS)
        now = _asked_parallelism(spark)
        most, quiet = max(most, now), 0 if now > most else quiet + 1
    return most


def note(session: SparkSession, parallelism: int | None, *, choose_partitions: bool) -> None:
    """Note what is known of a session that starts: how many tasks run at once, if its owner knows.

    With ``choose_partitions`` the number of shuffle partitions is not configured. Few are best: each costs a Python
    task.
    """
    _known[session] = _Known(parallelism, choose_partitions)


def _asked_parallelism(spark: SparkSession) -> int:
    """Return the number of tasks that run at once now: from Spark's driver; over Spark Connect, from a tiny job."""
    if not is_connect(spark):
        return max(1, spark.sparkContext.defaultParallelism)
    from pyspark.sql import functions

    used = spark.range(0, 1 << 16).select(functions.spark_partition_id().alias("partition"))
    return max(1, used.distinct().count())

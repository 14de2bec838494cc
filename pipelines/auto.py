"""The engine ``auto``: Spark where that pays and can be started, else this process.

Most jobs choose by their size, before they begin. A compaction changes hands: begun in this process, finished on Spark
if that has shown to pay. The cost of a node on this machine and this storage is not known beforehand. So the work
begins here. The work that is not begun is handed to Spark when the work so far has taken as long as starting Spark
would, and the rest would take twice as long at the same speed. A Spark on this machine has no more cores than this
process and its helpers, and is not used.

With ``auto``, a Spark that cannot be started costs speed, and a warning; the job does not fail.
"""

from __future__ import annotations

import logging
from typing import Final

from pipelines.job import SPARK_FROM_OBJECTS, Session, engine_for, started
from pipelines.session import LazySession, on_other_machines, session_parallelism, wait_for_executor
from trinitylake_core.errors import InvalidInput
from trinitylake_core.versions import Root

_LOG = logging.getLogger(__name__)
START_SECONDS: Final = 5.0
"""What starting Spark takes, its Python workers included: 4 to 6 s."""
EXECUTOR_SECONDS: Final = 180.0
"""How long a cluster may take to give the first executor: as long as a machine that has to be added to it."""
TASKS: Final = 16
"""For so many tasks the work is cut: what is under way when it changes hands is finished here."""
_SPARKS: Final = frozenset({"pyspark", "py4j", "grpc"})
"""The packages whose errors a start of Spark may raise, besides our own and those of the operating system."""
_CAUSE: Final = 400
"""So many characters of what Spark says are shown; the rest is Java's own stack."""


def may_move(engine: str, spark: Session) -> bool:
    """Return whether work that is begun here may be finished on Spark."""
    return engine == "auto" and on_other_machines(spark)


def is_enough(taken: float, rest: float) -> bool:
    """Return whether work that took so many seconds, and would take so many more, is to be handed to Spark."""
    return taken >= START_SECONDS and rest >= 2 * START_SECONDS


def engine_ready(engine: str, spark: Session, files: int, spark_from: int | None = SPARK_FROM_OBJECTS) -> str:
    """Return the engine of :func:`engine_for`, but ``local`` where ``auto`` chose a Spark that cannot be started."""
    return ready(engine, engine_for(engine, files, spark_from), spark)


def engine_ready_for_all(engine: str, spark: Session, root: Root) -> str:
    """Return the engine of a job that walks a whole lakehouse; otherwise as :func:`engine_ready`."""
    return engine_ready(engine, spark, root.node.subtree_keys or 0)


def ready(engine: str, chosen: str, spark: Session) -> str:
    """Return the engine that was ``chosen``; ``local`` where ``auto`` chose a Spark that cannot be started.

    Spark is started here where it is needed, up to the first executor; what fails later is a failure of the work. Why
    it cannot be started is said once for each :class:`LazySession`, which is not tried again.

    Raises:
        InvalidInput: there cannot be such a Spark; that is wrong input and no missing Spark.
    """
    if engine != "auto" or chosen != "spark":
        return chosen
    if isinstance(spark, LazySession):
        spark.chosen()
        if spark.failures:
            return "local"
    try:
        wait_for_executor(session := started(spark), EXECUTOR_SECONDS)
        session_parallelism(session)
    except Exception as error:
        if not (isinstance(error, (InvalidInput, OSError)) or _package(error) in _SPARKS):
            raise
        _LOG.warning(
            "Spark could not be started, so the work goes on in this process, more slowly: %s. Correct that for the "
            "next time, or choose engine 'local', which never starts Spark",
            cause := _cause(error),
        )
        if isinstance(spark, LazySession):
            spark.failures.append(cause)
        return "local"
    return "spark"


def _package(error: Exception) -> str:
    return type(error).__module__.partition(".")[0]


def _cause(error: Exception) -> str:
    """Return the text of an error in one line; of a Java error its first two lines, the call and the exception."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return " ".join(lines[:2])[:_CAUSE].rstrip(" .")

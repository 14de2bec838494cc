"""The choice of the engine: once, when a job starts, from an estimate of its work.

``auto`` is Spark where Spark runs on other machines and the job is large enough for it, and otherwise this process. A
Spark on this machine has no more cores than this process and its helpers, and hardly ever pays: with 200,100 objects
on 2 cores a compaction took 1.0 s here and 19 s on ``local[2]``, ``verify`` 4.0 and 31 s, and the plan of a rollback
of 29,600 objects 4.2 and 37 s. A cluster needs half a minute before its first task ends. So each job has a threshold
of about a minute of work in this process.

With ``auto``, a Spark that cannot be started costs speed, and a warning; the job does not fail.

Little work starts no Spark, whatever the engine: a start takes ten seconds of CPU, in which this process does it many
times over.
"""

from __future__ import annotations

import logging
from typing import Final

from pipelines.engine import Engine, open_engine
from pipelines.engine.spark import is_of_spark
from pipelines.job import Session, start_spark
from pipelines.session import (
    LazySession,
    active_session,
    check_pyspark,
    on_other_machines,
    session_parallelism,
    wait_for_executor,
)
from trinitylake_core.errors import InvalidInput
from trinitylake_core.versions import Root

_LOG = logging.getLogger(__name__)
SPARK_FROM_OBJECTS: Final = 2_000_000
"""From how many objects on ``auto`` walks a whole lakehouse on Spark: `verify` proves 50,000 a second on 2 cores."""
_LITTLE: Final = 5_000
"""Work is little that is less than this part of that from which on Spark pays: some hundredths of a second."""
EXECUTOR_SECONDS: Final = 180.0
"""How long a cluster may take to give the first executor: as long as a machine that has to be added to it."""
_CAUSE: Final = 400
"""So many characters of Spark's message are shown; the rest is Java's own stack."""


def expected_engine(engine: str, spark: Session, amount: int | None, spark_from: int) -> str:
    """Return the name of the engine that :func:`choose_engine` returns, for a plan: Spark is not started."""
    return _choice(engine, spark, amount, spark_from)[0]


def choose_engine(engine: str, spark: Session, amount: int | None, spark_from: int) -> Engine:
    """Return the engine for a job, and log why; give back what it holds with ``close``.

    A Spark that ``auto`` chose is started here, up to its first executor. What fails later is a failure of the work.
    Why it cannot be started is logged once for each :class:`LazySession`, which is not tried again.

    Args:
        engine: what the caller asks for; ``local`` is what it is, and so is ``spark`` where it runs, or for more than
            a little work.
        spark: a session, or a function that returns one.
        amount: the estimated work, in the unit of ``spark_from``: objects, files, nodes or bytes; ``None``: unknown.
        spark_from: from so much work on Spark pays.

    Raises:
        InvalidInput: pyspark is not installed and Spark was asked for by name, or there cannot be such a Spark.
    """
    if engine == "spark":
        check_pyspark()
    chosen, why = _choice(engine, spark, amount, spark_from)
    if engine == "auto" and chosen == "spark" and (cause := _start_failure(spark)):
        chosen = "local"
        why = f"Spark could not be started: {cause}"
    _LOG.info("engine %s: %s", chosen, why)
    if isinstance(spark, LazySession):
        spark.choices.append(f"{chosen}: {why}")
    return open_engine(chosen, spark)


def choose_engine_for_all(engine: str, spark: Session, root: Root) -> Engine:
    """Return the engine of a job that walks a whole lakehouse; otherwise as :func:`choose_engine`."""
    return choose_engine(engine, spark, work_in(root), SPARK_FROM_OBJECTS)


def work_in(root: Root) -> int | None:
    """Return how many objects, messages and versions a walk of a whole lakehouse may meet; ``None``: unknown."""
    keys = root.node.subtree_keys
    messages = root.node.subtree_messages
    if keys is None or messages is None:
        return None
    return keys + messages + root.version - root.oldest_version


def would_start(engine: str, spark: Session) -> bool:
    """Whether a Spark that does not run yet would be started for an engine, so that the work is to be estimated."""
    return engine == "spark" and isinstance(spark, LazySession) and active_session() is None


def _choice(
    engine: str,
    spark: Session,
    amount: int | None,
    spark_from: int,
) -> tuple[str, str]:
    if would_start(engine, spark) and amount is not None and amount * _LITTLE < spark_from:
        return "local", f"the work is estimated at {amount:,}, which is done before a Spark would have started"
    amount = amount or 0
    if engine != "auto":
        return engine, "it was asked for by name"
    if not on_other_machines(spark):
        return "local", "no Spark on other machines is configured"
    if amount < spark_from:
        return "local", f"the work is estimated at {amount:,}, and Spark pays from {spark_from:,} on"
    return "spark", f"Spark runs on other machines, and {amount:,} is at least {spark_from:,}, from where on it pays"


def _start_failure(spark: Session) -> str | None:
    """Start Spark; return why that failed, or ``None``. Raises ``InvalidInput`` if there cannot be such a Spark."""
    if isinstance(spark, LazySession):
        spark.choose_config()
        if spark.failures:
            return spark.failures[0]
    try:
        wait_for_executor(session := start_spark(spark), EXECUTOR_SECONDS)
        session_parallelism(session)
    except Exception as error:
        if not (isinstance(error, (InvalidInput, OSError)) or is_of_spark(error)):
            raise
        # of a Java error the first two lines are the call and the exception
        lines = [line.strip() for line in str(error).splitlines()]
        lines = [line for line in lines if line] or [type(error).__name__]
        cause = " ".join(lines[:2])[:_CAUSE].rstrip(" .")
        _LOG.warning(
            "Spark could not be started, so the work goes on in this process, more slowly: %s. Correct that for the "
            "next time, or choose engine 'local', which never starts Spark",
            cause,
        )
        if isinstance(spark, LazySession):
            spark.failures.append(cause)
        return cause
    return None

"""Where the jobs do their work: in this process with SQLite, or on Spark; the choice, and the processes that help."""

from __future__ import annotations

from functools import partial

from pipelines.engine.local import LocalEngine
from pipelines.engine.model import Engine, Row, Rows
from pipelines.engine.spark import SparkEngine
from pipelines.job import Session, start_spark

__all__ = ["Engine", "Row", "Rows", "open_engine"]


def open_engine(name: str, session: Session) -> Engine:
    """Return an engine by its name, ``spark`` or ``local``; give back what it holds with ``close``.

    Spark is start_spark when there is work for it.
    """
    return SparkEngine(partial(start_spark, session)) if name == "spark" else LocalEngine()

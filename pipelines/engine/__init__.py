"""Where the jobs do their work: in this process with SQLite, or on Spark."""

from __future__ import annotations

from pipelines.engine.local import LocalEngine
from pipelines.engine.model import Engine, Row, Rows
from pipelines.engine.spark import SparkEngine
from pipelines.job import Session, started

__all__ = ["Engine", "Row", "Rows", "open_engine"]


def open_engine(name: str, session: Session) -> Engine:
    """Return an engine by its name, ``spark`` or ``local``; give back what it holds with ``close``."""
    return SparkEngine(started(session)) if name == "spark" else LocalEngine()

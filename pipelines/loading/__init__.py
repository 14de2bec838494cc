"""A bulk load, in this process or on Spark: read, compare with what is there, build trees."""

from __future__ import annotations

from pipelines.job import Progress, Session, started
from pipelines.loading.local import LocalLoad
from pipelines.loading.model import Load, Target
from pipelines.loading.spark import SparkLoad
from trinitylake_core.storage import Storage
from trinitylake_core.versions import Root

__all__ = ["Load", "open_load"]


def open_load(engine: str, spark: Session, source: Storage, target: Target, base: Root, progress: Progress) -> Load:
    """Return a load on top of a version that runs on an engine, ``spark`` or ``local``."""
    if engine == "spark":
        return SparkLoad(started(spark), source, target, base, progress)
    return LocalLoad(source, target, base, progress)

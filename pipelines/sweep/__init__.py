"""Mark and sweep over the files of a lakehouse, in this process or on Spark."""

from __future__ import annotations

from pipelines.job import Progress, Session, started
from pipelines.sweep.local import LocalSweep
from pipelines.sweep.model import Sweep
from pipelines.sweep.spark import SparkSweep
from trinitylake_core.storage import Storage

__all__ = ["Sweep", "open_sweep"]


def open_sweep(engine: str, spark: Session, storage: Storage, order: int, progress: Progress) -> Sweep:
    """Return an empty sweep that runs on an engine, ``spark`` or ``local``; give it back with ``release``."""
    if engine == "spark":
        return SparkSweep(started(spark), storage, order, progress)
    return LocalSweep(storage, order, progress)

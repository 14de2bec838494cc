"""Mark and sweep over the files of a lakehouse."""

from __future__ import annotations

from pipelines.engine import open_engine
from pipelines.job import Progress, Session
from pipelines.sweep.sweep import Sweep
from trinitylake_core.storage import Storage

__all__ = ["Sweep", "open_sweep"]


def open_sweep(engine: str, spark: Session, storage: Storage, order: int, progress: Progress) -> Sweep:
    """Return an empty sweep that runs on an engine, ``spark`` or ``local``; give it back with ``release``."""
    return Sweep(open_engine(engine, spark), storage, order, progress)

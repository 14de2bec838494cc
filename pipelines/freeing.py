"""What an expiration would free: the files that only the versions it removes reach."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pipelines.engine import Progress, Session, started
from pipelines.kept import Kept, kept, live_transactions
from pipelines.orphans import engine_for
from pipelines.sweep_local import LocalSweep
from pipelines.sweep_spark import SparkSweep
from trinitylake_core.commit import Files, now_millis
from trinitylake_core.errors import PlanOutdated

SHOWN: Final = 1000


@dataclass(frozen=True, slots=True)
class VersionFreed:
    """What one version holds alone: no other version, snapshot or transaction reaches it."""

    version: int
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Freed:
    """What only expiring versions reach.

    Attributes:
        versions: how many expire.
        files: everything that only they reach, their roots among it; also what several of them share.
        bytes: its size.
        nodes_read: nodes read to find out, each once.
        each: by version what no other one holds, the first thousand.
    """

    versions: int
    files: int
    bytes: int
    nodes_read: int
    each: tuple[VersionFreed, ...]


def freed_by(spark: Session, files: Files, before: Kept, boundary: int, engine: str, progress: Progress) -> Freed:
    """Return what a new boundary frees. A listing, and one ``get`` a node of all versions together."""
    count = boundary - max(before.boundary, before.newest.oldest_version)
    if count == 0:
        return Freed(0, 0, 0, 0, ())
    order, storage = before.definition.order, files.storage
    on_spark = engine_for(engine, before.newest) == "spark"
    sweep = SparkSweep(started(spark), storage, order, progress) if on_spark else LocalSweep(storage, order, progress)
    try:
        sweep.list_files(None, {})
        saved = live_transactions(storage, sweep.transactions(), before.definition.txn_ttl_millis, now_millis())
        now_kept = kept(files)
        if now_kept.boundary != before.boundary:
            raise PlanOutdated("another expiration came in between; plan again")
        sweep.mark(now_kept.starts() + saved.starts, saved.paths)
        alone = sweep.alone(boundary)
    finally:
        sweep.release()
    each = [VersionFreed(version, size.files, size.bytes) for version, size in alone.versions.items()]
    return Freed(count, alone.total.files, alone.total.bytes, sweep.nodes_read, tuple(each[:SHOWN]))

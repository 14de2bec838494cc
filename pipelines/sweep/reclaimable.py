"""What an expiration would free: the files that only the versions it removes reach."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final

from pipelines.engine_choice import choose_engine_for_all
from pipelines.files.gc_roots import GcRoots
from pipelines.job import Progress, Session
from pipelines.sweep.marking import Marking
from pipelines.sweep.sweep import Sweep
from trinitylake_core.commits.commit import now_millis
from trinitylake_core.commits.files import LakehouseStore
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
        snapshots: how many snapshots lie here; what they reach is not freed.
        transactions: how many saved transactions are alive; what they reach is not freed.
    """

    versions: int
    files: int
    bytes: int
    nodes_read: int
    each: tuple[VersionFreed, ...]
    snapshots: int = 0
    transactions: int = 0


def reclaimable_by(
    spark: Session, files: LakehouseStore, before: GcRoots, boundary: int, engine: str, progress: Progress
) -> Freed:
    """Return the files that a new boundary frees. A listing, and one ``get`` per node of all versions together."""
    count = boundary - max(before.boundary, before.newest.oldest_version)
    if count == 0:
        return Freed(0, 0, 0, 0, (), len(before.snapshots))
    storage = files.storage
    sweep = Sweep(choose_engine_for_all(engine, spark, before.newest), storage, before.definition.order, progress)
    try:
        sweep.list_files(None, {})
        marking = Marking(files, sweep, before.definition.txn_ttl_millis, now_millis())
        marking.mark(partial(_refuse_expired, before))
        alone = sweep.exclusive_sizes(boundary)
    finally:
        sweep.release()
    each = [VersionFreed(version, size.files, size.bytes) for version, size in alone.versions.items()]
    marked = len(before.snapshots), len(marking.saved.paths)
    return Freed(count, alone.total.files, alone.total.bytes, sweep.nodes_read, tuple(each[:SHOWN]), *marked)


def _refuse_expired(before: GcRoots, now: GcRoots) -> None:
    if now.boundary != before.boundary:
        raise PlanOutdated("another expiration came in between; plan again")

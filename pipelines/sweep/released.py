"""What an expiration reports, and what it would free: the files that only the versions it removes reach."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from pipelines.files.holds import Hold
from pipelines.files.retained import Retained, live_transactions, retained
from pipelines.job import Progress, Session, engine_for_all
from pipelines.sweep import open_sweep
from trinitylake_core.brief import Brief
from trinitylake_core.commits.commit import now_millis
from trinitylake_core.commits.files import Files
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


@dataclass(slots=True, repr=False)
class Report(Brief):
    """What an expiration did, or on a dry run would do.

    Attributes:
        version_before: the newest version then.
        version_after: the version it committed; ``None`` if there was nothing to expire.
        boundary_before: the oldest version then.
        boundary_after: the oldest version now.
        versions_expired: how many versions lie between the two.
        snapshots_expired: names of the snapshots dropped because they had expired.
        leftovers: roots that an interrupted run had left, deleted by this one.
        kept: why versions are kept, the rule that keeps most first; on a dry run, and where nothing expires.
        freed: on a dry run, what only these versions reach; `clean` removes the rest of it.
        attempted: root files that were to be deleted; each is one of the next three.
        bytes: size of the deleted roots.
        failures: some that could not be deleted, with the reason; the next run tries again.
    """

    root: str
    dry_run: bool
    version_before: int
    version_after: int | None
    boundary_before: int
    boundary_after: int
    versions_expired: int = 0
    snapshots_expired: tuple[str, ...] = ()
    leftovers: int = 0
    kept: tuple[Hold, ...] = ()
    freed: Freed | None = None
    plan: str | None = None
    attempted: int = 0
    deleted: int = 0
    already_gone: int = 0
    failed: int = 0
    bytes: int = 0
    failures: dict[str, str] = field(default_factory=dict)
    requests: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


def freed_by(spark: Session, files: Files, before: Retained, boundary: int, engine: str, progress: Progress) -> Freed:
    """Return what a new boundary frees. A listing, and one ``get`` per node of all versions together."""
    count = boundary - max(before.boundary, before.newest.oldest_version)
    if count == 0:
        return Freed(0, 0, 0, 0, (), len(before.snapshots))
    storage = files.storage
    engine = engine_for_all(engine, before.newest)
    sweep = open_sweep(engine, spark, storage, before.definition.order, progress)
    try:
        sweep.list_files(None, {})
        saved = live_transactions(storage, sweep.transactions(), before.definition.txn_ttl_millis, now_millis())
        current = retained(files)
        if current.boundary != before.boundary:
            raise PlanOutdated("another expiration came in between; plan again")
        sweep.mark(current.starts() + saved.starts, saved.paths)
        alone = sweep.alone(boundary)
    finally:
        sweep.release()
    each = [VersionFreed(version, size.files, size.bytes) for version, size in alone.versions.items()]
    marked = len(before.snapshots), len(saved.paths)
    return Freed(count, alone.total.files, alone.total.bytes, sweep.nodes_read, tuple(each[:SHOWN]), *marked)

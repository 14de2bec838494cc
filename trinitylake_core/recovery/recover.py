"""Rollback of everything and restore of some: plan first, then one commit (format, section 6)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from trinitylake_core import spec
from trinitylake_core.commits.changes import commit_summary
from trinitylake_core.commits.commit import commit, require_writable
from trinitylake_core.commits.files import LakehouseStore
from trinitylake_core.commits.rolled_back import Base, RolledBack, newest_base, refuse_changed, refuse_lost
from trinitylake_core.errors import Corrupt, InvalidInput
from trinitylake_core.keys import NAMESPACE
from trinitylake_core.recovery.plan import (
    SHOWN,
    SINCE_SHOWN,
    DefinitionsPreflight,
    Differ,
    Preflight,
    RecoveryPlan,
    Review,
    check_lakehouse_definition,
    default_definitions_preflight,
    default_differ,
    plan_of,
    planned_rollback,
    prove_intact,
)
from trinitylake_core.recovery.selection import Side, to_restore
from trinitylake_core.transactions.transaction import Transaction
from trinitylake_core.versions import Delta, Root, Versions

__all__ = [
    "SHOWN",
    "SINCE_SHOWN",
    "DefinitionsPreflight",
    "Differ",
    "Preflight",
    "RecoveryPlan",
    "Review",
    "check_lakehouse_definition",
    "newest_root",
    "prove_intact",
    "refuse_outdated",
    "required",
    "restore",
    "rollback",
    "rollback_base",
]


def rollback(
    files: LakehouseStore,
    newest: Base,
    target: Root,
    *,
    reason: str | None,
    review: Review | None = None,
    force: bool = False,
    preflight: Preflight | None = None,
    definitions: DefinitionsPreflight | None = None,
    before_commit: Callable[[], None] | None = None,
) -> RecoveryPlan:
    """Make the newest version say what ``target`` says.

    Costs the plan (:func:`planned_rollback`: it follows what is undone), one ``get`` for each of the newest 20
    versions undone, one ``create`` and at most two ``put``; and ``preflight``, if it is given. Over a root that cannot
    be read, one ``put`` and one ``head`` more.

    Raises:
        InvalidInput: no reason, or the target is what the newest version is.
        VersionExpired, SnapshotNotFound: the target is no longer kept.
        Corrupt: a file of the target is missing or damaged; named.
        PlanOutdated: another writer committed in the meantime, and ``force`` is not set.
    """
    reason = required(reason)
    base = newest.root
    require_writable(files, base)
    if target.path == base.path:
        raise InvalidInput(f"version {base.version} is the newest one already: there is nothing to roll back")
    refuse_lost(files, base, target)
    with _still_kept(files, target):
        if preflight is not None:
            prove_intact(target, preflight(target))
        planned = planned_rollback(files, newest, target, reason, definitions or default_definitions_preflight(files))
    if review is not None and not review(planned):
        return planned
    summary = commit_summary(reason=reason, target_version=target.version)
    change = RolledBack(files, target, summary, force=force)
    root = commit(files, base, change, before_commit=before_commit)
    return replace(planned, version_after=root.version)


def restore(
    files: LakehouseStore,
    base: Root,
    target: Root,
    *,
    only: Sequence[str],
    reason: str | None,
    exact: bool = False,
    review: Review | None = None,
    preflight: DefinitionsPreflight | None = None,
    differ: Differ | None = None,
    before_commit: Callable[[], None] | None = None,
) -> RecoveryPlan:
    """Bring back the objects that match ``only`` as they were in ``target``, as one ordinary transaction.

    Costs the nodes that the two versions do not share, one ``get`` for each definition that comes back, and a commit.

    Args:
        files: storage and nodes.
        base: the newest version.
        target: the version that the objects come from.
        only: patterns over ``namespace`` and ``namespace.name``, with ``*`` and ``?``. A namespace that
            objects need and that is gone comes back with them.
        reason: why.
        exact: drop objects that match and did not exist then.
        review: called with the plan before anything is written; ``False``: return the plan.
        preflight: what proves the definitions that come back; by default they are read here.
        differ: what compares the two versions; by default this process.
        before_commit: called right before the root is created; raising there gives the restore up.

    Raises:
        InvalidInput: no reason, no pattern.
        ObjectNotFound: a pattern matches nothing, neither then nor now.
        NamespaceNotEmpty: with ``exact``, a namespace would be dropped, but not all that is in it.
        VersionExpired, SnapshotNotFound: the target is no longer kept.
        Corrupt: a definition to bring back is missing or damaged; named.
        CommitConflict: another writer changed one of these objects.
    """
    reason = required(reason)
    require_writable(files, base)
    if not only:
        raise InvalidInput("say which objects to restore: patterns such as 'sales.orders' or 'sales.*'")
    refuse_lost(files, base, target)
    with _still_kept(files, target):
        differing = (differ or default_differ(files))(base, target)
        changes = to_restore(Side(files, base), Side(files, target), only, differing, exact=exact)
        back = [change for change in changes if change.new_path is not None]
        prove_intact(target, (preflight or default_definitions_preflight(files))(back))
    planned = plan_of(files, spec.OP_RESTORE, base, target, changes, reason)
    if (review is not None and not review(planned)) or not changes:
        return planned
    summary = {"target_version": target.version, "only": list(only), "counts": planned.counts}
    txn = _Restoring(files, base, reason=reason, operation=spec.OP_RESTORE, facts=summary)
    txn.target = target
    for change in changes:
        txn.put(change.key, change.new_path, replaces=change.old_path is not None)
        if change.kind != NAMESPACE and change.new_path is not None:
            txn.need_namespace(change.namespace)
        if change.kind == NAMESPACE and change.new_path is None:
            txn.close_namespace(change.namespace)
    return replace(planned, version_after=txn.commit(before_commit=before_commit))


@contextmanager
def _still_kept(files: LakehouseStore, target: Root) -> Iterator[None]:
    """Tell damage from a target that expired, and was cleaned, while it was read. Then three ``get`` more.

    Raises:
        VersionExpired, SnapshotNotFound: the target is no longer kept, so that what is missing was removed.
        Corrupt: it is kept, and damaged.
    """
    try:
        yield
    except Corrupt:
        refuse_lost(files, newest_base(files).root, target)
        raise


class _Restoring(Transaction):
    """A transaction whose definitions only ``target`` may keep alive."""

    target: Root

    def rebase(self, base: Root, newer: Sequence[Delta]) -> None:
        """Also stop when the target has expired. Raises ``VersionExpired``, ``SnapshotNotFound``."""
        super().rebase(base, newer)
        refuse_lost(self._files, newer[-1], self.target)


def refuse_outdated(versions: Versions, planned_at: int, newest: Root) -> None:
    """Refuse a plan if a version after it changed objects. One ``get`` for each version since.

    Raises:
        InvalidInput: the plan names a version that does not exist yet.
        PlanOutdated: another writer committed since.
    """
    if planned_at > newest.version:
        raise InvalidInput(f"the plan cannot be of version {planned_at}: the newest one is {newest.version}")
    found = [root for root in versions.readable_roots(range(planned_at + 1, newest.version)) if root is not None]
    refuse_changed(planned_at, [*found, newest] if newest.version > planned_at else [])


def rollback_base(files: LakehouseStore, planned_at: int | None = None) -> Base:
    """Return the newest version as :func:`newest_root` does, also where its root cannot be read."""
    base = newest_base(files)
    if planned_at is not None:
        refuse_outdated(files.versions, planned_at, base.root)
    return base


def newest_root(files: LakehouseStore, planned_at: int | None = None) -> Root:
    """Return the newest root, which no plan made at version ``planned_at`` is too old for. Three ``get`` or so.

    Raises:
        InvalidInput, PlanOutdated: as :func:`refuse_outdated`.
    """
    newest = files.newest()
    files.note_newest(newest)
    if planned_at is not None:
        refuse_outdated(files.versions, planned_at, newest)
    return newest


def required(reason: str | None) -> str:
    """Return the reason, or raise ``InvalidInput`` if there is none."""
    if reason is None or not reason.strip():
        raise InvalidInput("say why: a reason is required, and stands in the history")
    return reason

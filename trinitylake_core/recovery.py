"""Rollback of everything and restore of some: plan first, then one commit (format, section 6)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import islice
from typing import Final

from trinitylake_core import diff, spec
from trinitylake_core.catalog import codec_of, entries
from trinitylake_core.changes import RolledBack, facts
from trinitylake_core.check import Violation, check_definition, check_tree
from trinitylake_core.commit import Files, commit, refuse_foreign
from trinitylake_core.diff import Change
from trinitylake_core.errors import Corrupt, InvalidInput, ObjectNotFound
from trinitylake_core.keys import NAMESPACE
from trinitylake_core.transaction import Transaction
from trinitylake_core.versions import Root, VersionInfo, version_info

SHOWN: Final = 1000
"""How many changes a plan names; it counts them all."""
SINCE_SHOWN: Final = 20
"""How many of the versions that it undoes a rollback looks at."""
Preflight = Callable[[Root], Iterable[Violation]]
"""Yields what is wrong with a version that is about to become the newest."""


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """What a rollback or a restore would do, and, once done, the version it became.

    Attributes:
        since: the versions that a rollback undoes, newest first: who committed what; at most 20.
        changes: what changes, the first 1000; a rollback that is carried out does not list them.
        counts: how many objects are added, removed and changed; ``None`` where ``changes`` are not listed.
    """

    operation: str
    version: int
    target_version: int
    target: str
    counts: dict[str, int] | None
    changes: tuple[Change, ...]
    since: tuple[VersionInfo, ...]
    versions_undone: int
    reason: str
    version_after: int | None = None


def rollback(
    files: Files,
    base: Root,
    target: Root,
    *,
    reason: str | None,
    dry_run: bool = False,
    force: bool = False,
    preflight: Preflight | None = None,
) -> RecoveryPlan:
    """Make the newest version say what ``target`` says.

    Costs the pre-flight (by default one ``get`` a node of the target and one a definition), a ``get`` for each
    of the newest 20 versions undone, one ``create`` and at most two ``put``. A dry run also reads the nodes
    that differ, to name the changes.

    Raises:
        InvalidInput: no reason, or the target is what the newest version is.
        Corrupt: a file of the target is missing or damaged; named.
        PlanOutdated: somebody committed meanwhile, and ``force`` is not set.
    """
    told = required(reason)
    refuse_foreign(files, base)
    if target.path == base.path:
        raise InvalidInput(f"version {base.version} is the newest one already: there is nothing to roll back")
    changes = _changes(files, base, target) if dry_run else None
    planned = _plan(files, spec.OP_ROLLBACK, base, target, changes, told)
    prove_intact(target, (preflight or default_preflight(files))(target))
    if dry_run:
        return planned
    summary = facts(reason=told, target_version=target.version)
    root = commit(files, base, RolledBack(files, target, summary, force=force))
    return replace(planned, version_after=root.version)


def restore(
    files: Files,
    base: Root,
    target: Root,
    *,
    only: Sequence[str],
    reason: str | None,
    exact: bool = False,
    dry_run: bool = False,
) -> RecoveryPlan:
    """Bring back the objects that match ``only`` as they were in ``target``, as one ordinary transaction.

    Args:
        only: patterns over ``namespace`` and ``namespace.name``, with ``*`` and ``?``. A namespace that
            objects need and that is gone comes back with them.
        exact: drop objects that match and did not exist then.

    Raises:
        InvalidInput: no reason, no pattern.
        ObjectNotFound: a pattern matches nothing, neither then nor now.
        Corrupt: a definition to bring back is missing or damaged.
        CommitConflict: somebody changed one of these objects meanwhile.
    """
    told = required(reason)
    refuse_foreign(files, base)
    if not only:
        raise InvalidInput("say which objects to restore: patterns such as 'sales.orders' or 'sales.*'")
    found = _Restore(files, base, target, only, exact=exact)
    planned = _plan(files, spec.OP_RESTORE, base, target, found.changes, told)
    if dry_run or not found.changes:
        return planned
    summary = {"target_version": target.version, "only": list(only), "counts": planned.counts}
    txn = Transaction(files, base, reason=told, operation=spec.OP_RESTORE, facts=summary)
    for change in found.changes:
        txn.put(change.key, change.new_path)
        if change.kind != NAMESPACE and change.new_path is not None:
            txn.need_namespace(change.namespace)
    return replace(planned, version_after=txn.commit())


class _Restore:
    """Finds what a restore changes: only where the two versions differ, and only what matches."""

    def __init__(self, files: Files, base: Root, target: Root, only: Sequence[str], *, exact: bool) -> None:
        self._only = only
        matching = [change for change in _changes(files, base, target) if self._matches(change)]
        self.changes = [change for change in matching if exact or change.change != diff.REMOVED]
        self._add_namespaces(files, base, target)
        _refuse_unknown(files, base, target, only, matching)
        for change in self.changes:
            if change.new_path is not None:
                _prove_definition(files, change)

    def _matches(self, change: Change) -> bool:
        return any(fnmatchcase(_label(change.namespace, change.name), pattern) for pattern in self._only)

    def _add_namespaces(self, files: Files, base: Root, target: Root) -> None:
        here = {change.namespace for change in self.changes if change.kind == NAMESPACE}
        needed = {c.namespace for c in self.changes if c.kind != NAMESPACE and c.new_path is not None} - here
        if needed:
            gone = [
                change
                for change in _changes(files, base, target)
                if change.kind == NAMESPACE and change.namespace in needed and change.change == diff.ADDED
            ]
            self.changes = gone + self.changes


def _label(namespace: str, name: str | None) -> str:
    return namespace if name is None else f"{namespace}.{name}"


def _refuse_unknown(files: Files, base: Root, target: Root, only: Sequence[str], matching: Sequence[Change]) -> None:
    """Raise for a pattern that names nothing: a typing error must not look like success."""
    labels = [_label(change.namespace, change.name) for change in matching]
    open_patterns = [pattern for pattern in only if not any(fnmatchcase(label, pattern) for label in labels)]
    if open_patterns:
        for root in (target, base):
            codec = codec_of(files.definition(root))
            for entry in entries(files.store, root.node, codec):
                label = _label(entry.namespace, entry.name)
                open_patterns = [pattern for pattern in open_patterns if not fnmatchcase(label, pattern)]
                if not open_patterns:
                    return
        raise ObjectNotFound(
            f"{', '.join(open_patterns)} names nothing in version {target.version} nor in version {base.version}"
        )


def _prove_definition(files: Files, change: Change) -> None:
    path = change.new_path or ""
    for found in check_definition(files.storage, change.kind, _label(change.namespace, change.name), path):
        raise Corrupt(f"{found.message} ({path}); nothing was changed. {found.hint}", path=path, invariant="I15")


def _changes(files: Files, base: Root, target: Root) -> Iterable[Change]:
    rows = diff.diff_nodes(files.store, base.node, files.store, target.node)
    return diff.changes(rows, codec_of(files.definition(base)))


def _plan(
    files: Files, operation: str, base: Root, target: Root, changes: Iterable[Change] | None, reason: str
) -> RecoveryPlan:
    counts: Counter[str] = Counter({diff.ADDED: 0, diff.REMOVED: 0, diff.CHANGED: 0})
    shown: list[Change] = []
    for change in changes or ():
        counts[change.change] += 1
        if len(shown) < SHOWN:
            shown.append(change)
    undone = max(0, base.version - target.version)
    since = files.versions.history(base, min(undone, SINCE_SHOWN)) if operation == spec.OP_ROLLBACK else iter(())
    return RecoveryPlan(
        operation=operation,
        version=base.version,
        target_version=target.version,
        target=target.path,
        counts=None if changes is None else dict(counts),
        changes=tuple(shown),
        since=tuple(map(version_info, since)),
        versions_undone=undone if operation == spec.OP_ROLLBACK else 0,
        reason=reason,
    )


def default_preflight(files: Files) -> Preflight:
    """Return a pre-flight in this process: every node and every definition of a version is read."""
    return lambda target: check_tree(files.versions, target, definitions=True)


def prove_intact(target: Root, violations: Iterable[Violation]) -> None:
    """Raise ``Corrupt`` naming the first files that are missing or damaged."""
    found = list(islice(violations, 10))
    if found:
        named = "; ".join(f"{each.file}: {each.message}" for each in found)
        raise Corrupt(
            f"version {target.version} is not intact, nothing was changed: {named}",
            path=found[0].file,
            invariant=found[0].invariant,
        )


def required(reason: str | None) -> str:
    """Return the reason, or raise ``InvalidInput`` if there is none."""
    if reason is None or not reason.strip():
        raise InvalidInput("say why: a reason is required, and stands in the history")
    return reason

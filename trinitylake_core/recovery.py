"""Rollback of everything and restore of some: plan first, then one commit (format, section 6)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from typing import Final

from trinitylake_core import diff, spec, tree
from trinitylake_core.catalog import codec_of, entries
from trinitylake_core.changes import RolledBack, facts, refuse_changed, refuse_lost
from trinitylake_core.check import Violation, check_definitions, check_tree, violation
from trinitylake_core.commit import Files, commit, refuse_foreign
from trinitylake_core.diff import Change
from trinitylake_core.errors import (
    Corrupt,
    InvalidDefinition,
    InvalidInput,
    InvalidName,
    NamespaceNotEmpty,
    ObjectNotFound,
)
from trinitylake_core.keys import NAMESPACE, TABLE, VIEW, KeyCodec, ObjectName
from trinitylake_core.transaction import Transaction
from trinitylake_core.versions import Delta, Root, VersionInfo, Versions, version_info

SHOWN: Final = 1000
"""How many changes a plan names; it counts them all."""
SINCE_SHOWN: Final = 20
"""How many of the versions that it undoes a rollback looks at."""
_PROVED_TOGETHER: Final = 1024
Preflight = Callable[[Root], Iterable[Violation]]
"""Yields what is wrong with a version that is about to become the newest."""
DefinitionsPreflight = Callable[[Sequence[Change]], Iterable[Violation]]
"""Yields what is wrong with the definitions that changes are about to bring back."""
Differ = Callable[[Root, Root], Iterable[Change]]
"""Yields what changed from one version to another."""


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """What a rollback or a restore would do, and, once done, the version it became.

    Attributes:
        version: the newest version, which the plan was made at.
        target: path of the root that the objects come from.
        counts: how many objects are added, removed and changed; ``None`` where ``changes`` are not listed.
        changes: what changes, the first 1000; a rollback that is carried out does not list them.
        since: the versions that a rollback undoes, newest first: who committed what; at most 20.
        versions_undone: how many there are.
        version_after: the version it became; ``None`` on a dry run, or when there was nothing to do.
    """

    operation: str
    version: int
    target_version: int
    target_created_at: datetime
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
    differ: Differ | None = None,
    before_commit: Callable[[], None] | None = None,
) -> RecoveryPlan:
    """Make the newest version say what ``target`` says.

    Costs the pre-flight (by default one ``get`` a node of the target and one a definition), a ``get`` for each
    of the newest 20 versions undone, one ``create`` and at most two ``put``. A dry run also reads the nodes
    that differ, to name the changes.

    Raises:
        InvalidInput: no reason, or the target is what the newest version is.
        VersionExpired, SnapshotNotFound: the target is no longer kept.
        Corrupt: a file of the target is missing or damaged; named.
        PlanOutdated: somebody committed meanwhile, and ``force`` is not set.
    """
    told = required(reason)
    refuse_foreign(files, base)
    if target.path == base.path:
        raise InvalidInput(f"version {base.version} is the newest one already: there is nothing to roll back")
    refuse_lost(files, base, target)
    prove_intact(target, (preflight or default_preflight(files))(target))
    changes = (differ or _differ(files))(base, target) if dry_run else None
    planned = _plan(files, spec.OP_ROLLBACK, base, target, changes, told)
    if dry_run:
        return planned
    summary = facts(reason=told, target_version=target.version)
    change = RolledBack(files, target, summary, force=force)
    root = commit(files, base, change, before_commit=before_commit)
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
    preflight: DefinitionsPreflight | None = None,
    differ: Differ | None = None,
    before_commit: Callable[[], None] | None = None,
) -> RecoveryPlan:
    """Bring back the objects that match ``only`` as they were in ``target``, as one ordinary transaction.

    Costs the nodes that the two versions do not share, a ``get`` for each definition that comes back, and a commit.

    Args:
        files: storage and nodes.
        base: the newest version.
        target: the version that the objects come from.
        only: patterns over ``namespace`` and ``namespace.name``, with ``*`` and ``?``. A namespace that
            objects need and that is gone comes back with them.
        reason: why.
        exact: drop objects that match and did not exist then.
        dry_run: return the plan; nothing is written.
        preflight: what proves the definitions that come back; by default they are read here.
        differ: what compares the two versions; by default this process.
        before_commit: called right before the root is created; raising there gives the restore up.

    Raises:
        InvalidInput: no reason, no pattern.
        ObjectNotFound: a pattern matches nothing, neither then nor now.
        NamespaceNotEmpty: with ``exact``, a namespace would be dropped, but not all that is in it.
        VersionExpired, SnapshotNotFound: the target is no longer kept.
        Corrupt: a definition to bring back is missing or damaged; named.
        CommitConflict: somebody changed one of these objects meanwhile.
    """
    told = required(reason)
    refuse_foreign(files, base)
    if not only:
        raise InvalidInput("say which objects to restore: patterns such as 'sales.orders' or 'sales.*'")
    refuse_lost(files, base, target)
    changes = _to_restore(files, base, target, only, (differ or _differ(files))(base, target), exact=exact)
    back = [change for change in changes if change.new_path is not None]
    prove_intact(target, (preflight or _definitions_preflight(files))(back))
    planned = _plan(files, spec.OP_RESTORE, base, target, changes, told)
    if dry_run or not changes:
        return planned
    summary = {"target_version": target.version, "only": list(only), "counts": planned.counts}
    txn = _Restoring(files, base, reason=told, operation=spec.OP_RESTORE, facts=summary)
    txn.target = target
    for change in changes:
        txn.put(change.key, change.new_path)
        if change.kind != NAMESPACE and change.new_path is not None:
            txn.need_namespace(change.namespace)
        if change.kind == NAMESPACE and change.new_path is None:
            txn.close_namespace(change.namespace)
    return replace(planned, version_after=txn.commit(before_commit=before_commit))


class _Restoring(Transaction):
    """A transaction whose definitions only ``target`` may keep alive."""

    target: Root

    def rebase(self, base: Root, newer: Sequence[Delta]) -> None:
        """Also stop when the target expired meanwhile. Raises ``VersionExpired``, ``SnapshotNotFound``."""
        super().rebase(base, newer)
        refuse_lost(self._files, newer[-1], self.target)


# -- what a restore changes --------------------------------------------------------------------


def _to_restore(
    files: Files, base: Root, target: Root, only: Sequence[str], differing: Iterable[Change], *, exact: bool
) -> list[Change]:
    """Return what a restore changes: what matches, and the namespaces that it needs and that are gone."""
    patterns = [(pattern, _compiled(pattern)) for pattern in only]
    found: list[Change] = []
    gone: dict[str, Change] = {}
    unmatched = set(only)
    for change in differing:
        label = _label(change.namespace, change.name)
        matching = [pattern for pattern, compiled in patterns if compiled.fullmatch(label)]
        unmatched.difference_update(matching)
        if matching and (exact or change.change != diff.REMOVED):
            found.append(change)
        elif change.kind == NAMESPACE and change.change == diff.ADDED:
            gone[change.namespace] = change
    _refuse_unknown(files, base, target, [(pattern, each) for pattern, each in patterns if pattern in unmatched])
    _refuse_left_behind(files, base, found)
    needed = {change.namespace for change in found if change.new_path is not None}
    return [gone[name] for name in sorted(needed & gone.keys())] + found


def _compiled(pattern: str) -> re.Pattern[str]:
    parts = {"*": ".*", "?": "."}
    return re.compile("".join(parts.get(character) or re.escape(character) for character in pattern), re.DOTALL)


def _label(namespace: str, name: str | None) -> str:
    return namespace if name is None else f"{namespace}.{name}"


def _refuse_unknown(files: Files, base: Root, target: Root, patterns: Sequence[tuple[str, re.Pattern[str]]]) -> None:
    """Raise for a pattern that names nothing: a typing error must not look like success."""
    unknown = [
        pattern for pattern, each in patterns if not any(_names(files, root, pattern, each) for root in (target, base))
    ]
    if unknown:
        raise ObjectNotFound(
            f"{', '.join(unknown)} names nothing in version {target.version} nor in version {base.version}"
        )


def _names(files: Files, root: Root, pattern: str, compiled: re.Pattern[str]) -> bool:
    """Whether a pattern matches an object of a version. A few ``get`` for a plain name, else up to all nodes."""
    codec = codec_of(files.definition(root))
    if "*" in pattern or "?" in pattern:
        found = entries(files.store, root.node, codec)
        return any(compiled.fullmatch(_label(each.namespace, each.name)) for each in found)
    return any(tree.search(files.store, root.node, key) is not None for key in _keys(codec, pattern))


def _keys(codec: KeyCodec, label: str) -> Iterator[str]:
    """Yield every key that a label may mean: names may hold dots, so every dot may be the one."""
    dots = [index for index, character in enumerate(label) if character == "."]
    readings = [ObjectName(NAMESPACE, label)]
    readings += [ObjectName(kind, label[:dot], label[dot + 1 :]) for dot in dots for kind in (TABLE, VIEW)]
    for name in readings:
        try:
            yield codec.encode(name)
        except InvalidName:
            continue


def _refuse_left_behind(files: Files, base: Root, changes: Sequence[Change]) -> None:
    """Raise if a namespace is dropped, but not everything in it."""
    codec = codec_of(files.definition(base))
    dropped = {change.key for change in changes if change.new_path is None}
    for change in changes:
        if change.kind == NAMESPACE and change.new_path is None:
            ranges = [codec.range(kind, change.namespace) for kind in (TABLE, VIEW)]
            inside = [each for within in ranges for each in entries(files.store, base.node, codec, within)]
            if left := [each for each in inside if each.key not in dropped]:
                raise NamespaceNotEmpty(
                    f"namespace {change.namespace!r} did not exist in that version, but cannot be dropped without "
                    f"{_label(left[0].namespace, left[0].name)!r}, which does not match; add the pattern "
                    f"'{change.namespace}.*'"
                )


# -- plans and proofs --------------------------------------------------------------------------


def _differ(files: Files) -> Differ:
    def differ(old: Root, new: Root) -> Iterator[Change]:
        rows = diff.diff_nodes(files.store, old.node, files.store, new.node)
        return diff.changes(rows, codec_of(files.definition(old)))

    return differ


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
        target_created_at=version_info(target).created_at,
        target=target.path,
        counts=None if changes is None else dict(counts),
        changes=tuple(shown),
        since=tuple(map(version_info, since)),
        versions_undone=undone if operation == spec.OP_ROLLBACK else 0,
        reason=reason,
    )


def refuse_outdated(versions: Versions, planned_at: int, newest: Root) -> None:
    """Refuse a plan if a version after it changed objects. One ``get`` for each version since.

    Raises:
        InvalidInput: the plan says a version that does not exist yet.
        PlanOutdated: somebody committed since.
    """
    if planned_at > newest.version:
        raise InvalidInput(f"the plan cannot be of version {planned_at}: the newest one is {newest.version}")
    found = [root for root in versions.roots(range(planned_at + 1, newest.version)) if root is not None]
    refuse_changed(planned_at, [*found, newest] if newest.version > planned_at else [])


def default_preflight(files: Files) -> Preflight:
    """Return a pre-flight in this process: every node and every definition of a version is read."""

    def preflight(target: Root) -> Iterator[Violation]:
        yield from check_lakehouse_definition(files.versions, target)
        yield from check_tree(files.versions, target, definitions=True)

    return preflight


def check_lakehouse_definition(versions: Versions, target: Root) -> Iterator[Violation]:
    """Yield what is wrong with the lakehouse definition that a root names. One ``get``."""
    try:
        versions.definition_file(target)
    except (Corrupt, InvalidDefinition) as error:
        yield violation("I13", getattr(error, "path", None) or target.path, str(error))


def _definitions_preflight(files: Files) -> DefinitionsPreflight:
    def preflight(changes: Sequence[Change]) -> Iterator[Violation]:
        for start in range(0, len(changes), _PROVED_TOGETHER):
            named = [
                (each.kind, _label(each.namespace, each.name), each.new_path or "")
                for each in changes[start : start + _PROVED_TOGETHER]
            ]
            yield from check_definitions(files.storage, named)

    return preflight


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

"""Plans of a rollback or a restore, and the proof that its target is intact (format, section 6)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Final

from trinitylake_core import diff, spec
from trinitylake_core.catalog import codec_of
from trinitylake_core.check import Violation, check_definitions, violation
from trinitylake_core.commits.files import LakehouseStore
from trinitylake_core.diff import Change, NotCompared
from trinitylake_core.errors import Corrupt, InvalidDefinition
from trinitylake_core.recovery.selection import label_of
from trinitylake_core.short_repr import Brief
from trinitylake_core.versions import Root, VersionInfo, Versions, version_info

SHOWN: Final = 1000
"""How many changes a plan names; it counts them all."""
SINCE_SHOWN: Final = 20
"""How many of the versions that it undoes a rollback looks at."""
FINDINGS: Final = 10
"""So many findings are named, and then no more are looked for."""
_PROVED_TOGETHER: Final = 1024
Preflight = Callable[[Root], Iterable[Violation]]
"""Yields what is wrong with a version that is about to become the newest."""
DefinitionsPreflight = Callable[[Sequence[Change]], Iterable[Violation]]
"""Yields what is wrong with the definitions that changes are about to bring back."""
Differ = Callable[[Root, Root], Iterable[Change]]
"""Yields what changed from one version to another."""
Review = Callable[["RecoveryPlan"], bool]
"""Called with a plan before anything is written; ``False`` leaves everything as it is."""


@dataclass(frozen=True, slots=True, repr=False)
class RecoveryPlan(Brief):
    """What a rollback or a restore would do, and, once done, the version it became.

    Attributes:
        version: the newest version, which the plan was made at.
        target: path of the root that the objects come from.
        counts: how many objects are added, removed and changed.
        changes: what changes, the first 1000.
        since: the versions that a rollback undoes, newest first: who committed what; at most 20.
        versions_undone: how many there are.
        version_after: the version it became; ``None`` on a dry run, or when there was nothing to do.
        not_compared: what ``counts`` and ``changes`` leave out, because the newest version cannot be read there; at
            most 1000 places. ``old`` is the newest version, ``new`` the target.
        source: root URI of the other lakehouse that the target is a version of; ``None`` = this one.
        nodes_proved: nodes of the target of a rollback, beside its root, that were read and proved for it.
    """

    operation: str
    version: int
    target_version: int
    target_created_at: datetime
    target: str
    counts: dict[str, int]
    changes: tuple[Change, ...]
    since: tuple[VersionInfo, ...]
    versions_undone: int
    reason: str
    version_after: int | None = None
    not_compared: tuple[NotCompared, ...] = ()
    source: str | None = None
    nodes_proved: int = 0


def default_differ(files: LakehouseStore) -> Differ:
    """Return a function that compares two versions in this process: it reads the nodes that they do not share."""

    def differ(old: Root, new: Root) -> Iterator[Change]:
        rows = diff.diff_nodes(files.store, old.node, files.store, new.node)
        return diff.changes(rows, codec_of(files.definition(old)))

    return differ


def plan_of(
    files: LakehouseStore, operation: str, base: Root, target: Root, changes: Iterable[Change], reason: str
) -> RecoveryPlan:
    """Return a plan; the versions that a rollback undoes cost one ``get`` each, the newest 20 of them."""
    counts: Counter[str] = Counter({diff.ADDED: 0, diff.REMOVED: 0, diff.CHANGED: 0})
    shown: list[Change] = []
    for change in changes:
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
        counts=dict(counts),
        changes=tuple(shown),
        since=tuple(map(version_info, since)),
        versions_undone=undone if operation == spec.OP_ROLLBACK else 0,
        reason=reason,
    )


def check_lakehouse_definition(versions: Versions, target: Root) -> Iterator[Violation]:
    """Yield what is wrong with the lakehouse definition that a root names. One ``get``."""
    try:
        versions.definition_file(target)
    except (Corrupt, InvalidDefinition) as error:
        yield violation("I13", getattr(error, "path", None) or target.path, str(error))


def default_definitions_preflight(files: LakehouseStore) -> DefinitionsPreflight:
    """Return a function that proves in this process the definitions to restore. One ``get`` each."""

    def preflight(changes: Sequence[Change]) -> Iterator[Violation]:
        for start in range(0, len(changes), _PROVED_TOGETHER):
            named = [
                (each.kind, label_of(each.namespace, each.name), each.new_path or "")
                for each in changes[start : start + _PROVED_TOGETHER]
            ]
            yield from check_definitions(files.storage, named)

    return preflight


def prove_intact(target: Root, violations: Iterable[Violation]) -> None:
    """Raise ``Corrupt`` naming the first files that are missing or damaged."""
    found = list(islice(violations, FINDINGS))
    if found:
        named = "; ".join(f"{each.file}: {each.message}" for each in found)
        raise Corrupt(
            f"version {target.version} is not intact, nothing was changed: {named}",
            path=found[0].file,
            invariant=found[0].invariant,
        )

"""Plans of a rollback or a restore, and the proof that its target is intact (format, section 6)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from typing import Final

from trinitylake_core import diff, spec
from trinitylake_core.catalog import codec_of
from trinitylake_core.check import TreeProof, Violation, check_definitions, check_homes, read_head, violation
from trinitylake_core.commits.backend import LakehouseBackend
from trinitylake_core.commits.rolled_back import Base, newest_base, refuse_lost
from trinitylake_core.diff import Change, NotCompared
from trinitylake_core.diff.compare import OLD
from trinitylake_core.errors import Corrupt
from trinitylake_core.keys import label
from trinitylake_core.short_repr import ShortRepr
from trinitylake_core.tree.node import Node
from trinitylake_core.versions import Root, VersionInfo, version_info

SHOWN: Final = 1000
"""How many changes a plan names; it counts them all."""
SINCE_SHOWN: Final = 20
"""How many of the versions that a rollback undoes are read."""
FINDINGS: Final = 10
"""The proof stops after so many findings."""
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
class RecoveryPlan(ShortRepr):
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


def plan_of(
    backend: LakehouseBackend, operation: str, base: Root, target: Root, changes: Iterable[Change], reason: str
) -> RecoveryPlan:
    """Return a plan; the versions that a rollback undoes cost one ``get`` each, the newest 20 of them."""
    counts: Counter[str] = Counter({diff.ADDED: 0, diff.REMOVED: 0, diff.CHANGED: 0})
    shown: list[Change] = []
    for change in changes:
        counts[change.change] += 1
        if len(shown) < SHOWN:
            shown.append(change)
    undone = max(0, base.version - target.version)
    since = backend.versions.history(base, min(undone, SINCE_SHOWN)) if operation == spec.OP_ROLLBACK else iter(())
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


def default_definitions_preflight(backend: LakehouseBackend) -> DefinitionsPreflight:
    """Return a function that proves in this process the definitions to restore. One ``get`` each."""

    def preflight(changes: Sequence[Change]) -> Iterator[Violation]:
        for start in range(0, len(changes), _PROVED_TOGETHER):
            named = [
                (each.kind, label(each.namespace, each.name), each.new_path or "")
                for each in changes[start : start + _PROVED_TOGETHER]
            ]
            yield from check_definitions(backend.storage, named)

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


# -- the proof of a rollback's target --------------------------------------------------------------
#
# Nodes and definitions that both versions share are in use now. The others are what a rollback brings back, and they
# are what the comparison of the two trees opens: each of these nodes is proved when it is read, and each definition
# among the changes when it is named. So the cost follows what is undone, however large the lakehouse is.

_CHANGES_HELD: Final = 32_768
"""Changes that are held before their definitions are proved."""


def planned_rollback(
    backend: LakehouseBackend, newest: Base, target: Root, reason: str, definitions: DefinitionsPreflight
) -> RecoveryPlan:
    """Return the plan of a rollback whose target is proved, as far as the newest version does not share it.

    Costs one ``get`` for each node that one of the two versions does not share, or for which other messages wait in
    it, one for each namespace of what changes at the most, and ``definitions``. The newest version may be damaged: then
    the plan names what could not be compared.

    Raises:
        Corrupt: a file that only the target uses is missing or damaged; named.
        VersionExpired, SnapshotNotFound: the target is no longer kept.
    """
    proof = _Proof(backend, target, definitions)
    try:
        found = diff.diff_trees(proof, newest.readable.node, proof.codec, proof, target.node, proof.codec)
        planned = plan_of(backend, spec.OP_ROLLBACK, newest.root, target, proof.prove_changes(found), reason)
    except Corrupt:  # of the newest version, of the target, or of a target that expired since
        refuse_lost(backend, newest_base(backend).root, target)
        proof = _Proof(backend, target, definitions)
        found, holes = diff.diff_damaged(proof, newest.readable.node, proof, target.node, proof.codec)
        planned = plan_of(backend, spec.OP_ROLLBACK, newest.root, target, proof.prove_changes(found), reason)
        planned = replace(planned, not_compared=tuple(each for each in holes if each.side == OLD)[:SHOWN])
    prove_intact(target, proof.nodes.found)
    planned = replace(planned, nodes_proved=proof.nodes.nodes)
    if newest.root.unreadable is None:
        return planned
    why = f"{newest.root.unreadable}; compared is version {newest.readable.version}, the newest one that can be read"
    return replace(planned, not_compared=(NotCompared(OLD, newest.root.path, None, None, why), *planned.not_compared))


class _Proof:
    """The reader of a comparison, which examines the target's nodes.

    Attributes:
        nodes: what is wrong with the target, and how many of its nodes were read.
    """

    def __init__(self, backend: LakehouseBackend, target: Root, definitions: DefinitionsPreflight) -> None:
        definition = backend.definition(target)
        self.codec = codec_of(definition)
        self.nodes = TreeProof(target, definition.order, self.codec)
        head = read_head(backend.versions, target.path, lambda: target)
        if isinstance(head, Violation):
            self.nodes.add([head])
        self._store = backend.fork().nodes  # what another reader has cached may be gone by now
        self._target = target
        self._definitions = definitions

    def read(self, path: str) -> Node:
        """Return a node; one of the target is examined. Raises ``Corrupt``."""
        try:
            return self._examine(path, self._store.read(path))
        except Corrupt as error:
            if self.nodes.take_expected(path) is not None:
                self.nodes.add([violation(error.invariant, error.path or path, str(error))])
            raise

    def read_many(self, paths: Sequence[str]) -> Iterator[Node]:
        """Yield nodes in order, reading ahead; each that is of the target is examined."""
        return map(self._examine, paths, self._store.read_many(paths))

    def held(self, paths: Sequence[str]) -> Iterator[Node]:
        """Yield nodes as the store does, examined."""
        return map(self._examine, paths, self._store.held(paths))

    def prefetch(self, paths: Iterable[str]) -> AbstractContextManager[None]:
        """Read nodes ahead as the store does."""
        return self._store.prefetch(paths)

    def _examine(self, path: str, node: Node) -> Node:
        self.nodes.examine(path, node)
        return node

    def prove_changes(self, changes: Iterable[Change]) -> Iterator[Change]:
        """Yield changes; prove the definitions and the namespaces that they need. Stops after a few findings."""
        remaining = iter(changes)
        while len(self.nodes.found) < FINDINGS and (part := list(islice(remaining, _CHANGES_HELD))):
            yield from part
            self.nodes.add(check_homes(self, self._target, self.codec, part))
            self.nodes.add(self._definitions([each for each in part if each.new_path is not None]))

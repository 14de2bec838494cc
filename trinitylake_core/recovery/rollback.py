"""A rollback in three steps: plan, prove, commit (format, section 6). Nothing is written before the last one.

    rollback = plan_rollback(backend, RecoveryTarget(version=7), reason)
    for changes in rollback.changes_to_prove():
        rollback.add_findings(find_damaged_definitions(backend, changes))
    plan = rollback.proved_plan()
    plan = rollback.commit(plan)

Nodes and definitions that both versions share are in use now. The others are what a rollback brings back, and they
are what the comparison of the two trees opens. So each of these nodes is proved when the comparison reads it, and the
caller proves each definition among the changes: in this process, or in tasks. The cost follows what is undone, however
large the lakehouse is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import islice
from typing import Final

from trinitylake_core import diff, spec
from trinitylake_core.catalog import codec_of
from trinitylake_core.check import TreeProof, Violation, check_homes, read_head, violation
from trinitylake_core.commits.backend import LakehouseBackend
from trinitylake_core.commits.changes import commit_summary
from trinitylake_core.commits.commit import commit, require_writable
from trinitylake_core.commits.rolled_back import Base, IsSame, RolledBack, has_none, newest_base, refuse_lost
from trinitylake_core.diff import Change, NotCompared
from trinitylake_core.diff.compare import OLD
from trinitylake_core.errors import Corrupt, InvalidInput
from trinitylake_core.recovery.plan import (
    FINDINGS,
    SHOWN,
    ChangeTally,
    RecoveryPlan,
    find_damaged_definitions,
    refuse_damaged,
    refuse_outdated,
    require_reason,
)
from trinitylake_core.recovery.target import RecoveryTarget
from trinitylake_core.tree.node import Node
from trinitylake_core.tree.nodestore import NodeStore
from trinitylake_core.versions import Root, version_info

SINCE_SHOWN: Final = 20
"""How many of the versions that a rollback undoes are read."""
_CHANGES_HELD: Final = 16_384
"""Changes that are held before their definitions are proved."""
_CACHED_BYTES: Final = 8 << 20
"""Of nodes in memory. A comparison reads each node once; what it reads ahead has room in this."""


def plan_rollback(
    backend: LakehouseBackend,
    target: RecoveryTarget,
    reason: str | None,
    *,
    force: bool,
    expected_version: int | None = None,
    is_same: IsSame = has_none,
) -> Rollback:
    """Return a rollback to a version, which nothing speaks against so far. Some six ``get``: no node is read yet.

    Args:
        backend: of the lakehouse, whose newest version and its root may be damaged.
        target: the version to return to.
        reason: why; required.
        force: also undo what other writers commit while this runs, or have committed since ``expected_version``.
        expected_version: the newest version when the plan that somebody reviewed was made.
        is_same: which changes of others leave the content as it was, and the plan as good; by default none.

    Raises:
        InvalidInput: no reason, or the target is what the newest version is.
        VersionNotFound, VersionExpired, SnapshotNotFound.
        PlanOutdated: another writer changed objects since ``expected_version``, and ``force`` is not set.
        ReadOnly, Corrupt, StorageError.
    """
    reason = require_reason(reason)
    newest = newest_base(backend)
    if expected_version is not None and not force:
        refuse_outdated(backend, expected_version, newest.root, is_same)
    root = target.root(backend)
    require_writable(backend, newest.root)
    if root.path == newest.root.path:
        raise InvalidInput(f"version {newest.root.version} is the newest one already: there is nothing to roll back")
    refuse_lost(backend, newest.root, root)
    return Rollback(
        backend=backend,
        newest=newest,
        target=root,
        reason=reason,
        force=force,
        is_same=is_same,
    )


class Rollback:
    """A rollback that :func:`plan_rollback` made."""

    def __init__(
        self,
        backend: LakehouseBackend,
        newest: Base,
        target: Root,
        reason: str,
        *,
        force: bool,
        is_same: IsSame,
    ) -> None:
        self.backend = backend
        self._newest = newest
        self._target = target
        self._reason = reason
        self._force = force
        self._is_same = is_same
        self._start_over()

    def _start_over(self) -> None:
        self._tally = ChangeTally()
        self._holes: list[NotCompared] = []
        self._reader = _ProvingReader(self.backend, self._target)
        self._proof = self._reader.proof

    # -- prove ---------------------------------------------------------------------------------

    def changes_to_prove(self) -> Iterator[list[Change]]:
        """Compare the two versions; yield the changes whose definitions come back, some at a time.

        The caller reports what is wrong with these definitions to :meth:`add_findings`, and goes on. Ends after a few
        findings. Where the newest version is damaged it begins again: some changes are yielded twice then.

        Costs one ``get`` for each node that one of the two versions does not share, or for which other messages wait in
        it, and one for each namespace of what changes at the most.

        Raises:
            VersionExpired, SnapshotNotFound: the target is no longer kept.
        """
        codec = self._reader.codec
        before = self._newest.readable.node
        after = self._target.node
        try:
            found = diff.diff_trees(
                self._reader,
                before,
                codec,
                self._reader,
                after,
                codec,
            )
            yield from self._take_apart(found)
            return
        except Corrupt:
            # Of the newest version, of the target, or of a target that expired since and was cleaned.
            refuse_lost(self.backend, newest_base(self.backend).root, self._target)
        self._start_over()
        readable, self._holes = diff.diff_damaged(
            self._reader,
            before,
            self._reader,
            after,
            codec,
        )
        yield from self._take_apart(readable)

    def _take_apart(self, changes: Iterator[Change]) -> Iterator[list[Change]]:
        while len(self._proof.found) < FINDINGS:
            part = list(islice(changes, _CHANGES_HELD))
            if not part:
                return
            self._tally.add(part)
            homeless = check_homes(self._reader, self._target, self._reader.codec, part)
            self.add_findings(homeless)
            yield [change for change in part if change.new_path is not None]

    def add_findings(self, violations: Iterable[Violation]) -> None:
        """Add what is wrong with definitions of the target."""
        self._proof.add(violations)

    def proved_plan(self) -> RecoveryPlan:
        """Return the plan, once :meth:`changes_to_prove` has ended. One ``get`` for each of 20 versions undone.

        Raises:
            Corrupt: a file that only the target uses is missing or damaged; named.
            VersionExpired, SnapshotNotFound: the target is no longer kept.
        """
        refuse_damaged(self.backend, self._target, self._proof.found)
        base = self._newest.root
        undone = max(0, base.version - self._target.version)
        since = self.backend.versions.history(base, min(undone, SINCE_SHOWN))
        return RecoveryPlan(
            operation=spec.OP_ROLLBACK,
            version=base.version,
            target_version=self._target.version,
            target_created_at=version_info(self._target).created_at,
            target=self._target.path,
            counts=self._tally.counts,
            changes=tuple(self._tally.shown),
            since=tuple(map(version_info, since)),
            versions_undone=undone,
            reason=self._reason,
            not_compared=tuple(self._not_compared()),
            nodes_proved=self._proof.nodes,
        )

    def _not_compared(self) -> Iterator[NotCompared]:
        unreadable = self._newest.root.unreadable
        if unreadable is not None:
            instead = self._newest.readable.version
            why = f"{unreadable}; compared is version {instead}, the newest one that can be read"
            yield NotCompared(
                side=OLD,
                file=self._newest.root.path,
                after=None,
                before=None,
                why=why,
            )
        # What cannot be read of the target is a finding, and ends the rollback.
        here = (hole for hole in self._holes if hole.side == OLD)
        yield from islice(here, SHOWN)

    # -- commit --------------------------------------------------------------------------------

    def commit(self, plan: RecoveryPlan, before_commit: Callable[[], None] | None = None) -> RecoveryPlan:
        """Commit the content of the target as a new version; return the plan with its number.

        One ``create`` and at most two ``put``; over a root that cannot be read, one ``put`` and one ``head`` more.
        ``before_commit`` is called right before the root is created; raising there gives the rollback up.

        Raises:
            PlanOutdated: another writer changed objects since the plan, and the rollback is not forced.
            VersionExpired, SnapshotNotFound, StorageError.
        """
        summary = commit_summary(reason=self._reason, target_version=self._target.version)
        change = RolledBack(self.backend, self._target, summary, force=self._force, is_same=self._is_same)
        root = commit(self.backend, self._newest.root, change, before_commit=before_commit)
        return replace(plan, version_after=root.version)


def prove_rollback(rollback: Rollback) -> RecoveryPlan:
    """Prove a rollback in this process; return its plan. Costs and raises as the two methods that it calls."""
    for changes in rollback.changes_to_prove():
        rollback.add_findings(find_damaged_definitions(rollback.backend, changes))
    return rollback.proved_plan()


class _ProvingReader:
    """The reader of a comparison, which examines the nodes of the target when it reads them.

    Attributes:
        proof: what is wrong with the target, and how many of its nodes were read.
        codec: of the keys of both versions.
    """

    def __init__(self, backend: LakehouseBackend, target: Root) -> None:
        definition = backend.definition(target)
        self.codec = codec_of(definition)
        self.proof = TreeProof(target, definition.order, self.codec)
        head = read_head(backend.versions, target.path, lambda: target)
        if isinstance(head, Violation):
            self.proof.add([head])
        # What another reader has cached may be gone by now.
        self._nodes = NodeStore(
            backend.storage,
            definition.order,
            definition.node_file_max_size_bytes,
            _CACHED_BYTES,
        )

    def read(self, path: str) -> Node:
        """Return a node; one of the target is examined. Raises ``Corrupt``."""
        try:
            return self._examine(path, self._nodes.read(path))
        except Corrupt as error:
            if self.proof.take_expected(path) is not None:
                self.proof.add([violation(error.invariant, error.path or path, str(error))])
            raise

    def read_many(self, paths: Sequence[str]) -> Iterator[Node]:
        """Yield nodes in order, reading ahead; each that is of the target is examined."""
        return map(self._examine, paths, self._nodes.read_many(paths))

    def held(self, paths: Sequence[str]) -> Iterator[Node]:
        """Yield nodes as the store does, examined."""
        return map(self._examine, paths, self._nodes.held(paths))

    def prefetch(self, paths: Iterable[str]) -> AbstractContextManager[None]:
        """Read nodes ahead as the store does."""
        return self._nodes.prefetch(paths)

    def _examine(self, path: str, node: Node) -> Node:
        self.proof.examine(path, node)
        return node

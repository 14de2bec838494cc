"""A restore in three steps: plan, prove, commit (format, section 6). Nothing is written before the last one.

    restore = plan_restore(backend, patterns, RecoveryTarget(version=7), reason=reason)
    restore.select(restore.differences())
    plan = restore.plan()
    restore.refuse_damaged(find_damaged_definitions(restore.there.backend, restore.coming_back()))
    plan = restore.commit(plan)

The caller compares the two versions, and reads the definitions that come back: in this process, or in tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

from trinitylake_core import spec
from trinitylake_core.check import Violation
from trinitylake_core.commits.backend import LakehouseBackend
from trinitylake_core.commits.commit import require_writable
from trinitylake_core.commits.rolled_back import IsSame, has_none, newest_base, refuse_lost
from trinitylake_core.diff import Change, diff_trees
from trinitylake_core.errors import Corrupt, InvalidInput
from trinitylake_core.keys import NAMESPACE
from trinitylake_core.recovery.copying import CopyIn, changes_to_copy, find_damaged_here, rekey
from trinitylake_core.recovery.plan import ChangeTally, RecoveryPlan, refuse_damaged, refuse_outdated, require_reason
from trinitylake_core.recovery.selection import Selection, Side
from trinitylake_core.recovery.target import RecoveryTarget
from trinitylake_core.transactions.transaction import Transaction
from trinitylake_core.versions import Root, version_info

_T = TypeVar("_T", bound=Transaction)


def plan_restore(
    backend: LakehouseBackend,
    only: Sequence[str],
    target: RecoveryTarget,
    *,
    reason: str | None,
    source: Side | None = None,
    exact: bool = False,
    damaged: bool = False,
    expected_version: int | None = None,
    is_same: IsSame = has_none,
) -> Restore:
    """Return a restore from a version, which nothing speaks against so far. Some five ``get``: no node is read yet.

    Args:
        backend: of the lakehouse.
        only: patterns such as ``sales.orders`` or ``sales.*``; ``sales`` alone is the namespace itself.
        target: the version to restore from; with ``source`` one of that lakehouse, by default the one given there.
        reason: why; required.
        source: a version of another lakehouse, such as a backup.
        exact: also drop objects that match and did not exist then.
        damaged: with ``source``, also bring in objects whose definition file here is missing or damaged.
        expected_version: the newest version when the plan that somebody reviewed was made.
        is_same: which changes of others leave the content as it was, and the plan as good; by default none.

    Raises:
        InvalidInput: no reason, no pattern, or one that may name objects in several namespaces.
        VersionNotFound, VersionExpired, SnapshotNotFound.
        PlanOutdated: another writer changed objects since ``expected_version``.
        ReadOnly, Corrupt, StorageError.
    """
    reason = require_reason(reason)
    refuse_no_source(source, damaged=damaged)
    newest = backend.newest()
    backend.note_newest(newest)
    if expected_version is not None:
        refuse_outdated(backend, expected_version, newest, is_same)
    if source is None:
        there = Side(backend, target.root(backend))
    elif target.is_given:
        there = Side(source.backend, target.root(source.backend))
    else:
        there = source
    require_writable(backend, newest)
    if not only:
        raise InvalidInput("say which objects to restore: patterns such as 'sales.orders' or 'sales.*'")
    if isinstance(only, str):
        patterns = [only]
    else:
        patterns = list(only)
    if source is None:
        refuse_lost(backend, newest, there.root)
    here = Side(backend, newest)
    return Restore(
        here=here,
        there=there,
        only=patterns,
        reason=reason,
        copies=source is not None,
        exact=exact,
        damaged=damaged,
    )


def refuse_no_source(source: object, *, damaged: bool) -> None:
    """Raise ``InvalidInput`` if damaged objects are to be restored and the caller named no other lakehouse."""
    if damaged and source is None:
        raise InvalidInput("damaged definition files come back from another lakehouse: name it as the source")


class Restore:
    """A restore that :func:`plan_restore` made.

    Attributes:
        here: the newest version.
        there: the version that the objects come from.
        copies: ``there`` is of another lakehouse, and definitions are copied from it.
    """

    def __init__(
        self,
        here: Side,
        there: Side,
        only: list[str],
        reason: str,
        *,
        copies: bool,
        exact: bool,
        damaged: bool,
    ) -> None:
        self.here = here
        self.there = there
        self.copies = copies
        self._only = only
        self._reason = reason
        self._damaged = damaged
        self._changes: list[Change] = []
        with self.still_kept():
            self._selection = Selection(
                here,
                there,
                only,
                exact=exact,
                remember=damaged,
            )

    # -- plan ----------------------------------------------------------------------------------

    @contextmanager
    def still_kept(self) -> Iterator[None]:
        """Tell damage from a target that expired, and was cleaned, while it was read. Then three ``get`` more.

        Raises:
            VersionExpired, SnapshotNotFound: the target is no longer kept, so that what is missing was removed.
            Corrupt: it is kept, and damaged.
        """
        try:
            yield
        except Corrupt:
            if not self.copies:
                backend = self.here.backend
                newest = newest_base(backend)
                refuse_lost(backend, newest.root, self.there.root)
            raise

    def differences(self) -> Iterator[Change]:
        """Compare the two versions in this process; yield what changes from here to there.

        Reads the nodes that the two versions do not share.
        """
        here = self.here
        there = self.there
        return diff_trees(
            here.backend.nodes,
            here.root.node,
            here.codec,
            there.backend.nodes,
            there.root.node,
            there.codec,
        )

    def select(self, differing: Iterable[Change]) -> None:
        """Select from some of the changes from here to there. Call it with all of them before :meth:`plan`."""
        self._selection.take(differing)

    def plan(self) -> RecoveryPlan:
        """Return the plan: the objects that match and differ, and the missing namespaces that they need.

        One lookup for each pattern that matched nothing. From another lakehouse, two ``get`` for each object that
        differs by the name of its file, to leave those alone that were copied in before.

        Raises:
            ObjectNotFound: a pattern matches nothing, neither there nor here.
            NamespaceNotEmpty: with ``exact``, a namespace would be dropped, but not all that is in it.
            VersionExpired, SnapshotNotFound, Corrupt.
        """
        with self.still_kept():
            changes = self._selection.changes()
            if self.copies:
                changes = changes_to_copy(self.here, self.there, changes)
                if self._damaged:
                    changes += find_damaged_here(self.here, self.there, self._selection.of_one_file())
                changes = rekey(changes, self.here.codec)
        self._changes = changes
        tally = ChangeTally()
        tally.add(changes)
        target = self.there.root
        return RecoveryPlan(
            operation=spec.OP_RESTORE,
            version=self.here.root.version,
            target_version=target.version,
            target_created_at=version_info(target).created_at,
            target=target.path,
            counts=tally.counts,
            changes=tuple(tally.shown),
            since=(),
            versions_undone=0,
            reason=self._reason,
            source=self.there.backend.storage.root if self.copies else None,
        )

    # -- prove ---------------------------------------------------------------------------------

    def coming_back(self) -> list[Change]:
        """Return the changes whose definitions come back. REQUIRES: :meth:`plan` was called."""
        return [change for change in self._changes if change.new_path is not None]

    def changes(self) -> Sequence[Change]:
        """Return all changes. REQUIRES: :meth:`plan` was called."""
        return self._changes

    def refuse_damaged(self, violations: Iterable[Violation]) -> None:
        """Refuse definitions that are missing or damaged, as :func:`trinitylake_core.recovery.plan.refuse_damaged`."""
        refuse_damaged(self.here.backend, self.there.root, violations, of_other=self.copies)

    # -- commit --------------------------------------------------------------------------------

    def commit(self, plan: RecoveryPlan, before_commit: Callable[[], None] | None = None) -> RecoveryPlan:
        """Commit the changes as one ordinary transaction; return the plan with the number of its version.

        Costs a commit; from another lakehouse one ``get`` there, one ``put`` and one ``get`` here for each definition.
        ``before_commit`` is called right before the root is created; raising there gives the restore up.

        Raises:
            CommitConflict: another writer changed one of these objects.
            Corrupt: a definition to copy is missing or damaged; nothing was changed.
            VersionExpired, SnapshotNotFound, StorageError.
        """
        if not self._changes:
            return plan
        facts = {"target_version": plan.target_version, "only": self._only, "counts": plan.counts}
        if self.copies:
            facts["source"] = plan.source
            version = self._copy_in(facts, before_commit)
        else:
            version = self._bring_back(facts, before_commit)
        return replace(plan, version_after=version)

    def _begin(self, kind: type[_T], facts: dict[str, Any]) -> _T:
        txn = kind(self.here.backend, self.here.root, reason=self._reason)
        txn.change.operation = spec.OP_RESTORE
        txn.change.facts = facts
        return txn

    def _bring_back(self, facts: dict[str, Any], before_commit: Callable[[], None] | None) -> int:
        txn = self._begin(BringBack, facts)
        txn.take(self.there.root, self._changes)
        return txn.commit(before_commit=before_commit)

    def _copy_in(self, facts: dict[str, Any], before_commit: Callable[[], None] | None) -> int:
        txn = self._begin(CopyIn, facts)
        txn.take(self.there, self._changes)

        def prove_copies() -> None:
            txn.prove_copies()
            if before_commit is not None:
                before_commit()

        return txn.commit(before_commit=prove_copies)


class BringBack(Transaction):
    """A transaction whose definitions only the version that it takes them from may keep alive."""

    def take(self, target: Root, changes: Sequence[Change]) -> None:
        """Point objects to their definitions in another version, and drop what is gone there. No request.

        The commit stops when that version has expired (``VersionExpired``, ``SnapshotNotFound``).
        """
        self.change.require_kept(target)
        for change in changes:
            self.put(change.key, change.new_path, replaces=change.old_path is not None)
            is_dropped = change.new_path is None
            if change.kind == NAMESPACE:
                if is_dropped:
                    self.close_namespace(change.namespace)
            elif not is_dropped:
                self.need_namespace(change.namespace)

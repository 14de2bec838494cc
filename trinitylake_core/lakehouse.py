"""The main class of the library: open, create, read and change a lakehouse (``docs/format.md``)."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Self, Unpack

from trinitylake_core import spec
from trinitylake_core.commits.changes import create_empty, create_first
from trinitylake_core.commits.commit import now_millis, require_writable
from trinitylake_core.commits.files import LakehouseStore
from trinitylake_core.commits.frozen import Freeze
from trinitylake_core.definitions import LakehouseOptions, new_lakehouse_def, usual_order
from trinitylake_core.errors import AlreadyExists, Corrupt, InvalidInput, NotALakehouse, TrinityLakeError
from trinitylake_core.lakehouse_view import Handle, Stats
from trinitylake_core.properties import Alteration, alter, freeze
from trinitylake_core.recovery.plan import DefinitionsPreflight, Differ, Preflight, RecoveryPlan, Review
from trinitylake_core.recovery.recover import (
    newest_root,
    refuse_no_source,
    required,
    restore,
    rollback,
    rollback_base,
)
from trinitylake_core.recovery.selection import Side
from trinitylake_core.recovery.target import RecoveryTarget
from trinitylake_core.snapshots import SnapshotInfo, drop, new_snapshot, snapshot_infos
from trinitylake_core.storage import Storage, open_storage, root_uri
from trinitylake_core.transactions.group import CommitGroup
from trinitylake_core.transactions.requests import RequestKey
from trinitylake_core.transactions.transaction import Transaction
from trinitylake_core.versions import Versions, from_millis, to_millis, version_info

__all__ = ["Lakehouse", "Stats", "create_first"]


class Lakehouse(Handle):
    """A handle of one version of a lakehouse. It stays at its version until :meth:`refresh`.

    A transaction begins at the newest version this handle has seen or committed itself.
    Thread-safe for reading.
    """

    # -- opening -------------------------------------------------------------------------------

    @classmethod
    def open(
        cls,
        root: str | os.PathLike[str] | Storage,
        *,
        storage_options: Mapping[str, Any] | None = None,
        damaged: bool = False,
    ) -> Self:
        """Open the newest version of the lakehouse at a root URI.

        Args:
            root: root URI, ``file:///…`` or ``s3://…``, or the path of a directory.
            storage_options: see ``docs/storage.md``.
            damaged: where the newest root cannot be read, open the newest version that can be read. ``unreadable``
                lists the versions after it. Such a handle serves reads and a rollback; it refuses commits.

        Costs one ``get`` each for the hint, the next version, the root and the boundary, one for a large definition;
        those for root and boundary go out together.

        Raises:
            InvalidLocation, NotALakehouse, Corrupt, InvalidDefinition, StorageError.
        """
        storage = root if isinstance(root, Storage) else open_storage(root_uri(root), storage_options)
        versions = Versions(storage)
        try:
            newest = versions.latest()
            return cls(LakehouseStore(storage, versions, newest), newest)
        except Corrupt as error:
            if not damaged:
                raise type(error)(
                    f"the newest version cannot be opened: {error}; `trinitylake history` lists those before it, and "
                    f"{_way_back(versions)}",
                    path=error.path,
                    invariant=error.invariant,
                ) from error
        newest, unreadable = versions.newest_readable()
        lake = cls(LakehouseStore(storage, versions, newest), newest, pinned=bool(unreadable))
        lake.unreadable = tuple(map(version_info, unreadable))
        return lake

    @classmethod
    def create(
        cls,
        root: str | os.PathLike[str] | Storage,
        *,
        storage_options: Mapping[str, Any] | None = None,
        strict: bool = False,
        **definition: Unpack[LakehouseOptions],
    ) -> Self:
        """Create an empty lakehouse, version 0.

        Args:
            root: root URI or path. Files that exist there are left alone. There must be no lakehouse.
            storage_options: see ``docs/storage.md``.
            strict: check the whole tree before every root this handle creates; for tests.
            **definition: order, namespace_name_max_size_bytes, table_name_max_size_bytes,
                view_name_max_size_bytes, node_file_max_size_bytes, properties, txn_ttl_millis,
                txn_isolation_level (format, section 5). Without an order it is 512, less where names are long or
                nodes small.

        Raises:
            InvalidDefinition: an order below 3, or sizes that leave no room for a write buffer.
            AlreadyExists, InvalidLocation, UnsafeStorage, StorageError.
        """
        message = new_lakehouse_def(**definition)
        if definition.get("order") is None:
            message.order = usual_order(message)
        storage = root if isinstance(root, Storage) else open_storage(root_uri(root), storage_options)
        versions = Versions(storage)
        try:
            existing = versions.latest()
        except NotALakehouse:
            first = create_empty(versions, message)
            return cls(LakehouseStore(storage, versions, first, strict=strict), first)
        versions.definition(existing)  # an unsupported one is reported first
        raise AlreadyExists(f"{storage.root} already holds a lakehouse, at version {existing.version}")

    # -- changing ------------------------------------------------------------------------------

    def group(self) -> CommitGroup:
        """Return a group for transactions that threads of this process commit at the same time. No request.

        Those that do not conflict become one version together, and each costs a part of its requests. One group serves
        all threads:

            group = lake.group()
            with lake.transaction(group=group) as txn: ...      # in each thread
        """
        return CommitGroup(self._files)

    def transaction(
        self,
        *,
        isolation: str | None = None,
        reason: str | None = None,
        group: CommitGroup | None = None,
        request: RequestKey | None = None,
    ) -> Transaction:
        """Begin a transaction at the newest version this handle knows.

        Args:
            isolation: SNAPSHOT or SERIALIZABLE; by default the level in the lakehouse definition.
            reason: why, for the history.
            group: what commits it together with others (:meth:`group`); by default it becomes a version of its own.
            request: the key of a request, with a group; it is committed at most once.

        Raises:
            ReadOnly: another generation of the format wrote this lakehouse.
            Repeated, OutcomeUnknown: as ``Requests.refuse_repeated``, of the request.
        """
        base = (
            self._root
            if self._pinned or self._root.version > self._files.newest_seen.version
            else self._files.newest_seen
        )
        require_writable(self._files, base)
        if request is not None and group is not None:
            group.requests.refuse_repeated(request, base)
        return Transaction(self._files, base, isolation=isolation, reason=reason, group=group, request=request)

    def resume_transaction(self, transaction_id: str) -> Transaction:
        """Return a transaction that was saved, by this process or another. Two ``get``.

        Raises ``TransactionNotFound``, ``TransactionExpired``, ``Corrupt``.
        """
        return Transaction.resume(self._files, transaction_id)

    def alter(
        self,
        properties: Mapping[str, str | None],
        *,
        reason: str | None = None,
        dry_run: bool = False,
        before_commit: Callable[[], None] | None = None,
    ) -> Alteration:
        """Set properties of the lakehouse, or remove them, as a new version; this handle stays at its own.

        The properties ``maintenance.*`` configure jobs: ``maintenance.delete.enabled=false`` forbids them to delete.

        Args:
            properties: values by name; ``None`` removes a property.
            reason: why, for the history.
            dry_run: return the changes without making them; nothing is written.
            before_commit: called right before the root is created; raising there gives it up.

        Raises:
            InvalidInput, ReadOnly, UnsafeStorage, StorageError.
        """
        return alter(
            self._files,
            newest_root(self._files),
            properties,
            reason=reason,
            dry_run=dry_run,
            before_commit=before_commit,
        )

    def freeze(
        self,
        *,
        reason: str | None = None,
        until: datetime | str | None = None,
        before_commit: Callable[[], None] | None = None,
    ) -> Freeze:
        """Stop all ordinary commits, as a new version; this handle stays at its own. Costs as :meth:`alter`.

        Transactions and loads of every writer end with ``LakehouseFrozen``, and go on when the lakehouse is thawed.
        Maintenance, rollback and restore work as ever; a rollback does not thaw. The author may freeze again, to change
        the reason or the end.

        Args:
            reason: why; required, and in the message that writers get.
            until: when it ends by itself, by the clock of each writer, ISO 8601, UTC; by default when it is thawed.
            before_commit: called right before the root is created; raising there gives the freeze up.

        Raises:
            InvalidInput: no reason, or an end that has passed.
            LakehouseFrozen: another author has frozen it.
            ReadOnly, UnsafeStorage, StorageError.
        """
        end = None if until is None else from_millis(to_millis(until))
        return freeze(self._files, newest_root(self._files), required(reason), end, before_commit=before_commit)

    def thaw(self, *, reason: str | None = None, before_commit: Callable[[], None] | None = None) -> Alteration:
        """Take ordinary commits again, as a new version; where nothing is frozen, nothing changes. As :meth:`alter`."""
        return self.alter({spec.FREEZE: None}, reason=reason, before_commit=before_commit)

    # -- snapshots -----------------------------------------------------------------------------

    def create_snapshot(
        self,
        name: str,
        *,
        version: int | None = None,
        kind: str = "minimal",
        target_uri: str | None = None,
        expires_at: datetime | str | None = None,
        reason: str | None = None,
        before_commit: Callable[[], None] | None = None,
    ) -> SnapshotInfo:
        """Give a version a name that keeps it readable after it expires; this is a new version itself.

        Args:
            name: without spaces; unique among the snapshots.
            version: the version to name; by default the one of this handle.
            kind: ``minimal`` copies the root alone, ``partial`` every node; ``full`` records a copy that
                `export` made at ``target_uri``.
            target_uri: root URI of a full copy.
            expires_at: when it may be removed; by default never.
            reason: why, for the history.
            before_commit: called right before the root is created; raising there gives the snapshot up.

        Raises:
            InvalidInput, AlreadyExists, VersionNotFound, VersionExpired.
        """
        root = self._root if version is None else self._files.versions.root(version)
        expire = None if expires_at is None else to_millis(expires_at)
        if expire is not None and expire <= now_millis():
            raise InvalidInput("the snapshot would have expired already: expires_at lies in the past")
        require_writable(self._files, self._files.newest_seen)
        made = new_snapshot(
            self._files,
            root,
            name,
            kind=kind,
            target_uri=target_uri,
            expire_at_millis=expire,
            reason=reason,
            before_commit=before_commit,
        )
        return next(info for info in snapshot_infos(self._files.definition(made)) if info.name == name)

    def drop_snapshot(
        self, name: str, *, reason: str | None = None, before_commit: Callable[[], None] | None = None
    ) -> None:
        """Remove a snapshot's name; `clean` removes its files later. Raises ``SnapshotNotFound``."""
        require_writable(self._files, self._files.newest_seen)
        drop(self._files, name, reason, before_commit=before_commit)

    # -- recovery ------------------------------------------------------------------------------

    def rollback(
        self,
        *,
        version: int | None = None,
        timestamp: datetime | str | None = None,
        snapshot: str | None = None,
        reason: str | None = None,
        dry_run: bool = False,
        force: bool = False,
        expected_version: int | None = None,
        preflight: Preflight | None = None,
        definitions: DefinitionsPreflight | None = None,
        review: Review | None = None,
        before_commit: Callable[[], None] | None = None,
    ) -> RecoveryPlan:
        """Commit a new version with the content of an older version or of a snapshot. History only grows.

        The nodes and definitions of the target that the newest version does not use are read and proved first; the
        rest is in use now.

        The newest version and its root may be damaged. See :meth:`open` with ``damaged``.

        Args:
            version: the target by number.
            timestamp: the target by time.
            snapshot: the target by the name of a snapshot.
            reason: why; required.
            dry_run: return the plan, with every change named; nothing is written.
            force: also undo what other writers commit while this runs.
            expected_version: the newest version when the plan that you reviewed was made.
            preflight: a function that proves the whole target; by default none does.
            definitions: a function that proves the definitions that come back; by default they are read here.
            review: called with the plan, every change named, before anything is written; ``False``: return the plan.
            before_commit: called right before the root is created; raising there gives the rollback up.

        Compactions, snapshots and expirations in between change no object, and stop nothing.

        Raises:
            InvalidInput, VersionNotFound, VersionExpired, SnapshotNotFound.
            Corrupt: a file of the target is missing or damaged.
            PlanOutdated: another writer committed since the plan, and ``force`` is not set.
        """
        required(reason)
        base = rollback_base(self._files, None if force else expected_version)
        target = RecoveryTarget(version, timestamp, snapshot).root(self._files)
        return rollback(
            self._files,
            base,
            target,
            reason=reason,
            review=_refuse if dry_run else review,
            force=force,
            preflight=preflight,
            definitions=definitions,
            before_commit=before_commit,
        )

    def restore(
        self,
        only: Sequence[str],
        *,
        version: int | None = None,
        timestamp: datetime | str | None = None,
        snapshot: str | None = None,
        source: Handle | None = None,
        reason: str | None = None,
        exact: bool = False,
        damaged: bool = False,
        dry_run: bool = False,
        expected_version: int | None = None,
        preflight: DefinitionsPreflight | None = None,
        differ: Differ | None = None,
        review: Review | None = None,
        before_commit: Callable[[], None] | None = None,
    ) -> RecoveryPlan:
        """Restore selected objects from a version, as one ordinary transaction.

        Args:
            only: patterns such as ``sales.orders`` or ``sales.*``; ``sales`` alone is the namespace itself.
            version: the version to restore from, by number.
            timestamp: the version to restore from, by time.
            snapshot: the version to restore from, by the name of a snapshot.
            source: another lakehouse to restore from, such as a backup. The version is one of that lakehouse, by
                default that of the handle. Definitions are copied from it. The data of tables is not copied.
            reason: why; required.
            exact: also drop objects that match and did not exist then.
            damaged: with ``source``, also bring in objects whose definition file here is missing or damaged, where both
                lakehouses name the same file. Two more ``get`` for each object that matches.
            dry_run: return the plan; nothing is written.
            expected_version: the newest version when the plan that you reviewed was made.
            preflight: a function that proves the definitions to restore; by default they are read here.
            differ: a function that compares two versions; by default it runs in this process.
            review: called with the plan before anything is written; ``False``: return the plan.
            before_commit: called right before the root is created; raising there gives the restore up.

        Raises:
            InvalidInput, ObjectNotFound, NamespaceNotEmpty, VersionNotFound, VersionExpired, SnapshotNotFound,
            Corrupt, CommitConflict.
            PlanOutdated: another writer changed objects since the plan.
        """
        required(reason)
        refuse_no_source(source, damaged=damaged)
        base = newest_root(self._files, expected_version)
        target = RecoveryTarget(version, timestamp, snapshot)
        there = self if source is None else source
        root = source.root_node if source is not None and not target.given else target.root(there.files)
        return restore(
            self._files,
            base,
            Side(there.files, root),
            only=[only] if isinstance(only, str) else only,
            reason=reason,
            copy=source is not None,
            exact=exact,
            damaged=damaged,
            review=_refuse if dry_run else review,
            preflight=preflight,
            differ=differ,
            before_commit=before_commit,
        )


def _refuse(plan: RecoveryPlan) -> bool:
    """Return ``False``: the review of a dry run."""
    del plan
    return False


def _way_back(versions: Versions) -> str:
    """Return the advice for a newest version that cannot be opened: a command. A listing, and some ``get``."""
    general = "`trinitylake rollback` returns to one of them"
    try:
        readable, unreadable = versions.newest_readable()
    except TrinityLakeError:
        return general
    if not unreadable:
        return general
    return (
        f"`trinitylake rollback {versions.storage.root} --to-version {readable.version} --reason REASON` returns to "
        "the newest one that can be read"
    )

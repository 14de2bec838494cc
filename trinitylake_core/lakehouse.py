"""The main class of the library: open, create, read and change a lakehouse (``docs/format.md``)."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Never, Self, Unpack

from trinitylake_core import clock, spec
from trinitylake_core.catalog import CatalogView, codec_of, look_up_counts
from trinitylake_core.check import Violation, check_lakehouse, check_version
from trinitylake_core.commits.backend import LakehouseBackend
from trinitylake_core.commits.changes import NewDefinition, commit_summary, create_first
from trinitylake_core.commits.commit import commit, is_other_generation, require_writable, whoami
from trinitylake_core.commits.fences import measure_storage_time
from trinitylake_core.commits.frozen import Freeze, freeze_of, parse_freeze, refuse_frozen
from trinitylake_core.commits.rolled_back import newest_base, refuse_lost
from trinitylake_core.definitions import (
    LakehouseDef,
    LakehouseOptions,
    altered_lakehouse,
    lost_versions,
    new_lakehouse_def,
    usual_order,
)
from trinitylake_core.diff import Change, diff_trees
from trinitylake_core.errors import AlreadyExists, Corrupt, InvalidInput, NotALakehouse, TrinityLakeError
from trinitylake_core.keys import NAMESPACE, TABLE, VIEW
from trinitylake_core.other_names import HOW_TO_OPEN, OF_LAKEHOUSES
from trinitylake_core.recovery.plan import RecoveryPlan, find_damaged_definitions, require_reason
from trinitylake_core.recovery.restore import plan_restore
from trinitylake_core.recovery.rollback import plan_rollback, prove_rollback
from trinitylake_core.recovery.selection import Side
from trinitylake_core.recovery.target import RecoveryTarget
from trinitylake_core.snapshots import SnapshotChange, SnapshotInfo, new_snapshot, snapshot_infos, without_snapshot
from trinitylake_core.storage import Storage, storage_at
from trinitylake_core.transactions.group import CommitGroup
from trinitylake_core.transactions.requests import RequestKey
from trinitylake_core.transactions.transaction import Transaction
from trinitylake_core.tree.node import Node
from trinitylake_core.versions import (
    ObjectCounts,
    Root,
    VersionInfo,
    Versions,
    from_millis,
    objects_of,
    to_millis,
    version_info,
)


@dataclass(frozen=True, slots=True)
class Stats:
    """Statistics of a version, from one read of its root. Counts are ``None`` where the root does not record them.

    ``uncertain`` is the number of messages of which it is not known whether they create or delete an object. Where
    there are some, ``objects``, ``namespaces``, ``tables`` and ``views`` are the most that it can be; else they are
    exact. A compaction after which no message waits settles them; a full one always counts.
    """

    version: int
    oldest_version: int
    created_at: datetime
    objects: int | None
    messages: int | None
    root_messages: int
    height: int | None
    order: int
    root_bytes: int
    root_fill: float
    operation: str | None
    namespaces: int | None = None
    tables: int | None = None
    views: int | None = None
    uncertain: int | None = None


@dataclass(frozen=True, slots=True)
class Alteration:
    """What a change of properties did, or on a dry run would do.

    Attributes:
        version: the newest version, which it was planned at.
        version_after: the version it became; ``None`` on a dry run, or when there was nothing to change.
        changes: value before and after of each property that changes; ``None`` where there is none.
        properties: all properties afterwards.
    """

    version: int
    version_after: int | None
    dry_run: bool
    changes: dict[str, tuple[str | None, str | None]]
    properties: dict[str, str]
    reason: str | None


class Lakehouse(CatalogView):
    """A handle of one version of a lakehouse. It stays at its version until :meth:`refresh`.

    A transaction begins at the newest version this handle has seen or committed itself.
    Thread-safe for reading.
    """

    _other_names = OF_LAKEHOUSES

    if not TYPE_CHECKING:  # a type checker knows the arguments

        def __new__(cls, *given: Any, **named: Any) -> Self:
            """Refuse a root URI, and say what opens it."""
            if len(given) < 2 and "root" not in named:
                raise TypeError(HOW_TO_OPEN)
            return super().__new__(cls)

    def __init__(self, backend: LakehouseBackend, root: Root, *, pinned: bool = False) -> None:
        self._backend = backend
        self._nodes = backend.nodes
        self._pinned = pinned
        self.unreadable: tuple[VersionInfo, ...] = ()
        """Versions after this one whose roots could not be read when it was opened with ``damaged``, newest first."""
        self._stand_on(root)

    def _stand_on(self, root: Root) -> None:
        self._root = root
        self._definition_message = self._backend.definition(root)
        self._keys = codec_of(self._definition_message, sdk=self._backend.versions.sdk)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is open that would have to be closed."""

    def __eq__(self, other: object) -> bool:
        """Whether another handle reads the same version of the same lakehouse."""
        if not isinstance(other, Lakehouse):
            return NotImplemented
        return (self.root, self.definition.id, self._root.path) == (other.root, other.definition.id, other._root.path)

    def __hash__(self) -> int:
        return hash((self.root, self.definition.id))  # a handle moves

    def __reduce__(self) -> Never:
        raise TypeError(
            "a handle holds connections and credentials: pickle its root and version, and open it again with "
            "Lakehouse.open(root, storage_options=...).at(version)"
        )

    def __repr__(self) -> str:
        return f"Lakehouse({self.root!r}, version={self.version})"

    # -- moving --------------------------------------------------------------------------------

    def at(
        self,
        version: int | str | None = None,
        *,
        timestamp: datetime | str | None = None,
        snapshot: str | None = None,
        time: datetime | str | None = None,
    ) -> Self:
        """Return a handle of another version. A transaction begun on it begins there.

        Args:
            version: by number; two ``get`` at the same time. Or as text: ``HEAD``, ``HEAD~3``, the name of a snapshot,
                a time, or an age such as ``-2h``.
            timestamp: the newest version created at or before a time: text in ISO 8601, UTC unless it has an offset, or
                a ``datetime`` with a time zone; O(log) ``get``.
            snapshot: by the name of a snapshot of this version's definition.
            time: the same as ``timestamp``.

        Raises:
            VersionNotFound, VersionExpired, SnapshotNotFound, InvalidInput.
        """
        if time is not None and timestamp is not None:
            raise InvalidInput("give the time once: as timestamp, or as time")
        target = RecoveryTarget(version, timestamp if time is None else time, snapshot)
        return type(self)(self._backend, target.root(self._backend), pinned=True)

    def refresh(self) -> Self:
        """Move this handle to the newest version and return it. Three ``get`` if there is none newer."""
        self._stand_on(self._find_newest())
        self._pinned = False
        return self

    def _find_newest(self) -> Root:
        newest = self._backend.newest()
        self._backend.note_newest(newest)
        return newest

    def catch_up(self) -> Self:
        """Move this handle to the newest version that it, or a commit through it, has seen. No request."""
        if self._backend.newest_seen.version > self._root.version:
            self._stand_on(self._backend.newest_seen)
        self._pinned = False
        return self

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
        storage = storage_at(root, storage_options)
        versions = Versions(storage)
        try:
            newest = versions.latest()
            return cls(LakehouseBackend(storage, versions, newest), newest)
        except Corrupt as error:
            if not damaged:
                raise type(error)(
                    f"the newest version cannot be opened: {error}; `trinitylake mend {storage.root} --from BACKUP "
                    "--reason REASON` puts its file back. Without a backup of it, `trinitylake history` lists the "
                    f"versions before, and {_way_back(versions)}",
                    path=error.path,
                    invariant=error.invariant,
                ) from error
        newest, unreadable = versions.newest_readable()
        lake = cls(LakehouseBackend(storage, versions, newest), newest, pinned=bool(unreadable))
        lake.unreadable = tuple(map(version_info, unreadable))
        return lake

    @classmethod
    def create(
        cls,
        root: str | os.PathLike[str] | Storage,
        *,
        storage_options: Mapping[str, Any] | None = None,
        **definition: Unpack[LakehouseOptions],
    ) -> Self:
        """Create an empty lakehouse, version 0.

        Args:
            root: root URI or path. Files that exist there are left alone. There must be no lakehouse.
            storage_options: see ``docs/storage.md``.
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
        storage = storage_at(root, storage_options)
        versions = Versions(storage)
        try:
            existing = versions.latest()
        except NotALakehouse:
            first = create_first(versions, message)
            return cls(LakehouseBackend(storage, versions, first), first)
        versions.definition(existing)  # an unsupported one is reported first
        raise AlreadyExists(f"{storage.root} already holds a lakehouse, at version {existing.version}")

    # -- the version of this handle ------------------------------------------------------------

    @property
    def root(self) -> str:
        """The root URI, ending in ``/``."""
        return self._backend.storage.root

    @property
    def version(self) -> int:
        """The version this handle reads."""
        return self._root.version

    @property
    def definition(self) -> LakehouseDef:
        """The lakehouse definition of this version, defaults filled in."""
        return self._definition_message

    @property
    def storage(self) -> Storage:
        """The storage, which counts its requests."""
        return self._backend.storage

    @property
    def backend(self) -> LakehouseBackend:
        """Storage, nodes and versions, for pipelines."""
        return self._backend

    @property
    def root_node(self) -> Root:
        """The root of this version, for pipelines."""
        return self._root

    @property
    def read_only(self) -> bool:
        """Whether another generation of the format wrote this lakehouse; ``upgrade`` copies it into a new one."""
        return is_other_generation(self._backend, self._root)

    @property
    def frozen(self) -> Freeze | None:
        """Why this version takes no ordinary commits; ``None`` where it does. No request."""
        return freeze_of(self._definition_message)

    def _root_node(self) -> Node:
        return self._root.node

    def _refuse_expired(self) -> None:
        refuse_lost(self._backend, newest_base(self._backend).root, self._root)

    def info(self) -> VersionInfo:
        """Return the description of this version that its root contains. No request."""
        return version_info(self._root)

    def stats(self) -> Stats:
        """Return the statistics that the root of this version contains. No request."""
        node = self._root.node
        bounds = self._root.count_bounds
        counted = {} if bounds is None else {**bounds.most._asdict(), "uncertain": bounds.uncertain}
        return Stats(
            version=self._root.version,
            oldest_version=self._root.oldest_version,
            created_at=from_millis(self._root.created_at_millis),
            objects=objects_of(node) if node.canonical or node.children else len(node.keys),
            messages=node.subtree_messages if node.canonical or node.children else len(node.buffer),
            root_messages=len(node.buffer),
            height=node.height,
            order=self.definition.order,
            root_bytes=node.nbytes,
            root_fill=round(node.estimated_bytes() / self.definition.node_file_max_size_bytes, 4),
            operation=self._root.operation,
            **counted,
        )

    def count_objects(self) -> ObjectCounts:
        """Return how many objects this version holds, exactly, by kind.

        No request where the root knows it. Otherwise what waits is looked up: one ``get`` for each node that messages
        are for, and two per level. Where nodes do not count, every node is read.
        """
        known = self._root.counts or look_up_counts(self.nodes, self._root.node, self.codec)
        if known is not None:
            return known
        kinds = Counter(each.kind for each in self.objects())
        return ObjectCounts(kinds[NAMESPACE], kinds[TABLE], kinds[VIEW])

    # -- history, difference, integrity --------------------------------------------------------

    def history(self, limit: int | None = None) -> Iterator[VersionInfo]:
        """Yield this version and those before it, newest first, back to the boundary. One ``get`` each."""
        return map(version_info, self._backend.versions.history(self._root, limit))

    def diff(self, a: int | Lakehouse, b: int | Lakehouse) -> Iterator[Change]:
        """Yield the changes from ``a`` to ``b`` in key order.

        Each is a version or a handle, also of another lakehouse. Reads only nodes that the two do not share.
        """
        old = self.at(version=a) if isinstance(a, int) else a
        new = self.at(version=b) if isinstance(b, int) else b
        return diff_trees(old.nodes, old.root_node.node, old.codec, new.nodes, new.root_node.node, new.codec)

    def check(self, *, definitions: bool = False) -> Iterator[Violation]:
        """Yield every broken invariant of this version. Reads every node, with ``definitions`` every definition."""
        yield from check_version(self._backend.versions, self.version, definitions=definitions)
        yield from check_lakehouse(self._backend.versions, self._backend.newest_seen)

    def snapshots(self) -> list[SnapshotInfo]:
        """Return the snapshots of this version's lakehouse definition, oldest first."""
        return snapshot_infos(self.definition)

    # -- changing ------------------------------------------------------------------------------

    def group(self) -> CommitGroup:
        """Return a group for transactions that threads of this process commit at the same time. No request.

        Those that do not conflict become one version together, and each costs a part of its requests. One group serves
        all threads:

            group = lake.group()
            with lake.transaction(group=group) as txn: ...      # in each thread
        """
        return CommitGroup(self._backend)

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
        newest = self._backend.newest_seen
        base = self._root if self._pinned or self._root.version > newest.version else newest
        require_writable(self._backend, base)
        if request is not None and group is not None:
            group.requests.refuse_repeated(request, base)
        return Transaction(self._backend, base, isolation=isolation, reason=reason, group=group, request=request)

    def resume_transaction(self, transaction_id: str) -> Transaction:
        """Return a transaction that was saved, by this process or another. Two ``get``.

        Raises ``TransactionNotFound``, ``TransactionExpired``, ``Corrupt``.
        """
        return Transaction.resume(self._backend, transaction_id)

    def alter(
        self,
        properties: Mapping[str, str | None],
        *,
        reason: str | None = None,
        dry_run: bool = False,
        before_commit: Callable[[], None] | None = None,
    ) -> Alteration:
        """Commit a version that sets or removes properties of the lakehouse; this handle stays at its own.

        After a lost race the same properties are set in the newest definition: those set by other writers stay. One
        ``put`` more than a commit of nothing; three ``get`` or so if nothing changes.

        The properties ``maintenance.*`` configure jobs: ``maintenance.delete.enabled=false`` forbids them to delete.

        Args:
            properties: values by name; ``None`` removes a property.
            reason: why, for the history.
            dry_run: return the changes without making them; nothing is written.
            before_commit: called right before the root is created; raising there gives it up.

        Raises:
            InvalidInput, ReadOnly, UnsafeStorage, StorageError.
        """
        backend = self._backend
        base = self._find_newest()
        require_writable(backend, base)
        if not properties:
            raise InvalidInput("name at least one property to set or to remove")
        frozen = properties.get(spec.FREEZE)
        if frozen is not None and parse_freeze(frozen) is None:
            raise InvalidInput(f"`freeze` sets the property {spec.FREEZE}, and `thaw` removes it")
        before = backend.definition(base)
        after = altered_lakehouse(before, properties=properties)
        if not set(lost_versions(after)) <= set(lost_versions(before)):
            raise InvalidInput(f"`trinitylake mend --lost V` sets {spec.LOST_VERSIONS}, after it has verified V")
        changes = {}
        for name in sorted({*before.properties, *after.properties}):
            old = before.properties.get(name)
            new = after.properties.get(name)
            if old != new:
                changes[name] = (old, new)
        version: int | None = None
        if changes and not dry_run:
            summary = commit_summary(reason=reason, properties=dict(properties))
            change = NewDefinition(
                backend, spec.OP_ALTER, summary, lambda newest, _: altered_lakehouse(newest, properties=properties)
            )
            root = commit(backend, base, change, before_commit=before_commit)
            version, after = root.version, backend.definition(root)
        return Alteration(base.version, version, dry_run, changes, dict(sorted(after.properties.items())), reason)

    def freeze(
        self,
        *,
        reason: str | None = None,
        until: datetime | str | None = None,
        lasts: timedelta | None = None,
        before_commit: Callable[[], None] | None = None,
    ) -> Freeze:
        """Commit a version that stops all ordinary commits; this handle stays at its own. Costs as :meth:`alter`.

        Transactions and loads of every writer end with ``LakehouseFrozen``, and go on when the lakehouse is thawed.
        Maintenance, rollback and restore work as ever; a rollback does not thaw. The author may freeze again, to change
        the reason or the end.

        Args:
            reason: why; required, and in the message that writers get.
            until: when it ends by itself, by the clock of the storage, ISO 8601, UTC; by default when it is thawed.
            lasts: the same, as a time from now on.
            before_commit: called right before the root is created; raising there gives the freeze up.

        Raises:
            InvalidInput: no reason, or an end that has passed, or both ways to say it.
            ClocksDisagree: it has an end, and the clocks of the storage and of this process differ by 15 minutes.
            LakehouseFrozen: another author has frozen it.
            ReadOnly, UnsafeStorage, StorageError.
        """
        reason = require_reason(reason)
        backend = self._backend
        base = self._find_newest()
        require_writable(backend, base)
        if until is not None and lasts is not None:
            raise InvalidInput("give the end of the freeze, or how long it lasts, not both")
        end = None if until is None else from_millis(to_millis(until))
        now = clock.now_millis()
        if until is not None or lasts is not None:
            now = measure_storage_time(backend)
        since = from_millis(now)
        if lasts is not None:
            end = since + lasts
        new = Freeze(reason, whoami(), since, end)
        if end is not None and end <= new.since:
            raise InvalidInput("the freeze would have ended already: its end lies in the past")
        properties = {spec.FREEZE: new.property()}

        def edit(newest: LakehouseDef, _: Root) -> LakehouseDef:
            before = freeze_of(newest)
            if before is not None and before.author != new.author:
                refuse_frozen(backend)
            return altered_lakehouse(newest, properties=properties)

        summary = commit_summary(reason=reason, properties=properties)
        change = NewDefinition(backend, spec.OP_ALTER, summary, edit)
        commit(backend, base, change, before_commit=before_commit, urgent=True)
        return new

    def thaw(self, *, reason: str | None = None, before_commit: Callable[[], None] | None = None) -> Alteration:
        """Commit a version that takes ordinary commits again, if the lakehouse is frozen. As :meth:`alter`."""
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
        """Give a version a name, which keeps it readable after it expires. That commits a new version.

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
        root = self._root if version is None else self._backend.versions.root(version)
        expire = None if expires_at is None else to_millis(expires_at)
        if expire is not None and expire <= clock.now_millis():
            raise InvalidInput("the snapshot would have expired already: expires_at lies in the past")
        newest = self._backend.newest_seen
        require_writable(self._backend, newest)
        snapshot = new_snapshot(root, name, kind=kind, target_uri=target_uri, expire_at_millis=expire)
        self._backend.refuse_unsafe()
        summary = commit_summary(snapshot=name, snapshot_version=root.version, kind=kind, reason=reason)
        change = SnapshotChange(self._backend, newest, root, name, snapshot, summary)
        made = commit(self._backend, newest, change, before_commit=before_commit)
        return next(info for info in snapshot_infos(self._backend.definition(made)) if info.name == name)

    def drop_snapshot(
        self, name: str, *, reason: str | None = None, before_commit: Callable[[], None] | None = None
    ) -> None:
        """Remove a snapshot's name; `clean` removes its files later. Raises ``SnapshotNotFound``."""
        newest = self._backend.newest_seen
        require_writable(self._backend, newest)
        without_snapshot(self._backend.definition(newest), name)
        summary = commit_summary(dropped_snapshot=name, reason=reason)
        change = NewDefinition(
            self._backend, spec.OP_SNAPSHOT, summary, lambda definition, _: without_snapshot(definition, name)
        )
        commit(self._backend, newest, change, before_commit=before_commit)

    # -- recovery ------------------------------------------------------------------------------

    def rollback(
        self,
        version: int | str | None = None,
        *,
        timestamp: datetime | str | None = None,
        snapshot: str | None = None,
        reason: str | None = None,
        dry_run: bool = False,
        force: bool = False,
        expected_version: int | None = None,
    ) -> RecoveryPlan:
        """Commit a new version with the content of an older version or of a snapshot. History only grows.

        The nodes and definitions of the target that the newest version does not use are read and proved first; the
        rest is in use now. To look at the plan in between, or to prove definitions elsewhere, take the three steps of
        :mod:`trinitylake_core.recovery.rollback`.

        The newest version and its root may be damaged. See :meth:`open` with ``damaged``.

        Costs the comparison (``Rollback.changes_to_prove``: it follows what is undone), one ``get`` for each definition
        that comes back and for each of the newest 20 versions undone, one ``create`` and at most two ``put``. Over a
        root that cannot be read, one ``put`` and one ``head`` more.

        Args:
            version: the target by number, or as text: ``HEAD~3``, the name of a snapshot, a time or an age.
            timestamp: the target by time.
            snapshot: the target by the name of a snapshot.
            reason: why; required.
            dry_run: return the plan, with every change named; nothing is written.
            force: also undo what other writers commit while this runs.
            expected_version: the newest version when the plan that you reviewed was made.

        Compactions, snapshots and expirations in between change no object, and stop nothing.

        Raises:
            InvalidInput: no reason, or the target is what the newest version is.
            VersionNotFound, VersionExpired, SnapshotNotFound.
            Corrupt: a file of the target is missing or damaged; named.
            PlanOutdated: another writer committed since the plan, and ``force`` is not set.
        """
        target = RecoveryTarget(version, timestamp, snapshot)
        rollback = plan_rollback(self._backend, target, reason, force=force, expected_version=expected_version)
        plan = prove_rollback(rollback)
        if dry_run:
            return plan
        return rollback.commit(plan)

    def restore(
        self,
        only: Sequence[str],
        *,
        version: int | str | None = None,
        timestamp: datetime | str | None = None,
        snapshot: str | None = None,
        source: Lakehouse | None = None,
        reason: str | None = None,
        exact: bool = False,
        damaged: bool = False,
        dry_run: bool = False,
        expected_version: int | None = None,
    ) -> RecoveryPlan:
        """Restore selected objects from a version, as one ordinary transaction.

        To look at the plan in between, or to compare and prove elsewhere, take the three steps of
        :mod:`trinitylake_core.recovery.restore`.

        Costs the nodes that the two versions do not share, one ``get`` for each definition that comes back, and a
        commit. Objects that have the same definition here and in ``source`` are left alone, so it may be repeated.
        From there each definition costs two ``get`` there, one ``put`` and two ``get`` here. All are held in memory,
        and each is a message in the new root.

        Args:
            only: patterns such as ``sales.orders`` or ``sales.*``; ``sales`` alone is the namespace itself.
            version: the version to restore from, by number, or as text such as ``HEAD~1``.
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

        Raises:
            InvalidInput: no reason, no pattern, or names that are too long here.
            ObjectNotFound: a pattern matches nothing, neither there nor here.
            NamespaceNotEmpty: with ``exact``, a namespace would be dropped, but not all that is in it.
            VersionNotFound, VersionExpired, SnapshotNotFound.
            Corrupt: a definition to bring back is missing or damaged; named. Nothing was changed.
            CommitConflict: another writer changed one of these objects.
            PlanOutdated: another writer changed objects since the plan.
        """
        restore = plan_restore(
            self._backend,
            only,
            RecoveryTarget(version, timestamp, snapshot),
            reason=reason,
            source=None if source is None else Side(source.backend, source.root_node),
            exact=exact,
            damaged=damaged,
            expected_version=expected_version,
        )
        with restore.still_kept():
            restore.select(restore.differences())
        plan = restore.plan()
        if dry_run or not restore.copies:  # what is copied is proved when it is read
            restore.refuse_damaged(find_damaged_definitions(restore.there.backend, restore.coming_back()))
        if dry_run:
            return plan
        return restore.commit(plan)


def _way_back(versions: Versions) -> str:
    """Return the advice for a newest version that cannot be opened: a command. A listing, and some ``get``."""
    with suppress(TrinityLakeError):
        readable, unreadable = versions.newest_readable()
        if unreadable:
            return (
                f"`trinitylake rollback {versions.storage.root} --to-version {readable.version} --reason REASON` "
                "returns to the newest one that can be read"
            )
    return "`trinitylake rollback` returns to one of them"

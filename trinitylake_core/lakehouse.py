"""The front door: open, create, read and change a lakehouse (``docs/format.md``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

from trinitylake_core import spec
from trinitylake_core.acknowledge import remove_quietly, write_hint
from trinitylake_core.catalog import CatalogView, codec_of
from trinitylake_core.changes import definition_rows, facts
from trinitylake_core.check import Violation, check_lakehouse, check_version
from trinitylake_core.commit import (
    Draft,
    Files,
    finished,
    is_foreign,
    new_id,
    now_millis,
    refuse_foreign,
)
from trinitylake_core.definitions import LakehouseDef, encode, new_lakehouse_def
from trinitylake_core.diff import Change, changes, diff_foreign, diff_nodes
from trinitylake_core.errors import AlreadyExists, InvalidInput, NotALakehouse, UnsafeStorage
from trinitylake_core.locations import lakehouse_def_path
from trinitylake_core.node import Node
from trinitylake_core.nodefile import encode as encode_node
from trinitylake_core.properties import Alteration, alter
from trinitylake_core.recovery import (
    DefinitionsPreflight,
    Differ,
    Preflight,
    RecoveryPlan,
    refuse_outdated,
    required,
    restore,
    rollback,
)
from trinitylake_core.snapshots import SnapshotInfo, drop, new_snapshot, snapshot_infos, snapshot_root
from trinitylake_core.storage import Storage, open_storage
from trinitylake_core.transaction import Transaction
from trinitylake_core.versions import Root, VersionInfo, Versions, objects_of, to_millis, version_info


@dataclass(frozen=True, slots=True)
class Stats:
    """What one read of the root tells. Counts are ``None`` where the writer of the root did not say."""

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


class Lakehouse(CatalogView):
    """A handle of one version of a lakehouse. It stays at its version until :meth:`refresh`.

    A transaction begins at the newest version this handle has seen or committed itself.
    Thread-safe for reading.
    """

    def __init__(self, files: Files, root: Root) -> None:
        self._files = files
        self._store = files.store
        self._pinned = False
        self._stand_on(root)

    def _stand_on(self, root: Root) -> None:
        self._root = root
        self._definition_message = self._files.definition(root)
        self._keys = codec_of(self._definition_message, sdk=self._files.versions.sdk)

    def __repr__(self) -> str:
        return f"Lakehouse({self.root!r}, version={self.version})"

    # -- opening -------------------------------------------------------------------------------

    @classmethod
    def open(
        cls, root: str | Storage, *, storage_options: Mapping[str, Any] | None = None, strict: bool = False
    ) -> Self:
        """Open the newest version.

        Args:
            root: root URI, ``file:///…`` or ``s3://…``.
            storage_options: see ``docs/storage.md``.
            strict: check the whole tree before every root this handle creates; for tests.

        Costs one ``get`` each for the hint, the next version, the root and the boundary, one for a large definition;
        those for root and boundary go out together.

        Raises:
            InvalidLocation, NotALakehouse, Corrupt, InvalidDefinition, StorageError.
        """
        storage = root if isinstance(root, Storage) else open_storage(root, storage_options)
        versions = Versions(storage)
        newest = versions.latest()
        return cls(Files(storage, versions, newest, strict=strict), newest)

    @classmethod
    def create(
        cls,
        root: str | Storage,
        *,
        storage_options: Mapping[str, Any] | None = None,
        strict: bool = False,
        **definition: Any,
    ) -> Self:
        """Create an empty lakehouse, version 0.

        Args:
            root: root URI; what is there already is left alone, but it must hold no lakehouse.
            storage_options: see ``docs/storage.md``.
            strict: check the whole tree before every root this handle creates; for tests.
            **definition: order, namespace_name_max_size_bytes, table_name_max_size_bytes,
                view_name_max_size_bytes, node_file_max_size_bytes, properties, txn_ttl_millis,
                txn_isolation_level (format, section 5).

        Raises:
            InvalidDefinition: an order below 3, or sizes that leave no room for a write buffer.
            AlreadyExists: there is a lakehouse at this root.
            InvalidLocation, UnsafeStorage, StorageError.
        """
        message = new_lakehouse_def(**definition)
        storage = root if isinstance(root, Storage) else open_storage(root, storage_options)
        versions = Versions(storage)
        try:
            existing = versions.latest()
        except NotALakehouse:
            return cls._created(storage, versions, message, strict=strict)
        raise AlreadyExists(f"{storage.root} already holds a lakehouse, at version {existing.version}")

    @classmethod
    def _created(cls, storage: Storage, versions: Versions, message: LakehouseDef, *, strict: bool) -> Self:
        draft = Draft(Node(subtree_keys=0, subtree_messages=0), spec.OP_CREATE, new_id(), facts())
        root = create_first(versions, message, draft)
        return cls(Files(storage, versions, root, strict=strict), root)

    def at(
        self, *, version: int | None = None, timestamp: datetime | str | None = None, snapshot: str | None = None
    ) -> Lakehouse:
        """Return a handle of another version. A transaction begun on it begins there.

        Args:
            version: by number; one ``get``.
            timestamp: the newest version created at or before a time, ISO 8601, UTC unless it says
                otherwise; O(log) ``get``.
            snapshot: by the name of a snapshot of this version's definition.

        Raises:
            VersionNotFound, VersionExpired, SnapshotNotFound, InvalidInput.
        """
        given = [value is not None for value in (version, timestamp, snapshot)]
        if sum(given) != 1:
            raise InvalidInput("say one of version, timestamp and snapshot")
        versions = self._files.versions
        if version is not None:
            root = versions.root(version)
        elif timestamp is not None:
            root = versions.at_timestamp(timestamp, self._files.newest())
        else:
            root = self._snapshot_root(str(snapshot))
        handle = Lakehouse(self._files, root)
        handle._pinned = True
        return handle

    def _snapshot_root(self, name: str) -> Root:
        definition = self._files.definition(self._files.tip)
        if name not in definition.snapshots:
            self._files.saw(self._files.newest())
            definition = self._files.definition(self._files.tip)
        return snapshot_root(self._files, definition, name)

    def refresh(self) -> Self:
        """Move this handle to the newest version and return it. Three ``get`` if there is none newer."""
        root = self._files.newest()
        self._files.saw(root)
        self._stand_on(root)
        self._pinned = False
        return self

    def catch_up(self) -> Self:
        """Move this handle to the newest version that it, or a commit through it, has seen. No request."""
        if self._files.tip.version > self._root.version:
            self._stand_on(self._files.tip)
        self._pinned = False
        return self

    # -- what this handle stands on ------------------------------------------------------------

    @property
    def root(self) -> str:
        """The root URI, ending in ``/``."""
        return self._files.storage.root

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
        return self._files.storage

    @property
    def files(self) -> Files:
        """Storage, nodes and versions, for pipelines."""
        return self._files

    @property
    def root_node(self) -> Root:
        """The root of this version, for pipelines."""
        return self._root

    @property
    def read_only(self) -> bool:
        """Whether another generation of the format wrote this lakehouse; ``upgrade`` copies it into a new one."""
        return is_foreign(self._files, self._root)

    def _root_node(self) -> Node:
        return self._root.node

    def info(self) -> VersionInfo:
        """Return what the root says about this version. No request."""
        return version_info(self._root)

    def stats(self) -> Stats:
        """Return what the root of this version tells. No request."""
        node = self._root.node
        return Stats(
            version=self._root.version,
            oldest_version=self._root.oldest_version,
            created_at=version_info(self._root).created_at,
            objects=objects_of(node) if node.canonical or node.children else len(node.keys),
            messages=node.subtree_messages if node.canonical or node.children else len(node.buffer),
            root_messages=len(node.buffer),
            height=node.height,
            order=self.definition.order,
            root_bytes=node.nbytes,
            root_fill=round(node.estimated_bytes() / self.definition.node_file_max_size_bytes, 4),
            operation=self._root.operation,
        )

    # -- history, difference, integrity --------------------------------------------------------

    def history(self, limit: int | None = None) -> Iterator[VersionInfo]:
        """Yield this version and those before it, newest first, back to the boundary. One ``get`` each."""
        return map(version_info, self._files.versions.history(self._root, limit))

    def diff(self, a: int | Lakehouse, b: int | Lakehouse) -> Iterator[Change]:
        """Yield what changed from ``a`` to ``b`` in key order; each a version or a handle, also of another lakehouse.

        Reads only nodes that the two do not share.
        """
        old, new = (self.at(version=each) if isinstance(each, int) else each for each in (a, b))
        if old.codec == new.codec:
            return changes(diff_nodes(old.store, old.root_node.node, new.store, new.root_node.node), new.codec)
        return diff_foreign(old.store, old.root_node.node, old.codec, new.store, new.root_node.node, new.codec)

    def check(self, *, definitions: bool = False) -> Iterator[Violation]:
        """Yield every broken invariant of this version. Reads every node, with ``definitions`` every definition."""
        yield from check_version(self._files.versions, self.version, definitions=definitions)
        yield from check_lakehouse(self._files.versions, self._files.tip)

    # -- changing ------------------------------------------------------------------------------

    def transaction(self, *, isolation: str | None = None, reason: str | None = None) -> Transaction:
        """Begin a transaction at the newest version this handle knows.

        Args:
            isolation: SNAPSHOT or SERIALIZABLE; by default what the lakehouse definition says.
            reason: why, for the history.

        Raises:
            ReadOnly: another generation of the format wrote this lakehouse.
        """
        base = self._root if self._pinned or self._root.version > self._files.tip.version else self._files.tip
        refuse_foreign(self._files, base)
        return Transaction(self._files, base, isolation=isolation, reason=reason)

    def resume_transaction(self, transaction_id: str) -> Transaction:
        """Return a transaction that was saved, by this process or another. Two ``get``.

        Raises:
            TransactionNotFound, TransactionExpired, Corrupt.
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

        ``maintenance.*`` says what jobs may do: ``maintenance.delete.enabled=false`` forbids them to delete.

        Args:
            properties: values by name; ``None`` removes a property.
            reason: why, for the history.
            dry_run: return what would change; nothing is written.
            before_commit: called right before the root is created; raising there gives it up.

        Raises:
            InvalidInput, ReadOnly, UnsafeStorage, StorageError.
        """
        return alter(
            self._files,
            self._newest(None, force=True),
            properties,
            reason=reason,
            dry_run=dry_run,
            before_commit=before_commit,
        )

    # -- snapshots -----------------------------------------------------------------------------

    def snapshots(self) -> list[SnapshotInfo]:
        """Return the snapshots of this version's lakehouse definition, oldest first."""
        return snapshot_infos(self.definition)

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
        refuse_foreign(self._files, self._files.tip)
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
        refuse_foreign(self._files, self._files.tip)
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
        differ: Differ | None = None,
        before_commit: Callable[[], None] | None = None,
    ) -> RecoveryPlan:
        """Make the newest version say what an older one, or a snapshot, says. History only grows.

        Args:
            version: the target by number.
            timestamp: the target by time.
            snapshot: the target by the name of a snapshot.
            reason: why; required.
            dry_run: return the plan, with every change named; nothing is written.
            force: also undo what somebody commits while this runs.
            expected_version: the newest version that the plan you looked at was made for.
            preflight: what proves the target intact; by default every node and definition is read here.
            differ: what compares two versions for the plan; by default this process.
            before_commit: called right before the root is created; raising there gives the rollback up.

        Compactions, snapshots and expirations in between change no object, and stop nothing.

        Raises:
            InvalidInput, VersionNotFound, VersionExpired, SnapshotNotFound.
            Corrupt: a file of the target is missing or damaged.
            PlanOutdated: somebody committed since the plan, and ``force`` is not set.
        """
        required(reason)
        base = self._newest(expected_version, force=force)
        target = self.at(version=version, timestamp=timestamp, snapshot=snapshot).root_node
        return rollback(
            self._files,
            base,
            target,
            reason=reason,
            dry_run=dry_run,
            force=force,
            preflight=preflight,
            differ=differ,
            before_commit=before_commit,
        )

    def restore(
        self,
        only: Sequence[str],
        *,
        version: int | None = None,
        timestamp: datetime | str | None = None,
        snapshot: str | None = None,
        reason: str | None = None,
        exact: bool = False,
        dry_run: bool = False,
        preflight: DefinitionsPreflight | None = None,
        differ: Differ | None = None,
        before_commit: Callable[[], None] | None = None,
    ) -> RecoveryPlan:
        """Bring some objects back as they were at a version, as one ordinary transaction.

        Args:
            only: patterns such as ``sales.orders`` or ``sales.*``; ``sales`` alone is the namespace itself.
            version: where from, by number.
            timestamp: where from, by time.
            snapshot: where from, by the name of a snapshot.
            reason: why; required.
            exact: also drop objects that match and did not exist then.
            dry_run: return the plan; nothing is written.
            preflight: what proves the definitions that come back; by default they are read here.
            differ: what compares two versions; by default this process.
            before_commit: called right before the root is created; raising there gives the restore up.

        Raises:
            InvalidInput, ObjectNotFound, NamespaceNotEmpty, VersionNotFound, VersionExpired, SnapshotNotFound,
            Corrupt, CommitConflict.
        """
        required(reason)
        base = self._newest(None, force=True)
        target = self.at(version=version, timestamp=timestamp, snapshot=snapshot).root_node
        patterns = [only] if isinstance(only, str) else only
        return restore(
            self._files,
            base,
            target,
            only=patterns,
            reason=reason,
            exact=exact,
            dry_run=dry_run,
            preflight=preflight,
            differ=differ,
            before_commit=before_commit,
        )

    def _newest(self, expected: int | None, *, force: bool) -> Root:
        newest = self._files.newest()
        self._files.saw(newest)
        if expected is not None and not force:
            refuse_outdated(self._files.versions, expected, newest)
        return newest


def create_first(versions: Versions, message: LakehouseDef, draft: Draft) -> Root:
    """Create version 0 from a draft whose non-root nodes are written already. One ``put``, one ``create``, the hint.

    Raises:
        AlreadyExists: there is a version 0; nothing was changed.
        UnsafeStorage, StorageError.
    """
    storage = versions.storage
    path, data = lakehouse_def_path(), encode(message)
    storage.write_many([(path, data)])
    try:
        storage.prove_exclusive_create(path, data)
        draft.system = definition_rows(path, data) | draft.system
        node = finished(None, draft, now_millis())
        content = encode_node(node, message.order, versions.path(0))
        storage.create(versions.path(0), content)
    except (UnsafeStorage, AlreadyExists):
        remove_quietly(storage, [path])
        raise
    node.nbytes = len(content)
    write_hint(storage, 0)
    return Root(0, versions.path(0), node, content)

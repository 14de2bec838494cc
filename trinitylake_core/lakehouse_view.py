"""A handle of one version of a lakehouse: everything that only reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final, Never, Self

from trinitylake_core.catalog import CatalogView, codec_of
from trinitylake_core.check import Violation, check_lakehouse, check_version
from trinitylake_core.commits.commit import is_other_generation
from trinitylake_core.commits.files import LakehouseStore
from trinitylake_core.commits.frozen import Freeze, freeze_of
from trinitylake_core.commits.rolled_back import newest_base, refuse_lost
from trinitylake_core.definitions import LakehouseDef
from trinitylake_core.diff import Change, diff_trees
from trinitylake_core.recovery.target import RecoveryTarget
from trinitylake_core.snapshots import SnapshotInfo, snapshot_infos
from trinitylake_core.storage import Storage
from trinitylake_core.tree.node import Node
from trinitylake_core.versions import Root, VersionInfo, objects_of, version_info


@dataclass(frozen=True, slots=True)
class Stats:
    """Statistics of a version, from one read of its root. Counts are ``None`` where the root does not record them."""

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


_OTHER_NAMES: Final = {
    "versions": "history() yields the versions, newest first",
    "snapshot": "create_snapshot(name) makes one, snapshots() lists them, at(snapshot=name) reads one",
    "commit": "transaction() begins a transaction, which has commit()",
    "create_namespace": "with lake.transaction() as txn: txn.create_namespace(...)",
    "create_table": "with lake.transaction() as txn: txn.create_table(...)",
    "create_view": "with lake.transaction() as txn: txn.create_view(...)",
    "plan": "rollback(..., dry_run=True) and restore(..., dry_run=True) return the plan",
    "close": "nothing is open that would have to be closed",
}
"""What people try, and the call that they need."""


class Handle(CatalogView):
    """A handle of one version of a lakehouse. It stays at its version until :meth:`refresh`. Thread-safe."""

    def __init__(self, files: LakehouseStore, root: Root, *, pinned: bool = False) -> None:
        self._files = files
        self._store = files.store
        self._pinned = pinned
        self.unreadable: tuple[VersionInfo, ...] = ()
        """Versions after this one whose roots could not be read when it was opened with ``damaged``, newest first."""
        self._stand_on(root)

    def _stand_on(self, root: Root) -> None:
        self._root = root
        self._definition_message = self._files.definition(root)
        self._keys = codec_of(self._definition_message, sdk=self._files.versions.sdk)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is open that would have to be closed."""

    def __eq__(self, other: object) -> bool:
        """Whether another handle reads the same version of the same lakehouse."""
        if not isinstance(other, Handle):
            return NotImplemented
        return (self.root, self.definition.id, self._root.path) == (other.root, other.definition.id, other._root.path)

    def __hash__(self) -> int:
        return hash((self.root, self.definition.id))  # a handle moves

    def __reduce__(self) -> Never:
        raise TypeError(
            "a handle holds connections and credentials: pickle its root and version, and open it again with "
            "Lakehouse.open(root, storage_options=...).at(version)"
        )

    if not TYPE_CHECKING:  # a type checker names what is not there

        def __getattr__(self, name: str) -> Never:
            hint = f"; {_OTHER_NAMES[name]}" if name in _OTHER_NAMES else ""
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}{hint}")

    def __repr__(self) -> str:
        return f"Lakehouse({self.root!r}, version={self.version})"

    # -- moving --------------------------------------------------------------------------------

    def at(
        self, version: int | str | None = None, *, timestamp: datetime | str | None = None, snapshot: str | None = None
    ) -> Self:
        """Return a handle of another version. A transaction begun on it begins there.

        Args:
            version: by number; two ``get`` at the same time. Or as text: ``HEAD``, ``HEAD~3``, the name of a snapshot,
                a time, or an age such as ``-2h``.
            timestamp: the newest version created at or before a time: text in ISO 8601, UTC unless it has an offset, or
                a ``datetime`` with a time zone; O(log) ``get``.
            snapshot: by the name of a snapshot of this version's definition.

        Raises:
            VersionNotFound, VersionExpired, SnapshotNotFound, InvalidInput.
        """
        target = RecoveryTarget(version, timestamp, snapshot)
        return type(self)(self._files, target.root(self._files), pinned=True)

    def refresh(self) -> Self:
        """Move this handle to the newest version and return it. Three ``get`` if there is none newer."""
        root = self._files.newest()
        self._files.note_newest(root)
        self._stand_on(root)
        self._pinned = False
        return self

    def catch_up(self) -> Self:
        """Move this handle to the newest version that it, or a commit through it, has seen. No request."""
        if self._files.newest_seen.version > self._root.version:
            self._stand_on(self._files.newest_seen)
        self._pinned = False
        return self

    # -- the version of this handle ------------------------------------------------------------

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
    def files(self) -> LakehouseStore:
        """Storage, nodes and versions, for pipelines."""
        return self._files

    @property
    def root_node(self) -> Root:
        """The root of this version, for pipelines."""
        return self._root

    @property
    def read_only(self) -> bool:
        """Whether another generation of the format wrote this lakehouse; ``upgrade`` copies it into a new one."""
        return is_other_generation(self._files, self._root)

    @property
    def frozen(self) -> Freeze | None:
        """Why this version takes no ordinary commits; ``None`` where it does. No request."""
        return freeze_of(self._definition_message)

    def _root_node(self) -> Node:
        return self._root.node

    def _refuse_expired(self) -> None:
        refuse_lost(self._files, newest_base(self._files).root, self._root)

    def info(self) -> VersionInfo:
        """Return the description of this version that its root contains. No request."""
        return version_info(self._root)

    def stats(self) -> Stats:
        """Return the statistics that the root of this version contains. No request."""
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
            **({} if self._root.counts is None else self._root.counts._asdict()),
        )

    # -- history, difference, integrity --------------------------------------------------------

    def history(self, limit: int | None = None) -> Iterator[VersionInfo]:
        """Yield this version and those before it, newest first, back to the boundary. One ``get`` each."""
        return map(version_info, self._files.versions.history(self._root, limit))

    def diff(self, a: int | Handle, b: int | Handle) -> Iterator[Change]:
        """Yield the changes from ``a`` to ``b`` in key order.

        Each is a version or a handle, also of another lakehouse. Reads only nodes that the two do not share.
        """
        old, new = (self.at(version=each) if isinstance(each, int) else each for each in (a, b))
        return diff_trees(old.store, old.root_node.node, old.codec, new.store, new.root_node.node, new.codec)

    def check(self, *, definitions: bool = False) -> Iterator[Violation]:
        """Yield every broken invariant of this version. Reads every node, with ``definitions`` every definition."""
        yield from check_version(self._files.versions, self.version, definitions=definitions)
        yield from check_lakehouse(self._files.versions, self._files.newest_seen)

    def snapshots(self) -> list[SnapshotInfo]:
        """Return the snapshots of this version's lakehouse definition, oldest first."""
        return snapshot_infos(self.definition)

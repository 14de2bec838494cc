"""The backend of one lakehouse: what reading and committing need of storage, nodes and versions."""

from __future__ import annotations

from trinitylake_core import spec
from trinitylake_core.commits.bulk import with_all_changes
from trinitylake_core.definitions import LakehouseDef
from trinitylake_core.errors import Corrupt, CorruptNode, LakehouseReplaced
from trinitylake_core.storage import Storage
from trinitylake_core.tree.nodestore import NodeStore
from trinitylake_core.versions import Delta, Root, RootRows, Versions


class LakehouseBackend:
    """Storage, nodes and versions of one lakehouse: what reading and committing need.

    ``newest_seen`` is the newest root this process has seen; a transaction begins there.
    """

    def __init__(self, storage: Storage, versions: Versions, newest_seen: Root) -> None:
        self.storage = storage
        self.versions = versions
        self.newest_seen = newest_seen
        definition = versions.definition(newest_seen)
        self._identity = _identity(definition)
        self.nodes = NodeStore(storage, definition.order, definition.node_file_max_size_bytes)

    def __repr__(self) -> str:
        return f"LakehouseBackend({self.storage.root!r}, newest_seen={self.newest_seen.version})"

    def definition(self, root: RootRows) -> LakehouseDef:
        """Return the lakehouse definition of a version."""
        return self.versions.definition(root)

    def note_newest(self, root: Root) -> None:
        """Remember a root that may be the newest."""
        if root.version > self.newest_seen.version:
            self.newest_seen = root

    def newest(self) -> Root:
        """Return the newest root, searched from ``newest_seen`` on. Three ``get`` if there is none newer.

        Raises ``LakehouseReplaced``: another lakehouse is at this root URI by now.
        """
        try:
            newest = self.versions.latest(self.newest_seen)
        except CorruptNode:  # it is gone: lost, or it was of a lakehouse that was deleted
            self.refuse_replaced(self.versions.latest())
            raise
        self.refuse_replaced(newest)
        return newest

    def since(self, base: Root) -> tuple[list[Delta], Root]:
        """Return the result of :meth:`Versions.since`; of a bulk version a delta that reads what it is asked for.

        Raises ``LakehouseReplaced``.
        """
        try:
            deltas, newest = self.versions.since(base)
        except CorruptNode:  # the chain is damaged, or it is that of another lakehouse
            self.refuse_replaced(self.versions.latest())
            raise
        return with_all_changes(deltas, self.nodes, self.versions), newest

    def refuse_replaced(self, root: RootRows) -> None:
        """Refuse the root of another lakehouse than the one that was opened, in whose place it was created.

        If the newest root that was seen, or the one before it, is still stored, the lakehouse is not replaced: a
        foreign root among its own is damage, which verification names and a rollback leaves behind.

        No request, unless the root names a lakehouse definition that was not read yet and is too large to be in it. Two
        ``get`` for a foreign root. Raises ``LakehouseReplaced``: nothing was written.
        """
        seen = self.newest_seen
        if root is seen or _identity(self.definition(root)) == self._identity:
            return
        for version, txn in ((seen.version, seen.txn), (seen.version - 1, seen.system.get(spec.PREVIOUS_TXN))):
            try:
                found = None if txn is None or version < 0 else self.versions.try_root(version)
            except Corrupt:  # damaged, but not gone
                return
            if found is not None and found.txn == txn:
                return
        raise LakehouseReplaced(
            f"{self.storage.root} holds another lakehouse than when it was opened: that one was deleted, and "
            "another one was created in its place. Nothing was written; open it again to work with the new one"
        )

    def newest_readable(self) -> Root:
        """Return the newest root that can be read; where that is not the newest one, a listing more."""
        try:
            newest = self.newest()
            self.definition(newest)
        except Corrupt:
            return self.versions.newest_readable()[0]
        return newest

    def refuse_unsafe(self) -> None:
        """Refuse a storage that does not create exclusively, before anything is written to it.

        Costs a race (:meth:`Storage.prove_exclusive_create`) the first time a process writes to a bucket, and again
        some minutes or some hundred commits later. Raises ``UnsafeStorage``.
        """
        self.storage.prove_exclusive_create()

    def refuse_no_compare_and_set(self) -> None:
        """Refuse a storage that cannot compare and set, before the boundary depends on it.

        Costs a race (:meth:`Storage.prove_compare_and_set`), as :meth:`refuse_unsafe`. Raises ``UnsafeStorage``.
        """
        self.storage.prove_compare_and_set()


def _identity(definition: LakehouseDef) -> tuple[str, int, int]:
    """Return the values that no version of a lakehouse changes: its ID, and the shape of its nodes."""
    return definition.id, definition.order, definition.node_file_max_size_bytes

"""Which tables and views had a directory, and are gone: a kept version or a snapshot names them: they may come back.

A drop leaves the files where they are, and older versions read them. So the directory stays with whoever had it last,
under the name that it had last: the version that drops or renames an object says which that is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from trinitylake_core import spec
from trinitylake_core.commits.backend import LakehouseBackend
from trinitylake_core.definitions import TableDef, ViewDef, decode_table, decode_view
from trinitylake_core.errors import Corrupt, FileMissing, InvalidLocation, TransactionExpired
from trinitylake_core.grounds import Identities, Identity, full_name, identity_of, is_over
from trinitylake_core.keys import TABLE, VIEW
from trinitylake_core.lakehouse import Lakehouse
from trinitylake_core.snapshots import SnapshotInfo
from trinitylake_core.versions import Delta, Root

_DECODERS: Final[dict[str, Callable[[bytes, str], TableDef | ViewDef]]] = {TABLE: decode_table, VIEW: decode_view}


class _Gone(NamedTuple):
    """An object that a version dropped, renamed or put another one in the place of."""

    version: int
    kind: str
    name: str
    path: str


class FormerOwners:
    """The last owners of directories. Not thread-safe.

    Memory: some 500 bytes for each table or view that a retained version dropped, or that a snapshot alone has.
    """

    def __init__(self, backend: LakehouseBackend) -> None:
        self._backend = backend
        self._root: Root | None = None
        self._gone = Identities()
        self._versions: dict[str, int] = {}
        self._in_snapshots: dict[str, set[str]] = {}

    def move_to(self, base: Root) -> None:
        """Read what was dropped up to a version.

        The first time one ``get`` for each retained version, and for each node that the oldest and the newest do not
        share; then for what came since, and one for the boundary. One ``get`` for the definition of each object that
        was dropped. As much for each snapshot of a version that has expired.
        """
        if self._root is not None and self._root.version >= base.version:
            return
        kept_from = self._backend.versions.kept_from(base.version)
        start = self._root or self._backend.versions.root(kept_from)
        try:
            newest, gone = self._read_gone(start)
        except TransactionExpired:  # it has not asked for a long time
            newest, gone = self._read_gone(self._backend.versions.root(kept_from))
        self._note(gone)
        self._move_to_snapshots(Lakehouse(self._backend, newest), kept_from)
        self._forget_expired(kept_from)
        self._root = newest

    def _note(self, gone: list[_Gone]) -> set[str]:
        """Read the definitions of objects that are gone; return the keys of those that can be read."""
        keys = set()
        for each, identity in self._backend.storage.map(gone, self._read):
            if identity is not None:
                key = f"{each.name}\0{each.path}"
                keys.add(key)
                self._gone.put(key, identity)
                self._versions[key] = max(each.version, self._versions.get(key, each.version))
        return keys

    def _move_to_snapshots(self, newest: Lakehouse, kept_from: int) -> None:
        """Read what snapshots have of versions that have expired: a restore brings it back from there."""
        snapshots = {}
        for info in newest.snapshots():
            if not info.expired and info.version < kept_from:
                snapshots[info.root_path] = info
        for path in self._in_snapshots.keys() - snapshots.keys():
            del self._in_snapshots[path]
        for path in snapshots.keys() - self._in_snapshots.keys():
            self._in_snapshots[path] = self._note(self._read_snapshot(newest, snapshots[path]))

    def _read_snapshot(self, newest: Lakehouse, info: SnapshotInfo) -> list[_Gone]:
        """Return what a snapshot has otherwise than a version: as if the snapshot's version had dropped it."""
        then = newest.at(snapshot=info.name)
        gone = []
        for change in then.diff(then, newest):
            if change.old_path is not None and change.kind in _DECODERS:
                whole = full_name(change.namespace, change.name or "")
                gone.append(_Gone(info.version, change.kind, whole, change.old_path))
        return gone

    def _forget_expired(self, kept_from: int) -> None:
        """Forget what neither a version that is kept nor a snapshot has: its directory is free."""
        held = set().union(*self._in_snapshots.values())
        for key in self._versions.keys() - held:
            if self._versions[key] <= kept_from:  # the version before it was the last that had it
                self._gone.put(key, None)
                del self._versions[key]

    def owners_over(self, directory: str) -> dict[str, str]:
        """Return who had directories last: those that are this one, lie in it, or are above it. No request."""
        owners: dict[str, str] = {}
        for ground, key in self._newest_over(directory).items():
            name, _, _ = key.rpartition("\0")
            owners[ground] = name
        return owners

    def identities_over(self, directory: str) -> list[Identity]:
        """Return the identities of the :meth:`owners_over` a directory. No request."""
        newest = self._newest_over(directory)
        return [self._gone.identity(key) for key in newest.values()]

    def _newest_over(self, directory: str) -> dict[str, str]:
        newest: dict[str, str] = {}
        for key in self._gone.names_over(directory):
            identity = self._gone.identity(key)
            for ground in identity.directories:
                if is_over(ground, directory):
                    known = newest.get(ground, key)
                    newest[ground] = max(known, key, key=self._versions.__getitem__)
        return newest

    def _read_gone(self, start: Root) -> tuple[Root, list[_Gone]]:
        """Return what was dropped after a version, and the newest version. Raises ``TransactionExpired``."""
        if not self._backend.versions.root_exists(start.version + 1):
            return start, []
        deltas, newest = self._backend.since(start)
        began = Lakehouse(self._backend, start)
        ended = Lakehouse(self._backend, newest)
        before: dict[str, str] = {}
        for change in began.diff(began, ended):
            if change.old_path is not None:
                before[change.key] = change.old_path
        last: dict[str, str | None] = {}
        gone: list[_Gone] = []
        for delta in deltas:
            for key, path in self._changes_of(delta):
                kind, namespace, name = began.codec.split(key)
                known = last.get(key, before.get(key))
                last[key] = path
                # A commit puts nothing in the place of an object but that object; other operations may.
                is_gone = path is None or delta.operation != spec.OP_COMMIT
                if is_gone and known is not None and known != path and kind in _DECODERS:
                    whole = full_name(namespace, name or "")
                    each = _Gone(delta.version, kind, whole, known)
                    gone.append(each)
        return newest, gone

    def _changes_of(self, delta: Delta) -> Iterator[tuple[str, str | None]]:
        """Yield what a version changed: each key with the path of its definition, ``None`` where it was dropped."""
        if delta.operation in spec.QUIET_OPERATIONS:
            return
        if delta.operation in spec.TRANSACTIONAL_OPERATIONS:
            for key, path, _ in delta.own_messages():
                yield key, path
            return
        versions = self._backend.versions  # a rollback, or a load: its root does not say
        before = versions.root(delta.version - 1)
        after = versions.root(delta.version)
        lake = Lakehouse(self._backend, before)
        for change in lake.diff(lake, Lakehouse(self._backend, after)):
            yield change.key, change.new_path

    def _read(self, each: _Gone) -> tuple[_Gone, Identity | None]:
        """Return the identity of an object; of one whose definition cannot be read nothing is known."""
        storage = self._backend.storage
        try:
            definition = _DECODERS[each.kind](storage.read(each.path), each.path)
        except (Corrupt, FileMissing, InvalidLocation):
            return each, None
        return each, identity_of(storage.root, definition)

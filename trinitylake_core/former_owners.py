"""Which tables and views had a directory, and are gone: a kept version or a snapshot names them: they may come back.

A drop leaves the files where they are, and older versions read them. So the directory stays with whoever had it last,
under the name that it had last: the version that drops or renames an object says which that is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, pairwise
from typing import NamedTuple

from trinitylake_core import spec
from trinitylake_core.commits.backend import LakehouseBackend
from trinitylake_core.diff import Change
from trinitylake_core.errors import Corrupt, LostRoot, OwnersUnknown, TransactionExpired
from trinitylake_core.grounds import OWNERS, Identities, Identity, NamedDefinition, full_name, is_over
from trinitylake_core.lakehouse import Lakehouse
from trinitylake_core.snapshots import SnapshotInfo
from trinitylake_core.tree.node import Meaning
from trinitylake_core.versions import Root


class _Gone(NamedTuple):
    """An object that a version dropped, renamed or put another one in the place of; and its definition."""

    version: int
    key: str
    path: str


class FormerOwners:
    """The last owners of directories. Not thread-safe.

    Memory: some 500 bytes for each table or view that a retained version dropped, or that a snapshot alone has.
    """

    def __init__(self, backend: LakehouseBackend) -> None:
        self._backend = backend
        self._root: Root | None = None
        self._gone = Identities(backend.storage.root)
        self._versions: dict[str, int] = {}
        self._in_snapshots: dict[str, set[str]] = {}

    def move_to(self, base: Root) -> None:
        """Read what was dropped up to a version.

        The first time one ``get`` for each retained version, and for each node that the oldest and the newest do not
        share; then for what came since, and one for the boundary. One ``get`` for the definition of each object that
        was dropped. As much for each snapshot of a version that has expired. Versions that are marked as lost have
        nothing that could come back.

        Raises ``OwnersUnknown``: a version or a snapshot cannot be read. It is read again with the next question.
        """
        if self._root is not None and self._root.version >= base.version:
            return
        newest = Lakehouse(self._backend, base)
        kept_from = self._backend.versions.kept_from(base.version)
        self._note(self._read_gone(kept_from, base), newest)
        self._move_to_snapshots(newest, kept_from)
        self._forget_expired(kept_from)
        self._root = base

    def _note(self, gone: Iterable[_Gone], newest: Lakehouse) -> set[str]:
        """Read the definitions of tables and views that are gone; return their names here."""
        found = []
        for each in gone:
            kind, namespace, name = newest.codec.split(each.key)
            if kind in OWNERS:
                key = f"{full_name(namespace, name or '')}\0{each.path}"
                found.append(NamedDefinition(key, kind, each.path))
                self._versions[key] = max(each.version, self._versions.get(key, each.version))
        self._gone.read(self._backend.storage, found)
        return {key for key, _, _ in found}

    def _move_to_snapshots(self, newest: Lakehouse, kept_from: int) -> None:
        """Read what snapshots have of versions that have expired: a restore brings it back from there."""
        snapshots = {}
        for info in newest.snapshots():
            if not info.expired and info.version < kept_from:
                snapshots[info.root_path] = info
        for path in self._in_snapshots.keys() - snapshots.keys():
            del self._in_snapshots[path]
        for path in snapshots.keys() - self._in_snapshots.keys():
            self._in_snapshots[path] = self._note(self._read_snapshot(newest, snapshots[path]), newest)

    def _read_snapshot(self, newest: Lakehouse, info: SnapshotInfo) -> list[_Gone]:
        """Return what a snapshot has otherwise than a version: as if the snapshot's version had dropped it."""
        try:
            then = newest.at(snapshot=info.name)
            changes = then.diff(then, newest)
            return [_Gone(info.version, each.key, each.old_path) for each in changes if each.old_path is not None]
        except LostRoot:
            return []
        except Corrupt as error:
            raise OwnersUnknown(
                f"the snapshot {info.name!r} cannot be read, so nobody can tell whose tables had this place: "
                "`trinitylake mend ROOT --from BACKUP` puts it back; or drop the snapshot"
            ) from error

    def _forget_expired(self, kept_from: int) -> None:
        """Forget what neither a version that is kept nor a snapshot has: its directory is free."""
        held = set().union(*self._in_snapshots.values())
        for key in self._versions.keys() - held:
            if self._versions[key] <= kept_from:  # the version before it was the last that had it
                self._gone.forget(key)
                del self._versions[key]

    def names_unread(self) -> Iterator[str]:
        """Yield the names of those whose definitions cannot be read: they may have had any directory.

        One ``get`` each.
        """
        for key in self._gone.names_unread(self._backend.storage):
            name, _, _ = key.rpartition("\0")
            yield name

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

    def _read_gone(self, kept_from: int, newest: Root) -> Iterator[_Gone]:
        """Yield what was dropped after the version that this stands at, or the oldest one. Raises as ``move_to``."""
        began = self._root
        if began is not None and began.version >= kept_from:
            kept = self._read_kept(began.version + 1, newest)
        else:
            kept = self._read_kept(kept_from, newest)
            began = next(kept)
        last: dict[str, str | None] = {}
        for change in self._diff(began, newest):
            if change.old_path is not None:
                last[change.key] = change.old_path
        for before, after in pairwise(chain([began], kept)):
            is_next = after.version == before.version + 1
            for key, path in self._changes_of(before, after):
                known = last.get(key)
                last[key] = path
                # A commit puts nothing in the place of an object but that object; other operations may.
                is_gone = path is None or not is_next or after.operation != spec.OP_COMMIT
                if is_gone and known is not None and known != path:
                    yield _Gone(after.version, key, known)

    def _read_kept(self, first: int, newest: Root) -> Iterator[Root]:
        """Yield the roots from a version up to the newest one, but for those that are marked as lost. One ``get`` each.

        Raises as ``move_to``, and ``TransactionExpired``.
        """
        versions = self._backend.versions
        wanted = range(first, newest.version)
        lost = versions.marked_lost(self._backend.definition(newest), wanted)
        for version, root in versions.in_batches(wanted):
            if version in lost:
                continue
            if root is None and versions.boundary() > version:
                raise TransactionExpired(f"version {version} has just expired; begin a new transaction")
            if root is None or root.unreadable is not None:
                raise _unreadable([version])
            yield root
        yield newest

    def _changes_of(self, before: Root, after: Root) -> Iterator[Meaning]:
        """Yield what a version changed: each key with the path of its definition, ``None`` where it was dropped."""
        is_next = after.version == before.version + 1
        if is_next and after.operation in spec.QUIET_OPERATIONS:
            return
        if is_next and after.operation in spec.TRANSACTIONAL_OPERATIONS and not after.is_bulk:
            for key, path, _ in after.own_messages():
                yield key, path
            return
        for change in self._diff(before, after):  # of a rollback, or a load, its root does not say
            yield change.key, change.new_path

    def _diff(self, one: Root, other: Root) -> Iterator[Change]:
        """Yield in what two versions differ. Raises as ``move_to``."""
        then = Lakehouse(self._backend, one)
        try:
            yield from then.diff(then, Lakehouse(self._backend, other))
        except Corrupt as error:
            raise _unreadable([one.version, other.version]) from error


def _unreadable(versions: Iterable[int]) -> OwnersUnknown:
    named = " or ".join(map(str, versions))
    return OwnersUnknown(
        f"version {named} cannot be read, so nobody can tell whose tables had this place: `trinitylake verify ROOT "
        "--all` names the file, `trinitylake mend ROOT --from BACKUP` puts it back, and `trinitylake mend ROOT --lost "
        "VERSION` gives the version up"
    )

"""Which tables and views of a lakehouse have which UUID, metadata file and directory, so that no two have the same.

A tree finds an object by its name. Whether another one has a UUID or names a file is known only after every definition
was looked at, so that is done once for each process, and then for what changed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable, Iterator
from functools import cached_property
from itertools import chain
from typing import Final

from trinitylake_core.commits.backend import LakehouseBackend
from trinitylake_core.errors import Corrupt, FileMissing, OwnersUnknown
from trinitylake_core.former_owners import FormerOwners
from trinitylake_core.grounds import OWNERS, Identities, Identity, NamedDefinition, full_name, is_in_area, is_over
from trinitylake_core.keys import NAMESPACE
from trinitylake_core.lakehouse import Lakehouse
from trinitylake_core.storage import Storage
from trinitylake_core.versions import Root, Versions


class TableIndex:
    """The identities of all tables and views of one version. Thread-safe; it moves to the version that is asked for.

    Memory: some 500 bytes for each of them, from the first question on.
    """

    def __init__(self, backend: LakehouseBackend, kinds: Collection[str] = OWNERS) -> None:
        self._backend = backend
        self._kinds = kinds
        self._lock = threading.Lock()
        self._root: Root | None = None
        self._identities = Identities(self._backend.storage.root)
        self._former = FormerOwners(backend)

    @cached_property
    def of_namespaces(self) -> TableIndex:
        """That of the locations of namespaces, which costs the same of these."""
        return TableIndex(self._backend, {NAMESPACE})

    def names_of(self, identity: Identity, base: Root, directories: Iterable[str]) -> set[str]:
        """Return the names of those in a version with the same UUID or metadata file, or with one of these directories.

        Also with one above it, or in it.

        The first time one ``get`` for each node and for each definition of a table or a view, side by side; then those
        of what changed since the version of the question before.
        """
        with self._lock:
            self._move_to(base)
            found = self._identities.names_like(identity)
            for each in directories:
                found |= self._identities.names_over(each)
            return found

    def grounds_over(self, base: Root, directory: str) -> list[tuple[str, str]]:
        """Return names, and the directories of each that are this one, are above it, or lie in it. Costs the same."""
        with self._lock:
            self._move_to(base)
            found: list[tuple[str, str]] = []
            for name in self._identities.names_over(directory):
                for ground in self._identities.identity(name).directories:
                    if is_over(ground, directory):
                        found.append((name, ground))
            return found

    def names_holding(self, base: Root, directory: str) -> set[str]:
        """Return the names of those in a version with this directory, or one above it. Costs as :meth:`names_of`."""
        with self._lock:
            self._move_to(base)
            return self._identities.names_over(directory, below=False)

    def former_owners(self, base: Root, directories: Iterable[str], *, below: bool = True) -> set[str]:
        """Return the names of objects that had these directories last, and are gone by a version.

        Also those that had one above it, or ``below`` it; and those that may have had it, because their definitions
        cannot be read. Costs what :meth:`names_of` and ``FormerOwners.move_to`` do.

        Raises ``OwnersUnknown``: a version cannot be read, and nobody has one of these directories now.
        """
        directories = list(directories)
        with self._lock:
            self._move_to(base)
            free = [each for each in directories if self._identities.is_free(each)]
            try:
                self._former.move_to(base)
            except OwnersUnknown:
                if free:
                    raise
                return set()  # who has it goes on, whatever is damaged
            found: set[str] = set()
            if not all(is_in_area(self._backend.storage.root, each) for each in free):
                found.update(self._former.names_unread())
            for each in directories:
                for ground, name in self._former.owners_over(each).items():
                    is_held = self._identities.names_in(ground)  # then that one is the last who has it
                    if not is_held and (below or each.startswith(ground)):
                        found.add(name)
            return found

    def refuse_unknown(self, base: Root, directories: Iterable[str]) -> None:
        """Refuse directories that nobody has by what can be read, while the definition of an object cannot be read.

        Below ``tables/`` the name of a directory says whose it is. Costs what :meth:`names_of` does, and one ``get``
        for a definition that could not be read. Raises ``OwnersUnknown``.
        """
        with self._lock:
            self._move_to(base)
            self._refuse_unknown(directories, self._identities.names_unread(self._backend.storage))

    def _refuse_unknown(self, directories: Iterable[str], unread: Iterator[str]) -> None:
        for each in directories:
            if not is_in_area(self._backend.storage.root, each) and self._identities.is_free(each) and any(unread):
                raise OwnersUnknown(
                    "the definition of a table, a view or a namespace cannot be read, so nobody can tell whose this "
                    "place is: `trinitylake verify ROOT --definitions` names it, `trinitylake mend ROOT --from BACKUP` "
                    "puts it back; or drop that object (`trinitylake apply`)"
                )

    def own_directories_over(self, base: Root, directory: str) -> set[str]:
        """Return the own directories of those that have this directory, one above it, or one in it.

        Where nobody has it in a version, of those that had it last. Costs as :meth:`former_owners`.

        Raises ``OwnersUnknown``: a version or a definition cannot be read, so anybody may have it.
        """
        with self._lock:
            self._move_to(base)
            names = self._identities.names_over(directory)
            owners = [self._identities.identity(name) for name in names]
            if not owners:
                self._former.move_to(base)
                owners = self._former.identities_over(directory)
            if not owners:
                unread = (self._identities.names_unread(self._backend.storage), self._former.names_unread())
                self._refuse_unknown([directory], chain(*unread))
            return {each.directory for each in owners}

    def _move_to(self, base: Root) -> None:
        if self._root is not None and self._root.version == base.version:
            return
        try:
            self._read_changes(base)
        except (Corrupt, FileMissing):  # the version it stood at has expired, and is gone
            self._identities = Identities(self._backend.storage.root)
            self._root = None
            self._read_changes(base)
        self._root = base

    def _read_changes(self, base: Root) -> None:
        """Note the identities of what changed since the version this stands at."""
        lake = Lakehouse(self._backend, base)
        found: list[NamedDefinition] = []
        changed: list[str] = []
        if self._root is None:
            for entry in lake.objects():
                if entry.kind in self._kinds:
                    found.append(NamedDefinition(full_name(entry.namespace, entry.name or ""), entry.kind, entry.path))
        else:
            for change in lake.diff(Lakehouse(self._backend, self._root), lake):
                if change.kind in self._kinds:
                    name = full_name(change.namespace, change.name or "")
                    changed.append(name)
                    if change.new_path is not None:
                        found.append(NamedDefinition(name, change.kind, change.new_path))
        self._identities.read(self._backend.storage, found, gone=changed)


class Grounds:
    """The directories that tables have in the newest version, or had last, so that a job reads in no other table's.

    Read when the first file is asked about that lies in a prefix for all tables: what the first question to a
    ``TableIndex`` costs. After a second it is asked whether there is a newer version, which costs three ``get``, and
    what changed. Thread-safe.
    """

    def __init__(self, storage: Storage, new_for_seconds: float = 1.0) -> None:
        self._storage = storage
        self._versions = Versions(storage)
        self._new_for_seconds = new_for_seconds
        self._lock = threading.Lock()
        self._index: TableIndex | None = None
        self._newest: Root | None = None
        self._asked_at = 0.0

    @classmethod
    def of(cls, storage: Storage) -> Grounds:
        """Return those of the lakehouse of a storage, the same for all of its storages in a process. No request.

        The tasks of a job come with a storage each.
        """
        root, options = storage.spec()
        key = repr((root, sorted(options.items())))
        with _LOCK:
            found = _KNOWN.pop(key, None) or cls(storage)
            _KNOWN[key] = found
            if len(_KNOWN) > _MOST_KNOWN:
                oldest = next(iter(_KNOWN))
                del _KNOWN[oldest]
        return found

    def are_others(self, uri: str, own: str) -> bool:
        """Whether a file lies in a directory of a table, but not of the one whose metadata are in ``own``.

        Raises ``OwnersUnknown``.
        """
        with self._lock:
            index, newest = self._renew()
        return bool(index.own_directories_over(newest, f"{uri}/") - {own})

    def _renew(self) -> tuple[TableIndex, Root]:
        """Return the index, and the newest version of a moment ago."""
        now = time.monotonic()
        if self._newest is None or now > self._asked_at + self._new_for_seconds:
            self._newest = self._versions.latest(self._newest)
            self._asked_at = now
        if self._index is None:
            backend = LakehouseBackend(self._storage, self._versions, self._newest)
            self._index = TableIndex(backend)
        return self._index, self._newest


_MOST_KNOWN: Final = 16
_LOCK: Final = threading.Lock()
_KNOWN: Final[dict[str, Grounds]] = {}
"""By the root and the options, those that were asked for last at the end."""

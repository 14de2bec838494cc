"""Which tables and views of a lakehouse have which UUID, metadata file and directory, so that no two have the same.

A tree finds an object by its name. Whether another one has a UUID or names a file is known only after every definition
was looked at, so that is done once for each process, and then for what changed.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, KeysView
from dataclasses import dataclass
from typing import Final

from pyiceberg.table.metadata import TableMetadata

from trinitylake_core.commits.backend import LakehouseBackend
from trinitylake_core.definitions import TableDef, ViewDef, decode_table, decode_view
from trinitylake_core.errors import Corrupt, FileMissing, InvalidLocation
from trinitylake_core.iceberg.errors import TableForbidden
from trinitylake_core.iceberg.locations import IN_AREA, canonical, directories_in, directories_of
from trinitylake_core.keys import TABLE, VIEW
from trinitylake_core.lakehouse import Lakehouse
from trinitylake_core.tables import (
    ELSEWHERE,
    FORMER,
    TABLE_UUID,
    as_directory,
    metadata_uri,
    own_directory,
    view_metadata_uri,
)
from trinitylake_core.versions import Root

_MOST_LEFT: Final = 32
"""So many directories of a table stay in its definition when it has left them."""
_DECODERS: Final[dict[str, Callable[[bytes, str], TableDef | ViewDef]]] = {TABLE: decode_table, VIEW: decode_view}


@dataclass(frozen=True, slots=True)
class Identity:
    """What only one table or view may have.

    Attributes:
        uuid: the UUID in a table's metadata; empty where the definition has none, and for a view.
        metadata: the location of the newest metadata file; empty where there is none.
        directory: its own directory; empty where it shares one.
        others: further directories in which its files are: those of its properties, its location, and former ones.
    """

    uuid: str = ""
    metadata: str = ""
    directory: str = ""
    others: frozenset[str] = frozenset()

    @property
    def directories(self) -> frozenset[str]:
        """All directories that are its own, each with a slash at its end."""
        return self.others | {self.directory} if self.directory else self.others


NOBODY: Final = Identity()
"""The identity of nothing."""


def identity_of(root: str, definition: TableDef | ViewDef) -> Identity:
    """Return the identity of a table or a view by its definition."""
    try:
        if isinstance(definition, ViewDef):
            uuid, metadata = "", view_metadata_uri(root, definition) or ""
        else:
            uuid, metadata = definition.format_properties.get(TABLE_UUID, ""), metadata_uri(root, definition) or ""
        own = own_directory(root, metadata) or ""
        return Identity(uuid, metadata, own, frozenset(_others_of(root, definition, own)))
    except InvalidLocation:
        return Identity()


def _others_of(root: str, definition: TableDef | ViewDef, own: str) -> Iterator[str]:
    """Yield the directories of a table or a view that do not lie in its own one."""
    named = [each.location for each in directories_in(definition.properties)]
    if isinstance(definition, TableDef):
        named.append(definition.format_properties.get(ELSEWHERE, ""))
        named += definition.format_properties.get(FORMER, "").split("\n")
    for each in named:
        if not each:
            continue
        directory = as_directory(canonical(root, each))
        is_inside = own and directory.startswith(own)
        if not is_inside:
            yield directory


def identity_of_metadata(root: str, metadata: TableMetadata, location: str) -> Identity:
    """Return the identity of a table by its metadata, and the location of their file."""
    file = canonical(root, location)
    return Identity(str(metadata.table_uuid), file, own_directory(root, file) or "")


def directories_left(root: str, old: TableDef, metadata: TableMetadata, location: str) -> list[str]:
    """Return the directories that a table had by a definition, and has no longer by new metadata at a location.

    Its files of older versions lie there, so they stay its own. Raises ``TableForbidden``: there are too many.
    """
    now = [as_directory(canonical(root, each.location)) for each in directories_of(metadata)]
    now.append(own_directory(root, canonical(root, location)) or "")
    held = tuple(filter(None, now))
    left: list[str] = []
    for each in sorted(identity_of(root, old).directories):  # one before those that lie in it
        if not each.startswith((*held, *left)):
            left.append(each)
    if len(left) > _MOST_LEFT:
        raise TableForbidden(
            f"the table had {len(left)} other directories, which stay its own, and there are {_MOST_LEFT} at the most: "
            "keep it where it is, or make a new table"
        )
    return left


class Identities:
    """The identities of objects by name, and the names by what only one object may have."""

    def __init__(self) -> None:
        self._by_name: dict[str, Identity | None] = {}
        self._names: defaultdict[tuple[str, str], set[str]] = defaultdict(set)

    def names(self) -> KeysView[str]:
        """Return all names that were noted, also those of objects that are gone."""
        return self._by_name.keys()

    def put(self, name: str, identity: Identity | None) -> None:
        """Note which identity an object has; ``None``: there is none of this name."""
        old = self._by_name.get(name)
        if old is not None:
            for part in _parts_of(old):
                self._names[part].discard(name)
                if not self._names[part]:
                    del self._names[part]
        self._by_name[name] = identity
        if identity is not None:
            for part in _parts_of(identity):
                self._names[part].add(name)

    def names_like(self, identity: Identity) -> set[str]:
        """Return the names of objects with the same UUID, or the same metadata file."""
        same_uuid = self._names.get(("uuid", identity.uuid), set())
        same_file = self._names.get(("metadata", identity.metadata), set())
        return same_uuid | same_file

    def names_over(self, directory: str) -> set[str]:
        """Return the names of objects with a directory of their own that is this one, is above it, or lies in it."""
        found: set[str] = set()
        found.update(self._names.get(("below", directory), ()))
        found.update(self._names.get(("directory", directory), ()))
        for above in _above(directory):
            found.update(self._names.get(("directory", above), ()))
        return found


def _parts_of(identity: Identity) -> Iterator[tuple[str, str]]:
    if identity.uuid:
        yield "uuid", identity.uuid
    if identity.metadata:
        yield "metadata", identity.metadata
    for directory in identity.directories:
        yield "directory", directory
        if IN_AREA.search(directory):  # nothing may be above those, whoever asks
            continue
        for above in _above(directory):
            yield "below", above


def _above(directory: str) -> Iterator[str]:
    """Yield the directories above one, the nearest first, each with a slash at its end."""
    above = directory.rstrip("/").rpartition("/")[0]
    while above.count("/") > 1:
        yield f"{above}/"
        above = above.rpartition("/")[0]


class TableIndex:
    """The identities of all tables and views of one version. Thread-safe; it moves to the version that is asked for.

    Memory: some 500 bytes for each of them, from the first question on.
    """

    def __init__(self, backend: LakehouseBackend) -> None:
        self._backend = backend
        self._lock = threading.Lock()
        self._root: Root | None = None
        self._identities = Identities()

    def names_of(self, identity: Identity, base: Root, directories: Iterable[str] = ()) -> set[str]:
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

    def _move_to(self, base: Root) -> None:
        if self._root is not None and self._root.version == base.version:
            return
        try:
            changed = self._read_changes(base)
        except (Corrupt, FileMissing):  # the version it stood at has expired, and is gone
            self._identities = Identities()
            self._root = None
            changed = self._read_changes(base)
        for name, identity in changed.items():
            self._identities.put(name, identity)
        self._root = base

    def _read_changes(self, base: Root) -> dict[str, Identity | None]:
        """Return the identities of what changed since the version this stands at; ``None``: it is gone."""
        lake = Lakehouse(self._backend, base)
        found: list[tuple[str, str, str]] = []
        changed: dict[str, Identity | None] = {}
        if self._root is None:
            for entry in lake.objects():
                if entry.kind in _DECODERS:
                    found.append((entry.kind, full_name(entry.namespace, entry.name or ""), entry.path))
        else:
            for change in lake.diff(Lakehouse(self._backend, self._root), lake):
                if change.kind in _DECODERS:
                    name = full_name(change.namespace, change.name or "")
                    changed.setdefault(name, None)
                    if change.new_path is not None:
                        found.append((change.kind, name, change.new_path))
        changed.update(self._backend.storage.map(found, self._read))
        return changed

    def _read(self, entry: tuple[str, str, str]) -> tuple[str, Identity | None]:
        """Return the identity of a table or a view; of one whose definition cannot be read nothing is known."""
        kind, name, path = entry
        try:
            definition = _DECODERS[kind](self._backend.storage.read(path), path)
        except (Corrupt, FileMissing, InvalidLocation):
            return name, None
        return name, identity_of(self._backend.storage.root, definition)


def full_name(namespace: str, name: str) -> str:
    """Return a name for this index: unlike a dot, a NUL is in no name."""
    return f"{namespace}\0{name}"

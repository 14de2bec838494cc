"""Whose ground is whose: what only one table or view of a lakehouse may have, and which of them has a directory."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, KeysView, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple

from trinitylake_core.definitions import (
    DECODERS,
    NamespaceDef,
    ObjectDef,
    TableDef,
    ViewDef,
)
from trinitylake_core.errors import Corrupt, FileMissing, InvalidLocation
from trinitylake_core.keys import TABLE, VIEW
from trinitylake_core.locations import OWN
from trinitylake_core.storage import Storage
from trinitylake_core.tables import (
    ELSEWHERE,
    FORMER,
    TABLE_UUID,
    as_directory,
    base_uri,
    full_uri,
    here,
    metadata_uri,
    own_directory,
    path_below,
    view_metadata_uri,
)

_NAMES_A_PLACE: Final = re.compile(r"write\.(?:.+\.)?(?:path|location|dir|directory)|location", re.IGNORECASE)
"""Properties by which engines choose where they write files of a table."""

HELD: Final = "directory"
BELOW: Final = "below"
"""What a part of an identity is: a directory, or one above that."""


def named_places(properties: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the properties that name a directory."""
    for name, value in properties.items():
        if value and _NAMES_A_PLACE.fullmatch(name.strip()):
            yield name, value


def canonical(root: str, location: str) -> str:
    """Return a location as it is spelled by a root, where it lies below that: also by a link."""
    path = path_below(root, location)
    return full_uri(location) if path is None else f"{base_uri(root)}{path}"


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

    def parts(self, root: str) -> Iterator[tuple[str, str]]:
        """Yield what only one object may have, and what it is: a UUID, a metadata file, a directory, one above it."""
        if self.uuid:
            yield "uuid", self.uuid
        if self.metadata:
            yield "metadata", self.metadata
        for directory in self.directories:
            yield HELD, directory
            if is_in_area(root, directory):  # nothing may be above those, whoever asks
                continue
            for above in directories_above(directory):
                yield BELOW, above


def is_in_area(root: str, directory: str) -> bool:
    """Whether a directory is that of a table below ``tables/`` of a lakehouse, or lies in it.

    Elsewhere the name of a directory says nothing: everybody may choose one that looks so.
    """
    base = base_uri(root)
    return directory.startswith(base) and OWN.match(directory, len(base)) is not None


NOBODY: Final = Identity()
"""The identity of nothing."""


def identity_of(root: str, definition: ObjectDef) -> Identity:
    """Return the identity of a table or a view by its definition; of a namespace it is the location.

    A place that leads out of the lakehouse is nobody's: no file is opened there.
    """
    if isinstance(definition, NamespaceDef):
        location = definition.properties.get("location", "")
        return Identity(others=frozenset(_directories(root, [location])))
    uuid, metadata, own = "", "", ""
    with suppress(InvalidLocation):
        if isinstance(definition, ViewDef):
            metadata = view_metadata_uri(root, definition) or ""
        else:
            uuid = definition.format_properties.get(TABLE_UUID, "")
            metadata = metadata_uri(root, definition) or ""
        own = own_directory(root, metadata) or ""
    return Identity(uuid, metadata, own, frozenset(_others_of(root, definition, own)))


def foreign_place(root: str, definition: TableDef, metadata: str, former: str, places: Iterable[str]) -> str | None:
    """Return the first directory in the metadata of a table that its definition does not have, if there is one.

    The directory around its metadata file is none, although release 0.1.0 let others have it, too. ``former`` is the
    root below which the table was written, if it came here with its lakehouse.
    """
    identity = identity_of(root, definition)
    held = tuple(here(root, each, former) for each in identity.directories)
    directory_of_file, _, _ = metadata.rpartition("/")
    beside = as_directory(canonical(root, directory_of_file.removesuffix("/metadata")))
    for place in places:
        location = here(root, place, former)
        directory = as_directory(canonical(root, location))
        if directory != beside and not directory.startswith(held):
            return place
    return None


def _others_of(root: str, definition: TableDef | ViewDef, own: str) -> Iterator[str]:
    """Yield the directories of a table or a view that do not lie in its own one."""
    named = [value for _, value in named_places(definition.properties)]
    if isinstance(definition, TableDef):
        named.append(definition.format_properties.get(ELSEWHERE, ""))
        named += definition.format_properties.get(FORMER, "").split("\n")
    for directory in _directories(root, named):
        is_inside = own and directory.startswith(own)
        if not is_inside:
            yield directory


def _directories(root: str, locations: Iterable[str]) -> Iterator[str]:
    """Yield the directories that locations name, but for those that are empty, or lead out of the lakehouse."""
    for each in locations:
        with suppress(InvalidLocation):
            if each:
                yield as_directory(canonical(root, each))


class NamedDefinition(NamedTuple):
    """A definition: the name of its object in an index, the kind, and the path."""

    name: str
    kind: str
    path: str


OWNERS: Final = frozenset({TABLE, VIEW})
"""The kinds of objects that have directories."""


def _read_identity(storage: Storage, each: NamedDefinition) -> Identity | None:
    """Return the identity of an object; ``None``: its definition cannot be read. One ``get``."""
    try:
        definition = DECODERS[each.kind](storage.read(each.path), each.path)
    except (Corrupt, FileMissing, InvalidLocation):
        return None
    return identity_of(storage.root, definition)


class Identities:
    """The identities of objects by name, and the names by what only one object may have."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._by_name: dict[str, Identity | None] = {}
        self._names: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
        self._unread: dict[str, NamedDefinition] = {}

    def names(self) -> KeysView[str]:
        """Return all names that were noted, also those of which it was noted that there is none."""
        return self._by_name.keys()

    def forget(self, name: str) -> None:
        """Forget a name, so that none that is gone stays in memory."""
        old = self._by_name.pop(name, None)
        self._unread.pop(name, None)
        if old is not None:
            for part in old.parts(self._root):
                self._names[part].discard(name)
                if not self._names[part]:
                    del self._names[part]

    def put(self, name: str, identity: Identity | None) -> None:
        """Note which identity an object has; ``None``: there is none of this name, and that stays noted."""
        self.forget(name)
        self._by_name[name] = identity
        if identity is not None:
            for part in identity.parts(self._root):
                self._names[part].add(name)

    def read(self, storage: Storage, found: Iterable[NamedDefinition], gone: Iterable[str] = ()) -> None:
        """Forget objects that are ``gone``, then note what definitions say. One ``get`` each, side by side.

        Nothing is noted where the storage fails.
        """

        def read(each: NamedDefinition) -> tuple[NamedDefinition, Identity | None]:
            return each, _read_identity(storage, each)

        known = list(storage.map(found, read))
        for name in gone:
            self.forget(name)
        for each, identity in known:
            self.put(each.name, identity)
            if identity is None:
                self._unread[each.name] = each

    def names_unread(self, storage: Storage) -> Iterator[str]:
        """Yield the names of objects whose definitions cannot be read, also not now: they may have any directory.

        One ``get`` each.
        """
        for each in list(self._unread.values()):
            self.read(storage, [each])
            if each.name in self._unread:
                yield each.name

    def identity(self, name: str) -> Identity:
        """Return the identity of an object that has one."""
        return self._by_name[name] or NOBODY

    def names_in(self, directory: str) -> set[str]:
        """Return the names of objects with exactly this directory."""
        return self._names.get((HELD, directory), set())

    def names_like(self, identity: Identity) -> set[str]:
        """Return the names of objects with the same UUID, or the same metadata file."""
        same_uuid = self._names.get(("uuid", identity.uuid), set())
        same_file = self._names.get(("metadata", identity.metadata), set())
        return same_uuid | same_file

    def is_free(self, directory: str) -> bool:
        """Whether no object has a directory, or one above it."""
        return not self.names_over(directory, below=False)

    def names_over(self, directory: str, *, below: bool = True) -> set[str]:
        """Return the names of objects with a directory of their own that is this one, is above it, or lies in it.

        Without ``below`` not those of which one lies in it.
        """
        found: set[str] = set()
        if below:
            found.update(self._names.get((BELOW, directory), ()))
        found.update(self._names.get((HELD, directory), ()))
        for above in directories_above(directory):
            found.update(self._names.get((HELD, above), ()))
        return found


def directories_above(directory: str) -> Iterator[str]:
    """Yield the directories above one, the nearest first, each with a slash at its end."""
    above = directory.rstrip("/").rpartition("/")[0]
    while above.count("/") > 1:
        yield f"{above}/"
        above = above.rpartition("/")[0]


def is_over(one: str, other: str) -> bool:
    """Whether two are the same, or one of them is a directory above the other."""
    if one == other:
        return True
    is_above = one.endswith("/") and other.startswith(one)
    is_below = other.endswith("/") and one.startswith(other)
    return is_above or is_below


def full_name(namespace: str, name: str) -> str:
    """Return a name for this index: unlike a dot, a NUL is in no name."""
    return f"{namespace}\0{name}"

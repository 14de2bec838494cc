"""What only one table or view of a lakehouse may have: its UUID, its newest metadata file, and its directories."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, KeysView
from dataclasses import dataclass
from typing import Final

from pyiceberg.table.metadata import TableMetadata

from trinitylake_core.definitions import TableDef, ViewDef
from trinitylake_core.errors import InvalidLocation
from trinitylake_core.iceberg.errors import TableForbidden
from trinitylake_core.iceberg.locations import IN_AREA, canonical, directories_in, directories_of
from trinitylake_core.tables import (
    ELSEWHERE,
    FORMER,
    TABLE_UUID,
    as_directory,
    metadata_uri,
    own_directory,
    view_metadata_uri,
)

_MOST_LEFT: Final = 32
"""So many directories of a table stay in its definition when it has left them."""


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
    held: list[str] = []
    for place in directories_of(metadata):
        spelled = canonical(root, place.location)
        held.append(as_directory(spelled))
    file = canonical(root, location)
    own = own_directory(root, file)
    if own is not None:
        held.append(own)
    left: list[str] = []
    before = identity_of(root, old)
    for each in sorted(before.directories):  # one before those that lie in it
        covers = (*held, *left)
        if not each.startswith(covers):
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

    def identity(self, name: str) -> Identity:
        """Return the identity of an object that has one."""
        return self._by_name[name] or NOBODY

    def names_in(self, directory: str) -> set[str]:
        """Return the names of objects with exactly this directory."""
        return self._names.get(("directory", directory), set())

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

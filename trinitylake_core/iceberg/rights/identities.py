"""The identity of a table by its metadata, and the directories that it leaves."""

from __future__ import annotations

from typing import Final

from pyiceberg.table.metadata import TableMetadata

from trinitylake_core.definitions import TableDef
from trinitylake_core.grounds import Identity, canonical, identity_of
from trinitylake_core.iceberg.errors import TableForbidden
from trinitylake_core.iceberg.rights.locations import directories_of
from trinitylake_core.tables import as_directory, own_directory

_MOST_LEFT: Final = 32
"""So many directories of a table stay in its definition when it has left them."""


def identity_of_metadata(root: str, metadata: TableMetadata, location: str) -> Identity:
    """Return the identity of a table by its metadata, and the location of their file."""
    file = canonical(root, location)
    return Identity(str(metadata.table_uuid), file, own_directory(root, file) or "")


def directories_left(root: str, old: TableDef, metadata: TableMetadata, location: str) -> list[str]:
    """Return the directories that a table had by its old definition, and has no longer by new metadata at a location.

    One that lies in another one is not listed. They stay directories of the table: its files of older versions lie
    there. Raises ``TableForbidden``: there are too many.
    """
    listed = [as_directory(canonical(root, place.location)) for place in directories_of(metadata)]
    file = canonical(root, location)
    own = own_directory(root, file)
    if own is not None:
        listed.append(own)
    left: list[str] = []
    for each in sorted(identity_of(root, old).directories):  # a directory comes before those that lie in it
        if not each.startswith(tuple(listed)):
            left.append(each)
            listed.append(each)
    if len(left) > _MOST_LEFT:
        raise TableForbidden(
            f"the table had {len(left)} other directories, which stay its own, and there are {_MOST_LEFT} at the most: "
            "keep it where it is, or make a new table"
        )
    return left

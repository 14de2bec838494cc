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

"""What a rollback leaves behind: the newest version, also where its root cannot be read (format, section 6).

A root that is cut short or garbage was committed once, and its content is lost. A rollback over it must be safe for
every possible content:

* *its lakehouse definition*: that of the newest version that can be read is carried on;
* *its boundary*: nothing is deleted below a boundary before the boundary file contains it, and a process that deletes
  has read the root that contains it again after that. So the file, read after the root was found to be unreadable, is
  enough;
* *its fence*: the storage's time by now is later than that of any fence that is committed already, so everything older
  that no version reaches is void from now on;
* *its transaction*: the new root does not name the one that it follows. A process that has the unreadable root in
  memory takes the new root for the next version all the same.

The same holds for versions below it that cannot be read.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from trinitylake_core import spec
from trinitylake_core.commits.files import LakehouseStore
from trinitylake_core.errors import Corrupt
from trinitylake_core.tree.node import Node
from trinitylake_core.versions import Root

_CARRIED = (spec.LAKEHOUSE_DEF, spec.LAKEHOUSE_DEF_COPY, spec.VOID_BEFORE_MILLIS)


@dataclass(frozen=True, slots=True)
class Base:
    """The newest version.

    Attributes:
        root: its root, or what stands for one that cannot be read: with the rows that a commit carries on, and no tree.
        readable: the newest root that can be read.
    """

    root: Root
    readable: Root


def newest_base(files: LakehouseStore) -> Base:
    """Return the newest version, also where its root is damaged. Four ``get`` or so; a listing where it is damaged.

    A root whose lakehouse definition is not there may be that of another lakehouse, and counts as damaged.

    Raises:
        NotALakehouse, Corrupt: no version can be read, or the boundary file cannot either.
        StorageError: a root is not the same each time it is read.
    """
    try:
        newest = files.newest()
        files.versions.definition_file(newest)
    except Corrupt:
        readable, unreadable = files.versions.newest_readable()
        if unreadable:
            return Base(_standing_for(files, unreadable[0], readable), readable)
        newest = readable
    files.note_newest(newest)
    return Base(newest, newest)


def _standing_for(files: LakehouseStore, damaged: Root, readable: Root) -> Root:
    boundary = files.versions.boundary_file()
    if boundary is None:
        raise Corrupt(
            f"neither {damaged.path} nor {spec.BOUNDARY_FILE} can be read, so nobody knows which versions are kept; "
            f"copy {spec.BOUNDARY_FILE} from a backup, or write the number of the oldest version that is there into it",
            path=spec.BOUNDARY_FILE,
            invariant="I16",
        )
    rows = {name: readable.system[name] for name in _CARRIED if name in readable.system}
    later = damaged.version - readable.version
    rows |= {
        spec.VERSION: str(damaged.version),
        spec.CREATED_AT_MILLIS: str(readable.created_at_millis + later),
        spec.OLDEST_VERSION: str(max(readable.oldest_version, boundary)),
        spec.SUMMARY: damaged.system[spec.SUMMARY],
    }
    return replace(damaged, node=Node(system=rows, height=None))

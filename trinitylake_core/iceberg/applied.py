"""Commits that have been applied already: a client that got no answer sends the same one again.

A refusal (409) says that a commit was not applied, and DuckDB deletes the files of it then. So a commit whose snapshots
are there is answered as the first time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import AddSnapshotUpdate, SetSnapshotRefUpdate, TableUpdate


def is_applied(updates: Sequence[TableUpdate], metadata: TableMetadata) -> bool:
    """Return whether all snapshots that a commit adds are there, and below the references that it sets. No request.

    A snapshot is the same one if its ID and its manifest list are: writers choose both by chance. A commit is applied
    as a whole or not at all, so the snapshots stand for its other updates. One that adds no snapshot is never told.
    """
    known = {each.snapshot_id: each.manifest_list for each in metadata.snapshots}
    has_snapshots = False
    for each in updates:
        if isinstance(each, AddSnapshotUpdate):
            has_snapshots = True
            if known.get(each.snapshot.snapshot_id) != each.snapshot.manifest_list:
                return False
        elif isinstance(each, SetSnapshotRefUpdate) and each.snapshot_id not in _line_of(each.ref_name, metadata):
            return False
    return has_snapshots


def _line_of(ref_name: str, metadata: TableMetadata) -> Iterator[int]:
    """Yield the snapshots of a branch or tag, newest first; a circle of them ends."""
    parents = {each.snapshot_id: each.parent_snapshot_id for each in metadata.snapshots}
    ref = metadata.refs.get(ref_name)
    at = None if ref is None else ref.snapshot_id
    while at is not None and at in parents:
        yield at
        at = parents.pop(at)

"""Commits that have been applied already: a client that got no answer sends the same one again.

A refusal (409) says that a commit was not applied, and DuckDB deletes the files of it then. So a commit whose snapshots
are there is answered as the first time.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import AddSnapshotUpdate, SetSnapshotRefUpdate, TableUpdate

from trinitylake_core.iceberg.commit_rules.snapshot_expiration import ancestors


def is_applied(updates: Sequence[TableUpdate], metadata: TableMetadata) -> bool:
    """Return whether all snapshots that a commit adds are there, and below the references that it sets. No request.

    A snapshot is the same one if its ID and its manifest list are: writers choose both by chance. A commit is applied
    as a whole or not at all, so the snapshots stand for its other updates. One that adds no snapshot is never told.
    """
    known = {each.snapshot_id: each for each in metadata.snapshots}
    has_snapshots = False
    for each in updates:
        if isinstance(each, AddSnapshotUpdate):
            has_snapshots = True
            there = known.get(each.snapshot.snapshot_id)
            if there is None or there.manifest_list != each.snapshot.manifest_list:
                return False
        elif isinstance(each, SetSnapshotRefUpdate):
            ref = metadata.refs.get(each.ref_name)
            if ref is None:
                return False
            line = ancestors(ref.snapshot_id, known)
            if all(snapshot.snapshot_id != each.snapshot_id for snapshot in line):
                return False
    return has_snapshots

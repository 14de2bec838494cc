"""Taking the newest snapshots of a table back, unless somebody wrote since."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.update import AssertRefSnapshotId, SetSnapshotRefUpdate

if TYPE_CHECKING:
    from trinitylake_core.iceberg.catalog import TrinityLakeCatalog


def take_snapshots_back(catalog: TrinityLakeCatalog, identifier: tuple[str, ...], newest: int, back_to: int) -> None:
    """Make an older snapshot the current one again, if ``newest`` still is. One commit.

    Raises:
        CommitFailedException: somebody has written since, and nothing was changed.
        NoSuchTableError, ForbiddenError: or what else ``commit_table`` raises.
    """
    table = catalog.load_table(identifier)
    main = table.metadata.refs.get(MAIN_BRANCH)
    required = AssertRefSnapshotId(ref=MAIN_BRANCH, **{"snapshot-id": newest})
    change = SetSnapshotRefUpdate(
        ref_name=MAIN_BRANCH,
        type=SnapshotRefType.BRANCH,
        snapshot_id=back_to,
        max_ref_age_ms=None if main is None else main.max_ref_age_ms,
        max_snapshot_age_ms=None if main is None else main.max_snapshot_age_ms,
        min_snapshots_to_keep=None if main is None else main.min_snapshots_to_keep,
    )
    catalog.commit_table(table, (required,), (change,))

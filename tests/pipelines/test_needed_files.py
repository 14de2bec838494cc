"""The independent reader that judges cleanings finds what a cleaning must not have deleted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.icebergs import rows, with_table
from tests.support.needed_files import DeletedLive, find_files, find_needed, refuse_deleted
from trinitylake_core.iceberg import TrinityLakeCatalog


def test_every_file_of_every_retained_version_is_needed(catalog: TrinityLakeCatalog, tmp_path: Path) -> None:
    """Metadata of each version, lists, manifests and data; nothing else lies below ``tables/``."""
    table = with_table(catalog, "sales.orders", 1)
    table.append(rows(2))
    table.overwrite(rows(3))
    root = tmp_path / "lake"
    of_tables = {path for path in find_files(root) if "/lake/tables/" in path}
    assert of_tables == find_needed(root)


@pytest.mark.parametrize("what", ["*.metadata.json", "snap-*.avro", "*-m0.avro", "*.parquet"])
def test_a_deleted_file_that_is_needed_is_found(catalog: TrinityLakeCatalog, tmp_path: Path, what: str) -> None:
    with_table(catalog, "sales.orders", 1)
    root = tmp_path / "lake"
    before = find_files(root)
    next((root / "tables").rglob(what)).unlink()
    with pytest.raises(DeletedLive, match="1 of 1 deleted files are needed"):
        refuse_deleted(root, before)

"""What others' rules would delete of the files of tables, and keep, on one history (docs/retention.md)."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from pyiceberg.table import Table

from tests.support.icebergs import ids, new_iceberg, rows, with_table
from tests.support.zero_age import clean_tables, expire_all_but_the_newest
from trinitylake_core.iceberg import TrinityLakeCatalog

PAGE: Final = Path(__file__).parents[2] / "docs/retention.md"


@dataclass(frozen=True)
class History:
    """One history: the catalog, every file of tables, and what the retained versions and the newest one need."""

    catalog: TrinityLakeCatalog
    files: frozenset[str]
    needed: frozenset[str]
    """By reading every table at every retained version with PyIceberg: no code of the cleaning."""


def paths(catalog: TrinityLakeCatalog, uris: set[str]) -> set[str]:
    root = catalog.lakehouse.root.removeprefix("file://")
    return {each.removeprefix("file://").removeprefix(root) for each in uris}


def referred(table: Table) -> set[str]:
    """Return what the metadata of a table refer to, and the metadata file."""
    found = {table.metadata_location}
    for snapshot in table.metadata.snapshots:
        found.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(table.io):
            found.add(manifest.manifest_path)
            found |= {entry.data_file.file_path for entry in manifest.fetch_manifest_entry(table.io)}
    return found


def tables_of(catalog: TrinityLakeCatalog, version: int | None = None) -> list[Table]:
    lake = catalog.lakehouse
    past = catalog if version is None else TrinityLakeCatalog.over(lake, version=str(version))
    return [past.load_table(name) for space in past.list_namespaces() for name in past.list_tables(space)]


@pytest.fixture
def history(tmp_path: Path) -> History:
    """Two old versions expire; then tables are overwritten and dropped, snapshots expired, and an append given up."""
    catalog = new_iceberg(tmp_path)
    with_table(catalog, "sales.forgotten", 0)
    catalog.drop_table("sales.forgotten")
    orders = with_table(catalog, "sales.orders", 1, 2)
    with_table(catalog, "sales.dropped", 3)
    lake = catalog.lakehouse
    expire_all_but_the_newest(lake)
    orders = catalog.load_table("sales.orders")
    orders.overwrite(rows(4))
    orders.maintenance.expire_snapshots().by_ids(
        [each.snapshot_id for each in orders.metadata.snapshots if each != orders.current_snapshot()]
    ).commit()
    catalog.drop_table("sales.dropped")
    catalog.load_table("sales.orders").transaction().append(rows(9))
    lake = catalog.lakehouse
    needed: set[str] = set()
    for version in range(lake.stats().oldest_version, lake.version + 1):
        needed |= paths(catalog, set().union(*map(referred, tables_of(catalog, version))))
    files = frozenset(each.path for each in lake.storage.list("tables/"))
    return History(catalog, files, frozenset(needed))


def _ours(history: History) -> set[str]:
    clean_tables(history.catalog.lakehouse)
    return set(history.files - {each.path for each in history.catalog.lakehouse.storage.list("tables/")})


def _remove_orphan_files(history: History) -> set[str]:
    """Of each table that is there: what lies in its directory, and its newest metadata do not refer to.

    The metadata files in the metadata log are kept, too.
    """
    gone: set[str] = set()
    for table in tables_of(history.catalog):
        known = referred(table) | {each.metadata_file for each in table.metadata.metadata_log}
        (location,) = paths(history.catalog, {table.location()})
        gone |= {path for path in history.files if path.startswith(f"{location}/")} - paths(history.catalog, known)
    return gone


def _nessie(history: History) -> set[str]:
    """Of each table that a live commit names: as Nessie marks the contents of all commits that its rules keep.

    Only the snapshot that a commit names is live, not the older ones in its metadata; tables that no live commit names
    have no location that is listed.
    """
    live: set[str] = set()
    locations: set[str] = set()
    lake = history.catalog.lakehouse
    for version in range(lake.stats().oldest_version, lake.version + 1):
        for table in tables_of(history.catalog, version):
            locations |= paths(history.catalog, {table.location()})
            live |= paths(history.catalog, {table.metadata_location})
            if (snapshot := table.current_snapshot()) is not None:
                live |= paths(history.catalog, {snapshot.manifest_list})
                for manifest in snapshot.manifests(table.io):
                    entries = manifest.fetch_manifest_entry(table.io)
                    live |= paths(history.catalog, {manifest.manifest_path} | {e.data_file.file_path for e in entries})
    listed = {path for path in history.files for each in locations if path.startswith(f"{each}/")}
    return listed - live


RULES: Final[dict[str, Callable[[History], set[str]]]] = {
    "`tables clean`": _ours,
    "Iceberg's `remove_orphan_files`": _remove_orphan_files,
    "Nessie's garbage collection": _nessie,
}


@pytest.mark.parametrize("name", RULES)
def test_what_a_rule_deletes_and_keeps_is_what_the_page_says(history: History, name: str) -> None:
    gone = RULES[name](history)
    broken, left = len(gone & history.needed), len(history.files - history.needed - gone)
    row = re.escape(f"| {name} | {len(gone - history.needed)} | {broken} | {left} |")
    assert re.search(row, PAGE.read_text(encoding="utf-8")), f"docs/retention.md needs {row}"
    if name == "`tables clean`":
        assert (0, 0) == (broken, left)
        lake = history.catalog.lakehouse
        past = TrinityLakeCatalog.over(lake, version=str(lake.stats().oldest_version))
        assert [[1, 2], [3]] == sorted(ids(past.load_table(f"sales.{each}")) for each in ("orders", "dropped"))

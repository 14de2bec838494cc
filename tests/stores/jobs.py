"""All jobs, one after the other, on one lakehouse of a real store: each must do what it is for."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from pipelines import (
    clean,
    compaction,
    diff,
    expire,
    export,
    load,
    rollback,
    stats,
    tables_clean,
    tables_compact,
    tables_expire,
    tables_health,
    verify,
)
from pipelines.engine.choice import choose_engine
from pipelines.tables.compact.decision import GroupRules
from tests.support.icebergs import ids, rows, with_table
from trinitylake_core import Lakehouse
from trinitylake_core.errors import VersionExpired
from trinitylake_core.iceberg import TrinityLakeCatalog

ORDERS: Final = "sales.orders"
"""The Iceberg table: PyIceberg appends a row at a time, so that it has as many files."""
_ROWS: Final = [1, 2, 3, 4, 5, 6]
_LOADED: Final = 500
_DAY_MILLIS: Final = 86_400_000


@dataclass(frozen=True)
class Place:
    """A lakehouse on a real store, and what its jobs run on: ``spark`` is a session, or ``None``."""

    root: str
    options: dict[str, Any]
    engine: str
    spark: Any

    def open(self) -> Lakehouse:
        """Open the lakehouse as a process does that has just started."""
        return Lakehouse.open(self.root, storage_options=self.options)

    def orders(self) -> list[int]:
        """Return the IDs in the Iceberg table."""
        return _ids_of_orders(self.open())


def run_all_jobs(place: Place, copy_root: str, folder: Path) -> None:
    """Run each job; what writers have committed stays readable throughout."""
    append_orders(place)
    load_and_roll_back(place, folder)
    compact_tables(place)
    expire_tables(place)
    compact_tree(place)
    export_history(place, copy_root)
    expire_versions(place)
    clean_catalog(place)
    clean_tables(place)
    verify_everything(place.open(), place)


def append_orders(place: Place) -> None:
    """Let PyIceberg make a table of many small files."""
    table = with_table(TrinityLakeCatalog.over(place.open()), ORDERS)
    for number in _ROWS:
        table.append(rows(number))


def load_and_roll_back(place: Place, folder: Path) -> None:
    """Load a namespace of tables, compare the versions, and roll the load back."""
    before = place.open()
    source = folder / "objects.jsonl"
    names = [f"t{number:06}" for number in range(_LOADED)]
    lines: list[dict[str, Any]] = [{"create_namespace": {"namespace": "loaded"}}]
    lines += ({"create_table": {"namespace": "loaded", "name": name}} for name in names)
    source.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    done = load.run(place.open(), str(source), load.Config(engine=place.engine), place.spark)
    assert done.added == len(lines)
    loaded = place.open()
    assert loaded.tables("loaded") == names

    changes = list(diff.run(before, loaded, diff.Config(place.engine), place.spark))
    assert {each.change for each in changes} == {"added"}
    assert sorted(each.name for each in changes if each.name is not None) == names
    assert len(changes) == len(lines)

    config = rollback.Config(version=before.version, reason="the load was a trial", engine=place.engine)
    rollback.run(place.open(), config, place.spark)
    assert "loaded" not in place.open().namespaces()
    assert place.open().at(version=loaded.version).tables("loaded") == names  # what was undone can still be read
    left = list(diff.run(before, place.open(), diff.Config(place.engine), place.spark))
    assert left == []


def compact_tables(place: Place) -> None:
    """Merge the small files of the Iceberg table. Spark has no client for these stores, so this process rewrites."""
    health = tables_health.run(place.open(), tables_health.Config(engine=place.engine), place.spark)
    assert (health.data_files, health.failures) == (len(_ROWS), {})
    config = tables_compact.Config(engine="local", rules=GroupRules(min_files=2))
    compacted = tables_compact.run(place.open(), config)
    assert (compacted.files_before, compacted.files_made) == (len(_ROWS), 1)
    assert place.orders() == _ROWS


def expire_tables(place: Place) -> None:
    """Let all snapshots of the table go but the newest."""
    expired = tables_expire.run(place.open(), tables_expire.Config(older_than_seconds=0))
    assert expired.snapshots == len(_ROWS)
    assert place.orders() == _ROWS


def compact_tree(place: Place) -> None:
    """Push every message down, after a compaction that pays; nothing waits then."""
    compaction.run(place.open(), compaction.Config(engine=place.engine), place.spark)
    compaction.run(place.open(), compaction.Config(engine=place.engine, full=True), place.spark)
    engine = choose_engine(place.engine, place.spark, 0, 1)
    found = stats.deep(place.open(), engine, storage=True)
    assert sum(level.messages for level in found.levels) == 0
    assert place.open().stats().messages == 0


def export_history(place: Place, copy_root: str) -> None:
    """Copy every version and all files of tables to another place; the copy says the same, and is sound."""
    config = export.Config(history=True, tables=True, engine=place.engine)
    export.run(place.open(), copy_root, config, place.spark, storage_options=place.options)
    copy = Lakehouse.open(copy_root, storage_options=place.options)
    changes = list(diff.run(place.open(), copy, diff.Config(place.engine), place.spark))
    assert changes == []
    assert _ids_of_orders(copy) == _ROWS
    verify_everything(copy, place)


def expire_versions(place: Place) -> None:
    """Let all versions go but the newest, which says what it said before."""
    before = place.open()
    later = int(time.time() * 1000) + 30 * _DAY_MILLIS
    config = expire.Config(engine=place.engine, keep_last=1, now_millis=later)
    expired = expire.run(place.open(), config, place.spark)
    assert expired.deleted
    with pytest.raises(VersionExpired):
        place.open().at(version=before.version - 1)
    assert place.open().tables("ns") == before.tables("ns")


def clean_catalog(place: Place) -> None:
    """Delete the files of the catalog that no version needs: the load left a definition for each of its tables."""
    config = clean.Config(engine=place.engine, older_than_seconds=0, allow_recent=True)
    cleaned = clean.run(place.open(), config, place.spark)
    assert cleaned.failed == 0
    assert cleaned.deleted > _LOADED


def clean_tables(place: Place) -> None:
    """Delete the files of the table that no version needs: at least those that the compaction replaced."""
    config = tables_clean.Config(engine=place.engine, older_than_seconds=0, allow_recent=True)
    cleaned = tables_clean.run(place.open(), config, place.spark)
    assert cleaned.failed == 0
    assert cleaned.deleted >= len(_ROWS)
    assert place.orders() == _ROWS


def verify_everything(lake: Lakehouse, place: Place) -> None:
    """Verify all versions, every definition, and every file of tables."""
    config = verify.Config("all", definitions=True, engine=place.engine, tables=1.0, deep=True)
    verified = verify.run(lake, config, place.spark)
    assert list(verified.findings) == []


def _ids_of_orders(lake: Lakehouse) -> list[int]:
    return ids(TrinityLakeCatalog.over(lake).load_table(ORDERS))

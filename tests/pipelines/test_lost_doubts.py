"""An engine that spoils one row of what says what is in doubt: nothing is called free, whole or sound by that."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from pyiceberg.table import Table

from pipelines import clean, export, tables_clean, verify
from pipelines.copy.plan import CopyPlan
from pipelines.reach.table_sweep import TableSweep
from tests.simulation.engines import HOWS, How
from tests.support.icebergs import rows, with_table
from tests.support.respelled import local, needed_by
from tests.support.spoilt_engines import (
    KINDS_AND_READS,
    Kind,
    SpoiltQueries,
    SpoiltReads,
    SpoiltSpark,
    arm_within,
    every_row,
    planned_files,
    spoil_one_by_one,
)
from tests.support.zero_age import expire_all_but_the_newest
from trinitylake_core.errors import StorageError, TrinityLakeError
from trinitylake_core.iceberg import TrinityLakeCatalog
from trinitylake_core.iceberg.rights.locations import Locations

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_STRIDES: Final[dict[type, int]] = {SpoiltReads: 23}
"""After how many rows the next one is tried: all queries together read most rows several times."""


def _damage_a_manifest(catalog: TrinityLakeCatalog, table: Table) -> None:
    del catalog
    snapshot = table.current_snapshot()
    assert snapshot is not None
    local(snapshot.manifests(table.io)[0].manifest_path).write_bytes(b"damaged")


def _claim_twice(catalog: TrinityLakeCatalog, table: Table) -> None:
    with pytest.MonkeyPatch.context() as before_owners:
        before_owners.setattr(Locations, "shared_ground", lambda *_: [])  # version 0.1.0 let a table be made there
        with_table(catalog, "sales.guest", 4, location=table.location())


def _forbid(catalog: TrinityLakeCatalog, table: Table) -> None:
    del catalog
    with table.transaction() as changes:
        changes.set_properties({"gc.enabled": "false"})


DOUBTS: dict[str, Callable[[TrinityLakeCatalog, Table], None]] = {
    "unreadable": _damage_a_manifest,
    "shared": _claim_twice,
    "forbidden": _forbid,
}


def _abandoned(catalog: TrinityLakeCatalog) -> Table:
    """Make two tables with an abandoned append each, and return one."""
    for name in ("sales.one", "sales.two"):
        table = with_table(catalog, name, 1)
        table.append(rows(2))
        table.transaction().append(rows(3))
    return catalog.load_table("sales.two")


@every_row
@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("doubt", DOUBTS)
def test_a_spoilt_row_of_what_is_in_doubt_deletes_nothing_more(
    catalog: TrinityLakeCatalog, monkeypatch: pytest.MonkeyPatch, doubt: str, how: How, step: int
) -> None:
    DOUBTS[doubt](catalog, _abandoned(catalog))
    time.sleep(0.02)
    for engine in spoil_one_by_one(SpoiltQueries, how, step):
        planned = None
        with monkeypatch.context() as patch, suppress(StorageError):
            arm_within(patch, engine, TableSweep, "_protect")
            planned = planned_files(catalog, engine, patch)
            assert not {each for each in planned if "/two-" in each}, (engine.fault.number, engine.spoilt)
    assert planned is not None
    assert engine.fault.number > 2


@pytest.mark.parametrize("how", HOWS)
def test_a_spoilt_row_of_the_owners_of_directories_carries_out_no_plan_for_another_table(
    catalog: TrinityLakeCatalog, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, how: How
) -> None:
    """Between the plan and its execution another table was registered in the directory."""
    with_table(catalog, "sales.orders", 1).transaction().append(rows(2))
    with_table(catalog, "sales.more", 1).transaction().append(rows(2))
    plan = str(tmp_path / "plan.parquet")
    config = tables_clean.Config(older_than_seconds=0, allow_recent=True, engine="local")
    time.sleep(0.02)
    assert 6 == tables_clean.run(catalog.lakehouse.refresh(), replace(config, plan_to=plan)).orphan_files
    metadata = local(catalog.load_table("sales.orders").metadata_location)
    catalog.drop_table("sales.orders")
    expire_all_but_the_newest(catalog.lakehouse)
    content = json.loads(metadata.read_text())
    metadata.write_text(json.dumps(content | {"table-uuid": "00000000-0000-4000-8000-000000000000"}))
    catalog.register_table("sales.other", metadata.as_uri())
    for engine in spoil_one_by_one(SpoiltQueries, how, step=1):
        with monkeypatch.context() as patch:
            arm_within(patch, engine, TableSweep, "owners")
            patch.setattr(clean, "choose_engine_for_all", lambda *_, made=engine: made)
            with pytest.raises(TrinityLakeError, match=r"does not belong any more|the engine lost rows"):
                tables_clean.run(catalog.lakehouse.refresh(), replace(config, plan=plan))
    assert engine.fault.number > 5


@pytest.mark.slow
@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("doubt", DOUBTS)
def test_on_spark_a_spoilt_row_of_what_is_in_doubt_deletes_nothing_more(
    catalog: TrinityLakeCatalog, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, doubt: str, how: How
) -> None:
    """Every twentieth row: Spark needs ten seconds for each."""
    DOUBTS[doubt](catalog, _abandoned(catalog))
    time.sleep(0.02)
    for engine in spoil_one_by_one(partial(SpoiltSpark, spark), how, step=20):
        planned = None
        with monkeypatch.context() as patch, suppress(StorageError):
            arm_within(patch, engine, TableSweep, "_protect")
            planned = planned_files(catalog, engine, patch)
            assert not {each for each in planned if "/two-" in each}, engine.fault.number
    assert planned is not None
    assert engine.fault.number > 2


@every_row
@pytest.mark.parametrize("kind", [SpoiltQueries, SpoiltReads])
@pytest.mark.parametrize("how", HOWS)
def test_a_spoilt_row_of_what_cannot_be_read_calls_no_copy_whole(
    catalog: TrinityLakeCatalog, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: Kind, how: How, step: int
) -> None:
    _damage_a_manifest(catalog, _abandoned(catalog))
    lake = catalog.lakehouse.refresh()
    config = export.Config(tables=True, history=True)
    for engine in spoil_one_by_one(kind, how, step * _STRIDES.get(kind, 1)):
        done = None
        with monkeypatch.context() as patch, suppress(StorageError):
            arm_within(patch, engine, CopyPlan, "_lacking")
            patch.setattr(export, "choose_engine", lambda *_, made=engine, **__: made)
            done = export.run(lake, (tmp_path / f"{engine.fault.number}").as_uri(), config)
            assert ["sales-two"] == list(done.plan.tables_lacking), (engine.fault.number, engine.spoilt)
    assert done is not None
    assert engine.fault.number > 5


def _lose_a_file(catalog: TrinityLakeCatalog, table: Table) -> None:
    del catalog
    next(each for each in needed_by(table) if each.suffix == ".parquet").unlink()


@every_row
@pytest.mark.parametrize("damage", [_damage_a_manifest, _lose_a_file])
@pytest.mark.parametrize("kind", KINDS_AND_READS)
@pytest.mark.parametrize("how", HOWS)
def test_a_spoilt_row_of_what_cannot_be_read_calls_no_table_sound(
    catalog: TrinityLakeCatalog,
    monkeypatch: pytest.MonkeyPatch,
    damage: Callable[[TrinityLakeCatalog, Table], None],
    kind: Kind,
    how: How,
    step: int,
) -> None:
    damage(catalog, _abandoned(catalog))
    lake = catalog.lakehouse.refresh()
    for engine in spoil_one_by_one(kind, how, step * _STRIDES.get(kind, 1)):
        done = None
        with monkeypatch.context() as patch, suppress(StorageError):
            arm_within(patch, engine, verify, "prove_table_files")
            patch.setattr(verify, "choose_engine_for_all", lambda *_, made=engine: made)
            done = verify.run(lake.storage, verify.Config("all", tables=1.0, deep=True))
            assert not done.ok, (engine.fault.number, engine.spoilt)
    assert done is not None
    assert engine.fault.number > 5

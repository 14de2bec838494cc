"""Iceberg tables as assets: where the stanza names them, with the metadata whose names Dagster knows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from dagster_project import external_tables
from dagster_project.config import ConfigError, parse
from dagster_project.config.file import Stanzas
from dagster_project.config.settings import LakehouseSettings
from dagster_project.factory import define_lakehouses
from tests.dagster.test_sensor import look, state, told
from trinitylake_core import Lakehouse
from trinitylake_core.iceberg import TrinityLakeCatalog

ROOT = Path(__file__).parents[2]
ORDERS = dg.AssetKey(["sales", "orders"])
ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "price": [9.5, 7.0, 3.25]})


@pytest.fixture
def shop(tmp_path: Path) -> TrinityLakeCatalog:
    """Return a catalog with a table that has rows and an owner, one without both, and one that nobody asks for."""
    lake = Lakehouse.create(tmp_path / "shop")
    catalog = TrinityLakeCatalog("shop", uri=lake.root)
    for namespace in ("sales", "eu.de", "hr"):
        catalog.create_namespace(tuple(namespace.split(".")))
    orders = catalog.create_table("sales.orders", ROWS.schema, properties={"owner": "team:shop", "comment": "orders"})
    orders.append(ROWS)
    catalog.create_table(("eu", "de", "items"), ROWS.schema)
    catalog.create_table("hr.people", ROWS.schema)
    return catalog


@pytest.fixture
def shown(shop: TrinityLakeCatalog) -> LakehouseSettings:
    """Return a stanza that names the first two."""
    stanza = {"name": "sales-eu", "root": shop.properties["uri"], "owners": ["team:data"]}
    stanza |= {"assets": ["sales.*", "eu.de.*"]}
    return LakehouseSettings.model_validate(stanza)


def recorded(result: dg.SensorResult) -> dict[dg.AssetKey, dict[str, Any]]:
    """Return the metadata of each table that a tick records."""
    found = [each for each in result.asset_events if isinstance(each, dg.AssetMaterialization)]
    return {each.asset_key: {name: value.value for name, value in each.metadata.items()} for each in found}


def test_tables_are_external_assets_with_schema_and_owner(shown: LakehouseSettings) -> None:
    graph = define_lakehouses((shown,)).get_repository_def().asset_graph
    keys = {key for key in graph.get_all_asset_keys() if key.path[0] != "lakehouse"}
    assert {ORDERS, dg.AssetKey(["eu", "de", "items"])} == keys
    orders = graph.get(ORDERS)
    assert not orders.is_executable
    assert (["team:shop"], "orders") == (list(orders.owners), orders.description)
    assert ["team:data"] == list(graph.get(dg.AssetKey(["eu", "de", "items"])).owners)
    assert "sales.orders" == orders.metadata["dagster/table_name"]
    columns = orders.metadata["dagster/column_schema"].columns
    assert [("id", "int64"), ("price", "double")] == [(each.name, each.type) for each in columns]


def test_each_new_version_of_a_table_is_recorded_once(
    shown: LakehouseSettings, shop: TrinityLakeCatalog, instance: dg.DagsterInstance
) -> None:
    """With rows, snapshot and owner; what did not change is not recorded again, and neither is a dropped table."""
    result, cursor = look(shown, instance)
    told(result, instance)
    first = recorded(result)
    assert {ORDERS, dg.AssetKey(["eu", "de", "items"])} == set(first)
    snapshot = shop.load_table("sales.orders").current_snapshot()
    assert snapshot is not None
    wanted = {"dagster/row_count": 3, "dagster/table_name": "sales.orders", "owner": "team:shop"}
    assert wanted | {"snapshot": str(snapshot.snapshot_id)} == {
        name: first[ORDERS][name] for name in (*wanted, "snapshot")
    }
    assert "dagster/row_count" not in first[dg.AssetKey(["eu", "de", "items"])]
    again, same = look(shown, instance, cursor)
    assert ({}, state(cursor).tables_version) == (recorded(again), state(same).tables_version)
    shop.load_table("sales.orders").append(ROWS)
    shop.drop_table(("eu", "de", "items"))
    later, _ = look(shown, instance, same)
    told(later, instance)
    assert [6] == [each["dagster/row_count"] for each in recorded(later).values()]
    event = instance.get_latest_materialization_event(ORDERS)
    assert event is not None
    assert event.asset_materialization is not None
    assert 6 == event.asset_materialization.metadata["dagster/row_count"].value


def test_all_tables_are_recorded_once_the_version_has_expired(shown: LakehouseSettings) -> None:
    lake = Lakehouse.open(shown.root)
    assert 2 == len(external_tables.new_versions(lake, shown, None)[0])
    assert ([], None) == external_tables.new_versions(lake, shown, lake.version)
    assert 2 == len(external_tables.new_versions(lake, shown, 10_000)[0])


def test_a_damaged_definition_of_a_table_concerns_that_table(
    shown: LakehouseSettings, shop: TrinityLakeCatalog, instance: dg.DagsterInstance
) -> None:
    """Its lakehouse was "unreachable" for ever, with the advice to roll back."""
    lake = Lakehouse.open(shown.root)
    (entry,) = [each for each in lake.objects() if each.name == "orders"]
    path = Path(shop.properties["uri"].removeprefix("file://")) / entry.path
    path.chmod(0o644)
    path.write_bytes(b"garbage")
    result, cursor = look(shown, instance)
    assert [["eu", "de", "items"]] == [key.path for key in recorded(result)]
    assert state(cursor).results["reachable"]
    assert lake.version == state(cursor).tables_version


def test_many_changed_tables_are_recorded_tick_by_tick(
    shown: LakehouseSettings, shop: TrinityLakeCatalog, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest was never recorded. One that changes while they are is recorded again."""
    _, cursor = look(shown, instance)
    monkeypatch.setattr(external_tables, "MOST", 2)
    for number in range(5):
        shop.create_table(f"sales.t{number}", ROWS.schema)
    met: list[str] = []
    for tick in range(6):
        result, cursor = look(shown, instance, cursor)
        met += [key.path[-1] for key in recorded(result)]
        if tick == 0:
            shop.load_table(f"sales.{met[0]}").append(ROWS)
    assert {f"t{number}" for number in range(5)} == set(met)
    assert (6, 2) == (len(met), met.count(met[0]))


def test_a_lakehouse_that_cannot_be_listed_has_no_such_assets(
    shown: LakehouseSettings, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its other definitions are there, and so are the tables of others."""
    gone = shown.model_copy(update={"name": "gone", "root": (tmp_path / "nothing").as_uri() + "/"})
    graph = define_lakehouses((gone, shown)).get_repository_def().asset_graph
    assert {ORDERS, dg.AssetKey(["lakehouse", "gone", "tree_health"])} <= set(graph.get_all_asset_keys())
    assert "the tables of lakehouse gone are no assets until definitions are loaded again" in caplog.text


def test_two_lakehouses_with_a_table_of_one_name_have_one_asset(
    shown: LakehouseSettings, caplog: pytest.LogCaptureFixture
) -> None:
    other = shown.model_copy(update={"name": "other"})
    assert 2 == len(external_tables.specs_of((shown, other)))
    assert "sales/orders of lakehouse other is no asset: another lakehouse has this key" in caplog.text


def test_a_pattern_that_means_no_table_is_refused(tmp_path: Path) -> None:
    text = "lakehouses:\n  - {name: a, root: file:///a, assets: [sales]}\n"
    with pytest.raises(ConfigError, match=r"assets: 'sales' names no table; write 'sales\.\*'"):
        parse(text, tmp_path / "lakehouses.yaml")
    fleet = tmp_path / "lakehouses.yaml"
    fleet.write_text("layout: partitions\nlakehouses:\n  - {name: a, root: file:///a, assets: ['sales.*']}\n")
    assert "no table is an asset" in Stanzas(fleet).all().bad["a"]


def test_dagster_accepts_them_with_its_own_validation(shown: LakehouseSettings, tmp_path: Path) -> None:
    path = tmp_path / "lakehouses.yaml"
    path.write_text(f"lakehouses:\n  - {{name: sales-eu, root: '{shown.root}', assets: ['sales.*']}}\n")
    environment = os.environ | {"TRINITYLAKE_LAKEHOUSES": str(path), "DAGSTER_HOME": str(tmp_path)}
    command = [sys.executable, "-c", "from dagster_project.definitions import defs; defs.get_repository_def()"]
    environment["PYTHONPATH"] = str(ROOT)
    done = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert ("", 0) == (done.stderr, done.returncode)

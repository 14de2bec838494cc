"""Tables of another Iceberg catalog, registered where they are; repeated, only what changed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from pipelines import register
from pipelines.cli import main
from pipelines.job import dry_run
from tests.support.icebergs import SCHEMA, ids, rows, with_table
from trinitylake_core.errors import AlreadyExists, InvalidInput, InvalidName
from trinitylake_core.iceberg import TrinityLakeCatalog


def _sql(directory: Path) -> tuple[SqlCatalog, register.Config]:
    properties = {"type": "sql", "uri": f"sqlite:///{directory}/catalog.db", "warehouse": f"file://{directory}/wh"}
    named = {name: value for name, value in properties.items() if name != "type"}
    return SqlCatalog("old", **named), register.Config("old", properties)


def _fill(source: SqlCatalog, tables: int) -> None:
    source.create_namespace("sales", {"owner": "emea"})
    source.create_namespace("sales.eu")
    for number in range(tables):
        source.create_table(f"sales.t{number:04}", SCHEMA, properties={"n": str(number)})
    source.create_table("sales.eu.orders", SCHEMA).append(rows(1, 2))


def test_a_sql_catalog_is_registered_where_it_is_as_one_version(catalog: TrinityLakeCatalog, tmp_path: Path) -> None:
    with _sql(tmp_path)[0] as source:
        _fill(source, 3)
        config = _sql(tmp_path)[1]
        lake = catalog.lakehouse
        planned = register.run(lake, config, review=dry_run).registered
        assert (None, 0, 2, 4) == (planned.version_after, lake.version, planned.namespaces_added, planned.tables_added)
        done = register.run(lake, config).registered
        assert (1, planned.changes) == (done.version_after, done.changes)
        assert "table added: sales.eu.orders" in done.changes
        for identifier in [*source.list_tables("sales"), *source.list_tables("sales.eu")]:
            theirs, ours = source.load_table(identifier), catalog.load_table(identifier)
            assert (theirs.metadata, theirs.metadata_location) == (ours.metadata, ours.metadata_location)
            assert "EXTERNAL" == lake.table(".".join(identifier[:-1]), identifier[-1]).table_type
        assert [1, 2] == ids(catalog.load_table("sales.eu.orders"))
        assert "emea" == catalog.load_namespace_properties("sales")["owner"]


def test_repeated_it_follows_what_changed_and_nothing_else(catalog: TrinityLakeCatalog, tmp_path: Path) -> None:
    source, config = _sql(tmp_path)
    with source:
        _fill(source, 3)
        lake = catalog.lakehouse
        register.run(lake, config)
        assert register.run(lake, config).registered.version_after is None
        source.load_table("sales.t0001").append(rows(7))
        source.drop_table("sales.t0002")
        source.update_namespace_properties("sales", updates={"owner": "apac"})
        again = register.run(lake, config).registered
    assert ["namespace changed: sales", "table changed: sales.t0001"] == again.changes
    assert (2, 2, 1) == (again.version_after, again.tables_unchanged, again.namespaces_unchanged)
    assert [7] == ids(catalog.load_table("sales.t0001"))
    assert catalog.table_exists("sales.t0002"), "what the other catalog dropped stays"


@pytest.mark.parametrize("existing", ["refuse", "skip", "replace"])
def test_another_table_of_the_same_name(catalog: TrinityLakeCatalog, tmp_path: Path, existing: str) -> None:
    source, config = _sql(tmp_path)
    with source:
        _fill(source, 1)
    with_table(catalog, "sales.t0000", 5)
    lake = catalog.lakehouse
    config = register.Config(config.catalog, config.properties, existing=existing)
    if existing == "refuse":
        with pytest.raises(AlreadyExists, match=r"sales\.t0000"):
            register.run(lake, config)
        assert lake.version == catalog.lakehouse.version
        return
    done = register.run(lake, config).registered
    assert (existing == "skip", existing == "replace") == (done.tables_skipped == 1, done.tables_replaced == 1)
    assert ([5] if existing == "skip" else []) == ids(catalog.load_table("sales.t0000"))


def test_what_the_lakehouse_cannot_hold_changes_nothing(catalog: TrinityLakeCatalog, tmp_path: Path) -> None:
    source, config = _sql(tmp_path)
    with source:
        source.create_namespace("x" * 101)
        with pytest.raises(InvalidName):
            register.run(catalog.lakehouse, config)
    with pytest.raises(InvalidInput, match="cannot open the Iceberg catalog"):
        register.run(catalog.lakehouse, register.Config("old", {"type": "nonsense"}))
    with pytest.raises(InvalidInput, match="existing"):
        register.run(catalog.lakehouse, register.Config(config.catalog, config.properties, existing="maybe"))
    assert 0 == catalog.lakehouse.version


def test_the_command_line_loads_a_catalog(
    catalog: TrinityLakeCatalog, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, config = _sql(tmp_path)
    with source:
        _fill(source, 1)
    properties = [f"--catalog-property={name}={value}" for name, value in config.properties.items()]
    words = ["load", catalog.lakehouse.root, "iceberg:old", *properties, "--json"]
    assert 0 == main(words)
    told = json.loads(capsys.readouterr().out)
    assert (1, 2) == (told["registered"]["version_after"], told["registered"]["tables_added"])
    assert catalog.table_exists("sales.eu.orders")
    with catalog.lakehouse.transaction() as txn:
        txn.drop_table("sales", "t0000")
        txn.create_view("sales", "t0000", sql="SELECT 1")
    assert 1 == main(words), "a table with the name of a view is left out"
    refused = json.loads(capsys.readouterr().out)["registered"]["refused"]
    assert ["sales.t0000: View with same name already exists: sales.t0000"] == refused


@pytest.mark.slow
def test_a_thousand_tables_read_equal(catalog: TrinityLakeCatalog, tmp_path: Path) -> None:
    source, config = _sql(tmp_path)
    with source:
        _fill(source, 1000)
        done = register.run(catalog.lakehouse, config)
        assert 1001 == done.registered.tables_added
        print(f"1001 tables in {sum(done.seconds.values()):.1f} s")
        for identifier in source.list_tables("sales"):
            assert source.load_table(identifier).metadata == catalog.load_table(identifier).metadata

"""Health of tables comes from their metadata, each file of it read once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pipelines import tables_health
from pipelines.cli import main
from pipelines.tables_health import TableHealth
from tests.support.icebergs import new_iceberg, rows, with_table
from trinitylake_core.iceberg import TrinityLakeCatalog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def catalog(tmp_path: Path) -> TrinityLakeCatalog:
    """Return a catalog with a table of five snapshots, an empty one, a small target and a broken one."""
    catalog = new_iceberg(tmp_path)
    orders = with_table(catalog, "sales.orders", 1, 2)
    orders.append(rows(3))
    orders.overwrite(rows(4))
    orders.append(rows(5))
    with_table(catalog, "sales.empty")
    with_table(catalog, "sales.fits", 1, properties={"write.target-file-size-bytes": "1"})
    broken = with_table(catalog, "other.broken", 1)
    Path(broken.metadata_location.removeprefix("file://")).write_bytes(b"garbage")
    return catalog


def sizes(catalog: TrinityLakeCatalog, name: str) -> tuple[int, int]:
    """Return the bytes of data files that the current snapshot of a table needs, and of all others, from the disk."""
    table = catalog.load_table(name)
    current = {each.file.file_path.removeprefix("file://") for each in table.scan().plan_files()}
    every = [str(path) for path in Path(table.location().removeprefix("file://")).rglob("*.parquet")]
    return (
        sum(Path(path).stat().st_size for path in every if path in current),
        sum(Path(path).stat().st_size for path in every if path not in current),
    )


def test_the_figures_are_those_of_the_files(catalog: TrinityLakeCatalog) -> None:
    report = tables_health.run(catalog.lakehouse)
    orders = catalog.load_table("sales.orders")
    newest, old = sizes(catalog, "sales.orders")
    snapshot = orders.current_snapshot()
    assert snapshot is not None
    manifests = len(snapshot.manifests(orders.io))
    expected = TableHealth(
        "sales.orders", "MANAGED", 5, snapshot.timestamp_ms, manifests, 2, 2, 0, newest, old, namespace="sales"
    )
    assert expected == report.tables[0]
    assert ["sales.orders", "sales.fits", "sales.empty"] == [each.table for each in report.tables]
    assert (0, TableHealth("sales.empty", "MANAGED", namespace="sales")) == (
        report.tables[1].small_files,
        report.tables[2],
    )
    assert (3, 2, {"other.broken"}) == (report.data_files, report.small_files, set(report.failures))
    assert "garbage" not in report.failures["other.broken"]


def test_each_file_of_metadata_is_read_once_and_nothing_is_written(catalog: TrinityLakeCatalog) -> None:
    before = catalog.lakehouse.version
    report = tables_health.run(catalog.lakehouse, tables_health.Config(pattern="sales.orders"))
    orders = catalog.load_table("sales.orders")
    lists = [each.manifests(orders.io) for each in orders.metadata.snapshots]
    distinct = {manifest.manifest_path for found in lists for manifest in found}
    assert 1 + 1 + len(lists) + len(distinct) <= report.requests["get"] <= 1 + 1 + len(lists) + len(distinct) + 4
    assert {"get"} == {kind for kind, number in report.requests.items() if number} - {"head"}
    assert before == catalog.lakehouse.version


def test_the_command_line(catalog: TrinityLakeCatalog, capsys: pytest.CaptureFixture[str]) -> None:
    assert 4 == main(["tables", "health", catalog.lakehouse.root, "--json"])
    assert ["other.broken"] == list(json.loads(capsys.readouterr().out)["failures"])
    assert 0 == main(["tables", "health", catalog.lakehouse.root, "sales.*"])
    assert "sales.orders" in capsys.readouterr().out


@pytest.mark.spark
def test_spark_finds_the_same(catalog: TrinityLakeCatalog, spark: SparkSession) -> None:
    local = tables_health.run(catalog.lakehouse)
    on_spark = tables_health.run(catalog.lakehouse, tables_health.Config(engine="spark"), spark)
    assert (local.tables, local.failures) == (on_spark.tables, on_spark.failures)

"""Engines that have only Iceberg REST write through the endpoint: DuckDB, two of them at the same time, and Spark."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import duckdb
import pytest
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil

from pipelines import compaction
from tests.support.clock import DAY, Clock
from tests.support.engines import by_spark_sql, connected
from tests.support.icebergs import rows, with_table
from tests.support.writers import pool
from trinitylake_core import Lakehouse
from trinitylake_core.iceberg.commit_rules.table_updates import order_times
from trinitylake_core.rest import Served, endpoint


def test_duckdb_creates_changes_evolves_renames_and_drops(lake: Lakehouse) -> None:
    with endpoint(lake) as at, connected(at) as connection:
        run = connection.execute
        run("CREATE SCHEMA l.a")
        run("CREATE TABLE l.a.t (x BIGINT, y VARCHAR)")
        run("INSERT INTO l.a.t VALUES (1, 'a'), (2, 'b'), (3, 'c')")
        version = lake.refresh().version
        run("UPDATE l.a.t SET y = 'z' WHERE x = 2")
        run("DELETE FROM l.a.t WHERE x = 1")
        run("ALTER TABLE l.a.t ADD COLUMN z INTEGER")
        assert [(2, "z", None), (3, "c", None)] == run("SELECT * FROM l.a.t ORDER BY x").fetchall()
        with connected(at, f"lake@{version}") as past:
            assert [(1,), (2,), (3,)] == past.execute("SELECT x FROM l.a.t ORDER BY x").fetchall()
        run("ALTER TABLE l.a.t RENAME TO u")
        assert ["u"] == lake.refresh().tables("a")
        run("DROP TABLE l.a.u")
    assert [] == lake.refresh().tables("a")
    assert [] == list(lake.check())


def test_duckdb_creates_a_table_with_the_rows_of_a_query(lake: Lakehouse) -> None:
    """It stages the table, and writes into its directories, which nobody has made, before it creates it."""
    with endpoint(lake) as at, connected(at) as connection:
        run = connection.execute
        run("CREATE SCHEMA l.a")
        run("CREATE TABLE l.a.t AS SELECT range AS x, 'y' AS y FROM range(10)")
        assert [(10, 45)] == run("SELECT count(*), sum(x) FROM l.a.t").fetchall()
        run("CREATE TABLE l.a.u AS SELECT * FROM l.a.t WHERE x > 6")
        assert [(3,)] == run("SELECT count(*) FROM l.a.u").fetchall()
    assert ["t", "u"] == sorted(lake.refresh().tables("a"))
    assert [] == list(lake.check())


def test_two_duckdbs_that_write_at_once_lose_no_acknowledged_row(lake: Lakehouse) -> None:
    """DuckDB sends every commit as `transactions/commit`; exactly one of two that began alike wins."""
    with endpoint(lake) as at:
        with connected(at) as connection:
            connection.execute("CREATE SCHEMA l.a")
            connection.execute("CREATE TABLE l.a.t (x BIGINT)")

        def insert(writer: int) -> list[int]:
            acknowledged, refused = [], []
            with connected(at) as connection:
                for number in range(writer * 100, writer * 100 + 6):
                    try:
                        connection.execute(f"INSERT INTO l.a.t VALUES ({number})")
                    except duckdb.Error as error:
                        refused.append(str(error))
                    else:
                        acknowledged.append(number)
            assert [] == [each for each in refused if "409" not in each and "Conflict" not in each]
            return acknowledged

        with ThreadPoolExecutor(2) as threads:
            futures = [threads.submit(insert, writer) for writer in (1, 2)]
            compaction.run(lake.refresh())
            compaction.run(lake.refresh())
            expected = sorted(number for future in futures for number in future.result())
        with connected(at) as connection:
            found = [x for (x,) in connection.execute("SELECT x FROM l.a.t ORDER BY x").fetchall()]
    assert expected == found
    assert expected


def _change_a_year_ahead(at: Served, clock: Clock) -> str:
    """Make a table, and change it while the endpoint's clock is a year ahead; return its metadata file."""
    table = with_table(at.catalog(), "a.t", 1)
    with clock.another(days=365, with_storage=False), table.transaction() as changes:
        changes.set_properties(x="1")
    return table.metadata_location


def test_a_clock_that_was_ahead_once_keeps_no_engine_out(lake: Lakehouse, clock: Clock) -> None:
    """Iceberg's readers and writers want the times of the updates of a table in their order."""
    with endpoint(lake) as at:
        location = _change_a_year_ahead(at, clock)
        stored = json.loads(Path(location.removeprefix("file://")).read_text())
        assert stored["last-updated-ms"] > clock.now() + 300 * DAY
        given = at.catalog().load_table("a.t").metadata
        assert given.last_updated_ms <= clock.now()  # a writer takes the time of now
        assert all(each.timestamp_ms <= given.last_updated_ms for each in given.metadata_log)
        at.catalog().load_table("a.t").append(rows(2))
        location = at.catalog().load_table("a.t").metadata_location
    stored = json.loads(Path(location.removeprefix("file://")).read_text())
    assert stored["last-updated-ms"] <= clock.now()
    assert all(each["timestamp-ms"] <= stored["last-updated-ms"] for each in stored["metadata-log"])


def _are_in_order(metadata: TableMetadata, now: int) -> bool:
    """Whether Iceberg's readers take metadata, and a writer of now may follow."""
    for log in (metadata.metadata_log, metadata.snapshot_log):
        times = [*(each.timestamp_ms for each in log), metadata.last_updated_ms, now]
        if times != sorted(times):
            return False
    return True


@pytest.mark.parametrize("is_rollback", [False, True])
def test_times_stay_in_order_after_a_clock_was_ahead(lake: Lakehouse, clock: Clock, is_rollback: bool) -> None:
    """Also of a rollback, which puts the time of the endpoint into the log of snapshots."""
    with endpoint(lake) as at:
        table = with_table(at.catalog(), "a.t", 1)
        table.append(rows(2))
        first = table.history()[0].snapshot_id
        with clock.another(days=365, with_storage=False), table.manage_snapshots() as snapshots:
            if is_rollback:
                snapshots.rollback_to_snapshot(first)
            else:
                snapshots.create_tag(first, "kept")
        for number in range(3, 6):
            found = at.catalog().load_table("a.t")
            assert _are_in_order(found.metadata, clock.now())
            found.append(rows(number))
            stored = TableMetadataUtil.parse_raw(Path(found.metadata_location.removeprefix("file://")).read_text())
            assert _are_in_order(stored, clock.now())
            clock.forward(hours=1)


def test_logs_that_fell_are_put_in_order(lake: Lakehouse, clock: Clock) -> None:
    """As releases stored them that did not look: the entry of a year ahead lies before right ones."""
    with endpoint(lake) as at:
        table = with_table(at.catalog(), "a.t", 1)
        table.append(rows(2))
        table.append(rows(3))
        metadata = at.catalog().load_table("a.t").metadata
    ahead = clock.now() + 365 * DAY
    log = [each.model_copy() for each in metadata.metadata_log]
    log[0] = log[0].model_copy(update={"timestamp_ms": ahead})
    fell = metadata.model_copy(update={"metadata_log": log})
    assert not _are_in_order(fell, clock.now())
    assert _are_in_order(order_times(fell, clock.now()), clock.now())
    assert metadata is order_times(metadata, clock.now())


@pytest.mark.slow
def test_spark_writes_to_a_table_of_which_a_clock_was_ahead_once(lake: Lakehouse, clock: Clock) -> None:
    """With Iceberg's runtime, and so with Maven Central."""
    with endpoint(lake) as at, pool(1) as process:
        _change_a_year_ahead(at, clock)
        statements = ("INSERT INTO l.a.t VALUES (7, 'x')", "SELECT id FROM l.a.t ORDER BY id")
        ran = process.submit(partial(by_spark_sql, at, at.warehouse), *statements).result()
        assert [(1,), (7,)] == ran[-1]


@pytest.mark.slow
def test_spark_creates_changes_merges_evolves_renames_and_drops(lake: Lakehouse) -> None:
    """With Iceberg's runtime, and so with Maven Central."""
    with endpoint(lake) as at, pool(1) as process:

        def run(*statements: str, warehouse: str = at.warehouse) -> list[tuple[object, ...]]:
            return process.submit(partial(by_spark_sql, at, warehouse), *statements).result()[-1]

        rows = "SELECT * FROM l.a.t ORDER BY x"
        run(
            "CREATE NAMESPACE l.a",
            "CREATE TABLE l.a.t (x BIGINT, y STRING) PARTITIONED BY (truncate(1, y))",
            "INSERT INTO l.a.t VALUES (1, 'a'), (2, 'b'), (3, 'c')",
        )
        lake.refresh().create_snapshot("before")
        run("UPDATE l.a.t SET y = 'z' WHERE x = 2", "DELETE FROM l.a.t WHERE x = 1")
        run(
            """MERGE INTO l.a.t USING (SELECT 3 AS x, 'm' AS y UNION ALL SELECT 4, 'd') AS n ON n.x = t.x
            WHEN MATCHED THEN UPDATE SET y = n.y WHEN NOT MATCHED THEN INSERT (x, y) VALUES (n.x, n.y)""",
            "ALTER TABLE l.a.t ADD COLUMN z INT AFTER x",
            "ALTER TABLE l.a.t RENAME COLUMN y TO w",
            "ALTER TABLE l.a.t DROP PARTITION FIELD truncate(1, w)",
        )
        assert [(2, None, "z"), (3, None, "m"), (4, None, "d")] == run(rows)
        assert [(1, "a"), (2, "b"), (3, "c")] == run(rows, warehouse="lake@before")
        with pytest.raises(Exception, match="read-only"):
            run("DELETE FROM l.a.t", warehouse="lake@before")
        run(
            "CREATE VIEW l.a.v AS SELECT x FROM l.a.t WHERE x > 2",
            "CREATE OR REPLACE VIEW l.a.v AS SELECT w FROM l.a.t",
        )
        assert [("d",), ("m",), ("z",)] == sorted(run("SELECT * FROM l.a.v"))
        run("CREATE OR REPLACE TABLE l.a.s AS SELECT x FROM l.a.t", "ALTER TABLE l.a.t RENAME TO a.u")
        assert (["s", "u"], ["v"]) == (lake.refresh().tables("a"), lake.views("a"))
        with connected(at) as connection:
            assert [(2,), (3,), (4,)] == connection.execute("SELECT x FROM l.a.u ORDER BY x").fetchall()
        run("DROP VIEW l.a.v", "DROP TABLE l.a.s", "DROP TABLE l.a.u", "DROP NAMESPACE l.a")
    assert [] == lake.refresh().namespaces()
    assert [] == list(lake.check())

"""An engine that has only Iceberg REST: DuckDB writes through the endpoint, and two of them at the same time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import duckdb
import pytest

from pipelines import compaction
from tests.support.engines import connected
from tests.support.lakes import FAST
from trinitylake_core import Lakehouse
from trinitylake_core.rest import endpoint


@pytest.fixture
def lake(tmp_path: Path) -> Lakehouse:
    return Lakehouse.create((tmp_path / "lake").as_uri(), storage_options=FAST)


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

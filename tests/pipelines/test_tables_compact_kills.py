"""Driver, Java and endpoint are killed while Spark compacts tables: the next run succeeds, and a rollback undoes it."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any, Final

import psutil
import pytest

from pipelines import rollback, tables_compact
from pipelines.session import SessionConfig, get_session
from pipelines.tables.compact.decision import GroupRules
from pipelines.tables.compact.model import NamedEndpoint, Settings
from tests.support.engines import connected
from tests.support.s3_servers import free_port
from tests.support.writers import forking, pool
from trinitylake_core import Lakehouse
from trinitylake_core.iceberg import TrinityLakeCatalog
from trinitylake_core.rest import endpoint

pytestmark = pytest.mark.slow

_TABLES: Final = ("v2", "v3")
_FILES: Final = 10
_SECONDS: Final = 240


def _fill(lake: Lakehouse) -> None:
    """Make a table of each version of the format, with small files, and rows that were deleted by position."""
    with endpoint(lake) as at, connected(at) as connection:
        connection.execute("CREATE SCHEMA l.a")
        for name in _TABLES:
            connection.execute(f"CREATE TABLE l.a.{name} (id BIGINT) WITH ('format-version' = {name[1:]})")
            for begin in range(0, _FILES * 10, 10):
                connection.execute(f"INSERT INTO l.a.{name} SELECT * FROM range({begin}, {begin + 10})")
            connection.execute(f"DELETE FROM l.a.{name} WHERE id % 7 = 0")
    lake.refresh()


def _rows(lake: Lakehouse) -> dict[str, list[int]]:
    with endpoint(lake.refresh()) as at, connected(at) as connection:
        found = {name: connection.execute(f"SELECT id FROM l.a.{name} ORDER BY id").fetchall() for name in _TABLES}
        return {name: [number for (number,) in rows] for name, rows in found.items()}


def _files(lake: Lakehouse) -> dict[str, set[str]]:
    catalog = TrinityLakeCatalog.over(lake.refresh())
    tables = {name: catalog.load_table(f"a.{name}").scan().plan_files() for name in _TABLES}
    return {name: {each.file.file_path for each in files} for name, files in tables.items()}


def _compact(root: str, at: NamedEndpoint | None = None, told: Connection | None = None) -> dict[str, str]:
    spark = get_session(SessionConfig(master="local[2]", iceberg="1.12.0", conf={"spark.ui.enabled": "false"}))
    if told is not None:
        told.send("begins")
    config = tables_compact.Config(
        engine="spark", rules=GroupRules(min_files=2), settings=Settings(prove="hash", endpoint=at)
    )
    return tables_compact.run(Lakehouse.open(root), config, spark).failures


def _drive(root: str, at: NamedEndpoint | None, told: Connection) -> None:
    """Compact until killed; tell when it begins, and what was left if it comes to an end."""
    told.send(_compact(root, at, told))


def _serve(root: str, port: int) -> None:
    from pipelines.cli.app import main

    main(["serve", root, "--name", "lake", "--port", str(port)])


@contextmanager
def _process(act: Callable[..., Any], *arguments: Any) -> Iterator[Any]:
    process = forking().Process(target=act, args=arguments)
    process.start()
    try:
        yield process
    finally:
        java = _java_below(process.pid)
        process.kill()
        process.join(_SECONDS)
        for each in java:
            with suppress(psutil.NoSuchProcess):
                each.kill()


def _java_below(process: int) -> list[psutil.Process]:
    """Return the Java processes that a process has started."""
    with suppress(psutil.NoSuchProcess):
        return [each for each in psutil.Process(process).children(recursive=True) if each.name() == "java"]
    return []


def _wait_for(lake: Lakehouse, version: int) -> None:
    """Wait until a compaction has made so many versions."""
    ends = time.monotonic() + _SECONDS
    while lake.refresh().version < version:
        assert time.monotonic() < ends, "it makes no version"
        time.sleep(0.05)


@pytest.mark.parametrize("commits", [0, 1, 3])
@pytest.mark.parametrize("killed", ["driver", "java", "endpoint"])
def test_what_is_killed_leaves_nothing_that_the_next_run_cannot_do(lake: Lakehouse, killed: str, commits: int) -> None:
    """After so many commits, and up to two seconds more."""
    _fill(lake)
    version, rows, files = lake.version, _rows(lake), _files(lake)
    port = free_port()
    named = NamedEndpoint(f"http://127.0.0.1:{port}", "lake", "none") if killed == "endpoint" else None
    here, there = forking().Pipe(duplex=False)
    with _process(_serve, lake.root, port) as server, _process(_drive, lake.root, named, there) as driver:
        assert here.poll(_SECONDS), "Spark starts"
        assert "begins" == here.recv()
        _wait_for(lake, version + commits)
        time.sleep(random.Random(f"{killed}{commits}").uniform(0, 2))
        if killed == "driver":
            driver.kill()
        elif killed == "endpoint":
            server.kill()
        else:
            for each in _java_below(driver.pid):
                each.kill()
        left = here.recv() if killed != "driver" and here.poll(_SECONDS) else {}
    print(killed, "versions", lake.refresh().version - version, "left", left)
    assert rows == _rows(lake)
    with pool(1) as process:
        assert {} == process.submit(_compact, lake.root).result(_SECONDS)
    assert rows == _rows(lake)
    merged = _files(lake)
    assert {1} == {len(each) for each in merged.values()}
    newest = lake.version
    rollback.run(lake, rollback.Config(version=version, reason="a test"))
    assert (rows, files) == (_rows(lake), _files(lake))
    rollback.run(lake, rollback.Config(version=newest, reason="a test"))
    assert (rows, merged) == (_rows(lake), _files(lake))
    assert [] == list(lake.check())

"""Engines write through two endpoints that are restarted and killed, beside maintenance and a rollback."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pytest

from pipelines import rollback, verify
from tests.support.appends import maintain
from tests.support.engines import Inserted, by_duckdb, by_pyiceberg, by_spark
from tests.support.icebergs import SCHEMA, ids
from tests.support.lakes import FAST
from tests.support.s3_servers import free_port
from tests.support.writers import pool
from trinitylake_core import Lakehouse
from trinitylake_core.iceberg import TrinityLakeCatalog
from trinitylake_core.rest import Served

TABLES: Final = ("race.shared", "race.pyiceberg", "race.duckdb", "race.spark")
WRITERS: Final = (by_pyiceberg, by_duckdb, by_spark)
_PATIENT: Final = {"commit.retry.num-retries": "20", "commit.retry.min-wait-ms": "5"}


class Endpoint:
    """An endpoint as a process of its own, at a port that stays."""

    def __init__(self, root: str) -> None:
        self._command = [sys.executable, "-m", "pipelines.cli", "serve", root, "--name", "lake", "--port"]
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def served(self) -> Served:
        """What clients need to know."""
        return Served(f"http://127.0.0.1:{self._port}", "none", "lake")

    def start(self) -> None:
        """Start it and wait until it answers."""
        command = [*self._command, str(self._port)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while True:
            try:
                urllib.request.urlopen(f"{self.served.uri}/healthz").close()
            except OSError:
                assert self._process.poll() is None
                time.sleep(0.1)
            else:
                return

    def end(self, number: signal.Signals) -> int:
        """End it by a signal; its exit status."""
        assert self._process is not None
        self._process.send_signal(number)
        return self._process.wait(60)


@contextmanager
def _endpoints(root: str) -> Iterator[list[Endpoint]]:
    found = [Endpoint(root), Endpoint(root)]
    with ExitStack() as stack:
        for each in found:
            each.start()
            stack.callback(each.end, signal.SIGKILL)
        yield found


def _rows(catalog: TrinityLakeCatalog) -> dict[str, list[int]]:
    return {name: ids(catalog.load_table(name)) for name in TABLES}


def _rolled_back(lake: Lakehouse) -> set[int]:
    """Roll the lakehouse back by about a second, and return the rows that this undid."""
    target = lake.refresh().version
    time.sleep(1)
    config = rollback.Config(version=target, reason="race", force=True, engine="local", tables=None)
    done = rollback.run(lake.refresh(), config)
    assert done.version_after is not None
    before, after = (
        _rows(TrinityLakeCatalog.over(lake, version=str(version)))
        for version in (done.version_after - 1, done.version_after)
    )
    return {number for name in TABLES for number in set(before[name]) - set(after[name])}


def _disturb(lake: Lakehouse, endpoints: list[Endpoint], seconds: float) -> set[int]:
    """Maintain the lakehouse all the time; restart, kill and roll back once each. Return the rows that were undone."""
    began, rounds, undone = time.monotonic(), 0, set[int]()
    steps = [
        (0.25, lambda: _restarted(endpoints[0], signal.SIGTERM)),
        (0.5, lambda: _restarted(endpoints[1], signal.SIGKILL)),
        (0.75, lambda: undone.update(_rolled_back(lake))),
    ]
    while steps or time.monotonic() < began + seconds:
        maintain(lake, rounds)
        rounds += 1
        if steps and time.monotonic() > began + steps[0][0] * seconds:
            steps.pop(0)[1]()
        time.sleep(0.2)
    print(f"{rounds} rounds of maintenance, {time.monotonic() - began:.0f} s")
    return undone


def _restarted(endpoint: Endpoint, number: signal.Signals) -> None:
    began = time.monotonic()
    assert (0 if number == signal.SIGTERM else -number) == endpoint.end(number)
    print(f"{number.name}: ended after {time.monotonic() - began:.1f} s")
    endpoint.start()


@pytest.mark.slow
def test_no_acknowledged_row_is_lost_or_there_twice(tmp_path: Path) -> None:
    """Rows that a rollback undid are those that it says; of a row with an unknown outcome there is at most one."""
    stop = tmp_path / "stop"
    lake = Lakehouse.create((tmp_path / "lake").as_uri(), storage_options=FAST, order=8, node_file_max_size_bytes=8000)
    with TrinityLakeCatalog.over(lake).transaction() as txn:
        txn.create_namespace("race")
        for name in TABLES:
            txn.create_table(name, SCHEMA, properties=_PATIENT)
    with _endpoints(lake.root) as endpoints, pool(6) as processes:
        writers = [(write, table) for write, own in zip(WRITERS, TABLES[1:], strict=True) for table in (TABLES[0], own)]
        futures = [
            processes.submit(write, endpoints[number % 2].served, table, number + 1, stop)
            for number, (write, table) in enumerate(writers)
        ]
        try:
            while not all(_rows(TrinityLakeCatalog.over(lake.refresh())).values()):  # Java takes its time to start
                time.sleep(1)
            undone = _disturb(lake, endpoints, 60)
        finally:
            stop.touch()
        done = [each.result() for each in futures]
    _prove(lake.refresh(), done, undone)


def _prove(lake: Lakehouse, done: list[Inserted], undone: set[int]) -> None:
    found = [number for numbers in _rows(TrinityLakeCatalog.over(lake)).values() for number in numbers]
    acknowledged, refused, unknown = (
        {number for each in done for number in getattr(each, kind)} for kind in ("acknowledged", "refused", "unknown")
    )
    for each in done:
        print(len(each.acknowledged), len(each.refused), len(each.unknown), sorted(each.told))
    print(f"{len(undone)} rows undone by the rollback")
    assert len(found) == len(set(found))
    assert acknowledged - undone <= set(found)
    assert set(found) <= (acknowledged | unknown) - undone
    assert not refused & set(found)
    assert all(each.acknowledged for each in done)
    report = verify.run(lake, verify.Config("all", definitions=True, tables=1.0, engine="local"))
    assert ([], 0) == (report.findings, report.tables_unknown)

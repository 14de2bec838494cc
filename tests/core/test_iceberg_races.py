"""Processes append to Iceberg tables while the lakehouse is compacted, named, expired and cleaned beside them."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

import pytest

from pipelines import verify
from tests.support.appends import TABLES, Appended, append, maintain
from tests.support.icebergs import SCHEMA, ids
from tests.support.lakes import FAST
from tests.support.writers import pool
from trinitylake_core import Lakehouse
from trinitylake_core.iceberg import TrinityLakeCatalog

_PATIENT = {"commit.retry.num-retries": "20", "commit.retry.min-wait-ms": "5"}


def _race(
    place: tuple[str, dict[str, Any]], writers: int, count: int, seconds: float
) -> tuple[Lakehouse, list[Appended]]:
    lake = Lakehouse.create(place[0], storage_options=place[1], order=8, node_file_max_size_bytes=8000)
    catalog = TrinityLakeCatalog.over(lake)
    catalog.create_namespace("race")
    for name in TABLES:
        catalog.create_table(name, SCHEMA, properties=_PATIENT)
    with pool(writers) as processes:
        futures: list[Future[Appended]] = [processes.submit(append, place, n, count, seconds) for n in range(writers)]
        rounds = 0
        while rounds == 0 or not all(each.done() for each in futures):
            maintain(lake, rounds)
            rounds += 1
            wait(futures, timeout=0.05)
        done = [each.result() for each in futures]
    acknowledged, unknown = (sum(len(getattr(each, name)) for each in done) for name in ("acknowledged", "unknown"))
    print(f"{acknowledged} appends acknowledged, {unknown} commits unknown, {rounds} rounds of maintenance")
    return lake.refresh(), done


def _prove(lake: Lakehouse, done: list[Appended]) -> None:
    """Every acknowledged append is in its table exactly once, no refused one is, and every retained version reads.

    Of a commit whose outcome is unknown all rows are there or none.
    """
    catalog = TrinityLakeCatalog.over(lake)
    there = {name: ids(catalog.load_table(name)) for name in TABLES}
    expected: dict[str, list[int]] = {name: [] for name in TABLES}
    for name, number in (each for ended in done for each in ended.acknowledged):
        expected[name].append(number)
    for made in (commit for ended in done for commit in ended.unknown):
        found = [number in there[name] for name, number in made]
        assert all(found) or not any(found)
        for name, number in made if all(found) else ():
            expected[name].append(number)
    assert {name: sorted(numbers) for name, numbers in expected.items()} == there
    report = verify.run(lake, verify.Config("all", definitions=True, tables=1.0, engine="local"))
    assert ([], 0) == (report.findings, report.tables_unknown)
    for version in report.versions[:: max(1, len(report.versions) // 5)]:
        old = TrinityLakeCatalog("past", uri=lake.root, version=str(version), **{"storage.durable": "false"})
        for name in TABLES:
            assert set(ids(old.load_table(name))) <= set(expected[name])
    assert 0 < min(Counter(name for ended in done for name, _ in ended.acknowledged).values())


@pytest.mark.slow
def test_every_acknowledged_append_is_there_once_for_a_minute(tmp_path: Path) -> None:
    _prove(*_race(((tmp_path / "lake").as_uri(), dict(FAST)), writers=8, count=6, seconds=60))

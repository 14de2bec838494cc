"""A store that changes while writers write: what was acknowledged before stays, and nothing is acknowledged in vain.

Ceph 16 honours ``If-None-Match`` until versioning is switched on in the bucket, and ignores it from then on: each of
several writers was told that its root had been created.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.slow_s3 import FORGETFUL, PLAIN, SlowS3, run_slow_s3
from tests.support.writers import forking
from trinitylake_core import Lakehouse
from trinitylake_core.errors import TrinityLakeError

pytestmark = pytest.mark.s3

TIMES = int(os.environ.get("CHANGES", "10"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlowS3]:
    """A store of our own: preconditions are atomic there."""
    with run_slow_s3(tmp_path_factory.mktemp("changing")) as running:
        yield running


def write(root: str, options: dict[str, Any], number: int, log: Path) -> None:
    """Commit tables one after the other until the storage refuses; write down each version that was acknowledged."""
    with log.open("a", encoding="utf-8", buffering=1) as acknowledged:
        lake = Lakehouse.open(root, storage_options=options)
        for table in range(10_000):
            name = f"t{number}-{table}"
            try:
                with lake.transaction() as txn:
                    txn.create_table("ns", name)
            except TrinityLakeError as error:
                acknowledged.write(json.dumps({"refused": f"{type(error).__name__}: {error}"}) + "\n")
                return
            acknowledged.write(json.dumps({"name": name}) + "\n")


def _told(logs: Path) -> list[dict[str, str]]:
    return [json.loads(line) for log in sorted(logs.glob("*.log")) for line in log.read_text().splitlines()]


def _commits(logs: Path) -> set[str]:
    return {told["name"] for told in _told(logs) if "name" in told}


@pytest.mark.parametrize("writers", [3, pytest.param(8, marks=pytest.mark.slow)])
def test_versioning_is_switched_on_under_writers(server: SlowS3, tmp_path: Path, writers: int) -> None:
    """On a store that forgets its promise then: every commit that was acknowledged is in the history, and readable."""
    for attempt in range(TIMES if writers > 3 else 1):
        server.set(kind=PLAIN)
        (logs := tmp_path / str(attempt)).mkdir()
        root, options = server.new_root(), server.options
        lake = Lakehouse.create(root, storage_options=options)
        with lake.transaction() as txn:
            txn.create_namespace("ns")
        processes = [
            forking().Process(target=write, args=(root, options, number, logs / f"{number}.log"))
            for number in range(writers)
        ]
        for process in processes:
            process.start()
        while len(_commits(logs)) < 10 * writers:
            time.sleep(0.01)
        server.set(kind=FORGETFUL)
        for process in processes:
            process.join(300)
        found = Lakehouse.open(root, storage_options=options)
        told = _told(logs)
        refusals = [each["refused"] for each in told if "refused" in each]
        lost = _commits(logs) - set(found.tables("ns"))
        print(f"{attempt}: {len(_commits(logs))} acknowledged, {len(lost)} lost, version {found.version}")
        assert set() == lost
        assert writers == len(refusals)
        assert [] == list(found.check())

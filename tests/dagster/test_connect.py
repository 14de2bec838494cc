"""Maintenance over Spark Connect: a server in a process of its own, and no Java in the one that runs the jobs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dagster_project import assets
from dagster_project.assets import BACKUP
from tests.support.connect_server import TOKEN_VARIABLE, connect_server


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start a server; return its URL."""
    with connect_server(tmp_path_factory.mktemp("connect"), "t0ken") as (url, _):
        yield url


@pytest.mark.spark
@pytest.mark.slow
def test_maintenance_and_a_load_over_spark_connect(remote: str, tmp_path: Path) -> None:
    """Every asset and check, with nothing to remove, too: a frame without rows has no types that could be inferred."""
    command = [sys.executable, "-m", "tests.support.over_connect", remote, str(tmp_path)]
    environment = {**os.environ, TOKEN_VARIABLE: "t0ken"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert 0 == done.returncode, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    names = {assets.HEALTH, assets.COMPACTION, assets.SNAPSHOTS, assets.EXPIRATION, assets.ORPHANS, BACKUP}
    assert ([], True, names) == (told["failures"], told["success"], set(told["assets"]))
    assert told["checks"]
    assert all(told["checks"].values())
    assert told["same"]
    assert ("spark", 4, 0) == (told["engine"], told["added"], told["violations"])

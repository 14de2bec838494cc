"""Maintenance over Spark Connect: a server in a process of its own, and no Java in the one that runs the jobs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from dagster_project import assets
from dagster_project.assets import BACKUP
from pipelines.session.spark import check_connect_server
from tests.support.deployment import eventually
from tests.support.s3_servers import free_port
from trinitylake_core.errors import InvalidInput

SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start a server; return its URL."""
    directory, port = tmp_path_factory.mktemp("connect"), free_port()
    command = [
        str(Path(pyspark.__file__).parent / "bin" / "spark-submit"),
        *("--conf", "spark.authenticate=true", "--conf", "spark.network.crypto.enabled=true"),
        *("--master", "local[2]", "--driver-memory", "512m", "--class", SERVER),
        *("--conf", f"spark.connect.grpc.binding.port={port}"),
        *("--conf", "spark.connect.grpc.binding.address=127.0.0.1", "spark-internal"),
    ]
    here = {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    with (directory / "log").open("wb") as log:
        server = subprocess.Popen(
            command, env=os.environ | here, cwd=directory, stdout=log, stderr=log, start_new_session=True
        )
    try:
        url = f"sc://127.0.0.1:{port}"
        eventually(lambda: listens(url), lambda: (directory / "log").read_text()[-3000:])
        yield url
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def listens(url: str) -> bool:
    try:
        check_connect_server(url)
    except InvalidInput:
        return False
    return True


@pytest.mark.spark
@pytest.mark.slow
def test_maintenance_and_a_load_over_spark_connect(remote: str, tmp_path: Path) -> None:
    """Every asset and check, with nothing to remove, too: a frame without rows has no types that could be inferred."""
    command = [sys.executable, "-m", "tests.support.over_connect", remote, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert 0 == done.returncode, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    names = {assets.HEALTH, assets.COMPACTION, assets.SNAPSHOTS, assets.EXPIRATION, assets.ORPHANS, BACKUP}
    assert ([], True, names) == (told["failures"], told["success"], set(told["assets"]))
    assert told["checks"]
    assert all(told["checks"].values())
    assert told["same"]
    assert ("spark", 4, 0) == (told["engine"], told["added"], told["violations"])

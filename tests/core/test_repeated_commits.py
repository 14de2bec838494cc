"""A commit that is sent again because its answer was lost is answered as the first time.

DuckDB sends it again, and deletes its files where the answer to that is a refusal: what was committed would be gone.
"""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from tests.core.test_rest import Client
from tests.support.engines import connected
from trinitylake_core import Lakehouse
from trinitylake_core.rest import Served, endpoint

_TABLE: Final = "/v1/lake/namespaces/a/tables/t"
_NOT_PASSED_ON: Final = {"connection", "content-length", "date", "server", "transfer-encoding"}


class _LosingProxy(ThreadingHTTPServer):
    """Passes requests on, and loses the answers to the next commits."""

    daemon_threads = True

    def __init__(self, uri: str) -> None:
        super().__init__(("127.0.0.1", 0), _PassOn)
        self.target = uri.removeprefix("http://")
        self.to_lose = 0
        self.lost: list[int] = []

    def loses(self, path: str) -> bool:
        """Whether the answer to a request is lost now."""
        if not self.to_lose or not path.endswith("/transactions/commit"):
            return False
        self.to_lose -= 1
        return True


class _PassOn(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _LosingProxy

    def pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        headers = {name: value for name, value in self.headers.items() if name.lower() != "host"}
        there = http.client.HTTPConnection(self.server.target, timeout=60)
        there.request(self.command, self.path, body or None, headers)
        answer = there.getresponse()
        content = answer.read()
        there.close()
        if self.server.loses(self.path):
            self.server.lost.append(answer.status)
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in _NOT_PASSED_ON:
                self.send_header(name, value)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    do_GET = do_HEAD = do_POST = do_DELETE = pass_on  # noqa: N815 - the names of http.server

    def log_message(self, *_: Any) -> None:
        """Be silent."""


@contextmanager
def _losing(served: Served) -> Iterator[tuple[_LosingProxy, Served]]:
    with _LosingProxy(served.uri) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, daemon=True)
        thread.start()
        try:
            yield proxy, replace(served, uri=f"http://127.0.0.1:{proxy.server_port}")
        finally:
            proxy.shutdown()
            thread.join(60)


def test_what_duckdb_commits_is_there_although_the_answer_was_lost(lake: Lakehouse) -> None:
    with endpoint(lake) as served, _losing(served) as (proxy, through), connected(through) as connection:
        connection.execute("CREATE SCHEMA l.a")
        connection.execute("CREATE TABLE l.a.t (id BIGINT)")
        connection.execute("INSERT INTO l.a.t VALUES (1)")
        version = lake.refresh().version
        proxy.to_lose = 1
        connection.execute("INSERT INTO l.a.t VALUES (2)")
        assert [204] == proxy.lost
        assert version + 1 == lake.refresh().version
        assert [(1,), (2,)] == connection.execute("SELECT id FROM l.a.t ORDER BY id").fetchall()


def _commit_again(client: Client, metadata: dict[str, Any], **other: Any) -> int:
    """Send the commit of the newest snapshot again, with other fields at will; return the status."""
    newest = metadata["snapshots"][-1]
    parent = newest.get("parent-snapshot-id")
    required = {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": parent}
    snapshot = {**newest, **other}
    main = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": snapshot["snapshot-id"]}
    updates = [{"action": "add-snapshot", "snapshot": snapshot}, main]
    answer = client("POST", _TABLE, {"requirements": [required], "updates": updates})
    return int(answer.status)


def test_only_the_same_commit_is_taken_again_and_not_after_it_was_taken_back(lake: Lakehouse) -> None:
    with endpoint(lake) as served:
        with connected(served) as connection:
            connection.execute("CREATE SCHEMA l.a")
            connection.execute("CREATE TABLE l.a.t (id BIGINT)")
            for number in range(2):
                connection.execute(f"INSERT INTO l.a.t VALUES ({number})")
        client = Client(served.uri, served.token)
        metadata = client("GET", _TABLE).json()["metadata"]
        version = lake.refresh().version
        assert 200 == _commit_again(client, metadata)
        assert version == lake.refresh().version
        elsewhere = metadata["snapshots"][0]["manifest-list"]
        assert 409 == _commit_again(client, metadata, **{"manifest-list": elsewhere})
        assert 409 == _commit_again(client, metadata, **{"snapshot-id": 7})
        back = {
            "action": "set-snapshot-ref",
            "ref-name": "main",
            "type": "branch",
            "snapshot-id": metadata["snapshots"][0]["snapshot-id"],
        }
        assert 200 == client("POST", _TABLE, {"requirements": [], "updates": [back]}).status
        assert 200 != _commit_again(client, metadata)

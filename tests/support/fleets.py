"""Fleets of tiny lakehouses, and lakehouses that cannot be opened: each kind for a real reason.

What hangs is a server that accepts and never answers; what is denied is a server that checks signatures; what is
missing was never there; what is corrupt has a newest root of garbage.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, Self

import yaml

from tests.support.s3_servers import BUCKET, S3Server
from trinitylake_core import Lakehouse
from trinitylake_core.locations import root_path

HANGING: Final = "hanging"
DENIED: Final = "denied"
MISSING: Final = "missing"
CORRUPT: Final = "corrupt"
TROUBLES: Final = (HANGING, DENIED, MISSING, CORRUPT)
SMALL: Final[Mapping[str, Any]] = {"order": 16, "node_file_max_size_bytes": 20_000}
WRONG: Final = {"WRONG_S3_KEY": "somebody", "WRONG_S3_SECRET": "not-the-secret"}
"""The variables that the denied lakehouses need, and that open nothing."""


class Silent:
    """A server that accepts every connection, reads nothing and never answers."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.accepted: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # who waits in `accept` would go on after a close alone
        self._thread.join()
        self._listener.close()
        for connection in self.accepted:
            connection.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.accepted.append(connection)


@dataclass
class Webhook:
    """Where a webhook arrives: the JSON of each message with the time it came at, and the status of the ``answer``."""

    url: str = ""
    answer: Callable[[dict[str, Any]], int] = lambda _: 204
    received: list[tuple[float, dict[str, Any]]] = field(default_factory=list)

    @property
    def messages(self) -> list[dict[str, Any]]:
        """Return the messages alone."""
        return [message for _, message in self.received]

    def alerts(self) -> dict[str, list[dict[str, Any]]]:
        """Return the messages about each lakehouse that could not be opened."""
        found: dict[str, list[dict[str, Any]]] = {}
        for message in self.messages:
            for name in message.get("lakehouses", ()):
                found.setdefault(name, []).append(message)
        return found


@contextmanager
def webhook(path: str = "/hook") -> Iterator[Webhook]:
    """Run a server that keeps what it is sent."""
    told = Webhook()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            told.received.append((time.time(), message))
            self.send_response(told.answer(message))
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Be silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    told.url = f"http://127.0.0.1:{server.server_address[1]}{path}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield told
    finally:
        server.shutdown()
        server.server_close()


def made(folder: Path, count: int) -> dict[str, Lakehouse]:
    """Create lakehouses with one namespace each, and return them by name."""
    return {name: _made(folder / name) for name in (f"good{number:04}" for number in range(count))}


def _made(directory: Path) -> Lakehouse:
    lake = Lakehouse.create(directory.as_uri(), **SMALL)
    with lake.transaction() as txn:
        txn.create_namespace("sales")
    return lake.refresh()


def damage(folder: Path, name: str) -> str:
    """Create a lakehouse whose newest root is garbage, and return its URI."""
    lake = _made(folder / name)
    (folder / name / root_path(lake.version)).write_bytes(b"this is no Arrow file")
    return lake.root


def troubled(folder: Path, each: int, silent: Silent, strict: S3Server) -> dict[str, dict[str, Any]]:
    """Return so many stanzas of each kind of trouble, by name. ``strict`` refuses wrong credentials."""
    options = {"region": "us-east-1"}
    found: dict[str, dict[str, Any]] = {}
    wrong = {"key": {"env": "WRONG_S3_KEY"}, "secret": {"env": "WRONG_S3_SECRET"}}
    for number in range(each):
        roots = {kind: f"{kind}{number:04}" for kind in TROUBLES}
        s3 = {kind: f"s3://{BUCKET}/{name}" for kind, name in roots.items()}
        found[roots[HANGING]] = {
            "root": s3[HANGING],
            "storage_options": options | wrong | {"endpoint_url": silent.endpoint},
        }
        found[roots[DENIED]] = {
            "root": s3[DENIED],
            "storage_options": options | wrong | {"endpoint_url": strict.endpoint},
        }
        found[roots[MISSING]] = {"root": (folder / roots[MISSING]).as_uri()}
        found[roots[CORRUPT]] = {"root": damage(folder, roots[CORRUPT])}
    return found


def lakehouses_yaml(stanzas: Mapping[str, Mapping[str, Any]], common: Mapping[str, Any]) -> str:
    """Return a ``lakehouses.yaml`` of a fleet, its webhook named by the variable ``MAINTENANCE_WEBHOOK``."""
    listed = [json.loads(json.dumps({"name": name, **common, **stanza})) for name, stanza in stanzas.items()]
    told = {"webhook": {"env": "MAINTENANCE_WEBHOOK"}}
    return yaml.safe_dump({"layout": "partitions", "notifications": told, "lakehouses": listed}, sort_keys=False)

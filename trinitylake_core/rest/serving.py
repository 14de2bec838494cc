"""Starting an endpoint: in this process for a job or a test, or as a server of its own."""

from __future__ import annotations

import secrets
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import uvicorn
from starlette.applications import Starlette

from trinitylake_core.commits.commit import whoami
from trinitylake_core.errors import InvalidInput
from trinitylake_core.lakehouse import Lakehouse
from trinitylake_core.rest.app import Limits, application
from trinitylake_core.rest.principals import Principals
from trinitylake_core.rest.warehouses import Warehouses

_LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})
_STOP_SECONDS: Final = 30


@dataclass(frozen=True, slots=True)
class Served:
    """Where an endpoint listens.

    Attributes:
        uri: its address.
        token: the bearer token of its only principal; it is valid as long as the endpoint runs.
        warehouse: the name of the lakehouse.
    """

    uri: str
    token: str
    warehouse: str

    def properties(self) -> dict[str, str]:
        """Return the properties of a PyIceberg or Spark catalog of the type ``rest``."""
        return {"uri": self.uri, "token": self.token, "warehouse": self.warehouse}


@contextmanager
def endpoint(lake: Lakehouse, name: str = "lake", *, limits: Limits | None = None) -> Iterator[Served]:
    """Serve a lakehouse from this process on a free port of 127.0.0.1, with a random token, while the block runs.

    with endpoint(lake) as at:
        catalog = load_catalog("lake", type="rest", **at.properties())
    """
    token = secrets.token_urlsafe(32)
    warehouses = Warehouses({name: lambda: lake})
    with running(application(warehouses, Principals.one(token, whoami()), limits)) as uri:
        yield Served(uri, token, name)


@contextmanager
def running(app: Starlette) -> Iterator[str]:
    """Run an application in a thread, on a free port of 127.0.0.1, while the block runs; its address."""
    config = uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=_STOP_SECONDS)
    server = _Server(config)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        thread = threading.Thread(target=server.run, args=([listening],), name="rest-endpoint", daemon=True)
        thread.start()
        server.wait_until_started(thread)
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            server.should_exit = True
            thread.join()


def serve(
    warehouses: Warehouses,
    *,
    host: str = "127.0.0.1",
    port: int = 8181,
    principals: Principals | None = None,
    certfile: str | Path | None = None,
    keyfile: str | Path | None = None,
    limits: Limits | None = None,
) -> None:
    """Serve lakehouses until SIGTERM or SIGINT; requests under way are answered first.

    Raises:
        InvalidInput: an address that others reach, without principals.
    """
    if principals is None and host not in _LOOPBACK:
        raise InvalidInput(f"an endpoint on {host} can be reached by others: give it principals (--tokens FILE)")
    config = uvicorn.Config(
        application(warehouses, principals, limits),
        host=host,
        port=port,
        log_config=None,
        access_log=False,
        ssl_certfile=certfile,
        ssl_keyfile=keyfile,
        timeout_graceful_shutdown=_STOP_SECONDS,
    )
    _Server(config).run()


class _Server(uvicorn.Server):
    """A server that others wait for, and that ends by a signal as it ends otherwise."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._is_up = threading.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop at a signal. In a thread, signals stay with the process."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen."""
        await super().startup(sockets)
        self._is_up.set()

    def wait_until_started(self, thread: threading.Thread) -> None:
        """Wait until it listens. Raises ``RuntimeError`` if it ended before."""
        while not self._is_up.wait(0.1):
            if not thread.is_alive():
                raise RuntimeError("the endpoint ended before it listened")

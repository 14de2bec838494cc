"""Starting an endpoint: in this process for a job or a test, or as a server of its own."""

from __future__ import annotations

import asyncio
import errno
import math
import secrets
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from trinitylake_core.commits.commit import whoami
from trinitylake_core.errors import InvalidInput
from trinitylake_core.lakehouse import Lakehouse
from trinitylake_core.rest.app import Limits, application
from trinitylake_core.rest.principals import Principals
from trinitylake_core.rest.warehouses import Warehouses

_LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})
_PORT_MAX: Final = 65_535
_STOP_SECONDS: Final = 2
"""So long an answer may take to leave the endpoint, after all requests under way have one."""


@dataclass(frozen=True, slots=True)
class Served:
    """Where an endpoint listens, the name of its lakehouse, and the bearer token of its only principal.

    The token is valid as long as the endpoint runs.
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
    server = _Server(app)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        thread = threading.Thread(target=server.run, args=([listening],), name="rest-endpoint", daemon=True)
        thread.start()
        while not server.is_up.wait(0.1):
            if not thread.is_alive():
                raise RuntimeError("the endpoint ended before it listened")
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
    on_listening: Callable[[], None] | None = None,
) -> None:
    """Serve lakehouses until SIGTERM or SIGINT; requests under way are answered first.

    ``on_listening`` is called when the port is bound, so that clients can connect.

    Raises ``InvalidInput``: an address that others reach, without principals; an address or a port that is not to be
    had.
    """
    if principals is None and host not in _LOOPBACK:
        raise InvalidInput(f"an endpoint on {host} can be reached by others: give it principals (--tokens FILE)")
    app = application(warehouses, principals, limits)
    server = _Server(app, ssl_certfile=certfile, ssl_keyfile=keyfile)
    with _listen(host, port) as listening:
        if on_listening is not None:
            on_listening()
        server.run(listening)


@contextmanager
def _listen(host: str, port: int) -> Iterator[list[socket.socket]]:
    """Lend sockets that listen at all addresses of a host. Raises ``InvalidInput``.

    uvicorn would bind them itself, and end the process without a word where it cannot.
    """
    if not 0 <= port <= _PORT_MAX:  # the resolver would take the rest of a division
        raise InvalidInput(f"{port} is no port: those are 0 to {_PORT_MAX}")
    with ExitStack() as stack:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            addresses = dict.fromkeys((family, address) for family, _, _, _, address in found)
            sockets = []
            for family, address in addresses:
                sockets.append(stack.enter_context(socket.create_server(address, family=family)))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                why = f"another program uses port {port} of {host}: stop it, or choose another port (--port)"
            else:
                why = f"cannot listen at port {port} of {host}: {error.strerror or error}"
            raise InvalidInput(why) from None
        yield sockets


class _Connection(AutoHTTPProtocol):  # type: ignore[valid-type, misc]  # the faster of two that is installed
    """A connection that is closed unless a request arrives, and an answer is read, in time."""

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Wait for a request."""
        self._limits: Limits = self.config.app.state.limits
        super().connection_made(transport)
        if len(self.connections) > self._limits.connections:
            transport.abort()
        self._wait()

    def on_response_complete(self) -> None:
        """Wait until the answer is read, and for the next request."""
        super().on_response_complete()
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no longer."""
        if self._late is not None:
            self._late.cancel()
        super().connection_lost(exc)

    def _wait(self) -> None:
        if self._late is not None:
            self._late.cancel()
        self._late = self.loop.call_later(self._limits.seconds, self._give_up)

    def _give_up(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.abort()


class _Server(uvicorn.Server):
    """A server that others wait for, and that ends by a signal as it ends otherwise."""

    def __init__(self, app: Starlette, **more: Any) -> None:
        seconds = math.ceil(app.state.limits.stop_seconds) + _STOP_SECONDS
        quiet: dict[str, Any] = {"log_config": None, "access_log": False, "ws": "none"}
        super().__init__(uvicorn.Config(app, http=_Connection, timeout_graceful_shutdown=seconds, **quiet, **more))
        self._app = app
        self.is_up = threading.Event()

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
        self.is_up.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer what is under way, each request when its time is over, and end."""
        self._app.state.stop()
        await super().shutdown(sockets)

"""Starting an endpoint: in this process for a job or a test, or as a server of its own."""

from __future__ import annotations

import errno
import math
import resource
import secrets
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import anyio.lowlevel
import uvicorn
from pyiceberg.catalog import Catalog, load_catalog
from starlette.applications import Starlette

from trinitylake_core.commits.commit import whoami
from trinitylake_core.errors import InvalidInput
from trinitylake_core.lakehouse import Lakehouse
from trinitylake_core.rest.app import application
from trinitylake_core.rest.limits import Limits
from trinitylake_core.rest.local_only import is_loopback
from trinitylake_core.rest.principals import Principals
from trinitylake_core.rest.warehouses import Warehouses
from trinitylake_core.rest.watched import Watched

_PORT_MAX: Final = 65_535
_STOP_SECONDS: Final = 2
"""So long an answer may take to leave the endpoint, after all requests under way have one."""
_BACKLOG: Final = 2048
"""So many connections may wait to be accepted: a client whose connection finds no room tries again after a second."""
_FILES_BESIDE: Final = 1000
"""So many files may be open beside connections: those of the storage, for each thread a few."""


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

    def catalog(self) -> Catalog:
        """Return a client of the endpoint: PyIceberg's catalog of the type ``rest``."""
        return load_catalog(self.warehouse, type="rest", **self.properties())


@contextmanager
def endpoint(
    lake: Lakehouse,
    name: str = "lake",
    *,
    limits: Limits | None = None,
    properties: Mapping[str, str] | None = None,
    signs: bool = False,
) -> Iterator[Served]:
    """Serve a lakehouse from this process on a free port of 127.0.0.1, with a random token, while the block runs.

    with endpoint(lake) as at:
        catalog = load_catalog("lake", type="rest", **at.properties())

    ``properties`` and ``signs``: as :class:`Warehouses` takes them.
    """
    token = secrets.token_urlsafe(32)
    warehouses = Warehouses({name: lambda: lake}, properties, signs=signs)
    with running(application(warehouses, Principals.one(token, whoami()), limits)) as uri:
        yield Served(uri, token, name)


@contextmanager
def running(app: Starlette, tls: Watched[ssl.SSLContext] | None = None) -> Iterator[str]:
    """Run an application in a thread, on a free port of 127.0.0.1, while the block runs; its address."""
    server = _Server(app, tls)
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
    insecure_plain_http: bool = False,
    audits_reads: bool = False,
    on_listening: Callable[[], None] | None = None,
) -> None:
    """Serve lakehouses until SIGTERM or SIGINT; requests under way are answered first.

    Args:
        warehouses: the lakehouses.
        host: where to listen.
        port: where to listen.
        principals: who may do what; without it, everybody who reaches the endpoint may do everything.
        certfile: for TLS; it and its key are read again when they change.
        keyfile: of the certificate.
        limits: how much it takes at a time.
        insecure_plain_http: listen on an address that others reach without TLS, so that tokens can be read on the way.
        audits_reads: write a line of the audit log for each read, too.
        on_listening: called when the port is bound, so that clients can connect.

    Raises ``InvalidInput``: an address that others reach, without principals or without TLS; an address or a port that
    is not to be had; a certificate that cannot be used.
    """
    if not is_loopback(host):
        if principals is None:
            raise InvalidInput(f"an endpoint on {host} can be reached by others: give it principals (--tokens FILE)")
        if certfile is None and not insecure_plain_http:
            raise InvalidInput(
                f"tokens would reach {host} unencrypted: give the endpoint a certificate (--certfile), let it listen "
                "on 127.0.0.1 behind a proxy that has one, or say --insecure-plain-http"
            )
    app = application(warehouses, principals, limits, audits_reads=audits_reads)
    tls = None if certfile is None else tls_of(certfile, keyfile)
    _allow_files(app.state.limits.connections)
    server = _Server(app, tls)
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
                sockets.append(stack.enter_context(socket.create_server(address, family=family, backlog=_BACKLOG)))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                why = f"another program uses port {port} of {host}: stop it, or choose another port (--port)"
            else:
                why = f"cannot listen at port {port} of {host}: {error.strerror or error}"
            raise InvalidInput(why) from None
        yield sockets


def tls_of(certfile: str | Path, keyfile: str | Path | None) -> Watched[ssl.SSLContext]:
    """Return TLS with a certificate, which is read again when it or its key changes. Raises ``InvalidInput``."""
    paths = [Path(each) for each in (certfile, keyfile) if each is not None]
    try:
        return Watched(paths, partial(_read_certificate, certfile, keyfile), "connections get the one of before")
    except OSError as error:
        raise InvalidInput(f"{certfile} or its key cannot be read: {error.strerror}") from None


def _read_certificate(certfile: str | Path, keyfile: str | Path | None) -> ssl.SSLContext:
    """Return TLS with a certificate. Raises ``InvalidInput``; ``OSError``: a file cannot be read now."""
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        tls.load_cert_chain(certfile, keyfile, password="")  # one that needs a password is refused: nobody is asked
    except ssl.SSLError as error:
        reason = error.strerror or error.reason
        raise InvalidInput(f"{certfile} cannot be used as a certificate with its key: {reason}") from None
    return tls


def _follow_newest(tls: Watched[ssl.SSLContext]) -> ssl.SSLContext:
    """Return TLS that takes the newest certificate for each connection."""
    shared = tls.get()

    def choose(connection: ssl.SSLObject, name: str | None, first: ssl.SSLContext) -> None:
        del name, first
        connection.context = tls.get()

    shared.sni_callback = choose  # called for each handshake, also of a client that names no server
    return shared


def _allow_files(connections: int) -> None:
    """Let the process open as many files as it may: each connection is one, and the storage needs some."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + _FILES_BESIDE
    if soft < wanted <= hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


_IDLE_SECONDS: Final = 75
"""Longer than the pools of clients and proxies keep a connection: who is cut off while he sends sees an error."""


class _Server(uvicorn.Server):
    """A server that others wait for, and that ends by a signal as it ends otherwise."""

    def __init__(self, app: Starlette, tls: Watched[ssl.SSLContext] | None = None) -> None:
        limits: Limits = app.state.limits
        seconds = math.ceil(limits.stop_seconds) + _STOP_SECONDS
        config = uvicorn.Config(
            app,
            http="h11",  # httptools keeps headers without end, and parses all requests that come in a row into memory
            h11_max_incomplete_event_size=limits.header_bytes,
            limit_concurrency=limits.connections,
            backlog=_BACKLOG,
            loop="asyncio",
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,  # who connects is known; whom a header names is what a client says
            timeout_keep_alive=_IDLE_SECONDS,
            timeout_graceful_shutdown=seconds,
        )
        config.load()
        config.ssl = None if tls is None else _follow_newest(tls)
        super().__init__(config)
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
        await anyio.lowlevel.checkpoint()  # what anyio loads at its first use would keep the first client waiting
        await super().startup(sockets)
        self.is_up.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer what is under way, each request when its time is over, and end."""
        self._app.state.stop()
        await super().shutdown(sockets)

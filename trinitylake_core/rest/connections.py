"""Connections: what one of them may cost before its client has shown a token, and how many there may be.

The parser is h11, always: it parses one request at a time and limits what it keeps of one that is not complete. The
faster httptools keeps headers without end, and parses all requests that a client sends in a row into memory.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from http import HTTPStatus
from typing import Any, Final

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

from trinitylake_core.rest.limits import Limits
from trinitylake_core.rest.watched import Watched

_READ_BYTES: Final = 64 << 10
"""So much is read at a time; asyncio would read four times as much, for each of a thousand connections."""
_SMALL_CHUNK_BYTES: Final = 1 << 10
_SMALL_CHUNKS: Final = 1000
"""A chunk of one byte takes as long to parse as one of 64 KiB; no client that means well sends many."""
_HANDSHAKE_SECONDS: Final = 10.0
_REASONS: Final = {
    400: "the request is not HTTP/1.1 as its specification says",
    431: "the headers of the request are too long, or there are too many",
}
_KINDS: Final = {400: "BadRequestException", 431: "RequestHeaderFieldsTooLargeException"}


class Connections:
    """The connections of one server, those first that have done nothing for the longest time.

    When there are too many, one is closed that does nothing: of those who have most of such connections - a principal,
    or all clients together that have not shown a token - the oldest. So a flood of connections closes its own.
    """

    def __init__(self, limits: Limits, tls: Watched[ssl.SSLContext] | None = None) -> None:
        self.limits = limits
        self.tls = tls
        self.buffer = memoryview(bytearray(_READ_BYTES))
        self._all: set[Connection] = set()
        self._idle: dict[str | None, dict[Connection, None]] = {}

    def __len__(self) -> int:
        return len(self._all)

    def admit(self, connection: Connection) -> None:
        """Add a connection, and close another one if there are too many now."""
        self._all.add(connection)
        self.rest(connection)
        if len(self._all) > self.limits.connections:
            _, most = max(self._idle.items(), key=lambda each: len(each[1]))
            next(iter(most)).abort()

    def rest(self, connection: Connection) -> None:
        """Note that a connection does nothing from now on."""
        self.work(connection)
        self._idle.setdefault(connection.principal, {})[connection] = None

    def work(self, connection: Connection) -> None:
        """Note that a connection has a request of a principal: it is not closed for others."""
        idle = self._idle.get(connection.principal, {})
        idle.pop(connection, None)
        if not idle:
            self._idle.pop(connection.principal, None)

    def forget(self, connection: Connection) -> None:
        """Note that a connection is gone."""
        self.work(connection)
        self._all.discard(connection)


class _Parser(h11.Connection):
    """A parser of one connection that also limits the number of headers and of small chunks.

    Attributes:
        refused_with: the status for what it could not parse.
    """

    def __init__(self, limits: Limits) -> None:
        super().__init__(h11.SERVER, limits.header_bytes)
        self.refused_with = 400
        self._limits = limits
        self._small_chunks = 0

    def next_event(self) -> Any:
        """Return the next event. Raises ``RemoteProtocolError``."""
        try:
            event = super().next_event()
            self._check(event)
        except h11.RemoteProtocolError as error:
            self.refused_with = error.error_status_hint
            raise
        return event

    def _check(self, event: Any) -> None:
        if isinstance(event, h11.Request):
            self._small_chunks = 0
            self._check_request(event)
        elif isinstance(event, h11.Data) and len(event.data) < _SMALL_CHUNK_BYTES:
            self._small_chunks += 1
            if self._small_chunks > _SMALL_CHUNKS:
                raise h11.RemoteProtocolError("too many small chunks")

    def _check_request(self, request: h11.Request) -> None:
        headers = request.headers.raw_items()  # a list: h11's sequence makes a pair at each step, for each request
        size = len(request.target) + sum(len(name) + len(value) for name, value in headers)
        if len(headers) > self._limits.headers or size > self._limits.header_bytes:
            raise h11.RemoteProtocolError("too many headers", error_status_hint=431)
        if request.http_version not in {b"1.0", b"1.1"}:
            raise h11.RemoteProtocolError("another version of HTTP")
        names = {name.lower() for name, _ in headers}
        if b"content-length" in names and b"transfer-encoding" in names:
            # A proxy may believe the one and h11 the other: then the rest of the body is a request of somebody else.
            raise h11.RemoteProtocolError("two lengths")


class Connection(H11Protocol, asyncio.BufferedProtocol):
    """One connection, with its TLS.

    It is closed unless a request arrives, and an answer is read, in time; and when there are too many.
    """

    def __init__(
        self,
        connections: Connections,
        *,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, {**app_state, "connection": self}, _loop)
        self._parser = _Parser(connections.limits)
        self.conn = self._parser
        self.principal: str | None = None
        self._connections = connections
        self._seconds = connections.limits.seconds
        self._discarded = 0
        self._late: asyncio.TimerHandle | None = None
        self._accepted: asyncio.Transport | None = None
        self._is_open = False
        self._is_lost = False
        self._early = b""
        self._handshake: asyncio.Task[None] | None = None

    # -- what the application says -------------------------------------------------------------

    def begin_request_of(self, principal: str) -> None:
        """Note whose request this is: until it is answered the connection is not closed for others."""
        self._connections.work(self)
        self.principal = principal

    @property
    def is_gone(self) -> bool:
        """Whether the client has closed the connection, or it was closed for another reason."""
        return self._is_lost or self.transport.is_closing()

    def abort(self) -> None:
        """Close the connection at once."""
        self._connections.forget(self)
        if self._late is not None:
            self._late.cancel()
        if self._handshake is not None:
            self._handshake.cancel()
        if self._accepted is not None:
            self._accepted.abort()

    # -- what the event loop says --------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn does
        """Wait for a request, after the handshake of TLS."""
        self._accepted = transport
        self._connections.admit(self)
        self._wait()
        if self._connections.tls is None:
            self._open(transport)
        else:
            transport.pause_reading()  # until the handshake reads
            self._handshake = self.loop.create_task(self._shake_hands(transport, self._connections.tls.get()))

    async def _shake_hands(self, transport: asyncio.Transport, tls: ssl.SSLContext) -> None:
        """Begin TLS. Here and not in the server, so that connections without a handshake count as connections."""
        try:
            encrypted = await self.loop.start_tls(
                transport, self, tls, server_side=True, ssl_handshake_timeout=_HANDSHAKE_SECONDS
            )
        except OSError:  # also what is wrong with the handshake, and its timeout
            self.abort()
            return
        self._handshake = None
        if encrypted is not None and not self._is_lost:  # the client may have gone meanwhile
            self._open(encrypted)

    def _open(self, transport: asyncio.Transport) -> None:
        self._is_open = True
        super().connection_made(transport)
        early, self._early = self._early, b""
        if early:
            self.data_received(early)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where to read to: one place for all connections, because it is emptied before another one reads."""
        return self._connections.buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Take what was read."""
        data = bytes(self._connections.buffer[:nbytes])
        if not self._is_open:  # a request that came with the end of the handshake
            self._early += data
            return
        if self.conn.our_state is h11.DONE and self.conn.their_state is h11.SEND_BODY:
            # Nobody wants the rest of this body any more; it is read, so that its client gets to read the answer.
            self._discarded += nbytes
            if self._discarded > self._connections.limits.body_bytes:
                self.abort()
                return
        self.data_received(data)

    def on_response_complete(self) -> None:
        """Wait until the answer is read, and for the next request."""
        self._discarded = 0
        self._connections.rest(self)
        self._wait()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no request, and close the connection; in the middle of a request, only close it."""
        if self.conn.our_state not in {h11.IDLE, h11.SEND_RESPONSE} or self._has_request:
            self.abort()
            return
        status = self._parser.refused_with
        if status not in _REASONS:
            status = 400
        error = {"message": _REASONS[status], "type": _KINDS[status], "code": status}
        body = json.dumps({"error": error}).encode()
        headers = [("content-type", "application/json"), ("content-length", str(len(body))), ("connection", "close")]
        reason = HTTPStatus(status).phrase.encode()
        answer = h11.Response(status_code=status, headers=headers, reason=reason)
        for event in (answer, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no longer."""
        self._is_lost = True
        self._connections.forget(self)
        if self._late is not None:
            self._late.cancel()
        if self._is_open:
            super().connection_lost(exc)
        self.app_state = {}  # it leads back to here

    def _wait(self) -> None:
        if self._late is not None:
            self._late.cancel()
        self._late = self.loop.call_later(self._seconds, self._give_up)

    def _give_up(self) -> None:
        if not self._has_request:  # else the application has limits of its own
            self.abort()

    @property
    def _has_request(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.response_complete

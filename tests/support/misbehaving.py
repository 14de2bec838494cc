"""A server in front of another one that passes requests on and, when it is told to, misbehaves.

with Misbehaving("http://127.0.0.1:5000") as server:
    server.then("trickle")   # the next request only
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from typing import Literal, Self
from urllib.parse import urlsplit

What = Literal[
    "drop",  # the connection is closed and the request not passed on
    "drop after",  # it is closed after the request was carried out
    "swallow",  # the request is carried out and never answered
    "stall",  # neither
    "trickle",  # the body of the answer comes byte by byte, ten a second
    "cut",  # half of the answer comes, then the connection is closed
    "garbage",  # something that is no HTTP
    "slow down",  # 503
]
_END = b"\r\n\r\n"
_SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"


class Misbehaving:
    """The server; ``connections`` and ``requests`` count what came in, ``last`` is the head of the last request.

    Requests whose first line holds ``slow_for`` wait for ``delay`` seconds; ``matching`` counts them.
    """

    def __init__(self, upstream: str) -> None:
        parts = urlsplit(upstream)
        self._upstream = (parts.hostname or "127.0.0.1", int(parts.port or 80))
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections = self.requests = self.refused = 0
        self.last = b""
        self.most_at_once: int | None = None
        self.delay = 0.0
        self.slow_for = b""
        self.matching = 0
        self._next: What | None = None
        self._running = 0
        self._lock = threading.Lock()
        self._stopped = threading.Event()

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._listener.close()

    def then(self, what: What) -> None:
        """Misbehave at the next request."""
        with self._lock:
            self._next = what

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with connection:
            try:
                while (request := _read_message(connection)) and not self._stopped.is_set():
                    if not self._handle(connection, request):
                        return
            except OSError:
                return

    def _handle(self, connection: socket.socket, request: bytes) -> bool:
        with self._lock:
            self.requests += 1
            self.last = request.partition(_END)[0]
            what, self._next = self._next, None
            matches = self.slow_for in self.last.partition(b"\r\n")[0]
            self.matching += matches
            if self.most_at_once is not None and self._running >= self.most_at_once:
                what = "slow down"
                self.refused += 1
            self._running += 1
        try:
            if what in {"drop", "stall", "garbage", "slow down"}:
                return self._without_asking(connection, str(what))
            time.sleep(self.delay if matches else 0.0)
            answer = self._ask(request)
        finally:
            with self._lock:
                self._running -= 1
        return self._answer(connection, answer, what)

    def _without_asking(self, connection: socket.socket, what: str) -> bool:
        if what == "slow down":
            head = b"HTTP/1.1 503 Slow Down\r\nContent-Length: %d" % len(_SLOW_DOWN)
            connection.sendall(head + _END + _SLOW_DOWN)
            return True
        if what == "garbage":
            connection.sendall(b"this is no HTTP" + _END)
        elif what == "stall":
            self._stopped.wait(60)
        return False

    def _ask(self, request: bytes) -> bytes:
        with socket.create_connection(self._upstream, timeout=60) as upstream:
            upstream.sendall(request)
            answer = b"HTTP/1.1 100 "
            while answer.startswith(b"HTTP/1.1 100 "):
                answer = _read_message(upstream, head_only=request.startswith(b"HEAD "))
            return answer.replace(b"\r\nConnection: close", b"")  # moto's way; stores keep connections

    def _answer(self, connection: socket.socket, answer: bytes, what: What | None) -> bool:
        if what == "swallow":
            self._stopped.wait(60)
        elif what == "drop after":  # with a reset
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        elif what == "cut":
            connection.sendall(answer[: len(answer) // 2])
        elif what == "trickle":
            head, end, body = answer.partition(_END)
            connection.sendall(head + end)
            for byte in body:
                if self._stopped.wait(0.1):
                    break
                connection.sendall(bytes([byte]))
        else:
            connection.sendall(answer)
            return True
        return False


def _read_message(connection: socket.socket, *, head_only: bool = False) -> bytes:
    """Return a request or an answer with its body; nothing if the connection was closed."""
    head = b""
    while not head.endswith(_END):  # byte by byte, since what follows may be the next message
        part = connection.recv(1)
        if not part:
            return b""
        head += part
    if b"\r\nexpect: 100-continue" in head.lower():
        connection.sendall(b"HTTP/1.1 100 Continue" + _END)
    lengths = [line[15:] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    body = b""
    while not head_only and lengths and len(body) < int(lengths[0]):
        part = connection.recv(int(lengths[0]) - len(body))
        if not part:
            break
        body += part
    return head + body

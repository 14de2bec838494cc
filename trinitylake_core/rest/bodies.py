"""The body of a request: read within limits, measured while it comes, and read to no purpose where it is refused."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Final

import anyio
from anyio import to_thread
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest

from trinitylake_core.iceberg.reading.json_size import JsonSize, measure_json
from trinitylake_core.rest.json_bounds import Bomb
from trinitylake_core.rest.limits import Limits
from trinitylake_core.rest.problems import Problem
from trinitylake_core.rest.turns import Seat

SLOW: Final = (408, "RequestTimeoutException", "the request did not arrive in time")
_FIRST_MEASURED_BYTES: Final = 64 << 10
_DISCARDED_BYTES: Final = 1 << 20
_DIGITS: Final = 18


class Bodies:
    """Reads the bodies of requests to one endpoint."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._measuring = anyio.CapacityLimiter(2)

    async def read(self, http: HttpRequest, seat: Seat) -> bytes:
        """Return the body of a request, for which its seat has taken memory.

        Raises ``Problem``: it is too large, needs too much memory now, or its client left.
        """
        announced = announced_bytes(http)
        if announced > self._limits.body_bytes:
            raise self._too_large()
        seat.take_memory(announced)
        body = await self._read_and_measure(http, seat, announced)
        size = await self._measure(body)
        seat.take_memory(size.memory_bytes)
        return body

    async def _read_and_measure(self, http: HttpRequest, seat: Seat, announced: int) -> bytes:
        """Return a body. It is measured whenever it has doubled, so that of a bomb only a little is read."""
        found = bytearray()
        measured_at = _FIRST_MEASURED_BYTES
        try:
            async for part in http.stream():
                found += part
                if len(found) > self._limits.body_bytes:
                    raise self._too_large()
                if len(found) > announced:  # it comes in chunks
                    seat.take_memory(len(part))
                if len(found) >= measured_at:
                    await self._measure(bytes(found))
                    measured_at = 2 * len(found)
        except ClientDisconnect as error:
            raise Problem(*SLOW) from error
        return bytes(found)

    async def _measure(self, body: bytes) -> JsonSize:
        """Return the size of what a body, or its first part, is as JSON. Raises ``Bomb``."""
        if len(body) > _FIRST_MEASURED_BYTES:
            size = await to_thread.run_sync(measure_json, body, limiter=self._measuring)
        else:
            size = measure_json(body)
        if size.elements > self._limits.elements:
            raise Bomb(413, f"the body has more than {self._limits.elements} values: send several smaller requests")
        if size.depth > self._limits.depth:
            raise Bomb(400, f"lists in the body lie more than {self._limits.depth} levels deep in each other")
        return size

    async def discard(self, http: HttpRequest) -> None:
        """Read what is left of the body of a refused request, and keep nothing of it.

        A client that sends all of its request before it reads would otherwise see a closed connection, and not why.
        One that asks before it sends (``Expect``), or announces a lot, gets its answer at once.
        """
        left = min(self._limits.body_bytes, _DISCARDED_BYTES)
        announced = announced_bytes(http)
        has_body = announced > 0 or "transfer-encoding" in http.headers
        if not has_body or announced > left or "expect" in http.headers:
            return
        with suppress(ClientDisconnect, RuntimeError), anyio.move_on_after(self._limits.seconds):
            async for part in http.stream():
                left -= len(part)
                if left < 0:
                    return

    def _too_large(self) -> Problem:
        return Problem(413, "BadRequestException", f"the body is larger than {self._limits.body_bytes} bytes")


def announced_bytes(http: HttpRequest) -> int:
    """Return how long the body of a request is, as far as its client says so; 0 where it comes in chunks."""
    text = http.headers.get("content-length", "0")
    if len(text) > _DIGITS:
        return sys.maxsize
    return int(text)

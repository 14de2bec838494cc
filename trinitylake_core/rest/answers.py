"""Answers: an error as the specification wants it, and a body that is sent no faster than its client reads."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

import anyio
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from trinitylake_core.rest.problems import Problem, message_for_log, problem_of

LOG: Final = logging.getLogger("trinitylake.rest")
_PIECE_BYTES: Final = 64 << 10
_RETRY_SOON: Final = {"retry-after": "1"}
_CLOSE: Final = {"connection": "close"}


def answer_error(error: Exception) -> Response:
    """Return the answer that an exception becomes, and log what its client is not told."""
    problem = problem_of(error)
    if problem.status >= 500 and not isinstance(error, Problem):
        LOG.error("a request failed (%d): %s", problem.status, message_for_log(error))
    value = {"error": {"message": str(problem), "type": problem.kind, "code": problem.status}}
    headers = None
    if problem.status in {429, 503}:
        headers = _RETRY_SOON
    elif problem.status == 408 or problem.closes:
        headers = _CLOSE
    return JSONResponse(value, problem.status, headers=headers)


class SlowlyRead(Response):
    """An answer of which the next piece is sent when the client has read the one before.

    So what a client does not read stays in one place, which counts, and not in the buffers of a thousand connections.

    Args:
        answer: what to send.
        seconds: in which the client must have read it; then ``drop`` closes the connection.
        when_over: called once, when all of it is sent, or nothing more of it will be.
    """

    def __init__(
        self, answer: Response, *, seconds: float, drop: Callable[[], None], when_over: Callable[[], None]
    ) -> None:
        self.status_code = answer.status_code
        self.raw_headers = answer.raw_headers
        self.body = answer.body
        self.background = None
        self._seconds = seconds
        self._drop = drop
        self._when_over = when_over

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer."""
        try:
            with anyio.move_on_after(self._seconds) as sending:
                await self._send_pieces(send)
            if sending.cancelled_caught:
                self._drop()
                await asyncio.sleep(0)  # the server shall know that the client is gone before it misses the rest
        finally:
            self._when_over()

    async def _send_pieces(self, send: Send) -> None:
        body = memoryview(self.body)
        head: dict[str, Any] = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        await send(head)
        for start in range(0, max(len(body), 1), _PIECE_BYTES):
            end = start + _PIECE_BYTES
            await send({"type": "http.response.body", "body": bytes(body[start:end]), "more_body": end < len(body)})

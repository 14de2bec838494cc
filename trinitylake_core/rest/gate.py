"""What is refused of every request, before its route is looked up and its token is read."""

from __future__ import annotations

from urllib.parse import unquote

from starlette.requests import Request as HttpRequest
from starlette.types import ASGIApp, Receive, Scope, Send

from trinitylake_core.rest.answers import refuse
from trinitylake_core.rest.bodies import Bodies
from trinitylake_core.rest.journal import Asking, Journal
from trinitylake_core.rest.local_only import refuse_foreign
from trinitylake_core.rest.problems import Problem


class Gate:
    """Refuses requests that two readers would understand differently, and those of web pages where there are no tokens.

    Args:
        app: what gets the others.
        bodies: reads the bodies of refused requests.
        journal: where refused requests are written down.
        has_tokens: whether clients have tokens; no web page knows one.
    """

    def __init__(self, app: ASGIApp, bodies: Bodies, journal: Journal, *, has_tokens: bool) -> None:
        self._app = app
        self._bodies = bodies
        self._journal = journal
        self._has_tokens = has_tokens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request, or pass it on."""
        if scope["type"] == "http":
            asking = Asking(HttpRequest(scope, receive), "refused")
            try:
                self._check(asking.http)
            except Problem as problem:
                await self._bodies.discard(asking.http)
                self._journal.note(asking, problem.status, problem)
                await refuse(problem)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _check(self, http: HttpRequest) -> None:
        """Raise ``Problem`` for a request that is to be refused."""
        if len(http.headers.getlist("authorization")) > 1:
            raise Problem(400, "BadRequestException", "the request has two 'Authorization' headers: send one")
        if http.headers.get("content-encoding", "identity").lower() != "identity":
            text = "this endpoint takes no compressed body: send it without 'Content-Encoding'"
            raise Problem(415, "UnsupportedMediaTypeException", text)
        try:
            raw_path: bytes = http.scope.get("raw_path", b"")
            unquote(raw_path.decode("ascii"), errors="strict")
        except UnicodeDecodeError:
            raise Problem(400, "BadRequestException", "the path is not text in UTF-8") from None
        if not self._has_tokens and http.url.path != "/healthz":
            refuse_foreign(http.url.scheme, http.headers)

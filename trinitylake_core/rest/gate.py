"""What is refused of every request, before its route is looked up and its token is read."""

from __future__ import annotations

from urllib.parse import unquote

from starlette.requests import Request as HttpRequest
from starlette.types import ASGIApp, Receive, Scope, Send

from trinitylake_core.rest.answers import answer_error
from trinitylake_core.rest.bodies import Bodies
from trinitylake_core.rest.journal import Asking, Journal
from trinitylake_core.rest.limits import Limits
from trinitylake_core.rest.local_only import refuse_foreign
from trinitylake_core.rest.problems import Problem


class TwoLengths(Problem):
    """A request that ends at two places; its connection is closed."""

    closes = True

    def __init__(self) -> None:
        super().__init__(400, "BadRequestException", "the request has a Content-Length and a Transfer-Encoding")


class Gate:
    """Refuses requests that two readers would understand differently, and those of web pages where there are no tokens.

    Args:
        app: what gets the others.
        bodies: reads the bodies of refused requests.
        journal: where refused requests are written down.
        limits: how many headers a request may have, and how long they may be.
        has_tokens: whether clients have tokens; no web page knows one.
    """

    def __init__(self, app: ASGIApp, bodies: Bodies, journal: Journal, *, limits: Limits, has_tokens: bool) -> None:
        self._app = app
        self._bodies = bodies
        self._journal = journal
        self._limits = limits
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
                await answer_error(problem)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _check(self, http: HttpRequest) -> None:
        """Raise ``Problem`` for a request that is to be refused."""
        if http.scope["http_version"] not in {"1.0", "1.1"}:
            raise Problem(400, "BadRequestException", "the request is not HTTP/1.1")
        size = len(http.scope.get("raw_path", b"")) + len(http.scope["query_string"])
        size += sum(len(name) + len(value) for name, value in http.headers.raw)
        if len(http.headers.raw) > self._limits.headers or size > self._limits.header_bytes:
            text = "the headers of the request are too long, or there are too many"
            raise Problem(431, "RequestHeaderFieldsTooLargeException", text)
        if "content-length" in http.headers and "transfer-encoding" in http.headers:
            # A proxy may believe the one and h11 the other: then the rest of the body is a request of somebody else.
            raise TwoLengths
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
        if b"%2f" in raw_path.lower():  # routes see the decoded path: the name `t/` would be taken for `t`
            raise Problem(400, "BadRequestException", "no name in a path has a slash (%2F) here")
        if not self._has_tokens and http.url.path != "/healthz":
            refuse_foreign(http.url.scheme, http.headers)

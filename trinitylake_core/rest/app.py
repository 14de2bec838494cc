"""The application: its routes, and what every request passes: gate, token, limits, deadline, log, audit, metrics."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar
from urllib.parse import unquote

import anyio
from anyio import to_thread
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from trinitylake_core.commits.commit import acting_as, whoami
from trinitylake_core.rest import namespace_routes, table_routes, view_routes
from trinitylake_core.rest.answers import SlowlyRead, refuse
from trinitylake_core.rest.audit import Asked, Outcome
from trinitylake_core.rest.connections import Connection
from trinitylake_core.rest.json_bounds import Bomb, JsonSize, measure_json
from trinitylake_core.rest.limits import Limits
from trinitylake_core.rest.local_only import refuse_foreign
from trinitylake_core.rest.places import ClientGone, Place, Places
from trinitylake_core.rest.principals import MANAGE, Principal, Principals, WrongToken
from trinitylake_core.rest.problems import Problem, problem_of
from trinitylake_core.rest.repeats import again, key_of
from trinitylake_core.rest.requests import Reply, Request
from trinitylake_core.rest.warehouses import Warehouse, Warehouses
from trinitylake_core.transactions.made import collect_versions
from trinitylake_core.transactions.requests import Repeated, as_iso_duration, asked_by

LOG: Final = logging.getLogger("trinitylake.rest")
_T = TypeVar("_T")
Handler = Callable[[Request], Reply]
_PREFIX: Final = "/v1/{prefix}"
_NAMESPACE: Final = f"{_PREFIX}/namespaces/{{namespace}}"
_TABLE: Final = f"{_NAMESPACE}/tables/{{table}}"
_VIEW: Final = f"{_NAMESPACE}/views/{{view}}"
HANDLERS: Final[dict[tuple[str, str], Handler]] = {
    ("POST", _TABLE): table_routes.commit_table,
    ("GET", _TABLE): table_routes.load_table,
    ("GET", f"{_PREFIX}/namespaces"): namespace_routes.list_namespaces,
    ("POST", f"{_PREFIX}/namespaces"): namespace_routes.create_namespace,
    ("GET", _NAMESPACE): namespace_routes.load_namespace,
    ("HEAD", _NAMESPACE): namespace_routes.has_namespace,
    ("DELETE", _NAMESPACE): namespace_routes.drop_namespace,
    ("POST", f"{_NAMESPACE}/properties"): namespace_routes.update_namespace,
    ("GET", f"{_NAMESPACE}/tables"): table_routes.list_tables,
    ("POST", f"{_NAMESPACE}/tables"): table_routes.create_table,
    ("POST", f"{_NAMESPACE}/register"): table_routes.register_table,
    ("HEAD", _TABLE): table_routes.has_table,
    ("DELETE", _TABLE): table_routes.drop_table,
    ("GET", f"{_TABLE}/credentials"): table_routes.no_credentials,
    ("POST", f"{_TABLE}/metrics"): table_routes.accept_metrics,
    ("POST", f"{_PREFIX}/tables/rename"): table_routes.rename_table,
    ("POST", f"{_PREFIX}/transactions/commit"): table_routes.commit_tables,
    ("GET", f"{_NAMESPACE}/views"): view_routes.list_views,
    ("POST", f"{_NAMESPACE}/views"): view_routes.create_view,
    ("POST", f"{_NAMESPACE}/register-view"): view_routes.register_view,
    ("GET", _VIEW): view_routes.load_view,
    ("HEAD", _VIEW): view_routes.has_view,
    ("POST", _VIEW): view_routes.commit_view,
    ("DELETE", _VIEW): view_routes.drop_view,
    ("POST", f"{_PREFIX}/views/rename"): view_routes.rename_view,
}
"""What each method and path of the specification does, the most frequent first. The endpoint offers nothing else."""


_SLOW: Final = (408, "RequestTimeoutException", "the request did not arrive in time")
_UNREAD: Final = (503, "ServiceUnavailableException", "the storage did not answer in time; try again later")
_UNKNOWN: Final = (
    504,
    "CommitStateUnknownException",
    "the storage did not answer in time; what was asked for may still happen: look before you try again",
)
_GONE: Final = (499, "ClientClosedRequest", "the client left before the work on its request began; nothing was done")
_NOBODY: Final = Principal("-", {})
_FIRST_MEASURED_BYTES: Final = 64 << 10
_DISCARDED_BYTES: Final = 1 << 20
_LONGEST_PATH: Final = 300
_DIGITS: Final = 18


def application(
    warehouses: Warehouses, principals: Principals | None = None, limits: Limits | None = None
) -> Starlette:
    """Return the ASGI application of an endpoint. Without ``principals`` all may do everything: only for loopback."""
    endpoint = _Endpoint(warehouses, principals, limits or Limits())
    routes = [
        Route("/v1/config", endpoint.config, methods=["GET"]),
        Route("/healthz", endpoint.healthz, methods=["GET"]),
        Route("/metrics", endpoint.metrics, methods=["GET"]),
    ]
    # HEAD before GET: Starlette would answer HEAD with the route of GET
    for (method, path), handler in sorted(HANDLERS.items(), key=lambda each: each[0][0] != "HEAD"):
        answer = partial(endpoint.answer, handler=handler, name=handler.__name__)
        routes.append(Route(path, answer, methods=[method]))
    gate = Middleware(_Gate, endpoint=endpoint)
    app = Starlette(routes=routes, middleware=[gate], exception_handlers={HTTPException: _no_route})
    app.state.limits = endpoint.limits
    app.state.stop = endpoint.stop
    return app


class _Gate:
    """What is refused of every request, before its route is looked up."""

    def __init__(self, app: ASGIApp, endpoint: _Endpoint) -> None:
        self._app = app
        self._endpoint = endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request, or pass it on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        http = HttpRequest(scope, receive)
        began = time.monotonic()
        try:
            self._endpoint.refuse_odd(http)
        except Problem as problem:
            await self._endpoint.discard_body(http)
            self._endpoint.note(http, "refused", _NOBODY, Asked(), began, problem.status, problem)
            await refuse(problem)(scope, receive, send)
            return
        await self._app(scope, receive, send)


class _Endpoint:
    """What the requests of one endpoint share."""

    def __init__(self, warehouses: Warehouses, principals: Principals | None, limits: Limits) -> None:
        self._warehouses = warehouses
        self._principals = principals
        self.limits = limits
        self._under_way: set[anyio.CancelScope] = set()
        self._places = Places(limits, is_shared=principals is not None)
        self._measuring = anyio.CapacityLimiter(2)
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "trinitylake_requests", "Requests answered", ["operation", "status"], registry=self._registry
        )
        self._seconds = Histogram(
            "trinitylake_request_seconds", "Time to the answer", ["operation"], registry=self._registry
        )
        self._gauge("trinitylake_requests_current", "Requests under way", lambda: self._places.requests)
        self._gauge("trinitylake_threads_current", "Requests that are worked on", lambda: self._places.threads)
        text = "Memory that requests under way may need, in bytes"
        self._gauge("trinitylake_request_memory_bytes", text, lambda: self._places.memory_bytes)

    def _gauge(self, name: str, text: str, value: Callable[[], float]) -> None:
        Gauge(name, text, registry=self._registry).set_function(value)

    def stop(self) -> None:
        """Leave requests under way no more time than they have when the endpoint is ended."""
        for scope in self._under_way:
            scope.deadline = min(scope.deadline, anyio.current_time() + self.limits.stop_seconds)

    def refuse_odd(self, http: HttpRequest) -> None:
        """Refuse a request that two readers would understand differently, and, without tokens, one of a web page.

        Raises ``Problem``.
        """
        if len(http.headers.getlist("authorization")) > 1:
            raise Problem(400, "BadRequestException", "the request has two 'Authorization' headers: send one")
        if http.headers.get("content-encoding", "identity").lower() != "identity":
            text = "this endpoint takes no compressed body: send it without 'Content-Encoding'"
            raise Problem(415, "UnsupportedMediaTypeException", text)
        try:
            unquote(http.scope.get("raw_path", b"").decode("ascii"), errors="strict")
        except UnicodeDecodeError:
            raise Problem(400, "BadRequestException", "the path is not text in UTF-8") from None
        if self._principals is None and http.url.path != "/healthz":
            refuse_foreign(http.url.scheme, http.headers)

    async def healthz(self, _: HttpRequest) -> Response:
        """Answer that the process is there. It asks no storage, takes no thread, and needs no token."""
        return PlainTextResponse("ok\n")

    async def metrics(self, http: HttpRequest) -> Response:
        """Return the metrics as text, to every principal."""

        async def act(_: Principal, __: Asked) -> Response:
            return Response(generate_latest(self._registry), media_type="text/plain; version=0.0.4")

        return await self._guarded(http, "metrics", act)

    async def config(self, http: HttpRequest) -> Response:
        """Return the prefix of a warehouse, and which endpoints there are."""

        async def act(principal: Principal, _: Asked) -> Response:
            name = self._warehouse_asked_for(http)

            async def find(place: Place) -> Response:
                await self._body(http, place)
                found = await self._in_thread(http, place, lambda: _config_of(name, self._warehouses.get(name)))
                return JSONResponse(found)

            return await self._in_place(http, principal, find)

        return await self._guarded(http, "config", act)

    def _warehouse_asked_for(self, http: HttpRequest) -> str:
        name = http.query_params.get("warehouse")
        if name:
            return name
        known = self._warehouses.names
        if len(known) != 1:
            raise Problem(400, "BadRequestException", f"set 'warehouse' to one of {', '.join(known)}")
        return known[0]

    async def answer(self, http: HttpRequest, *, handler: Handler, name: str) -> Response:
        """Answer a request of the catalog."""

        async def act(principal: Principal, asked: Asked) -> Response:
            async def read_and_handle(place: Place) -> Response:
                body = await self._body(http, place)
                work = partial(self._handle, http, handler, principal, asked, body)
                return _response_of(await self._in_thread(http, place, work))

            return await self._in_place(http, principal, read_and_handle)

        return await self._guarded(http, name, act)

    def _handle(self, http: HttpRequest, handler: Handler, principal: Principal, asked: Asked, body: bytes) -> Reply:
        """Do what a request asks for. Runs in a thread."""
        path = {key: str(value) for key, value in http.path_params.items()}
        warehouse = self._warehouses.get(path.pop("prefix"))
        headers = {key.lower(): value for key, value in http.headers.items()}
        request = Request(warehouse, principal, path, dict(http.query_params), headers, body, asked)
        key = key_of(http.method, f"{http.url.path}?{http.url.query}", request)
        with acting_as(principal.name), asked_by(key), collect_versions() as asked.versions:
            try:
                return handler(request)
            except Repeated as done:
                asked.versions.append(done.version)
                return again(done, key, request, handler, self._warehouses)

    # -- what every request passes -------------------------------------------------------------

    async def _guarded(
        self, http: HttpRequest, operation: str, act: Callable[[Principal, Asked], Awaitable[Response]]
    ) -> Response:
        """Answer a request of somebody who may ask; log, audit and count every one."""
        began = time.monotonic()
        principal = _NOBODY
        asked = Asked()
        problem: Problem | None = None
        try:
            principal = self._principal_of(http)
            _connection_of(http).begin_request_of(principal.name)
            response = await act(principal, asked)
        except Exception as error:  # noqa: BLE001 - each becomes an answer, those of the server with a log entry
            if isinstance(error, WrongToken):
                await anyio.sleep(self.limits.wrong_token_seconds)
            problem = problem_of(error)
            response = refuse(error)
            if not isinstance(error, Bomb):
                await self.discard_body(http)
        self.note(http, operation, principal, asked, began, response.status_code, problem)
        return response

    async def _in_place(
        self, http: HttpRequest, principal: Principal, act: Callable[[Place], Awaitable[Response]]
    ) -> Response:
        """Answer a request in a place that it keeps until its answer is sent. Raises ``Problem`` (503)."""
        place = self._places.enter(principal.name)
        try:
            response = await act(place)
        except BaseException:
            place.leave()
            raise
        drop = _connection_of(http).abort
        return SlowlyRead(response, seconds=self.limits.seconds, drop=drop, when_over=place.leave)

    def _principal_of(self, http: HttpRequest) -> Principal:
        """Return who asks. Raises ``Problem`` (401)."""
        if self._principals is None:
            return Principal(whoami(), {MANAGE: ("*",)})
        return self._principals.of(http.headers.get("authorization"))

    def note(
        self,
        http: HttpRequest,
        operation: str,
        principal: Principal,
        asked: Asked,
        began: float,
        status: int,
        problem: Problem | None,
    ) -> None:
        """Log, audit and count a request that is answered."""
        seconds = time.monotonic() - began
        path = http.url.path[:_LONGEST_PATH]
        self._requests.labels(operation, str(status)).inc()
        self._seconds.labels(operation).observe(seconds)
        LOG.info("%s %s %r %d %.1f ms", principal.name, http.method, path, status, seconds * 1000)
        client = f"{http.client.host}:{http.client.port}" if http.client else ""
        kind = None if problem is None else problem.kind
        outcome = Outcome(principal.name, client, http.method, path, operation, status, kind, asked)
        if outcome.is_audited():
            outcome.write()

    # -- limits --------------------------------------------------------------------------------

    async def _body(self, http: HttpRequest, place: Place) -> bytes:
        """Return the body of a request, after it was measured. Raises ``Problem``."""
        announced = _announced_bytes(http)
        if announced > self.limits.body_bytes:
            raise self._too_large()
        place.take_memory(announced)
        body = await self._in_time(self._read(http, place, announced), _SLOW)
        size = await self._measure(body)
        place.take_memory(size.memory_bytes)
        return body

    async def _read(self, http: HttpRequest, place: Place, announced: int) -> bytes:
        """Return the body of a request. It is measured again and again while it comes: of a bomb, little is read."""
        found = bytearray()
        measured_at = _FIRST_MEASURED_BYTES
        try:
            async for part in http.stream():
                found += part
                if len(found) > self.limits.body_bytes:
                    raise self._too_large()
                if len(found) > announced:  # it comes in chunks
                    place.take_memory(len(part))
                if len(found) >= measured_at:
                    await self._measure(bytes(found))
                    measured_at = 2 * len(found)
        except ClientDisconnect as error:
            raise Problem(*_SLOW) from error
        return bytes(found)

    async def _measure(self, body: bytes) -> JsonSize:
        """Return the size of what a body, or its first part, is as JSON. Raises ``Bomb``."""
        if len(body) > _FIRST_MEASURED_BYTES:
            size = await to_thread.run_sync(measure_json, body, limiter=self._measuring)
        else:
            size = measure_json(body)
        if size.elements > self.limits.elements:
            raise Bomb(413, f"the body has more than {self.limits.elements} values: send several smaller requests")
        if size.depth > self.limits.depth:
            raise Bomb(400, f"lists in the body lie more than {self.limits.depth} levels deep in each other")
        return size

    async def discard_body(self, http: HttpRequest) -> None:
        """Read what is left of the body of a refused request, and keep nothing of it.

        A client that sends all of its request before it reads would otherwise see a closed connection, and not why.
        One that asks before it sends (``Expect``), or announces a lot, gets its answer at once.
        """
        left = min(self.limits.body_bytes, _DISCARDED_BYTES)
        announced = _announced_bytes(http)
        has_body = announced > 0 or "transfer-encoding" in http.headers
        if not has_body or announced > left or "expect" in http.headers:
            return
        with suppress(ClientDisconnect, RuntimeError), anyio.move_on_after(self.limits.seconds):
            async for part in http.stream():
                left -= len(part)
                if left < 0:
                    return

    def _too_large(self) -> Problem:
        return Problem(413, "BadRequestException", f"the body is larger than {self.limits.body_bytes} bytes")

    async def _in_thread(self, http: HttpRequest, place: Place, act: Callable[[], _T]) -> _T:
        """Do the work of a request. Raises ``Problem``: late, or its client left before it began."""
        late = _UNREAD if http.method in {"GET", "HEAD"} else _UNKNOWN
        try:
            return await self._in_time(self._places.work(place, act, _gone_of(http)), late)
        except ClientGone:
            raise Problem(*_GONE) from None

    async def _in_time(self, result: Awaitable[_T], late: tuple[int, str, str]) -> _T:
        with anyio.CancelScope(deadline=anyio.current_time() + self.limits.seconds) as scope:
            self._under_way.add(scope)
            try:
                return await result
            finally:
                self._under_way.discard(scope)
        raise Problem(*late)


def _gone_of(http: HttpRequest) -> Callable[[], bool]:
    """Return what tells whether the client of a request has gone."""
    connection = _connection_of(http)
    return lambda: connection.is_gone


class _NoConnection:
    """What stands for a connection where the application is called without a server."""

    is_gone = False

    def begin_request_of(self, principal: str) -> None:
        """Do nothing."""

    def abort(self) -> None:
        """Do nothing."""


def _connection_of(http: HttpRequest) -> Connection | _NoConnection:
    state: Mapping[str, Any] = http.scope.get("state", {})
    connection = state.get("connection")
    return connection if isinstance(connection, Connection) else _NoConnection()


def _announced_bytes(http: HttpRequest) -> int:
    """Return how long the body of a request is, as far as its client says so; 0 where it comes in chunks."""
    text = http.headers.get("content-length", "0")
    return int(text) if len(text) <= _DIGITS else sys.maxsize


def _response_of(reply: Reply) -> Response:
    if reply.value is None:
        return Response(status_code=reply.status, headers=reply.headers)
    if isinstance(reply.value, str):
        return Response(reply.value, reply.status, reply.headers, "application/json")
    return JSONResponse(reply.value, reply.status, headers=reply.headers)


def _config_of(name: str, warehouse: Warehouse) -> dict[str, Any]:
    return {
        "defaults": warehouse.client_properties(),
        "overrides": {"prefix": name, "warehouse": name},
        "endpoints": [f"{method} {path}" for method, path in HANDLERS],
        "idempotency-key-lifetime": as_iso_duration(warehouse.catalog.lifetime_of_keys()),
    }


async def _no_route(_: HttpRequest, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    kind = "UnsupportedOperationException" if status == 405 else "NotFoundException"
    return refuse(Problem(status, kind, "this endpoint does not offer that; GET /v1/config lists what it offers"))

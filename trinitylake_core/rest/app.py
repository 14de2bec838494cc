"""The application: its routes, and what every request passes: token, limits, deadline, log, metrics."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

import anyio
from anyio import to_thread
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from trinitylake_core.commits.commit import acting_as, whoami
from trinitylake_core.rest import namespace_routes, table_routes, view_routes
from trinitylake_core.rest.principals import MANAGE, Principal, Principals
from trinitylake_core.rest.problems import Problem, problem_of
from trinitylake_core.rest.repeats import again, key_of
from trinitylake_core.rest.requests import Reply, Request
from trinitylake_core.rest.warehouses import Warehouses
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
_HEADERS: Final = {408: {"connection": "close"}, 413: {"connection": "close"}, 503: {"retry-after": "1"}}


@dataclass(frozen=True, slots=True)
class Limits:
    """What one endpoint takes at a time; beyond it, clients get 413 or 503 and may come again.

    Attributes:
        body_bytes: of one request.
        threads: requests that are worked on at the same time.
        waiting: requests that may wait for a thread; further ones get 503 with ``Retry-After``.
        seconds: after which a request is answered without its result. What it began goes on. A client has as long to
            send a request, and to read an answer, before its connection is closed.
        stop_seconds: that requests under way have when the endpoint is ended.
        connections: at the same time; further ones are closed at once.
    """

    body_bytes: int = 16 << 20
    threads: int = 128
    waiting: int = 512
    seconds: float = 60.0
    stop_seconds: float = 20.0
    connections: int = 1000


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
    routes += [
        Route(path, partial(endpoint.answer, handler=handler, name=handler.__name__), methods=[method])
        for (method, path), handler in sorted(HANDLERS.items(), key=lambda each: each[0][0] != "HEAD")
    ]
    app = Starlette(routes=routes, exception_handlers={HTTPException: _no_route})
    app.state.limits, app.state.stop = endpoint.limits, endpoint.stop
    return app


class _Endpoint:
    """What the requests of one endpoint share."""

    def __init__(self, warehouses: Warehouses, principals: Principals | None, limits: Limits) -> None:
        self._warehouses = warehouses
        self._principals = principals
        self.limits = limits
        self._under_way: set[anyio.CancelScope] = set()
        self._threads = anyio.CapacityLimiter(limits.threads)
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "trinitylake_requests", "Requests answered", ["operation", "status"], registry=self._registry
        )
        self._seconds = Histogram(
            "trinitylake_request_seconds", "Time to the answer", ["operation"], registry=self._registry
        )
        self._current = Gauge("trinitylake_requests_current", "Requests under way", registry=self._registry)

    def stop(self) -> None:
        """Leave requests under way no more time than they have when the endpoint is ended."""
        for scope in self._under_way:
            scope.deadline = min(scope.deadline, anyio.current_time() + self.limits.stop_seconds)

    async def healthz(self, _: HttpRequest) -> Response:
        """Answer that the process is there. It asks no storage."""
        return PlainTextResponse("ok\n")

    async def metrics(self, _: HttpRequest) -> Response:
        """Return the metrics as text."""
        return Response(generate_latest(self._registry), media_type="text/plain; version=0.0.4")

    async def config(self, http: HttpRequest) -> Response:
        """Return the prefix of a warehouse, and which endpoints there are."""

        async def act(http: HttpRequest, _: Principal) -> Response:
            name, known = http.query_params.get("warehouse"), self._warehouses.names
            if not name and len(known) != 1:
                raise Problem(400, "BadRequestException", f"set 'warehouse' to one of {', '.join(known)}")
            name = name or known[0]
            warehouse = await self._in_thread(http, lambda: self._warehouses.get(name))
            offered = [f"{method} {path}" for method, path in HANDLERS]
            overrides = {"prefix": name, "warehouse": name}
            found = {"defaults": warehouse.client_properties(), "overrides": overrides, "endpoints": offered}
            return JSONResponse(
                found | {"idempotency-key-lifetime": as_iso_duration(warehouse.catalog.lifetime_of_keys())}
            )

        return await self._guarded(http, "config", act)

    async def answer(self, http: HttpRequest, *, handler: Handler, name: str) -> Response:
        """Answer a request of the catalog."""

        async def act(http: HttpRequest, principal: Principal) -> Response:
            body = await self._in_time(self._body(http), _SLOW)

            def handled() -> Reply:
                path = {key: str(value) for key, value in http.path_params.items()}
                warehouse = self._warehouses.get(path.pop("prefix"))
                headers = {key.lower(): value for key, value in http.headers.items()}
                request = Request(warehouse, principal, path, dict(http.query_params), headers, body)
                key = key_of(http.method, f"{http.url.path}?{http.url.query}", request)
                try:
                    with acting_as(principal.name), asked_by(key):
                        return handler(request)
                except Repeated as done:
                    return again(done, key, request, handler, self._warehouses)

            reply = await self._in_thread(http, handled)
            if reply.value is None:
                return Response(status_code=reply.status, headers=reply.headers)
            if isinstance(reply.value, str):
                return Response(reply.value, reply.status, reply.headers, "application/json")
            return JSONResponse(reply.value, reply.status, headers=reply.headers)

        return await self._guarded(http, name, act)

    async def _guarded(
        self, http: HttpRequest, name: str, act: Callable[[HttpRequest, Principal], Awaitable[Response]]
    ) -> Response:
        """Answer every request, and log and count it."""
        began, principal = time.monotonic(), Principal("-", {})
        with self._current.track_inprogress():
            try:
                principal = Principal(whoami(), {MANAGE: ("*",)})
                if self._principals is not None:
                    principal = self._principals.of(http.headers.get("authorization"))
                response = await act(http, principal)
            except Exception as error:  # noqa: BLE001 - each becomes an answer, those of the server with a log entry
                response = _refused(error)
        seconds = time.monotonic() - began
        self._requests.labels(name, str(response.status_code)).inc()
        self._seconds.labels(name).observe(seconds)
        about = (principal.name, http.method, http.url.path, response.status_code, seconds * 1000)
        LOG.info("%s %s %r %d %.1f ms", *about)
        return response

    async def _body(self, http: HttpRequest) -> bytes:
        largest = self.limits.body_bytes
        found = bytearray()
        try:
            async for part in http.stream():
                found += part
                if len(found) > largest:
                    raise Problem(413, "BadRequestException", f"the body is larger than {largest} bytes")
        except ClientDisconnect as error:
            raise Problem(*_SLOW) from error
        return bytes(found)

    async def _in_thread(self, http: HttpRequest, act: Callable[[], _T]) -> _T:
        if self._threads.statistics().tasks_waiting >= self.limits.waiting:
            raise Problem(503, "ServiceUnavailableException", "too many requests wait; try again later")
        acting = to_thread.run_sync(act, limiter=self._threads, abandon_on_cancel=True)
        return await self._in_time(acting, _UNREAD if http.method in {"GET", "HEAD"} else _UNKNOWN)

    async def _in_time(self, result: Awaitable[_T], late: tuple[int, str, str]) -> _T:
        with anyio.CancelScope(deadline=anyio.current_time() + self.limits.seconds) as scope:
            self._under_way.add(scope)
            try:
                return await result
            finally:
                self._under_way.discard(scope)
        raise Problem(*late)


def _refused(error: Exception) -> Response:
    problem = problem_of(error)
    if problem.status == 500 and problem.kind == "InternalServerError":
        LOG.error("a request failed", exc_info=error)
    value = {"error": {"message": str(problem), "type": problem.kind, "code": problem.status}}
    return JSONResponse(value, problem.status, headers=_HEADERS.get(problem.status))


async def _no_route(_: HttpRequest, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    kind = "UnsupportedOperationException" if status == 405 else "NotFoundException"
    return _refused(Problem(status, kind, "this endpoint does not offer that; GET /v1/config lists what it offers"))

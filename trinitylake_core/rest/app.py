"""The application: its routes, and the way of a request from its token to its answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, TypeVar

import anyio
from pyiceberg.exceptions import CommitFailedException
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import RequestResponseCycle

from trinitylake_core.commits.commit import acting_as, whoami
from trinitylake_core.iceberg.attempt import on_behalf_of
from trinitylake_core.rest import namespace_routes, table_routes, view_routes
from trinitylake_core.rest.answers import SlowlyRead, answer_error
from trinitylake_core.rest.bodies import SLOW, Bodies
from trinitylake_core.rest.gate import Gate
from trinitylake_core.rest.issuers import KeyNotKnown
from trinitylake_core.rest.journal import Asking, Journal
from trinitylake_core.rest.json_bounds import Bomb
from trinitylake_core.rest.limits import Limits
from trinitylake_core.rest.principals import Principal, Principals, WrongToken, almighty
from trinitylake_core.rest.problems import Problem, problem_of
from trinitylake_core.rest.repeats import answer_again, key_of
from trinitylake_core.rest.requests import Reply, Request
from trinitylake_core.rest.turns import ClientGone, Rates, Seat, Seats
from trinitylake_core.rest.warehouses import Warehouse, Warehouses
from trinitylake_core.transactions.made import collect_versions
from trinitylake_core.transactions.requests import Repeated, as_iso_duration, asked_by

_T = TypeVar("_T")
Handler = Callable[[Request], Reply]
_TABLE: Final = "/v1/{prefix}/namespaces/{namespace}/tables/{table}"
_VIEW: Final = "/v1/{prefix}/namespaces/{namespace}/views/{view}"
_NAMESPACE: Final = "/v1/{prefix}/namespaces/{namespace}"
HANDLERS: Final = {
    ("POST", _TABLE): table_routes.commit_table,
    ("GET", _TABLE): table_routes.load_table,
    ("GET", "/v1/{prefix}/namespaces"): namespace_routes.list_namespaces,
    ("POST", "/v1/{prefix}/namespaces"): namespace_routes.create_namespace,
    ("GET", _NAMESPACE): namespace_routes.load_namespace,
    ("HEAD", _NAMESPACE): namespace_routes.has_namespace,
    ("DELETE", _NAMESPACE): namespace_routes.drop_namespace,
    ("POST", "/v1/{prefix}/namespaces/{namespace}/properties"): namespace_routes.update_namespace,
    ("GET", "/v1/{prefix}/namespaces/{namespace}/tables"): table_routes.list_tables,
    ("POST", "/v1/{prefix}/namespaces/{namespace}/tables"): table_routes.create_table,
    ("POST", "/v1/{prefix}/namespaces/{namespace}/register"): table_routes.register_table,
    ("HEAD", _TABLE): table_routes.has_table,
    ("DELETE", _TABLE): table_routes.drop_table,
    ("GET", "/v1/{prefix}/namespaces/{namespace}/tables/{table}/credentials"): table_routes.load_credentials,
    ("POST", "/v1/{prefix}/namespaces/{namespace}/tables/{table}/sign"): table_routes.sign_request,
    ("POST", "/v1/{prefix}/namespaces/{namespace}/tables/{table}/metrics"): table_routes.accept_metrics,
    ("POST", "/v1/{prefix}/tables/rename"): table_routes.rename_table,
    ("POST", "/v1/{prefix}/transactions/commit"): table_routes.commit_tables,
    ("GET", "/v1/{prefix}/namespaces/{namespace}/views"): view_routes.list_views,
    ("POST", "/v1/{prefix}/namespaces/{namespace}/views"): view_routes.create_view,
    ("POST", "/v1/{prefix}/namespaces/{namespace}/register-view"): view_routes.register_view,
    ("GET", _VIEW): view_routes.load_view,
    ("HEAD", _VIEW): view_routes.has_view,
    ("POST", _VIEW): view_routes.commit_view,
    ("DELETE", _VIEW): view_routes.drop_view,
    ("POST", "/v1/{prefix}/views/rename"): view_routes.rename_view,
}
"""What each method and path of the specification does, the most frequent first. The endpoint offers nothing else."""


_FREE_OF_CONFLICTS: Final = frozenset(
    {
        namespace_routes.create_namespace,
        namespace_routes.drop_namespace,
        table_routes.create_table,
        table_routes.register_table,
        table_routes.rename_table,
        view_routes.create_view,
        view_routes.register_view,
        view_routes.rename_view,
    }
)
"""Of these clients take 409 for "it is there already", or "it is not empty", and so perhaps for success."""
_UNREAD: Final = (503, "ServiceUnavailableException", "the storage did not answer in time; try again later")
_UNKNOWN: Final = (
    504,
    "CommitStateUnknownException",
    "the storage did not answer in time; what was asked for may still happen: look before you try again",
)
_GONE: Final = (499, "ClientClosedRequest", "the client left before the work on its request began; nothing was done")


def application(
    warehouses: Warehouses,
    principals: Principals | None = None,
    limits: Limits | None = None,
    *,
    audits_reads: bool = False,
) -> Starlette:
    """Return the ASGI application of an endpoint. Without ``principals`` all may do everything: only for loopback.

    With ``audits_reads`` the audit log has requests that only read, too.
    """
    endpoint = _Endpoint(warehouses, principals, limits or Limits(), audits_reads=audits_reads)
    routes = [
        Route("/v1/config", endpoint.config, methods=["GET"]),
        Route("/healthz", endpoint.healthz, methods=["GET"]),
        Route("/metrics", endpoint.metrics, methods=["GET"]),
    ]
    # HEAD before GET: Starlette would answer HEAD with the route of GET
    for (method, path), handler in sorted(HANDLERS.items(), key=lambda each: each[0][0] != "HEAD"):
        answer = partial(endpoint.answer, handler=handler)
        routes.append(Route(path, answer, methods=[method]))
    gate = Middleware(
        Gate,
        endpoint.bodies,
        endpoint.journal,
        limits=endpoint.limits,
        has_tokens=principals is not None,
    )
    app = Starlette(routes=routes, middleware=[gate], exception_handlers={HTTPException: _refuse_route})
    app.state.limits = endpoint.limits
    app.state.stop = endpoint.stop
    return app


class _Endpoint:
    """What the requests of one endpoint share."""

    def __init__(
        self, warehouses: Warehouses, principals: Principals | None, limits: Limits, *, audits_reads: bool
    ) -> None:
        self.limits = limits
        self.bodies = Bodies(limits)
        self._seats = Seats(limits, is_shared=principals is not None)
        self._rates = Rates()
        self.journal = Journal(self._seats, audits_reads=audits_reads)
        self._warehouses = warehouses
        self._principals = principals
        if principals is not None:
            principals.bind_rights(warehouses.names)
        self._under_way: set[anyio.CancelScope] = set()

    def stop(self) -> None:
        """Leave requests under way no more time than they have when the endpoint is ended."""
        latest = anyio.current_time() + self.limits.stop_seconds
        for scope in self._under_way:
            scope.deadline = min(scope.deadline, latest)

    # -- what is offered -----------------------------------------------------------------------

    async def healthz(self, _: HttpRequest) -> Response:
        """Answer that the process is there. It asks no storage, takes no thread, and needs no token."""
        return PlainTextResponse("ok\n")

    async def metrics(self, http: HttpRequest) -> Response:
        """Return the metrics as text, to every principal."""

        async def act() -> Response:
            return Response(self.journal.metrics(), media_type="text/plain; version=0.0.4")

        return await self._guard(Asking(http, "metrics"), act)

    async def config(self, http: HttpRequest) -> Response:
        """Return the prefix of a warehouse, and which endpoints there are."""
        asking = Asking(http, "config")

        async def find(seat: Seat) -> Response:
            name = self._warehouse_asked_for(http, asking.principal)
            await self._read_body(http, seat)
            found = await self._in_thread(http, seat, lambda: _config_of(name, self._warehouses.get(name)))
            return JSONResponse(found)

        return await self._guard(asking, partial(self._in_seat, asking, find))

    def _warehouse_asked_for(self, http: HttpRequest, principal: Principal) -> str:
        name = http.query_params.get("warehouse")
        known = self._lakehouses_of(principal)
        if name:
            self._rights_in(name, principal)
            return name
        if len(known) != 1:
            raise Problem(400, "BadRequestException", f"set 'warehouse' to one of {', '.join(known) or 'none'}")
        return known[0]

    def _lakehouses_of(self, principal: Principal) -> list[str]:
        """Return the lakehouses in which a principal may do anything."""
        return [name for name in self._warehouses.names if principal.within(name).has_rights]

    def _rights_in(self, warehouse: str, principal: Principal) -> Principal:
        """Return a principal with the rights in a warehouse. No request.

        Raises ``Problem`` (404): there is no such lakehouse, or none in which the principal may do anything.
        """
        lakehouse = warehouse.partition("@")[0]
        known = self._lakehouses_of(principal)
        if lakehouse not in known:
            listed = ", ".join(known)
            if not known:
                listed = f"none for {principal.name}"
            text = f"no warehouse {lakehouse!r}; there are {listed}"
            raise Problem(404, "NotFoundException", text)
        return principal.within(lakehouse)

    async def answer(self, http: HttpRequest, *, handler: Handler) -> Response:
        """Answer a request of the catalog."""
        asking = Asking(http, handler.__name__)

        async def read_and_handle(seat: Seat) -> Response:
            body = await self._read_body(http, seat)
            reply = await self._in_thread(http, seat, lambda: self._handle(asking, handler, body))
            return _response_of(reply)

        return await self._guard(asking, partial(self._in_seat, asking, read_and_handle))

    def _handle(self, asking: Asking, handler: Handler, body: bytes) -> Reply:
        """Do what a request asks for. Runs in a thread."""
        http = asking.http
        path = {key: str(value) for key, value in http.path_params.items()}
        name = path.pop("prefix")
        principal = self._rights_in(name, asking.principal)  # before anything is looked at
        warehouse = self._warehouses.get(name)
        headers = {key.lower(): value for key, value in http.headers.items()}
        query = dict(http.query_params)
        request = Request(warehouse, principal, path, query, headers, body, asking.asked)
        key = key_of(http.method, f"{http.url.path}?{http.url.query}", request)
        with acting_as(asking.principal.name), asked_by(key), collect_versions() as asking.asked.versions:
            try:
                if principal.manages_all:
                    return handler(request)
                with on_behalf_of(request.require_owner):
                    return handler(request)
            except CommitFailedException as error:
                if handler not in _FREE_OF_CONFLICTS:
                    raise
                raise Problem(503, "ServiceUnavailableException", str(problem_of(error))) from error
            except Repeated as done:
                asking.asked.versions.append(done.version)
                return answer_again(done, key, request, handler, self._warehouses)

    # -- what every request passes -------------------------------------------------------------

    async def _guard(self, asking: Asking, act: Callable[[], Awaitable[Response]]) -> Response:
        """Answer a request of somebody who may ask, and write every one down."""
        problem: Problem | None = None
        arrived = anyio.current_time()
        try:
            asking.principal = await self._principal_of(asking.http)
            self._rates.take(asking.principal)
            response = await act()
        except Exception as error:  # noqa: BLE001 - each becomes an answer, those of the server with a log entry
            if isinstance(error, WrongToken):
                await anyio.sleep_until(arrived + self.limits.wrong_token_seconds)
            problem = problem_of(error)
            response = answer_error(error)
            if not isinstance(error, Bomb):
                await self.bodies.discard(asking.http)
        self.journal.note(asking, response.status_code, problem)
        return response

    async def _principal_of(self, http: HttpRequest) -> Principal:
        """Return who asks. Raises ``Problem`` (401, 403, 503)."""
        if self._principals is None:
            return almighty(whoami())
        authorization = http.headers.get("authorization")
        try:
            return self._principals.of(authorization)
        except KeyNotKnown as new:
            await new.keys.renew()
            return self._principals.of(authorization)

    async def _in_seat(self, asking: Asking, act: Callable[[Seat], Awaitable[Response]]) -> Response:
        """Answer a request in a seat that it keeps until its answer is sent. Raises ``Problem`` (503)."""
        seat = self._seats.enter(asking.principal.name)
        try:
            response = await act(seat)
        except BaseException:
            seat.leave()
            raise
        drop = partial(_close_connection, asking.http)
        return SlowlyRead(response, seconds=self.limits.seconds, drop=drop, when_over=seat.leave)

    async def _read_body(self, http: HttpRequest, seat: Seat) -> bytes:
        return await self._in_time(self.bodies.read(http, seat), SLOW)

    async def _in_thread(self, http: HttpRequest, seat: Seat, act: Callable[[], _T]) -> _T:
        """Do the work of a request. Raises ``Problem``: late, or its client left before it began."""
        late = _UNREAD if http.method in {"GET", "HEAD"} else _UNKNOWN
        try:
            return await self._in_time(self._seats.work(seat, act, partial(_has_left, http)), late)
        except ClientGone:
            raise Problem(*_GONE) from None

    async def _in_time(self, result: Awaitable[_T], late: tuple[int, str, str]) -> _T:
        deadline = anyio.current_time() + self.limits.seconds
        with anyio.CancelScope(deadline=deadline) as scope:
            self._under_way.add(scope)
            try:
                return await result
            finally:
                self._under_way.discard(scope)
        raise Problem(*late)


def _has_left(http: HttpRequest) -> bool:
    """Return whether the client of a request has closed its connection."""
    cycle = _cycle_of(http)
    return cycle is not None and cycle.disconnected


def _close_connection(http: HttpRequest) -> None:
    """Close the connection of a request at once."""
    cycle = _cycle_of(http)
    if cycle is not None:
        cycle.transport.abort()


def _cycle_of(http: HttpRequest) -> RequestResponseCycle | None:
    """Return what uvicorn knows of a request; ``None`` where the application is called without a server.

    uvicorn tells an application that waits for more of a request that its client has left. This one does not wait.
    """
    cycle = getattr(http.receive, "__self__", None)
    return cycle if isinstance(cycle, RequestResponseCycle) else None


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


async def _refuse_route(_: HttpRequest, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    kind = "UnsupportedOperationException" if status == 405 else "NotFoundException"
    return answer_error(Problem(status, kind, "this endpoint does not offer that; GET /v1/config lists what it offers"))

"""What a request gets that a client sends again, with the same idempotency key: the answer of the first time.

The version that the first one became proves that it was carried out; it is read as a warehouse of the past.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from trinitylake_core.errors import OutcomeUnknown
from trinitylake_core.rest.namespace_routes import answer_update, create_namespace, load_namespace, update_namespace
from trinitylake_core.rest.problems import Problem
from trinitylake_core.rest.requests import NOTHING, SEPARATOR, Reply, Request
from trinitylake_core.rest.table_routes import commit_table, create_table, load_table_of, register_table
from trinitylake_core.rest.view_routes import commit_view, create_view, load_view, register_view
from trinitylake_core.rest.warehouses import Warehouse, Warehouses
from trinitylake_core.transactions.requests import Repeated, RequestKey

_SIZE: Final = 16


def key_of(method: str, url: str, request: Request) -> RequestKey | None:
    """Return the idempotency key of a request that changes something. Raises ``InvalidInput``, ``Problem``."""
    text = request.headers.get("idempotency-key")
    if text is None or method not in {"POST", "DELETE"}:
        return None
    asked = f"{request.principal.name}\n{method}\n{url}\n".encode() + request.body
    digest = hashlib.sha256(asked).hexdigest()[:_SIZE]
    try:
        return RequestKey.of(text, digest, request.warehouse.catalog.lifetime_of_keys())
    except OutcomeUnknown as error:
        raise Problem(500, "CommitStateUnknownException", str(error)) from error


def answer_again(
    done: Repeated, key: RequestKey | None, request: Request, handler: Callable[[Request], Reply], all_: Warehouses
) -> Reply:
    """Return the answer to a request that was carried out before. Where its version has expired, that of now.

    Raises ``Problem`` (422): another request had its key.
    """
    if key is None or done.digest != key.digest:
        text = f"version {done.version} was made by another request with this idempotency key; use each key once"
        raise Problem(422, "UnprocessableEntityException", text)
    load = _HOW.get(handler)
    if load is None:
        return NOTHING
    version = done.version
    if handler is update_namespace:
        version -= 1  # its answer says which properties were there before
    asked = replace(request, query={})  # of the whole table, as a commit is answered: `snapshots=refs` is for loads
    try:
        return load(asked, all_.get(f"{request.warehouse.name}@{version}"))
    except Problem as problem:
        if problem.kind != "NotFoundException":
            raise
        return load(asked, request.warehouse)


_Load = Callable[[Request, Warehouse], Reply]
"""Answers as a warehouse of then; what is lent is what the one of now lends."""


def _read_then(load: Callable[[Request], Reply]) -> _Load:
    """Return the function that asks the warehouse of then for everything."""
    return lambda request, then: load(replace(request, warehouse=then))


def _load_by_name(kind: str, load: _Load) -> _Load:
    """Return the function that loads the table or view in the body."""
    return lambda request, then: load(replace(request, path={**request.path, kind: str(request.json()["name"])}), then)


_HOW: Final[dict[Callable[[Request], Reply], _Load]] = {
    create_namespace: lambda request, then: load_namespace(
        replace(request, warehouse=then, path={"namespace": SEPARATOR.join(request.json()["namespace"])})
    ),
    update_namespace: _read_then(answer_update),
    create_table: _load_by_name("table", load_table_of),
    register_table: _load_by_name("table", load_table_of),
    commit_table: load_table_of,
    create_view: _load_by_name("view", _read_then(load_view)),
    register_view: _load_by_name("view", _read_then(load_view)),
    commit_view: _read_then(load_view),
}
"""What answers again; everything else that changes something answers 204."""

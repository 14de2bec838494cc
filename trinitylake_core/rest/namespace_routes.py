"""Namespaces: list, create, load, alter, drop."""

from __future__ import annotations

from typing import Any

from pyiceberg.typedef import Identifier

from trinitylake_core.rest.principals import MANAGE, READ, WRITE
from trinitylake_core.rest.problems import Problem
from trinitylake_core.rest.requests import NOTHING, Reply, Request, levels, names, namespace_of, strings


def list_namespaces(request: Request) -> Reply:
    """Return the namespaces right below ``parent`` that the principal may read."""
    parent = request.query.get("parent")
    above = levels(parent) if parent else ()
    if above:
        require_seen(request, above)
    found = request.warehouse.catalog.list_namespaces(above)
    readable = [each for each in found if may_see(request, each)]
    page, following = request.page(readable)
    return Reply({"namespaces": [list(each) for each in page], "next-page-token": following})


def may_see(request: Request, namespace: Identifier) -> bool:
    """Return whether the principal may read a namespace, or anything in it."""
    name = ".".join(namespace)
    return request.principal.may(READ, name) or any(
        pattern.startswith(f"{name}.") for granted in request.principal.allowed.values() for pattern in granted
    )


def create_namespace(request: Request) -> Reply:
    """Create a namespace."""
    body = request.json()
    namespace = namespace_of(names(body.get("namespace")))
    properties = strings(body.get("properties"))
    request.require(MANAGE, namespace)
    request.warehouse.catalog.create_namespace(namespace, properties)
    return _namespace(namespace, properties)


def load_namespace(request: Request) -> Reply:
    """Return the properties of a namespace."""
    require_seen(request, request.namespace)
    return _namespace(request.namespace, dict(request.warehouse.catalog.load_namespace_properties(request.namespace)))


def has_namespace(request: Request) -> Reply:
    """Answer whether there is a namespace."""
    require_seen(request, request.namespace)
    if not request.warehouse.catalog.namespace_exists(request.namespace):
        raise Problem(404, "NoSuchNamespaceException", f"Namespace {'.'.join(request.namespace)} does not exist")
    return NOTHING


def drop_namespace(request: Request) -> Reply:
    """Drop an empty namespace."""
    request.require(MANAGE, request.namespace)
    request.warehouse.catalog.drop_namespace(request.namespace)
    return NOTHING


def update_namespace(request: Request) -> Reply:
    """Remove and set properties of a namespace."""
    request.require(WRITE, request.namespace)
    removals, updates = _removals_and_updates(request)
    if both := sorted(removals & updates.keys()):
        raise Problem(422, "UnprocessableEntityException", f"both removed and set: {', '.join(both)}")
    found = request.warehouse.catalog.update_namespace_properties(request.namespace, removals, updates)
    return Reply({"removed": found.removed, "updated": found.updated, "missing": found.missing})


def answer_update(request: Request) -> Reply:
    """Return the answer of :func:`update_namespace` for a warehouse that it does not change."""
    removals, updates = _removals_and_updates(request)
    before = request.warehouse.catalog.load_namespace_properties(request.namespace).keys()
    return Reply({"removed": list(removals & before), "updated": list(updates), "missing": list(removals - before)})


def _removals_and_updates(request: Request) -> tuple[set[str], dict[str, str]]:
    body = request.json()
    return set(names(body.get("removals"))), strings(body.get("updates"))


def require_seen(request: Request, namespace: Identifier) -> None:
    """Refuse a namespace if the principal may read neither it nor anything in it: a table shows where it is.

    Whether it is there is not looked at. Raises ``Problem`` (403).
    """
    if not may_see(request, namespace):
        request.require(READ, namespace)


def _namespace(namespace: Identifier, properties: dict[str, Any]) -> Reply:
    return Reply({"namespace": list(namespace), "properties": properties})

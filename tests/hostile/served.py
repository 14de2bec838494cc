"""An endpoint over a hostile lakehouse, and what tests of its places and owners ask of it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any, Final

from tests.core.test_rest import Answer, Client
from tests.hostile.lakehouse import NAMESPACE
from trinitylake_core.iceberg import TrinityLakeCatalog
from trinitylake_core.rest import Principals, Warehouses, application
from trinitylake_core.rest.principals import Principal, hash_token
from trinitylake_core.rest.serving import running

TABLES: Final = f"/v1/lake/namespaces/{NAMESPACE}/tables"
VIEWS: Final = f"/v1/lake/namespaces/{NAMESPACE}/views"
REGISTER: Final = f"/v1/lake/namespaces/{NAMESPACE}/register"
FIELDS: Final = {"type": "struct", "fields": [{"id": 1, "name": "x", "type": "long", "required": False}]}
_NUMBERS: Final = count(77)


@contextmanager
def served(catalog: TrinityLakeCatalog, properties: Mapping[str, str] | None = None, **rights: Any) -> Iterator[Client]:
    """Serve the lakehouse of a catalog. ``rights`` are those of principals by name, whose names are their tokens.

    The client is the first of them.
    """
    known = Principals({hash_token(name): Principal(name, allowed) for name, allowed in rights.items()})
    warehouses = Warehouses({"lake": lambda: catalog.lakehouse}, properties)
    with running(application(warehouses, known if rights else None)) as uri:
        yield Client(uri, next(iter(rights), None))


def commit(call: Client, name: str, *updates: dict[str, Any], requirements: Sequence[Any] = ()) -> Answer:
    """Send a commit to a table."""
    return call("POST", f"{TABLES}/{name}", {"requirements": list(requirements), "updates": list(updates)})


def adding_snapshot(location: str) -> dict[str, Any]:
    """Return the update that adds a snapshot with a manifest list."""
    snapshot = {
        "snapshot-id": next(_NUMBERS),
        "sequence-number": 9,
        "timestamp-ms": 2_000_000_000_000,
        "manifest-list": location,
        "summary": {"operation": "append"},
        "schema-id": 0,
    }
    return {"action": "add-snapshot", "snapshot": snapshot}


def setting(**properties: str) -> dict[str, Any]:
    """Return the update that sets properties; two underscores stand for a dot, one for a hyphen."""
    named = {name.replace("__", ".").replace("_", "-"): value for name, value in properties.items()}
    return {"action": "set-properties", "updates": named}


def create_by_commit(
    call: Client, name: str, location: str, table_uuid: str | None = None, *more: dict[str, Any]
) -> Answer:
    """Create a table by a commit that requires that there is none; ``more`` are further updates."""
    updates: list[dict[str, Any]] = [
        {"action": "assign-uuid", "uuid": table_uuid or str(uuid.uuid4())},
        {"action": "upgrade-format-version", "format-version": 2},
        {"action": "add-schema", "schema": FIELDS | {"schema-id": 0}, "last-column-id": 1},
        {"action": "set-current-schema", "schema-id": -1},
        {"action": "add-spec", "spec": {"spec-id": 0, "fields": []}},
        {"action": "set-default-spec", "spec-id": -1},
        {"action": "add-sort-order", "sort-order": {"order-id": 0, "fields": []}},
        {"action": "set-default-sort-order", "sort-order-id": -1},
        {"action": "set-location", "location": location},
    ]
    return commit(call, name, *updates, *more, requirements=[{"type": "assert-create"}])


def view_of(name: str, **more: Any) -> dict[str, Any]:
    """Return the body of a request that creates a view."""
    version = {
        "version-id": 1,
        "timestamp-ms": 1,
        "schema-id": -1,
        "summary": {},
        "default-namespace": [NAMESPACE],
        "representations": [{"type": "sql", "sql": "SELECT 1 x", "dialect": "spark"}],
    }
    return {"name": name, "schema": FIELDS | {"schema-id": 0}, "view-version": version, "properties": {}} | more

"""The tables of the data source and their columns."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from pipelines.tasks import INT, LONG, TEXT

_TIME: Final = pa.timestamp("us", "UTC")
_OBJECT: Final = {"kind": TEXT, "namespace": TEXT, "name": TEXT}
TABLES: Final[dict[str, pa.Schema]] = {
    "objects": pa.schema({**_OBJECT, "path": TEXT}),
    "versions": pa.schema(
        {
            "version": LONG,
            "created_at": _TIME,
            "operation": TEXT,
            "txn": TEXT,
            "reason": TEXT,
            "summary": TEXT,
            "changes": LONG,
            "objects": LONG,
            "namespaces": LONG,
            "tables": LONG,
            "views": LONG,
            "messages": LONG,
            "height": INT,
            "root_bytes": LONG,
            "path": TEXT,
            "rollback_from_root": TEXT,
        }
    ),
    "nodes": pa.schema(
        {
            "path": TEXT,
            "height": INT,
            "keys": LONG,
            "messages": LONG,
            "children": LONG,
            "subtree_keys": LONG,
            "subtree_messages": LONG,
            "bytes": LONG,
        }
    ),
    "messages": pa.schema(
        {**_OBJECT, "action": TEXT, "path": TEXT, "txn": TEXT, "node": TEXT, "height": INT, "position": LONG}
    ),
    "files": pa.schema({**_OBJECT, "path": TEXT}),
    "changes": pa.schema({"change": TEXT, **_OBJECT, "old_path": TEXT, "new_path": TEXT}),
    "snapshots": pa.schema(
        {
            "name": TEXT,
            "version": LONG,
            "kind": TEXT,
            "created_at": _TIME,
            "expires_at": _TIME,
            "root_path": TEXT,
            "target_uri": TEXT,
        }
    ),
}
"""Columns by table."""
PRUNED: Final = frozenset({"objects", "messages", "files", "changes"})
"""Tables of which a filter on kind, namespace and name spares nodes."""
_SQL: Final = {TEXT: "string", LONG: "bigint", INT: "int", _TIME: "timestamp"}


def ddl(table: str) -> str:
    """Return the columns of a table in the words of Spark SQL."""
    return ", ".join(f"{each.name} {_SQL[each.type]}" for each in TABLES[table])

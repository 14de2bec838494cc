"""The tables of the data source, their columns, and the filters that spare nodes."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from pipelines.engine.model import INT, LONG, TEXT
from trinitylake_core.errors import InvalidName
from trinitylake_core.keys import EVERYTHING, KINDS, NAMESPACE, KeyCodec, KeyRange, ObjectName

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


# -- which objects are wanted: filters on kind, namespace and name, as ranges of keys ---------------


_COLUMNS: Final = {"kind": "kinds", "namespace": "namespaces", "name": "names"}


@dataclass(frozen=True, slots=True)
class Wanted:
    """What each of three columns must be one of; ``None``: anything."""

    kinds: frozenset[str] | None = None
    namespaces: frozenset[str] | None = None
    names: frozenset[str] | None = None

    def narrowed(self, column: str, values: Iterable[object]) -> Wanted | None:
        """Return this with one filter more, or ``None`` where the filter is on another column."""
        field = _COLUMNS.get(column)
        if field is None:
            return None
        found = frozenset(value for value in values if isinstance(value, str))
        before: frozenset[str] | None = getattr(self, field)
        return replace(self, **{field: found if before is None else before & found})

    def ranges(self, codec: KeyCodec) -> list[KeyRange]:
        """Return ranges of keys that hold everything that is wanted, ascending, and as little else as they can."""
        if self.kinds is None and self.namespaces is None:
            return [EVERYTHING]
        found: list[KeyRange] = []
        for kind in KINDS:
            if self.kinds is None or kind in self.kinds:
                found += self._of_kind(codec, kind)
        return found

    def _of_kind(self, codec: KeyCodec, kind: str) -> list[KeyRange]:
        if self.namespaces is None:
            return [codec.range(kind)]
        found: list[KeyRange] = []
        for namespace in self.namespaces:
            with suppress(InvalidName):  # nothing has such a name
                if kind == NAMESPACE:
                    found.append(_single(codec.namespace(namespace)))
                elif self.names is None:
                    found.append(codec.range(kind, namespace))
                else:
                    found += self._named(codec, kind, namespace)
        return sorted(found, key=lambda each: each.lo)

    def _named(self, codec: KeyCodec, kind: str, namespace: str) -> list[KeyRange]:
        found: list[KeyRange] = []
        for name in self.names or ():
            with suppress(InvalidName):
                found.append(_single(codec.encode(ObjectName(kind, namespace, name))))
        return found

    def holds(self, kind: str, namespace: str, name: str | None) -> bool:
        """Whether an object is wanted."""
        return (
            (self.kinds is None or kind in self.kinds)
            and (self.namespaces is None or namespace in self.namespaces)
            and (self.names is None or name in self.names)
        )


def _single(key: str) -> KeyRange:
    return KeyRange(key, key)

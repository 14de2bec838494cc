"""What changed between two definitions of one object, for people and for JSON.

Each change is a dictionary:

    what    ``column``, ``property``, ``format_property``, ``snapshot`` or ``field``
    change  ``added``, ``removed`` or ``changed``
    name    of the column (dotted where nested), the property, the snapshot or the field
    old     what it was; absent where it was added
    new     what it is; absent where it was removed

A column is described by ``id``, ``name``, ``type``, ``nullable`` and, where it has any beside those of
its type, ``properties``. Columns belong together when they have the same name, and of the others those
with the same ID: these were renamed. Key columns are given by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from trinitylake_core.definitions.arrow_types import TYPE_PROPERTIES
from trinitylake_core.definitions.codec import Definition, to_dict
from trinitylake_core.definitions.trinitylake_pb2 import Column, DataType, Schema, TableDef, ViewDef
from trinitylake_core.errors import InvalidInput

_MAPS: Final = {"properties": "property", "format_properties": "format_property", "snapshots": "snapshot"}
_KEYS: Final = ("distribution_keys", "primary_keys", "sort_keys", "unique_columns")


def describe_difference(old: Definition, new: Definition) -> list[dict[str, Any]]:
    """Return the changes from ``old`` to ``new``, as JSON-ready dictionaries; empty if nothing changed.

    Raises ``InvalidInput``: they are definitions of different kinds.
    """
    if type(old) is not type(new):
        raise InvalidInput(f"cannot compare a {type(old).__name__} with a {type(new).__name__}")
    before, after = _fields(old), _fields(new)
    changes: list[dict[str, Any]] = []
    for name in dict.fromkeys([*before, *after]):
        if name == "schema":
            changes += _schema_changes(_schema(old), _schema(new))
        elif name in _MAPS:
            changes += _entry_changes(_MAPS[name], before.get(name, {}), after.get(name, {}))
        else:
            own = ({name: side[name]} if name in side else {} for side in (before, after))
            changes += _entry_changes("field", *own)
    return changes


def _fields(definition: Definition) -> dict[str, Any]:
    fields = to_dict(definition)
    if isinstance(definition, TableDef):
        paths = {column.id: path for path, column in column_paths(definition.schema).items()}
        for name in _KEYS:
            fields[name] = [paths.get(number, number) for number in getattr(definition, name)]
    return fields


def _schema(definition: Definition) -> Schema:
    return definition.schema if isinstance(definition, TableDef | ViewDef) else Schema()


def _entry_changes(what: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for name in sorted(old.keys() | new.keys()):
        if name not in old:
            yield {"what": what, "change": "added", "name": name, "new": new[name]}
        elif name not in new:
            yield {"what": what, "change": "removed", "name": name, "old": old[name]}
        elif old[name] != new[name]:
            yield {"what": what, "change": "changed", "name": name, "old": old[name], "new": new[name]}


def _schema_changes(old: Schema, new: Schema) -> Iterator[dict[str, Any]]:
    before, after = column_paths(old), column_paths(new)
    same = {path: path for path in after if path in before}
    by_id = {column.id: path for path, column in before.items() if path not in same}
    renamed = {path: by_id.pop(c.id) for path, c in after.items() if path not in same and c.id in by_id}
    origin = same | renamed
    for path, column in before.items():
        if path not in origin.values():
            yield {"what": "column", "change": "removed", "name": path, "old": _describe_column(column)}
    for path, column in after.items():
        description = _describe_column(column)
        if path not in origin:
            yield {"what": "column", "change": "added", "name": path, "new": description}
        elif (was := _describe_column(before[origin[path]])) != description:
            yield {"what": "column", "change": "changed", "name": path, "old": was, "new": description}
    # the columns that are on both sides may stand in another order
    common = [column.name for column in new.columns if column.name in origin]
    position = {column.name: index for index, column in enumerate(old.columns)}
    ranks = [position[origin[name]] for name in common if origin[name] in position]
    if ranks != sorted(ranks):
        names = ([column.name for column in schema.columns] for schema in (old, new))
        yield {"what": "field", "change": "changed", "name": "column_order", "old": next(names), "new": next(names)}


def column_paths(schema: Schema) -> dict[str, Column]:
    """Return every column by its dotted path, a parent before its children."""
    paths: dict[str, Column] = {}

    def visit(column: Column, path: str) -> None:
        paths.setdefault(path, column)
        for child in column.struct_fields:
            visit(child, f"{path}.{child.name}")
        for part in ("map_key", "map_value", "list_element"):
            if column.HasField(part):
                visit(getattr(column, part), f"{path}.{part.partition('_')[2]}")

    for column in schema.columns:
        visit(column, column.name)
    return paths


def _describe_column(column: Column) -> dict[str, Any]:
    own = TYPE_PROPERTIES.get(column.type, ())
    size = ", ".join(column.properties[name] for name in own if name in column.properties)
    name = DataType.Name(column.type) if column.type in DataType.values() else str(column.type)
    extra = {name: value for name, value in sorted(column.properties.items()) if name not in own}
    return {
        "id": column.id,
        "name": column.name,
        "type": f"{name}({size})" if size else name,
        "nullable": column.nullable,
        **({"properties": extra} if extra else {}),
    }

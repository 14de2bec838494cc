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
from typing import Any, Final, TypeAlias

from trinitylake_core.definitions.arrow_types import TYPE_PROPERTIES
from trinitylake_core.definitions.codec import Definition, to_dict
from trinitylake_core.definitions.trinitylake_pb2 import Column, DataType, Schema, TableDef, ViewDef
from trinitylake_core.errors import InvalidInput

ChangeAsJson: TypeAlias = dict[str, Any]
"""A change, as the first lines of this module describe it."""
_MAPS: Final = {"properties": "property", "format_properties": "format_property", "snapshots": "snapshot"}
_KEYS: Final = ("distribution_keys", "primary_keys", "sort_keys", "unique_columns")


def describe_difference(old: Definition, new: Definition) -> list[ChangeAsJson]:
    """Return the changes from ``old`` to ``new``, as JSON-ready dictionaries; empty if nothing changed.

    Raises ``InvalidInput``: they are definitions of different kinds.
    """
    if type(old) is not type(new):
        raise InvalidInput(f"cannot compare a {type(old).__name__} with a {type(new).__name__}")
    before = _fields(old)
    after = _fields(new)
    changes: list[ChangeAsJson] = []
    for name in dict.fromkeys([*before, *after]):
        if name == "schema":
            changes += _column_changes(_schema(old), _schema(new))
            changes += _order_changes(_schema(old), _schema(new))
        elif name in _MAPS:
            changes += _entry_changes(_MAPS[name], before.get(name, {}), after.get(name, {}))
        else:
            if name in before:
                old_field = {name: before[name]}
            else:
                old_field = {}
            if name in after:
                new_field = {name: after[name]}
            else:
                new_field = {}
            changes += _entry_changes("field", old_field, new_field)
    return changes


def _fields(definition: Definition) -> dict[str, Any]:
    """Return the fields of a definition, key columns by name."""
    fields = to_dict(definition)
    if isinstance(definition, TableDef):
        paths = {}
        for path, column in column_paths(definition.schema).items():
            paths[column.id] = path
        for name in _KEYS:
            numbers = getattr(definition, name)
            fields[name] = [paths.get(number, number) for number in numbers]
    return fields


def _schema(definition: Definition) -> Schema:
    if isinstance(definition, TableDef | ViewDef):
        return definition.schema
    return Schema()


def _entry_changes(what: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[ChangeAsJson]:
    for name in sorted(old.keys() | new.keys()):
        before = old.get(name)
        after = new.get(name)
        if name not in old:
            yield _as_added(what, name, after)
        elif name not in new:
            yield _as_removed(what, name, before)
        elif before != after:
            yield _as_changed(what, name, before, after)


def _as_added(what: str, name: str, new: Any) -> ChangeAsJson:
    return {"what": what, "change": "added", "name": name, "new": new}


def _as_removed(what: str, name: str, old: Any) -> ChangeAsJson:
    return {"what": what, "change": "removed", "name": name, "old": old}


def _as_changed(what: str, name: str, old: Any, new: Any) -> ChangeAsJson:
    return {"what": what, "change": "changed", "name": name, "old": old, "new": new}


def _column_changes(old: Schema, new: Schema) -> Iterator[ChangeAsJson]:
    before = column_paths(old)
    after = column_paths(new)
    old_path_of = _old_paths(before, after)
    still_there = set(old_path_of.values())
    for path, column in before.items():
        if path not in still_there:
            yield _as_removed("column", path, _describe_column(column))
    for path, column in after.items():
        description = _describe_column(column)
        if path not in old_path_of:
            yield _as_added("column", path, description)
            continue
        old_description = _describe_column(before[old_path_of[path]])
        if old_description != description:
            yield _as_changed("column", path, old_description, description)


def _old_paths(before: Mapping[str, Column], after: Mapping[str, Column]) -> dict[str, str]:
    """Return the path that each column had before: of those of the same name, and of others with the same ID."""
    gone_by_id = {}
    for path, column in before.items():
        if path not in after:
            gone_by_id[column.id] = path
    old_path_of = {}
    for path, column in after.items():
        if path in before:
            old_path_of[path] = path
        elif column.id in gone_by_id:
            old_path_of[path] = gone_by_id.pop(column.id)
    return old_path_of


def _order_changes(old: Schema, new: Schema) -> Iterator[ChangeAsJson]:
    """Yield the order of columns as a change, if those that are on both sides stand in another order."""
    old_path_of = _old_paths(column_paths(old), column_paths(new))
    old_names = [column.name for column in old.columns]
    new_names = [column.name for column in new.columns]
    position = {name: index for index, name in enumerate(old_names)}
    positions = []
    for name in new_names:
        old_name = old_path_of.get(name)
        if old_name in position:
            positions.append(position[old_name])
    if positions != sorted(positions):
        yield _as_changed("field", "column_order", old_names, new_names)


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
    of_type = TYPE_PROPERTIES.get(column.type, ())
    sizes = []
    for name in of_type:
        if name in column.properties:
            sizes.append(column.properties[name])
    if column.type in DataType.values():
        type_name = DataType.Name(column.type)
    else:
        type_name = str(column.type)
    if sizes:
        type_name += f"({', '.join(sizes)})"
    description: dict[str, Any] = {
        "id": column.id,
        "name": column.name,
        "type": type_name,
        "nullable": column.nullable,
    }
    others = {name: value for name, value in sorted(column.properties.items()) if name not in of_type}
    if others:
        description["properties"] = others
    return description

"""Make and alter the definitions of namespaces, tables and views (format, section 5).

An altered definition is a new message: the old one stays as it is, the ID is kept, and so are fields
that a newer writer added. Properties are merged into the old ones, and the value ``None`` removes one.
Everything else that is passed replaces what was there, and what is left out (``None``) stays.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias, TypedDict, Unpack

import pyarrow as pa

from trinitylake_core.definitions.checks import (
    checked_choice,
    checked_int,
    checked_properties,
    checked_text,
    merge_properties,
    refuse_unknown,
)
from trinitylake_core.definitions.schema import all_columns, check_schema, schema_from_arrow
from trinitylake_core.definitions.trinitylake_pb2 import (
    Column,
    FullName,
    NamespaceDef,
    Schema,
    SQLRepresentation,
    TableDef,
    ViewDef,
)
from trinitylake_core.errors import InvalidDefinition, InvalidLocation
from trinitylake_core.locations import new_uuid, validate_path

TABLE_TYPES: Final = ("MANAGED", "EXTERNAL", "FEDERATED")
TABLE_FORMATS: Final = ("ICEBERG",)

AnySchema: TypeAlias = Schema | pa.Schema
"""A schema of the format, or an Arrow schema to convert."""
Keys: TypeAlias = Iterable[str | int]
"""Columns by name (``a.b`` for a field of a struct) or by ID."""

_LOCATIONS: Final = ("location", "metadata_location")
_FULL_URI: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/.+", re.DOTALL)


def namespace_def(properties: Mapping[str, str] | None = None) -> NamespaceDef:
    """Return the definition of a new namespace, with a new ID.

    Raises ``InvalidDefinition``: a property is not text by text.
    """
    return NamespaceDef(id=new_id(), properties=checked_properties("properties", properties))


def altered_namespace(old: NamespaceDef, properties: Mapping[str, str | None] | None = None) -> NamespaceDef:
    """Return ``old`` with ``properties`` merged in.

    Raises ``InvalidDefinition``: a property is not text by text or ``None``.
    """
    new = NamespaceDef()
    new.CopyFrom(old)
    merge_properties("properties", new.properties, properties)
    return new


class _TableKeys(TypedDict, total=False):
    primary_keys: Keys | None
    distribution_keys: Keys | None
    sort_keys: Keys | None
    unique_columns: Keys | None


class TableOptions(_TableKeys, total=False):
    """What ``create_table`` takes beside names and schema."""

    table_format: str
    table_type: str
    format_properties: Mapping[str, str] | None
    properties: Mapping[str, str] | None


class TableChanges(_TableKeys, total=False):
    """What ``alter_table`` takes: ``None`` leaves a field alone, and as the value of a property removes it."""

    schema: AnySchema | None
    table_format: str | None
    table_type: str | None
    format_properties: Mapping[str, str | None] | None
    properties: Mapping[str, str | None] | None


def table_def(schema: AnySchema | None = None, **options: Unpack[TableOptions]) -> TableDef:
    """Return the definition of a new table, with a new ID; by default MANAGED, in format ICEBERG.

    ``location`` and ``metadata_location`` in ``format_properties`` are full URIs where the table is EXTERNAL, and paths
    inside the lakehouse where it is MANAGED (format, section 2). Raises ``InvalidDefinition``: the schema or a value is
    one that the format cannot hold, or a key is not a column of the schema.
    """
    refuse_unknown(options, TableOptions)
    properties = checked_properties("properties", options.pop("properties", None))
    new = TableDef(id=new_id(), properties=properties)
    given = {"table_format": "ICEBERG", "table_type": "MANAGED", **options}
    if schema is None:
        schema = Schema()
    return _altered_table(new, schema, given)


def altered_table(old: TableDef, **changes: Unpack[TableChanges]) -> TableDef:
    """Return ``old`` with the given changes.

    Columns of an Arrow schema keep the IDs of the old columns of the same name, or those in their metadata, which is
    how to rename one. No old ID is given to a new column. An empty list removes keys. Raises ``InvalidDefinition``: the
    schema or a value is one that the format cannot hold, or a key, new or old, is not a column of the new schema.
    """
    refuse_unknown(changes, TableChanges)
    new = TableDef()
    new.CopyFrom(old)
    merge_properties("properties", new.properties, changes.pop("properties", None))
    return _altered_table(new, changes.pop("schema", None), changes)


def new_id() -> str:
    """Return the ID of a new object."""
    return new_uuid()


def _altered_table(new: TableDef, schema: AnySchema | None, changes: Mapping[str, Any]) -> TableDef:
    """Change ``new`` in place and return it."""
    if schema is not None:
        new.schema.CopyFrom(checked_schema(schema, new.schema))
    for name, choices in (("table_format", TABLE_FORMATS), ("table_type", TABLE_TYPES)):
        value = changes.get(name)
        if value is not None:
            setattr(new, name, checked_choice(name, value, choices))
    for name in _TableKeys.__annotations__:
        _set_keys(new, name, changes.get(name), check=schema is not None)
    merge_properties("format_properties", new.format_properties, changes.get("format_properties"))
    if changes.get("format_properties") is not None or changes.get("table_type") is not None:
        _check_locations(new)
    return new


def checked_schema(schema: AnySchema, previous: Schema) -> Schema:
    """Return a schema of the format that is valid; Arrow columns keep their IDs in ``previous``.

    Raises ``InvalidDefinition``: it is not one that the format can hold.
    """
    if not isinstance(schema, Schema):
        return schema_from_arrow(schema, previous)
    check_schema(schema)
    return schema


def _set_keys(table: TableDef, name: str, keys: Keys | None, *, check: bool) -> None:
    """Replace the keys ``name`` by ``keys``; with ``check`` the old ones must be columns if they stay."""
    stored = getattr(table, name)
    if keys is None and not check:
        return
    if isinstance(keys, str):
        raise InvalidDefinition(f"{name} must be a list of columns, not the text {keys!r}")
    columns = table.schema.columns
    numbers = list[int]()
    if keys is None:
        keys = list(stored)
    for key in keys:
        if isinstance(key, str):
            column = _find_column(columns, key)
            if column is None:
                there = ", ".join(column.name for column in columns) or "none at all"
                raise InvalidDefinition(f"{name}: the schema has no column {key!r}; it has {there}")
            numbers.append(column.id)
        else:
            numbers.append(checked_int(f"a column ID in {name}", key, low=1, high=2**32 - 1))
            if all(column.id != numbers[-1] for column in all_columns(columns)):
                raise InvalidDefinition(f"{name}: the schema has no column with ID {numbers[-1]}")
    if len(set(numbers)) < len(numbers):
        raise InvalidDefinition(f"{name} name a column twice: {numbers}")
    del stored[:]
    stored.extend(numbers)


def _find_column(columns: Iterable[Column], path: str) -> Column | None:
    """Return the column at a dotted path; a column whose own name holds the dots comes first."""
    siblings = list(columns)
    for column in siblings:
        if column.name == path:
            return column
    for column in siblings:
        if path.startswith(f"{column.name}."):
            found = _find_column(column.struct_fields, path[len(column.name) + 1 :])
            if found is not None:
                return found
    return None


def _check_locations(table: TableDef) -> None:
    for name in _LOCATIONS:
        location = table.format_properties.get(name)
        if location is None:
            continue
        if table.table_type == "EXTERNAL" and not _FULL_URI.fullmatch(location):
            raise InvalidDefinition(
                f"format_properties[{name!r}] of an EXTERNAL table must be a full URI such as s3://bucket/table, "
                f"not {location!r}"
            )
        if table.table_type == "MANAGED":
            try:
                validate_path(location.removesuffix("/"))
            except InvalidLocation as error:
                raise InvalidDefinition(
                    f"format_properties[{name!r}] of a MANAGED table must be a path inside the lakehouse: {error}; "
                    "use table_type EXTERNAL for data outside"
                ) from error


# -- views -----------------------------------------------------------------------------------------

SQL_TYPE: Final = "sql"

FullNames: TypeAlias = Iterable[str | tuple[str, str] | FullName]
"""Objects as ``"namespace.name"``, or as a pair where a name holds a dot itself."""
Representations: TypeAlias = Iterable[SQLRepresentation | Mapping[str, str]]
"""SQL texts as messages, or as mappings with ``sql`` and ``dialect``."""


class _ViewText(TypedDict, total=False):
    dialect: str
    sql_representations: Representations | None
    schema: AnySchema | None
    referenced_object_full_names: FullNames | None


class ViewOptions(_ViewText, total=False):
    """What ``create_view`` takes beside names and query."""

    schema_binding: bool
    properties: Mapping[str, str] | None


class ViewChanges(_ViewText, total=False):
    """What ``replace_view`` takes beside names and query; ``None`` as in ``TableChanges``."""

    schema_binding: bool | None
    properties: Mapping[str, str | None] | None


def view_def(sql: str | None = None, **options: Unpack[ViewOptions]) -> ViewDef:
    """Return the definition of a new view, with a new ID.

    The query is ``sql`` in ``dialect``, by default ``spark``, or ``sql_representations`` where it is written in
    several. Raises ``InvalidDefinition``: no query or both forms of it, two in one dialect, a binding without a schema,
    or a value that the format cannot hold.
    """
    refuse_unknown(options, ViewOptions)
    if sql is None and options.get("sql_representations") is None:
        raise InvalidDefinition("a view needs sql or sql_representations")
    return altered_view(ViewDef(id=new_id()), sql=sql, **options)


def altered_view(old: ViewDef, *, sql: str | None = None, **changes: Unpack[ViewChanges]) -> ViewDef:
    """Return ``old`` with the given changes.

    A new query replaces the old one in every dialect, so that no dialect is left with a stale one. Raises
    ``InvalidDefinition``: as for ``view_def``.
    """
    refuse_unknown(changes, ViewChanges)
    schema = changes.get("schema")
    sql_representations = changes.get("sql_representations")
    schema_binding = changes.get("schema_binding")
    names = changes.get("referenced_object_full_names")
    new = ViewDef()
    new.CopyFrom(old)
    merge_properties("properties", new.properties, changes.get("properties"))
    if sql is not None and sql_representations is not None:
        raise InvalidDefinition("pass either sql or sql_representations, not both")
    if sql is not None:
        sql_representations = [{"sql": sql, "dialect": changes.get("dialect", "spark")}]
    if sql_representations is not None:
        new.ClearField("substrait_read_rel")
        del new.sql_representations[:]
        new.sql_representations.extend(_representations(sql_representations))
    if schema is not None:
        new.schema.CopyFrom(checked_schema(schema, old.schema))
    if schema_binding is not None:
        if not isinstance(schema_binding, bool):
            raise InvalidDefinition(f"schema_binding must be True or False, not {schema_binding!r}")
        new.schema_binding = schema_binding
    if new.schema_binding and not new.HasField("schema"):
        raise InvalidDefinition("schema_binding needs a schema to bind the view to")
    if names is not None:
        del new.referenced_object_full_names[:]
        new.referenced_object_full_names.extend(_full_name(name) for name in names)
    return new


def _representations(given: Iterable[object]) -> list[SQLRepresentation]:
    result: list[SQLRepresentation] = []
    for each in given:
        if isinstance(each, SQLRepresentation):
            kind = each.type
            sql = each.sql
            dialect = each.dialect
        elif isinstance(each, Mapping) and each.keys() <= {"type", "sql", "dialect"}:
            kind = each.get("type", "")
            sql = each.get("sql", "")
            dialect = each.get("dialect", "")
        else:
            raise InvalidDefinition(f"an SQL representation is a mapping with sql and dialect, not {each!r}")
        dialect = checked_text("the dialect of a view", dialect)
        if any(other.dialect == dialect for other in result):
            raise InvalidDefinition(f"two SQL representations in the dialect {dialect!r}")
        kind = checked_text("the type of an SQL representation", kind or SQL_TYPE)
        result.append(SQLRepresentation(type=kind, sql=checked_text("the SQL of a view", sql), dialect=dialect))
    if not result:
        raise InvalidDefinition("sql_representations must not be empty")
    return result


def _full_name(name: object) -> FullName:
    if isinstance(name, FullName):
        namespace = name.namespace_name
        own = name.name
    elif isinstance(name, str):
        namespace, dot, own = name.partition(".")
        if not dot or "." in own:
            raise InvalidDefinition(
                f"a referenced object is 'namespace.name', or a pair (namespace, name) where a name holds a dot; "
                f"not {name!r}"
            )
    elif isinstance(name, tuple) and len(name) == 2:
        namespace, own = name
    else:
        raise InvalidDefinition(f"a referenced object is 'namespace.name' or a pair (namespace, name), not {name!r}")
    return FullName(
        namespace_name=checked_text("the namespace of a referenced object", namespace),
        name=checked_text("the name of a referenced object", own),
    )

"""Make and alter the definitions of views (format, section 5); ``objects`` says how altering works."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

from trinitylake_core.definitions.checks import checked_text, merge_properties
from trinitylake_core.definitions.objects import AnySchema, checked_schema, new_id
from trinitylake_core.definitions.trinitylake_pb2 import FullName, SQLRepresentation, ViewDef
from trinitylake_core.errors import InvalidDefinition

SQL_TYPE: Final = "sql"

FullNames: TypeAlias = Iterable[str | tuple[str, str] | FullName]
"""Objects as ``"namespace.name"``, or as a pair where a name holds a dot itself."""
Representations: TypeAlias = Iterable[SQLRepresentation | Mapping[str, str]]
"""SQL texts as messages, or as mappings with ``sql`` and ``dialect``."""


def view_def(
    sql: str | None = None,
    *,
    dialect: str = "spark",
    sql_representations: Representations | None = None,
    schema: AnySchema | None = None,
    schema_binding: bool = False,
    referenced_object_full_names: FullNames | None = None,
    properties: Mapping[str, str] | None = None,
) -> ViewDef:
    """Return the definition of a new view, with a new ID.

    The query is ``sql`` in ``dialect``, or ``sql_representations`` where it is written in several.

    Raises:
        InvalidDefinition: no query or both forms of it, two in one dialect, a binding without a
            schema, or a value that the format cannot hold.
    """
    if sql is None and sql_representations is None:
        raise InvalidDefinition("a view needs sql or sql_representations")
    return altered_view(
        ViewDef(id=new_id()),
        sql=sql,
        dialect=dialect,
        sql_representations=sql_representations,
        schema=schema,
        schema_binding=schema_binding,
        referenced_object_full_names=referenced_object_full_names,
        properties=properties,
    )


def altered_view(
    old: ViewDef,
    *,
    sql: str | None = None,
    dialect: str = "spark",
    sql_representations: Representations | None = None,
    schema: AnySchema | None = None,
    schema_binding: bool | None = None,
    referenced_object_full_names: FullNames | None = None,
    properties: Mapping[str, str | None] | None = None,
) -> ViewDef:
    """Return ``old`` with the given changes.

    A new query replaces the old one in every dialect, so that no dialect is left with a stale one.

    Raises:
        InvalidDefinition: as for ``view_def``.
    """
    new = ViewDef()
    new.CopyFrom(old)
    merge_properties("properties", new.properties, properties)
    if sql is not None and sql_representations is not None:
        raise InvalidDefinition("pass either sql or sql_representations, not both")
    if sql is not None:
        sql_representations = [{"sql": sql, "dialect": dialect}]
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
    if referenced_object_full_names is not None:
        del new.referenced_object_full_names[:]
        new.referenced_object_full_names.extend(_full_name(name) for name in referenced_object_full_names)
    return new


def _representations(given: Iterable[object]) -> list[SQLRepresentation]:
    result: list[SQLRepresentation] = []
    for each in given:
        if isinstance(each, SQLRepresentation):
            kind, sql, dialect = each.type, each.sql, each.dialect
        elif isinstance(each, Mapping) and each.keys() <= {"type", "sql", "dialect"}:
            kind, sql, dialect = each.get("type", ""), each.get("sql", ""), each.get("dialect", "")
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
        namespace, own = name.namespace_name, name.name
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

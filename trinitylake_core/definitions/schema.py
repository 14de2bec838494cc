"""Arrow schemas to schemas of the format and back (format, section 5).

    DataType                      Arrow type                  metadata of the Arrow field
    BOOLEAN                       bool
    INT2, INT4, INT8              int16, int32, int64
    FLOAT4, FLOAT8                float32, float64
    DECIMAL(p, s)                 decimal128(p, s)            1 <= p <= 38, 0 <= s <= p
    CHAR(n)                       string                      trinitylake.type = CHAR(n)
    VARCHAR(n)                    string                      trinitylake.type = VARCHAR(n)
    VARCHAR                       string
    DATE                          date32
    TIME3, TIME6, TIME9           time32(ms), time64(us, ns)
    TIMETZ3, TIMETZ6, TIMETZ9     time32(ms), time64(us, ns)  trinitylake.type = TIMETZ3, TIMETZ6, TIMETZ9
    TIMESTAMP3, 6, 9              timestamp(ms, us, ns)
    TIMESTAMPTZ3, 6, 9            timestamp(ms, us, ns, UTC)
    FIXED(n)                      fixed_size_binary(n)
    BINARY                        binary
    STRUCT                        struct
    MAP                           map                         trinitylake.nullable = true on a nullable key
    LIST                          list

From Arrow the large and view variants of string, binary and list are taken for the plain ones, and
the other names of UTC for UTC. Nothing else is converted silently.

Each field also carries ``trinitylake.id``, the ID of its column; ``trinitylake.property.<name>`` for
each property that the type does not contain; and ``trinitylake.name`` where a map key, a map value or a
list element is not called ``key``, ``value`` or ``element``. Fields without an ID get one when they
come back. Other metadata is ignored: the format has no place for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa

from trinitylake_core.definitions.arrow_types import (
    CHAR,
    LIST,
    MAP,
    STRUCT,
    TYPE_PROPERTIES,
    UNSIZED,
    VARCHAR,
    arrow_leaf,
    column_leaf,
)
from trinitylake_core.definitions.checks import UINT32_MAX, checked_int, checked_text
from trinitylake_core.definitions.trinitylake_pb2 import Column, DataType, Schema
from trinitylake_core.errors import InvalidDefinition

# -- validity --------------------------------------------------------------------------------------

NESTING_MAX: Final = 64
"""How deep columns may nest; protobuf gives up at 100 messages."""
COLUMNS_MAX: Final = 100_000
"""How many columns a new schema may have, with what is inside them."""
_PARTS: Final = {
    MAP: (("key", "map_key"), ("value", "map_value")),
    LIST: (("element", "list_element"),),
}
"""The parts of a column by its type: what they are called, and the field that holds them."""
_PART_FIELDS: Final = ("list_element", "map_key", "map_value")


def check_schema(schema: Schema) -> None:
    """Check that the format and Arrow can hold ``schema``.

    Raises ``InvalidDefinition``: it has too many columns, a name is empty or used twice in one place, an ID is 0 or
    used twice, a type is unknown, a precision, scale or length is wrong or missing, or a nested column lacks its parts
    or has parts that are not its own.
    """
    _check_siblings(schema.columns, ())
    numbers = Counter(column.id for column in all_columns(schema.columns))
    columns = numbers.total()
    if columns > COLUMNS_MAX:
        raise InvalidDefinition(f"a schema has {columns:,} columns, and {COLUMNS_MAX:,} is the most")
    for number, count in numbers.items():
        checked_int("the ID of a column", number, low=1, high=UINT32_MAX)
        if count > 1:
            raise InvalidDefinition(f"{count} columns have the ID {number}")


def all_columns(columns: Iterable[Column]) -> Iterator[Column]:
    """Yield columns and what they are made of, a parent before its children."""
    for column in columns:
        yield column
        if not _has_parts(column):
            continue
        if column.struct_fields:
            yield from all_columns(column.struct_fields)
        for part in _PART_FIELDS:
            if column.HasField(part):
                yield from all_columns([getattr(column, part)])


def parts(column: Column, where: str) -> list[tuple[str, Column]]:
    """Return the parts of a map (key, value) or a list (element); other columns have none.

    Raises ``InvalidDefinition``: a part is missing.
    """
    found = []
    for part, field in _PARTS.get(column.type, ()):
        if not column.HasField(field):
            kind = DataType.Name(column.type)
            raise InvalidDefinition(f"column {where}: {kind} needs {field}")
        found.append((part, getattr(column, field)))
    return found


def _check_siblings(columns: Iterable[Column], path: tuple[str, ...]) -> None:
    seen: set[str] = set()
    if path:
        what = f"the name of a column in {'.'.join(path)}"
    else:
        what = "the name of a column"
    for column in columns:
        name = checked_text(what, column.name)
        if name in seen:
            raise InvalidDefinition(f"two columns are named {'.'.join((*path, name))}")
        seen.add(name)
        # Of the most frequent columns nothing else can be wrong, and a schema may have 100,000.
        is_unsized = column.type in UNSIZED or (column.type == VARCHAR and not column.properties)
        is_simple = is_unsized and not path and not _has_parts(column)
        if not is_simple:
            _check_column(column, (*path, name))


def _has_parts(column: Column) -> bool:
    return bool(column.struct_fields) or any(map(column.HasField, _PART_FIELDS))


def _check_column(column: Column, path: tuple[str, ...]) -> None:
    where = _where(path)
    kind = column.type
    inside = parts(column, where)
    own = [field for _, field in _PARTS.get(kind, ())]
    foreign = []
    for field in _PART_FIELDS:
        if field not in own and column.HasField(field):
            foreign.append(field)
    if kind != STRUCT and column.struct_fields:
        foreign.append("struct_fields")
    if foreign:
        if kind in DataType.values():
            name = DataType.Name(kind)
        else:
            name = str(kind)
        raise InvalidDefinition(f"column {where}: {name} has no {', '.join(sorted(foreign))}")
    if kind == STRUCT:
        _check_siblings(column.struct_fields, path)
    elif inside:
        for part, child in inside:
            _check_column(child, (*path, part))
    else:
        arrow_leaf(column, where)
        if kind == CHAR and "length" not in column.properties:
            raise InvalidDefinition(f"column {where}: CHAR needs the property 'length'")


def _where(path: tuple[str, ...]) -> str:
    """Return the dotted path of a column. Raises ``InvalidDefinition`` if it is nested too deeply."""
    if len(path) > NESTING_MAX:
        raise InvalidDefinition(f"column {path[0]} is nested more than {NESTING_MAX} levels deep")
    return ".".join(path)


TYPE_METADATA: Final = b"trinitylake.type"
ID_METADATA: Final = b"trinitylake.id"
NAME_METADATA: Final = b"trinitylake.name"
NULLABLE_METADATA: Final = b"trinitylake.nullable"
PROPERTY_METADATA: Final = b"trinitylake.property."


def schema_to_arrow(schema: Schema) -> pa.Schema:
    """Return the Arrow schema of a schema; ``schema_from_arrow`` gives back an equal one.

    Raises ``InvalidDefinition``: a column has a type that is unknown, incomplete or nested too deeply.
    """
    return pa.schema([_field(column, (column.name,)) for column in schema.columns])


def schema_from_arrow(schema: pa.Schema, previous: Schema | None = None) -> Schema:
    """Return the schema of an Arrow schema.

    Columns without an ID in their metadata keep that of the column of the same name in ``previous``. The others are
    numbered after the highest ID there is, a parent before its children; without ``previous`` that means from 1. Raises
    ``InvalidDefinition``: not an Arrow schema, an Arrow type that the format does not have (the message names the
    column and what to use instead), two columns of one name or ID, or metadata that contradicts the type.
    """
    if not isinstance(schema, pa.Schema):
        message = f"a schema must be a pyarrow.Schema or a Schema, not {type(schema).__name__}"
        if type(schema) is list:
            message += "; pipelines.source.columns.schema_of makes one of columns as `apply` takes them"
        raise InvalidDefinition(message)
    if previous is None:
        old = []
    else:
        old = list(previous.columns)
    reader = _Reader(schema, old)
    columns = [reader.column(field, (field.name,), old) for field in schema]
    result = Schema(columns=columns)
    numbers = [column.id for column in all_columns([*result.columns, *old])]
    highest = max(numbers, default=0)
    for column in all_columns(result.columns):
        if not column.id:
            highest += 1
            column.id = highest
    check_schema(result)
    return result


def _field(column: Column, path: tuple[str, ...], canonical: str | None = None) -> pa.Field:
    """Return the Arrow field of a column; ``canonical`` is the name of a map's or a list's part."""
    where = _where(path)
    nested = {}
    for part, child in parts(column, where):
        nested[part] = _field(child, (*path, child.name), part)
    hint = None
    if column.type == STRUCT:
        children = [_field(child, (*path, child.name)) for child in column.struct_fields]
        arrow = pa.struct(children)
    elif column.type == MAP:
        arrow = pa.map_(nested["key"], nested["value"])
    elif column.type == LIST:
        arrow = pa.list_(nested["element"])
    else:
        arrow, hint = arrow_leaf(column, where)
    metadata = {ID_METADATA: str(column.id).encode()}
    if hint is not None:
        metadata[TYPE_METADATA] = hint.encode()
    if canonical is not None and column.name != canonical:
        metadata[NAME_METADATA] = column.name.encode()
    nullable = column.nullable
    if nullable and canonical == "key":  # Arrow has no nullable map keys
        metadata[NULLABLE_METADATA] = b"true"
        nullable = False
    of_type = TYPE_PROPERTIES.get(column.type, ())
    for name in sorted(column.properties):
        if name not in of_type:
            metadata[PROPERTY_METADATA + name.encode()] = column.properties[name].encode()
    return pa.field(canonical or column.name, arrow, nullable, metadata)


class _Reader:
    """Makes columns of Arrow fields; columns that must be numbered have ID 0."""

    def __init__(self, schema: pa.Schema, previous: list[Column]) -> None:
        self._by_id = {column.id: column for column in all_columns(previous)}
        self._claimed = {_id(field) for field in _all_fields(schema)}

    def column(
        self,
        field: pa.Field,
        path: tuple[str, ...],
        siblings: Iterable[Column],
        canonical: str | None = None,
    ) -> Column:
        """Return the column of a field; ``canonical`` is the name of a map's or a list's part.

        ``siblings`` are columns of the previous schema in the same place.
        """
        where = _where(path)
        number = _id(field)
        old = self._old_column(field, number, siblings, canonical)
        column = Column(nullable=field.nullable or _metadata(field, NULLABLE_METADATA, where) == "true")
        if number:
            column.id = number
        elif old.id not in self._claimed:
            column.id = old.id
        if canonical is None:
            name = field.name
        else:
            name = _metadata(field, NAME_METADATA, where)
        if name is None:
            name = old.name or canonical or ""
        column.name = name
        self._set_type(column, field, path, old)
        for key, value in (field.metadata or {}).items():
            if key.startswith(PROPERTY_METADATA):
                column.properties[_text(key[len(PROPERTY_METADATA) :], where)] = _text(value, where)
        return column

    def _old_column(
        self,
        field: pa.Field,
        number: int,
        siblings: Iterable[Column],
        canonical: str | None,
    ) -> Column:
        """Return the column of the previous schema that a field continues, or an empty one."""
        if number:
            return self._by_id.get(number, Column())
        for old in siblings:
            if canonical is not None or old.name == field.name:
                return old
        return Column()

    def _set_type(
        self,
        column: Column,
        field: pa.Field,
        path: tuple[str, ...],
        old: Column,
    ) -> None:
        where = ".".join(path)
        arrow = field.type
        hint = _metadata(field, TYPE_METADATA, where)
        is_nested = pa.types.is_nested(arrow)
        if is_nested and pa.types.is_struct(arrow):
            column.type = STRUCT
            for child in arrow:
                column.struct_fields.append(self.column(child, (*path, child.name), old.struct_fields))
        elif is_nested and pa.types.is_map(arrow):
            column.type = MAP
            key = self.column(arrow.key_field, (*path, "key"), [old.map_key], "key")
            value = self.column(arrow.item_field, (*path, "value"), [old.map_value], "value")
            column.map_key.CopyFrom(key)
            column.map_value.CopyFrom(value)
        elif is_nested and _is_list(arrow):
            column.type = LIST
            element = self.column(arrow.value_field, (*path, "element"), [old.list_element], "element")
            column.list_element.CopyFrom(element)
        else:
            column.type, properties = column_leaf(arrow, hint, where)
            column.properties.update(properties)


def _is_list(arrow: pa.DataType) -> bool:
    if pa.types.is_list(arrow) or pa.types.is_large_list(arrow):
        return True
    is_view = pa.types.is_list_view(arrow) or pa.types.is_large_list_view(arrow)
    return bool(is_view)


def _all_fields(fields: Iterable[pa.Field]) -> Iterator[pa.Field]:
    for field in fields:
        yield field
        arrow = field.type
        if not pa.types.is_nested(arrow):
            continue
        if pa.types.is_struct(arrow):
            yield from _all_fields(arrow)
        elif pa.types.is_map(arrow):
            yield from _all_fields([arrow.key_field, arrow.item_field])
        elif _is_list(arrow):
            yield from _all_fields([arrow.value_field])


def _id(field: pa.Field) -> int:
    """Return the column ID in the metadata of a field, 0 where there is none."""
    metadata = field.metadata or {}
    text = metadata.get(ID_METADATA)
    if text is None:
        return 0
    is_short = text.isdigit() and len(text) <= len(str(UINT32_MAX))
    if not is_short or not 1 <= int(text) <= UINT32_MAX:
        raise InvalidDefinition(f"column {field.name}: its metadata 'trinitylake.id' must be a number, not {text!r}")
    return int(text)


def _metadata(field: pa.Field, key: bytes, where: str) -> str | None:
    value = (field.metadata or {}).get(key)
    if value is None:
        return None
    return _text(value, where)


def _text(data: bytes, where: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InvalidDefinition(f"column {where}: metadata {data!r} is not UTF-8") from error

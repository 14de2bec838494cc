"""What makes a schema valid (format, section 5)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from trinitylake_core.definitions.arrow_types import CHAR, LIST, MAP, STRUCT, UNSIZED, VARCHAR, arrow_leaf
from trinitylake_core.definitions.checks import UINT32_MAX, checked_int, checked_text
from trinitylake_core.definitions.trinitylake_pb2 import Column, DataType, Schema
from trinitylake_core.errors import InvalidDefinition

NESTING_MAX: Final = 64
"""How deep columns may nest; protobuf gives up at 100 messages."""
COLUMNS_MAX: Final = 100_000
"""How many columns a new schema may have, with what is inside them."""
_PARTS: Final[Mapping[int, tuple[tuple[str, str], ...]]] = {
    MAP: (("key", "map_key"), ("value", "map_value")),
    LIST: (("element", "list_element"),),
}
"""The parts of a column by its type: what they are called, and the field that holds them."""
_PART_FIELDS: Final = ("list_element", "map_key", "map_value")


def check_schema(schema: Schema) -> None:
    """Check that the format and Arrow can hold ``schema``.

    Raises:
        InvalidDefinition: it has too many columns, a name is empty or used twice in one place, an ID is 0 or used
            twice, a type is unknown, a precision, scale or length is wrong or missing, or a nested column lacks its
            parts or has parts that are not its own.
    """
    _check_siblings(schema.columns, ())
    numbers = Counter(column.id for column in all_columns(schema.columns))
    if (columns := numbers.total()) > COLUMNS_MAX:
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

    Raises:
        InvalidDefinition: a part is missing.
    """
    needed = _PARTS.get(column.type, ())
    for _, field in needed:
        if not column.HasField(field):
            raise InvalidDefinition(f"column {where}: {DataType.Name(column.type)} needs {field}")
    return [(part, getattr(column, field)) for part, field in needed]


def _check_siblings(columns: Iterable[Column], path: tuple[str, ...]) -> None:
    seen: set[str] = set()
    what = f"the name of a column{_inside(path)}"
    for column in columns:
        name = checked_text(what, column.name)
        if name in seen:
            raise InvalidDefinition(f"two columns are named {'.'.join((*path, name))}")
        seen.add(name)
        unsized = column.type in UNSIZED or (column.type == VARCHAR and not column.properties)
        if not unsized or path or _has_parts(column):
            _check_column(column, (*path, name))


def _has_parts(column: Column) -> bool:
    return bool(column.struct_fields) or any(map(column.HasField, _PART_FIELDS))


def _check_column(column: Column, path: tuple[str, ...]) -> None:
    where = ".".join(path)
    if len(path) > NESTING_MAX:
        raise InvalidDefinition(f"column {path[0]} is nested more than {NESTING_MAX} levels deep")
    kind = column.type
    inside = parts(column, where)
    own = [field for _, field in _PARTS.get(kind, ())]
    foreign = [field for field in _PART_FIELDS if field not in own and column.HasField(field)]
    foreign += ["struct_fields"] if kind != STRUCT and column.struct_fields else []
    if foreign:
        raise InvalidDefinition(f"column {where}: {_type_name(column)} has no {', '.join(sorted(foreign))}")
    if kind == STRUCT:
        _check_siblings(column.struct_fields, path)
    elif inside:
        for part, child in inside:
            _check_column(child, (*path, part))
    else:
        arrow_leaf(column, where)
        if kind == CHAR and "length" not in column.properties:
            raise InvalidDefinition(f"column {where}: CHAR needs the property 'length'")


def _type_name(column: Column) -> str:
    return DataType.Name(column.type) if column.type in DataType.values() else str(column.type)


def _inside(path: tuple[str, ...]) -> str:
    return f" in {'.'.join(path)}" if path else ""

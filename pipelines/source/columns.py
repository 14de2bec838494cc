"""Columns as people write them in YAML or JSON → Arrow schemas and schemas of the format.

- {name: id, type: bigint, nullable: false}
- {name: price, type: "decimal(10, 2)"}
- {name: tags, type: list, element: varchar}
- {name: seen, type: map, key: varchar, value: {type: timestamptz, nullable: false}}
- {name: place, type: struct, fields: [{name: lat, type: double}, {name: lon, type: double}]}
"""

from __future__ import annotations

import difflib
import marshal
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa
from google.protobuf.json_format import ParseDict, ParseError

from trinitylake_core.definitions import Column, DataType, Schema, check_schema, schema_from_arrow
from trinitylake_core.definitions.arrow_types import CHAR, UNSIZED, VARCHAR, arrow_leaf
from trinitylake_core.definitions.schema import COLUMNS_MAX, ID_METADATA, NESTING_MAX, PROPERTY_METADATA, TYPE_METADATA
from trinitylake_core.errors import InvalidDefinition, InvalidInput

_TYPES: Final = {
    DataType.Name(kind).lower(): arrow_leaf(Column(type=kind), "a column") for kind in (*UNSIZED, CHAR, VARCHAR)
}
"""The types of the format that take no size, and the hint that goes with those that Arrow does not have."""
_ALIASES: Final = {
    "bool": "boolean",
    "smallint": "int2",
    "int": "int4",
    "integer": "int4",
    "bigint": "int8",
    "long": "int8",
    "float": "float4",
    "real": "float4",
    "double": "float8",
    "string": "varchar",
    "text": "varchar",
    "bytes": "binary",
    "time": "time6",
    "timetz": "timetz6",
    "timestamp": "timestamp6",
    "timestamptz": "timestamptz6",
    "numeric": "decimal",
    "array": "list",
}
_SIZED: Final = {"char": 1, "varchar": 1, "fixed": 1, "decimal": 2}
"""The types that take sizes, and how many at the most."""
_PARTS: Final = {"list": ("element",), "map": ("key", "value"), "struct": ("fields",)}
_COLUMN: Final = ("name", "type", "nullable", "id", "properties")
_NO_REFERENCES: Final = 2
"""The version of ``marshal`` that writes equal values alike, also where other objects refer to their parts."""
_MOST_BYTES: Final = 8_192
_TYPE: Final = re.compile(r"\s*([A-Za-z]+[0-9]?)\s*(?:\(\s*([0-9]+)\s*(?:,\s*([0-9]+)\s*)?\))?\s*")
_NESTED: Final = re.compile(r"\s*(struct|map|list|array)\s*<", re.IGNORECASE)


def schema_of(value: Any) -> pa.Schema | Schema:
    """Return the schema that a list of columns means, or that ``show --json`` printed (a mapping with ``columns``).

    Raises:
        InvalidInput: it is neither, or a column is not one; the message names the column.
    """
    if isinstance(value, Mapping) and "columns" in value:
        return _parse_printed_schema(value)
    if not isinstance(value, list):
        raise InvalidInput("schema must be a list of columns such as {name: id, type: bigint, nullable: false}")
    if len(value) > COLUMNS_MAX:
        raise InvalidInput(f"schema has {len(value):,} columns, and {COLUMNS_MAX:,} is the most")
    try:
        columns = []
        for number, each in enumerate(value, 1):
            columns.append(_read_column(each, f"column {number}"))
        return pa.schema(columns)
    except RecursionError:
        raise InvalidInput(f"schema is nested too deeply, more than {NESTING_MAX} levels") from None


def _parse_printed_schema(value: Mapping[str, Any]) -> Schema:
    try:
        schema = ParseDict(dict(value), Schema())
    except (ParseError, RecursionError) as error:
        raise InvalidInput(f"schema: {error}") from None
    check_schema(schema)
    return schema


def new_schema_of(value: Any) -> pa.Schema | Schema:
    """Return the schema that a list of columns means for a new object, whose columns are numbered from 1.

    One that was seen before costs a look into a table. Raises as :func:`schema_of`, and ``InvalidDefinition``.
    """
    written = as_bytes(value)
    if written is None:
        return schema_of(value)
    return _new_schema(written)


def as_bytes(value: Any) -> bytes | None:
    """Return a value of JSON as bytes: others for other values, or for values of other types; ``None`` if it is long.

    What is made of one that :func:`marshal.loads` gives back can be kept by them.
    """
    try:
        written = marshal.dumps(value, _NO_REFERENCES)
    except ValueError:  # nested deeply, or not of JSON
        return None
    return written if len(written) <= _MOST_BYTES else None


@lru_cache(maxsize=1024)
def _new_schema(written: bytes) -> Schema:
    schema = schema_of(marshal.loads(written))  # noqa: S302 - written by this process
    return schema if isinstance(schema, Schema) else schema_from_arrow(schema)


def _type_name(text: str) -> str:
    """Return the name that the format has for a type."""
    word = text.strip().lower()
    return _ALIASES.get(word, word)


def describe_unknown(what: str, given: str, known: Sequence[str]) -> str:
    """Return the sentence for an unknown word, with the nearest known one."""
    close = difflib.get_close_matches(given.lower(), known, n=1)
    if close:
        hint = f"did you mean {close[0]!r}?"
    else:
        hint = f"known are: {', '.join(known)}"
    return f"unknown {what} {given!r}; {hint}"


def _read_column(value: Any, where: str) -> pa.Field:
    if not isinstance(value, Mapping):
        raise InvalidInput(f"{where} must be a mapping with name and type, not {value!r}")
    name = value.get("name")
    if not isinstance(name, str) or not name:
        raise InvalidInput(f"{where} needs a name, which must be text (in quotes if YAML takes it for something else)")
    if not _is_unicode(name):
        raise InvalidInput(f"{where}: its name {name!r} holds a lone surrogate, which UTF-8 cannot encode")
    return _read_field(name, value, f"{where} ({name})")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _read_part(name: str, value: Any, where: str) -> pa.Field:
    """Return the element of a list, or the key or value of a map: a type by its name, or a column without name."""
    field: dict[str, Any] = {}
    if name == "key":
        field["nullable"] = False  # Arrow and the format know no map with a key that is null
    if isinstance(value, Mapping):
        field.update(value)
    else:
        field["type"] = value
    return _read_field(name, field, f"{where} {name}")


def _read_field(name: str, column: Mapping[str, Any], where: str) -> pa.Field:
    if "type" not in column:
        raise InvalidInput(f"{where} has no type")
    kind = column["type"]
    if not isinstance(kind, str):
        raise InvalidInput(f"{where}: type must be text, not {kind!r}")
    kind = _type_name(kind)
    known = (*_COLUMN, *_PARTS.get(kind, ()))
    for key in column:
        if key not in known:
            raise InvalidInput(f"{where}: {describe_unknown('field', str(key), known)}")
    nullable = column.get("nullable", True)
    if not isinstance(nullable, bool):
        raise InvalidInput(f"{where}: nullable must be true or false, not {nullable!r}")
    hint = None
    if kind in _PARTS:
        arrow = _read_nested_type(kind, column, where)
    else:
        arrow, hint = _read_leaf_type(kind, where)
    return pa.field(name, arrow, nullable, _read_metadata(column, hint, where))


def _read_metadata(column: Mapping[str, Any], hint: str | None, where: str) -> dict[bytes, bytes]:
    """Return the metadata of an Arrow field: the type of the format that Arrow does not have, ID and properties."""
    metadata: dict[bytes, bytes] = {}
    if hint is not None:
        metadata[TYPE_METADATA] = hint.encode()
    number = column.get("id")
    if number is not None:
        if isinstance(number, bool) or not isinstance(number, int):
            raise InvalidInput(f"{where}: id must be a whole number, not {number!r}")
        metadata[ID_METADATA] = str(number).encode()
    properties = column.get("properties", {})
    is_mapping = isinstance(properties, Mapping)
    if not is_mapping or not all(isinstance(each, str) for each in properties.values()):
        raise InvalidInput(f"{where}: properties must be a mapping of text by text")
    for key, each in properties.items():
        if not _is_unicode(f"{key}{each}"):
            raise InvalidInput(f"{where}: a property holds a lone surrogate, which UTF-8 cannot encode")
        metadata[PROPERTY_METADATA + str(key).encode()] = each.encode()
    return metadata


def _read_nested_type(kind: str, column: Mapping[str, Any], where: str) -> pa.DataType:
    for part in _PARTS[kind]:
        if part not in column:
            raise InvalidInput(f"{where}: type {kind} needs {' and '.join(_PARTS[kind])}")
    if kind == "list":
        element = _read_part("element", column["element"], where)
        return pa.list_(element)
    if kind == "map":
        key = _read_part("key", column["key"], where)
        value = _read_part("value", column["value"], where)
        return pa.map_(key, value)
    inside = column["fields"]
    if not isinstance(inside, list) or not inside:
        raise InvalidInput(f"{where}: fields must be a list of columns")
    fields = []
    for number, each in enumerate(inside, 1):
        fields.append(_read_column(each, f"{where} field {number}"))
    return pa.struct(fields)


def _read_leaf_type(text: str, where: str) -> tuple[pa.DataType, str | None]:
    match = _TYPE.fullmatch(text)
    if match is None:
        hint = ""
        if _NESTED.match(text):
            hint = "; nested types are written as fields: type: list, element: bigint"
        raise InvalidInput(f"{where}: {text[:100]!r} is not a type{hint}")
    word = match[1]
    kind = _ALIASES.get(word, word)
    if kind not in _TYPES and kind not in _SIZED:
        known = sorted({*_TYPES, *_SIZED, *_PARTS, *_ALIASES})
        raise InvalidInput(f"{where}: {describe_unknown('type', word, known)}")
    sizes = []
    for each in match.groups()[1:]:
        if each is not None:
            sizes.append(int(each))
    most = _SIZED.get(kind, 0)
    if len(sizes) > most:
        raise InvalidInput(f"{where}: type {kind} takes {most or 'no'} sizes, not {len(sizes)}")
    try:
        return _make_type(kind, sizes)
    except (ValueError, InvalidDefinition) as error:
        raise InvalidInput(f"{where}: {error}") from None


def _make_type(kind: str, sizes: Sequence[int]) -> tuple[pa.DataType, str | None]:
    """Return a type with its sizes, and the hint that goes with it. Raises ``ValueError``."""
    if kind == "decimal":
        if not sizes:
            raise ValueError("type decimal needs a precision: decimal(10, 2)")
        if len(sizes) == 2 and sizes[1] > sizes[0]:
            raise ValueError(f"decimal({sizes[0]}, {sizes[1]}) has more digits behind the point than digits")
        return pa.decimal128(*sizes), None
    if kind == "fixed":
        if not sizes:
            raise ValueError("type fixed needs a length: fixed(16)")
        return pa.binary(sizes[0]), None
    arrow, hint = _TYPES[kind]
    if sizes:
        hint = f"{kind.upper()}({sizes[0]})"
    return arrow, hint

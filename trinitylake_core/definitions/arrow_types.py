"""The types of single columns: Arrow's and the format's; ``schema`` puts the nested ones together."""

from __future__ import annotations

import re
from typing import Final

import pyarrow as pa

from trinitylake_core.definitions.checks import checked_int
from trinitylake_core.definitions.trinitylake_pb2 import Column, DataType
from trinitylake_core.errors import InvalidDefinition

LENGTH_MAX: Final = 2**31 - 1
FIXED_LENGTH_MAX: Final = 2**28 - 1
"""What Arrow takes in a file: it counts the bits in 32 bits."""
DECIMAL_PRECISION_MAX: Final = 38
# Looked up once: an attribute of a protobuf enum costs as much as the rest of what is done for a column.
STRUCT = DataType.STRUCT
MAP = DataType.MAP
LIST = DataType.LIST
CHAR = DataType.CHAR
VARCHAR = DataType.VARCHAR
DECIMAL = DataType.DECIMAL
FIXED = DataType.FIXED
TYPE_PROPERTIES: Final = {
    DataType.DECIMAL: ("precision", "scale"),
    DataType.CHAR: ("length",),
    DataType.VARCHAR: ("length",),
    DataType.FIXED: ("length",),
}
"""The properties of a column that belong to its type."""

_BY_DATA_TYPE: Final = {
    DataType.BOOLEAN: pa.bool_(),
    DataType.INT2: pa.int16(),
    DataType.INT4: pa.int32(),
    DataType.INT8: pa.int64(),
    DataType.FLOAT4: pa.float32(),
    DataType.FLOAT8: pa.float64(),
    DataType.VARCHAR: pa.string(),
    DataType.DATE: pa.date32(),
    DataType.TIME3: pa.time32("ms"),
    DataType.TIME6: pa.time64("us"),
    DataType.TIME9: pa.time64("ns"),
    DataType.TIMESTAMP3: pa.timestamp("ms"),
    DataType.TIMESTAMP6: pa.timestamp("us"),
    DataType.TIMESTAMP9: pa.timestamp("ns"),
    DataType.TIMESTAMPTZ3: pa.timestamp("ms", tz="UTC"),
    DataType.TIMESTAMPTZ6: pa.timestamp("us", tz="UTC"),
    DataType.TIMESTAMPTZ9: pa.timestamp("ns", tz="UTC"),
    DataType.BINARY: pa.binary(),
}
_BY_ARROW_TYPE: Final = {arrow: data_type for data_type, arrow in _BY_DATA_TYPE.items()} | {
    pa.large_string(): DataType.VARCHAR,
    pa.string_view(): DataType.VARCHAR,
    pa.large_binary(): DataType.BINARY,
    pa.binary_view(): DataType.BINARY,
}
# Types that Arrow has no type of its own for: what it stores them as, and the name goes into the metadata. A VARCHAR is
# Arrow's string, but for its length.
_HINTED: Final = {
    DataType.CHAR: DataType.VARCHAR,
    DataType.VARCHAR: DataType.VARCHAR,
    DataType.TIMETZ3: DataType.TIME3,
    DataType.TIMETZ6: DataType.TIME6,
    DataType.TIMETZ9: DataType.TIME9,
}
UNSIZED: Final = frozenset({*_BY_DATA_TYPE, *_HINTED} - {CHAR, VARCHAR})
"""The types that take neither parts nor properties: nothing else of such a column can be wrong."""
_HINTED_BY_NAME: Final = {DataType.Name(data_type): data_type for data_type in _HINTED}
_HINT: Final = re.compile(r"(VARCHAR|CHAR)(?:\(([1-9][0-9]{0,9})\))?|(TIMETZ[369])")
_UTC: Final = frozenset({"utc", "etc/utc", "z", "+00:00", "-00:00", "gmt", "etc/gmt"})

_INSTEAD: Final = (
    (pa.types.is_null, "give it the type that its values will have"),
    (pa.types.is_int8, "use int16"),
    (pa.types.is_uint8, "use int16"),
    (pa.types.is_uint16, "use int32"),
    (pa.types.is_uint32, "use int64"),
    (pa.types.is_uint64, "use decimal128(20, 0)"),
    (pa.types.is_float16, "use float32"),
    (pa.types.is_decimal, "use decimal128(precision, scale) with precision 1 to 38 and scale 0 to precision"),
    (pa.types.is_date64, "use date32"),
    (pa.types.is_time, "use time32('ms'), time64('us') or time64('ns')"),
    (pa.types.is_timestamp, "use unit 'ms', 'us' or 'ns', without a time zone or in UTC"),
    (pa.types.is_duration, "use int64, and put the unit into the name of the column"),
    (pa.types.is_interval, "use int32 or int64 columns, and put the unit into their names"),
    (pa.types.is_fixed_size_binary, "use fixed_size_binary of at least 1 byte"),
    (pa.types.is_fixed_size_list, "use list_"),
    (pa.types.is_union, "use a struct with one nullable field for each alternative"),
)


def arrow_leaf(column: Column, where: str) -> tuple[pa.DataType, str | None]:
    """Return the Arrow type of a column that is not nested, and the hint that keeps what Arrow cannot hold.

    Raises ``InvalidDefinition``: the type is unknown, or its precision, scale or length is missing or wrong.
    """
    kind = column.type
    if kind == DECIMAL:  # a scale that is left out is 0
        if "precision" not in column.properties:
            raise InvalidDefinition(f"column {where}: DECIMAL needs the property 'precision'")
        precision = _number(
            column,
            "precision",
            where,
            low=1,
            high=DECIMAL_PRECISION_MAX,
        )
        scale = 0
        if "scale" in column.properties:
            scale = _number(column, "scale", where, low=0, high=precision)
        return pa.decimal128(precision, scale), None
    if kind == FIXED:
        length = column_length(column, where)
        if length is None:
            raise InvalidDefinition(f"column {where}: FIXED needs the property 'length'")
        return pa.binary(length), None
    stored = _BY_DATA_TYPE.get(_HINTED.get(kind, kind))
    if stored is None:
        raise InvalidDefinition(f"column {where}: data type {kind} is not known to this release; use a newer one")
    if kind not in _HINTED:
        return stored, None
    name = DataType.Name(kind)
    if kind not in (CHAR, VARCHAR):
        return stored, name
    length = column_length(column, where)
    if length:
        return stored, f"{name}({length})"
    return stored, None if kind == VARCHAR else name  # Arrow's string is a VARCHAR


def column_leaf(arrow: pa.DataType, hint: str | None, where: str) -> tuple[DataType, dict[str, str]]:
    """Return the type of a column that is not nested, and the properties that belong to the type.

    Raises ``InvalidDefinition``: the format has no such type (the message names what to use instead), or the hint
    contradicts the Arrow type.
    """
    kind, properties = _type_without_hint(arrow, where)
    if hint is None:
        return kind, properties
    match = _HINT.fullmatch(hint)
    hinted = None
    if match is not None:
        with_length = match[1]
        without_length = match[3]
        hinted = _HINTED_BY_NAME[with_length or without_length]
    if match is None or hinted is None or _HINTED[hinted] != kind:
        raise InvalidDefinition(
            f"column {where}: its metadata 'trinitylake.type' is {hint!r}, which does not fit Arrow type {arrow}; "
            "remove the metadata or correct the type"
        )
    properties = {}
    if match[2]:
        properties["length"] = match[2]
    return hinted, properties


def column_length(column: Column, where: str) -> int | None:
    """Return the length of a CHAR, VARCHAR or FIXED column, ``None`` where it is left out.

    Raises ``InvalidDefinition``: it is not a number from 1 to 2^31 - 1 (FIXED: 2^28 - 1).
    """
    if "length" not in column.properties:
        return None
    if column.type == FIXED:
        longest = FIXED_LENGTH_MAX
    else:
        longest = LENGTH_MAX
    return _number(column, "length", where, low=1, high=longest)


def _number(column: Column, name: str, where: str, *, low: int, high: int) -> int:
    what = f"column {where}: {name}"
    text = column.properties[name]
    is_number = text.isascii() and text.isdigit()
    if not is_number or len(text) > len(str(high)):
        raise InvalidDefinition(f"{what} must be a whole number between {low} and {high}, not {text!r}")
    return checked_int(what, int(text), low=low, high=high)


def _type_without_hint(arrow: pa.DataType, where: str) -> tuple[DataType, dict[str, str]]:
    if pa.types.is_decimal128(arrow) and 0 <= arrow.scale <= arrow.precision:
        return DECIMAL, {"precision": str(arrow.precision), "scale": str(arrow.scale)}
    is_extension = isinstance(arrow, pa.BaseExtensionType)
    is_fixed = pa.types.is_fixed_size_binary(arrow) and not is_extension
    if is_fixed and arrow.byte_width:
        return FIXED, {"length": str(arrow.byte_width)}
    has_zone = pa.types.is_timestamp(arrow) and arrow.tz is not None
    if has_zone and arrow.tz.lower() in _UTC:
        arrow = pa.timestamp(arrow.unit, tz="UTC")
    kind = _BY_ARROW_TYPE.get(arrow)
    if kind is not None:
        return kind, {}
    raise InvalidDefinition(f"column {where}: Arrow type {arrow} is not supported; {_advise(arrow)}")


def _advise(arrow: pa.DataType) -> str:
    """Return what to use instead of an Arrow type that the format does not have."""
    if isinstance(arrow, pa.BaseExtensionType):
        return f"use its storage type {arrow.storage_type}"
    if pa.types.is_dictionary(arrow) or pa.types.is_run_end_encoded(arrow):
        return f"use its value type {arrow.value_type}"
    for fits, advice in _INSTEAD:
        if fits(arrow):
            return advice
    return "use a type of the table in the documentation"

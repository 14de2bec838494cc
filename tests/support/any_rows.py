"""Random schemas and rows as writers have them: nested three deep, with nulls, NaN, -0.0, empties, long texts."""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

_LEAVES: Final = (
    pa.bool_(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.decimal128(9, 2), pa.decimal128(38, 9),
    pa.date32(), pa.time64("us"), pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.string(), pa.binary(),
)  # fmt: skip
_FLOATS: Final = (math.nan, 0.0, -0.0, math.inf, -math.inf, 1.5, -2.25)
_DEPTH: Final = 3


def any_schema(chance: random.Random, *, by_duckdb: bool = False, on_spark: bool = False) -> pa.Schema:
    """Return a schema of a few columns.

    DuckDB inserts no map below something that is NULL; Spark neither writes nor merges times of day.
    """
    leaves = tuple(each for each in _LEAVES if not (on_spark and pa.types.is_time(each)))
    names = chance.sample(["a", "b", "c d", "é", "e", "f", "Group", "h"], chance.randint(1, 5))
    if by_duckdb:
        names = [each.replace(" ", "_") for each in names]
    return pa.schema(
        [pa.field("id", pa.int64()), *(pa.field(each, _any_type(chance, _DEPTH, by_duckdb, leaves)) for each in names)]
    )


def _any_type(chance: random.Random, depth: int, by_duckdb: bool, leaves: Sequence[pa.DataType]) -> pa.DataType:
    kind = chance.randrange(6) if depth else 0
    if by_duckdb and kind == 4 and depth < _DEPTH:
        kind = 3
    if kind <= 2:
        return chance.choice(leaves)
    if kind == 3:
        return pa.list_(pa.field("element", _any_type(chance, depth - 1, by_duckdb, leaves)))
    if kind == 4:
        key = chance.choice([pa.string(), pa.int32(), pa.int64()])
        return pa.map_(key, _any_type(chance, depth - 1, by_duckdb, leaves))
    names = chance.sample(["x", "y", "z"], chance.randint(1, 3))
    return pa.struct([pa.field(each, _any_type(chance, depth - 1, by_duckdb, leaves)) for each in names])


def any_rows(chance: random.Random, schema: pa.Schema, rows: int, first: int = 0) -> pa.Table:
    """Return rows of a schema, with numbers from ``first`` on as their IDs."""
    found = []
    for number in range(rows):
        row = {each.name: any_value(chance, each.type) for each in schema}
        found.append(row | {"id": first + number})
    return pa.Table.from_pylist(found, schema)


def any_value(chance: random.Random, kind: pa.DataType) -> Any:
    """Return a value of a type, one in four null."""
    if chance.random() < 0.25:
        return None
    if pa.types.is_map(kind):
        keys = {_leaf(chance, kind.key_type) for _ in range(chance.randrange(4))}
        return [(key, any_value(chance, kind.item_type)) for key in sorted(keys)]
    if pa.types.is_list(kind):
        return [any_value(chance, kind.value_type) for _ in range(chance.randrange(4))]
    if pa.types.is_struct(kind):
        return {each.name: any_value(chance, each.type) for each in kind}
    return _leaf(chance, kind)


def _leaf(chance: random.Random, kind: pa.DataType) -> Any:
    number = chance.randrange(-1000, 1000)
    if pa.types.is_boolean(kind):
        return number > 0
    if pa.types.is_integer(kind):
        return chance.choice([number, 0, (1 << (kind.bit_width - 1)) - 1, -(1 << (kind.bit_width - 1))])
    if pa.types.is_floating(kind):
        return chance.choice([*_FLOATS, number / 4])
    if pa.types.is_decimal(kind):
        return Decimal(number) / 4
    if pa.types.is_date(kind):
        return date(2000, 1, 1) + timedelta(days=number)
    if pa.types.is_time(kind):
        return time(number % 24, 1, 2, abs(number))
    if pa.types.is_timestamp(kind):
        return datetime(2000, 1, 1, 1, 2, 3, abs(number), tzinfo=UTC if kind.tz else None) + timedelta(days=number)
    text = chance.choice(["", "a", "é\u2028\U0001f600", f"text {number}", "z" * 5000])
    return text if pa.types.is_string(kind) else text.encode()


def as_exact(value: Any) -> Any:
    """Return a value that tells NaN, signed zeros, NULL and empties apart, and equals itself."""
    if isinstance(value, float):
        return "float", "nan" if math.isnan(value) else struct.pack(">d", value)
    if isinstance(value, dict):
        return "fields", tuple(sorted((repr(key), as_exact(each)) for key, each in value.items()))
    if isinstance(value, list | tuple):
        return "list", tuple(as_exact(each) for each in value)
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC)
    return type(value).__name__, bytes(value) if isinstance(value, bytearray | memoryview) else value

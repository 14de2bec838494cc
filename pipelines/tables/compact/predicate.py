"""The predicate of SQL that chooses some partitions of a table: Iceberg's procedures take no list of them."""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any, Final, NamedTuple

from pipelines.tables.compact.statements import quote_name, quote_text
from trinitylake_core.iceberg.reading.metadata_json import JsonObject

MOST_PARTITIONS: Final = 200
"""A predicate of more partitions would take Spark longer to plan than it saves."""
_ARGUMENT: Final = re.compile(r"(bucket|truncate)\[([0-9]+)\]")
_SUFFIXES: Final = {"float": "F", "double": "D"}
_OF_TIME: Final = {"year": "years", "month": "months", "day": "days", "hour": "hours"}


class NoPredicate(Exception):
    """A partition that SQL cannot name."""


class _Column(NamedTuple):
    """A column: its name, ready for SQL, and its type, a text or what is nested."""

    name: str
    kind: Any


def column_names(document: JsonObject) -> dict[int, str]:
    """Return the names of the columns of a table's current schema by their IDs, ready for SQL."""
    return {number: each.name for number, each in _columns_of(document).items()}


def _columns_of(document: JsonObject) -> dict[int, _Column]:
    schemas = {each.get("schema-id", 0): each for each in document.get("schemas") or [document.get("schema", {})]}
    found: dict[int, _Column] = {}
    _add_columns(schemas[document.get("current-schema-id", 0)], "", found)
    return found


def _add_columns(struct: JsonObject, prefix: str, found: dict[int, _Column]) -> None:
    for field in struct.get("fields") or ():
        name = prefix + quote_name(field["name"])
        found[field["id"]] = _Column(name, field["type"])
        if isinstance(field["type"], dict):
            _add_columns(field["type"], f"{name}.", found)


def partitions_predicate(
    document: JsonObject, catalog: str, partitions: Iterable[tuple[int, Mapping[str, Any]]]
) -> str:
    """Return the predicate of some partitions, each a spec and the values of its fields; empty for all of a table.

    ``catalog`` is the name by which Spark knows it: its functions are those of Iceberg's transforms.

    Raises ``NoPredicate``: a column that was dropped, a transform or a value that SQL has no words for.
    """
    columns = _columns_of(document)
    specs = {each["spec-id"]: each["fields"] for each in document.get("partition-specs") or ()}
    alternatives: list[str] = []
    for spec_id, values in partitions:
        conditions = [
            _condition(each, columns, catalog, values) for each in specs[spec_id] if each["transform"] != "void"
        ]
        if not conditions:
            return ""
        alternatives.append(" AND ".join(conditions))
    return " OR ".join(f"({each})" for each in dict.fromkeys(alternatives))


def _condition(field: JsonObject, columns: Mapping[int, _Column], catalog: str, values: Mapping[str, Any]) -> str:
    column = columns.get(field["source-id"])
    if column is None:
        raise NoPredicate("a column that it is partitioned by was dropped")
    value = values[field["name"]]
    if value is None:
        return f"{column.name} IS NULL"
    return f"{_apply_transform(field['transform'], column.name, catalog)} = {_literal(value, column.kind)}"


def _apply_transform(transform: str, column: str, catalog: str) -> str:
    if transform == "identity":
        return column
    function = f"{quote_name(catalog)}.system"
    if transform in _OF_TIME:
        return f"{function}.{_OF_TIME[transform]}({column})"
    match = _ARGUMENT.fullmatch(transform)
    if match is None:
        raise NoPredicate(f"Spark has no function for the transform {transform}")
    return f"{function}.{match[1]}({match[2]}, {column})"


def _literal(value: Any, kind: Any) -> str:
    """Return a value of a partition as a literal of SQL, for a column of a type."""
    if isinstance(value, int):
        return str(value).lower()  # true and false, too
    if isinstance(value, str):
        return quote_text(value)
    if isinstance(value, Decimal):
        return f"{value:f}BD"
    if isinstance(value, bytes | bytearray):
        return f"X'{value.hex()}'"
    if isinstance(value, float) and math.isfinite(value) and kind in _SUFFIXES:
        return f"{value!r}{_SUFFIXES[kind]}"
    if isinstance(value, dt.datetime):
        return _time_literal(value, kind)
    if isinstance(value, dt.date):
        return f"DATE '{value.isoformat()}'"
    raise NoPredicate(f"SQL has no exact literal for a partition of {type(value).__name__}")


def _time_literal(value: dt.datetime, kind: Any) -> str:
    """Return a time as a literal. Spark hands out a time with a zone as one of this machine, without it."""
    if kind == "timestamptz":
        return f"TIMESTAMP '{value.astimezone(dt.UTC).isoformat(' ')}'"
    if kind == "timestamp":
        return f"TIMESTAMP_NTZ '{value.isoformat(' ')}'"
    raise NoPredicate(f"SQL has no exact literal for a partition of a time in a column of type {kind}")

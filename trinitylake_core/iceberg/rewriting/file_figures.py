"""The figures of columns that manifests hold of data files, for a proof without reading rows: rows, nulls, bounds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyiceberg.conversions import from_bytes
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    PrimitiveType,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
)

from trinitylake_core.iceberg.border import in_our_words
from trinitylake_core.iceberg.rewriting.rewritten import DataFile

_EXACT: Final = (
    BooleanType, DateType, DecimalType, IntegerType, LongType, TimestampType, TimestamptzType, TimeType,
)  # fmt: skip
"""Types of which no writer shortens a bound."""
_FLOATING: Final = (FloatType, DoubleType)


@dataclass(frozen=True, slots=True)
class ColumnFigures:
    """The figures of some files together; those that not every file has are left out.

    Attributes:
        rows: their rows.
        nulls: of columns by name, how many values are null.
        bounds: of columns by name, the least and the greatest value; columns of nothing but nulls are left out.
    """

    rows: int
    nulls: Mapping[str, int]
    bounds: Mapping[str, tuple[Any, Any]]


def column_figures(metadata: TableMetadata, files: Sequence[DataFile]) -> ColumnFigures:
    """Return the figures of files by the columns of the newest schema. Raises ``ValidationError``."""
    nulls: dict[str, int] = {}
    bounds: dict[str, tuple[Any, Any]] = {}
    with in_our_words("the figures of columns in a manifest"):
        for field in metadata.schema().fields:
            number, kind = field.field_id, field.field_type
            if not isinstance(kind, PrimitiveType):
                continue
            counted = [count for each in files for count in _nulls_of(each, number)]
            if len(counted) != len(files):
                continue
            nulls[field.name] = sum(counted)
            if isinstance(kind, _EXACT):
                found = _bounds(kind, number, files)
                if found is not None:
                    bounds[field.name] = found
    return ColumnFigures(sum(each.rows for each in files), nulls, bounds)


@dataclass(frozen=True, slots=True)
class ColumnClaim:
    """What a manifest says of one column of a file.

    Attributes:
        name: the column.
        nulls: how many values are null.
        nans: how many are no numbers; ``None`` for types without such values, and -1 where the manifest does not tell.
        low: the lower bound, ``None`` without one. Dates and times are numbers.
        high: the upper bound.
    """

    name: str
    nulls: int
    nans: int | None
    low: Any
    high: Any


def claims_of(metadata: TableMetadata, file: DataFile) -> dict[int, ColumnClaim]:
    """Return what a manifest says of those columns of a file whose values can be compared, by field ID.

    Columns inside others are left out, and those of which the table's properties want no figures.
    """
    entry = file.entry
    claims: dict[int, ColumnClaim] = {}
    with in_our_words("the figures of columns in a manifest"):
        for field in metadata.schema().fields:
            number, kind = field.field_id, field.field_type
            nulls = (entry.null_value_counts or {}).get(number)
            if nulls is None or not isinstance(kind, (*_EXACT, *_FLOATING, StringType)):
                continue
            nans = (entry.nan_value_counts or {}).get(number, -1) if isinstance(kind, _FLOATING) else None
            bounds = []
            for each in (entry.lower_bounds, entry.upper_bounds):
                bound = (each or {}).get(number)
                bounds.append(None if bound is None else from_bytes(kind, bound))
            claims[number] = ColumnClaim(field.name, nulls, nans, *bounds)
    return claims


def _nulls_of(file: DataFile, number: int) -> Iterator[int]:
    """Yield how many values of a column are null, if its manifest tells."""
    count = (file.entry.null_value_counts or {}).get(number)
    if count is not None:
        yield int(count)


def _bounds(kind: PrimitiveType, number: int, files: Sequence[DataFile]) -> tuple[Any, Any] | None:
    """Return the bounds of a column; ``None`` where a file with values has none."""
    lows: list[Any] = []
    highs: list[Any] = []
    for each in files:
        low = (each.entry.lower_bounds or {}).get(number)
        high = (each.entry.upper_bounds or {}).get(number)
        if low is None or high is None:
            if each.entry.null_value_counts[number] == each.rows:
                continue
            return None
        lows.append(_value(kind, low))
        highs.append(_value(kind, high))
    return (min(lows), max(highs)) if lows else None


def _value(kind: PrimitiveType, data: bytes) -> Any:
    """Return the value of a bound; a column that has become wider has bounds of its former width."""
    if isinstance(kind, LongType) and len(data) == 4:
        return from_bytes(IntegerType(), data)
    return from_bytes(kind, data)

"""Tables that engines partition by each type of Iceberg: a cleaning at age zero costs no row."""

from __future__ import annotations

from datetime import UTC, date, datetime
from datetime import time as clock
from decimal import Decimal
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pytest
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
)

from tests.support.engines import by_spark_sql, connected
from tests.support.writers import pool
from tests.support.zero_age import clean_tables, expire_all_but_the_newest
from trinitylake_core import Lakehouse
from trinitylake_core.iceberg import TrinityLakeCatalog
from trinitylake_core.rest import endpoint

_SQL: Final = {
    "boolean": ("BOOLEAN", ["true", "false"]),
    "int": ("INT", ["-1", "2147483647"]),
    "long": ("BIGINT", ["-1", "9223372036854775807"]),
    "float": ("FLOAT", ["CAST('1.5' AS FLOAT)", "CAST('-0.25' AS FLOAT)"]),
    "double": ("DOUBLE", ["CAST('1e300' AS DOUBLE)", "CAST('-0.5' AS DOUBLE)"]),
    "decimal of 4 bytes": ("DECIMAL(9, 2)", ["CAST('-77.25' AS DECIMAL(9, 2))", "CAST('1.25' AS DECIMAL(9, 2))"]),
    "decimal of 8 bytes": ("DECIMAL(18, 2)", ["CAST('-77.25' AS DECIMAL(18, 2))", "CAST('9e9' AS DECIMAL(18, 2))"]),
    "decimal of 16 bytes": ("DECIMAL(38, 10)", ["CAST('-77.25' AS DECIMAL(38, 10))", "CAST('0' AS DECIMAL(38, 10))"]),
    "date": ("DATE", ["DATE '1969-12-31'", "DATE '2026-11-26'"]),
    "timestamp": ("TIMESTAMP", ["TIMESTAMP '1969-12-31 23:59:59.5'", "TIMESTAMP '2026-11-26 01:02:03'"]),
    "text": ("VARCHAR", ["'a/b=c d%20'", "''"]),
    "binary": ("BLOB", ["CAST('ab' AS BLOB)", "CAST('' AS BLOB)"]),
}
"""A type of DuckDB, and two values. Spark's names differ in two cases, and its ``TIMESTAMP`` has a time zone."""

_SPARK_TYPES: Final = {"VARCHAR": "STRING", "BLOB": "BINARY"}
_TRANSFORMS: Final = {
    "bucket": ("BIGINT", "bucket(4, p)", ["1", "2"]),
    "truncate": ("DECIMAL(12, 2)", "truncate(10, p)", ["CAST('-77.25' AS DECIMAL(12, 2))"]),
    "month": ("TIMESTAMP", "month(p)", ["TIMESTAMP '1969-12-31 23:59:59'", "TIMESTAMP '2026-11-26 01:02:03'"]),
}


_ICEBERG: Final[dict[str, tuple[Any, list[Any]]]] = {
    "boolean": (BooleanType(), [True, False]),
    "int": (IntegerType(), [1, -1]),
    "long": (LongType(), [1, -(1 << 40)]),
    "float": (FloatType(), [1.5, -0.25]),
    "double": (DoubleType(), [1.5, -0.25]),
    "decimal of 4 bytes": (DecimalType(9, 2), [Decimal("1.25"), Decimal("-77.00")]),
    "decimal of 6 bytes": (DecimalType(12, 2), [Decimal("1.25"), Decimal("-77.00")]),
    "decimal of 16 bytes": (DecimalType(38, 0), [Decimal(10) ** 37, Decimal(-7)]),
    "date": (DateType(), [date(2024, 2, 29), date(1969, 1, 1)]),
    "time": (TimeType(), [clock(1, 2, 3), clock(23, 59)]),
    "timestamp": (TimestampType(), [datetime(2024, 2, 29, 1, 2), datetime(1969, 1, 1)]),  # noqa: DTZ001 - it has none
    "timestamptz": (TimestamptzType(), [datetime(2024, 2, 29, tzinfo=UTC), datetime(1969, 1, 1, tzinfo=UTC)]),
    "string": (StringType(), ["Zürich", "a b", "a%20b", "a/b", "a:b", "%", "x-0123456789ab", ""]),
    "binary": (BinaryType(), [b"\x00\xff", b""]),
    "fixed": (FixedType(5), [b"\x00\xff\x02ab", b"abcde"]),
}
"""A type of Iceberg, and values; of texts those whose files need percent signs in their names, or look like others'."""


@pytest.fixture
def lake(catalog: TrinityLakeCatalog) -> Lakehouse:
    """Return a lakehouse with names of the usual size."""
    return catalog.lakehouse


def _clean_at_age_zero(lake: Lakehouse) -> None:
    """Leave the newest version and nothing that it does not need; the suite's own reader judges the cleaning."""
    expire_all_but_the_newest(lake)
    done = clean_tables(lake)
    assert () == done.doubts
    assert done.orphan_files > 0


def _count_rows(catalog: TrinityLakeCatalog) -> dict[str, int]:
    """Return how many rows PyIceberg reads of each table, each value included."""
    found = {}
    for namespace, name in catalog.list_tables("p"):
        table = catalog.load_table((namespace, name))
        found[name] = table.scan(AlwaysTrue()).to_arrow().num_rows
    return found


def _judge(lake: Lakehouse, expected: dict[str, int]) -> None:
    catalog = TrinityLakeCatalog("l", uri=lake.root)
    assert expected == _count_rows(catalog)
    _clean_at_age_zero(lake)
    assert expected == _count_rows(TrinityLakeCatalog("l", uri=lake.root))
    assert [] == list(lake.refresh().check())


def _statements(name: str, kind: str, partition: str, values: list[str]) -> list[str]:
    """Return what makes a table and fills it: each value in a commit of its own, and none; one row is replaced."""
    table = f"l.p.{name}"
    rows = [f"INSERT INTO {table} VALUES ({number}, {value})" for number, value in enumerate([*values, "NULL"])]
    return [partition.format(table=table, kind=kind), *rows, f"DELETE FROM {table} WHERE id = 0"]


def _names() -> dict[str, str]:
    return {name: name.replace(" ", "_") for name in (*_SQL, *_TRANSFORMS)}


def test_duckdb_partitions_by_every_type(lake: Lakehouse) -> None:
    expected = {}
    with endpoint(lake) as at, connected(at) as connection:
        connection.execute("CREATE SCHEMA l.p")
        create = "CREATE TABLE {table} (id INT, p {kind}) PARTITIONED BY (p)"
        for name, (kind, values) in _SQL.items():
            for statement in _statements(_names()[name], kind, create, values):
                connection.execute(statement)
            expected[_names()[name]] = len(values)
        in_duckdb = {
            name: connection.execute(f"SELECT count(p) + count(*) FROM l.p.{name}").fetchall() for name in expected
        }
        _judge(lake, expected)
    with endpoint(lake) as at, connected(at) as connection:
        again = {
            name: connection.execute(f"SELECT count(p) + count(*) FROM l.p.{name}").fetchall() for name in expected
        }
    assert in_duckdb == again


def test_pyiceberg_partitions_by_every_type(lake: Lakehouse, catalog: TrinityLakeCatalog) -> None:
    """Each value in a commit of its own, and none; one append is abandoned."""
    catalog.create_namespace("p")
    expected = {}
    for name, (kind, values) in _ICEBERG.items():
        schema = Schema(NestedField(1, "id", LongType(), required=False), NestedField(2, "p", kind, required=False))
        spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "p"))
        table = catalog.create_table(f"p.{name.replace(' ', '_')}", schema, partition_spec=spec)
        for number, value in enumerate([*values, None]):
            table.append(pa.table({"id": [number], "p": [value]}, schema.as_arrow()))
        table.transaction().append(pa.table({"id": [9], "p": values[:1]}, schema.as_arrow()))
        expected[name.replace(" ", "_")] = len(values) + 1
    _judge(lake, expected)


@pytest.mark.slow
def test_spark_partitions_by_every_type(lake: Lakehouse) -> None:
    statements = ["CREATE NAMESPACE l.p"]
    expected = {}
    create = "CREATE TABLE {table} (id INT, p {kind}) USING iceberg PARTITIONED BY (p)"
    for name, (kind, values) in _SQL.items():
        spark_kind = _SPARK_TYPES.get(kind, kind)
        spark_values = [value.replace("BLOB", "BINARY") for value in values]
        statements += _statements(_names()[name], spark_kind, create, spark_values)
        expected[_names()[name]] = len(values)
    for name, (kind, transform, values) in _TRANSFORMS.items():
        by = create.replace("(p)", f"({transform})")
        statements += _statements(_names()[name], kind, by, values)
        expected[_names()[name]] = len(values)
    with endpoint(lake) as at, pool(1) as process:
        process.submit(partial(by_spark_sql, at, at.warehouse, *statements)).result()
    _judge(lake, expected)

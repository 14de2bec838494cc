"""Engines that reach a lakehouse through its REST endpoint, and writers that append with them for a race."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import duckdb
import pyspark
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import CommitFailedException

from tests.support.icebergs import rows
from trinitylake_core.rest import Served

_ICEBERG: Final = "1.11.0"
_EXTENSIONS: Final = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
_ROOM: Final = 1_000_000
_SOON_SECONDS: Final = 0.2


@contextmanager
def connected(served: Served, warehouse: str = "lake", more: str = "") -> Iterator[duckdb.DuckDBPyConnection]:
    """Attach a warehouse as ``l`` in a DuckDB of its own; the extensions are files of their packages."""
    with duckdb.connect() as connection:
        for name in ("avro", "httpfs", "iceberg"):
            package = Path(next(iter(import_module(f"duckdb_extension_{name}").__path__)))
            connection.execute(f"LOAD '{next(package.rglob('*.duckdb_extension'))}'")
        connection.execute(f"CREATE SECRET here (TYPE iceberg, TOKEN '{served.token}')")
        attached = f"ATTACH '{warehouse}' AS l (TYPE iceberg, ENDPOINT '{served.uri}', SECRET here{more})"
        connection.execute(attached)
        yield connection


def by_spark_sql(served: Served, warehouse: str, *statements: str) -> list[list[Any]]:
    """Return the rows of statements of Spark SQL, in a process that has no other Spark; ``l`` is the warehouse.

    Iceberg's runtime comes from Maven Central, for the Spark that is installed. Raises ``RuntimeError``.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    version = ".".join(pyspark.__version__.split(".")[:2])
    runtime = f"iceberg-spark-runtime-{version}_{'2.12' if version == '3.5' else '2.13'}:{_ICEBERG}"
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
    )
    builder = builder.config("spark.sql.extensions", _EXTENSIONS).config("spark.driver.host", "127.0.0.1")
    builder = builder.config("spark.log.level", "OFF").config("spark.sql.shuffle.partitions", "1")
    spark = builder.config("spark.jars.packages", f"org.apache.iceberg:{runtime}").getOrCreate().newSession()
    catalog = "spark.sql.catalog.l"
    spark.conf.set(catalog, "org.apache.iceberg.spark.SparkCatalog")
    for name, value in {**served.properties(), "type": "rest", "warehouse": warehouse}.items():
        spark.conf.set(f"{catalog}.{name}", value)
    try:
        return [[tuple(row) for row in spark.sql(statement).collect()] for statement in statements]
    except (PySparkException, Py4JError) as error:  # they cannot go to another process
        raise RuntimeError(str(error)) from None


@dataclass(slots=True)
class Inserted:
    """The rows of one writer: acknowledged, refused, and those of which the writer does not know."""

    acknowledged: list[int] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)
    unknown: list[int] = field(default_factory=list)
    told: set[str] = field(default_factory=set)


def by_pyiceberg(served: Served, table: str, writer: int, stop: Path) -> Inserted:
    """Append rows with PyIceberg, one at a time, until the file ``stop`` appears."""

    def append(number: int) -> None:
        catalog = load_catalog("lake", type="rest", **served.properties())
        catalog.load_table(table).append(rows(number))

    return _insert(append, lambda error: isinstance(error, CommitFailedException), writer, stop)


def by_duckdb(served: Served, table: str, writer: int, stop: Path) -> Inserted:
    """Insert rows with DuckDB, one at a time, each with a new connection, until the file ``stop`` appears."""

    def insert(number: int) -> None:
        with connected(served) as connection:
            connection.execute(f"INSERT INTO l.{table} VALUES ({number}, 'n{number}')")

    return _insert(insert, lambda error: "409" in str(error) or "Conflict" in str(error), writer, stop)


def by_spark(served: Served, table: str, writer: int, stop: Path) -> Inserted:
    """Insert rows with Spark SQL, one at a time, each in a new session, until the file ``stop`` appears."""

    def insert(number: int) -> None:
        by_spark_sql(served, served.warehouse, f"INSERT INTO l.{table} VALUES ({number}, 'n{number}')")

    return _insert(insert, lambda error: "CommitFailedException" in str(error), writer, stop)


def _insert(insert: Callable[[int], None], refused: Callable[[Exception], bool], writer: int, stop: Path) -> Inserted:
    found, number = Inserted(), writer * _ROOM
    while not stop.exists():
        number += 1
        try:
            insert(number)
        except Exception as error:  # noqa: BLE001 - an endpoint that is killed shows itself in many ways
            (found.refused if refused(error) else found.unknown).append(number)
            found.told.add(f"{type(error).__name__}: {str(error)[:80]}")
            time.sleep(_SOON_SECONDS)
        else:
            found.acknowledged.append(number)
    return found

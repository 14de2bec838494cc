"""Engines that reach a lakehouse through its REST endpoint."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import duckdb
import pyspark

from trinitylake_core.rest import Served

_ICEBERG: Final = "1.12.0"
_EXTENSIONS: Final = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"


@contextmanager
def connected(
    served: Served, warehouse: str = "lake", more: str = "", secret: str = ""
) -> Iterator[duckdb.DuckDBPyConnection]:
    """Attach a warehouse as ``l`` in a DuckDB of its own; the extensions are files of their packages.

    ``secret`` takes the place of the token.
    """
    with duckdb.connect() as connection:
        for name in ("avro", "httpfs", "iceberg"):
            package = Path(next(iter(import_module(f"duckdb_extension_{name}").__path__)))
            connection.execute(f"LOAD '{next(package.rglob('*.duckdb_extension'))}'")
        secret = secret or f"TOKEN '{served.token}'"
        connection.execute(f"CREATE SECRET here (TYPE iceberg, {secret})")
        attached = f"ATTACH '{warehouse}' AS l (TYPE iceberg, ENDPOINT '{served.uri}', SECRET here{more})"
        connection.execute(attached)
        yield connection


@contextmanager
def sparked(served: Served, warehouse: str = "lake", **more: str) -> Iterator[Callable[[str], list[tuple[Any, ...]]]]:
    """Attach a warehouse as ``l`` in Spark, in a process that has no other; yield what runs a statement.

    Iceberg's runtime comes from Maven Central, for the Spark that is installed. Statements raise ``RuntimeError``.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    version = ".".join(pyspark.__version__.split(".")[:2])
    scala = "2.12" if version == "3.5" else "2.13"
    jars = [f"iceberg-spark-runtime-{version}_{scala}:{_ICEBERG}"]
    jars += [f"iceberg-aws-bundle:{_ICEBERG}"] if more else []
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
    )
    builder = builder.config("spark.sql.extensions", _EXTENSIONS).config("spark.driver.host", "127.0.0.1")
    builder = builder.config("spark.log.level", "OFF").config("spark.sql.shuffle.partitions", "1")
    packages = ",".join(f"org.apache.iceberg:{each}" for each in jars)
    spark = builder.config("spark.jars.packages", packages).getOrCreate().newSession()
    catalog = "spark.sql.catalog.l"
    spark.conf.set(catalog, "org.apache.iceberg.spark.SparkCatalog")
    for name, value in {
        **served.properties(),
        "type": "rest",
        "warehouse": warehouse,
        "cache-enabled": "false",
        **more,
    }.items():
        spark.conf.set(f"{catalog}.{name}", value)

    def run(statement: str) -> list[tuple[Any, ...]]:
        try:
            return [tuple(row) for row in spark.sql(statement).collect()]
        except (PySparkException, Py4JError) as error:  # they cannot go to another process
            raise RuntimeError(str(error)) from None

    yield run


def by_spark_sql(served: Served, warehouse: str, *statements: str, **more: str) -> list[list[Any]]:
    """Return the rows of statements of Spark SQL, as :func:`sparked` runs them."""
    with sparked(served, warehouse, **more) as run:
        return [list(run(each)) for each in statements]

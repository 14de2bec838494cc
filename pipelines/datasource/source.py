"""The data source itself: ``spark.read.format("trinitylake").option("table", ...).load(ROOT)``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, EqualTo, Filter, In, InputPartition
from pyspark.sql.types import StructType

from pipelines.datasource.reading import PARTS, PRUNED, TABLES, Part, Request, Wanted, ddl, pinned, rows
from pipelines.session import ship_packages
from trinitylake_core import Lakehouse
from trinitylake_core.errors import InvalidInput

NAME: Final = "trinitylake"
STORAGE: Final = "storage."
_BATCH: Final = 8192
_OPTIONS: Final = ("path", "table", "version", "timestamp", "snapshot", "from", "to", "partitions")


def register(spark: SparkSession) -> None:
    """Make the format ``trinitylake`` known to a session, and let it push filters down."""
    ship_packages(spark)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(TrinityLakeSource)


class TrinityLakeSource(DataSource):
    """A lakehouse as tables (``docs/spark.md``)."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return NAME

    def schema(self) -> str:
        """Return the columns of the table that the options choose. Raises ``InvalidInput``."""
        return ddl(_table(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return its reader."""
        return Reader(dict(self.options))


@dataclass(frozen=True, slots=True)
class _Partition(InputPartition):
    request: Request
    part: Part
    wanted: Wanted


class Reader(DataSourceReader):
    """Plans a read in the driver, and reads in the tasks."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = dict(options)
        self._table = _table(options)
        self._wanted = Wanted()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Take note of filters on kind, namespace and name. Spark applies them again: what is spared is nodes."""
        for each in filters:
            if isinstance(each, EqualTo) and self._table in PRUNED:
                self._wanted = self._wanted.narrowed(each.attribute[0], [each.value]) or self._wanted
            elif isinstance(each, In) and self._table in PRUNED:
                self._wanted = self._wanted.narrowed(each.attribute[0], each.value) or self._wanted
            yield each

    def partitions(self) -> list[InputPartition]:
        """Pin the version, and cut the work into parts."""
        lake = _opened(self._options)
        parts = int(self._options.get("partitions", PARTS))
        before = _before(lake, self._table, self._options)
        request, cut = pinned(lake, self._table, self._wanted, before, parts)
        return [_Partition(request, part, self._wanted) for part in cut]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one part."""
        if not isinstance(partition, _Partition):
            raise TypeError(f"{partition!r} is not one of ours")
        schema = TABLES[partition.request.table]
        remaining = iter(rows(partition.request, partition.part, partition.wanted))
        while some := list(islice(remaining, _BATCH)):
            columns = zip(*some, strict=True)
            arrays = [pa.array(column, each.type) for column, each in zip(columns, schema, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _table(options: Mapping[str, str]) -> str:
    unknown = sorted(name for name in options if name not in _OPTIONS and not name.startswith(STORAGE))
    if unknown:
        raise InvalidInput(f"unknown option {', '.join(unknown)}; there are {', '.join(_OPTIONS)} and {STORAGE}NAME")
    table = options.get("table", "objects")
    if table not in TABLES:
        raise InvalidInput(f"there is no table {table!r}; there are {', '.join(TABLES)}")
    return table


def _opened(options: Mapping[str, str]) -> Lakehouse:
    root = options.get("path")
    if not root:
        raise InvalidInput('say which lakehouse: .load("s3://bucket/lake")')
    storage = {name.removeprefix(STORAGE): value for name, value in options.items() if name.startswith(STORAGE)}
    lake = Lakehouse.open(root, storage_options=storage)
    version = _number(options, "to" if options.get("table") == "changes" and "to" in options else "version")
    timestamp, snapshot = options.get("timestamp"), options.get("snapshot")
    if version is None and timestamp is None and snapshot is None:
        return lake
    return lake.at(version=version, timestamp=timestamp, snapshot=snapshot)


def _before(lake: Lakehouse, table: str, options: Mapping[str, str]) -> Lakehouse | None:
    """Return the version that ``changes`` are counted from: the version ``from``, or the one before."""
    if table != "changes":
        return None
    version = _number(options, "from")
    return lake.at(version=max(0, lake.version - 1) if version is None else version)


def _number(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name)
    if text is not None and not text.isdigit():
        raise InvalidInput(f"the option {name!r} must be a version number, not {text!r}")
    return None if text is None else int(text)

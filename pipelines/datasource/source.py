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

from pipelines.datasource.reading import PARTS, PRUNED, TABLES, Part, ScanRequest, Wanted, ddl, pin, rows
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
    request: ScanRequest
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
            if self._table in PRUNED:
                if isinstance(each, EqualTo):
                    self._wanted = self._wanted.narrow(each.attribute[0], [each.value])
                elif isinstance(each, In):
                    self._wanted = self._wanted.narrow(each.attribute[0], each.value)
            yield each

    def partitions(self) -> list[InputPartition]:
        """Pin the version, and cut the work into parts."""
        lake = _open(self._options)
        before = _open_before(lake, self._table, self._options)
        parts = int(self._options.get("partitions", PARTS))
        request, cut = pin(lake, self._table, self._wanted, before, parts)
        found: list[InputPartition] = []
        for part in cut:
            found.append(_Partition(request, part, self._wanted))
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one part."""
        if not isinstance(partition, _Partition):
            raise TypeError(f"{partition!r} is not one of ours")
        schema = TABLES[partition.request.table]
        remaining = iter(rows(partition.request, partition.part, partition.wanted))
        while some := list(islice(remaining, _BATCH)):
            columns = zip(*some, strict=True)
            arrays = []
            for values, column in zip(columns, schema, strict=True):
                arrays.append(pa.array(values, column.type))
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _table(options: Mapping[str, str]) -> str:
    unknown = []
    for name in sorted(options):
        if name not in _OPTIONS and not name.startswith(STORAGE):
            unknown.append(name)
    if unknown:
        raise InvalidInput(f"unknown option {', '.join(unknown)}; there are {', '.join(_OPTIONS)} and {STORAGE}NAME")
    table = options.get("table", "objects")
    if table not in TABLES:
        raise InvalidInput(f"there is no table {table!r}; there are {', '.join(TABLES)}")
    return table


def _open(options: Mapping[str, str]) -> Lakehouse:
    root = options.get("path")
    if not root:
        raise InvalidInput('say which lakehouse: .load("s3://bucket/lake")')
    storage_options = {}
    for name, value in options.items():
        if name.startswith(STORAGE):
            storage_options[name.removeprefix(STORAGE)] = value
    lake = Lakehouse.open(root, storage_options=storage_options)
    is_end_of_changes = options.get("table") == "changes" and "to" in options
    version = _number(options, "to" if is_end_of_changes else "version")
    timestamp = options.get("timestamp")
    snapshot = options.get("snapshot")
    if version is None and timestamp is None and snapshot is None:
        return lake
    return lake.at(version=version, timestamp=timestamp, snapshot=snapshot)


def _open_before(lake: Lakehouse, table: str, options: Mapping[str, str]) -> Lakehouse | None:
    """Return the version that ``changes`` are counted from: the version ``from``, or the one before."""
    if table != "changes":
        return None
    version = _number(options, "from")
    if version is None:
        version = max(0, lake.version - 1)
    return lake.at(version=version)


def _number(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    if not text.isdigit():
        raise InvalidInput(f"the option {name!r} must be a version number, not {text!r}")
    return int(text)

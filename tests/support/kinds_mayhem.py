"""Thirty tables of every kind that a compaction meets, engines that write them, and both engines that compact them.

As in :mod:`tests.support.table_mayhem` every row has a number, and every process notes what it does. The tables are
read by DuckDB, from their metadata files: by nothing of this project, and not by PyIceberg.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import IntegerType, LongType, StringType

from pipelines import clean as clean_job
from pipelines import compaction, tables_clean, tables_compact, tables_expire
from pipelines import expire as expire_job
from pipelines.job import NEVER_CANCELLED
from pipelines.session import SessionConfig, get_session
from pipelines.tables.compact import hold
from pipelines.tables.compact.decision import GroupRules
from pipelines.tables.compact.statements import SparkCatalog
from tests.support.engines import connected
from tests.support.mayhem import DAY, Log, chance_of, keep_errors
from tests.support.table_mayhem import (
    NAMESPACE,
    ByDuckDB,
    ByPyIceberg,
    ByRest,
    BySpark,
    Change,
    Plan,
    Refused,
    Writer,
    places,
)
from trinitylake_core import Lakehouse
from trinitylake_core.clock import now_millis
from trinitylake_core.errors import TrinityLakeError
from trinitylake_core.iceberg import TrinityLakeCatalog
from trinitylake_core.rest import endpoint

SCHEMA: Final = pa.schema([("id", pa.int64()), ("name", pa.string()), ("part", pa.int32())])
FILES: Final = 67
"""Small files of each table, about."""
_ROWS: Final = 3
_PARTS: Final = 3
_FIRST: Final = 10**12
_PYICEBERG: Final = {"plain1": 2, "plain2": 3, "part": 3, "specs": 2, "evolved": 2, "sorted": 2, "packed": 2}
_SPARK: Final = {"deletes": 3, "bucket": 2, "vectors": 3, "vectorpart": 2, "vectorsorted": 1, "equality": 2, "grown": 1}
_MERGE_ON_READ: Final = ", ".join(f"'write.{each}.mode' = 'merge-on-read'" for each in ("delete", "update", "merge"))
_MOST_COLUMNS: Final = 12


def kind_of(name: str) -> str:
    """Return the kind of a table."""
    return name.rpartition(".")[2].rstrip("0123456789").rstrip("_")


def names_of(kinds: dict[str, int]) -> list[str]:
    """Return the names of tables of some kinds."""
    return [f"{NAMESPACE}.{kind}_{number}" for kind, count in kinds.items() for number in range(count)]


TABLES: Final = tuple(names_of(_PYICEBERG) + names_of(_SPARK))
FORMAT_3: Final = frozenset({"vectors", "vectorpart", "vectorsorted", "grown"})
_TAGGED: Final = TABLES[::3]


def rows(numbers: list[int]) -> pa.Table:
    """Return rows with these numbers."""
    names = [f"n{number}" for number in numbers]
    return pa.table({"id": numbers, "name": names, "part": [number % _PARTS for number in numbers]}, SCHEMA)


# -- the tables ----------------------------------------------------------------------------------------


@dataclass
class Prepared:
    """The tables before anybody else writes them: their rows, by table."""

    rows: dict[str, list[int]] = field(default_factory=dict)
    deleted: dict[str, list[int]] = field(default_factory=dict)

    def numbers(self, name: str) -> list[int]:
        """Return numbers of new rows of a table."""
        begin = _FIRST + TABLES.index(name) * 100_000
        return list(range(begin, begin + FILES * _ROWS))


def fill_by_pyiceberg(lake: Lakehouse, prepared: Prepared) -> None:
    """Create the tables that PyIceberg writes: 67 files each."""
    catalog = TrinityLakeCatalog.over(lake)
    catalog.create_namespace(NAMESPACE)
    for name in names_of(_PYICEBERG):
        kind = kind_of(name)
        properties = {"format-version": "1" if kind == "plain1" else "2"}
        if kind == "packed":
            properties |= {"write.metadata.compression-codec": "gzip", "commit.manifest-merge.enabled": "true"}
        table = catalog.create_table(name, SCHEMA, properties=properties)
        if kind == "part":
            table.update_spec().add_identity("part").commit()
        if kind == "sorted":
            with table.update_sort_order() as order:
                order.desc("id", IdentityTransform())
        numbers = prepared.rows[name] = prepared.numbers(name)
        half = len(numbers) // 2 // _ROWS * _ROWS
        _append_each(table, numbers[:half], kind)
        _evolve(table, kind)
        _append_each(table, numbers[half:], kind)


def _append_each(table: Table, numbers: list[int], kind: str) -> None:
    """Append rows, a few in each file."""
    step = _ROWS * _PARTS if kind == "part" else _ROWS
    names = {each.name for each in table.schema().fields}
    with table.transaction() as transaction:
        for begin in range(0, len(numbers), step):
            some = rows(numbers[begin : begin + step])
            if "wide" in names:
                some = some.append_column("wide", pa.array([1] * some.num_rows, pa.int64()))
            transaction.append(some)


def _evolve(table: Table, kind: str) -> None:
    if kind == "specs":
        table.update_spec().add_identity("part").commit()
    if kind == "evolved":
        with table.update_schema() as change:
            change.add_column("wide", IntegerType())
            change.add_column("old", StringType())
        with table.update_schema() as change:
            change.update_column("wide", LongType())
            change.rename_column("old", "label")
        with table.update_schema() as change:
            change.delete_column("label")


@contextmanager
def in_spark(served: dict[str, str]) -> Iterator[SparkCatalog]:
    """Start a Spark of two threads with Iceberg, and yield a lakehouse in it."""
    spark = get_session(
        SessionConfig(
            master="local[2]",
            iceberg="1.12.0",
            log_level="OFF",
            conf={"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"},
        )
    )
    catalog = SparkCatalog(spark, served, NEVER_CANCELLED, None)
    yield catalog
    catalog.close()


def fill_by_spark(root: str) -> dict[str, list[int]]:
    """Create the tables that Spark writes, with deletes of every kind; tag tables. Return the rows that are deleted."""
    lake = Lakehouse.open(root)
    deleted: dict[str, list[int]] = {}
    with endpoint(lake) as at, in_spark(at.properties()) as catalog:
        for name in names_of(_SPARK):
            deleted[name] = _fill_one(lake, catalog, name)
        for name in _TAGGED:
            catalog.run(f"ALTER TABLE {catalog.name}.{name} CREATE TAG audit")
            catalog.run(f"ALTER TABLE {catalog.name}.{name} CREATE BRANCH side")
        for name in _TAGGED[-3:]:
            catalog.run(f"INSERT INTO {catalog.name}.{name}.branch_side (id, name, part) VALUES (-1, 'n-1', 0)")
    return deleted


def _fill_one(lake: Lakehouse, catalog: SparkCatalog, name: str) -> list[int]:
    kind = kind_of(name)
    table = f"{catalog.name}.{name}"
    version = 3 if kind in FORMAT_3 - {"grown"} else 2
    parts = {"bucket": "PARTITIONED BY (bucket(2, id))", "vectorpart": "PARTITIONED BY (part)"}.get(kind, "")
    catalog.run(
        f"CREATE TABLE {table} (id BIGINT, name STRING, part INT) {parts} TBLPROPERTIES ("
        f"'format-version' = '{version}', 'write.distribution-mode' = 'none', {_MERGE_ON_READ})"
    )
    if kind == "vectorsorted":
        catalog.run(f"ALTER TABLE {table} WRITE LOCALLY ORDERED BY id DESC")
    numbers = Prepared().numbers(name)
    files = FILES // {"bucket": 2, "vectorpart": _PARTS}.get(kind, 1)
    catalog.run(
        f"INSERT INTO {table} SELECT /*+ REPARTITION({files}) */ id, concat('n', id), CAST(id % {_PARTS} AS INT) "
        f"FROM range({numbers[0]}, {numbers[-1] + 1})"
    )
    gone = [number for number in numbers if number % 7 == 0]
    if kind == "equality":
        delete_by_equality(lake, catalog, name, gone)
        return gone
    catalog.run(f"DELETE FROM {table} WHERE id % 14 = 0")
    catalog.run(f"DELETE FROM {table} WHERE id % 7 = 0")
    if kind == "grown":
        catalog.run(f"ALTER TABLE {table} SET TBLPROPERTIES ('format-version' = '3')")
        gone += [number for number in numbers if number % 7 == 1]
        catalog.run(f"DELETE FROM {table} WHERE id % 7 = 1")
    return gone


def delete_by_equality(lake: Lakehouse, catalog: SparkCatalog, name: str, numbers: list[int]) -> None:
    """Delete rows by their IDs, as Flink's upserts do; of a table without partitions."""
    location = TrinityLakeCatalog.over(lake.refresh()).load_table(name).location()
    path = Path(location.removeprefix("file://")) / "data" / f"equality-{numbers[0]}.parquet"
    column = pa.field("id", pa.int64(), metadata={"PARQUET:field_id": "1"})
    pq.write_table(pa.table({"id": numbers}, pa.schema([column])), path)
    session: Any = catalog._spark
    java = session._jvm.org.apache.iceberg
    table = java.spark.Spark3Util.loadIcebergTable(session._jsparkSession, f"{catalog.name}.{name}")
    columns = session.sparkContext._gateway.new_array(session._jvm.int, 1)
    columns[0] = 1
    builder = java.FileMetadata.deleteFileBuilder(table.spec()).ofEqualityDeletes(columns)
    builder = builder.withPath(path.as_uri()).withFormat("parquet").withFileSizeInBytes(path.stat().st_size)
    table.newRowDelta().addDeletes(builder.withRecordCount(len(numbers)).build()).commit()


def note_prepared(log: Log, prepared: Prepared, version: int) -> None:
    """Note the rows of the tables as one change of each, as a process would."""
    for number, name in enumerate(TABLES):
        op = _FIRST + number
        log.note("intent", op=op, **{"from": 0}, insert={name: prepared.rows[name]}, delete=[], create=name, drop="")
        log.note("done", op=op, to=version)


# -- writers -------------------------------------------------------------------------------------------


def _begin_with(writer: Writer, kinds: Callable[[str], bool]) -> None:
    """Give a writer its tables, and its share of their rows in its first life."""
    known = json.loads(Path(writer.plan.secret).read_text(encoding="utf-8"))
    writer.shared = tuple(name for name in known if kinds(kind_of(name)))
    if writer.seed < _LIVES:
        for name in writer.shared:
            writer.held[name] = [number for number in known[name] if number % _LIVES == writer.seed]


_LIVES: Final = 8
"""Processes of the first life, with their endpoints; each may delete a share of the rows that were there."""


class KindsByPyIceberg(ByPyIceberg):
    """PyIceberg: no table of format version 3, which it does not write, and no partitions by computed values."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _begin_with(self, lambda kind: kind not in FORMAT_3 | {"bucket"})

    def rows_for(self, table: Table, numbers: list[int]) -> pa.Table:
        """Return rows with these numbers; columns that others have added are null."""
        return rows(numbers)

    def evolve(self, name: str) -> None:
        """Add a column; or let a table have other partitions from now on."""
        if kind_of(name) == "specs":
            self.act(Change(), partial(self._repartition, name))
            return

        def evolved() -> None:
            table = self.catalog.load_table(name)
            if len(table.schema().fields) < _MOST_COLUMNS:
                with table.update_schema() as update:
                    update.add_column(f"more{self.next}", IntegerType())

        self.act(Change(), evolved)

    def _repartition(self, name: str) -> None:
        table = self.catalog.load_table(name)
        with table.update_spec() as update:
            if table.spec().fields:
                update.remove_field(table.spec().fields[0].name)
            else:
                update.add_identity("part")

    def rewrite(self, name: str, numbers: list[int]) -> None:
        """Delete rows; not where some are deleted by equality, which PyIceberg does not read."""
        if kind_of(name) == "equality":
            self.append(name, self.numbers())
        else:
            super().rewrite(name, numbers)

    def create(self, name: str) -> None:
        """Append: there are tables enough."""
        table = self.chance.choice(self.shared)
        self.append(table, self.numbers())


class KindsByRest(KindsByPyIceberg, ByRest):
    """The same through an endpoint."""


class KindsByDuckDB(ByDuckDB):
    """DuckDB: no table of format version 1.

    Through an endpoint in its own process, so that it never waits for the answer of one that is killed: DuckDB deletes
    the files of a commit whose answer it does not get, also if that was committed.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        _begin_with(self, lambda kind: kind not in _NOT_BY_DUCKDB)
        self._opened = endpoint(self.plan.open())
        self._at = self._opened.__enter__()

    def rewrite(self, name: str, numbers: list[int]) -> None:
        """Delete rows; not of files of an older spec, of which it alone applies its deletes.

        Nor where Spark has put several deletion vectors into one file: DuckDB drops them all when it replaces one.
        """
        if kind_of(name) in FORMAT_3 | {"specs"}:
            self.append(name, self.numbers())
        else:
            super().rewrite(name, numbers)

    def _run(self, change: Change, *statements: str) -> None:
        def run() -> None:
            with connected(self._at) as connection:
                connection.execute("SET unsafe_iceberg_ignore_sort_order = true")  # else it writes no such table
                try:
                    for each in ("BEGIN", *statements, "COMMIT"):
                        connection.execute(each)
                except duckdb.Error as error:
                    if "409" in str(error) or "Conflict" in str(error):
                        raise Refused(str(error)) from error
                    raise

        self.act(change, run)

    def append(self, name: str, numbers: list[int]) -> None:
        """Add rows."""
        self._run(Change({name: numbers}), _insert(f"l.{name}", numbers))

    def create(self, name: str) -> None:
        """Append."""
        self.append(self.chance.choice(self.shared), self.numbers())


_NOT_BY_DUCKDB: Final = frozenset({"plain1"})


def _insert(table: str, numbers: list[int]) -> str:
    values = ", ".join(f"({number}, 'n{number}', {number % _PARTS})" for number in numbers)
    return f"INSERT INTO {table} (id, name, part) VALUES {values}"


class KindsBySpark(BySpark):
    """Spark, which writes all tables, and beside it compacts them, in one Java process."""

    def __post_init__(self) -> None:
        Writer.__post_init__(self)
        _begin_with(self, lambda kind: True)
        self._opened = in_spark(self.plan.served(self.seed).properties())
        self._catalog = self._opened.__enter__()
        self._lock = threading.Lock()

    @property
    def spark(self) -> Any:
        """The session."""
        return self._catalog._spark

    def _run(self, change: Change, *statements: str) -> None:
        def run() -> None:
            try:
                for each in statements:
                    self._catalog.run(each.replace("l.race.", f"{self._catalog.name}.race."))
            except Exception as error:
                text = str(error)
                unknown = "CommitStateUnknown" in text
                if not unknown and ("CommitFailedException" in text or "ValidationException" in text):
                    raise Refused(text) from error
                raise RuntimeError(text) from None

        self.act(change, run)

    def append(self, name: str, numbers: list[int]) -> None:
        """Add rows."""
        self._run(Change({name: numbers}), _insert(f"l.{name}", numbers))

    def create(self, name: str) -> None:
        """Append."""
        self.append(self.chance.choice(self.shared), self.numbers())

    def compact_beside(self) -> None:
        """Compact the tables again and again in a thread, by Spark alone and by both engines in turn."""
        threading.Thread(target=self._compact_always, daemon=True).start()

    def _compact_always(self) -> None:
        number = 0
        while True:
            engine = ("spark", "auto")[number % 2]
            number += 1
            try:
                compact(self.plan.open(), self.log, engine, chance_of(number), self.spark)
            except TrinityLakeError as error:
                self.log.note("failed", role=engine, error=f"{type(error).__name__}: {error}"[:300])
                time.sleep(0.5)


# -- maintenance ---------------------------------------------------------------------------------------


def compact(lake: Lakehouse, log: Log, engine: str, chance: random.Random, spark: Any = None) -> None:
    """Compact the tables of a kind, and note what became of each."""
    settings = tables_compact.Settings(prove=chance.choice(("hash", "counts")), partial=chance.choice((1, 3)))
    config = tables_compact.Config(
        pattern=f"{NAMESPACE}.{chance.choice([*_PYICEBERG, *_SPARK])}_*",
        engine=engine,
        settings=settings,
        rules=GroupRules(min_files=5, deletes=0.02),
        manifests=chance.choice((None, 10)),
    )
    done = tables_compact.run(lake, config, spark)
    for each in done.outcomes:
        log.note("compacted", engine=each.engine, outcome=each.outcome, files=each.files, after=each.after,
                 table=each.table, reason=each.reason[:400])  # fmt: skip


def keep(plan: Plan, chance: random.Random, log: Log) -> None:
    """Do one job of maintenance, of those that delete with an age of zero."""
    lake, later = plan.open(), now_millis() + 30 * DAY

    def clean() -> None:
        done = tables_clean.run(lake, tables_clean.Config(engine="local", older_than_seconds=0, allow_recent=True))
        log.note("cleaned", files=done.deleted)

    def expire() -> None:
        expire_job.run(lake, expire_job.Config(engine="local", keep_last=plan.kept, now_millis=later))
        log.note("expired", files=0)

    def expire_snapshots() -> None:
        done = tables_expire.run(lake, tables_expire.Config(older_than_seconds=0, keep_last=2))
        log.note("snapshots", files=done.snapshots)

    jobs: tuple[Callable[[], object], ...] = (
        lambda: compaction.run(lake, compaction.Config(engine="local")),
        lambda: compact(lake, log, "local", chance),
        lambda: compact(lake, log, "local", chance),
        expire,
        expire,
        clean,
        clean,
        expire_snapshots,
        lambda: clean_job.run(lake, clean_job.Config(engine="local", older_than_seconds=0, allow_recent=True)),
    )
    chance.choice(jobs)()


# -- reading -------------------------------------------------------------------------------------------


def scan(location: str, snapshot: int | None = None) -> list[int]:
    """Return the numbers of the rows of a table, read by DuckDB from a metadata file."""
    path = location.removeprefix("file://")
    more = "" if snapshot is None else f", snapshot_from_id = {snapshot}"
    more += ", metadata_compression_codec = 'gzip'" if path.endswith(".gz.metadata.json") else ""
    found = _duckdb().execute(f"SELECT id, name FROM iceberg_scan('{path}'{more})").fetchall()
    wrong = [each for each in found if each[1] != f"n{each[0]}"]
    if wrong:
        raise AssertionError(f"the columns of {location} do not fit together: {wrong[:3]}")
    return sorted(number for number, _ in found)


_CONNECTIONS = threading.local()


def _duckdb() -> duckdb.DuckDBPyConnection:
    """Return a DuckDB of this thread with Iceberg's extension, which holds nothing of an earlier file."""
    if not hasattr(_CONNECTIONS, "one"):
        from importlib import import_module

        connection = duckdb.connect()
        connection.execute("SET enable_progress_bar = false")
        for name in ("avro", "iceberg"):
            package = Path(next(iter(import_module(f"duckdb_extension_{name}").__path__)))
            connection.execute(f"LOAD '{next(package.rglob('*.duckdb_extension'))}'")
        connection.execute("SET enable_external_file_cache = false")
        _CONNECTIONS.one = connection
    return _CONNECTIONS.one  # type: ignore[no-any-return]


def contents(lake: Lakehouse, known: dict[str, list[int]] | None = None, /, **at: str) -> dict[str, list[int]]:
    """Return the rows of each table in a version; ``known`` has those of metadata files that were read already."""
    known = {} if known is None else known
    catalog = TrinityLakeCatalog.over(lake, **at)
    found = {}
    for identifier in catalog.list_tables(NAMESPACE):
        location = catalog.metadata_location(identifier)
        if location not in known:
            known[location] = scan(location)
        found[".".join(identifier)] = known[location]
    return found


def read(plan: Plan, chance: random.Random, log: Log) -> None:
    """Read a retained version as a whole, and note it; what fails although it is retained still, too."""
    lake = plan.open()
    version, at = chance.choice([*places(lake)])
    try:
        log.note("read", version=version, tables=contents(lake, **at))
    except Exception as error:  # noqa: BLE001 - whatever it is, the version must be gone
        if at in [there for _, there in places(plan.open())]:
            log.note("wrong", version=version, at=at, error=f"{type(error).__name__}: {error}")
        else:
            log.note("expired version", version=version)


# -- a process -----------------------------------------------------------------------------------------

WRITERS: Final[dict[str, type[Writer]]] = {
    "direct": KindsByPyIceberg,
    "rest": KindsByRest,
    "duckdb": KindsByDuckDB,
    "spark": KindsBySpark,
}


_BREATH_SECONDS: Final = 0.2
"""Between two changes of a writer: compactions shall come to an end, on two cores."""


def live(plan: Plan, role: str, seed: int, path: Path) -> None:
    """Act until this process is killed."""
    keep_errors(path)
    vars(hold)["CLOCK_SLACK_MILLIS"] = 0  # one clock here, and cleanings shall come close to what is under way
    log, chance = Log(path), chance_of(seed)
    writer = WRITERS[role](plan, seed, log) if role in WRITERS else None
    if isinstance(writer, KindsBySpark):
        log.note("started", role=role)
        writer.compact_beside()
    while True:
        try:
            if writer is not None:
                writer.step()
                time.sleep(_BREATH_SECONDS)
            elif role == "reader":
                read(plan, chance, log)
            else:
                keep(plan, chance, log)
        except TrinityLakeError as error:
            log.note("failed", role=role, error=f"{type(error).__name__}: {error}"[:300])


def refs_of(lake: Lakehouse) -> dict[str, dict[str, tuple[int, list[int]]]]:
    """Return the tags and branches of tables: the snapshots, and the rows in them."""
    catalog = TrinityLakeCatalog.over(lake)
    found: dict[str, dict[str, tuple[int, list[int]]]] = {}
    for name in _TAGGED:
        table = catalog.load_table(name)
        refs = {ref: each.snapshot_id for ref, each in table.metadata.refs.items() if ref != "main"}
        found[name] = {ref: (number, scan(table.metadata_location, number)) for ref, number in refs.items()}
    return found


with suppress(ImportError):  # loaded by the process that others are forked off
    import pyspark  # noqa: F401

"""The mayhem of tables with all kinds of deletes, format version 3, new partitions and a stream of Spark.

Both engines compact the tables meanwhile. They are read by the judge's reader, and each data file by Arrow as well:
who wrote a row and who merged it, one of the two is neither's. Spark reads the newest version last.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyarrow import parquet
from pyiceberg.table import Table
from pyiceberg.types import IntegerType

from pipelines import clean as clean_job
from pipelines import compaction, tables_clean, tables_compact
from pipelines.job import NEVER_CANCELLED
from pipelines.session import SessionConfig, get_session
from pipelines.session.iceberg import TESTED
from pipelines.tables.compact import hold
from pipelines.tables.compact.decision import GroupRules
from pipelines.tables.compact.statements import SparkCatalog, StatementFailed
from tests.model.equality import delete_by_equality
from tests.model.tables import ROW_ID, UPDATED, Row, Rows, TableJudge, path_of
from tests.support.engines import connected
from tests.support.mayhem import Log, chance_of, keep_errors
from tests.support.table_mayhem import ByDuckDB, ByPyIceberg, ByRest, BySpark, Change, Plan, Writer, places
from tests.support.zero_age import expire_all_but_the_newest
from trinitylake_core import Lakehouse
from trinitylake_core.errors import TrinityLakeError
from trinitylake_core.iceberg import TrinityLakeCatalog
from trinitylake_core.rest import Served, endpoint

PLAIN: Final = "race.plain"
SPECS: Final = "race.specs"
EQUAL: Final = "race.equal"
ROWS_3: Final = "race.rows"
SPECS_3: Final = "race.turns"
MIXED: Final = {PLAIN: 2, SPECS: 2, EQUAL: 2, ROWS_3: 3, SPECS_3: 3}
"""The tables that all write, each with the version of its format."""
FLOWS: Final = {"race.flow2": 2, "race.flow3": 3}
"""Those to which Spark appends a stream of rows, numbered without a gap."""
_BATCH: Final = 20
"""Rows of a batch of a stream."""
_PARTS: Final = 3
_MOST_COLUMNS: Final = 4
_SCHEMA: Final = pa.schema([("id", pa.int64()), ("name", pa.string()), ("part", pa.int32())])
_BREATH_SECONDS: Final = 0.2
"""Between two changes of a writer: compactions shall come to an end."""
_PROPERTIES: Final = {f"write.{each}.mode": "merge-on-read" for each in ("delete", "update", "merge")}


def prepare(lake: Lakehouse, log: Log) -> None:
    """Create the tables, and put a few rows into those that all write; only the version with all of them stays."""
    with endpoint(lake) as at, connected(at) as connection:
        connection.execute("CREATE SCHEMA l.race")
        for number, (name, version) in enumerate((MIXED | FLOWS).items()):
            properties = {"format-version": f"{version}", **_PROPERTIES}
            told = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
            connection.execute(f"CREATE TABLE l.{name} (id BIGINT, name VARCHAR, part INTEGER) WITH ({told})")
            if name in MIXED:
                numbers = [*range(number * 100, number * 100 + 5)]
                connection.execute(_insert(name, numbers))
                log.note("intent", op=number, **{"from": 0}, insert={name: numbers}, delete=[], create="", drop="")
                log.note("done", op=number, to=lake.refresh().version)
    expire_all_but_the_newest(lake)


# -- writers -------------------------------------------------------------------------------------------


class _InMixed(Writer):
    """A writer of the tables that are there: it creates none."""

    def create(self, name: str) -> None:
        """Append: there are tables enough."""
        self.append(self.chance.choice(self.shared), self.numbers())


class MixedByPyIceberg(_InMixed, ByPyIceberg):
    """PyIceberg, which writes no table of format version 3, and reads none with equality deletes: it writes those."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.shared = (PLAIN, SPECS, EQUAL)

    def rows_for(self, table: Table, numbers: list[int]) -> pa.Table:
        """Return rows with these numbers; columns that others have added are null."""
        names = [f"n{number}" for number in numbers]
        return pa.table({"id": numbers, "name": names, "part": [each % _PARTS for each in numbers]}, _SCHEMA)

    def evolve(self, name: str) -> None:
        """Add a column; or let a table have other partitions from now on."""
        self.act(Change(), partial(self._repartition if name == SPECS else self._add_column, name))

    def _add_column(self, name: str) -> None:
        table = self.catalog.load_table(name)
        if len(table.schema().fields) < _MOST_COLUMNS:
            with table.update_schema() as update:
                update.add_column(f"more{self.next}", IntegerType())

    def _repartition(self, name: str) -> None:
        table = self.catalog.load_table(name)
        with table.update_spec() as update:
            if table.spec().fields:
                update.remove_field(table.spec().fields[0].name)
            else:
                update.add_identity("part")

    def rewrite(self, name: str, numbers: list[int]) -> None:
        """Delete rows, or overwrite them."""
        if name == EQUAL:
            deleted = partial(delete_by_equality, numbers=numbers)
            self.act(Change(delete=numbers), lambda: deleted(self.catalog.load_table(name)))
        else:
            super().rewrite(name, numbers)


class MixedByRest(MixedByPyIceberg, ByRest):
    """The same through an endpoint."""


class MixedByDuckDB(_InMixed, ByDuckDB):
    """DuckDB through an endpoint in its own process: it deletes the files of a commit whose answer it does not get."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.shared = tuple(MIXED)
        self._opened = endpoint(self.plan.open())
        self._at = self._opened.__enter__()

    def served(self) -> Served:
        """Return that endpoint."""
        return self._at

    def rewrite(self, name: str, numbers: list[int]) -> None:
        """Delete rows; not where its deletes of an older spec bind nobody else, nor where vectors share a file."""
        if name in {PLAIN, EQUAL}:
            super().rewrite(name, numbers)
        else:
            self.append(name, self.numbers())

    def append(self, name: str, numbers: list[int]) -> None:
        """Add rows."""
        self._run(Change({name: numbers}), _insert(name, numbers))


class MixedBySpark(_InMixed, BySpark):
    """Spark, which writes all tables, and two as streams, which go on where those of its last life ended."""

    def __post_init__(self) -> None:
        Writer.__post_init__(self)
        self.shared = tuple(MIXED)
        self.spark = start_spark(self.plan.served(self.seed).properties())
        self.run = self._run_one
        self._flows: dict[str, Any] = {}
        _note_began(self.plan, "spark")

    def _run_one(self, statement: str) -> list[tuple[Any, ...]]:
        try:
            return self.spark.run(statement.replace("l.race.", f"{self.spark.name}.race."))
        except StatementFailed as error:
            raise RuntimeError(str(error)) from None

    def step(self) -> None:
        """Make one change, and start the streams that have ended."""
        for name in FLOWS:
            if name not in self._flows or not self._flows[name].isActive:
                with suppress(Exception):  # the endpoint was killed, and is not back yet
                    self._flows[name] = self._stream_to(name)
        super().step()

    def _stream_to(self, name: str) -> Any:
        rate = self.spark.session.readStream.format("rate-micro-batch").options(rowsPerBatch=_BATCH, numPartitions=1)
        columns = ("value AS id", "concat('n', value) AS name", f"CAST(value % {_PARTS} AS INT) AS part")
        flow = rate.load().selectExpr(*columns).writeStream.format("iceberg").outputMode("append")
        place = f"{self.plan.root.removeprefix('file://')}-{name}"
        flow = flow.option("checkpointLocation", place).trigger(processingTime="2 seconds")
        return flow.toTable(f"{self.spark.name}.{name}")

    def evolve(self, name: str) -> None:
        """Let a table have other partitions from now on."""
        if name in {SPECS, SPECS_3}:
            self._run(Change(), f"ALTER TABLE l.{name} {self.chance.choice(('ADD', 'DROP'))} PARTITION FIELD part")

    def append(self, name: str, numbers: list[int]) -> None:
        """Add rows."""
        self._run(Change({name: numbers}), _insert(name, numbers))


def _insert(name: str, numbers: list[int]) -> str:
    values = ", ".join(f"({number}, 'n{number}', {number % _PARTS})" for number in numbers)
    return f"INSERT INTO l.{name} (id, name, part) VALUES {values}"


def start_spark(served: dict[str, str]) -> SparkCatalog:
    """Start a Spark with Iceberg, and return a lakehouse in it."""
    conf = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"}
    spark = get_session(SessionConfig(master="local[2]", iceberg=TESTED, log_level="OFF", conf=conf))
    return SparkCatalog(spark, served, NEVER_CANCELLED, lambda: False)


# -- maintenance ---------------------------------------------------------------------------------------


def _compact(plan: Plan, chance: random.Random, log: Log, engine: str, spark: Any = None) -> None:
    """Compact some tables, and note what became of each."""
    settings = tables_compact.Settings(
        prove=chance.choice(("hash", "hash", "counts")), partial=chance.choice((1, 3)), at_once=chance.choice((1, 2))
    )
    config = tables_compact.Config(
        pattern=chance.choice(("race.*", *MIXED, *FLOWS)),
        engine=engine,
        settings=settings,
        rules=GroupRules(min_files=4, deletes=0.02),
        manifests=chance.choice((None, 6)) if spark else None,
    )
    for each in tables_compact.run(plan.open(), config, spark).outcomes:
        log.note("compacted", engine=each.engine, outcome=each.outcome, files=each.files, after=each.after,
                 table=each.table, reason=each.reason[:400])  # fmt: skip


def _keep(plan: Plan, chance: random.Random, log: Log) -> None:
    """Compact in this process, or do a job that deletes with an age of zero. No version and no snapshot expires."""
    jobs: tuple[Callable[[], object], ...] = (
        *[lambda: _compact(plan, chance, log, "local")] * 6,
        lambda: compaction.run(plan.open(), compaction.Config(engine="local")),
        lambda: clean_job.run(
            plan.open(), clean_job.Config(engine="local", older_than_seconds=0, allow_recent=True)
        ),
        lambda: tables_clean.run(
            plan.open(), tables_clean.Config(engine="local", older_than_seconds=0, allow_recent=True)
        ),
    )  # fmt: skip
    chance.choice(jobs)()


def _keep_by_spark(plan: Plan, chance: random.Random, log: Log) -> None:
    """Compact by Spark alone, or by both engines."""
    spark = start_spark({})
    _note_began(plan, "compactor")
    while True:
        with suppress(TrinityLakeError):
            _compact(plan, chance, log, chance.choice(("spark", "auto")), spark.session)


# -- reading -------------------------------------------------------------------------------------------


class Reader(TableJudge):
    """The judge's reader, which has Arrow read each data file, too."""

    def _file(self, uri: str) -> dict[int, Row]:
        is_new = uri not in self._files
        rows = super()._file(uri)
        if is_new:
            found = parquet.ParquetFile(path_of(uri)).read()
            numbers = [int(each.metadata[b"PARQUET:field_id"]) for each in found.schema]
            for at, values in enumerate(zip(*(column.to_pylist() for column in found.columns), strict=True)):
                pairs = [(number, value) for number, value in zip(numbers, values, strict=True) if value is not None]
                assert rows[at] == tuple(sorted(pairs)), f"{uri}: row {at} is {rows[at]} or {pairs}"
        return rows

    def forget(self) -> None:
        """Forget the rows of snapshots: those of the files are enough."""
        self._snapshots.clear()


def numbers_of(rows: Rows) -> list[int]:
    """Return the numbers of rows, whose other columns must fit to them."""
    numbers = []
    for row in rows.elements():
        values = dict(row)
        number = values[1]
        assert (f"n{number}", number % _PARTS) == (values[2], values[3]), f"its columns do not fit: {row}"
        numbers.append(number)
    return sorted(numbers)


def contents(lake: Lakehouse, reader: Reader, known: dict[str, list[int]], **at: str) -> dict[str, list[int]]:
    """Return the rows of each table in a version; ``known`` has those of metadata files that were read already."""
    catalog = TrinityLakeCatalog.over(lake, **at)
    found = {}
    for name in (*MIXED, *FLOWS):
        location = catalog.metadata_location(name)
        if location not in known:
            known[location] = numbers_of(reader.read(location).current)
            reader.forget()
        found[name] = known[location]
        if name in FLOWS:
            assert [*range(len(found[name]))] == found.pop(name), f"{name}: rows of the stream are lost, or there twice"
    return found


def compare_snapshots(lake: Lakehouse, reader: Reader) -> Iterator[tuple[str, int, int, int]]:
    """Compare each snapshot of each table with the one before it; yield how many there are, rewrites, and rows.

    A rewrite changes nothing. No row of format version 3 ever gets another ID, nor, but by an update, another number
    of its last change.
    """
    catalog = TrinityLakeCatalog.over(lake)
    for name in (*MIXED, *FLOWS):
        ids: dict[int, int] = {}
        before: Rows = Rows()
        rewrites = compared = 0
        snapshots = catalog.load_table(name).metadata.snapshots
        parent = None
        for each in snapshots:
            assert parent == each.parent_snapshot_id, f"{name}: snapshots branch"
            parent = each.snapshot_id
            rows = reader.rows({"manifest-list": each.manifest_list})
            reader.forget()
            assert each.summary is not None
            kind = each.summary.operation.value
            if kind == "replace":
                assert before == rows, (
                    f"{name}: rewrite {parent} changed {[*(before - rows)][:3]} to {[*(rows - before)][:3]}"
                )
                rewrites += 1
                compared += len(rows)
            else:
                _refuse_other_lineage(name, before, rows, ids, is_update=kind == "overwrite")
            before = rows
        yield name, len(snapshots), rewrites, compared


def _refuse_other_lineage(name: str, before: Rows, rows: Rows, ids: dict[int, int], *, is_update: bool) -> None:
    """Compare the lineage of the rows that two snapshots have in common, and of those of all snapshots before."""
    updated = {dict(row)[1]: dict(row).get(UPDATED) for row in before}
    for row in rows:
        values = dict(row)
        number, known = values[1], values.get(ROW_ID)
        if known is None:
            continue
        assert ids.setdefault(number, known) == known, f"{name}: row {number} has ID {known} instead of {ids[number]}"
        if number in updated and not is_update:
            assert updated[number] == values[UPDATED], f"{name}: row {number} was not updated"


def rows_by_spark(root: str) -> dict[str, list[tuple[Any, ...]]]:
    """Return the rows of the tables, with their lineage, as Spark reads them."""
    with endpoint(Lakehouse.open(root)) as at:
        spark = start_spark(at.properties())
        found = {}
        for name, version in (MIXED | FLOWS).items():
            lineage = ", _row_id, _last_updated_sequence_number" if version > 2 else ""
            found[name] = sorted(spark.run(f"SELECT id, name, part{lineage} FROM {spark.name}.{name}"))
        return found


def rows_by_reader(lake: Lakehouse, reader: Reader) -> dict[str, list[tuple[Any, ...]]]:
    """Return the same as the reader has it."""
    catalog = TrinityLakeCatalog.over(lake)
    found = {}
    for name, version in (MIXED | FLOWS).items():
        columns = (1, 2, 3, ROW_ID, UPDATED) if version > 2 else (1, 2, 3)
        rows = reader.read(catalog.metadata_location(name)).current
        found[name] = sorted(tuple(dict(row)[each] for each in columns) for row in rows.elements())
    return found


def _read(plan: Plan, chance: random.Random, log: Log, reader: Reader, known: dict[str, list[int]]) -> None:
    lake = plan.open()
    version, at = chance.choice([*places(lake)])
    try:
        log.note("read", version=version, tables=contents(lake, reader, known, **at))
    except Exception as error:  # noqa: BLE001 - no version expires
        log.note("wrong", version=version, at=at, error=f"{type(error).__name__}: {error}")


# -- a process -----------------------------------------------------------------------------------------

WRITERS: Final[dict[str, type[Writer]]] = {
    "direct": MixedByPyIceberg,
    "rest": MixedByRest,
    "duckdb": MixedByDuckDB,
    "spark": MixedBySpark,
}


SPARKS: Final = ("spark", "compactor")


def _note_began(plan: Plan, role: str) -> None:
    Path(f"{plan.root.removeprefix('file://')}-{role}-began").touch()


def _wait_for_sparks(plan: Plan) -> None:
    """Wait until each Spark has started once: on a busy machine that takes longer than all others take to be done."""
    while not all(Path(f"{plan.root.removeprefix('file://')}-{each}-began").exists() for each in SPARKS):
        time.sleep(0.5)


def live(plan: Plan, role: str, seed: int, path: Path) -> None:
    """Act until this process is killed."""
    keep_errors(path)
    vars(hold)["CLOCK_SLACK_MILLIS"] = 0  # one clock here, and cleanings shall come close to what is under way
    log, chance = Log(path), chance_of(seed)
    if role not in SPARKS:
        _wait_for_sparks(plan)
    reader, known = Reader(Path(plan.root.removeprefix("file://"))), dict[str, list[int]]()
    acts: dict[str, Callable[[], None]] = {
        "reader": lambda: _read(plan, chance, log, reader, known),
        "maintainer": lambda: _keep(plan, chance, log),
        "compactor": lambda: _keep_by_spark(plan, chance, log),
    }
    act = acts[role] if role in acts else WRITERS[role](plan, seed, log).step
    while True:
        try:
            act()
        except TrinityLakeError as error:
            log.note("failed", role=role, error=f"{type(error).__name__}: {error}"[:300])
        time.sleep(_BREATH_SECONDS)

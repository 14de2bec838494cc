"""The engine of Spark rewrites tables with deletes of every kind, proves it, and takes back what it cannot prove."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField, TimestampNanoType, TimestamptzNanoType, TimeType
from pyspark import SparkContext

from pipelines import expire, tables_clean, tables_compact, tables_expire
from pipelines.job import NEVER_CANCELLED
from pipelines.session import SessionConfig, get_session, lazy_session
from pipelines.tables.compact import model, plan, statements
from pipelines.tables.compact import spark as engine
from pipelines.tables.compact.decision import GroupRules, decide_table
from pipelines.tables.compact.model import Outcome, PlannedGroup, PlannedTable, Settings
from pipelines.tables.compact.statements import SparkCatalog, StatementFailed
from tests.support.engines import connected
from tests.support.writers import pool
from trinitylake_core import Lakehouse
from trinitylake_core.iceberg import TrinityLakeCatalog
from trinitylake_core.iceberg.reading.health import grouped_files, read_current
from trinitylake_core.rest import endpoint
from trinitylake_core.table_places import Located

_TARGET: Final = 512 << 20
_SECONDS: Final = 500

pytestmark = pytest.mark.slow


@dataclass
class _Spark:
    """A lakehouse in a Spark of this process: statements, the plan of a table, and the engine over plans."""

    lake: Lakehouse
    spark: Any
    catalog: SparkCatalog

    def run(self, statement: str) -> list[tuple[Any, ...]]:
        return self.catalog.run(statement.replace("l.a.", f"{self.catalog.name}.a."))

    def rows(self, name: str) -> list[str]:
        return sorted(map(repr, self.run(f"SELECT * FROM l.a.{name}")))

    def files(self, name: str) -> dict[int, int]:
        """Return how many data files, position deletes and equality deletes a table has."""
        found = self.run(f"SELECT content, count(*) FROM l.a.{name}.files GROUP BY content")
        return {int(content): int(count) for content, count in found}

    def in_file(self, name: str) -> list[tuple[int, int]]:
        """Return the rows of a table of one file in the order of the file."""
        [(path,)] = self.run(f"SELECT file_path FROM l.a.{name}.files")
        found = pq.read_table(path.removeprefix("file:")).to_pylist()
        return [(row["x"], row["y"]) for row in found]

    def plan(self, name: str) -> PlannedTable:
        self.lake.refresh()
        location = TrinityLakeCatalog.over(self.lake).metadata_location(("a", name))
        read = read_current(Located(self.lake.storage), location, with_old=False)
        groups = grouped_files(read, _TARGET)
        decided = decide_table(groups, _TARGET, GroupRules(min_files=2), int(time.time() * 1000))
        planned = [
            PlannedGroup(key.spec_id, tuple(groups[key].paths), (), each, groups[key].delete_files)
            for key, each in decided.groups
        ]
        number, version = read.snapshot["snapshot-id"], read.document["format-version"]
        return PlannedTable(
            f"a.{name}", ("a", name), read.references.uuid, location, number, version, _TARGET, tuple(planned)
        )

    def compact(self, *tables: PlannedTable, **settings: Any) -> list[Outcome]:
        made = engine.SparkRewriter(self.lake, Settings(**settings), self.spark, NEVER_CANCELLED)
        try:
            return list(made.rewrite(tables))
        finally:
            made.close()


@contextmanager
def _started(root: str) -> Iterator[_Spark]:
    lake = Lakehouse.open(root)
    spark = get_session(SessionConfig(master="local[2]", iceberg="1.12.0"))
    with endpoint(lake) as at:
        catalog = SparkCatalog(spark, at.properties(), NEVER_CANCELLED, lambda: False)
        found = _Spark(lake, spark, catalog)
        if "a" not in lake.namespaces():
            catalog.run(f"CREATE NAMESPACE {catalog.name}.a")
        yield found


def _with_spark(lake: Lakehouse, act: Callable[[str], Any]) -> Any:
    """Return what a function returns that needs a Spark with Iceberg: it runs in a process of its own."""
    with pool(1) as process:
        return process.submit(act, lake.root).result(_SECONDS)


_MERGE_ON_READ: Final = ", ".join(f"'write.{each}.mode' = 'merge-on-read'" for each in ("delete", "update", "merge"))


def _with_deletes(spark: _Spark, name: str, version: int) -> None:
    """Make a table of two partitions with four files each, and deletes of rows in each."""
    spark.run(
        f"CREATE TABLE l.a.{name} (x BIGINT, y STRING, p STRING, ts TIMESTAMP) PARTITIONED BY (p, days(ts)) "
        f"TBLPROPERTIES ('format-version' = '{version}', {_MERGE_ON_READ})"
    )
    for begin in range(0, 40, 10):
        spark.run(
            f"INSERT INTO l.a.{name} SELECT id, if(id % 3 = 0, null, 'a'), concat('o\\'', id % 2), "
            f"timestamp_seconds(1700000000 + (id % 2) * 86400) FROM range({begin}, {begin + 10}, 1, 1)"
        )
    spark.run(f"DELETE FROM l.a.{name} WHERE x % 7 = 0")
    spark.run(f"DELETE FROM l.a.{name} WHERE x % 5 = 0")


def _with_equality_deletes(spark: _Spark, name: str) -> None:
    """Make a table of which 1 and 2 are deleted by equality, as Flink's upserts write it."""
    spark.run(f"CREATE TABLE l.a.{name} (x BIGINT, y STRING) TBLPROPERTIES ('format-version' = '2')")
    for begin in range(0, 9, 3):
        spark.run(f"INSERT INTO l.a.{name} SELECT id, 'a' FROM range({begin}, {begin + 3}, 1, 1)")
    spark.lake.refresh()
    location = TrinityLakeCatalog.over(spark.lake).load_table(f"a.{name}").location()
    path = Path(location.removeprefix("file://")) / "data" / "equality.parquet"
    field = pa.field("x", pa.int64(), metadata={"PARQUET:field_id": "1"})
    pq.write_table(pa.table({"x": [1, 2]}, pa.schema([field])), path)
    session = spark.catalog.session
    java = session._jvm.org.apache.iceberg
    table = java.spark.Spark3Util.loadIcebergTable(session._jsparkSession, f"{spark.catalog.name}.a.{name}")
    columns = session.sparkContext._gateway.new_array(session._jvm.int, 1)
    columns[0] = 1
    builder = java.FileMetadata.deleteFileBuilder(table.spec()).ofEqualityDeletes(columns)
    builder = builder.withPath(path.as_uri()).withFormat("parquet").withFileSizeInBytes(path.stat().st_size)
    table.newRowDelta().addDeletes(builder.withRecordCount(2).build()).commit()


def _with_evolution(spark: _Spark, name: str) -> None:
    """Make a table whose columns became wider, have other names, and were added; and that has files of two specs."""
    spark.run(f"CREATE TABLE l.a.{name} (x INT, y STRING, m MAP<STRING, INT>, p INT) PARTITIONED BY (p)")
    insert = f"INSERT INTO l.a.{name} SELECT id, 'a', map('k', cast(id AS INT)), id % 2"
    for begin in range(0, 30, 10):
        spark.run(f"{insert} FROM range({begin}, {begin + 10}, 1, 1)")
    for change in (
        "ALTER COLUMN x TYPE BIGINT",
        "RENAME COLUMN y TO w",
        "ADD COLUMN z STRUCT<k: INT>",
        "REPLACE PARTITION FIELD p WITH bucket(2, x)",
    ):
        spark.run(f"ALTER TABLE l.a.{name} {change}")
    for begin in range(30, 60, 10):
        spark.run(f"{insert}, named_struct('k', 1) FROM range({begin}, {begin + 10}, 1, 1)")
    spark.run(f"ALTER TABLE l.a.{name} ADD COLUMN late INT")


def _rewrite_all_kinds(root: str, prove: str) -> None:
    with _started(root) as spark:
        _with_deletes(spark, "v2", 2)
        _with_deletes(spark, "v3", 3)
        _with_equality_deletes(spark, "eq")
        _with_evolution(spark, "evolved")
        names = ("v2", "v3", "eq", "evolved")
        before = {name: spark.rows(name) for name in names}
        assert 7 == len(before["eq"])
        outcomes = {each.table: each for each in spark.compact(*map(spark.plan, names), prove=prove)}
        assert {model.DONE} == {each.outcome for each in outcomes.values()}, outcomes
        assert {prove} == {each.proved for each in outcomes.values()}
        assert before == {name: spark.rows(name) for name in names}
        assert [{0: 2}, {0: 2}] == [spark.files(name) for name in ("v2", "v3")], "no delete file is left"
        # An equality delete that applies to nothing any more goes with the next rewrite of files of its partition.
        assert ({0: 1} | {2: 1}, before["eq"]) == (spark.files("eq") | {2: 1}, spark.rows("eq"))
        assert (8, 2) == (outcomes["a.v2"].files, outcomes["a.v2"].after)
        assert (3, 1) == (outcomes["a.eq"].files, outcomes["a.eq"].after)
        again = [name for name in ("v2", "v3") if spark.plan(name).groups]
        assert [] == again, "a second run has nothing to do"


@pytest.mark.parametrize("prove", [model.COUNTS, model.HASH])
def test_deletes_of_every_kind_evolved_schemas_and_specs_keep_their_rows(lake: Lakehouse, prove: str) -> None:
    _with_spark(lake, partial(_rewrite_all_kinds, prove=prove))
    lake.refresh()
    assert [] == list(lake.check())
    with endpoint(lake) as at, connected(at) as connection:
        for name in ("v2", "v3"):
            found = connection.execute(f"SELECT x FROM l.a.{name} ORDER BY x").fetchall()
            assert [x for x in range(40) if x % 7 and x % 5] == [x for (x,) in found]


def _end_java_once(root: str) -> dict[str, str]:
    """Compact tables one after the other; Java ends when the first of them is rewritten. Return what became of them."""
    names = ("t0", "t1", "t2")
    with _started(root) as spark:
        for name in names:
            spark.run(f"CREATE TABLE l.a.{name} (x INT)")
            for number in range(2):
                spark.run(f"INSERT INTO l.a.{name} VALUES ({number})")
        planned = [spark.plan(name) for name in names]
    run = SparkCatalog.run
    processes = {SparkContext._gateway.proc}

    def end_and_run(catalog: SparkCatalog, statement: str) -> Any:
        if "a.t0" in statement.replace("`", ""):
            for each in processes:
                each.kill()
        processes.add(SparkContext._gateway.proc)
        return run(catalog, statement)

    with (
        pytest.MonkeyPatch.context() as patch,
        lazy_session(SessionConfig(master="local[2]", iceberg="1.12.0")) as lazy,
    ):
        patch.setattr(SparkCatalog, "run", end_and_run)
        made = engine.SparkRewriter(spark.lake, Settings(at_once=1), lazy, NEVER_CANCELLED)
        try:
            found = {each.table: each.outcome for each in made.rewrite(planned)}
        finally:
            made.close()
    assert 2 == len(processes)
    return found


def test_where_spark_ends_the_other_tables_get_a_new_one(lake: Lakehouse) -> None:
    """Else one table that ends it every night would be the only one that is ever begun."""
    found = _with_spark(lake, _end_java_once)
    assert {"a.t0": model.ENDED, "a.t1": model.DONE, "a.t2": model.DONE} == found


def _around_next_call(before: Callable[[], object], after: Callable[[], object] = lambda: None) -> None:
    """Have something happen before, and after, the next procedure."""
    call = engine._TableRewrite._call

    def disturbed(self: Any, *given: str) -> list[tuple[Any, ...]]:
        engine._TableRewrite._call = call  # type: ignore[method-assign]
        before()
        told = call(self, *given)
        after()
        return told

    engine._TableRewrite._call = disturbed  # type: ignore[method-assign, assignment]


def _fail_to_rewrite(root: str) -> list[Outcome]:
    """Compact tables: with damaged files, with one damaged partition, while it is frozen, beside a cleaning."""
    with _started(root) as spark:
        planned = []
        for name, partitions in (("t0", 1), ("t1", 2), ("t2", 1), ("t3", 1)):
            spark.run(f"CREATE TABLE l.a.{name} (x INT, p INT) PARTITIONED BY (p)")
            for number in range(3):
                spark.run(f"INSERT INTO l.a.{name} SELECT {number}, id FROM range({partitions})")
            planned.append(replace(spark.plan(name), manifests=2))
        for each in planned[:2]:
            file = Path(each.groups[0].paths[0].removeprefix("file:"))
            data = file.read_bytes()
            file.write_bytes(data[:4] + bytes(len(data) - 12) + data[-8:])
        found = spark.compact(*planned[:2])
        _around_next_call(lambda: spark.lake.refresh().freeze(reason="a test"), lambda: spark.lake.refresh().thaw())
        found += spark.compact(planned[2])
        [manifest, *_] = spark.run("SELECT path FROM l.a.t3.manifests")
        _around_next_call(Path(manifest[0].removeprefix("file:")).unlink)
        return [*found, *spark.compact(replace(planned[3], groups=()))]


def test_what_spark_did_not_rewrite_is_not_done_although_manifests_were_merged(lake: Lakehouse) -> None:
    """Iceberg tells of files that it could not read by a number alone, and of commits that it lost not at all."""
    found = _with_spark(lake, _fail_to_rewrite)
    assert [model.UNREADABLE, model.UNREADABLE, model.LOST, model.LOST] == [each.outcome for each in found], found
    assert [(0, 0), (1, 3), (0, 0), (0, 0)] == [(each.partitions, each.files) for each in found], found
    assert [(1, 0), (2, 0), (1, 1), (0, 1)] == [(each.commits, each.conflicts) for each in found], found
    assert ["files (3)" in each.reason for each in found] == [True, True, False, False], found


def _run_out_of_time(root: str) -> Outcome:
    """Compact a table of many partitions whose time is over before Spark has begun a job for any of them."""
    with _started(root) as spark:
        spark.run("CREATE TABLE l.a.t (x INT, p INT) PARTITIONED BY (p)")
        for number in range(2):
            spark.run(f"INSERT INTO l.a.t SELECT {number}, id FROM range({_GROUPS})")
        planned = spark.plan("t")
        call = engine._TableRewrite._call

        def call_late(self: Any, *given: str) -> list[tuple[Any, ...]]:
            self._catalog._is_late = lambda: True
            return call(self, *given)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(engine._TableRewrite, "_call", call_late)
            patch.setattr(statements, "_ASK_SECONDS", 0.01)
            [late] = spark.compact(planned)
        return late


_GROUPS: Final = 20


def test_a_table_whose_time_is_over_is_stopped_whatever_jobs_come_after_the_first(lake: Lakehouse) -> None:
    """Iceberg goes on with the next files where a job is stopped, and before the first one there is none to stop."""
    late = _with_spark(lake, _run_out_of_time)
    assert model.TIMEOUT == late.outcome, late
    assert late.partitions < _GROUPS / 2, late


def _lose_a_commit(root: str) -> list[Outcome]:
    """Compact tables of which the second commit is lost: by the engine, and by the job, which plans once more."""
    commit, call = TrinityLakeCatalog.commit_tables, engine._TableRewrite._call
    with _started(root) as spark:
        for name in ("t0", "t1"):
            spark.run(f"CREATE TABLE l.a.{name} (x INT, p INT) PARTITIONED BY (p)")
            for number in range(3):
                spark.run(f"INSERT INTO l.a.{name} SELECT {number}, id FROM range(2)")
        planned = spark.plan("t0")
        frozen: list[str] = []

        def commit_first(self: Any, commits: Any) -> Any:
            made = commit(self, commits)
            name = str(commits[0][0])
            if name not in frozen:
                frozen.append(name)
                spark.lake.refresh().freeze(reason="a test")
            return made

        def call_and_thaw(self: Any, *given: str) -> list[tuple[Any, ...]]:
            told = call(self, *given)
            if spark.lake.refresh().frozen:
                spark.lake.thaw()
            return told

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(TrinityLakeCatalog, "commit_tables", commit_first)
            patch.setattr(engine._TableRewrite, "_call", call_and_thaw)
            [lost] = spark.compact(planned)
            how = tables_compact.Config(pattern="a.t1", engine="spark", rules=GroupRules(min_files=2))
            report = tables_compact.run(spark.lake.refresh(), how, spark.spark)
        assert ({}, 6, 2) == (report.failures, report.files_before, report.files_made)
        return [lost, *report.outcomes]


def test_a_table_of_which_a_part_was_lost_is_lost_and_the_job_rewrites_the_rest(lake: Lakehouse) -> None:
    found = _with_spark(lake, _lose_a_commit)
    assert [model.LOST, model.DONE] == [each.outcome for each in found], found
    assert [(1, 3, 1), (2, 6, 1)] == [(each.partitions, each.files, each.conflicts) for each in found], found


def _rewrite_badly(root: str) -> None:
    with _started(root) as spark:
        spark.run("CREATE TABLE l.a.t (x INT, p INT) PARTITIONED BY (p)")
        for number in range(4):
            spark.run(f"INSERT INTO l.a.t VALUES ({number}, 0), ({number}, 1)")
        whole = spark.plan("t")
        rows = spark.rows("t")

        # a changed value: the rows of the new snapshot have another hash
        ask = engine._TableRewrite._ask
        engine._TableRewrite._ask = lambda self, columns, number: (*ask(self, columns, number)[:1], number)  # type: ignore[method-assign, assignment]
        [wrong] = spark.compact(whole, prove=model.HASH)
        engine._TableRewrite._ask = ask  # type: ignore[method-assign]
        assert (model.WRONG, "") == (wrong.outcome, wrong.proved)
        assert f"at snapshot {whole.snapshot_id} again" in wrong.reason
        assert whole.snapshot_id == spark.plan("t").snapshot_id
        assert rows == spark.rows("t")

        # the same, but somebody has written since: his rows stay
        def write_first(self: Any, columns: str, number: int) -> tuple[Any, ...]:
            spark.run("INSERT INTO l.a.t VALUES (99, 0)")
            return (1, number)

        engine._TableRewrite._ask = write_first  # type: ignore[method-assign]
        [wrong] = spark.compact(spark.plan("t"), prove=model.HASH)
        engine._TableRewrite._ask = ask  # type: ignore[method-assign]
        assert model.WRONG == wrong.outcome
        assert "others have written since" in wrong.reason
        assert "keeps its old files" in wrong.reason
        assert 1 == len(spark.lake.refresh().snapshots())
        assert {"Row(x=99, p=0)", "(99, 0)"} & set(spark.rows("t"))

        # one partition of a plan, and no other
        spark.run("INSERT INTO l.a.t VALUES (5, 0), (5, 1)")
        planned = spark.plan("t")
        [done] = spark.compact(replace(planned, groups=planned.groups[:1]))
        assert (model.DONE, 1) == (done.outcome, done.after)
        assert 1 == len(spark.plan("t").groups), "the other partition is as it was"

        [late] = spark.compact(spark.plan("t"), seconds=1e-9)
        assert model.TIMEOUT == late.outcome
        [unsorted] = spark.compact(spark.plan("t"), strategy=model.SORT)
        assert model.UNSUPPORTED == unsorted.outcome
        assert "it has no sort order" in unsorted.reason

        spark.lake.refresh().freeze(reason="a test")
        [frozen] = spark.compact(spark.plan("t"))
        assert model.FROZEN == frozen.outcome, frozen


def test_what_is_not_proved_is_taken_back_unless_somebody_wrote_since(lake: Lakehouse) -> None:
    _with_spark(lake, _rewrite_badly)


def _rewrite_beside_an_expiry(root: str) -> None:
    with _started(root) as spark:
        spark.run("CREATE TABLE l.a.t (x INT)")
        for number in range(3):
            spark.run(f"INSERT INTO l.a.t VALUES ({number})")
        once = tables_expire.Config(older_than_seconds=0, keep_last=1)
        _around_next_call(lambda: None, lambda: tables_expire.run(spark.lake.refresh(), once))
        [unproved] = spark.compact(spark.plan("t"), prove=model.HASH)
        assert model.UNPROVEN == unproved.outcome, unproved
        [kept] = spark.lake.refresh().snapshots()
        assert f"snapshot {kept.name} of the lakehouse keeps its old files" in unproved.reason


def _count_rows_and_files(lake: Lakehouse, **at: str) -> tuple[int, int]:
    table = TrinityLakeCatalog.over(lake, **at).load_table("a.t")
    return len(table.scan().to_arrow()), len(list(table.scan().plan_files()))


def test_what_an_unproved_rewrite_replaced_stays_until_its_snapshot_is_dropped(lake: Lakehouse) -> None:
    _with_spark(lake, _rewrite_beside_an_expiry)
    [kept] = lake.refresh().snapshots()
    later = int(time.time() * 1000) + 30 * 86_400_000

    def clean() -> int:
        expire.run(lake.refresh(), expire.Config(engine="local", keep_last=1, now_millis=later))
        time.sleep(1.1)  # a cleaning with age zero keeps what is of its own second
        config = tables_clean.Config(engine="local", older_than_seconds=0, allow_recent=True)
        return tables_clean.run(lake.refresh(), config).deleted

    clean()
    assert (3, 3) == _count_rows_and_files(lake, snapshot=kept.name)
    assert (3, 1) == _count_rows_and_files(lake)
    lake.drop_snapshot(kept.name)
    assert clean() >= 3
    assert (3, 1) == _count_rows_and_files(lake)


def _run_the_job(root: str) -> None:
    with _started(root) as spark:
        _with_deletes(spark, "v3", 3)
        spark.run("CREATE TABLE l.a.small (x INT)")
        for number in range(3):
            spark.run(f"INSERT INTO l.a.small VALUES ({number})")
        _with_deletes(spark, "`v3.day`", 3)
        names = ("v3", "`v3.day`", "small")
        before = {name: spark.rows(name) for name in names}
        config = tables_compact.Config(rules=GroupRules(min_files=2), settings=Settings(prove=model.HASH))
        done = tables_compact.run(spark.lake.refresh(), config, spark.spark)
        engines = {each.table: (each.engine, each.outcome) for each in done.outcomes}
        by_spark = dict.fromkeys(("a.v3", "a.v3.day"), ("spark", model.DONE))
        assert by_spark | {"a.small": ("local", model.DONE)} == engines, done
        assert before == {name: spark.rows(name) for name in names}
        assert not tables_compact.run(spark.lake.refresh(), config, spark.spark).planned


def test_auto_gives_spark_what_this_process_cannot_rewrite(lake: Lakehouse) -> None:
    _with_spark(lake, _run_the_job)


def _keep_ids(root: str) -> None:
    with _started(root) as spark:
        spark.run("CREATE TABLE l.a.ids (id INT, p INT) PARTITIONED BY (p) TBLPROPERTIES ('format-version' = '3')")
        for number, partition in ((0, 1), (1, 1), (2, 1), (10, 2)):
            spark.run(f"INSERT INTO l.a.ids VALUES ({number}, {partition})")
        asked = "SELECT id, p, _row_id, _last_updated_sequence_number FROM l.a.ids ORDER BY id"
        before = spark.run(asked)
        assert [(0, 1, 0), (1, 1, 1), (2, 1, 2), (10, 2, 3)] == [tuple(row)[:3] for row in before]
        planned = spark.plan("ids")
        assert 1 == len(planned.groups)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(SparkCatalog, "keeps_rows_of_manifests", lambda catalog: False)
            [only] = spark.compact(replace(planned, groups=(), manifests=4), prove=model.HASH)
            assert model.UNSUPPORTED == only.outcome
            assert "gives rows of format version 3 other IDs" in only.reason
            [done] = spark.compact(replace(planned, groups=planned.groups, manifests=4))
            assert (model.DONE, 0) == (done.outcome, done.manifests), "only files were rewritten"
        spark.run("INSERT INTO l.a.ids VALUES (3, 1)")
        before = spark.run(asked)
        [done] = spark.compact(replace(spark.plan("ids"), manifests=2), prove=model.HASH)
        assert (model.DONE, model.HASH, "", 2) == (done.outcome, done.proved, done.reason, done.manifests), done
        assert before == spark.run(asked)


def test_no_row_of_format_version_3_gets_another_id(lake: Lakehouse) -> None:
    _with_spark(lake, _keep_ids)


_SIDE: Final = 16


def _sort_and_merge_manifests(root: str) -> None:
    with _started(root) as spark:
        # a sort: four files of rows in no order become one in the order of the table
        for name, order in (("sorted", "x DESC"), ("curve", "x, y")):
            spark.run(f"CREATE TABLE l.a.{name} (x INT, y INT)")
            for begin in range(4):
                spark.run(
                    f"INSERT INTO l.a.{name} SELECT CAST(id / {_SIDE} AS INT), CAST(id % {_SIDE} AS INT) "
                    f"FROM range({_SIDE * _SIDE}) WHERE id % 4 = {begin} ORDER BY hash(id)"
                )
            spark.run(f"ALTER TABLE l.a.{name} WRITE ORDERED BY {order}")
        rows = spark.rows("sorted")
        [done] = spark.compact(spark.plan("sorted"), strategy=model.SORT, prove=model.HASH)
        assert (model.DONE, model.HASH, 1) == (done.outcome, done.proved, done.after), done
        assert rows == spark.rows("sorted")
        found = [x for x, _ in spark.in_file("sorted")]
        assert sorted(found, reverse=True) == found

        # a curve: each quarter of the square is a quarter of the file
        [done] = spark.compact(spark.plan("curve"), strategy=model.ZORDER, prove=model.HASH)
        assert (model.DONE, model.HASH, 1) == (done.outcome, done.proved, done.after), done
        assert rows == spark.rows("curve")
        half = _SIDE // 2
        quarter = spark.in_file("curve")[: half * half]
        assert {(x, y) for x in range(half) for y in range(half)} == set(quarter)

        # of a table with large files, of which few rows are deleted, the small ones, which the plan names
        spark.run(
            "CREATE TABLE l.a.mixed (x INT) TBLPROPERTIES ('write.target-file-size-bytes' = '20000', "
            "'format-version' = '2', 'write.delete.mode' = 'merge-on-read')"
        )
        for rows_of_file in (5000, 5000, 5000, 10, 10, 10, 10):
            spark.run(f"INSERT INTO l.a.mixed SELECT hash(id) FROM range(0, {rows_of_file}, 1, 1)")
        spark.run("DELETE FROM l.a.mixed WHERE x = hash(CAST(4000 AS BIGINT))")
        spark.run("ALTER TABLE l.a.mixed WRITE ORDERED BY x")
        rows = spark.rows("mixed")
        deletes = spark.files("mixed")[1]
        before = set(spark.run("SELECT file_path FROM l.a.mixed.files WHERE record_count > 10"))
        config = tables_compact.Config(
            pattern="a.mixed", rules=GroupRules(4, 1.0, 1.0), settings=Settings(strategy=model.SORT)
        )
        done_by_job = tables_compact.run(spark.lake.refresh(), config, spark.spark)
        assert (4, 1) == (done_by_job.files_before, done_by_job.files_made), done_by_job
        assert (rows, deletes) == (spark.rows("mixed"), spark.files("mixed")[1])
        assert before <= set(spark.run("SELECT file_path FROM l.a.mixed.files"))

        # manifests alone, of format version 3 with deletion vectors, which this process does not write
        _with_deletes(spark, "v3", 3)
        rows = spark.rows("v3")
        files = spark.files("v3")
        config = tables_compact.Config(pattern="a.v3", rules=GroupRules(1000, 1.0, 1.0), manifests=3)
        done_by_job = tables_compact.run(spark.lake.refresh(), config, spark.spark)
        assert {"a.v3": "spark"} == {each.table: each.engine for each in done_by_job.outcomes}, done_by_job
        assert (0, {}) == (done_by_job.files_before, done_by_job.failures)
        assert (rows, files) == (spark.rows("v3"), spark.files("v3"))
        [(manifests,)] = spark.run("SELECT count(*) FROM l.a.v3.manifests WHERE content = 0")
        assert 1 == manifests
        assert () == tables_compact.run(spark.lake.refresh(), config, spark.spark).planned


def test_rows_are_sorted_and_manifests_merged_by_spark(lake: Lakehouse) -> None:
    _with_spark(lake, _sort_and_merge_manifests)


def _split_large_files(root: str) -> None:
    with _started(root) as spark:
        for version in (2, 3):
            name = f"v{version}"
            spark.run(f"CREATE TABLE l.a.{name} (x BIGINT, y DOUBLE) TBLPROPERTIES ('format-version' = '{version}')")
            for begin, end in ((0, 100_000), (100_000, 100_100)):
                spark.run(f"INSERT INTO l.a.{name} SELECT id, hash(id) / 7 FROM range({begin}, {end}, 1, 1)")
            ids = "x, y, _row_id, _last_updated_sequence_number" if version == 3 else "x, y"
            before = sorted(spark.run(f"SELECT {ids} FROM l.a.{name}"))
            [(large,)] = spark.run(f"SELECT max(file_size_in_bytes) FROM l.a.{name}.files")
            spark.run(f"ALTER TABLE l.a.{name} SET TBLPROPERTIES ('write.target-file-size-bytes' = '{large // 3}')")
            config = tables_compact.Config(pattern=f"a.{name}", engine="spark", settings=Settings(prove=model.HASH))
            done = tables_compact.run(spark.lake.refresh(), config, spark.spark)
            assert ({}, 2) == (done.failures, done.files_before), done
            assert 3 <= done.files_made, done
            assert before == sorted(spark.run(f"SELECT {ids} FROM l.a.{name}"))
            [(most,)] = spark.run(f"SELECT max(file_size_in_bytes) FROM l.a.{name}.files")
            assert most < large // 3 * 1.8
            if (
                version == 2
            ):  # the IDs of rows look large to the writer until a row group is packed: it makes smaller files
                assert () == tables_compact.run(spark.lake.refresh(), config, spark.spark).planned


def test_spark_splits_large_files_of_both_format_versions(lake: Lakehouse) -> None:
    _with_spark(lake, _split_large_files)


def _read_foreign_types(root: str) -> None:
    with _started(root) as spark:
        catalog = TrinityLakeCatalog.over(spark.lake.refresh())
        for number, kind in enumerate((TimeType(), TimestampNanoType(), TimestamptzNanoType())):
            schema = Schema(NestedField(1, "c", kind, required=False))
            catalog.create_table(f"a.t{number}", schema, properties={"format-version": "3"})
            with pytest.raises(StatementFailed, match=r"(?i)spark does not support|cannot convert"):
                spark.rows(f"t{number}")
            document = {"schemas": [json.loads(schema.model_dump_json())]}
            assert f"{kind}" == plan.type_foreign_to_spark(document)


def test_spark_reads_no_table_with_a_column_of_which_the_plan_says_so(lake: Lakehouse) -> None:
    _with_spark(lake, _read_foreign_types)


_PARTITIONS: Final = {
    "times": ("TIMESTAMP", "timestamp_seconds(1700000000 + k)", "p"),
    "plain": ("TIMESTAMP_NTZ", "CAST(timestamp_seconds(1700000000 + k) AS TIMESTAMP_NTZ)", "p"),
    "floats": ("FLOAT", "CAST(k / 3 - 1 AS FLOAT)", "p"),
    "doubles": ("DOUBLE", "k / 3 - 1", "p"),
    "bytes": ("BINARY", "CAST(concat('o', k) AS BINARY)", "p"),
    "first": ("BINARY", "CAST(concat(k, 'bc') AS BINARY)", "truncate(2, p)"),
}
"""Types of a column, its values by a number, and the partition."""


def _merge_any_partitions(root: str) -> None:
    with _started(root) as spark:
        for name, (kind, value, partition) in _PARTITIONS.items():
            spark.run(
                f"CREATE TABLE l.a.{name} (x BIGINT, p {kind}) PARTITIONED BY ({partition}) "
                f"TBLPROPERTIES ('format-version' = '2', {_MERGE_ON_READ})"
            )
            for begin in (0, 8):
                numbers = f"(SELECT id, id % 4 AS k FROM range({begin}, {begin + 8}, 1, 1))"
                spark.run(f"INSERT INTO l.a.{name} SELECT id, {value} FROM {numbers}")
            spark.run(f"DELETE FROM l.a.{name} WHERE x IN (4, 5)")
            rows = spark.rows(name)
            planned = spark.plan(name)
            some = replace(planned, groups=tuple(each for each in planned.groups if each.delete_files))
            assert 2 == len(some.groups)
            [done] = spark.compact(some, prove=model.HASH)
            assert (model.DONE, model.HASH, 4, 2) == (done.outcome, done.proved, done.files, done.after), (name, done)
            assert (rows, {0: 6}) == (spark.rows(name), spark.files(name)), name


def test_partitions_of_any_type_with_deletes_are_merged_and_no_others(lake: Lakehouse) -> None:
    _with_spark(lake, _merge_any_partitions)

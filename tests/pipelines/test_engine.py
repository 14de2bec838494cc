"""The engines: the same tables, the same answers, here and on Spark."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JError

from pipelines.engine import Engine, Row, Rows, local, open_engine
from pipelines.engine.counting import keep_counted
from pipelines.engine.local import LocalEngine
from pipelines.engine.model import INT, LONG, TEXT
from pipelines.engine.spark import SparkEngine
from trinitylake_core.errors import CorruptNode, StorageError
from trinitylake_core.storage import Storage, open_storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LONGEST_PLAN = 200_000
"""Characters."""
_FILES = pa.schema({"path": TEXT, "bytes": LONG})
_TREE = pa.schema({"path": TEXT, "height": INT})
_GROUPED = pa.schema({"number": INT, "text": TEXT})
_MADE = pa.schema({"number": INT, "text": TEXT, "rows": LONG})


@pytest.fixture(params=["local", pytest.param("spark", marks=pytest.mark.spark)])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """Both engines."""
    made = open_engine(request.param, request.getfixturevalue("spark") if request.param == "spark" else None)
    yield made
    made.close()


def twice(rows: Iterator[Row]) -> Iterator[tuple[str, int | None]]:
    for row in rows:
        yield row["path"] * 2, None if row["bytes"] is None else 2 * row["bytes"]


def children(rows: Iterator[Row], log: str) -> Iterator[tuple[str, int]]:
    for row in rows:
        with Path(log).open("a", encoding="utf-8") as lines:
            lines.write(f"{row['path']}\n")
        yield from ((row["path"] + side, row["height"] - 1) for side in "ab")


def damaged(rows: Iterator[Row]) -> Iterator[tuple[str, int]]:
    for row in rows:
        raise CorruptNode(f"{row['path']} is damaged", path=row["path"], invariant="I1")
    yield from ()


def written(rows: Iterator[Row], storage: Storage) -> Iterator[tuple[str, int]]:
    for row in rows:
        storage.write_many([(row["path"], b"x" * row["bytes"])])
        yield row["path"], storage.info(row["path"]).size


def grouped(groups: Iterable[Sequence[Row]], storage: Storage) -> Iterator[list[tuple[int, str, int]]]:
    for rows in groups:
        text = "".join(sorted(row["text"] for row in rows))
        if text == "damaged":
            raise CorruptNode("a group is damaged", path=text, invariant="I1")
        storage.write_many([(f"groups/{rows[0]['number']}", text.encode())])
        yield [(rows[0]["number"], text, len(rows)), (rows[0]["number"], "again", 0)][: 2 if len(rows) > 1 else 1]


def test_groups_of_rows_are_mapped(engine: Engine, tmp_path: Path) -> None:
    """Each in one piece, with all its rows; a number without rows is no group."""
    storage, told = open_storage(tmp_path.as_uri()), list[int]()
    rows = [{"number": number, "text": text} for number, text in ((0, "a"), (3, "c"), (0, "b"), (1, "d"), (3, "e"))]
    given = engine.table(rows, _GROUPED).keep("number")
    made = engine.map_groups(
        grouped,
        given,
        _MADE,
        storage,
        by="number",
        weight="length(text)",
        key="number",
        progress=lambda done, _: told.append(done),
    )
    wanted = [(0, "ab", 2), (0, "again", 0), (1, "d", 1), (3, "again", 0), (3, "ce", 2)]
    assert wanted == sorted((row["number"], row["text"], row["rows"]) for row in made.list())
    assert told
    assert [b"ab", b"d", b"ce"] == [storage.read(f"groups/{number}") for number in (0, 1, 3)]
    sums = engine.sql("SELECT number, sum(rows) AS rows FROM made GROUP BY number ORDER BY number", made=made).list()
    assert [2, 1, 2] == [row["rows"] for row in sums]
    nothing = engine.map_groups(
        grouped, engine.table([], _GROUPED), _MADE, storage, by="number", weight="number", progress=lambda *_: None
    )
    assert [] == nothing.list()
    given = engine.table([{"number": 0, "text": "damaged"}], _GROUPED)
    with pytest.raises(CorruptNode, match="a group is damaged"):
        engine.map_groups(grouped, given, _MADE, storage, by="number", weight="number", progress=lambda *_: None).list()


def test_a_query_of_queries_finds_all_rows_and_computes_kept_ones_once(engine: Engine, tmp_path: Path) -> None:
    """Level by level, as a walk: Spark 4.1 lost rows of such queries where each named its tables by `WITH`."""
    work = partial(children, log=str(tmp_path / "log"))
    levels, pending = list[Rows](), engine.table([{"path": "r", "height": 3}], _TREE)
    for height in (2, 1, 0, -1):
        levels.append(engine.map(work, pending, _TREE).keep("path", repeatable=True))
        assert 2 ** (3 - height) == engine.sql("SELECT count(*) AS rows FROM level", level=levels[-1]).one()["rows"]
        tables = {f"level{number}": level for number, level in enumerate(levels)}
        walked = engine.sql(" UNION ALL ".join(f"SELECT * FROM {name}" for name in tables), **tables)
        query = f"SELECT path, max(height) AS height FROM walked WHERE height = {height} GROUP BY path"
        pending = engine.sql(query, walked=walked).keep("path", repeatable=True)
    found = [row["path"] for row in walked.list()]
    assert (30, 30) == (len(found), len(set(found)))
    assert 15 == len((tmp_path / "log").read_text(encoding="utf-8").splitlines())


@pytest.mark.spark
def test_plans_of_kept_rows_stay_short(spark: SparkSession) -> None:
    """Each level asks all those above, as a walk does: a plan said again and again how the first one was made.

    Texts of nine megabytes came of that in a verification, and Spark keeps a thousand of them.
    """
    engine = SparkEngine(lambda: spark)
    levels: list[Rows] = [engine.table([{"path": "a", "bytes": 1}], _FILES)]
    for number in range(2, 8):
        query = "SELECT e.path, max(e.bytes) + 1 AS bytes FROM every e GROUP BY e.path"
        levels.append(engine.sql(query, every=levels).keep("path", repeatable=True))
        assert {"path": "a", "bytes": number} == levels[-1].one()
    last: Any = engine.sql("SELECT * FROM levels", levels=levels)
    limit = spark.conf.get("spark.sql.maxPlanStringLength")
    assert limit == "65536"
    spark.conf.unset("spark.sql.maxPlanStringLength")  # which hides the rest of a text, but does not save the work
    try:
        plan = last.frame._jdf.queryExecution().toString()
    finally:
        spark.conf.set("spark.sql.maxPlanStringLength", limit)
    assert len(plan) < _LONGEST_PLAN, len(plan)
    engine.close()


def test_a_query_of_a_table_that_was_not_given_is_a_mistake(engine: Engine) -> None:
    with pytest.raises(KeyError, match="others"):
        engine.sql("SELECT * FROM others", rows=engine.table([], _FILES))


def test_empty_tables_stay_tables(engine: Engine) -> None:
    nothing = engine.map(twice, engine.table([], _FILES), _FILES).keep("path")
    assert (0, []) == (nothing.count(), nothing.list())
    assert {"files": 0, "bytes": None} == engine.sql(
        "SELECT count(*) AS files, sum(bytes) AS bytes FROM empty", empty=nothing
    ).one()


def test_work_is_done_with_storages_where_it_is_done(engine: Engine, tmp_path: Path) -> None:
    storage = open_storage(tmp_path.as_uri())
    rows = [{"path": f"file{number}", "bytes": number} for number in range(20)]
    done = engine.map(written, engine.table(rows, _FILES), _FILES, storage, each=3).list()
    assert rows == sorted(done, key=lambda row: int(row["path"][4:]))
    assert 20 == sum(1 for _ in storage.list(""))


def test_what_work_raises_arrives_as_itself(engine: Engine) -> None:
    rows = engine.map(damaged, engine.table([{"path": "here", "bytes": 1}], _FILES), _FILES)
    with pytest.raises(CorruptNode, match="here is damaged"):
        rows.keep().count()


def test_a_join_that_does_not_fit_into_memory_spills() -> None:
    """100,000 names are 6 MB, and 64 KB are allowed: sorts, an index and a join go through a temporary file."""
    pick, count = Random(5), 100_000
    names = [f"{pick.getrandbits(200):060x}" for _ in range(count)]
    live = set(pick.sample(names, count - 1000))
    engine = LocalEngine(memory_bytes=1 << 16)
    files = engine.table(({"path": name, "bytes": 1} for name in names), _FILES).keep()
    kept = engine.table(({"path": name, "bytes": 1} for name in live), _FILES).keep("path")
    query = "SELECT * FROM files f WHERE NOT EXISTS (SELECT 1 FROM kept k WHERE k.path = f.path) ORDER BY path"
    assert sorted(set(names) - live) == [row["path"] for row in engine.sql(query, files=files, kept=kept).stream()]
    grouped = engine.sql("SELECT path, sum(bytes) AS bytes FROM files GROUP BY path", files=files).keep()
    assert count == grouped.count()
    ((pages, size),) = engine.execute("SELECT * FROM pragma_page_count, pragma_page_size").fetchall()
    ((cache,),) = engine.execute("PRAGMA cache_size").fetchall()
    assert pages * size > 100 * (1 << 16)
    assert -64 == cache
    engine.close()


def test_no_room_for_temporary_files_is_said() -> None:
    engine = LocalEngine(memory_bytes=1 << 12)
    engine.execute("PRAGMA max_page_count = 50")
    rows: Any = engine.table(({"path": f"{number:0200}", "bytes": 1} for number in range(5000)), _FILES)
    with pytest.raises(StorageError, match="set TMPDIR"):
        rows.keep()
    engine.close()


def test_a_mistake_in_a_query_is_no_lack_of_room() -> None:
    engine = LocalEngine()
    with pytest.raises(sqlite3.OperationalError):
        engine.sql("SELECT nothing FROM files", files=engine.table([], _FILES)).list()
    engine.close()


def test_a_disk_that_was_full_is_named_by_whatever_comes_next(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """SQLite calls the file malformed then: nobody is to look for a damaged lakehouse."""
    monkeypatch.setattr(local, "_PRAGMAS", (*local._PRAGMAS, "max_page_count = 5"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    engine = LocalEngine()
    schema = _GROUPED
    one = engine.table([{"number": 1, "text": "a"}], schema).keep("number")
    many = engine.table([{"number": number, "text": "b" * 4000} for number in range(50)], schema)
    query = engine.sql("SELECT * FROM t", t=one)
    for action in (many.keep, one.count, one.list, query.list, query.count, query.keep, query.table_name):
        with pytest.raises(StorageError, match=f"the disk is full; make room in {tmp_path}"):
            action()
    one.drop()
    engine.close()


def loses_once(rows: Iterator[Row], flag: str) -> Iterator[tuple[str, int | None]]:
    """Pass rows on, but for the first one of all, where nobody has lost one before."""
    for number, row in enumerate(rows):
        if number == 0:
            try:
                Path(flag).touch(exist_ok=False)
            except FileExistsError:
                pass
            else:
                continue
        yield row["path"], row["bytes"]


@pytest.mark.parametrize("queries", [0, 100])
@pytest.mark.spark
def test_what_is_counted_is_asked_again(spark: SparkSession, tmp_path: Path, queries: int) -> None:
    """Spark took what it had kept for the answer to an equal part of the query that counts it."""
    engine = SparkEngine(lambda: spark)
    given = engine.table([{"path": letter, "bytes": 1} for letter in "abc"], _FILES)
    found = engine.map(partial(loses_once, flag=str(tmp_path / "lost")), given, _FILES)
    found.queries = queries
    with pytest.raises(StorageError, match="lost rows"):
        keep_counted(engine, "names", "SELECT path FROM found", "path", found=found)
    engine.close()


@pytest.mark.spark
def test_an_engine_closes_after_its_session_has_ended(spark: SparkSession, caplog: pytest.LogCaptureFixture) -> None:
    """The error that ended it is told, and not one of closing."""
    engine = SparkEngine(lambda: spark)
    kept = engine.sql("SELECT path FROM given", given=engine.table([{"path": "a", "bytes": 1}], _FILES)).keep()

    def unpersist() -> None:
        raise Py4JError("the session has ended")

    kept.frame.unpersist = unpersist  # type: ignore[method-assign, assignment]
    engine.close()
    assert "could not let go of what a job kept: the session has ended" in caplog.text

"""Bulk load on Spark and in this process: the same result as transactions, all or nothing, beside other writers."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pipelines import compaction, load
from pipelines.job import Cancel, dry_run
from pipelines.source import loading
from tests.support.lakes import FAST, CancelBy, content, filled, new_lake, once, reopened
from tests.support.s3_servers import S3Server
from trinitylake_core import Lakehouse
from trinitylake_core.commits.changes import TreeReplaced
from trinitylake_core.errors import (
    AlreadyExists,
    CommitConflict,
    InvalidInput,
    InvalidName,
    ObjectNotFound,
    TrinityLakeError,
)
from trinitylake_core.storage import open_storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = [{"name": "id", "type": "bigint", "nullable": False}, {"name": "tags", "type": "list", "element": "text"}]
Entry = dict[str, dict[str, Any]]


@pytest.fixture
def session(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> SparkSession | None:
    """Return a session, which cuts even small loads into ranges."""
    if request.node.callspec.params["engine"] != "spark":
        return None
    monkeypatch.setattr(loading, "KEYS_MIN", 20)
    monkeypatch.setattr(loading, "BLOCK_BYTES_MIN", 700)
    found: SparkSession = request.getfixturevalue("spark")
    return found


def table(namespace: str, name: str, **more: Any) -> Entry:
    return {"create_table": {"namespace": namespace, "name": name, "schema": COLUMNS, **more}}


def namespace(name: str) -> Entry:
    return {"create_namespace": {"namespace": name, "properties": {"owner": "me"}}}


def view(namespace: str, name: str) -> Entry:
    return {"create_view": {"namespace": namespace, "name": name, "sql": "SELECT 1"}}


def source(directory: Path, entries: Iterable[Entry], name: str = "objects.jsonl") -> str:
    path = directory / "source" / name
    path.parent.mkdir(exist_ok=True)
    text = "".join(json.dumps(each) + "\n" for each in entries)
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return str(path)


def many() -> list[Entry]:
    """Return objects for everywhere: before, between and behind those of the lakehouse; not in their order."""
    made = [table(f"ns{number % 3}", f"n{number:03}") for number in range(60)]
    made += [table(f"ns{number % 3}", f"u{number:03}", properties={"n": str(number)}) for number in range(60)]
    made += [namespace("aa"), namespace("zz"), *(table("zz", f"t{number:03}") for number in range(30))]
    made += [view("aa", f"v{number:02}") for number in range(30)]
    return made[::-1]


def names(lake: Lakehouse) -> set[tuple[str, str, str | None]]:
    return {(entry.kind, entry.namespace, entry.name) for entry in lake.objects()}


def loaded(
    spark: SparkSession | None,
    lake: Lakehouse,
    uri: str,
    engine: str = "local",
    cancel: Cancel | None = None,
    review: Any = None,
    **how: Any,
) -> load.Report:
    return load.run(
        lake, uri, load.Config(engine=engine, **how), spark, source_options={}, review=review, cancel=cancel
    )


@pytest.mark.parametrize("engine", ["local", pytest.param("spark", marks=[pytest.mark.spark, pytest.mark.slow])])
def test_a_load_says_what_transactions_would_have_said(
    engine: str, session: SparkSession | None, lake: Lakehouse, tmp_path: Path
) -> None:
    """On top of what is there, which keeps its definitions; sound, packed, and told in the history."""
    before, version, entries = content(lake), lake.version, many()
    done = loaded(session, lake, source(tmp_path, entries), engine, reason="migration")
    assert (len(entries), 0, 0, version + 1) == (done.added, done.replaced, done.skipped, done.version_after)
    assert (done.trees > 1) == (engine == "spark")
    newest = Lakehouse.open(lake.storage)
    assert [] == list(newest.check())
    assert {} == {key: path for key, path in before.items() if content(newest)[key] != path}
    assert len(before) + len(entries) == newest.stats().objects == len(names(newest))
    assert 0 == newest.stats().messages
    assert {"n": "7"} == dict(newest.table("ns1", "u007").properties)
    assert ["id", "tags"] == [column.name for column in newest.table("zz", "t001").schema.columns]
    assert ({"owner": "me"}, "SELECT 1") == (
        dict(newest.namespace("aa").properties),
        newest.view("aa", "v01").sql_representations[0].sql,
    )
    (told,) = newest.history(limit=1)
    assert ("load", "migration", len(entries)) == (told.operation, told.reason, told.summary["added"])
    changes = {(each.change, each.kind, each.namespace, each.name) for each in newest.diff(version, newest.version)}
    assert {("added", *each) for each in names(newest) - names(newest.at(version=version))} == changes


def test_objects_that_exist(lake: Lakehouse, tmp_path: Path) -> None:
    """Refused with file and line; or left alone; or defined anew. And a load that changes nothing commits nothing."""
    uri = source(tmp_path, [namespace("new"), table("ns0", "t000", properties={"new": "yes"}), namespace("ns1")])
    before, version = content(lake), lake.version
    with pytest.raises(AlreadyExists, match=r"2 objects exist already: .*objects\.jsonl, line 3.*--existing skip"):
        loaded(None, lake, uri)
    assert version == lake.refresh().version
    done = loaded(None, lake, uri, existing="skip")
    assert (1, 0, 2) == (done.added, done.replaced, done.skipped)
    assert before.items() <= content(lake).items()
    again = loaded(None, lake, uri, existing="skip")
    assert (0, 3, None, version + 1) == (again.added, again.skipped, again.version_after, lake.refresh().version)
    anew = loaded(None, lake, uri, existing="replace")
    assert (0, 3, version + 2) == (anew.added, anew.replaced, anew.version_after)
    assert {"new": "yes"} == dict(lake.table("ns0", "t000").properties)
    assert ([], len(before) + 1) == (list(lake.check()), len(names(lake)))


NO_JSON = ("oops\n", InvalidInput, r"line 2: not valid JSON")
TWICE = (json.dumps(namespace("fine")), InvalidInput, r"'fine' appears twice: .*line 1 and .*line 2")
HOMELESS = (json.dumps(table("no", "t")), ObjectNotFound, "there is no namespace 'no'; load it, too")
EMPTY = ("{}\n", InvalidInput, r"objects\.jsonl, line 2: the entry must be one action.*nothing was loaded")
DROP = ('{"drop_table": {"namespace": "ns0", "name": "t000"}}', InvalidInput, "line 2: drop_table cannot be loaded")
LONG = ('{"create_table": {"namespace": "a", "name": "waytoolong"}}', InvalidInput, "line 2: .* 10 bytes long")


@pytest.mark.parametrize(("text", "kind", "message"), [NO_JSON, TWICE, HOMELESS, EMPTY, DROP, LONG])
def test_what_cannot_be_loaded_changes_nothing(
    text: str, kind: type[TrinityLakeError], message: str, lake: Lakehouse, tmp_path: Path
) -> None:
    """The line is named; not even a file is written."""
    uri = source(tmp_path, [namespace("fine")])
    with Path(uri).open("a") as file:
        file.write(text)
    before = {each.path for each in lake.storage.list("")}
    with pytest.raises(kind, match=message):
        loaded(None, lake, uri)
    assert before == {each.path for each in lake.storage.list("")}


def test_a_name_that_is_no_name_is_named(lake: Lakehouse, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"line 1: .*forbidden character"):
        loaded(None, lake, source(tmp_path, [namespace("a b")]))
    with pytest.raises(InvalidInput, match="nothing to load at"):
        loaded(None, lake, source(tmp_path, []))
    with pytest.raises(InvalidInput, match="existing must be one of refuse, skip, replace"):
        load.Config(existing="overwrite")
    assert issubclass(InvalidName, InvalidInput)


def test_a_dry_run_counts_and_writes_nothing(lake: Lakehouse, tmp_path: Path) -> None:
    before = {each.path for each in lake.storage.list("")}
    uri = source(tmp_path, [namespace("new"), table("ns0", "t000")])
    done = loaded(None, lake, uri, existing="replace", review=dry_run)
    assert (1, 1, None, True) == (done.added, done.replaced, done.version_after, done.dry_run)
    assert before == {each.path for each in lake.storage.list("")}


def test_several_files_some_compressed(tmp_path: Path) -> None:
    lake = new_lake(tmp_path)
    source(tmp_path, (table("a", f"t{number:03}") for number in range(100)), "b.jsonl.gz")
    uri = source(tmp_path, [namespace("a"), namespace("b")], "a.ndjson").rpartition("/")[0]
    done = loaded(None, lake, uri)
    assert (2, 102, []) == (done.files, done.added, list(lake.check()))


# -- beside others -----------------------------------------------------------------------------------------


def raced(lake: Lakehouse, uri: str, meanwhile: Any, spark: SparkSession | None = None, **how: Any) -> load.Report:
    """Load, while somebody else does something right before the commit."""
    first_time = once(lambda: meanwhile(Lakehouse.open(lake.storage)))
    return loaded(spark, lake, uri, cancel=CancelBy(first_time), **how)


def test_commits_in_between_stay(lake: Lakehouse, tmp_path: Path) -> None:
    """An object of another name, one changed, one dropped, a namespace dropped that the load left alone."""

    def others(other: Lakehouse) -> None:
        with other.transaction() as txn:
            txn.create_table("ns0", "mine")
            txn.alter_table("ns1", "t001", properties={"a": "b"})
            txn.drop_table("ns2", "t002")
        other.refresh()
        compaction.run(other, compaction.Config(engine="local"))
        with other.refresh().transaction() as txn:
            txn.drop_namespace("ns2", cascade=True)

    done = raced(lake, source(tmp_path, [table("ns0", "loaded")]), others)
    assert 2 == done.rebased_over
    newest = Lakehouse.open(lake.storage)
    there = names(newest)
    assert {("table", "ns0", "mine"), ("table", "ns0", "loaded"), ("table", "ns1", "t001")} <= there
    assert not any(namespace == "ns2" for _, namespace, _ in there)
    assert ({"a": "b"}, []) == (dict(newest.table("ns1", "t001").properties), list(newest.check()))


@pytest.mark.parametrize("what", ["same name", "replaced", "namespace", "rollback"])
def test_commits_in_between_that_touch_the_same_conflict(what: str, lake: Lakehouse, tmp_path: Path) -> None:
    """Nothing is lost: the load says so, and changes nothing."""
    uri = source(tmp_path, [table("ns0", "loaded"), table("ns1", "t001")])

    def others(other: Lakehouse) -> None:
        if what == "rollback":
            other.rollback(version=5, reason="test")
            return
        with other.transaction() as txn:
            if what == "same name":
                txn.create_table("ns0", "loaded", properties={"theirs": "yes"})
            elif what == "replaced":
                txn.drop_table("ns1", "t001")
            else:
                txn.drop_namespace("ns0", cascade=True)

    kind = TreeReplaced if what == "rollback" else CommitConflict
    with pytest.raises(kind, match="load again"):
        raced(lake, uri, others, existing="replace")
    newest = Lakehouse.open(lake.storage)
    assert ([], "rollback" if what == "rollback" else "commit") == (list(newest.check()), newest.info().operation)


@pytest.mark.parametrize("engine", ["local", pytest.param("spark", marks=pytest.mark.spark)])
def test_what_a_load_skips_is_there_in_its_version(
    session: SparkSession | None, lake: Lakehouse, tmp_path: Path, engine: str
) -> None:
    """Objects that were dropped, or are in a dropped namespace, conflict; others that are dropped or changed do not."""
    other, *given = lake.tables("ns1")[:4]
    uri = source(tmp_path, [namespace("ns1"), *(table("ns1", name) for name in given), table("ns0", "loaded")])

    def drop(*names: str) -> Any:
        def others(beside: Lakehouse) -> None:
            with beside.transaction() as txn:
                for name in names:
                    txn.drop_table("ns1", name)
                txn.alter_table("ns1", given[2], properties={"a": "b"})

        return others

    def drop_all(beside: Lakehouse) -> None:
        with beside.transaction() as txn:
            txn.drop_namespace("ns1", cascade=True)

    for dropped, named in ((drop(given[1]), given[1]), (drop_all, "ns1")):
        version = lake.refresh().version
        with pytest.raises(CommitConflict, match=f"{named}.* wrote or depends on; load again"):
            raced(lake, uri, dropped, session, existing="skip", engine=engine)
        assert version + 1 == reopened(lake).version
        lake.refresh().rollback(version=version, reason="test")
    done = raced(lake, uri, drop(other), session, existing="skip", engine=engine)
    assert (1, 4, 1) == (done.added, done.skipped, done.rebased_over)
    newest = reopened(lake)
    assert {*given} <= {*newest.tables("ns1")}
    assert other not in newest.tables("ns1")
    assert [] == list(newest.check())


# -- costs and places --------------------------------------------------------------------------------------


def test_what_it_costs(tmp_path: Path) -> None:
    """A definition is one put, a new node one put, a node that is there one get, and the source two."""
    lake = filled(new_lake(tmp_path), tables=200, changes=50)
    compaction.run(lake, compaction.Config(engine="local"))
    cold = Lakehouse.open(open_storage(lake.root, FAST))
    nodes = sum(1 for _ in nodes_below(cold))
    before = cold.storage.counts.snapshot()
    done = loaded(None, cold, source(tmp_path, [namespace("new"), table("new", "t")]))
    cost = cold.storage.counts - before
    assert done.nodes_written - 1 + 2 + 1 == cost.put  # nodes without the root, definitions, the hint
    height = reopened(lake).stats().height or 0
    assert (
        cost.get <= nodes + len(cold.root_node.node.children) + 5 + 2 * height
    )  # 5: the search and the commit; 2 per level: objects are counted
    assert 1 <= cost.create <= 2  # the root, and once a process the proof of exclusive creation


def nodes_below(lake: Lakehouse) -> Iterable[str]:
    waiting = [*lake.root_node.node.children]
    while waiting:
        path = waiting.pop()
        yield path
        waiting += lake.backend.nodes.read(path).children


@pytest.mark.spark
@pytest.mark.s3
def test_on_s3_with_a_source_on_s3(spark: SparkSession, moto_server: S3Server) -> None:
    """Tasks read the source and write definitions and nodes."""
    root = moto_server.new_root()
    lake = Lakehouse.create(f"{root}lake", storage_options=moto_server.options, order=8)
    text = "".join(json.dumps(each) + "\n" for each in [namespace("a"), *(table("a", f"t{n:03}") for n in range(200))])
    open_storage(root, moto_server.options).replace("export/part-0.jsonl", text.encode())
    done = load.run(lake, f"{root}export/", load.Config(engine="spark"), spark)
    assert ("spark", 201, []) == (done.engine, done.added, list(Lakehouse.open(lake.storage).check(definitions=True)))


def test_all_wrong_lines_are_told_at_once(lake: Lakehouse, tmp_path: Path) -> None:
    """Up to twenty of them, in the order of files and lines, and how many there are."""
    uri = source(tmp_path, [namespace("fine")])
    wrong = ["", "oops", '{"drop_view": {"namespace": "a", "name": "b"}}']
    Path(uri).write_text("\n".join([json.dumps(namespace("fine")), *wrong]))
    with pytest.raises(InvalidInput) as two:
        loaded(None, lake, uri)
    assert "2 lines cannot be loaded; nothing was loaded:" in str(two.value)
    assert ["line 3: not valid JSON", "line 4: drop_view cann"] == [
        line.split("objects.jsonl, ")[1][:22].rstrip(": ") for line in str(two.value).splitlines()[1:]
    ]
    Path(uri).write_text("{}\n" * 50)
    with pytest.raises(InvalidInput, match=r"(?s)^50 lines cannot be loaded.*line 20: .*\.\.\. and 30 more$"):
        loaded(None, lake, uri)

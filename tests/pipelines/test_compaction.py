"""Compaction on Spark and in this process: the same result, paid for by what is dirty, on disk and on S3."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pipelines import compaction
from pipelines.job import dry_run
from tests.model.files import Directory
from tests.model.tree import TreeJudge, root_path
from tests.support.lakes import NAME_SIZE, content, filled, new_lake
from tests.support.s3_servers import KEY, SECRET, S3Server
from tests.support.sweep import DiskPlace, Files, Place, S3Place, read_files, write_files
from tests.support.wide import wide
from trinitylake_core import Lakehouse
from trinitylake_core.errors import CorruptNode, InvalidInput
from trinitylake_core.storage import durability
from trinitylake_core.storage.local import LocalStorage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ENGINES: dict[str, dict[str, Any]] = {
    "spark": {"engine": "spark"},
    "few tasks": {"engine": "spark", "tasks": 2},
    "local": {"engine": "local"},
    "auto": {"engine": "auto"},
}


def _dirty(directory: Path) -> Files:
    """Return the files of a lakehouse with messages in nodes on several levels, deletes and drops among them."""
    lake = filled(new_lake(directory, order=6, target=6000), tables=150, namespaces=3, changes=15)
    with lake.transaction() as txn:
        txn.drop_namespace("ns0", cascade=True)
        for number in range(1, 150, 9):
            if number % 3 == 1:
                txn.alter_table("ns1", f"t{number:03}", properties={"a": "b"})
    return read_files(directory / "lake")


@pytest.fixture(scope="module")
def dirty(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """The files of a lakehouse that needs a compaction."""
    return _dirty(tmp_path_factory.mktemp("dirty"))


@pytest.fixture(params=["disk"])
def place(request: pytest.FixtureRequest, dirty: Files) -> Iterator[Place]:
    """The lakehouse on disk, or on S3."""
    made: Place = DiskPlace() if request.param == "disk" else S3Place(request.getfixturevalue("moto_server"))
    made.reset(dirty)
    yield made
    made.close()


def _open(place: Place) -> Lakehouse:
    return Lakehouse.open(place.root, storage_options=dict(place.options))


@pytest.mark.spark
def test_every_engine_gives_the_same(spark: SparkSession, place: Place, dirty: Files) -> None:
    """Content, digest, counts and height; before and after, and of each other."""
    lake = _open(place)
    before = (lake.digest(), content(lake))
    assert (lake.stats().messages or 0) > lake.stats().root_messages > 0
    reports = {}
    for name, config in ENGINES.items():
        place.reset(dirty)
        lake = _open(place)
        reports[name] = report = compaction.run(lake, compaction.Config(**config), spark)
        fresh = _open(place)
        assert (report.version_before + 1, report.version_after) == (report.version_after, fresh.version)
        assert fresh.version == lake.version
        assert before == (fresh.digest(), content(fresh))
        assert (0, len(before[1])) == (fresh.stats().messages, fresh.stats().objects)
        assert [] == list(fresh.check())
        assert report.proved
        assert ((report.messages_before or 0) > 0, 0) == (True, report.messages_after)
    on_spark = {name for name, report in reports.items() if report.plan.engine == "spark"}
    assert {"spark", "few tasks"} == on_spark
    assert 1 == len({report.height_after for report in reports.values()})


def test_nothing_to_do_is_no_version(place: Place) -> None:
    """A compacted lakehouse is left alone, and Spark is not even asked for."""
    lake = _open(place)
    compaction.run(lake, compaction.Config(engine="local"))
    files = place.files()
    report = compaction.run(lake, compaction.Config(engine="spark"))
    assert (None, 0, 0) == (report.version_after, report.nodes_written, report.subtrees)
    assert files == place.files()


@pytest.mark.parametrize("engine", ["spark", "local", "auto"])
def test_a_dry_run_changes_nothing(place: Place, engine: str) -> None:
    """It tells what would be done, without Spark."""
    files = place.files()
    lake = _open(place)
    report = compaction.run(lake, compaction.Config(engine=engine), review=dry_run)
    assert files == place.files()
    assert (True, None, lake.version) == (report.dry_run, report.version_after, report.plan.version)
    assert report.plan == compaction.estimate(lake, compaction.Config(engine=engine)) or report.plan.subtrees
    assert 0 < report.plan.nodes < report.plan.requests
    assert lake.stats().messages == report.plan.messages


@pytest.mark.spark
def test_one_sync_makes_what_tasks_of_this_machine_wrote_durable(
    spark: SparkSession, tmp_path: Path, dirty: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks send nothing to the disk; the commit does, after the last of them and before the root has a name."""
    write_files(tmp_path, dirty)
    lake = Lakehouse.open(f"file://{tmp_path}")
    events: list[str] = []
    syncfs, link = durability.sync_filesystem, os.link
    monkeypatch.setattr(durability, "sync_filesystem", lambda path: (events.append("sync"), syncfs(path)))
    monkeypatch.setattr(os, "link", lambda *names, **where: (events.append("link"), link(*names, **where)))
    without_barriers, asked = LocalStorage.without_barriers, list[LocalStorage]()
    monkeypatch.setattr(
        LocalStorage, "without_barriers", lambda self: asked.append(without_barriers(self)) or asked[-1]
    )

    def told(phase: str, done: int, total: int | None) -> None:
        if phase == "flush subtrees" and done == total:
            events.append("flushed")

    done = compaction.run(lake, compaction.Config(engine="spark"), spark, progress=told)
    assert done.proved
    assert ["flushed", "sync", "link"] == events
    assert [False] == [storage.spec()[1]["durable"] for storage in asked]


def test_spark_needs_a_session(place: Place) -> None:
    """And says so before anything is written."""
    files = place.files()
    with pytest.raises(InvalidInput, match="session"):
        compaction.run(_open(place), compaction.Config(engine="spark"))
    assert files == place.files()


@pytest.mark.parametrize("engine", ["in this process", "local", pytest.param("spark", marks=pytest.mark.spark)])
@pytest.mark.parametrize(("order", "tables"), [(5, 400), (129, 3000)])
def test_a_compaction_drops_pivots_where_nothing_else_waits(
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    engine: str,
    order: int,
    tables: int,
) -> None:
    """Of the root; of each level, among them all of one node; and all that there is. The judge reads what is left."""
    spark = request.getfixturevalue("spark") if engine == "spark" else None
    if engine != "in this process":
        monkeypatch.setattr(compaction, "_SHARED_FROM_ROWS", 0)
    full = compaction.Config("spark" if engine == "spark" else "local", full=True, tasks=2)
    lake = wide(tmp_path, tables, order)
    sizes = dict.fromkeys("BCD", NAME_SIZE)
    judge = TreeJudge(Directory(tmp_path / "lake").read, lambda _, path: path, order, 1 << 20, sizes)
    for level in (0, 1, 2):
        doomed = _keys_of_nodes(lake, level)
        with lake.transaction() as txn:
            for key in doomed:
                txn.put(key, None)
        expected = judge.judge(root_path(lake.refresh().version)).content()
        assert not expected.keys() & set(doomed)
        report = compaction.run(lake, full, spark)
        found = judge.judge(root_path(lake.refresh().version))
        counted = lake.stats()
        assert (expected, 0) == (found.content(), found.all_messages)
        assert (counted.namespaces, counted.tables, counted.views) == found.counts
        assert (True, 0) == (report.proved, report.messages_after)
        assert [] == [each for each in lake.check() if each.invariant != "I12"]


def _keys_of_nodes(lake: Lakehouse, level: int) -> list[str]:
    """Return the pivots of the root, those of all inner nodes, or every key."""
    if level == 2:
        return [each.key for each in lake.objects()]
    nodes = [lake.root_node.node]
    found = []
    while nodes[0].children:
        found += [key for node in nodes for key in node.keys]
        if level == 0:
            break
        nodes = [lake.nodes.read(path) for node in nodes for path in node.children]
    return found


# Others commit meanwhile.


# It goes wrong.


def test_a_node_that_breaks_between_plan_and_run_stops_it(place: Place) -> None:
    """A dirty node's file is damaged: the error names it, nothing is committed."""
    lake = _open(place)
    planned = compaction.estimate(lake, compaction.Config(engine="local"))
    assert planned.subtrees
    node = lake.root_node.node
    while True:
        inside = list(zip(node.child_messages or [], node.children, strict=True))
        heaviest, path = max(inside)
        assert heaviest
        child = lake.nodes.read(path)
        if child.is_leaf or not sum(child.child_messages or []):
            break
        node = child
    files = place.files()
    broken = bytearray(files[path])
    broken[len(broken) // 2] ^= 0xFF
    place.reset({**files, path: bytes(broken)})
    with pytest.raises(CorruptNode) as corrupt:
        compaction.run(_open(place), compaction.Config(engine="local"))
    assert path in str(corrupt.value)
    assert lake.version == _open(place).version


def test_without_its_proof_nothing_is_committed(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sums of before and after differ: an error, no version."""
    monkeypatch.setattr("trinitylake_core.tree.rewrite.Rewriter.is_proved", lambda self: False)
    version = _open(place).version
    with pytest.raises(Exception, match="proof"):
        compaction.run(_open(place), compaction.Config(engine="local"))
    assert version == _open(place).version


# Secrets.


@pytest.mark.spark
@pytest.mark.s3
def test_nothing_secret_is_in_sparks_configuration_or_plans(
    spark: SparkSession, moto_server: S3Server, dirty: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks on S3 got their credentials, and did their work, but Spark shows them nowhere."""
    place = S3Place(moto_server)
    place.reset(dirty)
    plans: list[str] = []
    kind = type(spark.range(1))

    def spy(name: str) -> None:
        collect = getattr(kind, name)

        def spied(frame: Any, *args: Any, **kwargs: Any) -> Any:
            plans.append(frame._jdf.queryExecution().toString())
            plans.append(frame._jdf.queryExecution().logical().toJSON())
            return collect(frame, *args, **kwargs)

        monkeypatch.setattr(kind, name, spied)

    spy("toArrow")
    spy("toLocalIterator")
    report = compaction.run(_open(place), compaction.Config(engine="spark"), spark)
    assert report.proved
    assert plans
    shown = [*plans, repr(report), repr(report.plan)]
    context = spark.sparkContext
    shown += [f"{name}={value}" for name, value in context.getConf().getAll()]
    shown += [str(context._jsc.hadoopConfiguration()), str(spark._jsparkSession.conf().getAll())]
    assert [] == [text[:200] for text in shown if SECRET in text or KEY in text]

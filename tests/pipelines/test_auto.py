"""The engine ``auto``: a compaction begun here and handed to Spark elsewhere; any job where Spark cannot be started."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from pipelines import (
    auto,
    backup,
    compaction,
    diff,
    expiration,
    export,
    load,
    orphans,
    processes,
    restore,
    rollback,
    verify,
)
from pipelines.job import dry_run, engine_for, silent
from pipelines.session import LazySession, SessionConfig, parallelism
from pipelines.trees import workers
from tests.support.lakes import content, filled, new_lake, reopened
from trinitylake_core import Lakehouse
from trinitylake_core.commits.commit import now_millis
from trinitylake_core.errors import InvalidInput
from trinitylake_core.tree.nodestore import NodeWriter
from trinitylake_core.tree.rewrite import Rewriter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def side_by_side(lake: Lakehouse) -> Lakehouse:
    """Return a lakehouse whose requests go out at the same time, as on an object store."""
    root, options = lake.storage.spec()
    return Lakehouse.open(root, storage_options={**options, "max_concurrency": 2})


@pytest.mark.parametrize(
    ("config", "elsewhere"),
    [
        (SessionConfig(), False),
        (SessionConfig(mode="master", master="local[4]"), False),
        (SessionConfig(mode="master", master="spark://host:7077"), True),
        (SessionConfig(mode="connect", remote="sc://host:15002"), True),
    ],
)
def test_only_a_spark_elsewhere_may_take_over(
    config: SessionConfig, elsewhere: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipelines.session.spark.active_session", lambda: None)
    assert elsewhere == auto.may_move("auto", LazySession(config))
    assert not auto.may_move("local", LazySession(config))
    assert not auto.may_move("spark", LazySession(config))


def test_nothing_is_handed_to_nobody() -> None:
    assert not auto.may_move("auto", None)


@pytest.mark.parametrize(("taken", "rest", "enough"), [(4.9, 99.0, False), (5.0, 9.9, False), (5.0, 10.0, True)])
def test_it_is_enough_after_a_start_of_spark_where_as_much_is_left_twice(
    taken: float, rest: float, enough: bool
) -> None:
    assert enough == auto.is_enough(taken, rest)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Spark starts in so many seconds, it seems, and elsewhere; each piece is measured."""

    def start(seconds: float) -> None:
        monkeypatch.setattr(auto, "START_SECONDS", seconds)
        monkeypatch.setattr(auto, "on_other_machines", lambda _: True)
        monkeypatch.setattr(compaction, "_SHARED_FROM_NODES", 1)
        monkeypatch.setattr(processes, "START_SECONDS", 1000.0)

    return start


def test_what_was_taken_when_it_is_enough_is_done_here_and_the_rest_is_left(tmp_path: Path) -> None:
    """Where requests go out at the same time, subtrees are taken ahead, and finished after it was said to be enough."""
    lake = side_by_side(filled(new_lake(tmp_path, order=4), tables=160, changes=20))
    store = lake.files.store
    rewriter = Rewriter(NodeWriter(store), now_millis(), prove=True)
    frontier = rewriter.frontier(rewriter.ref_of(lake.root_node.node), auto.TASKS)
    rows, left = workers.flush_here(store, frontier, rewriter.stamp, silent, lambda *_: True)
    assert len(frontier) == len(rows) + len(left)
    assert len(rows) > 1
    assert len(left) > 1


@pytest.mark.spark
@pytest.mark.parametrize("ahead", [False, True])
def test_what_was_begun_here_is_finished_on_spark(
    tmp_path: Path, spark: SparkSession, impatient: Callable[[float], None], ahead: bool
) -> None:
    """Each subtree once, by the one or the other, and the proof holds over both."""
    lake = filled(new_lake(tmp_path, order=4), tables=160, changes=20)
    lake = side_by_side(lake) if ahead else lake
    before = content(lake), lake.digest()
    impatient(0.0)
    told: list[int] = []
    report = compaction.run(
        lake,
        compaction.Config(engine="auto"),
        spark,
        progress=lambda phase, done, _: told.append(done) if "flush" in phase else None,
    )
    assert (report.proved, report.plan.engine, report.messages_after) == (True, "spark", 0)
    here = told[told.index(0) - 1]  # then Spark begins to count
    assert ((here > 1) == ahead, report.subtrees) == (True, here + told[-1])
    assert told[0] == 1
    assert lake.root_node.summary["engine"] == "spark"
    assert before == (content(reopened(lake)), lake.digest())
    assert [] == list(reopened(lake).check())


@pytest.mark.spark
def test_what_is_soon_done_stays_here(tmp_path: Path, spark: SparkSession, impatient: Callable[[float], None]) -> None:
    lake = filled(new_lake(tmp_path, order=4), tables=160, changes=20)
    impatient(1000.0)
    report = compaction.run(lake, compaction.Config(engine="auto"), lambda: spark)
    assert (report.proved, report.plan.engine, report.messages_after) == (True, "local", 0)
    assert [] == list(reopened(lake).check())


# -- a Spark that cannot be started ----------------------------------------------------------------------


@pytest.fixture
def no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LazySession:
    """A Spark that cannot be started, and every lakehouse is large."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "empty"))
    monkeypatch.setattr("pipelines.session.spark.active_session", lambda: None)
    for choose in (engine_for, auto.engine_ready):
        monkeypatch.setattr(choose, "__defaults__", (1,))
    return LazySession(SessionConfig(mode="master", master="spark://127.0.0.1:1"))


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]


@pytest.mark.parametrize("config", [{}, {"spark_from_nodes": 1}])
def test_a_compaction_goes_on_here_where_spark_cannot_be_started(
    tmp_path: Path,
    no_java: LazySession,
    impatient: Callable[[float], None],
    caplog: pytest.LogCaptureFixture,
    config: dict[str, int],
) -> None:
    """Whether it was to begin on Spark or be handed over; what it makes is what the engine ``local`` makes."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    auto_lake, local_lake = (filled(new_lake(tmp_path / name, order=4), tables=160) for name in ("one", "two"))
    before = content(auto_lake), auto_lake.digest()
    local = compaction.run(local_lake, compaction.Config(engine="local"))
    impatient(0.0)
    report = compaction.run(auto_lake, compaction.Config(engine="auto", **config), no_java)
    assert (report.proved, report.plan.engine, report.messages_after) == (True, "local", 0)
    assert (local.height_after, local.messages_after) == (report.height_after, report.messages_after)
    assert before == (content(reopened(auto_lake)), auto_lake.digest())
    assert auto_lake.root_node.summary["engine"] == "local"
    assert [] == list(reopened(auto_lake).check())
    (said,) = warnings(caplog)
    assert "goes on in this process" in said
    assert f'none was found at "{tmp_path}/empty/bin/java"' in said
    assert "choose engine 'local'" in said


def test_who_asks_for_spark_by_name_gets_the_error_and_nothing_is_committed(
    tmp_path: Path, no_java: LazySession, caplog: pytest.LogCaptureFixture
) -> None:
    lake = filled(new_lake(tmp_path, order=4), tables=160)
    with pytest.raises(InvalidInput, match="Spark needs Java"):
        compaction.run(lake, compaction.Config(engine="spark"), no_java)
    assert (lake.version, []) == (reopened(lake).version, warnings(caplog))


OLD = rollback.Config(2, reason="test", spark_from_files=1)
SALES = restore.Config(version=5, only=("ns0.*",), reason="test", spark_from_files=1)


def _load(spark: Any, lake: Lakehouse, engine: str) -> Any:
    source = Path(urlsplit(lake.root).path).parent / "names.jsonl"
    source.write_text('{"create_namespace": {"namespace": "new"}}\n', encoding="utf-8")
    return load.run(lake, source.as_uri(), load.Config(engine=engine, spark_from_bytes=1), spark, review=dry_run)


JOBS: dict[str, Callable[[Any, Lakehouse, str], Any]] = {
    "verify": lambda spark, lake, engine: verify.run(lake, verify.Config(engine=engine, definitions=True), spark),
    "backup": lambda spark, lake, engine: backup.run(
        lake, lake.root[:-1] + "-copy/", backup.Config(engine=engine), spark
    ),
    "clean": lambda spark, lake, engine: orphans.run(
        lake, orphans.Config(engine=engine, now_millis=2**42), spark, review=dry_run
    ),
    "expire": lambda spark, lake, engine: expiration.run(
        lake, expiration.Config(engine=engine, keep_last=1, now_millis=2**42), spark, review=dry_run
    ),
    "export": lambda spark, lake, engine: export.run(
        lake, lake.root[:-1] + "-new/", export.Config(engine=engine, spark_from_files=1), spark, review=dry_run
    ),
    "load": _load,
    "diff": lambda spark, lake, engine: diff.report(
        lake.at(version=1), lake, diff.Config(engine=engine, spark_from_nodes=1), spark
    ),
    "rollback": lambda spark, lake, engine: rollback.run(lake, replace(OLD, engine=engine), spark, review=dry_run),
    "restore": lambda spark, lake, engine: restore.run(lake, replace(SALES, engine=engine), spark, review=dry_run),
}


@pytest.mark.parametrize("name", JOBS)
def test_every_job_goes_on_here_where_spark_cannot_be_started(
    tmp_path: Path, no_java: LazySession, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    """It reports what the engine ``local`` does, and says once why."""
    lake = filled(new_lake(tmp_path), tables=40)
    with lake.transaction() as txn:
        txn.drop_namespace("ns0", cascade=True)
    lake.refresh()
    export.run(lake, lake.root[:-1] + "-copy/", export.Config(engine="local"))
    here = JOBS[name](None, reopened(lake), "local")
    assert [] == warnings(caplog)
    assert but_for_time(here) == but_for_time(JOBS[name](no_java, reopened(lake), "auto"))
    assert 1 == len(warnings(caplog))


def but_for_time(report: Any) -> Any:
    """Return a report without what choosing costs: seconds, and the top of both trees that ``diff`` compares."""
    return {name: value for name, value in asdict(report).items() if name not in {"seconds", "requests"}}


def test_only_what_a_start_of_spark_raises_is_forgiven(no_java: LazySession) -> None:
    """A run that was stopped, a defect, an option that means no Spark at all: the caller is told."""

    class Stopped(Exception):
        """What the code of others raises."""

    def stopped(_: SessionConfig) -> Any:
        raise Stopped

    with pytest.raises(Stopped):
        auto.ready("auto", "spark", LazySession(SessionConfig(), stopped))
    with pytest.raises(InvalidInput, match="must be one of"):
        auto.ready("auto", "spark", LazySession(lambda: SessionConfig(mode="cloud")))
    assert ["spark", "local"] == [auto.ready(engine, engine, no_java) for engine in ("spark", "local")]


@pytest.mark.spark
def test_a_cluster_without_a_free_executor_is_not_waited_for_for_ever(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Spark would wait; here others take every slot until a file appears."""
    go = tmp_path / "go"

    def hold(batches: Any) -> Any:
        while not go.exists():
            time.sleep(0.05)
        yield from batches

    cores = int(spark.sparkContext.defaultParallelism)
    busy = threading.Thread(target=spark.range(0, cores, 1, cores).mapInArrow(hold, "id bigint").count)
    monkeypatch.setattr(parallelism, "on_one_machine", lambda _: False)
    monkeypatch.setattr(auto, "EXECUTOR_SECONDS", 0.5)
    monkeypatch.setattr(parallelism, "_known", weakref.WeakKeyDictionary())
    busy.start()
    while len(spark.sparkContext.statusTracker().getActiveStageIds()) == 0:
        time.sleep(0.05)
    assert "local" == auto.ready("auto", "spark", spark)
    (said,) = warnings(caplog)
    assert "no executor has run a task in 0.5 s" in said
    assert "goes on in this process" in said
    go.touch()
    busy.join()
    monkeypatch.setattr(auto, "EXECUTOR_SECONDS", 60.0)
    assert "spark" == auto.ready("auto", "spark", spark)


@pytest.mark.spark
def test_what_java_says_of_a_failed_start_is_asked_before_it_is_ended() -> None:
    """The text of its errors is in Java; the name of the master is what people can correct."""
    program = (
        "from pipelines.session import SessionConfig, lazy_session\n"
        "with lazy_session(SessionConfig(mode='master', master='spark://nowhere')) as session: session()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert 1 == done.returncode
    last = done.stderr.splitlines()[-1]
    assert "InvalidInput: Spark does not start with the master spark://nowhere: " in last
    assert "Invalid master URL" in last

"""The choice of the engine, and a job where the Spark that was chosen cannot be started."""

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
    backup,
    clean,
    compaction,
    diff,
    expire,
    export,
    load,
    restore,
    rollback,
    stats,
    tables_clean,
    tables_health,
    verify,
)
from pipelines.engine import choice as engine_choice
from pipelines.engine.choice import choose_engine, choose_engine_for_all, expected_engine
from pipelines.engine.local import LocalEngine
from pipelines.integrity import definition_prover
from pipelines.integrity.definition_prover import DefinitionProver
from pipelines.job import dry_run, silent
from pipelines.session import LazySession, SessionConfig
from pipelines.session import spark as spark_session
from tests.support.lakes import content, filled, new_lake, reopened
from trinitylake_core import Lakehouse
from trinitylake_core.errors import InvalidInput

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


CLUSTER = SessionConfig(mode="master", master="spark://host:7077")


@pytest.fixture
def no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """No session runs: one that does answers for itself."""
    for module in ("pipelines.session.spark", "pipelines.engine.choice"):
        monkeypatch.setattr(f"{module}.active_session", lambda: None)


@pytest.mark.parametrize(
    ("config", "elsewhere"),
    [
        (SessionConfig(), False),
        (SessionConfig(mode="master", master="local[4]"), False),
        (CLUSTER, True),
        (SessionConfig(mode="connect", remote="sc://host:15002"), True),
    ],
)
@pytest.mark.usefixtures("no_session")
def test_auto_is_spark_on_other_machines_from_so_much_work_on(config: SessionConfig, elsewhere: bool) -> None:
    spark = LazySession(config)
    engines = [expected_engine("auto", spark, amount, 1_000) for amount in (999, 1_000, 1 << 40)]
    assert ["local", *(2 * ["spark" if elsewhere else "local"])] == engines
    assert {"local"} == {expected_engine("local", spark, amount, 1_000) for amount in (0, 1 << 40)}
    by_name = [expected_engine("spark", spark, amount, 1_000) for amount in (0, 1, None, 1 << 40)]
    assert ["local", "spark", "spark", "spark"] == by_name  # nothing to do starts no Spark


def test_without_a_session_auto_is_this_process() -> None:
    assert "local" == choose_engine("auto", None, 1 << 40, 1).name


@pytest.mark.spark
def test_large_work_stays_off_a_spark_of_this_machine(tmp_path: Path, spark: SparkSession) -> None:
    """It has the same cores, and takes ten times as long: a rollback in an incident, before all."""
    lake = filled(new_lake(tmp_path), tables=40)
    for name in ("rollback", "restore", "export", "diff", "load"):
        done = asdict(JOBS[name](spark, reopened(lake), "auto"))
        assert "local" == done.get("engine", done.get("plan", {}).get("engine", "local"))
    plan = compaction.run(lake, compaction.Config(engine="auto", spark_from_nodes=1), spark).plan
    assert "local" == plan.engine


@pytest.mark.usefixtures("no_session")
def test_the_choice_is_logged_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "pipelines.engine.choice")
    choose_engine("auto", LazySession(SessionConfig()), 1 << 40, 1)
    choose_engine("auto", LazySession(CLUSTER), 5_000, 20_000)
    choose_engine("local", None, 0, 0)
    assert [
        "engine local: no Spark on other machines is configured",
        "engine local: the work is estimated at 5,000, and Spark pays from 20,000 on",
        "engine local: it was asked for by name",
    ] == [each.getMessage() for each in caplog.records]


def test_spark_by_name_is_refused_where_it_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """However little there is to do: not after a job has reported an engine that never ran."""
    monkeypatch.setattr("pipelines.session.spark.find_spec", lambda _: None)
    with pytest.raises(InvalidInput, match=r"pip install 'trinitylake-maintenance\[spark\] @ "):
        choose_engine("spark", None, 0, 1)
    assert "local" == choose_engine("auto", LazySession(SessionConfig()), 0, 1).name


# -- a Spark that cannot be started ----------------------------------------------------------------------


@pytest.fixture
def no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LazySession:
    """A Spark that cannot be started, and every lakehouse is large."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "empty"))
    monkeypatch.setattr("pipelines.session.spark.active_session", lambda: None)
    monkeypatch.setattr(engine_choice, "SPARK_FROM_OBJECTS", 1)
    return LazySession(SessionConfig(mode="master", master="spark://127.0.0.1:1"))


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]


def test_a_compaction_goes_on_here_where_spark_cannot_be_started(
    tmp_path: Path,
    no_java: LazySession,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What it makes is what the engine ``local`` makes."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    auto_lake, local_lake = (filled(new_lake(tmp_path / name, order=4), tables=160) for name in ("one", "two"))
    before = content(auto_lake), auto_lake.digest()
    local = compaction.run(local_lake, compaction.Config(engine="local"))
    report = compaction.run(auto_lake, compaction.Config(engine="auto", spark_from_nodes=1), no_java)
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
    "clean": lambda spark, lake, engine: clean.run(
        lake, clean.Config(engine=engine, now_millis=2**42), spark, review=dry_run
    ),
    "expire": lambda spark, lake, engine: expire.run(
        lake, expire.Config(engine=engine, keep_last=1, now_millis=2**42), spark, review=dry_run
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


def test_a_recovery_that_is_proved_in_parts_is_as_large_as_all_of_them(
    tmp_path: Path, no_java: LazySession, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = filled(new_lake(tmp_path), tables=40)
    changes = list(lake.diff(0, lake))
    prover = DefinitionProver(lake.storage, no_java, "auto", len(changes), tables=None, progress=silent)
    assert [] == prover.find_damaged(changes[:20]) == warnings(caplog)
    assert [] == prover.find_damaged(changes[20:])
    assert 1 == len(warnings(caplog)), "Spark is tried when the threshold is reached"
    assert 0 == prover.requests_in_tasks
    tasks = LocalEngine()
    monkeypatch.setattr(tasks, "not_counted", lambda requests: requests)
    monkeypatch.setattr(definition_prover, "choose_engine", lambda *_: tasks)
    assert [] == prover.find_damaged(changes[:20])
    assert 20 == prover.requests_in_tasks, "those of the parts before were counted here"


def but_for_time(report: Any) -> Any:
    """Return a report without what choosing costs: seconds, and the top of both trees that ``diff`` compares."""
    return {name: value for name, value in asdict(report).items() if name not in {"seconds", "requests"}}


@pytest.mark.usefixtures("no_java")
def test_only_what_a_start_of_spark_raises_is_forgiven() -> None:
    """A run that was stopped, a defect, an option that means no Spark at all: the caller is told."""

    class Stopped(Exception):
        """What the code of others raises."""

    def stopped(_: SessionConfig) -> Any:
        raise Stopped

    with pytest.raises(Stopped):
        choose_engine("auto", LazySession(CLUSTER, stopped), 1, 1)
    with pytest.raises(InvalidInput, match="must be one of"):
        choose_engine("auto", LazySession(lambda: SessionConfig(mode="cloud")), 1, 1)


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
    monkeypatch.setattr(spark_session, "on_one_machine", lambda _: False)
    monkeypatch.setattr(engine_choice, "on_other_machines", lambda _: True)
    monkeypatch.setattr(engine_choice, "EXECUTOR_SECONDS", 0.5)
    monkeypatch.setattr(spark_session, "_known", weakref.WeakKeyDictionary())
    busy.start()
    while len(spark.sparkContext.statusTracker().getActiveStageIds()) == 0:
        time.sleep(0.05)
    assert "local" == choose_engine("auto", spark, 1, 1).name
    (said,) = warnings(caplog)
    assert "no executor has run a task in 0.5 s" in said
    assert "goes on in this process" in said
    go.touch()
    busy.join()
    monkeypatch.setattr(engine_choice, "EXECUTOR_SECONDS", 60.0)
    assert "spark" == choose_engine("auto", spark, 1, 1).name


@pytest.mark.spark
def test_what_java_says_of_a_failed_start_is_asked_before_it_is_ended() -> None:
    """The text of its errors is in Java; the name of the master is what people can correct."""
    program = (
        "from pipelines.session import SessionConfig, lazy_session\n"
        "with lazy_session(SessionConfig(mode='master', master='spark://nowhere', secret='s')) as session: session()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert 1 == done.returncode
    last = done.stderr.splitlines()[-1]
    assert "InvalidInput: Spark does not start with the master spark://nowhere: " in last
    assert "Invalid master URL" in last


# -- little work -----------------------------------------------------------------------------------------


@pytest.fixture
def not_started(monkeypatch: pytest.MonkeyPatch) -> LazySession:
    """A Spark that fails the test if it is started, and none runs."""
    monkeypatch.setattr(engine_choice, "active_session", lambda: None)
    return LazySession(SessionConfig(), start=lambda _: pytest.fail("Spark was started"))


@pytest.mark.parametrize(
    ("amount", "spark_from", "name"),
    [(0, 1_000_000, "local"), (199, 1_000_000, "local"), (200, 1_000_000, "spark"), (None, 1_000_000, "spark")],
)
def test_little_work_starts_no_spark_whatever_the_engine(
    not_started: LazySession, amount: int | None, spark_from: int, name: str
) -> None:
    """The session would be there after the work is done; a session that was passed, or runs, is used."""
    assert name == choose_engine("spark", not_started, amount, spark_from).name
    assert f"{name}: " in not_started.choices[0]
    assert "spark" == choose_engine("spark", lambda: pytest.fail("Spark was started"), amount, spark_from).name


_NO_AGE: dict[str, Any] = {"older_than_seconds": 0.0, "allow_recent": True}
SMALL: dict[str, Callable[[Any, Lakehouse, str], Any]] = {
    "verify": JOBS["verify"],
    "expire": JOBS["expire"],
    "export": lambda spark, lake, engine: export.run(
        lake, lake.root[:-1] + "-new/", export.Config(engine=engine, history=True), spark
    ),
    "clean": lambda spark, lake, engine: clean.run(lake, clean.Config(engine=engine, **_NO_AGE), spark),
    "tables clean": lambda spark, lake, engine: tables_clean.run(
        lake, tables_clean.Config(engine=engine, **_NO_AGE), spark
    ),
    "tables health": lambda spark, lake, engine: tables_health.run(lake, tables_health.Config(engine=engine), spark),
    "diff": lambda spark, lake, engine: diff.report(lake.at(version=1), lake, diff.Config(engine=engine), spark),
    "compact": lambda spark, lake, engine: compaction.run(lake, compaction.Config(engine=engine, full=True), spark),
    "stats": lambda spark, lake, engine: stats.deep(
        lake, choose_engine_for_all(engine, spark, lake.root_node), storage=True
    ),
}


@pytest.mark.parametrize("engine", ["auto", "spark"])
@pytest.mark.parametrize("name", SMALL)
def test_no_job_on_a_small_lakehouse_starts_spark(
    tmp_path: Path, not_started: LazySession, name: str, engine: str
) -> None:
    """What is done sooner than Java would have started is done here, also where Spark was asked for by name."""
    lake = filled(new_lake(tmp_path, order=16), tables=20)
    SMALL[name](not_started, lake, engine)
    assert not_started.choices
    assert {"local"} == {choice.partition(":")[0] for choice in not_started.choices}


def test_a_diff_of_two_messages_starts_no_spark(tmp_path: Path, not_started: LazySession) -> None:
    lake = filled(new_lake(tmp_path, order=4), tables=160)
    before = lake.version
    with lake.transaction() as txn:
        txn.alter_table("ns0", next(lake.objects(kind="table")).name or "", properties={"a": "b"})
    found = diff.report(lake.at(version=before), lake.refresh(), diff.Config(engine="spark"), not_started)
    assert 1 == found.counts["changed"]
    assert "done before a Spark would have started" in not_started.choices[0]

"""What may be repeated is, what may not is not; and a run that is cancelled right before its commit does not commit."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dagster_project import assets, checks, manual_jobs
from dagster_project.config.settings import LakehouseSettings
from dagster_project.factory import define_lakehouses
from dagster_project.supervised import Supervisor
from pipelines import clean, compaction, expire, export, restore, rollback, snapshot, verify
from pipelines.engine.choice import expected_engine
from pipelines.session import LazySession, SessionConfig, spark
from tests.dagster.test_assets import STEP
from tests.dagster.test_retention import files
from tests.support.clock import Clock
from tests.support.lakes import CancelBy
from tests.support.surgery import directory_of
from trinitylake_core import Lakehouse, StorageDenied, StorageError, StorageFull

TEN_DAYS_MILLIS = 864_000_000
ASSETS = {
    assets.COMPACTION: compaction,
    assets.SNAPSHOTS: snapshot,
    assets.EXPIRATION: expire,
    assets.ORPHANS: clean,
    assets.BACKUP: export,
}
RECOVERY = {"rollback": (rollback, {"version": 1}), "restore": (restore, {"version": 1, "only": ["*"], "exact": True})}


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    """What is tried again is tried at once; ten days have passed for what deletes."""
    for module in (assets, checks, manual_jobs):
        monkeypatch.setattr(module, "RETRY", dg.RetryPolicy(max_retries=2))
    clock.forward(days=10)


@pytest.fixture
def local(settings: LakehouseSettings, lake: Lakehouse, tmp_path: Path) -> LakehouseSettings:
    """Return settings that need no Spark; the lakehouse is one that every job changes."""
    compaction.run(lake, compaction.Config(engine="local"))
    with lake.refresh().transaction() as txn:
        txn.create_table("sales", "new")
    lake.refresh().create_snapshot("short-lived")
    lake.refresh().drop_snapshot("short-lived")  # leaves orphans
    raw = {
        "name": settings.name,
        "root": settings.root,
        "compaction": {"engine": "local", "messages": 5},
        "snapshots": {"daily": {"keep": 2}},
        "retention": {"keep_last": 2, "older_than": "8d"},
        "orphans": {"older_than": "1d"},
        "backup": {"target": (tmp_path / "copy").as_uri()},
    }
    return LakehouseSettings.model_validate(raw)


def materialised(
    settings: LakehouseSettings, asset: str, instance: dg.DagsterInstance
) -> tuple[dg.ExecuteInProcessResult, int]:
    """Materialise one asset without its checks; return also how often it was tried again."""
    job = define_lakehouses((settings,)).get_repository_def().get_job("__ASSET_JOB")
    subset = job.get_subset(asset_selection={assets.key(settings, asset)}, asset_check_selection=set())
    return executed(subset, instance)


def executed(job: dg.JobDefinition, instance: dg.DagsterInstance, **more: Any) -> tuple[dg.ExecuteInProcessResult, int]:
    result = job.execute_in_process(instance=instance, raise_on_error=False, **more)
    return result, sum(event.event_type_value == "STEP_UP_FOR_RETRY" for event in result.all_events)


def launched(
    settings: LakehouseSettings, job: str, instance: dg.DagsterInstance, config: dict[str, Any]
) -> tuple[dg.ExecuteInProcessResult, int]:
    ops = {f"{STEP}{job}": {"config": {"reason": "test", "dry_run": False, **config}}}
    return executed(
        define_lakehouses((settings,)).resolve_job_def(f"sales_eu_{job}"), instance, run_config={"ops": ops}
    )


def failing(error: Exception, run: Callable[..., Any], times: int = 1) -> Callable[..., Any]:
    """Return a pipeline whose storage fails the first so many times."""
    calls = []

    def flaky(*args: Any, **more: Any) -> Any:
        calls.append(args)
        if len(calls) <= times:
            raise error
        return run(*args, **more)

    return flaky


@pytest.mark.parametrize("asset", ASSETS)
def test_a_failing_storage_is_tried_again_where_that_is_safe(
    asset: str, local: LakehouseSettings, lake: Lakehouse, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = files(lake)
    module: Any = ASSETS[asset]
    monkeypatch.setattr(module, "run", failing(StorageError("down"), module.run))
    result, again = materialised(local, asset, instance)
    assert (True, 1) == (result.success, again)
    assert files(lake) != before or asset == assets.BACKUP
    assert [] == list(lake.refresh().check())


def test_an_integrity_check_that_a_storage_failed_is_made_again(
    local: LakehouseSettings, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failing storage says nothing of the lakehouse: it must not count as a finding."""
    monkeypatch.setattr(verify, "run", failing(StorageError("down"), verify.run))
    job = define_lakehouses((local,)).get_repository_def().get_job("__ASSET_JOB")
    key = dg.AssetCheckKey(assets.key(local, assets.HEALTH), checks.INTEGRITY)
    result, again = executed(job.get_subset(asset_selection=set(), asset_check_selection={key}), instance)
    assert (True, 1, [True]) == (result.success, again, [e.passed for e in result.get_asset_check_evaluations()])


@pytest.mark.parametrize("asset", [assets.ORPHANS, assets.BACKUP])
def test_what_cannot_pass_is_not_tried_again(
    asset: str, local: LakehouseSettings, lake: Lakehouse, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wrong credentials stay wrong, and a full disk full, also that of temporary files.

    A storage that stays down is given up after more tries.
    """
    before = files(lake)
    full = OSError(errno.ENOSPC, "of a plan")
    for error, tries in ((StorageDenied("no"), 0), (StorageFull("no space"), 0), (full, 0), (StorageError("down"), 2)):
        monkeypatch.setattr(ASSETS[asset], "run", failing(error, print, times=99))
        result, again = materialised(local, asset, instance)
        assert (False, tries, before) == (result.success, again, files(lake))


@pytest.mark.parametrize("job", RECOVERY)
def test_a_rollback_and_a_restore_are_never_tried_again(
    job: str, local: LakehouseSettings, lake: Lakehouse, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, config = RECOVERY[job]
    monkeypatch.setattr(module, "run", failing(StorageError("down"), module.run))
    result, again = launched(local, job, instance, config)
    assert (False, 0, lake.refresh().version) == (result.success, again, lake.version)
    (failure,) = result.get_step_failure_events()
    assert "launch again when it is available" in str(failure.event_specific_data)


def cancelling(
    run: Callable[..., Any], instance: dg.DagsterInstance, asked: list[str], end: str = "report_run_canceling"
) -> Callable[..., Any]:
    """Return a pipeline whose run is cancelled right before it commits; the signal does not come through."""

    def guarded(hook: Callable[[], None]) -> Callable[[], None]:
        def cancelled_now() -> None:
            (at_work,) = instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED]))
            getattr(instance, end)(at_work)
            asked.append(at_work.run_id)
            hook()

        return cancelled_now

    def call(*args: Any, **more: Any) -> Any:
        if "cancel" in more:
            more["cancel"] = CancelBy(guarded(more["cancel"].check))
        return run(*args, **more)

    return call


def refused(result: dg.ExecuteInProcessResult, again: int, asked: list[str]) -> None:
    assert (False, 0, 1) == (result.success, again, len(asked))
    (failure,) = result.get_step_failure_events()
    assert "the run was cancelled" in str(failure.event_specific_data)


@pytest.mark.parametrize("asset", [assets.EXPIRATION, assets.BACKUP])
def test_an_asset_that_is_cancelled_right_before_its_commit_commits_nothing(
    asset: str, local: LakehouseSettings, lake: Lakehouse, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does it delete anything; and it is not tried again."""
    version, before, asked = lake.refresh().version, files(lake), []
    module: Any = ASSETS[asset]
    monkeypatch.setattr(module, "run", cancelling(module.run, instance, asked))
    refused(*materialised(local, asset, instance), asked)
    assert version == Lakehouse.open(lake.root).version
    assert before <= files(lake)
    assert not (asset == assets.BACKUP and list(directory_of(lake).parent.glob("copy/_0*")))


def test_a_run_that_was_given_up_commits_nothing(
    local: LakehouseSettings, lake: Lakehouse, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dagster counts it as failed because nobody knows of its process any more, and the next run may have begun."""
    version, asked = lake.refresh().version, list[str]()
    run = cancelling(compaction.run, instance, asked, "report_run_failed")
    monkeypatch.setattr(compaction, "run", run)
    refused(*materialised(local, assets.COMPACTION, instance), asked)
    assert version == Lakehouse.open(lake.root).version


def test_a_job_that_is_cancelled_right_before_its_commit_commits_nothing(
    local: LakehouseSettings, lake: Lakehouse, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which jobs ask before their commit: tests/pipelines/test_before_commit.py."""
    version, asked = lake.refresh().version, list[str]()
    monkeypatch.setattr(rollback, "run", cancelling(rollback.run, instance, asked))
    refused(*launched(local, "rollback", instance, RECOVERY["rollback"][1]), asked)
    assert version == Lakehouse.open(lake.root).version


def test_work_can_tell_where_its_spark_would_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine ``auto`` is Spark only on a cluster that is known to be one."""
    monkeypatch.setattr(spark, "active_session", lambda: None)  # a session that runs already answers for itself
    elsewhere = LazySession(SessionConfig(mode="master", master="spark://host:7077"))
    found = []

    @dg.op
    def look(context) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001 - Dagster refuses annotations that are texts
        sessions = elsewhere, LazySession(SessionConfig())
        found.append([expected_engine("auto", Supervisor(context, each).spark, 1, 1) for each in sessions])

    @dg.job
    def one() -> None:
        look()

    assert one.execute_in_process().success
    assert [["spark", "local"]] == found

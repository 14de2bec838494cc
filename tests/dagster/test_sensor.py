"""The compaction sensor: asks when it pays, one at a time, not too often, and always says why."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import dagster as dg
import pytest
from dagster._core.remote_origin import RegisteredCodeLocationOrigin, RemoteRepositoryOrigin

from dagster_project import assets, checks, compaction_policy, poll, scope
from dagster_project.config.settings import LAKEHOUSE_TAG, REASON_TAG, Compaction, LakehouseSettings, SnapshotPolicy
from dagster_project.factory import define_lakehouses
from dagster_project.poll import SensorState
from pipelines import compaction, snapshot, stats
from pipelines.trees.policy import waiting_bytes
from trinitylake_core import Lakehouse
from trinitylake_core.clock import now_millis


def look(
    settings: LakehouseSettings, instance: dg.DagsterInstance, cursor: str | None = None
) -> tuple[dg.SensorResult, str | None]:
    """Return what one tick comes to, and the cursor it leaves behind."""
    sensor = define_lakehouses((settings,)).get_repository_def().get_sensor_def("sales_eu_compaction_sensor")
    repository = define_lakehouses((settings,)).get_repository_def()
    with dg.build_sensor_context(instance=instance, cursor=cursor, repository_def=repository) as context:
        result = sensor(context)
        assert isinstance(result, dg.SensorResult)
        return result, result.cursor


def state(cursor: str | None) -> SensorState:
    """Return what a cursor holds of the lakehouse."""
    return poll.states_of(cursor)["sales-eu"]


def told(result: dg.SensorResult, instance: dg.DagsterInstance) -> list[tuple[str, bool]]:
    """Tell Dagster what a tick found, as the daemon does; return the verdicts, but for those of a healthy lakehouse."""
    for event in result.asset_events:
        instance.report_runless_asset_event(event)
    healthy = {checks.REACHABLE, checks.NOT_FROZEN}
    evaluations = [each for each in result.asset_events if isinstance(each, dg.AssetCheckEvaluation)]
    found = [each for each in evaluations if each.check_name not in healthy or not each.passed]
    assert all(dg.AssetCheckSeverity.WARN == each.severity for each in found)
    return [(each.check_name, each.passed) for each in found]


def test_it_asks_with_its_reason(settings: LakehouseSettings, lake: Lakehouse, instance: dg.DagsterInstance) -> None:
    result, cursor = look(settings, instance)
    (request,) = result.run_requests or []
    figures = f"version {lake.version}: {lake.stats().messages} buffered messages, threshold 5"
    reason = request.tags[REASON_TAG]
    assert f"{figures}; " in reason
    assert {"ops": {"lakehouse__sales_eu__tree_compaction": {"config": {"reason": reason}}}} == request.run_config
    assert state(cursor).requested_at > 0
    (seen, *_) = result.asset_events
    assert lake.stats().messages == seen.metadata["buffered_messages"].value


def test_it_paces_itself(settings: LakehouseSettings, instance: dg.DagsterInstance) -> None:
    """Not twice within the minimum interval, and nothing new is recorded where nothing is new."""
    first, cursor = look(settings, instance)
    told(first, instance)
    result, again = look(settings, instance, cursor)
    assert not result.run_requests
    assert not result.asset_events
    assert "the minimum interval is 1h" in str(result.skip_reason)
    assert cursor == again
    waited = poll.cursor_of({"sales-eu": SensorState(version=1, requested_at=1.0)})
    assert look(settings, instance, waited)[0].run_requests


def test_it_tells_verdicts_when_they_change(
    settings: LakehouseSettings, lake: Lakehouse, instance: dg.DagsterInstance
) -> None:
    """Also while no run ever checks anything: a check that nobody runs would stay as it was."""
    daily = settings.model_copy(update={"snapshots": {"daily": SnapshotPolicy(keep=2)}})
    result, cursor = look(daily, instance)
    assert [("compaction_debt", False), ("snapshots_fresh", False)] == told(result, instance)
    assert [] == told(look(daily, instance, cursor)[0], instance)
    compaction.run(lake, compaction.Config(engine="local"))
    snapshot.run(lake, {"daily": 2})
    result, cursor = look(daily, instance, cursor)
    assert [("compaction_debt", True), ("snapshots_fresh", True), ("compaction_fresh", True)] == told(result, instance)
    assert state(cursor).over_since is None
    assert [] == told(look(daily, instance, cursor)[0], instance)


def test_it_looks_closer_once_there_was_too_much_for_too_long(
    settings: LakehouseSettings, lake: Lakehouse, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not before, and not again after it has told: a closer look costs more than one root."""
    looks = []

    def counted(*args: Any) -> stats.Debt:
        looks.append(args)
        return debt(*args, now_millis() + 25 * 3_600_000)

    debt = stats.debt
    monkeypatch.setattr(stats, "debt", counted)
    result, cursor = look(settings, instance)
    assert ([("compaction_debt", False)], []) == (told(result, instance), looks)
    long_ago = poll.cursor_of({"sales-eu": replace(state(cursor), over_since=state(cursor).over_since - 25 * 3600)})
    result, cursor = look(settings, instance, long_ago)
    assert [("compaction_fresh", False)] == told(result, instance)
    (stale,) = [each for each in result.asset_events if isinstance(each, dg.AssetCheckEvaluation)]
    assert "the limit is 1d. Check the runs of sales_eu_compaction" in str(stale.description)
    assert ([], 1) == (told(look(settings, instance, cursor)[0], instance), len(looks))
    assert (state(cursor).over_since or 0.0) > (state(long_ago).over_since or 0.0) + 24 * 3600


def test_it_counts_compactions_that_others_started(settings: LakehouseSettings, instance: dg.DagsterInstance) -> None:
    key = assets.key(settings, assets.COMPACTION)
    instance.report_runless_asset_event(dg.AssetMaterialization(key))
    assert "the minimum interval is 1h" in str(look(settings, instance)[0].skip_reason)


def test_it_skips_while_the_debt_is_small(
    settings: LakehouseSettings, lake: Lakehouse, instance: dg.DagsterInstance
) -> None:
    compaction.run(lake, compaction.Config(engine="local"))
    result, _ = look(settings, instance)
    version = lake.refresh().version
    assert f"version {version}: 0 buffered messages, threshold 5" == result.skip_reason.skip_message


def test_a_new_version_by_maintenance_outdates_nothing(
    settings: LakehouseSettings, lake: Lakehouse, instance: dg.DagsterInstance
) -> None:
    """The data version of the definition is the version that changed objects; what Dagster plots is the newest."""
    written = lake.version
    compaction.run(lake, compaction.Config(engine="local"))
    snapshot.run(lake.refresh(), {"daily": 2})
    result, _ = look(settings, instance)
    (seen,) = [each for each in result.asset_events if isinstance(each, dg.AssetObservation)]
    assert (str(written), written + 2) == (seen.tags["dagster/data_version"], seen.metadata["version"].value)
    with lake.refresh().transaction() as txn:
        txn.create_namespace("more")
    (seen, *_) = look(settings, instance)[0].asset_events
    assert str(written + 3) == seen.tags["dagster/data_version"]


@pytest.mark.parametrize("how", ["tag", "selection"])
def test_it_never_asks_while_a_run_is_at_work(
    how: str, settings: LakehouseSettings, instance: dg.DagsterInstance
) -> None:
    """Whether a job of this lakehouse runs, or somebody materialises one of its assets by hand."""
    job = define_lakehouses((settings,)).resolve_job_def(
        "__ASSET_JOB" if how == "selection" else "sales_eu_maintenance"
    )
    more: dict[str, Any] = {"asset_selection": {assets.key(settings, assets.HEALTH)}} if how == "selection" else {}
    run = instance.create_run_for_job(job, status=dg.DagsterRunStatus.STARTED, tags=job.tags, **more)
    assert (how == "tag") == (LAKEHOUSE_TAG in run.tags)
    result, _ = look(settings, instance)
    assert not result.run_requests
    assert f"run {run.run_id} of this lakehouse has not finished yet" == result.skip_reason.skip_message


def test_a_verdict_is_found_behind_those_that_runs_only_planned(
    settings: LakehouseSettings, instance: dg.DagsterInstance
) -> None:
    key = assets.key(settings, assets.COMPACTION)
    assert scope.last_result(instance, key, checks.DEBT) is None
    instance.report_runless_asset_event(dg.AssetCheckEvaluation(key, checks.DEBT, passed=False))
    job = define_lakehouses((settings,)).resolve_job_def("sales_eu_compaction")
    for _ in range(9):
        instance.create_run_for_job(job, tags=job.tags)
    assert scope.last_result(instance, key, checks.DEBT) is False


def test_compactions_can_be_turned_off_and_what_is_new_is_told_all_the_same(
    settings: LakehouseSettings, lake: Lakehouse, instance: dg.DagsterInstance
) -> None:
    off = settings.model_copy(update={"compaction": Compaction(enabled=False, messages=1)})
    result, _ = look(off, instance)
    assert not result.run_requests
    assert "compaction.enabled is false in lakehouses.yaml" in str(result.skip_reason)
    observed = [event for event in result.asset_events if isinstance(event, dg.AssetObservation)]
    assert [str(lake.version)] == [event.tags["dagster/data_version"] for event in observed]
    late = [event for event in result.asset_events if isinstance(event, dg.AssetCheckEvaluation)]
    assert [("compaction_debt", False)] == [(each.check_name, each.passed) for each in late if not each.passed]


def test_the_policy_at_the_minimum_interval() -> None:
    policy = Compaction.model_validate({"min_interval": "60s"})
    assert compaction_policy.too_soon(policy, last=1000.0, now=1060.0) is None
    waiting = compaction_policy.too_soon(policy, last=1000.0, now=1059.0)
    assert waiting is not None
    assert not waiting.wanted


def patient(settings: LakehouseSettings, **limits: object) -> LakehouseSettings:
    """Return settings whose number of messages is never reached, and no other limit than those given."""
    policy = {"messages": 1_000_000, "root_bytes": None, "older_than": None, "engine": "local", "min_interval": "0s"}
    return settings.model_copy(update={"compaction": Compaction.model_validate(policy | limits)})


def test_it_asks_when_the_messages_in_the_root_are_too_large(
    settings: LakehouseSettings, lake: Lakehouse, instance: dg.DagsterInstance
) -> None:
    """The bytes of the messages count, those of the rest of the root do not: a compaction makes no difference to it."""
    size = waiting_bytes(lake)[0]
    result, cursor = look(patient(settings, root_bytes=size + 1), instance)
    assert f"{size:,} bytes of them in the root, limit {size + 1:,}" in str(result.skip_reason)
    (observed, *_) = result.asset_events
    assert size == observed.metadata["waiting_bytes_per_commit"].value
    (request,) = look(patient(settings, root_bytes=size), instance)[0].run_requests or []
    assert f"limit {size:,}" in request.tags[REASON_TAG]
    compaction.run(lake, compaction.Config(engine="local"))
    assert not look(patient(settings, root_bytes=1), instance, cursor)[0].run_requests


def test_it_asks_when_messages_have_waited_too_long(
    settings: LakehouseSettings, lake: Lakehouse, instance: dg.DagsterInstance
) -> None:
    """Since the sensor saw the first of them after the last compaction, whoever made that."""
    day = patient(settings, older_than="1d")
    result, cursor = look(day, instance)
    assert "waiting for 0s, limit 1d" in str(result.skip_reason)
    since = state(cursor).waiting_since or 0.0
    older = poll.cursor_of({"sales-eu": replace(state(cursor), waiting_since=since - 86_400)})
    (request,) = look(day, instance, older)[0].run_requests or []
    assert "limit 1d" in request.tags[REASON_TAG]
    assert not look(patient(settings), instance, older)[0].run_requests, "no limit, no request"
    compaction.run(lake, compaction.Config(engine="local"))
    result, cursor = look(day, instance, older)
    assert not result.run_requests
    assert (None, 0) == (state(cursor).waiting_since, state(cursor).debt)


def test_a_compaction_by_another_process_begins_the_wait_again(
    settings: LakehouseSettings, lake: Lakehouse, instance: dg.DagsterInstance
) -> None:
    """It left fewer than half of the messages, which came after it."""
    _, cursor = look(settings, instance)
    long_ago = poll.cursor_of({"sales-eu": replace(state(cursor), waiting_since=1.0, debt=10_000)})
    _, cursor = look(patient(settings, older_than="1d"), instance, long_ago)
    assert (state(cursor).waiting_since or 0.0) > 1.0


def test_a_compaction_shows_what_was_predicted_beside_what_it_did(
    settings: LakehouseSettings, lake: Lakehouse, instance: dg.DagsterInstance
) -> None:
    local = settings.model_copy(update={"compaction": settings.compaction.model_copy(update={"engine": "local"})})
    job = define_lakehouses((local,)).resolve_job_def("sales_eu_compaction")
    (done, *_) = job.execute_in_process(instance=instance).get_asset_materialization_events()
    rows = {row.data["what"]: row.data for row in done.materialization.metadata["predicted_and_measured"].records}
    saved = rows["saved by each commit, bytes"]
    assert saved["predicted"] == saved["measured"] > 0
    for what in ("cost: nodes", "cost: requests", "cost: written, bytes"):
        assert 1 <= float(rows[what]["predicted"]) / float(rows[what]["measured"]) < 8, what
    assert 0.2 < float(rows["the root, bytes"]["predicted"]) / float(rows["the root, bytes"]["measured"]) < 5
    assert "predicted_and_realised" not in done.materialization.metadata


def test_it_does_not_repeat_at_once_what_a_person_terminated(
    settings: LakehouseSettings, instance: dg.DagsterInstance
) -> None:
    """The request is older than the interval, its run was terminated just now."""
    waited = poll.cursor_of({"sales-eu": SensorState(version=1, requested_at=1.0)})
    (request,) = look(settings, instance, waited)[0].run_requests or []
    job = define_lakehouses((settings,)).resolve_job_def("sales_eu_compaction")
    run = instance.create_run_for_job(job, status=dg.DagsterRunStatus.STARTED, tags=dict(request.tags))
    instance.report_run_canceling(run)
    instance.report_run_canceled(run)
    result = look(settings, instance, waited)[0]
    assert not result.run_requests
    assert "the minimum interval is 1h" in str(result.skip_reason)


def test_a_tick_that_was_given_up_does_not_launch_twice(
    settings: LakehouseSettings, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon keeps no cursor of it, evaluates it again later, and knows the request by its key."""
    keys = []
    for seconds in (0, 90):
        now = time.time() + seconds
        monkeypatch.setattr("dagster_project.sensor.time.time", lambda now=now: now)
        (request,) = look(settings, instance)[0].run_requests or []
        keys.append(request.run_key)
    assert keys[0] == keys[1]


def test_a_healthy_lakehouse_is_recorded_as_reachable_once(
    settings: LakehouseSettings, instance: dg.DagsterInstance
) -> None:
    """A check that was never evaluated looks like one that nobody runs."""
    first, cursor = look(settings, instance)
    told(first, instance)
    key = assets.key(settings, assets.HEALTH)
    assert scope.last_result(instance, key, checks.REACHABLE) is True
    assert not look(settings, instance, cursor)[0].asset_events


@pytest.fixture
def queue(memory: str) -> Iterator[dg.DagsterInstance]:
    """Return an instance that keeps where its runs come from."""
    with dg.DagsterInstance.local_temp(memory) as local:
        yield local


def test_queued_runs_of_a_lakehouse_that_is_gone_are_cancelled_with_a_sentence(
    settings: LakehouseSettings, queue: dg.DagsterInstance
) -> None:
    """Not those of other locations, of other people, and of lakehouses that are there, and none at the first tick."""
    older = settings.model_copy(update={"name": "gone"})
    before = define_lakehouses((settings, older)).get_repository_def()

    def enqueue(job: str, location: str) -> str:
        origin = RemoteRepositoryOrigin(RegisteredCodeLocationOrigin(location), before.name).get_job_origin(job)
        made = before.get_job(job)
        run = queue.create_run_for_job(made, tags=made.tags, remote_job_origin=origin)
        queue.report_dagster_event(dg.DagsterEvent("PIPELINE_ENQUEUED", job), run.run_id)
        return run.run_id

    gone = enqueue("gone_maintenance", "here")
    others = [enqueue("gone_maintenance", "there"), enqueue("sales_eu_maintenance", "here")]
    after = define_lakehouses((settings,)).get_repository_def()
    sensor = after.get_sensor_def("sales_eu_compaction_sensor")
    for expected in (dg.DagsterRunStatus.QUEUED, dg.DagsterRunStatus.CANCELED):
        with dg.build_sensor_context(instance=queue, repository_def=after) as context:
            context._code_location_origin = RegisteredCodeLocationOrigin("here")
            sensor(context)
        run = queue.get_run_by_id(gone)
        assert run is not None
        assert expected is run.status
    said = [each.message for each in queue.all_logs(gone)]
    assert any("The lakehouse 'gone' is not in lakehouses.yaml any more" in each for each in said)
    still = queue.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.QUEUED]))
    assert set(others) == {each.run_id for each in still}

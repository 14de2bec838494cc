"""A lakehouse that cannot be opened: said why, with advice, by a failing check and one message; and it ends in time."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

import dagster as dg
import pytest
from dagster._core.asset_graph_view.asset_graph_view import AssetGraphView

from dagster_project import assets, checks, poll, resources, supervised, tables
from dagster_project.config.settings import Backup, LakehouseSettings, Orphans, Retention, Tables
from dagster_project.factory import define_lakehouses
from dagster_project.poll import SensorState
from dagster_project.scope import one
from dagster_project.sensor import LakehouseTick
from pipelines import cli
from pipelines.engine.deadline_pool import DeadlinePool
from tests.dagster.test_assets import node_file, run
from tests.support.surgery import directory_of
from trinitylake_core import Lakehouse, StorageDenied, StorageError
from trinitylake_core.errors import WentBack


def tick(
    settings: LakehouseSettings, instance: dg.DagsterInstance, cursor: str | None
) -> tuple[list[tuple[str, bool]], str | None, str]:
    """Evaluate one tick and record what it found, as the daemon does: verdicts, cursor, reason."""
    repository = define_lakehouses((settings,)).get_repository_def()
    with dg.build_sensor_context(instance=instance, cursor=cursor, repository_def=repository) as context:
        result = repository.get_sensor_def("sales_eu_compaction_sensor")(context)
    assert isinstance(result, dg.SensorResult)
    for event in result.asset_events:
        instance.report_runless_asset_event(event)
    verdicts = [each for each in result.asset_events if isinstance(each, dg.AssetCheckEvaluation)]
    return [(each.check_name, each.passed) for each in verdicts], result.cursor, str(result.skip_reason)


def broken_root(settings: LakehouseSettings, lake: Lakehouse) -> None:
    (directory_of(lake) / lake.root_node.path).write_bytes(b"garbage")


def test_a_missing_lakehouse_fails_a_check_until_it_is_back(
    settings: LakehouseSettings, lake: Lakehouse, instance: dg.DagsterInstance
) -> None:
    root = directory_of(lake)
    away = root.rename(root.with_name("away"))
    failed, cursor, reason = tick(settings, instance, None)
    assert [("reachable", False)] == failed
    assert "there is no lakehouse at" in reason
    assert "Check `root` in lakehouses.yaml." in reason
    again, cursor, _ = tick(settings, instance, cursor)
    assert [] == again
    away.rename(root)
    back, cursor, _ = tick(settings, instance, cursor)
    assert ("reachable", True) in back
    assert [] == tick(settings, instance, cursor)[0]


def test_the_graph_is_red_where_a_lakehouse_cannot_be_opened(
    local: LakehouseSettings, lake: Lakehouse, instance: dg.DagsterInstance
) -> None:
    """Dagster paints an asset that is materialised red if a check of it failed as an error after it was.

    It paints none that is only observed. In a browser: tests/dagster/test_browser.py.
    """
    measured, definitions = assets.key(local, assets.HEALTH), define_lakehouses((local,))
    job = definitions.resolve_job_def("sales_eu_maintenance")
    assert job.execute_in_process(instance=instance, asset_selection=[measured]).success
    assert not is_red(definitions, instance, measured)
    time.sleep(1.0)  # Dagster compares whole seconds
    broken_root(local, lake)
    tick(local, instance, None)
    assert is_red(definitions, instance, measured)


def is_red(definitions: dg.Definitions, instance: dg.DagsterInstance, asset: dg.AssetKey) -> bool:
    """Return whether the browser paints an asset red, by what it asks the webserver for."""
    graph = definitions.resolve_asset_graph()
    view = AssetGraphView.for_test(definitions, instance)
    latest = instance.event_log_storage.get_latest_asset_check_execution_by_key(
        [*graph.get_check_keys_for_assets({asset})]
    )
    failed = [
        each
        for each in latest.values()
        if asyncio.run(each.targets_latest_materialization(view))
        and each.evaluation is not None
        and not each.evaluation.passed
        and each.evaluation.severity is dg.AssetCheckSeverity.ERROR
    ]
    return graph.get(asset).is_materializable and failed != []


def test_a_damaged_newest_version_is_told_with_what_to_do(
    settings: LakehouseSettings, lake: Lakehouse, instance: dg.DagsterInstance
) -> None:
    broken_root(settings, lake)
    failed, _, reason = tick(settings, instance, None)
    assert ([("reachable", False)], True) == (failed, "Run the job `mend`" in reason)


@pytest.fixture
def silent() -> Iterator[int]:
    """Return the port of a server that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_storage_that_hangs_ends_the_tick_in_time_and_holds_up_nobody(
    silent: int, settings: LakehouseSettings, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On real S3 requests: the deadline of the look, and behind it those of each request, so that its thread ends."""
    threads = DeadlinePool()
    monkeypatch.setattr(poll, "POLLS", threads)
    monkeypatch.setattr(LakehouseTick, "poll_seconds", 0.5)
    monkeypatch.setattr(resources, "hurry", short(resources.hurry))
    options = {"endpoint_url": f"http://127.0.0.1:{silent}", "anon": True, "region": "eu-central-1"}
    hangs = settings.model_copy(update={"root": "s3://hangs/lake/", "storage_options": options})
    began = time.monotonic()
    failed, cursor, reason = tick(hangs, instance, None)
    assert ([("reachable", False)], True) == (failed, "gave no answer within" in reason)
    assert f"s3://hangs/lake/ at 127.0.0.1:{silent} is polled again until it answers" in reason
    assert "launch" not in reason
    assert "has given no answer" in tick(hangs, instance, cursor)[2]
    monkeypatch.setattr(LakehouseTick, "poll_seconds", 300)
    assert ("compaction_debt", False) in tick(settings, instance, None)[0]
    while threads.hanging:
        assert time.monotonic() < began + 600
        time.sleep(0.02)


def short(hurried: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """Return the options of a look with even shorter waits."""
    waits = {"connect_timeout": 1, "read_timeout": 1, "retries": 0}
    return lambda root, options: hurried(root, options) | (waits if root.startswith("s3") else {})


def test_a_look_is_in_a_hurry_but_not_in_less_of_one_than_asked_for() -> None:
    given = {"endpoint_url": "http://x", "retries": 0, "read_timeout": "2", "connect_timeout": 60}
    assert {
        "endpoint_url": "http://x",
        "retries": 0,
        "retry_max_seconds": 1.0,
        "max_concurrency": 4,
        "read_timeout": "2",
        "connect_timeout": 3,
        "request_timeout": 8,
    } == resources.hurry("s3://b/x", given)
    assert "read_timeout" not in resources.hurry("file:///x", {})


def test_the_check_can_be_executed_by_hand(
    settings: LakehouseSettings, lake: Lakehouse, instance: dg.DagsterInstance
) -> None:
    key = dg.AssetCheckKey(assets.key(settings, assets.HEALTH), checks.REACHABLE)
    job = define_lakehouses((settings,)).get_repository_def().get_job("__ASSET_JOB")
    subset = job.get_subset(asset_selection=set(), asset_check_selection={key})

    def verdict() -> dg.AssetCheckEvaluation:
        result = subset.execute_in_process(instance=instance)
        (found,) = result.get_asset_check_evaluations()
        return found

    assert verdict().passed
    broken_root(settings, lake)
    assert "Run the job `mend`" in str(verdict().description)


def test_the_job_that_observes_says_what_to_do_and_tries_again_when_the_storage_fails(
    settings: LakehouseSettings, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    defs = define_lakehouses((settings,))
    job = defs.get_repository_def().get_job("__ASSET_JOB")
    subset = job.get_subset(asset_selection={assets.key(settings, assets.DEFINITION)}, asset_check_selection=set())
    errors: list[Exception] = [StorageError("down"), StorageError("down"), StorageDenied("a key is wrong")]
    monkeypatch.setattr(supervised, "open_lakehouse", lambda *_, **__: (_ for _ in ()).throw(errors.pop(0)))
    monkeypatch.setattr(assets, "RETRY", dg.RetryPolicy(max_retries=2, delay=0))
    result = subset.execute_in_process(instance=instance, raise_on_error=False)
    retried = sum(event.event_type_value == "STEP_UP_FOR_RETRY" for event in result.all_events)
    (failure,) = result.get_step_failure_events()
    assert (2, []) == (retried, errors)
    assert "Check the credentials" in str(failure.event_specific_data)


def test_measuring_the_tree_is_tried_again_when_the_storage_fails(settings: LakehouseSettings) -> None:
    asset = assets.tree_health(one(settings))
    assert asset.op.retry_policy == assets.RETRY


def test_a_corrupt_node_is_named_by_the_step(
    settings: LakehouseSettings, lake: Lakehouse, instance: dg.DagsterInstance
) -> None:
    """Not as one blocking check that failed: file, invariant, and what to do."""
    damaged = node_file(lake)
    damaged.write_bytes(b"garbage")
    result = run(define_lakehouses((settings,)), "maintenance", instance)
    (failure,) = result.get_step_failure_events()
    assert str(lake.root_node.node.children[0]) in str(failure.event_specific_data)
    assert "Run the job `mend` with the backup" in str(failure.event_specific_data)
    assert "blocking asset check" not in str(failure.event_specific_data)
    assert [False] == [each.passed for each in result.get_asset_check_evaluations()]


def test_a_damaged_snapshot_is_one_finding_and_stops_only_what_deletes(
    local: LakehouseSettings, lake: Lakehouse, instance: dg.DagsterInstance
) -> None:
    """It stopped all maintenance. Nobody knows what it needs, so nothing expires; and no rollback leaves it behind.

    A backup that lacks it, too, copied nothing.
    """
    lake.create_snapshot("monthly")
    (snapshot,) = lake.refresh().snapshots()
    (directory_of(lake) / snapshot.root_path).write_bytes(b"garbage")
    copy = f"{lake.root.rstrip('/')}-copy/"
    policies = {"retention": Retention(keep_last=1), "orphans": Orphans(), "tables": Tables()}
    policies["backup"] = Backup(target=copy)
    deleting = local.model_copy(update=policies)
    result = run(define_lakehouses((deleting,)), "maintenance", instance)
    assert result.success
    evaluated = result.get_asset_check_evaluations()
    said_nothing = {tables.EXPIRED, tables.CERTAIN}
    assert said_nothing.isdisjoint(each.check_name for each in evaluated), "what was not done ends no failure of before"
    found, proved = [each for each in evaluated if not each.passed]
    assert (checks.INTEGRITY, dg.AssetCheckSeverity.WARN) == (found.check_name, found.severity)
    assert (checks.BACKUP_VERIFIED, dg.AssetCheckSeverity.WARN) == (proved.check_name, proved.severity)
    assert "neither the lakehouse nor the backup" in (proved.description or "")
    assert lake.refresh().digest() == Lakehouse.open(copy).digest()
    said = found.description or ""
    shown = [each in said for each in ("snapshot monthly", "the job `mend`, or drop it", "`rollback`")]
    assert [True, True, False] == shown
    outcomes = {}
    for event in result.get_asset_materialization_events():
        made = event.materialization
        outcomes[made.asset_key.path[-1]] = str(getattr(made.metadata.get("outcome"), "value", ""))
    kept = [name for name, outcome in outcomes.items() if outcome.startswith("nothing was deleted")]
    assert {assets.EXPIRATION, assets.ORPHANS, assets.TABLE_EXPIRATION, assets.TABLE_CLEANING} == {*kept}
    assert "pushed down" in outcomes[assets.COMPACTION]


def test_a_look_costs_the_requests_of_opening(
    settings: LakehouseSettings, lake: Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Lakehouse] = []
    monkeypatch.setattr(poll, "open_for_poll", lambda each: opened.append(resources.open_for_poll(each)) or opened[-1])
    assert lake.version == poll.poll_lakehouse(settings, SensorState(), time.time()).version
    assert 4 >= opened[0].storage.counts.requests()


def test_a_lakehouse_that_goes_back_in_time_is_told_until_somebody_accepts_it(
    settings: LakehouseSettings, lake: Lakehouse
) -> None:
    """Its storage was set back: the version that was seen is gone, then another commit has its number."""
    yesterday = {each.path: lake.storage.read(each.path) for each in lake.storage.list()}
    with lake.transaction() as txn:
        txn.create_namespace("today")
    state = poll.poll_lakehouse(settings, SensorState(), 0.0).state
    seen = lake.refresh().version
    assert seen == poll.poll_lakehouse(settings, state, 0.0).version
    lake.storage.delete_many([each.path for each in lake.storage.list() if each.path not in yesterday])
    for path, data in yesterday.items():
        lake.storage.replace(path, data)
    with pytest.raises(WentBack, match=rf"version {seen}, which was seen, is gone, and the newest one is {seen - 1}"):
        poll.poll_lakehouse(settings, state, 0.0)
    for name in ("other", "another"):
        with Lakehouse.open(lake.root).transaction() as txn:
            txn.create_namespace(name)
        with pytest.raises(WentBack, match="is another commit now"):
            poll.poll_lakehouse(settings, state, 0.0)
    assert 0 == cli.main(["alter", lake.root, "--accept", "--reason", "incident"])
    accepted = poll.poll_lakehouse(settings, state, 0.0)
    assert seen + 2 == accepted.version == poll.poll_lakehouse(settings, accepted.state, 0.0).version
    lake.storage.delete_many([each.path for each in lake.storage.list()])
    with pytest.raises(WentBack, match=f"is GONE: version {seen + 2} was seen there"):
        poll.poll_lakehouse(settings, accepted.state, 0.0)


_CURSOR_OF_0_1: Final = (
    "2:eJyrVspLLVeyis4rzcnRMdABU0Y6JUWlqUAeCFbX6iDJxeooFSfmpBbrppYCNRkaGBjoGJqbmRiAAUxhWmJOcS"
    "pc3NhAxxihyFCnWqkoNTE5IzEpJ1XJCmRRLUjW2NLSEmyakYEOkBlbCwCr/itj"
)
"""Written by the sensor of 0.1.0, with all its fields: sales-eu was seen at version 1000, new could not be opened."""


def test_after_an_upgrade_the_sensor_remembers_what_0_1_0_saw(settings: LakehouseSettings, lake: Lakehouse) -> None:
    """The times of its versions are not in its cursor: a version that is gone is told, one that is there is known."""
    states = poll.states_of(_CURSOR_OF_0_1)
    assert SensorState(failing=2) == states["new"]
    state = states["sales-eu"]
    asked = SensorState(1000, 1764000000, next_poll=1764000030, quiet=3, observed_at=1764000001, debt=120, seen=1000)
    assert replace(asked, results={"reachable": True}, waiting_since=1763999000, tables_version=999) == state
    with pytest.raises(WentBack, match=f"version 1000, which was seen, is gone, and the newest one is {lake.version}"):
        poll.poll_lakehouse(settings, state, 0.0)
    for seen in (lake.version - 1, lake.version):
        again = poll.poll_lakehouse(settings, replace(state, seen=seen), 0.0).state
        assert (lake.version, lake.root_node.created_at_millis) == (again.seen, again.seen_at)

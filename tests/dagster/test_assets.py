"""Every asset, check and job, executed by Dagster on a real lakehouse. With real Spark: ``test_s3_jobs``."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import dagster as dg
import pytest

from dagster_project import assets, supervised
from dagster_project.config.settings import LakehouseSettings
from dagster_project.factory import define_lakehouses
from dagster_project.resources import SparkResource
from dagster_project.supervised import DRY_RUN_TAG
from pipelines import compaction
from pipelines.engine import choice as engine_choice
from pipelines.reports.sketch import sketch
from trinitylake_core import Lakehouse
from trinitylake_core.storage.local import LocalStorage

STEP = "lakehouse__sales_eu__"


def run(defs: dg.Definitions, job: str, instance: dg.DagsterInstance, **more: Any) -> dg.ExecuteInProcessResult:
    """Return the result of a job of the lakehouse ``sales-eu``."""
    return defs.resolve_job_def(f"sales_eu_{job}").execute_in_process(instance=instance, raise_on_error=False, **more)


def metadata(result: dg.ExecuteInProcessResult, name: str) -> dict[str, Any]:
    """Return the metadata of the asset that a run materialised."""
    (event,) = [each for each in result.get_asset_materialization_events() if each.asset_key.path[-1] == name]
    return plain(event.materialization.metadata)


def planned(result: dg.ExecuteInProcessResult, name: str) -> dict[str, Any]:
    """Return the metadata of a dry run of an asset: it is observed, and not materialised."""
    assert name not in {each.asset_key.path[-1] for each in result.get_asset_materialization_events()}
    (event,) = [each for each in result.get_asset_observation_events() if each.asset_key.path[-1] == name]
    observed = event.asset_observation_data.asset_observation
    assert "true" == observed.tags[DRY_RUN_TAG]
    return plain(observed.metadata)


def plain(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return metadata as plain values, tables as rows."""
    values = {}
    for name, each in metadata.items():
        is_table = isinstance(each, dg.TableMetadataValue)
        values[name] = [record.data for record in each.records] if is_table else each.value
    return values


def node_file(lake: Lakehouse, *, last: bool = False) -> Path:
    """Return the file of the first child of the root, or of the last."""
    return Path(unquote(urlsplit(lake.root).path)) / lake.root_node.node.children[-1 if last else 0]


def test_maintenance(local: LakehouseSettings, lake: Lakehouse, instance: dg.DagsterInstance) -> None:
    """Observed, measured, compacted, proved, told: and the content is the same."""
    digest, before = lake.digest(), lake.stats()
    assert before.messages
    assert before.height
    result = run(define_lakehouses((local,)), "maintenance", instance)
    assert result.success
    after = lake.refresh().stats()
    assert (digest, 0, before.version + 1) == (lake.digest(), after.messages, after.version)
    assert [] == list(lake.check())

    (seen,) = result.get_asset_observation_events()
    assert str(before.version) == seen.asset_observation_data.asset_observation.data_version
    health = metadata(result, assets.HEALTH)
    assert (before.messages, before.height) == (health["buffered_messages"], health["height"])
    pays = f"a compaction pays: {before.messages} buffered messages, threshold 5; {before.objects} objects in a tree of"
    assert ("verdict", f"{pays} height {before.height}") == next(iter(health.items()))
    assert health["picture"].startswith(f"![version {before.version}](data:image/png;base64,")
    done = metadata(result, assets.COMPACTION)
    assert done["picture"].startswith(f"![before: version {before.version}; after: version {after.version}](data:image")
    assert ("local", before.messages) == (done["plan_engine"], done["messages_before"])
    assert {"what": "version", "before": before.version, "after": after.version} in done["before_and_after"]
    history = metadata(result, assets.SNAPSHOTS)["history"]
    assert list(range(after.version, -1, -1)) == [row["version"] for row in history]
    assert ("compact", "maintenance") == (history[0]["operation"], history[0]["reason"])
    checks = {check.check_name: check for check in result.get_asset_check_evaluations()}
    assert {"integrity": True, "compaction_debt": True, "compaction_fresh": True} == {
        name: check.passed for name, check in checks.items()
    }
    assert f"version {before.version} checked: every invariant holds" == checks["integrity"].description


def test_maintenance_of_a_clean_lakehouse_commits_nothing(
    settings: LakehouseSettings, lake: Lakehouse, instance: dg.DagsterInstance
) -> None:
    compaction.run(lake, compaction.Config(engine="local"))
    version = lake.refresh().version
    result = run(define_lakehouses((settings,)), "maintenance", instance)
    assert (True, version) == (result.success, lake.refresh().version)
    assert (
        f"nothing to do: no message is buffered in version {version}" == metadata(result, assets.COMPACTION)["outcome"]
    )


@pytest.mark.parametrize("dirty", [True, False])
def test_a_broken_node_fails_the_check_and_stops_what_comes_after(
    dirty: bool, settings: LakehouseSettings, lake: Lakehouse, instance: dg.DagsterInstance
) -> None:
    """The findings name the file; nothing after the check is materialised, nothing is committed."""
    if not dirty:
        compaction.run(lake, compaction.Config(engine="local"))
    node_file(lake.refresh()).write_bytes(b"garbage")
    version = lake.version
    result = run(define_lakehouses((settings,)), "maintenance", instance)
    assert (False, version) == (result.success, lake.refresh().version)
    (check,) = result.get_asset_check_evaluations()
    assert not check.passed
    rows = [record.data for record in check.metadata["violations"].records]  # type: ignore[union-attr]
    assert {"I1"} <= {row["invariant"] for row in rows}
    assert any(row["file"] == lake.root_node.node.children[0] and row["what to do"] for row in rows)
    done = {event.asset_key.path[-1] for event in result.get_asset_materialization_events() if event.asset_key}
    assert {assets.HEALTH} == done
    assert lake.root_node.node.children[0] in metadata(result, assets.HEALTH)["levels_not_measured"]


def measured(
    settings: LakehouseSettings, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> dg.ExecuteInProcessResult:
    """Materialise ``tree_health`` without its check. Its picture shows one node a level, so the walk reads the rest."""
    monkeypatch.setattr(engine_choice, "on_other_machines", lambda _: True)
    monkeypatch.setattr(assets, "sketch", partial(sketch, width=1))
    job = (
        define_lakehouses((settings,), spark=SparkResource(keep_running=True))
        .get_repository_def()
        .get_job("__ASSET_JOB")
    )
    chosen = job.get_subset(asset_selection={assets.key(settings, assets.HEALTH)}, asset_check_selection=set())
    return chosen.execute_in_process(instance=instance, raise_on_error=False)


def test_a_corrupt_root_fails_the_measuring_with_advice(
    settings: LakehouseSettings, lake: Lakehouse, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    (Path(unquote(urlsplit(lake.root).path)) / lake.root_node.path).write_bytes(b"garbage")
    result = measured(settings, instance, monkeypatch)
    (failure,) = result.get_step_failure_events()
    assert "Run the job `mend`" in str(failure.event_specific_data)


def test_measuring_the_tree_can_be_terminated(
    settings: LakehouseSettings, lake: Lakehouse, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk hangs at a node; the signal of Terminate comes as soon as somebody reads it."""
    monkeypatch.setattr(supervised, "_STOPS_WITHIN_SECONDS", 0.1)  # nothing wakes a thread that reads: it stays behind
    leaf = node_file(lake, last=True)
    over = threading.Event()

    def hang(kind: str, path: str, action: Callable[[], Any]) -> Any:
        if kind == "get" and leaf.as_posix().endswith(path):
            os.kill(os.getpid(), signal.SIGINT)
            over.wait(600)
        return action()

    monkeypatch.setattr(LocalStorage, "interceptor", staticmethod(hang))
    try:
        result = measured(settings, instance, monkeypatch)
    finally:
        over.set()
    (failure,) = result.get_step_failure_events()
    assert "the run was cancelled; " in str(failure.event_specific_data)


@pytest.mark.spark
def test_what_takes_too_long_is_stopped_with_its_spark_jobs(
    settings: LakehouseSettings, instance: dg.DagsterInstance, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Spark job of minutes ends within seconds, and the failure says so."""
    reached = []

    def slow(_: Lakehouse, config: Any, session: Any, **__: Any) -> None:
        try:
            session().range(2).mapInArrow(_sleep, "id long").count()
        finally:
            reached.append("end")

    monkeypatch.setattr(compaction, "run", slow)
    monkeypatch.setattr(supervised, "_POLL_SECONDS", 0.1)
    for seconds in (4, 16, 64):  # a busy machine may not even begin within four
        timeout = supervised.timedelta(seconds=seconds)
        hurried = settings.model_copy(
            update={"compaction": settings.compaction.model_copy(update={"timeout": timeout})}
        )
        result = run(define_lakehouses((hurried,), spark=SparkResource(keep_running=True)), "compaction", instance)
        assert not result.success
        if reached:
            break
    assert ["end"] == reached
    (failure,) = result.get_step_failure_events()
    assert f"exceeded its timeout of {timeout}; Spark was stopped" in str(failure.event_specific_data)
    assert 3 == spark.range(3).count()


def _sleep(batches: Any) -> Any:
    import time

    time.sleep(600)
    yield from batches

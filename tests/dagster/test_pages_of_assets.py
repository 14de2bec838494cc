"""What the page of an asset shows after a run without work, and of the engine that ran."""

from __future__ import annotations

import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dagster_project import assets, idle
from dagster_project.config.settings import Backup, LakehouseSettings, Orphans, Retention
from dagster_project.factory import define_lakehouses
from dagster_project.supervised import IDLE, choose_by_settings
from tests.dagster.test_assets import run
from tests.support.lakes import new_lake
from trinitylake_core import Lakehouse


def shown(result: dg.ExecuteInProcessResult, asset: str) -> dict[str, Any]:
    found = [each for each in result.get_asset_materialization_events() if each.asset_key.path[-1] == asset]
    (event,) = found
    return dict(event.step_materialization_data.materialization.metadata)


def test_a_compaction_without_work_leaves_the_picture_on_the_page(
    local: LakehouseSettings, lake: Lakehouse, instance: dg.DagsterInstance
) -> None:
    """And draws no row of zeros, and names no engine that did not run."""
    worked = shown(run(define_lakehouses((local,)), "compaction", instance), assets.COMPACTION)
    idle = shown(run(define_lakehouses((local,)), "compaction", instance), assets.COMPACTION)
    assert worked["picture"] == idle["picture"]
    assert worked["predicted_and_measured"] == idle["predicted_and_measured"]
    assert "nothing to do" in str(idle["outcome"].value)
    assert [] == [name for name, each in idle.items() if isinstance(each, dg.IntMetadataValue)]
    assert "engine" not in idle
    again = shown(run(define_lakehouses((local,)), "compaction", instance), assets.COMPACTION)
    assert worked["picture"] == again["picture"]


def test_the_page_says_which_engine_ran_and_why(
    local: LakehouseSettings, lake: Lakehouse, instance: dg.DagsterInstance
) -> None:
    metadata = shown(run(define_lakehouses((local,)), "compaction", instance), assets.COMPACTION)
    assert "local: it was asked for by name" == metadata["engine_chosen"].value
    assert not [name for name in metadata if name.startswith("spark_")]


@pytest.mark.spark
def test_the_page_shows_spark_where_it_ran(
    settings: LakehouseSettings, lake: Lakehouse, defs: dg.Definitions, instance: dg.DagsterInstance
) -> None:
    metadata = shown(run(defs, "compaction", instance), assets.COMPACTION)
    assert "spark: it was asked for by name" == metadata["engine_chosen"].value
    assert metadata["spark_application"].value.startswith("local-")
    assert metadata["spark_master"].value.startswith("local[")
    assert 0 < metadata["spark_stages"].value <= metadata["spark_tasks"].value
    assert metadata["spark_task_seconds"].value > 0
    assert 1 == metadata["spark_executors"].value


def test_maintenance_of_a_lakehouse_that_has_not_changed_starts_no_spark(
    settings: LakehouseSettings,
    local: LakehouseSettings,
    lake: Lakehouse,
    instance: dg.DagsterInstance,
    tmp_path: Path,
) -> None:
    """186 objects took 95 s of a JVM's CPU, each night. lakehouses.yaml asks for Spark; the page says why."""
    policies = {
        "backup": Backup(target=(tmp_path / "copy").as_uri()),
        "orphans": Orphans(),
        "retention": Retention(keep_last=2, older_than=timedelta(minutes=1)),
    }
    first = run(define_lakehouses((local.model_copy(update=policies),)), "maintenance", instance)
    assert first.success
    on_spark = settings.model_copy(update=policies)
    later = run(define_lakehouses((on_spark,)), "maintenance", instance)
    assert [] == list_on_spark(later)
    assert IDLE in shown(later, assets.BACKUP)["engine_chosen"].value
    content = idle.find_content_version(lake.refresh())
    for asset in (assets.BACKUP, assets.ORPHANS, assets.COMPACTION):
        assert idle.has_seen(instance, assets.key(settings, asset), None, content)
    with lake.transaction() as txn:
        txn.create_namespace("new")
    changed = idle.find_content_version(lake.refresh())
    assert not idle.has_seen(instance, assets.key(settings, assets.BACKUP), None, changed)
    assert ("spark", "auto") == tuple(choose_by_settings(settings, is_idle=each) for each in (False, True))
    assert "local" == choose_by_settings(local, is_idle=True)


def test_another_lakehouse_in_the_same_place_has_other_content(tmp_path: Path) -> None:
    """Its versions have the same numbers."""
    seen = set()
    for _ in range(2):
        shutil.rmtree(tmp_path / "lake", ignore_errors=True)
        seen.add(idle.find_content_version(new_lake(tmp_path / "lake")))
    assert 2 == len(seen)


@pytest.mark.slow
@pytest.mark.spark
def test_one_maintenance_starts_one_spark(
    settings: LakehouseSettings, lake: Lakehouse, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    """All of its steps that need one share the session, and it is stopped with the run."""
    policies = {"backup": Backup(target=(tmp_path / "copy").as_uri()), "orphans": Orphans()}
    result = run(define_lakehouses((settings.model_copy(update=policies),)), "maintenance", instance)
    worked = [each for each in list_on_spark(result) if " " not in each]
    assert {assets.COMPACTION, assets.BACKUP, assets.ORPHANS} == set(worked)
    assert 1 == len({shown(result, each)["spark_application"].value for each in worked})


def list_on_spark(result: dg.ExecuteInProcessResult) -> list[str]:
    """Return the assets of a run that used Spark, and the check of the backup with its engine if it did."""
    assert result.success
    names = [each.asset_key.path[-1] for each in result.get_asset_materialization_events()]
    found = [name for name in names if "spark_application" in shown(result, name)]
    for each in result.get_asset_check_evaluations():
        engine = each.metadata.get("engine")
        found += [f"{each.check_name} spark"] if engine is not None and engine.value == "spark" else []
    return found

"""A check of severity ERROR that failed stops what deletes, in the same run and in later ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import dagster as dg
import pytest

from dagster_project import assets
from dagster_project.config.settings import LakehouseSettings
from dagster_project.factory import define_lakehouses
from tests.support.clock import Clock
from trinitylake_core import Lakehouse

Materialise = Callable[..., dg.ExecuteInProcessResult]


@pytest.fixture(autouse=True)
def in_ten_days(lake: Lakehouse, clock: Clock) -> None:
    """Let ten days pass once the lakehouse is there: its versions and files are old enough to go."""
    clock.forward(days=10)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Return where the backup lies."""
    return tmp_path / "copy"


@pytest.fixture
def guarded(settings: LakehouseSettings, copy: Path) -> LakehouseSettings:
    """Return settings with a backup, and with policies that delete."""
    raw = {
        "name": settings.name,
        "root": settings.root,
        "compaction": {"engine": "local", "messages": 5},
        "retention": {"keep_last": 1, "older_than": "8d"},
        "orphans": {"older_than": "1d"},
        "backup": {"target": copy.as_uri()},
    }
    return LakehouseSettings.model_validate(raw)


def maintain(settings: LakehouseSettings, instance: dg.DagsterInstance) -> dg.ExecuteInProcessResult:
    job = define_lakehouses((settings,)).resolve_job_def("sales_eu_maintenance")
    return job.execute_in_process(instance=instance, raise_on_error=False)


def materialise(
    settings: LakehouseSettings, asset: str, instance: dg.DagsterInstance, **config: bool
) -> dg.ExecuteInProcessResult:
    job, key = define_lakehouses((settings,)).get_repository_def().get_job("__ASSET_JOB"), assets.key(settings, asset)
    subset = job.get_subset(asset_selection={key}, asset_check_selection=set())
    run_config = {"ops": {key.to_python_identifier(): {"config": config}}}
    return subset.execute_in_process(instance=instance, run_config=run_config, raise_on_error=False)


def damage_a_definition(lake: Lakehouse, copy: Path) -> Callable[[], None]:
    """Damage a definition of the backup, which keeps its size; return how to repair it."""
    damaged = copy / next(entry.path for entry in lake.objects(kind="table"))
    content = damaged.read_bytes()
    damaged.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))

    def repair() -> None:
        damaged.write_bytes(content)

    return repair


def test_no_version_expires_while_the_backup_cannot_be_read(
    guarded: LakehouseSettings, lake: Lakehouse, copy: Path, instance: dg.DagsterInstance
) -> None:
    """Neither in the run that found it, nor in one that only expires, which may be a dry run; again once it reads."""
    keeping = guarded.model_copy(update={"retention": None, "orphans": None})
    assert maintain(keeping, instance).success
    with lake.refresh().transaction() as txn:
        txn.create_namespace("later")
    repair = damage_a_definition(lake.refresh(), copy)
    versions = [each.version for each in lake.refresh().history()]

    result = maintain(guarded, instance)
    assert not result.success
    assert [f"{assets.BACKUP}_{assets.BACKUP_VERIFIED}"] == [
        str(each.step_key).removeprefix("lakehouse__sales_eu__") for each in result.get_step_failure_events()
    ]
    done = {event.asset_key.path[-1] for event in result.get_asset_materialization_events() if event.asset_key}
    assert not done & {assets.EXPIRATION, assets.ORPHANS}

    for asset in (assets.EXPIRATION, assets.ORPHANS):
        later = materialise(guarded, asset, instance)
        (failure,) = later.get_step_failure_events()
        assert "nothing was deleted: the last backup_verified check" in str(failure.event_specific_data)
        assert materialise(guarded, asset, instance, dry_run=True).success
    assert versions == [each.version for each in lake.refresh().history()][-len(versions) :]

    repair()
    assert maintain(guarded, instance).success
    assert min(versions) < min(each.version for each in lake.refresh().history())


def test_a_backup_that_is_no_longer_asked_for_keeps_no_version(
    guarded: LakehouseSettings, lake: Lakehouse, copy: Path, instance: dg.DagsterInstance
) -> None:
    assert maintain(guarded.model_copy(update={"retention": None, "orphans": None}), instance).success
    damage_a_definition(lake.refresh(), copy)
    assert not maintain(guarded, instance).success
    assert materialise(guarded.model_copy(update={"backup": None}), assets.EXPIRATION, instance).success

"""The asset checks, executed by Dagster: what they find, tell, and advise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dagster_project import assets
from dagster_project.assets import BACKUP
from dagster_project.config.settings import Health, LakehouseSettings, Retention
from dagster_project.factory import define_lakehouses
from dagster_project.resources import SparkResource
from pipelines import compaction, snapshot
from tests.dagster.test_assets import STEP, run
from tests.support.clock import Clock
from trinitylake_core import Lakehouse

HOURS = 3_600_000


@pytest.fixture
def target(tmp_path: Path) -> str:
    return (tmp_path / "copy").as_uri() + "/"


@pytest.fixture
def local(settings: LakehouseSettings, target: str) -> LakehouseSettings:
    """Return settings that need no Spark, with everything that can be checked."""
    raw = {
        "name": settings.name,
        "root": settings.root,
        "compaction": {"engine": "local", "messages": 5},
        "snapshots": {"daily": {"keep": 2}},
        "backup": {"target": target, "max_age": "1h"},
        "spark": {"master": "local[2]"},
    }
    return LakehouseSettings.model_validate(raw)


def checked(
    settings: LakehouseSettings, asset: str, check: str, instance: dg.DagsterInstance, *, spark: bool = False
) -> dg.AssetCheckEvaluation:
    """Execute one check alone, as the button in the UI does."""
    defs = define_lakehouses((settings,), spark=SparkResource(keep_running=spark))
    job = defs.get_repository_def().get_job("__ASSET_JOB")
    subset = job.get_subset(
        asset_selection=set(), asset_check_selection={dg.AssetCheckKey(assets.key(settings, asset), check)}
    )
    result = subset.execute_in_process(instance=instance, raise_on_error=False)
    (found,) = result.get_asset_check_evaluations()
    assert result.success is (found.passed or check not in assets.GATES.values())  # which block
    return found


def verdicts(result: dg.ExecuteInProcessResult) -> dict[str, bool]:
    return {each.check_name: each.passed for each in result.get_asset_check_evaluations()}


def values(found: dg.AssetCheckEvaluation) -> dict[str, Any]:
    return {name: getattr(each, "value", None) for name, each in found.metadata.items()}


def test_debt_warns_and_tells_what_a_compaction_would_cost(
    local: LakehouseSettings, lake: Lakehouse, instance: dg.DagsterInstance
) -> None:
    before = checked(local, assets.COMPACTION, "compaction_debt", instance)
    assert (False, dg.AssetCheckSeverity.WARN) == (before.passed, before.severity)
    told = values(before)
    assert (lake.stats().messages, 5) == (told["buffered_messages"], told["threshold"])
    plan = compaction.estimate(lake)
    assert (plan.nodes, plan.bytes) == (
        told["nodes_a_compaction_would_rewrite"], told["bytes_a_compaction_would_write"],
    )  # fmt: skip
    compaction.run(lake, compaction.Config(engine="local"))
    after = checked(local, assets.COMPACTION, "compaction_debt", instance)
    assert (True, 0) == (after.passed, values(after)["buffered_messages"])


def test_integrity_looks_for_the_files_of_tables_on_request(
    local: LakehouseSettings, lake: Lakehouse, instance: dg.DagsterInstance
) -> None:
    with lake.transaction() as txn:
        txn.create_namespace("iceberg")
        txn.create_table("iceberg", "gone", format_properties={"metadata_location": "tables/gone.metadata.json"})
    assert checked(local, assets.HEALTH, "integrity", instance).passed
    asked = local.model_copy(update={"health": Health(tables=1.0)})
    found = checked(asked, assets.HEALTH, "integrity", instance)
    (row,) = found.metadata["violations"].records  # type: ignore[union-attr]
    assert (False, "I19", 1) == (found.passed, row.data["invariant"], values(found)["tables_checked"])


def test_integrity_names_a_damaged_definition_with_the_command_that_mends_it(
    local: LakehouseSettings, lake: Lakehouse, instance: dg.DagsterInstance
) -> None:
    """That of the lakehouse is always read, though its root has a copy; those of objects are read on request."""
    asked = local.model_copy(update={"health": Health(definitions=True)})
    of_lakehouse = lake.root_node.system["lakehouse_def"]
    of_object = next(each.path for each in lake.objects())
    for path, settings, invariant in ((of_object, asked, "I15"), (of_lakehouse, local, "I13")):
        assert checked(settings, assets.HEALTH, "integrity", instance).passed
        good = lake.storage.read(path)
        lake.storage.replace(path, b"garbage")
        found = checked(settings, assets.HEALTH, "integrity", instance)
        lake.storage.replace(path, good)
        assert found.description is not None
        shown = [each in found.description for each in (invariant, path, "`trinitylake mend ROOT --from BACKUP`")]
        assert (False, [True] * 3) == (found.passed, shown)


def test_a_compaction_is_stale_only_with_debt(
    local: LakehouseSettings, lake: Lakehouse, instance: dg.DagsterInstance, clock: Clock
) -> None:
    fresh = checked(local, assets.COMPACTION, "compaction_fresh", instance)
    assert fresh.passed  # the debt is young
    clock.forward(hours=25)
    stale = checked(local, assets.COMPACTION, "compaction_fresh", instance)
    assert (False, dg.AssetCheckSeverity.WARN) == (stale.passed, stale.severity)
    assert "then launch sales_eu_compaction" in str(stale.description)
    compaction.run(lake, compaction.Config(engine="local"))
    assert checked(local, assets.COMPACTION, "compaction_fresh", instance).passed


def test_the_snapshots_that_are_missing_are_named(
    local: LakehouseSettings, lake: Lakehouse, instance: dg.DagsterInstance
) -> None:
    late = checked(local, assets.SNAPSHOTS, "snapshots_fresh", instance)
    assert (False, dg.AssetCheckSeverity.WARN, 1) == (late.passed, late.severity, values(late)["missing"])
    assert "is missing; newest daily snapshot: none; check the runs of the maintenance of this lakehouse" in str(
        late.description
    )
    snapshot.run(lake, {"daily": 2})
    assert checked(local, assets.SNAPSHOTS, "snapshots_fresh", instance).passed


def test_a_backup_is_made_by_maintenance_and_verified(
    local: LakehouseSettings, lake: Lakehouse, target: str, instance: dg.DagsterInstance
) -> None:
    """After a compaction; every check of both runs has passed."""
    compacted = run(define_lakehouses((local,)), "compaction", instance)
    assert {"compaction_debt": True, "compaction_fresh": True} == verdicts(compacted)
    result = run(define_lakehouses((local,)), "maintenance", instance)
    assert result.success
    names = ("integrity", "compaction_debt", "compaction_fresh", "snapshots_fresh", "backup_verified")
    assert dict.fromkeys(names, True) == verdicts(result)
    copy, newest = Lakehouse.open(target), lake.refresh()
    assert (newest.version, newest.digest(), 0) == (copy.version, copy.digest(), copy.stats().messages)
    assert [each.name for each in newest.snapshots()] == [each.name for each in copy.snapshots()]
    (verified,) = [each for each in result.get_asset_check_evaluations() if each.check_name == "backup_verified"]
    assert ("local", newest.digest(), newest.version) == tuple(
        values(verified)[name] for name in ("engine", "digest", "version")
    )


def test_a_backup_that_is_no_good_fails_with_advice(
    local: LakehouseSettings, lake: Lakehouse, target: str, instance: dg.DagsterInstance
) -> None:
    """None at all, a good one, one whose definition is gone."""
    missing = checked(local, BACKUP, "backup_verified", instance)
    assert (False, dg.AssetCheckSeverity.ERROR) == (missing.passed, missing.severity)
    assert f"there is no backup at {target}; export to it" == missing.description
    assert run(define_lakehouses((local,)), "export", instance).success  # the launchpad is filled in with the backup
    good = checked(local, BACKUP, "backup_verified", instance)
    assert (True, lake.digest()) == (good.passed, values(good)["digest"])
    gone = next(entry.path for entry in lake.objects(kind="table"))
    Path(target.removeprefix("file://")).joinpath(gone).unlink()
    broken = checked(local, BACKUP, "backup_verified", instance)
    assert not broken.passed
    assert "export to another root URI, this one is damaged" in str(broken.description)
    assert gone in str(broken.metadata["violations"])
    assert gone in str(broken.description)  # the webhook receives this


def test_nothing_expires_that_could_not_be_backed_up(
    local: LakehouseSettings, lake: Lakehouse, target: str, instance: dg.DagsterInstance
) -> None:
    Lakehouse.create(target)  # somebody else's
    compaction.run(lake, compaction.Config(engine="local"))
    kept = local.model_copy(update={"retention": Retention()})
    result = run(define_lakehouses((kept,)), "maintenance", instance)
    assert not result.success
    (failure,) = result.get_step_failure_events()
    assert (f"{STEP}backup", True) == (
        failure.step_key, "holds another lakehouse" in str(failure.event_specific_data),
    )  # fmt: skip
    done = {event.asset_key.path[-1] for event in result.get_asset_materialization_events() if event.asset_key}
    assert assets.EXPIRATION not in done

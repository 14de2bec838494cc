"""Snapshots, expiration and removal of orphans, executed by Dagster: what they show, do, and refuse."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import dagster as dg
import pytest

from dagster_project import assets, supervised
from dagster_project.config.settings import LakehouseSettings, Retention
from dagster_project.factory import define_lakehouses
from pipelines import compaction, snapshot
from tests.dagster.conftest import filled
from tests.dagster.test_assets import STEP, metadata, node_file, planned, run
from tests.dagster.test_manual_jobs import launched, told
from tests.support.clock import Clock
from trinitylake_core import Lakehouse
from trinitylake_core.clock import utc_now

HOUR_MILLIS = 3_600_000


def directory(lake: Lakehouse) -> Path:
    return Path(unquote(urlsplit(lake.root).path))


def files(lake: Lakehouse) -> set[str]:
    return {str(path.relative_to(directory(lake))) for path in directory(lake).rglob("*") if path.is_file()}


@pytest.fixture(autouse=True)
def in_ten_days(lake: Lakehouse, clock: Clock) -> None:
    """Let ten days pass once the lakehouse is there: its versions and files are old enough to go."""
    clock.forward(days=10)


@pytest.fixture
def kept(settings: LakehouseSettings) -> LakehouseSettings:
    """Return settings that keep two versions, a snapshot a day, and no orphan that is older than a day."""
    return with_policies(settings, engine="local")


def with_policies(settings: LakehouseSettings, **compaction: Any) -> LakehouseSettings:
    raw = {
        "name": settings.name,
        "root": settings.root,
        "spark": {"master": "local[2]"},
        "compaction": compaction,
        "snapshots": {"daily": {"keep": 1}},
        "retention": {"keep_last": 2, "older_than": "8d"},
        "orphans": {"older_than": "1d"},
    }
    return LakehouseSettings.model_validate(raw)


def materialised(
    settings: LakehouseSettings, names: set[str], instance: dg.DagsterInstance, **config: Any
) -> dg.ExecuteInProcessResult:
    """Materialise some assets of the lakehouse in one run, as the UI does."""
    defs = define_lakehouses((settings,))
    keys = [assets.key(settings, name) for name in names]
    ops = {f"{STEP}{name}": {"config": config} for name in names & {assets.EXPIRATION, assets.ORPHANS}}
    job = defs.get_repository_def().get_job("__ASSET_JOB").get_subset(asset_selection=set(keys))
    return job.execute_in_process(instance=instance, run_config={"ops": ops}, raise_on_error=False)


def test_maintenance_keeps_snapshots_and_history_as_told(
    kept: LakehouseSettings, lake: Lakehouse, instance: dg.DagsterInstance
) -> None:
    """Compacted, the day's snapshot made, all but the newest versions expired, their files gone."""
    digest, before = lake.digest(), lake.version
    result = run(define_lakehouses((kept,)), "maintenance", instance)
    assert result.success
    compacted, snapped, expired = before + 1, before + 2, before + 3
    today = snapshot.name_of("daily", utc_now())
    shown = metadata(result, assets.SNAPSHOTS)
    assert (today, 1, snapped) == (shown["created"], shown["snapshots"], shown["newest_version"])
    assert today == shown["snapshot_list"][0]["name"]

    done = metadata(result, assets.EXPIRATION)
    assert (compacted, compacted, expired) == (
        done["versions_expired"], done["boundary_after"], done["version_after"],
    )  # fmt: skip
    assert {"root"} == {row["kind"] for row in done["plan"]}
    assert compacted == done["plan_files"] == done["files_deleted"]
    assert list(range(compacted)) == [row["version"] for row in done["freed"]]

    gone = metadata(result, assets.ORPHANS)
    assert gone["plan_files"] == gone["files_deleted"] == len(gone["plan"]) > 0
    assert (0, "local", False) == (gone["failed"], gone["engine"], gone["dry_run"])
    assert not files(lake) & {row["path"] for row in gone["plan"]}
    newest = lake.refresh()
    assert (expired + 1, digest, []) == (newest.version, newest.digest(), list(newest.check()))
    assert [today] == [each.name for each in newest.snapshots()]


def test_dry_runs_show_the_plan_and_change_nothing(
    kept: LakehouseSettings, lake: Lakehouse, instance: dg.DagsterInstance
) -> None:
    """The last page stays, and so does what is known of the last run; what follows the step is skipped."""
    before = files(lake)
    result = materialised(kept, {assets.EXPIRATION, assets.ORPHANS}, instance, dry_run=True)
    assert (True, before) == (result.success, files(lake))
    plan = planned(result, assets.EXPIRATION)
    assert (True, lake.version - 1, 0) == (plan["dry_run"], plan["plan_files"], plan["files_deleted"])
    assert "would expire" in plan["outcome"]
    assert plan["freed_bytes"] >= sum(row["bytes"] for row in plan["plan"]) > 0
    assert [f"{STEP}{assets.ORPHANS}"] == [each.step_key for each in result.get_step_skipped_events()]
    alone = planned(materialised(kept, {assets.ORPHANS}, instance, dry_run=True), assets.ORPHANS)
    assert alone["outcome"].startswith("nothing to do: 0 orphans")
    assert instance.get_latest_materialization_event(assets.key(kept, assets.EXPIRATION)) is None


def test_an_expiration_that_removes_nothing_says_why(
    kept: LakehouseSettings, lake: Lakehouse, instance: dg.DagsterInstance, clock: Clock
) -> None:
    """The rule that holds most versions first: here the time to live of saved transactions."""
    clock.forward(days=-10, hours=1)
    every = kept.model_copy(update={"retention": Retention.model_validate({"keep_last": 1, "older_than": "1s"})})
    shown = metadata(materialised(every, {assets.EXPIRATION}, instance), assets.EXPIRATION)
    assert 0 == shown["versions_expired"]
    first, *_ = shown["kept"]
    assert ("txn_ttl_millis", lake.version + 1) == (first["kept by"], first["versions"])
    assert shown["why"].startswith("txn_ttl_millis")


def test_done_twice_does_nothing_more(kept: LakehouseSettings, lake: Lakehouse, instance: dg.DagsterInstance) -> None:
    """What a retry would find."""
    both = {assets.EXPIRATION, assets.ORPHANS}
    first = materialised(kept, both, instance)
    assert [False, False] == [metadata(first, name)["dry_run"] for name in sorted(both)]
    version = lake.refresh().version
    again = materialised(kept, both, instance)
    assert (True, version) == (again.success, lake.refresh().version)
    assert (0, 0) == tuple(metadata(again, name)["files_deleted"] for name in (assets.EXPIRATION, assets.ORPHANS))


def test_what_was_planned_is_not_found_out_again_before_it_is_carried_out(
    kept: LakehouseSettings, lake: Lakehouse, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Orphans: one listing, another one after the fence, one marking. A rollback: its target is proved once."""
    lake.create_snapshot("short-lived")
    lake.refresh().drop_snapshot("short-lived")  # leaves an orphan
    opened = opened_by(monkeypatch)

    def spent(job: Callable[..., dg.ExecuteInProcessResult], *arguments: Any, **config: Any) -> tuple[int, int]:
        opened.clear()
        assert job(kept, *arguments, instance, **config).success
        counts = [each.storage.counts for each in opened]
        return sum(each.list for each in counts), sum(each.get for each in counts)

    before, removed = (spent(materialised, {assets.ORPHANS}, dry_run=dry) for dry in (True, False))
    assert before[0] < removed[0] <= 2 * before[0]
    assert before[1] < removed[1] <= before[1] + 12
    target = {"version": lake.version - 1, "reason": "r", "engine": "local"}
    before, done = (spent(launched, "rollback", dry_run=dry, **target) for dry in (True, False))
    assert before[1] <= done[1] <= before[1] + 4


def opened_by(monkeypatch: pytest.MonkeyPatch) -> list[Lakehouse]:
    """Return the lakehouses that runs open from now on."""
    opened: list[Lakehouse] = []
    open_one = supervised.open_lakehouse

    def opening(*arguments: Any, **more: Any) -> Lakehouse:
        opened.append(open_one(*arguments, **more))
        return opened[-1]

    monkeypatch.setattr(supervised, "open_lakehouse", opening)
    return opened


def test_a_failing_integrity_check_blocks_everything_that_deletes(
    kept: LakehouseSettings, lake: Lakehouse, instance: dg.DagsterInstance
) -> None:
    """In the run that checks, and also in later ones that do not; until the check passes again."""
    broken = node_file(lake)
    whole = broken.read_bytes()
    broken.write_bytes(b"garbage")
    before = files(lake)
    deleting = {assets.EXPIRATION, assets.ORPHANS}
    for names in ({assets.HEALTH, *deleting}, {assets.EXPIRATION}, {assets.ORPHANS}):
        result = materialised(kept, names, instance)
        assert (False, before) == (result.success, files(lake))
        done = {event.asset_key.path[-1] for event in result.get_asset_materialization_events() if event.asset_key}
        assert not done & deleting
    (failure,) = result.get_step_failure_events()
    assert "the last integrity check of this lakehouse failed" in str(failure.event_specific_data)
    broken.write_bytes(whole)
    assert materialised(kept, {assets.HEALTH, *deleting}, instance).success
    assert files(lake) != before


def test_a_check_that_is_only_planned_is_no_verdict(
    kept: LakehouseSettings, lake: Lakehouse, instance: dg.DagsterInstance
) -> None:
    """Neither of a run that waits nor of one that was cancelled; the last verdict stands."""
    repository = define_lakehouses((kept,)).get_repository_def()
    instance.create_run_for_job(repository.get_job("sales_eu_maintenance"))
    assert materialised(kept, {assets.EXPIRATION}, instance, dry_run=False).success
    health = assets.key(kept, assets.HEALTH)
    instance.report_runless_asset_event(dg.AssetCheckEvaluation(passed=False, asset_key=health, check_name="integrity"))
    instance.create_run_for_job(repository.get_job("sales_eu_maintenance"))
    assert not materialised(kept, {assets.EXPIRATION}, instance).success


def test_what_the_owner_forbids_fails_with_advice(
    settings: LakehouseSettings, tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    guarded = filled((tmp_path / "guarded").as_uri(), properties={"maintenance.delete.enabled": "false"})
    kept = with_policies(settings.model_copy(update={"root": guarded.root}), engine="local")
    before = files(guarded)
    result = materialised(kept, {assets.ORPHANS}, instance)
    (failure,) = result.get_step_failure_events()
    assert "maintenance.delete.enabled=false" in str(failure.event_specific_data)
    assert (before, 0) == (files(guarded), len(result.get_step_skipped_events()))


def test_without_a_policy_nothing_is_deleted_unless_somebody_says_so(
    settings: LakehouseSettings, lake: Lakehouse, instance: dg.DagsterInstance
) -> None:
    """As by Materialize all, in a fleet whose stanzas say nothing about retention."""
    local = settings.model_copy(update={"compaction": settings.compaction.model_copy(update={"engine": "local"})})
    deleting = {assets.EXPIRATION, assets.ORPHANS}
    lake.create_snapshot("short-lived")
    lake.refresh().drop_snapshot("short-lived")  # leaves an orphan
    lake.refresh()
    before, version = files(lake), lake.version
    result = materialised(local, deleting, instance)
    assert (True, before, version) == (result.success, files(lake), lake.refresh().version)
    for name in deleting:
        assert "delete_without_policy: true" in metadata(result, name)["outcome"]
    looked = materialised(local, deleting, instance, dry_run=True)
    assert (True, before) == (looked.success, files(lake))
    assert "plan" in planned(looked, assets.EXPIRATION)
    done = materialised(local, {assets.ORPHANS}, instance, delete_without_policy=True, reason="ticket 12")
    assert (True, version + 1) == (done.success, lake.refresh().version)
    assert "ticket 12" == lake.info().reason
    assert before - files(lake)


@pytest.mark.slow
def test_a_full_compaction_of_one_dropped_pivot_and_all_that_comes_after_it(
    tmp_path: Path, clock: Clock, instance: dg.DagsterInstance
) -> None:
    """The only message of the tree deletes a key of an inner node: the night goes on to its end, and a verification."""
    lake = Lakehouse.create((tmp_path / "wide").as_uri(), storage_options={"durable": False})
    with lake.transaction() as txn:
        txn.create_namespace("sales")
        for number in range(3000):
            txn.create_table("sales", f"t{number:04}")
    lake.refresh()
    compaction.run(lake, compaction.Config(engine="local", full=True))
    pivots = lake.refresh().root_node.node.keys
    with lake.transaction() as txn:
        txn.drop_table("sales", pivots[len(pivots) // 2].rstrip()[-5:])
    clock.forward(days=10)
    raw = {
        "name": "sales-eu",
        "root": lake.root,
        "compaction": {"engine": "local"},
        "snapshots": {"daily": {"keep": 1}},
        "retention": {"keep_last": 1, "older_than": "8d"},
        "orphans": {"older_than": "1d"},
        "backup": {"target": (tmp_path / "copy").as_uri()},
    }
    settings = LakehouseSettings.model_validate(raw)
    config = {"ops": {f"{STEP}{assets.COMPACTION}": {"config": {"full": True}}}}
    result = run(define_lakehouses((settings,)), "maintenance", instance, run_config=config)
    assert result.success
    done = {event.asset_key.path[-1] for event in result.get_asset_materialization_events() if event.asset_key}
    assert {assets.COMPACTION, assets.SNAPSHOTS, assets.BACKUP, assets.EXPIRATION, assets.ORPHANS} <= done
    assert all(check.passed for check in result.get_asset_check_evaluations())
    assert 0 < metadata(result, assets.EXPIRATION)["versions_expired"]
    assert 0 < metadata(result, assets.ORPHANS)["files_deleted"]
    newest, copied = lake.refresh(), Lakehouse.open((tmp_path / "copy").as_uri())
    assert (0, 2999, 1) == (newest.stats().messages, newest.stats().tables, len(newest.snapshots()))
    assert newest.digest() == copied.digest()
    found = told(launched(settings, "verify", instance, versions="all", engine="local"))
    assert 0 == found["findings"], found

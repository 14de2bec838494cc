"""The assets of Iceberg tables: what they show and do, which checks fail and why, and what stops them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dagster_project import assets, tables
from dagster_project.config.file import Stanzas
from dagster_project.config.settings import LakehouseSettings
from dagster_project.factory import define_lakehouses
from dagster_project.scope import every, last_result
from pipelines.reach import table_files as tablefiles
from tests.dagster.test_assets import metadata, planned
from tests.dagster.test_fleet import Lakes
from tests.support.clock import Clock
from tests.support.icebergs import SCHEMA, ids, new_iceberg, with_table
from tests.support.icebergs import rows as some_rows
from trinitylake_core.iceberg import TrinityLakeCatalog
from trinitylake_core.iceberg.rights.locations import Locations

DAY = 86_400_000
STANZA = {"policies": {"sales.*": {"keep_last": 2, "older_than": "1s", "small_files": 3}}, "older_than": "1d"}
ALL = set(assets.OF_TABLES)


def stanza(catalog: TrinityLakeCatalog, **more: Any) -> LakehouseSettings:
    raw = {"name": "sales-eu", "root": catalog.lakehouse.root, "compaction": {"engine": "local"}, "tables": STANZA}
    return LakehouseSettings.model_validate(raw | more)


def run(
    settings: LakehouseSettings, names: set[str], instance: dg.DagsterInstance, **config: Any
) -> dg.ExecuteInProcessResult:
    """Materialise some assets, as the UI does."""
    keys = {assets.key(settings, name) for name in names}
    ops = {f"lakehouse__sales_eu__{name}": {"config": config} for name in names - {assets.TABLE_HEALTH}}
    job = define_lakehouses((settings,)).get_repository_def().get_job("__ASSET_JOB").get_subset(asset_selection=keys)
    return job.execute_in_process(instance=instance, run_config={"ops": ops}, raise_on_error=False)


def checks(result: dg.ExecuteInProcessResult) -> dict[str, dg.AssetCheckEvaluation]:
    return {each.check_name: each for each in result.get_asset_check_evaluations()}


def named(evaluation: dg.AssetCheckEvaluation) -> set[str]:
    """Return the tables that a check names; for a directory the name that its table had."""
    shown = evaluation.metadata["tables"]
    assert isinstance(shown, dg.TableMetadataValue)
    return {re.sub(r"^tables/sales/(\w+)-[0-9a-f]{12}/$", r"\1", str(row.data["table"])) for row in shown.records}


def failing(result: dg.ExecuteInProcessResult) -> dict[str, str]:
    return {name: str(each.description) for name, each in checks(result).items() if not each.passed}


def files(catalog: TrinityLakeCatalog) -> set[str]:
    return {each.path for each in catalog.lakehouse.storage.list("tables/")}


def grown(catalog: TrinityLakeCatalog, name: str, appends: int = 4, **properties: str) -> Any:
    table = with_table(catalog, name, properties=properties)
    for number in range(appends):
        table.append(some_rows(number))
    return table


def test_maintenance_measures_expires_and_cleans_tables_last(
    catalog: TrinityLakeCatalog, instance: dg.DagsterInstance, clock: Clock
) -> None:
    """Everything that the lakehouse and its tables let go of is gone after one run, and every row is there."""
    orders = grown(catalog, "sales.orders")
    orders.overwrite(some_rows(7, 8))
    with_table(catalog, "sales.dropped", 1)
    catalog.drop_table("sales.dropped")
    before = files(catalog)
    clock.forward(days=10)
    settings = stanza(catalog, retention={"keep_last": 1, "older_than": "1s"}, orphans={"older_than": "1d"})
    first = define_lakehouses((settings,)).resolve_job_def("sales_eu_maintenance").execute_in_process(instance=instance)
    steps = [each.asset_key.path[-1] for each in first.get_asset_materialization_events() if each.asset_key]
    assert [assets.ORPHANS, *assets.OF_TABLES] == steps[-4:]
    shown = metadata(first, assets.TABLE_HEALTH)
    assert str(shown["outcome"]).startswith("1 table: 1 data file, ")
    assert (1, 1, 6) == (shown["tables"], shown["data_files"], shown["heaviest"][0]["snapshots"])
    assert shown["leakiest"][0]["old_bytes"] == shown["old_bytes"] > 0
    assert shown["picture"].startswith("![the 1 heaviest tables](data:image/png;base64,")
    done = metadata(first, assets.TABLE_EXPIRATION)
    assert ([{"table": "sales.orders", "snapshots": 4, "tags and branches": ""}], 4) == (
        done["plan"],
        done["snapshots"],
    )
    gone = metadata(first, assets.TABLE_CLEANING)
    assert gone["files_deleted"] == gone["plan_files"] == len(before - files(catalog)) > 0
    assert any(row["directory"].startswith("tables/sales/dropped-") for row in gone["leakiest"])
    assert {} == failing(first)
    assert [7, 8] == ids(catalog.load_table("sales.orders"))

    # the second night pushes down what the tree still said of the table, and expires the versions of the first
    clock.forward(days=10)
    second = run(settings, {assets.COMPACTION, assets.EXPIRATION, *ALL}, instance)
    assert metadata(second, assets.TABLE_CLEANING)["files_deleted"] > 0
    clock.forward(days=10)
    third = run(settings, {assets.EXPIRATION, *ALL}, instance)
    assert (0, 0) == tuple(metadata(third, name)[figure] for name, figure in (
        (assets.TABLE_EXPIRATION, "snapshots"), (assets.TABLE_CLEANING, "files_deleted"),
    ))  # fmt: skip
    assert [7, 8] == ids(catalog.load_table("sales.orders"))


def test_dry_runs_show_the_plans_and_change_nothing(
    catalog: TrinityLakeCatalog, instance: dg.DagsterInstance, clock: Clock
) -> None:
    grown(catalog, "sales.orders")
    abandoned = catalog.load_table("sales.orders").transaction()
    abandoned.append(some_rows(9))
    clock.forward(days=10)
    before, version = files(catalog), catalog.lakehouse.refresh().version
    plans = []
    for name in (assets.TABLE_EXPIRATION, assets.TABLE_CLEANING):
        result = run(stanza(catalog), {name}, instance, dry_run=True)
        assert (True, {}) == (result.success, checks(result))
        plans.append(planned(result, name))
    assert (before, version) == (files(catalog), catalog.lakehouse.refresh().version)
    expired, cleaned = plans
    assert ("sales.orders", 2, True) == (expired["plan"][0]["table"], expired["snapshots"], expired["dry_run"])
    assert (True, 0) == (cleaned["dry_run"], cleaned["files_deleted"])
    assert {row["path"] for row in cleaned["plan"]} <= before
    assert len(cleaned["plan"]) == cleaned["plan_files"] > 0


def test_what_is_wrong_with_tables_is_named_by_checks_and_the_others_go_on(
    catalog: TrinityLakeCatalog, instance: dg.DagsterInstance, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Red in the graph, each with a remedy; what an owner forbids, or others maintain, is no failure."""
    grown(catalog, "sales.good")
    grown(catalog, "sales.forbids", **{"gc.enabled": "false"})
    damaged = grown(catalog, "sales.damaged", 1)
    Path(damaged.metadata_location.removeprefix("file://")).unlink()
    holed = Path(grown(catalog, "sales.holed", 1).location().removeprefix("file://"))
    next(holed.glob("metadata/*-m0.avro")).unlink()
    shared = grown(catalog, "sales.shared", 1)
    with monkeypatch.context() as before_owners:
        before_owners.setattr(Locations, "shared_ground", lambda *_: [])  # version 0.1.0 let a table be made there
        with_table(catalog, "sales.sharing", 1, location=shared.location())
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")  # where nothing answers
    away = {"metadata_location": "s3://elsewhere/away/metadata/1.metadata.json"}
    with catalog.lakehouse.transaction() as txn:
        txn.create_table("sales", "away", table_type="EXTERNAL", format_properties=away)
    foreign = "tables/sales/good-notes.txt"
    catalog.lakehouse.storage.write_many([(foreign, b"x")])
    clock.forward(days=10)
    result = run(stanza(catalog, storage_options={"retries": 0}), ALL, instance)
    assert result.success
    assert {
        tables.READABLE: {"sales.away", "sales.damaged", "sales.holed"},
        tables.SMALL_FILES: {"sales.forbids", "sales.good"},
        tables.EXPIRED: {"sales.damaged"},
        tables.CERTAIN: {"damaged", "holed", "shared", "sales-away"},
    } == {name: named(each) for name, each in checks(result).items() if not each.passed}
    found = failing(result)
    assert all(part in found[tables.READABLE] for part in ("sales.away", "Bring the missing file back"))
    assert {dg.AssetCheckSeverity.WARN} == {each.severity for each in checks(result).values()}  # which stop nothing
    assert 2 == len(catalog.load_table("sales.good").metadata.snapshots)
    assert 4 == len(catalog.load_table("sales.forbids").metadata.snapshots)
    assert foreign in str(metadata(result, assets.TABLE_CLEANING))
    assert foreign in files(catalog)


def test_warnings_name_tables_that_engines_clean_and_policies_without_tables(
    catalog: TrinityLakeCatalog, instance: dg.DagsterInstance
) -> None:
    with_table(catalog, "sales.orders", properties={"write.metadata.delete-after-commit.enabled": "true"})
    misspelt = {"policies": {"slaes.*": {"keep_last": 2}}}
    found = failing(run(stanza(catalog, tables=misspelt), ALL, instance))
    assert {tables.ENGINES, tables.EXPIRED} == found.keys()
    assert "sales.orders" in found[tables.ENGINES]
    assert "slaes.*" in found[tables.EXPIRED]


def test_a_failed_integrity_check_stops_what_expires_and_deletes(
    catalog: TrinityLakeCatalog, instance: dg.DagsterInstance, clock: Clock
) -> None:
    grown(catalog, "sales.orders")
    clock.forward(days=10)
    settings = stanza(catalog)
    health = assets.key(settings, assets.HEALTH)
    instance.report_runless_asset_event(dg.AssetCheckEvaluation(passed=False, asset_key=health, check_name="integrity"))
    before, version = files(catalog), catalog.lakehouse.refresh().version
    for name in (assets.TABLE_EXPIRATION, assets.TABLE_CLEANING):
        result = run(settings, {name}, instance)
        assert (False, before) == (result.success, files(catalog))
    assert version == catalog.lakehouse.refresh().version


def test_without_pyiceberg_the_step_names_the_extra(
    catalog: TrinityLakeCatalog, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tablefiles, "find_spec", lambda _: None)
    result = run(stanza(catalog), {assets.TABLE_HEALTH}, instance)
    (failure,) = result.get_step_failure_events()
    assert "trinitylake-maintenance[iceberg]" in str(failure.event_specific_data)
    assert not result.success


def test_a_lakehouse_without_tables_has_no_such_assets_and_jobs(catalog: TrinityLakeCatalog) -> None:
    defined = {}
    for name, given in (("with", STANZA), ("without", None)):
        repository = define_lakehouses((stanza(catalog, tables=given),)).get_repository_def()
        keys = {each.path[-1] for each in repository.asset_graph.get_all_asset_keys()}
        defined[name] = (keys & ALL, {each.name for each in repository.get_all_jobs() if "_tables_" in each.name})
    jobs = {f"sales_eu_tables_{job}" for job in ("health", "expire", "clean")}
    assert {"with": (ALL, jobs), "without": (set(), set())} == defined


def test_a_fleet_does_for_each_lakehouse_what_its_stanza_says(
    tmp_path: Path, instance: dg.DagsterInstance, clock: Clock
) -> None:
    """Three lakehouses, one without ``tables``: by schedule it has no such steps, by hand they say so."""
    lakes = Lakes(tmp_path, instance)
    catalogs = {name: new_iceberg(tmp_path / name) for name in ("many", "few", "none")}
    policies = {"many": {"tables": STANZA}, "few": {"tables": {"policies": {"*": {"older_than": "1s"}}}}}
    for name, catalog in catalogs.items():
        grown(catalog, "sales.orders")
        lakes.add(name, None, **policies.get(name, {}))
        lakes.stanzas[name]["root"] = catalog.lakehouse.root
    lakes.write()
    lakes.tick()
    clock.forward(days=10)
    known = Stanzas(lakes.path).all().good
    assert {"many": ALL, "few": ALL, "none": set()} == {
        name: {*assets.list_maintained_assets(each)} & ALL for name, each in known.items()
    }
    for name in catalogs:
        assert lakes.run("maintenance", name).success
    left = {name: len(each.load_table("sales.orders").metadata.snapshots) for name, each in catalogs.items()}
    assert {"many": 2, "few": 1, "none": 4} == left
    small = assets.key(every(Stanzas(lakes.path).find), assets.TABLE_HEALTH)
    passed = {name: last_result(instance, small, tables.SMALL_FILES, name) for name in catalogs}
    assert {"many": False, "few": True, "none": True} == passed
    config = {"ops": {f"lakehouses__{assets.TABLE_EXPIRATION}": {"config": {"dry_run": True}}}}
    looked = lakes.run("tables_expire", "none", run_config=config)
    assert (True, 3) == (looked.success, planned(looked, assets.TABLE_EXPIRATION)["snapshots"])
    assert "none" == looked.get_asset_observation_events()[0].partition
    assert 4 == len(catalogs["none"].load_table("sales.orders").metadata.snapshots)


def test_the_jobs_of_tables_do_what_materialising_the_assets_does(
    catalog: TrinityLakeCatalog, instance: dg.DagsterInstance, clock: Clock
) -> None:
    """One button has one meaning: on the page of the asset, and on that of its job."""
    grown(catalog, "sales.orders")
    catalog.load_table("sales.orders").transaction().append(some_rows(9))
    clock.forward(days=10)
    defined = define_lakehouses((stanza(catalog),))
    for verb, name, figure in (
        ("health", assets.TABLE_HEALTH, "tables"),
        ("expire", assets.TABLE_EXPIRATION, "snapshots"),
        ("clean", assets.TABLE_CLEANING, "files_deleted"),
    ):
        done = defined.resolve_job_def(f"sales_eu_tables_{verb}").execute_in_process(instance=instance)
        assert [name] == [each.asset_key.path[-1] for each in done.get_asset_materialization_events() if each.asset_key]
        assert metadata(done, name)[figure] > 0


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"policies": {"sales": {}}}, r"'sales' names no table; write 'sales\.\*' for those of a namespace"),
        ({"policies": {"sales.*": {}, "sales.orders": {}}}, "'sales.orders' never counts, because 'sales\\.\\*'"),
        ({"policies": {"sales.orders\\": {}}}, "ends in a backslash"),
        ({"policies": {"*": {"keep_last": 0}}}, "greater than or equal to 1"),
        ({"older_than": "1h"}, "at least"),
    ],
)
def test_a_stanza_that_means_nothing_is_refused(catalog: TrinityLakeCatalog, given: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        stanza(catalog, tables=given)


def test_names_with_dots_have_the_policy_that_names_them(
    catalog: TrinityLakeCatalog, instance: dg.DagsterInstance
) -> None:
    catalog.create_namespace("sales")
    table = catalog.create_table(("sales", "new.orders"), SCHEMA)
    for number in range(3):
        table.append(some_rows(number))
    settings = stanza(catalog, tables={"policies": {r"sales.new\.orders": {"small_files": 3}}})
    found = checks(run(settings, {assets.TABLE_HEALTH}, instance))[tables.SMALL_FILES]
    assert (False, {"sales.new.orders"}) == (found.passed, named(found))


def test_small_files_are_merged_before_snapshots_expire_and_files_go(
    catalog: TrinityLakeCatalog, instance: dg.DagsterInstance, clock: Clock
) -> None:
    """One maintenance: merged, expired, cleaned; only where the stanza asks for it and no policy forbids it."""
    grown(catalog, "sales.orders", 14)
    grown(catalog, "raw.orders", 14)
    policies = {"raw.*": {"compact": False, "older_than": "1s"}, "sales.*": {"older_than": "1s"}}
    settings = stanza(catalog, tables={"policies": policies, "compact": {"prove": "hash"}, "older_than": "1d"})
    job = define_lakehouses((settings,)).resolve_job_def("sales_eu_maintenance")
    clock.forward(days=10)
    done = job.execute_in_process(instance=instance)
    steps = [each.asset_key.path[-1] for each in done.get_asset_materialization_events() if each.asset_key]
    order = [assets.TABLE_HEALTH, assets.TABLE_COMPACTION, assets.TABLE_EXPIRATION, assets.TABLE_CLEANING]
    assert order == [each for each in steps if each in order]
    shown = metadata(done, assets.TABLE_COMPACTION)
    assert (14, 1, 1) == (shown["files_before"], shown["files_made"], shown["versions"])
    assert shown["files_less_per_gib"] > 1_000
    assert (0.0, 0) == (shown["share_lost_to_writers"], shown["conflicts"])
    (became,) = shown["compacted"]
    assert ("sales.orders", True) == (became["table"], became["became"].startswith("14 files, "))
    assert "became 1, " in became["became"]
    assert "engine local; proved by hash" in became["became"]
    assert list(shown)[:5] == ["outcome", "compacted", "plan", "files_before", "files_made"]
    assert {tables.PROVED, tables.WIN, tables.PAY} <= checks(done).keys()
    assert "the rows of 1 table are the same, proved by hash" == checks(done)[tables.PROVED].description
    assert not {tables.PROVED, tables.WIN, tables.PAY} & failing(done).keys()
    assert list(range(14)) == ids(catalog.load_table("sales.orders"))
    assert 1 == len(list(catalog.load_table("sales.orders").scan().plan_files()))
    assert 14 == len(list(catalog.load_table("raw.orders").scan().plan_files()))


def test_without_the_stanza_there_is_no_compaction_and_a_plan_evaluates_no_check(
    catalog: TrinityLakeCatalog, instance: dg.DagsterInstance
) -> None:
    grown(catalog, "sales.orders", 14)
    plain = define_lakehouses((stanza(catalog),)).get_repository_def()
    assert assets.TABLE_COMPACTION not in {each.path[-1] for each in plain.asset_graph.get_all_asset_keys()}
    done = run(stanza(catalog, tables=STANZA | {"compact": {}}), {assets.TABLE_COMPACTION}, instance, dry_run=True)
    plan = planned(done, assets.TABLE_COMPACTION)
    assert (True, 14, {}) == (done.success, plan["files"], checks(done))
    assert not {"share_lost_to_writers", "files_made", "versions"} & plan.keys()
    (row,) = plan["plan"]
    assert re.match(r"14 files of 1 partition, .* would become 1: small files; engine local", row["plan"])
    assert 14 == len(list(catalog.load_table("sales.orders").scan().plan_files()))


def test_a_rewrite_with_other_rows_fails_a_check_that_blocks(
    catalog: TrinityLakeCatalog, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trinitylake_core.iceberg.rewriting.data_files import RowWriter

    grown(catalog, "sales.orders", 14)
    write = RowWriter.write
    monkeypatch.setattr(RowWriter, "write", lambda writer, batches, *rest: write(writer, list(batches)[1:], *rest))
    settings = stanza(catalog, tables=STANZA | {"compact": {}})
    result = run(settings, {assets.TABLE_COMPACTION, assets.TABLE_EXPIRATION, assets.TABLE_CLEANING}, instance)
    done = {each.asset_key.path[-1] for each in result.get_asset_materialization_events() if each.asset_key}
    assert {assets.TABLE_COMPACTION} == done
    found = checks(result)[tables.PROVED]
    assert (False, dg.AssetCheckSeverity.ERROR, {"sales.orders"}) == (found.passed, found.severity, named(found))
    assert 14 == len(list(catalog.load_table("sales.orders").scan().plan_files()))


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"compact": {"budget": {"bytes": "0"}}}, "greater than 0"),
        ({"compact": {"budget": {"bytes": "many"}}}, "not a valid size"),
        ({"compact": {"endpoint": {"uri": "s3://bucket", "warehouse": "lake"}}}, "an endpoint is a URL"),
        ({"policies": {"*": {"compact": {"target": "1KiB"}}}}, "at least 1 MiB"),
        ({"policies": {"*": {"compact": {"min_files": 1}}}}, "greater than or equal to 2"),
    ],
)
def test_a_compaction_that_means_nothing_is_refused(
    catalog: TrinityLakeCatalog, given: dict[str, Any], why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        stanza(catalog, tables=given)

"""Cleaning tables deletes exactly the files that no retained version needs."""

from __future__ import annotations

import json
import shutil
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyarrow import parquet
from pyiceberg.table import Table
from pyiceberg.view.metadata import ViewVersion

from pipelines import clean as clean_job
from pipelines import load, tables_clean
from pipelines.cli import main
from pipelines.job import dry_run
from tests.support.icebergs import SCHEMA, ids, new_iceberg, rows, with_table
from tests.support.zero_age import expire_all_but_the_newest
from trinitylake_core import Lakehouse
from trinitylake_core.definitions import TableDef, decode_table, decode_view
from trinitylake_core.errors import InvalidInput, PlanOutdated
from trinitylake_core.iceberg import TrinityLakeCatalog
from trinitylake_core.iceberg.rights.locations import Locations
from trinitylake_core.tables import LOCATION

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TICK = 0.02
EXTERNAL = "it is EXTERNAL, and those are never cleaned"


def clean(catalog: TrinityLakeCatalog, spark: Any = None, review: Any = None, **options: Any) -> tables_clean.Report:
    """Clean with safety age zero: what was written by now may go."""
    time.sleep(TICK)
    config = tables_clean.Config(
        engine="local" if spark is None else "spark",
        **{"older_than_seconds": 0, "allow_recent": True, **options},
    )
    return tables_clean.run(catalog.lakehouse, config, spark, review=review)


def files(catalog: TrinityLakeCatalog) -> set[str]:
    return {each.path for each in catalog.lakehouse.storage.list("tables/")}


def reads(catalog: TrinityLakeCatalog) -> dict[tuple[int, str], list[int]]:
    """Return the rows of every table in every retained version."""
    lake = catalog.lakehouse
    found = {}
    for version in range(lake.stats().oldest_version, lake.version + 1):
        past = TrinityLakeCatalog.over(lake, version=str(version))
        for namespace in past.list_namespaces():
            for name in past.list_tables(namespace):
                found[version, ".".join(name)] = ids(past.load_table(name))
    return found


def a_history(catalog: TrinityLakeCatalog) -> Table:
    """Make tables that share, lose and delete files."""
    orders = with_table(catalog, "sales.orders", 1, 2, 3)
    orders.append(rows(4))
    orders.delete("id = 2")
    orders.overwrite(rows(9))
    with_table(catalog, "sales.dropped", 5)
    catalog.drop_table("sales.dropped")
    abandoned = catalog.load_table("sales.orders").transaction()
    abandoned.append(rows(6))
    return orders


def test_every_row_of_every_retained_version_reads_and_nothing_else_is_left(catalog: TrinityLakeCatalog) -> None:
    a_history(catalog)
    before = reads(catalog)
    report = clean(catalog)
    assert before == {key: found for key, found in reads(catalog).items() if key in before}
    assert ({"data": 1, "manifest": 2}, 0) == (
        {kind: each.files for kind, each in report.orphans.items()},
        report.failed,
    )
    expire_all_but_the_newest(catalog.lakehouse)
    left, newest = files(catalog), reads(catalog)
    again = clean(catalog)
    assert (newest, ()) == ({k: v for k, v in reads(catalog).items() if k in newest}, again.doubts)
    assert not any("dropped" in path for path in files(catalog))
    assert any("dropped" in path for path in left)
    expire_all_but_the_newest(catalog.lakehouse)
    clean(catalog)
    assert 0 == clean(catalog).orphan_files
    assert [] == list(catalog.lakehouse.check(definitions=True))


def test_snapshots_of_the_lakehouse_and_saved_transactions_keep_files(catalog: TrinityLakeCatalog) -> None:
    orders = with_table(catalog, "sales.orders", 1)
    catalog.lakehouse.create_snapshot("old")
    orders.refresh().overwrite(rows(2))
    location = catalog.load_table("sales.orders").metadata_location
    with_table(catalog, "sales.saved", 7)
    txn = catalog.lakehouse.transaction()
    txn.alter_table("sales", "saved", properties={"a": "b"})
    identity = txn.save()
    catalog.drop_table("sales.saved")
    expire_all_but_the_newest(catalog.lakehouse)
    catalog.load_table("sales.orders").transaction().append(rows(3))
    planned = clean(catalog, review=dry_run)
    assert (3, 1) == (planned.orphan_files, planned.transactions)
    assert 3 == clean(catalog).deleted
    assert [1] == ids(TrinityLakeCatalog.over(catalog.lakehouse, snapshot="old").load_table("sales.orders"))
    assert ([2], location) == (
        ids(catalog.load_table("sales.orders")),
        catalog.load_table("sales.orders").metadata_location,
    )
    assert any("saved" in path for path in files(catalog))
    catalog.lakehouse.resume_transaction(identity).abort()
    catalog.lakehouse.drop_snapshot("old")
    expire_all_but_the_newest(catalog.lakehouse)
    clean(catalog)
    assert not any("saved" in path for path in files(catalog))
    assert 2 == sum(path.endswith(".parquet") for path in files(catalog)), "those of both snapshots of the table"


def test_a_dry_run_and_a_plan_change_nothing_and_a_plan_is_carried_out(
    catalog: TrinityLakeCatalog, tmp_path: Path
) -> None:
    a_history(catalog)
    expire_all_but_the_newest(catalog.lakehouse)
    before, version, uri = files(catalog), catalog.lakehouse.version, str(tmp_path / "plan.parquet")
    dry = clean(catalog, review=dry_run)
    planned = clean(catalog, plan_to=uri)
    assert (before, version) == (files(catalog), catalog.lakehouse.version)
    assert 0 < dry.orphan_files == planned.orphan_files
    done = clean(catalog, plan=uri)
    assert (planned.orphan_files, 0, version + 1) == (done.deleted, done.failed, done.version_after)
    with pytest.raises(InvalidInput, match="plan of `tables clean`, not of `clean`"):
        clean_job.run(catalog.lakehouse, clean_job.Config(engine="local", plan=uri))


def test_a_plan_is_for_the_tables_whose_directories_it_cleans(catalog: TrinityLakeCatalog, tmp_path: Path) -> None:
    """What was written since is no matter; another table in the same directory is."""
    table, uri = with_table(catalog, "sales.orders", 1), str(tmp_path / "plan.parquet")
    table.transaction().append(rows(2))
    assert 3 == clean(catalog, plan_to=uri).orphan_files
    kinds = Counter(row["kind"] for row in parquet.read_table(uri).to_pylist())
    assert {"planned table": 1, "data": 1, "manifest": 2} == kinds
    catalog.load_table("sales.orders").append(rows(4))
    metadata = Path(catalog.load_table("sales.orders").metadata_location.removeprefix("file://"))
    content = json.loads(metadata.read_text())
    catalog.drop_table("sales.orders")
    expire_all_but_the_newest(catalog.lakehouse)
    content["table-uuid"] = "00000000-0000-4000-8000-000000000000"
    metadata.write_text(json.dumps(content))
    catalog.register_table("sales.other", metadata.as_uri())
    before = files(catalog)
    with pytest.raises(PlanOutdated, match="does not belong any more to the table that the plan was made for"):
        clean(catalog, plan=uri)
    assert before == files(catalog)


def test_a_plan_that_a_later_version_needs_is_outdated(catalog: TrinityLakeCatalog, tmp_path: Path) -> None:
    """A rollback took the files over between the plan and its execution."""
    orders, uri = with_table(catalog, "sales.orders", 1), str(tmp_path / "plan.parquet")
    orders.transaction().append(rows(2))  # abandoned: data, manifest and manifest list
    assert 0 < clean(catalog, plan_to=uri).orphan_files
    lake = catalog.lakehouse
    path = next(path for path in files(catalog) if path.endswith(".parquet") and path not in _live(catalog))
    with lake.transaction() as txn:  # a program that bypasses the catalog
        table = lake.table("sales", "orders")
        metadata = _copied_metadata(catalog, table, path)
        txn.alter_table("sales", "orders", format_properties={"metadata_location": metadata})
    with pytest.raises(PlanOutdated, match="in use"):
        clean(catalog, plan=uri)
    assert path in files(catalog)


def test_a_file_that_was_sent_again_after_the_listing_stays(catalog: TrinityLakeCatalog) -> None:
    """Its client commits it, which the young file allows: the deletion must not have the last word."""
    orders = with_table(catalog, "sales.orders", 1)
    late = orders.transaction()
    late.append(rows(2))
    written = {path for path in files(catalog) if path not in _live(catalog)}
    with_table(catalog, "sales.other", 3).transaction().append(rows(4))
    root = Path(catalog.lakehouse.root.removeprefix("file://"))

    def sent_again(report: Any) -> bool:
        assert 6 == report.orphan_files
        time.sleep(TICK)
        for path in (root / each for each in written):
            path.write_bytes(path.read_bytes())
        return True

    report = clean(catalog, review=sent_again)
    assert (3, 3, 3) == (report.orphan_files, report.attempted, report.deleted)
    late.commit_transaction()
    assert [1, 2] == ids(catalog.load_table("sales.orders"))


@pytest.mark.parametrize("command", ["apply", "load"])
def test_table_metadata_in_a_file_of_changes_are_refused_once_tables_were_cleaned(
    catalog: TrinityLakeCatalog, tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    a_history(catalog)
    clean(catalog)
    lake = catalog.lakehouse.refresh()
    location = lake.table("sales", "orders").format_properties["metadata_location"]
    named = {"metadata_location": location}
    changes = [
        {"create_table": {"namespace": "sales", "name": name, "table_format": "ICEBERG", "format_properties": named}}
        for name in ("one", "two")
    ]
    if command == "apply":
        (given := tmp_path / "changes.json").write_text(json.dumps(changes))
    else:
        (given := tmp_path / "changes.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in changes))
    words = ["apply", lake.root, str(given)] if command == "apply" else ["load", lake.root, str(given)]
    assert 0 < main(words)
    told = capsys.readouterr().err
    assert location in told
    assert "register_table" in told
    assert ["orders"] == lake.refresh().tables("sales")


def test_a_load_starts_over_when_tables_are_cleaned_meanwhile(catalog: TrinityLakeCatalog, tmp_path: Path) -> None:
    """It read its lines before there was a fence that forbids some of them."""
    a_history(catalog)
    lake = catalog.lakehouse.refresh()
    named = {"metadata_location": lake.table("sales", "orders").format_properties["metadata_location"]}
    line = {"create_table": {"namespace": "sales", "name": "a", "table_format": "ICEBERG", "format_properties": named}}
    (given := tmp_path / "changes.jsonl").write_text(json.dumps(line))

    def cleaned(report: Any) -> bool:
        del report
        return bool(clean(catalog).deleted)

    with pytest.raises(InvalidInput, match="register_table"):
        load.run(Lakehouse.open(lake.root), str(given), load.Config(engine="local"), review=cleaned)
    line["create_table"].pop("format_properties")
    given.write_text(json.dumps(line))
    with_table(catalog, "sales.other", 1).transaction().append(rows(2))
    report = load.run(Lakehouse.open(lake.root), str(given), load.Config(engine="local"), review=cleaned)
    assert ["a", "orders", "other"] == catalog.lakehouse.refresh().tables("sales")
    assert report.version_after is not None


def _live(catalog: TrinityLakeCatalog) -> set[str]:
    root = catalog.lakehouse.root.removeprefix("file://")
    scanned = catalog.load_table("sales.orders").scan().plan_files()
    return {each.file.file_path.removeprefix("file://").removeprefix(root) for each in scanned}


def _copied_metadata(catalog: TrinityLakeCatalog, table: TableDef, path: str) -> str:
    """Write metadata that name a file of statistics at ``path``."""
    storage, location = catalog.lakehouse.storage, table.format_properties["metadata_location"]
    found = json.loads(storage.read(location))
    found["statistics"] = [{"statistics-path": f"{storage.root}{path}"}]
    copy = location.replace("00001-", "00002-")
    storage.write_many([(copy, json.dumps(found).encode())])
    return copy


def test_young_and_foreign_files_stay_and_are_named(catalog: TrinityLakeCatalog) -> None:
    a_history(catalog)
    expire_all_but_the_newest(catalog.lakehouse)
    location = catalog.load_table("sales.orders").location().removeprefix("file://")
    foreign = [Path(location, "notes.txt"), Path(location, "metadata", "mine.json"), Path(location).parent / "x.avro"]
    strange = Path(location).parents[1] / "sales" / "by-hand" / "data" / "a.parquet"
    strange.parent.mkdir(parents=True)
    for path in (*foreign, strange):
        path.write_bytes(b"mine")
    young = clean(catalog, older_than_seconds=86_400)
    assert (0, 0) == (young.orphan_files, young.deleted)
    assert 0 < young.young.files
    report = clean(catalog)
    assert (3, ("tables/sales/by-hand/",)) == (report.foreign.files, report.foreign.directories)
    assert all(path.exists() for path in (*foreign, strange))


def test_two_tables_that_claim_one_directory_lose_nothing(
    catalog: TrinityLakeCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Version 0.1.0 let a table be made there."""
    one = with_table(catalog, "sales.one", 1)
    one.transaction().append(rows(2))
    monkeypatch.setattr(Locations, "shared_ground", lambda *_: [])
    with_table(catalog, "sales.two", 3, location=one.location())
    before = files(catalog)
    report = clean(catalog)
    assert (before, 0) == (files(catalog) & before, report.orphan_files)
    assert ["another table claims this directory, too"] == [each.reason for each in report.doubts]


def test_external_tables_and_other_formats_are_left_alone(catalog: TrinityLakeCatalog, tmp_path: Path) -> None:
    """Inside the area, too: nothing tells all their files, or somebody else maintains them."""
    (tmp_path / "other").mkdir()
    theirs = with_table(new_iceberg(tmp_path / "other"), "a.b", 1)
    catalog.create_namespace("sales")
    catalog.register_table("sales.theirs", theirs.metadata_location)
    inside = with_table(catalog, "sales.inside", 2)
    directory = "tables/sales/empty-0123456789ab/"
    lake = catalog.lakehouse
    lake.storage.write_many([(f"{directory}data/a.parquet", b"x")])
    with lake.transaction() as txn:
        txn.create_table("sales", "empty", format_properties={LOCATION: directory})
        txn.drop_table("sales", "inside")
        txn.create_table(
            "sales", "inside", table_type="EXTERNAL", format_properties={"metadata_location": inside.metadata_location}
        )
    inside.transaction().append(rows(4))
    before, outside = files(catalog), sorted(Path(theirs.location().removeprefix("file://")).rglob("*"))
    report = clean(catalog)
    assert (before, 0) == (files(catalog), report.orphan_files)
    assert sorted(Path(theirs.location().removeprefix("file://")).rglob("*")) == outside
    assert {
        (directory, "it has a location and names no metadata, so nothing tells its files"),
        (f"{inside.metadata_location.removeprefix(lake.root).partition('/metadata/')[0]}/", EXTERNAL),
    } == {(each.directory, each.reason) for each in report.doubts}


def test_an_unreadable_definition_stops_everything(catalog: TrinityLakeCatalog) -> None:
    a_history(catalog)
    expire_all_but_the_newest(catalog.lakehouse)
    lake, before = catalog.lakehouse, files(catalog)
    path = next(each.path for each in lake.objects(kind="table"))
    lake.storage.delete_many([path])
    (doubt,) = clean(catalog).doubts
    assert (True, True) == (doubt.stops_all, "is missing, so the files that it names are unknown" in doubt.reason)
    assert before == files(catalog)


def test_a_definition_that_lost_its_end_or_is_of_another_kind_stops_everything(catalog: TrinityLakeCatalog) -> None:
    """It parses: those of 0.1.0 have no checksum either."""
    a_history(catalog)
    expire_all_but_the_newest(catalog.lakehouse)
    lake, before = catalog.lakehouse, files(catalog)
    path = next(each.path for each in lake.objects(kind="table"))
    table = decode_table(lake.storage.read(path), path)
    table.ClearField("format_properties")
    other = next(each.path for each in lake.objects(kind="namespace"))
    external = TableDef(id=table.id, schema=table.schema, table_type="EXTERNAL")
    for content in (table.SerializeToString(), external.SerializeToString(), lake.storage.read(other)):
        lake.storage.replace(path, content)
        (doubt,) = clean(catalog).doubts
        assert (True, before) == (doubt.stops_all, files(catalog))


def test_a_copy_of_the_lakehouse_does_not_lose_what_its_metadata_calls_by_another_name(
    catalog: TrinityLakeCatalog, tmp_path: Path
) -> None:
    a_history(catalog)
    shutil.copytree(tmp_path / "lake", tmp_path / "moved")
    moved = TrinityLakeCatalog("moved", uri=str(tmp_path / "moved"))
    before = files(moved)
    report = clean(moved)
    kept = {path for path in before if "/orders-" in path}
    assert kept <= files(moved)
    assert all("it was copied, or moved" in each.reason for each in report.doubts)
    assert report.doubts


def test_the_metadata_files_of_views_stay_as_long_as_a_version_needs_them(catalog: TrinityLakeCatalog) -> None:
    catalog.create_namespace("sales")
    version = ViewVersion(
        version_id=1,
        schema_id=0,
        timestamp_ms=1,
        summary={},
        default_namespace=["sales"],
        representations=[{"type": "sql", "sql": "SELECT 1 AS id", "dialect": "spark"}],
    )
    for name in ("sales.kept", "sales.dropped"):
        catalog.create_view(name, SCHEMA, version)
    assert (2, 0) == (len(files(catalog)), clean(catalog).orphan_files)
    catalog.drop_view("sales.dropped")
    expire_all_but_the_newest(catalog.lakehouse)
    assert 1 == clean(catalog).deleted
    (left,) = files(catalog)
    assert left in catalog.load_view("sales.kept").metadata_location
    lake = catalog.lakehouse.refresh()
    other, path = (next(each.path for each in lake.objects(kind=kind)) for kind in ("namespace", "view"))
    view = decode_view(lake.storage.read(path), path)
    view.ClearField("properties")
    for content in (view.SerializeToString(), lake.storage.read(other)):
        lake.storage.replace(path, content)  # it lost its end, or is of another kind
        (doubt,) = clean(catalog).doubts
        assert (True, {left}) == (doubt.stops_all, files(catalog))


def test_only_the_tables_of_a_pattern_are_cleaned(catalog: TrinityLakeCatalog) -> None:
    for name in ("sales.one", "sales.two", "other.one"):
        with_table(catalog, name, 1).transaction().append(rows(2))
    report = clean(catalog, pattern="sales.o*")
    assert 3 == report.deleted
    assert 6 == clean(catalog).deleted


@pytest.mark.spark
def test_spark_finds_the_same_and_leaves_the_same_tables_in_doubt_alone(
    catalog: TrinityLakeCatalog, spark: SparkSession
) -> None:
    """Spark fails at unions of joins whose rows have a column twice, under two names."""
    with_table(catalog, "sales.bad", 1).transaction().append(rows(2))
    with_table(catalog, "sales.good", 1).transaction().append(rows(2))
    bad = Path(catalog.load_table("sales.bad").location().removeprefix("file://"))
    min(bad.joinpath("metadata").glob("*-m0.avro"), key=lambda path: path.stat().st_mtime_ns).unlink()
    apart = (f"tables/sales/{bad.name}",)
    local, on_spark = (clean(catalog, each, review=dry_run, apart=apart) for each in (None, spark))
    assert (3, 1) == (local.orphan_files, len(local.doubts))
    same = ("orphans", "orphan_files", "young", "foreign", "listed", "files_read", "doubts", "nodes_read")
    assert [getattr(local, name) for name in same] == [getattr(on_spark, name) for name in same]

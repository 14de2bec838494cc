"""Orphan removal deletes exactly what nothing needs."""

from __future__ import annotations

import csv
import json
import os
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.csv as csv_columns
import pyarrow.parquet as pq
import pytest

from pipelines import clean as clean_job
from pipelines import compaction, expire, export, tables_clean
from pipelines.job import dry_run
from pipelines.reach import listing as files_listing
from pipelines.reach.kept_roots import slack
from pipelines.reach.sweep import Sweep
from tests.support.clock import Clock
from tests.support.faults import FaultPlan, attach, detach
from tests.support.generator import DAY, Case, build
from tests.support.lakes import FAST, compacted, content, filled, new_lake, operations, reopened, save_outlived
from tests.support.surgery import Surgery, directory_of, files_of, listing
from trinitylake_core import Lakehouse
from trinitylake_core.check import check_lakehouse, check_version
from trinitylake_core.clock import now_millis
from trinitylake_core.commits.fences import CLOCKS_DIFFER_MILLIS
from trinitylake_core.definitions import decode_transaction
from trinitylake_core.errors import Corrupt, CorruptNode, InvalidInput, PlanOutdated, Refused
from trinitylake_core.locations import definition_path, lakehouse_def_path, node_path, root_path, transaction_path
from trinitylake_core.transactions.transaction import Transaction

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AGE = 3 * DAY
YEAR_2001 = 1_000_000_000_000


def clean(
    lake: Lakehouse, now: int | None = None, spark: Any = None, review: Any = None, **options: Any
) -> clean_job.Report:
    engine = "local" if spark is None else "spark"
    return clean_job.run(lake, clean_job.Config(engine=engine, now_millis=now, **options), spark, review=review)


def later() -> int:
    """A time at which everything written so far is older than the safety age."""
    return now_millis() + 4 * DAY


def plant(lake: Lakehouse, path: str, data: bytes = b"left over") -> str:
    lake.storage.write_many([(path, data)])
    return path


def a_table(lake: Lakehouse) -> bytes:
    return lake.storage.read(content(lake)["C===ns0     t000    "])


def assert_sound(lake: Lakehouse, boundary: int = 0) -> None:
    """Every version that is kept is intact, its definitions too, and so are the snapshots."""
    lake = reopened(lake)
    versions = lake.backend.versions
    found = [*check_lakehouse(versions, lake.root_node)]
    for version in range(boundary, lake.version + 1):
        found += check_version(versions, version, definitions=True)
    assert [] == found
    for info in lake.snapshots():
        if not info.expired:
            assert all(lake.definition_of(each) for each in lake.at(snapshot=info.name).objects())


def prove(case: Case, spark: Any = None) -> None:
    """A cleaning deletes the expected files, all of them and no other one, and says so."""
    expected, before = case.expected(AGE), set(listing(case.directory))
    assert case.foreign.isdisjoint(expected)
    report = clean(case.lake, case.now, spark)
    assert expected == before - set(listing(case.directory))
    assert (len(expected), len(expected), 0, 0) == (
        report.attempted, report.deleted, report.already_gone, report.failed,
    )  # fmt: skip
    assert len(expected) == report.orphan_files == sum(size.files for size in report.orphans.values())
    assert (len(case.live), len(case.dead)) >= (report.transactions, 0)
    assert_sound(case.lake, case.boundary())
    for transaction in case.live:
        case.lake.refresh().resume_transaction(transaction)
    again = clean(case.lake, case.now, spark)
    assert (0, 0) == (again.attempted, again.orphan_files)


@pytest.mark.parametrize("seed", range(25))
def test_deletes_exactly_what_nothing_reaches(tmp_path: Path, seed: int) -> None:
    """Histories, snapshots, transactions, interrupted expirations, foreign files and nested lakehouses at random."""
    prove(build(tmp_path, seed))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 1600, 50))
def test_deletes_exactly_what_nothing_reaches_hundreds(tmp_path: Path, first: int) -> None:
    for seed in range(first, first + 50):
        (tmp_path / str(seed)).mkdir()
        prove(build(tmp_path / str(seed), seed, steps=40))


@pytest.mark.spark
def test_spark_deletes_exactly_the_same(tmp_path: Path, spark: SparkSession) -> None:
    """Both engines report the same, and Spark deletes what is expected."""
    case = build(tmp_path, 22)
    expected, before = case.expected(AGE), set(listing(case.directory))
    local = clean(case.lake, case.now, review=dry_run)
    done = clean(case.lake, case.now, spark)
    for name in ("orphans", "young", "foreign", "listed", "nodes_read", "snapshots", "transactions", "version"):
        assert getattr(local, name) == getattr(done, name), name
    assert (len(expected), len(expected), 0) == (done.attempted, done.deleted, done.failed)
    assert expected == before - set(listing(case.directory))
    assert_sound(case.lake, case.boundary())


@pytest.mark.spark
@pytest.mark.slow
def test_each_engine_carries_out_the_plan_of_the_other(tmp_path: Path, spark: SparkSession) -> None:
    case = build(tmp_path, 22)
    expected, before = case.expected(AGE), set(listing(case.directory))
    one, two = ((tmp_path / f"{name}.parquet") for name in ("one", "two"))
    clean(case.lake, case.now, plan_to=one.as_uri())
    clean(case.lake, case.now, spark, plan_to=two.as_uri())
    tables = [pq.read_table(each).sort_by("path") for each in (one, two)]
    assert tables[0].equals(tables[1])
    assert len(expected) == clean(case.lake, case.now, spark, plan=one.as_uri()).deleted
    assert expected == before - set(listing(case.directory))
    assert len(expected) == clean(case.lake, case.now, plan=two.as_uri()).already_gone


def test_a_low_safety_age_needs_a_flag(tmp_path: Path) -> None:
    lake = new_lake(tmp_path)
    with pytest.raises(InvalidInput, match="allow-recent"):
        clean(lake, older_than_seconds=86_399)
    assert 0 == clean(lake, older_than_seconds=86_400).failed
    plant(lake, node_path())
    assert 1 == clean(lake, now_millis() + 5, older_than_seconds=0, allow_recent=True).deleted


def test_what_is_deleted_is_fenced_off_by_a_version(tmp_path: Path, clock: Clock) -> None:
    """By the storage's clock, whatever this machine's says. Without orphans nothing is committed."""
    lake = filled(new_lake(tmp_path), tables=4)
    path, version = plant(lake, node_path()), lake.version
    time.sleep(0.02)
    with clock.another(millis=-CLOCKS_DIFFER_MILLIS // 2, with_storage=False):
        report = clean(lake, older_than_seconds=0, allow_recent=True, reason="ticket 12")
    assert (1, version + 1) == (report.deleted, report.version_after)
    fence, info = lake.refresh().root_node, lake.info()
    assert ("clean", 1, "ticket 12") == (info.operation, info.summary["orphan_files"], info.reason)
    now = now_millis()
    assert now - 60_000 < fence.void_before_millis <= now
    again = clean(lake, older_than_seconds=0, allow_recent=True)
    assert (0, None, version + 1) == (again.deleted, again.version_after, reopened(lake).version)
    assert not (directory_of(lake) / path).exists()


def test_the_owner_can_forbid_it(tmp_path: Path) -> None:
    """The guard property refuses cleanings and expiration; a dry run is still answered."""
    lake = filled(new_lake(tmp_path, properties={"maintenance.delete.enabled": "false"}), tables=4)
    plant(lake, node_path())
    before = files_of(lake)
    with pytest.raises(Refused, match=r"maintenance\.delete\.enabled"):
        clean(lake, later())
    with pytest.raises(Refused, match=r"maintenance\.delete\.enabled"):
        expire.run(lake, expire.Config(engine="local", keep_last=1))
    with pytest.raises(Refused, match=r"maintenance\.delete\.enabled"):
        tables_clean.run(lake, tables_clean.Config(engine="local"))
    assert before == files_of(lake)
    assert 1 == clean(lake, later(), review=dry_run).orphan_files


@pytest.mark.parametrize("what", ["node", "root", "snapshot", "running root", "transaction"])
def test_doubt_aborts(tmp_path: Path, what: str) -> None:
    """What must be marked and cannot be read stops everything: nothing is deleted."""
    lake = filled(new_lake(tmp_path), tables=30)
    compacted(lake)
    lake.refresh().create_snapshot("s", version=2)
    txn = lake.refresh().transaction()
    txn.create_table("ns0", "saved")
    saved = transaction_path(txn.save())
    plant(lake, node_path())
    running = next(path for path in files_of(lake) if path == _running(lake, saved))
    damaged = {
        "node": lake.root_node.node.children[0] if lake.root_node.node.children else "",
        "root": root_path(3),
        "snapshot": lake.refresh().snapshots()[0].root_path,
        "running root": running,
        "transaction": saved,
    }[what]
    plant(lake, damaged, b"garbage")
    before = files_of(lake)
    with pytest.raises(Corrupt):
        clean(lake, later())
    assert before == files_of(lake)


def _running(lake: Lakehouse, saved: str) -> str:
    return decode_transaction(lake.storage.read(saved), saved).running_root_node_file_path


def test_a_garbled_transaction_that_could_not_be_alive_is_an_orphan(tmp_path: Path) -> None:
    lake = filled(new_lake(tmp_path), tables=4)
    path = plant(lake, transaction_path("garbled"), b"\xff\xff")
    with pytest.raises(Corrupt, match="may be live"):
        clean(lake, later())
    assert 1 == clean(lake, now_millis() + 9 * DAY).deleted
    assert not (directory_of(lake) / path).exists()


def test_what_is_committed_while_it_runs_stays(tmp_path: Path) -> None:
    """A root committed after the marking is marked before anything is deleted."""
    lake = filled(new_lake(tmp_path), tables=4)
    late = plant(
        lake, definition_path("table", "ns0", "late"), lake.storage.read(content(lake)["C===ns0     t000    "])
    )
    gone = plant(lake, node_path())
    sweep, writer = Sweep.subtract, reopened(lake)

    def commit_meanwhile(self: Sweep, boundary: int, cutoff: int) -> Any:
        with writer.transaction() as txn:
            txn.put("C===ns0     late    ", late)
        return sweep(self, boundary, cutoff)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Sweep, "subtract", commit_meanwhile)
        report = clean(lake, later())
    assert (1, False, True) == (
        report.deleted,
        (directory_of(lake) / gone).exists(),
        (directory_of(lake) / late).exists(),
    )
    assert_sound(lake)


def test_a_transaction_that_is_committed_while_it_is_marked_is_no_reason_to_start_over(tmp_path: Path) -> None:
    """Its running root is gone then: what is alive is read again, and the marking goes on."""
    lake = filled(new_lake(tmp_path), tables=4)
    txn = reopened(lake).transaction()
    txn.create_table("ns0", "saved")
    saved, gone, mark = txn.save(), plant(lake, node_path()), Sweep.mark
    asked: list[int] = []

    def commit_meanwhile(self: Sweep, starts: Any, paths: Any, *, afresh: bool = False) -> None:
        if not asked:
            reopened(lake).resume_transaction(saved).commit()
        asked.append(1)
        mark(self, starts, paths, afresh=afresh)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Sweep, "mark", commit_meanwhile)
        report = clean(lake, later())
    assert (3, False) == (len(asked), (directory_of(lake) / gone).exists())
    assert ("saved" in reopened(lake).tables("ns0"), 1) == (True, operations(reopened(lake)).count("clean"))
    assert 0 == report.failed
    assert_sound(lake)


def test_failures_are_counted_and_the_rest_goes_on(tmp_path: Path) -> None:
    """A file that cannot be deleted is counted with its reason; one that is gone already is told apart."""
    lake = filled(new_lake(tmp_path), tables=4)
    paths = [plant(lake, node_path()) for _ in range(3)]
    stuck = directory_of(lake) / paths[0]
    act = Sweep.act

    def meddle(self: Sweep) -> Any:
        stuck.unlink()
        stuck.mkdir()  # cannot be unlinked
        (directory_of(lake) / paths[1]).unlink()
        return act(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Sweep, "act", meddle)
        report = clean(lake, later())
    assert (3, 1, 1, 1) == (report.attempted, report.deleted, report.already_gone, report.failed)
    assert [paths[0]] == list(report.failures)


def test_a_storage_that_refuses_deletion_is_no_crash(tmp_path: Path) -> None:
    lake = filled(new_lake(tmp_path), tables=4)
    plant(lake, node_path())
    attach(lake.storage, FaultPlan("fail_permanently", kinds={"delete"}))
    report = clean(lake, later())
    detach(lake.storage)
    assert (1, 0, 1) == (report.attempted, report.deleted, report.failed)
    assert "injected" in next(iter(report.failures.values()))


# -- plans ---------------------------------------------------------------------------------------------


def test_a_plan_is_data_and_is_carried_out(tmp_path: Path) -> None:
    case = build(tmp_path, 21)
    expected, uri = case.expected(AGE), (tmp_path / "plan.parquet").as_uri()
    before = set(listing(case.directory))
    planned = clean(case.lake, case.now, plan_to=uri)
    assert (uri, True, before) == (planned.plan, planned.dry_run, set(listing(case.directory)))
    table = pq.read_table(tmp_path / "plan.parquet")
    assert ["path", "kind", "bytes", "modified_millis", "reason"] == table.column_names
    assert expected == set(table.column("path").to_pylist())
    head = json.loads(table.schema.metadata[b"trinitylake.plan"])
    assert (case.lake.root, case.boundary(), AGE / 1000) == (
        head["root"], head["boundary"], head["safety_age_seconds"],
    )  # fmt: skip
    with case.lake.refresh().transaction() as txn:  # does not matter
        txn.create_namespace("another")
    done = clean(case.lake, case.now, plan=uri)
    assert (len(expected), 0) == (done.deleted, done.failed)
    assert expected == before - set(listing(case.directory))
    assert_sound(case.lake, case.boundary())
    assert len(expected) == clean(case.lake, case.now, plan=uri).already_gone


def _reuse(lake: Lakehouse, path: str) -> None:
    with lake.refresh().transaction() as txn:
        txn.put("C===ns0     reused  ", path)


def _save(lake: Lakehouse, path: str) -> None:
    txn = lake.refresh().transaction()
    txn.put("C===ns0     reused  ", path)
    txn.save()


def _snapshot(lake: Lakehouse, path: str) -> None:
    _reuse(lake, path)
    lake.refresh().create_snapshot("reuses")


def _recreate(lake: Lakehouse, path: str) -> None:
    del path
    for file in directory_of(lake).glob("_*"):
        file.unlink()
    new_lake(directory_of(lake).parent)


@pytest.mark.parametrize(
    ("change", "error"),
    [(_reuse, PlanOutdated), (_save, PlanOutdated), (_snapshot, PlanOutdated), (_recreate, InvalidInput)],
)
def test_a_plan_that_no_longer_holds_deletes_nothing(
    tmp_path: Path, change: Callable[[Lakehouse, str], None], error: type[Exception]
) -> None:
    lake = filled(new_lake(tmp_path), tables=4)
    path = plant(lake, definition_path("table", "ns0", "t"), a_table(lake))
    uri = (tmp_path / "plan.parquet").as_uri()
    assert 1 == clean(lake, later(), plan_to=uri).orphan_files
    change(lake, path)
    before = files_of(lake)
    with pytest.raises(error):
        clean(Lakehouse.open(lake.root, storage_options=FAST), plan=uri)
    assert before == files_of(lake)


def test_a_doctored_plan_deletes_no_live_and_no_foreign_file(tmp_path: Path) -> None:
    """A plan is not believed: its names are looked at, and proved against what is kept since."""
    lake = filled(new_lake(tmp_path), tables=4)
    plant(lake, node_path())
    uri = (tmp_path / "plan.parquet").as_uri()
    clean(lake, later(), plan_to=uri)
    table = pq.read_table(tmp_path / "plan.parquet")
    for name in ("README.md", "_latest_hint.txt", root_path(1)):
        changed = table.set_column(0, "path", pa.array([name]))
        pq.write_table(changed.replace_schema_metadata(table.schema.metadata), tmp_path / "plan.parquet")
        with pytest.raises(InvalidInput, match="never deletes"):
            clean(lake, plan=uri)
    (tmp_path / "plan.parquet").write_bytes(b"no Parquet")
    with pytest.raises(InvalidInput, match="is not a plan"):
        clean(lake, plan=uri)


def test_what_killed_proofs_of_the_store_left_is_removed_once_it_is_old(tmp_path: Path) -> None:
    """Nothing refers to it, and nobody else would remove it. What only resembles it belongs to somebody."""
    lake = filled(new_lake(tmp_path), tables=4)
    left, under_way, foreign = (
        f"_doctor-{uuid.uuid4()}/round-1",
        f"_doctor-{uuid.uuid4()}/round-1",
        f"_doctor-{uuid.uuid4()}-notes/round-1",
    )
    for path in (left, under_way, foreign):
        lake.storage.write_many([(path, b"racer 1")])
    days_ago = time.time() - 4 * DAY / 1000
    for path in (left, foreign):
        os.utime(directory_of(lake) / path, (days_ago, days_ago))
    assert 0 == clean(lake, review=dry_run).temporary_removed
    done = clean(lake)
    assert 1 == done.temporary_removed
    assert (f"{foreign.partition('/')[0]}/",) == done.foreign.directories
    assert {under_way, foreign} == {path for path in files_of(lake) if path.startswith("_doctor-")}
    assert 0 == clean(lake).temporary_removed


# -- inventories ---------------------------------------------------------------------------------------


def _inventory(case: Case) -> list[tuple[str, int, int]]:
    found = []
    for path, data in listing(case.directory).items():
        modified = (case.directory / path).stat().st_mtime_ns // 1_000_000
        found.append((path, len(data), modified))
    return found


@pytest.mark.parametrize("form", ["parquet", "csv", "directory of URIs"])
def test_an_inventory_stands_in_for_the_listing(tmp_path: Path, form: str) -> None:
    case = build(tmp_path, 31)
    age = max(AGE, _time_to_live(case.lake))
    rows, expected, before = _inventory(case), case.expected(age), set(listing(case.directory))
    assert expected
    if form == "csv":
        uri = (tmp_path / "inventory.csv").as_uri()
        with (tmp_path / "inventory.csv").open("w", newline="") as file:
            csv.writer(file).writerows([("path", "size", "modified"), *rows])
    else:
        (tmp_path / "inventory").mkdir()
        halves = [rows[::2], rows[1::2]] if form != "parquet" else [rows]
        for number, half in enumerate(halves):
            names = [f"{case.lake.root}{path}" if form != "parquet" else path for path, _, _ in half]
            times = pa.array([modified for _, _, modified in half], pa.timestamp("ms", "UTC"))
            table = pa.table({"Key": names, "Size": [size for _, size, _ in half], "LastModified": times})
            pq.write_table(table, tmp_path / "inventory" / f"{number}.parquet")
        uri = (tmp_path / "inventory").as_uri() + ("/0.parquet" if form == "parquet" else "")
    counts = case.lake.storage.counts.snapshot()
    assert list(files_listing.list_shards(case.lake.storage, files_listing.shards(case.lake.storage).prefixes))
    once = (case.lake.storage.counts - counts).list
    report = clean(case.lake, case.now, inventory=uri)
    assert expected == before - set(listing(case.directory))
    assert 0 == report.failed
    assert 1 + once == report.requests.get("list", 0), "of the roots, and a single listing, for saved transactions"


def _time_to_live(lake: Lakehouse) -> int:
    """How old, in milliseconds, a file must be to belong to no living transaction."""
    ttl = lake.definition.txn_ttl_millis
    return ttl + slack(ttl)


def test_a_transaction_that_an_old_inventory_does_not_list_keeps_its_files(tmp_path: Path) -> None:
    """Its nodes were listed, and it was saved right afterwards."""
    lake = filled(new_lake(tmp_path), tables=4)
    before = set(files_of(lake))
    txn = Transaction(lake.backend, lake.root_node, began_at_millis=now_millis())
    txn.create_table("ns0", "saved")
    saved = txn.save()
    dead = plant(lake, node_path())
    paths = [path for path in files_of(lake) if path != transaction_path(saved)]
    assert set(paths) - before - {dead}
    table = pa.table({"path": paths, "size": [9] * len(paths), "modified": [now_millis()] * len(paths)})
    pq.write_table(table, tmp_path / "i.parquet")
    report = clean(lake, later(), inventory=(tmp_path / "i.parquet").as_uri())
    assert (0, len(set(paths) - before)) == (report.deleted, report.young.files)
    resumed = reopened(lake).resume_transaction(saved)
    assert ["saved"] == [name for name in resumed.tables("ns0") if name == "saved"]
    after = now_millis() + _time_to_live(lake) + 1000
    assert 0 == clean(lake, after, inventory=(tmp_path / "i.parquet").as_uri()).deleted  # it grows no younger
    os.utime(tmp_path / "i.parquet", (after / 1000, after / 1000))
    report = clean(lake, after, inventory=(tmp_path / "i.parquet").as_uri())
    assert len(set(paths) - before) == report.deleted


def test_a_transaction_that_an_inventory_does_not_list_keeps_what_it_began_with(tmp_path: Path, clock: Clock) -> None:
    """Its version is old, and has expired since: nothing but the transaction reaches the nodes of that."""
    lake = filled(new_lake(tmp_path), tables=40)
    clock.forward(days=60)
    paths = files_of(lake)
    table = pa.table({"path": paths, "size": [9] * len(paths), "modified": [YEAR_2001] * len(paths)})
    pq.write_table(table, tmp_path / "i.parquet")
    os.utime(tmp_path / "i.parquet", (clock.now() / 1000, clock.now() / 1000))
    saved = lake.refresh().transaction()
    saved.alter_table("ns0", "t000", properties={"a": "b"})
    identity = saved.save()
    compacted(lake.refresh())
    expire.run(lake.refresh(), expire.Config(engine="local", keep_last=1))
    report = clean_job.run(
        lake.refresh(), clean_job.Config(engine="local", inventory=(tmp_path / "i.parquet").as_uri())
    )
    assert report.deleted
    assert 1 == report.transactions
    resumed = reopened(lake).resume_transaction(identity)
    assert 14 == len(list(resumed.tables("ns0")))


def test_a_file_of_unknown_age_stays(tmp_path: Path) -> None:
    lake = filled(new_lake(tmp_path), tables=4)
    path = plant(lake, node_path())
    table = pa.table({"path": [path, path], "size": [9, 9], "modified": pa.array([None, YEAR_2001], pa.int64())})
    pq.write_table(table, tmp_path / "i.parquet")
    report = clean(lake, later() + 7 * DAY, inventory=(tmp_path / "i.parquet").as_uri())
    assert (0, 1) == (report.attempted, report.unknown_age.files)


@pytest.mark.parametrize("modified", ["1790000000", "1790000000.25", 1790000000, 1790000000.25, -5])
def test_an_inventory_with_times_in_seconds_is_refused(tmp_path: Path, modified: float | str) -> None:
    """Taken for milliseconds they would say that every file is half a century old."""
    lake = filled(new_lake(tmp_path), tables=4)
    path = plant(lake, node_path())
    table = pa.table({"path": [path], "size": [9], "modified": [modified]})
    pq.write_table(table, tmp_path / "i.parquet")
    with pytest.raises(InvalidInput, match="no time in epoch milliseconds"):
        clean(lake, later() + 7 * DAY, inventory=(tmp_path / "i.parquet").as_uri())
    assert path in files_of(lake)


@pytest.mark.parametrize(
    ("written", "modified"),
    [
        ("2001-09-09", YEAR_2001 - 6_400_000),
        ("2001-09-09T01:46:40", YEAR_2001),
        ("2001-09-09T01:46:40Z", YEAR_2001),
        ("1000000000000", YEAR_2001),
        ("1e12", YEAR_2001),
        ("0", None),
        ("nan", None),
        ("", None),
    ],
)
def test_an_inventory_says_when_in_several_ways(tmp_path: Path, written: str, modified: int | None) -> None:
    """As text, and as what CSV and Parquet make of it."""
    (tmp_path / "i.csv").write_text(f"path,size,modified\nfile,9,{written}\n")
    options = {"timestamp_parsers": [csv_columns.ISO8601]}
    table = csv_columns.read_csv(tmp_path / "i.csv", convert_options=csv_columns.ConvertOptions(**options))
    pq.write_table(table, tmp_path / "i.parquet")
    pq.write_table(pa.table({"path": ["file"], "size": [9], "modified": [written]}), tmp_path / "text.parquet")
    for name in ("i.csv", "i.parquet", "text.parquet"):
        (file,) = files_listing.read_inventory((tmp_path / name).as_uri(), {}, "file:///x/")
        assert modified == file.modified_millis, name


# -- saved transactions --------------------------------------------------------------------------------


def test_a_dead_transaction_goes_with_its_files_and_a_live_one_stays(tmp_path: Path) -> None:
    lake = filled(new_lake(tmp_path), tables=4)
    lives = {}
    before = set(files_of(lake))
    with lake.transaction() as txn:
        txn.create_table("ns0", "live")
        lives["live"] = (txn.save(), set(files_of(lake)) - before)
    before = set(files_of(lake))
    dead = save_outlived(lake, lambda txn: txn.create_table("ns0", "dead"))
    lives["dead"] = (dead, set(files_of(lake)) - before)
    report = clean(lake, later())
    assert (1, 1, 3) == (report.transactions, report.dead_transactions, report.deleted)
    left = set(files_of(lake))
    assert lives["live"][1] <= left
    assert lives["dead"][1].isdisjoint(left)
    lake.refresh().resume_transaction(lives["live"][0]).commit()
    assert_sound(lake)


@pytest.mark.parametrize("height", [0, 2])
def test_a_root_that_is_wrong_about_its_height_stops_everything(tmp_path: Path, height: int) -> None:
    """One that counts as a leaf would hide all that hangs below it: whoever wrote it, nothing is deleted."""
    lake = filled(new_lake(tmp_path), tables=10)
    compacted(lake)
    lake, surgery = reopened(lake), Surgery(lake.root, lake.definition.order)
    assert lake.root_node.node.height == 1
    with surgery.node(lake.root_node.path) as node:
        node.height = height
    plant(lake, node_path())
    before = files_of(lake)
    with pytest.raises(CorruptNode, match="height"):
        clean(lake, later())
    with pytest.raises(CorruptNode, match="height"):
        export.run(reopened(lake), (tmp_path / "copy").as_uri(), export.Config(engine="local"))
    assert before == files_of(lake)


def test_nothing_is_deleted_where_a_root_names_no_lakehouse_definition(tmp_path: Path) -> None:
    """It may name one in a way that this reader does not know."""
    lake = filled(new_lake(tmp_path), tables=3)
    plant(lake, lakehouse_def_path(), lake.storage.read(lake.root_node.definition_path))
    with Surgery(lake.root, lake.definition.order).node(root_path(1)) as node:
        node.system = {name: value for name, value in node.system.items() if not name.startswith("lakehouse_def")}
    before = files_of(lake)
    with pytest.raises(CorruptNode, match="does not name a lakehouse definition"):
        clean(reopened(lake), later())
    assert before == files_of(lake)


# -- what it says where there is nothing to free yet ---------------------------------------------------


AT_ONCE: dict[str, Any] = {"older_than_seconds": 0.0, "allow_recent": True, "engine": "local"}


@pytest.fixture
def replaced(tmp_path: Path) -> Lakehouse:
    """Compacted: six tables in a leaf; then two are changed, one is dropped and one is new, all of it in buffers."""
    replaced = new_lake(tmp_path, txn_ttl_millis=1000)
    with replaced.transaction() as txn:
        txn.create_namespace("a")
        for number in range(6):
            txn.create_table("a", f"t{number}")
    compaction.run(replaced.refresh(), compaction.Config(engine="local"))
    with replaced.refresh().transaction() as txn:
        txn.alter_table("a", "t0", properties={"x": "y"})
        txn.alter_table("a", "t1", properties={"x": "y"})
        txn.drop_table("a", "t2")
        txn.create_table("a", "new")
    return replaced.refresh()


def test_a_cleaning_without_orphans_says_what_a_compaction_would_free(replaced: Lakehouse, clock: Clock) -> None:
    """Up to as many as were replaced or dropped; compacted, and without older versions, they are freed."""
    clock.forward(millis=10_000)
    later = clock.now()
    expire.run(replaced, expire.Config(keep_last=1, engine="local"))
    clean_job.run(replaced.refresh(), clean_job.Config(**AT_ONCE, now_millis=later))
    done = clean_job.run(replaced.refresh(), clean_job.Config(**AT_ONCE, now_millis=later))
    assert (0, 4) == (done.orphan_files, done.replaced_in_buffers)
    (hint,) = [line for line in done.summary() if "compact" in line]
    assert "would free up to 4 files" in hint
    compaction.run(replaced.refresh(), compaction.Config(engine="local"))
    clock.forward(millis=10_000)
    expire.run(replaced.refresh(), expire.Config(keep_last=1, engine="local"))
    freed = clean_job.run(replaced.refresh(), clean_job.Config(**AT_ONCE, now_millis=clock.now()))
    assert 3 == freed.orphans["table"].files
    assert (0, []) == (freed.replaced_in_buffers, [line for line in freed.summary() if "compact" in line])

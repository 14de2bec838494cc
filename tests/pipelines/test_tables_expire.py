"""Snapshots of tables expire by the rules of Iceberg, many tables as one version, and a rollback brings them back."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil

from pipelines import clean, restore, tables_clean, tables_expire
from pipelines.cli import main
from pipelines.job import dry_run
from tests.support.clock import Clock
from tests.support.icebergs import ids, new_iceberg, rows, with_table
from trinitylake_core.errors import ClocksDisagree, InvalidInput
from trinitylake_core.iceberg import TrinityLakeCatalog
from trinitylake_core.iceberg.commit_rules.snapshot_expiration import Expiring, SnapshotRules, expiring

DAY = 86_400_000
NOW = 1_000 * DAY


def expire(catalog: TrinityLakeCatalog, review: Any = None, **options: Any) -> tables_expire.Report:
    """Expire a month later."""
    config = tables_expire.Config(now_millis=int(time.time() * 1000) + 30 * DAY, **options)
    return tables_expire.run(catalog.lakehouse, config, review=review)


def grown(catalog: TrinityLakeCatalog, name: str, snapshots: int = 3, **properties: str) -> Table:
    table = with_table(catalog, name, properties=properties)
    for number in range(snapshots):
        table.append(rows(number))
    return table


def test_a_wrong_clock_expires_no_snapshot(catalog: TrinityLakeCatalog, clock: Clock) -> None:
    grown(catalog, "sales.orders")
    version = catalog.lakehouse.refresh().version
    clock.forward(days=8, with_storage=False)
    with pytest.raises(ClocksDisagree):
        tables_expire.run(catalog.lakehouse, tables_expire.Config())

    def put_right(report: tables_expire.Report) -> bool:
        assert report.snapshots
        clock.forward(days=-8, with_storage=False)
        return True

    with pytest.raises(ClocksDisagree, match="when it was decided what is old"):
        tables_expire.run(catalog.lakehouse, tables_expire.Config(), review=put_right)
    assert version == catalog.lakehouse.refresh().version
    assert 3 == len(catalog.load_table("sales.orders").snapshots())


# -- the rules -----------------------------------------------------------------------------------------


def metadata(
    ages: dict[int, tuple[int, int | None]], refs: dict[str, dict[str, Any]], **properties: str
) -> TableMetadata:
    """Return table metadata with snapshots of these ages in days, each with its parent."""
    found = {
        "format-version": 2,
        "table-uuid": "00000000-0000-4000-8000-000000000000",
        "location": "file:///x",
        "last-sequence-number": 9,
        "last-updated-ms": NOW,
        "last-column-id": 1,
        "schemas": [{"type": "struct", "schema-id": 0, "fields": []}],
        "current-schema-id": 0,
        "partition-specs": [{"spec-id": 0, "fields": []}],
        "default-spec-id": 0,
        "last-partition-id": 999,
        "sort-orders": [{"order-id": 0, "fields": []}],
        "default-sort-order-id": 0,
        "properties": properties,
        "current-snapshot-id": refs.get("main", {}).get("snapshot-id"),
        "refs": refs,
        "snapshots": [
            {
                "snapshot-id": number,
                "parent-snapshot-id": parent,
                "sequence-number": number,
                "timestamp-ms": NOW - age * DAY,
                "manifest-list": f"file:///x/{number}.avro",
                "summary": {"operation": "append"},
            }
            for number, (age, parent) in ages.items()
        ],
    }
    return TableMetadataUtil.parse_raw(json.dumps(found))


MAIN = {"main": {"snapshot-id": 4, "type": "branch"}}
LINE: dict[int, tuple[int, int | None]] = {1: (9, None), 2: (7, 1), 3: (5, 2), 4: (1, 3)}


@pytest.mark.parametrize(
    ("ages", "refs", "properties", "expected"),
    [
        (LINE, MAIN, {}, Expiring((1, 2))),  # five days old is not older than five days
        (LINE, MAIN, {"history.expire.max-snapshot-age-ms": str(8 * DAY)}, Expiring((1,))),
        (LINE, MAIN, {"history.expire.max-snapshot-age-ms": "1"}, Expiring((1, 2, 3))),
        (LINE, MAIN, {"history.expire.min-snapshots-to-keep": "3"}, Expiring((1,))),
        (LINE, {**MAIN, "v1": {"snapshot-id": 1, "type": "tag"}}, {}, Expiring((2,))),
        (
            LINE,
            {**MAIN, "v1": {"snapshot-id": 1, "type": "tag", "max-ref-age-ms": 8 * DAY}},
            {},
            Expiring((1, 2), ("v1",)),
        ),
        (
            LINE,
            {**MAIN, "old": {"snapshot-id": 2, "type": "branch", "min-snapshots-to-keep": 2}},
            {"history.expire.max-ref-age-ms": str(9 * DAY)},
            Expiring(),
        ),
        ({**LINE, 5: (8, 1), 6: (2, 1)}, MAIN, {}, Expiring((1, 2, 5))),  # of no branch: the young one stays
        ({1: (90, None)}, {"main": {"snapshot-id": 1, "type": "branch"}}, {}, Expiring()),
    ],
)
def test_what_expires_is_what_the_specification_says(
    ages: Any, refs: Any, properties: dict[str, str], expected: Expiring
) -> None:
    assert expected == expiring(metadata(ages, refs, **properties), SnapshotRules(), NOW)


@pytest.mark.parametrize(
    "properties", [{"gc.enabled": "false"}, {"history.expire.max-snapshot-age-ms": "a week"}], ids=str
)
def test_a_table_that_forbids_it_or_says_nonsense_is_refused(properties: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=next(iter(properties))):
        expiring(metadata(LINE, MAIN, **properties), SnapshotRules(), NOW)


# -- the job -------------------------------------------------------------------------------------------


def test_many_tables_are_one_version_and_a_rollback_brings_the_snapshots_back(catalog: TrinityLakeCatalog) -> None:
    for name in ("sales.one", "sales.two", "other.three"):
        grown(catalog, name)
    version = catalog.lakehouse.version
    report = expire(catalog, reason="too old")
    assert (3, 6, 1, version + 1) == (len(report.expired), report.snapshots, report.versions, report.version_after)
    assert "too old: expire snapshots of 3 tables" == catalog.lakehouse.info().reason
    table = catalog.load_table("sales.one")
    assert (1, [0, 1, 2]) == (len(table.metadata.snapshots), ids(table))
    assert "nothing to do" in next(iter(expire(catalog).summary()))
    time.sleep(0.02)
    tables_clean.run(catalog.lakehouse, tables_clean.Config(engine="local", older_than_seconds=0, allow_recent=True))
    catalog.lakehouse.rollback(version=version, reason="r")
    table = catalog.load_table("sales.one")
    counts = [ids_at(table, each.snapshot_id) for each in table.metadata.snapshots]
    assert [[0], [0, 1], [0, 1, 2]] == counts


def ids_at(table: Table, snapshot: int) -> list[int]:
    return sorted(table.scan(snapshot_id=snapshot).to_arrow()["id"].to_pylist())


def test_the_first_policy_that_matches_counts_unless_the_table_says_it_itself(catalog: TrinityLakeCatalog) -> None:
    """One version for each policy; a pattern that no table needs is named, also one behind another that takes all."""
    for name in ("sales.orders", "sales.leads", "logs.web", "other.rest"):
        grown(catalog, name, 4)
    grown(catalog, "logs.own", 4, **{"history.expire.min-snapshots-to-keep": "3"})
    policies = (
        tables_expire.Policy("sales.o*", keep_last=3),
        tables_expire.Policy("sales.*", older_than_seconds=60 * DAY / 1000),
        tables_expire.Policy("logs.*", keep_last=2),
        tables_expire.Policy("sales.leads"),
        tables_expire.Policy("finance.*"),
    )
    report = expire(catalog, policies=policies)
    lost = {each.table: each.snapshots for each in report.expired}
    assert {"sales.orders": 1, "logs.web": 2, "logs.own": 1, "other.rest": 3} == lost
    assert (3, ("sales.leads", "finance.*")) == (report.versions, report.idle)
    assert "a policy counts for no table: sales.leads, finance.*" in list(report.summary())
    assert not expire(catalog, policies=policies).expired


def test_a_table_that_cannot_be_read_is_named_and_the_others_go_on(catalog: TrinityLakeCatalog, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    theirs = grown(new_iceberg(tmp_path / "other"), "a.b")
    grown(catalog, "sales.good")
    grown(catalog, "sales.forbids", **{"gc.enabled": "false"})
    gone = grown(catalog, "sales.gone")
    catalog.register_table("sales.theirs", theirs.metadata_location)
    Path(gone.metadata_location.removeprefix("file://")).unlink()
    report = expire(catalog)
    assert (["sales.good"], 1) == ([each.table for each in report.expired], report.external)
    assert ({"sales.gone"}, ("sales.forbids",)) == (report.failures.keys(), report.forbidden)
    assert 3 == len(theirs.refresh().metadata.snapshots)


def test_a_race_over_one_of_them_loses_nothing(catalog: TrinityLakeCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """An append between the plan and its commit is kept, and its table expires all the same."""
    for name in ("sales.one", "sales.two"):
        grown(catalog, name)
    met: list[int] = []

    class Cancel:
        def check(self) -> None:
            met.append(1)
            catalog.load_table("sales.one").append(rows(9))

    config = tables_expire.Config(now_millis=int(time.time() * 1000) + 30 * DAY)
    report = tables_expire.run(catalog.lakehouse, config, cancel=Cancel())
    one = catalog.load_table("sales.one")
    assert ([1], 5) == (met, report.snapshots)
    assert ([0, 1, 2, 9], 1) == (ids(one), len(one.metadata.snapshots))


def test_a_table_that_spoils_a_version_after_the_plan_is_named_and_the_others_expire(
    catalog: TrinityLakeCatalog,
) -> None:
    """Its metadata vanish between plan and commit. A frozen lakehouse is asked once."""
    for number in range(6):
        grown(catalog, f"sales.t{number}")
    spoilt = catalog.load_table("sales.t4")
    commits: list[int] = []

    class Cancel:
        def check(self) -> None:
            commits.append(1)
            Path(spoilt.metadata_location.removeprefix("file://")).unlink(missing_ok=True)

    config = tables_expire.Config(now_millis=int(time.time() * 1000) + 30 * DAY)
    report = tables_expire.run(catalog.lakehouse, config, cancel=Cancel())
    assert ({"sales.t4"}, 5) == (report.failures.keys(), len(report.expired))
    assert {f"sales.t{number}" for number in range(6) if number != 4} == {each.table for each in report.expired}
    assert len(commits) <= 2 * 3 + 1  # six tables have three levels of halves
    for number in range(3):
        grown(catalog, f"later.t{number}")
    catalog.lakehouse.freeze(reason="incident")
    commits.clear()
    config = tables_expire.Config("later.*", now_millis=int(time.time() * 1000) + 30 * DAY)
    report = tables_expire.run(catalog.lakehouse, config, cancel=Cancel())
    assert ([1], 3, 0) == (commits, len(report.failures), len(report.expired))


def test_its_costs_are_a_read_for_each_table_and_another_with_a_write_for_those_that_lose(
    catalog: TrinityLakeCatalog,
) -> None:
    for number in range(6):
        grown(catalog, f"sales.t{number}", 1 if number % 2 else 3)
    planned = expire(catalog, review=dry_run).requests
    report = expire(catalog)
    assert 6 + 6 <= planned["get"] <= 6 + 6 + 6
    # three metadata files, three definitions and the hint
    assert (3 + 3 + 1, 3) == (report.requests["put"], len(report.expired))


# -- stored plans --------------------------------------------------------------------------------------


def test_a_plan_is_carried_out_exactly_whatever_was_written_since(catalog: TrinityLakeCatalog, tmp_path: Path) -> None:
    """What came later stays, although the rules would let it go by now."""
    plan = (tmp_path / "plan.parquet").as_uri()
    tables = [grown(catalog, f"sales.t{number}") for number in range(2)]
    tables[0].manage_snapshots().create_tag(tables[0].metadata.snapshots[0].snapshot_id, "old").commit()
    planned = expire(catalog, plan_to=plan, max_ref_age_seconds=60)
    assert (True, plan, 4) == (planned.dry_run, planned.plan, planned.snapshots)
    rows_of_plan = parquet.read_table(tmp_path / "plan.parquet").to_pylist()
    assert {"planned table": 2, "snapshot": 5} == Counter(row["kind"] for row in rows_of_plan)
    assert any(row["path"].startswith("sales.t0/") and row["path"].endswith("/old") for row in rows_of_plan)
    catalog.load_table("sales.t0").append(rows(7))
    done = expire(catalog, plan=plan)
    assert {("sales.t0", 2, ("old",)), ("sales.t1", 2, ())} == {
        (each.table, each.snapshots, each.refs) for each in done.expired
    }
    assert (2, 1) == tuple(len(catalog.load_table(name).metadata.snapshots) for name in ("sales.t0", "sales.t1"))
    assert () == expire(catalog, plan=plan).expired, "a second time there is nothing left of it"


def test_a_table_that_needs_by_now_what_a_plan_names_is_left_alone(catalog: TrinityLakeCatalog, tmp_path: Path) -> None:
    """A tag was set, a branch moved, or the table rolled back to such a snapshot."""
    plan = (tmp_path / "plan.parquet").as_uri()
    tables = {name: grown(catalog, f"sales.{name}") for name in ("tagged", "back", "moved", "free")}
    tables["moved"].manage_snapshots().create_tag(tables["moved"].metadata.snapshots[0].snapshot_id, "old").commit()
    expire(catalog, plan_to=plan, max_ref_age_seconds=60)
    first = {name: table.metadata.snapshots[0].snapshot_id for name, table in tables.items()}
    catalog.load_table("sales.tagged").manage_snapshots().create_tag(first["tagged"], "keep").commit()
    catalog.load_table("sales.back").manage_snapshots().rollback_to_snapshot(first["back"]).commit()
    moved = catalog.load_table("sales.moved")
    moved.manage_snapshots().remove_tag("old").commit()
    moved.refresh().manage_snapshots().create_tag(moved.metadata.snapshots[1].snapshot_id, "old").commit()
    done = expire(catalog, plan=plan)
    assert ["sales.free"] == [each.table for each in done.expired]
    assert {"sales.tagged", "sales.back", "sales.moved"} == done.failures.keys()
    assert all("have changed since the plan was made" in why for why in done.failures.values())
    assert [0] == ids(catalog.load_table("sales.back"))


def test_a_plan_is_for_tables_by_name_identity_and_metadata(catalog: TrinityLakeCatalog, tmp_path: Path) -> None:
    """Renamed, exchanged, dropped, or taken back to metadata from before: each is named, and the others go on."""
    plan = (tmp_path / "plan.parquet").as_uri()
    back = with_table(catalog, "sales.back")
    before = catalog.lakehouse.version
    for number in range(3):
        back.append(rows(number))
    for name in ("renamed", "one", "two", "dropped", "free"):
        grown(catalog, f"sales.{name}")
    expire(catalog, plan_to=plan)
    catalog.rename_table("sales.renamed", "sales.other")
    for old, new in (("one", "x"), ("two", "one"), ("x", "two")):
        catalog.rename_table(f"sales.{old}", f"sales.{new}")
    catalog.drop_table("sales.dropped")
    restore.run(catalog.lakehouse, restore.Config(only=("sales.back",), version=before, reason="a mistake"))
    catalog.load_table("sales.back").append(rows(9))
    done = expire(catalog, plan=plan)
    assert ["sales.free"] == [each.table for each in done.expired]
    assert {
        "sales.renamed": "no table has this name",
        "sales.other": "for this table under the name sales.renamed",
        "sales.one": "for this table under the name sales.two",
        "sales.two": "for this table under the name sales.one",
        "sales.dropped": "no table has this name",
        "sales.back": "its metadata do not follow those that the plan was made for",
    } == {name: next(each for each in _REASONS if each in why) for name, why in done.failures.items()}


_REASONS = (
    "no table has this name",
    "for this table under the name sales.renamed",
    "for this table under the name sales.one",
    "for this table under the name sales.two",
    "its metadata do not follow those that the plan was made for",
)


def test_a_plan_of_another_history_or_job_is_refused(catalog: TrinityLakeCatalog, tmp_path: Path) -> None:
    plan = (tmp_path / "plan.parquet").as_uri()
    grown(catalog, "sales.t")
    expire(catalog, plan_to=plan)
    catalog.lakehouse.rollback(version=1, reason="test")
    assert () == expire(catalog, plan=plan).expired
    (tmp_path / "other").mkdir()
    with pytest.raises(InvalidInput, match="made for another lakehouse"):
        expire(new_iceberg(tmp_path / "other"), plan=plan)
    with pytest.raises(InvalidInput, match="not of `clean`"):
        clean.run(catalog.lakehouse, clean.Config(engine="local", plan=plan))
    with pytest.raises(InvalidInput, match="cannot be combined"):
        expire(catalog, plan=plan, pattern="sales.*")
    with pytest.raises(InvalidInput, match="cannot be combined"):
        expire(catalog, dry_run, plan=plan)


def test_plans_on_the_command_line(
    catalog: TrinityLakeCatalog, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, plan = catalog.lakehouse.root, (tmp_path / "plan.parquet").as_uri()
    grown(catalog, "sales.t")
    assert 0 == main(["tables", "expire", root, "--older-than", "0s", "--plan-to", plan])
    assert f"plan written to {plan}, nothing was changed: 2 snapshots of 1 table" in capsys.readouterr().out
    assert 0 == main(["tables", "expire", root, "--plan", plan, "--yes", "--json"])
    assert (2, plan) == ((found := json.loads(capsys.readouterr().out))["snapshots"], found["plan"])

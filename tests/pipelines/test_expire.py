"""Expiration removes the oldest versions, one commit a run, and no writer is fooled by what is gone."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pipelines import clean
from pipelines import expire as expire_job
from pipelines.job import NEVER_CANCELLED, dry_run, silent
from tests.pipelines.test_clean import assert_sound
from tests.support.clock import Clock
from tests.support.generator import DAY
from tests.support.lakes import compacted, content, filled, new_lake, operations, reopened
from tests.support.s3_servers import S3Server
from tests.support.surgery import Surgery, directory_of, files_of
from tests.support.sweep import S3Place
from trinitylake_core import Lakehouse, spec
from trinitylake_core.clock import now_millis
from trinitylake_core.errors import (
    MAYBE_THE_STORE,
    ClocksDisagree,
    CorruptNode,
    InvalidInput,
    PlanOutdated,
    Refused,
    SnapshotNotFound,
    UnsafeStorage,
)
from trinitylake_core.locations import root_path
from trinitylake_core.versions import from_millis

LATER = 30 * DAY


def expire(lake: Lakehouse, now: int | None = None, review: Any = None, **options: Any) -> expire_job.Report:
    now = now_millis() + LATER if now is None else now
    return expire_job.run(lake, expire_job.Config(engine="local", now_millis=now, **options), review=review)


def versions_on_disk(lake: Lakehouse) -> list[int]:
    names = {path.name for path in directory_of(lake).glob("_*.ipc")}
    return [version for version in range(100) if root_path(version) in names]


def boundary(lake: Lakehouse) -> int:
    return reopened(lake).backend.versions.boundary()


def test_a_version_that_is_missing_names_the_store_as_a_possible_cause(tmp_path: Path) -> None:
    lake = filled(new_lake(tmp_path), tables=4, changes=4)
    Surgery(lake.root, lake.definition.order).remove(root_path(1))
    before = versions_on_disk(lake)
    with pytest.raises(CorruptNode, match=f"version 1 is missing.*{MAYBE_THE_STORE}"):
        expire(reopened(lake), keep_last=1)
    assert before == versions_on_disk(lake)


def test_cost_grows_with_the_logarithm_of_the_versions(tmp_path: Path) -> None:
    lake = filled(new_lake(tmp_path), tables=60, changes=1)
    report = expire(reopened(lake), keep_last=1)
    assert report.requests["create"] == 1
    assert report.requests["put"] == 2  # hint and boundary
    assert report.requests["get"] <= 20
    assert report.requests["delete"] == 1


@pytest.mark.parametrize(("offset", "expired"), [(-1, False), (0, False), (1, True)])
@pytest.mark.parametrize("rule", ["age", "ttl"])
def test_ages_are_strict(tmp_path: Path, offset: int, expired: bool, rule: str) -> None:
    """A version expires when it is older than the age, or the time to live, by a millisecond, and no sooner."""
    lake = filled(new_lake(tmp_path), tables=12)
    age = 20 * DAY if rule == "age" else lake.definition.txn_ttl_millis
    created = [info.created_at_millis for info in lake.history()][::-1]
    third = created[2]
    seconds = age / 1000 if rule == "age" else 0
    report = expire(lake, third + age + offset, older_than_seconds=seconds, review=dry_run)
    assert sum(each < third + offset for each in created) == report.boundary_after
    assert expired == (report.boundary_after > 2)


def test_every_rule_that_is_given_must_let_go(tmp_path: Path) -> None:
    lake = filled(new_lake(tmp_path), tables=40)
    newest, now = lake.version, now_millis()
    assert 0 == expire(lake, now, keep_last=1, review=dry_run).versions_expired  # younger than txn_ttl_millis
    assert 0 == expire(lake, keep_last=newest + 1, review=dry_run).versions_expired
    assert 1 == expire(lake, keep_last=newest, review=dry_run).versions_expired
    assert newest == expire(lake, keep_last=1, review=dry_run).versions_expired
    assert newest == expire(lake, keep_last=0, review=dry_run).versions_expired  # the newest always stays
    assert newest == expire(lake, older_than_seconds=0, review=dry_run).versions_expired
    assert 0 == expire(lake, keep_last=1, older_than_seconds=40 * 86_400, review=dry_run).versions_expired
    assert 0 == expire(lake, review=dry_run).versions_expired  # 100 and 7 days
    with pytest.raises(InvalidInput):
        expire(lake, keep_last=-1)


def test_nothing_to_do_commits_nothing(tmp_path: Path) -> None:
    """Not even to make room for the version that the last run committed."""
    lake = filled(new_lake(tmp_path), tables=20)
    assert expire(lake, keep_last=2).version_after is not None
    before = files_of(lake)
    for rules in ({"keep_last": 2}, {"keep_last": 50}, {}):
        assert expire(lake, **rules).version_after is None
    assert before == files_of(lake)
    for _ in range(6):
        last = expire(lake, older_than_seconds=0)
    assert last.version_after is None


def test_expired_snapshots_are_dropped_in_the_same_commit(tmp_path: Path) -> None:
    """The others keep their version readable though its root is gone."""
    lake = filled(new_lake(tmp_path), tables=12)
    soon = from_millis(now_millis() + DAY)
    lake.create_snapshot("short", version=1, expires_at=soon)
    lake.refresh().create_snapshot("long", version=1)
    before = content(lake.at(version=1))
    report = expire(lake, keep_last=1)
    lake = reopened(lake)
    assert (("short",), ["long"]) == (report.snapshots_expired, [info.name for info in lake.snapshots()])
    assert {"snapshots_expired": ["short"]}.items() <= lake.info().summary.items()
    assert before == content(lake.at(snapshot="long"))
    with pytest.raises(SnapshotNotFound):
        lake.at(snapshot="short")
    clean.run(lake, clean.Config(engine="local", now_millis=now_millis() + LATER))
    assert before == content(reopened(lake).at(snapshot="long"))
    assert_sound(lake, lake.stats().oldest_version)


def test_a_dry_run_tells_what_it_frees(tmp_path: Path) -> None:
    """Files and bytes as `clean` removes them afterwards, and by version what it alone holds."""
    lake = filled(new_lake(tmp_path), tables=30)
    for _ in range(3):
        compacted(lake.refresh())
        with lake.refresh().transaction() as txn:
            txn.alter_table("ns0", "t000", properties={"a": str(random.random())})
    lake.refresh().create_snapshot("kept", version=4)
    before = {path: len(data) for path, data in files_of(lake).items()}
    later = now_millis() + LATER
    clean.run(lake, clean.Config(engine="local", now_millis=later))
    planned = expire(lake, later, keep_last=2, review=dry_run)
    assert files_of(lake).keys() <= before.keys()
    before = {path: len(data) for path, data in files_of(lake).items()}
    done = expire(lake, later, keep_last=2)
    clean.run(lake, clean.Config(engine="local", now_millis=now_millis() + LATER))
    gone = before.keys() - files_of(lake).keys()
    assert planned.freed is not None
    assert (len(gone), sum(before[path] for path in gone)) == (planned.freed.files, planned.freed.bytes)
    assert planned.freed.versions == done.versions_expired == planned.versions_expired
    roots = {each.version: each.bytes for each in planned.freed.each}
    assert all(roots[version] >= before[root_path(version)] for version in range(done.boundary_after))


def test_leftovers_of_a_killed_run_are_deleted_by_the_next(tmp_path: Path) -> None:
    """Also by one that has nothing to expire itself; and a boundary file that was not written yet is."""
    lake = filled(new_lake(tmp_path), tables=20)
    files = files_of(lake)
    oldest = expire(lake, keep_last=3).boundary_after
    _ = [(directory_of(lake) / root_path(v)).write_bytes(files[root_path(v)]) for v in range(oldest)]
    (directory_of(lake) / spec.BOUNDARY_FILE).unlink()
    report = expire(reopened(lake), keep_last=50)
    assert (None, oldest, oldest, oldest) == (
        report.version_after, report.leftovers, report.deleted, report.boundary_after,
    )  # fmt: skip
    assert (oldest, oldest) == (boundary(lake), versions_on_disk(lake)[0])


@pytest.mark.parametrize("lie", [None, b"garbage", b"2", b"9999", b"20"])
def test_an_expiration_heals_a_boundary_file_that_lies(tmp_path: Path, lie: bytes | None) -> None:
    """Missing, garbage, too low or too high: afterwards it says what the newest root says, and nothing is lost."""
    lake = filled(new_lake(tmp_path), tables=60, changes=1)
    oldest = expire(lake, keep_last=lake.version - 5).boundary_after
    assert oldest < 20 < lake.version
    file = directory_of(lake) / spec.BOUNDARY_FILE
    file.unlink() if lie is None else file.write_bytes(lie)
    (directory_of(lake) / spec.HINT_FILE).write_bytes(b"1")
    expire(reopened(lake), keep_last=500)
    assert (oldest, oldest) == (boundary(lake), versions_on_disk(lake)[0])
    assert str(reopened(lake).version) == (directory_of(lake) / spec.HINT_FILE).read_text()
    assert_sound(lake, oldest)


def test_late_roots_below_the_boundary_are_removed(tmp_path: Path) -> None:
    """Of writers that created the root of an expired version and died before they looked; by `clean`, too."""
    lake = filled(new_lake(tmp_path), tables=40)
    files = files_of(lake)
    oldest = expire(lake, keep_last=3).boundary_after
    late = directory_of(lake) / root_path(2)
    late.write_bytes(files[root_path(2)])
    assert 1 == expire(reopened(lake), keep_last=50).leftovers
    assert not late.exists()
    late.write_bytes(files[root_path(2)])
    clean.run(reopened(lake), clean.Config(engine="local", now_millis=now_millis() + LATER))
    assert not late.exists()
    assert_sound(lake, oldest)


def test_cleaning_finishes_the_boundary_of_an_expiration_that_died(tmp_path: Path) -> None:
    """Its root says the boundary, the file does not yet: it does before anything is removed."""
    lake = filled(new_lake(tmp_path), tables=40)
    oldest = expire(lake, keep_last=3).boundary_after
    (directory_of(lake) / spec.BOUNDARY_FILE).unlink()
    cleaner, order = reopened(lake), []

    def record(kind: str, path: str, action: Any) -> Any:
        order.append((kind, path == spec.BOUNDARY_FILE))
        return action()

    cleaner.storage.interceptor = record  # type: ignore[attr-defined]
    report = clean.run(cleaner, clean.Config(engine="local", now_millis=now_millis() + LATER))
    assert (True, oldest) == (report.deleted > 0, boundary(lake))
    deletes = [number for number, (kind, _) in enumerate(order) if kind == "delete"]
    assert order.index(("put", True)) < deletes[0]


def test_one_wrong_reading_of_the_clock_expires_nothing(tmp_path: Path, clock: Clock) -> None:
    """The first one, by which it is decided what is old; all later ones are right."""
    lake = filled(new_lake(tmp_path), tables=12)
    newest = lake.version
    clock.forward(days=8, with_storage=False)

    def put_right(report: expire_job.Report) -> bool:
        assert report.versions_expired
        clock.forward(days=-8, with_storage=False)
        return True

    with pytest.raises(ClocksDisagree, match="when it was decided what is old"):
        expire_job.run(lake, expire_job.Config(engine="local", keep_last=1), review=put_right)
    assert newest == lake.refresh().version
    assert list(lake.at(version=0).namespaces()) == []


@pytest.mark.s3
def test_a_store_that_ignores_compare_and_set_expires_nothing(moto_server: S3Server) -> None:
    """Committing goes on there."""
    root = moto_server.new_root_without_compare_and_set()
    lake = Lakehouse.create(root, storage_options=moto_server.options)
    for number in range(4):
        with lake.transaction() as txn:
            txn.create_namespace(f"n{number}")
    before = S3Place(moto_server, root).files()
    with pytest.raises(UnsafeStorage, match="does not keep the promise of compare-and-set"):
        expire(lake.refresh(), keep_last=1)
    assert before == S3Place(moto_server, root).files()


# -- plans ---------------------------------------------------------------------------------------------


def test_a_plan_is_carried_out_later(tmp_path: Path) -> None:
    lake = filled(new_lake(tmp_path, txn_ttl_millis=DAY), tables=20)
    uri = (tmp_path / "plan.parquet").as_uri()
    planned = expire(lake, keep_last=4, plan_to=uri)
    rows = pq.read_table(tmp_path / "plan.parquet").to_pylist()
    assert [root_path(version) for version in range(planned.boundary_after)] == [row["path"] for row in rows]
    assert "version 0: not among the newest 4" == rows[0]["reason"]
    assert lake.version == reopened(lake).version
    with lake.refresh().transaction() as txn:  # does not matter
        txn.create_namespace("another")
    done = expire(lake, plan=uri)
    assert planned.boundary_after == done.boundary_after == boundary(lake)
    assert_sound(lake, done.boundary_after)
    with pytest.raises(PlanOutdated):
        expire(lake, plan=uri)


def test_a_plan_that_no_longer_holds_changes_nothing(tmp_path: Path) -> None:
    """Somebody else expired meanwhile; or the plan is of another lakehouse, or another job."""
    lake = filled(new_lake(tmp_path, txn_ttl_millis=DAY), tables=20)
    uri = (tmp_path / "plan.parquet").as_uri()
    expire(lake, keep_last=3, plan_to=uri)
    with pytest.raises(InvalidInput, match="plan of"):
        clean.run(lake, clean.Config(engine="local", plan=uri))
    other = filled(new_lake(tmp_path / "other", txn_ttl_millis=DAY), tables=20)
    with pytest.raises(InvalidInput, match="another lakehouse"):
        expire(other, plan=uri)
    expire(lake, keep_last=6)
    before = files_of(lake)
    with pytest.raises(PlanOutdated):
        expire(lake, plan=uri)
    assert before == files_of(lake)


# -- the fence -------------------------------------------------------------------------------------------


def test_the_guard_is_looked_at_again_before_the_commit(tmp_path: Path) -> None:
    """A property that was set since the plan holds."""
    lake = filled(new_lake(tmp_path), tables=8)
    config = expire_job.Config(engine="local", keep_last=1)
    work = expire_job._Expiration(lake, config, None, None, NEVER_CANCELLED, silent)
    definition = type(lake.definition)()
    definition.CopyFrom(lake.definition)
    definition.properties["maintenance.delete.enabled"] = "FALSE"
    with pytest.raises(Refused):
        work.without_snapshots(definition)


def test_the_ledger_tells_what_was_deleted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lake = filled(new_lake(tmp_path), tables=8)
    with caplog.at_level("INFO", "pipelines.ledger"):
        expire(lake, keep_last=1)
        clean.run(lake, clean.Config(engine="local", now_millis=now_millis() + LATER))
    kinds = [record.getMessage().split(" ", 2) for record in caplog.records]
    assert ["expire", "clean"] == [each[0] for each in kinds][:2] or ["expire"] == [each[0] for each in kinds]
    assert json.loads(kinds[0][2])["deleted"] == 3
    assert "expire" in operations(lake.refresh())


@pytest.mark.spark
@pytest.mark.slow
def test_what_is_not_deleted_frees_no_bytes_on_either_engine(tmp_path: Path, spark: Any) -> None:
    """A file of a name that the format does not know is somebody else's, though a version names it."""
    lake = filled(new_lake(tmp_path), tables=4)
    theirs = directory_of(lake) / "0000" / "0000" / "theirs.binpb"
    theirs.parent.mkdir(parents=True, exist_ok=True)
    theirs.write_bytes(bytes(10_000))
    with Surgery(lake.root, lake.definition.order).node(root_path(0)) as node:
        node.keys, node.values = ["C===ns0     theirs  "], ["0000/0000/theirs.binpb"]
    freed = [
        expire_job.run(
            reopened(lake), expire_job.Config(engine, 1, now_millis=now_millis() + LATER), session, review=dry_run
        ).freed
        for engine, session in (("local", None), ("spark", spark))
    ]
    assert freed[0] is not None
    assert freed[0] == freed[1]
    assert freed[0].bytes < 10_000

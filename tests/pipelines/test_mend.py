"""A clock that was wrong: no fence is made of its time, and a fence that was made of it is mended."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.exceptions import CommitFailedException

from pipelines import clean, compaction, expire, mend, tables_clean, verify
from pipelines.cli import main
from tests.support.clock import Clock
from tests.support.icebergs import ids, new_iceberg, rows, with_table
from trinitylake_core import Lakehouse, spec
from trinitylake_core.commits.changes import Fence, NewDefinition, commit_summary
from trinitylake_core.commits.commit import commit
from trinitylake_core.definitions import altered_lakehouse
from trinitylake_core.errors import ClocksDisagree, CommitConflict, InvalidInput, Refused
from trinitylake_core.iceberg import TrinityLakeCatalog

YEAR = 365 * 86_400_000
ONCE = {"commit.retry.num-retries": "0"}


@pytest.fixture
def catalog(tmp_path: Path) -> TrinityLakeCatalog:
    made = new_iceberg(tmp_path)
    with_table(made, "sales.orders", 1, properties=ONCE)
    return made


def _now() -> int:
    return time.time_ns() // 1_000_000


def _leave_over(catalog: TrinityLakeCatalog) -> Path:
    """Write a data file that no version names, as a writer does before it commits."""
    directory = Path(catalog.load_table("sales.orders").location().removeprefix("file://"))
    path = directory / "data" / "left-over.parquet"
    path.write_bytes(b"x")
    return path


def _mislead(lake: Lakehouse, monkeypatch: pytest.MonkeyPatch, ahead: int) -> None:
    """Have the clock of the storage be ahead when it is asked for the time of the hint."""
    info = lake.storage.info

    def read_ahead(path: str) -> Any:
        found = info(path)
        late = found.modified_millis + (ahead if path == spec.HINT_FILE else 0)
        return type(found)(found.path, found.size, late)

    monkeypatch.setattr(lake.storage, "info", read_ahead)


@pytest.mark.parametrize("job", [clean, tables_clean])
def test_a_storage_whose_clock_is_a_year_ahead_makes_no_fence(
    job: Any, catalog: TrinityLakeCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both times are named, nothing is committed, and files of seconds ago stay."""
    lake, path = catalog.lakehouse, _leave_over(catalog)
    _mislead(lake, monkeypatch, YEAR)
    with pytest.raises(ClocksDisagree, match=r"shows 20\d\d-.*Z, and that of this process 20\d\d-.*Z: .* nothing was"):
        job.run(lake, job.Config(engine="local"))
    assert path.exists()
    assert lake.version == Lakehouse.open(lake.root).version
    catalog.load_table("sales.orders").append(rows(2))
    assert [1, 2] == ids(catalog.load_table("sales.orders"))


def test_a_rollback_over_an_unreadable_root_makes_no_fence_of_a_wrong_clock(
    catalog: TrinityLakeCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = catalog.lakehouse
    lake.storage.replace(lake.root_node.path, b"garbage")
    damaged = Lakehouse.open(lake.root, damaged=True)
    _mislead(damaged, monkeypatch, YEAR)
    with pytest.raises(ClocksDisagree):
        damaged.rollback(version=damaged.version, reason="r")


def test_a_process_whose_clock_is_a_year_ahead_expires_nothing(catalog: TrinityLakeCatalog, clock: Clock) -> None:
    lake = catalog.lakehouse
    clock.forward(millis=YEAR, with_storage=False)
    with pytest.raises(ClocksDisagree):
        expire.run(lake, expire.Config(engine="local", older_than_seconds=86_400))
    assert 0 == Lakehouse.open(lake.root).root_node.oldest_version


def test_where_one_clock_stamps_everything_and_jumps_no_fence_lies_in_the_future(
    catalog: TrinityLakeCatalog, clock: Clock
) -> None:
    """Nor goes what is younger than the safety age: ages count from the newest version, and a day."""
    lake, path = catalog.lakehouse, _leave_over(catalog)
    with clock.another(millis=YEAR):
        assert 0 == tables_clean.run(lake, tables_clean.Config(engine="local")).deleted
    assert path.exists()


def _fence_ahead(lake: Lakehouse) -> int:
    """Commit both fences a year ahead, as a cleaning did; return the version."""
    for of_tables in (True, False):
        fence = Fence(_now() + YEAR, commit_summary(), of_tables=of_tables)
        root = commit(lake.backend, lake.backend.newest_seen, fence)
    return root.version


def test_a_fence_in_the_future_is_named_and_mended(catalog: TrinityLakeCatalog) -> None:
    version = _fence_ahead(catalog.lakehouse)
    with pytest.raises(CommitFailedException, match=r"lies in the future.*`trinitylake mend ROOT` corrects it"):
        catalog.load_table("sales.orders").append(rows(2))
    lake = catalog.lakehouse
    assert 0 == main(["mend", lake.root, "--reason", "the clock was a year ahead"])
    mended = lake.refresh().root_node
    now = _now() + 60_000
    assert version + 1 == lake.version
    assert mended.void_before_millis < now
    assert mended.tables_void_before_millis < now
    assert [] == list(lake.check())
    time.sleep(0.01)
    catalog.load_table("sales.orders").append(rows(3))
    assert [1, 3] == ids(catalog.load_table("sales.orders"))
    again = mend.run(lake, mend.Config(reason="r"))
    assert ({}, None) == (again.mended, again.version_after)


def test_what_was_written_before_the_mending_is_still_void(catalog: TrinityLakeCatalog) -> None:
    """The cleaning that made the fence may be asleep, and delete it later."""
    late = catalog.load_table("sales.orders").transaction()
    late.append(rows(2))
    lake = catalog.lakehouse
    _fence_ahead(lake)
    mend.run(catalog.lakehouse, mend.Config(reason="r"))
    with pytest.raises(CommitFailedException, match="written before the last cleaning"):
        late.commit_transaction()


def test_a_file_that_is_dated_ahead_refuses_the_mending(catalog: TrinityLakeCatalog) -> None:
    path = _leave_over(catalog)
    lake = catalog.lakehouse
    _fence_ahead(lake)
    os.utime(path, (time.time() + 2 * YEAR / 1000,) * 2)
    with pytest.raises(Refused, match=r"left-over.parquet is dated .* in the future"):
        mend.run(catalog.lakehouse, mend.Config(reason="r"))
    os.utime(path)
    assert mend.run(catalog.lakehouse, mend.Config(reason="r")).mended


def test_a_cleaning_in_between_stops_the_mending(catalog: TrinityLakeCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have listed files that were not there when this one listed them."""
    _fence_ahead(catalog.lakehouse)
    lake = Lakehouse.open(catalog.lakehouse.root)
    create, met = lake.storage.create, []

    def first(path: str, data: Any) -> None:
        if not met:
            met.append(_fence_ahead(catalog.lakehouse))
        create(path, data)

    monkeypatch.setattr(lake.storage, "create", first)
    with pytest.raises(CommitConflict, match="a cleaning came in between"):
        mend.run(lake, mend.Config(reason="r"))


# -- whose a file is ---------------------------------------------------------------------------------------


def _commit(lake: Lakehouse, name: str) -> str:
    """Create a namespace; return the path of the new root."""
    with lake.transaction() as txn:
        txn.create_namespace(name)
    return lake.refresh().root_node.path


def _backed_up(tmp_path: Path, *names: str) -> tuple[Lakehouse, str]:
    lake = Lakehouse.create((tmp_path / "lake").as_uri())
    for name in names:
        _commit(lake, name)
    backup = (tmp_path / "backup").as_uri()
    assert 0 == main(["export", lake.root, backup, "--history", "--engine", "local"])
    return lake, backup


def _mend_from(root: str, backup: str) -> mend.Report:
    damaged = Lakehouse.open(root, damaged=True)
    return mend.run(damaged, mend.Config(reason="r", source=backup, engine="local"))


@pytest.mark.parametrize("other", ["goes on", "drops", "before it was set back"])
def test_a_root_of_another_branch_does_not_take_the_place_of_the_newest_version(other: str, tmp_path: Path) -> None:
    """What was acknowledged here would be gone, and each invariant would hold."""
    lake, backup = _backed_up(tmp_path, "a", "b")
    if other == "goes on":
        _commit(Lakehouse.open(backup), "elsewhere")
    elif other == "drops":
        with Lakehouse.open(backup).transaction() as txn:
            txn.drop_namespace("a")
    else:
        shutil.copytree(tmp_path / "lake", tmp_path / "old")
        _commit(lake, "before")
        assert 0 == main(["export", lake.root, backup, "--history", "--engine", "local"])
        shutil.rmtree(tmp_path / "lake")
        (tmp_path / "old").rename(tmp_path / "lake")
        lake = Lakehouse.open(lake.root)
    path = _commit(lake, "acknowledged")
    lake.storage.replace(path, b"garbage")
    done = _mend_from(lake.root, backup)
    assert ([], [path]) == (done.files, list(done.left))
    assert "nothing proves that it is version 3 of this lakehouse" in done.left[path]
    assert b"garbage" == lake.storage.read(path)


def test_two_newest_roots_are_put_back_though_neither_can_be_read(tmp_path: Path) -> None:
    lake, backup = _backed_up(tmp_path, "a", "b", "c")
    paths = [lake.backend.versions.path(version) for version in (2, 3)]
    for path in paths:
        lake.storage.replace(path, b"garbage")
    assert set(paths) == set(_mend_from(lake.root, backup).files)
    assert ["a", "b", "c"] == [each.namespace for each in Lakehouse.open(lake.root).objects()]


def test_a_root_of_another_lakehouse_does_not_make_that_one_the_backup(tmp_path: Path) -> None:
    lake, backup = _backed_up(tmp_path, "a", "b")
    other = Lakehouse.create((tmp_path / "other").as_uri())
    _commit(other, "x")
    path = _commit(other, "y")
    lake.storage.replace(path, other.storage.read(path))
    with pytest.raises(InvalidInput, match="is no backup of"):
        _mend_from(lake.root, other.root)
    assert [] == _mend_from(lake.root, backup).files


# -- lost versions -----------------------------------------------------------------------------------------


def test_only_mend_gives_up_a_version(tmp_path: Path) -> None:
    """`alter` refuses; and what another program wrote into the property lets `clean` delete nothing."""
    lake = Lakehouse.create(tmp_path.as_uri())
    _commit(lake, "a")
    with lake.transaction() as txn:
        txn.drop_namespace("a")
    _commit(lake.refresh(), "b")
    compaction.run(lake, compaction.Config(engine="local", full=True))
    given = {spec.LOST_VERSIONS: "1,2,99"}
    with pytest.raises(InvalidInput, match="`trinitylake mend --lost V` sets"):
        lake.alter(given)
    change = NewDefinition(
        lake.backend, spec.OP_ALTER, commit_summary(), lambda before, _: altered_lakehouse(before, properties=given)
    )
    commit(lake.backend, lake.backend.newest(), change)
    clean.run(lake.refresh(), clean.Config(engine="local", older_than_seconds=0, allow_recent=True))
    found = verify.run(lake.storage, verify.Config("all", definitions=True, engine="local"))
    assert (True, []) == (found.ok, found.lost)
    assert lake.at(version=1).namespace("a").id
    assert lake.alter({spec.LOST_VERSIONS: "2"}).version
    assert lake.alter({spec.LOST_VERSIONS: None}).version

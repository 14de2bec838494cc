"""Finding versions: the newest one, by number, by time, back to the boundary; with requests that are counted."""

from __future__ import annotations

import dataclasses
import math
import shutil
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.clock import Clock
from tests.support.lakes import FAST, new_lake
from tests.support.surgery import Surgery
from trinitylake_core import CorruptNode, InvalidInput, Lakehouse, NotALakehouse, VersionExpired, VersionNotFound, spec
from trinitylake_core.locations import root_path
from trinitylake_core.storage import open_storage
from trinitylake_core.versions import Versions, from_millis, to_millis

NEWEST = 300
FIRST_MILLIS = 1_700_000_000_000


@pytest.fixture(scope="module")
def long_history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a lakehouse of 301 versions, one every ten seconds, and return its directory."""
    lake = new_lake(tmp_path_factory.mktemp("long"), order=8, target=8000, txn_ttl_millis=10**13)
    surgery = Surgery(lake.root, 8)
    surgery.system_row(root_path(0), spec.CREATED_AT_MILLIS, str(FIRST_MILLIS))
    surgery.strip(root_path(0), spec.SELF)
    columns = surgery.columns(root_path(0))
    for version in range(1, NEWEST + 1):
        surgery.write_columns(root_path(version), columns)
        surgery.system_row(root_path(version), spec.VERSION, str(version))
        surgery.system_row(root_path(version), spec.CREATED_AT_MILLIS, str(FIRST_MILLIS + version * 10_000))
        surgery.system_row(root_path(version), spec.PREVIOUS_ROOT, root_path(version - 1))
    surgery.write(spec.HINT_FILE, str(NEWEST).encode())
    return surgery.directory


@pytest.fixture
def surgery(long_history: Path, tmp_path: Path) -> Surgery:
    """Return access to a copy of the long history; its files are links, so take care to replace them."""
    shutil.copytree(long_history, tmp_path / "lake", copy_function=lambda a, b: Path(b).hardlink_to(a))
    return Surgery((tmp_path / "lake").as_uri(), 8)


def replace(surgery: Surgery, path: str, data: bytes) -> None:
    """Write a file of a copy without touching the original."""
    surgery.file(path).unlink(missing_ok=True)
    surgery.write(path, data)


def versions_of(surgery: Surgery) -> Versions:
    return Versions(open_storage(surgery.directory.as_uri(), FAST))


# -- the newest ----------------------------------------------------------------------------------------


GARBAGE = (None, b"", b"garbage", b"-1", b"1e2", b"301x", b"99999999999999", b"4294967295", b"4294967296", b"400",
           b"\xff\xfe\x00", "\u0663".encode(), b"0x10", b"1 2", b"\n\n", b"9" * 5000)  # fmt: skip


@pytest.mark.parametrize(
    ("boundary", "hint", "most"),
    [
        *(
            (0, b"%d" % (NEWEST - behind), 2 * math.ceil(math.log2(behind + 1)) + 5)
            for behind in (1, 2, 3, 10, 99, 300)
        ),
        *((0, hint, 2 * math.ceil(math.log2(NEWEST)) + 8) for hint in GARBAGE),
        *((0, hint, 4) for hint in (b" 300 \n", b"300\n", b"000300")),
        *((100, hint, 30) for hint in (b"", b"0", b"5", b"99", b"100", b"101", b"299", b"300", b"301", b"garbage")),
    ],
)
def test_the_newest_is_found_whatever_the_hint_says(
    surgery: Surgery, boundary: int, hint: bytes | None, most: int
) -> None:
    """With requests logarithmic in how stale it is, from the boundary on where it helps nobody; nothing is listed."""
    surgery.file(spec.HINT_FILE).unlink()
    if hint is not None:
        surgery.write(spec.HINT_FILE, hint)
    if boundary:
        replace(surgery, spec.BOUNDARY_FILE, b"%d" % boundary)
        for version in range(boundary):
            surgery.remove(root_path(version))
    versions = versions_of(surgery)
    assert NEWEST == versions.latest().version
    assert most >= versions.storage.counts.requests()
    assert 0 == versions.storage.counts.list


def test_a_stalled_reader_is_not_led_by_a_hint_into_a_half_deleted_prefix(tmp_path: Path) -> None:
    """Deleting takes time and has no order: an old root that still exists without its successor is not the newest."""
    lake = new_lake(tmp_path, txn_ttl_millis=1)
    surgery = Surgery(lake.root, 4)
    surgery.system_row(root_path(0), spec.CREATED_AT_MILLIS, "1000")
    surgery.strip(root_path(0), spec.SELF)
    columns = surgery.columns(root_path(0))
    for version in range(1, 20):
        surgery.write_columns(root_path(version), columns)
        surgery.system_row(root_path(version), spec.VERSION, str(version))
        surgery.system_row(root_path(version), spec.CREATED_AT_MILLIS, str(1000 + version))
    surgery.write(spec.BOUNDARY_FILE, b"10")
    surgery.write(spec.HINT_FILE, b"3")
    surgery.remove(root_path(4))
    assert 19 == versions_of(surgery).latest().version


@pytest.mark.parametrize("boundary", [b"garbage", b"", b"9999", None])
def test_without_hint_and_boundary_the_roots_are_listed(surgery: Surgery, boundary: bytes | None) -> None:
    """The last resort: the first version is gone and nothing says where the versions begin."""
    surgery.remove(root_path(0))
    surgery.remove(spec.HINT_FILE)
    if boundary is not None:
        replace(surgery, spec.BOUNDARY_FILE, boundary)
    versions = versions_of(surgery)
    assert NEWEST == versions.latest().version
    assert 1 == versions.storage.counts.list


def test_a_known_root_that_is_another_one_in_the_storage_is_read(surgery: Surgery) -> None:
    """Somebody put an older copy of the whole lakehouse in its place, where other commits followed."""
    known = dataclasses.replace(versions_of(surgery).root(NEWEST), data=b"another history")
    found = versions_of(surgery).latest(known)
    assert (NEWEST, True) == (found.version, found is not known)


@pytest.mark.parametrize("what", ["nothing", "hint", "boundary", "foreign"])
def test_without_a_root_there_is_no_lakehouse(tmp_path: Path, what: str) -> None:
    if what != "nothing":
        name = {"hint": spec.HINT_FILE, "boundary": spec.BOUNDARY_FILE, "foreign": "_root.ipc"}[what]
        (tmp_path / name).write_bytes(b"7")
    with pytest.raises(NotALakehouse):
        Lakehouse.open(tmp_path.as_uri())


def test_a_root_under_the_name_of_another_version_is_refused(surgery: Surgery) -> None:
    """A copied root must not become a version."""
    replace(surgery, root_path(NEWEST + 1), surgery.read(root_path(7)))
    with pytest.raises(CorruptNode) as raised:
        versions_of(surgery).latest()
    assert "I13" == raised.value.invariant


# -- by number -----------------------------------------------------------------------------------------


def test_a_version_that_expired_is_told_from_one_that_never_existed(surgery: Surgery) -> None:
    replace(surgery, spec.BOUNDARY_FILE, b"10")
    for version in range(10):
        surgery.remove(root_path(version))
    lake = Lakehouse.open(surgery.directory.as_uri(), storage_options=FAST)
    with pytest.raises(VersionExpired, match="the oldest one kept is 10"):
        lake.at(version=9)
    for version in (NEWEST + 1, 2**32 - 1, 2**32, -1, 10**30):
        with pytest.raises(VersionNotFound) as raised:
            lake.at(version=version)
        assert type(raised.value) is VersionNotFound
    assert 10 == lake.at(version=10).version


# -- by time -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 1, 2, 149, 150, 298, 299, NEWEST])
@pytest.mark.parametrize(("millis", "step"), [(0, 0), (1, 0), (9_999, 0), (-1, -1)])
def test_the_newest_version_created_at_or_before_a_time_is_found(
    surgery: Surgery, version: int, millis: int, step: int
) -> None:
    """To the millisecond, with requests logarithmic in the number of versions."""
    lake = Lakehouse.open(surgery.directory.as_uri(), storage_options=FAST)
    before = lake.storage.counts.snapshot()
    at = from_millis(FIRST_MILLIS + version * 10_000 + millis)
    if version + step < 0:
        with pytest.raises(VersionNotFound, match="created later"):
            lake.at(timestamp=at)
    else:
        assert version + step == lake.at(timestamp=at).version
    used = lake.storage.counts - before
    assert math.ceil(math.log2(NEWEST)) + 4 >= used.requests() == used.get


def test_a_time_before_the_boundary_has_expired(surgery: Surgery) -> None:
    replace(surgery, spec.BOUNDARY_FILE, b"10")
    for version in range(10):
        surgery.remove(root_path(version))
    lake = Lakehouse.open(surgery.directory.as_uri(), storage_options=FAST)
    with pytest.raises(VersionExpired):
        lake.at(timestamp=from_millis(FIRST_MILLIS + 50_000))
    assert 10 == lake.at(timestamp=from_millis(FIRST_MILLIS + 100_000)).version
    assert 11 == lake.at(timestamp=from_millis(FIRST_MILLIS + 110_001)).version


def test_a_time_may_be_written_in_many_ways(surgery: Surgery) -> None:
    lake = Lakehouse.open(surgery.directory.as_uri(), storage_options=FAST)
    at = from_millis(FIRST_MILLIS + 50_000)
    elsewhere = at.astimezone(timezone(timedelta(hours=5, minutes=30)))
    naive = at.replace(tzinfo=None)
    for each in (at, elsewhere, at.isoformat(), naive.isoformat(), elsewhere.isoformat(), f"{naive}Z"):
        assert 5 == lake.at(timestamp=each).version


@pytest.mark.parametrize("text", ["", "yesterday", "2026-13-01", "12", "2026-11-20T25:00"])
def test_a_time_that_is_not_iso_8601_is_refused(surgery: Surgery, text: str) -> None:
    lake = Lakehouse.open(surgery.directory.as_uri(), storage_options=FAST)
    with pytest.raises(InvalidInput, match="ISO 8601"):
        lake.at(timestamp=text)


@pytest.mark.parametrize("given_", [{}, {"version": 1, "timestamp": "2026-01-01"}, {"version": 1, "snapshot": "x"}])
def test_one_way_to_name_a_version_is_demanded(surgery: Surgery, given_: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        Lakehouse.open(surgery.directory.as_uri(), storage_options=FAST).at(**given_)


@given(st.integers(0, 4_102_444_800_000))
def test_a_time_comes_back_to_the_millisecond(millis: int) -> None:
    """The time that the history shows leads to that very version."""
    assert millis == to_millis(from_millis(millis))
    assert millis == to_millis(from_millis(millis).isoformat())


def test_a_time_that_python_cannot_hold_does_not_stop_the_history(tmp_path: Path) -> None:
    lake = new_lake(tmp_path)
    Surgery(lake.root, 4).system_row(root_path(0), spec.CREATED_AT_MILLIS, str(10**25))
    again = Lakehouse.open(lake.root)
    assert [datetime.max.replace(tzinfo=UTC)] == [info.created_at for info in again.history()]
    with again.transaction() as txn:
        txn.create_namespace("a")
    assert [10**25 + 1, 10**25] == [info.created_at_millis for info in again.refresh().history()]


# -- history -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [None, 0, 1, 2, 5, 100, NEWEST, NEWEST + 1, 10_000])
def test_the_history_is_newest_first_and_costs_one_get_each(surgery: Surgery, limit: int | None) -> None:
    lake = Lakehouse.open(surgery.directory.as_uri(), storage_options=FAST)
    before = lake.storage.counts.snapshot()
    found = [info.version for info in lake.history(limit)]
    count = NEWEST + 1 if limit is None else min(limit, NEWEST + 1)
    assert list(range(NEWEST, NEWEST - count, -1)) == found
    assert max(0, count - 1) == (lake.storage.counts - before).requests()


def test_the_history_of_an_old_version_ends_with_it(surgery: Surgery) -> None:
    lake = Lakehouse.open(surgery.directory.as_uri(), storage_options=FAST)
    assert list(range(7, -1, -1)) == [info.version for info in lake.at(version=7).history()]


def test_a_handle_stays_where_it_is_until_it_is_refreshed(tmp_path: Path) -> None:
    lake = new_lake(tmp_path)
    other = Lakehouse.open(lake.root)
    with other.transaction() as txn:
        txn.create_namespace("a")
    assert (0, []) == (lake.version, lake.namespaces())
    assert (1, ["a"]) == (lake.refresh().version, lake.namespaces())
    assert (0, []) == (lake.at(version=0).version, lake.at(version=0).namespaces())
    assert 1 == lake.at(version=0).refresh().version


def test_times_increase_strictly_whatever_the_clock_says(tmp_path: Path, clock: Clock) -> None:
    """The clock is set back by a day between two commits."""
    lake = new_lake(tmp_path)
    now = lake.info().created_at_millis
    clock.forward(days=-1)
    for number in range(3):
        with lake.transaction() as txn:
            txn.create_namespace(f"n{number}")
    assert [now + 3, now + 2, now + 1, now] == [info.created_at_millis for info in lake.refresh().history()]
    assert [] == list(lake.check())

"""Snapshot policies: what is due is a pure function, and carrying it out twice changes nothing."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines import snapshot
from pipelines.job import dry_run
from pipelines.snapshot import Due, due, name_of
from tests.support.lakes import filled, new_lake
from trinitylake_core import InvalidInput, SnapshotInfo

NOW = datetime(2026, 11, 20, 3, tzinfo=UTC)


def infos(names: Iterable[str], *, expired: bool = False) -> list[SnapshotInfo]:
    return [SnapshotInfo(name, 1, "minimal", NOW, None, expired, "p", None) for name in names]


def test_names_are_those_of_the_period_in_utc() -> None:
    names = ["hourly-2026-11-20T03", "daily-2026-11-20", "weekly-2026-W47", "monthly-2026-11", "yearly-2026"]
    assert names == [name_of(period, NOW) for period in snapshot.PERIODS]
    late = datetime(2026, 11, 20, 23, tzinfo=timezone(timedelta(hours=-5)))
    assert "daily-2026-11-21" == name_of("daily", late)
    assert "weekly-2026-W53" == name_of("weekly", datetime(2027, 1, 1, tzinfo=UTC))  # ISO weeks have years of their own


@pytest.mark.parametrize(
    ("policies", "names", "expected"),
    [
        ({}, ["daily-2026-11-01"], Due()),
        ({"daily": 2}, [], Due(("daily-2026-11-20",), ())),
        ({"daily": 2}, ["daily-2026-11-20"], Due()),
        ({"daily": 2}, ["daily-2026-11-19", "daily-2026-11-18"], Due(("daily-2026-11-20",), ("daily-2026-11-18",))),
        ({"daily": 1}, ["daily-2026-11-20", "daily-2026-11-19"], Due((), ("daily-2026-11-19",))),
        ({"weekly": 1}, ["daily-2026-11-01", "weekly-2026-W46"], Due(("weekly-2026-W47",), ("weekly-2026-W46",))),
        ({"daily": 1}, ["mine", "daily", "daily-2026-11-19-x", "daily-1"], Due(("daily-2026-11-20",), ())),
        ({"daily": 1, "weekly": 1}, [], Due(("daily-2026-11-20", "weekly-2026-W47"), ())),
        ({"daily": 1}, ["daily-2031-01-01"], Due(("daily-2026-11-20",), ())),  # by a clock that was wrong
        (
            {"daily": 1},
            ["daily-2031-01-01", "daily-2026-11-19"],
            Due(("daily-2026-11-20",), ("daily-2026-11-19",)),
        ),
    ],
)
def test_what_is_due(policies: dict[str, int], names: list[str], expected: Due) -> None:
    assert expected == due(policies, infos(names), NOW)


def test_a_snapshot_of_the_future_hides_no_missing_one() -> None:
    (late,) = snapshot.overdue({"daily": timedelta(days=1)}, infos(["daily-2031-01-01"]), NOW)
    assert ("daily-2026-11-19", None) == (late.name, late.newest)


def test_an_expired_snapshot_is_made_again() -> None:
    assert Due(("daily-2026-11-20",), ()) == due({"daily": 2}, infos(["daily-2026-11-20"], expired=True), NOW)


@pytest.mark.parametrize(("policies", "message"), [({"minutely": 3}, "one of hourly"), ({"daily": 0}, "at least 1")])
def test_a_wrong_policy_is_refused(policies: dict[str, int], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        due(policies, [], NOW)


@given(st.integers(1, 5), st.lists(st.integers(0, 60), max_size=40))
def test_the_newest_stay_whenever_it_runs(keep: int, hours: list[int]) -> None:
    """After each run: what is kept is the newest ``keep`` days on which it ran, and running again changes nothing."""
    names: set[str] = set()
    ran: list[str] = []
    for hour in sorted(hours):
        now = NOW + timedelta(hours=12 * hour)
        asked = due({"daily": keep}, infos(names), now)
        names = (names | {*asked.create}) - {*asked.drop}
        ran.append(name_of("daily", now))
        assert sorted(set(ran))[-keep:] == sorted(names)
        assert Due() == due({"daily": keep}, infos(names), now)


def test_policies_are_carried_out_on_the_newest_version(tmp_path: Path) -> None:
    lake = filled(new_lake(tmp_path), tables=4)
    policies = {"daily": 2, "weekly": 1}
    dry = snapshot.run(lake, policies, NOW, review=dry_run)
    assert (("daily-2026-11-20", "weekly-2026-W47"), lake.version) == (dry.due.create, dry.version_after)
    for day in range(4):
        with lake.transaction() as txn:
            txn.alter_namespace("ns0", {"day": str(day)})
        newest = lake.refresh().version
        done = snapshot.run(lake, policies, NOW + timedelta(days=day))
        assert newest == lake.at(snapshot=done.created[0]).version
        assert (done.version_after, done.created, done.dropped) == (lake.version, done.due.create, done.due.drop)
        again = snapshot.run(lake, policies, NOW + timedelta(days=day))
        assert ((), again.version_before) == (again.created, again.version_after)
    names = ["daily-2026-11-22", "daily-2026-11-23", "weekly-2026-W48"]
    assert names == sorted(info.name for info in lake.snapshots())
    assert [] == list(lake.check(definitions=True))

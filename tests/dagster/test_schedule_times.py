"""When maintenance is due: as cron says, later by what the name decides, and never lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest
import yaml

from dagster_project import schedule_times
from dagster_project.config.file import Stanzas
from dagster_project.config.settings import Backup, LakehouseSettings
from dagster_project.factory import define_lakehouses, fleet
from tests.support.clock import Clock
from trinitylake_core.clock import utc_now as now_utc


def lakehouse(name: str, cron: str | None = "0 3 * * *", **more: str) -> LakehouseSettings:
    schedules = {"maintenance": cron, **more}
    return LakehouseSettings.model_validate({"name": name, "root": f"file:///x/{name}", "schedules": schedules})


def test_a_thousand_lakehouses_are_spread_over_half_an_hour() -> None:
    """None before its time, none in a crowd, and always the same one at the same time."""
    minutes = Counter(schedule_times.offset(lakehouse(f"lake-{n}")) // timedelta(minutes=1) for n in range(1000))
    assert set(range(30)) == set(minutes)
    assert max(minutes.values()) < 60
    assert schedule_times.offset(lakehouse("sales")) == schedule_times.offset(lakehouse("sales", "0 4 * * *"))


@pytest.mark.parametrize(
    ("cron", "minutes", "moved"),
    [
        ("0 3 * * *", 17, "17 3 * * *"),
        ("50 3 * * 1", 17, "7 4 * * 1"),
        ("50 23 1 * *", 17, "50 23 1 * *"),  # cron cannot say the day after the first
        ("0 * * * *", 17, "17 * * * *"),
        ("*/5 3 * * *", 17, "*/5 3 * * *"),
        ("0 3,15 * * *", 17, "0 3,15 * * *"),
        ("@daily", 17, "@daily"),
        ("0 3 * * *", 0, "0 3 * * *"),
    ],
)
def test_a_cron_schedule_is_moved_where_cron_can_say_so(cron: str, minutes: int, moved: str) -> None:
    assert moved == schedule_times.shift_cron(cron, timedelta(minutes=minutes))


def test_the_schedules_of_two_lakehouses_differ_unless_spread_is_zero() -> None:
    def cron(name: str, **more: str) -> str:
        (schedule,) = define_lakehouses((lakehouse(name, **more),)).get_repository_def().schedule_defs
        return str(schedule.cron_schedule)

    assert len({cron(name) for name in ("sales", "orders", "logs")}) > 1
    assert {"0 3 * * *"} == {cron(name, spread="0s") for name in ("sales", "orders", "logs")}


def test_the_last_time_that_maintenance_was_due() -> None:
    """Inclusive, with the offset, in the time zone of the stanza, for rare schedules as well."""
    sharp = lakehouse("sales", spread="0s")
    three = datetime(2026, 11, 22, 3, tzinfo=UTC)
    assert three == schedule_times.last_due(sharp, three)
    assert three - timedelta(days=1) == schedule_times.last_due(sharp, three - timedelta(seconds=1))
    late = lakehouse("sales")
    by = schedule_times.offset(late)
    assert timedelta() < by
    assert three + by == schedule_times.last_due(late, three + by)
    assert three + by - timedelta(days=1) == schedule_times.last_due(late, three + by - timedelta(seconds=1))
    berlin = lakehouse("sales", timezone="Europe/Berlin", spread="0s")
    assert datetime(2026, 11, 22, 2, tzinfo=UTC) == schedule_times.last_due(berlin, three)
    monday = datetime(2026, 11, 16, 3, tzinfo=UTC)
    assert monday == schedule_times.last_due(lakehouse("sales", "0 3 * * 1", spread="0s"), three)
    new_year = datetime(2026, 1, 1, tzinfo=UTC)
    assert new_year == schedule_times.last_due(lakehouse("sales", "0 0 1 1 *", spread="0s"), three)
    assert schedule_times.last_due(lakehouse("sales", None), three) is None


@pytest.mark.parametrize(
    ("cron", "warns", "fails"),
    [
        ("0 * * * *", timedelta(hours=1.5), timedelta(hours=3)),
        ("0 3 * * *", timedelta(days=1.5), timedelta(days=3)),
        ("0 3 * * 1-5", timedelta(days=4.5), timedelta(days=9)),  # over the weekend nothing is late
        ("0 3 1 * *", timedelta(days=46.5), timedelta(days=93)),
    ],
)
def test_what_maintenance_makes_is_late_after_one_that_did_not_come(
    cron: str, warns: timedelta, fails: timedelta
) -> None:
    """On ``tree_health`` and ``backup``; Dagster judges a partitioned asset as a whole, so a fleet has none."""
    settings = lakehouse("sales", cron, timezone="UTC").model_copy(update={"backup": Backup(target="file:///x/backup")})
    policies = {
        spec.key.path[-1]: spec.freshness_policy for spec in define_lakehouses((settings,)).resolve_all_asset_specs()
    }
    judged = {name: policy for name, policy in policies.items() if policy is not None}
    assert {"tree_health", "backup"} == set(judged)
    assert dg.FreshnessPolicy.time_window(fails, warns) == judged["backup"] == judged["tree_health"]


def test_without_a_schedule_and_in_a_fleet_nothing_is_late(tmp_path: Path) -> None:
    assert schedule_times.freshness(lakehouse("sales", None)) is None
    specs = fleet(Stanzas(tmp_path / "not there")).resolve_all_asset_specs()
    assert {None} == {spec.freshness_policy for spec in specs}


@pytest.fixture
def stored(memory: str) -> Iterator[dg.DagsterInstance]:
    """Return an instance on disk, which schedules ask for."""
    with dg.DagsterInstance.local_temp(memory) as made:
        yield made


def leap_march(cron: str) -> list[tuple[datetime, datetime | None]]:
    """Return when a schedule was last due, at noon of each third day from February to April of a leap year."""
    days = [datetime(2028, 2, 20, 12, tzinfo=UTC) + timedelta(days=3 * number) for number in range(20)]
    return [(day, schedule_times.last_due(lakehouse("sales", cron, spread="0s"), day)) for day in days]


@pytest.mark.parametrize("day", [29, 30, 31])
def test_a_day_that_some_months_lack_is_due_in_march_of_a_leap_year(day: int) -> None:
    """Dagster's own iterator ends with an invariant there, and with it ended the ticks of all lakehouses."""
    months = {29: (1, 2, 3, 4), 30: (1, 3, 4), 31: (1, 3)}
    fires = [datetime(2028, month, day, 3, tzinfo=UTC) for month in months[day]]
    for now, last in leap_march(f"0 3 {day} * *"):
        assert max(each for each in fires if each <= now) == last


def test_a_schedule_of_each_29_february_is_due() -> None:
    for now, last in leap_march("0 3 29 2 *"):
        year = 2028 if now > datetime(2028, 2, 29, 3, tzinfo=UTC) else 2024
        assert datetime(year, 2, 29, 3, tzinfo=UTC) == last


def test_definitions_load_whatever_month_it_is(clock: Clock, stored: dg.DagsterInstance) -> None:
    """And Dagster's daemon, which cannot follow such a schedule either, gets one that fires each day."""
    clock.forward(days=(datetime(2028, 3, 20, tzinfo=UTC) - now_utc()).days)
    stanza = lakehouse("sales", "0 3 29 * *", spread="0s")
    (schedule,) = define_lakehouses((stanza,)).get_repository_def().schedule_defs
    assert "0 3 * * *" == schedule.cron_schedule
    for day, requests in ((28, 0), (29, 1), (30, 0)):
        at = datetime(2028, 3, day, 3, tzinfo=UTC)
        with dg.build_schedule_context(stored, scheduled_execution_time=at) as context:
            assert requests == len(schedule.evaluate_tick(context).run_requests or [])


def test_one_schedule_that_cannot_be_computed_stops_no_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stored: dg.DagsterInstance
) -> None:
    """Whatever else Dagster's iterators refuse."""
    real = schedule_times._last

    def last(cron: str, timezone: str, now: datetime) -> datetime | None:
        if cron.startswith("13"):
            raise RuntimeError("an invariant")
        return real(cron, timezone, now)

    monkeypatch.setattr(schedule_times, "_last", last)
    path = tmp_path / "lakehouses.yaml"
    stanzas = [{"name": name, "root": f"file:///x/{name}"} for name in "ab"]
    for each, minute in zip(stanzas, (13, 0), strict=True):
        each["schedules"] = {"maintenance": f"{minute} * * * *", "spread": "0s"}  # type: ignore[assignment]
    path.write_text(yaml.safe_dump({"layout": "partitions", "lakehouses": stanzas}))
    repository = fleet(Stanzas(path)).get_repository_def()
    schedule = repository.get_schedule_def("lakehouses_maintenance_schedule")
    stored.add_dynamic_partitions("lakehouses", ["a", "b"])
    with dg.build_schedule_context(stored, scheduled_execution_time=now_utc(), repository_def=repository) as context:
        assert ["b"] == [each.partition_key for each in schedule.evaluate_tick(context).run_requests or []]


def test_a_schedule_that_is_not_enabled_is_there_and_stopped() -> None:
    """As in the file of `trinitylake try`: whoever looks at Dagster sees it, and nothing begins by itself."""
    for is_on, status in ((True, dg.DefaultScheduleStatus.RUNNING), (False, dg.DefaultScheduleStatus.STOPPED)):
        schedules = {"maintenance": "0 3 * * *", "enabled": is_on}
        settings = LakehouseSettings.model_validate({"name": "a", "root": "file:///x", "schedules": schedules})
        made = define_lakehouses((settings,)).get_repository_def().get_schedule_def("a_maintenance_schedule")
        due = schedule_times.last_due(settings, datetime(2027, 1, 2, tzinfo=UTC))
        late = schedule_times.freshness(settings)
        assert (status, is_on, is_on) == (made.default_status, due is not None, late is not None)

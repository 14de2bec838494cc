"""A fleet: one set of definitions, a partition per lakehouse, one sensor and one schedule; every run is a real one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml

from dagster_project import assets, check_alerts, checks, fleet_health, poll, schedule_times, scope, sensor
from dagster_project.config.file import Stanzas, load_head
from dagster_project.config.settings import REASON_TAG, Notifications
from dagster_project.factory import fleet
from dagster_project.poll import SensorState
from dagster_project.schedule import DUE_TAG
from dagster_project.scope import FLEET, FLEET_SENSOR, PARTITION_TAG
from pipelines import export
from pipelines.engine.deadline_pool import DeadlinePool
from pipelines.reports.summary import utc
from tests.dagster.conftest import filled
from tests.support.fleets import Webhook
from tests.support.surgery import directory_of
from trinitylake_core import Lakehouse


class Lakes:
    """A file of lakehouses on this disk, its definitions, and ticks of its sensor."""

    def __init__(self, directory: Path, instance: dg.DagsterInstance) -> None:
        self.directory, self.instance = directory, instance
        self.path = directory / "lakehouses.yaml"
        self.stanzas: dict[str, dict[str, Any]] = {}
        self.cursor: str | None = None
        self.told: Webhook | None = None

    def add(self, name: str, commits: int | None = 1, **more: Any) -> Lakehouse | None:
        """Add a stanza, and a lakehouse unless ``commits`` is ``None``."""
        root = (self.directory / name).as_uri()
        local = {"engine": "local", "messages": 5, "min_interval": "1h"}
        self.stanzas[name] = {"name": name, "root": root, "compaction": local, **more}
        self.write()
        return None if commits is None else filled(root, commits)

    def write(self) -> None:
        """Write the file."""
        self.path.write_text(yaml.safe_dump({"layout": "partitions", "lakehouses": list(self.stanzas.values())}))

    @property
    def definitions(self) -> dg.Definitions:
        """The definitions, as Dagster loads them."""
        hears = Notifications.model_validate({"webhook": self.told.url} if self.told else {})
        return fleet(Stanzas(self.path), hears)

    def tick(self) -> dg.SensorResult:
        """Evaluate the sensor, and do with its result what the daemon does."""
        repository = self.definitions.get_repository_def()
        with dg.build_sensor_context(instance=self.instance, cursor=self.cursor, repository_def=repository) as context:
            result = repository.get_sensor_def(FLEET_SENSOR)(context)
        assert isinstance(result, dg.SensorResult)
        self.cursor = result.cursor
        for request in result.dynamic_partitions_requests or []:
            if isinstance(request, dg.AddDynamicPartitionsRequest):
                self.instance.add_dynamic_partitions(FLEET, list(request.partition_keys))
            else:
                for name in request.partition_keys:
                    self.instance.delete_dynamic_partition(FLEET, name)
        for event in result.asset_events:
            self.instance.report_runless_asset_event(event)
        return result

    def run(self, job: str, name: str, **more: Any) -> dg.ExecuteInProcessResult:
        """Run a job for a lakehouse."""
        return self.definitions.resolve_job_def(f"lakehouses_{job}").execute_in_process(
            instance=self.instance, partition_key=name, raise_on_error=False, **more
        )

    def send(self, cursor: str | None) -> str:
        """Evaluate the sensor that sends what has begun to fail; return its cursor."""
        repository = self.definitions.get_repository_def()
        context = dg.build_sensor_context(instance=self.instance, cursor=cursor, repository_def=repository)
        return str(repository.get_sensor_def(check_alerts.NAME)(context).cursor)  # type: ignore[union-attr]

    def later(self, seconds: float) -> None:
        """Make the time of the next look of every lakehouse come."""
        marks = poll.states_of(self.cursor)
        moved = {
            name: replace(mark, next_poll=mark.next_poll - seconds, observed_at=mark.observed_at - seconds)
            for name, mark in marks.items()
        }
        self.cursor = poll.cursor_of(moved)


@pytest.fixture
def lakes(tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch) -> Lakes:
    monkeypatch.setattr(poll, "POLLS", DeadlinePool())
    return Lakes(tmp_path, instance)


def compactions_requested(result: dg.SensorResult) -> list[str | None]:
    return [each.partition_key for each in result.run_requests or [] if each.job_name == "lakehouses_compaction"]


def failing(result: dg.SensorResult) -> dict[str, dict[str, str]]:
    """Return the evaluations of a tick: for each check the lakehouses that fail it, and why."""
    found = [each for each in result.asset_events if isinstance(each, dg.AssetCheckEvaluation)]
    assert all(each.asset_key == key(fleet_health.NAME) and each.partition is None for each in found)
    rows = {each.check_name: each.metadata["lakehouses"].records for each in found}  # type: ignore[union-attr]
    told = {name: {str(row.data["lakehouse"]): str(row.data["why"]) for row in some} for name, some in rows.items()}
    assert {each.check_name: each.passed for each in found} == {name: not some for name, some in told.items()}
    return told


def key(name: str) -> dg.AssetKey:
    return dg.AssetKey([FLEET, name])


def test_the_names_of_a_fleet_do_not_depend_on_its_lakehouses(lakes: Lakes) -> None:
    """No stanza is read for them, so definitions load the same for three and for three thousand."""
    repository = fleet(Stanzas(lakes.path / "not there")).get_repository_def()
    names = ("lakehouse_definition", "tree_health", "tree_compaction", "root_version_snapshots", "backup")
    names += ("version_expiration", "orphan_removal", *assets.OF_TABLES, assets.TABLE_COMPACTION)
    assert {key(name) for name in (*names, "fleet_health")} == set(repository.asset_graph.get_all_asset_keys())
    jobs = ("alter", "compaction", "diff", "export", "health", "history", "maintenance", "restore", "rollback", "undo")
    jobs += ("freeze", "thaw", "mend", "upgrade", "verify")
    jobs += ("tables_health", "tables_compact", "tables_expire", "tables_clean")
    assert {f"lakehouses_{job}" for job in jobs} == {each.name for each in repository.get_all_jobs()} - {"__ASSET_JOB"}
    first, later = (repository.get_job(f"lakehouses_{each}").tags for each in ("health", "maintenance"))
    assert int(first["dagster/priority"]) > int(later.get("dagster/priority", "0"))
    assert {FLEET_SENSOR, "maintenance_repeats"} == {each.name for each in repository.sensor_defs}
    assert {"lakehouses_maintenance_schedule", "lakehouses_health_schedule"} == {
        each.name for each in repository.schedule_defs
    }
    specs = [repository.asset_graph.get_check_spec(each) for each in repository.asset_graph.asset_check_keys]
    of_all = {spec.name for spec in specs if spec.partitions_def is None}
    assert (15, {*fleet_health.CHECKS}) == (len(specs) - len(of_all), of_all)


def test_the_sensor_adds_and_removes_partitions_from_the_file(lakes: Lakes, instance: dg.DagsterInstance) -> None:
    lakes.add("sales")
    lakes.add("logs")
    lakes.tick()
    assert {"sales", "logs"} == set(instance.get_dynamic_partitions(FLEET))
    del lakes.stanzas["logs"]
    lakes.write()
    lakes.tick()
    assert ["sales"] == list(instance.get_dynamic_partitions(FLEET))
    assert ["sales"] == list(poll.states_of(lakes.cursor))


def test_what_it_asks_for_runs_and_its_checks_are_those_of_the_partition(
    lakes: Lakes, instance: dg.DagsterInstance
) -> None:
    lake = lakes.add("sales")
    lakes.add("small", commits=0)
    assert lake is not None
    result = lakes.tick()
    (request,) = [each for each in result.run_requests or [] if each.job_name == "lakehouses_compaction"]
    assert ("sales", "sales") == (request.partition_key, request.tags["trinitylake/lakehouse"])
    assert ["sales"] == list(failing(result)["compaction_debt"])
    versions = {
        each.partition: each.tags["dagster/data_version"]
        for each in result.asset_events
        if isinstance(each, dg.AssetObservation)
    }
    assert str(lake.version) == versions["sales"]
    done = lakes.run("compaction", "sales", run_config=request.run_config, tags=request.tags)
    assert (True, 0) == (done.success, lake.refresh().stats().messages)
    assert ("compact", request.tags[REASON_TAG]) == (lake.info().operation, lake.info().reason)
    (event,) = done.get_asset_materialization_events()
    assert "sales" == event.partition
    assert {("sales", True)} == {(each.partition, each.passed) for each in done.get_asset_check_evaluations()}
    assert scope.last_result(instance, key(assets.COMPACTION), checks.DEBT, "sales") is True
    assert not lakes.tick().run_requests  # neither is due
    lakes.later(3600)
    result = lakes.tick()
    assert not result.run_requests
    assert {} == failing(result)["compaction_debt"]


@pytest.fixture
def on_disk(lakes: Lakes, memory: str) -> Iterator[Lakes]:
    """Return lakes whose instance a schedule can open."""
    with dg.DagsterInstance.local_temp(memory) as instance:
        lakes.instance = instance
        yield lakes


def test_maintenance_of_a_partition_does_what_its_stanza_says(on_disk: Lakes) -> None:
    lakes = on_disk
    lake = lakes.add("sales", commits=2, snapshots={"daily": {"keep": 2}}, retention={"keep_last": 2})
    assert lake is not None
    lakes.tick()
    when = datetime(2026, 11, 22, 3, 0, tzinfo=UTC)
    lakes.stanzas["sales"]["schedules"] = {"maintenance": "0 3 * * *", "spread": "0s"}
    lakes.write()
    (request,) = scheduled(lakes, when)
    assert {key(name) for name in (assets.HEALTH, assets.COMPACTION, assets.SNAPSHOTS, assets.EXPIRATION)} == set(
        request.asset_selection or []
    )
    done = lakes.run("maintenance", "sales", asset_selection=request.asset_selection, tags=request.tags)
    assert done.success
    assert (0, 1) == (lake.refresh().stats().messages, len(lake.snapshots()))
    passed = {each.check_name: each.passed for each in done.get_asset_check_evaluations()}
    names = ("reachable", "integrity", "compaction_debt", "compaction_fresh", "snapshots_fresh")
    assert dict.fromkeys(names, True) == passed


def test_maintenance_that_is_launched_by_hand_needs_no_backup(on_disk: Lakes) -> None:
    """It selects all assets; those without a policy say so, and what comes after them is done."""
    lake = on_disk.add("sales", retention={"keep_last": 2})
    assert lake is not None
    on_disk.tick()
    done = on_disk.run("maintenance", "sales")
    assert done.success
    shown = {str(each.asset_key.path[-1]): each for each in done.get_asset_materialization_events() if each.asset_key}
    assert {*assets.ALL} == shown.keys()
    assert assets.NO_BACKUP == shown[assets.BACKUP].materialization.metadata["outcome"].value
    passed = {each.check_name: each.passed for each in done.get_asset_check_evaluations()}
    assert passed["backup_verified"]
    assert 0 == lake.refresh().stats().messages


def scheduled(lakes: Lakes, when: datetime) -> list[dg.RunRequest]:
    repository = lakes.definitions.get_repository_def()
    schedule = repository.get_schedule_def("lakehouses_maintenance_schedule")
    with dg.build_schedule_context(
        instance=lakes.instance, scheduled_execution_time=when, repository_def=repository
    ) as context:
        return list(schedule.evaluate_tick(context).run_requests or [])


def test_the_schedule_asks_once_and_makes_up_for_what_it_missed(on_disk: Lakes) -> None:
    """Spread by name; not again for the same time; not while the last one is at work; later if nothing ticked."""
    lakes, instance = on_disk, on_disk.instance
    when = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    for name in ("a", "b", "c", "never"):
        lakes.add(
            name, commits=0, **({} if name == "never" else {"schedules": {"maintenance": f"0 {when.hour} * * *"}})
        )
    lakes.tick()
    known = Stanzas(lakes.path).all().good
    times = {name: when + schedule_times.offset(known[name]) for name in "abc"}
    assert len(set(times.values())) > 1
    first = min(times.values())
    assert [] == scheduled(lakes, first - timedelta(minutes=1))
    early = scheduled(lakes, first)
    assert {name for name in times if times[name] == first} == {each.partition_key for each in early}
    late = scheduled(lakes, when + timedelta(hours=3))
    assert {name: each.isoformat() for name, each in times.items()} == {
        str(each.partition_key): each.tags[DUE_TAG] for each in late
    }
    job = lakes.definitions.resolve_job_def("lakehouses_maintenance")
    for request in late:
        tags = {**request.tags, PARTITION_TAG: str(request.partition_key)}
        finished = instance.create_run_for_job(job, tags=tags, status=dg.DagsterRunStatus.SUCCESS)
        assert finished.tags[PARTITION_TAG] == request.partition_key
    assert [] == scheduled(lakes, when + timedelta(hours=3))
    instance.create_run_for_job(job, tags={PARTITION_TAG: "a"}, status=dg.DagsterRunStatus.STARTED)
    tomorrow = scheduled(lakes, when + timedelta(days=1, hours=3))
    assert {"b", "c"} == {each.partition_key for each in tomorrow}


def test_of_many_due_at_once_none_is_lost_and_none_runs_twice(on_disk: Lakes) -> None:
    """Spread over the two hours that the file asks for, with a daemon that dies in a tick, and one that misses a tick.

    Dagster evaluates the tick in which it died once more when it is back, with the same time.
    """
    lakes, instance = on_disk, on_disk.instance
    when = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    names = sorted(f"sales-{number}" for number in range(40))
    schedule = {"maintenance": f"0 {when.hour} * * *", "spread": "2h"}
    lakes.stanzas = {
        each: {"name": each, "root": (lakes.directory / each).as_uri(), "schedules": schedule} for each in names
    }
    lakes.write()
    instance.add_dynamic_partitions(FLEET, names)
    job = lakes.definitions.resolve_job_def("lakehouses_maintenance").name
    good = Stanzas(lakes.path).all().good
    times = {name: when + schedule_times.offset(good[name]) for name in names}

    def begin(requests: list[dg.RunRequest]) -> list[str]:
        for each in requests:
            tags = {**each.tags, PARTITION_TAG: str(each.partition_key)}
            instance.add_run(dg.DagsterRun(job, tags=tags, status=dg.DagsterRunStatus.SUCCESS))
        return sorted(str(each.partition_key) for each in requests)

    def until(minute: int) -> list[str]:
        return [name for name in names if times[name] <= when + timedelta(minutes=minute)]

    assert until(20) == begin(scheduled(lakes, when + timedelta(minutes=20)))
    cut_short = scheduled(lakes, when + timedelta(minutes=40))
    begun = until(20) + begin(cut_short[:2])  # and the daemon is killed
    assert 2 < len(cut_short) < len(names) / 2
    assert cut_short[2:] == scheduled(lakes, when + timedelta(minutes=40))
    begun += begin(cut_short[2:])
    assert sorted(begun) == until(40)
    assert sorted({*names} - {*until(40)}) == begin(scheduled(lakes, when + timedelta(hours=3)))
    assert names == sorted(run.tags[PARTITION_TAG] for run in instance.get_runs())
    assert [] == scheduled(lakes, when + timedelta(hours=3, minutes=5))


def test_maintenance_of_a_lakehouse_that_cannot_be_opened_waits_until_it_can(on_disk: Lakes) -> None:
    """Its runs would take minutes to fail, a slot each, while those that could work wait for a slot."""
    lakes, when = on_disk, datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    daily = {"schedules": {"maintenance": f"0 {when.hour} * * *", "spread": "0s"}}
    for name in ("good", "gone"):
        lakes.add(name, commits=None, **daily)
    Lakehouse.create(lakes.stanzas["good"]["root"])
    lakes.tick()
    assert {"good"} == {each.partition_key for each in scheduled(lakes, when)}
    Lakehouse.create(lakes.stanzas["gone"]["root"])
    lakes.later(3600)
    lakes.tick()
    assert {"good", "gone"} == {each.partition_key for each in scheduled(lakes, when + timedelta(minutes=5))}


def test_each_that_cannot_be_opened_is_told_once_and_holds_up_nobody(
    lakes: Lakes, webhook: Webhook, instance: dg.DagsterInstance
) -> None:
    """Missing, damaged, and a stanza with a mistake: a failing check with advice and a message for each."""
    lakes.told = webhook
    lakes.add("good")
    lakes.add("missing", commits=None)
    damaged = lakes.add("damaged")
    assert damaged is not None
    (directory_of(damaged) / damaged.root_node.path).write_bytes(b"garbage")
    lakes.add("mistake", commits=None, rot=1)
    result = lakes.tick()
    names = {"missing", "damaged", "mistake"}
    why = failing(result)["reachable"]
    assert names == why.keys()
    assert "Check `root` in lakehouses.yaml" in why["missing"]
    assert ["good"] == compactions_requested(result)
    told = lakes.send(None)
    advice = {name: each["text"] for each in webhook.messages for name in each["lakehouses"]}
    assert names == advice.keys()
    assert "Check `root` in lakehouses.yaml" in advice["missing"]
    assert "Run the job `mend`" in advice["damaged"]
    assert "rot: unknown field" in advice["mistake"]
    lakes.later(3600)
    result = lakes.tick()
    assert "reachable" not in failing(result)
    assert "3 cannot be opened" in str(result.skip_reason)
    told = lakes.send(told)
    assert 3 == len(webhook.messages)
    filled(lakes.stanzas["missing"]["root"], 0)
    lakes.later(3600)
    left = failing(lakes.tick())["reachable"]
    assert {name: why[name] for name in ("damaged", "mistake")} == left
    lakes.send(told)
    assert "reachable of missing: it does not fail any more" in webhook.messages[3]["text"]


def test_those_that_failed_last_time_are_looked_at_after_the_others(
    lakes: Lakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    lakes.add("a-missing", commits=None)
    lakes.add("b")
    lakes.add("c")
    lakes.tick()
    order: list[str] = []
    look = poll.poll_lakehouse

    def noted(settings: Any, *args: Any, **more: Any) -> Any:
        order.append(settings.name)
        return look(settings, *args, **more)

    monkeypatch.setattr(poll, "poll_lakehouse", noted)
    monkeypatch.setattr(poll, "POLLS", DeadlinePool(at_once=1))
    lakes.later(3600)
    lakes.tick()
    assert ["b", "c", "a-missing"] == order


def test_an_error_that_nobody_foresaw_stays_with_its_lakehouse(lakes: Lakes, monkeypatch: pytest.MonkeyPatch) -> None:
    lakes.add("good")
    lakes.add("odd")
    look = poll.poll_lakehouse

    def odd(settings: Any, *args: Any, **more: Any) -> Any:
        if settings.name == "odd":
            raise ZeroDivisionError("odd")
        return look(settings, *args, **more)

    monkeypatch.setattr(poll, "poll_lakehouse", odd)
    result = lakes.tick()
    assert {"odd": "ZeroDivisionError: odd.\nUnexpected: see the log of the code server."} == failing(result)[
        "reachable"
    ]
    assert ["good"] == compactions_requested(result)


def test_quiet_lakehouses_are_looked_at_less_often_and_busy_ones_as_often_as_told(lakes: Lakes) -> None:
    lake = lakes.add("sales", commits=0, compaction={"poll": "60s", "messages": 1000})
    assert lake is not None
    waits = []
    for _ in range(6):
        result = lakes.tick()
        assert [] == compactions_requested(result)
        state = poll.states_of(lakes.cursor)["sales"]
        waits.append(round((state.next_poll - datetime.now(UTC).timestamp()) / 60))
        lakes.later(3600)
    assert [1, 2, 4, 8, 8, 8] == waits
    with lake.transaction() as txn:
        txn.create_namespace("more")
    lakes.tick()
    assert 0 == poll.states_of(lakes.cursor)["sales"].quiet


def test_a_tick_records_few_versions_and_none_is_forgotten(on_disk: Lakes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dagster needs 10 ms and more for each; a version that is not recorded now is recorded with what follows it."""
    lakes = on_disk
    monkeypatch.setattr(sensor, "_OBSERVED", 2)
    made = [lakes.add(name, commits=0) for name in "abcde"]

    def observed(seconds: float) -> set[str]:
        lakes.later(seconds)
        events = [each for each in lakes.tick().asset_events if isinstance(each, dg.AssetObservation)]
        return {str(each.partition) for each in events}

    rounds = [observed(60) for _ in range(4)]
    assert [2, 2, 1, 0] == [len(each) for each in rounds]
    assert set("abcde") == set.union(*rounds)
    assert made[0] is not None
    with made[0].transaction() as txn:
        txn.create_table("sales", "more")
    assert set() == observed(60)
    assert {"a"} == observed(600)


def test_jobs_started_by_hand_take_the_lakehouse_of_their_partition(lakes: Lakes, instance: dg.DagsterInstance) -> None:
    lake = lakes.add("sales", commits=2)
    lakes.add("logs", commits=1)
    assert lake is not None
    lakes.tick()
    step = {"version": lake.version - 1, "reason": "bad deploy", "dry_run": False}
    done = lakes.run("rollback", "sales", run_config={"ops": {"lakehouses__rollback": {"config": step}}})
    assert (True, "rollback") == (done.success, next(lake.refresh().history(limit=1)).operation)
    verified = lakes.run("verify", "logs", run_config={"ops": {"lakehouses__verify": {"config": {"engine": "local"}}}})
    assert verified.success
    assert "sales" == done.dagster_run.tags[PARTITION_TAG]


def test_a_partition_whose_stanza_is_gone_fails_with_advice(lakes: Lakes, instance: dg.DagsterInstance) -> None:
    lakes.add("sales", commits=None)
    lakes.add("gone", commits=None)
    lakes.tick()
    del lakes.stanzas["gone"]
    lakes.write()
    result = lakes.run("verify", "gone")
    (failure,) = result.get_step_failure_events()
    assert "there is no lakehouse 'gone' any more" in str(failure.event_specific_data)


def test_a_cursor_is_small_and_comes_back_as_it_was() -> None:
    """Three thousand lakehouses in less than a hundred kilobytes; one that is not ours is no cursor."""

    def state(n: int) -> SensorState:
        over = None if n % 3 else 1e9
        polled = SensorState(n * 7, 1e9 + n, over, n % 2, n % 5 == 0, 1.7e9 + n * 13 % 600, n % 9)
        waiting = None if n % 2 else 1e9 + n
        return replace(
            polled, waiting_since=waiting, debt=n, results={"reachable": n % 7 != 0, "compaction_debt": n % 5 != 0}
        )

    states = {f"lake-{n}": state(n) for n in range(3000)}
    text = poll.cursor_of(states)
    assert states == poll.states_of(text)
    assert len(text) < 100_000
    for other in (None, "", "x", "2:", "2:abcd", "1:abcd", '{"version": 1}'):
        assert {} == poll.states_of(other)


def test_a_stanza_is_found_without_parsing_the_others(tmp_path: Path) -> None:
    """The same settings either way; what cannot be found quickly is found slowly."""
    path = tmp_path / "lakehouses.yaml"
    path.write_text(
        """
layout: partitions
lakehouses:
  - name: a
    root: file://{here}/a    # the first
    compaction: {messages: 7}
  - {name: b, root: "file://{here}/b"}
  - name: "c"
    root: file:///c
  - root: file:///d
    name: d
notifications: {webhook: "https://x.example"}
"""
    )
    assert ("partitions", "https://x.example") == (load_head(path).layout, load_head(path).notifications.webhook)
    slow = Stanzas(path).all().good
    assert ["a", "b", "c", "d"] == list(slow)
    assert slow == {name: Stanzas(path).find(name) for name in slow}
    anchored = (
        path.read_text()
        .replace("compaction: {messages: 7}", "compaction: &c {messages: 7}")
        .replace('"file://{here}/b"', '"file:///b", compaction: *c')
    )
    path.write_text(anchored)
    assert 7 == Stanzas(path).find("b").compaction.messages
    assert "partitions" == load_head(path).layout


def test_the_page_of_the_fleet_shows_the_worst_first_and_agrees_with_the_sensor(
    lakes: Lakes, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_health, "_PAGE", 1)
    lakes.add("large", commits=3)
    lakes.add("small", commits=0, snapshots={"daily": {"keep": 2}})
    lakes.add("missing", commits=None)
    lakes.add("mistake", commits=None, rot=1)
    told = failing(lakes.tick())
    for name in ("missing", "mistake"):
        lakes.run("verify", name)  # fails
    job = lakes.definitions.resolve_job_def("lakehouses_health")
    result = job.execute_in_process(instance=instance, raise_on_error=False)
    (event,) = result.get_asset_materialization_events()
    shown = event.materialization.metadata
    rows = [row.data for row in shown["worst"].records]  # type: ignore[union-attr]
    assert ["mistake", "missing", "large", "small"] == [row["lakehouse"] for row in rows]
    assert "there is no lakehouse at" in str(rows[1]["problem"])
    assert (4, 2, 1, 2) == tuple(
        shown[name].value for name in ("lakehouses", "unreachable", "over_threshold", "failed_within_a_week")
    )
    assert [False, True] == [row["last_failure"] is None for row in rows[1:3]]
    grown = [row.data for row in shown["growth"].records]  # type: ignore[union-attr]
    assert (True, True) == (grown[2]["kept_bytes"] > 0, grown[2]["newest_backup"] is None)
    again = {}
    for each in result.get_asset_check_evaluations():
        records = each.metadata["lakehouses"].records  # type: ignore[union-attr]
        again[each.check_name] = {str(row.data["lakehouse"]): str(row.data["why"]) for row in records}
    assert told == again
    assert {"missing", "mistake"} == again["reachable"].keys()
    assert {"small"} == again["snapshots_fresh"].keys()


def test_the_page_of_the_fleet_adds_up_what_maintenance_reclaimed_and_knows_the_age_of_backups(
    lakes: Lakes, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Per lakehouse, within a week; whose backup has never been made says so as its problem."""
    monkeypatch.setattr(fleet_health, "_PAGE", 2)
    target = (lakes.directory / "copy").as_uri()
    lake = lakes.add("a", backup={"target": target})
    assert lake is not None
    export.run(lake, target, export.Config(history=True, engine="local"))
    for name, size in (*(("version_expiration", 20) for _ in range(5)), ("orphan_removal", 23)):
        made = dg.AssetMaterialization(key(name), partition="a", metadata={"bytes_deleted": size})
        instance.report_runless_asset_event(made)
    job = lakes.definitions.resolve_job_def("lakehouses_health")
    (event,) = job.execute_in_process(instance=instance).get_asset_materialization_events()
    shown = event.materialization.metadata
    (row,) = [each.data for each in shown["growth"].records]  # type: ignore[union-attr]
    assert (123, 123) == (row["bytes_reclaimed_in_a_week"], shown["bytes_reclaimed_in_a_week"].value)
    made_at = lake.info().created_at
    assert (utc(made_at), made_at.timestamp()) == (
        row["newest_backup"],
        pytest.approx(shown["oldest_of_the_newest_backups"].value, abs=0.001),
    )


def test_the_page_of_the_fleet_is_made_at_the_first_tick(lakes: Lakes) -> None:
    """Not an hour later, when the schedule is due; and not again."""
    lakes.add("sales", commits=0)
    surveys = [[each for each in lakes.tick().run_requests or [] if each.job_name == "lakehouses_health"]]
    lakes.later(3600)
    surveys.append([each for each in lakes.tick().run_requests or [] if each.job_name == "lakehouses_health"])
    assert [1, 0] == [len(each) for each in surveys]


def test_queued_runs_of_a_lakehouse_that_left_the_fleet_are_cancelled_with_a_sentence(
    lakes: Lakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    lakes.add("sales", commits=0)
    lakes.add("gone", commits=0)
    lakes.tick()
    asked: list[dict[str, str]] = []
    runs = {}

    def queued(wanted: dg.RunsFilter, *args: Any, **more: Any) -> list[dg.DagsterRun]:
        if wanted.statuses != [dg.DagsterRunStatus.QUEUED]:
            return []
        asked.append(dict(wanted.tags))
        return [runs["gone"]]

    job = lakes.definitions.resolve_job_def("lakehouses_maintenance")
    runs["gone"] = lakes.instance.create_run_for_job(job, tags={"dagster/partition": "gone"})
    del lakes.stanzas["gone"]
    lakes.write()
    monkeypatch.setattr(lakes.instance, "get_runs", queued)
    lakes.tick()
    monkeypatch.undo()
    assert [{"dagster/partition": "gone"}] == asked
    found = lakes.instance.get_run_by_id(runs["gone"].run_id)
    assert found is not None
    assert dg.DagsterRunStatus.CANCELED == found.status


@pytest.mark.parametrize(
    ("name", "shown", "said"),
    [
        ({"nmae": "c"}, "lakehouse number 2", "name: required, but missing"),
        ({"name": 2026}, "lakehouse number 2", "name: input should be a valid string"),
        ({"name": False}, "lakehouse number 2", "name: input should be a valid string"),
        ({"name": "c c"}, "c c", "must be 1 to 63 letters"),
    ],
)
def test_a_stanza_without_a_name_is_seen_and_sent_and_takes_no_lakehouse_away(
    lakes: Lakes, instance: dg.DagsterInstance, webhook: Webhook, name: dict[str, Any], shown: str, said: str
) -> None:
    """Its partition and its queued runs vanished. Now ``reachable`` fails, and the webhook has the text."""
    lakes.add("a")
    lakes.add("c", commits=0)
    lakes.tick()
    stanza = lakes.stanzas.pop("c")
    del stanza["name"]
    lakes.stanzas["c"] = {**name, **stanza}
    lakes.write()
    lakes.told = webhook
    found = failing(lakes.tick())["reachable"]
    assert [shown] == list(found)
    assert said in found[shown]
    assert {"a", "c"} == set(instance.get_dynamic_partitions(FLEET))
    lakes.send(None)
    (message,) = webhook.messages
    assert said in message["text"]


def test_two_stanzas_of_one_name_are_the_mistake_of_that_lakehouse(lakes: Lakes, instance: dg.DagsterInstance) -> None:
    """The tick ended for all. No run works on one of the two by chance, either."""
    lakes.add("a")
    lakes.add("b", commits=0)
    lakes.stanzas["again"] = {**lakes.stanzas["b"], "root": "file:///elsewhere"}
    lakes.write()
    found = failing(lakes.tick())["reachable"]
    assert ["b"] == list(found)
    assert "two stanzas have it" in found["b"]
    assert {"a", "b"} == set(instance.get_dynamic_partitions(FLEET))
    assert not lakes.run("history", "b").success
    assert lakes.run("history", "a").success

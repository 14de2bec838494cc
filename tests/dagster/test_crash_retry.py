"""A scheduled maintenance whose run died without a verdict is asked for again; one that failed by itself is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.definitions.run_status_sensor_definition import RunStatusSensorCursor
from dagster._core.remote_origin import RegisteredCodeLocationOrigin, RemoteRepositoryOrigin
from dagster._core.scheduler.instigation import (
    InstigatorState,
    InstigatorStatus,
    InstigatorType,
    ScheduleInstigatorData,
)

from dagster_project import crash_retry
from dagster_project.config.file import Stanzas
from dagster_project.config.settings import LAKEHOUSE_TAG, LakehouseSettings, Notifications
from dagster_project.crash_retry import AT_MOST, OF_TAG, REPEAT_TAG
from dagster_project.factory import define_lakehouses, fleet
from dagster_project.notifications import failure_sensors
from dagster_project.processes.dead_runs import end_dead_runs
from dagster_project.schedule import DUE_TAG
from dagster_project.scope import FLEET, PARTITION_TAG
from dagster_project.supervised import with_advice
from tests.dagster.conftest import filled
from tests.dagster.test_notifications import failed_run
from tests.support.fleets import Webhook

SCHEDULED = {"dagster/schedule_name": "sales_eu_maintenance_schedule", LAKEHOUSE_TAG: "sales_eu"}
DUE = "2026-11-22T03:00:00+00:00"


def killed(definitions: dg.Definitions, instance: dg.DagsterInstance, tags: dict[str, str]) -> dg.DagsterRun:
    """Return a run of the maintenance that was at work when the machine went down, as it is found afterwards."""
    (job,) = [each for each in definitions.get_repository_def().get_all_jobs() if each.name.endswith("_maintenance")]
    run = instance.create_run_for_job(job, tags=tags, status=dg.DagsterRunStatus.STARTED)
    assert run.run_id in end_dead_runs(instance)
    return found(instance, run.run_id)


def found(instance: dg.DagsterInstance, run_id: str) -> dg.DagsterRun:
    run = instance.get_run_by_id(run_id)
    assert run is not None
    return run


def asked(
    definitions: dg.Definitions, instance: dg.DagsterInstance, run: dg.DagsterRun
) -> list[dg.RunRequest] | str | None:
    """Return what the sensor requests because of a failed run, or why it requests nothing."""
    sensor: Any = definitions.get_repository_def().get_sensor_def(crash_retry.NAME)
    result = sensor(context_of(crash_retry.NAME, instance, run))
    return result.skip_message if isinstance(result, dg.SkipReason) else [result]


def context_of(sensor: str, instance: dg.DagsterInstance, run: dg.DagsterRun) -> dg.RunStatusSensorContext:
    told = instance.get_records_for_run(run.run_id, of_type=dg.DagsterEventType.RUN_FAILURE).records
    event = told[-1].event_log_entry.dagster_event
    assert event is not None
    return dg.build_run_status_sensor_context(
        sensor_name=sensor, dagster_instance=instance, dagster_run=run, dagster_event=event
    )


def requested(definitions: dg.Definitions, instance: dg.DagsterInstance, run: dg.DagsterRun) -> dg.RunRequest:
    (request,) = asked(definitions, instance, run) or []
    assert isinstance(request, dg.RunRequest)
    return request


@pytest.fixture
def defs(settings: LakehouseSettings) -> dg.Definitions:
    return define_lakehouses((settings,))


def test_a_run_that_was_killed_is_asked_for_again_twice_and_then_no_more(
    defs: dg.Definitions, instance: dg.DagsterInstance
) -> None:
    tags, keys = dict(SCHEDULED), set()
    for number in range(1, AT_MOST + 1):
        run = killed(defs, instance, tags)
        request = requested(defs, instance, run)
        assert ("sales_eu_maintenance", str(number)) == (request.job_name, request.tags[REPEAT_TAG])
        assert (run.run_id, "sales_eu") == (request.tags[OF_TAG], request.tags[LAKEHOUSE_TAG])
        assert request == requested(defs, instance, run)  # whose key Dagster knows by then
        tags = dict(request.tags)
        keys.add(request.run_key)
    assert AT_MOST == len(keys)
    assert "died 3 times in a row" in str(asked(defs, instance, killed(defs, instance, tags)))


def test_in_a_fleet_the_same_lakehouse_is_asked_for_and_the_schedule_does_not_ask_too(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    path = tmp_path / "lakehouses.yaml"
    path.write_text("layout: partitions\nlakehouses: [{name: sales, root: file:///nowhere}]\n")
    definitions = fleet(Stanzas(path))
    instance.add_dynamic_partitions(FLEET, ["sales", "other"])
    tags = {**SCHEDULED, PARTITION_TAG: "sales", DUE_TAG: DUE}
    run = killed(definitions, instance, tags)
    killed(definitions, instance, {**tags, PARTITION_TAG: "other"})  # a later one, of another lakehouse
    request = requested(definitions, instance, run)
    assert ("sales", DUE) == (request.partition_key, request.tags[DUE_TAG])  # the schedule looks at the latter


def test_ticks_of_the_sensor_request_a_run_that_does_the_maintenance(tmp_path: Path, memory: str) -> None:
    """As Dagster evaluates them: with a cursor, and every failure once."""
    with dg.DagsterInstance.local_temp(memory) as instance:
        ticks_request_a_run(tmp_path, instance)


def ticks_request_a_run(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    lake = filled((tmp_path / "lake").as_uri())
    path, stanza = tmp_path / "lakehouses.yaml", f"{{name: sales, root: {lake.root}, compaction: {{engine: local}}}}"
    path.write_text(f"layout: partitions\nlakehouses: [{stanza}]\n")
    definitions = fleet(Stanzas(path))
    instance.add_dynamic_partitions(FLEET, ["sales"])
    repository = definitions.get_repository_def()
    sensor, cursor = repository.get_sensor_def(crash_retry.NAME), None

    def tick() -> list[dg.RunRequest]:
        nonlocal cursor
        with dg.SensorEvaluationContext(instance.get_ref(), cursor=cursor, repository_def=repository) as context:
            result = sensor.evaluate_tick(context)
        cursor = result.cursor
        return list(result.run_requests or [])

    assert [] == tick()
    killed(definitions, instance, {**SCHEDULED, PARTITION_TAG: "sales", DUE_TAG: DUE})
    (request,) = tick()
    assert [] == tick()
    done = definitions.resolve_job_def(str(request.job_name)).execute_in_process(
        instance=instance, partition_key=request.partition_key, tags=request.tags, raise_on_error=False
    )
    assert 0 == lake.refresh().stats().messages
    assert "sales" == done.dagster_run.tags[PARTITION_TAG]
    assert "1" == done.dagster_run.tags[REPEAT_TAG]


def test_a_lakehouse_that_was_removed_meanwhile_is_not_asked_for_and_holds_up_nobody(
    tmp_path: Path, memory: str
) -> None:
    """Dagster refuses a request for a partition that is gone, and would evaluate the same failure for ever."""
    path = tmp_path / "lakehouses.yaml"
    path.write_text("layout: partitions\nlakehouses: [{name: sales, root: file:///nowhere}]\n")
    definitions = fleet(Stanzas(path))
    repository = definitions.get_repository_def()
    sensor = repository.get_sensor_def(crash_retry.NAME)
    with dg.DagsterInstance.local_temp(memory) as instance:
        instance.add_dynamic_partitions(FLEET, ["sales", "gone"])
        cursor, keys, whys = None, list[str | None](), list[str | None]()
        for name in ("", "gone", "sales"):
            if name:
                killed(definitions, instance, {**SCHEDULED, PARTITION_TAG: name, DUE_TAG: DUE})
        instance.delete_dynamic_partition(FLEET, "gone")
        cursor = RunStatusSensorCursor(record_id=0).to_json()
        for _ in range(2):
            with dg.SensorEvaluationContext(instance.get_ref(), cursor=cursor, repository_def=repository) as context:
                result = sensor.evaluate_tick(context)
            cursor = result.cursor
            keys += [request.partition_key for request in result.run_requests or []]
            whys.append(result.skip_message)
    assert ["sales"] == keys
    assert "is not in the fleet any more" in str(whys[0])


def test_a_run_whose_process_was_told_to_end_is_asked_for_again(
    defs: dg.Definitions, instance: dg.DagsterInstance
) -> None:
    """A machine that is restarted tells first; the step that was at work then says that it was cancelled."""

    @dg.op
    def interrupted() -> None:
        with with_advice():
            raise dg.DagsterExecutionInterruptedError

    assert isinstance(asked(defs, instance, failed(interrupted, instance)), list)


def test_what_failed_by_itself_is_not_asked_for_again(
    defs: dg.Definitions, settings: LakehouseSettings, instance: dg.DagsterInstance
) -> None:
    @dg.op
    def refused() -> None:
        raise dg.Failure("there is no lakehouse", allow_retries=False)

    assert "failed by itself" in str(asked(defs, instance, failed(refused, instance)))
    by_hand = failed_run(settings, instance)
    assert "was not scheduled" in str(asked(defs, instance, by_hand.dagster_run))


def test_a_run_that_exceeded_its_maximum_runtime_is_not_asked_for_again(
    defs: dg.Definitions, instance: dg.DagsterInstance
) -> None:
    """As Dagster's monitoring ends it: its process may be killed, and no step says anything."""
    job = defs.resolve_job_def("sales_eu_maintenance")
    run = instance.create_run_for_job(job, tags=SCHEDULED, status=dg.DagsterRunStatus.STARTED)
    instance.report_run_canceling(run, "Canceling due to exceeding maximum runtime of 3600 seconds.")
    instance.report_run_failed(run, "Exceeded maximum runtime of 3600 seconds.")
    assert "failed by itself" in str(asked(defs, instance, found(instance, run.run_id)))


def failed(op: Any, instance: dg.DagsterInstance) -> dg.DagsterRun:
    """Return a scheduled run of one step, which failed."""

    @dg.job(tags=SCHEDULED)
    def sales_eu_maintenance() -> None:
        op()

    result = sales_eu_maintenance.execute_in_process(instance=instance, raise_on_error=False)
    assert not result.success
    return found(instance, result.run_id)


def test_whoever_was_quicker_is_not_joined(defs: dg.Definitions, instance: dg.DagsterInstance) -> None:
    run = killed(defs, instance, SCHEDULED)
    later = killed(defs, instance, {LAKEHOUSE_TAG: "sales_eu"})
    assert f"run {later.run_id} has been requested since" in str(asked(defs, instance, run))


def test_a_schedule_that_was_switched_off_is_obeyed(defs: dg.Definitions, memory: str) -> None:
    """Whoever switches maintenance off until something is mended does not expect a run half a minute later."""
    with dg.DagsterInstance.local_temp(memory) as instance:
        first = killed(defs, instance, SCHEDULED)
        second = killed(defs, instance, dict(requested(defs, instance, first).tags))
        switch_off(instance, "other_schedule")
        assert requested(defs, instance, second)
        switch_off(instance, SCHEDULED["dagster/schedule_name"])
        for died in (first, second):
            assert "its schedule has been switched off" in str(asked(defs, instance, died))


def switch_off(instance: dg.DagsterInstance, schedule: str) -> None:
    """Note what the switch of a schedule in the browser notes."""
    origin = RemoteRepositoryOrigin(RegisteredCodeLocationOrigin("here"), "__repository__")
    stopped = (InstigatorType.SCHEDULE, InstigatorStatus.STOPPED, ScheduleInstigatorData("0 3 * * *"))
    instance.add_instigator_state(InstigatorState(origin.get_instigator_origin(schedule), *stopped))


def test_what_died_long_ago_is_left_to_the_schedule(
    defs: dg.Definitions, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = killed(defs, instance, SCHEDULED)
    now = crash_retry.time.time
    monkeypatch.setattr(crash_retry.time, "time", lambda: now() + 7 * 3600)
    assert "more than 6 hours ago" in str(asked(defs, instance, run))


def test_the_webhook_hears_of_the_first_death_and_of_the_last(
    webhook: Webhook, defs: dg.Definitions, instance: dg.DagsterInstance
) -> None:
    (sensor,) = failure_sensors(Notifications.model_validate({"webhook": webhook.url}))
    tell: Callable[[Any], object] = sensor
    tags, texts = dict(SCHEDULED), []
    for _ in range(AT_MOST + 1):
        run = killed(defs, instance, tags)
        tell(context_of("run_failures", instance, run).for_run_failure())
        texts.append([each["text"] for each in webhook.messages])
        tags = {**SCHEDULED, REPEAT_TAG: str(int(tags.get(REPEAT_TAG, "0")) + 1), OF_TAG: run.run_id}
    assert [1, 1, 2] == [len(each) for each in texts]
    first, last = texts[-1]
    assert "is repeated (1 of 2 times at the most)" in first
    assert "died 3 times in a row, and is not repeated any more" in last
    assert [True, False] == [each["repeated"] for each in webhook.messages]

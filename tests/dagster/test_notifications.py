"""Failed runs are told to a webhook, with their error and without secrets."""

from __future__ import annotations

import json
from typing import Any

import dagster as dg
import pytest
from dagster._core.definitions.sensor_definition import SensorType
from dagster._core.remote_origin import RegisteredCodeLocationOrigin, RemoteRepositoryOrigin
from dagster._core.scheduler.instigation import (
    InstigatorState,
    InstigatorStatus,
    InstigatorType,
    SensorInstigatorData,
)

from dagster_project import assets, check_alerts, checks, notifications
from dagster_project.config.settings import LakehouseSettings, Notifications
from dagster_project.factory import define_lakehouses
from dagster_project.notifications import failure_sensors
from tests.dagster.test_assets import node_file
from tests.support.fleets import Webhook
from trinitylake_core import Lakehouse, StorageError

POLLS = "sales_eu_compaction_sensor"


def failed_run(settings: LakehouseSettings, instance: dg.DagsterInstance) -> dg.ExecuteInProcessResult:
    """Return a run that fails because there is no lakehouse."""
    nowhere = settings.model_copy(update={"root": settings.root + "nothing/"})
    job = define_lakehouses((nowhere,)).resolve_job_def("sales_eu_maintenance")
    return job.execute_in_process(instance=instance, raise_on_error=False)


def tell(
    told: Notifications, result: dg.ExecuteInProcessResult, instance: dg.DagsterInstance, **pages: dg.AssetKey
) -> None:
    """Let the failure sensor see a run."""
    (sensor,) = failure_sensors(told, pages=pages)
    failure = next(event for event in result.all_events if event.event_type_value == "PIPELINE_FAILURE")
    context = dg.build_run_status_sensor_context(
        sensor_name="run_failures", dagster_instance=instance, dagster_run=result.dagster_run, dagster_event=failure
    ).for_run_failure()
    sensor(context)


def test_a_failed_run_is_told_with_its_error_unless_a_check_says_the_same(
    webhook: Webhook, settings: LakehouseSettings, memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The nightly run was a message beside that of ``reachable``. Where nobody polls, it is the only one."""
    monkeypatch.setenv("TL_WEBHOOK", webhook.url)
    told = Notifications.model_validate({"webhook": {"env": "TL_WEBHOOK"}, "ui": "https://dagster.example.com/"})
    with dg.DagsterInstance.local_temp(memory) as instance:
        result = failed_run(settings, instance)
        for status, sent in ((InstigatorStatus.RUNNING, 0), (InstigatorStatus.STOPPED, 1)):
            keep_state(instance, POLLS, status)
            tell(told, result, instance)
            assert sent == len(webhook.messages)
    (message,) = webhook.messages
    link = f"https://dagster.example.com/runs/{result.run_id}"
    assert ("error", link, True) == (message["severity"], message["url"], link in message["text"])
    assert ("sales_eu", "sales_eu_maintenance", result.run_id) == tuple(
        message[name] for name in ("lakehouse", "job", "run_id")
    )
    assert "there is no lakehouse at" in message["text"]


def test_a_run_that_lacks_a_secret_is_told_though_the_sensor_has_it(
    webhook: Webhook, settings: LakehouseSettings, memory: str
) -> None:
    """The sensor opens the lakehouse with what its own process has, so ``reachable`` passes."""
    told = Notifications.model_validate({"webhook": webhook.url})
    secret = {"storage_options": {"secret": {"env": "TL_ONLY_THE_SENSOR_HAS_IT"}}}
    with dg.DagsterInstance.local_temp(memory) as instance:
        keep_state(instance, POLLS, InstigatorStatus.RUNNING)
        tell(told, failed_run(settings.model_copy(update=secret), instance), instance)
    assert ["TL_ONLY_THE_SENSOR_HAS_IT is not set" in each["text"] for each in webhook.messages] == [True]


def test_a_run_is_left_out_only_while_a_message_says_that_its_storage_fails(
    webhook: Webhook, settings: LakehouseSettings, memory: str
) -> None:
    """What died in an outage of a minute was in no message: neither the run, nor the storage."""
    told = Notifications.model_validate({"webhook": webhook.url})
    page = assets.key(settings, assets.HEALTH)
    repository = define_lakehouses((settings,), told).get_repository_def()
    down = checks.evaluate_unreachable(checks.trouble_of(StorageError("no answer"), settings))
    cursor: str | None = None
    with dg.DagsterInstance.local_temp(memory) as instance:
        result = failed_run(settings, instance)
        keep_state(instance, POLLS, InstigatorStatus.STOPPED)
        for each, sent in ((down, "run"), (down, "storage"), (checks.evaluate_reachable(7), "run")):
            webhook.received.clear()
            instance.report_runless_asset_event(checks.evaluation(page, each))
            cursor = tick_of(repository, instance, cursor, seconds=100.0)
            keep_cursor(instance, cursor)
            tell(told, result, instance, sales_eu=page)
            errors = [message for message in webhook.messages if message["severity"] == "error"]
            assert [sent == "run"] == ["run_id" in message for message in errors]


def test_a_failed_gate_is_one_message_with_the_remedy_and_one_when_it_is_over(
    webhook: Webhook, local: LakehouseSettings, lake: Lakehouse, memory: str
) -> None:
    """The run was a message beside that of the check, and advised to roll back before `mend` was tried."""
    told = Notifications.model_validate({"webhook": webhook.url})
    defs = define_lakehouses((local,), told)
    job, repository = defs.resolve_job_def("sales_eu_maintenance"), defs.get_repository_def()
    health, broken = assets.key(local, assets.HEALTH), node_file(lake)
    cursor: str | None = None
    with dg.DagsterInstance.local_temp(memory) as instance:
        for data, sent in ((b"garbage", ["error"]), (broken.read_bytes(), ["error", "info"])):
            broken.write_bytes(data)
            result = job.execute_in_process(instance=instance, raise_on_error=False, asset_selection=[health])
            if not result.success:
                tell(told, result, instance)
            cursor = tick_of(repository, instance, cursor, seconds=0.0)
            assert sent == [message["severity"] for message in webhook.messages]
    first = webhook.messages[0]
    assert ("integrity", True) == (first["check"], broken.name in first["text"])
    assert "Run the job `mend` with the backup as `source`" in first["text"]


def tick_of(
    repository: dg.RepositoryDefinition, instance: dg.DagsterInstance, cursor: str | None, *, seconds: float
) -> str:
    """Evaluate the sensor of changes of a code location; return its cursor as if that was so many seconds ago."""

    def age(part: Any) -> Any:
        if isinstance(part, dict):
            return {name: age(value) for name, value in part.items()}
        return part - seconds if isinstance(part, float) else part

    context = dg.build_sensor_context(instance=instance, cursor=cursor, repository_def=repository)
    result: Any = repository.get_sensor_def(check_alerts.NAME)(context)
    return json.dumps(age(json.loads(result.cursor)))


def keep_cursor(instance: dg.DagsterInstance, cursor: str) -> None:
    """Keep the cursor of the sensor of changes, as Dagster's daemon does after a tick."""
    keep_state(instance, check_alerts.NAME, InstigatorStatus.RUNNING, cursor)


def keep_state(instance: dg.DagsterInstance, name: str, status: InstigatorStatus, cursor: str | None = None) -> None:
    """Keep the state of a sensor, as Dagster's daemon does."""
    origin = RemoteRepositoryOrigin(RegisteredCodeLocationOrigin("here"), "__repository__")
    data = SensorInstigatorData(cursor=cursor, sensor_type=SensorType.STANDARD)
    sensor = origin.get_instigator_origin(name)
    state = InstigatorState(sensor, InstigatorType.SENSOR, status, data)
    is_known = instance.get_instigator_state(sensor.get_id(), sensor.get_selector().get_id())
    keep = instance.update_instigator_state if is_known else instance.add_instigator_state
    keep(state)


def test_a_webhook_that_refuses_is_an_error_without_its_address(webhook: Webhook) -> None:
    webhook.answer = lambda _: 500
    with pytest.raises(OSError, match="did not accept the message") as caught:
        notifications.post(webhook.url, {})
    assert "secret-path" not in str(caught.value)


def test_without_a_webhook_there_is_no_sensor() -> None:
    assert [] == failure_sensors(Notifications())


@pytest.mark.parametrize("url", ["ftp://x", "file:///etc/passwd", 5])
def test_a_webhook_is_a_url(url: object) -> None:
    with pytest.raises(ValueError, match="must be a URL that starts with https"):
        Notifications.model_validate({"webhook": url})

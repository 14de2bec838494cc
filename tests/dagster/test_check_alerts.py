"""What begins to fail, or ceases to, is sent to the webhook once: checks, freshness, and runs that wait."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import dagster as dg
import pytest
from dagster._core.definitions.freshness import FreshnessState, FreshnessStateChange
from dagster._core.remote_origin import RegisteredCodeLocationOrigin, RemoteRepositoryOrigin

from dagster_project import assets, check_alerts, checks, fleet_health
from dagster_project.config.file import Stanzas
from dagster_project.config.settings import LAKEHOUSE_TAG, LakehouseSettings, Notifications
from dagster_project.factory import define_lakehouses, fleet
from dagster_project.notifications import find_reported_storage
from dagster_project.processes.dead_runs import free_slots_of_ended_runs
from dagster_project.scope import FLEET, PARTITION_TAG
from tests.dagster.test_notifications import keep_cursor, tick_of
from tests.support.fleets import Webhook
from trinitylake_core import NotALakehouse, StorageDenied, StorageError, TrinityLakeError, UnsafeStorage

BACKUP = dg.AssetKey(["lakehouse", "sales", "backup"])
VERIFIED = "backup_verified"
POOL = "lakehouse_sales"


@pytest.fixture
def instance(memory: str) -> Iterator[dg.DagsterInstance]:
    """Return an instance whose storage knows pools, which one in memory does not."""
    with dg.DagsterInstance.local_temp(memory) as local:
        yield local


def definitions(*checks: str, passed: bool = True, severity: str = "ERROR") -> dg.Definitions:
    """Return an asset with checks, whose result is given."""

    def evaluate() -> dg.AssetCheckResult:
        return dg.AssetCheckResult(
            passed=passed, severity=dg.AssetCheckSeverity[severity], description="it breaks 2 invariants"
        )

    @dg.asset(key=BACKUP)
    def back_up() -> None:
        """Do nothing."""

    made = [dg.asset_check(asset=BACKUP, name=each)(evaluate) for each in checks]
    return dg.Definitions(assets=[back_up], asset_checks=made)


def evaluated(instance: dg.DagsterInstance, *, passed: bool, severity: str = "ERROR", check: str = VERIFIED) -> None:
    """Evaluate a check in a run."""
    job = definitions(check, passed=passed, severity=severity).get_repository_def().get_job("__ASSET_JOB")
    subset = job.get_subset(asset_selection=set(), asset_check_selection={dg.AssetCheckKey(BACKUP, check)})
    assert subset.execute_in_process(instance=instance).success


def tick(webhook: Webhook, instance: dg.DagsterInstance, cursor: str | None, *checks: str) -> str:
    """Evaluate the sensor over definitions that have the checks."""
    notifications = Notifications.model_validate({"webhook": webhook.url, "ui": "https://dagster.local"})
    (sensor,) = check_alerts.check_sensors(notifications)
    repository = definitions(*(checks or [VERIFIED])).get_repository_def()
    context = dg.build_sensor_context(instance=instance, cursor=cursor, repository_def=repository)
    result: Any = sensor(context)
    return str(result.cursor)


def test_a_check_that_fails_is_sent_once_and_once_when_it_passes_again(
    webhook: Webhook, instance: dg.DagsterInstance
) -> None:
    cursor = tick(webhook, instance, None)
    assert [] == webhook.messages
    evaluated(instance, passed=False)
    cursor = tick(webhook, instance, cursor)
    cursor = tick(webhook, instance, cursor)
    evaluated(instance, passed=False)
    cursor = tick(webhook, instance, cursor)
    (message,) = webhook.messages
    assert ("error", "backup_verified") == (message["severity"], message["check"])
    assert "backup_verified of lakehouse/sales: it breaks 2 invariants" == message["text"]
    evaluated(instance, passed=True)
    cursor = tick(webhook, instance, tick(webhook, instance, cursor))
    assert ["error", "info"] == [each["severity"] for each in webhook.messages]
    assert "does not fail any more" in webhook.messages[-1]["text"]


def test_a_message_links_to_the_check_that_failed(webhook: Webhook, instance: dg.DagsterInstance) -> None:
    evaluated(instance, passed=False)
    tick(webhook, instance, None)
    (message,) = webhook.messages
    page = "https://dagster.local/assets/lakehouse/sales/backup?view=checks&checkDetail=backup_verified"
    assert page == message["url"]


def test_an_asset_that_becomes_overdue_is_sent_once(webhook: Webhook, instance: dg.DagsterInstance) -> None:
    """As Dagster's daemon judges it. On the first day nothing is late, and no snapshot is missing."""
    began = tick(webhook, instance, None)
    cursor = began.replace(json.loads(began)["since"], "0")
    states: tuple[tuple[FreshnessState, list[str]], ...] = (
        (FreshnessState.WARN, []),
        (FreshnessState.FAIL, ["warning", "error"]),
        (FreshnessState.FAIL, ["warning", "error"]),
        (FreshnessState.PASS, ["warning", "error", "info", "info"]),
    )
    for state, severities in states:
        before = instance.event_log_storage.get_freshness_state_records([BACKUP])
        change = FreshnessStateChange(
            key=BACKUP,
            new_state=state,
            previous_state=before[BACKUP].freshness_state if before else FreshnessState.UNKNOWN,
            state_change_timestamp=time.time(),
        )
        instance.report_runless_asset_event(change)
        evaluated(instance, passed=state is not FreshnessState.FAIL, severity="WARN", check=checks.SNAPSHOTS_FRESH)
        tick(webhook, instance, began, checks.SNAPSHOTS_FRESH)
        cursor = tick(webhook, instance, cursor, checks.SNAPSHOTS_FRESH)
        assert severities == [each["severity"] for each in webhook.messages]
    assert "lakehouse/sales/backup is overdue" in webhook.messages[1]["text"]


def test_what_the_webhook_refuses_is_sent_again(webhook: Webhook, instance: dg.DagsterInstance) -> None:
    evaluated(instance, passed=False)
    webhook.answer = lambda _: 500
    cursor = tick(webhook, instance, None)
    webhook.answer = lambda _: 200
    webhook.received.clear()
    tick(webhook, instance, cursor)
    assert 1 == len(webhook.messages)


def test_a_warning_is_sent_as_a_warning_and_again_when_it_is_an_error(
    webhook: Webhook, instance: dg.DagsterInstance
) -> None:
    """After a snapshot the newest version was damaged, too, and nobody was told; after a repair of that, once more."""
    cursor = None
    for severity in ("WARN", "WARN", "ERROR", "ERROR", "WARN", "ERROR"):
        evaluated(instance, passed=False, severity=severity)
        cursor = tick(webhook, instance, cursor)
    assert ["warning", "error", "error"] == [each["severity"] for each in webhook.messages]
    evaluated(instance, passed=False, severity="WARN")
    cursor = tick(webhook, instance, cursor)
    evaluated(instance, passed=True)
    tick(webhook, instance, cursor)
    assert "backup_verified of lakehouse/sales: it does not fail any more" == webhook.messages[-1]["text"]


def test_what_a_backup_warned_of_with_its_lakehouse_does_not_begin_where_that_ends(
    webhook: Webhook, instance: dg.DagsterInstance
) -> None:
    """The nightly run proves the lakehouse first. If the backup warns again after that, it is sent."""
    cursor = None
    for check, passed, sent in (
        (assets.INTEGRITY, False, ["integrity", "warning"]),
        (VERIFIED, False, []),
        (assets.INTEGRITY, True, ["integrity", "info"]),
        (VERIFIED, False, [VERIFIED, "warning"]),
        (assets.INTEGRITY, False, ["integrity", "warning"]),
        (assets.INTEGRITY, True, ["integrity", "info"]),
        (VERIFIED, True, [VERIFIED, "info"]),
    ):
        webhook.received.clear()
        evaluated(instance, passed=passed, severity="WARN", check=check)
        for _ in range(2):
            cursor = tick(webhook, instance, cursor, assets.INTEGRITY, VERIFIED)
        assert sent == [word for each in webhook.messages for word in (each["text"].split()[0], each["severity"])]


@pytest.mark.parametrize(("severity", "sent"), [("ERROR", ["error"]), ("WARN", [])])
def test_after_an_upgrade_what_was_known_to_fail_is_sent_once_as_an_error(
    webhook: Webhook, instance: dg.DagsterInstance, severity: str, sent: list[str]
) -> None:
    """An older release noted no severity: what it had sent as a warning, and is an error by now, was sent to nobody."""
    evaluated(instance, passed=False, severity="WARN")
    cursor = tick(webhook, instance, None)
    assert cursor is not None
    webhook.received.clear()
    evaluated(instance, passed=False, severity=severity)
    tick(webhook, instance, tick(webhook, instance, cursor.replace(" (warning)", "")))
    assert sent == [each["severity"] for each in webhook.messages]


STANZAS = (
    {"name": "sales", "root": "s3://lakes/sales", "storage_options": {"endpoint_url": "http://down.example:9000"}},
    {"name": "hr", "root": "s3://lakes/hr", "storage_options": {"endpoint_url": "http://down.example:9000"}},
    {"name": "web", "root": "s3://lakes/web", "storage_options": {"endpoint_url": "http://down.example:9000"}},
    {"name": "logs", "root": "file:///nowhere/logs"},
)
DOWN = StorageError("no answer")


@pytest.mark.parametrize("layout", ["assets", "partitions"])
def test_one_dead_endpoint_is_one_message_with_its_lakehouses(
    layout: str, webhook: Webhook, instance: dg.DagsterInstance
) -> None:
    """It was one for each. They fail one after the other, so it is sent when it has lasted; its key closes it.

    It is sent again for one that fails later: a lakehouse that has failed for weeks hid all others of its storage.
    """
    settings = tuple(LakehouseSettings.model_validate(each) for each in STANZAS)
    told = Notifications.model_validate({"webhook": webhook.url})
    in_fleet = layout == "partitions"
    definitions = fleet(Stanzas(), told) if in_fleet else define_lakehouses(settings, told)
    repository = definitions.get_repository_def()
    cursor: str | None = None
    keys: set[str] = set()
    nowhere = NotALakehouse("there is none")
    for failing, sent, covered in (
        ({"sales": DOWN, "logs": nowhere}, [["logs"]], []),
        ({"sales": DOWN, "logs": nowhere, "hr": DOWN, "web": DOWN}, [["hr", "sales", "web"]], ["sales", "hr", "web"]),
        ({"sales": DOWN, "logs": nowhere, "web": DOWN}, [], ["sales", "web"]),
        ({"sales": DOWN, "logs": nowhere, "hr": DOWN}, [], ["sales"]),
        ({"sales": DOWN, "logs": nowhere, "hr": DOWN}, [["hr", "sales"]], ["sales", "hr"]),
        ({"sales": DOWN, "logs": nowhere, "hr": DOWN}, [], ["sales", "hr"]),
        ({}, None, []),
    ):
        webhook.received.clear()
        report_unreachable(instance, settings, failing, in_fleet=in_fleet)
        cursor = tick_of(repository, instance, cursor, seconds=100.0)
        keep_cursor(instance, cursor)
        assert covered == [each.name for each in settings if is_left_out(instance, each, in_fleet=in_fleet)]
        if sent is not None:
            assert sent == [each["lakehouses"] for each in webhook.messages]
            keys |= {each["key"] for each in webhook.messages}
    about = "reachable of 3 lakehouses at down.example:9000: hr, sales, web: it does not fail any more"
    assert {about, "reachable of logs: it does not fail any more"} == {each["text"] for each in webhook.messages}
    assert keys == {each["key"] for each in webhook.messages}
    assert ["hr", "sales", "web"] in [each["lakehouses"] for each in webhook.messages]


def is_left_out(instance: dg.DagsterInstance, settings: LakehouseSettings, *, in_fleet: bool) -> bool:
    """Return whether a failed run of a lakehouse is not sent, because the failure of its storage was."""
    tag = PARTITION_TAG if in_fleet else LAKEHOUSE_TAG
    run = dg.DagsterRun(job_name="maintenance", tags={tag: settings.name})
    pages = {} if in_fleet else {settings.slug: assets.key(settings, assets.HEALTH)}
    return bool(find_reported_storage(instance, run, pages))


def test_a_storage_that_comes_and_goes_is_one_message(webhook: Webhook, instance: dg.DagsterInstance) -> None:
    """It was none: each return began the time anew for which it has to last."""
    settings = (LakehouseSettings.model_validate(STANZAS[0]),)
    told = Notifications.model_validate({"webhook": webhook.url})
    repository = define_lakehouses(settings, told).get_repository_def()
    cursor: str | None = None
    for number in range(16):
        is_away = number % 3 != 2 and number < 9
        report_unreachable(instance, settings, {"sales": DOWN} if is_away else {}, in_fleet=False)
        cursor = tick_of(repository, instance, cursor, seconds=30.0)
    assert [("error", ["sales"]), ("info", ["sales"])] == [
        (each["severity"], each["lakehouses"]) for each in webhook.messages
    ]


@pytest.mark.parametrize("of_one", [StorageDenied("no access"), UnsafeStorage("no conditional writes")], ids=type)
def test_what_one_lakehouse_is_refused_is_no_failure_of_its_storage(
    of_one: StorageError, webhook: Webhook, instance: dg.DagsterInstance
) -> None:
    """It was: an outage of the storage was no change as long as one lakehouse there had no access."""
    settings = tuple(LakehouseSettings.model_validate(each) for each in STANZAS[:2])
    told = Notifications.model_validate({"webhook": webhook.url})
    repository = define_lakehouses(settings, told).get_repository_def()
    cursor: str | None = None
    for failing in ({"sales": of_one}, {"sales": of_one, "hr": DOWN}, {"sales": of_one, "hr": DOWN}):
        report_unreachable(instance, settings, failing, in_fleet=False)
        cursor = tick_of(repository, instance, cursor, seconds=100.0)
    keys = {each["key"]: each["lakehouses"] for each in webhook.messages}
    assert {"reachable lakehouse sales": ["sales"], "reachable storage down.example:9000": ["hr"]} == keys


def report_unreachable(
    instance: dg.DagsterInstance,
    settings: Sequence[LakehouseSettings],
    failing: Mapping[str, TrinityLakeError],
    *,
    in_fleet: bool,
) -> None:
    """Record which lakehouses can be opened, as a tick of the sensor does."""
    results = {}
    for each in settings:
        error = failing.get(each.name)
        well = checks.evaluate_reachable(7)
        results[each.name] = checks.evaluate_unreachable(checks.trouble_of(error, each)) if error else well
        if not in_fleet:
            key = assets.key(each, assets.HEALTH)
            instance.report_runless_asset_event(checks.evaluation(key, results[each.name]))
    if in_fleet:
        page = dg.AssetKey([FLEET, fleet_health.NAME])
        reasons = {name: fleet_health.reason_of(results[name]) for name in failing}
        found = fleet_health.evaluate_fleet(page, checks.REACHABLE, reasons, len(settings))
        instance.report_runless_asset_event(checks.evaluation(page, found))


def test_each_lakehouse_of_a_large_fleet_is_known_to_fail(instance: dg.DagsterInstance) -> None:
    """A page shows 500 of them; what is sent, and what is not tried, are about all."""
    page = dg.AssetKey([FLEET, fleet_health.NAME])
    reasons = {f"lake{number:04}": fleet_health.Reason(f"why {number}", f"s{number % 2}") for number in range(1200)}
    result = fleet_health.evaluate_fleet(page, checks.REACHABLE, reasons, len(reasons))
    instance.report_runless_asset_event(checks.evaluation(page, result))
    assert reasons == fleet_health.recorded_reasons(instance, page, checks.REACHABLE)


def test_a_run_that_waits_for_an_hour_is_sent(instance: dg.DagsterInstance) -> None:
    """Whether it waits in the queue, or its step for a pool that another run holds."""
    storage = instance.event_log_storage
    storage.set_concurrency_slots(POOL, 1)
    queued, holder, waiter = (new_run(instance, dg.DagsterRunStatus.STARTED) for _ in range(3))
    instance.report_dagster_event(dg.DagsterEvent("PIPELINE_ENQUEUED", "nothing"), queued.run_id)
    for run in (holder, waiter):
        storage.claim_concurrency_slot(POOL, run.run_id, "step")
    for seconds, waiting in ((60, set()), (4000, {f"run {queued.run_id}", f"run {waiter.run_id}"})):
        survey = check_alerts.Survey()
        check_alerts.add_waiting_runs(survey, instance, time.time() + seconds)
        assert waiting == survey.failing.keys()
    assert holder.run_id in survey.failing[f"run {waiter.run_id}"].text


def test_the_slot_of_a_run_that_has_ended_is_freed_and_no_other(instance: dg.DagsterInstance) -> None:
    storage = instance.event_log_storage
    storage.set_concurrency_slots(POOL, 2)
    dead, alive = (new_run(instance, each) for each in (dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.STARTED))
    for run in (dead, alive):
        storage.claim_concurrency_slot(POOL, run.run_id, "step")
    assert [dead.run_id] == free_slots_of_ended_runs(instance, POOL)
    assert {alive.run_id} == storage.get_concurrency_info(POOL).active_run_ids


@pytest.mark.parametrize("check", sorted(check_alerts._NOT_SENT))
def test_what_others_send_or_mend_is_not_sent(check: str, webhook: Webhook, instance: dg.DagsterInstance) -> None:
    evaluated(instance, passed=False, check=check)
    tick(webhook, instance, None, check)
    assert [] == webhook.messages


def new_run(instance: dg.DagsterInstance, status: dg.DagsterRunStatus) -> dg.DagsterRun:
    @dg.job
    def nothing() -> None:
        """Do nothing."""

    repository = RemoteRepositoryOrigin(RegisteredCodeLocationOrigin("here"), "__repository__")
    return instance.create_run_for_job(nothing, status=status, remote_job_origin=repository.get_job_origin("nothing"))

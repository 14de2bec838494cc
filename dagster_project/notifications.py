"""Reports failed runs to a webhook that takes JSON, as chat services do."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import dagster as dg

from dagster_project import crash_retry, fleet_health
from dagster_project.checks import REACHABLE
from dagster_project.config.settings import LAKEHOUSE_TAG, Notifications, checked_url
from dagster_project.fleet_health import Reason
from dagster_project.scope import FLEET, PARTITION_TAG, last_evaluation, sensor_of
from dagster_project.supervised import SENT_AS
from pipelines.source.lakehouses import look_up
from pipelines.webhook import post_json

CHECK_CHANGES: Final = "check_changes"
"""The sensor that sends what fails besides runs, see :mod:`dagster_project.check_alerts`."""
TOLD: Final = "told"
"""The key of its cursor with the lakehouses that it has sent, by the problem of their storage."""
_MAX_ERROR: Final = 2000
ERROR: Final = "error"
WARNING: Final = "warning"
INFO: Final = "info"


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something that fails now.

    Attributes:
        about: what fails, in a few words.
        severity: ``error`` or ``warning``.
        text: why, in a sentence.
        page: the path of its page in Dagster.
        check: the name of the check, where it is one.
        lakehouses: those that cannot be opened, where that is the problem.
        settles: it may end by itself, and more may follow of the same cause: it is sent when it has lasted.
        run_id: the run that evaluated the check.
    """

    about: str
    severity: str
    text: str
    page: str
    check: str | None = None
    lakehouses: Sequence[str] = ()
    settles: bool = False
    run_id: str = ""


def failure_sensors(
    notifications: Notifications,
    *,
    only_ours: bool = False,
    pages: Mapping[str, dg.AssetKey] = MappingProxyType({}),
) -> list[dg.SensorDefinition]:
    """Return the sensor that reports failed runs to the webhook, if there is one.

    ``only_ours``: not those of other people's jobs in the same code location. ``pages``: the assets that have the check
    ``reachable``, by the slug of their lakehouse.
    """
    if notifications.webhook is None:
        return []

    @dg.run_failure_sensor(
        name="run_failures",
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Reports every failed run, with its error, to the webhook of lakehouses.yaml. Of a maintenance "
        "that dies and is repeated the first failure, and the last one. None while a storage fails, "
        "so that its lakehouse cannot be opened, once the sensor check_changes has sent that. None that failed only "
        "at gates, or because its lakehouse cannot be opened until a person acts: the sensor check_changes sends that "
        "the check fails.",
    )
    def send(context: dg.RunFailureSensorContext) -> None:
        run = context.dagster_run
        if only_ours and not _is_ours(run):
            return
        found = crash_retry.outlook(context.instance, run)
        if found.wanted and found.repeats:
            return
        if is_sent_by_checks(context.instance, run, context.get_step_failure_events()):
            context.log.info("not sent: checks say what failed, and `check_changes` sends those")
            return
        storage = find_reported_storage(context.instance, run, pages)
        if storage:
            context.log.info("not sent: %s fails, and `check_changes` has sent that for all its lakehouses", storage)
            return
        url = checked_url(look_up(notifications.webhook))
        post(url, message(context, found, notifications))

    return [send]


def is_sent_by_checks(instance: dg.DagsterInstance, run: dg.DagsterRun, failures: Sequence[dg.DagsterEvent]) -> bool:
    """Return whether checks say all that failed in a run: each is sent once, and has an end that is sent, too.

    A gate has been evaluated in the run itself. ``reachable`` is, if the sensor that polls the lakehouse is on.
    """
    said_by = set[object]()
    for event in failures:
        found = event.step_failure_data.user_failure_data
        name = None if found is None else found.metadata.get(SENT_AS)
        said_by.add(name and name.value)
    if REACHABLE in said_by and crash_retry.is_switched_off(instance, run, sensor_of(run.tags)):
        return False
    return bool(said_by) and None not in said_by


def find_reported_storage(instance: dg.DagsterInstance, run: dg.DagsterRun, pages: Mapping[str, dg.AssetKey]) -> str:
    """Return the storage for which the lakehouse of a run cannot be opened now, if that was sent; else "".

    Two queries: what ends before it was sent is in no other message than that about the run.
    """
    name, storage = _find_failing_storage(instance, run, pages)
    if not storage:
        return ""
    for state in crash_retry.find_states(instance, run, CHECK_CHANGES):
        sensor = state.sensor_instigator_data
        cursor = json.loads((sensor and sensor.cursor) or "{}")
        if name in cursor.get(TOLD, {}).get(f"{REACHABLE} storage {storage}", ()):
            return storage
    return ""


def _find_failing_storage(
    instance: dg.DagsterInstance, run: dg.DagsterRun, pages: Mapping[str, dg.AssetKey]
) -> tuple[str, str]:
    """Return the lakehouse of a run, and the storage for which it cannot be opened now, or "". One query."""
    partition = run.tags.get(PARTITION_TAG)
    if partition is not None:
        page = dg.AssetKey([FLEET, fleet_health.NAME])
        reasons = fleet_health.recorded_reasons(instance, page, REACHABLE)
        return partition, reasons.get(partition, Reason()).storage
    asset = pages.get(run.tags.get(LAKEHOUSE_TAG, ""))
    last = None if asset is None else last_evaluation(instance, asset, REACHABLE)
    if asset is None or last is None or last.passed:
        return "", ""
    return asset.path[-2], fleet_health.reason_of(last).storage


def _is_ours(run: dg.DagsterRun) -> bool:
    """Whether a run is one of a lakehouse or of the fleet: by its tag, by its job, or by an asset that it makes."""
    if LAKEHOUSE_TAG in run.tags or run.job_name.startswith(f"{FLEET}_"):
        return True
    return any(key.path[0] in {"lakehouse", FLEET} for key in run.asset_selection or ())


def send_problem(
    notifications: Notifications, key: str, problem: Trouble | None, about: str, lakehouses: Sequence[str]
) -> None:
    """Send that something fails, or, without a problem, that what was ``about`` does not fail any more.

    ``lakehouses``: those that can be opened again, if that was the problem.
    ``key`` is the same in both messages: by it a service closes the incident that the first one opened.
    Raises ``OSError`` without any part of the webhook's address.
    """
    try:
        url = checked_url(look_up(notifications.webhook))
        page = None if problem is None else _page(notifications, problem.page)
    except ValueError as error:  # InvalidInput, too
        raise OSError(f"`notifications` of lakehouses.yaml: {error}") from None
    if problem is None:
        over = f"{about}: it does not fail any more"
        message = {"text": over, "severity": INFO, "key": key, "lakehouses": [*lakehouses]}
        post(url, {**message, "errors": [], "url": None})
        return
    text = f"{problem.about}: {problem.text}"
    message = {"text": text, "severity": problem.severity, "key": key, "lakehouses": [*problem.lakehouses]}
    post(url, {**message, "check": problem.check, "errors": [text], "url": page})


def page_of_check(asset: dg.AssetKey, check: str) -> str:
    """Return the path of the page of a check in Dagster."""
    return f"assets/{'/'.join(asset.path)}?view=checks&checkDetail={check}"


def _page(notifications: Notifications, path: str) -> str | None:
    """Return the URL of a page of Dagster, where `ui` is configured."""
    return None if notifications.ui is None else f"{checked_url(look_up(notifications.ui)).rstrip('/')}/{path}"


def message(
    context: dg.RunFailureSensorContext, found: crash_retry.Outlook, notifications: Notifications
) -> dict[str, Any]:
    """Return the message about a failed run. ``text`` is a summary, for services that show nothing else.

    ``url`` leads to the run where `ui` is configured.
    """
    more = f"\n{found.why}" if found.died else ""
    run = context.dagster_run
    errors = [_error(event) for event in context.get_step_failure_events()] or [context.failure_event.message or ""]
    lakehouse = run.tags.get(LAKEHOUSE_TAG, run.tags.get(PARTITION_TAG))
    url = _page(notifications, f"runs/{run.run_id}")
    return {
        "text": f"{run.job_name} failed ({url or f'run {run.run_id}'}): {errors[0]}{more}",
        "severity": ERROR,
        "url": url,
        "lakehouse": lakehouse,
        "job": run.job_name,
        "run_id": run.run_id,
        "errors": errors,
        "repeated": found.wanted,
    }


def _error(event: dg.DagsterEvent) -> str:
    failure = event.step_failure_data.user_failure_data
    if failure is not None and failure.description:  # ours: it has the advice
        return f"{event.step_key}: {failure.description}"[:_MAX_ERROR]
    error = event.step_failure_data.error
    while error is not None and error.cause is not None:
        error = error.cause
    text = event.message if error is None else error.message
    return f"{event.step_key}: {(text or '').strip()}"[:_MAX_ERROR]


def post(url: str, payload: dict[str, Any]) -> None:
    """Send JSON to a URL. Raises ``OSError`` if that fails; the message shows no part of the URL."""
    try:
        post_json(url, json.dumps(payload).encode())
    except OSError as error:
        raise OSError(f"the webhook of lakehouses.yaml did not accept the message: {error}") from None

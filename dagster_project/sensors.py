"""The sensor of one lakehouse: it reads the newest root and requests a compaction when one pays."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import Final

import dagster as dg

from dagster_project import assets, check_results, compaction_policy, notifications, poll
from dagster_project.compaction_policy import Decision, Seen
from dagster_project.config.settings import LAKEHOUSE_TAG, REASON_TAG, Compaction, LakehouseSettings, Notifications
from dagster_project.config.values import format_duration
from dagster_project.jobs import Jobs
from dagster_project.poll import Poll, Trouble
from trinitylake_core import TrinityLakeError

AT_WORK: Final = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]
_BY_HAND: Final = "__ASSET_JOB"
"""The job that Dagster makes for assets that somebody materialises or checks by hand."""
_MANY: Final = 200


def sensors_of(
    settings: LakehouseSettings, jobs: Jobs, notify: Notifications | None = None
) -> list[dg.SensorDefinition]:
    """Return the sensors of one lakehouse. ``notify`` hears when it cannot be opened."""
    return [compaction_sensor(settings, jobs, notify or Notifications())]


def compaction_sensor(settings: LakehouseSettings, jobs: Jobs, notify: Notifications) -> dg.SensorDefinition:
    """Return the sensor that requests compactions."""

    @dg.sensor(
        name=f"{settings.slug}_compaction_sensor",
        job=jobs.compaction,
        minimum_interval_seconds=max(1, int(settings.compaction.poll.total_seconds())),
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Reads the newest root of lakehouse {settings.name!r}, records new versions and changed checks, "
        "tells when the lakehouse cannot be opened, and " + _policy(settings.compaction),
    )
    def sense(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        return evaluate(settings, context, notify)

    return sense


def _policy(policy: Compaction) -> str:
    if not policy.enabled:
        return "never requests a compaction: compaction.enabled is false in lakehouses.yaml."
    limits = [f"{policy.messages:,} messages are buffered"]
    limits += [] if policy.root_bytes is None else [f"take {policy.root_bytes:,} bytes of the root"]
    limits += [] if policy.older_than is None else [f"have waited for {format_duration(policy.older_than)}"]
    return f"requests a compaction, one at a time, once {' or '.join(limits)}."


def evaluate(
    settings: LakehouseSettings, context: dg.SensorEvaluationContext, notify: Notifications | None = None
) -> dg.SensorResult:
    """Return the result of one tick. Ends within half a minute, whatever the storage does."""
    seen, now = Seen.parse(context.cursor), time.time()
    notify = notify or Notifications()
    stale = check_results.last_result(
        context.instance, assets.key(settings, assets.COMPACTION), check_results.COMPACTION_FRESH
    )
    work = partial(poll.poll_lakehouse, settings, seen, now, known_stale=stale is False)
    try:
        found = poll.POLLS.one(settings.root, work, poll.SECONDS)
    except TrinityLakeError as error:
        return _troubled(settings, context, seen, poll.trouble_of(error), notify)
    seen = _back_again(settings, context, seen, found, notify)
    events = _events(settings, context.instance, found)
    decision = _decided(settings, context.instance, found.pays, seen, now)
    since = found.seen
    seen = replace(
        seen, version=found.version, over_since=found.over_since, waiting_since=since.waiting_since, debt=since.debt
    )
    if not decision.wanted:
        return dg.SensorResult(skip_reason=decision.reason, cursor=seen.text(), asset_events=events)
    request = _request(settings, decision.reason, f"{found.version}-{now:.0f}")
    cursor = replace(seen, requested_at=now).text()
    return dg.SensorResult(run_requests=[request], cursor=cursor, asset_events=events)


def _troubled(
    settings: LakehouseSettings,
    context: dg.SensorEvaluationContext,
    seen: Seen,
    trouble: Trouble,
    notify: Notifications,
) -> dg.SensorResult:
    """Return the result of a tick that could not open the lakehouse: a failing check, and a message, once."""
    seen, due = poll.failed(seen, trouble)
    if due:
        try:
            notifications.tell_trouble(notify, settings.slug, trouble)
        except OSError as error:  # the next tick tries again
            context.log.error(str(error))  # noqa: TRY400 - the reason suffices
        else:
            seen = replace(seen, alerted=True)
    asset = assets.key(settings, assets.DEFINITION)
    known = check_results.last_result(context.instance, asset, check_results.REACHABLE) is False
    events = (
        []
        if known
        else [check_results.evaluation(asset, check_results.evaluate_unreachable(trouble.cause, trouble.advice))]
    )
    return dg.SensorResult(skip_reason=trouble.text, cursor=seen.text(), asset_events=events)


def _back_again(
    settings: LakehouseSettings, context: dg.SensorEvaluationContext, seen: Seen, found: Poll, notify: Notifications
) -> Seen:
    """Return what to remember of a lakehouse that could be opened; whoever heard of its trouble hears of its end."""
    if seen.alerted:
        try:
            notifications.tell_recovery(notify, settings.slug, found.version)
        except OSError as error:
            context.log.error(str(error))  # noqa: TRY400 - the reason suffices
            return replace(seen, failing=0)
    return poll.recovered(seen)


def _events(
    settings: LakehouseSettings, instance: dg.DagsterInstance, found: Poll
) -> list[dg.AssetObservation | dg.AssetCheckEvaluation]:
    """Return what is new: a version, and the checks whose verdict changed."""
    definition = assets.key(settings, assets.DEFINITION)
    events: list[dg.AssetObservation | dg.AssetCheckEvaluation] = []
    events += [] if found.observed is None else [poll.observation_event(definition, found.observed)]
    for asset, verdict in found.verdicts:
        key = assets.key(settings, asset)
        if check_results.last_result(instance, key, str(verdict.check_name)) is not verdict.passed:
            events.append(check_results.evaluation(key, verdict))
    if check_results.last_result(instance, definition, check_results.REACHABLE) is False:
        events.append(check_results.evaluation(definition, check_results.opened(found.version)))
    return events


def _decided(
    settings: LakehouseSettings, instance: dg.DagsterInstance, pays: Decision, seen: Seen, now: float
) -> Decision:
    """Return whether to request a compaction now: if it pays, none is running, and the last one is long enough ago."""
    if not settings.compaction.enabled:
        return Decision(wanted=False, reason=f"{pays.reason}; compaction.enabled is false in lakehouses.yaml")
    run = run_at_work(settings, instance)
    if run is not None:
        return Decision(wanted=False, reason=f"run {run} of this lakehouse has not finished yet")
    if not pays.wanted:
        return pays
    last = max(seen.requested_at, _last_compaction(settings, instance))
    return compaction_policy.too_soon(settings.compaction, last, now) or pays


def _request(settings: LakehouseSettings, reason: str, run_key: str) -> dg.RunRequest:
    step = assets.key(settings, assets.COMPACTION).to_python_identifier()
    return dg.RunRequest(
        run_key=run_key,
        tags={LAKEHOUSE_TAG: settings.slug, REASON_TAG: reason},
        run_config={"ops": {step: {"config": {"reason": reason}}}},
    )


def run_at_work(settings: LakehouseSettings, instance: dg.DagsterInstance) -> str | None:
    """Return the ID of a queued or running run on a lakehouse, whoever started it; ``None`` without one.

    Runs of our jobs have a tag, which the database looks for. One that somebody started from the assets has none, and
    is found by its assets, among the runs that have no tag of ours.
    """
    ours = dg.RunsFilter(statuses=AT_WORK, tags={LAKEHOUSE_TAG: settings.slug})
    for run in instance.get_runs(ours, limit=1):
        return run.run_id
    by_hand = dg.RunsFilter(statuses=AT_WORK, job_name=_BY_HAND)
    prefix = settings.key_prefix
    for run in instance.get_runs(by_hand, limit=_MANY):
        if any(key.has_prefix(prefix) for key in run.asset_selection or ()):
            return run.run_id
    return None


def _last_compaction(settings: LakehouseSettings, instance: dg.DagsterInstance) -> float:
    event = instance.get_latest_materialization_event(assets.key(settings, assets.COMPACTION))
    return 0.0 if event is None else event.timestamp

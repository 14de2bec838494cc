"""The schedule: requests the maintenance of lakehouses that are due, and not while the last one is at work.

Both layouts have the same algorithm. With ``layout: assets`` each lakehouse has a schedule that ticks when it is due.
With ``layout: partitions`` one schedule ticks every few minutes, and makes up for what it missed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import dagster as dg

from dagster_project import assets, fleet_health, schedule_times
from dagster_project.checks import REACHABLE
from dagster_project.config.file import Known
from dagster_project.config.settings import LakehouseSettings
from dagster_project.scope import AT_WORK, FLEET, PARTITION_TAG, AssetJob, Scope, run_tags

_log: Final = logging.getLogger(__name__)
DUE_TAG: Final = "trinitylake/due"
"""The tag of a maintenance run with the time it was due at."""
_EVERY_FIVE_MINUTES: Final = "*/5 * * * *"
_LATE: Final = timedelta(hours=6)
"""What was due longer ago than this, while nothing ticked, is left to the next time."""


def maintenance_schedule(scope: Scope, job: AssetJob, lakehouses: Callable[[], Known]) -> dg.ScheduleDefinition:
    """Return the schedule of one lakehouse, or of a fleet; ``lakehouses`` returns the stanzas at each tick."""
    known, cron = scope.known, _EVERY_FIVE_MINUTES
    text = (
        "Requests the maintenance of every lakehouse when its `schedules.maintenance` is due, later by an offset "
        "below `spread` that its name decides. What was due while nothing ticked is made up for up to six hours "
        "later; while a run of a lakehouse has not finished, or it cannot be opened, its next one waits."
    )
    if known is not None:
        text = f"Runs the maintenance of lakehouse {known.name!r}: {known.schedules.maintenance}."
        cron = schedule_times.shift_cron(known.schedules.maintenance or "", schedule_times.offset(known))
    ticks = schedule_times.daily_cron(cron)
    is_on = known is None or known.schedules.enabled

    @dg.schedule(
        name=f"{scope.slug}_maintenance_schedule",
        target=job,
        cron_schedule=ticks,
        execution_timezone=None if known is None else known.schedules.timezone,
        default_status=dg.DefaultScheduleStatus.RUNNING if is_on else dg.DefaultScheduleStatus.STOPPED,
        description=text,
    )
    def evaluate(context: dg.ScheduleEvaluationContext) -> list[dg.RunRequest] | dg.SkipReason:
        now = context.scheduled_execution_time.astimezone(UTC)
        if known is not None and ticks != cron and not schedule_times.is_due(known, cron, now):
            return dg.SkipReason(f"not due: {cron}")
        return _requests(scope, job, lakehouses().good, context.instance, now)

    return evaluate


def health_schedule(job: AssetJob) -> dg.ScheduleDefinition:
    """Return the schedule of the page of the fleet."""
    return dg.ScheduleDefinition(
        name=f"{FLEET}_health_schedule",
        target=job,
        cron_schedule="17 * * * *",
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description="Surveys all lakehouses once an hour.",
    )


def _requests(
    scope: Scope, job: AssetJob, good: Mapping[str, LakehouseSettings], instance: dg.DagsterInstance, now: datetime
) -> list[dg.RunRequest] | dg.SkipReason:
    at_work = {_lakehouse(run): run.run_id for run in _runs(instance, job, statuses=AT_WORK)}
    if scope.known is not None:
        if at_work:
            return dg.SkipReason(f"run {at_work[None]} of this job has not finished yet")
        return [_request(scope, scope.known, now)]
    partitions = set(instance.get_dynamic_partitions(FLEET))
    there = {name: each for name, each in good.items() if name in partitions}
    idle = {name: each for name, each in there.items() if name not in at_work}
    due = _find_due_lakehouses(job, idle, instance, now)
    # their runs would take a slot each, for as long as a storage may hang, while others wait
    page = assets.key(scope, fleet_health.NAME)
    failing = due.keys() & fleet_health.recorded_reasons(instance, page, REACHABLE).keys()
    requests = [_request(scope, there[name], due[name]) for name in sorted(due.keys() - failing)]
    if requests:
        return requests
    waiting = f"; {len(failing)} that cannot be opened wait until they can" if failing else ""
    return dg.SkipReason(f"none of {len(there)} lakehouses is due{waiting}")


def _find_due_lakehouses(
    job: AssetJob, idle: Mapping[str, LakehouseSettings], instance: dg.DagsterInstance, now: datetime
) -> dict[str, datetime]:
    """Return the lakehouses whose maintenance is due and was not requested yet, each with the time it was due at."""
    due = {}
    for name, each in idle.items():
        try:
            when = schedule_times.last_due(each, now)
        except Exception:  # noqa: BLE001 - a defect of an iterator concerns this lakehouse alone
            _log.exception("lakehouse %r: it is not known when its maintenance is due", name)
            continue  # the others are not kept waiting
        if when is not None and now - when < _LATE:
            due[name] = when
    if not due:
        return due
    for run in _runs(instance, job, created_after=now - 2 * _LATE):
        lakehouse = _lakehouse(run)
        if lakehouse in due and run.tags.get(DUE_TAG, "0") >= due[lakehouse].isoformat():
            del due[lakehouse]
    return due


def _runs(instance: dg.DagsterInstance, job: AssetJob, **which: Any) -> Sequence[dg.DagsterRun]:
    return instance.get_runs(dg.RunsFilter(job_name=job.name, **which))


def _lakehouse(run: dg.DagsterRun) -> str | None:
    """Return the lakehouse of a fleet that a run is for."""
    return run.tags.get(PARTITION_TAG)


def _request(scope: Scope, settings: LakehouseSettings, when: datetime) -> dg.RunRequest:
    chosen = [assets.key(scope, name) for name in assets.list_maintained_assets(settings)]
    return dg.RunRequest(
        run_key=f"{settings.name} {when.isoformat()}",
        partition_key=scope.partition(settings.name),
        asset_selection=chosen if scope.known is None else None,
        tags={**run_tags(settings), DUE_TAG: when.isoformat()},
    )

"""The schedule of a fleet: every few minutes it requests the maintenance of those lakehouses that are due."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

import dagster as dg

from dagster_project import assets, schedule_times
from dagster_project.check_results import REACHABLE
from dagster_project.config.settings import LAKEHOUSE_TAG, LakehouseSettings
from dagster_project.config.stanzas import Stanzas
from dagster_project.fleet import health
from dagster_project.jobs import AssetJob, Jobs, maintained
from dagster_project.scope import FLEET, PARTITION_TAG, Fleet
from dagster_project.sensors import AT_WORK

NAME: Final = f"{FLEET}_maintenance_schedule"
DUE_TAG: Final = "trinitylake/due"
"""The tag of a maintenance run with the time it was due at."""
_CRON: Final = "*/5 * * * *"
_LATE: Final = timedelta(hours=6)
"""What was due longer ago than this, while nothing ticked, is left to the next time."""


def fleet_schedule(scope: Fleet, jobs: Jobs, stanzas: Stanzas) -> dg.ScheduleDefinition:
    """Return the schedule of a fleet."""

    @dg.schedule(
        name=NAME,
        target=jobs.maintenance,
        cron_schedule=_CRON,
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description="Requests the maintenance of every lakehouse when its `schedules.maintenance` says so, later by an "
        "offset below `spread` that its name decides. What was due while nothing ticked is made up for up to six "
        "hours later; while a run of a lakehouse has not finished, or it cannot be opened, its next one waits.",
    )
    def evaluate(context: dg.ScheduleEvaluationContext) -> list[dg.RunRequest] | dg.SkipReason:
        now = context.scheduled_execution_time.astimezone(UTC)
        there = set(context.instance.get_dynamic_partitions(FLEET))
        good = {name: each for name, each in stanzas.all().good.items() if name in there}
        wanted = {name: when for name, each in good.items() if (when := _due(each, now)) is not None}
        for name, requested in _requested(context.instance, jobs, now).items():
            if name in wanted and (not requested or requested >= wanted[name].isoformat()):
                del wanted[name]
        # their runs would take a slot each, for as long as a storage may hang, while others wait
        failing = health.whys_last(context.instance, assets.key(scope, health.NAME), REACHABLE).keys() & wanted.keys()
        wanted = {name: when for name, when in wanted.items() if name not in failing}
        if not wanted:
            waiting = f"; {len(failing)} that cannot be opened wait until they can" if failing else ""
            return dg.SkipReason(f"none of {len(good)} lakehouses is due{waiting}")
        return [_request(scope, good[name], when) for name, when in sorted(wanted.items())]

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


def _due(settings: LakehouseSettings, now: datetime) -> datetime | None:
    """Return when maintenance was due last, if that is not too long ago."""
    last = schedule_times.last_due(settings, now)
    return last if last is not None and now - last < _LATE else None


def _requested(instance: dg.DagsterInstance, jobs: Jobs, now: datetime) -> dict[str, str]:
    """Return, for each lakehouse, the latest time whose run was requested; an empty text while one is at work."""
    name = jobs.maintenance.name
    found: dict[str, str] = {}
    for run in instance.get_runs(dg.RunsFilter(job_name=name, created_after=now - 2 * _LATE)):
        lakehouse = run.tags.get(PARTITION_TAG, "")
        found[lakehouse] = max(found.get(lakehouse, "0"), run.tags.get(DUE_TAG, "0"))
    for run in instance.get_runs(dg.RunsFilter(job_name=name, statuses=AT_WORK)):
        found[run.tags.get(PARTITION_TAG, "")] = ""
    return found


def _request(scope: Fleet, settings: LakehouseSettings, when: datetime) -> dg.RunRequest:
    return dg.RunRequest(
        run_key=f"{settings.name} {when.isoformat()}",
        partition_key=settings.name,
        asset_selection=[assets.key(scope, name) for name in maintained(settings)],
        tags={LAKEHOUSE_TAG: settings.slug, DUE_TAG: when.isoformat()},
    )

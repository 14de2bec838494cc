"""The schedules of one lakehouse, as ``lakehouses.yaml`` defines them."""

from __future__ import annotations

import dagster as dg

from dagster_project import schedule_times
from dagster_project.config.settings import LakehouseSettings
from dagster_project.jobs import Jobs
from dagster_project.sensors import AT_WORK


def schedules_of(settings: LakehouseSettings, jobs: Jobs) -> list[dg.ScheduleDefinition]:
    """Return one schedule per cron expression."""
    return [] if settings.schedules.maintenance is None else [maintenance_schedule(settings, jobs)]


def maintenance_schedule(settings: LakehouseSettings, jobs: Jobs) -> dg.ScheduleDefinition:
    """Return the maintenance schedule. It skips while the last run is queued or running: the queue must not grow."""

    @dg.schedule(
        name=f"{settings.slug}_maintenance_schedule",
        target=jobs.maintenance,
        cron_schedule=schedule_times.shifted(settings.schedules.maintenance or "", schedule_times.offset(settings)),
        execution_timezone=settings.schedules.timezone,
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description=f"Runs the maintenance of lakehouse {settings.name!r}.",
    )
    def evaluate(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        same = dg.RunsFilter(job_name=jobs.maintenance.name, statuses=AT_WORK)
        for run in context.instance.get_runs(same, limit=1):
            return dg.SkipReason(f"run {run.run_id} of this job has not finished yet")
        return dg.RunRequest()

    return evaluate

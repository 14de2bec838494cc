"""The schedules of one lakehouse, as ``lakehouses.yaml`` tells them."""

from __future__ import annotations

import dagster as dg

from dagster_project.jobs import Jobs
from dagster_project.settings import LakehouseSettings


def schedules_of(settings: LakehouseSettings, jobs: Jobs) -> list[dg.ScheduleDefinition]:
    """Return a schedule for each cron expression."""
    if settings.schedules.maintenance is None:
        return []
    return [
        dg.ScheduleDefinition(
            name=f"{settings.slug}_maintenance_schedule",
            target=jobs.maintenance,
            cron_schedule=settings.schedules.maintenance,
            execution_timezone=settings.schedules.timezone,
            default_status=dg.DefaultScheduleStatus.RUNNING,
            description=f"Maintenance of lakehouse {settings.name!r}, as lakehouses.yaml says.",
        )
    ]

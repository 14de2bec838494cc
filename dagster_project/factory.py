"""The Dagster definitions of one lakehouse, and of several together."""

from __future__ import annotations

import dagster as dg

from dagster_project.assets import assets_of
from dagster_project.checks import checks_of
from dagster_project.config.settings import LakehouseSettings, Notifications
from dagster_project.jobs import jobs_of
from dagster_project.notifications import failure_sensors
from dagster_project.resources import SparkResource
from dagster_project.retention import retention_of
from dagster_project.schedules import schedules_of
from dagster_project.scope import One
from dagster_project.sensors import sensors_of


def build(settings: LakehouseSettings, notifications: Notifications | None = None) -> dg.Definitions:
    """Return the definitions of one lakehouse. Touches no storage."""
    scope = One(settings)
    jobs = jobs_of(scope)
    return dg.Definitions(
        assets=[*assets_of(scope), *retention_of(scope)],
        asset_checks=checks_of(scope),
        jobs=jobs.all(),
        schedules=schedules_of(settings, jobs),
        sensors=sensors_of(settings, jobs, notifications),
    )


def merged(
    lakehouses: tuple[LakehouseSettings, ...],
    notifications: Notifications | None = None,
    spark: SparkResource | None = None,
) -> dg.Definitions:
    """Return the definitions of several lakehouses, with the resources that they share."""
    shared = dg.Definitions(
        resources={"spark": spark or SparkResource()},
        executor=dg.in_process_executor,  # one process per run: its steps share one Spark session
        sensors=failure_sensors(notifications or Notifications()),
    )
    return dg.Definitions.merge(shared, *(build(each, notifications) for each in lakehouses))

"""The Dagster definitions of one lakehouse, and of several together."""

from __future__ import annotations

import dagster as dg

from dagster_project.assets import assets_of
from dagster_project.checks import checks_of
from dagster_project.config.settings import LakehouseSettings, Notifications
from dagster_project.config.stanzas import Known, Stanzas
from dagster_project.crash_retry import repeats_sensor
from dagster_project.fleet_health import fleet_checks, fleet_health
from dagster_project.jobs import Jobs, jobs_of
from dagster_project.notifications import failure_sensors
from dagster_project.resources import SparkResource
from dagster_project.retention import retention_of
from dagster_project.schedule import health_schedule, maintenance_schedule
from dagster_project.scope import Fleet, One
from dagster_project.sensor import compaction_sensor


def build(
    settings: LakehouseSettings, notifications: Notifications | None = None, jobs: Jobs | None = None
) -> dg.Definitions:
    """Return the definitions of one lakehouse. Touches no storage."""
    scope, only = One(settings), Known({settings.name: settings})
    jobs = jobs or jobs_of(scope)
    scheduled = settings.schedules.maintenance is not None
    return dg.Definitions(
        assets=[*assets_of(scope), *retention_of(scope)],
        asset_checks=checks_of(scope),
        jobs=jobs.all(),
        schedules=[maintenance_schedule(scope, jobs.maintenance, lambda: only)] if scheduled else [],
        sensors=[compaction_sensor(scope, jobs.compaction, lambda: only, notifications or Notifications())],
    )


def fleet(
    stanzas: Stanzas,
    notifications: Notifications | None = None,
    spark: SparkResource | None = None,
    *,
    shares: bool = False,
) -> dg.Definitions:
    """Return the one set of definitions for all lakehouses of a file. Neither the file nor any storage is read.

    ``shares``: they share a code location with other people's definitions, as :func:`merged` has it.
    """
    scope = Fleet(stanzas.find)
    jobs, page = jobs_of(scope), fleet_health(scope, stanzas)
    survey = dg.define_asset_job(
        f"{scope.slug}_health", dg.AssetSelection.assets(page), description="Surveys all lakehouses."
    )
    return dg.Definitions.merge(
        _shared(notifications, spark, shares=shares),
        dg.Definitions(
            assets=[*assets_of(scope), *retention_of(scope), page],
            asset_checks=[*checks_of(scope), fleet_checks(scope, stanzas)],
            jobs=[*jobs.all(), survey],
            schedules=[maintenance_schedule(scope, jobs.maintenance, stanzas.all), health_schedule(survey)],
            sensors=[
                compaction_sensor(scope, jobs.compaction, stanzas.all, notifications or Notifications()),
                repeats_sensor([jobs.maintenance]),
            ],
        ),
    )


def _shared(notifications: Notifications | None, spark: SparkResource | None, *, shares: bool) -> dg.Definitions:
    return dg.Definitions(
        resources={"spark": spark or SparkResource()},
        executor=None if shares else dg.in_process_executor,  # one process per run: its steps share one Spark session
        sensors=failure_sensors(notifications or Notifications(), only_ours=shares),
    )


def merged(
    lakehouses: tuple[LakehouseSettings, ...],
    notifications: Notifications | None = None,
    spark: SparkResource | None = None,
    *,
    shares: bool = False,
) -> dg.Definitions:
    """Return the definitions of several lakehouses, with the resources that they share.

    ``shares``: they share a code location with other people's definitions, whose executor and failures are not ours.
    """
    everybody = _shared(notifications, spark, shares=shares)
    jobs = {each.name: jobs_of(One(each)) for each in lakehouses}
    scheduled = [jobs[each.name].maintenance for each in lakehouses if each.schedules.maintenance is not None]
    return dg.Definitions.merge(
        everybody,
        dg.Definitions(sensors=[repeats_sensor(scheduled)] if scheduled else []),
        *(build(each, notifications, jobs[each.name]) for each in lakehouses),
    )

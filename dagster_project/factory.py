"""The Dagster definitions of one lakehouse, of several together, and of a fleet."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Final

import dagster as dg

from dagster_project import assets
from dagster_project import fleet_health as fleet_health_page
from dagster_project.assets import assets_of
from dagster_project.check_alerts import check_sensors
from dagster_project.checks import NOT_FROZEN, REACHABLE, checks_of, reachable
from dagster_project.config import load_head
from dagster_project.config.file import Known, Stanzas, load_known
from dagster_project.config.settings import LakehouseSettings, Notifications
from dagster_project.crash_retry import repeats_sensor
from dagster_project.external_tables import specs_of
from dagster_project.fleet_health import fleet_checks, fleet_health
from dagster_project.manual_jobs import WITHOUT_POLICY, manual_jobs
from dagster_project.notifications import failure_sensors
from dagster_project.resources import SparkResource
from dagster_project.retention import retention_of
from dagster_project.schedule import health_schedule, maintenance_schedule
from dagster_project.scope import ABOVE_MAINTENANCE, GROUP_TAG, PRIORITY_TAG, AssetJob, Scope, every, one
from dagster_project.sensor import compaction_sensor
from dagster_project.tables import compacts_tables, has_tables, tables_of

_log: Final = logging.getLogger(__name__)
MANY: Final = 50
"""From so many lakehouses on their definitions take seconds to load: 300 of them 26 s of CPU, as partitions 1.3."""
TICK_EVERY: Final = timedelta(seconds=1.5)
"""A tick takes 0.15 s of CPU, nearly all of it Dagster's: ticks may take a tenth of a core. Its daemon takes more."""
MANY_TEXT: Final = (
    "%d lakehouses with assets of their own are slow to load, and polled seldom; with `layout: partitions` in "
    "lakehouses.yaml each is a partition of assets that all share: keys of assets and names of jobs "
    "change, and their history begins again"
)

TABLE_JOBS: Final = (
    ("health", assets.TABLE_HEALTH, "Measures the Iceberg tables"),
    ("compact", assets.TABLE_COMPACTION, "Merges small files of the Iceberg tables"),
    ("expire", assets.TABLE_EXPIRATION, "Expires snapshots of the Iceberg tables"),
    ("clean", assets.TABLE_CLEANING, "Removes files of Iceberg tables that nothing needs"),
)
"""The jobs of Iceberg tables, each with its asset."""


def define_lakehouses(
    lakehouses: tuple[LakehouseSettings, ...],
    notifications: Notifications | None = None,
    spark: SparkResource | None = None,
    *,
    shares: bool = False,
    known: Known | None = None,
) -> dg.Definitions:
    """Return the definitions of several lakehouses, with the resources that they share.

    Touches no storage, except where a stanza names tables that are assets.

    ``shares``: they share a code location with other people's definitions, whose executor and failures are not ours.
    ``known``: the stanzas of the file, where some have mistakes. Those that can be opened get :func:`_of_broken`.
    """
    known = known or Known()
    for text in known.bad.values():
        _log.error("%s", text)
    lakehouses = tuple(_poll_in_turns(each, len(lakehouses)) for each in lakehouses)
    if len(lakehouses) > MANY:
        _log.warning(MANY_TEXT, len(lakehouses))
    jobs = {each.name: maintenance(one(each)) for each in lakehouses}
    scheduled = [jobs[each.name] for each in lakehouses if each.schedules.maintenance is not None]
    return dg.Definitions.merge(
        _define_shared_parts(
            notifications,
            spark,
            shares=shares,
            known=known,
            pages={each.slug: assets.key(each, assets.HEALTH) for each in lakehouses},
        ),
        dg.Definitions(assets=specs_of(lakehouses), sensors=[repeats_sensor(scheduled)] if scheduled else []),
        *(_of(one(each), jobs[each.name], Known({each.name: each})) for each in lakehouses),
        *(_of_broken(one(each), known.bad[name]) for name, each in known.openable.items()),
    )


def _poll_in_turns(settings: LakehouseSettings, lakehouses: int) -> LakehouseSettings:
    """Return settings by which one of so many lakehouses, each with a sensor, is polled, if its stanza does not say."""
    policy = settings.compaction
    if "poll" in policy.model_fields_set:
        return settings
    poll = max(policy.poll, lakehouses * TICK_EVERY)
    return settings.model_copy(update={"compaction": policy.model_copy(update={"poll": poll})})


def of_file(path: Path | None = None, *, shares: bool = False) -> dg.Definitions:
    """Return the definitions of the lakehouses of a file, by its layout; ``shares`` as in :func:`define_lakehouses`."""
    head = load_head(path)
    if head.layout == "partitions":
        return fleet(Stanzas(path), head.notifications, shares=shares)
    known = load_known(path)
    return define_lakehouses(tuple(known.good.values()), head.notifications, shares=shares, known=known)


def fleet(
    stanzas: Stanzas,
    notifications: Notifications | None = None,
    spark: SparkResource | None = None,
    *,
    shares: bool = False,
) -> dg.Definitions:
    """Return the one set of definitions for all lakehouses of a file. Neither the file nor any storage is read.

    ``shares``: they share a code location with other people's definitions, as :func:`define_lakehouses` has it.
    """
    scope = every(stanzas.find)
    maintained, page = maintenance(scope), fleet_health(scope, stanzas)
    survey = dg.define_asset_job(
        fleet_health_page.JOB,
        dg.AssetSelection.assets(page),
        description="Surveys all lakehouses.",
        tags={PRIORITY_TAG: ABOVE_MAINTENANCE},
    )
    return dg.Definitions.merge(
        _define_shared_parts(notifications, spark, shares=shares),
        _of(scope, maintained, stanzas, survey),
        dg.Definitions(
            assets=[page],
            asset_checks=[fleet_checks(scope, stanzas)],
            jobs=[survey],
            schedules=[health_schedule(survey)],
            sensors=[repeats_sensor([maintained])],
        ),
    )


def _of(
    scope: Scope,
    maintained: AssetJob,
    lakehouses: Known | Stanzas,
    survey: AssetJob | None = None,
) -> dg.Definitions:
    compacted, scheduled = compaction(scope), scope.known is None or scope.known.schedules.maintenance is not None
    return dg.Definitions(
        assets=[*assets_of(scope), *retention_of(scope), *tables_of(scope)],
        asset_checks=checks_of(scope),
        jobs=[maintained, compacted, *manual_jobs(scope), *jobs_of_tables(scope)],
        schedules=[maintenance_schedule(scope, maintained, lakehouses.all)] if scheduled else [],
        sensors=[compaction_sensor(scope, compacted, lakehouses.all, survey)],
    )


def _of_broken(scope: Scope, mistake: str) -> dg.Definitions:
    """Return the definitions of a lakehouse whose stanza has a mistake: what leads back after an incident, and reads.

    Its sensor fails ``reachable`` with the mistake, and sends it. No policy is known, so nothing is maintained.
    """
    settings = scope.find("")
    known = Known(bad={settings.name: mistake})
    compacted = compaction(scope)
    return dg.Definitions(
        assets=assets_of(scope),
        asset_checks=[reachable(scope)],
        jobs=[compacted, *manual_jobs(scope, only=WITHOUT_POLICY)],
        sensors=[compaction_sensor(scope, compacted, known.all)],
    )


def _define_shared_parts(
    notifications: Notifications | None,
    spark: SparkResource | None,
    *,
    shares: bool,
    known: Known | None = None,
    pages: Mapping[str, dg.AssetKey] = MappingProxyType({}),
) -> dg.Definitions:
    mistakes = {} if known is None else {name: text for name, text in known.bad.items() if name not in known.openable}
    return dg.Definitions(
        resources={"spark": spark or SparkResource()},
        executor=None if shares else dg.in_process_executor,  # one process per run: its steps share one Spark session
        sensors=[
            *failure_sensors(notifications or Notifications(), only_ours=shares, pages=pages),
            *check_sensors(notifications or Notifications(), only_ours=shares, mistakes=mistakes),
        ],
    )


def maintenance(scope: Scope) -> AssetJob:
    """Return the job that does all maintenance. In a fleet each run selects some of its assets."""
    names = assets.ALL if scope.known is None else [assets.DEFINITION, *assets.list_maintained_assets(scope.known)]
    by_sensor = ((assets.HEALTH, REACHABLE), (assets.DEFINITION, NOT_FROZEN))
    return _job(
        scope,
        "maintenance",
        dg.AssetSelection.assets(*(assets.key(scope, name) for name in names))
        - dg.AssetSelection.checks(*(dg.AssetCheckKey(assets.key(scope, name), check) for name, check in by_sensor)),
        f"All maintenance of {scope.label}: observes it, measures its tree, checks every invariant, compacts it, and "
        "applies the policies of lakehouses.yaml to snapshots, backup, history and Iceberg tables.",
    )


def compaction(scope: Scope) -> AssetJob:
    """Return the job that the sensor requests: compaction and its checks, without the one that reads every node."""
    selection = dg.AssetSelection.assets(assets.key(scope, assets.COMPACTION))
    return _job(scope, "compaction", selection, f"Compacts {scope.label}.")


def jobs_of_tables(scope: Scope) -> list[AssetJob]:
    """Return a job for each asset of Iceberg tables, if there are any. It does what materialising the asset does."""
    if not has_tables(scope):
        return []
    made = []
    for verb, asset, text in TABLE_JOBS:
        if asset == assets.TABLE_COMPACTION and not compacts_tables(scope):
            continue
        of = assets.key(scope, asset)
        made.append(_job(scope, f"tables_{verb}", dg.AssetSelection.assets(of), f"{text} of {scope.label}."))
    return made


def _job(scope: Scope, name: str, selection: dg.AssetSelection, description: str) -> AssetJob:
    return dg.define_asset_job(
        f"{scope.slug}_{name}",
        selection=selection,
        description=description,
        tags=scope.job_tags | {GROUP_TAG: "maintenance"},
        executor_def=dg.in_process_executor,  # its steps share one Spark session
    )

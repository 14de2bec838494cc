"""The jobs of a lakehouse, or of a fleet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import dagster as dg

from dagster_project import assets
from dagster_project.check_results import REACHABLE
from dagster_project.config.settings import LakehouseSettings
from dagster_project.manual_jobs import manual_jobs
from dagster_project.scope import Scope

AssetJob: TypeAlias = Any  # what `define_asset_job` returns has no public name


@dataclass(frozen=True, slots=True)
class Jobs:
    """The jobs, by what they do."""

    maintenance: AssetJob
    compaction: AssetJob
    manual: list[dg.JobDefinition]

    def all(self) -> list[AssetJob | dg.JobDefinition]:
        """Return all of them."""
        return [self.maintenance, self.compaction, *self.manual]


def jobs_of(scope: Scope) -> Jobs:
    """Return the jobs."""
    return Jobs(maintenance=maintenance(scope), compaction=compaction(scope), manual=manual_jobs(scope))


def maintained(settings: LakehouseSettings) -> list[str]:
    """Return the names of the assets that maintenance materialises: those that a lakehouse has policies for."""
    names = [assets.HEALTH, assets.COMPACTION, assets.SNAPSHOTS]
    names += [assets.BACKUP] if settings.backup is not None else []
    names += [assets.EXPIRATION] if settings.retention is not None else []
    names += [assets.ORPHANS] if settings.orphans is not None else []
    return names


def maintenance(scope: Scope) -> AssetJob:
    """Return the job that does all maintenance. In a fleet each run is told which of its assets."""
    if scope.known is None:
        names = [assets.HEALTH, assets.COMPACTION, assets.SNAPSHOTS, assets.BACKUP, assets.EXPIRATION, assets.ORPHANS]
    else:
        names = [assets.DEFINITION, *maintained(scope.known)]
    return dg.define_asset_job(
        f"{scope.slug}_maintenance",
        selection=dg.AssetSelection.assets(*(assets.key(scope, name) for name in names)) - _looked_at(scope),
        description=f"All maintenance of {scope.label}: observes it, measures its tree, checks every "
        "invariant, compacts it, and applies the policies of lakehouses.yaml to snapshots, backup and history.",
        tags=dict(scope.tags),
        executor_def=dg.in_process_executor,  # its steps share one Spark session
    )


def compaction(scope: Scope) -> AssetJob:
    """Return the job that the sensor requests: compaction and its checks, without the one that reads every node."""
    return dg.define_asset_job(
        f"{scope.slug}_compaction",
        selection=dg.AssetSelection.assets(assets.key(scope, assets.COMPACTION)),
        description=f"Compacts {scope.label}.",
        tags=dict(scope.tags),
        executor_def=dg.in_process_executor,  # its steps share one Spark session
    )


def _looked_at(scope: Scope) -> dg.AssetSelection:
    """Return the check that the sensor evaluates; a run that cannot open the lakehouse fails anyway."""
    return dg.AssetSelection.checks(dg.AssetCheckKey(assets.key(scope, assets.DEFINITION), REACHABLE))

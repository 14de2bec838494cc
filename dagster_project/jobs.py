"""The jobs of one lakehouse."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import dagster as dg

from dagster_project import assets
from dagster_project.checks import REACHABLE
from dagster_project.config.settings import LAKEHOUSE_TAG, LakehouseSettings
from dagster_project.operations import operations_of

AssetJob: TypeAlias = Any  # what `define_asset_job` returns has no public name


@dataclass(frozen=True, slots=True)
class Jobs:
    """The jobs of one lakehouse, by what they do."""

    maintenance: AssetJob
    compaction: AssetJob
    operations: list[dg.JobDefinition]

    def all(self) -> list[AssetJob | dg.JobDefinition]:
        """Return all of them."""
        return [self.maintenance, self.compaction, *self.operations]


def jobs_of(settings: LakehouseSettings) -> Jobs:
    """Return the jobs of one lakehouse."""
    return Jobs(maintenance=maintenance(settings), compaction=compaction(settings), operations=operations_of(settings))


def maintenance(settings: LakehouseSettings) -> AssetJob:
    """Return the job that does all maintenance."""
    names = [assets.DEFINITION, assets.HEALTH, assets.COMPACTION, assets.SNAPSHOTS]
    names += [assets.BACKUP] if settings.backup is not None else []
    names += [assets.EXPIRATION] if settings.retention is not None else []
    names += [assets.ORPHANS] if settings.orphans is not None else []
    return dg.define_asset_job(
        f"{settings.slug}_maintenance",
        selection=dg.AssetSelection.assets(*(assets.key(settings, name) for name in names)) - _looked_at(settings),
        description=f"All maintenance of lakehouse {settings.name!r}: observes it, measures its tree, checks every "
        "invariant, compacts it, and applies the policies of lakehouses.yaml to snapshots, backup and history.",
        tags={LAKEHOUSE_TAG: settings.slug},
    )


def compaction(settings: LakehouseSettings) -> AssetJob:
    """Return the job that the sensor requests: compaction and its checks, without the one that reads every node."""
    return dg.define_asset_job(
        f"{settings.slug}_compaction",
        selection=dg.AssetSelection.assets(assets.key(settings, assets.COMPACTION)),
        description=f"Compacts lakehouse {settings.name!r}.",
        tags={LAKEHOUSE_TAG: settings.slug},
    )


def _looked_at(settings: LakehouseSettings) -> dg.AssetSelection:
    """Return the check that the sensor evaluates; a run that cannot open the lakehouse fails anyway."""
    return dg.AssetSelection.checks(dg.AssetCheckKey(assets.key(settings, assets.DEFINITION), REACHABLE))

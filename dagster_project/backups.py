"""The asset that keeps a copy of one lakehouse elsewhere, where ``lakehouses.yaml`` asks for one."""

from typing import Any, Final

import dagster as dg
from pydantic import Field

from dagster_project.assets import SNAPSHOTS, writing
from dagster_project.config.settings import Backup, LakehouseSettings
from dagster_project.metadata import recovery
from dagster_project.resources import SparkResource
from dagster_project.watched import Watch, carried_out
from pipelines import backup, export
from trinitylake_core import Lakehouse

BACKUP: Final = "backup"


class BackupConfig(dg.Config):
    """What may be chosen in the launchpad for one backup."""

    engine: str | None = Field(default=None, description="spark, local or auto, instead of what lakehouses.yaml says.")


def backups_of(settings: LakehouseSettings) -> list[dg.AssetsDefinition]:
    """Return the backup of a lakehouse, if it is to have one."""
    return [] if settings.backup is None else [backup_asset(settings, settings.backup)]


def backup_asset(settings: LakehouseSettings, policy: Backup) -> dg.AssetsDefinition:
    """Return the asset that copies what is new."""

    @writing(
        settings,
        BACKUP,
        after=[SNAPSHOTS],
        description=f"A copy with every version that is kept, and the snapshots, at `{policy.target}`: a lakehouse of "
        "its own. What is there already is not copied again; every copied file is read back and compared. Versions "
        "expire only after they were copied.",
        metadata={"target": policy.target},
    )
    def backed_up(
        context: dg.AssetExecutionContext, config: BackupConfig, spark: SparkResource
    ) -> dg.MaterializeResult[Any]:
        def work(lake: Lakehouse, watch: Watch) -> export.Report:
            how = export.Config(
                history=True,
                engine=config.engine or settings.compaction.engine,
                before_commit=watch.before_commit,
            )
            options = settings.resolved_target_options(policy.target)
            return export.run(watch.spark, lake, policy.target, how, storage_options=options, progress=watch.progress)

        done = carried_out(context, settings, spark, work)
        metadata = recovery.of_export(done)
        context.log.info(metadata["outcome"])
        return dg.MaterializeResult(metadata=metadata, data_version=dg.DataVersion(str(done.plan.version)))

    return backed_up


def proved(settings: LakehouseSettings, policy: Backup, lake: Lakehouse, watch: Watch) -> backup.Report:
    """Return what a look at the backup finds."""
    how = backup.Config(
        max_age_seconds=policy.max_age.total_seconds(),
        definitions=policy.definitions,
        engine=settings.compaction.engine,
    )
    options = settings.resolved_target_options(policy.target)
    return backup.run(watch.spark, lake, policy.target, how, storage_options=options, progress=watch.progress)

"""The jobs that people start by hand: one step, one call each.

When the storage fails, a step is retried where repeating is safe; a rollback, a restore or an undo never is.
"""

import dagster as dg

from dagster_project import launchpads
from dagster_project.assets import settings_of
from dagster_project.inquiries import diff_step, history_step, verify_step
from dagster_project.metadata import recovery
from dagster_project.recoveries import restore_step, rollback_step, undo_step
from dagster_project.resources import SparkResource
from dagster_project.scope import Scope
from dagster_project.steps import engine, job, step, tell
from dagster_project.supervised import Supervisor, run_supervised
from pipelines import export, upgrade
from trinitylake_core import Alteration, Lakehouse
from trinitylake_core.recovery.recover import required


def operations_of(scope: Scope) -> list[dg.JobDefinition]:
    """Return the jobs that people start by hand."""
    made = {
        "rollback": rollback_step,
        "restore": restore_step,
        "undo": undo_step,
        "history": history_step,
        "diff": diff_step,
        "export": _export,
        "verify": verify_step,
        "upgrade": _upgrade,
        "alter": _alter,
    }
    return [job(scope, name, make(scope)) for name, make in made.items()]


def _export(scope: Scope) -> dg.OpDefinition:
    @step(
        scope,
        "export",
        launchpads.ExportConfig,
        "Copies the lakehouse to another root. Repeated, it is an incremental backup: it copies only new files, and "
        "reads each one back to compare it.",
    )
    def copy(context: dg.OpExecutionContext, config: launchpads.ExportConfig, spark: SparkResource) -> None:
        settings = settings_of(scope, context)

        def work(lake: Lakehouse, watch: Supervisor) -> export.Report:
            how = export.Config(
                version=config.version,
                history=config.history and config.version is None,
                engine=engine(settings, config.engine),
                dry_run=config.dry_run,
            )
            target = launchpads.chosen_target(config.target, settings)
            options = settings.resolved_target_options(target)
            return export.run(
                lake, target, how, watch.spark, storage_options=options, cancel=watch, progress=watch.progress
            )

        named = config.version is not None
        tell(context, recovery.of_export(run_supervised(context, settings, spark, work, damaged=named)))

    return copy


def _upgrade(scope: Scope) -> dg.OpDefinition:
    @step(
        scope,
        "upgrade",
        launchpads.UpgradeConfig,
        "Rewrites a lakehouse of any format generation in the canonical format at another root, with its history. Only "
        "reads the source. With `dry_run: true`, the default, it checks everything and writes nothing.",
    )
    def renew(context: dg.OpExecutionContext, config: launchpads.UpgradeConfig, spark: SparkResource) -> None:
        settings = settings_of(scope, context)

        def work(lake: Lakehouse, watch: Supervisor) -> upgrade.Report:
            how = upgrade.Config(
                history=config.history,
                definition=config.definition,
                engine=engine(settings, config.engine),
                dry_run=config.dry_run,
            )
            target = launchpads.chosen_target(config.target, settings)
            options = settings.resolved_target_options(target)
            return upgrade.run(
                lake, target, how, watch.spark, storage_options=options, cancel=watch, progress=watch.progress
            )

        tell(context, recovery.of_upgrade(run_supervised(context, settings, spark, work)))

    return renew


def _alter(scope: Scope) -> dg.OpDefinition:
    @step(
        scope,
        "alter",
        launchpads.AlterConfig,
        "Sets or removes properties of the lakehouse, as a new version that conflicts with nothing. "
        "`maintenance.delete.enabled: 'false'` forbids every job to delete, until it is removed or set to 'true'. With "
        "`dry_run: true`, the default, it only shows what would change.",
    )
    def change(context: dg.OpExecutionContext, config: launchpads.AlterConfig, spark: SparkResource) -> None:
        settings = settings_of(scope, context)

        def work(lake: Lakehouse, watch: Supervisor) -> Alteration:
            changed: dict[str, str | None] = {**config.properties, **dict.fromkeys(config.remove)}
            return lake.alter(
                changed, reason=required(config.reason), dry_run=config.dry_run, before_commit=watch.check
            )

        tell(context, recovery.of_alteration(run_supervised(context, settings, spark, work)))

    return change

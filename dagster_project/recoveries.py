"""The jobs that lead back to an older state: rollback, restore, undo. Each shows its plan before it does anything."""

from dataclasses import replace
from typing import TypeVar

import dagster as dg

from dagster_project import launchpads
from dagster_project.assets import settings_of
from dagster_project.metadata import recovery
from dagster_project.resources import SparkResource
from dagster_project.scope import Scope
from dagster_project.steps import chosen, step, tell
from dagster_project.supervised import Supervisor, run_supervised
from pipelines import restore, rollback, undo
from trinitylake_core import Lakehouse, RecoveryPlan

How = TypeVar("How", rollback.Config, restore.Config, undo.Config)


def rollback_step(scope: Scope) -> dg.OpDefinition:
    """Return the step that returns the whole catalog to an older version."""

    @step(
        scope,
        "rollback",
        launchpads.RollbackConfig,
        "Returns the whole catalog to an older version, by committing a new version with the same content. Reads and "
        "verifies every file of the target first. Undone versions stay readable. With `dry_run: true`, the default, it "
        "only shows the plan: what would be added, removed and changed, and whose versions would be undone.",
    )
    def roll_back(context: dg.OpExecutionContext, config: launchpads.RollbackConfig, spark: SparkResource) -> None:
        settings = settings_of(scope, context)

        def work(lake: Lakehouse, watch: Supervisor) -> tuple[rollback.Report, rollback.Report]:
            how = rollback.Config(**chosen(settings, config))
            planned = rollback.plan(lake, how, watch.spark, progress=watch.progress)
            _show(context, watch, planned.plan)
            if config.dry_run:
                return planned, planned
            approved = how if how.force else _of_this_plan(how, planned.plan)
            return planned, rollback.run(lake, approved, watch.spark, cancel=watch, progress=watch.progress)

        planned, done = run_supervised(context, settings, spark, work, damaged=True)
        tell(context, recovery.of_rollback(planned, done))

    return roll_back


def restore_step(scope: Scope) -> dg.OpDefinition:
    """Return the step that brings selected objects back."""

    @step(
        scope,
        "restore",
        launchpads.RestoreConfig,
        "Brings selected objects back as they were at a version, in one ordinary transaction; everything else is left "
        "alone. With `dry_run: true`, the default, it only shows what would change.",
    )
    def bring_back(context: dg.OpExecutionContext, config: launchpads.RestoreConfig, spark: SparkResource) -> None:
        settings = settings_of(scope, context)

        def work(lake: Lakehouse, watch: Supervisor) -> tuple[restore.Report, restore.Report]:
            options = None if config.source is None else settings.resolved_target_options(config.source)
            how = restore.Config(**chosen(settings, config), source_options=options)
            planned = restore.plan(lake, how, watch.spark, progress=watch.progress)
            _show(context, watch, planned.plan)
            if config.dry_run:
                return planned, planned
            approved = _of_this_plan(how, planned.plan)
            return planned, restore.run(lake, approved, watch.spark, cancel=watch, progress=watch.progress)

        planned, done = run_supervised(context, settings, spark, work)
        tell(context, recovery.of_restore(planned, done))

    return bring_back


def undo_step(scope: Scope) -> dg.OpDefinition:
    """Return the step that finds what somebody did, and rolls back to before it."""

    @step(
        scope,
        "undo",
        launchpads.UndoConfig,
        "Finds what somebody did, by time, author or reason, and rolls back to the version before it. With `since` "
        "alone: everything from then on; with an author or a text: the newest commits in a row that match. What others "
        "committed after it is undone only with `others: true`. With `dry_run: true`, the default, it only shows what "
        "it found, and the plan.",
    )
    def take_back(context: dg.OpExecutionContext, config: launchpads.UndoConfig, spark: SparkResource) -> None:
        settings = settings_of(scope, context)

        def work(lake: Lakehouse, watch: Supervisor) -> tuple[undo.Report, undo.Report]:
            how = undo.Config(**chosen(settings, config))
            planned = undo.plan(lake, how, watch.spark, progress=watch.progress)
            _show(context, watch, planned.rollback.plan)
            if config.dry_run:
                return planned, planned
            approved = how if how.force else _of_this_plan(how, planned.rollback.plan)
            return planned, undo.run(lake, approved, watch.spark, cancel=watch, progress=watch.progress)

        planned, done = run_supervised(context, settings, spark, work, damaged=True)
        tell(context, recovery.of_undo(planned, done))

    return take_back


def _show(context: dg.OpExecutionContext, watch: Supervisor, plan: RecoveryPlan) -> None:
    """Log the plan, as one event, before anything is done; a run that was terminated meanwhile ends here."""
    context.log.info(recovery.plan_text(plan))
    watch.check()


def _of_this_plan(how: How, plan: RecoveryPlan) -> How:
    """Return the configuration that carries out the plan that was shown, or the one approved, and no other."""
    return replace(how, expected_version=plan.version) if how.expected_version is None else how

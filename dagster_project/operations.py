"""The jobs that people start by hand: rollback, restore, export, verify, upgrade, alter. One step, one call each.

When the storage fails, a step is retried where repeating is safe; a rollback or a restore never is.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import dagster as dg

from dagster_project import launchpads
from dagster_project.assets import key, settings_of
from dagster_project.config.settings import LakehouseSettings
from dagster_project.metadata import health, recovery
from dagster_project.resources import SparkResource
from dagster_project.scope import Scope
from dagster_project.watched import RETRY, Watch, carried_out
from pipelines import export, restore, rollback, upgrade, verify
from trinitylake_core import Alteration, InvalidInput, Lakehouse, RecoveryTarget
from trinitylake_core.recovery.recover import required

_RECOVERY: Final = ("rollback", "restore")


def operations_of(scope: Scope) -> list[dg.JobDefinition]:
    """Return the jobs that people start by hand."""
    made = tuple(make(scope) for make in (_rollback, _restore, _export, _verify, _upgrade, _alter))
    return [_job(scope, name, op) for name, op in zip(launchpads.defaults(scope.known), made, strict=True)]


def _job(scope: Scope, name: str, op: dg.OpDefinition) -> dg.JobDefinition:
    chosen = {"ops": {op.name: {"config": launchpads.defaults(scope.known)[name]}}}
    description = f"{op.description}\n\n{scope.label[0].upper()}{scope.label[1:]}."

    @dg.job(
        name=f"{scope.slug}_{name}",
        description=description,
        config=chosen,
        tags=dict(scope.tags),
        partitions_def=scope.partitions,
        executor_def=dg.in_process_executor,
    )
    def job() -> None:
        op()

    return job


def _op(scope: Scope, name: str, description: str, *, pool: bool = True) -> Callable[..., Any]:
    return dg.op(
        name=key(scope, name).to_python_identifier(),
        description=description,
        out=dg.Out(dg.Nothing),
        pool=scope.pool if pool else None,
        retry_policy=None if name in _RECOVERY else RETRY,
        tags={"kind": "spark"},
    )


def _tell(context: dg.OpExecutionContext, metadata: health.Metadata) -> None:
    context.log.info(metadata["outcome"])
    context.add_output_metadata(metadata)


def _engine(settings: LakehouseSettings, chosen: str | None) -> str:
    return chosen or settings.compaction.engine


def _chosen(settings: LakehouseSettings, config: dg.Config, engine: str | None, watch: Watch) -> dict[str, Any]:
    """Return the launchpad options as arguments of the ``Config`` of a pipeline, whose fields have the same names."""
    return config.model_dump() | {"engine": _engine(settings, engine), "before_commit": watch.before_commit}


def _rollback(scope: Scope) -> Any:
    @_op(
        scope,
        "rollback",
        "Returns the whole catalog to an older version, by committing a new version with the same content. Reads and "
        "verifies every file of the target first. Undone versions stay readable. With `dry_run: true`, the default, it "
        "only shows the plan: what would be added, removed and changed, and whose versions would be undone.",
    )
    def roll_back(context: dg.OpExecutionContext, config: launchpads.RollbackConfig, spark: SparkResource) -> None:
        settings = settings_of(scope, context)

        def work(lake: Lakehouse, watch: Watch) -> tuple[rollback.Report, rollback.Report]:
            how = rollback.Config(**_chosen(settings, config, config.engine, watch))
            planned = rollback.plan(watch.spark, lake, how, watch.progress)
            _show(context, planned)
            watch.before_commit()
            if config.dry_run:
                return planned, planned
            if how.expected_version is None and not how.force:  # carry out the plan that was shown, and no other
                how = replace(how, expected_version=planned.plan.version)
            return planned, rollback.run(watch.spark, lake, how, watch.progress)

        planned, done = carried_out(context, settings, spark, work, damaged=True)
        _tell(context, recovery.of_rollback(planned, done))

    return roll_back


def _restore(scope: Scope) -> Any:
    @_op(
        scope,
        "restore",
        "Brings selected objects back as they were at a version, in one ordinary transaction; everything else is left "
        "alone. With `dry_run: true`, the default, it only shows what would change.",
    )
    def bring_back(context: dg.OpExecutionContext, config: launchpads.RestoreConfig, spark: SparkResource) -> None:
        settings = settings_of(scope, context)

        def work(lake: Lakehouse, watch: Watch) -> tuple[restore.Report, restore.Report]:
            options = None if config.source is None else settings.resolved_target_options(config.source)
            how = restore.Config(**_chosen(settings, config, config.engine, watch), source_options=options)
            planned = restore.plan(watch.spark, lake, how, watch.progress)
            _show(context, planned)
            watch.before_commit()
            if config.dry_run:
                return planned, planned
            if how.expected_version is None:  # carry out the plan that was shown, and no other
                how = replace(how, expected_version=planned.plan.version)
            return planned, restore.run(watch.spark, lake, how, watch.progress)

        planned, done = carried_out(context, settings, spark, work)
        _tell(context, recovery.of_restore(planned, done))

    return bring_back


def _target_version(config: launchpads.RollbackConfig | launchpads.RestoreConfig) -> dict[str, Any]:
    return RecoveryTarget(config.version, config.timestamp, config.snapshot).keywords()


def _show(context: dg.OpExecutionContext, planned: rollback.Report | restore.Report) -> None:
    """Log the plan, as one event, before anything is done."""
    context.log.info(recovery.plan_text(planned.plan))


def _export(scope: Scope) -> Any:
    @_op(
        scope,
        "export",
        "Copies the lakehouse to another root. Repeated, it is an incremental backup: it copies only new files, and "
        "reads each one back to compare it.",
    )
    def copy(context: dg.OpExecutionContext, config: launchpads.ExportConfig, spark: SparkResource) -> None:
        settings = settings_of(scope, context)

        def work(lake: Lakehouse, watch: Watch) -> export.Report:
            how = export.Config(
                version=config.version,
                history=config.history and config.version is None,
                engine=_engine(settings, config.engine),
                dry_run=config.dry_run,
                before_commit=watch.before_commit,
            )
            target = _target(config.target, settings)
            options = settings.resolved_target_options(target)
            return export.run(watch.spark, lake, target, how, storage_options=options, progress=watch.progress)

        named = config.version is not None
        _tell(context, recovery.of_export(carried_out(context, settings, spark, work, damaged=named)))

    return copy


def _verify(scope: Scope) -> Any:
    @_op(
        scope,
        "verify",
        "Checks every invariant of the format, for the newest version or for all. Fails with a table of findings, each "
        "with its remedy. Read-only.",
        pool=False,
    )
    def prove(context: dg.OpExecutionContext, config: launchpads.VerifyConfig, spark: SparkResource) -> None:
        settings = settings_of(scope, context)

        def work(lake: Lakehouse, watch: Watch) -> verify.Report:
            which = int(config.versions) if config.versions.isdecimal() else config.versions
            how = verify.Config(which, definitions=config.definitions, engine=_engine(settings, config.engine))
            return verify.run(watch.spark, lake, how, watch.progress)

        done = carried_out(context, settings, spark, work, damaged=True)
        metadata = recovery.of_verification(done)
        if not done.ok:
            advice = "See `violations` for the remedy of each; most often: roll back to an intact version."
            raise dg.Failure(f"{metadata['outcome']}. {advice}", metadata=metadata, allow_retries=False)
        _tell(context, metadata)

    return prove


def _upgrade(scope: Scope) -> Any:
    @_op(
        scope,
        "upgrade",
        "Rewrites a lakehouse of any format generation in the canonical format at another root, with its history. Only "
        "reads the source. With `dry_run: true`, the default, it checks everything and writes nothing.",
    )
    def renew(context: dg.OpExecutionContext, config: launchpads.UpgradeConfig, spark: SparkResource) -> None:
        settings = settings_of(scope, context)

        def work(lake: Lakehouse, watch: Watch) -> upgrade.Report:
            how = upgrade.Config(
                history=config.history,
                definition=_definition(config.definition),
                engine=_engine(settings, config.engine),
                dry_run=config.dry_run,
                before_commit=watch.before_commit,
            )
            target = _target(config.target, settings)
            options = settings.resolved_target_options(target)
            return upgrade.run(watch.spark, lake, target, how, storage_options=options, progress=watch.progress)

        _tell(context, recovery.of_upgrade(carried_out(context, settings, spark, work)))

    return renew


def _alter(scope: Scope) -> Any:
    @_op(
        scope,
        "alter",
        "Sets or removes properties of the lakehouse, as a new version that conflicts with nothing. "
        "`maintenance.delete.enabled: 'false'` forbids every job to delete, until it is removed or set to 'true'. With "
        "`dry_run: true`, the default, it only shows what would change.",
    )
    def change(context: dg.OpExecutionContext, config: launchpads.AlterConfig, spark: SparkResource) -> None:
        settings = settings_of(scope, context)

        def work(lake: Lakehouse, watch: Watch) -> Alteration:
            if both := sorted(config.properties.keys() & set(config.remove)):
                raise InvalidInput(f"{', '.join(both)}: either a value or `remove`")
            changed: dict[str, str | None] = {**config.properties, **dict.fromkeys(config.remove)}
            return lake.alter(
                changed, reason=required(config.reason), dry_run=config.dry_run, before_commit=watch.before_commit
            )

        _tell(context, recovery.of_alteration(carried_out(context, settings, spark, work)))

    return change


def _target(chosen: str, settings: LakehouseSettings) -> str:
    """Return where to write to: what was chosen, or else what the launchpad of one lakehouse starts with."""
    uri = chosen or launchpads.target_of(settings)
    if not uri:
        raise InvalidInput("`target` is required: the root URI to write to, such as s3://backup/lake")
    return uri


def _definition(changed: Mapping[str, Any]) -> Mapping[str, Any]:
    unknown = sorted(changed.keys() - recovery.DEFINITION_FIELDS)
    if unknown:
        raise InvalidInput(
            f"definition: unknown field {', '.join(unknown)}; the fields are "
            f"{', '.join(sorted(recovery.DEFINITION_FIELDS))}"
        )
    return changed

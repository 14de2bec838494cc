"""The jobs that people start by hand: rollback, restore, export, verify, upgrade. One step, one pipeline call each.

Where repeating is safe a failing storage is tried again; a rollback or a restore never repeats itself.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import dagster as dg

from dagster_project import launch
from dagster_project.advice import RETRY
from dagster_project.assets import key
from dagster_project.config.settings import LakehouseSettings
from dagster_project.metadata import health, recovery
from dagster_project.resources import SparkResource
from dagster_project.watched import Watch, carried_out
from pipelines import export, restore, rollback, upgrade, verify
from trinitylake_core import InvalidInput, Lakehouse

LAKEHOUSE_TAG: Final = "trinitylake/lakehouse"
_RECOVERY: Final = ("rollback", "restore")


def operations_of(settings: LakehouseSettings) -> list[dg.JobDefinition]:
    """Return the jobs of one lakehouse that people start by hand."""
    made = (_rollback(settings), _restore(settings), _export(settings), _verify(settings), _upgrade(settings))
    return [_job(settings, name, op) for name, op in zip(launch.defaults(settings), made, strict=True)]


def _job(settings: LakehouseSettings, name: str, op: dg.OpDefinition) -> dg.JobDefinition:
    chosen = {"ops": {op.name: {"config": launch.defaults(settings)[name]}}}
    description = f"{op.description}\n\nLakehouse {settings.name!r}."

    @dg.job(
        name=f"{settings.slug}_{name}",
        description=description,
        config=chosen,
        tags={LAKEHOUSE_TAG: settings.slug},
        executor_def=dg.in_process_executor,
    )
    def job() -> None:
        op()

    return job


def _op(settings: LakehouseSettings, name: str, description: str, *, pool: bool = True) -> Callable[..., Any]:
    return dg.op(
        name=key(settings, name).to_python_identifier(),
        description=description,
        out=dg.Out(dg.Nothing),
        pool=settings.pool if pool else None,
        retry_policy=None if name in _RECOVERY else RETRY,
        tags={"kind": "spark"},
    )


def _tell(context: dg.OpExecutionContext, metadata: health.Metadata) -> None:
    context.log.info(metadata["outcome"])
    context.add_output_metadata(metadata)


def _engine(settings: LakehouseSettings, chosen: str | None) -> str:
    return chosen or settings.compaction.engine


def _rollback(settings: LakehouseSettings) -> Any:
    @_op(
        settings,
        "rollback",
        "Makes the newest version say what an older one says. Every file of the target is read and proved first. "
        "History only grows: what is undone stays readable. With `dry_run: true`, the default, it shows the plan: what "
        "would be added, removed and changed, and whose versions would be undone.",
    )
    def roll_back(context: dg.OpExecutionContext, config: launch.RollbackConfig, spark: SparkResource) -> None:
        def work(lake: Lakehouse, watch: Watch) -> tuple[rollback.Report, rollback.Report]:
            how = rollback.Config(
                version=config.version,
                timestamp=config.timestamp,
                snapshot=config.snapshot,
                reason=config.reason,
                dry_run=config.dry_run,
                force=config.force,
                expected_version=config.expected_version,
                engine=_engine(settings, config.engine),
                before_commit=watch.before_commit,
            )
            planned = rollback.plan(watch.spark, lake, how, watch.progress)
            _show(context, planned)
            watch.before_commit()
            if config.dry_run:
                return planned, planned
            if how.expected_version is None and not how.force:  # what is carried out is the plan that was shown
                how = replace(how, expected_version=planned.plan.version)
            return planned, rollback.run(watch.spark, lake, how, watch.progress)

        planned, done = carried_out(context, settings, spark, work)
        _tell(context, recovery.of_rollback(planned, done))

    return roll_back


def _restore(settings: LakehouseSettings) -> Any:
    @_op(
        settings,
        "restore",
        "Brings some objects back as they were at a version, as one ordinary transaction; everything else stays as it "
        "is. With `dry_run: true`, the default, it shows what would change.",
    )
    def bring_back(context: dg.OpExecutionContext, config: launch.RestoreConfig, spark: SparkResource) -> None:
        def work(lake: Lakehouse, watch: Watch) -> tuple[restore.Report, restore.Report]:
            how = restore.Config(
                only=config.only,
                version=config.version,
                timestamp=config.timestamp,
                snapshot=config.snapshot,
                reason=config.reason,
                exact=config.exact,
                dry_run=config.dry_run,
                engine=_engine(settings, config.engine),
                before_commit=watch.before_commit,
            )
            planned = restore.plan(watch.spark, lake, how, watch.progress)
            _show(context, planned)
            watch.before_commit()
            return planned, planned if config.dry_run else restore.run(watch.spark, lake, how, watch.progress)

        planned, done = carried_out(context, settings, spark, work)
        _tell(context, recovery.of_restore(planned, done))

    return bring_back


def _show(context: dg.OpExecutionContext, planned: rollback.Report | restore.Report) -> None:
    """Log the plan before anything is done: one event."""
    context.log.info(recovery.plan_text(planned.plan))


def _export(settings: LakehouseSettings) -> Any:
    @_op(
        settings,
        "export",
        "Copies a lakehouse to another root: repeated, an incremental backup. What is there already is not copied "
        "again; every copied file is read back and compared.",
    )
    def copy(context: dg.OpExecutionContext, config: launch.ExportConfig, spark: SparkResource) -> None:
        def work(lake: Lakehouse, watch: Watch) -> export.Report:
            how = export.Config(
                version=config.version,
                history=config.history and config.version is None,
                engine=_engine(settings, config.engine),
                dry_run=config.dry_run,
                before_commit=watch.before_commit,
            )
            target = _target(config.target)
            options = settings.resolved_target_options(target)
            return export.run(watch.spark, lake, target, how, storage_options=options, progress=watch.progress)

        _tell(context, recovery.of_export(carried_out(context, settings, spark, work)))

    return copy


def _verify(settings: LakehouseSettings) -> Any:
    @_op(
        settings,
        "verify",
        "Proves every invariant of the format over the newest version or all that are kept; fails with the findings as "
        "a table, each with what to do. Only reads.",
        pool=False,
    )
    def prove(context: dg.OpExecutionContext, config: launch.VerifyConfig, spark: SparkResource) -> None:
        def work(lake: Lakehouse, watch: Watch) -> verify.Report:
            which = int(config.versions) if config.versions.isdecimal() else config.versions
            how = verify.Config(which, definitions=config.definitions, engine=_engine(settings, config.engine))
            return verify.run(watch.spark, lake, how, watch.progress)

        done = carried_out(context, settings, spark, work)
        metadata = recovery.of_verification(done)
        if not done.ok:
            advice = "See `violations`, each with what to do; most often: roll back to a version that is whole."
            raise dg.Failure(f"{metadata['outcome']}. {advice}", metadata=metadata, allow_retries=False)
        _tell(context, metadata)

    return prove


def _upgrade(settings: LakehouseSettings) -> Any:
    @_op(
        settings,
        "upgrade",
        "Writes the lakehouse, of any generation of the format, as a canonical one at another root, with its history. "
        "The source is only read. With `dry_run: true`, the default, everything is checked and nothing written.",
    )
    def renew(context: dg.OpExecutionContext, config: launch.UpgradeConfig, spark: SparkResource) -> None:
        def work(lake: Lakehouse, watch: Watch) -> upgrade.Report:
            how = upgrade.Config(
                history=config.history,
                definition=_definition(config.definition),
                engine=_engine(settings, config.engine),
                dry_run=config.dry_run,
                before_commit=watch.before_commit,
            )
            target = _target(config.target)
            options = settings.resolved_target_options(target)
            return upgrade.run(watch.spark, lake, target, how, storage_options=options, progress=watch.progress)

        _tell(context, recovery.of_upgrade(carried_out(context, settings, spark, work)))

    return renew


def _target(uri: str) -> str:
    if not uri:
        raise InvalidInput("say where to write to: `target`, a root URI such as s3://backup/lake")
    return uri


def _definition(changed: Mapping[str, Any]) -> Mapping[str, Any]:
    unknown = sorted(changed.keys() - recovery.DEFINITION_FIELDS)
    if unknown:
        raise InvalidInput(
            f"definition: there is no field {', '.join(unknown)}; there are "
            f"{', '.join(sorted(recovery.DEFINITION_FIELDS))}"
        )
    return changed

"""The jobs that people start by hand: rollback, restore, export, verify, upgrade. One step, one pipeline call each.

Where repeating is safe a failing storage is tried again; a rollback or a restore never repeats itself.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import dagster as dg
from pydantic import Field

from dagster_project.assets import key
from dagster_project.config.settings import LAKEHOUSE_TAG, LakehouseSettings
from dagster_project.metadata import health, recovery
from dagster_project.resources import SparkResource
from dagster_project.watched import RETRY, Watch, carried_out
from pipelines import export, restore, rollback, upgrade, verify
from trinitylake_core import InvalidInput, Lakehouse

_RECOVERY: Final = ("rollback", "restore")


# -- what may be chosen in the launchpad ---------------------------------------------------------------

_REASON = Field(description="Why; required, and stands in the history for ever.")
_ENGINE = Field(default=None, description="spark, local or auto, instead of what lakehouses.yaml says.")
_TARGET = Field(
    description="Root URI to write to; its storage options are those of `export` in lakehouses.yaml, or of `backup` if "
    "it is that one's target."
)


class RollbackConfig(dg.Config):
    """Where to roll back to: exactly one of version, timestamp and snapshot."""

    reason: str = _REASON
    version: int | None = Field(default=None, description="The version to go back to.")
    timestamp: str | None = Field(default=None, description="Or the newest version of that time, ISO 8601, UTC.")
    snapshot: str | None = Field(default=None, description="Or the version that has this name.")
    dry_run: bool = Field(default=True, description="Prove the target and show the plan; false carries it out.")
    expected_version: int | None = Field(
        default=None, description="Stop if objects changed after this version, at which the plan was made."
    )
    force: bool = Field(default=False, description="Also undo what somebody commits while this runs.")
    engine: str | None = _ENGINE


class RestoreConfig(dg.Config):
    """Which objects to bring back, and from exactly one of version, timestamp and snapshot."""

    reason: str = _REASON
    only: list[str] = Field(description="Patterns: sales.orders, 'sales.*', or sales, the namespace itself.")
    version: int | None = Field(default=None, description="As they were at this version.")
    timestamp: str | None = Field(default=None, description="Or at a time, ISO 8601, UTC.")
    snapshot: str | None = Field(default=None, description="Or in a snapshot.")
    exact: bool = Field(default=False, description="Also drop objects that match and did not exist then.")
    dry_run: bool = Field(default=True, description="Show what would change; false carries it out.")
    engine: str | None = _ENGINE


class ExportConfig(dg.Config):
    """What to copy, and where to."""

    target: str = _TARGET
    history: bool = Field(default=True, description="Every version that is kept, and the snapshots: a backup.")
    version: int | None = Field(default=None, description="Without history: this version instead of the newest.")
    dry_run: bool = Field(default=False, description="Count what would be copied, and write nothing.")
    engine: str | None = _ENGINE


class VerifyConfig(dg.Config):
    """What to verify."""

    versions: str = Field(default="newest", description="newest, all (that are kept, and snapshots), or a number.")
    definitions: bool = Field(default=True, description="Also read and parse every definition.")
    engine: str | None = _ENGINE


class UpgradeConfig(dg.Config):
    """What to write anew, and where."""

    target: str = _TARGET
    history: bool = Field(default=True, description="Every version that is kept, not only the newest.")
    definition: dict[str, Any] = Field(
        default_factory=dict, description="What differs in the new lakehouse definition, such as order: 128."
    )
    dry_run: bool = Field(default=True, description="Read and check everything, write nothing.")
    engine: str | None = _ENGINE


def defaults(settings: LakehouseSettings) -> dict[str, dict[str, Any]]:
    """Return by job what the launchpad is filled with. What is empty there has to be filled in."""
    target = settings.export.target or ""
    backup = settings.backup.target if settings.backup is not None else ""
    return {
        "rollback": {"version": None, "reason": "", "dry_run": True},
        "restore": {"only": [], "version": None, "reason": "", "exact": False, "dry_run": True},
        "export": {"target": target or backup, "history": True, "dry_run": False},
        "verify": {"versions": "newest", "definitions": True},
        "upgrade": {"target": target, "history": True, "definition": {}, "dry_run": True},
    }


# -- the jobs ------------------------------------------------------------------------------------------


def operations_of(settings: LakehouseSettings) -> list[dg.JobDefinition]:
    """Return the jobs of one lakehouse that people start by hand."""
    made = (_rollback(settings), _restore(settings), _export(settings), _verify(settings), _upgrade(settings))
    return [_job(settings, name, op) for name, op in zip(defaults(settings), made, strict=True)]


def _job(settings: LakehouseSettings, name: str, op: dg.OpDefinition) -> dg.JobDefinition:
    chosen = {"ops": {op.name: {"config": defaults(settings)[name]}}}
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
    def roll_back(context: dg.OpExecutionContext, config: RollbackConfig, spark: SparkResource) -> None:
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
    def bring_back(context: dg.OpExecutionContext, config: RestoreConfig, spark: SparkResource) -> None:
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
    def copy(context: dg.OpExecutionContext, config: ExportConfig, spark: SparkResource) -> None:
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
    def prove(context: dg.OpExecutionContext, config: VerifyConfig, spark: SparkResource) -> None:
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
    def renew(context: dg.OpExecutionContext, config: UpgradeConfig, spark: SparkResource) -> None:
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

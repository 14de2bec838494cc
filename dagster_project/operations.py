"""The jobs that people start by hand: rollback, restore, export, verify, upgrade, alter. One step, one call each.

When the storage fails, a step is retried where repeating is safe; a rollback or a restore never is.
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
from trinitylake_core import Alteration, InvalidInput, Lakehouse, RecoveryTarget
from trinitylake_core.recovery import required

_RECOVERY: Final = ("rollback", "restore")


# -- what may be chosen in the launchpad ---------------------------------------------------------------

_REASON = Field(description="Why; required, and recorded in the history.")
_ENGINE = Field(default=None, description="spark, local or auto; overrides lakehouses.yaml.")
_TARGET = Field(
    description="Root URI to write to. Its storage options are those of `export` in lakehouses.yaml, or those of "
    "`backup` if it is the target of the backup."
)


class RollbackConfig(dg.Config):
    """Where to roll back to: exactly one of version, timestamp and snapshot."""

    reason: str = _REASON
    version: int | None = Field(default=None, description="The version to go back to.")
    timestamp: str | None = Field(
        default=None, description="Or the version that was the newest at that time, ISO 8601, UTC."
    )
    snapshot: str | None = Field(default=None, description="Or the version that this snapshot names.")
    dry_run: bool = Field(default=True, description="Verify the target and show the plan; false carries it out.")
    expected_version: int | None = Field(
        default=None, description="The version at which the plan was made; stop if objects changed after it."
    )
    force: bool = Field(default=False, description="Also undo what is committed while this runs.")
    engine: str | None = _ENGINE


class RestoreConfig(dg.Config):
    """Which objects to bring back, and from exactly one of version, timestamp and snapshot."""

    reason: str = _REASON
    only: list[str] = Field(description="Patterns: sales.orders, 'sales.*', or sales for the namespace itself.")
    version: int | None = Field(default=None, description="As they were at this version.")
    timestamp: str | None = Field(default=None, description="Or as they were at this time, ISO 8601, UTC.")
    snapshot: str | None = Field(default=None, description="Or as they were in this snapshot.")
    exact: bool = Field(default=False, description="Also drop matching objects that did not exist then.")
    dry_run: bool = Field(default=True, description="Show what would change; false carries it out.")
    engine: str | None = _ENGINE


class ExportConfig(dg.Config):
    """What to copy, and where to."""

    target: str = _TARGET
    history: bool = Field(default=True, description="Copy all retained versions and snapshots: a backup.")
    version: int | None = Field(default=None, description="Copy only this version; overrides history.")
    dry_run: bool = Field(default=False, description="Count what would be copied; write nothing.")
    engine: str | None = _ENGINE


class VerifyConfig(dg.Config):
    """What to verify."""

    versions: str = Field(
        default="newest", description="newest, all (all retained versions and snapshots), or a version number."
    )
    definitions: bool = Field(default=True, description="Also read and parse every definition.")
    engine: str | None = _ENGINE


class UpgradeConfig(dg.Config):
    """What to rewrite in the canonical format, and where."""

    target: str = _TARGET
    history: bool = Field(default=True, description="Upgrade all retained versions, not only the newest.")
    definition: dict[str, Any] = Field(
        default_factory=dict, description="Fields to change in the new lakehouse definition, such as order: 128."
    )
    dry_run: bool = Field(default=True, description="Read and check everything; write nothing.")
    engine: str | None = _ENGINE


class AlterConfig(dg.Config):
    """Which properties of the lakehouse to set or to remove."""

    reason: str = _REASON
    properties: dict[str, str] = Field(
        default_factory=dict, description="Values by name, such as maintenance.delete.enabled: 'false'."
    )
    remove: list[str] = Field(default_factory=list, description="Names of properties to remove.")
    dry_run: bool = Field(default=True, description="Show what would change; false carries it out.")


def defaults(settings: LakehouseSettings) -> dict[str, dict[str, Any]]:
    """Return the configuration that the launchpad of each job starts with. Empty fields have to be filled in."""
    target = settings.export.target or ""
    backup = settings.backup.target if settings.backup is not None else ""
    return {
        "rollback": {"version": None, "reason": "", "dry_run": True},
        "restore": {"only": [], "version": None, "reason": "", "exact": False, "dry_run": True},
        "export": {"target": target or backup, "history": True, "dry_run": False},
        "verify": {"versions": "newest", "definitions": True},
        "upgrade": {"target": target, "history": True, "definition": {}, "dry_run": True},
        "alter": {"properties": {}, "remove": [], "reason": "", "dry_run": True},
    }


# -- the jobs ------------------------------------------------------------------------------------------


def operations_of(settings: LakehouseSettings) -> list[dg.JobDefinition]:
    """Return the jobs of one lakehouse that people start by hand."""
    made = tuple(make(settings) for make in (_rollback, _restore, _export, _verify, _upgrade, _alter))
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


def _chosen(settings: LakehouseSettings, config: dg.Config, engine: str | None, watch: Watch) -> dict[str, Any]:
    """Return the launchpad options as arguments of the ``Config`` of a pipeline, whose fields have the same names."""
    return config.model_dump() | {"engine": _engine(settings, engine), "before_commit": watch.before_commit}


def _rollback(settings: LakehouseSettings) -> Any:
    @_op(
        settings,
        "rollback",
        "Returns the whole catalog to an older version, by committing a new version with the same content. Reads and "
        "verifies every file of the target first. Undone versions stay readable. With `dry_run: true`, the default, it "
        "only shows the plan: what would be added, removed and changed, and whose versions would be undone.",
    )
    def roll_back(context: dg.OpExecutionContext, config: RollbackConfig, spark: SparkResource) -> None:
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

        planned, done = carried_out(context, settings, spark, work)
        _tell(context, recovery.of_rollback(planned, done))

    return roll_back


def _restore(settings: LakehouseSettings) -> Any:
    @_op(
        settings,
        "restore",
        "Brings selected objects back as they were at a version, in one ordinary transaction; everything else is left "
        "alone. With `dry_run: true`, the default, it only shows what would change.",
    )
    def bring_back(context: dg.OpExecutionContext, config: RestoreConfig, spark: SparkResource) -> None:
        def work(lake: Lakehouse, watch: Watch) -> tuple[restore.Report, restore.Report]:
            how = restore.Config(**_chosen(settings, config, config.engine, watch))
            planned = restore.plan(watch.spark, lake, how, watch.progress)
            _show(context, planned)
            watch.before_commit()
            return planned, planned if config.dry_run else restore.run(watch.spark, lake, how, watch.progress)

        planned, done = carried_out(context, settings, spark, work)
        _tell(context, recovery.of_restore(planned, done))

    return bring_back


def _target_version(config: RollbackConfig | RestoreConfig) -> dict[str, Any]:
    return RecoveryTarget(config.version, config.timestamp, config.snapshot).keywords()


def _show(context: dg.OpExecutionContext, planned: rollback.Report | restore.Report) -> None:
    """Log the plan, as one event, before anything is done."""
    context.log.info(recovery.plan_text(planned.plan))


def _export(settings: LakehouseSettings) -> Any:
    @_op(
        settings,
        "export",
        "Copies the lakehouse to another root. Repeated, it is an incremental backup: it copies only new files, and "
        "reads each one back to compare it.",
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
        "Checks every invariant of the format, for the newest version or for all. Fails with a table of findings, each "
        "with its remedy. Read-only.",
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
            advice = "See `violations` for the remedy of each; most often: roll back to an intact version."
            raise dg.Failure(f"{metadata['outcome']}. {advice}", metadata=metadata, allow_retries=False)
        _tell(context, metadata)

    return prove


def _upgrade(settings: LakehouseSettings) -> Any:
    @_op(
        settings,
        "upgrade",
        "Rewrites a lakehouse of any format generation in the canonical format at another root, with its history. Only "
        "reads the source. With `dry_run: true`, the default, it checks everything and writes nothing.",
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


def _alter(settings: LakehouseSettings) -> Any:
    @_op(
        settings,
        "alter",
        "Sets or removes properties of the lakehouse, as a new version that conflicts with nothing. "
        "`maintenance.delete.enabled: 'false'` forbids every job to delete, until it is removed or set to 'true'. With "
        "`dry_run: true`, the default, it only shows what would change.",
    )
    def change(context: dg.OpExecutionContext, config: AlterConfig, spark: SparkResource) -> None:
        def work(lake: Lakehouse, watch: Watch) -> Alteration:
            if both := sorted(config.properties.keys() & set(config.remove)):
                raise InvalidInput(f"{', '.join(both)}: either a value or `remove`")
            changed: dict[str, str | None] = {**config.properties, **dict.fromkeys(config.remove)}
            return lake.alter(
                changed, reason=required(config.reason), dry_run=config.dry_run, before_commit=watch.before_commit
            )

        _tell(context, recovery.of_alteration(carried_out(context, settings, spark, work)))

    return change


def _target(uri: str) -> str:
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

"""The assets of a lakehouse, or of a fleet. Each calls one function of ``pipelines`` and reports the result."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import dagster as dg
from pydantic import Field

from dagster_project.config.settings import LAKEHOUSE_TAG, LakehouseSettings
from dagster_project.metadata import health, pictures, reports
from dagster_project.resources import SparkResource, open_lakehouse
from dagster_project.schedule_times import freshness
from dagster_project.scope import Scope
from dagster_project.supervised import (
    RETRY,
    Context,
    Supervisor,
    advice,
    failure,
    permanent,
    run_supervised,
    with_advice,
)
from pipelines import compaction, compaction_policy, export, stats
from pipelines.engine_choice import choose_engine
from pipelines.job import dry_run
from pipelines.trees.sketch import sketch
from trinitylake_core import Corrupt, Lakehouse, TrinityLakeError
from trinitylake_core.spec import QUIET_OPERATIONS

DEFINITION: Final = "lakehouse_definition"
HEALTH: Final = "tree_health"
COMPACTION: Final = "tree_compaction"
BACKUP: Final = "backup"
SNAPSHOTS: Final = "root_version_snapshots"
EXPIRATION: Final = "version_expiration"
ORPHANS: Final = "orphan_removal"
TABLE_HEALTH: Final = "table_health"
TABLE_EXPIRATION: Final = "table_snapshot_expiration"
TABLE_CLEANING: Final = "table_cleaning"
OF_TABLES: Final = (TABLE_HEALTH, TABLE_EXPIRATION, TABLE_CLEANING)
ALL: Final = (HEALTH, COMPACTION, SNAPSHOTS, BACKUP, EXPIRATION, ORPHANS, *OF_TABLES)
"""What maintenance of a fleet may materialise."""
NO_BACKUP: Final = "nothing was copied and nothing was read: lakehouses.yaml has no `backup` for this lakehouse"


if TYPE_CHECKING:
    Result: TypeAlias = dg.MaterializeResult[Any]
else:
    Result = dg.MaterializeResult  # Dagster refuses the annotation with an argument for steps that have checks


class Prefixed(Protocol):
    """What has a prefix of asset keys: the settings of a lakehouse, or a scope."""

    @property
    def key_prefix(self) -> list[str]: ...  # noqa: D102


def key(of: Prefixed, name: str) -> dg.AssetKey:
    """Return the key of an asset of a lakehouse, or of a fleet."""
    return dg.AssetKey([*of.key_prefix, name])


def maintained(settings: LakehouseSettings) -> list[str]:
    """Return the names of the assets that maintenance materialises: those that a lakehouse has policies for."""
    without = {BACKUP: settings.backup, EXPIRATION: settings.retention, ORPHANS: settings.orphans}
    without |= dict.fromkeys(OF_TABLES, settings.tables)
    return [name for name in ALL if name not in without or without[name] is not None]


def assets_of(scope: Scope) -> list[dg.AssetsDefinition | dg.AssetSpec]:
    """Return the assets that observe, measure, compact and back up."""
    backups = [] if scope.known is not None and scope.known.backup is None else [backup_asset(scope)]
    return [definition_of(scope), tree_health(scope), tree_compaction(scope), *backups]


def reading(
    scope: Scope, name: str, *, after: Sequence[str], description: str, on_spark: bool = False, **more: Any
) -> Callable[[Callable[..., Any]], dg.AssetsDefinition]:
    """Return the decorator of an asset of a lakehouse, which is retried if the storage fails."""
    decorator: Callable[[Callable[..., Any]], dg.AssetsDefinition] = dg.asset(
        key=key(scope, name),
        deps=[key(scope, each) for each in after],
        description=description,
        retry_policy=RETRY,
        group_name=scope.slug,
        owners=scope.owners,
        kinds={"trinitylake", "spark"} if on_spark else {"trinitylake"},
        tags=scope.tags,
        partitions_def=scope.partitions,
        **more,
    )
    return decorator


def writing(
    scope: Scope, name: str, *, on_spark: bool = True, **more: Any
) -> Callable[[Callable[..., Any]], dg.AssetsDefinition]:
    """Return the decorator of an asset that writes to a lakehouse, one at a time."""
    return reading(scope, name, on_spark=on_spark, pool=scope.pool, **more)


def definition_of(scope: Scope) -> dg.AssetsDefinition | dg.AssetSpec:
    """Return the asset that stands for a lakehouse as its writers left it. In a fleet only the sensor observes it."""
    if scope.known is not None:
        return lakehouse_definition(scope.known)
    return dg.AssetSpec(
        key(scope, DEFINITION),
        description="A TrinityLake lakehouse with many concurrent writers. Observed by the sensor, never materialised; "
        "its data version is the number of the newest version that changed objects.",
        group_name=scope.slug,
        kinds={"trinitylake"},
        partitions_def=scope.partitions,
    )


def lakehouse_definition(settings: LakehouseSettings) -> dg.AssetsDefinition:
    """Return the asset that stands for one lakehouse, which a run can observe, too."""
    asset_key = key(settings, DEFINITION)
    where = settings.description or "A TrinityLake lakehouse with many concurrent writers."
    spec = dg.AssetSpec(
        asset_key,
        description=f"{where}\n\nRoot: `{settings.root}`. Observed, never materialised; its data version is the "
        "number of the newest version that changed objects.",
        metadata={"root": settings.root, "dagster/uri": settings.root},
        group_name=settings.slug,
        owners=settings.owners,
        kinds={"trinitylake"},
        tags={LAKEHOUSE_TAG: settings.slug},
    )

    def observe() -> Iterator[dg.ObserveResult]:
        try:
            lake = open_lakehouse(settings)
        except TrinityLakeError as error:  # such an asset takes no retry policy
            if permanent(error):
                raise failure(error) from error
            raise dg.RetryRequested(RETRY.max_retries, RETRY.delay) from failure(error)
        yield observation(asset_key, lake)

    with warnings.catch_warnings():  # still in beta, but the only way to observe an asset in a job
        warnings.simplefilter("ignore", dg.BetaWarning)
        decorate = dg.multi_observable_source_asset(specs=[spec], name=asset_key.to_python_identifier())
        asset: dg.AssetsDefinition = decorate(observe)
    return asset


def observation(asset: dg.AssetKey, lake: Lakehouse, more: reports.Metadata | None = None) -> dg.ObserveResult:
    """Return an observation of the newest version."""
    return dg.ObserveResult(
        asset_key=asset,
        data_version=dg.DataVersion(str(content_version(lake))),
        metadata=health.of_stats(lake.stats()) | health.of_definition(lake.definition) | (more or {}),
    )


def content_version(lake: Lakehouse) -> int:
    """Return the newest version that changed objects; the newest of all if none of the last 64 did.

    What maintenance commits changes no object: were it a new data version, every asset downstream would count as
    outdated by the run that has just brought it up to date. One ``get`` for each version of maintenance since.
    """
    try:
        versions = lake.history(limit=64)
        return next((each.version for each in versions if each.operation not in QUIET_OPERATIONS), lake.version)
    except TrinityLakeError:  # an older root is damaged, which `verify` reports
        return lake.version


def tree_health(scope: Scope) -> dg.AssetsDefinition:
    """Return the asset that measures the tree."""

    @reading(
        scope,
        HEALTH,
        after=[DEFINITION],
        description="The state of the tree: objects, height, buffered messages (the debt that a compaction pays off), "
        "nodes and bytes per level, reads per lookup, and the cost of a compaction now. Numbers are plotted over time. "
        "A damaged node is reported with advice instead of them. Terminating the run stops Spark.",
        freshness_policy=freshness(scope.known),
    )
    def measured(context: dg.AssetExecutionContext, spark: SparkResource) -> dg.MaterializeResult[Any]:
        settings = settings_of(scope, context)

        def work(lake: Lakehouse, watch: Supervisor) -> dg.MaterializeResult[Any]:
            metadata = reports.with_sizes(_health(lake, settings, watch))
            return dg.MaterializeResult(metadata=metadata, data_version=dg.DataVersion(str(lake.version)))

        return run_supervised(context, settings, spark, work)

    return measured


def _health(lake: Lakehouse, settings: LakehouseSettings, watch: Supervisor) -> reports.Metadata:
    """Return the figures of the tree; those of the root alone, with advice, where a node is damaged."""
    summary = lake.stats()
    if not settings.health.levels:
        return health.of_stats(summary)
    engine = choose_engine("auto", watch.spark, summary.objects or 0, settings.health.spark_from_objects)
    try:
        picture = pictures.tree(sketch(lake), f"version {lake.version}")
        deep = stats.deep(lake, engine, watch.progress)
        return {"picture": picture} | health.of_deep(deep)
    except Corrupt as error:  # the integrity check runs next and reports everything that is broken
        return health.of_stats(summary) | {"levels_not_measured": f"{error}\n{advice(error)}"}


def settings_of(scope: Scope, context: Context) -> LakehouseSettings:
    """Return the settings that a run is for. Raises ``dagster.Failure`` with advice."""
    with with_advice():
        return scope.settings(context)


def tree_compaction(scope: Scope) -> dg.AssetsDefinition:
    """Return the asset that pushes the write buffers down."""

    @writing(
        scope,
        COMPACTION,
        after=[HEALTH],
        description="Pushes all buffered messages down to the nodes where their keys live. Reads and rewrites only "
        "nodes that have messages waiting, and proves that the content is unchanged before it commits. Terminating the "
        "run stops Spark; nothing is committed.",
    )
    def compacted(
        context: dg.AssetExecutionContext, config: CompactionConfig, spark: SparkResource
    ) -> dg.MaterializeResult[Any]:
        settings = settings_of(scope, context)

        def work(lake: Lakehouse, watch: Supervisor) -> compaction.Report:
            how = compaction.Config(engine=config.engine or settings.compaction.engine, reason=config.reason)
            review = dry_run if config.dry_run else None
            return compaction.run(lake, how, watch.spark, review=review, cancel=watch, progress=watch.progress)

        report = run_supervised(context, settings, spark, work, timeout=settings.compaction.timeout)
        return dg.MaterializeResult(
            metadata=reports.of_report(report, **_before_and_after(settings, report)),
            data_version=dg.DataVersion(str(report.version_after or report.version_before)),
        )

    return compacted


class CompactionConfig(dg.Config):
    """The launchpad options of one compaction."""

    reason: str = "maintenance"
    engine: str | None = None
    dry_run: bool = False


def _before_and_after(settings: LakehouseSettings, report: compaction.Report) -> reports.Metadata:
    if report.version_after is None:
        return {}
    try:
        lake = open_lakehouse(settings)
        both = {"before": lake.at(version=report.version_before), "after": lake.at(version=report.version_after)}
        picture = pictures.trees([(f"{when}: version {each.version}", sketch(each)) for when, each in both.items()])
        gain = compaction_policy.compare(both["before"], both["after"], report)
    except TrinityLakeError as error:  # the compaction is committed: a missing picture must not fail it
        return {"picture_not_drawn": str(error)}
    return {"picture": picture} | health.of_gains(gain)


class BackupConfig(dg.Config):
    """The launchpad options of one backup."""

    engine: str | None = Field(default=None, description="spark, local or auto; overrides lakehouses.yaml.")


def backup_asset(scope: Scope) -> dg.AssetsDefinition:
    """Return the asset that copies new files to the backup."""
    known = None if scope.known is None else scope.known.backup
    where = "" if known is None else f" at `{known.target}`"

    @writing(
        scope,
        BACKUP,
        after=[SNAPSHOTS],
        description=f"A complete copy{where}, with all retained versions and all snapshots; it opens as "
        "a lakehouse of its own. Copies only new files, and reads each one back to compare it. Versions expire only "
        "after they have been copied.",
        metadata={} if known is None else {"target": known.target},
        freshness_policy=freshness(scope.known),
    )
    def backed_up(
        context: dg.AssetExecutionContext, config: BackupConfig, spark: SparkResource
    ) -> dg.MaterializeResult[Any]:
        settings = settings_of(scope, context)
        policy = settings.backup
        if policy is None:  # maintenance of a fleet, launched by hand, materialises every asset
            context.log.info(NO_BACKUP)
            return dg.MaterializeResult(metadata={"outcome": NO_BACKUP})

        def work(lake: Lakehouse, watch: Supervisor) -> export.Report:
            how = export.Config(
                history=True,
                engine=config.engine or settings.compaction.engine,
            )
            options = settings.resolved_target_options(policy.target)
            return export.run(
                lake, policy.target, how, watch.spark, storage_options=options, cancel=watch, progress=watch.progress
            )

        done = run_supervised(context, settings, spark, work)
        metadata = reports.of_report(done)
        context.log.info(metadata["outcome"])
        return dg.MaterializeResult(metadata=metadata, data_version=dg.DataVersion(str(done.plan.version)))

    return backed_up

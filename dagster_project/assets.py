"""The assets of a lakehouse, or of a fleet. Each calls one function of ``pipelines`` and reports the result."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import dagster as dg

from dagster_project import idle, launchpad
from dagster_project.config.settings import LakehouseSettings
from dagster_project.metadata import pictures, reports
from dagster_project.resources import SparkResource, open_lakehouse
from dagster_project.schedule_times import freshness
from dagster_project.scope import PARTITION_TAG, Scope, last_evaluation
from dagster_project.supervised import (
    DRY_RUN_TAG,
    RETRY,
    Context,
    Launch,
    Supervisor,
    advice,
    failure,
    is_permanent,
    open_for_run,
    run_supervised,
    tag_plan,
    with_advice,
)
from pipelines import compaction, export, stats
from pipelines.engine.choice import choose_engine
from pipelines.reports.sketch import sketch
from pipelines.trees.policy import settle_due
from trinitylake_core import Corrupt, Lakehouse, TrinityLakeError, clock

DEFINITION: Final = "lakehouse_definition"
HEALTH: Final = "tree_health"
COMPACTION: Final = "tree_compaction"
BACKUP: Final = "backup"
SNAPSHOTS: Final = "root_version_snapshots"
EXPIRATION: Final = "version_expiration"
ORPHANS: Final = "orphan_removal"
TABLE_HEALTH: Final = "table_health"
TABLE_COMPACTION: Final = "table_compaction"
TABLE_EXPIRATION: Final = "table_snapshot_expiration"
TABLE_CLEANING: Final = "table_cleaning"
OF_TABLES: Final = (TABLE_HEALTH, TABLE_EXPIRATION, TABLE_CLEANING)
"""The assets of each lakehouse that has ``tables`` in lakehouses.yaml. Their jobs: ``TABLE_JOBS`` of ``factory.py``."""
ALL: Final = (HEALTH, COMPACTION, SNAPSHOTS, BACKUP, EXPIRATION, ORPHANS, *OF_TABLES, TABLE_COMPACTION)
"""What maintenance of a fleet may materialise."""
INTEGRITY: Final = "integrity"
BACKUP_VERIFIED: Final = "backup_verified"
GATES: Final = {HEALTH: INTEGRITY, BACKUP: BACKUP_VERIFIED}
"""The checks of severity ERROR, by asset: while the last evaluation of one has failed, nothing is deleted.

``integrity`` only warns where every finding is in a snapshot, and ``backup_verified`` where the lakehouse has lost the
same: what does not delete goes on.

``reachable`` is not among them, because each step opens the lakehouse itself, which is newer evidence. What concerns
single tables is of severity WARN: one damaged table stops the maintenance of no other."""
NO_BACKUP: Final = "nothing was copied and nothing was read: lakehouses.yaml has no `backup` for this lakehouse"


_LAST_RUNS: Final = 8
"""So many runs of an asset are looked through for one that drew something and was no dry run."""
PREDICTED: Final = "predicted_and_measured"
"""The table of a compaction's report that the page of the asset shows with what the compaction saves, too."""
DRAWN: Final = (dg.MarkdownMetadataValue, dg.TableMetadataValue)
"""The kinds of metadata that a run without work keeps from the last one that had some."""

if TYPE_CHECKING:
    Result: TypeAlias = dg.MaterializeResult[Any]
else:
    Result = dg.MaterializeResult  # Dagster refuses the annotation with an argument for steps that have checks


def key(of: LakehouseSettings | Scope, name: str) -> dg.AssetKey:
    """Return the key of an asset of a lakehouse, or of a fleet."""
    return dg.AssetKey([*of.key_prefix, name])


def list_maintained_assets(settings: LakehouseSettings) -> list[str]:
    """Return the names of the assets that maintenance materialises: those that a lakehouse has policies for."""
    without: dict[str, object] = {BACKUP: settings.backup, EXPIRATION: settings.retention, ORPHANS: settings.orphans}
    without |= dict.fromkeys(OF_TABLES, settings.tables)
    without[TABLE_COMPACTION] = None if settings.tables is None else settings.tables.compact
    return [name for name in ALL if name not in without or without[name] is not None]


def assets_of(scope: Scope) -> list[dg.AssetsDefinition | dg.AssetSpec]:
    """Return the assets that observe, measure, compact and back up."""
    backups = [] if scope.known is not None and scope.known.backup is None else [backup_asset(scope)]
    return [lakehouse_definition(scope), tree_health(scope), tree_compaction(scope), *backups]


@dataclass(frozen=True, slots=True)
class Options:
    """The options of the assets; each has some of them in its launchpad.

    Attributes:
        reason: recorded in the history.
        engine: spark, local or auto.
        dry_run: show what would be done; change nothing.
        full: push every message all the way, whatever that rewrites.
        delete_without_policy: delete by the default policy where lakehouses.yaml has none for this lakehouse.
    """

    reason: str = "maintenance"
    engine: str | None = None
    dry_run: bool = False
    full: bool = False
    delete_without_policy: bool = False


def step(
    scope: Scope,
    name: str,
    work: Callable[[Launch], Result],
    *,
    after: Sequence[str],
    description: str,
    options: Mapping[str, Any] = MappingProxyType({}),
    policy: str | None = None,
    without: str = "",
    deletes: bool = False,
    writes: bool = True,
    on_spark: bool = True,
    **more: Any,
) -> dg.AssetsDefinition:
    """Return an asset, whose step opens the lakehouse and does one thing with it. It is retried if the storage fails.

    A dry run is an observation of the asset, with the tag of a plan: it replaces no page of what was done, passes no
    check, and what depends on the step is skipped in its run.

    Args:
        scope, name, work, after, description: what it is, does and follows.
        options: those of :class:`Options` that its launchpad has, with their defaults.
        policy: the field of lakehouses.yaml without which the step does nothing, unless it is asked to by an option.
        without: the outcome where there is no policy.
        deletes: whether it is refused after a failed check of :data:`GATES`, unless it is a dry run.
        writes: whether one run at a time does it.
        on_spark: whether it may start Spark, where lakehouses.yaml lets it: that is the badge of the asset.
        more: further arguments of the asset.
    """
    specs: Sequence[dg.AssetCheckSpec] = more.get("check_specs", ())
    passed = []
    for each in specs:
        passed.append(dg.AssetCheckResult(check_name=each.name, passed=True, description="nothing was read"))
    decorate: Callable[[Callable[..., Iterator[Any]]], dg.AssetsDefinition] = dg.asset(
        key=key(scope, name),
        deps=[key(scope, each) for each in after],
        description=description,
        config_schema=launchpad.fields_of(Options, options, options) if options else None,
        retry_policy=RETRY,
        group_name=scope.slug,
        owners=scope.owners,
        kinds={"trinitylake", "spark"} if on_spark and may_use_spark(scope, name) else {"trinitylake"},
        tags=scope.tags,
        partitions_def=scope.partitions,
        pool=scope.pool if writes else None,
        output_required="dry_run" not in options,
        **more,
    )

    def record(context: dg.AssetExecutionContext, spark: SparkResource) -> Iterator[Any]:
        chosen = Options(**(context.op_execution_context.op_config if options else {}))
        result = carry_out(context, spark, chosen)
        yield _observe_plan(context, result) if chosen.dry_run else result
        if result.check_results and not chosen.dry_run:
            return
        for each in specs:  # Dagster asks for these outputs; they are evaluations of checks only where they are results
            yield dg.Output(None, each.get_python_identifier())

    def carry_out(context: dg.AssetExecutionContext, spark: SparkResource, chosen: Options) -> Result:
        settings = settings_of(scope, context)
        asked = chosen.delete_without_policy or chosen.dry_run
        if chosen.dry_run:
            tag_plan(context)
        if policy is not None and getattr(settings, policy) is None and not asked:
            context.log.info(without)
            return dg.MaterializeResult(metadata={"outcome": without}, check_results=passed)
        if deletes and not chosen.dry_run:
            kept = refuse_after_failed_checks(context, scope, settings)
            if kept is not None:
                context.log.warning(kept)
                return dg.MaterializeResult(metadata={"outcome": kept})  # its checks stay as they were evaluated last

        def work_on_lakehouse(lake: Lakehouse, watch: Supervisor) -> Result:
            content = idle.find_content_version(lake)
            partition = context.run.tags.get(PARTITION_TAG)
            is_idle = idle.has_seen(context.instance, context.asset_key, partition, content)
            launch = Launch(lake, settings, chosen, chosen.dry_run, context, watch, is_idle=is_idle)
            result = work(launch)
            metadata = dict(result.metadata or {})
            metadata |= launch.engine_metadata()
            metadata[idle.CONTENT] = content
            return result._replace(metadata=metadata)

        timeout = settings.compaction.timeout if name == COMPACTION else settings.timeout
        return run_supervised(context, settings, spark, work_on_lakehouse, timeout=timeout)

    return decorate(record)


def _observe_plan(context: dg.AssetExecutionContext, planned: Result) -> dg.AssetObservation:
    """Return what is recorded of a dry run."""
    partition = context.run.tags.get(PARTITION_TAG)
    tags = {DRY_RUN_TAG: "true"}
    return dg.AssetObservation(context.asset_key, partition=partition, metadata=planned.metadata, tags=tags)


def page_of_idle_run(launch: Launch, metadata: reports.Metadata) -> reports.Metadata:
    """Return the page of a run that had nothing to do: its metadata, and what the last run that did something drew.

    Dagster shows the newest materialisation, so a run without work would wipe the picture and the tables. No engine is
    named, because none ran. One query.
    """
    context = launch.context
    shown = {name: each for name, each in metadata.items() if name not in {"engine", "plan_engine"}}
    if not isinstance(context, dg.AssetExecutionContext):
        return shown
    partition = context.run.tags.get(PARTITION_TAG)
    only = dg.AssetRecordsFilter(context.asset_key, asset_partitions=None if partition is None else [partition])
    for record in context.instance.fetch_materializations(only, limit=_LAST_RUNS).records:
        last = record.asset_materialization
        if last is not None and not _is_dry(last):
            drawn = {name: each for name, each in last.metadata.items() if isinstance(each, DRAWN)}
            return drawn | shown
    return shown


def _is_dry(made: dg.AssetMaterialization) -> bool:
    """Whether a record is of a dry run: version 0.1.0 recorded those as what was done."""
    dry = made.metadata.get("dry_run")
    return dry is not None and bool(dry.value)


def refuse_after_failed_checks(
    context: dg.AssetExecutionContext, scope: Scope, settings: LakehouseSettings
) -> str | None:
    """Stop if a gate failed when it was evaluated last, in whichever run.

    In a run that evaluates the check, the check itself blocks what follows; this is for later runs, and for those that
    only delete. One query for each gate. Raises ``dagster.Failure`` with the findings and what to do. Where a gate only
    warns, nothing but deletion has to wait: returns why nothing is deleted.
    """
    partition = context.run.tags.get(PARTITION_TAG)
    kept = None
    for asset, check in GATES.items():
        if asset == BACKUP and settings.backup is None:
            continue  # a backup that lakehouses.yaml no longer asks for is no reason to keep versions
        last = last_evaluation(context.instance, key(scope, asset), check, partition)
        if last is None or last.passed:
            continue
        why = (
            f"nothing was deleted: the last {check} check of this lakehouse failed: {last.description}\n"
            f"When that is repaired, materialise `{asset}` with its check again."
        )
        if last.severity is dg.AssetCheckSeverity.ERROR:
            raise dg.Failure(why, allow_retries=False)
        kept = why
    return kept


def lakehouse_definition(scope: Scope) -> dg.AssetsDefinition | dg.AssetSpec:
    """Return the asset that stands for a lakehouse as its writers left it.

    In a fleet only the sensor observes it; a run can observe that of one lakehouse, too.
    """
    known, asset_key = scope.known, key(scope, DEFINITION)
    where = known.description if known is not None else None
    root = "" if known is None else f"Root: `{known.root}`. "
    spec = dg.AssetSpec(
        asset_key,
        description=f"{where or 'A TrinityLake lakehouse with many concurrent writers.'}\n\n{root}Observed, never "
        "materialised; its data version is the number of the newest version that changed objects.",
        metadata={} if known is None else {"root": known.root, "dagster/uri": known.root},
        group_name=scope.slug,
        owners=scope.owners,
        kinds={"trinitylake"},
        tags=scope.tags,
        partitions_def=scope.partitions,
    )
    if known is None:
        return spec

    def observe() -> Iterator[dg.ObserveResult]:
        try:
            lake = open_for_run(known)
        except TrinityLakeError as error:  # such an asset takes no retry policy
            if is_permanent(error):
                raise failure(error) from error
            raise dg.RetryRequested(RETRY.max_retries, RETRY.delay) from failure(error)
        yield observation(asset_key, lake)

    with warnings.catch_warnings():  # still in beta, but the only way to observe an asset in a job
        warnings.simplefilter("ignore", dg.BetaWarning)
        decorate = dg.multi_observable_source_asset(specs=[spec], name=asset_key.to_python_identifier())
        asset: dg.AssetsDefinition = decorate(observe)
    return asset


def observation(asset: dg.AssetKey, lake: Lakehouse, more: reports.Metadata | None = None) -> dg.ObserveResult:
    """Return an observation of the newest version.

    Its data version is the newest version that changed objects; the newest of all if none of the last 64 did. What
    maintenance commits changes no object: were it a new data version, every asset downstream would count as outdated
    by the run that has just brought it up to date. One ``get`` for each version of maintenance since.
    """
    return dg.ObserveResult(
        asset_key=asset,
        data_version=dg.DataVersion(idle.find_content_version(lake).split()[0]),
        metadata=reports.of_stats(lake.stats()) | reports.of_definition(lake.definition) | (more or {}),
    )


def may_use_spark(scope: Scope, name: str) -> bool:
    """Whether the engine of a step may be Spark: by lakehouses.yaml, or in a fleet by the stanza of a lakehouse."""
    settings = scope.known
    if settings is None:
        return True
    if name == TABLE_COMPACTION:
        tables = settings.tables
        return tables is None or tables.compact is None or tables.compact.engine != "local"
    return settings.compaction.engine != "local"


def settings_of(scope: Scope, context: Context) -> LakehouseSettings:
    """Return the settings that a run is for. Raises ``dagster.Failure`` with advice."""
    with with_advice():
        return scope.settings(context)


def tree_health(scope: Scope) -> dg.AssetsDefinition:
    """Return the asset that measures the tree."""
    return step(
        scope,
        HEALTH,
        _measure_tree,
        after=[DEFINITION],
        description="The state of the tree: objects, height, buffered messages (the debt that a compaction pays off), "
        "nodes and bytes per level, reads per lookup, and the cost of a compaction now. Numbers are plotted over time. "
        "A damaged node is reported with advice instead of them. Terminating the run stops Spark.",
        writes=False,
        on_spark=False,
        freshness_policy=freshness(scope.known),
    )


def _measure_tree(launch: Launch) -> Result:
    """Measure the tree; from the root alone, with advice, where a node is damaged."""
    lake, watch, how = launch.lake, launch.supervisor, launch.settings.health
    summary = lake.stats()
    threshold = launch.settings.compaction.messages
    verdict: reports.Metadata = {"verdict": reports.judge_tree(summary, threshold)}
    figures = verdict | reports.of_stats(summary)
    if how.levels:
        engine = choose_engine("auto", watch.spark, summary.objects or 0, how.spark_from_objects)
        try:
            picture = pictures.trees([(f"version {lake.version}", sketch(lake))])
            levels = stats.deep(lake, engine, watch.progress)
            figures = verdict | {"picture": picture} | reports.of_deep(levels)
        except Corrupt as error:  # the integrity check runs next and reports everything that is broken
            figures |= {"verdict": "damaged: a file cannot be read", "levels_not_measured": f"{error}\n{advice(error)}"}
    return dg.MaterializeResult(metadata=reports.with_sizes(figures), data_version=dg.DataVersion(str(lake.version)))


def tree_compaction(scope: Scope) -> dg.AssetsDefinition:
    """Return the asset that pushes the write buffers down."""
    return step(
        scope,
        COMPACTION,
        _compact_tree,
        after=[HEALTH],
        description="Pushes buffered messages down, towards the nodes where their keys live, as far as that is worth "
        "rewriting nodes; all of them, with `full` or once per `compaction.settle`. Reads and rewrites only "
        "nodes that have messages waiting, and proves that the content is unchanged before it commits. Terminating the "
        "run stops Spark; nothing is committed.",
        options={"reason": "maintenance", "engine": None, "dry_run": False, "full": False},
    )


def _compact_tree(launch: Launch) -> Result:
    settle = launch.settings.compaction.settle
    seconds = None if settle is None else settle.total_seconds()
    full = launch.options.full or settle_due(launch.lake, seconds, clock.now_millis())
    how = compaction.Config(engine=launch.engine, full=full, reason=launch.options.reason)
    report = compaction.run(launch.lake, how, launch.spark, **launch.writes)
    more: reports.Metadata = {}
    gains: reports.Metadata = {}
    if report.version_after is not None:
        try:
            lake = open_lakehouse(launch.settings)
            before, after = lake.at(version=report.version_before), lake.at(version=report.version_after)
            shown = [
                (f"{when}: version {each.version}", sketch(each))
                for when, each in (("before", before), ("after", after))
            ]
            more = {"picture": pictures.trees(shown)}
            gains = {PREDICTED: reports.of_gains(before, after, report)}
        except TrinityLakeError as error:  # the compaction is committed: a missing picture must not fail it
            more = {"picture_not_drawn": str(error)}
    metadata = reports.of_report(report, **more) | gains
    if report.version_after is None and not launch.dry:
        # a row of zeros in the plots of what compactions rewrote says less than none
        metadata = page_of_idle_run(launch, {"outcome": metadata["outcome"]})
    return dg.MaterializeResult(
        metadata=metadata,
        data_version=dg.DataVersion(str(report.version_after or report.version_before)),
    )


def backup_asset(scope: Scope) -> dg.AssetsDefinition:
    """Return the asset that copies new files to the backup."""
    known = None if scope.known is None else scope.known.backup
    where = "" if known is None else f" at `{known.target}`"
    return step(
        scope,
        BACKUP,
        _back_up,
        after=[SNAPSHOTS],
        description=f"A complete copy{where}, with all retained versions and all snapshots; it opens as "
        "a lakehouse of its own. Copies only new files, and reads each one back to compare it. Versions expire only "
        "after they have been copied.",
        options={"engine": None},
        policy="backup",
        without=NO_BACKUP,
        metadata={} if known is None else {"target": known.target},
        freshness_policy=freshness(scope.known),
    )


def _back_up(launch: Launch) -> Result:
    policy = launch.settings.backup
    if policy is None:
        target = ""
        tables = False
    else:
        target = policy.target
        tables = policy.tables
    there = launch.settings.resolved_target_options(target)
    how = export.Config(history=True, tables=tables, engine=launch.engine)
    done = export.run(launch.lake, target, how, launch.spark, **launch.writes, storage_options=there)
    metadata = reports.of_report(done)
    launch.context.log.info(metadata["outcome"])
    version = dg.DataVersion(str(done.plan.version))
    return dg.MaterializeResult(metadata=metadata, data_version=version)

"""The asset checks of a lakehouse, or of a fleet.

``integrity`` and ``backup_verified`` read nodes. The others judge the newest root alone. Dagster evaluates a check when
its asset is materialised; an asset that is no longer materialised would keep its last result for ever, so the
sensor evaluates these, too, and records every result that changes.
"""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import dagster as dg

from dagster_project.assets import BACKUP, COMPACTION, DEFINITION, HEALTH, NO_BACKUP, SNAPSHOTS, key, settings_of
from dagster_project.check_results import (
    BACKUP_VERIFIED,
    COMPACTION_FRESH,
    DEBT,
    INTEGRITY,
    NOT_FROZEN,
    REACHABLE,
    SNAPSHOTS_FRESH,
    evaluate_compactions,
    evaluate_debt,
    evaluate_freeze,
    evaluate_snapshots,
    evaluate_unreachable,
    opened,
)
from dagster_project.config.settings import Backup, LakehouseSettings
from dagster_project.config.values import format_duration
from dagster_project.metadata import reports
from dagster_project.poll import trouble_of
from dagster_project.resources import SparkResource, open_lakehouse
from dagster_project.scope import Scope
from dagster_project.supervised import RETRY, Supervisor, run_supervised, with_advice
from pipelines import backup, verify
from pipelines.engine_choice import choose_engine
from trinitylake_core import Lakehouse, TrinityLakeError

REPAIR = "Run the job `verify`, then `rollback` to an intact version, or restore from an export."


def checks_of(scope: Scope) -> list[dg.AssetChecksDefinition]:
    """Return the asset checks."""
    known = scope.known
    with warnings.catch_warnings():  # checks of partitions are a preview in Dagster 1.13
        warnings.simplefilter("ignore", dg.PreviewWarning)
        found = [reachable(scope), integrity(scope), *_of_the_root(scope)]
        found += [backup_verified(scope)] if known is None or known.backup is not None else []
    return found


def _of_the_root(scope: Scope) -> Iterator[dg.AssetChecksDefinition]:
    """Yield the checks that judge the newest root alone. The sensor evaluates them, too."""
    known = scope.known
    messages = "as many messages" if known is None else f"{known.compaction.messages:,} or more messages"
    age = "compaction.max_age" if known is None else format_duration(known.compaction.max_age)
    required = "" if known is None else f" ({', '.join(known.snapshots)})"
    yield _judged(
        scope,
        DEFINITION,
        NOT_FROZEN,
        "Warns while the lakehouse is frozen, and shows by whom, why and until when.",
        lambda _, lake: evaluate_freeze(lake),
    )
    yield _judged(
        scope,
        COMPACTION,
        DEBT,
        f"Warns when {messages} are buffered, the threshold from which a compaction pays, and shows what a compaction "
        "would rewrite.",
        evaluate_debt,
    )
    yield _judged(
        scope,
        COMPACTION,
        COMPACTION_FRESH,
        f"Warns when the backlog stayed above the threshold for {age}. Judged from the history of the lakehouse, so it "
        "does not matter which program runs compactions; a lakehouse without a backlog is never stale.",
        evaluate_compactions,
    )
    if known is None or known.snapshots:
        text = f"Warns when a required snapshot{required} is still missing after its grace period."
        yield _judged(scope, SNAPSHOTS, SNAPSHOTS_FRESH, text, evaluate_snapshots)


def reachable(scope: Scope) -> dg.AssetChecksDefinition:
    """Return the check that the lakehouse can be opened. The sensor evaluates it; no job waits for it.

    It is on the first asset that is materialised: Dagster's graph shows no failed check of one that is only observed.
    """

    @dg.asset_check(
        asset=key(scope, HEALTH),
        name=REACHABLE,
        partitions_def=scope.partitions,
        description="Fails when the lakehouse cannot be opened: nothing at its root, no access, no answer, or a "
        "damaged newest version. Says why, and what to do. Evaluated by the sensor, which also tells the webhook, "
        "once.",
    )
    def check(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        settings: LakehouseSettings | None = None
        try:
            settings = scope.settings(context)
            lake = open_lakehouse(settings)
        except TrinityLakeError as error:
            trouble = trouble_of(error, settings)
            return evaluate_unreachable(trouble.cause, trouble.advice)
        return opened(lake.version)

    return check


def integrity(scope: Scope) -> dg.AssetChecksDefinition:
    """Return the check that the newest version breaks no invariant. It blocks everything downstream."""

    @dg.asset_check(
        asset=key(scope, HEALTH),
        name=INTEGRITY,
        blocking=True,
        partitions_def=scope.partitions,
        retry_policy=RETRY,
        description="Reads every node of the newest version and checks every invariant of the format. Lists each "
        "finding with its remedy. A finding blocks everything that rewrites or deletes.",
    )
    def check(context: dg.AssetCheckExecutionContext, spark: SparkResource) -> Any:
        settings = settings_of(scope, context)

        def work(lake: Lakehouse, watch: Supervisor) -> verify.Report:
            health = settings.health
            engine = choose_engine("auto", watch.spark, lake.stats().objects or 0, health.spark_from_objects)
            how = verify.Config(engine=engine.name, tables=health.tables or None)
            return verify.run(lake, how, watch.spark, progress=watch.progress)

        found = run_supervised(context, settings, spark, work)
        metadata = reports.of_report(found)
        yield dg.AssetCheckResult(passed=found.ok, metadata=metadata, description=metadata["outcome"])
        if not found.ok:  # or Dagster would only report that a blocking check failed
            text = f"nothing that rewrites or deletes was started: {reports.text_of(found, 3)}\n{REPAIR}"
            raise dg.Failure(text, metadata=metadata, allow_retries=False)

    return check


def _judged(
    scope: Scope,
    asset: str,
    name: str,
    description: str,
    judge: Callable[[LakehouseSettings, Lakehouse], dg.AssetCheckResult],
) -> dg.AssetChecksDefinition:
    """Return a check that opens the lakehouse and judges its newest root."""
    text = f"{description} Also evaluated by the sensor."

    @dg.asset_check(asset=key(scope, asset), name=name, description=text, partitions_def=scope.partitions)
    def check(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        with with_advice():
            settings = scope.settings(context)
            return judge(settings, open_lakehouse(settings))

    return check


def backup_verified(scope: Scope) -> dg.AssetChecksDefinition:
    """Return the check that the backup could replace the lakehouse."""
    known = None if scope.known is None else scope.known.backup
    where = "" if known is None else f" at `{known.target}`"
    age = "backup.max_age" if known is None else format_duration(known.max_age)

    @dg.asset_check(
        asset=key(scope, BACKUP),
        name=BACKUP_VERIFIED,
        retry_policy=RETRY,
        partitions_def=scope.partitions,
        description=f"Proves that the backup{where} could replace the lakehouse: its newest version has the same "
        "content digest in both places, it breaks no invariant, and no version has been waiting to be backed up for "
        f"more than {age}.",
    )
    def check(context: dg.AssetCheckExecutionContext, spark: SparkResource) -> dg.AssetCheckResult:
        settings = settings_of(scope, context)
        policy = settings.backup
        if policy is None:
            return dg.AssetCheckResult(passed=True, description=NO_BACKUP)

        def work(lake: Lakehouse, watch: Supervisor) -> backup.Report:
            return proved(settings, policy, lake, watch)

        found = run_supervised(context, settings, spark, work)
        return dg.AssetCheckResult(
            passed=found.ok, metadata=reports.of_report(found), description="\n".join(found.summary())
        )

    return check


def proved(settings: LakehouseSettings, policy: Backup, lake: Lakehouse, watch: Supervisor) -> backup.Report:
    """Return the report on the state of the backup."""
    how = backup.Config(
        max_age_seconds=policy.max_age.total_seconds(),
        definitions=policy.definitions,
        engine=settings.compaction.engine,
    )
    options = settings.resolved_target_options(policy.target)
    return backup.run(lake, policy.target, how, watch.spark, storage_options=options, progress=watch.progress)

"""The asset checks of one lakehouse.

``integrity`` and ``backup_verified`` read nodes. The others judge the newest root alone. Dagster evaluates a check when
its asset is materialised; an asset that is no longer materialised would keep its last verdict for ever, so the
sensor evaluates these, too, and records every verdict that changes.
"""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, Final

import dagster as dg
from dagster._core.storage.asset_check_execution_record import COMPLETED_ASSET_CHECK_EXECUTION_RECORD_STATUSES

from dagster_project import pacing
from dagster_project.assets import BACKUP, COMPACTION, HEALTH, SNAPSHOTS, key
from dagster_project.config.settings import Backup, LakehouseSettings
from dagster_project.config.values import format_duration
from dagster_project.metadata import recovery
from dagster_project.metadata.health import given
from dagster_project.resources import SparkResource, open_lakehouse
from dagster_project.watched import RETRY, Watch, advised, carried_out
from pipelines import backup, compaction, snapshot, stats, verify
from pipelines.cli.report import utc
from trinitylake_core import Lakehouse

INTEGRITY: Final = "integrity"
BACKUP_VERIFIED: Final = "backup_verified"
DEBT: Final = "compaction_debt"
COMPACTION_FRESH: Final = "compaction_fresh"
SNAPSHOTS_FRESH: Final = "snapshots_fresh"


def checks_of(settings: LakehouseSettings) -> list[dg.AssetChecksDefinition]:
    """Return the asset checks of one lakehouse."""
    found = [integrity(settings), compaction_debt(settings), compaction_fresh(settings)]
    found += [snapshots_fresh(settings)] if settings.snapshots else []
    found += [backup_verified(settings, settings.backup)] if settings.backup is not None else []
    return found


def integrity(settings: LakehouseSettings) -> dg.AssetChecksDefinition:
    """Return the check that the newest version breaks no invariant. It blocks everything downstream."""

    @dg.asset_check(
        asset=key(settings, HEALTH),
        name=INTEGRITY,
        blocking=True,
        retry_policy=RETRY,
        description="Reads every node of the newest version and checks every invariant of the format. Lists each "
        "finding with its remedy. A finding blocks everything that rewrites or deletes.",
    )
    def check(context: dg.AssetCheckExecutionContext, spark: SparkResource) -> dg.AssetCheckResult:
        def work(lake: Lakehouse, watch: Watch) -> verify.Report:
            how = verify.Config(engine=settings.health.engine_for(lake.stats().objects))
            return verify.run(watch.spark, lake, how, watch.progress)

        found = carried_out(context, settings, spark, work)
        metadata = recovery.of_verification(found)
        return dg.AssetCheckResult(passed=found.ok, metadata=metadata, description=metadata["outcome"])

    return check


def compaction_debt(settings: LakehouseSettings) -> dg.AssetChecksDefinition:
    """Return the check that the number of buffered messages is below the threshold."""
    description = (
        f"Warns when {settings.compaction.messages:,} or more messages are buffered, the threshold from which a "
        "compaction pays, and shows what a compaction would rewrite. Also evaluated by the sensor."
    )
    return _judged(settings, COMPACTION, DEBT, description, judge_debt)


def compaction_fresh(settings: LakehouseSettings) -> dg.AssetChecksDefinition:
    """Return the check that compactions keep up."""
    description = (
        f"Warns when the backlog stayed above the threshold for {format_duration(settings.compaction.max_age)}. Judged "
        "from the history of the lakehouse, whoever runs the compactions; a lakehouse without a backlog is never "
        "stale. Also evaluated by the sensor."
    )
    return _judged(settings, COMPACTION, COMPACTION_FRESH, description, judge_compactions)


def snapshots_fresh(settings: LakehouseSettings) -> dg.AssetChecksDefinition:
    """Return the check that every snapshot required by a policy exists."""
    description = (
        f"Warns when a required snapshot ({', '.join(settings.snapshots)}) is still missing after its grace period. "
        "Also evaluated by the sensor."
    )
    return _judged(settings, SNAPSHOTS, SNAPSHOTS_FRESH, description, judge_snapshots)


def _judged(
    settings: LakehouseSettings,
    asset: str,
    name: str,
    description: str,
    judge: Callable[[LakehouseSettings, Lakehouse], dg.AssetCheckResult],
) -> dg.AssetChecksDefinition:
    """Return a check that opens the lakehouse and judges its newest root."""

    @dg.asset_check(asset=key(settings, asset), name=name, description=description)
    def check() -> dg.AssetCheckResult:
        with advised():
            return judge(settings, open_lakehouse(settings))

    return check


def backup_verified(settings: LakehouseSettings, policy: Backup) -> dg.AssetChecksDefinition:
    """Return the check that the backup could replace the lakehouse."""

    @dg.asset_check(
        asset=key(settings, BACKUP),
        name=BACKUP_VERIFIED,
        retry_policy=RETRY,
        description=f"Proves that the backup at `{policy.target}` could replace the lakehouse: its newest version has "
        "the same content digest in both places, it breaks no invariant, and no version has been waiting to be backed "
        f"up for more than {format_duration(policy.max_age)}.",
    )
    def check(context: dg.AssetCheckExecutionContext, spark: SparkResource) -> dg.AssetCheckResult:
        found = carried_out(context, settings, spark, lambda lake, watch: proved(settings, policy, lake, watch))
        return dg.AssetCheckResult(
            passed=found.ok, metadata=recovery.of_backup(found), description=recovery.said_of_backup(found)
        )

    return check


def proved(settings: LakehouseSettings, policy: Backup, lake: Lakehouse, watch: Watch) -> backup.Report:
    """Return the report on the state of the backup."""
    how = backup.Config(
        max_age_seconds=policy.max_age.total_seconds(),
        definitions=policy.definitions,
        engine=settings.compaction.engine,
    )
    options = settings.resolved_target_options(policy.target)
    return backup.run(watch.spark, lake, policy.target, how, storage_options=options, progress=watch.progress)


# -- judged from one read of the newest root -----------------------------------------------------------


def judge_debt(settings: LakehouseSettings, lake: Lakehouse, *, cost: bool = True) -> dg.AssetCheckResult:
    """Return whether the backlog is below the threshold; with ``cost``, also what a compaction would rewrite."""
    decision = pacing.pays(settings.compaction, lake.stats())
    plan = compaction.plan(lake) if cost and decision.wanted and not lake.read_only else None
    return _verdict(
        settings,
        COMPACTION,
        DEBT,
        decision.reason,
        passed=not decision.wanted,
        buffered_messages=pacing.debt_of(lake.stats()),
        threshold=settings.compaction.messages,
        nodes_a_compaction_would_rewrite=None if plan is None else plan.nodes,
        bytes_a_compaction_would_write=None if plan is None else plan.bytes,
    )


def judge_compactions(settings: LakehouseSettings, lake: Lakehouse) -> dg.AssetCheckResult:
    """Return whether compactions keep up. A lakehouse with a small backlog is never stale."""
    policy = settings.compaction
    found = stats.debt(lake, policy.messages, policy.max_age.total_seconds())
    message = f"version {found.version}: {found.messages:,} buffered messages, threshold {found.threshold:,}"
    if found.since is not None:
        message += f"; above it since {utc(found.since)} or earlier, in all {found.looks} versions examined"
    if found.stale:
        message += f"; the limit is {format_duration(policy.max_age)}. {_late_compaction(settings)}"
    return _verdict(
        settings,
        COMPACTION,
        COMPACTION_FRESH,
        message,
        passed=not found.stale,
        buffered_messages=found.messages,
        too_many_since=None if found.since is None else dg.MetadataValue.timestamp(found.since),
    )


def _late_compaction(settings: LakehouseSettings) -> str:
    job = f"{settings.slug}_compaction"
    return f"Check the runs of {job}, that its sensor is on and that the daemon is running; then launch {job}"


def judge_snapshots(settings: LakehouseSettings, lake: Lakehouse) -> dg.AssetCheckResult:
    """Return whether every required snapshot exists."""
    graces = {str(period): policy.grace_of(period) for period, policy in settings.snapshots.items()}
    late = snapshot.overdue(graces, lake.snapshots(), datetime.now(UTC))
    lines = [f"{each.name} is missing; newest {each.period} snapshot: {each.newest or 'none'}" for each in late]
    if late:
        job = f"{settings.slug}_maintenance"
        lines.append(f"check the runs of {job} and its schedule, then launch it")
    message = "; ".join(lines) or f"every required snapshot exists: {', '.join(graces)}"
    newest = max((each.created_at for each in lake.snapshots()), default=None)
    shown = None if newest is None else dg.MetadataValue.timestamp(newest)
    return _verdict(
        settings, SNAPSHOTS, SNAPSHOTS_FRESH, message, passed=not late, missing=len(late), newest_snapshot=shown
    )


def _verdict(
    settings: LakehouseSettings, asset: str, check: str, message: str, *, passed: bool, **metadata: Any
) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(
        asset_key=key(settings, asset),
        check_name=check,
        passed=passed,
        severity=dg.AssetCheckSeverity.WARN,
        description=message,
        metadata=given(**metadata),
    )


def changed(
    settings: LakehouseSettings, lake: Lakehouse, instance: dg.DagsterInstance, *, over_too_long: bool
) -> Iterator[dg.AssetCheckEvaluation]:
    """Yield the verdicts that differ from those that Dagster recorded last.

    Costs no request, unless the backlog has been above the threshold for so long that compactions may be stale.
    """
    debt = judge_debt(settings, lake, cost=False)
    verdicts = [(COMPACTION, debt)]
    verdicts += [(SNAPSHOTS, judge_snapshots(settings, lake))] if settings.snapshots else []
    known_stale = last_verdict(instance, key(settings, COMPACTION), COMPACTION_FRESH) is False
    if debt.passed or (over_too_long and not known_stale):
        verdicts.append((COMPACTION, judge_compactions(settings, lake)))
    for asset, verdict in verdicts:
        name = str(verdict.check_name)
        if last_verdict(instance, key(settings, asset), name) is not verdict.passed:
            yield dg.AssetCheckEvaluation(
                asset_key=key(settings, asset),
                check_name=name,
                passed=verdict.passed,
                severity=verdict.severity,
                description=verdict.description,
                metadata=verdict.metadata,
            )


def last_verdict(instance: dg.DagsterInstance, asset: dg.AssetKey, check: str) -> bool | None:
    """Return whether a check passed when it was last evaluated, by whichever run; ``None`` if it never was.

    The newest record may belong to a run that has only planned the check, or was cancelled before it.
    """
    records = instance.event_log_storage.get_asset_check_execution_history(
        dg.AssetCheckKey(asset, check), limit=1, status=COMPLETED_ASSET_CHECK_EXECUTION_RECORD_STATUSES
    )
    evaluations = [each.evaluation for each in records]
    return next((each.passed for each in evaluations if isinstance(each, dg.AssetCheckEvaluation)), None)

"""Results of asset checks: those that one read of the newest root suffices for, and those that Dagster recorded."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, Final

import dagster as dg

from dagster_project import compaction_policy
from dagster_project.assets import COMPACTION, DEFINITION, SNAPSHOTS
from dagster_project.config.settings import LakehouseSettings
from dagster_project.config.values import format_duration
from dagster_project.metadata.reports import given
from dagster_project.supervised import sentences
from pipelines import compaction, snapshot, stats
from pipelines.summary import utc
from trinitylake_core import Lakehouse

INTEGRITY: Final = "integrity"
BACKUP_VERIFIED: Final = "backup_verified"
DEBT: Final = "compaction_debt"
COMPACTION_FRESH: Final = "compaction_fresh"
SNAPSHOTS_FRESH: Final = "snapshots_fresh"
REACHABLE: Final = "reachable"
NOT_FROZEN: Final = "not_frozen"
_RECORDS: Final = 8


def evaluate_unreachable(cause: str, what_to_do: str) -> dg.AssetCheckResult:
    """Return the result for a lakehouse that cannot be opened."""
    return dg.AssetCheckResult(
        check_name=REACHABLE,
        passed=False,
        description=sentences(cause, what_to_do),
        metadata={"cause": cause, "advice": what_to_do},
    )


def opened(version: int) -> dg.AssetCheckResult:
    """Return the result for a lakehouse that could be opened."""
    return dg.AssetCheckResult(check_name=REACHABLE, passed=True, description=f"opened at version {version}")


def evaluate_freeze(lake: Lakehouse) -> dg.AssetCheckResult:
    """Return whether the lakehouse takes commits; who froze it, why, since when and until when. No request."""
    freeze = lake.frozen
    return _result(
        NOT_FROZEN,
        "writers may commit"
        if freeze is None
        else f"{freeze}. Commits and loads are refused; the job `thaw` ends that",
        passed=freeze is None,
    )


def evaluate_debt(settings: LakehouseSettings, lake: Lakehouse, *, cost: bool = True) -> dg.AssetCheckResult:
    """Return whether the backlog is below the threshold; with ``cost``, also what a compaction would rewrite."""
    decision = compaction_policy.too_many(settings.compaction, lake.stats())
    estimate = compaction.estimate(lake) if cost and decision.wanted and not lake.read_only else None
    return _result(
        DEBT,
        decision.reason,
        passed=not decision.wanted,
        buffered_messages=compaction_policy.debt_of(lake.stats()),
        threshold=settings.compaction.messages,
        nodes_a_compaction_would_rewrite=None if estimate is None else estimate.nodes,
        bytes_a_compaction_would_write=None if estimate is None else estimate.bytes,
    )


def evaluate_compactions(settings: LakehouseSettings, lake: Lakehouse) -> dg.AssetCheckResult:
    """Return whether compactions keep up. A lakehouse with a small backlog is never stale."""
    policy = settings.compaction
    found = stats.debt(lake, policy.messages, policy.max_age.total_seconds())
    message = f"version {found.version}: {found.messages:,} buffered messages, threshold {found.threshold:,}"
    if found.since is not None:
        message += f"; above it since {utc(found.since)} or earlier, in all {found.looks} versions examined"
    if found.stale:
        message += f"; the limit is {format_duration(policy.max_age)}. {_late_compaction(settings)}"
    return _result(
        COMPACTION_FRESH,
        message,
        passed=not found.stale,
        buffered_messages=found.messages,
        too_many_since=None if found.since is None else dg.MetadataValue.timestamp(found.since),
    )


def _late_compaction(settings: LakehouseSettings) -> str:
    job = f"{settings.slug}_compaction"
    return f"Check the runs of {job}, that its sensor is on and that the daemon is running; then launch {job}"


def evaluate_snapshots(settings: LakehouseSettings, lake: Lakehouse) -> dg.AssetCheckResult:
    """Return whether every required snapshot exists."""
    if not settings.snapshots:
        return _result(SNAPSHOTS_FRESH, "lakehouses.yaml requires no snapshots", passed=True)
    graces = {str(period): policy.grace_of(period) for period, policy in settings.snapshots.items()}
    late = snapshot.overdue(graces, lake.snapshots(), datetime.now(UTC))
    lines = [f"{each.name} is missing; newest {each.period} snapshot: {each.newest or 'none'}" for each in late]
    if late:
        job = f"{settings.slug}_maintenance"
        lines.append(f"check the runs of {job} and its schedule, then launch it")
    message = "; ".join(lines) or f"every required snapshot exists: {', '.join(graces)}"
    newest = max((each.created_at for each in lake.snapshots()), default=None)
    shown = None if newest is None else dg.MetadataValue.timestamp(newest)
    return _result(SNAPSHOTS_FRESH, message, passed=not late, missing=len(late), newest_snapshot=shown)


def _result(check: str, message: str, *, passed: bool, **metadata: Any) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(
        check_name=check,
        passed=passed,
        severity=dg.AssetCheckSeverity.WARN,
        description=message,
        metadata=given(**metadata),
    )


def evaluate_root(
    settings: LakehouseSettings, lake: Lakehouse, *, over_too_long: bool
) -> Iterator[tuple[str, dg.AssetCheckResult]]:
    """Yield the results of the checks that the root of a version suffices for, each with the asset of the check.

    Costs no request, unless the backlog has been above the threshold for so long that compactions may be stale.
    """
    debt = evaluate_debt(settings, lake, cost=False)
    yield DEFINITION, evaluate_freeze(lake)
    yield COMPACTION, debt
    if settings.snapshots:
        yield SNAPSHOTS, evaluate_snapshots(settings, lake)
    if debt.passed or over_too_long:
        yield COMPACTION, evaluate_compactions(settings, lake)


def evaluation(asset: dg.AssetKey, result: dg.AssetCheckResult) -> dg.AssetCheckEvaluation:
    """Return a result as an event that a sensor may report."""
    return dg.AssetCheckEvaluation(
        asset_key=asset,
        check_name=str(result.check_name),
        passed=result.passed,
        severity=result.severity,
        description=result.description,
        metadata=result.metadata,
    )


def last_result(
    instance: dg.DagsterInstance, asset: dg.AssetKey, check: str, partition: str | None = None
) -> bool | None:
    """Return whether a check passed when it was last evaluated by any run; ``None`` if it never was."""
    last = last_evaluation(instance, asset, check, partition)
    return None if last is None else last.passed


def last_evaluation(
    instance: dg.DagsterInstance, asset: dg.AssetKey, check: str, partition: str | None = None
) -> dg.AssetCheckEvaluation | None:
    """Return the last evaluation of a check; ``None`` without one.

    The newest records may belong to runs that have only planned the check, or were cancelled before it.
    """
    cursor: int | None = None
    only: Any = None if partition is None else SimpleNamespace(key=partition)  # its class has no public name
    while True:
        records = instance.event_log_storage.get_asset_check_execution_history(
            dg.AssetCheckKey(asset, check), limit=_RECORDS, cursor=cursor, partition_filter=only
        )
        for each in records:
            if isinstance(each.evaluation, dg.AssetCheckEvaluation):
                return each.evaluation
        if len(records) < _RECORDS:
            return None
        cursor = records[-1].id

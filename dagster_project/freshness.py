"""What is judged from one read of the newest root: the debt, and whether compactions and snapshots keep up.

Assets are checked when they are materialised. But what is never materialised again becomes stale, so the sensor
tells these verdicts, too, whenever one changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

import dagster as dg

from dagster_project import pacing
from dagster_project.assets import COMPACTION, SNAPSHOTS, key
from dagster_project.config.settings import LakehouseSettings
from dagster_project.durations import format_duration
from dagster_project.metadata.health import given
from dagster_project.verdicts import last_verdict
from pipelines import compaction, freshness, snapshot
from pipelines.cli.report import utc
from trinitylake_core import Lakehouse

DEBT: Final = "compaction_debt"
COMPACTION_FRESH: Final = "compaction_fresh"
SNAPSHOTS_FRESH: Final = "snapshots_fresh"


def debt(settings: LakehouseSettings, lake: Lakehouse, *, cost: bool = True) -> dg.AssetCheckResult:
    """Return whether less is buffered than pays a compaction; with ``cost`` what one would rewrite, if it is cheap."""
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


def compactions(settings: LakehouseSettings, lake: Lakehouse) -> dg.AssetCheckResult:
    """Return whether compactions keep up. A lakehouse with little debt is never stale."""
    policy = settings.compaction
    found = freshness.debt(lake, policy.messages, policy.max_age.total_seconds())
    told = f"version {found.version}: {found.messages:,} buffered messages of at most {found.threshold:,}"
    if found.since is not None:
        told += f"; too many since {utc(found.since)} or longer, at all of {found.looks} looks"
    if found.stale:
        told += f", and {format_duration(policy.max_age)} are allowed. {_late_compaction(settings)}"
    return _verdict(
        settings,
        COMPACTION,
        COMPACTION_FRESH,
        told,
        passed=not found.stale,
        buffered_messages=found.messages,
        too_many_since=None if found.since is None else dg.MetadataValue.timestamp(found.since),
    )


def _late_compaction(settings: LakehouseSettings) -> str:
    job = f"{settings.slug}_compaction"
    return f"Look at the runs of {job} and whether its sensor is on and the daemon runs, then launch {job}"


def snapshots(settings: LakehouseSettings, lake: Lakehouse) -> dg.AssetCheckResult:
    """Return whether the snapshots are there that are asked for."""
    graces = {str(period): policy.grace_of(period) for period, policy in settings.snapshots.items()}
    late = snapshot.overdue(graces, lake.snapshots(), datetime.now(UTC))
    lines = [f"{each.name} is missing, the newest {each.period} one is {each.newest or 'none at all'}" for each in late]
    if late:
        job = f"{settings.slug}_maintenance"
        lines.append(f"look at the runs of {job} and its schedule, then launch it")
    told = "; ".join(lines) or f"every snapshot that is asked for is there: {', '.join(graces)}"
    newest = max((each.created_at for each in lake.snapshots()), default=None)
    shown = None if newest is None else dg.MetadataValue.timestamp(newest)
    return _verdict(
        settings, SNAPSHOTS, SNAPSHOTS_FRESH, told, passed=not late, missing=len(late), newest_snapshot=shown
    )


def _verdict(
    settings: LakehouseSettings, asset: str, check: str, told: str, *, passed: bool, **metadata: Any
) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(
        asset_key=key(settings, asset),
        check_name=check,
        passed=passed,
        severity=dg.AssetCheckSeverity.WARN,
        description=told,
        metadata=given(**metadata),
    )


def changed(
    settings: LakehouseSettings, lake: Lakehouse, instance: dg.DagsterInstance, *, over_too_long: bool
) -> Iterator[dg.AssetCheckEvaluation]:
    """Yield the verdicts that are not what Dagster was told last.

    Costs no request but where there has been too much debt for so long that a compaction should have come.
    """
    little = debt(settings, lake, cost=False)
    verdicts = [(COMPACTION, little)]
    verdicts += [(SNAPSHOTS, snapshots(settings, lake))] if settings.snapshots else []
    told_stale = last_verdict(instance, key(settings, COMPACTION), COMPACTION_FRESH) is False
    if little.passed or (over_too_long and not told_stale):
        verdicts.append((COMPACTION, compactions(settings, lake)))
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

"""The asset checks of one lakehouse."""

from collections.abc import Callable
from typing import Final

import dagster as dg

from dagster_project import freshness
from dagster_project.advice import RETRY, advised
from dagster_project.assets import COMPACTION, HEALTH, SNAPSHOTS, key
from dagster_project.backups import BACKUP, proved
from dagster_project.config.settings import Backup, LakehouseSettings
from dagster_project.durations import format_duration
from dagster_project.metadata import recovery
from dagster_project.resources import SparkResource, open_lakehouse
from dagster_project.watched import Watch, carried_out
from pipelines import verify
from trinitylake_core import Lakehouse

INTEGRITY: Final = "integrity"
BACKUP_VERIFIED: Final = "backup_verified"


def checks_of(settings: LakehouseSettings) -> list[dg.AssetChecksDefinition]:
    """Return the asset checks of one lakehouse."""
    found = [integrity(settings), compaction_debt(settings), compaction_fresh(settings)]
    found += [snapshots_fresh(settings)] if settings.snapshots else []
    found += [backup_verified(settings, settings.backup)] if settings.backup is not None else []
    return found


def integrity(settings: LakehouseSettings) -> dg.AssetChecksDefinition:
    """Return the check that nothing of the newest version is broken. It stops whatever comes after."""

    @dg.asset_check(
        asset=key(settings, HEALTH),
        name=INTEGRITY,
        blocking=True,
        retry_policy=RETRY,
        description="Reads every node of the newest version and proves each invariant of the format. Findings are "
        "listed with what to do. After a finding nothing that rewrites or deletes runs.",
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
    """Return the check that less is buffered than pays a compaction."""
    description = (
        f"Under {settings.compaction.messages:,} messages are buffered, from which on a compaction pays. "
        "Warns; tells what a compaction would rewrite. The sensor looks, too, and tells every change."
    )
    return _judged(settings, COMPACTION, freshness.DEBT, description, freshness.debt)


def compaction_fresh(settings: LakehouseSettings) -> dg.AssetChecksDefinition:
    """Return the check that compactions keep up."""
    description = (
        f"No {format_duration(settings.compaction.max_age)} have passed in which there was always more to "
        "push down than pays a compaction, whoever compacts. Judged from the history of the lakehouse; without debt "
        "it is never stale. Warns. The sensor looks, too, and tells every change."
    )
    return _judged(settings, COMPACTION, freshness.COMPACTION_FRESH, description, freshness.compactions)


def snapshots_fresh(settings: LakehouseSettings) -> dg.AssetChecksDefinition:
    """Return the check that the snapshots are there that policies ask for."""
    description = (
        f"The snapshots of {', '.join(settings.snapshots)} are there, at the latest when their `grace` has "
        "passed. Judged from the lakehouse. Warns. The sensor looks, too, and tells every change."
    )
    return _judged(settings, SNAPSHOTS, freshness.SNAPSHOTS_FRESH, description, freshness.snapshots)


def _judged(
    settings: LakehouseSettings,
    asset: str,
    name: str,
    description: str,
    judge: Callable[[LakehouseSettings, Lakehouse], dg.AssetCheckResult],
) -> dg.AssetChecksDefinition:
    """Return a check that opens the lakehouse and judges what its newest root tells."""

    @dg.asset_check(asset=key(settings, asset), name=name, description=description)
    def check() -> dg.AssetCheckResult:
        with advised():
            return judge(settings, open_lakehouse(settings))

    return check


def backup_verified(settings: LakehouseSettings, policy: Backup) -> dg.AssetChecksDefinition:
    """Return the check that the backup could take the place of the lakehouse."""

    @dg.asset_check(
        asset=key(settings, BACKUP),
        name=BACKUP_VERIFIED,
        retry_policy=RETRY,
        description=f"Opens `{policy.target}` and proves that it could take the place of the lakehouse: its newest "
        "version has the same content digest at both, every invariant holds there, and nothing has been waiting for "
        f"a backup longer than {format_duration(policy.max_age)}.",
    )
    def check(context: dg.AssetCheckExecutionContext, spark: SparkResource) -> dg.AssetCheckResult:
        found = carried_out(context, settings, spark, lambda lake, watch: proved(settings, policy, lake, watch))
        return dg.AssetCheckResult(
            passed=found.ok, metadata=recovery.of_backup(found), description=recovery.said_of_backup(found)
        )

    return check

"""The assets that apply the retention policies: snapshots, expiration, and removal of orphans.

Everything that deletes makes a plan first, shows it, and carries out exactly that plan.
"""

import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import dagster as dg
from pydantic import Field

from dagster_project.assets import BACKUP, COMPACTION, EXPIRATION, HEALTH, ORPHANS, SNAPSHOTS, key, settings_of, writing
from dagster_project.check_results import INTEGRITY, last_result
from dagster_project.config.settings import LakehouseSettings, Orphans, Retention
from dagster_project.config.values import format_duration
from dagster_project.metadata import health, pictures, reports
from dagster_project.resources import SparkResource
from dagster_project.scope import PARTITION_TAG, Scope
from dagster_project.supervised import Context, Supervisor, reviewed, run_supervised
from pipelines import expiration, orphans, snapshot
from pipelines.job import Review, dry_run
from trinitylake_core import Lakehouse

T = TypeVar("T")


def retention_of(scope: Scope) -> list[dg.AssetsDefinition]:
    """Return the assets that apply the retention policies."""
    return [root_version_snapshots(scope), version_expiration(scope), orphan_removal(scope)]


class SnapshotConfig(dg.Config):
    """The launchpad options of one application of the snapshot policies."""

    reason: str = Field(default="snapshot policy", description="Recorded in the history.")
    dry_run: bool = Field(default=False, description="Show what the policies require; commit nothing.")


class DeletionConfig(dg.Config):
    """The launchpad options of one expiration or removal of orphans."""

    reason: str = Field(default="retention policy", description="Recorded in the history.")
    engine: str | None = Field(default=None, description="spark, local or auto; overrides lakehouses.yaml.")
    dry_run: bool = Field(default=False, description="Make the plan and show it; delete nothing.")
    delete_without_policy: bool = Field(
        default=False, description="Delete by the default policy where lakehouses.yaml has none for this lakehouse."
    )


# -- snapshots -----------------------------------------------------------------------------------------


def root_version_snapshots(scope: Scope) -> dg.AssetsDefinition:
    """Return the asset that makes and drops snapshots as the policies require, and shows the history."""
    required = "" if scope.known is None else f" ({_required(scope.known)})"

    @writing(
        scope,
        SNAPSHOTS,
        after=[COMPACTION],
        description=f"Snapshots as lakehouses.yaml requires them{required}: created when a period has none yet, "
        "dropped when newer ones replace them. Snapshots that people made are left alone. Also lists the versions that "
        "can be read and rolled back to, newest first, each with its time, operation, author and reason.",
        on_spark=False,
    )
    def snapshots(
        context: dg.AssetExecutionContext, config: SnapshotConfig, spark: SparkResource
    ) -> dg.MaterializeResult[Any]:
        settings = settings_of(scope, context)
        policies = {str(period): policy.keep for period, policy in settings.snapshots.items()}

        def work(lake: Lakehouse, watch: Supervisor) -> dg.MaterializeResult[Any]:
            watch.check()
            done = snapshot.run(
                lake, policies, reason=config.reason, review=dry_run if config.dry_run else None, cancel=watch
            )
            versions = list(lake.history(limit=health.HISTORY_LIMIT))
            metadata = reports.of_snapshots(done, lake.snapshots()) | health.of_history(versions)
            return dg.MaterializeResult(
                metadata={"timeline": pictures.timeline(versions)} | metadata,
                data_version=dg.DataVersion(str(lake.version)),
            )

        return run_supervised(context, settings, spark, work)

    return snapshots


def _required(settings: LakehouseSettings) -> str:
    return ", ".join(f"{policy.keep} {period}" for period, policy in settings.snapshots.items()) or "none"


# -- expiration and orphans ----------------------------------------------------------------------------


def version_expiration(scope: Scope) -> dg.AssetsDefinition:
    """Return the asset that expires versions."""
    known = scope.known
    # a version that is not in the backup yet must not expire
    last = SNAPSHOTS if known is not None and known.backup is None else BACKUP

    @writing(
        scope,
        EXPIRATION,
        after=[HEALTH, last],
        description=f"Expires old versions. {_kept(known)} Makes a plan, shows what it would free, and carries out "
        "exactly that plan. Never runs after a failed integrity check."
        + _on_request(given=known is None or known.retention is not None),
    )
    def expired(
        context: dg.AssetExecutionContext, config: DeletionConfig, spark: SparkResource
    ) -> dg.MaterializeResult[Any]:
        settings = settings_of(scope, context)
        policy = settings.retention or Retention()
        if settings.retention is None and not _asked_for(config):
            return _nothing_deleted(context, "retention")
        refuse_unsound(context, scope, dry_run=config.dry_run)
        engine = config.engine or settings.compaction.engine
        age = policy.older_than.total_seconds()

        def work(lake: Lakehouse, watch: Supervisor) -> reports.Deletion[expiration.Report]:

            def run(plan_to: str, review: Review[expiration.Report]) -> expiration.Report:
                how = expiration.Config(
                    engine, policy.keep_last, age, reason=config.reason, plan_to=plan_to, plan_options={}
                )
                return expiration.run(lake, how, watch.spark, review=review, cancel=watch, progress=watch.progress)

            return _reviewed(run, watch, dry=config.dry_run)

        done = run_supervised(context, settings, spark, work)
        return _shown(context, done, reports.of_deletion(done), done.report.boundary_after)

    return expired


def orphan_removal(scope: Scope) -> dg.AssetsDefinition:
    """Return the asset that removes orphans: files that nothing reaches."""
    known = scope.known
    age = "the age in lakehouses.yaml" if known is None else format_duration((known.orphans or Orphans()).older_than)

    @writing(
        scope,
        ORPHANS,
        after=[HEALTH, EXPIRATION],
        description="Removes files that no version, snapshot or live saved transaction reaches and that are older than "
        f"{age}. Makes a plan, shows every file, fences them off by a version, and deletes "
        "those that are orphans still. Deletes nothing if a file that it needs cannot be read. Never runs after a "
        "failed integrity check." + _on_request(given=known is None or known.orphans is not None),
    )
    def removed(
        context: dg.AssetExecutionContext, config: DeletionConfig, spark: SparkResource
    ) -> dg.MaterializeResult[Any]:
        settings = settings_of(scope, context)
        policy = settings.orphans or Orphans()
        if settings.orphans is None and not _asked_for(config):
            return _nothing_deleted(context, "orphans")
        refuse_unsound(context, scope, dry_run=config.dry_run)
        engine = config.engine or settings.compaction.engine

        def work(lake: Lakehouse, watch: Supervisor) -> reports.Deletion[orphans.Report]:
            age = policy.older_than.total_seconds()

            def run(plan_to: str, review: Review[orphans.Report]) -> orphans.Report:
                how = orphans.Config(engine, older_than_seconds=age, plan_to=plan_to, plan_options={})
                return orphans.run(lake, how, watch.spark, review=review, cancel=watch, progress=watch.progress)

            return _reviewed(run, watch, dry=config.dry_run)

        done = run_supervised(context, settings, spark, work)
        return _shown(context, done, reports.of_deletion(done), done.report.version)

    return removed


def _asked_for(config: DeletionConfig) -> bool:
    return config.delete_without_policy or config.dry_run


def _nothing_deleted(context: Context, policy: str) -> dg.MaterializeResult[Any]:
    """Return the result of an asset that deletes, for a lakehouse without a policy: it has touched nothing."""
    outcome = (
        f"nothing was deleted and nothing was read: lakehouses.yaml has no `{policy}` for this lakehouse. Add it, or "
        "launch with `delete_without_policy: true`; `dry_run: true` shows what that would delete"
    )
    context.log.info(outcome)
    return dg.MaterializeResult(metadata={"outcome": outcome})


def _reviewed(run: Callable[[str, Review[T]], T], watch: Supervisor, *, dry: bool) -> reports.Deletion[T]:
    """Carry out a job that writes its plan to a file, which is read back to show it before anything is deleted."""
    shown: list[reports.Deletion[T]] = []
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "plan.parquet"

        def show(planned: T) -> None:
            shown.append(reports.Deletion(planned, None, *reports.rows_of(file)))

        done = reviewed(partial(run, file.as_uri()), show, watch, dry=dry)
    return replace(shown[-1], done=None if dry else done)


def _shown(
    context: Context, done: reports.Deletion[Any], metadata: reports.Metadata, version: int
) -> dg.MaterializeResult[Any]:
    context.log.info(metadata["outcome"])
    if done.report.failed:
        raise dg.Failure(
            f"{done.report.failed} files could not be deleted; the next run tries again. See `failures`; usually the "
            "credentials in lakehouses.yaml lack the permission to delete",
            metadata=metadata,
        )
    return dg.MaterializeResult(metadata=metadata, data_version=dg.DataVersion(str(version)))


def refuse_unsound(context: dg.AssetExecutionContext, scope: Scope, *, dry_run: bool) -> None:
    """Stop if the last integrity check, of whichever run, had findings. A dry run may go on.

    In a run that includes the check, the check itself blocks; this is for a run that only deletes.
    """
    partition = context.run.tags.get(PARTITION_TAG)
    sound = last_result(context.instance, key(scope, HEALTH), INTEGRITY, partition)
    if sound is False and not dry_run:
        raise dg.Failure(
            "nothing was deleted: the last integrity check of this lakehouse failed. Look at its findings, repair them "
            f"(rollback, or restore from an export), and materialise {HEALTH} with its check again",
            allow_retries=False,
        )


def _kept(known: LakehouseSettings | None) -> str:
    if known is None:
        return "Keeps the newest versions and those that are young, as lakehouses.yaml says, and all snapshots."
    policy = known.retention or Retention()
    young = format_duration(policy.older_than)
    return f"Keeps the newest {policy.keep_last} versions, those younger than {young}, and all snapshots."


def _on_request(*, given: bool) -> str:
    return "" if given else "\n\nNot configured in lakehouses.yaml: deletes only with `delete_without_policy: true`."

"""The assets that apply the retention policies: snapshots, expiration, and removal of orphans.

Everything that deletes makes a plan first, shows it, and carries out exactly that plan.
"""

import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import dagster as dg
from pydantic import Field

from dagster_project.assets import (
    BACKUP,
    COMPACTION,
    EXPIRATION,
    HEALTH,
    ORPHANS,
    SNAPSHOTS,
    Result,
    key,
    settings_of,
    writing,
)
from dagster_project.check_results import INTEGRITY, last_result
from dagster_project.config.settings import LakehouseSettings, Orphans, Retention
from dagster_project.config.values import format_duration
from dagster_project.metadata import health, pictures, reports
from dagster_project.resources import SparkResource
from dagster_project.scope import PARTITION_TAG, Scope
from dagster_project.supervised import Context, Launch, Supervisor, reviewed, run_supervised
from pipelines import expiration, orphans, snapshot
from pipelines.job import Review, dry_run
from trinitylake_core import Lakehouse

T = TypeVar("T")
ASK: Final = ", or launch with `delete_without_policy: true`; `dry_run: true` shows what that would delete"


def retention_of(scope: Scope) -> list[dg.AssetsDefinition]:
    """Return the assets that apply the retention policies."""
    return [root_version_snapshots(scope), version_expiration(scope), orphan_removal(scope)]


class SnapshotConfig(dg.Config):
    """The launchpad options of one application of the snapshot policies."""

    reason: str = Field(default="snapshot policy", description="Recorded in the history.")
    dry_run: bool = Field(default=False, description="Show what the policies require; commit nothing.")


class PlanConfig(dg.Config):
    """The launchpad options of what shows a plan first."""

    dry_run: bool = Field(default=False, description="Make the plan and show it; delete nothing.")
    delete_without_policy: bool = Field(
        default=False, description="Delete by the default policy where lakehouses.yaml has none for this lakehouse."
    )

    def is_asked_for(self, policy: object) -> bool:
        """Whether to begin: there is a policy, or the person who launches this wants it without one, or the plan."""
        return policy is not None or self.delete_without_policy or self.dry_run


class DeletionConfig(PlanConfig):
    """The launchpad options of what deletes files."""

    reason: str = Field(default="retention policy", description="Recorded in the history.")
    engine: str | None = Field(default=None, description="spark, local or auto; overrides lakehouses.yaml.")


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


def deleting(
    scope: Scope,
    name: str,
    policy: str,
    run: Callable[[Launch, str, Review[Any]], Any],
    *,
    after: Sequence[str],
    description: str,
    data_version: str = "version",
    judge: Callable[[Any], list[dg.AssetCheckResult]] = lambda _: [],
    **more: Any,
) -> dg.AssetsDefinition:
    """Return an asset that makes a plan, shows it, and deletes exactly that.

    Args:
        scope: what it is for.
        name: its name.
        policy: the field of lakehouses.yaml without which it deletes only when it is asked to.
        run: carries out the job; gets where to write the plan, and who reviews it.
        after: the assets that it follows.
        description: what it does, for the browser.
        data_version: the figure of the report that its data version is.
        judge: returns the results of its ``check_specs``, by its report.
        more: further arguments of the asset.
    """
    given = scope.known is None or getattr(scope.known, policy) is not None
    asked = "" if given else "\n\nNot configured in lakehouses.yaml: deletes only with `delete_without_policy: true`."

    @writing(scope, name, after=after, description=description + asked, **more)
    def deleted(context: dg.AssetExecutionContext, config: DeletionConfig, spark: SparkResource) -> Result:
        settings = settings_of(scope, context)
        if not config.is_asked_for(getattr(settings, policy)):
            return nothing_done(context, policy, [each.name for each in more.get("check_specs", ())])
        refuse_unsound(context, scope, dry_run=config.dry_run)

        def work(lake: Lakehouse, watch: Supervisor) -> reports.Deletion[Any]:
            return _reviewed(
                partial(run, Launch(lake, settings, config, config.dry_run, context, watch)), watch, dry=config.dry_run
            )

        done = run_supervised(context, settings, spark, work)
        return _shown(context, done, getattr(done.report, data_version))._replace(check_results=judge(done.report))

    return deleted


def version_expiration(scope: Scope) -> dg.AssetsDefinition:
    """Return the asset that expires versions."""
    known = scope.known

    def expire(launch: Launch, plan_to: str, review: Review[Any]) -> expiration.Report:
        policy = launch.settings.retention or Retention()
        how = expiration.Config(
            launch.engine,
            policy.keep_last,
            policy.older_than.total_seconds(),
            reason=launch.options.reason,
            plan_to=plan_to,
            plan_options={},
        )
        return expiration.run(launch.lake, how, **launch.writes | {"review": review})

    return deleting(
        scope,
        EXPIRATION,
        "retention",
        expire,
        # a version that is not in the backup yet must not expire
        after=[HEALTH, SNAPSHOTS if known is not None and known.backup is None else BACKUP],
        description=f"Expires old versions. {_kept(known)} Makes a plan, shows what it would free, and carries out "
        "exactly that plan. Never runs after a failed integrity check.",
        data_version="boundary_after",
    )


def orphan_removal(scope: Scope) -> dg.AssetsDefinition:
    """Return the asset that removes orphans: files that nothing reaches."""
    known = scope.known
    age = "the age in lakehouses.yaml" if known is None else format_duration((known.orphans or Orphans()).older_than)

    def clean(launch: Launch, plan_to: str, review: Review[Any]) -> orphans.Report:
        age = (launch.settings.orphans or Orphans()).older_than.total_seconds()
        how = orphans.Config(launch.engine, older_than_seconds=age, plan_to=plan_to, plan_options={})
        return orphans.run(launch.lake, how, **launch.writes | {"review": review})

    return deleting(
        scope,
        ORPHANS,
        "orphans",
        clean,
        after=[HEALTH, EXPIRATION],
        description="Removes files that no version, snapshot or live saved transaction reaches and that are older than "
        f"{age}. Makes a plan, shows every file, fences them off by a version, and deletes those that are orphans "
        "still. Deletes nothing if a file that it needs cannot be read. Never runs after a failed integrity check.",
    )


def nothing_done(
    context: Context, policy: str, checks: Iterable[str] = (), hint: str = ASK
) -> dg.MaterializeResult[Any]:
    """Return the result of an asset of a lakehouse without a policy: it has touched nothing, and its checks pass."""
    outcome = (
        f"nothing was deleted and nothing was read: lakehouses.yaml has no `{policy}` for this lakehouse. Add it{hint}"
    )
    context.log.info(outcome)
    passed = [dg.AssetCheckResult(check_name=each, passed=True, description="nothing was read") for each in checks]
    return dg.MaterializeResult(metadata={"outcome": outcome}, check_results=passed)


def _reviewed(run: Callable[[str, Review[T]], T], watch: Supervisor, *, dry: bool) -> reports.Deletion[T]:
    """Carry out a job that writes its plan to a file, which is read back to show it before anything is deleted."""
    shown: list[reports.Deletion[T]] = []
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "plan.parquet"

        def show(planned: T) -> None:
            shown.append(reports.Deletion(planned, None, *reports.rows_of(file)))

        done = reviewed(partial(run, file.as_uri()), show, watch, dry=dry)
    return replace(shown[-1], done=None if dry else done)


def _shown(context: Context, done: reports.Deletion[Any], version: int) -> dg.MaterializeResult[Any]:
    metadata = reports.of_deletion(done)
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

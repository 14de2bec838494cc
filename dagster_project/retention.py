"""The assets that apply the retention policies: snapshots, expiration, and removal of orphans.

Everything that deletes makes a plan first, shows it, and carries out exactly that plan.
"""

import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import dagster as dg

from dagster_project.assets import (
    BACKUP,
    COMPACTION,
    EXPIRATION,
    HEALTH,
    ORPHANS,
    SNAPSHOTS,
    Result,
    page_of_idle_run,
    step,
)
from dagster_project.config.settings import Orphans, Retention
from dagster_project.config.values import format_duration
from dagster_project.metadata import pictures, reports
from dagster_project.scope import Scope
from dagster_project.supervised import Launch
from pipelines import clean, expire, snapshot
from pipelines.job import dry_run

NOTHING_DONE: Final = "nothing was deleted and nothing was read: lakehouses.yaml has no `{}` for this lakehouse. Add it"
ASK: Final = ", or launch with `delete_without_policy: true`; `dry_run: true` shows what that would delete"


def retention_of(scope: Scope) -> list[dg.AssetsDefinition]:
    """Return the assets that apply the retention policies."""
    return [root_version_snapshots(scope), version_expiration(scope), orphan_removal(scope)]


def root_version_snapshots(scope: Scope) -> dg.AssetsDefinition:
    """Return the asset that makes and drops snapshots as the policies require, and shows the history."""
    policies = {} if scope.known is None else scope.known.snapshots
    names = ", ".join(f"{policy.keep} {period}" for period, policy in policies.items())
    required = "" if scope.known is None else f" ({names or 'none'})"
    return step(
        scope,
        SNAPSHOTS,
        _snapshots,
        after=[COMPACTION],
        description=f"Snapshots as lakehouses.yaml requires them{required}: created when a period has none yet, "
        "dropped when newer ones replace them. Snapshots that people made are left alone. Also lists the versions that "
        "can be read and rolled back to, newest first, each with its time, operation, author and reason.",
        options={"reason": "snapshot policy", "dry_run": False},
        on_spark=False,
    )


def _snapshots(launch: Launch) -> Result:
    lake, watch = launch.lake, launch.supervisor
    watch.check()
    policies = {str(period): policy.keep for period, policy in launch.settings.snapshots.items()}
    done = snapshot.run(
        lake, policies, reason=launch.options.reason, review=dry_run if launch.dry else None, cancel=watch
    )
    versions = list(lake.history(limit=reports.HISTORY_LIMIT))
    metadata = reports.of_snapshots(done, lake.snapshots()) | reports.of_history(versions)
    return dg.MaterializeResult(
        metadata={"timeline": pictures.timeline(versions)} | metadata, data_version=dg.DataVersion(str(lake.version))
    )


# -- expiration and orphans ----------------------------------------------------------------------------


def deleting(
    scope: Scope,
    name: str,
    policy: str,
    run: Callable[..., Any],
    *,
    after: Sequence[str],
    description: str,
    data_version: str = "version",
    evaluate: Callable[[Any], list[dg.AssetCheckResult]] = lambda _: [],
    **more: Any,
) -> dg.AssetsDefinition:
    """Return an asset that makes a plan, shows it, and deletes exactly that.

    Args:
        scope, name, after, description, more: as :func:`~dagster_project.assets.step` has them.
        policy: the field of lakehouses.yaml without which it deletes only when it is asked to.
        run: carries out the job; gets the launch, where to write the plan, and the arguments of a job that writes.
        data_version: the figure of the report that its data version is.
        evaluate: returns the results of its ``check_specs``, by its report.
    """
    given = scope.known is None or getattr(scope.known, policy) is not None
    asked = "" if given else "\n\nNot configured in lakehouses.yaml: deletes only with `delete_without_policy: true`."

    def delete_as_planned(launch: Launch) -> Result:
        plans: list[tuple[Any, reports.Metadata]] = []
        with tempfile.TemporaryDirectory() as directory:  # the plan is read back to show it before anything is deleted
            file = Path(directory) / "plan.parquet"

            def show(planned: Any) -> None:
                plans.append((planned, reports.of_plan(file)))

            done = launch.carry_out(partial(run, launch, file.as_uri()), show)
        metadata = reports.of_deletion(*plans[-1], None if launch.dry else done)
        launch.context.log.info(metadata["outcome"])
        if not launch.dry and not done.attempted and getattr(done, "version_after", None) is None:
            metadata = page_of_idle_run(launch, metadata)
        if done.failed:
            raise dg.Failure(
                f"{done.failed} files could not be deleted; the next run tries again. See `failures`; usually "
                "the credentials in lakehouses.yaml lack the permission to delete",
                metadata=metadata,
            )
        version = dg.DataVersion(str(getattr(done, data_version)))
        return dg.MaterializeResult(metadata=metadata, data_version=version, check_results=evaluate(done))

    return step(
        scope,
        name,
        delete_as_planned,
        after=after,
        description=description + asked,
        options={"dry_run": False, "delete_without_policy": False, "reason": "retention policy", "engine": None},
        policy=policy,
        without=NOTHING_DONE.format(policy) + ASK,
        deletes=True,
        **more,
    )


def version_expiration(scope: Scope) -> dg.AssetsDefinition:
    """Return the asset that expires versions."""
    known = scope.known
    kept = "Keeps the newest versions and young ones, by `retention` in lakehouses.yaml, and all snapshots."
    if known is not None:
        policy = known.retention or Retention()
        young = format_duration(policy.older_than)
        kept = f"Keeps the newest {policy.keep_last} versions, those younger than {young}, and all snapshots."

    def expire_versions(launch: Launch, plan_to: str, **writes: Any) -> expire.Report:
        policy = launch.settings.retention or Retention()
        how = expire.Config(
            launch.engine,
            policy.keep_last,
            policy.older_than.total_seconds(),
            reason=launch.options.reason,
            plan_to=plan_to,
            plan_options={},
        )
        return expire.run(launch.lake, how, launch.spark, **writes)

    return deleting(
        scope,
        EXPIRATION,
        "retention",
        expire_versions,
        # a version that is not in the backup yet must not expire
        after=[HEALTH, SNAPSHOTS if known is not None and known.backup is None else BACKUP],
        description=f"Expires old versions. {kept} Makes a plan, shows what it would free, and carries out "
        "exactly that plan. Never runs after a failed integrity check.",
        data_version="boundary_after",
    )


def orphan_removal(scope: Scope) -> dg.AssetsDefinition:
    """Return the asset that removes orphans: files that nothing reaches."""
    known = scope.known
    age = "the age in lakehouses.yaml" if known is None else format_duration((known.orphans or Orphans()).older_than)

    def remove_orphans(launch: Launch, plan_to: str, **writes: Any) -> clean.Report:
        age = (launch.settings.orphans or Orphans()).older_than.total_seconds()
        reason = launch.options.reason
        how = clean.Config(launch.engine, older_than_seconds=age, plan_to=plan_to, plan_options={}, reason=reason)
        return clean.run(launch.lake, how, launch.spark, **writes)

    return deleting(
        scope,
        ORPHANS,
        "orphans",
        remove_orphans,
        after=[HEALTH, EXPIRATION],
        description="Removes files that no version, snapshot or live saved transaction reaches and that are older than "
        f"{age}. Makes a plan, shows every file, fences them off by a version, and deletes those that are orphans "
        "still. Deletes nothing if a file that it needs cannot be read. Never runs after a failed integrity check.",
    )

"""The asset checks of a lakehouse, or of a fleet, and their results.

``integrity`` and ``backup_verified`` read nodes. For the others the newest root suffices. Dagster evaluates a check
when its asset is materialised; an asset that is no longer materialised would keep its last result for ever, so the
sensor evaluates these, too, and records every result that changes.
"""

import logging
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import dagster as dg

from dagster_project import assets, compaction_policy, idle
from dagster_project.assets import BACKUP_VERIFIED, INTEGRITY, NO_BACKUP, key, settings_of
from dagster_project.config.settings import LakehouseSettings
from dagster_project.config.values import format_duration
from dagster_project.metadata import reports
from dagster_project.resources import SparkResource, open_lakehouse
from dagster_project.scope import FLEET, PARTITION_TAG, Scope
from dagster_project.supervised import (
    OPENED,
    REPAIR,
    RETRY,
    SENT_AS,
    Supervisor,
    advice,
    choose_by_settings,
    is_permanent,
    run_supervised,
    sentences,
    with_advice,
)
from pipelines import backup, compaction, snapshot, stats, verify
from pipelines.engine.choice import choose_engine
from pipelines.reports.summary import utc
from pipelines.trees.policy import debt_of
from trinitylake_core import InvalidInput, Lakehouse, TrinityLakeError, clock

DEBT: Final = "compaction_debt"
COMPACTION_FRESH: Final = "compaction_fresh"
SNAPSHOTS_FRESH: Final = "snapshots_fresh"
REACHABLE: Final = OPENED
NOT_FROZEN: Final = "not_frozen"
_DROP: Final = (
    "Put the files of the snapshot back with the job `mend`, or drop it (`trinitylake snapshot drop ROOT NAME`): the "
    "newest version is intact. Until then nothing expires and nothing is deleted, because nobody knows what the "
    "snapshot needs; the rest of maintenance goes on."
)
_GIVE_UP: Final = (
    "If another copy has the files, the job `mend` puts them back. Else give up what needs them: a version by the job "
    "`mend` with `lost`, a snapshot by `trinitylake snapshot drop ROOT NAME`. Until then nothing expires and nothing "
    "is deleted; the backup of everything else goes on, and so does the rest of maintenance."
)
_REPAIR_BACKUP: Final = (
    "Versions that the backup may lack stay until it can be read. `trinitylake mend BACKUP --from ROOT` puts damaged "
    "files of the backup back; or export to a new place."
)
_log: Final = logging.getLogger(__name__)


def checks_of(scope: Scope) -> list[dg.AssetChecksDefinition]:
    """Return the asset checks."""
    known = scope.known
    messages = "as many messages" if known is None else f"{known.compaction.messages:,} or more messages"
    age = "compaction.max_age" if known is None else format_duration(known.compaction.max_age)
    required = "" if known is None else f" ({', '.join(known.snapshots)})"
    frozen = "Warns while the lakehouse is frozen, and shows by whom, why and until when."
    debt = (
        f"Warns when {messages} are buffered, the threshold from which a compaction pays, and shows what a compaction "
        "would rewrite."
    )
    fresh = (
        f"Warns when the backlog stayed above the threshold for {age}. Judged from the history of the lakehouse, so it "
        "does not matter which program runs compactions; a lakehouse without a backlog is never stale."
    )
    missing = f"Warns when a required snapshot{required} is still missing after its grace period."
    with warnings.catch_warnings():  # checks of partitions are a preview in Dagster 1.13
        warnings.simplefilter("ignore", dg.PreviewWarning)
        found = [
            reachable(scope),
            integrity(scope),
            _check_of_root(scope, assets.DEFINITION, NOT_FROZEN, frozen, lambda _, lake: evaluate_freeze(lake)),
            _check_of_root(scope, assets.COMPACTION, DEBT, debt, evaluate_debt),
            _check_of_root(scope, assets.COMPACTION, COMPACTION_FRESH, fresh, evaluate_compactions),
        ]
        if known is None or known.snapshots:
            found.append(_check_of_root(scope, assets.SNAPSHOTS, SNAPSHOTS_FRESH, missing, evaluate_snapshots))
        if known is None or known.backup is not None:
            found.append(backup_verified(scope))
    return found


def reachable(scope: Scope) -> dg.AssetChecksDefinition:
    """Return the check that the lakehouse can be opened. The sensor evaluates it; no job waits for it.

    It is on the first asset that is materialised: Dagster's graph shows no failed check of one that is only observed.
    """

    @dg.asset_check(
        asset=key(scope, assets.HEALTH),
        name=REACHABLE,
        partitions_def=scope.partitions,
        description="Fails when the lakehouse cannot be opened: nothing at its root, no access, no answer, or a "
        "damaged newest version. Shows cause and advice. Evaluated by the sensor, which also notifies the webhook, "
        "once.",
    )
    def check(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        settings: LakehouseSettings | None = None
        try:
            settings = scope.settings(context)
            lake = open_lakehouse(settings)
        except TrinityLakeError as error:
            return evaluate_unreachable(trouble_of(error, settings))
        return evaluate_reachable(lake.version)

    return check


def integrity(scope: Scope) -> dg.AssetChecksDefinition:
    """Return the check that the newest version breaks no invariant. It blocks everything downstream."""

    @dg.asset_check(
        asset=key(scope, assets.HEALTH),
        name=INTEGRITY,
        blocking=True,
        partitions_def=scope.partitions,
        retry_policy=RETRY,
        description="Reads every node of the newest version and checks every invariant of the format. Lists each "
        "finding with its remedy. A finding blocks everything that rewrites or deletes; one in a "
        "snapshot only what deletes.",
    )
    def check(context: dg.AssetCheckExecutionContext, spark: SparkResource) -> Any:
        settings = settings_of(scope, context)

        def work(lake: Lakehouse, watch: Supervisor) -> verify.Report:
            health = settings.health
            objects = lake.stats().objects or 0
            engine = choose_engine("auto", watch.spark, objects, health.spark_from_objects)
            share = health.tables or None
            how = verify.Config(definitions=health.definitions, engine=engine.name, tables=share)
            return verify.run(lake, how, watch.spark, progress=watch.progress)

        found = run_supervised(context, settings, spark, work)
        if found.concerns_snapshots_only():
            yield _describe_gate(found, _DROP, dg.AssetCheckSeverity.WARN)
            return
        yield from _judge_gate(INTEGRITY, found, "nothing that rewrites or deletes was started", REPAIR)

    return check


def _check_of_root(
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
        asset=key(scope, assets.BACKUP),
        name=BACKUP_VERIFIED,
        blocking=True,
        retry_policy=RETRY,
        partitions_def=scope.partitions,
        description=f"Proves that the backup{where} could replace the lakehouse: its newest version has the same "
        "content digest in both places, it breaks no invariant, and no version has been waiting to be backed up for "
        f"more than {age}. While it fails nothing expires and nothing is deleted.",
    )
    def check(context: dg.AssetCheckExecutionContext, spark: SparkResource) -> Any:
        settings = settings_of(scope, context)
        policy = settings.backup
        if policy is None:
            yield dg.AssetCheckResult(passed=True, description=NO_BACKUP)
            return

        def work(lake: Lakehouse, watch: Supervisor) -> backup.Report:
            content = idle.find_content_version(lake)
            partition = context.run.tags.get(PARTITION_TAG)
            # the backup of this very run has seen the same; what counts is the one before
            copied = key(scope, assets.BACKUP)
            is_idle = idle.has_seen(context.instance, copied, partition, content, before=context.run.run_id)
            how = backup.Config(
                max_age_seconds=policy.max_age.total_seconds(),
                definitions=policy.definitions,
                tables=policy.tables,
                engine=choose_by_settings(settings, is_idle=is_idle),
            )
            there = settings.resolved_target_options(policy.target)
            return backup.run(lake, policy.target, how, watch.spark, storage_options=there, progress=watch.progress)

        found = run_supervised(context, settings, spark, work)
        if found.concerns_lost_only():
            yield _describe_gate(found, _GIVE_UP, dg.AssetCheckSeverity.WARN)
            return
        remedy = _REPAIR_BACKUP if found.findings else ""  # each other problem names its own
        yield from _judge_gate(BACKUP_VERIFIED, found, "nothing expires and nothing is deleted", remedy)

    return check


def _judge_gate(
    check: str, found: verify.Report | backup.Report, consequence: str, remedy: str
) -> Iterator[dg.AssetCheckResult]:
    """Yield the result of a check that stops what deletes. One that fails names the first findings, and the remedy.

    Raises ``dagster.Failure`` then, or Dagster would only report that a blocking check failed.
    """
    result = _describe_gate(found, remedy)
    yield result
    if not result.passed:
        why = f"{consequence}: {result.description}"
        raise dg.Failure(why, metadata={**result.metadata, SENT_AS: check}, allow_retries=False)


def _describe_gate(
    found: verify.Report | backup.Report, remedy: str, severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.ERROR
) -> dg.AssetCheckResult:
    metadata = reports.of_report(found)
    said = metadata.pop("outcome")
    if not found.ok:
        said = f"{reports.text_of(found, 3)}\n{remedy}".rstrip()
    return dg.AssetCheckResult(passed=found.ok, severity=severity, metadata=metadata, description=said)


# -- a lakehouse that cannot be opened -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a lakehouse cannot be opened, and what to do.

    ``storage``: the one that fails, if that is why. It is not where this lakehouse alone is refused.
    """

    cause: str
    advice: str
    storage: str | None = None

    @property
    def text(self) -> str:
        """Cause and advice."""
        return sentences(self.cause, self.advice)


def trouble_of(error: Exception, settings: LakehouseSettings | None = None) -> Trouble:
    """Return the cause for which a lakehouse cannot be opened, and advice, where nothing was launched."""
    if not isinstance(error, TrinityLakeError):
        _log.error("unexpected error while polling %s", settings and settings.name, exc_info=error)
        cause = f"{type(error).__name__}: {error}"
        return Trouble(cause, "Unexpected: see the log of the code server.")
    text, storage = advice(error), None
    if isinstance(error, InvalidInput):
        text = "Correct lakehouses.yaml, or the environment of the code server."
    elif settings is not None and not is_permanent(error):
        storage = settings.storage or settings.root
        # the endpoint, if the stanza names it, is shown without a password, and without the value of a variable
        endpoint, at = settings.storage_options.get("endpoint_url"), ""
        if isinstance(endpoint, Mapping):
            at = "".join(f" at {{{source}: {name}}}" for source, name in endpoint.items())
        elif endpoint is not None:
            at = f" at {urlsplit(str(endpoint)).netloc.rpartition('@')[2]}"
        text = f"{settings.root}{at} is polled again until it answers. Check the storage and the network."
    return Trouble(str(error), text, storage)


# -- what the newest root shows ---------------------------------------------------------------------------


def evaluate_unreachable(trouble: Trouble) -> dg.AssetCheckResult:
    """Return the result for a lakehouse that cannot be opened."""
    shown = reports.keep_known(cause=trouble.cause, advice=trouble.advice, storage=trouble.storage)
    return dg.AssetCheckResult(check_name=REACHABLE, passed=False, description=trouble.text, metadata=shown)


def evaluate_reachable(version: int) -> dg.AssetCheckResult:
    """Return the result for a lakehouse that could be opened."""
    return dg.AssetCheckResult(check_name=REACHABLE, passed=True, description=f"opened at version {version}")


def evaluate_freeze(lake: Lakehouse) -> dg.AssetCheckResult:
    """Return the check of a freeze: its author, reason, beginning and end. No request."""
    freeze = lake.frozen
    refused = f"{freeze}. Commits and loads are refused; the job `thaw` ends that"
    return _result(NOT_FROZEN, "writers may commit" if freeze is None else refused, passed=freeze is None)


def evaluate_debt(settings: LakehouseSettings, lake: Lakehouse, *, cost: bool = True) -> dg.AssetCheckResult:
    """Return the check of the backlog; with ``cost``, also the nodes and bytes that a compaction would rewrite."""
    decision = compaction_policy.too_many(settings.compaction, lake.stats())
    estimate = compaction.estimate(lake) if cost and decision.wanted and not lake.read_only else None
    return _result(
        DEBT,
        decision.reason,
        passed=not decision.wanted,
        buffered_messages=debt_of(lake.stats()),
        threshold=settings.compaction.messages,
        nodes_a_compaction_would_rewrite=None if estimate is None else estimate.nodes,
        bytes_a_compaction_would_write=None if estimate is None else estimate.bytes,
    )


def evaluate_compactions(settings: LakehouseSettings, lake: Lakehouse) -> dg.AssetCheckResult:
    """Return the check that compactions keep up. A lakehouse with a small backlog is never stale."""
    policy = settings.compaction
    found = stats.debt(lake, policy.messages, policy.max_age.total_seconds())
    message = f"version {found.version}: {found.messages:,} buffered messages, threshold {found.threshold:,}"
    if found.since is not None:
        message += f"; above it since {utc(found.since)} or earlier, in all {found.looks} versions examined"
    if found.stale:
        job = f"{settings.slug}_compaction"
        message += f"; the limit is {format_duration(policy.max_age)}. Check the runs of {job}, that its sensor is on "
        message += f"and that the daemon is running; then launch {job} (in a fleet {FLEET}_compaction)"
    return _result(
        COMPACTION_FRESH,
        message,
        passed=not found.stale,
        buffered_messages=found.messages,
        too_many_since=None if found.since is None else dg.MetadataValue.timestamp(found.since),
    )


def evaluate_snapshots(settings: LakehouseSettings, lake: Lakehouse) -> dg.AssetCheckResult:
    """Return the check that every required snapshot exists."""
    if not settings.snapshots:
        return _result(SNAPSHOTS_FRESH, "lakehouses.yaml requires no snapshots", passed=True)
    graces = {str(period): policy.grace_of(period) for period, policy in settings.snapshots.items()}
    snapshots = lake.snapshots()
    late = snapshot.overdue(graces, snapshots, clock.utc_now())
    newest = max((each.created_at for each in snapshots), default=None)
    return _result(
        SNAPSHOTS_FRESH,
        _describe_late(late) if late else f"every required snapshot exists: {', '.join(graces)}",
        passed=not late,
        missing=len(late),
        newest_snapshot=None if newest is None else dg.MetadataValue.timestamp(newest),
    )


def _describe_late(late: Iterable[snapshot.Overdue]) -> str:
    """Return which snapshots are missing, and what to do about it."""
    parts = [f"{each.name} is missing; newest {each.period} snapshot: {each.newest or 'none'}" for each in late]
    parts.append("check the runs of the maintenance of this lakehouse, and its schedule, then launch it")
    return "; ".join(parts)


def _result(check: str, message: str, *, passed: bool, **metadata: Any) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(
        check_name=check,
        passed=passed,
        severity=dg.AssetCheckSeverity.WARN,
        description=message,
        metadata=reports.keep_known(**metadata),
    )


def evaluate_root(
    settings: LakehouseSettings, lake: Lakehouse, *, over_too_long: bool
) -> Iterator[tuple[str, dg.AssetCheckResult]]:
    """Yield the results of the checks that the root of a version suffices for, each with the asset of the check.

    Costs no request, unless the backlog has been above the threshold for so long that compactions may be stale.
    """
    debt = evaluate_debt(settings, lake, cost=False)
    yield assets.DEFINITION, evaluate_freeze(lake)
    yield assets.COMPACTION, debt
    if settings.snapshots:
        yield assets.SNAPSHOTS, evaluate_snapshots(settings, lake)
    if debt.passed or over_too_long:
        yield assets.COMPACTION, evaluate_compactions(settings, lake)


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

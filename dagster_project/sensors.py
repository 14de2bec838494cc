"""The sensor of one lakehouse: it reads the newest root and requests a compaction when one pays."""

from __future__ import annotations

import time
from typing import Final

import dagster as dg
from dagster._core.definitions.data_version import DATA_VERSION_IS_USER_PROVIDED_TAG, DATA_VERSION_TAG

from dagster_project import assets, checks, pacing
from dagster_project.config.settings import LAKEHOUSE_TAG, REASON_TAG, Compaction, LakehouseSettings
from dagster_project.jobs import Jobs
from dagster_project.pacing import Seen
from dagster_project.resources import open_lakehouse
from trinitylake_core import Lakehouse, NotALakehouse

AT_WORK: Final = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]


def sensors_of(settings: LakehouseSettings, jobs: Jobs) -> list[dg.SensorDefinition]:
    """Return the sensors of one lakehouse."""
    return [compaction_sensor(settings, jobs)]


def compaction_sensor(settings: LakehouseSettings, jobs: Jobs) -> dg.SensorDefinition:
    """Return the sensor that requests compactions."""

    @dg.sensor(
        name=f"{settings.slug}_compaction_sensor",
        job=jobs.compaction,
        minimum_interval_seconds=max(1, int(settings.compaction.poll.total_seconds())),
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Reads the newest root of lakehouse {settings.name!r}, records new versions and changed checks, "
        "and " + _policy(settings.compaction),
    )
    def sense(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        return evaluate(settings, context)

    return sense


def _policy(policy: Compaction) -> str:
    if not policy.enabled:
        return "never requests a compaction: compaction.enabled is false in lakehouses.yaml."
    return f"requests a compaction, one at a time, once {policy.messages:,} messages are buffered."


def evaluate(settings: LakehouseSettings, context: dg.SensorEvaluationContext) -> dg.SensorResult:
    """Return the result of one tick."""
    seen, now = Seen.parse(context.cursor), time.time()
    try:
        lake = open_lakehouse(settings)
    except NotALakehouse as error:
        return dg.SensorResult(skip_reason=str(error), cursor=context.cursor)
    pays = pacing.pays(settings.compaction, lake.stats())
    over_since = (seen.over_since or now) if pays.wanted else None
    too_long = _too_long(settings, over_since, now)
    events = _events(settings, context.instance, lake, seen, too_long=too_long)
    over_since = (
        now if too_long else over_since
    )  # searching the history costs more than one root: at most once per max_age
    decision = _decided(settings, context.instance, pays, seen, now)
    if not decision.wanted:
        cursor = Seen(lake.version, seen.requested_at, over_since).text()
        return dg.SensorResult(skip_reason=decision.reason, cursor=cursor, asset_events=events)
    request = _request(settings, decision.reason, f"{lake.version}-{now:.0f}")
    cursor = Seen(lake.version, now, over_since).text()
    return dg.SensorResult(run_requests=[request], cursor=cursor, asset_events=events)


def _too_long(settings: LakehouseSettings, over_since: float | None, now: float) -> bool:
    return over_since is not None and now - over_since >= settings.compaction.max_age.total_seconds()


def _events(
    settings: LakehouseSettings, instance: dg.DagsterInstance, lake: Lakehouse, seen: Seen, *, too_long: bool
) -> list[dg.AssetObservation | dg.AssetCheckEvaluation]:
    """Return what is new: a version, and the checks whose verdict changed."""
    events: list[dg.AssetObservation | dg.AssetCheckEvaluation] = []
    events += [] if lake.version == seen.version else [_observed(settings, lake)]
    events += checks.changed(settings, lake, instance, over_too_long=too_long)
    return events


def _decided(
    settings: LakehouseSettings, instance: dg.DagsterInstance, pays: pacing.Decision, seen: Seen, now: float
) -> pacing.Decision:
    """Return whether to request a compaction now: if it pays, none is running, and the last one is long enough ago."""
    if not settings.compaction.enabled:
        return pacing.Decision(wanted=False, reason=f"{pays.reason}; compaction.enabled is false in lakehouses.yaml")
    run = run_at_work(settings, instance)
    if run is not None:
        return pacing.Decision(wanted=False, reason=f"run {run} of this lakehouse has not finished yet")
    if not pays.wanted:
        return pays
    last = max(seen.requested_at, _last_compaction(settings, instance))
    return pacing.too_soon(settings.compaction, last, now) or pays


def _request(settings: LakehouseSettings, reason: str, run_key: str) -> dg.RunRequest:
    step = assets.key(settings, assets.COMPACTION).to_python_identifier()
    return dg.RunRequest(
        run_key=run_key,
        tags={LAKEHOUSE_TAG: settings.slug, REASON_TAG: reason},
        run_config={"ops": {step: {"config": {"reason": reason}}}},
    )


def _observed(settings: LakehouseSettings, lake: Lakehouse) -> dg.AssetObservation:
    seen = assets.observation(settings, lake)
    return dg.AssetObservation(
        asset_key=assets.key(settings, assets.DEFINITION),
        metadata=seen.metadata,
        tags={DATA_VERSION_TAG: str(lake.version), DATA_VERSION_IS_USER_PROVIDED_TAG: "true"},
    )


def run_at_work(settings: LakehouseSettings, instance: dg.DagsterInstance) -> str | None:
    """Return the ID of a queued or running run on a lakehouse, whoever started it; ``None`` without one."""
    prefix = settings.key_prefix
    for run in instance.get_runs(dg.RunsFilter(statuses=AT_WORK)):
        selected = run.asset_selection or ()
        if run.tags.get(LAKEHOUSE_TAG) == settings.slug or any(key.has_prefix(prefix) for key in selected):
            return run.run_id
    return None


def _last_compaction(settings: LakehouseSettings, instance: dg.DagsterInstance) -> float:
    event = instance.get_latest_materialization_event(assets.key(settings, assets.COMPACTION))
    return 0.0 if event is None else event.timestamp

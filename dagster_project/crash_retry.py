"""Scheduled maintenance whose process died is requested again, soon, and at most twice.

A run that fails by itself records why, and a retry would find the same. A run whose process was killed, or whose
machine was restarted, records nothing, and its lakehouse would wait for the next day. Maintenance is safe to repeat,
whenever it died (the commit protocol), so a sensor requests it again.

Dagster's own ``run_retries`` (with ``retry_on_asset_or_op_failure: false``) was tried in its place
(``tests/dagster/test_kills.py``). It retries when the process of a run alone is killed. What it does not do:

* When the code server dies with the run, Dagster's daemon tries once, while nothing listens on the socket, and gives up
  for good. A sensor is evaluated when the code server is back.
* It also retries what was launched by hand, what a newer run has replaced, what is a day old, and what the switched-off
  schedule had requested. It fails for a lakehouse that has left the fleet.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import dagster as dg

from dagster_project.scope import FLEET, PARTITION_TAG, AssetJob
from dagster_project.supervised import INTERRUPTED

NAME: Final = "maintenance_repeats"
REPEAT_TAG: Final = "trinitylake/repeat"
"""How many times a maintenance has been requested again."""
OF_TAG: Final = "trinitylake/repeat_of"
"""The run that died, and that this one repeats."""
SCHEDULE_TAG: Final = "trinitylake/schedule"
"""The schedule that requested the first of these runs."""
AT_MOST: Final = 2
_OURS: Final = "trinitylake/"
_SCHEDULE_TAG: Final = "dagster/schedule_name"
_REASON_TAG: Final = "dagster/failure_reason"
_VERDICTS: Final = {"STEP_FAILURE", "RUN_EXCEPTION", "JOB_INITIALIZATION_FAILURE"}
"""The reasons of runs that failed by themselves. Without one of these the process is gone, or never came."""
_LATE: Final = timedelta(hours=6)
"""A run that was created longer ago than this is not repeated: the next time is nearer."""
_EVERY_SECONDS: Final = 30


@dataclass(frozen=True, slots=True)
class Outlook:
    """What becomes of a maintenance whose run failed, and in a sentence why; "" for a run that no schedule requested.

    ``died``: without a verdict. ``repeats``: requests before this one. ``wanted``: one more is made, or has been.
    """

    died: bool
    repeats: int
    wanted: bool
    why: str


def repeats_sensor(jobs: Sequence[AssetJob]) -> dg.SensorDefinition:
    """Return the sensor that requests maintenance again that died, of all lakehouses of a code location."""

    @dg.run_status_sensor(
        run_status=dg.DagsterRunStatus.FAILURE,
        name=NAME,
        monitored_jobs=list(jobs),
        request_jobs=list(jobs),
        minimum_interval_seconds=_EVERY_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Asks again for a scheduled maintenance whose run died without a verdict: its process was killed, "
        f"or its machine restarted. At most {AT_MOST} times, and never for one that failed by itself.",
    )
    def again(context: dg.RunStatusSensorContext) -> dg.RunRequest | dg.SkipReason:
        run = context.dagster_run
        found = outlook(context.instance, run)
        if not found.wanted:
            return dg.SkipReason(found.why or f"run {run.run_id} was not scheduled")
        tags = {name: value for name, value in run.tags.items() if name.startswith(_OURS)}
        schedule = _schedule(run)
        if schedule is not None:
            tags[SCHEDULE_TAG] = schedule
        tags[REPEAT_TAG] = str(found.repeats + 1)
        tags[OF_TAG] = run.run_id
        return dg.RunRequest(
            run_key=f"{run.run_id} again",
            job_name=run.job_name,
            partition_key=run.tags.get(PARTITION_TAG),
            asset_selection=None if run.asset_selection is None else sorted(run.asset_selection),
            tags=tags,
        )

    return again


def outlook(instance: dg.DagsterInstance, run: dg.DagsterRun) -> Outlook:
    """Return the outlook of a failed run. A few queries."""
    repeats = int(run.tags.get(REPEAT_TAG, "0"))
    if _SCHEDULE_TAG not in run.tags and not repeats:
        return Outlook(died=False, repeats=0, wanted=False, why="")
    if not _has_died(instance, run):
        return Outlook(died=False, repeats=repeats, wanted=False, why=f"run {run.run_id} failed by itself")
    if repeats >= AT_MOST:
        why = f"it died {repeats + 1} times in a row, and is not repeated any more: launch it when the cause is removed"
        return Outlook(died=True, repeats=repeats, wanted=False, why=why)
    refusal = _refusal(instance, run)
    why = refusal or f"it died without a verdict, and is repeated ({repeats + 1} of {AT_MOST} times at the most)"
    return Outlook(died=True, repeats=repeats, wanted=refusal is None, why=why)


def _refusal(instance: dg.DagsterInstance, run: dg.DagsterRun) -> str | None:
    """Return the reason for which a run that died is not repeated; ``None`` without one."""
    lakehouse = run.tags.get(PARTITION_TAG)
    if lakehouse is not None and not instance.has_dynamic_partition(FLEET, lakehouse):
        # Dagster would refuse the request, and evaluate this failure again and again before any other
        return f"it died, and the lakehouse {lakehouse!r} is not in the fleet any more"
    if is_switched_off(instance, run, _schedule(run)):
        return "it died, and its schedule has been switched off since"
    same = dg.RunsFilter(job_name=run.job_name, tags={} if lakehouse is None else {PARTITION_TAG: lakehouse})
    for newest in instance.get_runs(same, limit=1):
        if newest.run_id != run.run_id and newest.tags.get(OF_TAG) != run.run_id:
            return f"it died, and run {newest.run_id} has been requested since"
    record = instance.get_run_record_by_id(run.run_id)
    if record is None or time.time() - record.create_timestamp.timestamp() > _LATE.total_seconds():
        return "it died, and was requested more than 6 hours ago: the schedule requests the next one"
    return None


def _has_died(instance: dg.DagsterInstance, run: dg.DagsterRun) -> bool:
    """Return whether a failed run reported no reason: no step failed, except those that a signal interrupted.

    A run that a person terminates is not failed but cancelled. A run that exceeded its maximum runtime is cancelled
    first, and then failed: it would do that again.
    """
    if instance.get_records_for_run(run.run_id, of_type=dg.DagsterEventType.RUN_CANCELING, limit=1).records:
        return False
    failed = instance.get_records_for_run(run.run_id, of_type=dg.DagsterEventType.STEP_FAILURE).records
    for each in failed:
        event = each.event_log_entry.dagster_event
        failure = None if event is None else event.step_failure_data.user_failure_data
        if failure is None or not (failure.description or "").startswith(INTERRUPTED):
            return False
    return bool(failed) or run.tags.get(_REASON_TAG) not in _VERDICTS


def is_switched_off(instance: dg.DagsterInstance, run: dg.DagsterRun, name: str | None) -> bool:
    """Return whether a schedule or sensor of the code location of a run has been switched off. One query."""
    return any(each.status.value == "STOPPED" for each in find_states(instance, run, name))


def find_states(instance: dg.DagsterInstance, run: dg.DagsterRun, name: str | None) -> list[Any]:
    """Return what Dagster keeps of a schedule or sensor of the code location of a run. One query."""
    origin = run.remote_job_origin
    known = [] if instance.schedule_storage is None else instance.all_instigator_state()
    ours = None if origin is None else origin.repository_origin.get_selector()
    return [each for each in known if each.name == name and ours in {None, each.repository_selector}]


def _schedule(run: dg.DagsterRun) -> str | None:
    return run.tags.get(_SCHEDULE_TAG, run.tags.get(SCHEDULE_TAG))

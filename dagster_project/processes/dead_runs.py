"""``python -m dagster_project.processes.dead_runs``: ends the runs whose processes died in a crash or a power failure.

REQUIRES: the code server is not running. It is the parent of every run, so no run is alive then. Dagster would still
count them as running, and the sensors and pools of their lakehouses would wait.

Dagster's ``run_monitoring`` does not do this. Its default launcher cannot be asked whether the process of a run is
alive (``supports_check_run_worker_health`` is false), so a run that has started is ended after ``max_runtime_seconds``
only. Dagster's code server notices the death of a run at work, but not while the database is away: then it stops asking
for good. So our code server asks, too (:func:`watch`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Final

import dagster as dg

_ALIVE: Final = [dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING]
_EVERY_SECONDS: Final = 10.0
_PROCESSES: Final = Path("/proc")
_DIED: Final = "The process of this run no longer exists."
_WHY: Final = "The process of this run no longer exists: it died together with the code server."
_log: Final = logging.getLogger(__name__)


def end_dead_runs(instance: dg.DagsterInstance) -> list[str]:
    """End every run that Dagster counts as running, and return their IDs. REQUIRES: no run is alive."""
    dead = instance.get_runs(dg.RunsFilter(statuses=_ALIVE))
    for run in dead:
        _end(instance, run, _WHY)
    return [run.run_id for run in dead]


def without_process(instance: dg.DagsterInstance, location: str) -> dict[str, dg.DagsterRun]:
    """Return the runs of a code location that Dagster counts as running, and whose process is gone, by ID.

    REQUIRES: the processes of its runs are on this machine. One query, and one more for each run that is at work.
    """
    if not _PROCESSES.is_dir() or not isinstance(instance.run_launcher, dg.DefaultRunLauncher):
        return {}
    at_work = dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING])
    found = {}
    for run in instance.get_runs(at_work):
        origin = run.remote_job_origin
        if origin is None or origin.location_name != location:
            continue
        pid = _recorded_pid(instance, run)
        if pid is not None and _gone(pid):
            found[run.run_id] = run
    return found


def _recorded_pid(instance: dg.DagsterInstance, run: dg.DagsterRun) -> int | None:
    """Return the process of a run that Dagster recorded last; ``None`` if it recorded none. One query."""
    records = instance.get_records_for_run(run.run_id, of_type=dg.DagsterEventType.ENGINE_EVENT).records
    last = None
    for record in records:
        event = record.event_log_entry.dagster_event
        if event is None:
            continue
        pid = event.engine_event_data.metadata.get("pid")
        if pid is not None:
            last = int(str(pid.value))
    return last


class Undertaker:
    """Ends runs without a process, for a caller who comes back again and again.

    Attributes:
        suspects: the runs that were without a process at the last call. One that has just ended may not be recorded
            yet, so a run is ended when it is found twice in a row.
    """

    def __init__(self) -> None:
        self.suspects: set[str] = set()

    def end_dead_runs(self, instance: dg.DagsterInstance, location: str, pool: str | None) -> None:
        """End the runs of a code location that died, and free the slots of a pool that ended runs hold.

        REQUIRES: as :func:`without_process`. A query, one more for each run at work, and two for a pool.
        """
        self.suspects = end_those_without_process(instance, location, self.suspects)
        if pool is not None:
            free_slots_of_ended_runs(instance, pool)


def watch(location: str, sleep: Callable[[float], None] = time.sleep) -> None:
    """End the runs of a code location that were without a process twice in a row, for ever.

    A run that has just ended may not be recorded yet, so each run is examined twice.
    """
    suspects: set[str] = set()
    while True:
        sleep(_EVERY_SECONDS)
        try:
            with dg.DagsterInstance.get() as instance:
                suspects = end_those_without_process(instance, location, suspects)
        except Exception as error:  # noqa: BLE001 - the database may be away; the next attempt finds it again
            _log.warning("cannot search for dead runs now: %s", type(error).__name__)


def end_those_without_process(instance: dg.DagsterInstance, location: str, suspects: AbstractSet[str]) -> set[str]:
    """End the runs without a process that are suspects already, and return the others."""
    gone = without_process(instance, location)
    for run_id in gone.keys() & suspects:
        _end(instance, gone[run_id], _DIED)
    return gone.keys() - suspects


def free_slots_of_ended_runs(instance: dg.DagsterInstance, pool: str) -> list[str]:
    """Free the slots of a pool that runs hold although they have ended, and return the IDs of these runs.

    A run whose process is killed keeps its slot, and the next run would wait for it without end. Dagster's daemon frees
    it only where ``dagster.yaml`` has ``free_slots_after_run_end_seconds``. One query, and one for each holder.
    """
    storage = instance.event_log_storage
    if not storage.supports_global_concurrency_limits:
        return []
    freed = []
    for run_id in sorted(storage.get_concurrency_info(pool).active_run_ids):
        run = instance.get_run_by_id(run_id)
        if run is None or run.is_finished:
            storage.free_concurrency_slots_for_run(run_id)
            freed.append(run_id)
    return freed


def _end(instance: dg.DagsterInstance, run: dg.DagsterRun, why: str) -> None:
    if run.status is dg.DagsterRunStatus.CANCELING:
        instance.report_run_canceled(run, why)
    else:
        instance.report_run_failed(run, why)
    instance.event_log_storage.free_concurrency_slots_for_run(run.run_id)
    _log.warning("run %s of %s: %s", run.run_id, run.job_name, why)


def _gone(pid: int) -> bool:
    try:
        return (_PROCESSES / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] in {"Z", "X"}
    except OSError:
        return True


def main() -> None:
    """End the dead runs of the instance of ``DAGSTER_HOME``."""
    with dg.DagsterInstance.get() as of_dagster_home:
        end_dead_runs(of_dagster_home)


if __name__ == "__main__":
    main()

"""``python -m dagster_project.lost_runs``: ends the runs whose processes died in a crash or a power failure.

To be called before the code server starts. The code server is the parent of every run, so none can be alive then; but
Dagster would still count them as running, and the sensors and pools of their lakehouses would wait for ever.
"""

from __future__ import annotations

import logging
from typing import Final

import dagster as dg

_ALIVE: Final = [dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING]
_WHY: Final = "The process of this run no longer exists: it died together with the code server."
_log: Final = logging.getLogger(__name__)


def end_lost_runs(instance: dg.DagsterInstance) -> list[str]:
    """End every run that Dagster counts as running, and return their IDs. REQUIRES: no run is alive."""
    lost = instance.get_runs(dg.RunsFilter(statuses=_ALIVE))
    for run in lost:
        if run.status is dg.DagsterRunStatus.CANCELING:
            instance.report_run_canceled(run, _WHY)
        else:
            instance.report_run_failed(run, _WHY)
        instance.event_log_storage.free_concurrency_slots_for_run(run.run_id)
        _log.warning("run %s of %s: %s", run.run_id, run.job_name, _WHY)
    return [run.run_id for run in lost]


def main() -> None:
    """End the lost runs of the instance that ``DAGSTER_HOME`` names."""
    with dg.DagsterInstance.get() as instance:
        end_lost_runs(instance)


if __name__ == "__main__":
    main()

"""What the files of a deployment name: ``dagster.yaml`` and the units. It never moves, and keeps what it has.

    dagster.yaml   storage: {custom: {module: dagster_project.instance, class: PostgresStorage, config: ...}}
                   run_coordinator: {module: dagster_project.instance, class: RunQueue, config: ...}
    a unit         python -m dagster_project.instance serve SOCKET [--probe]
                   python -m dagster_project.instance end-dead-runs
    a person       python -m dagster_project.instance validate

Files of 0.1.0 name modules of :mod:`dagster_project.processes`, which are still there.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any, Final

import dagster as dg
from dagster._core.run_coordinator import SubmitRunContext

from dagster_project.processes import code_server, dead_runs
from trinitylake_core.errors import InvalidInput

RECOVERY_TAG: Final = "trinitylake/recovery"
"""The tag of runs that lead back after an incident: they wait in no queue."""
SERVE: Final = "serve"
END_DEAD_RUNS: Final = "end-dead-runs"
VALIDATE: Final = "validate"
PROBE: Final = "--probe"


class RunQueue(dg.QueuedRunCoordinator):
    """Dagster's queue, past which runs that lead back after an incident start at once.

    Maintenance may hold all places for hours, and in a fleet that of its lakehouse. The options are those of
    ``run_queue`` in ``dagster.yaml``.
    """

    def submit_run(self, context: SubmitRunContext) -> dg.DagsterRun:
        """Start a run that has the tag of recovery; put any other one into the queue."""
        run = context.dagster_run
        if RECOVERY_TAG not in run.tags or run.status is not dg.DagsterRunStatus.NOT_STARTED:
            return super().submit_run(context)
        return self._instance.launch_run(run.run_id, context.workspace)


def __getattr__(name: str) -> Any:
    """Return the storage: it needs the extra ``postgres``, which a Dagster on SQLite does not have."""
    if name != "PostgresStorage":
        raise AttributeError(name)
    return getattr(importlib.import_module("dagster_project.processes.connections"), name)


def serve() -> None:
    """Be the code server, or ask the one that runs. The probe also names the mistakes in ``lakehouses.yaml``.

    They do not change its exit code: the code server answers, and the other lakehouses are maintained.
    """
    if PROBE in sys.argv:
        _tell_mistakes()
    code_server.main()


def validate() -> None:
    """Name the mistakes in ``lakehouses.yaml``; exit with 1 if there is one."""
    sys.exit(1 if _tell_mistakes() else 0)


def _tell_mistakes() -> str:
    """Print a line for each mistake in ``lakehouses.yaml``, and return them. No lakehouse is opened."""
    mistakes = ""
    try:
        importlib.import_module("dagster_project.config").load()  # the processes of Dagster load this module without it
    except InvalidInput as error:
        mistakes = str(error)
        sys.stdout.write(f"{mistakes}\n")
    return mistakes


def main() -> None:
    """Be one of the programs of a unit."""
    programs = {SERVE: serve, END_DEAD_RUNS: dead_runs.main, VALIDATE: validate}
    name = sys.argv.pop(1) if len(sys.argv) > 1 else ""
    if name not in programs:
        sys.exit(f"usage: python -m dagster_project.instance {SERVE} SOCKET [{PROBE}] | {END_DEAD_RUNS} | {VALIDATE}")
    programs[name]()


if __name__ == "__main__":
    main()

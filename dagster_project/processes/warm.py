"""Cheap runs: their processes are forked from one that has loaded the definitions, and keep their connections.

Dagster's code server starts a Python interpreter for each run, which spends more CPU on importing Dagster and loading
the definitions than it takes to maintain a small lakehouse. It also connects to its database for nearly every query.
Three modules do less:

* this one: the code server starts one process of a single thread, and each run is forked from it. Python calls this a
  *fork server*; everything else stays Dagster's: launching and cancelling runs, and noticing that one has died;
* :mod:`dagster_project.processes.preloaded`: what that process loads;
* :mod:`dagster_project.processes.connections`: PostgreSQL connections that stay open.

Measured with 20 maintenance runs at once, in CPU seconds of each: 1.34 with all of it, 5.96 without warm runs, 11.25
with plain Dagster.

A reload of the code location starts a new code server, and with it a new process to fork from.
"""

from __future__ import annotations

import multiprocessing
import os
from typing import Final

VARIABLE: Final = "TRINITYLAKE_WARM_RUNS"
"""Set to ``1`` by the code server, unless it is ``0`` already, which turns all of this off.

The process that starts runs takes it out, so that no run inherits it.
"""
PRELOADED: Final = "dagster_project.processes.preloaded"
SINGLE_THREADED: Final = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
"""Without these numpy and pyarrow start a thread each when they are imported, and threads do not survive a fork."""


def ask(environment: dict[str, str] | os._Environ[str]) -> None:
    """Ask the code server that will be started in an environment to start its runs warm.

    Neither it nor its runs import anything from the directory in which they are started.
    """
    for name, value in {VARIABLE: "1", "PYTHONSAFEPATH": "1", **SINGLE_THREADED}.items():
        environment.setdefault(name, value)


def start_runs_warm() -> bool:
    """Make this process start runs warm if the variable is set; return whether it was.

    To be called where definitions are loaded: a code server does that before it starts any run. Dagster takes the
    class of the processes from multiprocessing's context ``spawn``; should that change, runs start as slowly as before.
    """
    if os.environ.pop(VARIABLE, "0") != "1":
        return False
    warm = multiprocessing.get_context("forkserver")
    warm.set_forkserver_preload([PRELOADED])
    vars(multiprocessing.get_context("spawn"))["Process"] = warm.Process  # of this one process, where Dagster reads it
    return True

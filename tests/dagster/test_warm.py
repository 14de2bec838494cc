"""Runs are forked from a process that has loaded the definitions: of one thread, and only where it was asked for."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dagster_project.processes import warm

_SERVER = """
import json, multiprocessing, os, sys, time
from dagster_project import definitions

def told(queue):
    from dagster_project.processes import preloaded
    queue.put({
        "gone": [name for name in preloaded._LATER if name.startswith("dagster") and name not in sys.modules],
        "parent": os.getppid(), "asked": "TRINITYLAKE_WARM_RUNS" in os.environ,
        "CPU": time.process_time(), "jobs": definitions.defs.get_repository_def().has_job("lakehouses_maintenance"),
        "loaded": sorted({"dagster_postgres", "matplotlib", "pyarrow.compute", "pyiceberg"} & sys.modules.keys()),
        "parent's threads": len(os.listdir(f"/proc/{os.getppid()}/task")),
    })

if __name__ == "__main__":
    spawn = multiprocessing.get_context("spawn")  # as Dagster does it
    queue = spawn.Queue()
    answers = []
    for _ in range(2):
        process = spawn.Process(target=told, args=[queue])
        process.start()
        answers.append(queue.get(timeout=120))
        process.join()
    dies = spawn.Process(target=os.abort)
    dies.start()
    dies.join()
    print(json.dumps({"answers": answers, "me": os.getpid(), "asked": "TRINITYLAKE_WARM_RUNS" in os.environ,
                      "died of": dies.exitcode}))
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks at processes in /proc")
def test_runs_are_forked_from_one_process_that_has_loaded_everything_and_has_one_thread(tmp_path: Path) -> None:
    """Neither knows that it was asked to start runs warm, so that a run may start processes of its own as usual."""
    (tmp_path / "lakehouses.yaml").write_text("layout: partitions\nlakehouses: []\n")
    (tmp_path / "server.py").write_text(_SERVER)
    environment = {**os.environ, "TRINITYLAKE_LAKEHOUSES": str(tmp_path / "lakehouses.yaml")}
    environment["PYTHONPATH"] = str(Path(warm.__file__).parents[2])
    warm.ask(environment)
    done = subprocess.run([sys.executable, tmp_path / "server.py"], env=environment, capture_output=True, check=True)
    told = json.loads(done.stdout)
    first, second = told["answers"]
    assert first["parent"] == second["parent"] != told["me"]
    assert (False, False, False) == (told["asked"], first["asked"], second["asked"])
    assert ["dagster_postgres", "matplotlib", "pyarrow.compute", "pyiceberg"] == second["loaded"]
    assert [] == second["gone"], "a module of Dagster that is loaded before runs are forked has moved"
    assert (True, 1) == (second["jobs"], second["parent's threads"])
    assert second["CPU"] < 0.5, "a run loads by itself what should have been loaded before"
    assert -6 == told["died of"]
    assert "more than one thread" not in done.stderr.decode()


@pytest.mark.parametrize("asked", [None, "0"])
def test_whoever_was_not_asked_starts_processes_as_usual(asked: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or was asked not to: what the environment file of the unit says stays."""
    monkeypatch.delenv(warm.VARIABLE, raising=False)
    if asked is not None:
        monkeypatch.setenv(warm.VARIABLE, asked)
        environment = {warm.VARIABLE: asked}
        warm.ask(environment)
        assert asked == environment[warm.VARIABLE]
    before: Any = multiprocessing.get_context("spawn").Process
    assert not warm.start_runs_warm()
    assert before is multiprocessing.get_context("spawn").Process


def test_what_is_set_for_the_threads_of_libraries_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {"OPENBLAS_NUM_THREADS": "4"}
    warm.ask(environment)
    assert ("4", "1") == (environment["OPENBLAS_NUM_THREADS"], environment[warm.VARIABLE])

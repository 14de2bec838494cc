"""All five heavy jobs on a standalone cluster of three workers, against a slow store, an executor killed on the way.

What is asserted are counts: who ran how many tasks, how heavy the pieces were, how often was committed.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.programs import run_program

OBJECTS = 5_000
"""So many that a load, whose shares hold a thousand keys at least, has more of them than there are workers."""
WORKERS = 3
"""One more than Spark claims to have while no executor has registered."""

_PROGRAM = """
    import argparse, json, sys
    from pathlib import Path
    from benchmarks import cluster
    from pipelines.trees import subtrees

    objects, workers, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    true_flush, dealt = subtrees.flush_all, []

    def flush_all(engine, store, pieces, stamp, tasks, *rest):
        dealt.append({"tasks": tasks, "pieces": [piece.weight() for piece in pieces]})
        return true_flush(engine, store, pieces, stamp, tasks, *rest)

    subtrees.flush_all = flush_all
    options = argparse.Namespace(objects=objects, order=16, delay=0.05, kill=True, why=False)
    run = cluster.ran(workers, options, folder)
    jobs = {name: {"tasks_of": each.tasks_of, "stages": each.stages} for name, each in run.timelines().items()}
    print(json.dumps({"dealt": dealt, "jobs": jobs, "rows": run.rows}))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Run the jobs. The program fails if a job did not do its work.

    The compaction must be proved and committed once, the verification find nothing, though an executor was killed.
    """
    folder = tmp_path_factory.mktemp("cluster")
    ended = run_program(_PROGRAM, str(OBJECTS), str(WORKERS), str(folder), seconds=850)
    assert 0 == ended.returncode, ended.stderr[-4000:]
    result: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return result


@pytest.mark.spark
@pytest.mark.slow
def test_workers_of_a_cluster_share_every_job(found: dict[str, Any]) -> None:
    """Each worker runs a tenth of the tasks at least, and there are more of them than workers where there is much."""
    assert ["load", "compact", "verify", "export", "clean"] == list(found["jobs"])
    for name, job in found["jobs"].items():
        counts = job["tasks_of"].values()
        assert len(counts) >= WORKERS, name
        assert sorted(counts)[-2] >= 0.1 * sum(counts), name
        assert max(tasks for tasks, _, _ in job["stages"].values()) > WORKERS, name
    executors = {name for job in found["jobs"].values() for name in job["tasks_of"]}
    assert len(executors) > WORKERS, "another one took the place of the one that was killed"
    assert len(set(found["jobs"]["load"]["tasks_of"])) == WORKERS, "before the kill"


@pytest.mark.spark
@pytest.mark.slow
def test_no_piece_of_the_compaction_is_above_its_bound(found: dict[str, Any]) -> None:
    """The one compaction was dealt once, in pieces of a fourth of a task's share, or of one node above the leaves."""
    (dealt,) = found["dealt"]
    pieces, tasks = dealt["pieces"], dealt["tasks"]
    assert 3 * WORKERS == tasks
    assert OBJECTS // 11 * 0.8 <= sum(pieces) <= OBJECTS // 11 + 1
    assert max(pieces) <= max(sum(pieces) / (4 * tasks), 16 * 16 / 11 + 1)

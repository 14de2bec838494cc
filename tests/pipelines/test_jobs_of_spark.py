"""How many jobs of Spark a command takes on a small lakehouse: each has a price of its own, however little it does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from pipelines import tables_health
from tests.support.lakes import filled, new_lake
from tests.support.programs import run_program

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MOST: Final = {
    "diff": 2, "compact": 2, "verify": 8, "stats": 15, "tables health": 1, "export": 12, "backup": 11, "load": 12,
    "rollback": 2, "expire (plan)": 10, "expire": 0, "clean": 13, "tables clean": 37, "tables compact": 10,
}  # fmt: skip
"""The jobs of each command that has an engine."""
_PROGRAM: Final = """
    import json
    from benchmarks import tasks
    rows = tasks.measured(300, 2, tasks.read_options(["--order", "8", "--compacted", "2"]))
    print(json.dumps({name.partition(": ")[2]: row for name, row in rows.items()}))
"""


@pytest.mark.spark
def test_health_takes_one_job(tmp_path: Path, spark: SparkSession) -> None:
    lake = filled(new_lake(tmp_path, order=16), tables=20)
    context = spark.sparkContext
    context.setJobGroup(str(tmp_path), "counted")
    tables_health.run(lake, tables_health.Config(engine="spark"), spark)
    context.setLocalProperty("spark.jobGroup.id", "")
    assert 1 == len(context.statusTracker().getJobIdsForGroup(str(tmp_path)))


@pytest.mark.spark
@pytest.mark.slow
def test_commands_take_no_more_jobs_than_they_did_and_work_at_once() -> None:
    """By Spark's event log, on a standalone cluster of two executors."""
    ended = run_program(_PROGRAM, seconds=850)
    assert 0 == ended.returncode, ended.stderr[-4000:]
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    assert list(MOST) == list(found)
    jobs = {name: row["jobs"] for name, row in found.items()}
    assert jobs == {name: min(jobs[name], most) for name, most in MOST.items()}
    at_once = {name: row["at once"] for name, row in found.items() if row["work"] > 5}
    assert at_once == dict.fromkeys(at_once, 2)

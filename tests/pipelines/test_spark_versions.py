"""The same jobs on Spark 3.5 and on the Spark that this library is written for: the same reports."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import mmh3
import pytest

from pipelines.session import compat
from tests.support.lakes import filled, new_lake
from tests.support.old_spark import old_spark_in

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def old_spark(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return old_spark_in(tmp_path_factory.mktemp("spark35"))


def _all_jobs(directory: Path, *first: Path) -> dict[str, Any]:
    path = os.pathsep.join(map(str, [*first, ROOT]))
    command = [sys.executable, "-m", "tests.support.all_jobs", str(directory)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=directory, env={**os.environ, "PYTHONPATH": path}
    )
    assert 0 == done.returncode, done.stderr[-3000:]
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


@pytest.mark.spark
@pytest.mark.slow
def test_every_job_reports_the_same_on_spark_3_5(tmp_path: Path, old_spark: Path) -> None:
    """From the same lakehouse: counts, digests, changes, versions; and what is left is intact."""
    (tmp_path / "new").mkdir()
    filled(new_lake(tmp_path / "new", order=8), tables=120, changes=6)
    shutil.copytree(tmp_path / "new", tmp_path / "old")
    new, old = _all_jobs(tmp_path / "new"), _all_jobs(tmp_path / "old", old_spark)
    assert ("4", "3.5") == (new.pop("spark")[0], old.pop("spark")[:3])
    assert [] == new["violations"]
    assert {"compaction", "digest", "verify", "diff", "load", "stats", "export", "rollback", "expire", "clean"} < set(
        new
    )
    assert new == old


@pytest.mark.parametrize("tasks", [1, 2, 7, 64])
def test_a_label_goes_to_its_task_by_sparks_hash(tasks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Spark before 4.1 deals rows out: the remainder of the hash of the column, by the number of tasks."""
    monkeypatch.setattr(compat, "_deals_by_id", lambda: False)
    labels = [compat.task_label(task, tasks) for task in range(tasks)]
    assert list(range(tasks)) == [mmh3.hash(label.to_bytes(4, "little"), 42) % tasks for label in labels]
    assert max(labels) < 2**31


def test_values_of_spark_become_those_of_arrow() -> None:
    assert [b"a", [b"b", 1], None] == [compat.plain(each) for each in (bytearray(b"a"), [bytearray(b"b"), 1], None)]

"""A machine of the cluster is killed in each phase of a cleaning: it is done all the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_PROGRAM = """
    import json, sys
    from pathlib import Path
    from pipelines import clean, expire
    from pipelines.job import dry_run
    from pipelines.session import lazy_session, session_parallelism
    from tests.support.standalone import standalone
    from trinitylake_core import Lakehouse, clock

    folder = Path(sys.argv[1])
    lake = Lakehouse.create((folder / "lake").as_uri(), order=8)
    with lake.transaction() as txn:
        for number in range(40):
            if number % 10 == 0:
                txn.create_namespace(f"n{number // 10}")
            txn.create_table(f"n{number // 10}", f"t{number}")
    for version in range(3):
        with lake.refresh().transaction() as txn:
            for number in range(40):
                txn.alter_table(f"n{number // 10}", f"t{number}", properties={"version": f"{version}"})
    later = clock.now_millis() + 10**10
    expire.run(lake.refresh(), expire.Config(keep_last=1, now_millis=later))
    content = lake.refresh().digest()
    killed = []

    def kill(phase, done, total):
        if phase not in killed:
            killed.append(phase)
            cluster.executors()[-1].kill()

    with standalone(2, folder) as cluster, lazy_session(cluster.session()) as spark:
        session_parallelism(spark())
        config = clean.Config(engine="spark", older_than_seconds=0, allow_recent=True)
        report = clean.run(lake, config, spark, progress=kill)
    left = clean.run(lake, clean.Config(engine="local", older_than_seconds=0, allow_recent=True), review=dry_run)
    same = lake.refresh().digest() == content
    print(json.dumps([killed, report.attempted, report.failed, left.orphan_files, same, len(list(lake.check()))]))
"""


@pytest.mark.spark
@pytest.mark.slow
def test_a_cleaning_outlives_an_executor_in_each_phase(tmp_path: Path) -> None:
    """Nothing that is needed is deleted, and all else is: what Spark kept there is made again, or kept elsewhere."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_PROGRAM), str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=580,
        check=False,
    )
    assert 0 == done.returncode, done.stderr[-4000:]
    killed, attempted, failed, left, same, violations = json.loads(done.stdout.splitlines()[-1])
    assert {"list", "mark"} <= set(killed)
    assert attempted > 100
    assert (0, 0, True, 0) == (failed, left, same, violations)

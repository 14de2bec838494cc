"""Eight processes, every fault, clocks days apart, SIGSTOP and SIGKILL, no safety age: nothing acknowledged is lost.

MAYHEM_SECONDS=600 .venv/bin/python -m pytest -m slow tests/pipelines/test_mayhem.py -s
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.mayhem import COPIES, NAMESPACE, Judged, disturb, judge, live
from tests.support.slow_s3 import run_slow_s3
from tests.support.writers import forking
from trinitylake_core import Lakehouse

SECONDS = float(os.environ.get("MAYHEM_SECONDS", "60"))
ROLES = ("writer", "writer", "writer", "maintainer", "maintainer", "exporter", "copywriter", "copywriter")
JOBS = {"write", "compact", "expire", "clean"}
_LATE_SECONDS = 300.0
"""How much longer it may take until each job came through once, on a machine that is busy with other things."""


def _start(root: str, number: int, life: int, logs: Path, options: dict[str, Any]) -> Any:
    seed = number + len(ROLES) * life
    process = forking().Process(target=live, args=(root, ROLES[number], seed, logs / f"{number}.log", options))
    process.start()
    return process


def _judged(root: str, options: dict[str, Any], logs: Path) -> Judged:
    roots = [f"{root.rstrip('/')}/", *(f"{root.rstrip('/')}-copy{number}/" for number in range(COPIES))]
    return judge(roots, sorted(logs.glob("*.log")), options)


def _missing(logs: Path) -> set[str]:
    """Return the jobs that did not come through yet."""
    told = "".join(log.read_text(encoding="utf-8") for log in logs.glob("*.log"))
    return {job for job in JOBS if f'"done", "act": "{job}"' not in told}


def _mayhem(root: str, options: dict[str, Any], logs: Path, seconds: float) -> None:
    """Let the processes work, stop and kill them at random, and judge what is left. Each job makes progress."""
    lake = Lakehouse.create(root, storage_options=options, order=8, node_file_max_size_bytes=20_000)
    with lake.transaction() as txn:
        txn.create_namespace(NAMESPACE)
    deadline = time.monotonic() + seconds

    def enough() -> bool:
        left = deadline - time.monotonic()
        return left <= -_LATE_SECONDS or (left <= 0 and not _missing(logs))

    done = disturb(lambda number, life: _start(root, number, life, logs, options), len(ROLES), enough, stall=2)
    judged = _judged(root, options, logs)
    print(f"{done}, {judged}")
    crashed = [path.read_text() for path in logs.glob("*.err") if "Traceback" in path.read_text()]
    assert [] == judged.wrong
    assert [] == crashed
    assert judged.committed
    assert set() == JOBS - judged.done.keys()


@pytest.mark.parametrize("seconds", [6, pytest.param(SECONDS, marks=pytest.mark.slow)], ids=["short", "long"])
def test_mayhem_on_a_disk(tmp_path: Path, seconds: float) -> None:
    """On this disk, without syncs: no power fails."""
    (logs := tmp_path / "logs").mkdir()
    _mayhem((tmp_path / "lake").as_uri(), {"durable": False}, logs, seconds)


@pytest.mark.s3
@pytest.mark.slow
def test_mayhem_on_s3(tmp_path: Path) -> None:
    """On an object store of our own, which lets one of several win; moto lets two, now and then."""
    (logs := tmp_path / "logs").mkdir()
    with run_slow_s3(tmp_path) as server:
        _mayhem(server.new_root(), server.options, logs, SECONDS)

"""Eight processes, every fault, clocks days apart, SIGSTOP and SIGKILL: nothing acknowledged is lost.

MAYHEM_SECONDS=600 .venv/bin/python -m pytest -m slow tests/pipelines/test_mayhem.py -s
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.mayhem import _COPIES, NAMESPACE, judge
from tests.support.s3_servers import S3Server
from trinitylake_core import Lakehouse

SECONDS = float(os.environ.get("MAYHEM_SECONDS", "60"))
ROLES = ("writer", "writer", "writer", "maintainer", "maintainer", "exporter", "copywriter", "copywriter")
pytestmark = pytest.mark.slow


def _start(root: str, number: int, life: int, logs: Path, options: dict[str, Any]) -> subprocess.Popen[bytes]:
    seed = number + len(ROLES) * life
    arguments = [root, ROLES[number], str(seed), str(logs / f"{number}.log"), json.dumps(options)]
    with (logs / f"{number}.err").open("ab") as errors:
        return subprocess.Popen([sys.executable, "-m", "tests.support.mayhem", *arguments], stderr=errors)


def _mayhem(root: str, options: dict[str, Any], logs: Path) -> None:
    """Let the processes work, stop and kill them at random, and judge what is left."""
    lake = Lakehouse.create(root, storage_options=options, order=8, node_file_max_size_bytes=20_000)
    with lake.transaction() as txn:
        txn.create_namespace(NAMESPACE)
    chance, kills, stops = random.Random(7), 0, 0
    running = [_start(root, number, 0, logs, options) for number in range(len(ROLES))]
    deadline = time.monotonic() + SECONDS
    life = 0
    while time.monotonic() < deadline:
        time.sleep(chance.random())
        number = chance.randrange(len(ROLES))
        if running[number].poll() is not None or chance.random() < 0.1:
            running[number].kill()
            running[number].wait()
            life, kills = life + 1, kills + 1
            running[number] = _start(root, number, life, logs, options)
        elif chance.random() < 0.5:
            running[number].send_signal(signal.SIGSTOP)
            time.sleep(chance.random() * 2)
            running[number].send_signal(signal.SIGCONT)
            stops += 1
    for process in running:
        process.kill()
        process.wait()
    roots = [f"{root.rstrip('/')}/", *(f"{root.rstrip('/')}-copy{number}/" for number in range(_COPIES))]
    judged = judge(roots, sorted(logs.glob("*.log")), options)
    print(f"{kills} kills, {stops} stops, {judged}")
    crashed = [path.read_text() for path in logs.glob("*.err") if "Traceback" in path.read_text()]
    assert [] == judged.wrong
    assert [] == crashed
    assert judged.committed


def test_mayhem_on_a_disk(tmp_path: Path) -> None:
    """On this disk, without syncs: no power fails."""
    (logs := tmp_path / "logs").mkdir()
    _mayhem((tmp_path / "lake").as_uri(), {"durable": False}, logs)


@pytest.mark.s3
def test_mayhem_on_s3(tmp_path: Path, moto_server: S3Server) -> None:
    """On an object store."""
    (logs := tmp_path / "logs").mkdir()
    _mayhem(moto_server.new_root(), moto_server.options, logs)

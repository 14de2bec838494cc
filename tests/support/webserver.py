"""The real ``dagster-webserver`` on a free port of 127.0.0.1, with a Dagster instance of its own.

It launches each run at once, as a process; there is no daemon, so no sensor or schedule comes in between. When the
block ends all processes are gone, or the test fails.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from tests.support.s3_servers import free_port, wait_for_port

PROJECT: Final = Path(__file__).absolute().parent.parent.parent
_START_SECONDS: Final = 300.0
_STOP_SECONDS: Final = 120.0
_NO_DAEMON: Final = """
run_coordinator:
  module: dagster._core.run_coordinator
  class: DefaultRunCoordinator
"""


@dataclass(frozen=True)
class Webserver:
    """A webserver that runs, or is about to."""

    port: int
    log: Path
    process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self.port}"

    def wait(self) -> None:
        """Return when it answers."""
        wait_for_port(self.process, self.port, self.log, _START_SECONDS)


def make_home(directory: Path) -> Path:
    """Make a ``DAGSTER_HOME`` like that of ``make ui``, but for the daemon, and return it."""
    home = directory / "home"
    home.mkdir()
    settings = (PROJECT / "dagster_project" / "dagster.yaml").read_text(encoding="utf-8")
    (home / "dagster.yaml").write_text(settings + _NO_DAEMON, encoding="utf-8")
    return home


@contextmanager
def run_webserver(home: Path, lakehouses: Path) -> Iterator[Webserver]:
    """Run a webserver for the lakehouses of a file. The block begins at once: ``wait`` for it."""
    port, log = free_port(), home / "webserver.log"
    command = [sys.executable, "-m", "dagster_webserver", "-w", str(PROJECT / "workspace.yaml")]
    command += ["-h", "127.0.0.1", "-p", str(port)]
    environment = {**os.environ, "DAGSTER_HOME": str(home), "TRINITYLAKE_LAKEHOUSES": str(lakehouses)}
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=environment, cwd=PROJECT
        )
    try:
        yield Webserver(port, log, process)
    finally:
        process.terminate()
        left = _left_running(process, home)
    assert [] == left, f"still there {_STOP_SECONDS:.0f} seconds later, and killed"


def _left_running(process: subprocess.Popen[bytes], home: Path) -> list[str]:
    """Wait until a webserver and its children are gone. Return the processes that were not, after killing them."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(_STOP_SECONDS)
    deadline = time.monotonic() + _STOP_SECONDS
    while (left := _processes_of(home)) and time.monotonic() < deadline:
        time.sleep(0.1)
    told = [" ".join(each.info["cmdline"] or [each.name()]) for each in left]
    for each in left:
        with suppress(psutil.Error):
            each.kill()
    process.wait()
    return told


def _processes_of(home: Path) -> list[psutil.Process]:
    """Return the processes with this ``DAGSTER_HOME``: a child inherits it."""
    found = psutil.process_iter(["cmdline", "environ", "status"])
    mine = [each for each in found if (each.info["environ"] or {}).get("DAGSTER_HOME") == str(home)]
    return [each for each in mine if each.info["status"] != psutil.STATUS_ZOMBIE]

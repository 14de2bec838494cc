"""Restarts the units of a deployment, and PostgreSQL, the way systemd does it.

When the main process of a unit ends, the rest of its control group gets ``KillSignal`` and, after ``TimeoutStopSec``,
SIGKILL. Its runtime directory is emptied. If its ``Restart`` says so, it is started again after ``RestartSec``; a start
that fails counts as a failure, too.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import threading
import time
from contextlib import suppress
from typing import Final, Self

import psutil

from tests.support.deployment import Deployment

_LOOK_SECONDS: Final = 0.1
_POSTGRES: Final = "postgres"


class Supervisor:
    """Watches what runs of a deployment; one thread per unit, so that none waits for another."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self.restarts: dict[str, int] = {}
        self._done = threading.Event()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self._threads = [threading.Thread(target=self._watch, args=(name,)) for name in self.deployment.running]
        self._threads.append(threading.Thread(target=self._watch_postgres))
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join()

    def _watch(self, name: str) -> None:
        unit = self.deployment.unit(name)
        while not self._done.wait(_LOOK_SECONDS):
            ended = self.deployment.running[name].poll()
            if ended is None:
                continue
            self._end_rest(name, signal.Signals[unit.one("KillSignal")], float(unit.one("TimeoutStopSec")))
            if ended == 0 and unit.one("Restart") != "always":
                return
            while not self._started(name, float(unit.one("RestartSec"))):
                if self._done.is_set():
                    return

    def _started(self, name: str, after: float) -> bool:
        """Start a unit again; return whether that succeeded."""
        if self._done.wait(after):
            return False
        if self.deployment.unit(name).all("RuntimeDirectory"):
            run = self.deployment.home / "run"
            shutil.rmtree(run)
            run.mkdir()
        self.restarts[name] = self.restarts.get(name, 0) + 1
        try:
            self.deployment.start(name)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
            self._end_rest(name, signal.SIGKILL, 0.0)
            return False
        return True

    def _end_rest(self, name: str, first: signal.Signals, seconds: float) -> None:
        """End what is left of a unit: politely, then not."""
        deadline = time.monotonic() + seconds
        self._send(name, first)
        while self.deployment.processes(name) and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)
        self._send(name, signal.SIGKILL)

    def _send(self, name: str, number: signal.Signals) -> None:
        for process in self.deployment.processes(name):
            with suppress(psutil.Error):
                process.send_signal(number)

    def _watch_postgres(self) -> None:
        server = self.deployment.server
        while server is not None and not self._done.wait(_LOOK_SECONDS):
            if server.process is not None and server.process.poll() is not None and not self._done.wait(1.0):
                self.restarts[_POSTGRES] = self.restarts.get(_POSTGRES, 0) + 1
                server.start()

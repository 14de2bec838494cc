"""``dagster dev``, as ``make ui``, ``trinitylake ui`` and a project with the component start it, with a real daemon.

All of its processes carry a mark in their environment, so that they are found, and ended, whatever became of them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import dagster as dg
import psutil

from pipelines.cli.dagster_home import start_command
from tests.support.deployment import MARK, Deployment, eventually
from tests.support.s3_servers import free_port

UNIT: Final = "dev"
SECONDS: Final = 180.0
"""The bound of every wait: a busy machine needs a minute to start Dagster."""


class DevServer(Deployment):
    """A ``dagster dev`` with a home of its own."""

    def begin(self, words: list[str], environment: Mapping[str, str]) -> None:
        """Start it, and wait until its pages know the code location and every daemon has been heard of."""
        mark = {MARK: f"{self.home}/{UNIT}", "DAGSTER_HOME": str(self.home)}
        with (self.home / f"{UNIT}.log").open("ab") as log:
            self.running[UNIT] = subprocess.Popen(
                words,
                cwd=self.home,
                env={**os.environ, **environment, **mark},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,
            )
        eventually(self.ready, lambda: self.log(UNIT)[-3000:], SECONDS)

    def kill_run(self, run_id: str) -> None:
        """End the process of a run as the kernel does when memory is short."""
        with dg.DagsterInstance.from_config(str(self.home)) as instance:
            records = instance.get_records_for_run(run_id, of_type=dg.DagsterEventType.ENGINE_EVENT).records
        events = [each.event_log_entry.dagster_event for each in records]
        pids = [each.engine_event_data.metadata.get("pid") for each in events if each is not None]
        psutil.Process(int(str([pid.value for pid in pids if pid is not None][-1]))).kill()

    def wait_for_slot(self, run_id: str, pool: str) -> None:
        """Wait until a run holds the slot of a pool: its step begins."""
        with dg.DagsterInstance.from_config(str(self.home)) as instance:
            storage = instance.event_log_storage
            eventually(
                lambda: run_id in storage.get_concurrency_info(pool).active_run_ids,
                lambda: f"{self.run(run_id)} {self.log(UNIT)[-3000:]}",
                SECONDS,
                every=0.01,
            )


@contextmanager
def dev_server(settings: str, location: str) -> Iterator[DevServer]:
    """Yield a server with the text of a ``dagster.yaml``, not yet started; at the end its processes are killed."""
    home = Path(tempfile.mkdtemp(prefix="dev-"))
    server = DevServer(home, free_port(), None, location=location)
    try:
        (home / "dagster.yaml").write_text(settings, encoding="utf-8")
        yield server
    finally:
        server.kill()
        shutil.rmtree(home)


def command(port: int, module: str) -> list[str]:
    """Return the command line of ``trinitylake ui`` for a code location."""
    words = start_command("127.0.0.1", port)
    at = words.index("--workspace")
    words[at : at + 2] = ["--module-name", module]
    return words

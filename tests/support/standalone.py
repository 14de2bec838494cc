"""A standalone Spark cluster on this machine: a master, and workers that each run one task at a time.

    with standalone(4, directory) as cluster:
        with lazy_session(cluster.session()) as spark:
            job(spark)
        cluster.tasks()

Each worker is a process of its own, and so is its executor. What tasks did is read from Spark's own event log.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import psutil
import pyspark

from pipelines.session import SessionConfig
from pipelines.session.authentication import PRIVATE, SECRET, new_secret
from tests.support.s3_servers import free_port, server_process

_SPARK_CLASS: Final = Path(pyspark.__file__).parent / "bin" / "spark-class"
_START_SECONDS: Final = 300.0
_SMALL: Final = {
    "spark.executor.memory": "600m",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.locality.wait": "0",
    "spark.ui.enabled": "false",
}


class Task(NamedTuple):
    """When a task ran, in seconds since 1970, and in which stage and executor."""

    began: float
    ended: float
    stage: int
    executor: str
    failed: bool


@dataclass
class Cluster:
    """A running cluster."""

    master: str
    workers: int
    directory: Path
    pids: list[int] = field(default_factory=list)
    secret: str = field(default_factory=new_secret, repr=False)
    private: Mapping[str, str] = field(default_factory=lambda: PRIVATE)

    def session(self, **conf: str) -> SessionConfig:
        """Return the configuration for jobs on it, by this Python unless ``conf`` names another."""
        settings = {**_SMALL, **event_log(self._events()), **conf}
        return SessionConfig(mode="master", master=self.master, conf=settings, secret=self.secret)

    def write_defaults(self) -> Path:
        """Write what master and workers are configured by; return the directory."""
        folder = self.directory / "conf"
        folder.mkdir(mode=0o700)
        lines = [f"{name} {value}" for name, value in {**self.private, SECRET: self.secret}.items()]
        (folder / "spark-defaults.conf").write_text("\n".join(lines))
        return folder

    def _events(self) -> Path:
        folder = self.directory / "events"
        folder.mkdir(exist_ok=True)
        return folder

    def tasks(self) -> list[Task]:
        """Return the tasks of all sessions that have ended."""
        return tasks_in(self._events())

    def executors(self) -> list[psutil.Process]:
        """Return the processes in which tasks run."""
        below = [each for pid in self.pids for each in psutil.Process(pid).children(recursive=True)]
        return [each for each in below if _is_executor(each)]


def event_log(folder: Path) -> dict[str, str]:
    """Return Spark's settings for an event log in a folder."""
    return {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": folder.as_uri(),
        "spark.eventLog.compress": "false",
        "spark.eventLog.rolling.enabled": "false",
    }


def tasks_in(folder: Path) -> list[Task]:
    """Return the tasks of all sessions that have ended, from the event logs in a folder."""
    lines = (line for file in sorted(folder.iterdir()) for line in file.read_text().splitlines())
    events = (json.loads(line) for line in lines if '"SparkListenerTaskEnd"' in line)
    return [task_of(event) for event in events]


def _is_executor(process: psutil.Process) -> bool:
    try:
        return any("CoarseGrainedExecutorBackend" in word for word in process.cmdline())
    except psutil.Error:  # it has ended
        return False


def task_of(event: dict[str, Any]) -> Task:
    """Return the task of an event of its end.

    The driver notes the end when it has taken the result. By then the next task of that core may have begun, so what
    the executor says counts, if it lived to say how long the task took.
    """
    info = event["Task Info"]
    metrics = event.get("Task Metrics") or {}
    began = info["Launch Time"]
    ended = info["Finish Time"]
    took = metrics.get("Executor Deserialize Time", 0) + metrics.get("Executor Run Time", 0)
    if took:
        ended = min(ended, began + took)
    return Task(began / 1000, ended / 1000, event["Stage ID"], info["Executor ID"], info["Failed"])


@contextmanager
def standalone(
    workers: int, directory: Path, python: str = sys.executable, private: Mapping[str, str] = PRIVATE
) -> Iterator[Cluster]:
    """Run a master and so many workers of one core each until the block ends; ``private`` is what they demand."""
    port = free_port()
    environment = {**os.environ, "PYSPARK_PYTHON": python, "SPARK_DAEMON_MEMORY": "200m", "SPARK_LOCAL_IP": "127.0.0.1"}
    environment.pop("PYTHONPATH", None)  # tasks find only what the driver sent
    with ExitStack() as stack:
        cluster = Cluster(f"spark://127.0.0.1:{port}", workers, directory, private=private)
        environment["SPARK_CONF_DIR"] = str(cluster.write_defaults())
        master = [str(_SPARK_CLASS), "org.apache.spark.deploy.master.Master"]
        master += ["--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]
        master = ["env", "-u", "PYTHONPATH", f"SPARK_CONF_DIR={environment['SPARK_CONF_DIR']}", *master]
        stack.enter_context(server_process(master, port, directory / "master.log", _START_SECONDS))
        for number in range(workers):
            cluster.pids.append(stack.enter_context(_worker(cluster, number, environment)))
        _wait_for_workers(directory / "master.log", workers)
        yield cluster


@contextmanager
def _worker(cluster: Cluster, number: int, environment: dict[str, str]) -> Iterator[int]:
    command = [str(_SPARK_CLASS), "org.apache.spark.deploy.worker.Worker", "--cores", "1", "--memory", "700m"]
    # Hosts differ: Spark begins no second attempt of a task on the host of the first one.
    command += ["--host", f"127.0.0.{number + 1}", "--webui-port", "0"]
    command += ["--work-dir", str(cluster.directory / f"work-{number}")]
    with (cluster.directory / f"worker-{number}.log").open("wb") as log:
        process = subprocess.Popen([*command, cluster.master], stdout=log, stderr=subprocess.STDOUT, env=environment)
        try:
            yield process.pid
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a worker and what it started."""
    try:
        below = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        below = []
    process.terminate()
    for each in below:
        try:
            each.kill()
        except psutil.NoSuchProcess:
            continue
    process.wait()


def _wait_for_workers(log: Path, workers: int) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while log.read_text(errors="replace").count("Registering worker") < workers:
        if time.monotonic() > deadline:
            raise RuntimeError(f"the workers did not start: {log.read_text(errors='replace')[-2000:]}")
        time.sleep(0.1)

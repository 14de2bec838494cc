"""Executors that are killed while they work: one in each stage of a job, when a task of it is sure to be unfinished.

    with killing(cluster, spark.sparkContext) as killer:
        job(spark)
    killer.stages

The executor is stopped first, so that its task cannot end before the kill. Which stages work, Spark's own event log
says when a job begins; whether their tasks run, its status. No time is guessed.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks.tasks import has_work
from tests.support.standalone import Cluster

LIVE: Final = {"spark.ui.liveUpdate.period": "0"}
"""For a session whose executors are killed: its status says what is so now."""
_BEGIN: Final = '{"Event":"SparkListenerJobStart"'
_ASK_SECONDS: Final = 0.004


class Killer(threading.Thread):
    """Kills an executor in each stage that works.

    Attributes:
        stages: the stages that had an unfinished task on the executor when it was killed.
    """

    def __init__(self, cluster: Cluster, context: Any) -> None:
        super().__init__(daemon=True)
        self.stages: list[int] = []
        self._cluster = cluster
        self._tracker = context.statusTracker()
        self._log = Path(cluster.directory, "events", f"{context.applicationId}.inprogress")
        self._read = self._log.stat().st_size
        self._waiting = set[int]()
        self._ended = threading.Event()

    def run(self) -> None:
        """Kill, until :meth:`end`."""
        while not self._ended.wait(_ASK_SECONDS):
            self._note_jobs()
            for stage in sorted(self._waiting):
                if self._runs(stage):
                    self._waiting.discard(stage)
                    self._kill_in(stage)

    def end(self) -> None:
        """Kill nothing any more."""
        self._ended.set()
        self.join()

    def _note_jobs(self) -> None:
        with self._log.open() as log:
            log.seek(self._read)
            while (line := log.readline()).endswith("\n"):
                self._read = log.tell()
                if line.startswith(_BEGIN):
                    stages = json.loads(line)["Stage Infos"]
                    self._waiting |= {stage["Stage ID"] for stage in stages if has_work(stage)}

    def _runs(self, stage: int) -> int:
        """Return how many tasks of a stage run."""
        found = self._tracker.getStageInfo(stage)
        return 0 if found is None else int(found.numActiveTasks)

    def _kill_in(self, stage: int) -> None:
        executors = self._cluster.executors()
        if len(executors) < self._cluster.workers:  # that of the last kill is not there again
            return
        victim = executors[-1]
        try:
            victim.suspend()
            if self._has_unfinished(stage):
                self.stages.append(stage)
            victim.kill()
        except psutil.NoSuchProcess:
            return

    def _has_unfinished(self, stage: int) -> bool:
        """Wait until all that is left of a stage is on the stopped executor; return whether anything is."""
        while not self._ended.wait(_ASK_SECONDS):
            found = self._tracker.getStageInfo(stage)
            if found is None or not found.numActiveTasks:
                return False
            others = self._cluster.workers - 1
            if found.numActiveTasks > others or found.numCompletedTasks == found.numTasks - 1 > 0:
                return True
        return False


@contextmanager
def killing(cluster: Cluster, context: Any) -> Iterator[Killer]:
    """Kill an executor in each stage that works, until the block ends."""
    killer = Killer(cluster, context)
    killer.start()
    try:
        yield killer
    finally:
        killer.end()

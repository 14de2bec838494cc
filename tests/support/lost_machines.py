"""Executors that are lost while they work: one in each stage of a job, when a task of it is sure to be unfinished.

    with killing(cluster, spark.sparkContext) as killer:
        job(spark)
    killer.stages

The executor is stopped first, so that its task cannot end before the kill. Which stages work, Spark's own event log
says when a job begins; which executors run their tasks, its status. No time is guessed.

``EXECUTOR``: it is killed, and its worker starts another one. ``WORKER``: its worker is killed, too, and does not come
back. ``STRAGGLER``: its Python goes on when the stage has been done without it, by second attempts.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks.tasks import has_work
from tests.support.standalone import Cluster

LIVE: Final = {"spark.ui.liveUpdate.period": "0"}
"""For a session whose executors are killed: its status says what is so now."""
EXECUTOR, WORKER, STRAGGLER = "executor", "worker", "straggler"
SPECULATIVE: Final = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.01",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.task.duration.threshold": "2s",
}
"""For a session with stragglers: any task that takes longer than one that is done gets a second attempt."""
DYNAMIC: Final = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.maxExecutors": "3",
    "spark.dynamicAllocation.executorIdleTimeout": "1s",
    "spark.executor.cores": "1",
}
"""For a session whose executors come and go: one that has nothing to do for a second, and keeps nothing, ends."""
_BEGIN: Final = '{"Event":"SparkListenerJobStart"'
_ASK_SECONDS: Final = 0.004


class Killer(threading.Thread):
    """Kills an executor in each stage that works.

    Attributes:
        stages: the stages that had an unfinished task on the executor when it was killed.
    """

    def __init__(self, cluster: Cluster, context: Any, how: str) -> None:
        super().__init__(daemon=True)
        self.stages: list[int] = []
        self._cluster = cluster
        self._how = how
        self._tracker = context.statusTracker()
        self._store = context._jsc.sc().statusStore()  # what tells on which executor a task runs
        self._log = Path(cluster.directory, "events", f"{context.applicationId}.inprogress")
        self._read = self._log.stat().st_size
        self._waiting = set[int]()
        self._least = 1 if context.getConf().get("spark.dynamicAllocation.enabled") else len(cluster.pids)
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
        if len(executors) < self._least:  # that of the last kill is not there again
            return
        if self._how == WORKER and self.stages:  # one for each job, so that somebody is left
            return
        with suppress(psutil.NoSuchProcess):
            victim = next((each for each in executors if self._runs_on(stage, each)), None)
            if victim is None:
                return
            if self._how == STRAGGLER:
                self._delay(victim, stage)
                return
            victim.suspend()
            self._note_unfinished(stage, victim)
            if self._how == WORKER:
                self._kill_worker(victim)
            victim.kill()

    def _note_unfinished(self, stage: int, victim: psutil.Process) -> None:
        if self._runs_on(stage, victim):
            self.stages.append(stage)

    def _runs_on(self, stage: int, executor: psutil.Process) -> bool:
        """Whether an executor runs a task of a stage."""
        found = self._tracker.getStageInfo(stage)
        if found is None:
            return False
        words = set(pairwise(executor.cmdline()))
        tasks = self._store.taskList(stage, found.currentAttemptId, found.numTasks)
        every = [tasks.apply(number) for number in range(tasks.size())]
        return any("RUNNING" == each.status() and ("--executor-id", each.executorId()) in words for each in every)

    def _delay(self, victim: psutil.Process, stage: int) -> None:
        """Stop the Python of an executor until a stage is done without it; its Java goes on serving its blocks."""
        stopped = victim.children(recursive=True)
        for each in stopped:
            each.suspend()
        self._note_unfinished(stage, victim)
        while not self._ended.wait(_ASK_SECONDS):
            found = self._tracker.getStageInfo(stage)
            if found is None or found.numCompletedTasks == found.numTasks:
                break
        for each in stopped:
            with suppress(psutil.NoSuchProcess):
                each.resume()

    def _kill_worker(self, victim: psutil.Process) -> None:
        """Kill the worker of an executor, which starts no other one."""
        (worker,) = {each.pid for each in victim.parents()}.intersection(self._cluster.pids)
        psutil.Process(worker).kill()
        self._cluster.pids.remove(worker)


@contextmanager
def killing(cluster: Cluster, context: Any, how: str = EXECUTOR) -> Iterator[Killer]:
    """Lose an executor in each stage that works, or one worker, until the block ends."""
    killer = Killer(cluster, context, how)
    killer.start()
    try:
        yield killer
    finally:
        killer.end()

"""Where the time of the workers of a cluster went while a job ran, from the tasks in Spark's event log.

Each worker runs one task at a time. At any moment that one of them is idle, there is one reason for it:

* ``driver``: no task runs: the driver plans, joins or commits;
* ``start``: tasks wait to be launched, and an executor does not have one yet;
* ``few``: all tasks of what runs were launched, and they were fewer than the workers;
* ``tail``: all were launched, and enough of them, but some ended earlier than others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple

from tests.support.standalone import Task

REASONS: Final = ("driver", "start", "few", "tail")


class Gap(NamedTuple):
    """A time in which no task ran, in seconds since the job began, and the stages before and after it."""

    began: float
    seconds: float
    after: int | None
    before: int | None


@dataclass(slots=True)
class Timeline:
    """What became of the time of so many workers: ``seconds`` of a job, times ``workers``, is busy or idle.

    Attributes:
        workers: how many there are, of one task each.
        seconds: how long the job took.
        busy: seconds that tasks ran, summed over the workers.
        idle: seconds that workers had no task, summed over the workers, by reason.
        gaps: the times without any task, in their order.
        tasks_of: how many tasks each executor ran.
        stages: for each stage its tasks, and the seconds of the longest and of all of them.
    """

    workers: int
    seconds: float
    busy: float = 0.0
    idle: Counter[str] = field(default_factory=Counter)
    gaps: list[Gap] = field(default_factory=list)
    tasks_of: Counter[str] = field(default_factory=Counter)
    stages: dict[int, tuple[int, float, float]] = field(default_factory=dict)

    @property
    def at_once(self) -> float:
        """How many tasks ran at the same time on average, while any did."""
        return self.share * self.workers

    @property
    def share(self) -> float:
        """How busy the workers were while there were tasks: 1 is all of them, all the time."""
        among = self.workers * self.seconds - self.idle["driver"]
        return self.busy / among if among else 0.0

    @property
    def share_of_all(self) -> float:
        """How busy they were over the whole job, the driver's own time included."""
        return self.busy / (self.workers * self.seconds) if self.seconds else 0.0

    def figures(self) -> dict[str, float]:
        """Return the columns of a table: shares, and where the rest went, in hundredths of the workers' time."""
        whole = self.workers * self.seconds or 1.0
        lost = {reason: round(100 * self.idle[reason] / whole) for reason in REASONS}
        return {"share": round(self.share, 2), "of all": round(self.share_of_all, 2), **lost}


def timeline(tasks: Sequence[Task], workers: int, began: float, ended: float) -> Timeline:
    """Return where the time went between two moments, for the tasks that were launched in between."""
    ours = sorted(task for task in tasks if began <= task.began < ended)
    found = Timeline(workers, ended - began)
    found.busy = sum(min(task.ended, ended) - task.began for task in ours)
    found.tasks_of.update(task.executor for task in ours)
    _count_stages(found, ours)
    moments = sorted({began, ended, *(moment for task in ours for moment in (task.began, min(task.ended, ended)))})
    for one, two in pairwise(moments):
        running = [task for task in ours if task.began <= one < task.ended]
        idle = max(0, workers - len(running))
        if idle:
            found.idle[_reason(found, ours, running, one)] += idle * (two - one)
    found.gaps = list(_gaps(ours, began, ended))
    return found


def _count_stages(found: Timeline, ours: Sequence[Task]) -> None:
    for task in ours:
        count, longest, together = found.stages.get(task.stage, (0, 0.0, 0.0))
        seconds = task.ended - task.began
        found.stages[task.stage] = count + 1, max(longest, seconds), together + seconds


def _reason(found: Timeline, ours: Sequence[Task], running: Sequence[Task], moment: float) -> str:
    if not running:
        return "driver"
    stages = {task.stage for task in running}
    if any(task.stage in stages and task.began > moment for task in ours):
        return "start"
    return "few" if sum(found.stages[stage][0] for stage in stages) < found.workers else "tail"


def _gaps(ours: Sequence[Task], began: float, ended: float) -> Iterator[Gap]:
    last, stage = began, None
    for task in ours:
        if task.began > last:
            yield Gap(last - began, task.began - last, stage, task.stage)
        if task.ended > last:
            last, stage = task.ended, task.stage
    if ended > last:
        yield Gap(last - began, ended - last, stage, None)


def text(found: Timeline, longest: int = 5) -> str:
    """Return the longest gaps and the stages, for people who want to know why."""
    lines = [f"  tasks of executors: {dict(sorted(found.tasks_of.items()))}"]
    lines += [
        f"  no task for {gap.seconds:.1f} s, {gap.began:.1f} s after the beginning, "
        f"between stages {gap.after} and {gap.before}"
        for gap in sorted(found.gaps, key=lambda each: -each.seconds)[:longest]
    ]
    lines += [
        f"  stage {stage}: {count} tasks, {together:.1f} s together, the longest {most:.1f} s"
        for stage, (count, most, together) in sorted(found.stages.items())
    ]
    return "\n".join(lines)

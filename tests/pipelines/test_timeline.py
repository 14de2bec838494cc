"""Where the time of the workers of a cluster goes: what ``benchmarks cluster`` says of the tasks that ran."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.tasks import later_tasks, most_at_once
from benchmarks.timeline import Gap, text, timeline
from tests.support.standalone import Task, task_of


def _task(began: float, ended: float, stage: int = 0, executor: str = "0") -> Task:
    return Task(began, ended, stage, executor, failed=False)


@pytest.mark.parametrize(
    ("tasks", "idle"),
    [
        ([_task(0, 10), _task(0, 10, executor="1")], {}),
        ([_task(2, 9), _task(2, 9, executor="1")], {"driver": 6.0}),
        ([_task(0, 10)], {"few": 10.0}),
        ([_task(0, 10), _task(0, 4, executor="1")], {"tail": 6.0}),
        ([_task(0, 10), _task(3, 10, executor="1")], {"start": 3.0}),
        ([_task(0, 4), _task(0, 4, executor="1"), _task(4, 10, stage=1)], {"few": 6.0}),
    ],
    ids=["busy", "driver", "few", "tail", "start", "two stages"],
)
def test_every_idle_moment_has_its_reason(tasks: list[Task], idle: dict[str, float]) -> None:
    found = timeline(tasks, 2, 0, 10)
    assert idle == {reason: seconds for reason, seconds in found.idle.items() if seconds}
    assert found.busy + sum(idle.values()) == 2 * 10, "each worker is busy or idle all the time"


def test_what_ran_before_or_after_the_job_does_not_count() -> None:
    found = timeline([_task(0, 3), _task(4, 12), _task(13, 14)], 1, 4, 10)
    assert (6.0, 1.0, {"0": 1}) == (found.busy, found.share, found.tasks_of)


def test_shares_with_the_time_of_the_driver_and_without() -> None:
    found = timeline([_task(2, 4, 0), _task(2, 4, 0, "1"), _task(6, 10, 1)], 2, 0, 10)
    assert (8 / 12, 8 / 20) == (found.share, found.share_of_all)
    assert [Gap(0, 2, None, 0), Gap(4, 2, 0, 1)] == found.gaps
    assert {0: (2, 2, 4), 1: (1, 4, 4)} == found.stages
    assert {"share": 0.67, "of all": 0.4, "driver": 40, "start": 0, "few": 20, "tail": 0} == found.figures()
    assert "no task for 2.0 s, 4.0 s after the beginning, between stages 0 and 1" in text(found)


def test_a_job_without_tasks_has_a_driver_only() -> None:
    found = timeline([], 4, 0, 5)
    assert (0.0, 0.0, 20.0) == (found.share, found.share_of_all, found.idle["driver"])
    assert [Gap(0, 5, None, None)] == found.gaps


def _event(launched: int, finished: int, ran: int | None) -> dict[str, Any]:
    info = {"Launch Time": launched, "Finish Time": finished, "Executor ID": "0", "Failed": ran is None}
    metrics = {"Task Metrics": {"Executor Deserialize Time": 1, "Executor Run Time": ran}} if ran else {}
    return {"Task Info": info, "Stage ID": 0, **metrics}


def test_a_core_runs_one_task_at_a_time_however_late_its_end_is_noted() -> None:
    """Two cores seemed to run four tasks at once; of a lost executor there is only what the driver noted."""
    tasks = [task_of(_event(0, 80, 49)), task_of(_event(52, 130, 70)), task_of(_event(122, 150, None))]
    assert [0.05, 0.123, 0.15] == [task.ended for task in tasks]
    assert 1 == most_at_once(tasks[:2])
    assert tasks[1:] == later_tasks(tasks)

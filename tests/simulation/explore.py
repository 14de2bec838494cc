"""All schedules of a scenario within bounds, or random ones by seed.

The exhaustive part is what CHESS does: every run begins again under the decisions made so far, and each further
decision is tried at each later point. A point is left out only where the run would be the same:

* a preemption before a request that only reads, and reads nothing that the others changed until the actor went on,
  is the same as one after it (unless the actor looks at its clock in between);
* a process that dies before a read, or loses its answer, is the same as one that dies before the next change;
* whatever happens to a request that reaches nothing any more, since the storage is out of reach, is the same;
* a late request is carried out right before each request that touches the same file, or at the very end.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from tests.simulation.scenarios import Ran, Scenario, run
from tests.simulation.schedule import DURATIONS, FAULTS, Decision, RandomSchedule, Schedule
from tests.simulation.scheduler import Step
from tests.simulation.store import ORDERS

_READS: Final = frozenset({"get", "head", "list"})


@dataclass(frozen=True, slots=True)
class Bounds:
    """How many preemptions and how many faults (deaths, stalls, lost answers, outages) a schedule may have."""

    preemptions: int = 2
    faults: int = 0
    kinds: Sequence[str] = (*FAULTS, "month")
    """Which faults; a stall is named after how long it lasts."""
    part: int = 0
    parts: int = 1
    """Which part of the schedules, of how many; the parts together are all."""


@dataclass
class Found:
    """What an exploration found: how many runs there were, which outcomes, and the first violation."""

    schedules: int = 0
    outcomes: set[tuple[object, ...]] = field(default_factory=set)
    violation: Ran | None = None


def explore(scenario: Scenario, bounds: Bounds) -> Found:
    """Run every schedule of a scenario within bounds, up to the first violation."""
    return _Exploration(scenario, bounds).explored()


@dataclass
class _Exploration:
    scenario: Scenario
    bounds: Bounds
    found: Found = field(default_factory=Found)
    firsts: int = 0
    """How many schedules with one decision there were so far."""

    def explored(self) -> Found:
        for first in range(len(self.scenario.kinds)):
            self.visit(Schedule(first))
        return self.found

    def visit(self, schedule: Schedule) -> Ran | None:
        """Run a schedule and all that extend it; return the run, ``None`` once there was a violation."""
        if self.found.violation is not None:
            return None
        ran = run(self.scenario, schedule, self.found.outcomes)
        self.found.schedules += 1
        if ran.violations:
            self.found.violation = ran
            return None
        if self.is_of_another_part(schedule):
            return ran
        begun = range(schedule.last + 1, len(ran.steps))
        for pause in self.pauses(schedule):
            for to in range(len(self.scenario.kinds)):
                self.preempt(ran, begun, Decision(to, pause))
        for point in begun:
            if any(_touches(ran.steps[point], ran.steps[late].path) for late in schedule.late[:1]):
                self.visit(schedule.extended(point, Decision(arrives=True)))
        if schedule.faults < self.bounds.faults:
            for fault in (each for each in FAULTS if each in self.bounds.kinds):
                for point in begun:
                    if _matters(ran.steps, point, fault):
                        self.visit(schedule.extended(point, Decision(fault=fault)))
        return ran

    def is_of_another_part(self, schedule: Schedule) -> bool:
        """Return whether what extends a schedule with one decision is left to another part. Counts those with one."""
        if len(schedule.decisions) != 1:
            return False
        self.firsts += 1
        return self.firsts % self.bounds.parts != self.bounds.part

    def pauses(self, schedule: Schedule) -> Iterator[str | None]:
        """Yield how long an actor may be preempted here; ``None`` is no time at all."""
        if schedule.preemptions < self.bounds.preemptions:
            yield None
            if schedule.faults < self.bounds.faults:
                yield from (pause for pause in self.bounds.kinds if pause in DURATIONS)

    def preempt(self, ran: Ran, points: range, decision: Decision) -> None:
        """Let one actor preempt the others at each point where that makes a difference."""
        meanwhile: tuple[int, frozenset[str]] | None = None
        for point in points:
            step = ran.steps[point]
            if decision.to not in step.others or step.resumed or _is_first(ran.steps, point):
                meanwhile = None
                continue
            if meanwhile is not None and meanwhile[0] == step.actor:
                changed = meanwhile[1]
                if _commutes(ran.steps[point - 1], changed, time_passed=bool(changed) or decision.pause is not None):
                    continue
            child = self.visit(ran.schedule.extended(point, decision))
            meanwhile = None if child is None else (step.actor, _changed(child, point))


def _is_first(steps: Sequence[Step], point: int) -> bool:
    return all(step.actor != steps[point].actor for step in steps[:point])


def _commutes(step: Step, changed: frozenset[str], *, time_passed: bool) -> bool:
    """Whether it does not matter if a request comes before or after some changes, and after some time."""
    if step.in_vain:
        return not step.reads_clock
    if step.kind not in _READS or (step.reads_clock and time_passed):
        return False
    if step.kind == "list":
        return not any(path.startswith(step.path) for path in changed)
    return step.path not in changed


def _touches(step: Step, path: str) -> bool:
    """Whether it matters if a late request is carried out before a step or after it."""
    if step.resumed or step.in_vain:
        return False
    return path.startswith(step.path) if step.kind == "list" else step.path == path


def _changed(ran: Ran, point: int) -> frozenset[str]:
    """Return the files changed from a preemption on until the preempted actor went on."""
    actor = ran.steps[point].actor
    after = (step.changed_before for step in ran.steps[point + 1 :] if step.actor == actor)
    return frozenset(ran.changed[ran.steps[point].changed_before : next(after, None)])


def _matters(steps: Sequence[Step], point: int, fault: str) -> bool:
    """Whether a fault here differs from the same one at a later point."""
    step = steps[point]
    if step.in_vain:
        return False
    if fault in {"lose", "late", "cut"}:
        return step.kind not in _READS
    if fault == "die":
        before = next((each for each in reversed(steps[:point]) if each.actor == step.actor), None)
        return before is not None and before.kind not in _READS
    return True


# Random schedules.


def random_run(seed: int, kinds: Sequence[str]) -> tuple[Scenario, RandomSchedule]:
    """Return the scenario and the schedule of a seed: two to four actors, clocks that differ by days."""
    chance = random.Random(seed)
    chosen = tuple(chance.choice(kinds) for _ in range(chance.choice((2, 3, 3, 4))))
    days = tuple(chance.choice((0, 0, 1, -1)) * chance.randrange(4) * DURATIONS["day"] for _ in chosen)
    scenario = Scenario(chosen, days, chance.choice(tuple(ORDERS)))
    return scenario, RandomSchedule(chance, chance.randrange(len(chosen)))


def shrunk(scenario: Scenario, ran: Ran) -> Ran:
    """Return the shortest schedule of a scenario that goes wrong: no decision of it can be left out."""
    for preemptions, faults in ((0, 0), (1, 0), (0, 1), (1, 1)):
        if preemptions + faults < len(ran.schedule.decisions):
            found = explore(scenario, Bounds(preemptions, faults, (*FAULTS, *DURATIONS))).violation
            if found is not None:
                return found
    for point in sorted(ran.schedule.decisions):
        fewer = Schedule(ran.schedule.first, {at: each for at, each in ran.schedule.decisions.items() if at != point})
        again = run(scenario, fewer)
        if again.violations:
            return shrunk(scenario, again)
    return ran

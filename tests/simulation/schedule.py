"""Schedules, and how they are written.

A schedule says what happens at which point; everything else follows from it:

    1            (first of all) actor 1 begins
    12>1         before request 12, the one who runs is preempted by actor 1
    12~1:month   the same, and a month passes at once
    12!die       its process dies
    12!lose      the request is carried out and its answer is lost
    12!late      the request is not carried out, its client waits in vain, and the store carries it out at the end
    30^          or before request 30, under the conditions that hold then
    12!cut       the request is carried out, its answer is lost, and all further requests of the actor fail
    12!outage    this request and all further ones of the actor fail
    12+1 ...     faults may also strike the request that an actor resumes with; it is a point of its own

An actor that ends, or dies, hands over to the next one; a preempted actor goes on when the others have ended.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

MINUTE: Final = 60_000
DURATIONS: Final[dict[str, int]] = {"minute": MINUTE, "day": 26 * 60 * MINUTE, "month": 31 * 24 * 60 * MINUTE}
Fault = Literal["die", "lose", "late", "cut", "outage"]
FAULTS: Final[tuple[Fault, ...]] = ("die", "lose", "late", "cut", "outage")


@dataclass(frozen=True, slots=True)
class Decision:
    """What happens at a point: another actor goes on, perhaps after some time, or a fault strikes."""

    to: int | None = None
    pause: str | None = None
    fault: Fault | None = None
    arrives: bool = False
    """Whether the store carries out what was late."""

    def __str__(self) -> str:
        if self.arrives:
            return "^"
        if self.fault is not None:
            return f"!{self.fault}"
        return f">{self.to}" if self.pause is None else f"~{self.to}:{self.pause}"


@dataclass(frozen=True)
class Schedule:
    """Who begins, and the decisions by the number of the point."""

    first: int = 0
    decisions: Mapping[int, Decision] = field(default_factory=dict)

    def __str__(self) -> str:
        return " ".join([str(self.first), *(f"{point}{each}" for point, each in sorted(self.decisions.items()))])

    def extended(self, point: int, decision: Decision) -> Schedule:
        """Return this schedule with one more decision."""
        return Schedule(self.first, {**self.decisions, point: decision})

    def at(self, point: int, others: Sequence[int]) -> Decision | None:
        """Return the decision at a point, where ``others`` could go on."""
        decision = self.decisions.get(point)
        return None if decision is None or decision.to not in (None, *others) else decision

    def done(self) -> Schedule:
        """Return this schedule."""
        return self

    @property
    def last(self) -> int:
        """The last point with a decision, -1 without any."""
        return max(self.decisions, default=-1)

    @property
    def preemptions(self) -> int:
        """How often an actor is preempted."""
        return sum(each.to is not None for each in self.decisions.values())

    @property
    def faults(self) -> int:
        """How many deaths, stalls, lost answers and outages there are."""
        return sum(each.fault is not None or each.pause is not None for each in self.decisions.values())

    @property
    def late(self) -> list[int]:
        """The points of late requests that no decision carries out: the store does at the end."""
        points = [point for point, each in sorted(self.decisions.items()) if each.fault == "late"]
        return points[sum(each.arrives for each in self.decisions.values()) :]

    @classmethod
    def parse(cls, text: str) -> Schedule:
        """Return the schedule in a text as :meth:`__str__` writes it."""
        first, *rest = text.split()
        decisions: dict[int, Decision] = {}
        for each in rest:
            match = re.fullmatch(r"(\d+)(?:>(\d+)|~(\d+):(\w+)|!(\w+)|(\^))", each)
            if match is None or (match[4] or "day") not in DURATIONS or (match[5] or "die") not in FAULTS:
                raise ValueError(f"{each!r} is no decision of a schedule")
            to = match[2] or match[3]
            decisions[int(match[1])] = Decision(None if to is None else int(to), match[4], match[5], bool(match[6]))  # type: ignore[arg-type]
        return cls(int(first), decisions)


class RandomSchedule:
    """Decides at each point by chance, at most ``most`` times, and remembers what it decided."""

    def __init__(self, chance: random.Random, first: int, rate: float = 0.06, most: int = 6) -> None:
        self.first = first
        self.decisions: dict[int, Decision] = {}
        self._chance = chance
        self._rate = rate
        self._most = most
        self._late = 0

    def at(self, point: int, others: Sequence[int]) -> Decision | None:
        """Return the decision at a point, where ``others`` could go on."""
        if self._late and self._chance.random() < self._rate:
            self._late -= 1
            self.decisions[point] = Decision(arrives=True)
            return self.decisions[point]
        if len(self.decisions) >= self._most or self._chance.random() > self._rate:
            return None
        if not others or self._chance.random() < 0.15:
            decision = Decision(fault=self._chance.choice(FAULTS))
        else:
            decision = Decision(self._chance.choice(others), self._chance.choice((*DURATIONS, *[None] * 6)))
        self.decisions[point] = decision
        self._late += decision.fault == "late"
        return decision

    def done(self) -> Schedule:
        """Return the schedule that these decisions were."""
        return Schedule(self.first, self.decisions)

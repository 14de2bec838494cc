"""Which actors meet, and one run of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field

from tests.simulation.actors import KINDS
from tests.simulation.aftermath import aftermath
from tests.simulation.oracle import Oracle, outcome
from tests.simulation.schedule import RandomSchedule, Schedule
from tests.simulation.scheduler import Actor, Outside, Scheduler, Step
from tests.simulation.store import ORDERS
from tests.simulation.world import World
from trinitylake_core.commits import commit as commits


@dataclass(frozen=True)
class Scenario:
    """Some actors by the names of their kinds, how far their clocks are ahead, and the order of batch deletes."""

    kinds: tuple[str, ...]
    ahead_millis: tuple[int, ...] = ()
    order: str = "reversed"
    courtesy: bool = True
    """Whether writers look at the boundary before they create a root on top of an old one, to save a commit in vain."""

    @property
    def name(self) -> str:
        """What tests and commands call it."""
        return "+".join(self.kinds)

    def names(self) -> list[str]:
        """Return a name of its own for each actor."""
        seen: Counter[str] = Counter()
        names = []
        for kind in self.kinds:
            seen[kind] += 1
            names.append(kind if seen[kind] == 1 else f"{kind}#{seen[kind]}")
        return names


@dataclass
class Ran:
    """One run: what happened at each point, what everybody was told, and what is wrong."""

    schedule: Schedule
    steps: list[Step]
    changed: list[str]
    actors: Sequence[Actor]
    outcome: tuple[object, ...]
    violations: list[str] = field(default_factory=list)


@contextmanager
def _no_courtesy() -> Iterator[None]:
    """Take out the look before a creation: it hides the look afterwards, on which safety rests."""
    courtesy = commits._is_late
    commits._is_late = lambda base, began_at_millis, ttl_millis: False
    try:
        yield
    finally:
        commits._is_late = courtesy


def run(scenario: Scenario, schedule: Schedule | RandomSchedule, known: set[tuple[object, ...]] | None = None) -> Ran:
    """Run a scenario under a schedule and judge it; what comes later is tried unless the outcome is ``known``.

    REQUIRES: ``own_time`` is entered.
    """
    world = World.new()
    world.store.order = ORDERS[scenario.order]
    actors = []
    ahead = scenario.ahead_millis or (0,) * len(scenario.kinds)
    for name, kind, millis in zip(scenario.names(), scenario.kinds, ahead, strict=True):
        with Outside(world.store, name, millis).acting():
            actors.append(Actor(name, KINDS[kind].prepare(world), millis))
    scheduler = Scheduler(world.store, schedule)
    with nullcontext() if scenario.courtesy else _no_courtesy():
        scheduler.run(actors)
    with Outside(world.store, "oracle").acting():
        violations = list(Oracle(world, actors).violations())
    result = outcome(world, actors)
    if not violations and (known is None or result not in known):
        violations = list(aftermath(world))
        if known is not None:
            known.add(result)
    return Ran(schedule.done(), scheduler.steps, world.store.changed, actors, result, violations)

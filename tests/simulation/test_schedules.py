"""Whatever the schedule, nothing acknowledged is lost and nothing refused leaves a trace.

A failure prints the scenario and its shortest schedule; ``python -m tests.simulation.replay`` shows the run.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

import pytest

from tests.simulation.actors import KINDS
from tests.simulation.explore import Bounds, explore, random_run, shrunk
from tests.simulation.replay import told
from tests.simulation.scenarios import Scenario, run

Told = Callable[[str, object], None]
_UNREPAIRED = {"save", "save-again", "publish", "abort", "clean", "clean-aged", "expire-some"}
"""What is known to break until the fences are whole."""
_KINDS = tuple(kind for kind in KINDS if kind not in _UNREPAIRED)
PAIRS = list(itertools.combinations_with_replacement(_KINDS, 2))


def _explored(scenarios: Iterable[Scenario], bounds: Bounds, record: Told) -> None:
    schedules = outcomes = 0
    for scenario in scenarios:
        found = explore(scenario, bounds)
        if found.violation is not None:
            pytest.fail(told(scenario, found.violation), pytrace=False)
        schedules += found.schedules
        outcomes += len(found.outcomes)
    record("schedules", schedules)
    record("outcomes", outcomes)
    print(f"{schedules} schedules, {outcomes} outcomes, {bounds}")


@pytest.mark.parametrize("first", _KINDS)
def test_pairs_with_one_preemption(first: str, record_property: Told) -> None:
    """Every pair of operations, each preempted once by the other at every request."""
    pairs = [pair for pair in PAIRS if pair[0] == first]
    _explored((Scenario(pair) for pair in pairs), Bounds(1), record_property)


def _seeds(seeds: Iterable[int]) -> None:
    outcomes: set[tuple[object, ...]] = set()
    for seed in seeds:
        scenario, schedule = random_run(seed, _KINDS)
        ran = run(scenario, schedule, outcomes)
        if ran.violations:
            pytest.fail(f"seed {seed}: {told(scenario, shrunk(scenario, ran))}", pytrace=False)


def test_random_schedules() -> None:
    """Two to four actors whose clocks differ by days, preempted, stalled, disturbed and killed at random."""
    _seeds(range(200))


@pytest.mark.slow
@pytest.mark.parametrize("thousand", range(20))
def test_many_random_schedules(thousand: int) -> None:
    """The same, twenty thousand times."""
    _seeds(range(thousand * 1000, thousand * 1000 + 1000))

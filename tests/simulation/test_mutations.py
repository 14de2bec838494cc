"""A repair that is taken out is missed: the simulation finds a schedule against what is left."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulation.explore import Bounds, explore
from tests.simulation.mutations import MUTATIONS, Mutation
from tests.simulation.replay import told
from tests.simulation.scenarios import Scenario, run
from tests.simulation.schedule import DURATIONS, Schedule
from tests.simulation.test_defects import DEFECTS
from tests.simulation.test_schedules import COPIES, DAMAGED, DISSIMILAR, DISTURBED, MORE_TRIPLES, PAIRS, TRIPLES

Explored = tuple[Scenario, Bounds]
"""A scenario, and the bounds of its schedules."""


def _explored_for(mutation: Mutation) -> Explored:
    ahead = tuple(days * DURATIONS["day"] for days in mutation.ahead_days)
    scenario = Scenario(mutation.kinds, ahead, courtesy=mutation.courtesy)
    return scenario, Bounds(mutation.preemptions, mutation.faults, mutation.fault)


def _explored_elsewhere(explored: Explored) -> bool:
    """Return whether other tests explore the product as it is within these bounds; large ones only `make test-all`."""
    scenario, bounds = explored
    names = sorted(scenario.kinds)
    if not scenario.courtesy or scenario.ahead_millis:
        return False
    if bounds.preemptions <= 1 and not bounds.faults:
        some = (*DISSIMILAR, *COPIES, *DAMAGED, *TRIPLES, *MORE_TRIPLES)
    else:
        some = (*DISTURBED, *PAIRS) if bounds.preemptions else ()
    defects = [(sorted(each.kinds.split("+")), each.bounds) for each in DEFECTS.values()]
    return names in [sorted(name.split("+")) for name in some] or (names, bounds) in defects


WHOLE = sorted(
    {_explored_for(each) for each in MUTATIONS.values() if not each.schedule},
    key=lambda each: (each[0].kinds, str(each[1])),
)


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_missing_repair_is_found(name: str, record_property: Callable[[str, object], None]) -> None:
    mutation = MUTATIONS[name]
    scenario, bounds = _explored_for(mutation)
    if mutation.schedule:
        _found_by(mutation, scenario)
        return
    with mutation.taken_out():
        found = explore(scenario, bounds)
    assert found.violation is not None, f"{found.schedules} schedules, and nobody misses: {name}"
    record_property("schedule", str(found.violation.schedule))
    print(f"without {name!r}: {scenario.name} {str(found.violation.schedule)!r}: {found.violation.violations[0]}")


_LONG = frozenset({"append+tables-clean+write-other", "register+tables-clean", "name-metadata+tables-clean"})
_REST = [each for each in WHOLE if not _explored_elsewhere(each)]
_HERE = {each[0].name for each in _REST[::3]} - _LONG
"""`make test` explores every third of them: each mutation is looked for in a scenario of its own anyway."""
_WHOLE = [
    pytest.param(each, id=each[0].name, marks=[] if each[0].name in _HERE else [pytest.mark.slow]) for each in _REST
]


@pytest.mark.parametrize("explored", _WHOLE)
def test_nothing_is_found_with_every_repair_in_its_place(explored: Explored) -> None:
    """Within the bounds of the mutations."""
    scenario, bounds = explored
    found = explore(scenario, bounds)
    assert found.violation is None, told(scenario, found.violation)


def _found_by(mutation: Mutation, scenario: Scenario) -> None:
    schedule = Schedule.parse(mutation.schedule)
    with mutation.taken_out():
        assert run(scenario, schedule).violations
    assert not run(scenario, schedule).violations

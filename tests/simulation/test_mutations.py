"""A repair that is taken out is missed: the simulation finds a schedule against what is left."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulation.explore import Bounds, explore
from tests.simulation.mutations import MUTATIONS, Mutation
from tests.simulation.scenarios import Scenario, run
from tests.simulation.schedule import Schedule
from tests.simulation.test_defects import DEFECTS
from tests.simulation.test_schedules import COPIES, DAMAGED, DISSIMILAR, DISTURBED, MORE_TRIPLES, PAIRS, TRIPLES

DeadlinePool = tuple[tuple[str, ...], Bounds, bool]
"""The kinds of a scenario, the bounds of its schedules, and whether writers are courteous."""


def _bounded(mutation: Mutation) -> DeadlinePool:
    return mutation.kinds, Bounds(mutation.preemptions, mutation.faults, mutation.fault), mutation.courtesy


def _explored_elsewhere(bounded: DeadlinePool) -> bool:
    """Return whether other tests explore the product as it is within these bounds; large ones only `make test-all`."""
    names, bounds, courtesy = sorted(bounded[0]), *bounded[1:]
    if not courtesy:
        return False
    if bounds.preemptions <= 1 and not bounds.faults:
        some = (*DISSIMILAR, *COPIES, *DAMAGED, *TRIPLES, *MORE_TRIPLES)
    else:
        some = (*DISTURBED, *PAIRS) if bounds.preemptions else ()
    defects = [(sorted(each.kinds.split("+")), each.bounds) for each in DEFECTS.values()]
    return names in [sorted(name.split("+")) for name in some] or (names, bounds) in defects


WHOLE = sorted(
    {_bounded(each) for each in MUTATIONS.values() if not each.schedule}, key=lambda each: (each[0], str(each[1]))
)


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_missing_repair_is_found(name: str, record_property: Callable[[str, object], None]) -> None:
    mutation = MUTATIONS[name]
    kinds, bounds, courtesy = _bounded(mutation)
    scenario = Scenario(kinds, courtesy=courtesy)
    if mutation.schedule:
        _found_by(mutation, scenario)
        return
    with mutation.taken_out():
        found = explore(scenario, bounds)
    assert found.violation is not None, f"{found.schedules} schedules, and nobody misses: {name}"
    record_property("schedule", str(found.violation.schedule))
    print(f"without {name!r}: {scenario.name} {str(found.violation.schedule)!r}: {found.violation.violations[0]}")


@pytest.mark.parametrize(
    "bounded", [each for each in WHOLE if not _explored_elsewhere(each)], ids=lambda each: "+".join(each[0])
)
def test_nothing_is_found_with_every_repair_in_its_place(bounded: DeadlinePool) -> None:
    """Within the bounds of the mutations."""
    kinds, bounds, courtesy = bounded
    assert explore(Scenario(kinds, courtesy=courtesy), bounds).violation is None


def _found_by(mutation: Mutation, scenario: Scenario) -> None:
    schedule = Schedule.parse(mutation.schedule)
    with mutation.taken_out():
        assert run(scenario, schedule).violations
    assert not run(scenario, schedule).violations

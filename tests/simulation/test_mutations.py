"""A repair that is taken out is missed: the simulation finds a schedule against what is left."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulation.explore import Bounds, explore
from tests.simulation.mutations import MUTATIONS, Mutation
from tests.simulation.scenarios import Scenario, run
from tests.simulation.schedule import Schedule
from tests.simulation.test_defects import DEFECTS
from tests.simulation.test_schedules import COPIES, DAMAGED, DISSIMILAR, TRIPLES


def _explored_elsewhere(mutation: Mutation) -> bool:
    """Return whether `make test` explores the product as it is within these bounds anyway."""
    kinds = sorted(mutation.kinds)
    if mutation.preemptions <= 1 and not mutation.faults and mutation.courtesy:
        return kinds in [sorted(name.split("+")) for name in (*DISSIMILAR, *COPIES, *DAMAGED, *TRIPLES)]
    bounds = Bounds(mutation.preemptions, mutation.faults, mutation.fault)
    return any((kinds, bounds) == (sorted(each.kinds.split("+")), each.bounds) for each in DEFECTS.values())


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_missing_repair_is_found(name: str, record_property: Callable[[str, object], None]) -> None:
    """And the same bounds hold nothing against the product as it is."""
    mutation = MUTATIONS[name]
    scenario = Scenario(mutation.kinds, courtesy=mutation.courtesy)
    bounds = Bounds(mutation.preemptions, mutation.faults, mutation.fault)
    if mutation.schedule:
        _found_by(mutation, scenario)
        return
    with mutation.taken_out():
        found = explore(scenario, bounds)
    assert found.violation is not None, f"{found.schedules} schedules, and nobody misses: {name}"
    record_property("schedule", str(found.violation.schedule))
    print(f"without {name!r}: {scenario.name} {str(found.violation.schedule)!r}: {found.violation.violations[0]}")
    if not _explored_elsewhere(mutation):
        whole = explore(scenario, bounds)
        assert whole.violation is None


def _found_by(mutation: Mutation, scenario: Scenario) -> None:
    schedule = Schedule.parse(mutation.schedule)
    with mutation.taken_out():
        assert run(scenario, schedule).violations
    assert not run(scenario, schedule).violations

"""A repair that is taken out is missed: the simulation finds a schedule against what is left."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulation.explore import Bounds, explore
from tests.simulation.mutations import MUTATIONS
from tests.simulation.scenarios import Scenario


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_missing_repair_is_found(name: str, record_property: Callable[[str, object], None]) -> None:
    """And the same bounds hold nothing against the product as it is."""
    mutation = MUTATIONS[name]
    scenario = Scenario(mutation.kinds, courtesy=mutation.courtesy)
    bounds = Bounds(mutation.preemptions, mutation.faults, mutation.fault)
    with mutation.taken_out():
        found = explore(scenario, bounds)
    assert found.violation is not None, f"{found.schedules} schedules, and nobody misses: {name}"
    record_property("schedule", str(found.violation.schedule))
    print(f"without {name!r}: {scenario.name} {str(found.violation.schedule)!r}: {found.violation.violations[0]}")
    whole = explore(scenario, bounds)
    assert whole.violation is None


def test_a_later_save_that_dies_keeps_the_one_before() -> None:
    """Its definition is cleaned before its file is set, and it dies before it looks."""
    scenario = Scenario(("save-again", "clean"))
    assert explore(scenario, Bounds(1, 1, ("die",))).violation is None

"""The rules of the fences hold in every state, and each of them is needed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulation.model import Visit
from tests.simulation.scopes import LARGE, RULES, SMALL

_ALL = frozenset(RULES)


def _visited(name: str, record: Callable[[str, object], None]) -> None:
    visit = Visit({**SMALL, **LARGE}[name], _ALL).run()
    record("states", visit.states)
    assert visit.violation is None, f"{name}: {visit.violation}: {' | '.join(visit.schedule)}"


@pytest.mark.parametrize("name", SMALL)
def test_nothing_breaks(name: str, record_property: Callable[[str, object], None]) -> None:
    """Nothing breaks under any order of requests, ticks and deaths."""
    _visited(name, record_property)


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_nothing_breaks_in_larger_scopes(name: str, record_property: Callable[[str, object], None]) -> None:
    """The same with more processes."""
    _visited(name, record_property)


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_is_needed(rule: str) -> None:
    """Without it a schedule breaks a promise."""
    visit = Visit(SMALL[RULES[rule].scope], _ALL - {rule}).run()
    assert visit.violation is not None, RULES[rule].without

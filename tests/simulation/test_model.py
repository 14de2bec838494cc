"""The rules of the fences hold in every state, and each of them is needed.

No code of the product runs here. `make test` visits what takes less than a second, and `make test-all` every scope.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulation.model import Visit
from tests.simulation.scopes import LARGE, RULES, SMALL

_ALL = frozenset(RULES)
_OF_SECONDS = ("V W E ?", "w E e", "F w E", "K T E", "P S K", "W D L")


def _visited(name: str, record: Callable[[str, object], None]) -> None:
    visit = Visit({**SMALL, **LARGE}[name], _ALL).run()
    record("states", visit.states)
    assert visit.violation is None, f"{name}: {visit.violation}: {' | '.join(visit.schedule)}"


@pytest.mark.parametrize("name", [name for name in SMALL if name not in _OF_SECONDS])
def test_nothing_breaks(name: str, record_property: Callable[[str, object], None]) -> None:
    """Nothing breaks under any order of requests, ticks and deaths."""
    _visited(name, record_property)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*_OF_SECONDS, *LARGE])
def test_nothing_breaks_in_larger_scopes(name: str, record_property: Callable[[str, object], None]) -> None:
    """The same with more processes or steps."""
    _visited(name, record_property)


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_is_needed(rule: str) -> None:
    """Without it a schedule breaks a promise."""
    visit = Visit(SMALL[RULES[rule].scope], _ALL - {rule}).run()
    assert visit.violation is not None, RULES[rule].without

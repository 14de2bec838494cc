"""The table at the end of `make test-stores`: of each store the steps passed, its races, and the seconds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

_PARAMETERS: Final = ("-create", "-replace", "-local", "-spark")
"""What names of tests have behind that of a store."""


@dataclass(slots=True)
class _Row:
    passed: int = 0
    steps: int = 0
    seconds: float = 0.0
    races: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)


_rows: dict[str, _Row] = {}


def note(name: str, *, passed: bool, seconds: float) -> None:
    """Note a step, by the name of its test: ``test_step[store]``."""
    step, _, store = name.rstrip("]").partition("[")
    for parameter in _PARAMETERS:
        store = store.removesuffix(parameter)
    row = _rows.setdefault(store, _Row())
    row.steps += 1
    row.passed += passed
    row.seconds += seconds
    if not passed:
        row.failed.append(step)


def note_races(store: str, told: str) -> None:
    """Note what came of races."""
    _rows.setdefault(store, _Row()).races.append(told)


def lines() -> Iterator[str]:
    """Yield the table."""
    yield "| Store | Steps passed | Races | Seconds |"
    yield "|---|---|---|---|"
    for store, row in _rows.items():
        failed = f" (not {', '.join(row.failed)})" if row.failed else ""
        yield f"| {store} | {row.passed} of {row.steps}{failed} | {'; '.join(row.races)} | {row.seconds:.0f} |"

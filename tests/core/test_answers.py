"""The comparison of what endpoints answered with the chain of versions finds each kind of lie."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.endpoints import Asked, find_lies

_STATES: Any = [{"n": {}}, {"n": {"p": "1"}}, {"n": {}}]


def _asked(key: str, *, removes: bool, answer: dict[str, list[str]] | None, began: int = 0, ended: int = 2) -> Asked:
    set_to, removed = ({}, ["p"]) if removes else ({"p": "1"}, [])
    return Asked(key, "n", set_to, removed, began, ended, answer, 1)


def _answer(**said: list[str]) -> dict[str, list[str]]:
    return {"updated": [], "removed": [], "missing": [], **said}


def test_a_true_log_has_no_lies() -> None:
    log = [
        _asked("a", removes=False, answer=_answer(updated=["p"])),
        _asked("b", removes=True, answer=_answer(removed=["p"])),
        _asked("c", removes=True, answer=_answer(missing=["p"]), ended=0),
        _asked("d", removes=True, answer=None),
    ]
    assert [] == list(find_lies(log, _STATES, {"a": [1], "b": [2]}))


@pytest.mark.parametrize(
    ("asked", "made", "lie"),
    [
        (_asked("a", removes=True, answer=_answer(missing=["p"]), began=1, ended=1), {}, "was true of none"),
        (_asked("a", removes=True, answer=_answer(removed=["p"])), {}, "and is in versions []"),
        (_asked("a", removes=False, answer=_answer(updated=["p"])), {"a": [1, 2]}, "was carried out 2 times"),
        (_asked("a", removes=False, answer=_answer(updated=["p"])), {"a": [2]}, "was true of none"),
        (_asked("a", removes=True, answer=_answer(missing=["p"])), {"a": [2]}, "told that nothing changed"),
        (_asked("a", removes=False, answer=None), {"b": [1]}, "nobody sent it"),
    ],
)
def test_each_kind_of_lie_is_found(asked: Asked, made: dict[str, list[int]], lie: str) -> None:
    assert any(lie in each for each in find_lies([asked], _STATES, made))

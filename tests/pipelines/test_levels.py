"""Going down trees level by level: the tightest of what parents say, and levels that outgrow memory."""

from __future__ import annotations

from functools import reduce
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.engine.model import Row
from pipelines.integrity.examine import _VISITED, ASKED
from pipelines.trees.levels import Visitor, Waiting, tightest
from trinitylake_core.errors import FileMissing

_NUMBERS = st.none() | st.integers(0, 9)
_SAID = st.fixed_dictionaries(
    {"path": st.just("p"), "first": _NUMBERS, "last": _NUMBERS, "lo": _NUMBERS, "hi": _NUMBERS}
)


@given(st.lists(_SAID, min_size=1, max_size=4), st.randoms())
def test_the_tightest_counts_in_whatever_order_parents_are_read(said: list[dict[str, Any]], draw: Random) -> None:
    found = reduce(tightest, draw.sample(said, len(said)))
    for name, choose in {"first": min, "hi": min, "last": max, "lo": max}.items():
        values = [each[name] for each in said if each[name] is not None]
        assert (choose(values) if values else None) == found[name]


@pytest.mark.parametrize("most", [3, 1000], ids=["in a temporary file", "in memory"])
def test_the_highest_level_that_waits_comes_out_whole(most: int) -> None:
    """What is left behind would be examined by nothing."""

    def visit(asked: Row, data: bytes | FileMissing) -> dict[str, Any]:
        raise AssertionError(asked, data)

    asked = dict.fromkeys(ASKED.names)
    waiting = Waiting(Visitor("nodes", ASKED, _VISITED, visit, len, 4), most)
    paths = {f"node-{number}" for number in range(50)}
    for _ in range(2):
        waiting.note({"children": [asked | {"path": path, "height": 1} for path in sorted(paths)]})
    level = waiting.highest()
    assert level is not None
    assert (50, paths) == (len(level), {row["path"] for row in level})
    assert waiting.highest() is None
    waiting.close()

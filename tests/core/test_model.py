"""A tree that grows and shrinks, for a long time, in few steps; random ones are the judge's (``tests/model``)."""

from __future__ import annotations

import copy
import random
from pathlib import Path

import pytest

from tests.support.lakes import compacted, new_lake, smallest_target


@pytest.mark.parametrize(("order", "room"), [(3, 0), (4, 2500), (5, 0), (8, 2500)])
def test_a_tree_that_grows_and_shrinks_stays_whole(tmp_path: Path, order: int, room: int) -> None:
    """A long life in few, large steps: three levels up, and back to an empty leaf."""
    lake = new_lake(tmp_path, order, smallest_target(order) + room)
    rng, names = random.Random(order), [f"t{number}" for number in range(150)]
    with lake.transaction() as txn:
        txn.create_namespace("a")
    history = []
    for start in range(0, 150, 15):
        with lake.transaction() as txn:
            for name in names[start : start + 15]:
                txn.create_table("a", name)
        assert [] == list(lake.refresh().check())
        history.append((lake.version, sorted(names[: start + 15])))
    rng.shuffle(names)
    left = copy.copy(names)
    while left:
        gone, left = left[:20], left[20:]
        with lake.transaction() as txn:
            for name in gone:
                txn.drop_table("a", name)
        assert [] == list(lake.refresh().check())
        history.append((lake.version, sorted(left)))
    compacted(lake)
    assert (1, 0, 0) == (lake.refresh().stats().objects, lake.stats().messages, lake.stats().height)
    for version, expected in history:
        assert expected == lake.at(version=version).tables("a")

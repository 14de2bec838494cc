"""How long the requests of a comparison wait for one another, by the logical clock."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.support.lakes import compacted, reopened
from tests.support.rounds import Rounds
from tests.support.wide import change, scattered, wide
from trinitylake_core import Lakehouse
from trinitylake_core.diff import Span, diff_nodes, differing_subtrees

OBJECTS = 12_000


def _changed(directory: Path, order: int, count: int) -> Lakehouse:
    lake = change(wide(directory, OBJECTS, order), scattered(OBJECTS, count))
    compacted(lake)
    return lake.refresh()


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lakehouse:
    """A lakehouse of which a sixth has changed; not to be changed by a test."""
    return _changed(tmp_path_factory.mktemp("waits"), 16, 2000)


def _diff(lake: Lakehouse, most: int) -> tuple[Rounds, list[object]]:
    cold = reopened(lake)
    old = cold.at(version=cold.version - 2)
    with Rounds(cold.storage, most=most) as rounds:
        found: list[object] = list(cold.diff(old, cold))
    return rounds, found


@pytest.mark.parametrize(("order", "count"), [(32, 1500), (16, 30), (128, 10)])
def test_a_comparison_reads_ahead_what_it_would_read_and_no_more(tmp_path: Path, order: int, count: int) -> None:
    """Dense and sparse, high and low: as many rounds as its requests need, and half of that more."""
    lake = _changed(tmp_path, order, count)
    alone, expected = _diff(lake, 1)
    assert alone.chain == alone.requests, "one after another"
    rounds, found = _diff(lake, 32)
    assert count == len(expected)
    assert expected == found
    assert sorted(path for _, _, path in alone.log) == sorted(path for _, _, path in rounds.log)
    assert rounds.chain <= 1.5 * (math.ceil(rounds.requests / 32) + (lake.stats().height or 0))


def test_two_lakehouses_are_read_side_by_side(tmp_path: Path) -> None:
    """Each with requests of its own, at the same time."""
    one = reopened(_changed(tmp_path / "one", 32, 700))
    two = reopened(_changed(tmp_path / "two", 32, 900))
    expected = list(one.diff(one, two))
    one, two = reopened(one), reopened(two)
    with Rounds(one.storage, two.storage) as rounds:
        assert expected == list(one.diff(one, two))
    assert rounds.requests > 800
    assert rounds.chain <= 1.5 * (math.ceil(rounds.requests / 64) + 2)


def test_a_span_of_a_comparison_reads_what_lies_in_it(lake: Lakehouse) -> None:
    old = lake.at(version=lake.version - 2)
    whole = list(diff_nodes(old.nodes, old.root_node.node, lake.nodes, lake.root_node.node))
    lo, hi = whole[500][0], whole[700][0]
    logs = []
    for most in (1, 32):
        cold = reopened(lake)
        with Rounds(cold.storage, most=most) as rounds:
            sides = old.root_node.node, cold.nodes, lake.root_node.node
            assert whole[500:700] == list(diff_nodes(cold.nodes, *sides, Span(lo, hi)))
        logs.append(sorted(path for _, _, path in rounds.log))
    assert logs[0] == logs[1]
    assert rounds.chain <= 20 < len(logs[0])


def test_the_tops_of_two_trees_are_read_level_by_level(lake: Lakehouse) -> None:
    cold = reopened(lake)
    old = cold.at(version=cold.version - 2)
    with Rounds(cold.storage) as rounds:
        found = differing_subtrees(cold.nodes, old.root_node.node, cold.nodes, cold.root_node.node, 1 << 30)
    assert len(found.keys) > 500
    assert rounds.requests > 100
    assert rounds.chain <= 1.5 * (math.ceil(rounds.requests / 32) + 4)


def test_a_comparison_that_is_left_lying_disturbs_nobody(lake: Lakehouse) -> None:
    """A comparison that nobody reads to its end, and other reads through the same handle meanwhile."""
    cold = reopened(lake)
    with Rounds(cold.storage):
        changes = cold.diff(cold.version - 2, cold.version)
        next(changes)
        assert OBJECTS + 4 == len(list(cold.objects()))
        del changes
        assert 2000 == len(list(cold.diff(cold.version - 2, cold.version)))

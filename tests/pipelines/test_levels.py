"""Going down trees level by level: every node once, the tightest of what parents say, no further than asked."""

from __future__ import annotations

from functools import reduce
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.trees import walk
from pipelines.trees.levels import Visitor, Waiting, tightest
from pipelines.trees.walk import Start, TreeSource, walk_local
from tests.support.lakes import compacted, filled, new_lake, reopened
from trinitylake_core import Lakehouse
from trinitylake_core.errors import CorruptNode
from trinitylake_core.locations import root_path

_NUMBERS = st.none() | st.integers(0, 9)
_SAID = st.fixed_dictionaries(
    {"path": st.just("p"), "first": _NUMBERS, "last": _NUMBERS, "lo": _NUMBERS, "hi": _NUMBERS}
)


@pytest.fixture
def lake(tmp_path: Path) -> Lakehouse:
    """Three levels, and many versions that share nodes."""
    made = filled(new_lake(tmp_path), tables=60)
    compacted(made)
    with made.refresh().transaction() as txn:
        txn.alter_table("ns1", "t001", properties={"a": "b"})
    compacted(made.refresh())
    return reopened(made)


def starts(*versions: int) -> list[Start]:
    return [Start(root_path(version), version, version) for version in versions]


def test_nodes_that_versions_share_are_read_once(lake: Lakehouse) -> None:
    source, before = TreeSource(lake.storage, 4), lake.storage.counts.snapshot()
    rows = list(walk_local(source, starts(*range(lake.version + 1))))
    assert len(rows) == (lake.storage.counts - before).get == len({row["path"] for row in rows})
    heights = [row["height"] for row in rows[lake.version + 1 :]]
    assert sorted(heights, reverse=True) == heights
    assert {0, 1, 2} <= {row["height"] for row in rows}


def test_each_row_says_which_versions_reach_its_node(lake: Lakehouse) -> None:
    def reached(version: int) -> set[str]:
        return {row["path"] for row in walk_local(TreeSource(lake.storage, 4), starts(version))}

    last = lake.version
    each = {version: reached(version) for version in range(last - 4, last + 1)}
    for row in walk_local(TreeSource(lake.storage, 4), starts(*each)):
        holding = [version for version, paths in each.items() if row["path"] in paths]
        assert (min(holding), max(holding)) == (row["first"], row["last"])


def test_known_nodes_and_what_is_below_them_are_left_out(lake: Lakehouse) -> None:
    """Two compactions in a row share all subtrees but one."""
    source, last = TreeSource(lake.storage, 4), lake.version
    known = {row["path"] for row in walk_local(source, starts(last - 2))}
    every = {row["path"] for row in walk_local(source, starts(last))}
    before = lake.storage.counts.snapshot()
    assert every - known == {row["path"] for row in walk_local(source, starts(last), known)}
    assert len(every - known) == (lake.storage.counts - before).get < len(every)


def test_a_walk_without_figures_names_the_same_files(lake: Lakehouse) -> None:
    """It takes leaves for columns, and so tells no sizes of text."""

    def walked(*, figures: bool) -> list[dict[str, Any]]:
        return list(walk_local(TreeSource(lake.storage, 4, figures=figures), starts(*range(lake.version + 1))))

    told = ("path", "height", "first", "last", "keys", "messages", "bytes", "children", "files")
    with_figures, without = walked(figures=True), walked(figures=False)
    assert [[row[name] for name in told] for row in with_figures] == [[row[name] for name in told] for row in without]
    assert {row.keys() == with_figures[0].keys() for row in without} == {True}
    assert any(not row["text_bytes"] for row in without)


def test_a_walk_without_figures_names_the_files_of_large_roots(
    lake: Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of their messages it makes no objects, deletions among them."""
    with reopened(lake).transaction() as txn:
        txn.alter_table("ns1", "t001", properties={"c": "d"})
        txn.drop_table("ns0", "t000")
    told = ("path", "height", "keys", "messages", "bytes", "children", "files")
    rows = []
    for figures in (True, False):
        monkeypatch.setattr(walk, "_MANY_BYTES", 0)
        source = TreeSource(lake.storage, 4, figures=figures)
        rows.append([[row[name] for name in told] for row in walk_local(source, starts(lake.version + 1))])
    assert rows[0] == rows[1]
    assert rows[0][0][told.index("messages")] == 2


@pytest.mark.parametrize("figures", [True, False])
def test_a_leaf_in_the_place_of_another_is_found(lake: Lakehouse, figures: bool) -> None:
    source = TreeSource(lake.storage, 4, figures=figures)
    one, two, *_ = [row["path"] for row in walk_local(source, starts(lake.version)) if row["height"] == 0]
    lake.storage.replace(one, lake.storage.read(two))
    with pytest.raises(CorruptNode, match="swapped"):
        list(walk_local(source, starts(lake.version)))


def test_whoever_stops_asking_stops_the_walk(lake: Lakehouse) -> None:
    before = lake.storage.counts.snapshot()
    rows = walk_local(TreeSource(lake.storage, 4), starts(lake.version))
    assert root_path(lake.version) == next(rows)["path"]
    assert 1 == (lake.storage.counts - before).get


@given(st.lists(_SAID, min_size=1, max_size=4), st.randoms())
def test_the_tightest_counts_in_whatever_order_parents_are_read(said: list[dict[str, Any]], draw: Random) -> None:
    found = reduce(tightest, draw.sample(said, len(said)))
    for name, choose in {"first": min, "hi": min, "last": max, "lo": max}.items():
        values = [each[name] for each in said if each[name] is not None]
        assert (choose(values) if values else None) == found[name]


@pytest.mark.parametrize("most", [3, 1000], ids=["in a temporary file", "in memory"])
def test_the_highest_level_that_waits_comes_out_whole(most: int, lake: Lakehouse) -> None:
    """What is left behind would be marked by nobody."""
    visitor: Visitor = walk._visitor(TreeSource(lake.storage, 4))
    waiting = Waiting(visitor, most)
    paths = {f"node-{number}" for number in range(50)}
    for _ in range(2):
        waiting.note({"children": sorted(paths), "height": 2, "first": 1, "last": 1})
    level = waiting.highest()
    assert level is not None
    assert (50, paths) == (len(level), {row["path"] for row in level})
    assert waiting.highest() is None
    waiting.close()

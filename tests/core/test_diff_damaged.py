"""A rollback can be planned when the newest version is damaged: the plan says what it could not compare."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import damage
from tests.support.lakes import compacted, content, filled, new_lake, reopened
from tests.support.surgery import Surgery
from trinitylake_core import Change, Corrupt, Lakehouse, NotCompared, PlanOutdated
from trinitylake_core.diff import diff_damaged
from trinitylake_core.locations import root_path


@pytest.fixture
def lake(tmp_path: Path) -> Lakehouse:
    """Three levels; after version 10 everything changed, and was compacted: nothing is shared any more."""
    made = filled(new_lake(tmp_path, order=4), tables=24, namespaces=2, changes=3)
    compacted(made)
    for number in range(24):
        with made.transaction() as txn:
            if number % 4 == 1:
                txn.drop_table(f"ns{number % 2}", f"t{number:03}")
            else:
                txn.alter_table(f"ns{number % 2}", f"t{number:03}", properties={"a": "b"})
    compacted(made)
    return made.refresh()


GOOD = 10


def around(lake: Lakehouse) -> tuple[list[Change], list[NotCompared]]:
    old, new = lake.root_node.node, lake.at(version=GOOD).root_node.node
    found, holes = diff_damaged(lake.nodes, old, lake.nodes, new, lake.codec)
    return list(found), holes


def label(key: str, lake: Lakehouse) -> str:
    kind, namespace, name = lake.codec.split(key)
    return f"{kind} {namespace}" if name is None else f"{kind} {namespace}.{name}"


def spoil(surgery: Surgery, path: str) -> None:
    surgery.write(path, surgery.read(path)[:-40])


HARMS: dict[str, Callable[[Surgery, str], None]] = {
    "missing": Surgery.remove,
    "cut short": spoil,
    "another node": lambda surgery, path: surgery.write(path, surgery.read(root_path(3))),
}


@pytest.mark.parametrize("harm", HARMS)
def test_what_lies_around_an_unreadable_node_is_compared(lake: Lakehouse, harm: str) -> None:
    """Each node of the newest tree in turn: every change outside its range is there, and none inside."""
    surgery = Surgery(lake.root, lake.definition.order)
    every, none = around(lake)
    order = [label(key, lake) for key in sorted(content(lake).keys() | content(lake.at(version=GOOD)).keys())]
    assert ([], 24) == (none, len(every))
    below = dict(surgery.tree(lake.version)[1:])
    assert {0, 1} <= {node.height for node in below.values()}
    for path, node in below.items():
        data = surgery.read(path)
        HARMS[harm](surgery, path)
        found, holes = around(reopened(lake))
        assert [(path, "old")] == [(hole.file, hole.side) for hole in holes]
        low = -1 if holes[0].after is None else order.index(holes[0].after)
        high = len(order) if holes[0].before is None else order.index(holes[0].before)
        outside = [change for change in every if not low < order.index(label(change.key, lake)) < high]
        assert outside == found
        assert all(low < order.index(label(key, lake)) < high for key in node.keys)
        surgery.write(path, data)


def test_several_unreadable_nodes_are_several_holes(lake: Lakehouse) -> None:
    surgery = Surgery(lake.root, lake.definition.order)
    leaves = [path for path, node in surgery.tree(lake.version)[1:] if node.is_leaf]
    for path in leaves[::2]:
        spoil(surgery, path)
    found, holes = around(reopened(lake))
    assert leaves[::2] == [hole.file for hole in holes]
    every, _ = around(lake)
    assert 0 < len(found) < len(every)
    assert [] == [change for change in found if change not in every]


def test_the_target_may_have_holes_too(lake: Lakehouse) -> None:
    """A comparison serves both directions."""
    surgery = Surgery(lake.root, lake.definition.order)
    path = surgery.leaf(GOOD)
    surgery.remove(path)
    _, holes = around(reopened(lake))
    assert [(path, "new")] == [(hole.file, hole.side) for hole in holes]


def test_a_restore_obeys_the_version_that_was_approved(lake: Lakehouse) -> None:
    planned = lake.restore(["ns1.*"], version=GOOD, reason="r", dry_run=True)
    with reopened(lake).transaction() as txn:
        txn.create_namespace("new")
    with pytest.raises(PlanOutdated, match="another writer committed since the plan"):
        lake.restore(["ns1.*"], version=GOOD, reason="r", expected_version=planned.version)
    lake.refresh()
    done = lake.restore(["ns1.*"], version=GOOD, reason="r", expected_version=lake.version)
    assert lake.version + 1 == done.version_after


def test_keys_that_are_out_of_order_end_a_comparison(lake: Lakehouse) -> None:
    """Two keys are swapped, and the checksum fits: the comparison refuses the node, and does not run for ever."""
    damage.swap_two_keys(Surgery(lake.root, lake.definition.order), lake.version)
    with pytest.raises(Corrupt, match="not in order"):
        list(reopened(lake).diff(GOOD, lake.version))

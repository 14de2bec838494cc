"""A rollback can be planned when the newest version is damaged: the plan says what it could not compare."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import damage
from tests.support.lakes import compacted, filled, new_lake, reopened
from tests.support.surgery import Surgery
from trinitylake_core import Change, Corrupt, Lakehouse, NotCompared, PlanOutdated
from trinitylake_core.diff import diff_damaged


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

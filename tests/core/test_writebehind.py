"""Writing behind: nothing waits for it but the end, and a failure always arrives before anything points to a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.faults import FaultPlan, attach
from tests.support.lakes import filled, new_lake
from tests.support.rounds import Rounds
from trinitylake_core import Lakehouse
from trinitylake_core.errors import StorageError
from trinitylake_core.storage import open_storage
from trinitylake_core.tree import nodestore
from trinitylake_core.tree.node import Node
from trinitylake_core.tree.nodestore import NodeStore, NodeWriter


@pytest.fixture
def lake(tmp_path: Path) -> Lakehouse:
    return filled(new_lake(tmp_path))


def _leaf(number: int) -> Node:
    return Node([f"C===ns0     t{number:07}"], ["0000/0000/0000/00000000-table-x"], height=0)


def test_the_latest_nodes_can_be_taken_back_and_the_others_are_under_way(lake: Lakehouse) -> None:
    with Rounds(lake.storage) as rounds:
        writer = NodeWriter(NodeStore(lake.storage, 4, 1 << 20))
        paths = [writer.add(_leaf(number)) for number in range(100)]
        assert 68 == rounds.requests
        assert 0 == rounds.now, "nobody waited"
        assert writer.take_back(paths[0]) is None
        assert ["C===ns0     t0000000"] == writer.read(paths[0]).keys, "it is at hand while it is under way"
        taken = writer.take_back(paths[-1])
        assert taken is not None
        writer.flush()
    assert (99, 4) == (rounds.requests, rounds.chain)
    assert paths[:-1] == writer.written
    assert [info.path in set(paths[:-1]) for info in map(lake.storage.info, paths[:-1])] == [True] * 99


def test_no_more_is_under_way_than_memory_allows(lake: Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodestore, "MOST_BYTES", 8000)
    with Rounds(lake.storage) as rounds:
        writer = NodeWriter(NodeStore(lake.storage, 4, 1 << 20))
        for number in range(100):
            writer.add(_leaf(number))
        writer.flush()
    assert 100 == rounds.requests
    assert 10 < rounds.chain < 100


@pytest.mark.parametrize("most", [1, 8])
@pytest.mark.parametrize("at", [1, 20, 60, 100])
def test_a_write_that_fails_is_told_by_the_flush_at_the_latest(lake: Lakehouse, most: int, at: int) -> None:
    """With real threads, too: whatever becomes of the others."""
    storage = open_storage(lake.root, {"durable": False, "max_concurrency": most})
    writer = NodeWriter(NodeStore(storage, 4, 1 << 20))
    attach(storage, FaultPlan("fail_permanently", at=at, kinds={"put"}))
    with pytest.raises(StorageError, match="injected"):
        _write(writer, 100)


def _write(writer: NodeWriter, count: int) -> None:
    for number in range(count):
        writer.add(_leaf(number))
    writer.flush()

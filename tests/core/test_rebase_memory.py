"""Memory of a rebase: it grows with what other writers changed, not with the roots that they wrote."""

from __future__ import annotations

import gc
import tracemalloc

import pytest

from tests.support.lakes import new_lake, reopened
from tests.support.surgery import directory_of
from trinitylake_core import Lakehouse, spec
from trinitylake_core.locations import root_path
from trinitylake_core.tree.node import Messages, Node
from trinitylake_core.tree.nodefile import encode

MIB = 1 << 20
FEW = 50


def _followed(lake: Lakehouse, count: int) -> None:
    """Put ``count`` commits of one message each on top of a root with 200 other messages, behind the API's back."""
    directory, root = directory_of(lake), lake.root_node
    old = Messages.of((f"B===old{number:013}", f"{number:060}", "old") for number in range(200))
    before = root
    for version in range(root.version + 1, root.version + 1 + count):
        own = Messages.of([(f"B===new{version:013}", f"{version:060}", f"t{version}")])
        node = Node(root.node.keys, root.node.values, root.node.children, old, dict(root.node.system), root.node.height)
        node = node.with_messages(own)
        node.system = {
            **root.node.system,
            spec.VERSION: str(version),
            spec.PREVIOUS_ROOT: root_path(version - 1),
            spec.PREVIOUS_TXN: str(before.txn) if version == root.version + 1 else f"t{version - 1}",
            spec.CREATED_AT_MILLIS: str(root.created_at_millis + version),
            spec.OPERATION: spec.OP_COMMIT,
            spec.TXN_ID: f"t{version}",
        }
        path = root_path(version)
        (directory / path).write_bytes(encode(node, lake.definition.order, path))


def _peak(lake: Lakehouse) -> int:
    """Return how much a rebase over all versions since the handle's takes at its peak, in bytes."""
    versions = reopened(lake).backend.versions
    gc.collect()
    tracemalloc.start()
    try:
        found, newest = versions.since(lake.root_node)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert [newest.version - len(found) + 1, newest.version] == [found[0].version, found[-1].version]
    assert all(1 == len(each.own_messages()) for each in found)
    return peak


@pytest.mark.parametrize("many", [400, pytest.param(5000, marks=pytest.mark.slow)])
def test_defect_8_a_rebase_keeps_no_root_but_the_newest(tmp_path_factory: pytest.TempPathFactory, many: int) -> None:
    """Over 5,000 versions it takes at most 50 MiB more than over 50; the shorter run is held to its share of that."""
    peaks = []
    for count in (FEW, many):
        lake = new_lake(tmp_path_factory.mktemp("memory"), order=128, target=1_000_000)
        _followed(lake, count)
        peaks.append(_peak(lake))
    grown = (peaks[1] - peaks[0]) / MIB
    print(f"rebase over {many} versions: {grown:.1f} MiB more than over {FEW}")
    assert grown <= 50 * many / 5000

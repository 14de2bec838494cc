"""A join of many trees waits for a round trip per level, not for one per tree and level."""

from __future__ import annotations

from functools import reduce
from pathlib import Path

from tests.support.lakes import new_lake
from tests.support.rounds import Rounds
from trinitylake_core.tree.leafrun import Columns
from trinitylake_core.tree.node import Node
from trinitylake_core.tree.nodestore import NodeStore, NodeWriter
from trinitylake_core.tree.proof import entries_hash
from trinitylake_core.tree.rewrite import Rewriter
from trinitylake_core.tree.subtree import Ref

TREES, KEYS, ORDER = 12, 300, 8


def _trees(store: NodeStore) -> list[Ref]:
    writer = NodeWriter(store)
    rewriter = Rewriter(writer, 1, prove=True)  # who proves knows ranges
    built = []
    for number in range(TREES):
        keys = [f"C{number:02}{key:04}" for key in range(KEYS)]
        built.append(rewriter.seal(rewriter.build([Columns.of(keys, keys)])))
    writer.flush()
    return built


def _joined(store: NodeStore, trees: list[Ref], *, ahead: bool) -> tuple[Rounds, Node, bool]:
    rewriter = Rewriter(NodeWriter(store), 1, prove=True)
    for tree in trees:
        rewriter.enter(tree)
    with Rounds(store.storage) as rounds:
        if ahead:
            rewriter.open_right_edges(trees[:-1])
        node = rewriter.node_of(reduce(rewriter.join_without_key, trees))
        rewriter.store.flush()  # type: ignore[attr-defined]
    return rounds, node, rewriter.is_proved()


def _content(store: NodeStore, node: Node) -> int:
    below = sum(_content(store, store.read(child)) for child in node.children)
    return below + entries_hash(node.keys, node.values)


def test_right_edges_are_read_side_by_side_and_nothing_else_changes(tmp_path: Path) -> None:
    lake = new_lake(tmp_path, order=ORDER)

    def store() -> NodeStore:
        return NodeStore(lake.storage, ORDER, 1 << 20)

    shapes, gets, chains = [], [], []
    for ahead in (False, True):
        trees = _trees(store())
        height = trees[0].height
        rounds, node, proved = _joined(store(), trees, ahead=ahead)
        kinds = [kind for _, kind, _ in rounds.log]
        shapes.append((_content(store(), node), node.keys))
        gets.append(kinds.count("get"))
        chains.append(max((at for at, kind, _ in rounds.log if kind == "get"), default=0))
        assert proved
    assert shapes[0] == shapes[1]
    assert gets[0] == gets[1], "the same nodes are read"
    assert chains[0] > TREES * height
    assert chains[1] <= height + 1 + TREES, "a round trip per level, and some for edges on the left"

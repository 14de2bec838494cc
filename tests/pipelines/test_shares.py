"""Work is dealt by weight: whatever the shape of a tree, no task has much more to do than another."""

from __future__ import annotations

import pytest

from pipelines.trees.subtrees import assigned
from tests.support.lakes import reopened
from tests.support.rounds import Rounds
from tests.support.wide import change, scattered, wide
from trinitylake_core import Lakehouse
from trinitylake_core.tree.nodestore import NodeWriter
from trinitylake_core.tree.rewrite import Rewriter
from trinitylake_core.tree.subtree import Ref

OBJECTS = 12_000


@pytest.fixture(scope="module")
def lakes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Lakehouse]:
    """One lakehouse with changes everywhere, and one where most of them are in a tenth of it."""
    even = change(wide(tmp_path_factory.mktemp("even"), OBJECTS, 8), scattered(OBJECTS, 3000))
    narrow = [*range(OBJECTS // 10), *scattered(OBJECTS, 300)]
    return {"even": even, "uneven": change(wide(tmp_path_factory.mktemp("uneven"), OBJECTS, 8), sorted(set(narrow)))}


def _frontier(lake: Lakehouse, tasks: int) -> tuple[Rounds, list[Ref]]:
    cold = reopened(lake)
    rewriter = Rewriter(NodeWriter(cold.store), 1)
    with Rounds(cold.storage) as rounds:
        return rounds, rewriter.frontier(rewriter.ref_of(cold.root_node.node), tasks)


@pytest.mark.parametrize("shape", ["even", "uneven"])
@pytest.mark.parametrize("tasks", [1, 4, 16])
def test_no_task_has_much_more_to_do_than_its_share(lakes: dict[str, Lakehouse], shape: str, tasks: int) -> None:
    _, pieces = _frontier(lakes[shape], tasks)
    weights = [piece.weight() for piece in pieces]
    assert 0.8 * (lakes[shape].stats().messages or 0) <= sum(weights), "the rest is for pivots that were opened"
    loads = [0] * tasks
    for task, weight in zip(assigned(weights, tasks), weights, strict=True):
        loads[task] += weight
    assert max(loads) <= 1.25 * sum(weights) / tasks


@pytest.mark.parametrize("shape", ["even", "uneven"])
def test_only_what_is_too_heavy_is_opened(lakes: dict[str, Lakehouse], shape: str) -> None:
    """A piece is heavier than a fourth of a task's share only where there is no inner node below it."""
    for tasks in (1, 4, 16, 64):
        rounds, pieces = _frontier(lakes[shape], tasks)
        limit = sum(piece.weight() for piece in pieces) / (4 * tasks)
        assert [] == [piece.height for piece in pieces if piece.weight() > limit and piece.height > 1]
        assert rounds.chain <= 12, "a round trip for each level, or two where more than 32 nodes are opened"
    assert len(_frontier(lakes[shape], 1)[1]) < len(pieces)

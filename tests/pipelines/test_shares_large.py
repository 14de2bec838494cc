"""How work is dealt in trees of millions of objects, of which there is nothing but what inner nodes say."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Final

import pytest

from pipelines.trees.subtrees import assign_tasks, split_for_tasks
from trinitylake_core.tree.node import Node
from trinitylake_core.tree.rewrite import Rewriter
from trinitylake_core.tree.subtree import Ref

ORDER: Final = 128
KEYS: Final = 114
"""Of a node of a bulk load."""
CORES: Final = 200
TASKS: Final = 3 * CORES


class Headers:
    """Inner nodes, made when they are read; the messages of each leaf are those that a function says."""

    order, min_keys, max_keys = ORDER, ORDER // 2 - 1, ORDER - 1

    def __init__(self, objects: int, messages: Callable[[float], int]) -> None:
        self.reads = 0
        self._leaves = -(-objects // (KEYS + 1))
        sums = [0]
        for leaf in range(self._leaves):
            sums.append(sums[-1] + messages(leaf / self._leaves))
        self._sums = sums
        self.height, below = 0, self._leaves
        while below > 1:
            self.height, below = self.height + 1, -(-below // (KEYS + 1))

    def _leaves_of(self, height: int, index: int) -> tuple[int, int]:
        each = (KEYS + 1) ** height
        return index * each, min((index + 1) * each, self._leaves)

    def node(self, height: int, index: int) -> Node:
        """Return a node of a height that is above 0."""
        first, stop = self._leaves_of(height, index)
        each = (KEYS + 1) ** (height - 1)
        children = range(first // each, -(-stop // each))
        bounds = [self._leaves_of(height - 1, child) for child in children]
        return Node(
            keys=[f"C{height:02}{begin:08}" for begin, _ in bounds[1:]],
            values=["" for _ in bounds[1:]],
            children=[f"{height - 1} {child}" for child in children],
            child_keys=[(end - begin) * (KEYS + 1) - 1 for begin, end in bounds],
            child_messages=[self._sums[end] - self._sums[begin] for begin, end in bounds],
            height=height,
        )

    def read(self, path: str) -> Node:
        """Make a node."""
        self.reads += 1
        height, index = map(int, path.split())
        return self.node(height, index)

    def read_many(self, paths: Sequence[str]) -> Iterator[Node]:
        """Make nodes."""
        return map(self.read, paths)

    def take_back(self, path: str) -> None:
        """Nothing was added."""

    def add(self, node: Node) -> str:
        """Refuse: a plan writes nothing."""
        raise AssertionError(node)

    def prefetch(self, paths: Iterable[str]) -> AbstractContextManager[None]:
        """Nothing is read ahead."""
        del paths
        return nullcontext()


def _even(at: float) -> int:
    return 11 if at >= 0 else 0


def _uneven(at: float) -> int:
    """Four fifths of the messages wait in a tenth of the tree."""
    return 40 if 0.3 <= at < 0.4 else 1


def _busy(pieces: list[Ref]) -> float:
    """Return how many of the cores are busy on average, each taking the next task when it is done with one."""
    weights = [piece.weight() for piece in pieces]
    tasks = [0] * min(TASKS, len(weights))
    for task, weight in zip(assign_tasks(weights, len(tasks)), weights, strict=True):
        tasks[task] += weight
    cores = [0] * CORES
    for weight in tasks:
        cores[cores.index(min(cores))] += weight
    return sum(weights) / max(cores)


def _dealt(headers: Headers) -> list[Ref]:
    rewriter = Rewriter(headers, 1)
    return split_for_tasks(rewriter, rewriter.frontier(rewriter.ref_of(headers.node(headers.height, 0)), TASKS), TASKS)


@pytest.mark.parametrize(
    ("objects", "messages"),
    [(10_000_000, _even), (10_000_000, _uneven), (30_000_000, _uneven), (1_000_000, _even)],
    ids=["10M", "10M uneven", "30M uneven", "1M"],
)
def test_two_hundred_cores_are_kept_busy(objects: int, messages: Callable[[float], int]) -> None:
    """7.3 of 200 were, before pieces had weights. A million objects have 76 nodes above the leaves: 76 were."""
    headers = Headers(objects, messages)
    pieces = _dealt(headers)
    busy = _busy(pieces)
    assert busy >= 0.9 * CORES, busy
    total = sum(piece.weight() for piece in pieces)
    assert total == headers._sums[-1]
    assert headers.reads <= 4 * TASKS, "what the driver opens is bounded by the tasks, whatever the tree"


def test_nodes_above_the_leaves_are_opened_only_where_they_are_too_few() -> None:
    large, small = Headers(10_000_000, _even), Headers(1_000_000, _even)
    assert not [piece for piece in _dealt(large) if piece.height == 0]
    assert 7 == large.reads, "the nodes of height 2, and none below"
    whole = [piece for piece in _dealt(small) if piece.height > 0]
    assert 1 >= len(whole), "but the last node of its height, which has too few leaves"

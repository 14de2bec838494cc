"""Leaves that are flushed as columns, at every order: which ones are, and that no mutation of a row gets through."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.support.memory import ColumnMemorySink, prove_tree
from trinitylake_core.errors import Corrupt
from trinitylake_core.tree import leafflush, search
from trinitylake_core.tree.leafrun import Columns, LeafPlan, Leaves
from trinitylake_core.tree.node import Messages, Node
from trinitylake_core.tree.rewrite import Rewriter
from trinitylake_core.tree.subtree import dirty_children

SIZES = {3: 60, 128: 1500, 512: 3000, 4096: 9000}
"""The number of entries for each order: some leaves below one root or more."""


class NoLeafAlone(ColumnMemorySink):
    """Leaves come and go as columns only, once the tree is built."""

    built = False

    def add(self, node: Node) -> str:
        """Take an inner node."""
        assert node.height or not self.built, "a leaf left the columns"
        return super().add(node)


def changed_tree(sink: ColumnMemorySink, entries: int, *, apart: bool = False) -> tuple[Node, dict[str, str]]:
    """Return a root with waiting messages for a tenth of its entries, and what it means.

    ``apart``: there are none for every second of its children.
    """
    rewriter = Rewriter(sink, 1)
    keys = [f"C===t{number:06}" for number in range(0, 2 * entries, 2)]
    tree = rewriter.build([Columns.of(keys, [f"v{key}" for key in keys])])
    rewriter.open(tree)
    root = rewriter.node_of(tree)
    means: dict[str, str | None] = {key: f"v{key}" for key in keys}
    changes = {f"C===t{number:06}": None if number % 3 == 0 else f"w{number}" for number in range(5, 2 * entries, 10)}
    changes |= {f"C===t{number:06}": f"x{number}" for number in range(6, 2 * entries, 30)}
    if apart:
        changes = {key: value for key, value in changes.items() if root.child_index(key) % 2}
    means |= changes
    root.buffer = Messages.of([(key, value, "t") for key, value in sorted(changes.items())])
    return root, {key: value for key, value in means.items() if value is not None}


def flushed(sink: ColumnMemorySink, root: Node) -> Node:
    """Return the root flushed, or raise ``Corrupt``."""
    rewriter = Rewriter(sink, 1, prove=True)
    tree = rewriter.flush(rewriter.ref_of(root), dirty_children)
    rewriter.open(tree)
    node = rewriter.node_of(tree)
    if not rewriter.is_proved():
        raise Corrupt("the proof failed")
    return node


def content(sink: ColumnMemorySink, root: Node) -> dict[str, str]:
    """Return what a tree means."""
    found = [row for keys, values in search.scan(sink, root) for row in zip(keys, values, strict=True)]
    assert [key for key, _ in found] == sorted({key for key, _ in found})
    return dict(found)


@pytest.mark.parametrize("order", [128, 512, 4096])
def test_leaves_that_are_no_neighbours_are_columns_together(order: int) -> None:
    """Those between them stay the files that they are, unread."""
    sink = NoLeafAlone(order)
    root, means = changed_tree(sink, 12 * order, apart=True)
    sink.built = True
    before = root.children
    sink.read_paths.clear()
    node = flushed(sink, root)
    kept = set(before) & set(node.children)
    assert len(kept) >= 4
    assert kept.isdisjoint(sink.read_paths)
    prove_tree(sink, node)
    assert content(sink, node) == means


# -- mutations -----------------------------------------------------------------------------------------


Pairs = list[list[str | None]]


def _lost(chance: random.Random, rows: Pairs) -> None:
    rows[chance.randrange(len(rows))] = [None, None]


def _double(chance: random.Random, rows: Pairs) -> None:
    one, two = chance.sample(range(len(rows)), 2)
    rows[one] = list(rows[two])


def _values(chance: random.Random, rows: Pairs) -> None:
    one, two = chance.sample(range(len(rows)), 2)
    rows[one][1], rows[two][1] = rows[two][1], rows[one][1]


def _byte(chance: random.Random, rows: Pairs) -> None:
    row, column = chance.choice(rows), chance.randrange(2)
    text = row[column] or "x"
    at = chance.randrange(len(text))
    row[column] = text[:at] + chr(ord(text[at]) ^ 1) + text[at + 1 :]


def _order(chance: random.Random, rows: Pairs) -> None:
    at = chance.randrange(len(rows) - 1)
    rows[at], rows[at + 1] = rows[at + 1], rows[at]


MUTATIONS: list[Callable[[random.Random, Pairs], None]] = [_lost, _double, _values, _byte, _order]


def _wrong_rows(chance: random.Random, leaves: Leaves) -> Leaves:
    """Return new leaves with one entry or byte, perhaps of a pivot, that is wrong."""
    columns = leaves.columns.keys.to_pylist(), leaves.columns.values.to_pylist()
    pairs: Pairs = [*map(list, zip(*columns, strict=True))]
    chance.choice(MUTATIONS)(chance, pairs)
    return replace(leaves, columns=Columns.of([key for key, _ in pairs], [value for _, value in pairs]))


def _wrong_plan(chance: random.Random, plan: LeafPlan) -> LeafPlan:
    """Return a plan with one wrong number, mark, or row."""
    name = chance.choice(["keys", "values", "found", "touched", "set", "row", "twice"])
    at = chance.randrange(1, len(plan))
    if name in {"row", "twice"}:
        rows = np.delete(np.arange(len(plan)), at) if name == "row" else np.insert(np.arange(len(plan)), at, at)
        return replace(plan, keys=plan.keys[rows], values=plan.values[rows], set=plan.set[rows])
    one = getattr(plan, name).copy()
    at %= len(one)
    one[at] = one[at - 1] if name in {"keys", "values"} else not one[at]
    return replace(plan, **{name: one})


def _wrong_counts(chance: random.Random, counts: Any) -> Any:
    """Return numbers of entries of leaves, one of which is wrong."""
    wrong = counts.copy()
    wrong[chance.randrange(len(wrong))] += chance.choice([-1, 1])
    return wrong


def _wrong_share(chance: random.Random, counts: list[int]) -> list[int]:
    """Return numbers of entries of stretches, one of which has an entry of its neighbour, if it has one."""
    wrong = [*counts]
    if len(wrong) > 1:
        at = chance.randrange(len(wrong) - 1)
        more = chance.choice([-1, 1])
        wrong[at] += more
        wrong[at + 1] -= more
    return wrong


WRONG: dict[str, Callable[[random.Random, Any], Any]] = {
    "plan_merge": _wrong_plan, "laid_out": _wrong_rows, "cut": _wrong_counts,
    "_count_rows": _wrong_share,
}  # fmt: skip


def _none_passes(order: int, seeds: range, *, apart: bool) -> None:
    """Assert that each mutation is refused, or without effect."""
    sink = ColumnMemorySink(order)
    root, means = changed_tree(sink, SIZES[order], apart=apart)
    refused = 0
    for seed in seeds:
        chance = random.Random(seed)
        where = chance.choice(list(WRONG))
        turn = chance.randrange(1 if apart else 2)  # those apart are one run
        honest = getattr(leafflush, where)
        calls: list[int] = []

        def broken(*arguments: Any) -> Any:
            found = honest(*arguments)  # noqa: B023 - called before the next turn
            calls.append(1)  # noqa: B023
            return WRONG[where](chance, found) if len(calls) == turn + 1 else found  # noqa: B023

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(leafflush, "FEWEST_LEAVES", 2)
            patch.setattr(leafflush, "LARGEST_ROWS", SIZES[order] // 2)
            patch.setattr(leafflush, where, broken)
            try:
                found = content(sink, flushed(sink, root))
            except (Corrupt, ValueError):
                refused += 1
            else:
                assert found == means, f"seed {seed}: {where}"
        assert len(calls) > turn, f"seed {seed}: nothing was mutated"
    assert refused > len(seeds) // 2


@pytest.mark.parametrize("apart", [False, True], ids=["neighbours", "apart"])
@pytest.mark.parametrize("order", SIZES)
def test_no_wrong_row_byte_or_pivot_gets_through(order: int, apart: bool) -> None:
    _none_passes(order, range(12), apart=apart)


@pytest.mark.slow
@pytest.mark.parametrize("apart", [False, True], ids=["neighbours", "apart"])
@pytest.mark.parametrize("order", SIZES)
def test_none_of_a_thousand_wrong_rows_bytes_and_pivots_gets_through(order: int, apart: bool) -> None:
    _none_passes(order, range(1000, 1250), apart=apart)

"""Leaves that are flushed as columns, at every order: which ones are, and that no mutation of a row gets through."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from tests.support.memory import ColumnMemorySink, prove_tree
from trinitylake_core.errors import Corrupt
from trinitylake_core.tree import leafflush, search
from trinitylake_core.tree.leafrun import Columns, Slices
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


def changed_tree(sink: ColumnMemorySink, entries: int) -> tuple[Node, dict[str, str]]:
    """Return a root with waiting messages for a tenth of its entries, and what it means."""
    rewriter = Rewriter(sink, 1)
    keys = [f"C===t{number:06}" for number in range(0, 2 * entries, 2)]
    tree = rewriter.build([(keys, [f"v{key}" for key in keys])])
    rewriter.open(tree)
    root = rewriter.node_of(tree)
    means: dict[str, str | None] = {key: f"v{key}" for key in keys}
    changes = {f"C===t{number:06}": None if number % 3 == 0 else f"w{number}" for number in range(5, 2 * entries, 10)}
    changes |= {f"C===t{number:06}": f"x{number}" for number in range(6, 2 * entries, 30)}
    means |= changes
    root.buffer = Messages.of([(key, value, "t") for key, value in sorted(changes.items())])
    return root, {key: value for key, value in means.items() if value is not None}


def flushed(sink: ColumnMemorySink, root: Node) -> Node:
    """Return the root flushed, or raise ``Corrupt``."""
    rewriter = Rewriter(sink, 1, prove=True)
    tree = rewriter.flush(rewriter.ref_of(root), dirty_children)
    rewriter.open(tree)
    node = rewriter.node_of(tree)
    if not rewriter.proved():
        raise Corrupt("the proof failed")
    return node


def content(sink: ColumnMemorySink, root: Node) -> dict[str, str]:
    """Return what a tree means."""
    found = [row for keys, values in search.scan(sink, root) for row in zip(keys, values, strict=True)]
    assert [key for key, _ in found] == sorted({key for key, _ in found})
    return dict(found)


@pytest.mark.parametrize("order", [512, 2048, 4096, 8192])
def test_leaves_of_large_orders_stay_columns(order: int) -> None:
    """One large leaf is enough: it is a stretch of its own."""
    sink = NoLeafAlone(order)
    root, means = changed_tree(sink, 3 * order)
    assert len(root.children) > 1
    sink.built = True
    node = flushed(sink, root)
    prove_tree(sink, node)
    assert content(sink, node) == means


# -- mutations -----------------------------------------------------------------------------------------


def _row(chance: random.Random, rows: list[list[str]]) -> None:
    del rows[chance.randrange(len(rows))]


def _double(chance: random.Random, rows: list[list[str]]) -> None:
    at = chance.randrange(len(rows))
    rows.insert(at, list(rows[at]))


def _values(chance: random.Random, rows: list[list[str]]) -> None:
    one, two = chance.sample(range(len(rows)), 2)
    rows[one][1], rows[two][1] = rows[two][1], rows[one][1]


def _byte(chance: random.Random, rows: list[list[str]]) -> None:
    row, column = chance.choice(rows), chance.randrange(2)
    at = chance.randrange(len(row[column]))
    row[column] = row[column][:at] + chr(ord(row[column][at]) ^ 1) + row[column][at + 1 :]


def _order(chance: random.Random, rows: list[list[str]]) -> None:
    at = chance.randrange(len(rows) - 1)
    rows[at], rows[at + 1] = rows[at + 1], rows[at]


MUTATIONS: list[Callable[[random.Random, list[list[str]]], None]] = [_row, _double, _values, _byte, _order]


def _mutated(chance: random.Random, rows: Columns) -> Columns:
    """Return columns with one row or byte that is wrong."""
    pairs = [list(row) for row in zip(rows.keys.to_pylist(), rows.values.to_pylist(), strict=True)]
    chance.choice(MUTATIONS)(chance, pairs)
    keys, values = ([pair[column] for pair in pairs] for column in range(2))
    return Columns(pa.array(keys, pa.string()), pa.array(values, pa.string()))


def _cut_wrong(chance: random.Random, found: tuple[Slices, list[tuple[str, str]]]) -> Any:
    """Return leaves and the pivots between them, with one leaf, byte of a pivot, or place that is wrong."""
    leaves, pivots = found
    kind = chance.randrange(3 if pivots else 1)
    if kind == 0:
        at = chance.randrange(len(leaves))
        return [*leaves[:at], _mutated(chance, leaves[at]), *leaves[at + 1 :]], pivots
    if kind == 1:
        rows = [list(pivot) for pivot in pivots]
        _byte(chance, rows)
        return leaves, [(key, value) for key, value in rows]
    starts = leaves.starts.copy()
    starts[chance.randrange(1, len(starts))] -= 1
    return Slices(leaves.whole, starts, leaves.counts), pivots


def _none_passes(order: int, seeds: range) -> None:
    """Assert that each mutation is refused, or without effect: rows out of order leave the columns before the merge."""
    sink = ColumnMemorySink(order)
    root, means = changed_tree(sink, SIZES[order])
    refused = 0
    for seed in seeds:
        chance = random.Random(seed)
        where = chance.choice(["laid_out", "merged", "cut"])
        turn, honest = chance.randrange(2), getattr(leafflush, where)
        calls: list[int] = []

        def broken(*arguments: Any) -> Any:
            found = honest(*arguments)  # noqa: B023 - called before the next turn
            calls.append(1)  # noqa: B023
            if len(calls) != turn + 1:  # noqa: B023
                return found
            return (_cut_wrong if where == "cut" else _mutated)(chance, found)  # noqa: B023

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(leafflush, "SHORTEST", 2)
            patch.setattr(leafflush, "LARGEST_ROWS", SIZES[order] // 4)
            patch.setattr(leafflush, where, broken)
            try:
                assert content(sink, flushed(sink, root)) == means, f"seed {seed}: {where}"
            except (Corrupt, ValueError):
                refused += 1
        assert len(calls) > turn, f"seed {seed}: nothing was mutated"
    assert refused > len(seeds) * 3 // 4


@pytest.mark.parametrize("order", SIZES)
def test_no_wrong_row_byte_or_pivot_gets_through(order: int) -> None:
    _none_passes(order, range(12))


@pytest.mark.slow
@pytest.mark.parametrize("order", SIZES)
def test_none_of_a_thousand_wrong_rows_bytes_and_pivots_gets_through(order: int) -> None:
    _none_passes(order, range(1000, 1250))

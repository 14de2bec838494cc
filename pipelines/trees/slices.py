"""Slices of a node above the leaves: pieces of work where a tree has too few of those nodes for all tasks.

A slice is some neighbouring leaves of one node, and the pivots between them. It is flushed by a task, and the driver
joins what became of its leaves with the rest of the node, one after another, as the task would have that flushed the
whole node: the same content comes out of it, in nodes that may be cut otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from trinitylake_core.tree.node import Node
from trinitylake_core.tree.proof import Range
from trinitylake_core.tree.rewrite import Rewriter
from trinitylake_core.tree.subtree import Ref, Work

PIECES: int = 4
"""Slices of a task's share, at least, where the leaves allow it."""


@dataclass(frozen=True, slots=True)
class Slice:
    """Children ``start`` to ``stop`` of a node that the driver holds in memory, handed over as ``node``."""

    ref: Ref
    start: int
    stop: int
    node: Node
    within: Range

    def weight(self) -> int:
        """Return the number of messages in it."""
        messages = self.node.subtree_messages
        return len(self.node.buffer) if messages is None else messages


Piece: TypeAlias = Ref | Slice


def split_for_tasks(rewriter: Rewriter, subtrees: list[Ref], tasks: int) -> list[Piece]:
    """Return subtrees as pieces that so many tasks can share, and take them out of the proof of ``rewriter``.

    A node right above the leaves that is heavier than a task's share is opened and cut between two leaves. Opening one
    costs the driver a ``get`` and, in the end, a ``put``, all of them at the same time; and some memory per leaf.
    """
    total = sum(ref.weight() for ref in subtrees)
    heavy = [ref for ref in subtrees if ref.height == 1 and ref.weight() * tasks > total]
    rewriter.open_all(heavy)
    cut = {id(ref) for ref in heavy}
    pieces: list[Piece] = []
    for ref in subtrees:
        if id(ref) in cut:
            pieces += _slices(rewriter, ref, total / (PIECES * tasks))
        else:
            rewriter.leave(ref)
            pieces.append(ref)
    return pieces


def _slices(rewriter: Rewriter, ref: Ref, limit: float) -> Iterator[Slice]:
    """Yield the dirty slices of a node, of at most so many messages where its leaves allow it."""
    for start, stop in list(_bounds([child.weight() for child in rewriter.open(ref).refs], limit)):
        yield Slice(ref, start, stop, *rewriter.part_of(ref, start, stop))


def _bounds(weights: list[int], limit: float) -> Iterator[tuple[int, int]]:
    begin, heavy, last = 0, 0, 0
    for index, more in enumerate(weights):
        if heavy and more and heavy + more > limit:
            yield begin, last
            heavy = 0
        begin = begin if heavy else index
        heavy += more
        last = index + 1 if more else last
    if heavy:
        yield begin, last


def join_slices(rewriter: Rewriter, parts: list[tuple[Slice, Work]]) -> None:
    """Put what became of slices into the nodes they were cut from. REQUIRES: in the order of ``split_for_tasks``."""
    for each, part in reversed(parts):  # from the right: what is left of it keeps its place
        rewriter.replace_children(each.ref, each.start, each.stop, part)

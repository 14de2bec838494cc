"""Where two trees differ, as far as their tops tell. What shares a comparison out to tasks begins here."""

from __future__ import annotations

from dataclasses import dataclass

from trinitylake_core.diff.ahead import drop_shared, open_all
from trinitylake_core.diff.stream import EVERYWHERE, Stream, Subtree
from trinitylake_core.tree.node import Node
from trinitylake_core.tree.search import NodeReader


@dataclass(frozen=True, slots=True)
class Unshared:
    """Where two trees differ, as far as their tops tell: pivots before subtrees that they do not share.

    ``keys`` counts the keys below each pivot, on both sides; ``finer`` = reading more nodes would tell more.
    """

    keys: dict[str | None, int]
    finer: bool


def unshared(old_reader: NodeReader, old: Node, new_reader: NodeReader, new: Node, want: int) -> Unshared:
    """Return ``want`` subtrees or more that two trees do not share, or all of them. Opens no more than that takes.

    REQUIRES: equal key encoding on both sides.
    ENSURES: a key that differs is a pivot that was opened, or lies below one of the subtrees.
    """
    sides = ((old_reader, _subtrees(old_reader, old)), (new_reader, _subtrees(new_reader, new)))
    while True:
        drop_shared(*(parts for _, parts in sides))
        height = max((part.height for _, parts in sides for part in parts), default=0)
        if height == 0 or sum(len(parts) for _, parts in sides) >= want:
            break
        for reader, parts in sides:
            open_all(reader, parts, height, EVERYWHERE)
    found: dict[str | None, int] = {}
    for _, parts in sides:
        for part in parts:
            found[part.low] = found.get(part.low, 0) + part.inside
    return Unshared(found, finer=height > 0)


def _subtrees(reader: NodeReader, root: Node) -> list[Subtree]:
    stream = Stream(reader)
    stream.begin(root)
    return stream.subtrees()

"""The data for a picture of a tree: a sample of the nodes of each level, in key order. Reads no more than it shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from trinitylake_core import Lakehouse
from trinitylake_core.tree.node import Node

WIDTH: Final = 200
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Strip:
    """One level of a tree, its nodes in key order.

    Attributes:
        height: height of the level; leaves have 0.
        fill: for each node, its keys as a share of those that fit.
        debt: for each node, the size of its write buffer as a share of the target size of a node file.
        messages: buffered messages in the nodes shown.
        complete: whether all nodes of the level are shown.
        nodes: how many nodes the level has; where not all are shown, about, from the children of those that are.
    """

    height: int
    fill: tuple[float, ...]
    debt: tuple[float, ...]
    messages: int
    complete: bool
    nodes: int


def sketch(lake: Lakehouse, width: int = WIDTH) -> tuple[Strip, ...]:
    """Return the levels of a version from the root down. Reads at most ``width`` nodes per level."""
    nodes = [lake.root_node.node]
    strips: list[Strip] = []
    complete = True
    count = 1
    while nodes:
        strips.append(_draw_strip(lake, nodes, complete=complete, count=count))
        children: list[str] = []
        for node in nodes:
            children += node.children
        complete = complete and len(children) <= width
        count = round(count * len(children) / len(nodes))
        nodes = list(lake.nodes.read_many(spread(children, width)))
    return tuple(strips)


def _draw_strip(lake: Lakehouse, nodes: Sequence[Node], *, complete: bool, count: int) -> Strip:
    room = lake.definition.order - 1
    target = lake.definition.node_file_max_size_bytes
    return Strip(
        height=nodes[0].height or 0,
        fill=tuple(len(node.keys) / room for node in nodes),
        debt=tuple(node.buffer.nbytes() / target for node in nodes),
        messages=sum(len(node.buffer) for node in nodes),
        complete=complete,
        nodes=count,
    )


def spread(items: Sequence[T], width: int) -> list[T]:
    """Return at most ``width`` items, evenly spread."""
    if len(items) <= width:
        return list(items)
    return [items[index * len(items) // width] for index in range(width)]

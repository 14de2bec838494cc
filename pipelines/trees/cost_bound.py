"""What a compaction costs at most, from what a root counts of its children: no request.

Where messages wait in a subtree is not known, so each may rewrite a leaf of its own, and the nodes above it. A level
has at most as many nodes as it takes if each holds the fewest keys. Where messages share leaves, it costs less: what
the last compaction did cost stands in its report.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from trinitylake_core.tree.node import Node, text_bytes
from trinitylake_core.tree.subtree import PayingChildren
from trinitylake_core.versions import Root

_FILE_BYTES: Final = 2_350
"""What a node file costs besides its rows: schema, footer and system rows; in a root, also the definition."""


class RewriteCost(NamedTuple):
    """What a compaction costs at most: nodes that it writes, requests, and bytes that it writes."""

    nodes: int
    requests: int
    bytes: int


class DirtyPart(NamedTuple):
    """A subtree that has messages waiting: its keys, the messages above it and in it, and its height."""

    keys: int
    messages: int
    height: int


def bound_cost(
    root: Root,
    order: int,
    parts: Iterable[DirtyPart] | None = None,
    opened: int = 0,
    paying: PayingChildren | None = None,
) -> RewriteCost:
    """Return what a compaction of a version costs at most, if rows are as large as those of the root.

    Args:
        root: the root of the version.
        order: that of the lakehouse.
        parts: the dirty subtrees, where more is known of them than the root counts.
        opened: nodes between the root and ``parts``: they are in memory, and are written again.
        paying: the policy of one that is not full.
    """
    node = root.node
    least = (order + 1) // 2
    """The fewest keys of a node, with the key between it and the next one."""
    nodes = 0
    rows = 0
    below_root = 0
    for part in find_dirty_parts(node, paying) if parts is None else parts:
        levels = _bound_levels(part, least, paying)
        nodes += sum(levels)
        rows += min(part.keys + part.messages, levels[0] * order) + sum(levels[1:]) * order
        below_root += levels[-1]
    if opened:  # each is cut or joined with a neighbour, and what is new below it may need new ones
        below_root = 2 * opened + below_root // least
        nodes += below_root
        rows += below_root * order
    row_of_root = len(node.keys) + (len(node.buffer) if node.is_leaf else below_root)
    rows += row_of_root
    while row_of_root >= order:
        row_of_root //= least
        nodes += row_of_root + 1
        rows += row_of_root
    nodes += 1
    requests = 2 * nodes  # each is read and written; the root is in memory, and the hint is written beside it
    return RewriteCost(nodes, requests, round(nodes * _FILE_BYTES + rows * _row_bytes(node)))


def find_dirty_parts(node: Node, paying: PayingChildren | None) -> Iterator[DirtyPart]:
    """Yield the children of a root that have messages waiting; with ``paying``, not where all of them may wait."""
    keys = node.child_keys
    waiting = node.child_messages
    if node.height is None or keys is None or waiting is None:  # an older writer: all of it is one subtree
        if node.subtree_messages is None:
            messages = len(node.buffer)
        else:
            messages = node.subtree_messages
        yield DirtyPart(node.subtree_keys or messages, messages, node.height or 0)
        return
    above = Counter(node.child_index(key) for key in node.pending.keys if node.position(key) is None)
    for index, held in enumerate(keys):
        messages = waiting[index] + above[index]
        may_wait = 0
        if paying is not None and not above[index]:
            may_wait = paying.allowed_messages(held, node.height - 1)
        if messages > may_wait:
            yield DirtyPart(held, messages, node.height - 1)


def _bound_levels(part: DirtyPart, least: int, paying: PayingChildren | None) -> list[int]:
    """Return how many nodes are written at most in each level of a subtree, the leaves first."""
    hit = part.messages
    if paying is not None and part.height:
        # A leaf is hit by as many as are worth it, or by one where more wait than the node above may keep.
        may_wait = paying.allowed_messages(0, 1)
        hit = part.messages // paying.worth + max(0, part.messages - may_wait)
    width = part.keys + part.messages
    levels = []
    for _ in range(part.height + 1):
        width = width // least + 1
        levels.append(min(2 * hit, width))  # two: it is cut, or joined with a neighbour
        hit = part.messages
    return levels


def _row_bytes(node: Node) -> float:
    """Return what an entry takes in a file: as in the root. What deletes a key is shorter than the entry itself."""
    texts = text_bytes(node.keys) + text_bytes(node.values) + text_bytes(node.children)
    pivot = texts / max(1, len(node.keys))
    message = node.buffer.nbytes() / max(1, len(node.buffer))
    share = min(1.0, node.nbytes / node.estimated_bytes())
    return share * max(pivot, message)

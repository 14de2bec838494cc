"""What a compaction is going to cost, from what a root counts of its children: no request.

Above the leaves of a root it is known where messages wait; of a lower subtree only how many keys and messages it has,
and they are taken to be spread evenly. How many objects there are is known, or between bounds, so splits are predicted,
too: nodes that come to hold more than they may.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from trinitylake_core.tree.leafflush import FEWEST_ROWS, SHORTEST
from trinitylake_core.tree.leafrun import FILL, ROOMY
from trinitylake_core.tree.node import Node, text_bytes
from trinitylake_core.tree.subtree import PayingChildren
from trinitylake_core.versions import Root

_FILE_BYTES: Final = 1_850
"""What a node file costs besides its rows: schema, footer and system rows."""
_ROOT_BYTES: Final = 500
"""What the root has besides: the lakehouse definition, the history, the summary."""
_PLAIN_BYTES: Final = 2_048
"""The same as the first, before compression, as a node estimates it."""
_HINT: Final = 1
"""Requests besides those of nodes: the hint is replaced."""
_USUAL: Final = 0.3
"""To which share the rows of a leaf shrink in a file. A root of few rows shrinks less, one of deletions more."""
_MANY_ROWS: Final = 100


class RewriteCost(NamedTuple):
    """What a compaction is expected to cost: nodes that it writes, requests, and bytes that it writes."""

    nodes: int
    requests: int
    bytes: int


class Part(NamedTuple):
    """Neighbouring subtrees that have messages waiting: how many they are, and what all of them together hold."""

    subtrees: int
    keys: int
    messages: int
    height: int


@dataclass(slots=True)
class _Sums:
    """What is written below the root; ``splits`` are the subtrees that come to those of before."""

    leaves: float = 0.0
    rows: float = 0.0
    inner: float = 0.0
    reads: float = 0.0
    splits: float = 0.0


def predict(
    root: Root,
    order: int,
    parts: Iterable[Part] | None = None,
    opened: int = 0,
    paying: PayingChildren | None = None,
) -> RewriteCost:
    """Return the cost of a compaction of a version.

    Args:
        root: the root of the version.
        order: that of the lakehouse.
        parts: the dirty subtrees, where more is known of them than the root counts.
        opened: nodes between the root and ``parts``: they are in memory, and are written again.
        paying: the policy of one that is not full.
    """
    node = root.node
    if paying is not None and paying.worth == 1:  # then it is a full one
        paying = None
    growth = _growth(root)
    sums = _Sums(inner=opened)
    rows_of_root: float = len(node.keys)
    if node.is_leaf:
        rows_of_root = max(0.0, len(node.keys) + growth * len(node.buffer))
    else:
        for part in dirty_parts(node, paying) if parts is None else parts:
            _add_part(sums, part, growth, order, paying)
        if opened:
            _add_splits_of_inner_nodes(sums, order)
        rows_of_root = max(0.0, rows_of_root + sums.splits)
    row, pivot = _row_bytes(node)
    size = sums.leaves * _FILE_BYTES + sums.rows * row
    size += sums.inner * (_FILE_BYTES + order * FILL * pivot)
    above = 1
    row_of_level = row if node.is_leaf else pivot
    while rows_of_root > order - 1:
        pieces = math.ceil((rows_of_root + 1) / order)
        above += pieces
        size += pieces * _FILE_BYTES + rows_of_root * row_of_level
        rows_of_root = pieces - 1
        row_of_level = pivot
    size += _FILE_BYTES + _ROOT_BYTES + rows_of_root * row_of_level
    nodes = round(sums.leaves + sums.inner) + above
    return RewriteCost(nodes, nodes + round(sums.reads) + _HINT, round(size))


def _growth(root: Root) -> float:
    """Return how many keys a message adds, on average: 1 where all of them create objects, -1 where all drop some.

    Where it is not known of each message whether its key is there, the truth is taken to lie half-way.
    """
    node = root.node
    messages = len(node.buffer) if node.subtree_messages is None else node.subtree_messages
    keys = len(node.keys) if node.subtree_keys is None else node.subtree_keys
    bounds = root.count_bounds
    if bounds is None or not messages:
        return 0.0
    objects = (bounds.least.total + bounds.most.total) / 2
    return max(-1.0, min(1.0, (objects - keys) / messages))


def dirty_parts(node: Node, paying: PayingChildren | None = None) -> Iterator[Part]:
    """Yield the children of a root that have messages waiting; neighbours among its leaves are one part.

    With ``paying`` only those leaves for which enough wait.
    """
    keys = node.child_keys
    waiting = node.child_messages
    if node.height is None or keys is None or waiting is None:  # an older writer: all of it is one subtree
        messages = len(node.buffer) if node.subtree_messages is None else node.subtree_messages
        yield Part(1, node.subtree_keys or messages, messages, node.height or 0)
        return
    below = list(waiting)
    for key in node.pending.keys:
        if node.position(key) is None:
            below[node.child_index(key)] += 1
    if paying is not None and node.height == 1:
        below = [waiting if waiting >= paying.worth else 0 for waiting in below]
    yield from _join_neighbours(keys, below, node.height - 1)


def _join_neighbours(keys: Sequence[int], messages: Sequence[int], height: int) -> Iterator[Part]:
    joined = Part(0, 0, 0, height)
    for here, waiting in zip(keys, messages, strict=True):
        if waiting:
            joined = Part(joined.subtrees + 1, joined.keys + here, joined.messages + waiting, height)
        if joined.subtrees and (height or not waiting):  # only leaves are flushed together
            yield joined
            joined = Part(0, 0, 0, height)
    if joined.subtrees:
        yield joined


def _add_part(sums: _Sums, part: Part, growth: float, order: int, paying: PayingChildren | None) -> None:
    """Add what is written of neighbouring leaves, or of a subtree whose messages are spread evenly."""
    if part.height == 0:
        written = _leaves_after(part.subtrees, part.keys, part.keys + growth * part.messages, order)
        sums.leaves += written
        sums.rows += max(0.0, part.keys + growth * part.messages)
        sums.reads += part.subtrees
        sums.splits += written - part.subtrees
        return
    leaves = max(1.0, part.keys / (FILL * (order - 1)))
    hit = _hit(leaves, part.messages) if paying is None else _leaves_that_pay(leaves, part, paying)
    if not hit:  # all of it stays in the buffers of the nodes on its way
        sums.inner += part.height
        sums.reads += part.height
        return
    share = hit / leaves
    run = min(leaves, 1 / max(1 / leaves, 1 - share))  # how many neighbours are hit at a time, on average
    rows = max(0.0, part.keys * share + growth * part.messages)
    written = _leaves_after(run, part.keys * share * run / hit, rows * run / hit, order) * hit / run
    sums.leaves += written
    sums.rows += rows
    sums.reads += hit
    splits = written - hit
    width = leaves
    for _ in range(part.height):
        width = max(1.0, width / (FILL * order))
        hit = _hit(width, part.messages)
        splits /= FILL * order
        sums.inner += max(1.0, hit + splits)
        sums.reads += hit
    sums.splits += splits


def _leaves_that_pay(leaves: float, part: Part, paying: PayingChildren) -> float:
    """Return about how many leaves get their messages, if those with the fewest keep what may wait above them."""
    each = part.messages / leaves
    room = paying.allowed_messages(part.keys, part.height)
    if part.messages <= room and each < paying.worth:
        return 0.0
    share = math.exp(-each)  # of leaves without a message, then with one, two, ..., spread by chance
    hit = leaves * (1 - share)
    for messages in range(1, paying.worth):
        share *= each / messages
        staying = min(leaves * share, room / messages)
        hit -= staying
        room -= round(staying * messages)
    return max(0.0, hit)


def _hit(nodes: float, messages: int) -> float:
    """Return about how many of some nodes are hit by chance."""
    if nodes <= 1:
        return 1.0
    return nodes * (1 - (1 - 1 / nodes) ** messages)


def _leaves_after(leaves: float, rows_before: float, rows: float, order: int) -> float:
    """Return into how many leaves neighbours are cut, as ``leafflush`` and ``leafrun`` do it."""
    most = order - 1
    each = rows / leaves
    together = leaves >= SHORTEST or rows_before >= FEWEST_ROWS
    if most / 2 <= each <= most * (ROOMY if together else 1.0):
        return leaves
    if together or each < most / 2:
        return max(1.0, rows / (most * FILL + 1))
    return leaves * math.ceil((each + 1) / order)


def _add_splits_of_inner_nodes(sums: _Sums, order: int) -> None:
    """Pass what splits below opened nodes on to the root: few of them come to hold more than they may."""
    sums.splits /= FILL * order
    sums.inner += max(0.0, sums.splits)


def _row_bytes(node: Node) -> tuple[float, float]:
    """Return what an entry of a leaf takes in a file, and what a pivot with its child does: as in the root.

    What deletes a key is shorter than the entry that it deletes, so the pivots are asked, too.
    """
    pivots = max(1, len(node.keys))
    table = node.table_bytes() - _PLAIN_BYTES
    pivot = table / pivots
    without_child = pivot - text_bytes(node.children) / pivots
    message = node.buffer.nbytes() / max(1, len(node.buffer))
    row = max(message, without_child)
    share = _share_in_file(node, table)
    return share * row, share * max(pivot, row)


def _share_in_file(node: Node, table: int) -> float:
    """Return to which share rows shrink in a file, as far as the root can tell."""
    usable = len(node.keys) + len(node.buffer) - 2 * node.buffer.deletions()
    if usable < _MANY_ROWS:
        return _USUAL
    plain = table + node.buffer.nbytes()
    packed = max(0, node.nbytes - _FILE_BYTES - _ROOT_BYTES)
    return packed / max(1, plain)

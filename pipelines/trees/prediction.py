"""What a compaction is going to cost, from what a root counts of its children: no request.

Above the leaves of a root it is known where messages wait. In a lower subtree the messages of the root are put between
its keys by their names (:mod:`pipelines.trees.places`): neighbours share leaves. Of those that are in it already only
the number is known, and they are taken to be spread evenly. How many objects there are is known, or between bounds, so
splits are predicted, too: nodes that come to hold more than they may.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Final, NamedTuple

from pipelines.trees.places import KeyScale
from trinitylake_core.tree.leafflush import FEWEST_LEAVES, FEWEST_ROWS
from trinitylake_core.tree.leafrun import FILL, ROOMY
from trinitylake_core.tree.node import Node, text_bytes
from trinitylake_core.tree.proof import EVERYWHERE, ranges
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
    """Neighbouring subtrees that have messages waiting: how many they are, and what all of them together hold.

    Attributes:
        places: before how many of the keys each message comes that waits above, in order; about. The other messages
            are anywhere.
    """

    subtrees: int
    keys: int
    messages: int
    height: int
    places: Sequence[float] = ()


class Growth(NamedTuple):
    """How many keys a message adds, on average: 1 where all of them create objects, -1 where all drop some."""

    each: float
    is_known: bool


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
        rows_of_root = max(0.0, len(node.keys) + growth.each * len(node.buffer))
    else:
        dirty = [*(dirty_parts(node, paying) if parts is None else parts)]
        leaves_of_root = [part for part in dirty if part.height == 0]
        of_root = _are_columns(sum(each.subtrees for each in leaves_of_root), sum(each.keys for each in leaves_of_root))
        for part in dirty:
            _add_part(sums, part, growth, order, paying, of_root=of_root)
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


def _growth(root: Root) -> Growth:
    """Return how many keys a message adds. Where that is not known of each, the truth is taken to lie half-way."""
    node = root.node
    messages = len(node.buffer) if node.subtree_messages is None else node.subtree_messages
    keys = len(node.keys) if node.subtree_keys is None else node.subtree_keys
    bounds = root.count_bounds
    if bounds is None or not messages:
        return Growth(0.0, is_known=False)
    objects = (bounds.least.total + bounds.most.total) / 2
    each = max(-1.0, min(1.0, (objects - keys) / messages))
    return Growth(each, is_known=not bounds.uncertain)


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
    for_child: list[list[str]] = [[] for _ in keys]
    for key in node.pending.keys:
        if node.position(key) is None:
            for_child[node.child_index(key)].append(key)
    below = [inside + len(above) for inside, above in zip(waiting, for_child, strict=True)]
    if node.height > 1:
        yield from _lower_parts(node, keys, below, for_child)
        return
    if paying is not None:
        below = [waiting if waiting >= paying.worth else 0 for waiting in below]
    yield from _join_neighbours(keys, below)


def _lower_parts(
    node: Node, keys: Sequence[int], messages: Sequence[int], for_child: Sequence[Sequence[str]]
) -> Iterator[Part]:
    """Yield the children that have messages waiting, each a subtree of several levels."""
    scale = KeyScale(node)
    height = (node.height or 0) - 1
    for index, within in enumerate(ranges(node, EVERYWHERE)):
        if messages[index]:
            places = scale.find_places(for_child[index], within, keys[index])
            yield Part(1, keys[index], messages[index], height, places)


def _join_neighbours(keys: Sequence[int], messages: Sequence[int]) -> Iterator[Part]:
    joined = Part(0, 0, 0, 0)
    for here, waiting in zip(keys, messages, strict=True):
        if waiting:
            joined = Part(joined.subtrees + 1, joined.keys + here, joined.messages + waiting, 0)
        elif joined.subtrees:  # only leaves are flushed together
            yield joined
            joined = Part(0, 0, 0, 0)
    if joined.subtrees:
        yield joined


def _add_part(
    sums: _Sums, part: Part, growth: Growth, order: int, paying: PayingChildren | None, *, of_root: bool
) -> None:
    """Add what is written of neighbouring leaves, or of a subtree whose messages are spread evenly.

    ``of_root``: whether the leaves below the root are flushed together, as columns.
    """
    if part.height == 0:
        rows = _rows_after(part.keys, part.messages, growth)
        written = _leaves_after(part.subtrees, rows, order, together=of_root)
        sums.leaves += written
        sums.rows += rows
        sums.reads += part.subtrees
        sums.splits += written - part.subtrees
        return
    leaves = max(1.0, part.keys / (FILL * (order - 1)))
    anywhere = part._replace(messages=part.messages - len(part.places), places=())
    groups = _group_by_leaf(part.places, leaves, part.keys)
    if paying is not None:
        groups = _groups_that_pay(groups, part, paying)
    hit = 0.0
    if anywhere.messages:
        hit = _hit(leaves, anywhere.messages) if paying is None else _leaves_that_pay(leaves, anywhere, paying)
        hit *= max(0.0, 1 - len(groups) / leaves)  # of the others
    if not hit and not groups:  # all of it stays in the buffers of the nodes on its way
        sums.inner += part.height
        sums.reads += part.height
        return
    parents = max(1.0, leaves / (FILL * order))
    of_parent = max(1.0, (hit + len(groups)) / parents)
    together = _are_columns(of_parent, of_parent * part.keys / leaves)
    written = _add_evenly_spread(sums, anywhere, hit, leaves, growth, order, together=together) if hit else 0.0
    for run, messages in _join_leaves(groups):
        rows_before = run * part.keys / leaves
        rows = _rows_after(rows_before, messages, growth)
        of_run = _leaves_after(run, rows, order, together=together)
        sums.leaves += of_run
        sums.rows += rows
        written += of_run
    sums.reads += len(groups)
    splits = written - hit - len(groups)
    width = leaves
    for _ in range(part.height):
        width = max(1.0, width / (FILL * order))
        known = {int(place / max(1, part.keys) * width) for place in part.places}
        hit = len(known)
        if anywhere.messages:
            hit += _hit(width, anywhere.messages) * max(0.0, 1 - hit / width)
        splits /= FILL * order
        sums.inner += max(1.0, hit + splits)
        sums.reads += hit
    sums.splits += splits


def _rows_after(rows: float, messages: int, growth: Growth) -> float:
    """Return how many rows leaves have with their messages: more messages than rows are for new keys."""
    added = growth.each * messages
    if not growth.is_known:
        added = max(added, messages - rows)
    return max(0.0, rows + added)


def _add_evenly_spread(
    sums: _Sums, part: Part, hit: float, leaves: float, growth: Growth, order: int, *, together: bool
) -> float:
    """Add the leaves that messages hit whose places are not known; return how many are written for them."""
    share = hit / leaves
    run = min(leaves, 1 / max(1 / leaves, 1 - share))  # how many neighbours are hit at a time, on average
    runs = hit / run
    rows_before = part.keys * share
    rows = max(0.0, rows_before + growth.each * part.messages)
    written = runs * _leaves_after(run, rows / runs, order, together=together)
    sums.leaves += written
    sums.rows += rows
    sums.reads += hit
    return written


def _group_by_leaf(places: Sequence[float], leaves: float, keys: int) -> dict[int, int]:
    """Return how many messages there are for each leaf, by the number of the leaf; only leaves that have some."""
    last = math.ceil(leaves) - 1
    return dict(Counter(min(last, int(place / max(1, keys) * leaves)) for place in places))


def _groups_that_pay(groups: Mapping[int, int], part: Part, paying: PayingChildren) -> dict[int, int]:
    """Return the leaves that get their messages; those with the fewest keep what may wait above them."""
    room = paying.allowed_messages(part.keys, part.height)
    chosen = {}
    for leaf, messages in sorted(groups.items(), key=itemgetter(1)):
        if messages < paying.worth and messages <= room:
            room -= messages
        else:
            chosen[leaf] = messages
    return chosen


def _join_leaves(groups: Mapping[int, int]) -> Iterator[tuple[int, int]]:
    """Yield the number of neighbouring leaves that are flushed together, and how many messages they get."""
    run = 0
    messages = 0
    before = -1
    for leaf in sorted(groups):
        if run and leaf > before + 1:
            yield run, messages
            run = messages = 0
        run += 1
        messages += groups[leaf]
        before = leaf
    if run:
        yield run, messages


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


def _are_columns(leaves: float, rows: float) -> bool:
    """Return whether leaves below one node are flushed together: as columns, however far apart (``leafflush``)."""
    return leaves >= FEWEST_LEAVES or rows >= FEWEST_ROWS


def _leaves_after(leaves: float, rows: float, order: int, *, together: bool) -> float:
    """Return into how many leaves neighbours are cut, as ``leafflush`` and ``leafrun`` do it."""
    most = order - 1
    each = rows / leaves
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

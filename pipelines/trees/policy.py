"""The cost of waiting messages for each commit and each open, and when a compaction pays.

All costs are in requests and bytes, estimated from roots that are in memory already: no request. Each commit writes the
root with the messages in it, and each open reads it. A compaction reads and writes the nodes that the messages change.
"""

from __future__ import annotations

from pipelines.trees.cost_bound import RewriteCost, bound_cost
from trinitylake_core import Lakehouse, Stats
from trinitylake_core.tree.subtree import PayingChildren


def waiting_bytes(lake: Lakehouse) -> tuple[int, int]:
    """Return the bytes that waiting messages add to each commit, and to each open with one lookup."""
    node = lake.root_node.node
    row = node.nbytes / max(1, len(node.keys) + len(node.buffer))
    below = max(0, (node.subtree_messages or 0) - len(node.buffer))
    in_root = row * len(node.buffer)
    return round(in_root), round(in_root + row * below / max(1, len(node.keys) + 1))


def excess_messages(messages: int, objects: int | None, height: int | None, order: int) -> int:
    """Return how many messages are more than may wait in buffers, by the policy of compactions. No request."""
    return max(0, messages - PayingChildren(order, 0).allowed_messages(objects, height or 0))


def debt_of(stats: Stats) -> int:
    """Return the number of buffered messages that are more than may wait there, by the policy of compactions.

    In the whole tree, or in the root if it does not count the others. No request.
    """
    if stats.messages is None:
        messages = stats.root_messages
    else:
        messages = stats.messages
    return excess_messages(messages, stats.objects, stats.height, stats.order)


def settle_due(lake: Lakehouse, settle_seconds: float | None, now_millis: int) -> bool:
    """Whether messages, or the counts of objects, have waited for so long that all are to be settled. No request."""
    root = lake.root_node
    is_counted = root.counts is not None or root.node.subtree_keys is None  # nodes that do not count never are
    is_settled = is_counted and root.node.subtree_messages == 0
    if settle_seconds is None or is_settled:
        return False
    return now_millis - root.settled_at_millis >= 1000 * settle_seconds


def estimate(lake: Lakehouse) -> RewriteCost:
    """Return what a compaction of a version costs at most, from what its root counts of each child."""
    order = lake.definition.order
    return bound_cost(lake.root_node, order, paying=PayingChildren(order, 0))

"""The cost of waiting messages for each commit and each open, and the cost and saving of a compaction.

All costs are in requests and bytes, estimated from roots that are in memory already: no request. Each commit writes the
root with the messages in it, and each open reads it. A compaction reads and writes the nodes that the messages change.
"""

from __future__ import annotations

from dataclasses import dataclass

from pipelines import compaction
from pipelines.trees.prediction import RewriteCost, predict
from trinitylake_core import Lakehouse


@dataclass(frozen=True, slots=True)
class Gain:
    """One figure of a compaction: the predicted value and the measured one."""

    what: str
    unit: str
    predicted: int
    measured: int


def waiting_bytes(lake: Lakehouse) -> tuple[int, int]:
    """Return the bytes that waiting messages add to each commit, and to each open with one lookup."""
    node = lake.root_node.node
    row = node.nbytes / max(1, len(node.keys) + len(node.buffer))
    below = max(0, (node.subtree_messages or 0) - len(node.buffer))
    in_root = row * len(node.buffer)
    return round(in_root), round(in_root + row * below / max(1, len(node.keys) + 1))


def estimate(lake: Lakehouse) -> RewriteCost:
    """Return the cost of a compaction of a version, from what its root counts of each child."""
    return predict(lake.root_node, lake.definition.order)


def compare(before: Lakehouse, after: Lakehouse, done: compaction.Report) -> list[Gain]:
    """Return the expected cost and saving of a compaction, each beside the measured one.

    ``before`` and ``after`` are handles of its two versions. Messages committed in between count as not saved.
    """
    expected = done.plan
    commit, read = waiting_bytes(before)
    commit_left, read_left = waiting_bytes(after)
    return [
        Gain("cost: nodes", "nodes", expected.nodes, done.nodes_written),
        Gain("cost: requests", "requests", expected.requests, done.nodes_read + done.nodes_written + 1),
        Gain("cost: written", "bytes", expected.bytes, done.bytes_written),
        Gain("saved by each commit", "bytes", commit, commit - commit_left),
        Gain("saved by each open with one lookup", "bytes", read, read - read_left),
        Gain("the root", "bytes", before.stats().root_bytes - commit, after.stats().root_bytes),
    ]

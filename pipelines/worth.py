"""What waiting messages have cost since the last compaction, and what a compaction costs now.

Everything is estimated from one root that is in memory already: no request. Waiting costs bytes, and bytes cost time
and storage: each commit writes the root with the messages in it, keeps it as long as the version, and each open reads
it. A compaction costs requests, and the bytes and the time of the nodes that it writes anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pipelines import compaction
from pipelines.trees.subtrees import nodes_hit
from trinitylake_core import Lakehouse

_MONTH_SECONDS: Final = 30 * 86_400.0
_GIGABYTE: Final = 1e9
_AT_ONCE: Final = 32
"""Requests that a compaction has under way at the same time."""
_REQUEST_SECONDS: Final = 0.03


@dataclass(frozen=True, slots=True)
class Prices:
    """What things cost, in US dollars. Requests and storage: S3 Standard, us-east-1, as published.

    Attributes:
        put_per_1000: 1,000 PUT, COPY, POST or LIST requests.
        get_per_1000: 1,000 GET or HEAD requests.
        storage_gb_month: a gigabyte (10^9 bytes) for a month of 30 days.
        hour: an hour in which somebody waits, or a machine computes. No published price: an assumption.
        opens_per_commit: how often the lakehouse is opened for each commit. Nobody counts opens: an assumption.
        megabytes_per_second: how fast one connection moves bytes (10^6). An assumption.
    """

    put_per_1000: float = 0.005
    get_per_1000: float = 0.0004
    storage_gb_month: float = 0.023
    hour: float = 0.10
    opens_per_commit: float = 1.0
    megabytes_per_second: float = 50.0

    def seconds_of(self, size: float) -> float:
        """Return how long so many bytes take."""
        return size / (self.megabytes_per_second * 1e6)

    def of_time(self, seconds: float) -> float:
        """Return what so many seconds cost."""
        return seconds / 3600 * self.hour

    def of_storage(self, size: float, seconds: float) -> float:
        """Return what it costs to keep so many bytes for so long."""
        return size / _GIGABYTE * seconds / _MONTH_SECONDS * self.storage_gb_month


@dataclass(frozen=True, slots=True)
class Waiting:
    """What the messages that wait cost, per commit and per open, and what they have cost so far.

    Attributes:
        bytes_per_commit: bytes that each commit writes, and keeps, because they wait in the root.
        bytes_per_open: bytes that each open with one lookup reads because they wait in the nodes on its way.
        commits: commits since the last compaction, as far as somebody looked.
        bytes: what was written because of them by these commits.
        seconds: what these commits, and the opens beside them, took longer.
        dollars: what that cost: time, and storage for as long as a version is kept.
    """

    bytes_per_commit: int
    bytes_per_open: int
    seconds_per_commit: float
    seconds_per_open: float
    commits: int
    bytes: int
    seconds: float
    dollars: float


@dataclass(frozen=True, slots=True)
class Price:
    """What a compaction costs: so many nodes read and written, requests, bytes written, seconds, dollars."""

    nodes: int
    requests: int
    bytes: int
    seconds: float
    dollars: float


@dataclass(frozen=True, slots=True)
class Weighed:
    """Both sides."""

    waiting: Waiting
    compaction: Price

    @property
    def pays(self) -> bool:
        """Whether waiting has cost as much by now as a compaction does.

        Whoever compacts exactly then never pays more than twice what the best choice would have cost.
        """
        return self.waiting.commits > 0 and self.waiting.dollars >= self.compaction.dollars


def weigh(lake: Lakehouse, commits: int, written: float, kept_seconds: float, prices: Prices | None = None) -> Weighed:
    """Return what waiting has cost, and what a compaction costs now. No request.

    Args:
        lake: a handle of the newest version.
        commits: commits since the last compaction.
        written: the sum of ``bytes_per_commit`` over them.
        kept_seconds: how long a version is kept.
        prices: what things cost.
    """
    prices = prices or Prices()
    return Weighed(_waiting(lake, commits, written, kept_seconds, prices), price_of(lake, kept_seconds, prices))


def bytes_waiting(lake: Lakehouse) -> tuple[int, int]:
    """Return the bytes that waiting messages add to each commit, and to each open with one lookup. No request."""
    node = lake.root_node.node
    row = node.nbytes / max(1, len(node.keys) + len(node.buffer))
    below = max(0, (node.subtree_messages or 0) - len(node.buffer))
    in_root = row * len(node.buffer)
    return round(in_root), round(in_root + row * below / max(1, len(node.keys) + 1))


def _waiting(lake: Lakehouse, commits: int, written: float, kept_seconds: float, prices: Prices) -> Waiting:
    per_commit, per_open = bytes_waiting(lake)
    read = per_open * commits * prices.opens_per_commit
    seconds = prices.seconds_of(written + read)
    return Waiting(
        bytes_per_commit=per_commit,
        bytes_per_open=per_open,
        seconds_per_commit=prices.seconds_of(per_commit),
        seconds_per_open=prices.seconds_of(per_open),
        commits=commits,
        bytes=round(written),
        seconds=seconds,
        dollars=prices.of_time(seconds) + prices.of_storage(written, kept_seconds),
    )


def price_of(lake: Lakehouse, kept_seconds: float, prices: Prices) -> Price:
    """Return what a compaction of a version costs, if its messages are spread by chance. No request."""
    node = lake.root_node.node
    messages = node.subtree_messages if node.subtree_messages is not None else len(node.buffer)
    nodes = nodes_hit(messages, node.subtree_keys, node.height or 0, lake.definition.order)
    rows = max(1, len(node.keys) + len(node.buffer))
    return priced(nodes, nodes * node.nbytes * lake.definition.order * 2 // (3 * rows), kept_seconds, prices)


def priced(nodes: int, size: int, kept_seconds: float, prices: Prices) -> Price:
    """Return what it costs to read so many nodes, and to write as many with so many bytes, and the root."""
    requests = 2 * nodes + 2
    seconds = requests / _AT_ONCE * _REQUEST_SECONDS + prices.seconds_of(2 * size)
    dollars = (nodes + 1) * (prices.put_per_1000 + prices.get_per_1000) / 1000
    return Price(
        nodes, requests, size, seconds, dollars + prices.of_time(seconds) + prices.of_storage(size, kept_seconds)
    )


@dataclass(frozen=True, slots=True)
class Gain:
    """One figure of a compaction: what was expected of it, and what became of that."""

    what: str
    unit: str
    predicted: float
    realised: float


def gains(
    before: Lakehouse, after: Lakehouse, done: compaction.Report, kept_seconds: float, prices: Prices
) -> list[Gain]:
    """Return what a compaction was expected to cost and to save, beside what it did cost and save. No request.

    ``before`` and ``after`` are handles of its two versions. What was committed in between counts as not saved.
    """
    expected = price_of(before, kept_seconds, prices)
    cost = priced(done.nodes_written, done.bytes_written, kept_seconds, prices)
    commit, read = bytes_waiting(before)
    commit_left, read_left = bytes_waiting(after)
    return [
        Gain("cost: requests", "requests", expected.requests, done.nodes_read + done.nodes_written + 1),
        Gain("cost: written", "bytes", expected.bytes, done.bytes_written),
        Gain("cost: all in all", "US dollars", float(f"{expected.dollars:.3g}"), float(f"{cost.dollars:.3g}")),
        Gain("saved by each commit", "bytes", commit, commit - commit_left),
        Gain("saved by each open with one lookup", "bytes", read, read - read_left),
        Gain("the root", "bytes", before.stats().root_bytes - commit, after.stats().root_bytes),
    ]

"""Decides when a compaction is requested: pure functions, each decision with its reason."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Self

from dagster_project.config.settings import Compaction
from dagster_project.config.values import format_duration
from pipelines.compaction_policy import waiting_bytes
from trinitylake_core import Lakehouse, Stats


@dataclass(frozen=True, slots=True)
class Seen:
    """What the sensor remembers from one look to the next.

    Attributes:
        version: the newest version it saw.
        requested_at: when it last requested a compaction, in epoch seconds.
        over_since: when the backlog was first seen above the threshold, or when the history was last searched for how
            long it has been so, in epoch seconds; ``None`` if the last tick saw it below.
        failing: how many looks in a row could not open the lakehouse.
        alerted: whether somebody was told that it cannot be opened.
        waiting_since: when messages were first seen after the last compaction, in epoch seconds; ``None`` without any.
        debt: how many messages were buffered at the last look.
    """

    version: int | None = None
    requested_at: float = 0.0
    over_since: float | None = None
    failing: int = 0
    alerted: bool = False
    waiting_since: float | None = None
    debt: int = 0

    @classmethod
    def parse(cls, cursor: str | None) -> Self:
        """Return the content of a cursor; the defaults if it is empty or not ours."""
        try:
            found = json.loads(cursor or "{}")
            since, waiting = found.get("over_since"), found.get("waiting_since")
            return cls(
                found.get("version"),
                float(found.get("requested_at", 0.0)),
                None if since is None else float(since),
                int(found.get("failing", 0)),
                bool(found.get("alerted", False)),
                None if waiting is None else float(waiting),
                int(found.get("debt", 0)),
            )
        except (AttributeError, TypeError, ValueError):
            return cls()

    def text(self) -> str:
        """Return the cursor."""
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether to request a compaction, and why."""

    wanted: bool
    reason: str


def too_soon(policy: Compaction, last: float, now: float) -> Decision | None:
    """Return the decision to wait if the minimum interval since the last compaction has not passed, else ``None``."""
    wait = policy.min_interval.total_seconds() - (now - last)
    if last <= 0 or wait <= 0:
        return None
    return Decision(
        wanted=False,
        reason=f"the last compaction was requested or finished {now - last:.0f}s ago; "
        f"the minimum interval is {format_duration(policy.min_interval)}",
    )


def with_debt(seen: Seen, lake: Lakehouse, now: float) -> Seen:
    """Return what to remember of the waiting messages. No request.

    Fewer than half of the messages of the last look: another process has compacted in between.
    """
    debt = debt_of(lake.stats())
    since = seen.waiting_since if debt * 2 >= seen.debt else None
    return replace(seen, waiting_since=(since or now) if debt else None, debt=debt)


def compaction_pays(policy: Compaction, lake: Lakehouse, seen: Seen, now: float) -> Decision:
    """Return whether to compact: too many messages, too many bytes of them in the root, or too old. No request."""
    decision = too_many(policy, lake.stats())
    if seen.waiting_since is None or lake.read_only:
        return decision
    reasons, in_root, waited = [decision.reason], waiting_bytes(lake)[0], now - seen.waiting_since
    wanted = decision.wanted
    if policy.root_bytes is not None:
        wanted = wanted or in_root >= policy.root_bytes
        reasons.append(f"{in_root:,} bytes of them in the root, limit {policy.root_bytes:,}")
    if policy.older_than is not None:
        wanted = wanted or waited >= policy.older_than.total_seconds()
        reasons.append(f"waiting for {waited:,.0f}s, limit {format_duration(policy.older_than)}")
    return Decision(wanted, "; ".join(reasons))


def debt_of(stats: Stats) -> int:
    """Return how many messages are buffered: in the whole tree, or in the root if it does not count the others."""
    return stats.messages if stats.messages is not None else stats.root_messages


def too_many(policy: Compaction, stats: Stats) -> Decision:
    """Return whether the number of buffered messages alone asks for a compaction."""
    debt = debt_of(stats)
    figures = f"version {stats.version}: {debt:,} buffered messages, threshold {policy.messages:,}"
    return Decision(wanted=debt >= policy.messages, reason=figures)

"""Decides when a compaction pays: pure functions, each decision with its reason."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Self

from dagster_project.config.settings import Compaction
from dagster_project.config.values import format_duration
from trinitylake_core import Stats


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
    """

    version: int | None = None
    requested_at: float = 0.0
    over_since: float | None = None
    failing: int = 0
    alerted: bool = False

    @classmethod
    def parse(cls, cursor: str | None) -> Self:
        """Return the content of a cursor; the defaults if it is empty or not ours."""
        try:
            found = json.loads(cursor or "{}")
            since = found.get("over_since")
            return cls(
                found.get("version"),
                float(found.get("requested_at", 0.0)),
                None if since is None else float(since),
                int(found.get("failing", 0)),
                bool(found.get("alerted", False)),
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


def debt_of(stats: Stats) -> int:
    """Return how many messages are buffered: in the whole tree, or in the root if it does not count the others."""
    return stats.messages if stats.messages is not None else stats.root_messages


def pays(policy: Compaction, stats: Stats) -> Decision:
    """Return whether a compaction of a version pays."""
    debt = debt_of(stats)
    figures = f"version {stats.version}: {debt:,} buffered messages, threshold {policy.messages:,}"
    return Decision(wanted=debt >= policy.messages, reason=figures)

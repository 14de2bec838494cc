"""When a compaction pays: pure decisions, each with its reason."""

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
        requested_at: when it last asked for a compaction, in epoch seconds.
        over_since: since when every look found that a compaction pays, or since the last closer look at how long
            it has been so; ``None`` if the last look did not.
    """

    version: int | None = None
    requested_at: float = 0.0
    over_since: float | None = None

    @classmethod
    def parse(cls, cursor: str | None) -> Self:
        """Return what a cursor tells; nothing if it is empty or not ours."""
        try:
            found = json.loads(cursor or "{}")
            since = found.get("over_since")
            return cls(
                found.get("version"), float(found.get("requested_at", 0.0)), None if since is None else float(since)
            )
        except (AttributeError, TypeError, ValueError):
            return cls()

    def text(self) -> str:
        """Return the cursor."""
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether to ask for a compaction, and why."""

    wanted: bool
    reason: str


def too_soon(policy: Compaction, last: float, now: float) -> Decision | None:
    """Return the decision to wait, if the last compaction is younger than the minimum interval."""
    wait = policy.min_interval.total_seconds() - (now - last)
    if last <= 0 or wait <= 0:
        return None
    return Decision(
        wanted=False,
        reason=f"the last compaction was asked for or ended {now - last:.0f}s ago; at least "
        f"{format_duration(policy.min_interval)} lie between two",
    )


def debt_of(stats: Stats) -> int:
    """Return how many messages are buffered, as far as the root tells."""
    return stats.messages if stats.messages is not None else stats.root_messages


def pays(policy: Compaction, stats: Stats) -> Decision:
    """Return whether a compaction of a version pays."""
    debt = debt_of(stats)
    figures = f"version {stats.version}: {debt:,} buffered messages, a compaction pays from {policy.messages:,} on"
    return Decision(wanted=debt >= policy.messages, reason=figures)

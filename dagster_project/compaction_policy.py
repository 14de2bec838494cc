"""Decides when a compaction pays: pure functions, each decision with its reason."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Self

from dagster_project.config.settings import Compaction, LakehouseSettings
from dagster_project.config.values import format_duration
from dagster_project.metadata.health import weighed_text
from pipelines.worth import Weighed, bytes_waiting, weigh
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
        commits: how many versions there were since the last compaction, as far as it looked.
        written: how many bytes these wrote because messages waited in the root.
        debt: how many messages were buffered at the last look.
        counted: the version of that look; ``version`` may be older, since not every new version is recorded.
    """

    version: int | None = None
    requested_at: float = 0.0
    over_since: float | None = None
    failing: int = 0
    alerted: bool = False
    commits: int = 0
    written: float = 0.0
    debt: int = 0
    counted: int | None = None

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
                int(found.get("commits", 0)),
                float(found.get("written", 0.0)),
                int(found.get("debt", 0)),
                found.get("counted"),
            )
        except (AttributeError, TypeError, ValueError):
            return cls()

    def text(self) -> str:
        """Return the cursor."""
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether to request a compaction, and why; ``weighed`` holds both sides in figures."""

    wanted: bool
    reason: str
    weighed: Weighed | None = None


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


def since_compaction(seen: Seen, lake: Lakehouse) -> Seen:
    """Return what to remember of the commits since the last compaction. No request.

    A look sees the newest root only, so commits since the last look count as if all had written what this one did.
    Fewer than half of the messages of the last look: somebody compacted in between.
    """
    debt = debt_of(lake.stats())
    compacted = debt * 2 < seen.debt or debt == 0
    known = Seen() if compacted else seen
    new = 0 if seen.counted is None else max(0, lake.version - seen.counted)
    commits = 0 if debt == 0 else known.commits + new
    written = 0.0 if debt == 0 else known.written + new * bytes_waiting(lake)[0]
    return replace(seen, commits=commits, written=written, debt=debt, counted=lake.version)


def weighed(settings: LakehouseSettings, lake: Lakehouse, seen: Seen) -> Decision:
    """Return whether a compaction pays: enough messages are buffered, or waiting has cost as much. No request."""
    decision, costs = pays(settings.compaction, lake.stats()), settings.compaction.costs
    if debt_of(lake.stats()) == 0 or lake.read_only:
        return decision
    both = weigh(lake, seen.commits, seen.written, settings.kept_seconds, costs.prices)
    wanted = decision.wanted or (costs.enabled and both.pays)
    return Decision(wanted, f"{decision.reason}; {weighed_text(both)}", both)


def debt_of(stats: Stats) -> int:
    """Return how many messages are buffered: in the whole tree, or in the root if it does not count the others."""
    return stats.messages if stats.messages is not None else stats.root_messages


def pays(policy: Compaction, stats: Stats) -> Decision:
    """Return whether so many messages are buffered that a compaction is wanted, whatever it costs."""
    debt = debt_of(stats)
    figures = f"version {stats.version}: {debt:,} buffered messages, threshold {policy.messages:,}"
    return Decision(wanted=debt >= policy.messages, reason=figures)

"""Decides when a compaction is requested: pure functions, each decision with its reason."""

from __future__ import annotations

from dataclasses import dataclass

from dagster_project.config.settings import Compaction
from dagster_project.config.values import format_duration
from pipelines.trees.policy import debt_of, waiting_bytes
from trinitylake_core import Lakehouse, Stats


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


def compaction_pays(policy: Compaction, lake: Lakehouse, waiting_since: float | None, now: float) -> Decision:
    """Return the decision: too many messages, too many bytes of them in the root, or too old. No request.

    ``waiting_since``: when messages were first seen after the last compaction; ``None`` without any.
    """
    decision = too_many(policy, lake.stats())
    if waiting_since is None or lake.read_only:
        return decision
    reasons, in_root, waited = [decision.reason], waiting_bytes(lake)[0], now - waiting_since
    wanted = decision.wanted
    if policy.root_bytes is not None:
        wanted = wanted or in_root >= policy.root_bytes
        reasons.append(f"{in_root:,} bytes of them in the root, limit {policy.root_bytes:,}")
    if policy.older_than is not None:
        wanted = wanted or waited >= policy.older_than.total_seconds()
        reasons.append(f"waiting for {waited:,.0f}s, limit {format_duration(policy.older_than)}")
    return Decision(wanted, "; ".join(reasons))


def too_many(policy: Compaction, stats: Stats) -> Decision:
    """Return the decision by the number of buffered messages alone."""
    debt = debt_of(stats)
    figures = f"version {stats.version}: {debt:,} buffered messages, threshold {policy.messages:,}"
    return Decision(wanted=debt >= policy.messages, reason=figures)

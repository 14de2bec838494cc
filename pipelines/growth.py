"""How fast a lakehouse grows and what it costs, judged from its newest root and the oldest one that is kept."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from pipelines.worth import Prices, bytes_waiting, price_of
from trinitylake_core import Lakehouse
from trinitylake_core.errors import TrinityLakeError

_DAY: Final = 86_400.0
_MONTH: Final = 30 * _DAY
_SHORTEST: Final = 3600.0
"""A shorter history says nothing about a day."""


@dataclass(frozen=True, slots=True)
class Growth:
    """How fast a lakehouse grows and what it costs. What cannot be said is ``None``.

    Attributes:
        since: when the oldest version that is kept was made; the rates are since then.
        versions_per_day: versions that were made.
        objects_per_day: objects that came, less those that went.
        kept_bytes: about what the roots that are kept take.
        dollars_per_month: what commits at this rate cost in requests, and these roots in storage, at the prices of S3
            Standard. Nodes, definitions and the data of tables are not in it: counting them takes a listing.
        waiting_bytes: what each commit writes because messages wait in the root.
        compaction_dollars: what a compaction costs now.
    """

    since: datetime | None = None
    versions_per_day: float | None = None
    objects_per_day: float | None = None
    kept_bytes: int | None = None
    dollars_per_month: float | None = None
    waiting_bytes: int | None = None
    compaction_dollars: float | None = None


def growth_of(lake: Lakehouse, prices: Prices | None = None) -> Growth:
    """Return how fast a lakehouse grows, and what it costs. One ``get``: the oldest root that is kept."""
    prices, now = prices or Prices(), lake.stats()
    price = price_of(lake, _MONTH, prices)
    alone = Growth(waiting_bytes=bytes_waiting(lake)[0], compaction_dollars=_rounded(price.dollars))
    try:
        first = lake.at(version=now.oldest_version).stats()
    except TrinityLakeError:  # it has just expired, or is damaged, which `verify` tells
        return alone
    kept = (now.version - now.oldest_version + 1) * (first.root_bytes + now.root_bytes) // 2
    days = (now.created_at - first.created_at).total_seconds() / _DAY
    if days * _DAY < _SHORTEST:
        return replace(alone, since=first.created_at, kept_bytes=kept)
    rate = (now.version - first.version) / days
    known = now.objects is not None and first.objects is not None
    return replace(
        alone,
        since=first.created_at,
        versions_per_day=round(rate, 2),
        objects_per_day=round(((now.objects or 0) - (first.objects or 0)) / days, 2) if known else None,
        kept_bytes=kept,
        dollars_per_month=_rounded(rate * 30 * _of_commit(prices) + prices.of_storage(kept, _MONTH)),
    )


def _of_commit(prices: Prices) -> float:
    """Return what a commit of one table costs: a definition, the root and the hint; a get and a head."""
    return (3 * prices.put_per_1000 + 2 * prices.get_per_1000) / 1000


def _rounded(dollars: float) -> float:
    return float(f"{dollars:.3g}")

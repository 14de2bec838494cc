"""One look at a lakehouse: what a sensor reads off its newest root, or why it cannot be opened.

All requests are made in :func:`poll_lakehouse`, so that it can run in a thread with a deadline. What follows from the
answer is decided afterwards, without touching the storage.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import dagster as dg

from dagster_project import assets, check_results, compaction_policy
from dagster_project.compaction_policy import Decision, Seen
from dagster_project.config.settings import LakehouseSettings
from dagster_project.metadata import health
from dagster_project.resources import open_for_poll
from dagster_project.supervised import advice, permanent
from pipelines.bounded import Bounded
from trinitylake_core import TrinityLakeError

DATA_VERSION: Final = "dagster/data_version"
DATA_VERSION_IS_OURS: Final = "dagster/data_version_is_user_provided"
"""Tags of Dagster's event log, which has no public names for them."""
POLLS: Final = Bounded()
"""The threads of all looks of this process."""
SECONDS: Final = 20.0
"""How long one look may take. The daemon waits 60 s for a tick, and the rest of it takes time, too."""
_TRIES: Final = 2
"""A storage that fails may be well again in a minute: so many looks in a row fail before somebody is told."""


@dataclass(frozen=True, slots=True)
class Poll:
    """What one look found.

    Attributes:
        version: the newest version.
        observed: what is to be recorded of it, if it is another one than at the last look.
        pays: whether a compaction pays.
        seen: what to remember of the messages that wait.
        over_since: since when more is buffered than is wanted, as :class:`Seen` has it; ``None`` if it is not.
        verdicts: the verdicts of the checks that the root suffices for, each with its asset.
    """

    version: int
    observed: dg.ObserveResult | None
    pays: Decision
    seen: Seen
    over_since: float | None
    verdicts: tuple[tuple[str, dg.AssetCheckResult], ...]


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a lakehouse cannot be opened, and what to do. ``passes``: it may be over without anybody's doing."""

    cause: str
    advice: str
    passes: bool

    @property
    def text(self) -> str:
        """Cause and advice."""
        return f"{self.cause}\n{self.advice}".strip()


def poll_lakehouse(settings: LakehouseSettings, seen: Seen, now: float, *, known_stale: bool) -> Poll:
    """Look at the newest version. Costs four requests, and some more where compactions may be stale.

    ``known_stale``: that they are was recorded already. Raises ``TrinityLakeError``.
    """
    lake = open_for_poll(settings)
    too_many = compaction_policy.too_many(settings.compaction, lake.stats()).wanted
    since = compaction_policy.with_debt(seen, lake, now)
    pays = compaction_policy.compaction_pays(settings.compaction, lake, since, now)
    over_since = (seen.over_since or now) if too_many else None
    limit = settings.compaction.max_age.total_seconds()
    too_long = over_since is not None and now - over_since >= limit
    judged = tuple(check_results.judged(settings, lake, over_too_long=too_long and not known_stale))
    # searching the history costs more than one root: at most once per max_age
    observed = None
    if lake.version != seen.version:
        costs = health.of_waiting(lake) if since.debt and not lake.read_only else {}
        observed = assets.observation(assets.key(settings, assets.DEFINITION), lake, costs)
    return Poll(lake.version, observed, pays, since, now if too_long else over_since, judged)


def trouble_of(error: TrinityLakeError) -> Trouble:
    """Return what an error means for somebody who has to mend it."""
    return Trouble(str(error), advice(error), not permanent(error))


def observation_event(
    asset: dg.AssetKey, observed: dg.ObserveResult, partition: str | None = None
) -> dg.AssetObservation:
    """Return an observation as an event that a sensor may report."""
    version = "" if observed.data_version is None else observed.data_version.value
    tags = {DATA_VERSION: version, DATA_VERSION_IS_OURS: "true"}
    return dg.AssetObservation(asset_key=asset, metadata=observed.metadata, tags=tags, partition=partition)


def failed(seen: Seen, trouble: Trouble) -> tuple[Seen, bool]:
    """Return what to remember after a look that failed, and whether somebody has to be told now."""
    failing = seen.failing + 1
    due = not seen.alerted and (not trouble.passes or failing >= _TRIES)
    return replace(seen, failing=failing), due


def recovered(seen: Seen) -> Seen:
    """Return what to remember after a look that succeeded."""
    return replace(seen, failing=0, alerted=False)

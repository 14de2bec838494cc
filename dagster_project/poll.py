"""One poll of a lakehouse: what the sensor reads from its newest root, or why it cannot be opened.

All requests are made in :func:`poll_lakehouse`, so that it can run in a thread with a deadline. What follows from the
answer is decided afterwards, without touching the storage.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import urlsplit

import dagster as dg

from dagster_project import assets, check_results, compaction_policy
from dagster_project.compaction_policy import Decision
from dagster_project.config.settings import LakehouseSettings
from dagster_project.metadata import health
from dagster_project.resources import open_for_poll
from dagster_project.sensor_state import SensorState
from dagster_project.supervised import advice, permanent, sentences
from pipelines.deadline_pool import Bounded
from trinitylake_core import InvalidInput, TrinityLakeError

DATA_VERSION: Final = "dagster/data_version"
DATA_VERSION_IS_OURS: Final = "dagster/data_version_is_user_provided"
"""Tags of Dagster's event log, which has no public names for them."""
POLLS: Final = Bounded()
"""The threads of all polls of this process."""
_log: Final = logging.getLogger(__name__)
_TRIES: Final = 2
"""A storage that fails may be well again in a minute: so many polls in a row fail before the webhook receives it."""


@dataclass(frozen=True, slots=True)
class Poll:
    """What one poll found.

    Attributes:
        version: the newest version.
        observed: what is to be recorded of it, if it is another one than that recorded last.
        pays: whether a compaction pays.
        state: what to remember of the lakehouse.
        results: the results of the checks that the root suffices for, each with its asset.
    """

    version: int
    observed: dg.ObserveResult | None
    pays: Decision
    state: SensorState
    results: tuple[tuple[str, dg.AssetCheckResult], ...]


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a lakehouse cannot be opened, and what to do. ``passes``: it may end by itself."""

    cause: str
    advice: str
    passes: bool

    @property
    def text(self) -> str:
        """Cause and advice."""
        return sentences(self.cause, self.advice)


def poll_lakehouse(settings: LakehouseSettings, state: SensorState, now: float) -> Poll:
    """Read the newest root. Costs four requests, and some more where compactions may be stale.

    Raises ``TrinityLakeError``.
    """
    lake = open_for_poll(settings)
    policy = settings.compaction
    too_many = compaction_policy.too_many(policy, lake.stats()).wanted
    state = compaction_policy.with_debt(state, lake, now)
    pays = compaction_policy.compaction_pays(policy, lake, state, now)
    over_since = (state.over_since or now) if too_many else None
    too_long = over_since is not None and now - over_since >= policy.max_age.total_seconds()
    # to search the history costs more than one root: at most once per max_age, and not while the check fails already
    search = too_long and state.results.get(check_results.COMPACTION_FRESH) is not False
    results = tuple(check_results.evaluate_root(settings, lake, over_too_long=search))
    observed = None
    if lake.version != state.version:
        waiting = health.of_waiting(lake) if state.debt and not lake.read_only else {}
        observed = assets.observation(assets.key(settings, assets.DEFINITION), lake, waiting)
    state = replace(state, over_since=now if too_long else over_since)
    return Poll(lake.version, observed, pays, state, results)


def trouble_of(error: Exception, settings: LakehouseSettings | None = None) -> Trouble:
    """Return why a lakehouse cannot be opened and what to do about it, where nothing was launched."""
    if not isinstance(error, TrinityLakeError):
        _log.error("unexpected error while polling %s", settings and settings.name, exc_info=error)
        cause = f"{type(error).__name__}: {error}"
        return Trouble(cause, "Unexpected: see the log of the code server.", passes=True)
    text = advice(error)
    if isinstance(error, InvalidInput):
        text = "Correct lakehouses.yaml, or the environment of the code server."
    elif settings is not None and not permanent(error):
        text = (
            f"{settings.root}{_endpoint(settings)} is polled again until it answers. Check the storage and the network."
        )
    return Trouble(str(error), text, not permanent(error))


def _endpoint(settings: LakehouseSettings) -> str:
    """Return where a storage is, if the stanza names it: never with a password, nor the value of a variable."""
    endpoint = settings.storage_options.get("endpoint_url")
    if isinstance(endpoint, Mapping):
        return f" at {{env: {endpoint['env']}}}"
    return "" if endpoint is None else f" at {urlsplit(str(endpoint)).netloc.rpartition('@')[2]}"


def observation_event(
    asset: dg.AssetKey, observed: dg.ObserveResult, partition: str | None = None
) -> dg.AssetObservation:
    """Return an observation as an event that a sensor may report."""
    version = "" if observed.data_version is None else observed.data_version.value
    tags = {DATA_VERSION: version, DATA_VERSION_IS_OURS: "true"}
    return dg.AssetObservation(asset_key=asset, metadata=observed.metadata, tags=tags, partition=partition)


def failed(state: SensorState, trouble: Trouble) -> tuple[SensorState, bool]:
    """Return the state after a poll that failed, and whether to send it to the webhook now."""
    failing = state.failing + 1
    alert = not state.alerted and (not trouble.passes or failing >= _TRIES)
    return replace(state, failing=failing), alert

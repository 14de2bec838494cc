"""One poll of a lakehouse: what the sensor reads from its newest root, and remembers until the next one.

All requests are made in :func:`poll_lakehouse`, so that it can run in a thread with a deadline. What follows from the
answer is decided afterwards, without touching the storage.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from dataclasses import astuple, dataclass, field, replace
from typing import Any, Final

import dagster as dg

from dagster_project import assets, checks, compaction_policy, external_tables
from dagster_project.compaction_policy import Decision
from dagster_project.config.settings import LakehouseSettings
from dagster_project.metadata import reports
from dagster_project.resources import open_for_poll
from pipelines.engine.deadline_pool import DeadlinePool
from pipelines.trees.policy import debt_of
from trinitylake_core import Lakehouse, spec
from trinitylake_core.errors import Corrupt, NotALakehouse, WentBack
from trinitylake_core.versions import RootRows

POLLS: Final = DeadlinePool()
"""The threads of all polls of this process."""
_FORMAT: Final = "3:"
"""How a cursor begins. It stays small for thousands of lakehouses."""
_FORMAT_OF_0_1: Final = "2:"


@dataclass(frozen=True, slots=True)
class SensorState:
    """What is remembered of one lakehouse. Times are in epoch seconds.

    Attributes:
        version: the newest version that was recorded.
        requested_at: when a compaction was last requested.
        over_since: when the backlog was first seen above the threshold, or when the history was last searched for how
            long it has been so; ``None`` if the last poll saw it below.
        failing: how many polls in a row could not open the lakehouse.
        next_poll: when to poll again.
        quiet: how many polls in a row found nothing new.
        observed_at: when a version was recorded last.
        results: whether each check passed at the last poll that evaluated it.
        waiting_since: when messages were first seen after the last compaction; ``None`` without any.
        debt: how many messages were buffered at the last poll.
        tables_version: up to which version the tables that are assets are recorded.
        tables_after: the key up to which those are recorded that changed up to ``tables_upto``, where they are many.
        seen: the newest version at the last poll; ``seen_at``: when it was created, in epoch milliseconds; 0 if only
            the number is known, from a cursor of 0.1.0.
        accepted: when an operator last accepted that the lakehouse went back in time, in epoch milliseconds.
    """

    version: int | None = None
    requested_at: float = 0.0
    over_since: float | None = None
    failing: int = 0
    next_poll: float = 0.0
    quiet: int = 0
    observed_at: float = 0.0
    results: Mapping[str, bool] = field(default_factory=dict)
    waiting_since: float | None = None
    debt: int = 0
    tables_version: int | None = None
    seen: int | None = None
    seen_at: int = 0
    accepted: int = 0
    tables_after: str | None = None
    tables_upto: int | None = None


def states_of(cursor: str | None) -> dict[str, SensorState]:
    """Return the states of a cursor by lakehouse; none if it is empty or of another format."""
    if not cursor or not cursor.startswith((_FORMAT, _FORMAT_OF_0_1)):
        return {}
    try:
        rows = json.loads(zlib.decompress(base64.b64decode(cursor[len(_FORMAT) :])))
        if cursor.startswith(_FORMAT_OF_0_1):
            return {name: _state_of_0_1(row) for name, row in rows.items()}
        return {name: SensorState(*row) for name, row in rows.items()}
    except (AttributeError, TypeError, ValueError, zlib.error):
        return {}


def _state_of_0_1(row: list[Any]) -> SensorState:
    """Return the state of a row whose fifth field is no more, and whose first one is the version last seen."""
    state = SensorState(*row[:4], *row[5:])
    return replace(state, seen=state.version)


def cursor_of(states: Mapping[str, SensorState]) -> str:
    """Return the cursor."""
    rows = {
        name: [int(value) if isinstance(value, float) else value for value in astuple(states[name])]
        for name in sorted(states)
    }
    packed = zlib.compress(json.dumps(rows, separators=(",", ":")).encode(), 6)
    return _FORMAT + base64.b64encode(packed).decode()


@dataclass(frozen=True, slots=True)
class Poll:
    """What one poll found: the newest version, and the results of the checks that its root suffices for, with assets.

    ``observed`` is what to record, if the version is another one than that recorded last; ``tables`` are the new
    versions of tables that are assets.
    """

    version: int
    observed: dg.ObserveResult | None
    pays: Decision
    state: SensorState
    results: tuple[tuple[str, dg.AssetCheckResult], ...]
    tables: tuple[dg.AssetMaterialization, ...] = ()


def poll_lakehouse(settings: LakehouseSettings, state: SensorState, now: float) -> Poll:
    """Read the newest root. Costs four requests, and some more where compactions may be stale, or tables are assets.

    One more where there is a new version. Raises ``TrinityLakeError``.
    """
    lake = _open_seen(settings, state)
    state = _remember_seen(lake, state)
    policy = settings.compaction
    debt = debt_of(lake.stats())
    waiting_since = _find_waiting_since(state, debt, now)
    pays = compaction_policy.compaction_pays(policy, lake, waiting_since, now)
    over_since = None
    if compaction_policy.too_many(policy, lake.stats()).wanted:
        over_since = state.over_since or now
    too_long = over_since is not None and now - over_since >= policy.max_age.total_seconds()
    # to search the history costs more than one root: at most once per max_age, and not while the check fails already
    search = too_long and state.results.get(checks.COMPACTION_FRESH) is not False
    results = tuple(checks.evaluate_root(settings, lake, over_too_long=search))
    observed = None
    if lake.version != state.version:
        waiting = reports.of_waiting(lake) if debt and not lake.read_only else {}
        observed = assets.observation(assets.key(settings, assets.DEFINITION), lake, waiting)
    if too_long:
        over_since = now
    tables: tuple[dg.AssetMaterialization, ...] = ()
    if settings.assets and lake.version != state.tables_version:
        upto = lake.version if state.tables_after is None else state.tables_upto
        found, after = external_tables.new_versions(lake, settings, state.tables_version, state.tables_after)
        tables = tuple(found)
        done = upto if after is None else state.tables_version
        state = replace(state, tables_version=done, tables_after=after, tables_upto=upto)
    state = replace(state, waiting_since=waiting_since, debt=debt, over_since=over_since)
    return Poll(lake.version, observed, pays, state, results, tables)


def _open_seen(settings: LakehouseSettings, state: SensorState) -> Lakehouse:
    """Open a lakehouse. Raises ``WentBack`` where one was seen and none is: nobody shall create an empty one there."""
    try:
        return open_for_poll(settings)
    except NotALakehouse:
        if state.seen is None:
            raise
        raise WentBack(f"{settings.root} is GONE: version {state.seen} was seen there. Create none there") from None


def _remember_seen(lake: Lakehouse, state: SensorState) -> SensorState:
    """Return the state with the version that is seen now. One ``get`` where that is a new one.

    Raises ``WentBack``: the version that was seen last is gone, or another one has its number, and nobody accepted it.
    """
    newest = lake.root_node
    text = lake.definition.properties.get(spec.HISTORY_ACCEPTED, "")
    accepted = int(text) if text.isdecimal() else 0
    if state.seen is not None and accepted <= state.accepted:
        _refuse_older(lake, state.seen, state.seen_at)
    return replace(state, seen=lake.version, seen_at=newest.created_at_millis, accepted=max(accepted, state.accepted))


def _refuse_older(lake: Lakehouse, seen: int, seen_at: int) -> None:
    there: RootRows | None = None
    if lake.version == seen:
        there = lake.root_node
    elif seen < lake.version:
        try:
            there = lake.backend.versions.try_rows(seen)
        except Corrupt:
            return
        if there is None or seen < lake.root_node.oldest_version:  # it has expired
            return
    if there is None or seen_at not in {0, there.created_at_millis}:
        raise WentBack(
            f"{lake.root} WENT BACK IN TIME: version {seen}, which was seen, is "
            f"{'gone' if there is None else 'another commit now'}, and the newest one is {lake.version}"
        )


def _find_waiting_since(state: SensorState, debt: int, now: float) -> float | None:
    """Return when the messages that wait now were first seen; ``None`` if none wait."""
    if not debt:
        return None
    if state.waiting_since is None or debt * 2 < state.debt:
        return now  # fewer than half of the messages of the last poll: another process has compacted in between
    return state.waiting_since

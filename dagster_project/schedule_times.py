"""When maintenance is due: the cron schedule of a lakehouse, moved by an offset that its name decides.

A thousand lakehouses with the same cron schedule would otherwise start a thousand runs in the same second.
"""

from __future__ import annotations

import logging
import re
import zlib
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import pairwise
from typing import Final

import dagster as dg

from dagster_project.config.settings import LakehouseSettings
from trinitylake_core import clock

_log: Final = logging.getLogger(__name__)
_MINUTE: Final = timedelta(minutes=1)
_DAY_MINUTES: Final = 24 * 60
_LOOKS_BACK: Final = (timedelta(days=15), timedelta(days=800), timedelta(days=6000))
"""Two weekends; further than two occurrences of any schedule that fires at least once a year; of each 29 February."""
_MARCH: Final = 3
_LAST_IN_EVERY_MONTH: Final = 28
_ENOUGH: Final = 4


def offset(settings: LakehouseSettings) -> timedelta:
    """Return the delay of a lakehouse after the time of its cron schedule: whole minutes below ``spread``."""
    minutes = settings.schedules.spread // _MINUTE
    return _MINUTE * (zlib.crc32(settings.name.encode()) % minutes) if minutes else timedelta()


def shift_cron(cron: str, by: timedelta) -> str:
    """Return a cron schedule moved by an offset; the same one where cron cannot express that.

    It can where minute and hour are numbers and the time stays on the same day, and where the minute is a number and
    the hour is ``*``.
    """
    fields = cron.split()
    if len(fields) != 5 or not fields[0].isdecimal():
        return cron
    minute, hour, minutes = int(fields[0]), fields[1], by // _MINUTE
    if hour == "*":
        return " ".join([str((minute + minutes) % 60), *fields[1:]])
    if not hour.isdecimal():
        return cron
    moved = int(hour) * 60 + minute + minutes
    if moved >= _DAY_MINUTES:
        return cron
    return " ".join([str(moved % 60), str(moved // 60), *fields[2:]])


def daily_cron(cron: str) -> str:
    """Return a cron schedule that fires each day where the schedule names a day that some months lack.

    Dagster's daemon cannot follow such a schedule through March of a leap year. Who ticks each day asks :func:`is_due`.
    """
    fields = cron.split()
    if len(fields) != 5 or not any(int(day) > _LAST_IN_EVERY_MONTH for day in re.findall(r"\d+", fields[2])):
        return cron
    return " ".join([*fields[:2], "*", "*", "*"])


def is_due(settings: LakehouseSettings, cron: str, now: datetime) -> bool:
    """Whether a schedule fires at a minute. ``cron``: as the lakehouse's, later by its offset."""
    now = now.astimezone(UTC).replace(second=0, microsecond=0)
    return _last(cron, settings.schedules.timezone, now) == now


def last_due(settings: LakehouseSettings, now: datetime) -> datetime | None:
    """Return the last time at which maintenance was due, the offset included; ``None`` without one that is on."""
    cron = settings.schedules.maintenance
    if cron is None or not settings.schedules.enabled:
        return None
    by = offset(settings)
    last = _last(cron, settings.schedules.timezone, (now - by).astimezone(UTC).replace(second=0, microsecond=0))
    return None if last is None else last + by


def freshness(settings: LakehouseSettings | None) -> dg.FreshnessPolicy | None:
    """Return the greatest age of the result of a maintenance; ``None`` without a schedule, and for a fleet.

    Dagster warns after one and a half intervals and fails after three, when two in a row did not come. The interval
    is the longest of the schedule: on weekdays only, the weekend.
    """
    if settings is None or settings.schedules.maintenance is None or not settings.schedules.enabled:
        return None
    try:
        interval = _longest(settings.schedules.maintenance, settings.schedules.timezone)
    except Exception:  # noqa: BLE001 - a defect of an iterator concerns this lakehouse alone
        _log.exception("lakehouse %r: the interval of its schedule is not known", settings.name)
        return None
    return None if interval is None else dg.FreshnessPolicy.time_window(3 * interval, 1.5 * interval)


@lru_cache(maxsize=4096)
def _longest(cron: str, timezone: str) -> timedelta | None:
    """Return the longest time between two times at which a cron schedule fires; ``None`` if it fires too rarely."""
    now = clock.utc_now()
    at: list[datetime] = []
    for back in _LOOKS_BACK:
        times = _times(cron, timezone, now - back)
        at = [datetime.fromisoformat(each) for each in times.get_partition_keys(current_time=now)]
        if len(at) >= _ENOUGH:
            break
    return max((later - earlier for earlier, later in pairwise(at)), default=None)


@lru_cache(maxsize=4096)
def _last(cron: str, timezone: str, now: datetime) -> datetime | None:
    """Return the last time at or before a minute at which a cron schedule fires, as Dagster reads it."""
    for back in _LOOKS_BACK:
        times = _times(cron, timezone, now - back)
        window = times.get_prev_partition_window(now + _MINUTE / 2)
        if window is not None:
            return window.end.astimezone(UTC)
    return None


def _times(cron: str, timezone: str, start: datetime) -> dg.TimeWindowPartitionsDefinition:
    """Return the times since ``start`` at which a cron schedule fires, as Dagster reads it.

    Not from a day in March on: there Dagster looks for the time before it, and in a leap year finds a later one where
    the day is the 29th or above.
    """
    if start.month == _MARCH:
        start = start.replace(month=1, day=1)
    return dg.TimeWindowPartitionsDefinition(
        start=start, fmt="%Y-%m-%dT%H:%M:%S%z", cron_schedule=cron, timezone=timezone
    )

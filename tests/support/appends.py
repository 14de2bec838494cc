"""Processes that append to Iceberg tables for a race; every row says who wrote it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Final

from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException

from pipelines import compaction, expiration, orphans
from tests.support.icebergs import rows
from trinitylake_core import Lakehouse
from trinitylake_core.commits.commit import now_millis
from trinitylake_core.iceberg import TrinityLakeCatalog

TABLES: Final = ("race.a", "race.b", "race.c", "race.d")
_ROOM: Final = 1_000_000
_MONTH: Final = 30 * 86_400_000


Row = tuple[str, int]
"""A row: its table, and the number it holds."""


@dataclass(slots=True)
class Appended:
    """The rows of one writer: acknowledged, refused, and by commit those with an unknown outcome."""

    acknowledged: list[Row] = field(default_factory=list)
    refused: list[Row] = field(default_factory=list)
    unknown: list[list[Row]] = field(default_factory=list)


def append(place: tuple[str, dict[str, Any]], writer: int, count: int, seconds: float) -> Appended:
    """Append at least ``count`` rows, one at a time, and for some seconds; every fifth time to two tables at once.

    A writer that stands still while its version is created and expires gets an unknown outcome.
    """
    catalog = TrinityLakeCatalog.over(Lakehouse.open(place[0], storage_options=place[1]))
    deadline = time.monotonic() + seconds
    done = Appended()
    number = 0
    while number < count or time.monotonic() < deadline:
        number += 1
        names = [TABLES[(writer + number) % len(TABLES)]]
        if number % 5 == 0:
            names.append(TABLES[(writer + number + 1) % len(TABLES)])
        made = [(name, writer * _ROOM + number) for name in names]
        try:
            _append(catalog, made)
        except CommitFailedException:
            done.refused += made
        except CommitStateUnknownException:
            done.unknown.append(made)
        else:
            done.acknowledged += made
    return done


def _append(catalog: TrinityLakeCatalog, made: list[Row]) -> None:
    if len(made) == 1:
        catalog.load_table(made[0][0]).append(rows(made[0][1]))
        return
    with catalog.transaction() as txn:
        for name, number in made:
            txn.load_table(name).append(rows(number))


def maintain(lake: Lakehouse, number: int) -> None:
    """Do all of it once, at a time when everything but the newest three versions is old enough to go."""
    compaction.run(lake.refresh(), compaction.Config(engine="local"))
    lake.refresh().create_snapshot(f"s{number}")
    later = now_millis() + _MONTH
    expiration.run(lake.refresh(), expiration.Config(engine="local", keep_last=3, now_millis=later))
    orphans.run(lake.refresh(), orphans.Config(engine="local", now_millis=later))

"""What jobs leave when nothing is too young to go: the newest version, and what it needs."""

from __future__ import annotations

import time
from typing import Any, Final

from pipelines import compaction, expire, tables_clean
from trinitylake_core import Lakehouse
from trinitylake_core.clock import now_millis

TICK_SECONDS: Final = 0.02
"""Longer than a tick of the file system's clock."""


def expire_all_but_the_newest(lake: Lakehouse) -> None:
    """Expire every version but the newest, once no message waits: it would keep what it was sent to replace."""
    compaction.run(lake.refresh(), compaction.Config(engine="local"))
    month_later = now_millis() + 30 * 86_400_000
    expire.run(lake.refresh(), expire.Config(engine="local", keep_last=1, now_millis=month_later))


def clean_tables(lake: Lakehouse, **options: Any) -> tables_clean.Report:
    """Clean with safety age zero: what was written by now may go."""
    time.sleep(TICK_SECONDS)
    how = {"engine": "local", "older_than_seconds": 0, "allow_recent": True, **options}
    return tables_clean.run(lake.refresh(), tables_clean.Config(**how))

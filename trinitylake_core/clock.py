"""The clock of this process: whatever asks for the time asks here, so that a test moves it in one place.

Nothing is safe because of it (:mod:`trinitylake_core.commits.fences` compares it with the storage's own).
"""

from __future__ import annotations

import time
from datetime import UTC, datetime


def now_millis() -> int:
    """Return the time in epoch milliseconds."""
    return time.time_ns() // 1_000_000


def utc_now() -> datetime:
    """Return the time in UTC, to the millisecond."""
    return datetime.fromtimestamp(now_millis() / 1000, UTC)

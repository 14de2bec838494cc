"""What the sensor remembers of each lakehouse from one tick to the next; its cursor stays small for thousands."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from dataclasses import astuple, dataclass, field
from typing import Any, Final

_FORMAT: Final = "2:"


@dataclass(frozen=True, slots=True)
class SensorState:
    """What is remembered of one lakehouse. Times are in epoch seconds.

    Attributes:
        version: the newest version that was recorded.
        requested_at: when a compaction was last requested.
        over_since: when the backlog was first seen above the threshold, or when the history was last searched for how
            long it has been so; ``None`` if the last poll saw it below.
        failing: how many polls in a row could not open the lakehouse.
        alerted: whether the webhook has received that it cannot be opened.
        next_poll: when to poll again.
        quiet: how many polls in a row found nothing new.
        observed_at: when a version was recorded last.
        results: whether each check passed at the last poll that evaluated it.
        waiting_since: when messages were first seen after the last compaction; ``None`` without any.
        debt: how many messages were buffered at the last poll.
    """

    version: int | None = None
    requested_at: float = 0.0
    over_since: float | None = None
    failing: int = 0
    alerted: bool = False
    next_poll: float = 0.0
    quiet: int = 0
    observed_at: float = 0.0
    results: Mapping[str, bool] = field(default_factory=dict)
    waiting_since: float | None = None
    debt: int = 0


def parse(cursor: str | None) -> dict[str, SensorState]:
    """Return the states of a cursor by lakehouse; none if it is empty or of another format."""
    if not cursor or not cursor.startswith(_FORMAT):
        return {}
    try:
        rows = json.loads(zlib.decompress(base64.b64decode(cursor.removeprefix(_FORMAT))))
        return {name: SensorState(*row) for name, row in rows.items()}
    except (AttributeError, TypeError, ValueError, zlib.error):
        return {}


def text(states: Mapping[str, SensorState]) -> str:
    """Return the cursor."""
    rows = {name: [_short(each) for each in astuple(states[name])] for name in sorted(states)}
    packed = zlib.compress(json.dumps(rows, separators=(",", ":")).encode(), 6)
    return _FORMAT + base64.b64encode(packed).decode()


def _short(value: Any) -> Any:
    return int(value) if isinstance(value, float) else value

"""Lengths of time as people write them on a command line and in ``lakehouses.yaml``: 90s, 15m, 12h, 3d, 2w."""

from __future__ import annotations

import re
from typing import Final

from trinitylake_core.errors import InvalidInput

DAY: Final = 86_400.0
LONGEST: Final = 36_500 * DAY
"""Longer ones could not be added to a date."""
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": DAY, "w": 7 * DAY}
_TEXT: Final = re.compile(r"([0-9]{1,9})(ms|s|m|h|d|w)")


def parse_age(text: str) -> float:
    """Return the seconds that a text such as ``12h`` means. Raises ``InvalidInput``."""
    match = _TEXT.fullmatch(text.strip())
    if match is None:
        raise InvalidInput(f"{text!r} is not a valid age; write 90s, 15m, 12h, 3d or 2w")
    seconds = int(match[1]) * _UNITS[match[2]]
    if seconds > LONGEST:
        raise InvalidInput(f"{text!r} is too long; write at most {describe_duration(LONGEST)}")
    return seconds


def millis(seconds: float) -> int:
    """Return seconds as whole milliseconds, rounded up: an age is never cut short."""
    exact = seconds * 1000
    whole = round(exact)
    if abs(whole - exact) < 1e-6:  # a fraction of a second is never exact in binary
        return whole
    return int(exact) + 1


def describe_duration(seconds: float) -> str:
    """Return an age for people, in the largest unit that is exact."""
    if seconds == 0:
        return "0ms"
    for unit in ("d", "h", "m", "s"):
        length = _UNITS[unit]
        if seconds % length == 0:
            return f"{int(seconds // length)}{unit}"
    return f"{millis(seconds)}ms"

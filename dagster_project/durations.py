"""Lengths of time as people write them in ``lakehouses.yaml``: 90s, 15m, 12h, 3d, 2w."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated, Final

from pydantic import BeforeValidator, PlainSerializer

_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_TEXT: Final = re.compile(r"([0-9]{1,6})([smhdw])")


def parse_duration(text: object) -> timedelta:
    """Return the length of time that a text such as ``15m`` means. Raises ``ValueError``."""
    if isinstance(text, timedelta):
        return text
    match = _TEXT.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f"{text!r} is no length of time; write 90s, 15m, 12h, 3d or 2w")
    return timedelta(**{_UNITS[match[2]]: int(match[1])})


def format_duration(duration: timedelta) -> str:
    """Return a length of time as ``parse_duration`` reads it, in the largest unit that is exact."""
    seconds = int(duration.total_seconds())
    for unit, length in (("w", 604800), ("d", 86400), ("h", 3600), ("m", 60)):
        if seconds and seconds % length == 0:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"


Duration = Annotated[timedelta, BeforeValidator(parse_duration), PlainSerializer(format_duration)]

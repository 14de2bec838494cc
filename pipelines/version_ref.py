"""References to a version: a number, ``HEAD``, ``HEAD~3``, a snapshot, a time, or an age such as ``-2h``.

It also warns where the times of versions lie in the future.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

from pipelines.durations import parse_age
from trinitylake_core import Lakehouse, RecoveryTarget
from trinitylake_core.errors import InvalidInput, TrinityLakeError, VersionNotFound
from trinitylake_core.versions import to_millis

MEANING: Final = "a number, HEAD, HEAD~3, a snapshot, a time, or an age such as -2h"
_HEAD: Final = re.compile(r"HEAD(?:~([0-9]{1,9}))?")
_DIGITS: Final = 18
_CLOCKS_DIFFER_SECONDS: Final = 60.0
_AGE: Final = re.compile(r"-?([0-9]{1,9}(?:ms|s|m|h|d|w))")


def moment(text: str | None) -> datetime | str | None:
    """Return a time; an age such as ``2h`` or ``-2h`` is so long ago. Raises ``InvalidInput`` for one too long."""
    match = None if text is None else _AGE.fullmatch(text)
    return text if match is None else datetime.now(UTC) - timedelta(seconds=parse_age(match[1]))


def target(
    lake: Lakehouse,
    version: str | None,
    timestamp: str | None = None,
    snapshot: str | None = None,
) -> RecoveryTarget:
    """Return the version that options name. No request unless a snapshot's name has to be looked up.

    Raises:
        InvalidInput: ``version`` is no reference to a version.
    """
    if version is None:
        return RecoveryTarget(None, moment(timestamp), snapshot)
    found = _reading(lake, version, "version")
    if timestamp is not None or snapshot is not None:
        raise InvalidInput("say one of version, timestamp and snapshot")
    return found


def _reading(lake: Lakehouse, text: str, what: str) -> RecoveryTarget:
    if (plain := plain_number(text)) is not None:
        return RecoveryTarget(version=plain)
    if head := _HEAD.fullmatch(text):
        back = int(head[1] or 0)
        if back > lake.version:
            raise VersionNotFound(f"{text} does not exist: version {lake.version} is the newest, and 0 the first")
        return RecoveryTarget(version=lake.version - back)
    if any(each.name == text for each in lake.snapshots()):
        return RecoveryTarget(snapshot=text)
    when = moment(text)
    try:
        to_millis(when if when is not None else text)
    except InvalidInput:
        raise InvalidInput(
            f"{what} must be a version number, not {text!r}; HEAD, HEAD~3, the name of a snapshot, a time and an age "
            f"such as -2h will do, too; there is no snapshot {text!r}"
        ) from None
    return RecoveryTarget(timestamp=when)


def at(lake: Lakehouse, text: str, what: str = "version") -> Lakehouse:
    """Return a handle of the version that a text refers to. Raises as ``target`` and ``Lakehouse.at`` do."""
    return lake.at(**_reading(lake, text, what).keywords())


def number(lake: Lakehouse, text: str | None) -> int | None:
    """Return the number of the version that a text refers to; ``None`` for ``None``. Raises as ``at`` does."""
    if text is None:
        return None
    plain = plain_number(text)
    return at(lake, text).version if plain is None else plain


def plain_number(text: str) -> int | None:
    """Return the number that a text is; ``None`` if it is none, or one that no version has."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _DIGITS else None


def warn_of_future(opened: Callable[..., Lakehouse]) -> None:
    """Warn on standard error if the newest version is dated in the future: ages count from its date."""
    try:
        created = opened(damaged=True).info().created_at
    except TrinityLakeError:  # the command itself will say it
        return
    ahead = (created - datetime.now(UTC)).total_seconds()
    if ahead > _CLOCKS_DIFFER_SECONDS:
        sys.stderr.write(
            f"warning: the newest version is dated {created:%Y-%m-%d %H:%M} UTC, {ahead:,.0f} s from now: the "
            "clock of a writer ran ahead, and what was written since expires that much later\n"
        )

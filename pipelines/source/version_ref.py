"""References to a version: a number, ``HEAD``, ``HEAD~3``, a snapshot, a time, or an age such as ``-2h``.

It also warns where the times of versions lie in the future.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final

from trinitylake_core import Lakehouse, RecoveryTarget, clock
from trinitylake_core.errors import InvalidInput, TrinityLakeError
from trinitylake_core.recovery.target import MEANING, parse_moment, plain_number

__all__ = ["MEANING", "at", "number", "parse_moment", "plain_number", "target", "warn_of_future"]
_CLOCKS_DIFFER_SECONDS: Final = 60.0


def target(
    lake: Lakehouse,
    version: str | None,
    timestamp: str | None = None,
    snapshot: str | None = None,
) -> RecoveryTarget:
    """Return the version that options name. No request.

    Raises:
        InvalidInput: ``version`` is no reference to a version.
    """
    if version is None:
        return RecoveryTarget(None, parse_moment(timestamp), snapshot)
    found = _reading(lake, version, "version")
    if timestamp is not None or snapshot is not None:
        raise InvalidInput("say one of version, timestamp and snapshot")
    return found


def _reading(lake: Lakehouse, text: str, what: str) -> RecoveryTarget:
    return RecoveryTarget.read(text, lake.version, {each.name for each in lake.snapshots()}, what)


def at(lake: Lakehouse, text: str, what: str = "version") -> Lakehouse:
    """Return a handle of the version that a text refers to. Raises as ``target`` and ``Lakehouse.at`` do."""
    return lake.at(**_reading(lake, text, what).keywords())


def number(lake: Lakehouse, text: str | None) -> int | None:
    """Return the number of the version that a text refers to; ``None`` for ``None``. Raises as ``at`` does."""
    if text is None:
        return None
    found = _reading(lake, text, "version")
    if isinstance(found.version, int):
        return found.version
    return lake.at(**found.keywords()).version


def warn_of_future(opened: Callable[..., Lakehouse]) -> None:
    """Warn on standard error if the newest version is dated in the future: ages count from its date."""
    try:
        created = opened(damaged=True).info().created_at
    except TrinityLakeError:  # the command itself raises it
        return
    ahead = (created - clock.utc_now()).total_seconds()
    if ahead > _CLOCKS_DIFFER_SECONDS:
        sys.stderr.write(
            f"warning: the newest version is dated {created:%Y-%m-%d %H:%M} UTC, {ahead:,.0f} s from now: the "
            "clock of a writer ran ahead, and what was written since expires that much later\n"
        )

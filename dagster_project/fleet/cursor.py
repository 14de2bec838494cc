"""What the sensor of a fleet remembers of each lakehouse, in a cursor that stays small for thousands of them."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from dagster_project.check_results import COMPACTION_FRESH, DEBT, REACHABLE, SNAPSHOTS_FRESH
from dagster_project.compaction_policy import Seen

_FORMAT: Final = "1:"
_CHECKS: Final = (REACHABLE, DEBT, COMPACTION_FRESH, SNAPSHOTS_FRESH)
_WORDS: Final = {"+": True, "-": False}
_SIGNS: Final = {True: "+", False: "-", None: "?"}


@dataclass(frozen=True, slots=True)
class Mark:
    """What is remembered of one lakehouse.

    Attributes:
        seen: as the sensor of a single lakehouse has it.
        next_look: when to look again, in epoch seconds.
        quiet: how many looks in a row found nothing new.
        verdicts: the verdicts that were recorded last, by check.
        observed_at: when a version was recorded last, in epoch seconds.
    """

    seen: Seen = field(default_factory=Seen)
    next_look: float = 0.0
    quiet: int = 0
    verdicts: Mapping[str, bool] = field(default_factory=dict)
    observed_at: float = 0.0


def parse(cursor: str | None) -> dict[str, Mark]:
    """Return the marks of a cursor by lakehouse; none if it is empty or not ours."""
    if not cursor or not cursor.startswith(_FORMAT):
        return {}
    try:
        rows = json.loads(zlib.decompress(base64.b64decode(cursor.removeprefix(_FORMAT))))
        return {str(row[0]): _mark(*row[1:]) for row in rows}
    except (ValueError, TypeError, zlib.error):
        return {}


def _mark(
    version: int | None,
    look: int,
    requested: int,
    over_since: int | None,
    failing: int,
    alerted: int,
    quiet: int,
    signs: str,
    observed: int = 0,  # what was written before there was one has none
    *waiting: int | None,
) -> Mark:
    since, debt = waiting if len(waiting) == 2 else (None, 0)  # older releases wrote four figures, or none
    over = None if over_since is None else float(over_since)
    waiting_since = None if since is None else float(since)
    seen = Seen(version, float(requested), over, failing, bool(alerted), waiting_since, int(debt or 0))
    verdicts = {name: _WORDS[sign] for name, sign in zip(_CHECKS, signs, strict=True) if sign in _WORDS}
    return Mark(seen, float(look), quiet, verdicts, float(observed))


def text(marks: Mapping[str, Mark]) -> str:
    """Return the cursor."""
    rows = [[name, *_row(mark)] for name, mark in sorted(marks.items())]
    packed = zlib.compress(json.dumps(rows, separators=(",", ":")).encode(), 6)
    return _FORMAT + base64.b64encode(packed).decode()


def _row(mark: Mark) -> list[Any]:
    seen = mark.seen
    over = None if seen.over_since is None else int(seen.over_since)
    signs = "".join(_SIGNS[mark.verdicts.get(name)] for name in _CHECKS)
    row: list[Any] = [seen.version, int(mark.next_look), int(seen.requested_at), over, seen.failing, int(seen.alerted)]
    since = None if seen.waiting_since is None else int(seen.waiting_since)
    return [*row, mark.quiet, signs, int(mark.observed_at), since, seen.debt]

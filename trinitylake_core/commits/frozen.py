"""A frozen lakehouse: a property of its definition that every ordinary commit obeys (format, section 6).

The root that a commit stands on anyway contains the property, so obeying it costs no request. A writer that read its
root before the freeze loses the race for the next version, and meets the property when it rebases. Safety rests on
that. A clock decides one thing only: when a freeze with an end is over. It is that of the storage, the same for all.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from trinitylake_core import clock, spec
from trinitylake_core.commits import fences
from trinitylake_core.commits.backend import LakehouseBackend
from trinitylake_core.definitions import LakehouseDef
from trinitylake_core.errors import LakehouseFrozen
from trinitylake_core.versions import from_millis, to_millis

_OVER: Final[set[tuple[str, str | None]]] = set()
"""The freezes that are over, as this process has seen, by root and value of the property."""


@dataclass(frozen=True, slots=True)
class Freeze:
    """Why a lakehouse takes no ordinary commits.

    Attributes:
        reason: why; ``author`` froze it.
        since: when it was frozen, by the clock of the storage where it has an end, else of that process.
        until: when the freeze ends by itself, by the clock of the storage; ``None`` = when it is thawed.
    """

    reason: str
    author: str
    since: datetime
    until: datetime | None = None

    def property(self) -> str:
        """Return the value of the property ``maintenance.freeze``."""
        until = None if self.until is None else to_millis(self.until)
        about = {"author": self.author, "reason": self.reason, "since": to_millis(self.since), "until": until}
        return json.dumps(about, separators=(",", ":"), sort_keys=True)

    def __str__(self) -> str:
        until = "" if self.until is None else f", until {fences.show_time(to_millis(self.until))}"
        return f"frozen since {fences.show_time(to_millis(self.since))} by {self.author}{until}: {self.reason}"


def freeze_of(definition: LakehouseDef) -> Freeze | None:
    """Return the freeze in a lakehouse definition that has not ended; ``None`` if there is none. No request.

    A value that is no freeze freezes without an end: another writer meant to freeze.
    """
    text = definition.properties.get(spec.FREEZE)
    if text is None:
        return None
    freeze = parse_freeze(text) or Freeze(text[:200], "an unknown writer", from_millis(0))
    over = freeze.until is not None and to_millis(freeze.until) <= clock.now_millis()
    return None if over else freeze


def freeze_in_force(backend: LakehouseBackend, definition: LakehouseDef) -> Freeze | None:
    """Return the freeze in a lakehouse definition that has not ended, by the storage's clock; else ``None``.

    One ``put`` and one ``head`` for a freeze with an end, until this process knows that it is over. Else no request.
    """
    text = definition.properties.get(spec.FREEZE)
    freeze = None if text is None else parse_freeze(text)
    if freeze is None or freeze.until is None:
        return freeze_of(definition)
    key = (backend.storage.root, text)
    if key in _OVER:
        return None
    if fences.read_storage_clock(backend) < to_millis(freeze.until):
        return freeze
    _OVER.add(key)
    return None


def parse_freeze(text: str) -> Freeze | None:
    """Return the meaning of a value of the property ``maintenance.freeze``, also if it has ended; ``None``: nothing."""
    try:
        about = json.loads(text)
        until = None if about["until"] is None else from_millis(int(about["until"]))
        return Freeze(str(about["reason"]), str(about["author"]), from_millis(int(about["since"])), until)
    except (ValueError, KeyError, TypeError, OverflowError, OSError):
        return None


def refuse_frozen(backend: LakehouseBackend) -> None:
    """Refuse an ordinary commit to a frozen lakehouse.

    No request, unless the newest root that this process has seen is frozen: then three ``get``, for it may be thawed,
    and what the storage's time costs (:func:`freeze_in_force`).
    Raises ``LakehouseFrozen``: nothing was committed.
    """
    if freeze_in_force(backend, backend.definition(backend.newest_seen)) is None:
        return
    backend.note_newest(backend.newest())
    freeze = freeze_in_force(backend, backend.definition(backend.newest_seen))
    if freeze is not None:
        raise LakehouseFrozen(
            f"{backend.storage.root} is {freeze}. Nothing was committed; try again when it is thawed",
            reason=freeze.reason,
            author=freeze.author,
            since=freeze.since,
            until=freeze.until,
        )

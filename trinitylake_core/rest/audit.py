"""The audit log: one line of JSON for each change that a client asked for, and for each request that was refused.

Where the operator asks for it there is one for each read, too.

It says who wanted what of which object, and what came of it. It holds no token, no property of a table, no content of a
file, and no text of an exception.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

from trinitylake_core import clock

AUDIT: Final = logging.getLogger("trinitylake.audit")
CHANGING: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_READS_BY_POST: Final = frozenset({"accept_metrics", "sign_request"})
_LONGEST: Final = 300
_MOST_OBJECTS: Final = 100
_UNKNOWN: Final = "CommitStateUnknownException"


@dataclass(slots=True)
class Asked:
    """What one request asked for, as far as it was understood.

    Attributes:
        right: the highest right that it needed.
        objects: the names of namespaces, tables and views that it needed the right on.
        location: where the metadata of the table or view are.
        versions: those of the lakehouse that it became.
    """

    right: str | None = None
    objects: list[str] = field(default_factory=list)
    location: str | None = None
    versions: list[int] = field(default_factory=list)

    def note_object(self, right: str, name: str) -> None:
        """Note that a right on an object is needed."""
        self.right = right
        self.objects.append(name)

    def note_location(self, location: str) -> None:
        """Note where metadata are; without credentials that the client may have put there."""
        self.location = _without_credentials(location)


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """What a request was, and what it came to.

    Attributes:
        kind: the type of the error, ``None`` where there was none.
    """

    principal: str
    client: str
    method: str
    path: str
    operation: str
    status: int
    kind: str | None
    asked: Asked

    def is_audited(self) -> bool:
        """Whether this belongs into the audit log: a change, or a request that was refused."""
        if self.method in CHANGING and self.operation not in _READS_BY_POST:
            return True
        return self.status >= 400 and self.status != 404

    def is_read(self) -> bool:
        """Whether this asked for something of a catalog, and changed nothing."""
        return self.operation != "metrics"

    def write(self) -> None:
        """Write the line."""
        AUDIT.info(json.dumps(self._line()))

    def _line(self) -> dict[str, Any]:
        asked = self.asked
        found: dict[str, Any] = {
            "time": clock.utc_now().isoformat(timespec="milliseconds"),
            "principal": self.principal,
            "client": self.client,
            "operation": self.operation,
            "right": asked.right,
            "objects": [_shorten(each) for each in asked.objects[:_MOST_OBJECTS]],
            "location": _shorten(asked.location),
            "version": max(asked.versions, default=None),
            "outcome": self._word(),
            "status": self.status,
            "type": self.kind,
        }
        if len(asked.objects) > _MOST_OBJECTS:
            found["objects_left_out"] = len(asked.objects) - _MOST_OBJECTS
        if not asked.objects:
            found["request"] = _shorten(f"{self.method} {self.path}")
        return found

    def _word(self) -> str:
        if self.status < 400:
            return "done"
        if self.kind == _UNKNOWN:
            return "unknown"
        return "refused" if self.status < 500 or self.status == 503 else "failed"


def _shorten(text: str | None) -> str | None:
    if text is None or len(text) <= _LONGEST:
        return text
    return f"{text[:_LONGEST]}..."


def _without_credentials(location: str) -> str:
    """Return a location without user, password and query, which may be a signature."""
    try:
        parts = urlsplit(location)
    except ValueError:
        return "not a location"
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "", ""))

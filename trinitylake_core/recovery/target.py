"""Which version is meant: by number, by time, by the name of a snapshot, or as text: ``HEAD~3``, ``-2h``."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from trinitylake_core import clock
from trinitylake_core.commits.backend import LakehouseBackend
from trinitylake_core.durations import parse_age
from trinitylake_core.errors import InvalidInput, VersionNotFound
from trinitylake_core.snapshots import AGE, HEAD, SNAPSHOT_PREFIX, is_time, snapshot_root
from trinitylake_core.versions import Root, to_millis

MEANING: Final = "a number, HEAD, HEAD~3, a snapshot, a time, or an age such as -2h"
_DIGITS: Final = 18
_CLOCKS_DIFFER_MILLIS: Final = 60_000


@dataclass(frozen=True, slots=True)
class RecoveryTarget:
    """The version to go back to, or to restore from: exactly one of three ways to name it.

    Attributes:
        version: by number, or as text that :meth:`read` takes.
        timestamp: the newest version created at or before a time: text in ISO 8601, UTC unless it has an offset, an
            age such as ``-2h``, or a ``datetime`` with a time zone; ``HEAD~3`` is that version.
        snapshot: by the name of a snapshot.
    """

    version: int | str | None = None
    timestamp: datetime | str | None = None
    snapshot: str | None = None

    def keywords(self) -> dict[str, Any]:
        """Return the keyword arguments of ``Lakehouse.at``, ``rollback`` and ``restore``, and of their ``Config``."""
        return {"version": self.version, "timestamp": self.timestamp, "snapshot": self.snapshot}

    @property
    def is_given(self) -> bool:
        """Whether any of the three is given."""
        return self != RecoveryTarget()

    def refuse_ambiguous(self, what: str = "say one of version, timestamp and snapshot") -> None:
        """Raise ``InvalidInput`` unless exactly one is given, and a version is a number or a text."""
        ways = (self.version, self.timestamp, self.snapshot)
        given = [each for each in ways if each is not None]
        if len(given) != 1:
            raise InvalidInput(what)
        _refuse_no_version(self.version)

    def root(self, backend: LakehouseBackend) -> Root:
        """Return its root. By number two ``get``, by time O(log versions), by snapshot one, two or so if it is new.

        Raises:
            InvalidInput, VersionNotFound, VersionExpired, SnapshotNotFound, CorruptNode.
        """
        self.refuse_ambiguous()
        seen = backend.newest_seen
        if isinstance(self.version, str):
            snapshots = backend.definition(seen).snapshots
            target = RecoveryTarget.read(self.version, seen.version, snapshots)
            return target.root(backend)
        if self.version is not None:
            return backend.versions.root(self.version)
        if self.timestamp is not None:
            return _root_at_time(backend, self.timestamp)
        name = str(self.snapshot)
        definition = backend.definition(seen)
        if name not in definition.snapshots:
            backend.note_newest(backend.newest_readable())
            definition = backend.definition(backend.newest_seen)
        return snapshot_root(backend, definition, name)

    @classmethod
    def read(
        cls,
        text: str,
        newest: int,
        snapshots: Collection[str],
        what: str = "version",
    ) -> RecoveryTarget:
        """Return the target that a text means: see ``MEANING``; ``snapshot:NAME`` is always the snapshot. No request.

        Args:
            text: the text.
            newest: the number of the newest version, ``HEAD``.
            snapshots: the names of the snapshots.
            what: what the text names, for errors.

        Raises:
            InvalidInput: it means no version, or a version and a snapshot.
            VersionNotFound: it lies before version 0.
        """
        if text.startswith(SNAPSHOT_PREFIX):
            return cls(snapshot=text.removeprefix(SNAPSHOT_PREFIX))
        found = cls._read_version_or_time(text, newest)
        if found is None:
            if text not in snapshots:
                raise InvalidInput(f"{what}: there is no snapshot {text!r}, and {text!r} is not {MEANING}")
            return cls(snapshot=text)
        if text in snapshots:
            raise InvalidInput(
                f"{what} {text!r} is ambiguous, for a snapshot has this name, too: write {SNAPSHOT_PREFIX}{text} for "
                f"the snapshot, or else {found.other_spelling(text, newest)}"
            )
        return found

    @classmethod
    def _read_version_or_time(cls, text: str, newest: int) -> RecoveryTarget | None:
        number = plain_number(text)
        if number is not None:
            return cls(version=number)
        head = HEAD.fullmatch(text)
        if head is not None:
            back = int(head[1] or 0)
            if back > newest:
                raise VersionNotFound(f"{text} does not exist: version {newest} is the newest, and 0 the first")
            return cls(version=newest - back)
        when = parse_moment(text)
        if when is not None and is_time(when):
            return cls(timestamp=when)
        return None

    def other_spelling(self, text: str, newest: int) -> str:
        """Return another text for the same version, one that is the name of no snapshot."""
        if self.version is None:
            return "the time as timestamp"
        number = int(self.version)
        if text.isdecimal():
            return f"HEAD~{newest - number}"
        return str(number)


def parse_moment(text: str | None) -> datetime | str | None:
    """Return a time; an age such as ``2h`` or ``-2h`` is so long ago. Raises ``InvalidInput`` for one too long."""
    if text is None:
        return None
    age = AGE.fullmatch(text)
    if age is None:
        return text
    return clock.utc_now() - timedelta(seconds=parse_age(age[1]))


def refuse_no_moment(text: str) -> None:
    """Raise ``InvalidInput`` unless a text is a time, an age, or a version counted from the newest one."""
    if HEAD.fullmatch(text) is not None:
        return
    when = parse_moment(text)
    if when is not None and not is_time(when):
        raise InvalidInput(
            f"{text!r} is not an ISO 8601 time such as 2026-11-20T03:00:00Z, no age such as 2h, and no version such as "
            "HEAD~3"
        )


def read_moment(backend: LakehouseBackend, when: datetime | str) -> int:
    """Return a time as epoch milliseconds; ``HEAD~3`` is when that version was created. No request without it.

    Raises:
        InvalidInput: the text is none of the three.
        VersionNotFound, VersionExpired, CorruptNode: there is no such version any more.
    """
    if not isinstance(when, str):
        return to_millis(when)
    refuse_no_moment(when)
    if HEAD.fullmatch(when) is not None:
        return RecoveryTarget.read(when, backend.newest_seen.version, ()).root(backend).created_at_millis
    return to_millis(parse_moment(when) or when)


def _refuse_no_version(version: object) -> None:
    """Raise ``InvalidInput`` unless a version is ``None``, a number, or a text that may mean one."""
    if isinstance(version, str):
        is_one = bool(version.strip())
    else:
        is_one = version is None or (isinstance(version, int) and not isinstance(version, bool))
    if not is_one:
        raise InvalidInput(f"version must be {MEANING}, not {version!r}")


def _root_at_time(backend: LakehouseBackend, when: datetime | str) -> Root:
    """Return the newest root that was created at or before a time."""
    if isinstance(when, str) and HEAD.fullmatch(when) is not None:
        # The version itself: another one may have been created in the same millisecond.
        return RecoveryTarget.read(when, backend.newest_seen.version, ()).root(backend)
    millis = read_moment(backend, when)
    newest = backend.newest_readable()
    if millis > max(clock.now_millis(), newest.created_at_millis) + _CLOCKS_DIFFER_MILLIS:
        raise InvalidInput(f"timestamp {when} lies in the future")
    return backend.versions.at_timestamp(millis, newest)


def plain_number(text: str) -> int | None:
    """Return the number that a text is; ``None`` if it is none, or one that no version has."""
    is_number = text.isascii() and text.isdecimal()
    if not is_number or len(text) > _DIGITS:
        return None
    return int(text)

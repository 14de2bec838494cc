"""Which version is meant: by number, by time, or by the name of a snapshot."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from trinitylake_core.commits.files import Files
from trinitylake_core.errors import InvalidInput
from trinitylake_core.snapshots import snapshot_root
from trinitylake_core.versions import Root


@dataclass(frozen=True, slots=True)
class RecoveryTarget:
    """The version to go back to, or to restore from: exactly one of three ways to name it.

    Attributes:
        version: by number.
        timestamp: the newest version created at or before a time, ISO 8601, UTC unless it says otherwise.
        snapshot: by the name of a snapshot.
    """

    version: int | None = None
    timestamp: datetime | str | None = None
    snapshot: str | None = None

    def keywords(self) -> dict[str, Any]:
        """Return the keyword arguments of ``Lakehouse.at``, ``rollback`` and ``restore``, and of their ``Config``."""
        return {"version": self.version, "timestamp": self.timestamp, "snapshot": self.snapshot}

    @property
    def given(self) -> bool:
        """Whether any of the three is given."""
        return any(each is not None for each in (self.version, self.timestamp, self.snapshot))

    def refuse_ambiguous(self, what: str = "say one of version, timestamp and snapshot") -> None:
        """Raise ``InvalidInput`` unless exactly one is given."""
        if sum(each is not None for each in (self.version, self.timestamp, self.snapshot)) != 1:
            raise InvalidInput(what)

    def root(self, files: Files) -> Root:
        """Return its root. By number two ``get``, by time O(log versions), by snapshot one, two or so if it is new.

        Raises:
            InvalidInput, VersionNotFound, VersionExpired, SnapshotNotFound, CorruptNode.
        """
        self.refuse_ambiguous()
        if self.version is not None:
            return files.versions.root(self.version)
        if self.timestamp is not None:
            return files.versions.at_timestamp(self.timestamp, files.newest_readable())
        return _snapshot_root(files, str(self.snapshot))


def _snapshot_root(files: Files, name: str) -> Root:
    definition = files.definition(files.tip)
    if name not in definition.snapshots:
        files.saw(files.newest_readable())
        definition = files.definition(files.tip)
    return snapshot_root(files, definition, name)

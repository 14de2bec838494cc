"""The time of tests: the clock of this process, and that of its storages, moved in one place.

    def test_old_versions_go(clock: Clock) -> None:
        clock.forward(days=30)
        ...
        with clock.another(hours=-1, with_storage=False): # this process only, as if its clock were wrong
            ...

Files keep the times that the disk gives them: to a clock that went ahead they are old. Sleeping takes real time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pytest

from trinitylake_core import clock as own
from trinitylake_core.commits import fences
from trinitylake_core.commits.backend import LakehouseBackend

HOUR: Final = 3_600_000
DAY: Final = 24 * HOUR


class Clock:
    """Two clocks that a test sets: that of this process, and that of every storage it asks for the time."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._ahead = 0
        self._storage_ahead = 0
        self._stopped_at: int | None = None
        self._read_storage = fences.read_storage_clock
        patch.setattr(own, "now_millis", self.now)
        patch.setattr(fences, "read_storage_clock", self._storage_now)

    def now(self) -> int:
        """Return the time of this process, in epoch milliseconds."""
        if self._stopped_at is not None:
            return self._stopped_at
        return time.time_ns() // 1_000_000 + self._ahead

    def forward(self, *, days: float = 0, hours: float = 0, millis: int = 0, with_storage: bool = True) -> None:
        """Let time pass at once."""
        passed = round(days * DAY + hours * HOUR) + millis
        self._ahead += passed
        if with_storage:
            self._storage_ahead += passed

    def set(self, millis: int) -> None:
        """Set the clock of this process alone; it goes on from there."""
        self._ahead += millis - self.now()

    def stop(self, millis: int) -> None:
        """Let the clock of this process show one time from now on."""
        self._stopped_at = millis

    @contextmanager
    def another(
        self, *, days: float = 0, hours: float = 0, millis: int = 0, with_storage: bool = True
    ) -> Iterator[None]:
        """Let the clocks show a later time, or an earlier one, within a block."""
        before = self._ahead, self._storage_ahead
        self.forward(days=days, hours=hours, millis=millis, with_storage=with_storage)
        try:
            yield
        finally:
            self._ahead, self._storage_ahead = before

    def _storage_now(self, backend: LakehouseBackend) -> int:
        return self._read_storage(backend) + self._storage_ahead

"""A store that misbehaves, by the clock of :mod:`tests.support.rounds`: seconds without waiting for them.

    with MisbehavingClock(lake.storage, share=0.01, seed=7) as clock:
        job()
    assert clock.seconds < 2.0

The faults are those of :mod:`tests.support.slow_s3`, each by chance at ``share``. Every request takes ``delay``; what
is late is sent again as the real patience of an S3 client decides, what failed is retried after the
pauses that the real policy makes, and a caller that waits in vain begins more, as with real threads. CPU takes
no time here, so a run is the same on any machine.
"""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from tests.support.rounds import Rounds
from trinitylake_core.storage import Storage
from trinitylake_core.storage.failures import TransientError
from trinitylake_core.storage.objects import Patience, patience_of_kinds
from trinitylake_core.storage.requests import CommonOptions

LATE_SECONDS: Final = 2.0
STALL_SECONDS: Final = 40.0
READ_TIMEOUT_SECONDS: Final = 30.0
REQUEST_TIMEOUT_SECONDS: Final = 60.0
_FAULTS: Final = ("slow down", "drop after", "late", "stall", "trickle")
_WITH_BODIES: Final = frozenset({"get", "list"})
_ASKED_BEFORE: Final = 64
"""Gets of this client before the clock began: clients are shared by all that goes on in a process."""


class MisbehavingClock(Rounds):
    """A clock in seconds."""

    waits = True

    def __init__(self, *storages: Storage, share: float, seed: int, delay: float = 0.025, most: int = 32) -> None:
        super().__init__(*storages, most=most)
        self.faults: Counter[str] = Counter()
        self.again: Counter[str] = Counter()
        self.longest = 0.0
        self.waited = 0.0
        """How long creations and deletions were waited for beyond the usual: they are not sent a second time."""
        self._share = share
        self._delay = delay
        self._chance = random.Random(seed)
        self._patience = patience_of_kinds(0.1, REQUEST_TIMEOUT_SECONDS)
        for _ in range(_ASKED_BEFORE):
            self._patience["get"].note_answer(delay)

    @property
    def seconds(self) -> float:
        """How long all requests took, those that overlap together."""
        return float(self.now)

    @property
    def requests(self) -> int:
        """How many requests there were, those that were asked again counted as well."""
        return len(self.log) + self.again.total()

    def options(self, options: CommonOptions) -> CommonOptions:
        """Return options whose pauses take time on this clock only: two thirds of the longest."""
        return _Pausing(**dataclasses.asdict(options), clock=self)

    def __call__(self, kind: str, path: str, action: Callable[[], Any]) -> Any:
        """Carry out a request, or let it fail, and let time pass."""
        if kind == "sync":
            return action()
        began = self.now
        self.log.append((began, kind, path))
        try:
            patience = self._patience.get(kind)
            return self._patiently(kind, patience, action) if patience else self._once(kind, action)
        finally:
            self.longest = max(self.longest, self.now - began)

    def _patiently(self, kind: str, patience: Patience, action: Callable[[], Any]) -> Any:
        tries = 0
        while True:
            fault, wait = self._fault(), patience.choose_timeout(tries)
            seconds = self._takes(kind, fault)
            if wait is None or seconds <= wait:
                try:
                    return self._answer(fault, seconds, action)
                finally:
                    patience.note_answer(seconds)
            self.now += wait
            patience.note_repetition()
            self.again[kind] += 1
            tries += 1

    def _once(self, kind: str, action: Callable[[], Any]) -> Any:
        """Carry out a creation or a deletion: it is waited for."""
        fault, began = self._fault(), self.now
        try:
            return self._answer(fault, self._takes(kind, fault), action)
        finally:
            self.waited += self.now - began - self._delay

    def _fault(self) -> str:
        drawn = self._chance.random()
        number = int(drawn / self._share) if self._share else len(_FAULTS)
        fault = _FAULTS[number] if number < len(_FAULTS) else ""
        self.faults[fault or "none"] += 1
        return fault

    def _takes(self, kind: str, fault: str) -> float:
        if fault == "trickle" and kind in _WITH_BODIES:
            return REQUEST_TIMEOUT_SECONDS + 1
        return {"late": LATE_SECONDS, "stall": STALL_SECONDS}.get(fault, self._delay)

    def _answer(self, fault: str, seconds: float, action: Callable[[], Any]) -> Any:
        limit = REQUEST_TIMEOUT_SECONDS if fault == "trickle" else READ_TIMEOUT_SECONDS
        self.now += min(seconds, limit)
        if seconds > limit:
            raise TransientError("no answer in time", undone=False)
        if fault == "slow down":
            raise TransientError("503 SlowDown", undone=True)
        result = action()
        if fault == "drop after":
            raise TransientError("the connection was reset", undone=False)
        return result


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pausing(CommonOptions):
    """Options whose pauses go by a clock."""

    clock: MisbehavingClock

    def pause(self, attempt: int) -> None:
        """Let time pass."""
        self.clock.now += min(self.retry_max_seconds, self.retry_base_seconds * 2.0**attempt) * 2 / 3

"""Faults injected at single storage requests: fail, lose the answer, delay, or kill the process.

    plan = attach(storage, FaultPlan("fail", at=3))

Requests count from 1. A dry run with ``FaultPlan("count")`` tells how many there are.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from trinitylake_core.errors import StorageError
from trinitylake_core.storage import Storage
from trinitylake_core.storage.base import BaseStorage
from trinitylake_core.storage.failures import TransientError

S = TypeVar("S", bound=Storage)
Mode = Literal[
    "count",  # do nothing but count
    "fail",  # request `at` fails before it is carried out, once: a retry mends it
    "fail_from",  # every request from `at` on fails: the operation fails as a whole
    "fail_permanently",  # request `at` fails with an error that is not tried again
    "lose",  # request `at` is carried out and its answer lost
    "lose_from",  # every answer from request `at` on is lost
    "kill",  # the process dies before request `at`
    "kill_after",  # the process dies after request `at`
    "delay",  # request `at` waits `seconds` before it is carried out
]


@dataclass
class FaultPlan:
    """What goes wrong at which request. ``kinds`` restricts both counting and faults to some kinds of request."""

    mode: Mode = "count"
    at: int = 1
    kinds: Collection[str] | None = None
    seconds: float = 0.05
    count: int = 0
    log: list[tuple[str, str]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def __call__(self, kind: str, path: str, action: Callable[[], Any]) -> Any:
        """Carry out ``action`` or make it go wrong; the storage's interceptor."""
        if self.kinds is not None and kind not in self.kinds:
            return action()
        with self._lock:
            self.count += 1
            number = self.count
            self.log.append((kind, path))
        if number == self.at or (number > self.at and self.mode in {"fail_from", "lose_from"}):
            return self._strike(f"{kind} of {path!r}, request {number}", action)
        return action()

    def _strike(self, what: str, action: Callable[[], Any]) -> Any:
        match self.mode:
            case "fail" | "fail_from":
                raise TransientError(f"injected failure before {what}")
            case "fail_permanently":
                raise StorageError(f"injected permanent failure before {what}")
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "delay":
                time.sleep(self.seconds)
        try:
            return action()
        finally:  # an error is an answer, too
            if self.mode == "kill_after":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.mode in {"lose", "lose_from"}:
                raise TransientError(f"injected loss of the answer to {what}")


def attach(storage: Storage, plan: FaultPlan) -> FaultPlan:
    """Let every request of ``storage`` pass through ``plan``; return the plan."""
    assert isinstance(storage, BaseStorage), f"{storage!r} has no requests to inject faults into"
    storage.interceptor = plan
    return plan


def detach(storage: Storage) -> None:
    """Let the requests of ``storage`` pass unharmed again."""
    assert isinstance(storage, BaseStorage), f"{storage!r} has no requests to inject faults into"
    storage.interceptor = None

"""How long a storage has given no answer: what a command says to a person who waits.

A request is waited for until its outcome is known, over all attempts: a storage that refuses connections is as silent
as one that hangs. An answer to any request ends the silence of its storage.
"""

from __future__ import annotations

import threading
import time
from types import TracebackType


class Silence:
    """The requests of one storage that are waited for, and when it answered last. ``with`` it is waited for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waited_for = 0
        self._since = 0.0

    def __enter__(self) -> None:
        with self._lock:
            if self._waited_for == 0:
                self._since = time.monotonic()
            self._waited_for += 1

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with self._lock:
            self._waited_for -= 1
            self._since = time.monotonic()

    def seconds(self) -> float:
        """Return how long the storage has been silent; 0 if nobody waits for it."""
        with self._lock:
            if self._waited_for == 0:
                return 0.0
            return time.monotonic() - self._since

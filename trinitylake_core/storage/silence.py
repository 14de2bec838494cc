"""How long a storage has given no answer: what a command says to a person who waits.

A request is waited for until its outcome is known, over all attempts: a storage that refuses connections is as silent
as one that hangs. An answer to any request ends the silence of its storage.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, TypeVar

from trinitylake_core.errors import StorageError
from trinitylake_core.storage.failures import Unanswered

T = TypeVar("T")
_FAILURES: Final = 3
_PATIENT_SECONDS: Final = 20.0
"""A request that has waited longer than that gets no further attempt, and the store is asked no more at once."""
_ASKED_AGAIN_SECONDS: Final = 60.0
"""For so long a store is asked no more at the least: a service is served again."""
_ASKED_AGAIN_TIMES: Final = 10
"""So many times longer than the last request waited: one that hangs costs a long job a tenth of its time."""


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


class Failures:
    """How often in a row a store gave no answer. After some times, or a long one, it is asked no more for a while."""

    def __init__(self) -> None:
        self._count = 0
        self._ends = 0.0

    def are_enough(self, began: float) -> bool:
        """Whether a request that began then gets no further attempt, which may hang, too."""
        return self._count > 0 or time.monotonic() - began >= _PATIENT_SECONDS

    def ask(self, store: str, action: Callable[[], T]) -> T:
        """Return the answer of a store. Raises ``StorageError``: it gives none, or has given none before.

        A refusal is an answer, which may be another one for another file: who chose that file may not stop all others.
        """
        began = time.monotonic()
        if began < self._ends:
            raise StorageError(f"{store} gave no answer, and is asked no more for a while")
        try:
            answer = action()
        except Unanswered:
            self._note_silence(time.monotonic() - began)
            raise
        self._count = 0
        return answer

    def _note_silence(self, seconds: float) -> None:
        self._count += 1
        if self._count >= _FAILURES or seconds >= _PATIENT_SECONDS:
            pause = max(_ASKED_AGAIN_SECONDS, _ASKED_AGAIN_TIMES * seconds)
            self._ends = time.monotonic() + pause

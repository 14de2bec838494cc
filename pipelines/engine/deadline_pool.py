"""Work that may hang, in threads of which there are never too many, with a deadline for each piece and one for all.

A thread that waits for a storage cannot be ended from outside. It can be left behind: its result is thrown away when it
comes. A caller that has left one behind gets no second one before the first is back, so that a storage that hangs costs
one thread, however often it is used.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from trinitylake_core.errors import StorageError

T = TypeVar("T")
_AT_ONCE: Final = 32
_HANGING: Final = 128


class NoAnswer(StorageError):
    """The storage gave no answer before the deadline."""


@dataclass(frozen=True, slots=True)
class TaskOutcome(Generic[T]):
    """What became of a piece of work: its result, or the error it ended with."""

    name: str
    result: T | None
    error: Exception | None

    def get(self) -> T:
        """Return the result. Raises the error."""
        if self.error is not None:
            raise self.error
        return self.result  # type: ignore[return-value] # without an error there is a result, which may be None


class _Piece:
    """One thread's piece of work, and whether it is done."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.begun = time.monotonic()
        self.done = False


class DeadlinePool:
    """Runs pieces of work by name, in at most ``at_once`` threads per call, and leaves those behind that hang.

    Not more than ``hanging`` threads are left behind at any time. From half of it on, work that hung the last time is
    not begun again, so that the rest is there for work that never did.
    """

    def __init__(self, at_once: int = _AT_ONCE, hanging: int = _HANGING) -> None:
        self._at_once = at_once
        self._limit = hanging
        self._lock = threading.Lock()
        self._left: set[_Piece] = set()
        self._suspects: set[str] = set()

    @property
    def hanging(self) -> int:
        """How many threads were left behind and have not come back."""
        with self._lock:
            return len(self._left)

    def one(self, name: str, work: Callable[[], T], seconds: float) -> T:
        """Return the result of one piece of work. Raises its error, or ``NoAnswer`` after ``seconds``."""
        (outcome,) = self.each([(name, work)], seconds, seconds + 1.0)
        return outcome.get()

    def each(
        self, wanted: Iterable[tuple[str, Callable[[], T]]], seconds: float, total: float
    ) -> Iterator[TaskOutcome[T]]:
        """Yield the outcomes in the order they come in. REQUIRES: names differ.

        Each piece may take ``seconds``. After ``total`` seconds nothing more is begun, and what is under way is left
        behind; what was not begun is not yielded.
        """
        end = time.monotonic() + total
        waiting = iter(wanted)
        running: dict[str, _Piece] = {}
        results: queue.SimpleQueue[TaskOutcome[T]] = queue.SimpleQueue()
        more = True
        while more or running:
            while more and len(running) < self._at_once:
                following = None
                if time.monotonic() < end:
                    following = next(waiting, None)
                if following is None:
                    more = False
                    break
                name, work = following
                refusal = self._refusal(name)
                if refusal is not None:
                    yield TaskOutcome(name, None, NoAnswer(refusal))
                    continue
                running[name] = self._start(name, work, results)
            if running:
                yield from self._await_one(results, running, seconds, end)

    def _await_one(
        self,
        results: queue.SimpleQueue[TaskOutcome[T]],
        running: dict[str, _Piece],
        seconds: float,
        end: float,
    ) -> Iterator[TaskOutcome[T]]:
        """Wait for the next result or the next deadline, and yield what it brings."""
        first_begun = min(piece.begun for piece in running.values())
        due = min(first_begun + seconds, end)
        try:
            outcome = results.get(timeout=max(0.001, due - time.monotonic()))
        except queue.Empty:
            yield from self._leave_behind(running, seconds, end)
            return
        if running.pop(outcome.name, None) is not None:  # else it was left behind, and comes too late
            yield outcome

    def _leave_behind(self, running: dict[str, _Piece], seconds: float, end: float) -> Iterator[TaskOutcome[T]]:
        """Give up the pieces whose time is over."""
        now = time.monotonic()
        for piece in list(running.values()):
            if now < min(piece.begun + seconds, end):
                continue
            del running[piece.name]
            with self._lock:
                if not piece.done:
                    self._left.add(piece)
                    self._suspects.add(piece.name)
            why = f"the storage gave no answer within {now - piece.begun:.0f} s"
            yield TaskOutcome(piece.name, None, NoAnswer(why))

    def _refusal(self, name: str) -> str | None:
        """Return the reason for which a piece of work may not begin; ``None`` if it may."""
        with self._lock:
            begun = [piece.begun for piece in self._left if piece.name == name]
            since = min(begun, default=None)
            if since is not None:
                return f"the storage has given no answer for {time.monotonic() - since:.0f} s"
            if name in self._suspects:
                limit = self._limit // 2
            else:
                limit = self._limit
            if len(self._left) >= limit:
                return f"not tried while {len(self._left)} other storages give no answer"
        return None

    def _start(self, name: str, work: Callable[[], T], results: queue.SimpleQueue[TaskOutcome[T]]) -> _Piece:
        piece = _Piece(name)

        def carry_out() -> None:
            try:
                outcome: TaskOutcome[T] = TaskOutcome(name, work(), None)
            except Exception as error:  # noqa: BLE001 - the caller gets it
                outcome = TaskOutcome(name, None, error)
            with self._lock:
                piece.done = True
                if piece not in self._left:
                    self._suspects.discard(name)
                self._left.discard(piece)
            results.put(outcome)

        threading.Thread(target=carry_out, name=f"look at {name}", daemon=True).start()
        return piece

"""How many requests to a server may be under way: all at first, fewer after it asks to slow down.

As in TCP: answers that ask for fewer halve the number, once for all requests that were under way when they came;
every success adds a little, until as many are allowed as ever were at once. A single such answer changes nothing:
every store says so now and then, and one request in a hundred would keep two thirds of them from being sent.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Final

_LAST: Final = 16
_ENOUGH: Final = 3
"""Of so many answers in a row, ``_LAST``, so many must ask for fewer."""


class Pace:
    """Lets requests begin. Thread-safe; shared by all that talk to one server with one set of options."""

    def __init__(self) -> None:
        self._ready = threading.Condition()
        self._running = 0
        self._most = 1
        self._limit: float | None = None
        self._round = 0
        self._answers = 0
        self._warnings: deque[tuple[int, int]] = deque(maxlen=_ENOUGH)
        """The number of an answer that asked for fewer, and how many requests were under way then."""

    @property
    def limit(self) -> int | None:
        """How many requests may be under way; ``None`` while nothing asked for fewer."""
        return None if self._limit is None else int(self._limit)

    def begin(self) -> int:
        """Wait until one more request may begin; return what :meth:`end` needs to know of it."""
        with self._ready:
            while self._limit is not None and self._running >= int(self._limit):
                self._ready.wait()
            self._running += 1
            self._most = max(self._most, self._running)
            return self._round

    def end(self, began: int, *, slow_down: bool) -> None:
        """Note that a request is over, and whether its answer asked for fewer."""
        with self._ready:
            self._answers += 1
            if slow_down and began == self._round:
                self._slow_down()
            elif not slow_down and self._limit is not None:
                self._limit += 1 / self._limit
                if self._limit >= self._most:
                    self._limit = None
            self._running -= 1
            self._ready.notify_all() if self._limit is None else self._ready.notify()

    def _slow_down(self) -> None:
        """Halve the number if enough of the last answers asked for fewer."""
        self._warnings.append((self._answers, self._running))
        if len(self._warnings) == _ENOUGH and self._answers - self._warnings[0][0] < _LAST:
            running = max(running for _, running in self._warnings)
            self._limit = max(1.0, min(running, self._limit or running) / 2)
            self._round += 1
            self._warnings.clear()

"""When to give up waiting for a request and ask again: after a multiple of what such requests usually take.

A request that is late is dropped with its connection, and the same is asked for once more: most are late because of
one server or connection among many. How long to wait is 1/8 s or a power of two times that, each with connections of
its own: about four to eight times the median of the last requests of the kind, 2 s while there are none, and twice as
long each time that the same is asked for. At most a given share of all requests of a kind is asked for again; where
that is used up, only one that also takes more than 4 s: it is lost, not late.

That is for requests that may be repeated without harm: a dropped one may still be carried out.
"""

from __future__ import annotations

import math
import statistics
import threading
from collections import deque
from typing import Final

_SHORTEST_SECONDS: Final = 0.125
_FACTOR: Final = 4.0
_REMEMBERED: Final = 64
_FEWEST: Final = 8
_SAVED_UP: Final = 8.0
"""So many requests in a row may be asked for twice; a server that is slow as a whole is not asked twice for all."""
_AT_FIRST_SECONDS: Final = 2.0
_MOST_TIMES: Final = 3
"""So often the same is asked for again before it is waited for as long as the deadline allows."""
_LOST_SECONDS: Final = 4.0
"""A request that takes longer than that, and unusually long, is lost rather than late, and counts for no share."""
_USUAL_BYTES: Final = 1 << 18
"""Up to so many bytes are written in the time that a small request takes."""


class Hedge:
    """The patience of one client with one kind of request. Thread-safe; times in seconds."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._lock = threading.Lock()
        self._seconds: deque[float] = deque(maxlen=_REMEMBERED)
        self._noted = 0
        self._patience: float | None = None
        self._budget = _SAVED_UP

    def patience(self) -> float | None:
        """Return how long requests of this kind may take, by those that were answered; ``None``: nothing is known.

        ``None``, too, where the share of those that may be asked for again is used up.
        """
        if self._patience is None or self._budget < 1.0:
            return None
        return self._patience

    def wait(self, asked: int, size: int = 0) -> float | None:
        """Return how long to wait for a request; ``None``: as long as the deadline allows.

        ``asked`` says how often the same was asked for before, ``size`` how many bytes it carries.
        """
        if not self._share or asked >= _MOST_TIMES:
            return None
        doublings = asked + (size // _USUAL_BYTES).bit_length()
        patience = self._patience or _AT_FIRST_SECONDS
        if self._budget < 1.0:
            patience = max(patience, _LOST_SECONDS)
        return float(patience * 2**doublings)

    def note(self, seconds: float) -> None:
        """Note how long a request took that was answered."""
        if not self._share:
            return
        with self._lock:
            self._budget = min(_SAVED_UP, self._budget + self._share)
            self._seconds.append(seconds)
            self._noted += 1
            if self._noted == _FEWEST or self._noted % (_REMEMBERED // 2) == 0:
                self._patience = _patience(statistics.median(self._seconds), self._patience)

    def late(self) -> None:
        """Note that a request is asked for again."""
        with self._lock:
            self._budget = max(0.0, self._budget - 1.0)


def _patience(median: float, now: float | None) -> float:
    """Return the patience for a median; it stays as it is while that is anywhere near."""
    if now is not None and _FACTOR / 2 * median <= now <= _FACTOR * 4 * max(median, _SHORTEST_SECONDS / _FACTOR):
        return now
    steps = math.ceil(math.log2(max(1.0, _FACTOR * median / _SHORTEST_SECONDS)))
    return float(_SHORTEST_SECONDS * 2**steps)

"""When to give up waiting for a request and ask again: after a multiple of what such requests usually take.

A request that is late is dropped with its connection, and the same is asked for once more: most are late because of
one server or connection among many. How long to wait is 1/8 s or a power of two times that, each with connections of
its own: about four to eight times the median of the last requests of the kind, and twice that when the same was late
twice before. While there are none of the kind, what is known of another kind counts, four times as long, and 2 s where
nothing is known at all.

At most a given share of all requests of a kind is asked for again. Where little of it is left, patience is up to four
times as long: times spread widely, on a busy machine for example, and the share is for what is lost. Where it is used
up, only a request that also takes more than 4 s is asked for again: it is lost, not late.

A request that was dropped may still be carried out. So this is for those that may be repeated without harm, and for
those whose outcome is found out afterwards.
"""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

_SHORTEST_SECONDS: Final = 0.125
_FACTOR: Final = 4.0
_REMEMBERED: Final = 64
_PERIOD: Final = 32
"""After so many requests it is looked at anew how long they take."""
_FEWEST: Final = 8
_SAVED_UP: Final = 32.0
"""So many in a row, all that are under way, may be asked for twice; a server that is slow as a whole is spared."""
_AT_FIRST_SECONDS: Final = 2.0
_FROM_OTHERS: Final = 4
"""Kinds of requests differ: what is known of one counts so many times for another."""
_FROM_FEW: Final = 8
"""While there were only few requests of a kind, the longest of them counts so many times."""
_SPARING: Final = (0.5, 0.25)
"""When less than such a part of what was saved up is left, patience doubles: the rest is for those that are lost."""
_MOST_TIMES: Final = 3
"""So often the same is asked for again before it is waited for as long as the deadline allows."""
_LOST_SECONDS: Final = 4.0
"""A request that takes longer than that, and unusually long, is lost rather than late, and counts for no share."""
_USUAL_BYTES: Final = 1 << 18
"""Up to so many bytes are written in the time that a small request takes."""


class Hedge:
    """The patience of one client with one kind of request. Thread-safe; times in seconds."""

    def __init__(self, share: float, like: Hedge | None = None, least: float = _SHORTEST_SECONDS) -> None:
        """Begin with no patience of its own; ``like`` is of another kind, ``least`` a power of two times 1/8 s."""
        self._share = share
        self._like = like
        self._least = least
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

    def _known(self) -> float:
        """Return the patience with this kind, as far as anything is known."""
        if self._patience is not None:
            sparing = sum(self._budget < left * _SAVED_UP for left in _SPARING)
            return max(self._least, self._patience * float(2**sparing))
        known = [_FROM_FEW * seconds for seconds in list(self._seconds)]
        if self._like is not None and self._like._noted >= _FEWEST:  # noqa: SLF001 - same class
            known.append(_FROM_OTHERS * self._like._known())  # noqa: SLF001
        return max(self._least, min(_AT_FIRST_SECONDS, _rounded(max(known, default=_AT_FIRST_SECONDS))))

    def wait(self, asked: int, size: int = 0) -> float | None:
        """Return how long to wait for a request; ``None``: as long as the deadline allows.

        ``asked`` says how often the same was asked for before, ``size`` how many bytes it carries.
        """
        if not self._share or asked >= _MOST_TIMES:
            return None
        doublings = max(0, asked - 1) + (size // _USUAL_BYTES).bit_length()
        patience = float(self._known() * 2**doublings)
        return patience if self._budget >= 1.0 else max(patience, _LOST_SECONDS)

    def note(self, seconds: float) -> None:
        """Note how long a request took that was answered."""
        if not self._share:
            return
        with self._lock:
            self._budget = min(_SAVED_UP, self._budget + self._share)
            self._seconds.append(seconds)
            self._noted += 1
            if self._noted == _FEWEST or self._noted % _PERIOD == 0:
                self._patience = _patience(statistics.median(self._seconds), self._patience)

    def late(self) -> None:
        """Note that a request is asked for again."""
        with self._lock:
            self._budget = max(0.0, self._budget - 1.0)


def patiently(
    hedge: Hedge, deadline: float, send: Callable[[float | None], T], again: Callable[[], None], size: int = 0
) -> T:
    """Carry out a request that may be repeated without harm; if it takes unusually long, ``again``, with more patience.

    ``send`` raises ``TimeoutError`` after so many seconds, ``None``: after ``deadline``, as this function does.
    """
    asked = 0
    while True:
        wait = hedge.wait(asked, size)
        quick = wait is not None and wait < deadline
        started = time.perf_counter()
        try:
            result = send(wait if quick else None)
        except TimeoutError:
            if not quick:
                raise
            hedge.late()
            again()
            asked += 1
        except ConnectionError:
            raise
        except Exception:  # an answer as well: that a file is missing, for example
            hedge.note(time.perf_counter() - started)
            raise
        else:
            hedge.note(time.perf_counter() - started)
            return result


def _patience(median: float, now: float | None) -> float:
    """Return the patience for a median; it stays as it is while that is anywhere near."""
    if now is not None and _FACTOR / 2 * median <= now <= _FACTOR * 2 * max(median, _SHORTEST_SECONDS / _FACTOR):
        return now
    return _rounded(_FACTOR * median)


def _rounded(seconds: float) -> float:
    """Return the next longer time that is 1/8 s or a power of two times that."""
    steps = math.ceil(math.log2(max(1.0, seconds / _SHORTEST_SECONDS)))
    return float(_SHORTEST_SECONDS * 2**steps)

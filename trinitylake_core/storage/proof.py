"""The proof that a store decides: of those who race for one name, exactly one wins (format, section 1).

Stores exist that ignore the preconditions, and stores that look whether a file is there and write it some time later.
The second kind lets two writers win only when they meet in between, so a proof is a sample: it can find a store
unfit, and it can only fail to do so. ``trinitylake doctor`` and the check before the first write take theirs here.

There are two kinds of rounds, each for a name of its own:

* In a *crowd* many threads wait at a barrier and write at once, over two clients whose connections are open.
* In a *duel* one large file is written against a small one, which is sent a little later. A store that looks first
  needs time for the large file, and the small one may come in between. When the small one is refused it came too
  late, when the large one is refused it came too early. So the delay is searched by halves, and soon the two meet at
  the moment at which the store decides.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from trinitylake_core.errors import StorageError, UnsafeStorage

_SMALL_BYTES: Final = 16
_MIDDLE_BYTES: Final = 64 << 10
_LARGE_BYTES: Final = 6 << 20
"""More than the 5 MiB that some servers hold in memory: writing the rest to their disk takes them long."""
_LARGE_SECONDS: Final = 20.0
"""No duel with a large file begins later than that: a slow line must not take minutes."""
_JITTER: Final = 0.25
"""By this part of the interval that is searched, a delay differs from its middle: to meet once by chance is enough."""
_NARROWEST_SECONDS: Final = 0.0005
Item = TypeVar("Item")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Sample:
    """How many rounds a proof has.

    Attributes:
        crowds: rounds in which ``racers`` write at once.
        racers: how many threads.
        duels: rounds of a file of 64 KiB against a small one.
        large_duels: the same with 6 MiB; fewer where they take longer than 20 s.
    """

    crowds: int
    racers: int
    duels: int
    large_duels: int = 0


SHORT: Final = Sample(crowds=4, racers=8, duels=8)
"""Before the first write of a process: 56 requests in 13 round trips, and one that deletes."""
THOROUGH: Final = Sample(crowds=24, racers=12, duels=24, large_duels=12)
"""For ``trinitylake doctor``: some 500 requests, and 72 MiB."""


class Contest(Protocol):
    """Something of which a store must give away one for each name. Thread-safe."""

    what: str
    """What a racer does, as a plural: ``creations``."""

    def warm_up(self, client: int) -> None:
        """Send a request over a client that changes nothing, so that its connection is open."""

    def prepare(self, name: str) -> None:
        """Make a name ready for a round."""

    def attempt(self, client: int, name: str, data: bytes) -> bool:
        """Try to win a name with this content, over one of the two clients; return whether the store agreed."""

    def holds(self, name: str, data: bytes) -> bool:
        """Return whether the store has this content under a name."""


def prove(contest: Contest, sample: Sample, prefix: str) -> int:
    """Let racers race for names that begin with ``prefix``; return how many rounds there were.

    The files that they made are there afterwards: the caller deletes them. A round costs a request for each racer, one
    to look what the store has, and what ``Contest.prepare`` costs.

    Raises:
        UnsafeStorage: in one of the rounds not exactly one won, or the store has another one's content.
        StorageError: the storage failed in a round in which fewer than two won; nothing is proved.
    """
    rounds = _Rounds(contest, prefix)
    with ThreadPoolExecutor(sample.racers, "trinitylake-proof") as threads:
        for warmed in _begin_each(threads, contest.warm_up, range(sample.racers)):
            warmed.result()
        for _ in range(sample.crowds):
            rounds.run(threads, _crowd(sample.racers))
        _fight(rounds, threads, _MIDDLE_BYTES, sample.duels, float("inf"))
        _fight(
            rounds,
            threads,
            _LARGE_BYTES,
            sample.large_duels,
            _LARGE_SECONDS,
        )
    return rounds.done


@dataclass(frozen=True, slots=True)
class _Racer:
    """One that tries to win: after a delay, with a content that no other one has."""

    client: int
    data: bytes
    delay_seconds: float = 0.0


def _crowd(racers: int) -> list[_Racer]:
    """Return racers that start at once; both clients have half of them."""
    crowd: list[_Racer] = []
    for number in range(racers):
        crowd.append(_Racer(number, b"%*d" % (_SMALL_BYTES, number)))
    return crowd


class _Rounds:
    """The rounds of one proof: counts them, and judges each."""

    def __init__(self, contest: Contest, prefix: str) -> None:
        self._contest = contest
        self._prefix = prefix
        self.done = 0

    def run(self, threads: ThreadPoolExecutor, racers: Sequence[_Racer]) -> int:
        """Run one round and return the number of the racer that won. Raises as :func:`prove`."""
        name = f"{self._prefix}{self.done}"
        self._contest.prepare(name)
        barrier = threading.Barrier(len(racers))

        def race(racer: _Racer) -> bool | StorageError:
            barrier.wait()
            if racer.delay_seconds > 0:
                time.sleep(racer.delay_seconds)
            try:
                return self._contest.attempt(racer.client, name, racer.data)
            except StorageError as failure:
                return failure

        try:
            coming = _begin_each(threads, race, racers)
        except StorageError:
            barrier.abort()  # those who were started wait for the others
            raise
        outcomes = [each.result() for each in coming]
        self.done += 1
        winners = []
        failures = []
        for number, outcome in enumerate(outcomes):
            if isinstance(outcome, StorageError):
                failures.append(outcome)
            elif outcome:
                winners.append(number)
        # Two winners are too many whatever became of the others; with fewer, one that failed may have won.
        if failures and len(winners) < 2:
            refusals = [each for each in failures if isinstance(each, UnsafeStorage)]
            raise (refusals or failures)[0]
        if len(winners) != 1:
            raise UnsafeStorage(self._verdict(len(winners), len(racers)))
        (winner,) = winners
        if not self._contest.holds(name, racers[winner].data):
            raise UnsafeStorage(f"round {self.done}: the store has another content than that of the one that won")
        return winner

    def _verdict(self, winners: int, racers: int) -> str:
        if winners == 0:
            number = "none"
        else:
            number = str(winners)
        return f"round {self.done}: {number} of {racers} racing {self._contest.what} of one file succeeded; one must"


def _begin_each(threads: ThreadPoolExecutor, work: Callable[[Item], T], items: Iterable[Item]) -> list[Future[T]]:
    """Hand each item to a thread of its own. Raises ``StorageError``: no more threads can be started."""
    begun: list[Future[T]] = []
    for item in items:
        try:
            begun.append(threads.submit(work, item))
        except RuntimeError as error:
            raise StorageError(
                f"nothing is proved: a proof needs more threads than this process gets ({error})"
            ) from None
    return begun


def _fight(
    rounds: _Rounds,
    threads: ThreadPoolExecutor,
    size: int,
    most: int,
    seconds: float,
) -> None:
    """Run duels of a file of ``size`` bytes against a small one, at most ``most``; begin none after ``seconds``.

    The delay at which the store decides is searched between ``earliest`` and ``latest``. Requests do not always take
    equally long, so when one end moves to the delay that was tried, the other one moves a little away from it.
    """
    began = time.monotonic()
    large = b"x" * size
    small = b"small".ljust(_SMALL_BYTES)
    earliest = 0.0
    latest = 0.0
    for number in range(most):
        if time.monotonic() - began > seconds:
            return
        width = latest - earliest
        middle = (earliest + latest) / 2
        jitter = random.uniform(-_JITTER, _JITTER)  # noqa: S311 - no secret
        delay = max(0.0, middle + width * jitter)
        started = time.monotonic()
        slow = _Racer(0, large)
        fast = _Racer(1, small, delay)
        winner = rounds.run(threads, [slow, fast])
        if number == 0:
            # The first one tells how long the large file takes: the decision falls within that time.
            latest = max(_NARROWEST_SECONDS, time.monotonic() - started)
        elif winner == 0:  # the small file came too late
            latest = max(delay, earliest + _NARROWEST_SECONDS)
            earliest = max(0.0, earliest - width * _JITTER / 2)
        else:  # it won, so it came too early
            earliest = min(delay, latest)
            latest += width * _JITTER / 2 + _NARROWEST_SECONDS

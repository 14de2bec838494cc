"""Who takes how much of an endpoint at the moment, so that no principal takes all of it.

A request takes a seat before its body is read, memory before its body is parsed, and a thread while it is worked on.
It gives them back when its answer is sent **and** its thread has ended: a thread that waits for a storage goes on when
its client is gone, or when the request was answered without its result, and counts as long as it does.

Everything here runs in the event loop, but for the work itself.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeVar

import anyio
from anyio import to_thread

from trinitylake_core.rest.limits import Limits
from trinitylake_core.rest.principals import Principal
from trinitylake_core.rest.problems import Problem

_T = TypeVar("_T")
_FEW_THREADS: Final = 8
"""So many threads a principal may have while the event loop is late, if no other has more."""
_BEAT_SECONDS: Final = 0.05
_LATE_SECONDS: Final = 0.05
_REMEMBERED_SECONDS: Final = 1.0
_SAVED_SECONDS: Final = 1.0
_MOST_RATES: Final = 1000
_BUSY: Final = 503, "ServiceUnavailableException"


class ClientGone(Exception):
    """The client has closed its connection before the work on its request began; nothing was done."""


class Seat:
    """What one request has taken. It is given back when nobody holds it any more: neither the answer nor a thread."""

    def __init__(self, seats: Seats, principal: str) -> None:
        self.principal = principal
        self._seats = seats
        self._holders = 1
        self._memory_bytes = 0

    def take_memory(self, count: int) -> None:
        """Take memory for what is known to come. Raises ``Problem`` (503)."""
        self._seats.take_memory(self.principal, count, has_already=self._memory_bytes)
        self._memory_bytes += count

    def hold(self) -> None:
        """Keep the seat until one more holder has left it."""
        self._holders += 1

    def leave(self) -> None:
        """Give the seat back, if this was its last holder."""
        self._holders -= 1
        if self._holders == 0:
            self._seats.give_back(self.principal, self._memory_bytes)


class Seats:
    """What all requests of one endpoint have taken.

    Args:
        limits: how much there is.
        is_shared: whether there are several principals. The only one may take all.
    """

    def __init__(self, limits: Limits, *, is_shared: bool) -> None:
        share = limits.share if is_shared else 1.0
        self._requests = limits.threads + limits.waiting
        self._requests_each = max(1, int(self._requests * share))
        self._memory_bytes = limits.memory_bytes
        self._memory_bytes_each = int(limits.memory_bytes * share)
        self._taken: Counter[str] = Counter()
        self._memory_taken: Counter[str] = Counter()
        self._turns = Turns(limits.threads, max(1, int(limits.threads * share)), Pulse())
        self._unlimited = anyio.CapacityLimiter(math.inf)  # the turns are the limit

    @property
    def requests(self) -> int:
        """How many requests have a seat."""
        return self._taken.total()

    @property
    def threads(self) -> int:
        """How many requests are worked on."""
        return self._turns.running

    @property
    def memory_bytes(self) -> int:
        """How much memory the requests have taken."""
        return self._memory_taken.total()

    def enter(self, principal: str) -> Seat:
        """Take a seat for a request. Raises ``Problem`` (503)."""
        if self._taken[principal] >= self._requests_each:
            raise Problem(*_BUSY, f"{principal} has too many requests under way; try again later")
        if self._taken.total() >= self._requests:
            raise Problem(*_BUSY, "too many requests are under way; try again later")
        self._taken[principal] += 1
        return Seat(self, principal)

    def take_memory(self, principal: str, count: int, *, has_already: int) -> None:
        """Take memory for a request. One that is alone gets what it needs. Raises ``Problem`` (503)."""
        own = self._memory_taken[principal]
        if own > has_already and own + count > self._memory_bytes_each:
            raise Problem(*_BUSY, f"the requests of {principal} need too much memory at a time; try again later")
        everybody = self._memory_taken.total()
        if everybody > has_already and everybody + count > self._memory_bytes:
            raise Problem(*_BUSY, "the requests under way need too much memory; try again later")
        self._memory_taken[principal] = own + count

    def give_back(self, principal: str, memory_bytes: int) -> None:
        """Take back what a request had."""
        self._taken[principal] -= 1
        self._memory_taken[principal] -= memory_bytes
        if not self._taken[principal]:
            del self._taken[principal]
            del self._memory_taken[principal]

    async def work(self, seat: Seat, act: Callable[[], _T], is_gone: Callable[[], bool]) -> _T:
        """Do the work of a request in a thread, when it is its principal's turn.

        Cancelled, it returns at once; the thread goes on, and keeps the seat until it ends.

        Raises ``ClientGone``: the client left before the work began.
        """
        await self._turns.take(seat.principal)
        turn = _Turn(self._turns, seat)
        try:
            await asyncio.sleep(0)  # so that the event loop learns of a client that left right after its request
            if is_gone():
                raise ClientGone
            working = turn.end_after(act)
            return await to_thread.run_sync(working, limiter=self._unlimited, abandon_on_cancel=True)
        finally:
            turn.withdraw()


class _Turn:
    """The turn of one request: it ends with its thread, or at once where none began."""

    def __init__(self, turns: Turns, seat: Seat) -> None:
        self._turns = turns
        self._seat = seat
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._has_begun = False
        self._is_withdrawn = False
        seat.hold()

    def end_after(self, act: Callable[[], _T]) -> Callable[[], _T]:
        """Return a function for a thread that does the work, and ends the turn."""

        def work() -> _T:
            with self._lock:
                if self._is_withdrawn:
                    raise ClientGone
                self._has_begun = True
            try:
                return act()
            finally:
                with suppress(RuntimeError):  # the endpoint has ended: nobody asks for seats any more
                    self._loop.call_soon_threadsafe(self._end)

        return work

    def withdraw(self) -> None:
        """End the turn of a request that was cancelled, or whose client left, before a thread began with it."""
        with self._lock:
            if self._has_begun:
                return
            self._is_withdrawn = True
        self._end()

    def _end(self) -> None:
        self._turns.give_back(self._seat.principal)
        self._seat.leave()


class Rates:
    """How many requests each principal has sent in the last moment, where they have a rate."""

    def __init__(self) -> None:
        self._paid_until: dict[str, float] = {}
        """When the requests of a principal are paid by their rate, in the time of ``time.monotonic``."""

    def take(self, principal: Principal) -> None:
        """Take one request of a principal's rate. They may have those of a second at once. Raises ``Problem`` (429)."""
        if principal.rate is None:
            return
        now = time.monotonic()
        paid = self._paid_until.get(principal.name, now)
        paid = max(paid, now)
        if paid > now + _SAVED_SECONDS - 1 / principal.rate and paid > now:
            text = f"{principal.name} may send {principal.rate:g} requests a second; try again later"
            raise Problem(429, "TooManyRequestsException", text)
        self._paid_until[principal.name] = paid + 1 / principal.rate
        if len(self._paid_until) > _MOST_RATES:
            kept = {name: until for name, until in self._paid_until.items() if until > now}
            self._paid_until = kept


class Turns:
    """Threads, given to principals in turn: each that waits gets one before another gets its second.

    A thread that waits for a storage costs nothing. Threads that compute share one processor, so while the event loop
    is late nobody has more of them than another principal has, or a few: then each gets its part of the processor,
    and not the one who sends most requests nearly all of it.
    """

    def __init__(self, threads: int, threads_each: int, pulse: Pulse) -> None:
        self._threads = threads
        self._threads_each = threads_each
        self._running: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self._pulse = pulse

    @property
    def running(self) -> int:
        """How many threads work."""
        return self._running.total()

    async def take(self, principal: str) -> None:
        """Wait for a thread."""
        self._pulse.begin()
        if principal not in self._waiting and self._may_run(principal):
            self._running[principal] += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(principal, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._forget(principal, turn)
            else:
                self.give_back(principal)  # it came in the moment of the cancellation
            raise

    def give_back(self, principal: str) -> None:
        """Take a thread back, and give it to the next that waits."""
        self._running[principal] -= 1
        if not self._running[principal]:
            del self._running[principal]
        self._hand_on()

    def _may_run(self, principal: str) -> bool:
        own = self._running[principal]
        if self._running.total() >= self._threads or own >= self._threads_each:
            return False
        if own < _FEW_THREADS or not self._pulse.is_late:
            return True
        others = [count for name, count in self._running.items() if name != principal]
        return not others or own < max(others)

    def _hand_on(self) -> None:
        for principal in list(self._waiting):
            if not self._may_run(principal):
                continue
            queue = self._waiting.pop(principal)
            turn = queue.popleft()
            if queue:
                self._waiting[principal] = queue  # behind all others
            if not turn.cancelled():  # else its task is about to learn of it
                self._running[principal] += 1
                turn.set_result(None)

    def _forget(self, principal: str, turn: asyncio.Future[None]) -> None:
        """Take a request that no longer waits out of its queue."""
        queue = self._waiting.get(principal, deque())
        if turn in queue:
            queue.remove(turn)
            if not queue:
                del self._waiting[principal]
        self._hand_on()


class Pulse:
    """Whether the event loop comes late: there is more to compute than the processor can do."""

    def __init__(self) -> None:
        self._due: float | None = None
        self._late_until = 0.0

    @property
    def is_late(self) -> bool:
        """Whether the loop is late now, or was in the last second."""
        self._look()
        return time.monotonic() < self._late_until

    def begin(self) -> None:
        """Begin to measure, unless it has begun."""
        if self._due is None:
            self._beat()

    def _beat(self) -> None:
        self._look()
        self._due = time.monotonic() + _BEAT_SECONDS
        asyncio.get_running_loop().call_later(_BEAT_SECONDS, self._beat)

    def _look(self) -> None:
        now = time.monotonic()
        if self._due is not None and now > self._due + _LATE_SECONDS:
            self._late_until = now + _REMEMBERED_SECONDS

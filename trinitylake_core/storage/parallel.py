"""Requests at the same time: threads of one storage that read, and as many that write behind.

With a ``most`` of 1 nothing is done ahead and nothing later: every piece of work is done in its turn, by the caller.
The same holds for work that itself was handed to such threads: they never wait for one another.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Final, TypeVar

T = TypeVar("T")
Item = TypeVar("Item")


_OUTER: Final = 4
"""Pieces of work at the same time that themselves read ahead: each has a window of its own."""


class _Here(threading.local):
    helps = False
    """Whether this thread does work that was handed to it."""
    outer = False
    """Whether this thread does a piece of work that hands work on."""


_here = _Here()


def _windowed(
    actions: Iterable[Callable[[], T]], begin: Callable[[Callable[[], T]], Future[T]], most: int
) -> Iterator[T]:
    """Yield the results of actions in order, with at most twice ``most`` of them begun and not yet yielded."""
    window: deque[Future[T]] = deque()
    try:
        for action in actions:
            window.append(begin(action))
            if len(window) >= 2 * most:
                yield window.popleft().result()
        while window:
            yield window.popleft().result()
    finally:
        for future in window:
            future.cancel()
        wait(window)


class Crew:
    """The threads of one storage: ``most`` that read, ``most`` that write. They start when they are first needed."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._lock = threading.Lock()
        self._executors: dict[str, Executor] = {}

    def in_turn(self) -> bool:
        """Return whether the caller does everything itself, one thing after another."""
        return self.most == 1 or _here.helps

    def in_order(self, items: Iterable[Item], work: Callable[[Item], T]) -> Iterator[T]:
        """Yield ``work(item)`` in order, working ahead on at most twice ``most`` items.

        When one fails, those not begun are dropped and those under way are waited for.
        """
        if self.in_turn():
            yield from map(work, items)
            return
        yield from _windowed((partial(work, item) for item in items), self.begin, self.most)

    def outer(self, items: Iterable[Item], work: Callable[[Item], T]) -> Iterator[T]:
        """Yield ``work(item)`` in order, a few at the same time, each of which may hand work on.

        They have threads of their own, and so wait for those that read without keeping anybody from reading.
        """
        if self.in_turn() or _here.outer:
            yield from map(work, items)
            return

        def begin(action: Callable[[], T]) -> Future[T]:
            return self._executor("outer").submit(_handing_on, action)

        yield from _windowed((partial(work, item) for item in items), begin, _OUTER)

    def begin(self, action: Callable[[], T], *, write: bool = False) -> Future[T]:
        """Begin an action in the background; in turn, it is carried out now. Its errors come with its result."""
        if self.in_turn():
            done: Future[T] = Future()
            try:
                done.set_result(action())
            except Exception as error:  # noqa: BLE001 - raised by who asks for the result
                done.set_exception(error)
            return done
        return self._executor("write" if write else "read").submit(_helping, action)

    def _executor(self, kind: str) -> Executor:
        with self._lock:
            if kind not in self._executors:
                self._executors[kind] = self.new_executor(kind)
            return self._executors[kind]

    def new_executor(self, kind: str) -> Executor:
        """Return threads for one kind of requests."""
        return ThreadPoolExecutor(self.threads(kind), f"trinitylake-{kind}")

    def threads(self, kind: str) -> int:
        """Return how many threads there are of a kind."""
        return min(_OUTER, self.most) if kind == "outer" else self.most


def _helping(action: Callable[[], T]) -> T:
    before, _here.helps = _here.helps, True
    try:
        return action()
    finally:
        _here.helps = before


def _handing_on(action: Callable[[], T]) -> T:
    before, _here.outer = _here.outer, True
    try:
        return action()
    finally:
        _here.outer = before

"""Requests at the same time: threads of one storage that read, and as many that write behind.

With a ``most`` of 1 nothing is done ahead and nothing later: every piece of work is done in its turn, by the caller.
The same holds for work that itself was handed to such threads: they never wait for one another.

Results come in order, so one late answer would leave all threads idle as soon as a window of work is done. While the
oldest piece is waited for, more is begun (:func:`awaited`), within limits of number and memory.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from functools import partial
from itertools import islice
from typing import Any, Final, TypeVar

T = TypeVar("T")
Item = TypeVar("Item")


_LATE_SECONDS: Final = 0.05
"""A thread that waits longer than that for the oldest piece of work begins more."""
_MOST_WINDOWS: Final = 8
"""At most so many times the number of threads are begun and not yet used."""
_MOST_HELD_BYTES: Final = 16 << 20
"""Behind a late answer, nothing more is begun once that much has arrived."""
_MOST_NESTED: Final = 8
"""Pieces of work at the same time that themselves read ahead: each has a window of its own."""


class _ThreadState(threading.local):
    handed_over = False
    """Whether this thread does work that was handed to it."""
    nested = False
    """Whether this thread does a piece of work that hands work over."""


_state = _ThreadState()


def awaited(oldest: Future[T], begin_more: Callable[[], object]) -> T:
    """Return the result of the oldest piece of work; whenever that takes long, call ``begin_more``.

    Raises what the work raised.
    """
    while not oldest.done():
        try:
            return oldest.result(_LATE_SECONDS)
        except TimeoutError:
            if oldest.done():
                break  # the error may be the work's own
            begin_more()
    return oldest.result()


def has_room(window: Collection[Future[Any]], most: int) -> bool:
    """Return whether more work may be begun behind a late piece: ``most`` threads are not busy, and little is held.

    Of finished work, results that are bytes count with their size.
    """
    if len(window) >= _MOST_WINDOWS * most:
        return False
    done = [each for each in window if each.done()]
    held = sum(len(each.result()) for each in done if not each.exception() and isinstance(each.result(), bytes))
    return len(window) - len(done) < 2 * most and held < _MOST_HELD_BYTES


def _windowed(
    actions: Iterable[Callable[[], T]], begin: Callable[[Callable[[], T]], Future[T]], most: int
) -> Iterator[T]:
    """Yield the results of actions in order, with at most twice ``most`` of them begun and not yet yielded.

    While the oldest is late, up to ``_MOST_WINDOWS`` times ``most`` are.
    """
    window: deque[Future[T]] = deque()
    remaining = iter(actions)

    def begin_more() -> None:
        while has_room(window, most) and (action := next(remaining, None)) is not None:
            window.append(begin(action))

    try:
        while True:
            window.extend(begin(action) for action in islice(remaining, max(0, 2 * most - len(window))))
            if not window:
                return
            result = awaited(window[0], begin_more)
            window.popleft()
            yield result
    finally:
        for future in window:
            future.cancel()
        wait(window)


class RequestThreads:
    """The threads of one storage: ``most`` that read, ``most`` that write. They start when they are first needed."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._lock = threading.Lock()
        self._executors: dict[str, Executor] = {}

    def in_turn(self) -> bool:
        """Return whether the caller does everything itself, one thing after another."""
        return self.most == 1 or _state.handed_over

    def map(self, items: Iterable[Item], work: Callable[[Item], T], *, nested: bool = False) -> Iterator[T]:
        """Yield ``work(item)`` in order, working ahead on at most twice ``most`` items.

        When one fails, those not begun are dropped and those under way are waited for. Work that is ``nested`` has
        threads of its own, so that it can wait for those that read.
        """
        if self.in_turn() or (nested and _state.nested):
            yield from map(work, items)
            return
        begin, most = (self._submit_nested, _MOST_NESTED) if nested else (self.submit, self.most)
        yield from _windowed((partial(work, item) for item in items), begin, most)

    def submit(self, action: Callable[[], T], *, write: bool = False) -> Future[T]:
        """Begin an action in the background; in turn, it is carried out now. Its errors come with its result."""
        if self.in_turn():
            done: Future[T] = Future()
            try:
                done.set_result(action())
            except Exception as error:  # noqa: BLE001 - raised by who asks for the result
                done.set_exception(error)
            return done
        return self._executor("write" if write else "read").submit(_with_state, "handed_over", action)

    def _submit_nested(self, action: Callable[[], T]) -> Future[T]:
        return self._executor("nested").submit(_with_state, "nested", action)

    def _executor(self, kind: str) -> Executor:
        with self._lock:
            if kind not in self._executors:
                self._executors[kind] = self.new_executor(kind)
            return self._executors[kind]

    def new_executor(self, kind: str) -> Executor:
        """Return threads for one kind of requests."""
        return ThreadPoolExecutor(self.threads(kind), f"trinitylake-{kind}")

    def threads(self, kind: str) -> int:
        """Return the number of threads of a kind."""
        return min(_MOST_NESTED, self.most) if kind == "nested" else self.most


def _with_state(name: str, action: Callable[[], T]) -> T:
    before = getattr(_state, name)
    setattr(_state, name, True)
    try:
        return action()
    finally:
        setattr(_state, name, before)

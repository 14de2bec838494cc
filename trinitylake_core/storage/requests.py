"""Options that every backend understands, retries, and the threads that requests are sent in."""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Final, TypeAlias, TypeVar

from trinitylake_core.errors import InvalidInput
from trinitylake_core.storage.port import Options

N = TypeVar("N", int, float)
Untaken: TypeAlias = dict[str, Any]
"""Options that nobody knows yet: who knows one takes it out, and what is left in the end is refused."""


# -- retries and options ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CommonOptions:
    """The storage options that every backend understands; each backend has defaults of its own.

    A request that failed is tried again at most ``retries`` times.
    """

    retries: int = 5
    retry_base_seconds: float = 0.1
    retry_max_seconds: float = 5.0
    max_concurrency: int = 32
    delete_batch: int = 1000
    allowed_locations: str = ""
    """Where files of tables may lie besides their own directories; see ``tables.Located``."""

    def pause(self, attempt: int) -> None:
        """Sleep before try ``attempt + 1``, ``attempt`` counting from 0: exponential backoff with jitter."""
        longest = min(self.retry_max_seconds, self.retry_base_seconds * 2.0**attempt)
        if longest > 0:
            jitter = random.uniform(0.5, 1.0)  # noqa: S311 - not a secret
            time.sleep(longest * jitter)

    def override(self, options: Options) -> tuple[CommonOptions, Untaken]:
        """Return these options with those of ``options``, and what in ``options`` is the backend's own.

        Raises ``InvalidInput`` for a value that is not a number or out of range.
        """
        rest = dict(options)
        values: dict[str, Any] = {}
        for name in self.__slots__:
            default = getattr(self, name)
            given = rest.pop(name, None)
            if given is None:
                values[name] = default
                continue
            if isinstance(default, str):
                if not isinstance(given, str):
                    raise InvalidInput(f"storage option {name} must be a text")
                values[name] = given
                continue
            least = 0
            if name in {"max_concurrency", "delete_batch"}:
                least = 1
            values[name] = _number(name, given, type(default), least)
        return CommonOptions(**values), rest


def _number(name: str, value: Any, kind: type[N], least: float) -> N:
    try:
        number = kind(value)
    except (TypeError, ValueError, OverflowError):  # no message quotes a text: it may be a secret in the wrong place
        raise InvalidInput(f"storage option {name} must be a number") from None
    if not number >= least:
        raise InvalidInput(f"storage option {name} must be at least {least}, not {value!r}")
    return number


def take_flag(options: Untaken, name: str, *, default: bool) -> bool:
    """Remove the boolean option ``name`` from ``options`` and return it. Raises ``InvalidInput``."""
    value = options.pop(name, default)
    if isinstance(value, str) and value.lower() in {"true", "false"}:
        return value.lower() == "true"
    if not isinstance(value, bool):
        raise InvalidInput(f"storage option {name} must be true or false")
    return value


def take_number(
    options: Untaken,
    name: str,
    *,
    default: float,
    least: float,
) -> float:
    """Remove the option ``name`` from ``options`` and return it as a number. Raises ``InvalidInput``."""
    value = options.pop(name, None)
    if value is None:
        return default
    return _number(name, value, float, least)


# -- threads ---------------------------------------------------------------------------------------
#
# With a ``most`` of 1 nothing is done ahead and nothing later: every piece of work is done in its turn, by the
# caller. The same holds for work that itself was handed to such threads: they never wait for one another.
#
# Results come in order, so one late answer would leave all threads idle as soon as a window of work is done. While
# the oldest piece is waited for, more is begun (:func:`wait_for_oldest`), within limits of number and memory.

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


def wait_for_oldest(oldest: Future[T], begin_more: Callable[[], object]) -> T:
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
    """Whether more work may be begun behind a late piece: ``most`` threads are not busy, and little is held.

    Of finished work, results that are bytes count with their size.
    """
    if len(window) >= _MOST_WINDOWS * most:
        return False
    done = []
    for each in window:
        if each.done():
            done.append(each)
    held = 0
    for each in done:
        if not each.exception() and isinstance(each.result(), bytes):
            held += len(each.result())
    busy = len(window) - len(done)
    return busy < 2 * most and held < _MOST_HELD_BYTES


def _yield_in_order(
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
            room = max(0, 2 * most - len(window))
            for action in islice(remaining, room):
                window.append(begin(action))
            if not window:
                return
            result = wait_for_oldest(window[0], begin_more)
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
        """Whether the caller does everything itself, one thing after another."""
        return self.most == 1 or _state.handed_over

    def map(self, items: Iterable[Item], work: Callable[[Item], T], *, nested: bool = False) -> Iterator[T]:
        """Yield ``work(item)`` in order, working ahead on at most twice ``most`` items.

        When one fails, those not begun are dropped and those under way are waited for. Work that is ``nested`` has
        threads of its own, so that it can wait for those that read.
        """
        if self.in_turn() or (nested and _state.nested):
            yield from map(work, items)
            return
        actions = (partial(work, item) for item in items)
        if nested:
            yield from _yield_in_order(actions, self._submit_nested, _MOST_NESTED)
        else:
            yield from _yield_in_order(actions, self.submit, self.most)

    def _submit_nested(self, action: Callable[[], T]) -> Future[T]:
        return self._executor("nested").submit(_with_state, "nested", action)

    def submit(self, action: Callable[[], T], *, write: bool = False) -> Future[T]:
        """Begin an action in the background; in turn, it is carried out now. Its errors come with its result."""
        if self.in_turn():
            done: Future[T] = Future()
            try:
                done.set_result(action())
            except Exception as error:  # noqa: BLE001 - raised by who asks for the result
                done.set_exception(error)
            return done
        kind = "read"
        if write:
            kind = "write"
        return self._executor(kind).submit(_with_state, "handed_over", action)

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
        if kind == "nested":
            return min(_MOST_NESTED, self.most)
        return self.most


def _with_state(name: str, action: Callable[[], T]) -> T:
    before = getattr(_state, name)
    setattr(_state, name, True)
    try:
        return action()
    finally:
        setattr(_state, name, before)

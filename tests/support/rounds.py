"""How long requests waited for one another: a logical clock in the place of seconds.

    with Rounds(storage, most=32) as rounds:
        job()
    assert rounds.chain <= 12

Every request takes one tick. Work that a storage would hand to its threads is carried out at once, by the thread that
asks, but on the clock of a thread of its own: it begins when it is handed over, as soon as one of ``most`` threads is
free, and who asks for its result waits until it ends. So ``chain`` is the longest chain of requests that waited for
one another, the same in every run and on any machine. Storages that share a ``Rounds`` share its clock; each has
threads of its own, for reading and for writing.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor, Future
from types import TracebackType
from typing import Any, Self

from trinitylake_core.storage import Storage
from trinitylake_core.storage.base import BaseStorage
from trinitylake_core.storage.requests import CommonOptions, RequestThreads


class Rounds:
    """A logical clock of the requests of some storages; while it is entered, their requests tick."""

    waits = False
    """Whether ticks are seconds: who waits for a result for some time only gives up when that has passed."""

    def __init__(self, *storages: Storage, most: int = 32) -> None:
        self.now: float = 0
        self.log: list[tuple[float, str, str]] = []
        """When each request began, its kind and its path; in the order in which they were carried out."""
        self._most = most
        self._storages = [each for each in storages if isinstance(each, BaseStorage)]
        self._before: list[tuple[Any, Any, Any]] = []
        assert len(self._storages) == len(storages), "there are no requests to listen to"

    @property
    def chain(self) -> int:
        """How many requests waited for one another, at the most."""
        return max((int(began) + 1 for began, _, _ in self.log), default=0)

    @property
    def requests(self) -> int:
        """How many requests there were."""
        return len(self.log)

    def busiest(self) -> int:
        """Return the largest number of requests under way at the same time."""
        begun = [began for began, _, _ in self.log]
        return max(map(begun.count, set(begun)), default=0)

    def longest_listing(self, levels: int) -> int:
        """Return how many listings one thread does at the most, where each directory of so many levels is a piece.

        A disk is listed directory by directory, and how many there are is random, because names of files are.
        """
        pieces = Counter(tuple(path.split("/")[:levels]) for _, kind, path in self.log if kind == "list")
        return max(pieces.values(), default=0)

    def __call__(self, kind: str, path: str, action: Callable[[], Any]) -> Any:
        """Carry out a request, and let one tick pass; the storage's interceptor."""
        if kind != "sync":
            self.log.append((self.now, kind, path))
            self.now += 1
        return action()

    def options(self, options: CommonOptions) -> CommonOptions:
        """Return the options by which storages retry during the measurement."""
        return options

    def __enter__(self) -> Self:
        for storage in self._storages:
            self._before.append((storage._common, storage._threads, storage.interceptor))
            storage._common = self.options(dataclasses.replace(storage._common, max_concurrency=self._most))
            storage._threads = _ClockedThreads(self, self._most)
            storage.interceptor = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for storage, before in zip(self._storages, self._before, strict=True):
            storage._common, storage._threads, storage.interceptor = before
        self._before = []


class _ClockedThreads(RequestThreads):
    def __init__(self, rounds: Rounds, most: int) -> None:
        super().__init__(most)
        self._rounds = rounds

    def new_executor(self, kind: str) -> Executor:
        return _Clocked(self._rounds, self.threads(kind))


class _Clocked(Executor):
    """Threads that are none: each is the time at which it is free again."""

    def __init__(self, rounds: Rounds, most: int) -> None:
        self._rounds = rounds
        self._free: list[float] = [0] * most

    def submit(self, work: Callable[..., Any], /, *args: Any, **named: Any) -> Future[Any]:
        """Carry out the work now, on the clock of the thread that is free first."""
        rounds, handed_over = self._rounds, self._rounds.now
        thread = min(range(len(self._free)), key=self._free.__getitem__)
        rounds.now = max(handed_over, self._free[thread])
        done = _Finished(rounds)
        try:
            done.set_result(work(*args, **named))
        except Exception as error:  # noqa: BLE001 - raised by who asks for the result
            done.set_exception(error)
        done.ended = self._free[thread] = rounds.now
        rounds.now = handed_over
        return done


class _Finished(Future[Any]):
    def __init__(self, rounds: Rounds) -> None:
        super().__init__()
        self.ended: float = 0
        self._rounds = rounds

    def done(self) -> bool:
        """Return whether the work has ended, on the clock."""
        return super().done() and self.ended <= self._rounds.now

    def result(self, timeout: float | None = None) -> Any:
        """Wait, on the clock, for the work to end; return what it returned."""
        if timeout is not None and self._rounds.waits and self.ended > self._rounds.now + timeout:
            self._rounds.now += timeout
            raise TimeoutError
        self._rounds.now = max(self._rounds.now, self.ended)
        return super().result(timeout)

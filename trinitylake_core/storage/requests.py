"""What every storage request passes through: counting, interceptors, retries, parallelism.

:meth:`Requests._request` counts a raw request and hands it to the interceptor, if a test set one. Everything that
mends failures sits above it (``base``).
"""

from __future__ import annotations

import abc
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from typing import Any, ClassVar, Literal, TypeVar

from trinitylake_core.errors import InvalidLocation, StorageError, TrinityLakeError
from trinitylake_core.storage.failures import TransientError, sanitise, secrets_of
from trinitylake_core.storage.parallel import RequestThreads
from trinitylake_core.storage.port import RequestCounts, Storage
from trinitylake_core.storage.retry import CommonOptions

T = TypeVar("T")
Item = TypeVar("Item")
Kind = Literal["get", "put", "create", "delete", "list", "head", "copy", "sync"]
Interceptor = Callable[[str, str, Callable[[], Any]], Any]
"""Called as ``interceptor(kind, path, action)`` in place of ``action()``; returns what ``action`` returns."""

_alive: weakref.WeakSet[Requests] = weakref.WeakSet()


class Requests(Storage):
    """Counting, fault injection, retries and parallelism."""

    DEFAULTS: ClassVar[CommonOptions] = CommonOptions()

    #: set by tests to make requests fail; ``None`` in production
    interceptor: Interceptor | None = None

    def __init__(self, root: str, options: Mapping[str, Any] | None = None) -> None:
        self.root = root
        self.counts = RequestCounts()
        self._given = dict(options or {})
        self._secrets = secrets_of(self._given)
        self._common, self._own_options = self.DEFAULTS.override(self._given)
        self._retry = self._common.policy()
        self._lock = threading.Lock()
        self._threads = RequestThreads(self._common.max_concurrency)
        _alive.add(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.root!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.root, self._given)

    def spec(self) -> tuple[str, Mapping[str, Any]]:
        """Return root and options as they were given. No request."""
        return self.root, dict(self._given)

    @abc.abstractmethod
    def _translate(self, kind: str, path: str, error: Exception) -> TrinityLakeError:
        """Map an error of the backend to one of ours, ``TransientError`` if another try may help."""

    # Requests.

    def _count(self, kind: Kind) -> None:
        """Count a request: a backend asks again for what is late."""
        with self._lock:
            setattr(self.counts, kind, getattr(self.counts, kind) + 1)

    def _request(self, kind: Kind, path: str, action: Callable[[], T]) -> T:
        """Carry out one raw request: count it, let the interceptor have it, map its errors."""
        self._count(kind)
        interceptor = self.interceptor
        try:
            if interceptor is None:
                return action()
            result: T = interceptor(kind, path, action)
        except TrinityLakeError:
            raise
        except Exception as error:  # noqa: BLE001 - every backend has errors of its own; all of them are mapped
            raise self._translate(kind, path, error) from None
        return result

    def _retrying(self, kind: Kind, path: str, action: Callable[[], T]) -> T:
        """Carry out a request that may be repeated without harm, until it works or patience ends."""
        attempt = 0
        while True:
            try:
                return self._request(kind, path, action)
            except TransientError as error:
                if attempt >= self._retry.retries:
                    raise self._exhausted(kind, path, error) from None
            self._retry.pause(attempt)
            attempt += 1

    def _exhausted(self, kind: str, path: str, error: Exception) -> StorageError:
        tries = self._retry.retries + 1
        return StorageError(f"{kind} of {self.root}{path} failed {tries} times; last: {self._clean(error)}")

    def _clean(self, error: object) -> str:
        return sanitise(str(error) or type(error).__name__, self._secrets)

    def _moved(self, *, read: int = 0, written: int = 0) -> None:
        with self._lock:
            self.counts.bytes_read += read
            self.counts.bytes_written += written

    def _guard(self, path: str) -> None:
        """Refuse a path that would lead out of the root. Callers validated it; this is the second lock."""
        if not path or path[0] == "/" or "\0" in path or (".." in path and ".." in path.split("/")):
            raise InvalidLocation(f"path {path!r} is not a relative path inside the lakehouse")

    # Parallelism.

    @property
    def concurrency(self) -> int:
        """How many requests go out at the same time; 1 = one after another, as for work that was handed to threads."""
        return 1 if self._threads.in_turn() else self._threads.most

    def map(self, items: Iterable[Item], work: Callable[[Item], T], *, nested: bool = False) -> Iterator[T]:
        """Yield ``work(item)`` in order, working ahead on at most twice ``max_concurrency`` items."""
        return self._threads.map(items, work, nested=nested)

    def submit(self, action: Callable[[], T], *, write: bool = False) -> Future[T]:
        """Begin an action in the background; at once, where ``max_concurrency`` is 1."""
        return self._threads.submit(action, write=write)

    def _reset_after_fork(self) -> None:
        """Forget locks and threads that the parent process owns; called in the child."""
        self._lock = threading.Lock()
        self._threads = RequestThreads(self._threads.most)


def _reset_all_after_fork() -> None:
    for storage in list(_alive):
        storage._reset_after_fork()  # noqa: SLF001 - same module


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_all_after_fork)

"""What all backends share: the one funnel of requests, retries, read-back-and-compare, parallelism.

Every raw request passes through :meth:`BaseStorage._request`, which counts it and hands it to the
interceptor, if a test set one. Everything that mends failures sits above that funnel.
"""

from __future__ import annotations

import abc
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Any, ClassVar, Literal, TypeVar

from trinitylake_core.errors import AlreadyExists, FileMissing, InvalidLocation, StorageError, TrinityLakeError
from trinitylake_core.storage.failures import TransientError, sanitise, secrets_of
from trinitylake_core.storage.port import Data, DeleteResult, FileInfo, RequestCounts, Storage
from trinitylake_core.storage.retry import CommonOptions

T = TypeVar("T")
Item = TypeVar("Item")
Kind = Literal["get", "put", "create", "delete", "list", "head", "copy", "sync"]
Interceptor = Callable[[str, str, Callable[[], Any]], Any]
"""Called as ``interceptor(kind, path, action)`` in place of ``action()``; returns what ``action`` returns."""

_alive: weakref.WeakSet[BaseStorage] = weakref.WeakSet()


class BaseStorage(Storage):
    """Counting, fault injection, retries and parallelism over a handful of raw operations."""

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
        self._executor: ThreadPoolExecutor | None = None
        _alive.add(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.root!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.root, self._given)

    def spec(self) -> tuple[str, Mapping[str, Any]]:
        """Return root and options as they were given. No request."""
        return self.root, dict(self._given)

    # What a backend provides. Each is one raw request; errors may be the backend's own, `_translate` maps them.

    @abc.abstractmethod
    def _get(self, path: str) -> bytes: ...

    @abc.abstractmethod
    def _get_range(self, path: str, begin: int, end: int) -> bytes: ...

    @abc.abstractmethod
    def _put(self, path: str, data: Data) -> None: ...

    @abc.abstractmethod
    def _create(self, path: str, data: Data) -> None:
        """Create exclusively; raise ``AlreadyExists`` when the path is taken."""

    @abc.abstractmethod
    def _head(self, path: str) -> FileInfo: ...

    @abc.abstractmethod
    def _delete(self, batch: Sequence[str]) -> tuple[DeleteResult, list[str]]:
        """Delete a batch; return what became of it and the paths worth another try."""

    @abc.abstractmethod
    def _translate(self, kind: str, path: str, error: Exception) -> TrinityLakeError:
        """Map an error of the backend to one of ours, ``TransientError`` if another try may help."""

    # The funnel.

    def _request(self, kind: Kind, path: str, action: Callable[[], T]) -> T:
        """Carry out one raw request: count it, let the interceptor have it, map its errors."""
        with self._lock:
            setattr(self.counts, kind, getattr(self.counts, kind) + 1)
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

    # Reading and writing.

    def read(self, path: str) -> bytes:
        """Return the whole file. One ``get`` a try. Raises ``FileMissing``."""
        self._guard(path)
        data = self._retrying("get", path, partial(self._get, path))
        self._moved(read=len(data))
        return data

    def read_range(self, path: str, begin: int, end: int) -> bytes:
        """Return the bytes from ``begin`` to before ``end``, fewer where the file ends. One ``get`` a try.

        Raises ``FileMissing``.
        """
        self._guard(path)
        if begin >= end:
            return b""
        data = self._retrying("get", path, partial(self._get_range, path, begin, end))
        self._moved(read=len(data))
        return data

    def read_many(self, paths: Sequence[str]) -> Iterator[tuple[str, bytes | FileMissing]]:
        """Yield contents in order, reading at most twice ``max_concurrency`` files ahead."""
        return zip(paths, self._parallel(paths, self._read_or_missing), strict=True)

    def _read_or_missing(self, path: str) -> bytes | FileMissing:
        try:
            return self.read(path)
        except FileMissing as missing:
            return missing

    def _write(self, file: tuple[str, Data]) -> None:
        path, data = file
        self._guard(path)
        self._retrying("put", path, partial(self._put, path, data))
        self._moved(written=len(data))

    def write_many(self, files: Iterable[tuple[str, Data]]) -> None:
        """Write files, several at a time. One ``put`` each; after an error no further one is begun."""
        for _ in self._parallel(files, self._write):
            pass

    def barrier(self) -> None:
        """Do nothing: an object store answers only when the object is durable."""

    def replace(self, path: str, data: Data, *, durable: bool = True) -> None:
        """Write or overwrite a file. One ``put``, which object stores make visible as a whole and durably."""
        del durable
        self._write((path, data))

    def info(self, path: str) -> FileInfo:
        """Return size and age. One ``head``. Raises ``FileMissing``."""
        self._guard(path)
        return self._retrying("head", path, partial(self._head, path))

    # Creating exclusively.

    def create(self, path: str, data: Data) -> None:
        """Create exclusively. One ``create``, and a ``get`` after each lost answer. Raises ``AlreadyExists``."""
        self._guard(path)
        self._settle(path, data, partial(self._create, path, data))

    def _settle(self, path: str, data: Data, create: Callable[[], None]) -> None:
        """Carry out ``create`` until it is known whether this call or somebody else made the file."""
        unknown = False  # whether an earlier try of this call may have made the file
        attempt = 0
        while True:
            try:
                self._request("create", path, create)
            except AlreadyExists:
                if not unknown:
                    raise
                problem: object = "the file appeared and disappeared"
            except TransientError as error:
                unknown = unknown or not error.undone
                problem = error
            else:
                break
            if unknown and self._is_ours(path, data, problem):
                break
            if attempt >= self._retry.retries:
                raise self._create_failed(path, problem, unknown=unknown)
            self._retry.pause(attempt)
            attempt += 1
        self._moved(written=len(data))

    def _is_ours(self, path: str, data: Data, problem: object) -> bool:
        """After a lost answer: True when the file is what we wrote, False when there is none."""
        try:
            found = self.read(path)
        except FileMissing:
            return False
        except StorageError:
            raise self._create_failed(path, problem, unknown=True) from None
        if found == bytes(data):  # a view of signed bytes, such as pyarrow's, equals no bytes above 127
            return True
        raise AlreadyExists(f"{self.root}{path} already exists")

    def _create_failed(self, path: str, problem: object, *, unknown: bool) -> StorageError:
        text = f"create of {self.root}{path} failed; last: {self._clean(problem)}"
        if unknown:
            text += ". Its outcome is unknown: the file may or may not exist; read it before trying again"
        return StorageError(text)

    # Deleting.

    def delete_many(self, paths: Sequence[str]) -> DeleteResult:
        """Delete in batches of ``delete_batch``. After a lost answer, files already deleted count as missing."""
        for path in paths:
            self._guard(path)
        size = self._common.delete_batch
        batches = [paths[start : start + size] for start in range(0, len(paths), size)]
        result = DeleteResult()
        for part in self._parallel(batches, self._delete_batch):
            result.deleted += part.deleted
            result.missing += part.missing
            result.failed.update(part.failed)
        return result

    def _delete_batch(self, batch: Sequence[str]) -> DeleteResult:
        result = DeleteResult()
        attempt = 0
        while batch:
            part, again = self._retrying("delete", batch[0], partial(self._delete, batch))
            result.deleted += part.deleted
            result.missing += part.missing
            result.failed.update(part.failed)
            if attempt >= self._retry.retries:
                break
            for path in again:
                result.failed.pop(path, None)
            if again:
                self._retry.pause(attempt)
            batch = again
            attempt += 1
        return result

    # Parallelism.

    def _parallel(self, items: Iterable[Item], work: Callable[[Item], T]) -> Iterator[T]:
        """Yield ``work(item)`` in order, working ahead on at most twice ``max_concurrency`` items.

        When one fails, those not begun are dropped and those under way are waited for.
        """
        if self._common.max_concurrency == 1:
            yield from map(work, items)
            return
        pool = self._pool()
        window: deque[Future[T]] = deque()
        try:
            for item in items:
                window.append(pool.submit(work, item))
                if len(window) >= 2 * self._common.max_concurrency:
                    yield window.popleft().result()
            while window:
                yield window.popleft().result()
        finally:
            for future in window:
                future.cancel()
            wait(window)

    def _pool(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(self._common.max_concurrency, "trinitylake-storage")
            return self._executor

    def _reset_after_fork(self) -> None:
        """Forget locks and threads that the parent process owns; called in the child."""
        self._lock = threading.Lock()
        self._executor = None


def _reset_all_after_fork() -> None:
    for storage in list(_alive):
        storage._reset_after_fork()  # noqa: SLF001 - same module


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_all_after_fork)

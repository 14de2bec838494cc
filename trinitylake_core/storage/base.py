"""The base class of all backends: the operations of the port, made of raw requests, with recovery of lost answers.

A backend provides the raw requests. :meth:`BaseStorage._request` counts one and passes it to the interceptor, if a test
set one. Requests that may be repeated are repeated here. After a lost answer to any other request the file is read back
and compared. A store that must prove that it decides inherits from ``checked.CheckedByTrying``.
"""

from __future__ import annotations

import abc
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar, Literal, Self, TypeVar

from trinitylake_core.errors import (
    AlreadyExists,
    FileMissing,
    InvalidLocation,
    OutcomeUnknown,
    StorageError,
    TrinityLakeError,
)
from trinitylake_core.storage.failures import Outdated, TransientError, Unanswered, sanitise, secrets_of
from trinitylake_core.storage.port import Data, DeleteResult, FileInfo, Options, RequestCounts, Storage, Tagged
from trinitylake_core.storage.proof import Sample
from trinitylake_core.storage.requests import CommonOptions, RequestThreads
from trinitylake_core.storage.silence import Failures, Silence

T = TypeVar("T")
Item = TypeVar("Item")
Kind = Literal["get", "put", "create", "delete", "list", "head", "copy", "sync"]
Interceptor = Callable[[str, str, Callable[[], Any]], Any]
"""Called as ``interceptor(kind, path, action)`` in place of ``action()``; returns what ``action`` returns."""

_alive: weakref.WeakSet[BaseStorage] = weakref.WeakSet()


class BaseStorage(Storage):
    """The operations of the port over a handful of raw requests: counting, fault injection, retries, parallelism."""

    DEFAULTS: ClassVar[CommonOptions] = CommonOptions()
    #: the rounds in which ``trinitylake doctor`` lets racers race here
    SAMPLE: ClassVar[Sample] = Sample(crowds=20, racers=8, duels=0)

    #: set by tests to make requests fail; ``None`` in production
    interceptor: Interceptor | None = None

    def __init__(self, root: str, options: Options | None = None) -> None:
        self.root = root
        self.counts = RequestCounts()
        self._given = dict(options or {})
        self._secrets = secrets_of(self._given)
        self._common, self._own_options = self.DEFAULTS.override(self._given)
        self._lock = threading.Lock()
        self._threads = RequestThreads(self._common.max_concurrency)
        self._silence = Silence()
        self._failures = Failures()
        _alive.add(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.root!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.root, self._given)

    def spec(self) -> tuple[str, Options]:
        return self.root, dict(self._given)

    # What a backend provides. Each is one raw request; errors may be the backend's own, `_translate` maps them.

    @abc.abstractmethod
    def _get(self, path: str) -> bytes: ...

    @abc.abstractmethod
    def _get_range(self, path: str, begin: int, end: int) -> bytes: ...

    @abc.abstractmethod
    def _put(self, path: str, data: Data) -> None: ...

    @abc.abstractmethod
    def _create(self, path: str, data: Data) -> str:
        """Create exclusively; raise ``AlreadyExists`` when the path is taken.

        Return the version that the store gave the file, "" where it keeps no versions.
        """

    @abc.abstractmethod
    def _head(self, path: str) -> FileInfo: ...

    @abc.abstractmethod
    def _delete(self, batch: Sequence[str]) -> tuple[DeleteResult, list[str]]:
        """Delete a batch; return the outcome, and the paths worth another try."""

    def _get_tagged(self, path: str) -> Tagged:
        """Return a file with its tag; may raise what :meth:`_get` raises for a missing one."""
        return Tagged(self._get(path))

    @abc.abstractmethod
    def _swap(self, path: str, data: Data, expected: Tagged) -> Tagged:
        """Replace a file if it still is what is expected, in one step, and durably; else raise ``Outdated``."""

    @abc.abstractmethod
    def _translate(self, kind: str, path: str, error: Exception) -> TrinityLakeError:
        """Map an error of the backend to one of ours, ``TransientError`` if another try may help."""

    def twin(self) -> Self:
        """Return another storage at the same root that shares no connection with this one, but counts with it.

        What proves that a store decides needs two. No request.
        """
        other = type(self)(self.root, self._given)
        other.counts = self.counts
        other._lock = self._lock  # noqa: SLF001 - another one of this class
        other.interceptor = self.interceptor
        return other

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
        if self.gives_up:
            return self._failures.ask(self.root, partial(self._retry, kind, path, action))
        return self._retry(kind, path, action)

    def _retry(self, kind: Kind, path: str, action: Callable[[], T]) -> T:
        attempt = 0
        began = time.monotonic()
        with self._silence:
            while True:
                try:
                    return self._request(kind, path, action)
                except TransientError as error:
                    if attempt >= self._common.retries or (self.gives_up and self._failures.are_enough(began)):
                        text = f"{kind} of {self.root}{path} failed {attempt + 1} times; last: {self._clean(error)}"
                        raise Unanswered(text) from None
                self._common.pause(attempt)
                attempt += 1

    def _clean(self, error: object) -> str:
        return sanitise(str(error) or type(error).__name__, self._secrets)

    def _count_bytes(self, *, read: int = 0, written: int = 0) -> None:
        with self._lock:
            self.counts.bytes_read += read
            self.counts.bytes_written += written

    def _guard(self, path: str) -> None:
        """Refuse a path that would lead out of the root. Callers validated it; this is the second lock."""
        if not path or path[0] == "/" or "\0" in path or (".." in path and ".." in path.split("/")):
            raise InvalidLocation(f"path {path!r} is not a relative path inside the lakehouse")

    def doubt(self, path: str | None = None) -> None:
        """Do nothing: a storage that needs no proof has none that could end."""

    def settle_doubt(self) -> bool:
        """Return ``False``: nothing was doubted."""
        return False

    # Parallelism.

    @property
    def concurrency(self) -> int:
        if self._threads.in_turn():
            return 1
        return self._threads.most

    def map(self, items: Iterable[Item], work: Callable[[Item], T], *, nested: bool = False) -> Iterator[T]:
        return self._threads.map(items, work, nested=nested)

    def submit(self, action: Callable[[], T], *, write: bool = False) -> Future[T]:
        return self._threads.submit(action, write=write)

    def _reset_after_fork(self) -> None:
        """Forget locks and threads that the parent process owns; called in the child."""
        self._lock = threading.Lock()
        self._threads = RequestThreads(self._threads.most)
        self._silence = Silence()

    # Reading and writing.

    def read(self, path: str) -> bytes:
        self._guard(path)
        data = self._retrying("get", path, partial(self._get, path))
        self._count_bytes(read=len(data))
        return data

    def read_range(self, path: str, begin: int, end: int) -> bytes:
        self._guard(path)
        if begin >= end:
            return b""
        read = partial(self._get_range, path, begin, end)
        data = self._retrying("get", path, read)
        self._count_bytes(read=len(data))
        return data

    def write(self, path: str, data: Data) -> None:
        self._guard(path)
        self._retrying("put", path, partial(self._put, path, data))
        self._count_bytes(written=len(data))

    def barrier(self) -> None:
        """Do nothing: an object store answers only when the object is durable."""

    def replace(self, path: str, data: Data, *, durable: bool = True) -> None:
        """Write or overwrite a file. One ``put``, which object stores make visible as a whole and durably."""
        self.write(path, data)

    def info(self, path: str) -> FileInfo:
        self._guard(path)
        return self._retrying("head", path, partial(self._head, path))

    # Creating exclusively.

    def create(self, path: str, data: Data) -> None:
        self.create_settled(path, data)

    def create_settled(self, path: str, data: Data) -> str | None:
        """Create a file as :meth:`create` does, whether the store is proven or not.

        Return the version that the store gave it, "" where it keeps none, ``None`` if the answer was lost.
        """
        self._guard(path)
        return self._settle(path, data, partial(self._create, path, data))

    def _settle(self, path: str, data: Data, create: Callable[[], T]) -> T | None:
        """Carry out ``create`` until it is known whether this call or another process made the file.

        Return what ``create`` returned, ``None`` if its answer was lost and the file turned out to be ours.
        """

        def found(problem: TrinityLakeError) -> bool:
            """Whether the file is what we wrote; there may be none."""
            try:
                content = self.read(path)
            except FileMissing:
                return False
            except StorageError:
                raise self._write_failed("create", path, problem, unknown=True) from None
            if content == bytes(data):  # a view of signed bytes, such as pyarrow's, equals no bytes above 127
                return True
            raise AlreadyExists(f"{self.root}{path} already exists", after_lost_answer=True)

        with self._silence:
            done = self._until_known("create", path, create, found)
        self._count_bytes(written=len(data))
        return done

    def _until_known(
        self,
        name: str,
        path: str,
        action: Callable[[], T],
        found: Callable[[TrinityLakeError], bool],
    ) -> T | None:
        """Carry out a request that must not be done twice, until its outcome is known; return its result.

        After an answer was lost, each further refusal or failure is a question to ``found``: whether this call did it
        after all. Then the result is ``None``. Raises a refusal by the first answer as it is.
        """
        kind: Kind
        if name == "create":
            kind = "create"
        else:
            kind = "put"
        unknown = False  # whether an earlier try of this call may have done it
        attempt = 0
        while True:
            try:
                return self._request(kind, path, action)
            except (AlreadyExists, Outdated) as error:
                if not unknown:
                    raise
                problem: TrinityLakeError = error
            except TransientError as error:
                unknown = unknown or not error.undone
                problem = error
            if unknown and found(problem):
                return None
            if attempt >= self._common.retries:
                raise self._write_failed(name, path, problem, unknown=unknown)
            self._common.pause(attempt)
            attempt += 1

    def _write_failed(
        self,
        name: str,
        path: str,
        problem: object,
        *,
        unknown: bool,
    ) -> StorageError:
        text = f"{name} of {self.root}{path} failed; last: {self._clean(problem)}"
        if not unknown:
            return StorageError(text)
        if name == "create":
            may = "exist"
        else:
            may = "have been replaced"
        return OutcomeUnknown(
            f"{text}. Its outcome is unknown: the file may or may not {may}; read it before trying again"
        )

    # Comparing and setting.

    def read_tagged(self, path: str) -> Tagged:
        self._guard(path)
        try:
            found = self._retrying("get", path, partial(self._get_tagged, path))
        except FileMissing:
            return Tagged(None)
        self._count_bytes(read=len(found.data or b""))
        return found

    def compare_and_set(self, path: str, data: Data, expected: Tagged) -> Tagged | None:
        self._guard(path)
        there: Tagged | None = None

        def found(problem: TrinityLakeError) -> bool:
            """Whether the file is what we wrote; it may be what it was."""
            nonlocal there
            try:
                there = self.read_tagged(path)
            except StorageError:
                raise self._write_failed("compare-and-set", path, problem, unknown=True) from None
            if there not in {expected, Tagged(bytes(data), there.tag)}:
                raise self._write_failed("compare-and-set", path, problem, unknown=True)
            return there != expected

        try:
            with self._silence:
                swap = partial(self._swap, path, data, expected)
                done = self._until_known("compare-and-set", path, swap, found)
        except Outdated:
            return None
        self._count_bytes(written=len(data))
        return done or there

    # Deleting.

    def delete_many(self, paths: Sequence[str]) -> DeleteResult:
        """Delete in batches. After a lost answer, files already deleted count as missing."""
        for path in paths:
            self._guard(path)
        result = DeleteResult()
        for part in self.map(self._batches(paths), self._delete_batch):
            result.add(part)
        return result

    def _batches(self, paths: Sequence[str]) -> list[Sequence[str]]:
        size = self._common.delete_batch
        batches: list[Sequence[str]] = []
        for start in range(0, len(paths), size):
            batches.append(paths[start : start + size])
        return batches

    def _delete_batch(self, batch: Sequence[str]) -> DeleteResult:
        result = DeleteResult()
        attempt = 0
        while batch:
            delete = partial(self._delete, batch)
            part, again = self._retrying("delete", batch[0], delete)
            result.add(part)
            if attempt >= self._common.retries:
                break
            for path in again:
                result.failed.pop(path, None)
            if again:
                self._common.pause(attempt)
            batch = again
            attempt += 1
        return result


def list_silent(seconds: float) -> list[tuple[str, float]]:
    """Return the roots that have been silent for so many seconds, each with how long; any storage of this process."""
    alive: list[BaseStorage] = []
    with suppress(RuntimeError):  # another thread opens one right now: ask again later
        alive = list(_alive)
    found: dict[str, float] = {}
    for storage in alive:
        silent = storage._silence.seconds()  # noqa: SLF001 - same module
        if silent >= seconds:
            found[storage.root] = max(silent, found.get(storage.root, 0.0))
    return sorted(found.items())


def _reset_all_after_fork() -> None:
    for storage in list(_alive):
        storage._reset_after_fork()  # noqa: SLF001 - same module


os.register_at_fork(after_in_child=_reset_all_after_fork)

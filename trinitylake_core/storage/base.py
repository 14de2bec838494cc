"""The base class of all backends: the operations of the port, made of raw requests, with recovery of lost answers.

A backend provides the raw requests. Requests that may be repeated are repeated here. After a lost answer to any other
request the file is read back and compared. A store that must prove its preconditions inherits from
:class:`CheckedByTrying`.
"""

from __future__ import annotations

import abc
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar

from trinitylake_core.errors import AlreadyExists, FileMissing, OutcomeUnknown, StorageError, UnsafeStorage
from trinitylake_core.storage.failures import Outdated, TransientError
from trinitylake_core.storage.port import Data, DeleteResult, FileInfo, Tagged
from trinitylake_core.storage.requests import Requests


class BaseStorage(Requests):
    """The operations of the port over a handful of raw requests."""

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
    def _get_tagged(self, path: str) -> Tagged:
        """Return a file with its tag; may raise what :meth:`_get` raises for a missing one."""

    @abc.abstractmethod
    def _swap(self, path: str, data: Data, expected: Tagged) -> Tagged:
        """Replace a file if it still is what is expected, in one step, and durably; else raise ``Outdated``."""

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

    def write(self, path: str, data: Data) -> None:
        """Write a file. One ``put`` a try."""
        self._guard(path)
        self._retrying("put", path, partial(self._put, path, data))
        self._moved(written=len(data))

    def barrier(self) -> None:
        """Do nothing: an object store answers only when the object is durable."""

    def replace(self, path: str, data: Data, *, durable: bool = True) -> None:
        """Write or overwrite a file. One ``put``, which object stores make visible as a whole and durably."""
        del durable
        self.write(path, data)

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
        """Carry out ``create`` until it is known whether this call or another process made the file."""
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
                raise self._write_failed("create", path, problem, unknown=unknown)
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
            raise self._write_failed("create", path, problem, unknown=True) from None
        if found == bytes(data):  # a view of signed bytes, such as pyarrow's, equals no bytes above 127
            return True
        raise AlreadyExists(f"{self.root}{path} already exists", after_lost_answer=True)

    def _write_failed(self, kind: str, path: str, problem: object, *, unknown: bool) -> StorageError:
        text = f"{kind} of {self.root}{path} failed; last: {self._clean(problem)}"
        if not unknown:
            return StorageError(text)
        may = "exist" if kind == "create" else "have been replaced"
        return OutcomeUnknown(
            f"{text}. Its outcome is unknown: the file may or may not {may}; read it before trying again"
        )

    # Comparing and setting.

    def read_tagged(self, path: str) -> Tagged:
        """Return a small mutable file as it is. One ``get`` per attempt; a missing one is not an error."""
        self._guard(path)
        try:
            found = self._retrying("get", path, partial(self._get_tagged, path))
        except FileMissing:
            return Tagged(None)
        self._moved(read=len(found.data or b""))
        return found

    def compare_and_set(self, path: str, data: Data, expected: Tagged) -> Tagged | None:
        """Replace a file if no other process did. One ``put``, and a ``get`` after each lost answer.

        Raises ``OutcomeUnknown`` where an answer was lost, and the file is neither what it was nor what was written.
        """
        self._guard(path)
        unknown = False  # whether an earlier try of this call may have replaced the file
        attempt = 0
        while True:
            try:
                done = self._request("put", path, partial(self._swap, path, data, expected))
                self._moved(written=len(data))
                return done
            except Outdated as error:
                if not unknown:
                    return None
                problem: StorageError = error
            except TransientError as error:
                unknown = unknown or not error.undone
                problem = error
            if unknown and (found := self._found_after(path, problem)) != expected:
                if found.data == bytes(data):
                    return found
                raise self._write_failed("compare-and-set", path, problem, unknown=True)
            if attempt >= self._retry.retries:
                raise self._write_failed("compare-and-set", path, problem, unknown=unknown)
            self._retry.pause(attempt)
            attempt += 1

    def _found_after(self, path: str, problem: StorageError) -> Tagged:
        """Return the content of a file after a lost answer; without it, the outcome of the request is unknown."""
        try:
            return self.read_tagged(path)
        except StorageError:
            raise self._write_failed("compare-and-set", path, problem, unknown=True) from None

    # Deleting.

    def delete_many(self, paths: Sequence[str]) -> DeleteResult:
        """Delete in batches of ``delete_batch``. After a lost answer, files already deleted count as missing."""
        for path in paths:
            self._guard(path)
        size = self._common.delete_batch
        batches = [paths[start : start + size] for start in range(0, len(paths), size)]
        result = DeleteResult()
        for part in self.map(batches, self._delete_batch):
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


# -- checked preconditions -------------------------------------------------------------------------
#
# Stores exist that accept the preconditions of exclusive creation and of compare-and-set, and ignore them.

_proven: set[tuple[str, str]] = set()
_proven_swaps: set[tuple[str, str]] = set()
_lock = threading.Lock()


class CheckedByTrying(BaseStorage):
    """A storage that has to prove that its server decides."""

    #: a state that no file is in
    OTHER: ClassVar[Tagged] = Tagged(b"", '"00000000000000000000000000000000"')
    #: the server that decides, where it is not the one that the root names
    _endpoint: str = ""

    def prove_exclusive_create(self, path: str, data: bytes) -> None:
        """Try to create what exists. One ``create`` the first time. Raises ``UnsafeStorage``.

        One that succeeds is tried again: another process may have removed the file, but not twice.
        """
        self._guard(path)
        proof = (self.root, self._endpoint)
        with _lock:
            if proof in _proven:
                return
        if self._accepts_second_create(path, data) and self._accepts_second_create(path, data):
            raise UnsafeStorage(
                f"{self.root}: this store ignores exclusive creation (If-None-Match: *): concurrent commits would "
                "overwrite each other. Reading works; write to a store that honours it"
            )
        with _lock:
            _proven.add(proof)

    def _accepts_second_create(self, path: str, data: bytes) -> bool:
        try:
            self._retrying("create", path, partial(self._create, path, data))
        except AlreadyExists:
            return False
        return True

    def prove_compare_and_set(self, path: str, data: bytes) -> None:
        """Try to replace a file by itself in place of a state that it is not in. One ``put`` the first time.

        Raises ``UnsafeStorage``.
        """
        self._guard(path)
        proof = (self.root, self._endpoint)
        with _lock:
            if proof in _proven_swaps:
                return
        try:
            self._retrying("put", path, partial(self._swap, path, data, self.OTHER))
        except Outdated:
            with _lock:
                _proven_swaps.add(proof)
            return
        raise UnsafeStorage(
            f"{self.root}: this store ignores compare-and-set (If-Match): two expirations at a time could bring "
            "expired versions back. Reading and committing work; expire on a store that honours it"
        )

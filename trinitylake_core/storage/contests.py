"""What a storage gives away only once: a new file, and the replacement of a file that was read (``proof``)."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from typing import Final

from trinitylake_core import clock
from trinitylake_core.errors import AlreadyExists, FileMissing, OutcomeUnknown, StorageError, UnsafeStorage
from trinitylake_core.storage.base import BaseStorage
from trinitylake_core.storage.port import Storage, Tagged
from trinitylake_core.storage.proof import Contest

_LOG = logging.getLogger(__name__)

SCRATCH_PREFIX: Final = "_doctor-"
_SCRATCH: Final = re.compile(rf"{SCRATCH_PREFIX}[0-9a-f]{{8}}(?:-[0-9a-f]{{4}}){{3}}-[0-9a-f]{{12}}/")
_BEFORE: Final = b"before"
"""The content that all racers have read when they replace it."""
_COMPARED_BYTES: Final = 1 << 20
"""Larger files are compared by their size."""


def is_scratch(directory: str) -> bool:
    """Whether a directory below the root is one that a proof or a test of the storage wrote to."""
    return _SCRATCH.fullmatch(directory) is not None


def remove_scratch(storage: Storage, directories: Iterable[str], older_than_seconds: float) -> int:
    """Remove what killed processes left in the directories of their proofs; return how many files that was.

    Nothing refers to these files. A proof takes seconds, so one of an hour ago has ended. One ``list`` a directory, and
    a batch delete where there is something old. What cannot be removed is left for the next time.
    """
    limit = clock.now_millis() - older_than_seconds * 1000
    removed = 0
    for directory in directories:
        old = [each.path for each in storage.list(directory) if each.modified_millis < limit]
        if old:
            removed += len(old) - len(storage.delete_many(old).failed)
    return removed


class StorageContest(Contest):
    """Racers over two storages at one root that share no connection."""

    def __init__(self, storage: BaseStorage) -> None:
        self._clients = (storage, storage.twin())
        self._names: list[str] = []

    def _client(self, number: int) -> BaseStorage:
        return self._clients[number % len(self._clients)]

    def warm_up(self, client: int) -> None:
        self._client(client).read_or_missing(f"{SCRATCH_PREFIX}none")

    def prepare(self, name: str) -> None:
        self._names.append(name)

    def holds(self, name: str, data: bytes) -> bool:
        try:
            if len(data) > _COMPARED_BYTES:
                return self._clients[0].info(name).size == len(data)
            return self._clients[0].read(name) == data
        except FileMissing:
            return False

    def clean_up(self) -> None:
        """Remove the files of all rounds; those that cannot be removed now are left for ``clean``."""
        try:
            left = self._clients[0].delete_many(self._names).failed
        except StorageError as error:
            left = {self._names[0]: str(error)}
        for name, why in left.items():
            _LOG.warning("%s%s, a file of a test, could not be removed: %s", self._clients[0].root, name, why)
            return


class Creations(StorageContest):
    """Racers who create one file."""

    what = "creations"

    def attempt(self, client: int, name: str, data: bytes) -> bool:
        try:
            self._client(client).create_settled(name, data)
        except AlreadyExists:
            return False
        return True


class Replacements(StorageContest):
    """Racers who replace one file that all of them have read."""

    what = "replacements"

    def __init__(self, storage: BaseStorage) -> None:
        super().__init__(storage)
        self._states: dict[str, Tagged] = {}

    def prepare(self, name: str) -> None:
        super().prepare(name)
        made = BaseStorage.compare_and_set(self._clients[0], name, _BEFORE, Tagged(None))
        if made is None:
            raise UnsafeStorage(f"{name} was there before anybody had written it")
        self._states[name] = made

    def attempt(self, client: int, name: str, data: bytes) -> bool:
        try:
            done = BaseStorage.compare_and_set(self._client(client), name, data, self._states[name])
        except OutcomeUnknown:
            if self._client(client).read(name) in {_BEFORE, data}:
                raise
            return False  # an answer was lost, and another racer's content is there
        return done is not None

"""Proof that a store keeps what it promises: what must be refused is tried, once a process and root.

Stores exist that accept the preconditions of exclusive creation and of compare-and-set, and ignore them.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import ClassVar

from trinitylake_core.errors import AlreadyExists, UnsafeStorage
from trinitylake_core.storage.base import BaseStorage
from trinitylake_core.storage.failures import Outdated
from trinitylake_core.storage.port import Tagged

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

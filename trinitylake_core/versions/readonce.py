"""Versions for one pass over many of them: roots and lakehouse definitions that many ask for are read once."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from trinitylake_core.storage import Storage
from trinitylake_core.tree.readahead import SingleFlight
from trinitylake_core.versions.root import Root, RootRows
from trinitylake_core.versions.versions import Versions

T = TypeVar("T")

MOST_BYTES: Final = 8 << 20
"""File bytes of roots that are held, and as many of definitions; decoded, roots take about six times as much."""


class Recent(Generic[T]):
    """Immutable files that were read lately, bounded by their bytes; what several ask for is read once. Thread-safe."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most = most_bytes
        self._held: OrderedDict[str, tuple[T, int]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()
        self._once: SingleFlight[T] = SingleFlight()

    def get(self, path: str, read: Callable[[], tuple[T, int]]) -> T:
        """Return what is held under a path, or what ``read`` returns, together with its bytes.

        ``None`` stands for a missing file, and is not held; neither is a file over which ``read`` fails: whoever asks
        next looks again. Raises what ``read`` raises.
        """
        return self._once.get(path, lambda _: self._held_or_read(path, read))

    def _held_or_read(self, path: str, read: Callable[[], tuple[T, int]]) -> T:
        with self._lock:
            if path in self._held:
                self._held.move_to_end(path)
                return self._held[path][0]
        found, size = read()
        if found is not None:
            with self._lock:
                self._held[path] = found, size
                self._bytes += size
                while self._bytes > self._most and len(self._held) > 1:
                    self._bytes -= self._held.popitem(last=False)[1][1]
        return found


class VersionsReadOnce(Versions):
    """Versions as they were when each file was first read, for one pass over them; not for a handle that stays open.

    A root that expires meanwhile may still be returned. Hint, boundary and what is missing are looked at each time.
    """

    def __init__(self, storage: Storage, most_bytes: int = MOST_BYTES) -> None:
        super().__init__(storage)
        self._roots: Recent[RootRows | None] = Recent(most_bytes)
        self._files: Recent[bytes] = Recent(most_bytes)

    def try_root(self, version: int, known: Root | None = None, *, sdk: bool | None = None) -> Root | None:
        """Return the root of a version, or ``None`` if there is no such file. One ``get``, none if it is held."""

        def read() -> tuple[Root | None, int]:
            root = super(VersionsReadOnce, self).try_root(version, known, sdk=sdk)
            return root, 0 if root is None else len(root.data)

        found = self._roots.get(self.path(version, sdk=sdk), read)
        return found if found is None or isinstance(found, Root) else read()[0]

    def try_rows(self, version: int) -> RootRows | None:
        """Return what the system rows of a version's root say. One ``get``, none if it is held; see ``RootFiles``."""

        def read() -> tuple[RootRows | None, int]:
            rows = super(VersionsReadOnce, self).try_rows(version)
            return rows, len(rows.data) if isinstance(rows, Root) else 0

        return self._roots.get(self.path(version), read)

    def _read(self, path: str) -> bytes:
        def read() -> tuple[bytes, int]:
            data = super(VersionsReadOnce, self)._read(path)
            return data, len(data)

        return self._files.get(path, read)

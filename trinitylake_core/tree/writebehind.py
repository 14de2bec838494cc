"""Files that are written while something else goes on, and kept at hand until they are.

A failure comes up at the next file that is begun, or by :meth:`WriteBehind.finish` at the latest: the writer must
call it before a pointer to one of the files becomes visible.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Final, NamedTuple

from trinitylake_core.storage import Storage
from trinitylake_core.tree.node import Node

MOST_BYTES: Final = 16 << 20
"""How much may be under way at once."""


class Written(NamedTuple):
    """A node that is being written: its file, and itself where it is at hand."""

    data: bytes | memoryview
    node: Node | None
    done: Future[None]


class WriteBehind:
    """Node files under way to a storage, the oldest first. Belongs to one thread."""

    def __init__(self, storage: Storage, arrived: Callable[[str, Node], object]) -> None:
        self._storage = storage
        self._arrived = arrived
        self._files: dict[str, Written] = {}
        self._bytes = 0

    def __contains__(self, path: str) -> bool:
        return path in self._files

    def __getitem__(self, path: str) -> Written:
        return self._files[path]

    def begin(self, path: str, data: bytes | memoryview, node: Node | None) -> None:
        """Begin to write a file, and wait for older ones if too much is under way. Raises ``StorageError``."""
        done = self._storage.submit(partial(self._storage.write, path, data), write=True)
        self._files[path] = Written(data, node, done)
        self._bytes += len(data)
        if done.done() and (error := done.exception()) is not None:
            raise error  # no further one is begun
        while self._bytes > MOST_BYTES:
            self._finish(next(iter(self._files)))

    def finish(self) -> None:
        """Wait until all files are written. Raises ``StorageError`` if one was not."""
        for path in list(self._files):
            self._finish(path)

    def _finish(self, path: str) -> None:
        data, node, done = self._files[path]
        done.result()
        del self._files[path]
        self._bytes -= len(data)
        if node is not None:
            self._arrived(path, node)

"""Files that are at hand: read before they are asked for, in a window that moves along with its reader, or cached.

What a window has read is not dropped before it was asked for; a cache cannot promise that. As much is under way as the
window has room for: no reader waits for a group of files to be complete before the next group is begun.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import Generic, TypeVar

from trinitylake_core.errors import FileMissing
from trinitylake_core.storage import Storage
from trinitylake_core.storage.requests import has_room, wait_for_oldest
from trinitylake_core.tree.node import Node

T = TypeVar("T")
Content = bytes | FileMissing


class InFlightReads:
    """Files that are being read for windows: what several windows expect is read once. Thread-safe."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self._lock = threading.Lock()
        self._files: dict[str, Future[Content]] = {}

    def begin(self, path: str) -> Future[Content]:
        """Begin to read a file, or return what was begun."""
        with self._lock:
            known = self._files.get(path)
            if known is None or known.cancelled():
                known = self._files[path] = self.storage.submit(partial(self.storage.read_or_missing, path))
            return known

    def done(self, path: str) -> None:
        """Forget a file: a later reader finds it in a cache, or reads it again."""
        with self._lock:
            self._files.pop(path, None)


class ReadAhead:
    """A window over the files that one thread will ask for, about in the order of ``paths``, read through ``files``.

    ``room`` is how many may be in the window; ``skip`` returns whether a file will not be asked for after all.
    ``paths`` is asked for more only when there is room for it, and may read other files itself.
    """

    def __init__(
        self, files: InFlightReads, paths: Iterator[str], room: Callable[[], int], skip: Callable[[str], bool]
    ) -> None:
        self._files = files
        self._paths = paths
        self._room = room
        self._skip = skip
        self._window: dict[str, Future[Content]] = {}
        self._passed: set[str] = set()
        self._filling = False

    def __contains__(self, path: str) -> bool:
        return path in self._window

    def fill(self) -> None:
        """Begin to read as much as there is room for."""
        self._fill(lambda: len(self._window) < self._room())

    def _fill(self, has_room: Callable[[], bool]) -> None:
        if self._filling:  # `paths` reads something itself
            return
        self._filling = True
        try:
            while has_room() and (path := next(self._paths, None)) is not None:
                if path not in self._window and path not in self._passed and not self._skip(path):
                    self._window[path] = self._files.begin(path)
        finally:
            self._filling = False

    def take(self, path: str) -> Content | None:
        """Return a file of the window, and move on; ``None`` if it is not in the window: then it never will be.

        Raises ``StorageError``: the storage failed.
        """
        coming = self._window.pop(path, None)
        if coming is None:
            self._passed.add(path)
            return None

        def begin_more() -> None:
            """Begin to read beyond the window: the file that is asked for is late."""
            most = self._files.storage.concurrency
            if self._room() >= 2 * most:  # else memory, not the number of threads, is what limits the window
                self._fill(lambda: has_room(self._window.values(), most))

        try:
            found = wait_for_oldest(coming, begin_more)
        except CancelledError:  # another window expected it, too, and was closed
            return None
        self.fill()
        return found

    def close(self) -> None:
        """Drop what was not asked for."""
        for path, coming in self._window.items():
            coming.cancel()
            self._files.done(path)
        self._window.clear()
        self._paths = iter(())


class ThreadState:
    """What one thread expects, and what it has read and will ask for again."""

    def __init__(self) -> None:
        self.ahead: ReadAhead | None = None
        self.nodes: dict[str, Node] = {}
        self.files: dict[str, bytes] = {}


class PerThread(threading.local):
    """A :class:`ThreadState` for each thread."""

    def __init__(self) -> None:
        self.here = ThreadState()


class Cache(Generic[T]):
    """Immutable files that were read lately, bounded by their bytes; one that several ask for is read once.

    Thread-safe.
    """

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self._held: OrderedDict[str, tuple[T, int]] = OrderedDict()
        self._bytes = 0
        self._coming: dict[str, Future[T]] = {}
        self._lock = threading.Lock()

    def __contains__(self, path: str) -> bool:
        return path in self._held

    def held(self, path: str) -> T | None:
        """Return the value that is held under a path, if there is one."""
        found = self._held.get(path)
        if found is None:
            return None
        try:
            self._held.move_to_end(path)
        except KeyError:  # another thread has dropped it since
            return found[0]
        return found[0]

    def hold(self, path: str, value: T, size: int) -> T:
        """Hold what a file of so many bytes contains, and return it."""
        with self._lock:
            if path not in self._held:
                self._held[path] = value, size
                self._bytes += size
            while self._bytes > self.most_bytes and len(self._held) > 1:
                self._bytes -= self._held.popitem(last=False)[1][1]
        return value

    def get(self, path: str, read: Callable[[], tuple[T, int]]) -> T:
        """Return the value that is held under a path, or the one that ``read`` returns, together with its bytes.

        ``None`` stands for a missing file, and is not held; neither is a file over which ``read`` fails: the next
        caller reads it again. Raises what ``read`` raises.
        """
        mine: Future[T] = Future()
        with self._lock:
            if path in self._held:
                self._held.move_to_end(path)
                return self._held[path][0]
            coming = self._coming.setdefault(path, mine)
        if coming is not mine:
            return coming.result()
        try:
            value, size = read()
            mine.set_result(value if value is None else self.hold(path, value, size))
        except BaseException as error:  # noqa: BLE001 - the others must not wait for ever
            mine.set_exception(error)
        finally:
            with self._lock:
                del self._coming[path]
        return mine.result()

"""Deleting files of a disk: each below the root when it is deleted, and threads only while they help.

Most disks delete as fast as one thread asks, and more of them only wait for one another: the kernel locks a directory.
But some let each deletion wait. So it begins with one thread, and there are twice as many as long as that is faster.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple, TypeVar

from trinitylake_core.errors import NotAFile
from trinitylake_core.storage.disk_files import MISSING, explain
from trinitylake_core.storage.disk_opening import DIRECTORY, open_directory_without_links
from trinitylake_core.storage.port import DeleteResult

MOST_THREADS: Final = 8
"""Measured on ext4 that discards what is free, of 20,000 files: 39 s in turn, 1.2 s with 4 threads, 0.9 s with 8."""
_FEWEST: Final = 32
"""So many files a thread are measured, at least: fewer say nothing."""
_ROUND_SECONDS: Final = 0.05
"""So long a measurement takes, about."""
_HELPS: Final = 1.3
"""Twice as many threads must be faster by so much, or they cost more than they give."""
_IS_ENOUGH: Final = 0.8
"""Half as many threads are enough if they reach so much of the speed."""
_REST: Final = 16
"""After so many rounds another number of threads is tried again: the disk may have changed."""
_FULL: Final = frozenset({errno.EMFILE, errno.ENFILE})
_NO_DESCRIPTOR: Final = "too many open files"
Item = TypeVar("Item")
T = TypeVar("T")


class DeletionPace:
    """How many threads delete files of a disk: one at first, and others as what was measured says. Not thread-safe.

    Attributes:
        threads: so many are to be used next.
    """

    def __init__(self) -> None:
        self.threads = 1
        self._chosen = 1
        """The number that was best so far; ``threads`` is another one while that is tried."""
        self._rate = 0.0
        """The files per second that the chosen number deletes."""
        self._rest = 0

    def round_files(self) -> int:
        """Return how many files are to be deleted before the next measurement."""
        return max(_FEWEST * self.threads, int(self._rate * _ROUND_SECONDS))

    def note(self, files: int, seconds: float, busy_seconds: float) -> None:
        """Take a measurement: how long deleting some files took, and how long the threads computed meanwhile."""
        rate = files / max(seconds, 1e-9)
        if self.threads != self._chosen:
            needed = _HELPS if self.threads > self._chosen else _IS_ENOUGH
            if rate < needed * self._rate:
                self.threads = self._chosen
                self._rest = _REST
                return
        self._chosen = self.threads
        self._rate = rate
        self._rest -= 1
        if self._rest > 0:
            return
        is_waiting = busy_seconds < seconds / 2
        if is_waiting:
            self.threads = min(MOST_THREADS, 2 * self._chosen)
        else:
            self.threads = max(1, self._chosen // 2)


class _Part(NamedTuple):
    """What became of some files, those for which there was no descriptor, and for how long the thread computed."""

    result: DeleteResult
    starved: list[str]
    busy_seconds: float


def delete_files(root: str, paths: Sequence[str], pace: DeletionPace | None) -> DeleteResult:
    """Delete files by their paths below a directory, in order of their names; ``pace`` = ``None``: in this thread."""
    ordered = sorted(set(paths))
    result = DeleteResult()
    starved: list[str] = []
    start = 0
    while start < len(ordered):
        stop = len(ordered) if pace is None else start + pace.round_files()
        for part in _delete_round(root, ordered[start:stop], pace):
            result.add(part.result)
            starved += part.starved
        start = stop
    # One after the other they need one descriptor at a time.
    last = _delete_in_turn(root, starved)
    result.add(last.result)
    result.failed.update(dict.fromkeys(last.starved, _NO_DESCRIPTOR))
    return result


def _delete_round(root: str, paths: Sequence[str], pace: DeletionPace | None) -> Sequence[_Part]:
    """Delete some files, and tell the pace how long that took."""
    if pace is None:
        return [_delete_in_turn(root, paths)]
    began = time.perf_counter()
    parts = _map_in_threads(partial(_delete_in_turn, root), _cut_evenly(paths, pace.threads))
    seconds = time.perf_counter() - began
    busy_seconds = sum(part.busy_seconds for part in parts)
    pace.note(len(paths), seconds, busy_seconds)
    return parts


def _cut_evenly(paths: Sequence[str], threads: int) -> list[Sequence[str]]:
    """Return a stretch for each thread: neighbours share directories, so they stay together."""
    size = max(1, -(-len(paths) // threads))
    stretches = []
    for start in range(0, len(paths), size):
        stretches.append(paths[start : start + size])
    return stretches


class _Root:
    """The root directory, open while files below it are deleted.

    From there the directory of each file is opened anew: it, or one above it, may have been moved out of the root since
    the file before, and what is outside is not emptied, whatever links lead there.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        self._descriptor = -1

    def unlink(self, path: str) -> None:
        """Delete a file. Raises ``NotAFile`` for a link on its way, and ``OSError``."""
        if self._descriptor < 0:
            self._descriptor = os.open(self._root, DIRECTORY)
        above, _, name = path.rpartition("/")
        if not above:
            os.unlink(name, dir_fd=self._descriptor)
            return
        directory = open_directory_without_links(self._descriptor, above)
        try:
            os.unlink(name, dir_fd=directory)
        finally:
            os.close(directory)

    def close(self) -> None:
        """Close it."""
        if self._descriptor >= 0:
            os.close(self._descriptor)


def _delete_in_turn(root: str, paths: Sequence[str]) -> _Part:
    """Delete files, in order of their names."""
    began = time.thread_time()
    result = DeleteResult()
    starved: list[str] = []
    opened = _Root(root)
    try:
        for path in paths:
            try:
                opened.unlink(path)
            except NotAFile as error:  # a link was put in its way after it was listed: what is behind it is not ours
                result.failed[path] = str(error)
            except OSError as error:
                if error.errno in MISSING:
                    result.missing.append(path)
                elif error.errno in _FULL:
                    starved.append(path)
                else:
                    result.failed[path] = explain(error)
            else:
                result.deleted.append(path)
    finally:
        opened.close()
    return _Part(result, starved, time.thread_time() - began)


def _map_in_threads(work: Callable[[Item], T], items: Sequence[Item]) -> list[T]:
    """Return the result of each item, worked on by this thread and by others, as far as they can be started.

    None can be where the system refuses more, and while the interpreter ends.
    """
    waiting: deque[tuple[Item, Future[T]]] = deque()
    promised: list[Future[T]] = []
    for item in items:
        promised.append(Future())
        waiting.append((item, promised[-1]))

    def take_items() -> None:
        while waiting:
            try:
                item, result = waiting.popleft()
            except IndexError:  # another thread was faster
                return
            try:
                result.set_result(work(item))
            except BaseException as error:  # noqa: BLE001 - raised below, in the thread that asks
                result.set_exception(error)

    helpers: list[threading.Thread] = []
    try:
        with suppress(RuntimeError):
            for _ in items[1:]:
                helper = threading.Thread(target=take_items, name="trinitylake-delete")
                helper.start()
                helpers.append(helper)
        take_items()
    finally:
        waiting.clear()  # after an interrupt no further item is begun
        for helper in helpers:
            helper.join()
    return [each.result() for each in promised]

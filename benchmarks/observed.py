"""What a job takes, seen from outside: the memory and CPU of its processes, and the requests that each of them sent.

BaseStorage are counted by what every storage of a process calls around each of them. Processes that a job starts do so,
too, in an :func:`observed` one: tasks of Spark on this machine, and helpers of the local engine.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

from trinitylake_core import storage
from trinitylake_core.storage.base import BaseStorage

T = TypeVar("T")
_FOLDER: Final = "TRINITYLAKE_BENCHMARK_REQUESTS"
"""Environment variable: the folder in which each process writes down its requests, a byte for each."""
_KINDS: Final = ("get", "put", "create", "delete", "list", "head", "copy", "sync")
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_SECONDS: Final = 0.2

# -- requests ------------------------------------------------------------------------------------------


class _Tally:
    """Writes down each request before it is sent."""

    def __init__(self, folder: str) -> None:
        self._file = os.open(f"{folder}/{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def __call__(self, kind: str, path: str, action: Callable[[], T]) -> T:
        """Carry out a request."""
        del path
        os.write(self._file, bytes([_KINDS.index(kind)]))
        return action()


def _count_here() -> None:
    folder = os.environ.get(_FOLDER)
    if folder is not None and BaseStorage.interceptor is None:
        BaseStorage.interceptor = _Tally(folder)


def open_storage(root: str, options: Mapping[str, Any] | None = None) -> storage.Storage:
    """Open a storage in a task whose requests are written down."""
    _count_here()
    return storage.open_storage(root, options)


def answerer(*arguments: Any) -> Callable[[Any], Any]:
    """Return the function by which a helper process does pieces, its requests written down."""
    from pipelines.engine import worker_pool

    _count_here()
    return worker_pool.answerer(*arguments)


@contextmanager
def observed(folder: Path) -> Iterator[None]:
    """Write down the requests of this process, and of those that jobs start, until the block ends."""
    from pipelines.engine import spark as tasks
    from pipelines.engine import worker_pool

    before = tasks.open_storage, worker_pool.answerer
    os.environ[_FOLDER] = str(folder)
    _count_here()
    tasks.open_storage, worker_pool.answerer = open_storage, answerer  # type: ignore[attr-defined]
    try:
        yield
    finally:
        tasks.open_storage, worker_pool.answerer = before  # type: ignore[attr-defined]
        BaseStorage.interceptor = None
        del os.environ[_FOLDER]


def requests(folder: Path) -> tuple[Counter[str], Counter[str]]:
    """Return the requests of this process, and those of all others, by kind; durability barriers are none."""
    ours, others = Counter[str](), Counter[str]()
    for file in folder.iterdir():
        found = Counter(file.read_bytes())
        counted = {_KINDS[number]: count for number, count in found.items() if _KINDS[number] != "sync"}
        (ours if file.name == str(os.getpid()) else others).update(counted)
    return ours, others


# -- memory and CPU ------------------------------------------------------------------------------------


def cpu_seconds(top: int) -> float:
    """Return the CPU seconds that a process and all below it have taken so far, those that have ended among them."""
    return sum(ticks for _, (_, _, ticks) in _below(top)) / _TICKS


def moved_bytes(top: int) -> tuple[int, int]:
    """Return the bytes that a process and those below it that live have read and written so far: files and sockets."""
    read = written = 0
    for process, _ in _below(top):
        lines = (Path("/proc") / str(process) / "io").read_text().splitlines()
        counts = {name: int(count) for name, _, count in (line.partition(": ") for line in lines)}
        read += counts["rchar"]
        written += counts["wchar"]
    return read, written


@contextmanager
def sampled(top: int) -> Iterator[dict[str, int]]:
    """Yield the most bytes that a process had in memory, Java below it, and the largest of its other processes.

    By ``driver``, ``jvm`` and ``worker``; looked at five times a second.
    """
    peaks: dict[str, int] = {}
    done = threading.Event()

    def follow() -> None:
        while not done.wait(_SECONDS):
            for process, (_, name, _) in _below(top):
                kind = "driver" if process == top else "jvm" if name == "java" else "worker"
                peaks[kind] = max(peaks.get(kind, 0), peak(process))

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        yield peaks
    finally:
        done.set()
        thread.join()


def _below(top: int) -> Iterator[tuple[int, tuple[int, str, int]]]:
    """Yield a process and all below it: ID, and parent, name, ticks of CPU."""
    found = dict(_processes())
    for process, what in found.items():
        above: int | None = process
        while above in found and above != top:
            above = found[above][0]
        if above == top:
            yield process, what


def _processes() -> Iterator[tuple[int, tuple[int, str, int]]]:
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            name, _, rest = (entry / "stat").read_text().partition("(")[2].rpartition(")")
        except OSError:  # it ended meanwhile
            continue
        fields = rest.split()
        yield int(entry.name), (int(fields[1]), name, sum(map(int, fields[11:15])))


def forget_peak(process: int) -> None:
    """Let the peak of a process begin with what it has in memory now."""
    (Path("/proc") / str(process) / "clear_refs").write_text("5")


def peak(process: int) -> int:
    """Return the most bytes that a process has had in memory since :func:`forget_peak`; 0 if it has gone."""
    try:
        lines = (Path("/proc") / str(process) / "status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)

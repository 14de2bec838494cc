"""Flushing subtrees on all cores of this machine, without Spark.

This process flushes subtrees itself. Once it has measured how long one takes and sees that the rest is worth starting
help, it starts a Python process per further core. Each takes the next subtree when it is done with one, so that
nobody waits for a slow one, and this process goes on meanwhile.

A worker is a program of its own (``python -m pipelines.trees.workers``), no fork of this process: threads, locks and
the caller's main module stay out of it. Storage options travel through its standard input, never through arguments or
the environment. When this process dies, a worker finds its input closed and ends.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, BinaryIO, Final

from pipelines.trees.dealt import flushed_here
from pipelines.trees.subtrees import Flush, flush_subtrees, received, subtree_row
from trinitylake_core.storage import open_storage
from trinitylake_core.tree.nodestore import NodeStore
from trinitylake_core.tree.subtree import Ref
from trinitylake_core.tree.writebehind import WriteBehind

START_SECONDS: Final = 0.8
"""What starting a worker costs on a slow day; less work than twice that is left to this process alone."""
_MEASURED_SECONDS: Final = 0.1
"""How long this process works before it judges how long the rest will take."""
_CACHE_BYTES: Final = 32 << 20
_END_SECONDS: Final = 5.0
_POLL_SECONDS: Final = 0.25
_HEADER: Final = 8

Row = Mapping[str, Any]


def cores() -> int:
    """Return how many cores this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        return os.cpu_count() or 1


def flush_here(
    store: NodeStore,
    frontier: list[Ref],
    stamp: int,
    progress: Callable[[str, int, int | None], None],
    processes: int | None = None,
) -> list[Row]:
    """Flush subtrees in this process and, where that pays, in others; return what each became, in order.

    ``processes`` counts this one too; by default one per core. Memory: one subtree's path and its cache per process.

    Raises:
        Corrupt, StorageError: of the first subtree that failed; nothing of the others is of use then.
    """
    work = _Work(store, frontier, stamp)
    helpers = (cores() if processes is None else processes) - 1
    started = time.perf_counter()
    threads: list[threading.Thread] = []
    try:
        for index, row in flushed_here(work):
            work.finish(index, row)
            progress("flush subtrees", work.done, len(frontier))
            if helpers > 0 and not threads and _pays(time.perf_counter() - started, work):
                threads = _started(helpers, work)
        for thread in threads:
            while thread.is_alive():
                thread.join(_POLL_SECONDS)
                progress("flush subtrees", work.done, len(frontier))  # it may raise: somebody gives the job up
    except BaseException as error:
        work.fail(error)  # the workers must not go on for nobody
        raise
    finally:
        for thread in threads:
            thread.join()
    return work.results()


def _started(helpers: int, work: _Work) -> list[threading.Thread]:
    threads = [threading.Thread(target=_share, args=(work,), name="flush", daemon=True) for _ in range(helpers)]
    for thread in threads:
        thread.start()
    return threads


def _pays(seconds: float, work: _Work) -> bool:
    return seconds >= _MEASURED_SECONDS and seconds / max(1, work.done_weight) * work.left_weight > 2 * START_SECONDS


class _Work:
    """Subtrees to flush, heaviest first, shared by the threads that feed the processes."""

    def __init__(self, store: NodeStore, frontier: list[Ref], stamp: int) -> None:
        self.store = store
        self.stamp = stamp
        self.done_weight = 0
        self.left_weight = sum(ref.weight() for ref in frontier)
        self._frontier = frontier
        self._waiting = deque(sorted(range(len(frontier)), key=lambda index: -frontier[index].weight()))
        self._rows: dict[int, Row] = {}
        self._failed: BaseException | None = None
        self._lock = threading.Lock()

    @property
    def done(self) -> int:
        """How many subtrees are flushed."""
        return len(self._rows)

    def next(self) -> int | None:
        """Return a subtree that nobody works on, or ``None`` when there is none or one has failed."""
        with self._lock:
            return self._waiting.popleft() if self._waiting and self._failed is None else None

    def row(self, index: int) -> Row:
        """Return a subtree as what is sent to a worker."""
        return subtree_row(index, self._frontier[index], self.store.order)

    def flush(self, index: int, behind: WriteBehind) -> Flush:
        """Return the flush of a subtree in this process."""
        return Flush(self.store, self._frontier[index], self.stamp, behind)

    def finish(self, index: int, row: Row) -> None:
        """Note what became of a subtree."""
        with self._lock:
            self._rows[index] = row
            weight = self._frontier[index].weight()
            self.done_weight += weight
            self.left_weight -= weight

    def give_back(self, indices: Sequence[int]) -> None:
        """Have somebody else flush the subtrees of a worker that died; its files may not be durable."""
        with self._lock:
            for index in indices:
                self._rows.pop(index, None)
                self._waiting.appendleft(index)

    def fail(self, error: BaseException) -> None:
        """Stop everybody: a subtree failed in a worker."""
        with self._lock:
            self._failed = self._failed or error

    def results(self) -> list[Row]:
        """Return the rows in order. A subtree whose worker died after the others had finished is flushed here."""
        for index, row in flushed_here(self):
            self.finish(index, row)
        if self._failed is not None:
            raise self._failed
        return [self._rows[index] for index in range(len(self._frontier))]


def _share(work: _Work) -> None:
    """Have one worker flush subtrees until there are none left."""
    try:
        worker = _Worker(work.store, work.stamp)
    except OSError:
        return  # no process to be had: this one goes on alone
    taken: list[int] = []
    try:
        while (index := work.next()) is not None:
            taken.append(index)
            work.finish(index, worker.flush(work.row(index)))
        worker.barrier()
    except (EOFError, OSError, pickle.PickleError):
        work.give_back(taken)  # the worker died, perhaps of a memory limit: the others do its part
    except Exception as error:  # noqa: BLE001 - what failed in the worker, raised again by who waits for the results
        work.fail(error)
    finally:
        worker.end()


class _Worker:
    """A process that flushes subtrees, seen from here."""

    def __init__(self, store: NodeStore, stamp: int) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        self._process = subprocess.Popen(  # noqa: S603 - this very program
            [sys.executable, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
        )
        root, options = store.storage.spec()
        self._send((root, dict(options), store.order, store.target_bytes, stamp))

    def flush(self, row: Row) -> Row:
        """Return what the worker made of a subtree. Raises what went wrong there."""
        return self._asked(row)  # type: ignore[no-any-return]

    def barrier(self) -> None:
        """Return when what the worker wrote is durable. Raises what went wrong with that."""
        self._asked(None)

    def end(self) -> None:
        """End the process; it has nothing left to lose."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:
                    continue  # it died with something in the pipe
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _send(self, message: object) -> None:
        if self._process.stdin is None:
            raise EOFError("the worker has no input")
        _write(self._process.stdin, message)

    def _asked(self, message: object) -> Any:
        self._send(message)
        if self._process.stdout is None:
            raise EOFError("the worker has no output")
        answer = _read(self._process.stdout)
        if isinstance(answer, Exception):
            raise answer
        return answer


def _write(stream: BinaryIO | Any, message: object) -> None:
    data = pickle.dumps(message)
    stream.write(len(data).to_bytes(_HEADER, "little") + data)
    stream.flush()


def _read(stream: BinaryIO | Any) -> Any:
    header = stream.read(_HEADER)
    if len(header) < _HEADER:
        raise EOFError("the other side has gone")
    data = stream.read(int.from_bytes(header, "little"))
    return pickle.loads(data)  # noqa: S301 - from our own process, through a pipe that nobody else holds


def main() -> None:
    """Be a worker: subtrees in, rows out, until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that gives the work; its end is ours
    source, sink = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not get between our answers
    root, options, order, target_bytes, stamp = _read(source)
    storage = open_storage(root, options)
    while True:
        try:
            row: Mapping[str, Any] | None = _read(source)
        except EOFError:
            return
        _write(sink, _answered(storage, row, order, target_bytes, stamp))


def _answered(storage: Any, row: Mapping[str, Any] | None, order: int, target_bytes: int, stamp: int) -> Any:
    try:
        if row is None:
            return storage.barrier()
        store = NodeStore(storage, order, target_bytes, _CACHE_BYTES)
        (done,) = flush_subtrees(store, [received(row, order)], stamp)
    except Exception as error:  # noqa: BLE001 - raised again by whoever gave the work
        return error
    return done


if __name__ == "__main__":
    main()

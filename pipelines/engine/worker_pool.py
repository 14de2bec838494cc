"""Processes of this program that take a share of the work of this one, without Spark.

This process works itself. It measures the time of a piece. If the remaining pieces are worth starting help, it starts
one Python process per further core. Each process takes the next piece when it is done with one, so that none waits for
a slow one, and this process continues. Where pieces wait for a server, a process takes several, and reads ahead.

A helper is a program of its own (:func:`main`), no fork of this process: threads, locks and the caller's main module
stay out of it. Storage options travel through its standard input, never through arguments or the environment. When this
process dies, however it does, a helper finds its input closed and ends at once, in the middle of a piece. A helper is a
process group of its own: signals of the terminal are for this process.
"""

from __future__ import annotations

import os
import pickle
import select
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.abc import MetaPathFinder
from threading import Thread
from typing import Any, Final, Protocol

from trinitylake_core.storage import Storage

START_SECONDS: Final = 0.8
"""What starting a helper costs on a slow day; less work than twice that is left to this process alone."""
_MEASURED_SECONDS: Final = 0.1
"""How long this process works before it judges how long the rest will take."""
_END_SECONDS: Final = 5.0
_POLL_SECONDS: Final = 0.25
_PARTS: Final = 8
"""A helper is given at most such a part of what is left."""

Answer = Callable[[Any], Any]
"""What a helper does: it answers a list of pieces with what became of each, and ``None`` when all of it is durable."""


class Pieces(Protocol):
    """Pieces of work by number; each can be sent to a helper."""

    def __getitem__(self, index: int, /) -> Any: ...


class Results(Protocol):
    """What became of pieces, by their number. Threads use it, one at a time."""

    def keep(self, index: int, result: Any) -> None:
        """Keep what became of a piece."""

    def forget(self, index: int) -> None:
        """Forget what became of a piece, if anything did: it is done again."""


def answerer(work: Callable[..., Iterable[Any]], storages: Sequence[Storage]) -> Answer:
    """Return the function by which a helper does pieces, and at ``None`` makes what it wrote durable."""

    def answer(pieces: Sequence[Any] | None) -> list[Any] | None:
        if pieces is not None:
            return list(work(pieces, *storages))
        for each in storages:
            each.barrier()
        return None

    return answer


def cores() -> int:
    """Return the number of cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        return os.cpu_count() or 1


class SharedWork:
    """Pieces of work by number, the heaviest first, shared by this process and the threads that feed its helpers."""

    def __init__(
        self,
        work: Callable[..., Iterable[Any]],
        pieces: Pieces,
        weights: Sequence[int],
        results: Results,
        *storages: Storage,
        at_once: int = 1,
    ) -> None:
        """Share pieces of these weights.

        Args:
            work: yields one result for each piece, in their order; when it ends, all that it wrote is written. A
                helper gives it a list; this process an iterator that takes the next piece from those that are left.
            pieces: by number; a piece is made when it is taken, and sent to a helper as it is.
            weights: one for each piece.
            results: where results are kept.
            storages: given to ``work``; a helper opens its own.
            at_once: a helper is given so many pieces while there are plenty.
        """
        self.done_weight = 0
        self.work = work
        self.pieces = pieces
        self.storages = storages
        self._at_once = at_once
        self.left_weight = sum(weights)
        self._weights = weights
        heaviest_first = sorted(range(len(weights)), key=lambda index: -weights[index])
        self._waiting = deque(heaviest_first)
        self._results = results
        self._failed: BaseException | None = None
        self._lock = threading.Lock()

    def here(self) -> Iterator[tuple[int, Any]]:
        """Do pieces in this process until there are none; yield what became of each."""
        taken: deque[int] = deque()

        def take_pieces() -> Iterator[Any]:
            while (index := self.next()) is not None:
                taken.append(index)
                yield self.pieces[index]

        for result in self.work(take_pieces(), *self.storages):
            yield taken.popleft(), result

    def next(self) -> int | None:
        """Return a piece that no process has, or ``None`` when there is none or one has failed."""
        with self._lock:
            if self._waiting and self._failed is None:
                return self._waiting.popleft()
            return None

    def some(self) -> list[int]:
        """Return pieces for a helper that no process has; fewer towards the end, so that all end at the same time."""
        with self._lock:
            many = 0
            if self._failed is None:
                many = min(self._at_once, -(-len(self._waiting) // _PARTS))
            return [self._waiting.popleft() for _ in range(many)]

    def finish(self, index: int, result: Any) -> None:
        """Note what became of a piece."""
        with self._lock:
            self._results.keep(index, result)
            self.done_weight += self._weights[index]
            self.left_weight -= self._weights[index]

    def give_back(self, indices: Sequence[int]) -> None:
        """Give the pieces of a helper that died to another process; the files of the helper may not be durable."""
        with self._lock:
            for index in indices:
                self._results.forget(index)
                self._waiting.appendleft(index)

    def fail(self, error: BaseException) -> None:
        """Stop all processes: a piece failed in a helper."""
        with self._lock:
            self._failed = self._failed or error

    def end(self) -> None:
        """Do the pieces whose helper died at last. Raises the error of a helper that failed."""
        for index, result in self.here():
            self.finish(index, result)
        if self._failed is not None:
            raise self._failed


def run_in_workers(work: SharedWork, processes: int, progress: Callable[[], None]) -> None:
    """Do work in this process and, where that pays, in others.

    Files that helpers wrote are durable when this returns. Files that this process wrote are durable after the next
    barrier of its storage.

    Args:
        work: the pieces.
        processes: the number of processes, this one included.
        progress: called often; if it raises, the work is given up.

    Raises:
        The error of the first piece that failed; the results of the others are of no use then.
    """
    started = time.perf_counter()
    threads: list[Thread] = []
    try:
        for index, result in work.here():
            work.finish(index, result)
            progress()
            seconds = time.perf_counter() - started
            rest = seconds / max(1, work.done_weight) * work.left_weight
            if processes > 1 and not threads and seconds >= _MEASURED_SECONDS and rest > 2 * START_SECONDS:
                threads = []
                for _ in range(processes - 1):
                    threads.append(Thread(target=_feed, args=(work,), name="helper", daemon=True))
                for thread in threads:
                    thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(_POLL_SECONDS)
                progress()
    except BaseException as error:
        work.fail(error)  # the helpers must not go on: their results are not needed
        raise
    finally:
        for thread in threads:
            thread.join()
    work.end()


def _feed(work: SharedWork) -> None:
    """Have one helper do pieces until there are none left."""
    try:
        helper = Helper(answerer, work.work, work.storages)
    except OSError:
        return  # no process to be had: this one goes on alone
    taken: list[int] = []
    try:
        while some := work.some():
            taken += some
            done = helper.do([work.pieces[index] for index in some])
            for index, result in zip(some, done, strict=True):
                work.finish(index, result)
        helper.barrier()
    except (EOFError, OSError, pickle.PickleError):
        work.give_back(taken)  # the helper died, perhaps of a memory limit: the others do its part
    except Exception as error:  # noqa: BLE001 - what failed in the helper, raised again by who waits for the results
        work.fail(error)
    finally:
        helper.end()


class Helper:
    """A process that does pieces of work, seen from here."""

    def __init__(self, make: Callable[..., Answer], *arguments: Any) -> None:
        """Start a process that answers by ``make(*arguments)``, a function of a module that it imports."""
        places = [path for path in sys.path if path]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(places)}
        self._process = subprocess.Popen(
            # -P: a folder named `pipelines` where the command was started is not ours.
            [sys.executable, "-P", "-c", "from pipelines.engine.worker_pool import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            process_group=0,
        )
        self._send((make, arguments))

    def do(self, messages: Sequence[Any]) -> Sequence[Any]:
        """Return the results of the process for pieces. Raises the error that it reports."""
        done: Sequence[Any] = self._ask(messages)
        return done

    def barrier(self) -> None:
        """Wait until the files of the process are durable. Raises the error of that."""
        self._ask(None)

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
            raise EOFError("the helper has no input")
        pickle.dump(message, self._process.stdin, pickle.HIGHEST_PROTOCOL)
        self._process.stdin.flush()

    def _ask(self, message: object) -> Any:
        self._send(message)
        if self._process.stdout is None:
            raise EOFError("the helper has no output")
        answer = pickle.load(self._process.stdout)  # noqa: S301 - from our own process, through a pipe of this one alone
        if isinstance(answer, Exception):
            raise answer
        return answer


class _WithoutPandas(MetaPathFinder):
    """Refuses pandas: pyarrow would import it, to see whether lists are something of it, in 0.2 s."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        """Refuse pandas; later finders find the other modules."""
        if fullname == "pandas":
            raise ModuleNotFoundError("helpers do without pandas", name="pandas")


def main() -> None:
    """Be a helper: pieces in, answers out, until the input ends."""
    sys.meta_path.insert(0, _WithoutPandas())
    Thread(target=_end_with_input, name="watch", daemon=True).start()
    source = sys.stdin.buffer
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not get between our answers
    make, arguments = pickle.load(source)  # noqa: S301 - from the process that started this one
    answer = make(*arguments)
    while True:
        try:
            message = pickle.load(source)  # noqa: S301 - likewise
        except EOFError:
            return
        try:
            answered = answer(message)
        except Exception as error:  # noqa: BLE001 - raised again by the process that gave the work
            answered = error
        pickle.dump(answered, sink, pickle.HIGHEST_PROTOCOL)
        sink.flush()


def _end_with_input() -> None:
    """End this process as soon as nothing can come through its input any more: it has nothing left to lose."""
    watch = select.poll()
    watch.register(sys.stdin.fileno(), 0)  # no event but the hang-up
    watch.poll()
    os._exit(0)

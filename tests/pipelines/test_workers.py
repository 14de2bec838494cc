"""Flushing subtrees in several processes: the same tree as one makes, whatever happens to the others."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from pipelines import compaction
from pipelines.engine import local, worker_pool
from pipelines.engine.model import Row
from pipelines.job import silent
from pipelines.trees import subtrees
from pipelines.trees.subtrees import Flush, flush_subtrees, subtree_row
from tests.support.lakes import content, filled, new_lake, reopened
from tests.support.surgery import directory_of
from trinitylake_core import Lakehouse
from trinitylake_core.errors import CorruptNode
from trinitylake_core.storage import open_storage
from trinitylake_core.storage.local import LocalStorage
from trinitylake_core.tree.nodestore import NodeStore, NodeWriter
from trinitylake_core.tree.rewrite import Rewriter
from trinitylake_core.tree.subtree import Ref


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Help is called after the first subtree, however small the work is."""
    monkeypatch.setattr(worker_pool, "START_SECONDS", 0.0)
    monkeypatch.setattr(worker_pool, "_MEASURED_SECONDS", 0.0)
    monkeypatch.setattr(worker_pool, "cores", lambda: 3)
    monkeypatch.setattr(compaction, "_SHARED_FROM_ROWS", 1)


@pytest.fixture
def dirty(tmp_path: Path) -> Lakehouse:
    return filled(new_lake(tmp_path, order=4), tables=160, changes=20)


class Watched(worker_pool.Helper):
    """A worker whose steps a test sees, and may disturb."""

    started: list[Watched]
    pids: list[int]

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        Watched.started.append(self)
        Watched.pids.append(self._process.pid)
        self.rows = 0

    def do(self, messages: Sequence[Row]) -> Sequence[Row]:
        """Count the rows, disturb, and go on."""
        self.rows += len(messages)
        self.disturb(messages)
        return super().do(messages)

    def disturb(self, messages: Sequence[Row]) -> None:
        """Leave it in peace."""


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Watched]]:
    Watched.started, Watched.pids = [], []
    monkeypatch.setattr(worker_pool, "Helper", Watched)
    # From its second subtree on this process waits until a worker has some, or is gone.
    real, done = subtrees._receive, []

    def received(*arguments: Any, **more: Any) -> Flush:
        if done:
            for thread in threading.enumerate():
                if thread is not threading.main_thread() and thread.name.startswith("helper"):
                    while thread.is_alive() and not any(worker.rows for worker in Watched.started):
                        thread.join(0.05)
        done.append(None)
        return real(*arguments, **more)

    monkeypatch.setattr(subtrees, "_receive", received)
    yield Watched.started
    assert not [pid for pid in Watched.pids if psutil.pid_exists(pid)]


def test_several_processes_make_what_one_makes(dirty: Lakehouse, watched: list[Watched]) -> None:
    before = content(dirty)
    report = compaction.run(dirty, compaction.Config(engine="local"))
    assert report.proved
    assert sum(worker.rows for worker in watched) > 0
    assert before == content(reopened(dirty))
    assert [] == list(reopened(dirty).check(definitions=True))


def test_a_worker_that_is_killed_loses_nothing(
    dirty: Lakehouse, watched: list[Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its subtrees are flushed again by whoever is left: its files were not durable yet."""

    def die(worker: Watched, messages: Sequence[Row]) -> None:
        if worker.rows == 2:
            os.kill(worker._process.pid, signal.SIGKILL)

    monkeypatch.setattr(Watched, "disturb", die)
    before = content(dirty)
    assert compaction.run(dirty, compaction.Config(engine="local")).proved
    assert watched
    assert before == content(reopened(dirty))
    assert [] == list(reopened(dirty).check())


def test_what_fails_in_a_worker_is_raised_as_itself(
    dirty: Lakehouse, watched: list[Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    def damage(worker: Watched, messages: Sequence[Row]) -> None:
        (tmp := directory_of(dirty) / messages[0][0]["path"]).write_bytes(b"garbage")
        assert tmp.exists()

    monkeypatch.setattr(Watched, "disturb", damage)
    with pytest.raises(CorruptNode, match="cannot be read"):
        compaction.run(dirty, compaction.Config(engine="local"))
    assert dirty.version == reopened(dirty).version


def test_without_processes_to_be_had_this_one_does_it_alone(dirty: Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert compaction.run(dirty, compaction.Config(engine="local")).proved


def test_an_interrupt_ends_the_workers(
    dirty: Lakehouse, watched: list[Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(phase: str, done: int, total: int | None) -> None:
        if phase == "flush subtrees" and watched:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compaction.run(dirty, compaction.Config(engine="local"), progress=interrupted)
    assert dirty.version == reopened(dirty).version


_GIVES_WORK = """
from pipelines.engine.worker_pool import Helper
from tests.pipelines.test_workers import begin_and_sleep
helper = Helper(begin_and_sleep)
print(helper._process.pid, flush=True)
helper.do([])
"""


def begin_and_sleep() -> worker_pool.Answer:
    """Return the work of a helper that has begun, and is not done within a minute."""

    def answer(_: object) -> None:
        sys.stderr.write("begun\n")
        sys.stderr.flush()
        time.sleep(60)

    return answer


@pytest.mark.parametrize("kill", [signal.SIGTERM, signal.SIGKILL])
def test_a_worker_ends_silently_in_the_middle_of_a_piece_when_its_parent_is_killed(kill: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _GIVES_WORK], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        assert parent.stderr is not None
        worker = psutil.Process(int(parent.stdout.readline()))
        assert b"begun\n" == parent.stderr.readline()
        assert os.getpgid(worker.pid) == worker.pid  # Ctrl-C is not for it
        parent.send_signal(kill)
        psutil.wait_procs([worker], timeout=300)
        assert not worker.is_running()
        assert b"" == parent.stderr.read()


def test_secrets_travel_through_the_pipe_alone(
    dirty: Lakehouse, watched: list[Watched], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def look(worker: Watched, messages: Sequence[Row]) -> None:
        process = psutil.Process(worker._process.pid)
        seen.append(" ".join([*process.cmdline(), *process.environ().values()]))

    monkeypatch.setattr(Watched, "disturb", look)
    monkeypatch.setattr(LocalStorage, "spec", lambda self: (self.root, {**self._given, "retries": "7"}))
    assert compaction.run(dirty, compaction.Config(engine="local")).proved
    assert seen
    assert not [text for text in seen if "retries" in text]


def test_what_was_flushed_is_not_held_until_the_end(dirty: Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the process that drives a compaction holds all of what it did at once."""
    monkeypatch.setattr(worker_pool, "cores", lambda: 1)
    held: list[int] = []
    real = subtrees.flush_all

    def flush_all(engine: Any, store: Any, frontier: list[Ref], *more: Any) -> Any:
        before = sum(ref.work is not None for ref in frontier)
        done = real(engine, store, frontier, *more)  # type: ignore[arg-type]
        held.extend((len(frontier), sum(ref.work is not None for ref in frontier) - before))
        return done

    monkeypatch.setattr(subtrees, "flush_all", flush_all)
    before = content(dirty)
    report = compaction.run(dirty, compaction.Config(engine="local", tasks=8))
    assert (True, 0, before) == (report.proved, report.messages_after, content(reopened(dirty)))
    assert held[0] > 4
    assert held[1] == 0


def _to_flush(lake: Lakehouse, options: dict[str, Any]) -> tuple[NodeStore, list[Ref]]:
    """Return the dirty subtrees of a lakehouse, and the store that they are in."""
    store = NodeStore(open_storage(lake.root, options), lake.definition.order, 1 << 20)
    rewriter = Rewriter(NodeWriter(store), 1)
    return store, rewriter.frontier(rewriter.ref_of(lake.root_node.node), 16)


@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_task_lets_go_of_what_it_flushed(
    dirty: Lakehouse, concurrency: int, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Else a task of Spark holds all subtrees that it was given, with all that was read and written of them."""
    store, frontier = _to_flush(dirty, {"durable": False, "max_concurrency": concurrency})
    rows = [subtree_row(ref, store.order) for ref in frontier]
    made: list[weakref.ref[Flush]] = []
    received = subtrees._receive

    def noted(*arguments: Any, **more: Any) -> Flush:
        flush = received(*arguments, **more)
        made.append(weakref.ref(flush))
        return flush

    monkeypatch.setattr(subtrees, "_receive", noted)
    held = []
    gc.freeze()  # what other tests left is not searched again and again
    request.addfinalizer(gc.unfreeze)
    for done, _ in enumerate(flush_subtrees(store, rows, 1), 1):
        gc.collect()
        held.append(sum(flush() is not None for flush in made[:done]))
    assert len(held) > 4
    assert max(held) <= 1


@pytest.mark.parametrize(("concurrency", "given"), [(1, 1), (8, 4)])
def test_a_helper_is_given_some_subtrees_at_once_where_it_reads_ahead(
    dirty: Lakehouse, concurrency: int, given: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would wait for the first reads and the last writes of each; what becomes of them is the same."""
    monkeypatch.setattr(worker_pool, "_PARTS", 1)  # this tree is small
    options = {"durable": False, "max_concurrency": concurrency}
    store, frontier = _to_flush(dirty, options)
    taken: list[Any] = []

    def take_once(work: worker_pool.SharedWork, *_: object) -> None:
        taken.extend((work.work, [work.pieces[index] for index in work.some()]))
        raise InterruptedError

    monkeypatch.setattr(worker_pool, "run_in_workers", take_once)
    with pytest.raises(InterruptedError):
        subtrees.flush_all(local.LocalEngine(), store, [*frontier], 1, 1, silent)
    work, messages = taken
    assert given == len(messages)
    answer = worker_pool.answerer(work, [store.storage])
    together, apart = answer(messages), [group for message in messages for group in answer([message])]
    told = ("height", "low", "high", "keys", "messages", "nodes_written", "proved")
    rows = [[pickle.loads(row) for ((_, row),) in each] for each in (together, apart)]
    assert [[row[name] for name in told] for row in rows[0]] == [[row[name] for name in told] for row in rows[1]]
    assert answer(None) is None


def test_a_helper_is_given_fewer_pieces_towards_the_end() -> None:
    """Nobody waits for one that still has some."""
    kept = local._GroupRows(local.LocalEngine(), "none", 1)
    work = worker_pool.SharedWork(list, range(40), [1] * 40, kept, at_once=4)
    given = []
    while some := work.some():
        given.append(len(some))
    assert (40, 4, 1) == (sum(given), max(given), given[-1])
    assert sorted(given, reverse=True) == given

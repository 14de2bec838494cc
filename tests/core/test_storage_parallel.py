"""Requests at the same time, by a logical clock and by threads; the clock itself, by chains that can be counted."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.lakes import FAST
from tests.support.rounds import Rounds
from trinitylake_core.errors import FileMissing, StorageError
from trinitylake_core.storage import Storage, open_storage
from trinitylake_core.storage.requests import RequestThreads

NAMES = [f"file{number:03}" for number in range(100)]


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    storage = open_storage(tmp_path.as_uri(), FAST)
    storage.write_many([(name, name.encode()) for name in NAMES])
    return storage


def test_one_after_another_is_as_long_as_there_are_requests(storage: Storage) -> None:
    with Rounds(storage) as rounds:
        for name in NAMES:
            storage.read(name)
    assert (100, 100, 1) == (rounds.chain, rounds.requests, rounds.busiest())


@pytest.mark.parametrize(("most", "chain"), [(1, 100), (10, 10), (32, 4), (100, 1)])
def test_many_reads_take_as_many_rounds_as_threads_need(storage: Storage, most: int, chain: int) -> None:
    with Rounds(storage, most=most) as rounds:
        assert [(name, name.encode()) for name in NAMES] == list(storage.read_many(NAMES))
    assert (chain, 100, most) == (rounds.chain, rounds.requests, rounds.busiest())


def test_work_of_several_requests_is_a_chain_of_its_own(storage: Storage) -> None:
    """Ten items of five requests on ten threads: five rounds. And what work asks for in parallel, it does in turn."""

    def five(name: str) -> int:
        return sum(len(data) for _, data in storage.read_many([name] * 5) if isinstance(data, bytes))

    with Rounds(storage, most=10) as rounds:
        assert [35] * 10 == list(storage.map(NAMES[:10], five))
    assert (5, 50) == (rounds.chain, rounds.requests)


def test_reads_overlap_writes_behind(storage: Storage) -> None:
    """Each kind has threads of its own; who never asks for a result does not wait for it."""
    with Rounds(storage, most=4) as rounds:
        written = [storage.submit(partial(storage.write, f"new{name}", b"x"), write=True) for name in NAMES[:8]]
        read = [storage.submit(lambda name=name: storage.read(name)) for name in NAMES[:8]]
        assert 0 == rounds.now
        assert [name.encode() for name in NAMES[:8]] == [each.result() for each in read]
        assert 2 == rounds.now
        assert [None] * 8 == [each.result() for each in written]
    assert (2, 8) == (rounds.chain, rounds.busiest())


def test_storages_share_the_clock_and_not_the_threads(storage: Storage, tmp_path: Path) -> None:
    other = open_storage(tmp_path.as_uri(), FAST)
    with Rounds(storage, other, most=10) as rounds:
        here, there = storage.map(NAMES[:10], storage.read), other.map(NAMES[:10], other.read)
        assert 10 == len(list(zip(here, there, strict=True)))
    assert 20 == rounds.requests
    assert 2 == rounds.chain, "the second began when the first result of the first was asked for"


def test_afterwards_the_storage_is_as_it_was(storage: Storage) -> None:
    before: Any = storage
    threads = before._threads
    with Rounds(storage):
        assert 32 == storage.concurrency
    assert (1, None, threads) == (storage.concurrency, before.interceptor, before._threads)


def test_with_one_thread_everything_is_done_in_its_turn() -> None:
    """Nothing is read ahead of who asks for it, on any thread."""
    threads, done = RequestThreads(1), list[int]()
    results = threads.map(range(3), done.append)
    next(results)
    assert [0] == done
    assert threads.submit(threading.get_ident).result() == threading.get_ident()


def test_with_threads_work_is_done_ahead_and_in_order() -> None:
    threads, meeting = RequestThreads(4), threading.Barrier(4, timeout=300)

    def work(item: int) -> tuple[int, int]:
        meeting.wait()  # all four are at work at the same time, or this breaks
        return item, threading.get_ident()

    found = list(threads.map(range(8), work))
    assert list(range(8)) == [item for item, _ in found]
    assert threading.get_ident() not in {thread for _, thread in found}


def test_work_that_hands_work_on_does_not_wait_for_a_thread() -> None:
    """More work than threads, each of which hands on as much: with one set of threads that would stand for ever."""
    threads = RequestThreads(2)

    def work(item: int) -> int:
        return sum(threads.map(range(item), lambda each: threads.submit(lambda: each).result()))

    assert [sum(range(item)) for item in range(20)] == list(threads.map(range(20), work))


def test_large_pieces_of_work_read_in_parallel_themselves(storage: Storage) -> None:
    """Four at a time, each of a hundred reads on the same threads: as many rounds as the reads need."""

    def everything(_: int) -> int:
        return sum(isinstance(data, bytes) for _, data in storage.read_many(NAMES))

    with Rounds(storage) as rounds:
        assert [100] * 8 == list(storage.map(range(8), everything, nested=True))
    assert 800 == rounds.requests
    assert 25 <= rounds.chain <= 32


def test_large_pieces_of_work_never_wait_for_one_another() -> None:
    """More of them than threads, each reading more than there are threads, each with pieces of its own."""
    threads = RequestThreads(2)

    def work(item: int) -> int:
        inner = threads.map(range(3), lambda each: threads.submit(lambda: each).result(), nested=True)
        return sum(threads.map(range(item), lambda each: each)) + sum(inner)

    assert [sum(range(item)) + 3 for item in range(20)] == list(threads.map(range(20), work, nested=True))


@pytest.mark.parametrize("most", [1, 4])
def test_an_error_of_background_work_comes_with_its_result(storage: Storage, most: int) -> None:
    again = open_storage(storage.root, {**FAST, "max_concurrency": most})
    with pytest.raises(FileMissing):
        again.submit(lambda: again.read("absent")).result()
    again.submit(partial(again.write, "directory/file", b"x"), write=True).result()
    with pytest.raises(StorageError):
        again.submit(partial(again.write, "file000/below", b"x"), write=True).result()


def test_a_late_piece_leaves_no_thread_idle() -> None:
    """While the oldest piece is waited for, the others go on beyond the window, which is twice the threads."""
    threads, enough, done = RequestThreads(4), threading.Event(), list[int]()

    def work(item: int) -> int:
        if item == 0:
            assert enough.wait(300)
        done.append(item)
        if len(done) >= 20:
            enough.set()
        return item

    assert list(range(40)) == list(threads.map(range(40), work))
    assert done.index(0) >= 20


def test_behind_a_late_piece_little_is_held() -> None:
    """At most eight times as many pieces as threads, and nothing more once 16 MiB have arrived."""
    for size, most in ((1, 32), (8 << 20, 12)):
        threads, begun, go_on = RequestThreads(4), list[int](), threading.Event()

        def work(item: int, *, begun: list[int] = begun, go_on: threading.Event = go_on, size: int = size) -> bytes:
            begun.append(item)
            while item == 0 and len(begun) < 8:
                go_on.wait(0.01)
            if item == 0:
                go_on.wait(0.3)
            return bytes(size)

        results = threads.map(range(100), work)
        next(results)
        assert 8 <= len(begun) <= most
        results.close()


def test_the_error_of_a_late_piece_is_its_own() -> None:
    """A timeout that the work raises is not one of waiting for it."""

    def work(item: int) -> int:
        if item == 0:
            threading.Event().wait(0.2)
            raise TimeoutError("of the work")
        return item

    with pytest.raises(TimeoutError, match="of the work"):
        list(RequestThreads(2).map(range(10), work))

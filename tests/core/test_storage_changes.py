"""A store that changes while writers write: what was acknowledged before stays, and nothing is acknowledged in vain.

Ceph 16 honours ``If-None-Match`` until versioning is switched on in the bucket, and ignores it from then on: each of
several writers was told that its root had been created.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.proofs import forget_proofs
from tests.support.slow_s3 import (
    CARELESS,
    FORGETFUL,
    HASTY,
    LAWLESS,
    OVERWRITING,
    PLAIN,
    VERSIONED,
    SlowS3,
    run_slow_s3,
)
from tests.support.writers import forking
from trinitylake_core import Lakehouse
from trinitylake_core.errors import CorruptNode, OutcomeUnknown, TrinityLakeError, UnsafeStorage
from trinitylake_core.locations import root_path
from trinitylake_core.storage import Storage, check_conformance, open_storage, promise
from trinitylake_core.storage.base import BaseStorage
from trinitylake_core.versions.search import listed_versions

pytestmark = pytest.mark.s3

TIMES = int(os.environ.get("CHANGES", "10"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlowS3]:
    """A store of our own: preconditions are atomic there."""
    with run_slow_s3(tmp_path_factory.mktemp("changing")) as running:
        yield running


def write(root: str, options: dict[str, Any], number: int, log: Path) -> None:
    """Commit tables one after the other until the storage refuses; write down each version that was acknowledged."""
    with log.open("a", encoding="utf-8", buffering=1) as acknowledged:
        lake = Lakehouse.open(root, storage_options=options)
        for table in range(10_000):
            name = f"t{number}-{table}"
            try:
                with lake.transaction() as txn:
                    txn.create_table("ns", name)
            except TrinityLakeError as error:
                acknowledged.write(json.dumps({"refused": f"{type(error).__name__}: {error}"}) + "\n")
                return
            acknowledged.write(json.dumps({"name": name}) + "\n")


def _told(logs: Path) -> list[dict[str, str]]:
    return [json.loads(line) for log in sorted(logs.glob("*.log")) for line in log.read_text().splitlines()]


def _commits(logs: Path) -> set[str]:
    return {told["name"] for told in _told(logs) if "name" in told}


@pytest.mark.parametrize("writers", [3, pytest.param(8, marks=pytest.mark.slow)])
def test_versioning_is_switched_on_under_writers(server: SlowS3, tmp_path: Path, writers: int) -> None:
    """On a store that forgets its promise then: every commit that was acknowledged is in the history, and readable."""
    for attempt in range(TIMES if writers > 3 else 1):
        server.set(kind=PLAIN)
        (logs := tmp_path / str(attempt)).mkdir()
        root, options = server.new_root(), server.options
        lake = Lakehouse.create(root, storage_options=options)
        with lake.transaction() as txn:
            txn.create_namespace("ns")
        processes = [
            forking().Process(target=write, args=(root, options, number, logs / f"{number}.log"))
            for number in range(writers)
        ]
        for process in processes:
            process.start()
        while len(_commits(logs)) < 10 * writers:
            time.sleep(0.01)
        server.set(kind=FORGETFUL)
        for process in processes:
            process.join(300)
        found = Lakehouse.open(root, storage_options=options)
        told = _told(logs)
        refusals = [each["refused"] for each in told if "refused" in each]
        lost = _commits(logs) - set(found.tables("ns"))
        print(f"{attempt}: {len(_commits(logs))} acknowledged, {len(lost)} lost, version {found.version}")
        assert set() == lost
        assert writers == len(refusals)
        assert [] == list(found.check())


def write_on(root: str, options: dict[str, Any], number: int, log: Path) -> None:
    """Commit tables one after the other whatever happens, until somebody says stop; write down what came of each."""
    with log.open("a", encoding="utf-8", buffering=1) as told:
        table = 0
        while not (log.parent / "stop").exists():
            table += 1
            name = f"t{number}-{table}"
            try:
                with Lakehouse.open(root, storage_options=options).transaction() as txn:
                    txn.create_table("ns", name)
            except CorruptNode as error:
                told.write(json.dumps({"evidence" if error.invariant == "I14" else "error": str(error)}) + "\n")
            except TrinityLakeError as error:
                told.write(json.dumps({"refused": f"{type(error).__name__}: {error}"}) + "\n")
                time.sleep(0.05)
            else:
                told.write(json.dumps({"name": name}) + "\n")


@pytest.mark.parametrize(
    ("kind", "seconds"),
    [
        pytest.param(LAWLESS, 1.0, id="for a while"),
        pytest.param(LAWLESS, 30.0, id="for half a minute", marks=pytest.mark.slow),
        pytest.param(LAWLESS, math.inf, id="for ever", marks=pytest.mark.slow),
        pytest.param(OVERWRITING, math.inf, id="replacements only", marks=pytest.mark.slow),
    ],
)
def test_a_store_that_decides_no_more_loses_nothing_after_the_first_evidence(
    server: SlowS3, tmp_path: Path, kind: str, seconds: float
) -> None:
    """It says nothing of it. A writer that finds two roots of one version believes the store no longer.

    Each of the processes finds that for itself. What it acknowledges from then on is in the newest version.
    """
    server.set(kind=PLAIN)
    root, options = server.new_root(), server.options
    with Lakehouse.create(root, storage_options=options).transaction() as txn:
        txn.create_namespace("ns")
    processes = [
        forking().Process(target=write_on, args=(root, options, number, tmp_path / f"{number}.log"))
        for number in range(4)
    ]
    for process in processes:
        process.start()
    while len(_commits(tmp_path)) < 10 * len(processes):
        time.sleep(0.05)
    server.set(kind=kind)
    time.sleep(5.0 if seconds == math.inf else seconds)
    if seconds < math.inf:
        server.set(kind=PLAIN)
        time.sleep(1.0)
    (tmp_path / "stop").touch()
    for process in processes:
        process.join(300)
    server.set(kind=PLAIN)
    found = Lakehouse.open(root, storage_options=options)
    there = set(found.tables("ns"))
    before, after, evidence = set[str](), set[str](), 0
    for log in tmp_path.glob("*.log"):
        told = [json.loads(line) for line in log.read_text().splitlines()]
        first = next((at for at, each in enumerate(told) if "evidence" in each), len(told))
        evidence += first < len(told)
        before |= {each["name"] for each in told[:first] if "name" in each}
        after |= {each["name"] for each in told[first:] if "name" in each}
    print(f"{len(before - there)} of {len(before)} lost, {len(after - there)} of {len(after)} after the evidence")
    assert set() == after - there
    assert (evidence > 0) == (kind == LAWLESS)
    if seconds == math.inf:  # what replaced another root is all that is left of its version
        assert list(range(found.version + 1)) == sorted(listed_versions(found.backend.versions))


PROOF = 4 * 8 + 8 * 2
"""So many files the racers of one proof create."""


def _find_evidence_in_each_proof(storage: Storage, files: list[str]) -> None:
    """Let other threads find evidence while proofs are under way: one of these files in each of them."""
    creations = itertools.count(1)

    def find(kind: str, path: str, action: Callable[[], Any]) -> Any:
        if kind == "create" and next(creations) % PROOF == PROOF // 2 and files:
            storage.doubt(files.pop(0))
        return action()

    assert isinstance(storage, BaseStorage)
    storage.interceptor = find


@pytest.mark.parametrize(
    ("evidence", "proofs"), [(["old"], 1), (["new"], 2), (["new", "newer"], 3), (["new", "new", "new"], 2)]
)
def test_a_proof_that_began_before_the_evidence_settles_no_doubt(
    server: SlowS3, evidence: list[str], proofs: int
) -> None:
    """It is made again. What was known before it began, and is met again by a reader, is nothing new."""
    forget_proofs()
    server.set(kind=PLAIN)
    storage = open_storage(server.new_root(), server.options)
    storage.prove_exclusive_create()
    storage.doubt("old")
    _find_evidence_in_each_proof(storage, list(evidence))
    before = storage.counts.create
    storage.settle_doubt()
    assert proofs * PROOF == storage.counts.create - before
    storage.create("file", b"x")
    assert proofs * PROOF + 1 == storage.counts.create - before


def test_a_store_against_which_evidence_comes_in_again_and_again_is_not_believed(server: SlowS3) -> None:
    forget_proofs()
    server.set(kind=PLAIN)
    storage = open_storage(server.new_root(), server.options)
    storage.prove_exclusive_create()
    _find_evidence_in_each_proof(storage, [str(number) for number in range(9)])
    storage.doubt()
    with pytest.raises(UnsafeStorage, match="two writers win again and again"):
        storage.settle_doubt()
    with pytest.raises(UnsafeStorage):
        storage.create("file", b"x")


def test_versions_that_are_read_for_the_first_time_during_a_proof_void_it() -> None:
    """A file that was written after the bucket was changed is evidence of the change, whenever it is read."""
    known = promise.Promise()
    known.begin()
    known.note_write(None)
    known.note_read("3")
    assert known.renew() is None
    known.begin()
    known.note_write(None)
    assert "plain" == known.renew()


def test_no_commit_is_acknowledged_whose_root_was_replaced_before_the_doubt_was_settled(server: SlowS3) -> None:
    """The store lied to two writers of one version, was found out by a third, and keeps its promise again."""
    server.set(kind=PLAIN)
    lake = Lakehouse.create(server.new_root(), storage_options=server.options)
    mine, theirs = lake.transaction(), Lakehouse.open(lake.root, storage_options=server.options).transaction()
    mine.create_namespace("mine")
    theirs.create_namespace("theirs")

    storage = lake.storage
    assert isinstance(storage, BaseStorage)

    def lie(kind: str, path: str, action: Callable[[], Any]) -> Any:
        done = action()
        if kind == "create" and path == root_path(1):
            storage.interceptor = None
            server.set(kind=LAWLESS)
            theirs.commit()
            server.set(kind=PLAIN)
            storage.doubt("of another thread")
            storage.settle_doubt()
        return done

    storage.interceptor = lie
    with pytest.raises(OutcomeUnknown, match="another writer won, too"):
        mine.commit()
    assert ["theirs"] == Lakehouse.open(lake.root, storage_options=server.options).namespaces()


def test_a_root_that_is_gone_when_it_is_read_back_is_an_unknown_outcome(server: SlowS3) -> None:
    """A client takes "it does not exist" for "certainly not committed", and deletes the files of its commit."""
    server.set(kind=PLAIN)
    lake = Lakehouse.create(server.new_root(), storage_options=server.options)
    txn, storage = lake.transaction(), lake.storage
    txn.create_namespace("mine")
    assert isinstance(storage, BaseStorage)

    def lose(kind: str, path: str, action: Callable[[], Any]) -> Any:
        done = action()
        if kind == "create" and path == root_path(1):
            storage.interceptor = None
            storage.doubt("of another thread")
            storage.settle_doubt()
            storage.delete_many([path])
        return done

    storage.interceptor = lose
    with pytest.raises(OutcomeUnknown, match="may have won"):
        txn.commit()


def test_an_honest_store_goes_on_when_versioning_is_switched_on(server: SlowS3) -> None:
    """It keeps its promise, which is proven anew; what is deleted stays there as an older version, and is told."""
    server.set(kind=PLAIN)
    root = server.new_root()
    lake = Lakehouse.create(root, storage_options=server.options)
    before = lake.storage.counts.create
    server.set(kind=VERSIONED)
    with lake.transaction() as txn:
        txn.create_namespace("ns")
    assert PROOF < lake.storage.counts.create - before
    lake.storage.write("file", b"x")
    result = lake.storage.delete_many(["file"])
    assert (["file"], 1) == (result.deleted, result.versions_kept)
    told = {each.name: each.detail for each in check_conformance(server.new_root(), server.options)}
    assert "the bucket keeps their versions" in told["delete"]


def test_a_store_that_looks_and_writes_then_is_found_by_the_first_writer(server: SlowS3) -> None:
    """Two milliseconds lie between its look and its write."""
    forget_proofs()
    server.set(kind=HASTY)
    try:
        with pytest.raises(UnsafeStorage, match=r"racing creations of one file succeeded; one must"):
            Lakehouse.create(server.new_root(), storage_options=server.options)
    finally:
        server.set(kind=PLAIN)


@pytest.mark.parametrize(
    ("kind", "broken"),
    [
        (HASTY, {"racing writers", "compare and set"}),
        (CARELESS, {"compare and set"}),
        (PLAIN, set()),
    ],
)
def test_the_doctor_names_each_promise_that_a_store_breaks(server: SlowS3, kind: str, broken: set[str]) -> None:
    """Eight racers, once, met a store that replaces a file for two of them in no more than every sixth try."""
    server.set(kind=kind)
    try:
        results = list(check_conformance(server.new_root(), server.options))
    finally:
        server.set(kind=PLAIN)
    assert broken == {each.name for each in results if not each.ok}


def test_a_proof_ends_by_time_and_by_number(server: SlowS3, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that is seen in answers ends it; a store may change without a word."""
    forget_proofs()
    server.set(kind=PLAIN)
    storage = open_storage(server.new_root(), server.options)
    monkeypatch.setattr(promise, "_LASTS_USES", 3)
    storage.prove_exclusive_create()
    spent = []
    for number in range(5):
        before = storage.counts.create
        storage.create(f"file-{number}", b"x")
        spent.append(storage.counts.create - before)
    assert [1, 1, 1, 1 + PROOF, 1] == spent
    monkeypatch.setattr(promise, "time", SimpleNamespace(monotonic=lambda: math.inf))
    before = storage.counts.create
    storage.create("late", b"x")
    assert 1 + PROOF == storage.counts.create - before

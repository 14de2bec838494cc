"""Real stores: what a lakehouse rests on, and one life of it. `make test-stores`.

STORES_TABLES=20000 STORES_ROUNDS=60 are the defaults.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.stores import table
from tests.stores.jobs import Place, run_all_jobs
from tests.support.authority import Certificate, make_certificate
from tests.support.real_stores import FIT, UNFIT, Kind, RunningStore, run_store
from tests.support.writers import forking
from trinitylake_core import Lakehouse
from trinitylake_core.errors import AlreadyExists, StorageError, UnsafeStorage
from trinitylake_core.storage import Storage, Tagged, check_conformance, open_storage

TABLES = int(os.environ.get("STORES_TABLES", "20000"))
ROUNDS = int(os.environ.get("STORES_ROUNDS", "60"))
RACERS = 6
"""In each of two processes."""
_DOCTORS = 12
_AHEAD_SECONDS = 3.0
_BETWEEN_SECONDS = 0.15
_NOT_ONE = re.compile("racing (creations|replacements) of one file succeeded; one must|another content than that of")


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    """A certificate of a private authority."""
    return make_certificate(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module", params=FIT, ids=lambda kind: kind.name)
def store(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, certificate: Certificate
) -> Iterator[RunningStore]:
    """Each store that is fit, one after the other."""
    yield from _running(request.param, tmp_path_factory, certificate)


@pytest.fixture(scope="module", params=UNFIT, ids=lambda kind: kind.name)
def unfit(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, certificate: Certificate
) -> Iterator[RunningStore]:
    """Each store that is not."""
    yield from _running(request.param, tmp_path_factory, certificate)


def _running(kind: Kind, directories: pytest.TempPathFactory, certificate: Certificate) -> Iterator[RunningStore]:
    if not kind.is_there:
        pytest.skip(f"{kind.name} IS NOT TESTED: there is no {kind.needs}; scripts/stores.sh builds it where it can")
    with run_store(kind, directories.mktemp("store"), certificate) as running:
        yield running


# What a lakehouse rests on.


@dataclass(frozen=True)
class Verdicts:
    """What the doctor said each time: the checks that failed, and why; and what one time took."""

    failed: list[dict[str, str]]
    cost: str


def _ask_the_doctor(store: RunningStore) -> Verdicts:
    failed = []
    requests = []
    began = time.monotonic()
    for _ in range(_DOCTORS):
        results = list(check_conformance(store.new_root(), store.options))
        failed.append({each.name: each.detail for each in results if not each.ok})
        requests.append(sum(each.requests for each in results))
    seconds = (time.monotonic() - began) / _DOCTORS
    return Verdicts(failed, f"{seconds:.1f} s and {min(requests)} to {max(requests)} requests each")


def test_the_doctor_finds_it_fit(store: RunningStore) -> None:
    """Twelve times of twelve."""
    verdicts = _ask_the_doctor(store)
    fit = sum(not failed for failed in verdicts.failed)
    table.note_races(store.kind.name, f"called fit {fit} of {_DOCTORS} times, {verdicts.cost}")
    assert [{}] * _DOCTORS == verdicts.failed


def _is_caught(kind: Kind, failed: dict[str, str]) -> bool:
    """Whether the doctor failed what a store breaks and nothing else, each because not exactly one racer won."""
    return kind.breaks == set(failed) and all(_NOT_ONE.search(why) for why in failed.values())


def test_the_doctor_finds_it_unfit(unfit: RunningStore) -> None:
    """Twelve times of twelve, and for the right reason: a store that does not answer fails checks, too."""
    verdicts = _ask_the_doctor(unfit)
    caught = [_is_caught(unfit.kind, failed) for failed in verdicts.failed]
    broken = " and ".join(sorted(unfit.kind.breaks))
    table.note_races(unfit.kind.name, f"{broken} called broken {sum(caught)} of {_DOCTORS} times, {verdicts.cost}")
    assert all(caught), verdicts.failed


def _try_to_win(storage: Storage, name: str, data: bytes, expected: Tagged | None, starts_at: float) -> bool:
    """Create a file, or replace what all racers were told of, at a moment all agree on; return whether it won."""
    time.sleep(max(0.0, starts_at - time.time()))
    if expected is not None:
        return storage.compare_and_set(name, data, expected) is not None
    try:
        storage.create(name, data)
    except AlreadyExists:
        return False
    return True


def _race(root: str, options: dict[str, Any], first: int, starts_at: float, states: list[Tagged | None]) -> list[Any]:
    """Let the racers of this process race once for each state; return of each round those that won."""
    storages = [open_storage(root, options).twin() for _ in range(RACERS)]
    for each in storages:
        each.exists()  # connected before the start
    outcomes = []
    with ThreadPoolExecutor(RACERS) as threads:
        for number, state in enumerate(states):
            moment = starts_at + number * _BETWEEN_SECONDS
            tasks = [
                threads.submit(_try_to_win, each, f"race-{number}", b"%d" % (first + racer), state, moment)
                for racer, each in enumerate(storages)
            ]
            outcomes.append([first + racer for racer, task in enumerate(tasks) if task.result()])
    return outcomes


@pytest.mark.parametrize("kind", ["create", "replace"])
def test_one_of_twelve_racers_in_two_processes_wins(store: RunningStore, kind: str) -> None:
    root, options = store.new_root(), store.options
    storage = open_storage(root, options)
    states: list[Tagged | None] = [None] * ROUNDS
    if kind == "replace":
        states = [storage.compare_and_set(f"race-{number}", b"before", Tagged(None)) for number in range(ROUNDS)]
    starts_at = time.time() + _AHEAD_SECONDS
    with ProcessPoolExecutor(2, mp_context=forking()) as pool:
        tasks = [pool.submit(_race, root, options, first, starts_at, states) for first in (0, RACERS)]
        one, two = (task.result() for task in tasks)
    unclear = 0
    for number in range(ROUNDS):
        winners = [*one[number], *two[number]]
        unclear += len(winners) != 1 or storage.read(f"race-{number}") != b"%d" % winners[0]
    table.note_races(store.kind.name, f"{kind}: one winner in {ROUNDS - unclear} of {ROUNDS}")
    assert 0 == unclear


# What goes wrong.


def test_a_crash_of_the_server_loses_nothing(store: RunningStore) -> None:
    """It is killed among commits, three times: at once, or when it has written down what it acknowledged."""
    root, options = store.new_root(), {**store.options, "retries": 2}
    lake = Lakehouse.create(root, storage_options=options)
    acknowledged = []
    for life in range(3):
        for number in range(10):
            name = f"n{life}_{number}"
            if number == 7:
                time.sleep(store.kind.forgets_seconds)
                store.kill()
            try:
                with lake.transaction() as txn:
                    txn.create_namespace(name)
            except StorageError:
                break
            acknowledged.append(name)
        store.start()
        lake = Lakehouse.open(root, storage_options=options)
    assert 21 == len(acknowledged)
    assert set(acknowledged) <= set(lake.namespaces())
    assert [] == list(lake.check(definitions=True))


def _commit_much(lake: Lakehouse) -> None:
    """Commit until the storage refuses."""
    for number in range(10_000):
        with lake.transaction() as txn:
            txn.create_namespace(f"n{number}", properties={"much": os.urandom(50_000).hex()})


def test_a_full_disk_loses_nothing(tmp_path: Path, certificate: Certificate, store: RunningStore) -> None:
    """Writers are told; when there is room again they go on."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("A FULL DISK IS NOT TESTED: this user may not mount one")
    try:
        with run_store(store.kind, disk, certificate) as small:
            root, options = small.new_root(), {**small.options, "retries": 1}
            lake = Lakehouse.create(root, storage_options=options)
            with lake.transaction() as txn:
                txn.create_namespace("before")
            filling = open_storage(small.new_root(), options)
            with pytest.raises(StorageError):
                filling.write_many((f"{number}", os.urandom(4 << 20)) for number in range(100))
            with pytest.raises(StorageError):
                _commit_much(lake)
            found = Lakehouse.open(root, storage_options=options)
            assert "before" in found.namespaces()
            assert [] == list(found.check(definitions=True))
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=False)


def test_no_writer_begins_on_a_store_that_creates_twice(unfit: RunningStore) -> None:
    if "S3Mock" not in unfit.kind.name:
        pytest.skip("this one creates exclusively, and replaces twice")
    with pytest.raises(UnsafeStorage, match="one must"):
        Lakehouse.create(unfit.new_root(), storage_options=unfit.options)


# One life.


def _write(root: str, options: dict[str, Any], writer: int, tables: int) -> int:
    """Commit tables, a hundred at a time; return the last version."""
    lake = Lakehouse.open(root, storage_options=options)
    version = 0
    for first in range(0, tables, 100):
        with lake.transaction() as txn:
            for number in range(first, min(first + 100, tables)):
                txn.create_table("ns", f"t{writer}_{number:06}")
        version = lake.refresh().version
    return version


@pytest.mark.parametrize("engine", ["local", "spark"])
def test_one_life_of_a_lakehouse(store: RunningStore, spark_session: Any, engine: str, tmp_path: Path) -> None:
    """Four writers, PyIceberg, and all jobs on each engine; files of tables are rewritten in this process in both."""
    root, options = store.new_root(), store.options
    lake = Lakehouse.create(root, storage_options=options)
    with lake.transaction() as txn:
        txn.create_namespace("ns")
    with ProcessPoolExecutor(4, mp_context=forking()) as pool:
        tasks = [pool.submit(_write, root, options, writer, TABLES // 4) for writer in range(4)]
        assert all(task.result() for task in tasks)
    place = Place(root, options, engine, spark_session if engine == "spark" else None)
    run_all_jobs(place, store.new_root(), tmp_path)
    assert TABLES // 4 * 4 == len(place.open().tables("ns"))
    assert ["ns", "sales"] == sorted(place.open().namespaces())

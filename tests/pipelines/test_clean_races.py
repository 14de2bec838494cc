"""Cleaning without a safety age, again and again, beside everybody: nothing acknowledged is lost, jobs make progress.

Clocks differ by days between the processes, and processes are stopped (SIGSTOP) for longer than every age there is.
The long runs are marked slow.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from pipelines import compaction, orphans, verify
from tests.support.lakes import FAST, CancelBy
from tests.support.s3_servers import S3Server
from tests.support.sweep import S3Place, write_files
from tests.support.writers import Place, forking
from trinitylake_core import Lakehouse
from trinitylake_core.errors import CommitConflict, TransactionExpired
from trinitylake_core.locations import node_path
from trinitylake_core.storage import open_storage

WRITERS: Final = 4
_LATE_SECONDS: Final = 30.0
"""How much longer a job that has not come through once may go on, on a machine that is busy with other things."""
SKEW_NANOS: Final = 2 * 86_400 * 10**9
SIZES: Final[dict[str, Any]] = {
    "order": 4,
    "node_file_max_size_bytes": 6000,
    **{f"{kind}_name_max_size_bytes": 10 for kind in ("namespace", "table", "view")},
}


@dataclass
class Done:
    """What one process did: the tables that it was told are there, and how often it got through, or had to give up."""

    kind: str
    tables: list[str] = field(default_factory=list)
    through: int = 0
    gave_up: int = 0


def _set_clock(seed: int) -> None:
    """Let this process's clock differ from those of the others, by up to two days."""
    real, skew = time.time_ns, random.Random(seed).randint(-SKEW_NANOS, SKEW_NANOS)
    time.time_ns = lambda: real() + skew


def _dawdle() -> None:
    """Now and then stand still with everything written but the root."""
    if random.random() < 0.1:
        time.sleep(random.random())


def _write(place: Place, seed: int, done: Done) -> None:
    lake = Lakehouse.open(place[0], storage_options=place[1])
    draw = random.Random(f"{seed} {time.monotonic_ns()}")
    if draw.random() < 0.7:
        lake.refresh()
    name = f"w{seed}n{len(done.tables)}"
    txn = lake.transaction()
    txn.create_table("a", name, properties={"by": txn.id})
    txn.commit(before_commit=_dawdle)
    done.tables.append(name)


def _save(place: Place, seed: int, done: Done) -> None:
    lake = Lakehouse.open(place[0], storage_options=place[1])
    txn = lake.transaction()
    name = f"s{seed}n{len(done.tables)}"
    txn.create_table("a", name)
    saved = txn.save()
    time.sleep(random.random() * 0.3)
    resumed = Lakehouse.open(place[0], storage_options=place[1]).resume_transaction(saved)
    assert name in resumed.tables("a")
    resumed.commit()
    done.tables.append(name)


def _compact(place: Place, seed: int, done: Done) -> None:
    lake = Lakehouse.open(place[0], storage_options=place[1])
    report = compaction.run(lake, compaction.Config(engine="local"), cancel=CancelBy(_dawdle))
    done.through -= report.version_after is None
    time.sleep(0.02)
    del seed


def _clean(place: Place, seed: int, done: Done) -> None:
    """Clean, with something to clean each time, so that each time there is a fence."""
    lake = Lakehouse.open(place[0], storage_options=place[1])
    lake.storage.write_many([(node_path(), b"left over")])
    time.sleep(0.05)
    report = orphans.run(lake, orphans.Config(engine="local", older_than_seconds=0, allow_recent=True))
    assert 0 == report.failed
    done.through -= report.deleted == 0
    time.sleep(0.2)
    del seed


def _read(place: Place, seed: int, done: Done) -> None:
    """Open cold, and read a version whole, definitions too, while whoever commits and cleans goes on."""
    lake = Lakehouse.open(place[0], storage_options=place[1])
    for entry in list(lake.objects())[-40:]:
        assert lake.definition_of(entry) is not None
    del seed, done


def _worker(
    work: Callable[[Place, int, Done], None], place: Place, seed: int, seconds: float, ready: Any, answers: Any
) -> None:
    _set_clock(seed)
    done = Done(work.__name__)
    ready.wait(120)
    until = time.monotonic() + seconds
    while time.monotonic() < until or (done.through <= 0 and time.monotonic() < until + _LATE_SECONDS):
        try:
            work(place, seed, done)
            done.through += 1
        except (CommitConflict, TransactionExpired):
            done.gave_up += 1
    answers.put(done)


def race(place: Place, seconds: float) -> list[Done]:
    """Let everybody race, one or two of them stopped at any time; return what they did."""
    context = forking()
    jobs = [*[_write] * WRITERS, _save, _compact, _clean, _read]
    answers, ready = context.Queue(), context.Barrier(len(jobs) + 1)
    processes = [
        context.Process(target=_worker, args=(job, place, seed, seconds, ready, answers))
        for seed, job in enumerate(jobs)
    ]
    for process in processes:
        process.start()
    try:
        ready.wait(120)
        _stop_now_and_then(processes, time.monotonic() + seconds - 2)
        done = [answers.get(timeout=120) for _ in processes]
        for process in processes:
            process.join(60)
            assert 0 == process.exitcode
    finally:
        for process in processes:
            process.kill()  # also one that is stopped
    return done


def _stop_now_and_then(processes: Sequence[Any], until: float) -> None:
    draw = random.Random(5)
    while time.monotonic() < until:
        stopped = draw.sample(processes, 2)
        assert [None] * len(processes) == [process.exitcode for process in processes]
        for process in stopped:
            os.kill(process.pid, signal.SIGSTOP)
        time.sleep(draw.uniform(0.1, 0.8))
        for process in stopped:
            os.kill(process.pid, signal.SIGCONT)
        time.sleep(0.1)


def prove(place: Place, done: list[Done], record_property: Callable[[str, object], None]) -> None:
    """Everything acknowledged is there, every version is whole, and everybody got something done."""
    for each in done:
        record_property(each.kind, f"{each.through} done, {each.gave_up} given up")
    lake = Lakehouse.open(place[0], storage_options=place[1])
    report = verify.run(lake.storage, verify.Config("all", definitions=True, engine="local"))
    assert [] == report.findings
    assert (0, lake.version) == (report.versions[0], report.versions[-1])
    assert {name for each in done for name in each.tables} <= set(lake.tables("a"))
    assert [] == [each.kind for each in done if each.through <= 0]
    assert "clean" in {info.operation for info in lake.history()}


def _new(place: Place) -> Place:
    with Lakehouse.create(place[0], storage_options=place[1], **SIZES).transaction() as txn:
        txn.create_namespace("a")
    return place


@pytest.mark.parametrize("seconds", [6, pytest.param(60, marks=pytest.mark.slow)])
def test_nothing_is_lost_beside_cleanings_without_an_age_on_disk(
    tmp_path: Path, seconds: float, record_property: Callable[[str, object], None]
) -> None:
    place = _new(((tmp_path / "lake").as_uri(), FAST))
    prove(place, race(place, seconds), record_property)


@pytest.mark.s3
@pytest.mark.slow
def test_nothing_is_lost_beside_cleanings_without_an_age_on_s3(
    moto_server: S3Server, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    place = _new((moto_server.new_root(), moto_server.options))
    done = race(place, 60)
    write_files(tmp_path / "copy", S3Place(moto_server, place[0]).files())
    prove(((tmp_path / "copy").as_uri(), FAST), done, record_property)
    assert open_storage(*place).exists()

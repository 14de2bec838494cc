"""Cleaning beside jobs that stand still: what they wrote may go, what they commit is whole (format, section 6)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipelines import clean, compaction, expire, load
from pipelines.reach.sweep import Marking
from tests.support.lakes import CancelBy, content, once, reopened
from tests.support.surgery import directory_of, listing
from trinitylake_core import Lakehouse
from trinitylake_core.check import check_lakehouse, check_version
from trinitylake_core.clock import now_millis
from trinitylake_core.errors import CommitConflict, Corrupt, TransactionExpired, VersionExpired

OBJECTS = Path(__file__).parent.parent / "support" / "objects.jsonl"
DAYS = 4 * 86_400
Job = Callable[..., Any]


def clean_now(lake: Lakehouse) -> clean.Report:
    """Clean without a safety age."""
    time.sleep(0.02)  # longer than a tick of the file system's clock
    how = clean.Config(engine="local", older_than_seconds=0, allow_recent=True)
    return clean.run(reopened(lake), how)


def broken(lake: Lakehouse) -> list[Any]:
    newest = reopened(lake)
    versions = newest.backend.versions
    found = [*check_lakehouse(versions, newest.root_node)]
    for version in range(newest.stats().oldest_version, newest.version + 1):
        found += check_version(versions, version, definitions=True)
    return found


def _compact(lake: Lakehouse, hook: Any, spark: Any = None) -> Any:
    engine = "local" if spark is None else "spark"
    return compaction.run(lake, compaction.Config(engine=engine), spark, cancel=CancelBy(hook))


def _load(lake: Lakehouse, hook: Any, spark: Any = None) -> Any:
    how = load.Config(existing="skip", engine="local" if spark is None else "spark")
    return load.run(lake, str(OBJECTS), how, spark, source_options={}, cancel=CancelBy(hook))


def test_a_cleaning_gives_up_when_versions_expire_each_time(lake: Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """It deletes nothing, and says what it is: a lost race. It was told as damage, for which people are called."""
    mark_since = Marking.mark_since

    def expire_all() -> None:
        other = reopened(lake)
        other.alter({"time": f"{time.monotonic_ns()}"}, reason="test")
        expire.run(other, expire.Config(engine="local", keep_last=1, now_millis=now_millis() + 3000 * DAYS))

    def expire_and_mark(*args: Any) -> None:
        expire_all()
        mark_since(*args)

    monkeypatch.setattr(Marking, "mark_since", expire_and_mark)
    expire_all()
    before = {each for each in listing(directory_of(lake)) if each.startswith("nodes/")}
    with pytest.raises(CommitConflict, match="changed again and again"):
        clean_now(lake)
    assert before <= set(listing(directory_of(lake)))
    assert [] == broken(lake)


@pytest.mark.parametrize("job", [_compact, _load])
def test_a_job_gives_up_when_it_meets_a_cleaning_each_time(job: Job, lake: Lakehouse) -> None:
    """It does not go on for ever; nothing was changed, and the next one commits."""
    asked: list[int] = []

    def always() -> None:
        asked.append(clean_now(lake).deleted)

    objects = content(lake)
    with pytest.raises(CommitConflict, match="clean"):
        job(lake, always)
    assert (6, True) == (len(asked), all(asked))
    assert (objects, []) == (content(reopened(lake)), broken(lake))
    job(lake, None)
    assert [] == broken(lake)


def test_a_job_that_a_young_fence_does_not_concern_goes_on(lake: Lakehouse) -> None:
    """With a safety age that is longer than the job, nobody starts over."""
    how = clean.Config(engine="local")

    def plant_and_clean() -> None:
        directory = directory_of(lake)
        before = set(listing(directory))
        txn = reopened(lake).transaction()
        txn.create_table("ns0", "gone")
        txn.change.write_definitions()
        for path in set(listing(directory)) - before:
            os.utime(directory / path, (1, 1))
        assert 1 == clean.run(reopened(lake), how).deleted

    report = _compact(lake, once(plant_and_clean))
    assert (0, []) == (report.restarts, broken(lake))


@pytest.mark.parametrize("job", [_compact, _load])
def test_a_job_whose_base_expires_and_is_cleaned_while_it_reads_starts_over(
    job: Job, lake: Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It meets a missing node, and that is no damage."""
    _compact(lake, None)
    filled_more(lake)
    read, asked = type(lake.storage)._get, []

    def slow(self: Any, path: str) -> bytes:
        if "node-" in path and not asked:
            asked.append(path)
            _compact(reopened(lake), None)
            config = expire.Config(engine="local", keep_last=1, now_millis=now_millis() + 30 * DAYS * 1000)
            expire.run(reopened(lake), config)
            assert clean_now(lake).deleted > 0
        return read(self, path)

    monkeypatch.setattr(type(lake.storage), "_get", slow)
    report = job(Lakehouse.open(lake.storage), None)
    assert (True, []) == (report.restarts >= 1 or report.version_after is None, broken(lake))
    assert asked


def filled_more(lake: Lakehouse) -> None:
    for start in range(0, 24, 4):
        with lake.refresh().transaction() as txn:
            for number in range(start, start + 4):
                txn.create_table("ns1", f"more{number}")


def test_a_node_that_is_really_gone_is_damage(lake: Lakehouse) -> None:
    """And is told at once, though cleanings come by."""
    _compact(lake, None)
    filled_more(lake)
    lake.storage.delete_many([lake.refresh().root_node.node.children[0]])
    with pytest.raises(Corrupt):
        _load(lake, None)


# -- readers of what has expired -----------------------------------------------------------------------


def cleaned_away(lake: Lakehouse) -> None:
    """Compact, expire all versions but the newest, and remove their files."""
    filled_more(reopened(lake))
    _compact(reopened(lake), None)
    config = expire.Config(engine="local", keep_last=1, now_millis=now_millis() + 30 * DAYS * 1000)
    expire.run(reopened(lake), config)
    assert clean_now(lake).deleted > 0


READS: dict[str, Callable[[Any], Any]] = {
    "lookup": lambda view: view.table("ns1", "t001"),
    "list": lambda view: view.tables("ns1"),
    "scan": lambda view: list(view.objects()),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS.keys())
def test_who_reads_a_version_that_was_cleaned_away_is_told_that_it_expired(
    lake: Lakehouse, read: Callable[[Any], Any]
) -> None:
    handle, other = reopened(lake), reopened(lake)
    txn = other.transaction()
    cleaned_away(lake)
    with pytest.raises(VersionExpired, match=f"version {handle.version} has expired"):
        read(handle)
    with pytest.raises(TransactionExpired, match="begin a new one"):
        read(txn)
    read(handle.refresh())


def test_a_definition_that_was_cleaned_away_is_told_to_have_expired(lake: Lakehouse) -> None:
    handle = reopened(lake)
    entry = next(handle.objects(kind="table"))
    with lake.refresh().transaction() as txn:
        txn.drop_table(entry.namespace, str(entry.name))
    cleaned_away(lake)
    with pytest.raises(VersionExpired):
        handle.definition_of(entry)


def test_a_node_that_is_gone_from_a_kept_version_is_damage_to_readers(lake: Lakehouse) -> None:
    handle = reopened(lake)
    lake.storage.delete_many([handle.root_node.node.children[0]])
    with pytest.raises(Corrupt, match="is missing"):
        list(handle.objects())
    with pytest.raises(Corrupt, match="is missing"):
        list(handle.transaction().objects())


def test_a_large_transaction_on_a_base_that_was_cleaned_away_is_refused(lake: Lakehouse) -> None:
    """Its commit flushes the root's buffer into nodes that are gone."""
    txn = reopened(lake).transaction()
    for number in range(120):
        txn.put(lake.codec.table(f"ns{number % 3}", f"t{number:03}"), f"0101/0101/0101/01010101-table-{number}.binpb")
    cleaned_away(lake)
    with pytest.raises(TransactionExpired):
        txn.commit()
    assert [] == broken(lake)

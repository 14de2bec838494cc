"""How long the requests of jobs wait for one another, by the logical clock.

As long as they need, and half of that more. What is needed: each level of a walk, each listing of a level of
directories and each step of a commit, when all requests that do not depend on one another share rounds. What one thread
lists alone comes on top: how much that is depends on the random names of files.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from pipelines import apply, expiration, export, orphans, verify
from pipelines.job import dry_run
from pipelines.source.entries import entry_of
from tests.support.lakes import FAST, compacted, filled, new_lake, reopened
from tests.support.rounds import Rounds
from tests.support.wide import change, scattered, wide
from trinitylake_core import Lakehouse
from trinitylake_core.commits.commit import now_millis
from trinitylake_core.storage import Storage, open_storage

AT_ONCE = 32
DAY = 86_400_000


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lakehouse:
    """Forty versions, and files in most of the 256 directories that a listing looks into."""
    lake = filled(new_lake(tmp_path_factory.mktemp("waits"), order=8), tables=240, changes=6)
    compacted(lake)
    return lake.refresh()


def _measured(job: Callable[[Lakehouse], object], lake: Lakehouse, *others: Storage, most: int = AT_ONCE) -> Rounds:
    cold = reopened(lake)
    with Rounds(cold.storage, *others, most=most) as rounds:
        job(cold)
    return rounds


def _kinds(rounds: Rounds) -> Counter[str]:
    return Counter(kind for _, kind, _ in rounds.log)


def _expire(lake: Lakehouse) -> object:
    now = now_millis() + 30 * DAY
    return expiration.run(lake, expiration.Config(keep_last=5, engine="local", now_millis=now), review=dry_run)


def _clean(lake: Lakehouse) -> object:
    return orphans.run(lake, orphans.Config(engine="local"), review=dry_run)


@pytest.mark.parametrize("job", [_expire, _clean])
def test_directories_are_listed_side_by_side(lake: Lakehouse, job: Callable[[Lakehouse], object]) -> None:
    """Nearly three hundred listings, and a walk of all versions."""
    alone, rounds = (_measured(job, lake, most=most) for most in (1, AT_ONCE))
    assert _kinds(alone) == _kinds(rounds)
    assert _kinds(rounds)["list"] > 200
    assert alone.chain == alone.requests
    levels = (lake.stats().height or 0) + 1
    assert rounds.chain <= 1.5 * (math.ceil(rounds.requests / AT_ONCE) + levels + 8) + rounds.longest_listing(2)


def test_all_versions_are_verified_side_by_side(lake: Lakehouse) -> None:
    reports = []

    def job(cold: Lakehouse) -> None:
        reports.append(verify.run(cold, verify.Config(versions="all", definitions=True, engine="local")))

    alone, rounds = (_measured(job, lake, most=most) for most in (1, AT_ONCE))
    assert reports[0].findings == reports[1].findings == []
    assert (reports[0].nodes_read, reports[0].definitions_read) == (reports[1].nodes_read, reports[1].definitions_read)
    assert rounds.requests <= alone.requests
    levels = (lake.stats().height or 0) + 1
    assert rounds.chain <= 1.5 * (math.ceil(rounds.requests / AT_ONCE) + levels + 20)
    assert rounds.chain < alone.chain / 10


def test_an_export_reads_writes_and_reads_back_many_files_at_once(tmp_path: Path) -> None:
    lake = filled(new_lake(tmp_path, order=8), tables=240, changes=60)
    kinds = []
    for most in (1, AT_ONCE):
        target = open_storage((tmp_path / f"copy{most}").as_uri(), FAST)
        rounds = _measured(
            lambda cold, to=target: export.run(cold, to, export.Config(engine="local")), lake, target, most=most
        )
        kinds.append(_kinds(rounds))
        assert [] == list(Lakehouse.open(target).check(definitions=True))
    assert kinds[0] == kinds[1]
    copied = rounds.requests - kinds[1]["list"]
    assert rounds.chain <= 1.5 * (math.ceil(copied / AT_ONCE) + 20) + rounds.longest_listing(1)


def test_a_version_of_many_objects_is_verified_as_fast_as_it_is_read(tmp_path: Path) -> None:
    """Verification of consecutive versions reads what they do not share, once, though many are compared at a time."""
    lake = wide(tmp_path, 4000, 32)
    for seed in range(6):
        change(lake, scattered(4000, 200, seed))
        compacted(lake)
    lake.refresh()

    def job(cold: Lakehouse) -> None:
        assert verify.run(cold, verify.Config(versions="all", engine="local")).ok

    alone, rounds = (_measured(job, lake, most=most) for most in (1, AT_ONCE))
    assert rounds.requests <= alone.requests
    assert rounds.chain <= 1.5 * (math.ceil(rounds.requests / AT_ONCE) + 10)


def test_a_transaction_of_many_tables_looks_them_up_together(tmp_path: Path) -> None:
    """A hundred tables in as many leaves: a round trip per level, then the definitions, the root and the look."""
    lake = wide(tmp_path, 12_000, 16)
    names = [(f"ns{number % 4}", f"t{number * 117:06}x") for number in range(100)]
    entries = [entry_of(name, {"create_table": {"namespace": space, "name": name}}) for space, name in names]
    assert 3 == lake.stats().height

    def one_by_one(cold: Lakehouse) -> None:
        with cold.transaction() as txn:
            for space, name in names[:50]:
                txn.create_table(space, f"{name[:-1]}y")

    alone = _measured(one_by_one, lake)
    rounds = _measured(lambda cold: apply.run(cold, entries), lake.refresh())
    assert alone.chain > 50
    assert 100 < _kinds(rounds)["get"] - 5
    assert rounds.chain <= 16
    assert 100 == len(set(reopened(lake).tables("ns1")) & {name for _, name in names}) * 4

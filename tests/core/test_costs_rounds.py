"""How many round trips operations take, beside their requests: by the logical clock, held against ``docs/costs.md``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pipelines import apply, clean, compaction, expire, export, load, upgrade, verify
from pipelines.job import dry_run
from pipelines.source.entries import parse_change
from tests.support.lakes import FAST, compacted, filled, new_lake, reopened
from tests.support.rounds import Rounds
from tests.support.wide import change, scattered, wide
from trinitylake_core import Lakehouse
from trinitylake_core.clock import now_millis
from trinitylake_core.storage import open_storage

DOCUMENT = Path(__file__).parents[2] / "docs" / "costs.md"
_DAY = 86_400_000
_LEVELS = 6
"""Root, hint and boundary, and the levels of the tree: each a round trip before the next."""
_LOOKS = 4
"""A job that deletes looks more than once at what is kept: newest root, then the lakehouse definition in its file."""
OBJECTS, ORDER, CHANGES = 12_000, 32, 1500


def _assert_documented(operation: str, rounds: Rounds) -> None:
    """Prove that the document has this row: requests, and how many of them waited for one another."""
    row = f"| {operation} | {rounds.requests:,} | {rounds.chain} |"
    assert row in DOCUMENT.read_text(encoding="utf-8").splitlines(), row


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lakehouse:
    """Twelve thousand tables in three levels; nothing waits."""
    return wide(tmp_path_factory.mktemp("rounds"), OBJECTS, ORDER)


def _rounds(lake: Lakehouse, action: Callable[[Lakehouse], object], *, warm: bool = False) -> Rounds:
    handle = lake if warm else reopened(lake)
    with Rounds(handle.storage) as rounds:
        action(handle)
    return rounds


def _create(lake: Lakehouse, names: list[str]) -> None:
    with lake.transaction() as txn:
        for name in names:
            txn.create_table("ns1", name)


def test_opening(lake: Lakehouse) -> None:
    """The look at the boundary comes after the probe that found nothing: what comes later cannot be older."""
    storage = open_storage(*lake.storage.spec())
    with Rounds(storage) as rounds:
        Lakehouse.open(storage)
    _assert_documented("open, cold", rounds)


def test_commits(lake: Lakehouse) -> None:
    """Definitions beside each other, the root, then hint, boundary and next version beside each other."""
    lake.refresh()
    _create(lake, ["x0"])
    _assert_documented("commit of one table, warm handle", _rounds(lake, lambda warm: _create(warm, ["x1"]), warm=True))
    names = [f"x1{number}" for number in range(10)]
    _assert_documented("commit of ten tables, warm handle", _rounds(lake, lambda warm: _create(warm, names), warm=True))
    names = [f"t{number * 117:06}x" for number in range(100)]
    entries = [parse_change(name, {"create_table": {"namespace": "ns1", "name": name}}) for name in names]
    _assert_documented(
        "`apply` of 100 tables in as many leaves, none cached",
        _rounds(lake.refresh(), lambda cold: apply.run(cold, entries)),
    )


def test_jobs_over_many_nodes(tmp_path: Path) -> None:
    """What is measured here in hundreds of nodes holds for millions: as many rounds as requests fill, and a few."""
    lake = change(wide(tmp_path, OBJECTS, ORDER), scattered(OBJECTS, CHANGES))
    local = compaction.Config(engine="local")
    _assert_documented("compaction, nearly every node dirty", _rounds(lake, lambda cold: compaction.run(cold, local)))
    lake.refresh()
    _assert_documented(
        "difference of two versions, nearly every node differs",
        _rounds(lake, lambda cold: list(cold.diff(lake.version - 2, lake.version))),
    )
    _assert_documented("every object listed, or the digest", _rounds(lake, lambda cold: cold.digest()))
    everything = verify.Config(versions="all", engine="local")
    _assert_documented(
        "`verify` of the newest version",
        _rounds(lake, lambda cold: verify.run(cold, verify.Config(engine="local"))),
    )
    for seed in range(20):
        change(lake, scattered(OBJECTS, 10, seed))
        if seed % 5 == 4:
            compacted(lake)
    lake.refresh()
    _assert_documented(
        "difference of ten versions", _rounds(lake, lambda cold: list(cold.diff(lake.version - 10, lake.version)))
    )
    _assert_documented(
        f"`verify --all` of {lake.version + 1} versions", _rounds(lake, lambda cold: verify.run(cold, everything))
    )


def test_jobs_whose_requests_are_counted_by_chance(tmp_path: Path) -> None:
    """Where files lie is random, and so how many directories one thread lists: half as much again, and those."""
    lake = change(wide(tmp_path, OBJECTS, ORDER), scattered(OBJECTS, CHANGES))
    for seed in range(4):
        change(lake, scattered(OBJECTS, 10, seed))
    cleaning = clean.Config(engine="local", older_than_seconds=0, allow_recent=True)
    expiring = expire.Config(engine="local", keep_last=3, now_millis=now_millis() + 30 * _DAY)
    for job in (
        lambda cold: clean.run(cold, cleaning, review=dry_run),
        lambda cold: expire.run(cold, expiring, review=dry_run),
    ):
        rounds = _rounds(lake.refresh(), job)
        assert rounds.requests > 700
        assert rounds.chain <= 1.5 * rounds.requests / 32 + _LEVELS + _LOOKS + rounds.longest_listing(2)


def test_copies_take_as_many_rounds_as_their_requests_fill(tmp_path: Path) -> None:
    """An export, an upgrade and a load; each definition is looked for before it is written, by the same thread."""
    lake = filled(new_lake(tmp_path, order=8), tables=300, changes=4)
    lines = tmp_path / "lines.jsonl"
    lines.write_text("\n".join(f'{{"create_table": {{"namespace": "ns1", "name": "new{one}"}}}}' for one in range(40)))
    for name, job in {
        "export": lambda cold, beside: export.run(cold, beside, export.Config(engine="local")),
        "upgrade": lambda cold, beside: upgrade.run(cold, beside, upgrade.Config(engine="local")),
        "load": lambda cold, _: load.run(cold, str(lines), load.Config(engine="local")),
    }.items():
        handle, beside = reopened(lake.refresh()), open_storage((tmp_path / name).as_uri(), FAST)
        with Rounds(handle.storage, beside) as rounds:
            job(handle, beside)
        assert rounds.chain <= 1.5 * rounds.requests / 32 + 6 * _LEVELS + rounds.longest_listing(1), name

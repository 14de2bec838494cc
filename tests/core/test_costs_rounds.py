"""How many round trips operations take, beside their requests: by the logical clock, held against ``docs/costs.md``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pipelines import apply, compaction, verify
from pipelines.source.entries import entry_of
from tests.support.lakes import compacted, reopened
from tests.support.rounds import Rounds
from tests.support.wide import change, scattered, wide
from trinitylake_core import Lakehouse
from trinitylake_core.storage import open_storage

DOCUMENT = Path(__file__).parents[2] / "docs" / "costs.md"
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
    entries = [entry_of(name, {"create_table": {"namespace": "ns1", "name": name}}) for name in names]
    _assert_documented(
        "`apply` of 100 tables in as many leaves, none cached",
        _rounds(lake.refresh(), lambda cold: apply.run(cold, entries)),
    )


def test_jobs_over_many_nodes(tmp_path: Path) -> None:
    """What is measured here in hundreds of nodes holds for millions: as many rounds as requests fill, and a few."""
    lake = change(wide(tmp_path, OBJECTS, ORDER), scattered(OBJECTS, CHANGES))
    local = compaction.Config(engine="local")
    _assert_documented(
        "compaction, nearly every node dirty", _rounds(lake, lambda cold: compaction.run(None, cold, local))
    )
    lake.refresh()
    _assert_documented(
        "difference of two versions, nearly every node differs",
        _rounds(lake, lambda cold: list(cold.diff(lake.version - 2, lake.version))),
    )
    everything = verify.Config(versions="all", engine="local")
    _assert_documented(
        "`verify` of the newest version",
        _rounds(lake, lambda cold: verify.run(None, cold, verify.Config(engine="local"))),
    )
    for seed in range(20):
        change(lake, scattered(OBJECTS, 10, seed))
        if seed % 5 == 4:
            compacted(lake)
    lake.refresh()
    _assert_documented(
        f"`verify --all` of {lake.version + 1} versions", _rounds(lake, lambda cold: verify.run(None, cold, everything))
    )

"""How long the requests of a compaction wait for one another, by the logical clock: reads ahead, writes behind."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from pipelines import compaction
from pipelines.engine import worker_pool
from tests.support.lakes import content, reopened
from tests.support.rounds import Rounds
from tests.support.wide import change, scattered, wide
from trinitylake_core import Lakehouse

AT_ONCE = 32


@pytest.fixture(scope="module")
def dirty(tmp_path_factory: pytest.TempPathFactory) -> Lakehouse:
    """Three levels, of which the changes meet nearly every node."""
    return change(wide(tmp_path_factory.mktemp("wide"), 12_000, 32), scattered(12_000, 1500))


def _compacted(lake: Lakehouse) -> tuple[Rounds, compaction.Report]:
    cold = reopened(lake)
    with Rounds(cold.storage, most=AT_ONCE) as rounds:
        report = compaction.run(cold, compaction.Config(engine="local"))
    return rounds, report


@pytest.mark.parametrize("pieces", ["one tree", "many subtrees"])
def test_reads_and_writes_of_a_compaction_overlap(
    dirty: Lakehouse, pieces: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as its reads or its writes take with all requests busy, and half of that more."""
    monkeypatch.setattr(compaction, "_SHARED_FROM_ROWS", 1 if pieces == "many subtrees" else 1 << 30)
    monkeypatch.setattr(worker_pool, "cores", lambda: 1)
    before = content(dirty)
    rounds, report = _compacted(dirty)
    reads = sum(kind == "get" for _, kind, _ in rounds.log)
    writes = sum(kind == "put" for _, kind, _ in rounds.log)
    needed = math.ceil(max(reads, writes) / AT_ONCE) + 3
    assert needed <= rounds.chain <= 1.5 * needed
    assert report.nodes_read + 10 >= reads, "each node once"
    assert before == content(reopened(dirty))
    assert [] == list(reopened(dirty).check())
    change(dirty.refresh(), scattered(12_000, 1500, seed=1))


def test_a_compaction_of_few_changes_takes_a_few_rounds(tmp_path: Path) -> None:
    """Thirty changes in as many leaves: as many rounds as the tree has levels, not as there are leaves."""
    lake = change(wide(tmp_path, 12_000, 16), scattered(12_000, 30))
    rounds, report = _compacted(lake)
    assert (3, 0) == (report.height_before, report.messages_after)
    assert rounds.requests > 100
    assert rounds.chain <= 14


def test_what_a_compaction_costs_follows_what_is_dirty(tmp_path: Path) -> None:
    """One change costs a path; one per cent of the tree costs beyond that at most two per cent of all of it."""
    objects = 24_000
    lake = wide(tmp_path, objects, 16)
    asked = {"one change": [1], "one per cent": range(1, 1 + objects // 25, 4), "all": range(0, objects, 3)}
    files: dict[str, int] = {}
    for name, numbers in asked.items():
        cold = reopened(change(lake, numbers))
        before = cold.storage.counts.snapshot()
        report = compaction.run(cold, compaction.Config(engine="auto"))  # Spark would need a session
        counted = cold.storage.counts - before
        assert (report.messages_before, report.messages_after) == (len(numbers), 0)
        files[name] = report.nodes_read + report.nodes_written
        assert counted.get + counted.put + counted.create <= files[name] + 6
        lake.refresh()
    assert files["one change"] <= 2 * 4 + 2
    assert files["all"] > 2 * objects / 16
    assert files["one per cent"] - files["one change"] <= 0.02 * (files["all"] - files["one change"])

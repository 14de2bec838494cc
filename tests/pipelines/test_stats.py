"""Since when more is buffered than is wanted, told by the history of a lakehouse."""

from __future__ import annotations

from pathlib import Path

from pipelines import stats
from pipelines.stats import debt, messages_of
from tests.support.lakes import compacted, new_lake
from tests.support.wide import wide
from trinitylake_core import Lakehouse
from trinitylake_core.clock import now_millis

HOUR = 3600
HOURS_MILLIS = 3_600_000


def test_little_debt_is_never_stale_and_costs_nothing(lake: Lakehouse) -> None:
    before = lake.storage.counts.snapshot()
    found = debt(lake, messages_of(lake.root_node) + 1, HOUR, now_millis() + 1000 * HOURS_MILLIS)
    assert (False, False, None, 0) == (
        found.over, found.stale, found.since, (lake.storage.counts - before).requests(),
    )  # fmt: skip


def test_debt_that_is_younger_than_allowed_is_not_stale(lake: Lakehouse) -> None:
    """However much there is: the history is younger than that, or there was less then."""
    found = debt(lake, 1, HOUR)
    assert (True, False, lake.version) == (found.over, found.stale, found.version)


def test_debt_is_stale_when_every_look_found_too_much(lake: Lakehouse) -> None:
    found = debt(lake, 1, HOUR, now_millis() + 2 * HOURS_MILLIS)
    assert (True, lake.info().created_at) == (found.stale, found.since)


def test_a_compaction_in_between_makes_it_fresh(lake: Lakehouse) -> None:
    """Too much at both ends of the time that is allowed, and little once in between."""
    first = lake.info().created_at_millis
    compacted(lake)
    with lake.refresh().transaction() as txn:
        for number in range(5):
            txn.create_table("ns0", f"n{number}")
    now = max(lake.refresh().info().created_at_millis, first + 2)
    threshold = messages_of(lake.root_node)
    assert threshold > 1
    found = debt(lake, threshold, (now - first) / 1000, now)
    assert (True, False, 3) == (found.over, found.stale, found.looks)
    assert lake.info().created_at == found.since


def test_many_versions_cost_sixteen_looks_and_a_search(tmp_path: Path) -> None:
    lake = new_lake(tmp_path, target=200_000)
    for number in range(60):
        with lake.refresh().transaction() as txn:
            txn.create_namespace(f"n{number:03}")
    versions = list(lake.refresh().history())[::-1]
    assert messages_of(lake.root_node) >= 55
    before = lake.storage.counts.snapshot()
    now = lake.info().created_at_millis
    found = debt(lake, 5, (now - versions[10].created_at_millis) / 1000, now)
    assert found.stale
    assert found.looks <= 18
    assert found.since == versions[10].created_at or found.since < versions[11].created_at
    assert (lake.storage.counts - before).get <= 16 + 7


def test_what_another_generation_wrote_cannot_be_compacted_and_is_not_stale(java_lakehouse: str) -> None:
    assert not debt(Lakehouse.open(java_lakehouse), 0, 0).stale


def test_levels_are_those_of_the_tree_alone(tmp_path: Path) -> None:
    """Forty leaves: what the walk counts of itself, to lose no row, is no level of forty."""
    lake = wide(tmp_path, 2_000, 64)
    found = stats.deep(lake)
    assert [1, 0] == [each.height for each in found.levels]
    assert 1 < found.levels[-1].nodes
    assert sum(1 for _ in lake.objects()) == found.keys

"""What waiting costs, and what a compaction costs: estimated from one root, without a request."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines import compaction, compaction_policy
from tests.support.lakes import compacted, filled, new_lake, reopened
from tests.support.wide import change, wide
from trinitylake_core import Lakehouse


@pytest.fixture
def lake(tmp_path: Path) -> Lakehouse:
    return filled(new_lake(tmp_path), tables=60)


def test_no_request_is_made(lake: Lakehouse) -> None:
    opened = reopened(lake)
    before = opened.storage.counts.requests()
    compaction_policy.waiting_bytes(opened)
    compaction_policy.estimate(opened)
    assert before == opened.storage.counts.requests()


def test_the_bytes_of_waiting_messages_are_those_that_a_compaction_saves(lake: Lakehouse) -> None:
    """The root is smaller by as much afterwards, but for what its rows weigh on average."""
    before, predicted = lake.stats().root_bytes, compaction_policy.waiting_bytes(lake)[0]
    assert lake.stats().root_messages > 0
    compacted(lake)
    after = reopened(lake)
    assert (0, 0) == compaction_policy.waiting_bytes(after)
    assert 0.3 < (before - after.stats().root_bytes) / predicted < 3


def test_the_estimate_of_a_compaction_is_near_what_it_does(lake: Lakehouse) -> None:
    expected = compaction_policy.estimate(lake)
    done = compaction.run(lake, compaction.Config(engine="local"))
    assert 0.5 < expected.nodes / done.nodes_written < 2
    assert 0.2 < expected.bytes / done.bytes_written < 5
    assert 0.5 < expected.requests / (done.nodes_read + done.nodes_written + 1) < 2


@pytest.mark.parametrize("numbers", [range(2000, 2600), range(0, 5000, 8)], ids=["neighbours", "everywhere"])
def test_the_estimate_knows_where_messages_wait(tmp_path: Path, numbers: range) -> None:
    """600 changes of neighbouring tables rewrite a few leaves, and were expected to rewrite all."""
    lake = change(wide(tmp_path, 5000, 128), (number * 4 % 5000 + number * 4 // 5000 for number in numbers))
    expected = compaction_policy.estimate(lake)
    done = compaction.run(lake, compaction.Config(engine="local"))
    assert 0.6 < expected.nodes / done.nodes_written < 1.4

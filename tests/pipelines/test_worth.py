"""What waiting costs, and what a compaction costs: estimated from one root, without a request."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pipelines import compaction, worth
from tests.support.lakes import compacted, filled, new_lake, reopened
from trinitylake_core import Lakehouse

MONTH = 30 * 86_400.0
FREE = worth.Prices(0, 0, 0, 0, 0, 50)


@pytest.fixture
def lake(tmp_path: Path) -> Lakehouse:
    return filled(new_lake(tmp_path), tables=60)


def test_no_request_is_made(lake: Lakehouse) -> None:
    opened = reopened(lake)
    before = opened.storage.counts.requests()
    worth.weigh(opened, 10, 1000.0, MONTH)
    assert before == opened.storage.counts.requests()


def test_the_bytes_of_waiting_messages_are_those_that_a_compaction_saves(lake: Lakehouse) -> None:
    """The root is smaller by as much afterwards, but for what its rows weigh on average."""
    before, predicted = lake.stats().root_bytes, worth.bytes_waiting(lake)[0]
    assert lake.stats().root_messages > 0
    compacted(lake)
    after = reopened(lake)
    assert (0, 0) == worth.bytes_waiting(after)
    assert 0.3 < (before - after.stats().root_bytes) / predicted < 3


def test_each_price_has_its_unit(lake: Lakehouse) -> None:
    """A thousand requests, a gigabyte for 30 days, an hour."""
    price = worth.priced(9, 10**9, MONTH, FREE)
    assert (20, 0.0) == (price.requests, price.dollars)
    assert 10 * 0.005 / 1000 == pytest.approx(worth.priced(9, 10**9, MONTH, replace(FREE, put_per_1000=0.005)).dollars)
    assert 10 * 0.0004 / 1000 == pytest.approx(worth.priced(9, 0, MONTH, replace(FREE, get_per_1000=0.0004)).dollars)
    kept = worth.priced(9, 10**9, MONTH / 2, replace(FREE, storage_gb_month=0.023))
    assert 0.0115 == pytest.approx(kept.dollars)
    moved = worth.priced(0, 25 * 10**6, 0, replace(FREE, hour=3600.0))
    assert 1.0 + 2 / 32 * 0.03 == pytest.approx(moved.dollars) == pytest.approx(moved.seconds)
    waited = worth.weigh(lake, 4, 10**6, 0, replace(FREE, hour=3600.0)).waiting
    assert (0.02, 0.02) == (pytest.approx(waited.seconds), pytest.approx(waited.dollars))
    opened = worth.weigh(lake, 4, 0, 0, replace(FREE, opens_per_commit=3)).waiting
    assert 12 * opened.seconds_per_open == pytest.approx(opened.seconds)


def test_it_pays_when_waiting_has_cost_as_much_and_not_before(lake: Lakehouse) -> None:
    prices = replace(FREE, put_per_1000=0.005, storage_gb_month=0.023)
    one = worth.weigh(lake, 1, 10**9, MONTH, prices)
    exact = 10**9 * one.compaction.dollars / 0.023
    assert worth.weigh(lake, 1, exact * 1.001, MONTH, prices).pays
    assert not worth.weigh(lake, 1, exact * 0.999, MONTH, prices).pays
    assert not worth.weigh(lake, 0, 0.0, MONTH, FREE).pays


def test_the_estimate_of_a_compaction_is_near_what_it_does(lake: Lakehouse) -> None:
    expected = worth.price_of(lake, MONTH, worth.Prices())
    done = compaction.run(lake, compaction.Config(engine="local"))
    assert 0.5 < expected.nodes / done.nodes_written < 2
    assert 0.2 < expected.bytes / done.bytes_written < 5

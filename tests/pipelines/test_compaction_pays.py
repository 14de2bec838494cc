"""A compaction pushes messages down as far as that is worth rewriting nodes, and leaves the rest in buffers."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines import clean, cli, compaction, stats, verify
from pipelines.engine import worker_pool
from pipelines.trees import policy
from tests.support.lakes import content, reopened
from tests.support.wide import change, scattered, wide
from trinitylake_core import Lakehouse
from trinitylake_core.clock import now_millis
from trinitylake_core.tree.subtree import PayingChildren

ORDER = 130
"""The smallest at which two messages are worth a leaf, so that one waits; 64 may wait in a node."""
OBJECTS = 20_000
LOCAL = compaction.Config("local")
FULL = compaction.Config("local", full=True)


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Lakehouse:
    return wide(tmp_path_factory.mktemp("origin"), OBJECTS, ORDER)


@pytest.fixture
def lake(origin: Lakehouse) -> Lakehouse:
    """A lakehouse of three levels, of which each test changes the newest version."""
    compaction.run(origin, FULL)
    return reopened(origin)


def allowed(lake: Lakehouse) -> int:
    node = lake.root_node.node
    return PayingChildren(ORDER, 0).allowed_messages(node.subtree_keys, node.height or 0)


def prove(lake: Lakehouse, expected: dict[str, str]) -> None:
    assert expected == content(reopened(lake))
    assert [] == list(reopened(lake).check())


def test_few_messages_move_one_level_down(lake: Lakehouse) -> None:
    """For a node above the leaves each, instead of a leaf for each message; a second compaction has nothing to do."""
    change(lake, scattered(OBJECTS, 60))
    expected = content(lake)
    inner = len(lake.root_node.node.children)
    report = compaction.run(lake, LOCAL)
    assert (2, True) == (lake.root_node.node.height, report.proved)
    assert inner + 10 >= report.nodes_written
    assert report.plan.full_bytes > report.plan.bytes > report.bytes_written
    assert 40 <= (report.messages_after or 0) <= 60
    assert lake.stats().root_messages < 10
    again = compaction.run(lake, LOCAL)
    assert (None, report.messages_after) == (again.version_after, again.messages_before)
    assert "(`--full`)" in next(again.summary())
    prove(lake, expected)


def test_what_is_worth_a_leaf_goes_all_the_way(lake: Lakehouse) -> None:
    """Neighbours, which share leaves: nothing is left of them."""
    change(lake, range(4000, 4800))
    expected = content(lake)
    report = compaction.run(lake, LOCAL)
    assert 0 == report.messages_after
    assert 60 > report.nodes_written
    prove(lake, expected)


def test_no_more_stays_than_a_buffer_may_keep(lake: Lakehouse) -> None:
    """However many are scattered, after each of many commits; nodes stay small, and a full one leaves nothing."""
    for seed in range(6):
        change(lake, scattered(OBJECTS, 300, seed))
        expected = content(lake)
        compaction.run(lake, LOCAL)
        assert allowed(lake) + 20 >= (lake.stats().messages or 0)
        nodes = lake.nodes.read_many(lake.root_node.node.children)
        assert all((ORDER - 1) // 2 >= len(node.buffer) for node in nodes)
        prove(lake, expected)
    full = compaction.run(lake, FULL)
    assert (0, True) == (full.messages_after, full.proved)
    prove(lake, expected)
    assert verify.run(lake, verify.Config("all", engine="local")).ok


def test_processes_make_the_same_of_it(lake: Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """Subtrees are flushed by the same policy wherever that happens; leaves of heavy ones all the way."""
    monkeypatch.setattr(compaction, "_SHARED_FROM_ROWS", 0)
    monkeypatch.setattr(worker_pool, "cores", lambda: 2)
    change(lake, scattered(OBJECTS, 1500))
    expected = content(lake)
    report = compaction.run(lake, compaction.Config("local", tasks=2))
    assert (True, True) == (report.proved, allowed(lake) + 20 >= (report.messages_after or 0))
    prove(lake, expected)


def test_bytes_for_each_message_are_reported(lake: Lakehouse, capsys: pytest.CaptureFixture[str]) -> None:
    change(lake, scattered(OBJECTS, 100))
    partly = compaction.run(lake, LOCAL)
    change(lake, scattered(OBJECTS, 100, 1))
    fully = compaction.run(lake, FULL)
    assert (fully.bytes_per_message or 0) > 3 * (partly.bytes_per_message or 0)
    change(lake, scattered(OBJECTS, 100))
    assert 0 == cli.main(["compact", lake.root, "--engine", "local", "--full"])
    assert "pushed down" in capsys.readouterr().out
    assert 0 == reopened(lake).stats().messages


def test_what_may_wait_is_no_debt(lake: Lakehouse) -> None:
    """The sensor, the check and the estimate count what a compaction would push down, or it would run for ever."""
    change(lake, scattered(OBJECTS, 100))
    compaction.run(lake, LOCAL)
    figures = lake.stats()
    excess = policy.excess_messages(figures.messages or 0, figures.objects, figures.height, ORDER)
    assert (0, 0) == (excess, stats.debt(lake, 1, 0, now_millis()).messages)
    assert 3 >= policy.estimate(lake).nodes
    assert 0 == compaction.estimate(lake).messages


def test_all_messages_go_down_once_they_have_waited_long_enough(lake: Lakehouse) -> None:
    """Since the last version without any: the root says when that was, and carries it on."""
    settled = lake.root_node.created_at_millis
    change(lake, scattered(OBJECTS, 30))
    compaction.run(lake, LOCAL)
    assert settled == lake.root_node.settled_at_millis
    assert not policy.settle_due(lake, 60, settled + 59_000)
    assert policy.settle_due(lake, 60, settled + 60_000)
    assert not policy.settle_due(lake, None, settled + 60_000)
    compaction.run(lake, FULL)
    assert lake.root_node.created_at_millis == lake.root_node.settled_at_millis
    assert not policy.settle_due(lake, 0, now_millis() + 60_000)


def test_clean_says_what_a_full_compaction_would_free(lake: Lakehouse) -> None:
    change(lake, scattered(OBJECTS, 40))
    compaction.run(lake, LOCAL)
    waiting = lake.stats().messages or 0
    found = clean.run(lake, clean.Config(engine="local"), review=lambda _: False)
    assert waiting == found.replaced_in_buffers


@pytest.mark.parametrize("order", [3, 8, 128])
def test_below_order_129_every_message_is_worth_a_leaf(tmp_path: Path, order: int) -> None:
    lake = change(wide(tmp_path, 600, order), scattered(600, 20))
    assert 0 == compaction.run(lake, LOCAL).messages_after

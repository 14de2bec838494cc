"""Reading ahead: every file once, in a window that drops nothing, whatever the size of the cache."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.rounds import Rounds
from tests.support.wide import wide
from trinitylake_core import Lakehouse
from trinitylake_core.errors import CorruptNode
from trinitylake_core.storage import open_storage
from trinitylake_core.tree.node import Messages, Node
from trinitylake_core.tree.nodestore import NodeStore, NodeWriter
from trinitylake_core.tree.readahead import Cache, InFlightReads, ReadAhead
from trinitylake_core.tree.rewrite import Rewriter
from trinitylake_core.tree.subtree import Work

ORDER = 16


@pytest.fixture
def lake(tmp_path: Path) -> Lakehouse:
    return wide(tmp_path, 2000, ORDER)


def _store(lake: Lakehouse, nodes: int) -> NodeStore:
    """Return a store whose cache has room for so many nodes of the lakehouse."""
    store = NodeStore(lake.storage, ORDER, 1 << 20)
    sizes = [store.read(path).nbytes for path in lake.root_node.node.children]
    return NodeStore(lake.storage, ORDER, 1 << 20, cache_bytes=6 * nodes * max(sizes))


def _leaves(lake: Lakehouse) -> list[str]:
    level = lake.root_node.node.children
    while (node := lake.nodes.read(level[0])).children:
        level = [path for each in level for path in lake.nodes.read(each).children]
    assert node.is_leaf
    return level


def _everything(work: Work) -> range:
    return range(len(work.refs))


@pytest.mark.parametrize("most", [1, 32])
@pytest.mark.parametrize("prove", [False, True])
def test_a_flush_reads_each_node_once_however_small_the_cache_is(lake: Lakehouse, most: int, *, prove: bool) -> None:
    """Read into the cache all at once, the children of a node pushed each other out before they were used."""
    nodes = len(_leaves(lake)) + sum(not lake.nodes.read(path).is_leaf for path in lake.root_node.node.children)
    store = _store(lake, 4)
    rewriter = Rewriter(NodeWriter(store), 1, prove=prove)
    with Rounds(lake.storage, most=most) as rounds:
        rewriter.seal(rewriter.flush(rewriter.ref_of(lake.root_node.node), _everything))
    assert nodes > 100
    assert nodes == sum(kind == "get" for _, kind, _ in rounds.log)


def test_what_is_read_in_vain_as_columns_is_not_read_again(lake: Lakehouse) -> None:
    """A leaf that is not plain sends all its neighbours the general way."""
    leaves = _leaves(lake)[:20]
    odd = NodeWriter(lake.nodes)
    leaf = lake.nodes.read(leaves[-1])
    paths = [*leaves[:-1], odd.add(Node(leaf.keys, leaf.values, buffer=_one_message(leaf), height=0))]
    odd.flush()
    store = _store(lake, 4)
    with Rounds(lake.storage) as rounds:
        assert store.read_columns(paths) is None
        assert [lake.nodes.read(path).keys for path in leaves] == [store.read(path).keys for path in paths]
    assert len(paths) == rounds.requests


def _one_message(leaf: Node) -> Messages:
    return Messages.of([(leaf.keys[0], "0000/0000/0000/00000000-table-x", "txn")])


def test_what_is_expected_is_under_way_while_others_are_used(lake: Lakehouse) -> None:
    """A hundred leaves, read one by one with eight requests at a time: as many rounds as they need."""
    leaves, store = _leaves(lake)[:96], _store(lake, 1000)
    with Rounds(lake.storage, most=8) as rounds:
        with store.prefetch(leaves):
            for path in leaves:
                store.read(path)
        assert (12, 96) == (rounds.chain, rounds.requests)
        assert 8 == rounds.busiest()


def test_a_window_has_room_for_what_a_part_of_the_cache_holds(lake: Lakehouse) -> None:
    """Four large nodes of cache: no more than eight of all sizes wait; what was read is never read again."""
    leaves, store = _leaves(lake)[:60], _store(lake, 4)
    store.read(leaves[0])
    with Rounds(lake.storage) as rounds, store.prefetch(leaves):
        for path in leaves:
            store.read(path)
    assert 8 >= rounds.busiest()
    assert 59 == rounds.requests


def test_what_others_read_first_is_not_read_again(lake: Lakehouse) -> None:
    """Order is a promise that may be broken: files asked for early are passed over, late ones wait."""
    leaves, store = _leaves(lake)[:60], _store(lake, 1000)
    with Rounds(lake.storage, most=4) as rounds, store.prefetch(leaves):
        for path in (*leaves[40:50], *leaves[1:40], leaves[0], *leaves[50:]):
            store.read(path)
    assert 60 == rounds.requests


def test_nothing_is_expected_where_requests_go_out_one_after_another(lake: Lakehouse) -> None:
    """What is never asked for is never read."""
    store = _store(lake, 1000)
    with Rounds(lake.storage, most=1) as rounds, store.prefetch(_leaves(lake)):
        pass
    assert 0 == rounds.requests


def test_a_missing_file_is_told_by_who_asks_for_it(lake: Lakehouse) -> None:
    leaves, store = _leaves(lake)[:10], _store(lake, 1000)
    lake.storage.delete_many([leaves[5]])
    with Rounds(lake.storage), store.prefetch(leaves):
        for path in leaves[:5]:
            store.read(path)
        with pytest.raises(CorruptNode, match="is missing"):
            store.read(leaves[5])
        store.read(leaves[6])


def test_what_two_windows_expect_is_read_once_and_neither_loses_it(lake: Lakehouse) -> None:
    """Whichever is closed first, and nothing is kept when both are."""
    leaves, files = _leaves(lake)[:10], InFlightReads(lake.storage)
    with Rounds(lake.storage) as rounds:
        one, two = (ReadAhead(files, iter(leaves), lambda: 100, lambda _: False) for _ in range(2))
        one.fill()
        two.fill()
        assert one.take(leaves[0]) == two.take(leaves[0]) == lake.storage.read(leaves[0])
        one.close()
        assert two.take(leaves[1]) in {None, lake.storage.read(leaves[1])}
        two.close()
    assert len(leaves) + 2 == rounds.requests
    files.done(leaves[0])
    assert {} == files._files


def test_nothing_of_what_was_read_ahead_stays_behind(lake: Lakehouse) -> None:
    """As nodes, as columns, or never asked for."""
    leaves, store = _leaves(lake)[:60], _store(lake, 1000)
    with Rounds(lake.storage), store.prefetch(leaves):
        store.read(leaves[0])
        assert store.read_columns(leaves[1:20]) is not None
        assert 20 == len(list(store.read_many(leaves[20:40])))
    assert {} == store._underway._files
    assert {} == store._local.here.nodes


def test_what_several_threads_ask_for_at_the_same_time_is_read_once(lake: Lakehouse) -> None:
    """The first waits in its request until all others have asked."""
    path, store = _leaves(lake)[0], _store(lake, 1000)
    asked, reads = threading.Barrier(5, timeout=300), list[str]()

    def slow(kind: str, path: str, action: Callable[[], object]) -> object:
        reads.append(path)
        asked.wait()
        time.sleep(0.05)
        return action()

    def ask(first: int) -> Node:
        if first:
            while not reads:
                time.sleep(0.001)
            asked.wait()
        return store.read(path)

    vars(lake.storage)["interceptor"] = slow
    with ThreadPoolExecutor(5) as pool:
        found = list(pool.map(ask, range(5)))
    assert [path] == reads
    assert all(node is found[0] for node in found)


def test_a_file_that_is_held_twice_takes_its_room_once() -> None:
    cache: Cache[str] = Cache(3)
    for path in ("a", "b", "b", "b"):
        cache.hold(path, path, 1)
    assert ["a", "b"] == [cache.held("a"), cache.held("b")]
    cache.hold("c", "c", 2)
    assert [None, "b", "c"] == [cache.held(path) for path in "abc"]


def test_an_error_reaches_everybody_who_waited_and_the_next_one_tries_again() -> None:
    once: Cache[int] = Cache(1)
    with pytest.raises(ZeroDivisionError):
        once.get("a", lambda: (1 // 0, 1))
    assert 7 == once.get("a", lambda: (7, 1))


def test_a_scan_reads_ahead_over_the_borders_of_nodes(lake: Lakehouse) -> None:
    """Each node once, in as many rounds as the requests fill, and one for each level: not one for each inner node."""
    nodes = lake.root_node.node
    handle = Lakehouse.open(lake.storage)
    with Rounds(lake.storage) as rounds:
        assert lake.digest() == handle.digest()
    read = sum(kind == "get" for _, kind, _ in rounds.log)
    assert (nodes.height or 0) >= 2
    assert read > 100
    assert rounds.chain <= read // 32 + 2 * (2 + (nodes.height or 0))


def test_a_scan_of_a_range_reads_what_it_did(lake: Lakehouse) -> None:
    """Reading ahead adds no request, whatever part of the tree is asked for."""
    for namespace in lake.namespaces():
        requests = []
        for most in (1, 32):
            handle = Lakehouse.open(lake.storage)
            with Rounds(lake.storage, most=most) as rounds:
                found = handle.tables(namespace)
            requests.append((rounds.requests, found))
        assert requests[0] == requests[1]


def test_a_late_file_leaves_no_thread_idle(lake: Lakehouse) -> None:
    """The window grows while the file that is asked for is late."""
    leaves = _leaves(lake)
    storage = open_storage(lake.root, {"max_concurrency": 4, "durable": False})
    others, enough = list[str](), threading.Event()

    def read(_: str, path: str, action: Callable[[], bytes]) -> bytes:
        if path == leaves[0]:
            assert enough.wait(300)
        others.append(path)
        if len(others) >= 20:
            enough.set()
        return action()

    storage.interceptor = read  # type: ignore[attr-defined]
    ahead = ReadAhead(InFlightReads(storage), iter(leaves), lambda: 8, lambda _: False)
    ahead.fill()
    assert leaves[:40] == [path for path in leaves[:40] if ahead.take(path) is not None]
    assert others.index(leaves[0]) >= 19
    ahead.close()

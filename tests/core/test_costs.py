"""What operations cost in storage requests. Requests are asserted, seconds are not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import lakes
from tests.support.lakes import compacted, filled, new_lake, reopened
from tests.support.surgery import Surgery
from tests.support.wide import wide
from trinitylake_core import Lakehouse, ObjectNotFound, spec
from trinitylake_core.errors import InvalidDefinition
from trinitylake_core.locations import root_path

LOOK = {"get": 1, "head": 1}
"""What a commit looks at beside the hint: the boundary, and whether the next version was there before."""


@pytest.fixture
def lake(tmp_path: Path) -> Lakehouse:
    """Return a lakehouse of four levels."""
    lake = filled(new_lake(tmp_path), tables=120, changes=8)
    assert 3 == lake.stats().height
    return lake


def cost(lake: Lakehouse, action: Callable[[], object]) -> dict[str, int]:
    """Return the requests by kind; durability barriers are none."""
    before = lake.storage.counts.snapshot()
    action()
    spent = (lake.storage.counts - before).as_dict()
    return {kind: n for kind, n in spent.items() if kind not in {"bytes_read", "bytes_written", "sync"}}


def test_a_cold_lookup_costs_three_requests_and_one_a_level_and_one_for_the_definition(lake: Lakehouse) -> None:
    """Hint, the version after it, root and boundary at once, one node for each level below, the table's definition."""
    for number in range(120):
        again = reopened(lake)
        again.table(f"ns{number % 3}", f"t{number:03}")
        counts = again.storage.counts
        assert 3 + 4 + 1 >= counts.requests() == counts.get


def test_a_cold_lookup_of_what_is_not_there_costs_no_more_than_the_levels(lake: Lakehouse) -> None:
    again = reopened(lake)
    with pytest.raises(ObjectNotFound):
        again.table("ns1", "absent")
    assert {"get": 3 + 4} == {k: v for k, v in again.storage.counts.as_dict().items() if "bytes" not in k}


def test_a_warm_lookup_costs_the_definition_only(lake: Lakehouse) -> None:
    lake.table("ns1", "t001")
    assert {"get": 1} == cost(lake, lambda: lake.table("ns1", "t001"))


def test_a_small_commit_into_a_deep_tree_reads_only_what_its_checks_need(lake: Lakehouse) -> None:
    """Does the namespace exist, does the table: two paths, one of them warm on the second commit; then the look."""
    compacted(lake)
    again = reopened(lake)

    def commit(name: str) -> None:
        with again.transaction() as txn:
            txn.create_table("ns1", name)

    first = cost(again, lambda: commit("new1"))
    assert (2, 1) == (first["put"], first["create"])
    assert 2 * (again.stats().height or 0) + 1 >= first["get"]
    assert {"put": 2, "create": 1, **LOOK} == cost(again, lambda: commit("new2"))


def test_a_drop_writes_no_definition(lake: Lakehouse) -> None:
    compacted(lake)

    def drop() -> None:
        with lake.transaction() as txn:
            txn.drop_table("ns1", "t001")

    lake.refresh().table("ns1", "t001")
    lake.namespace("ns1")
    assert {"put": 1, "create": 1, **LOOK} == cost(lake, drop)


def test_a_refresh_with_nothing_new_costs_three_gets(lake: Lakehouse) -> None:
    """The version after, which is not there; and at once the boundary and this one, which is not decoded again."""
    assert {"get": 3} == cost(lake, lake.refresh)
    with lake.transaction() as txn:
        txn.create_namespace("new")
    written = lake.backend.newest_seen
    assert {"get": 3} == cost(lake, lake.refresh)
    assert lake.root_node is written


def test_a_large_lakehouse_definition_costs_one_get_more(tmp_path: Path) -> None:
    """It is too large for the copy in the root."""
    lake = new_lake(tmp_path, properties={"text": "x" * 2 * spec.LAKEHOUSE_DEF_COPY_MAX_BYTES})
    again = reopened(lake)
    assert {"get": 5} == {k: v for k, v in again.storage.counts.as_dict().items() if "bytes" not in k}


def test_a_lakehouse_that_rested_costs_no_more(tmp_path: Path) -> None:
    """The boundary is read whatever the age of the newest root."""
    lake = new_lake(tmp_path, txn_ttl_millis=1000)
    Surgery(lake.root, 4).system_row(root_path(0), spec.CREATED_AT_MILLIS, "1000")
    again = reopened(lake)
    assert {"get": 4} == {k: v for k, v in again.storage.counts.as_dict().items() if "bytes" not in k}


def test_a_scan_reads_every_node_once_and_a_range_only_its_nodes(lake: Lakehouse) -> None:
    nodes = len(Surgery(lake.root, 4).tree(lake.version)) - 1
    cold = reopened(lake)
    assert {"get": nodes} == cost(cold, lambda: list(cold.objects()))
    cold = reopened(lake)
    assert nodes / 2 > cost(cold, lambda: cold.tables("ns1"))["get"]
    cold = reopened(lake)
    assert 8 > cost(cold, cold.namespaces)["get"]


def test_what_a_commit_writes_does_not_grow_with_the_commits_before_it(tmp_path: Path) -> None:
    """The buffer of the root is pushed down when it passes 32 KiB: flat from the first hundreds to the last."""
    lake = filled(new_lake(tmp_path, order=64, target=1_000_000), tables=400, changes=100)
    compacted(lake)
    lake.refresh()
    sizes = []
    for number in range(1200):
        before = lake.storage.counts.bytes_written
        with lake.transaction() as txn:
            txn.put(
                lake.codec.table(f"ns{number % 3}", f"t{number * 7 % 400:03}"),
                f"0000/0000/0000/00000000-table-{number}",
            )
        sizes.append(lake.storage.counts.bytes_written - before)
    assert sum(sizes[-300:]) <= 1.1 * sum(sizes[300:600])
    assert sum(sizes) / len(sizes) <= 20_000


@pytest.mark.parametrize(("limit", "most"), [(None, 32_768), ("8192", 8192), ("garbage of another writer", 32_768)])
def test_the_buffer_of_a_root_stays_below_what_the_lakehouse_says(tmp_path: Path, limit: str | None, most: int) -> None:
    lake = filled(new_lake(tmp_path, order=64, target=1_000_000), tables=120, changes=60)
    definition = lake.backend.definition(lake.backend.newest_seen)
    if limit is not None:
        definition.properties[spec.COMMIT_BUFFER_BYTES] = limit
    for number in range(400):
        with lake.transaction() as txn:
            txn.put(lake.codec.table("ns1", f"t{number % 120:03}"), f"0000/0000/0000/00000000-table-{number}")
        assert lake.backend.newest_seen.node.buffer.nbytes() <= most
    assert [] == list(reopened(lake).check())


def test_few_commits_push_the_buffer_down_also_where_the_root_is_wide(tmp_path: Path) -> None:
    """Each frees half of the buffer, and not just the room for one commit: else every third would write a node."""
    lake = wide(tmp_path, 3_000, 64, properties={spec.COMMIT_BUFFER_BYTES: "8192"})
    assert len(lake.root_node.node.children) > 30
    puts = []
    for number in range(200):
        before = lake.storage.counts.put
        with lake.transaction() as txn:
            key = lake.codec.table(f"ns{number % 4}", f"t{number * 37 % 3000:06}")
            txn.put(key, f"0000/0000/0000/00000000-table-{number}", replaces=True)
        puts.append(lake.storage.counts.put - before - 1)  # the hint is one
    flushing = [nodes for nodes in puts if nodes]
    assert 1 < len(flushing) <= 200 / 20
    assert sum(flushing) <= 200


def test_a_size_of_the_buffer_that_is_no_number_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidDefinition, match="is a number of bytes, not '32k'"):
        new_lake(tmp_path, properties={spec.COMMIT_BUFFER_BYTES: "32k"})


@pytest.mark.parametrize(("objects", "children", "most"), [(300_000, 2, 20_000), (230_000, 490, 70_000)])
def test_a_small_commit_at_the_usual_order_writes_little(
    tmp_path: Path, objects: int, children: int, most: int
) -> None:
    """On average, commits that flush among them: below a root of few children, and below one that is about to split."""
    lake = lakes.build(tmp_path.as_uri(), objects)
    assert 512 == lake.definition.order
    assert children <= len(lake.root_node.node.children) < children + 22
    sizes = []
    for number in range(0, objects, objects // 150):
        before = lake.storage.counts.bytes_written
        with lake.transaction() as txn:
            txn.put(lake.codec.table(*lakes.table_name(number, objects)), f"0000/0000/0000/00000000-table-{number}")
        sizes.append(lake.storage.counts.bytes_written - before)
    assert sum(sizes) / len(sizes) <= most

"""What waiting costs, and what a compaction costs at most: from one root, without a request."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from pipelines import compaction
from pipelines.trees import policy
from tests.support.lakes import compacted, filled, new_lake, reopened
from tests.support.surgery import directory_of
from tests.support.wide import change, scattered, wide
from trinitylake_core import Lakehouse


@pytest.fixture
def lake(tmp_path: Path) -> Lakehouse:
    return filled(new_lake(tmp_path), tables=60)


def test_no_request_is_made(lake: Lakehouse) -> None:
    opened = reopened(lake)
    before = opened.storage.counts.requests()
    policy.waiting_bytes(opened)
    policy.estimate(opened)
    assert before == opened.storage.counts.requests()


def test_the_bytes_of_waiting_messages_are_those_that_a_compaction_saves(lake: Lakehouse) -> None:
    """The root is smaller by as much afterwards, but for what its rows weigh on average."""
    before, predicted = lake.stats().root_bytes, policy.waiting_bytes(lake)[0]
    assert lake.stats().root_messages > 0
    compacted(lake)
    after = reopened(lake)
    assert (0, 0) == policy.waiting_bytes(after)
    assert 0.3 < (before - after.stats().root_bytes) / predicted < 3


def prove_bounds(lake: Lakehouse) -> None:
    """Compact a lakehouse as another process would: it costs at most what its root, and its plan, say."""
    expected = policy.estimate(lake)
    planned = compaction.estimate(lake)
    done = compaction.run(reopened(lake), compaction.Config(engine="local"))
    requests = done.nodes_read + done.nodes_written + 1
    happened = {"nodes": done.nodes_written, "bytes": done.bytes_written, "requests": requests}
    for bound in (expected, planned):
        for what, amount in happened.items():
            assert amount <= getattr(bound, what), (what, bound, happened)


SPLITS = {
    "into an empty root": lambda there: change(new_lake(there, order=128, target=1 << 20), range(2_000)),
    "into small leaves": lambda there: change(new_lake(there, order=5, target=1 << 20), range(40)),
    "behind the last keys": lambda there: change(wide(there, 5_000, 128), range(5_000, 8_000), replaces=False),
    "into full leaves": lambda there: change(wide(there, 5_000, 128), range(0, 5_000, 8), replaces=True),
    "everywhere, below two levels": lambda there: change(
        wide(there, 20_000, 64), scattered(20_000, 1_000), replaces=True
    ),
    "beside a few": lambda there: change(wide(there, 46, 512), range(40)),
}


@pytest.mark.parametrize("case", SPLITS)
def test_the_bound_counts_splits(tmp_path: Path, case: str) -> None:
    """A leaf that takes in more than it has room for becomes several, and so do the nodes above."""
    prove_bounds(SPLITS[case](tmp_path))


def test_the_bound_of_bytes_holds_for_definitions_with_random_names(tmp_path: Path) -> None:
    """Their paths shrink less in a file than those of the other tests. One change rewrites one leaf."""
    lake = Lakehouse.create(tmp_path / "real")
    with lake.transaction() as txn:
        txn.create_namespace("sales")
        for number in range(1_000):
            txn.create_table("sales", f"t{number:04}", schema=pa.schema([("id", pa.int64())]))
    compacted(lake.refresh())
    for number in range(0, 1_000, 20):  # enough for each leaf to be worth its rewriting
        with lake.refresh().transaction() as txn:
            txn.alter_table("sales", f"t{number:04}", properties={"owner": "ada"})
    prove_bounds(lake.refresh())
    with lake.refresh().transaction() as txn:
        for number in range(0, 1_000, 10):
            txn.drop_table("sales", f"t{number:04}")
    prove_bounds(lake.refresh())


OBJECTS = {6: 3_000, 64: 20_000, 512: 60_000}
"""So many make trees of four levels to two, by the order."""


def names_after(objects: int, share: float, count: int) -> list[str]:
    """Return new names that come one after the other, behind a table."""
    return [f"t{int(objects * share):06}_{number:05}" for number in range(count)]


def put_tables(lake: Lakehouse, names: list[str]) -> Lakehouse:
    """Give new tables of one namespace definitions, in one version; return the lakehouse at that version."""
    with lake.transaction() as txn:
        for number, name in enumerate(names):
            path = f"0000/0000/0000/00000000-table-{txn.id[:8]}-{number}.binpb"
            txn.put(lake.codec.table("ns1", name), path, replaces=False)
    return lake.refresh()


@pytest.fixture(scope="module", params=OBJECTS)
def origin(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Lakehouse:
    return wide(tmp_path_factory.mktemp("origin"), OBJECTS[request.param], request.param, table_name_max_size_bytes=20)


SHAPES = ("in one place", "few in one place", "in three places", "everywhere", "changed")


@pytest.mark.parametrize("shape", SHAPES)
def test_the_bound_holds_wherever_messages_are(origin: Lakehouse, shape: str, tmp_path: Path) -> None:
    objects = OBJECTS[origin.definition.order]
    count = objects // 20
    apart = scattered(objects, count)
    lake = Lakehouse.open(shutil.copytree(directory_of(origin), tmp_path / "lake"))
    names = {
        "in one place": names_after(objects, 0.5, count),
        "few in one place": names_after(objects, 0.5, max(5, count // 10)),
        "in three places": [name for share in (0.25, 0.5, 0.75) for name in names_after(objects, share, count // 3)],
        "everywhere": [f"t{number:06}_x" for number in apart],
    }
    if shape == "changed":
        lake = change(lake, apart, replaces=True)
    else:
        lake = put_tables(lake, names[shape])
    prove_bounds(lake)

"""What operations cost on S3: requests by kind, held against the server's own log and against ``docs/costs.md``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipelines import compaction
from tests.support.lakes import NAME_SIZE, filled
from tests.support.proofs import forget_proofs
from tests.support.s3_servers import S3Server
from tests.support.sweep import S3Place
from trinitylake_core import Lakehouse, spec
from trinitylake_core.commits.changes import Fence
from trinitylake_core.commits.commit import commit
from trinitylake_core.locations import root_path
from trinitylake_core.storage import RequestCounts
from trinitylake_core.storage.base import BaseStorage
from trinitylake_core.tree.node import Node
from trinitylake_core.tree.nodefile import encode
from trinitylake_core.versions import Versions

pytestmark = pytest.mark.s3

DOCUMENT = Path(__file__).parents[2] / "docs" / "costs.md"
WRITES, READS = ("put", "create", "copy", "list"), ("get", "head")
DOLLARS = {"writes": 0.005 / 1000, "reads": 0.0004 / 1000}
"""List price of a request on S3 Standard, us-east-1: PUT, COPY, POST, LIST and GET, SELECT and all other."""
Measured = tuple[Lakehouse, Callable[[], object]]
"""A handle, and what is measured at it."""
Measure = Callable[[Lakehouse, Callable[[], object]], RequestCounts]
SIZES: dict[str, Any] = {
    "order": 16,
    "node_file_max_size_bytes": 16384,
    **{f"{kind}_name_max_size_bytes": NAME_SIZE for kind in ("namespace", "table", "view")},
}


def told(counts: RequestCounts) -> str:
    """Return counts as the table of the document tells them: requests and dollars per 1,000 operations."""
    requests = {kind: number for kind, number in counts.as_dict().items() if "bytes" not in kind}
    dollars = 1000 * sum(
        number * DOLLARS["writes" if kind in WRITES else "reads"]
        for kind, number in requests.items()
        if kind in WRITES + READS
    )
    return f"{', '.join(f'{number} {kind}' for kind, number in requests.items())} | ${dollars:.4f} |"


def assert_documented(operation: str, counts: RequestCounts) -> None:
    """Prove that the document has this row."""
    row = f"| {operation} | {told(counts)}"
    assert row in DOCUMENT.read_text(encoding="utf-8").splitlines(), row


@pytest.fixture
def measured(moto_server: S3Server) -> Measure:
    """Return what counts the requests of an action, and proves that the server saw the same."""

    def measure(lake: Lakehouse, action: Callable[[], object]) -> RequestCounts:
        name = lake.root.split("/")[3]
        seen, before = moto_server.requests_by_method(name), lake.storage.counts.snapshot()
        action()
        counts = lake.storage.counts - before
        seen = moto_server.requests_by_method(name) - seen
        ours = {"GET": counts.get + counts.list, "PUT": counts.put + counts.create, "HEAD": counts.head}
        assert {method: number for method, number in ours.items() if number} == dict(seen)
        return counts

    return measure


@pytest.fixture
def lake(moto_server: S3Server) -> Lakehouse:
    """A lakehouse with a namespace and a table, on a handle that committed them."""
    lake = Lakehouse.create(moto_server.new_root(), storage_options=moto_server.options, **SIZES)
    with lake.transaction() as txn:
        txn.create_namespace("ns")
        txn.create_table("ns", "t")
    return lake.refresh()


def _reopened(lake: Lakehouse) -> Lakehouse:
    root, options = lake.storage.spec()
    return Lakehouse.open(root, storage_options=options)


def _add(lake: Lakehouse, name: str) -> None:
    with lake.transaction() as txn:
        txn.create_table("ns", name)


def _add_ten(lake: Lakehouse) -> None:
    with lake.transaction() as txn:
        for number in range(10):
            txn.create_table("ns", f"n{number}")


def _first(lake: Lakehouse) -> Measured:
    """Racers race for twelve files: one looks who has each, and deletes them, because one of several must win."""
    forget_proofs()
    other = _reopened(lake)
    return other, lambda: _add(other, "new")


def _overtaken(lake: Lakehouse, by: Callable[[Lakehouse], object]) -> Measured:
    other = _reopened(lake)
    txn = lake.transaction()
    txn.create_table("ns", "mine")
    by(other)
    return lake, txn.commit


def _fence(other: Lakehouse) -> None:
    commit(other.backend, other.backend.newest_seen, Fence(1, {}))


COMMITS: dict[str, Callable[[Lakehouse], Measured]] = {
    "commit of one table, warm handle": lambda lake: (lake, lambda: _add(lake, "new")),
    "commit of ten tables, warm handle": lambda lake: (lake, lambda: _add_ten(lake)),
    "first commit of a process": _first,
    "commit that loses one race": lambda lake: _overtaken(lake, lambda other: _add(other, "theirs")),
    "commit that loses the race to a cleaning": lambda lake: _overtaken(lake, _fence),
}


@pytest.mark.parametrize("operation", COMMITS)
def test_a_commit_sends_what_the_document_says(lake: Lakehouse, measured: Measure, operation: str) -> None:
    assert_documented(operation, measured(*COMMITS[operation](lake)))


def test_a_cold_lookup(moto_server: S3Server, measured: Measure) -> None:
    """Open, then one table: one get per level of the tree, and the definition."""
    place = Lakehouse.create(moto_server.new_root(), storage_options=moto_server.options, **SIZES)
    lake = filled(place, tables=300, namespaces=2, changes=100)
    compaction.run(lake, compaction.Config(engine="local"))
    cold: list[Lakehouse] = []
    name = lake.tables("ns0")[70]
    before = moto_server.requests_by_method(lake.root.split("/")[3])
    cold.append(_reopened(lake))
    opening = cold[0].storage.counts.snapshot()
    counts = measured(cold[0], lambda: cold[0].table("ns0", name))
    assert opening.get == (moto_server.requests_by_method(lake.root.split("/")[3]) - before)["GET"] - counts.get
    assert 4 == opening.get == opening.requests()
    height = cold[0].stats().height
    assert height == 2
    assert 1 <= counts.get - 1 <= height
    assert counts.get == counts.requests()
    assert_documented("open, cold", opening)
    whole = RequestCounts(get=opening.get + height + 1)
    assert_documented("open and look up one table, cold, tree of three levels", whole)


def test_a_compaction_of_a_small_tree(moto_server: S3Server, measured: Measure) -> None:
    """Reads what is dirty, writes as much, one root, one hint; no list."""
    lake = Lakehouse.create(moto_server.new_root(), storage_options=moto_server.options, **SIZES)
    with lake.transaction() as txn:
        txn.create_namespace("ns0")
        for number in range(120):
            txn.create_table("ns0", f"t{number:03}")
    compaction.run(lake, compaction.Config(engine="local"))
    with lake.transaction() as txn:
        for number in range(0, 120, 12):
            txn.alter_table("ns0", f"t{number:03}", properties={"a": "b"})
    lake = _reopened(lake)
    reports: list[compaction.Report] = []
    config = compaction.Config(engine="local")
    counts = measured(lake, lambda: reports.append(compaction.run(lake, config)))
    assert (0, 1, 0) == (counts.list, counts.head, counts.delete)
    assert counts.put + counts.create == reports[0].nodes_written + 1
    assert_documented("compaction of 10 messages in a tree of 120 tables", counts)


# Finding the newest version.


def _many_versions(lake: Lakehouse, server: S3Server, count: int) -> None:
    """Put roots 0 to ``count`` there, copies of one, behind the API's back."""
    place = S3Place(server, lake.root)
    files, root = place.files(), lake.root_node
    for version in range(lake.version + 1, count + 1):
        node = root.node
        copy = Node(node.keys, node.values, node.children, node.buffer, dict(node.system), node.height)
        copy.system |= {
            spec.VERSION: str(version),
            spec.PREVIOUS_ROOT: root_path(version - 1),
            spec.CREATED_AT_MILLIS: str(root.created_at_millis + version),
        }
        files[root_path(version)] = bytes(encode(copy, lake.definition.order))
    place.reset(files)


@pytest.mark.parametrize("count", [300, pytest.param(10_000, marks=pytest.mark.slow)])
def test_finding_the_newest_version(lake: Lakehouse, moto_server: S3Server, measured: Measure, count: int) -> None:
    """A fresh hint costs four gets; with any other the cost grows with the logarithm. Nothing is listed."""
    _many_versions(lake, moto_server, count)
    assert isinstance(lake.storage, BaseStorage)
    hints = {
        "fresh": str(count),
        "100 behind": str(count - 100),
        "garbage": "garbage",
        "far ahead": "4000000000",
        "missing": None,
    }
    for name, hint in hints.items():
        if hint is None:
            lake.storage.delete_many([spec.HINT_FILE])
        else:
            lake.storage.replace(spec.HINT_FILE, hint.encode())
        versions = Versions(lake.storage)
        counts = measured(lake, versions.latest)
        assert count == versions.latest().version
        assert 0 == counts.list
        assert counts.requests() <= (4 if name == "fresh" else 2 * count.bit_length() + 8)
        if count == 300:  # the page has one size, and the bound above for every other
            assert_documented(f"newest of 300 versions, hint {name}", counts)

"""No root is larger than a node may be: a transaction that finds no room there is pushed down, and still conflicts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipelines import compaction, verify
from tests.support.faults import FaultPlan, attach, detach
from tests.support.lakes import CancelBy, compacted, content, filled, new_lake, reopened
from tests.support.surgery import Surgery, directory_of
from trinitylake_core import CommitConflict, InvalidName, Lakehouse, OutcomeUnknown, Transaction, spec
from trinitylake_core.locations import root_path
from trinitylake_core.tree.node import Messages
from trinitylake_core.tree.nodefile import encode
from trinitylake_core.versions import Root

MANY = 120


@pytest.fixture
def lake(tmp_path: Path) -> Lakehouse:
    lake = filled(new_lake(tmp_path), tables=60, namespaces=6)
    compacted(lake)
    return lake.refresh()


def path_of(number: int) -> str:
    return f"0101/0101/0101/01010101-table-{number}.binpb"


def rows(lake: Lakehouse, numbers: range, suffix: str = "") -> pa.Table:
    keys = [lake.codec.table(f"ns{number % 6}", f"t{number:03}{suffix}") for number in numbers]
    return pa.table({"key": keys, "path": [path_of(number) for number in numbers]})


def put(lake: Lakehouse, table: pa.Table) -> Lakehouse:
    with lake.refresh().transaction() as txn:
        txn.put_many(table)
    return lake.refresh()


def prove(lake: Lakehouse) -> None:
    """Prove all versions, and that each root fits."""
    assert [] == list(lake.check())
    assert verify.run(lake, verify.Config("all", engine="local")).ok
    target = lake.definition.node_file_max_size_bytes
    for version in range(lake.version + 1):
        node = lake.at(version=version).root_node.node
        assert node.estimated_bytes() <= target
        assert str(target) == node.system[spec.FITS]


def test_all_of_a_tree_may_go_at_once(lake: Lakehouse) -> None:
    """So that nodes are joined, whose buffers were nearly full."""
    tables = [key for key in content(lake) if key.startswith("C")]
    put(lake, rows(lake, range(400), "x"))
    gone = [key for key in content(lake.refresh()) if key.startswith("C") and key not in tables[::7]]
    with lake.transaction() as txn:
        txn.put_many(pa.table({"key": gone, "path": pa.array([None] * len(gone), pa.string())}))
    assert set(tables[::7]) == {key for key in content(lake.refresh()) if key.startswith("C")}
    prove(lake)


def _set_some(txn: Transaction, lake: Lakehouse) -> None:
    txn.put_many(rows(lake, range(MANY), "y"))


def _alter_one(txn: Transaction, lake: Lakehouse) -> None:
    del lake
    txn.alter_table("ns0", "t000", properties={"a": "b"})


@pytest.mark.parametrize("late", [_set_some, _alter_one])
def test_what_is_disjoint_from_a_bulk_is_rebased_over_it(
    lake: Lakehouse, late: Callable[[Transaction, Lakehouse], None]
) -> None:
    txn = reopened(lake).transaction()
    late(txn, lake)
    put(lake, rows(lake, range(1, MANY)))
    assert lake.root_node.is_bulk
    txn.commit()
    assert {path_of(number) for number in range(1, MANY)} <= {*content(lake.refresh()).values()}
    prove(lake)


@pytest.mark.parametrize("change", ["set", "drop", "namespace"])
def test_what_a_bulk_changed_is_a_conflict(lake: Lakehouse, change: str) -> None:
    """Also where none of its messages is in its root any more; the same key that both set, and a dropped namespace."""
    txn = reopened(lake).transaction()
    if change == "namespace":
        txn.create_table("ns3", "late")
    elif change == "set":
        txn.put(lake.codec.table("ns1", "t007"), path_of(9999))
    else:
        txn.drop_table("ns1", "t007")
    with lake.transaction() as bulk:
        bulk.put_many(rows(lake, range(MANY)))
        if change == "namespace":
            bulk.drop_namespace("ns3", cascade=True)
    assert lake.refresh().root_node.is_bulk
    with pytest.raises(CommitConflict, match=f"version {lake.version} changed ns(1.t007|3),"):
        txn.commit()


def test_a_compaction_takes_over_what_a_bulk_changed(lake: Lakehouse) -> None:
    """Its root fits, too, whatever was committed while it ran."""
    with lake.transaction() as txn:
        txn.drop_table("ns0", "t000")
    once: list[Lakehouse] = []

    def beside() -> None:
        if not once:
            once.append(put(reopened(lake), rows(lake, range(1, 300))))
            with once[0].transaction() as txn:
                txn.drop_table("ns1", "t001")

    report = compaction.run(lake.refresh(), compaction.Config("local"), cancel=CancelBy(beside))
    assert (2, 0) == (report.rebased_over, report.restarts)
    found = content(lake.refresh())
    assert {path_of(number) for number in range(2, 300)} <= {*found.values()}
    assert not {lake.codec.table("ns0", "t000"), lake.codec.table("ns1", "t001")} & found.keys()
    prove(lake)


class LosesFromTheRootOn(FaultPlan):
    """Answers are lost from the creation of a root on."""

    is_created = False

    def __call__(self, kind: str, path: str, action: Callable[[], Any]) -> Any:
        """Carry out ``action``; lose its answer if a root was created."""
        self.is_created = self.is_created or kind == "create"
        return super().__call__(kind, path, action) if self.is_created else action()


@pytest.mark.parametrize("how", ["plain", "group", "saved"])
def test_a_bulk_whose_answer_was_lost_finds_itself(lake: Lakehouse, how: str) -> None:
    """Also where some of its messages changed nothing, so that no difference shows them."""
    there = content(lake)
    lake = Lakehouse.open(lake.root)
    txn = lake.transaction(group=lake.group() if how == "group" else None)
    txn.put_many(rows(lake, range(MANY)))
    txn.put(lake.codec.table("ns0", "never"), None)
    txn.put(lake.codec.namespace("ns5"), there[lake.codec.namespace("ns5")])
    if how == "saved":
        txn = lake.resume_transaction(txn.save())
    attach(lake.storage, LosesFromTheRootOn("lose_from", kinds={"create", "get"}))
    with pytest.raises(OutcomeUnknown):
        txn.commit()
    detach(lake.storage)
    put(reopened(lake), rows(lake, range(500, 503)))
    assert lake.version + 1 == txn.commit()


@pytest.mark.parametrize("deletes_only", [True, False])
def test_a_saved_bulk_that_was_resumed_elsewhere_and_changed_is_not_taken_for_the_own_one(
    lake: Lakehouse, deletes_only: bool
) -> None:
    """Nor where it was changed by what has no file, and on another table than this one."""
    put(lake, rows(lake, range(400), "x"))
    keys = [key for key in content(lake.refresh()) if "x" in key]
    first = lake.transaction()
    first.put_many(pa.table({"key": keys, "path": pa.array([None] * len(keys), pa.string())}))
    if not deletes_only:
        first.put(lake.codec.table("ns0", "new"), path_of(7))
    saved = first.save()
    late, elsewhere = (reopened(lake).resume_transaction(saved) for _ in range(2))
    elsewhere.drop_table("ns0", "t000")
    elsewhere.commit()
    assert lake.refresh().root_node.is_bulk
    with pytest.raises(CommitConflict, match="resumed elsewhere"):
        late.commit()


def test_a_bulk_below_that_was_cleaned_is_a_conflict_and_no_silence(lake: Lakehouse) -> None:
    """What cannot be compared any more may be anything."""
    late = reopened(lake).transaction()
    late.create_namespace("late")
    put(lake, rows(lake, range(MANY)))
    surgery = Surgery(lake.root, lake.definition.order)
    for path, _ in surgery.tree(lake.version)[1:]:
        surgery.remove(path)
    with pytest.raises(CommitConflict, match="cannot be read any more"):
        late.commit()


def test_an_older_writer_takes_a_bulk_for_a_load(lake: Lakehouse) -> None:
    """It knows neither the operation nor all messages: an operation that it does not know conflicts with everything."""
    put(lake, rows(lake, range(MANY)))
    stored = lake.root_node.system[spec.OPERATION]
    assert stored not in spec.TRANSACTIONAL_OPERATIONS | spec.QUIET_OPERATIONS | {*spec.OPERATIONS}


def test_a_restore_of_many_is_a_restore(lake: Lakehouse) -> None:
    before = content(lake)
    with lake.transaction() as txn:
        for number in range(6):
            txn.drop_namespace(f"ns{number}", cascade=True)
    lake.refresh().restore(["*"], version=lake.version - 1, reason="r")
    assert before == content(lake.refresh())
    assert (spec.OP_RESTORE, len(before)) == (lake.info().operation, lake.info().changes)
    prove(lake)


def _swell(lake: Lakehouse, count: int) -> Root:
    """Put a root in the place of the newest one as older writers made it: with all messages of a large transaction."""
    root = lake.root_node
    more = Messages.of((lake.codec.table("ns1", f"o{number:05}"), path_of(number), "old") for number in range(count))
    node = root.node.with_messages(more)
    node.system = {name: value for name, value in root.system.items() if name not in _NEW and name not in _COUNTS}
    node.system[spec.TXN_ID] = "old"
    (directory_of(lake) / root.path).write_bytes(encode(node, lake.definition.order, root.path))
    return replace(root, node=node)


_NEW = (spec.FITS, spec.COUNT_BOUNDS, spec.BULK_OPERATION)
_COUNTS = (spec.NAMESPACES, spec.TABLES, spec.VIEWS)


@pytest.mark.parametrize("leaf", [True, False])
def test_a_larger_root_of_an_older_writer_is_read_and_the_next_commit_repairs_it(tmp_path: Path, leaf: bool) -> None:
    lake = new_lake(tmp_path) if leaf else filled(new_lake(tmp_path), tables=60, namespaces=6)
    with lake.refresh().transaction() as txn:
        txn.create_namespace("last")
    _swell(lake.refresh(), 200)
    old = reopened(lake)
    target = lake.definition.node_file_max_size_bytes
    assert old.root_node.node.estimated_bytes() > target
    assert [] == [each for each in old.check() if each.invariant != "I12"]
    expected = content(old)
    with old.transaction() as txn:
        txn.create_namespace("next")
    repaired = reopened(old)
    assert repaired.root_node.node.estimated_bytes() <= target
    assert expected.keys() | {lake.codec.namespace("next")} == content(repaired).keys()
    assert not repaired.root_node.is_bulk
    assert [] == [each for each in repaired.check() if each.invariant != "I12"]


@pytest.mark.parametrize("text", ["100", "many"])
def test_a_root_that_is_larger_than_it_says_breaks_i21(lake: Lakehouse, text: str) -> None:
    Surgery(lake.root, lake.definition.order).system_row(root_path(lake.version), spec.FITS, text)
    assert ["I21"] == [each.invariant for each in reopened(lake).check()]
    findings = verify.run(reopened(lake), verify.Config("all", engine="local")).findings
    assert {"I21"} == {each.invariant for each in findings}


def _keys(lake: Lakehouse, tables: int) -> list[str]:
    """Return sorted keys of six namespaces, and tables and views in them."""
    keys = [lake.codec.namespace(f"ns{number}") for number in range(6)]
    keys += [lake.codec.table(f"ns{number % 6}", f"t{number:04}") for number in range(tables)]
    keys += [lake.codec.view(f"ns{number % 6}", f"v{number:04}") for number in range(tables // 2)]
    return sorted(keys)


def _shape(lake: Lakehouse) -> list[list[tuple[list[str], list[str]]]]:
    """Return the entries of each node, level by level."""
    level = [lake.root_node.node]
    levels = []
    while level:
        levels.append([(node.keys, node.values) for node in level])
        level = [lake.nodes.read(path) for node in level for path in node.children]
    return levels


@pytest.mark.parametrize(("size", "tables"), [(7, 500), (64, 1000), (333, 500), (10_000, 1000)])
def test_batches_that_fill_an_empty_lakehouse_make_the_tree_that_their_messages_make(
    tmp_path: Path, tables: int, size: int
) -> None:
    """Whether they go there directly, or by way of messages: then one row says what another one says already."""
    lakes = {}
    for name in ("direct", "messages"):
        (tmp_path / name).mkdir()
        lake = new_lake(tmp_path / name, order=16)
        keys = _keys(lake, tables)
        whole = pa.table({"key": keys, "path": [path_of(number) for number in range(len(keys))]})
        with lake.transaction() as txn:
            if name == "messages":
                txn.put_many(whole.slice(0, 1))
            txn.put_many(iter(whole.to_batches(max_chunksize=size)))
            assert (name == "direct") == (txn.change.writes.entries() is not None)
        lakes[name] = lake.refresh()
        prove(lakes[name])
    direct, other = lakes["direct"], lakes["messages"]
    assert _shape(direct) == _shape(other)
    assert direct.root_node.counts == other.root_node.counts == (6, tables, tables // 2)
    for key in ("set", "deleted"):
        assert direct.info().summary[key] == other.info().summary[key]
    assert direct.root_node.is_bulk
    assert len(keys) == direct.info().changes


@pytest.mark.parametrize("kind", ["disorder", "twice", "across", "deletion", "known", "one"])
def test_what_is_no_row_of_new_entries_goes_by_way_of_messages(tmp_path: Path, kind: str) -> None:
    lake = new_lake(tmp_path, order=16)
    keys = _keys(lake, 400)
    paths: list[str | None] = [path_of(number) for number in range(len(keys))]
    if kind == "disorder":
        keys = keys[::-1]
    elif kind == "twice":
        keys[7] = keys[6]
    elif kind == "across":
        keys = keys[306:] + keys[:306]  # each batch is in order
    elif kind == "deletion":
        paths[9] = None
    table = pa.table({"key": keys, "path": pa.array(paths, pa.string())})
    with lake.transaction() as txn:
        if kind == "one":
            txn.put(keys[0], paths[0])
        txn.put_many(iter(table.to_batches(max_chunksize=300)), replaces=True if kind == "known" else None)
        assert txn.change.writes.entries() is None
    wanted = {key: path for key, path in zip(keys, paths, strict=True) if path is not None}
    assert wanted == content(lake.refresh())
    if kind != "known":
        prove(lake)


def test_a_key_of_no_kind_fills_nothing(tmp_path: Path) -> None:
    """Wherever it stands among the others; and no file is left behind."""
    lake = new_lake(tmp_path, order=16)
    keys = _keys(lake, 400)
    for wrong in ("A", "BZ", "CZ", "~"):
        files = {file for file in tmp_path.rglob("*") if file.is_file()}
        some = sorted([*keys, wrong])
        txn = lake.transaction()
        txn.put_many(pa.table({"key": some, "path": [path_of(number) for number in range(len(some))]}))
        with pytest.raises(InvalidName, match="known schema ID"):
            txn.commit()
        assert files == {file for file in tmp_path.rglob("*") if file.is_file()}
    assert 0 == lake.refresh().version

"""Transactions: what each operation does and refuses, and which of two that ran at the same time may commit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.support.clock import Clock
from tests.support.faults import FaultPlan, attach, detach
from tests.support.lakes import compacted, content, new_lake, reopened
from tests.support.surgery import Surgery, listing
from trinitylake_core import (
    AlreadyExists,
    CommitConflict,
    InvalidDefinition,
    InvalidInput,
    InvalidName,
    Lakehouse,
    NamespaceNotEmpty,
    ObjectNotFound,
    StorageError,
    Transaction,
    TransactionExpired,
    spec,
)
from trinitylake_core.clock import now_millis
from trinitylake_core.commits import changes, commit
from trinitylake_core.locations import root_path

SNAPSHOT, SERIALIZABLE = "SNAPSHOT", "SERIALIZABLE"
BOTH = pytest.mark.parametrize("isolation", [SNAPSHOT, SERIALIZABLE])
Do = Callable[[Transaction], Any]


@pytest.fixture
def lake(tmp_path: Path) -> Lakehouse:
    """Return a lakehouse with three namespaces: ``full`` has tables and a view, ``empty`` and ``other`` nothing."""
    lake = new_lake(tmp_path)
    with lake.transaction() as txn:
        for namespace in ("empty", "full", "other"):
            txn.create_namespace(namespace, {"owner": namespace})
        txn.create_table("full", "t1", properties={"n": "1"})
        txn.create_table("full", "t2")
        txn.create_view("full", "v1", sql="SELECT 1", properties={"n": "1"})
    return lake.refresh()


def do(lake: Lakehouse, action: Do, **options: Any) -> int | None:
    """Carry out one transaction on a handle of its own and return its version."""
    with reopened(lake).transaction(**options) as txn:
        action(txn)
    return txn.version


# -- what operations do ----------------------------------------------------------------------------------


def rows_of(*rows: tuple[str, str | None]) -> pa.Table:
    """Return raw changes as a table of three record batches or fewer."""
    keys, paths = zip(*rows, strict=True)
    table = pa.table({"key": pa.array(keys, pa.string()), "path": pa.array(paths, pa.string())})
    return pa.Table.from_batches(table.to_batches(max_chunksize=2))


@pytest.mark.parametrize("as_batches", [False, True])
def test_many_raw_changes_mean_what_they_mean_one_by_one(lake: Lakehouse, as_batches: bool) -> None:
    """Sets, deletes, and a key twice, in any order; the counts of objects follow."""
    entries = {entry.key: entry.path for entry in lake.objects()}
    moved, gone, *_ = [key for key in entries if key.startswith("C===")]
    new = [lake.codec.table("empty", f"n{number}") for number in range(3)]
    changes = [(new[2], "a"), (moved, "b"), (new[0], "c"), (gone, None), (new[2], "d")]
    table = rows_of(*changes)
    with lake.transaction() as txn:
        txn.put_many(iter(table.to_batches()) if as_batches else table)
    found = {entry.key: entry.path for entry in lake.refresh().objects()}
    assert found == {key: path for key, path in (entries | dict(changes)).items() if path is not None}
    counts = lake.root_node.counts
    assert counts is not None
    assert len(found) == counts.namespaces + counts.tables + counts.views
    assert [key for key, _ in sorted(dict(changes).items())] == lake.root_node.own_messages().keys


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (pa.table({"key": ["k"]}), "no column 'path'"),
        (pa.table({"path": ["k"]}), "no column 'key'"),
        (pa.table({"key": pa.array([None], pa.string()), "path": ["p"]}), "a key is NULL"),
        (pa.table({"key": [1], "path": ["p"]}), "'key' holds int64"),
    ],
)
def test_many_raw_changes_that_cannot_be_read_are_refused(lake: Lakehouse, table: pa.Table, message: str) -> None:
    txn = lake.transaction()
    with pytest.raises(InvalidInput, match=message):
        txn.put_many(table)
    assert lake.version == txn.commit()
    with pytest.raises(InvalidInput, match="has ended"):
        txn.put_many(rows_of(("k", "p")))


def test_a_transaction_sees_its_own_changes(lake: Lakehouse) -> None:
    """In every reading method, over what was there before, and nobody else sees them."""
    txn = lake.transaction()
    txn.create_namespace("new")
    txn.create_table("full", "t0", properties={"n": "0"})
    txn.alter_table("full", "t1", properties={"n": "2"})
    txn.drop_table("full", "t2")
    txn.replace_view("full", "v1", sql="SELECT 3")
    txn.drop_namespace("other")
    assert ["empty", "full", "new"] == txn.namespaces()
    assert ["t0", "t1"] == txn.tables("full")
    assert ("0", "2") == (txn.table("full", "t0").properties["n"], txn.table("full", "t1").properties["n"])
    assert "SELECT 3" == txn.view("full", "v1").sql_representations[0].sql
    assert [] == txn.tables("new")
    with pytest.raises(ObjectNotFound):
        txn.table("full", "t2")
    with pytest.raises(ObjectNotFound):
        txn.tables("other")
    names = [(e.namespace, e.name) for e in txn.objects()]
    assert [("empty", None), ("full", None), ("new", None), ("full", "t0"), ("full", "t1"), ("full", "v1")] == names
    before = txn.digest()
    assert ["t1", "t2"] == lake.tables("full") == reopened(lake).tables("full")
    txn.commit()
    assert before == reopened(lake).digest()


def test_an_object_changed_twice_has_one_message_and_one_file(lake: Lakehouse) -> None:
    before = len(Surgery(lake.root, 4).listing())
    with lake.transaction() as txn:
        txn.create_table("full", "t9")
        for number in range(5):
            txn.alter_table("full", "t9", properties={"n": str(number)})
        txn.create_table("full", "gone")
        txn.drop_table("full", "gone")
    assert before + 2 == len(Surgery(lake.root, 4).listing()), "one definition, one root"
    assert "4" == lake.refresh().table("full", "t9").properties["n"]


def test_dropping_a_namespace_drops_what_is_in_it_only_if_asked(lake: Lakehouse) -> None:
    with lake.transaction() as txn:
        with pytest.raises(NamespaceNotEmpty, match="3 tables and views"):
            txn.drop_namespace("full")
        txn.drop_namespace("full", cascade=True)
        txn.drop_namespace("empty")
        assert ["other"] == [e.namespace for e in txn.objects()]
    assert ["other"] == [e.namespace for e in lake.refresh().objects()]


def test_a_namespace_dropped_and_made_again_is_empty(lake: Lakehouse) -> None:
    with lake.transaction() as txn:
        txn.drop_namespace("full", cascade=True)
        txn.create_namespace("full", {"owner": "new"})
        txn.create_table("full", "t2", properties={"n": "new"})
    lake.refresh()
    assert (["t2"], [], {"owner": "new"}) == (
        lake.tables("full"),
        lake.views("full"),
        lake.namespace("full").properties,
    )
    assert {"n": "new"} == lake.table("full", "t2").properties


REFUSED: list[tuple[str, Do, type[Exception]]] = [
    ("a namespace twice", lambda t: t.create_namespace("full"), AlreadyExists),
    ("a table twice", lambda t: t.create_table("full", "t1"), AlreadyExists),
    ("a view twice", lambda t: t.create_view("full", "v1", sql="SELECT 1"), AlreadyExists),
    ("a table nowhere", lambda t: t.create_table("absent", "t"), ObjectNotFound),
    ("a view nowhere", lambda t: t.create_view("absent", "v", sql="SELECT 1"), ObjectNotFound),
    ("an absent namespace altered", lambda t: t.alter_namespace("absent", {}), ObjectNotFound),
    ("an absent table altered", lambda t: t.alter_table("full", "absent"), ObjectNotFound),
    ("an absent view replaced", lambda t: t.replace_view("full", "absent", sql="x"), ObjectNotFound),
    ("an absent namespace dropped", lambda t: t.drop_namespace("absent"), ObjectNotFound),
    ("an absent table dropped", lambda t: t.drop_table("full", "absent"), ObjectNotFound),
    ("an absent view dropped", lambda t: t.drop_view("full", "t1"), ObjectNotFound),
    ("a table of an absent namespace dropped", lambda t: t.drop_table("absent", "t1"), ObjectNotFound),
    ("a full namespace dropped", lambda t: t.drop_namespace("full"), NamespaceNotEmpty),
    ("an empty name", lambda t: t.create_namespace(""), InvalidName),
    ("a name too long", lambda t: t.create_table("full", "123456789"), InvalidName),
    ("a name too long in bytes", lambda t: t.create_table("full", "é" * 5), InvalidName),
    ("a space in a name", lambda t: t.create_view("full", "a b", sql="SELECT 1"), InvalidName),
    ("a line end in a name", lambda t: t.create_namespace("a\n"), InvalidName),
    ("a name that is no text", lambda t: t.create_namespace(7), InvalidName),  # type: ignore[arg-type]
    ("a view without a query", lambda t: t.create_view("full", "v9"), InvalidDefinition),
    ("a key that is no column", lambda t: t.create_table("full", "t9", primary_keys=["x"]), InvalidDefinition),
    ("a table format nobody knows", lambda t: t.create_table("full", "t9", table_format="CSV"), InvalidDefinition),
    ("a property that is no text", lambda t: t.create_namespace("n", {"a": 1}), InvalidDefinition),  # type: ignore[dict-item]
]


@pytest.mark.parametrize(("action", "error"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_what_cannot_be_done_is_refused_and_the_transaction_goes_on(
    lake: Lakehouse, action: Do, error: type[Exception]
) -> None:
    """The error comes at once, changes nothing, and what else the transaction does is committed."""
    with lake.transaction() as txn:
        with pytest.raises(error):
            action(txn)
        txn.create_table("full", "t3")
    diff = [(c.change, c.namespace, c.name) for c in lake.diff(1, 2)]
    assert [("added", "full", "t3")] == diff


def test_an_unknown_isolation_is_refused(lake: Lakehouse) -> None:
    with pytest.raises(InvalidInput, match="isolation"):
        lake.transaction(isolation="READ COMMITTED")


@pytest.mark.parametrize("isolation", [SNAPSHOT, SERIALIZABLE])
def test_the_lakehouse_says_the_isolation_where_the_transaction_does_not(tmp_path: Path, isolation: str) -> None:
    lake = new_lake(tmp_path, txn_isolation_level=isolation)
    assert isolation == lake.transaction().isolation
    assert SNAPSHOT == lake.transaction(isolation=SNAPSHOT).isolation


def test_a_transaction_without_changes_makes_no_version(lake: Lakehouse) -> None:
    before = listing(Surgery(lake.root, 4).directory)
    with lake.transaction() as txn:
        txn.tables("full")
    assert 1 == txn.version
    assert before == listing(Surgery(lake.root, 4).directory)


def test_a_transaction_that_has_ended_takes_nothing_more(lake: Lakehouse) -> None:
    committed, aborted = lake.transaction(), lake.transaction()
    committed.create_namespace("a")
    committed.commit()
    aborted.create_namespace("b")
    aborted.abort()
    for txn in (committed, aborted):
        for action in (txn.commit, lambda t=txn: t.create_namespace("c"), lambda t=txn: t.drop_table("full", "t1")):
            with pytest.raises(InvalidInput, match="has ended"):
                action()
    assert ["a", "empty", "full", "other"] == lake.refresh().namespaces()


def test_a_handle_begins_at_what_it_committed_itself(lake: Lakehouse) -> None:
    """Without a refresh, so that one commit after the other needs no look-up of the newest version."""
    for number in range(3):
        with lake.transaction() as txn:
            assert [f"n{n}" for n in range(number)] == [n for n in txn.namespaces() if n.startswith("n")]
            txn.create_namespace(f"n{number}")
    assert (1, 4) == (lake.version, lake.refresh().version)


# -- two at the same time ----------------------------------------------------------------------------------

CREATE_T: Do = lambda t: t.create_table("empty", "t")  # noqa: E731
Matrix = list[tuple[str, Do, Do, str, str]]
OK, NO = "both", "conflict"
MATRIX: Matrix = [
    # what the first one does, what the second one (begun before) does, under SNAPSHOT, under SERIALIZABLE
    ("same table created", CREATE_T, CREATE_T, NO, NO),
    ("same namespace created", lambda t: t.create_namespace("n"), lambda t: t.create_namespace("n"), NO, NO),
    ("table and view of one name", CREATE_T, lambda t: t.create_view("empty", "t", sql="SELECT 1"), OK, OK),
    ("two tables created", CREATE_T, lambda t: t.create_table("empty", "u"), OK, OK),
    ("same table altered", lambda t: t.alter_table("full", "t1", properties={"a": "1"}),
     lambda t: t.alter_table("full", "t1", properties={"b": "1"}), NO, NO),
    ("two tables altered", lambda t: t.alter_table("full", "t1", properties={"a": "1"}),
     lambda t: t.alter_table("full", "t2", properties={"b": "1"}), OK, OK),
    ("altered and dropped", lambda t: t.alter_table("full", "t1", properties={}),
     lambda t: t.drop_table("full", "t1"), NO, NO),
    ("dropped and altered", lambda t: t.drop_table("full", "t1"),
     lambda t: t.alter_table("full", "t1", properties={}), NO, NO),
    ("same table dropped", lambda t: t.drop_table("full", "t1"), lambda t: t.drop_table("full", "t1"), NO, NO),
    ("same view replaced", lambda t: t.replace_view("full", "v1", sql="a"),
     lambda t: t.replace_view("full", "v1", sql="b"), NO, NO),
    ("namespace dropped, then a table made in it", lambda t: t.drop_namespace("empty"), CREATE_T, NO, NO),
    ("namespace dropped with cascade, then a table made in it", lambda t: t.drop_namespace("full", cascade=True),
     lambda t: t.create_table("full", "t9"), NO, NO),
    ("namespace dropped, then a view made in it", lambda t: t.drop_namespace("empty"),
     lambda t: t.create_view("empty", "v", sql="SELECT 1"), NO, NO),
    ("table made, then its empty namespace dropped", CREATE_T, lambda t: t.drop_namespace("empty"), NO, NO),
    ("table made, then its namespace dropped with cascade", lambda t: t.create_table("full", "t9"),
     lambda t: t.drop_namespace("full", cascade=True), NO, NO),
    ("view made, then its namespace dropped with cascade", lambda t: t.create_view("full", "v9", sql="x"),
     lambda t: t.drop_namespace("full", cascade=True), NO, NO),
    ("table altered, then its namespace dropped with cascade", lambda t: t.alter_table("full", "t1", properties={}),
     lambda t: t.drop_namespace("full", cascade=True), NO, NO),
    ("namespace altered, then a table made in it", lambda t: t.alter_namespace("empty", {"a": "b"}), CREATE_T, OK, NO),
    ("namespace altered and dropped", lambda t: t.alter_namespace("empty", {"a": "b"}),
     lambda t: t.drop_namespace("empty"), NO, NO),
    ("two namespaces dropped", lambda t: t.drop_namespace("empty"), lambda t: t.drop_namespace("other"), OK, OK),
    ("table made elsewhere, namespace dropped", CREATE_T, lambda t: t.drop_namespace("other"), OK, OK),
    ("a table read, changed by the first", lambda t: t.alter_table("full", "t1", properties={"a": "1"}),
     lambda t: (t.table("full", "t1"), CREATE_T(t)), OK, NO),
    ("a table not found, made by the first", CREATE_T,
     lambda t: (_absent(t, "empty", "t"), t.create_table("other", "u")), OK, NO),
    ("tables listed, one made by the first", lambda t: t.create_table("full", "t9"),
     lambda t: (t.tables("full"), CREATE_T(t)), OK, NO),
    ("tables listed, one dropped by the first", lambda t: t.drop_table("full", "t1"),
     lambda t: (t.tables("full"), CREATE_T(t)), OK, NO),
    ("tables listed, a view made by the first", lambda t: t.create_view("full", "v9", sql="x"),
     lambda t: (t.tables("full"), CREATE_T(t)), OK, OK),
    ("tables listed, one made elsewhere", lambda t: t.create_table("other", "t9"),
     lambda t: (t.tables("full"), CREATE_T(t)), OK, OK),
    ("everything listed", lambda t: t.create_table("other", "t9"),
     lambda t: (list(t.objects()), CREATE_T(t)), OK, NO),
    ("namespaces listed, one made by the first", lambda t: t.create_namespace("n"),
     lambda t: (t.namespaces(), CREATE_T(t)), OK, NO),
    ("digest taken", lambda t: t.create_namespace("n"), lambda t: (t.digest(), CREATE_T(t)), OK, NO),
    ("read only, and nothing written", lambda t: t.create_table("full", "t9"), lambda t: t.tables("full"), OK, OK),
]  # fmt: skip


def _absent(txn: Transaction, namespace: str, name: str) -> None:
    with pytest.raises(ObjectNotFound):
        txn.table(namespace, name)


@pytest.mark.parametrize("between", ["nothing", "a compaction", "another commit"])
@BOTH
@pytest.mark.parametrize(
    ("first", "second", "snapshot", "serializable"), [r[1:] for r in MATRIX], ids=[r[0] for r in MATRIX]
)
def test_of_two_that_overlap_both_commit_or_the_later_one_conflicts(
    lake: Lakehouse, first: Do, second: Do, snapshot: str, serializable: str, isolation: str, between: str
) -> None:
    """The conflict names the keys and the version that won, and its definitions stay: a writer deletes nothing.

    What is committed is what one after the other gives.
    """
    txn = lake.transaction(isolation=isolation)
    second(txn)
    if between == "another commit":
        do(lake, lambda t: t.create_namespace("between"))
    won = do(lake, first)
    if between == "a compaction":
        compacted(reopened(lake))
    before = content(reopened(lake))
    if (serializable if isolation == SERIALIZABLE else snapshot) == OK:
        wrote = bool(txn.change.writes)
        txn.commit()
        assert before != content(reopened(lake)) or not wrote
    else:
        with pytest.raises(CommitConflict) as raised:
            txn.commit()
        assert raised.value.keys
        assert raised.value.version in {won, 2}
        assert str(raised.value.version) in str(raised.value)
        assert before == content(reopened(lake))
        assert txn.change._written <= set(Surgery(lake.root, 4).listing())
        with pytest.raises(InvalidInput):
            txn.commit()
    assert [] == list(reopened(lake).check(definitions=True))


@BOTH
@pytest.mark.parametrize("operation", ["rollback", "load", None, "something"])
def test_what_replaced_the_whole_tree_conflicts_with_everything(
    lake: Lakehouse, isolation: str, operation: str | None
) -> None:
    """A rollback, a bulk load, and what a writer made that does not say what it did."""
    txn = lake.transaction(isolation=isolation)
    txn.create_table("other", "t")
    other = reopened(lake)
    commit.commit(other.backend, other.backend.newest_seen, changes.SameContent(operation or "x", {}))
    if operation is None:
        Surgery(lake.root, 4).system_row(root_path(2), spec.OPERATION, None)
    with pytest.raises(CommitConflict, match="replaced the whole tree") as raised:
        txn.commit()
    assert 2 == raised.value.version


@BOTH
@pytest.mark.parametrize("operation", sorted(spec.QUIET_OPERATIONS))
def test_what_changes_no_meaning_conflicts_with_nothing(lake: Lakehouse, isolation: str, operation: str) -> None:
    txn = lake.transaction(isolation=isolation)
    list(txn.objects())
    txn.create_table("other", "t")
    other = reopened(lake)
    commit.commit(other.backend, other.backend.newest_seen, changes.SameContent(operation, {}))
    assert 3 == txn.commit()


# -- time to live ------------------------------------------------------------------------------------------


def test_a_transaction_past_its_time_is_refused(tmp_path: Path, clock: Clock) -> None:
    """One millisecond before it is committed, at it no more; nothing of it becomes visible."""
    lake = new_lake(tmp_path, txn_ttl_millis=1000)
    early, late = lake.transaction(), lake.transaction()
    early.create_namespace("early")
    late.create_namespace("late")
    clock.stop(early.began_at_millis + 999)
    assert 1 == early.commit()
    clock.stop(late.began_at_millis + 1000)
    with pytest.raises(TransactionExpired):
        late.commit()
    assert ["early"] == reopened(lake).namespaces()


# -- when the storage fails ----------------------------------------------------------------------------------


def test_a_hint_that_cannot_be_written_fails_no_commit(lake: Lakehouse, caplog: pytest.LogCaptureFixture) -> None:
    txn = lake.transaction()
    txn.create_table("other", "t")
    attach(lake.storage, FaultPlan("fail_permanently", at=2, kinds={"put"}))
    assert 2 == txn.commit()
    assert "hint was not written" in caplog.text
    assert 2 == reopened(lake).version


def test_a_commit_that_is_tried_again_writes_its_definitions_again(tmp_path: Path) -> None:
    """Orphan removal may have taken them in between: nothing reached them."""
    lake = Lakehouse.create(f"file://{tmp_path}/lake")
    txn = lake.transaction()
    txn.create_namespace("a")
    attach(lake.storage, FaultPlan("fail_from", 2))
    with pytest.raises(StorageError):
        txn.commit()
    detach(lake.storage)
    for path in tmp_path.glob("lake/*/*/*/*.binpb"):
        path.unlink()
    assert 1 == txn.commit()
    assert [] == list(lake.refresh().check(definitions=True))


def test_a_commit_that_stood_still_for_days_is_still_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its age alone says nothing: whether its files may be gone is what the fences in the chain say."""
    lake, other = (Lakehouse.create(f"file://{tmp_path}/lake"), Lakehouse.open(f"file://{tmp_path}/lake"))
    with other.transaction() as txn:
        txn.create_namespace("first")
    late = lake.transaction()
    late.create_namespace("late")
    now = now_millis()
    ticks = iter([now, now, now])
    monkeypatch.setattr("trinitylake_core.clock.now_millis", lambda: next(ticks, now + 5 * 24 * 3600 * 1000))
    late.commit()
    assert ["first", "late"] == Lakehouse.open(lake.root).namespaces()

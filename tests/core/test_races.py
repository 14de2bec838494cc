"""Many writers at once, compactions among them: every acknowledged transaction once, no trace of the others.

In `make test` the races are short; the long ones are marked slow.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.faults import FaultPlan
from tests.support.lakes import FAST, compacted, content, reopened
from tests.support.s3_servers import S3Server
from tests.support.sweep import S3Place, write_files
from tests.support.writers import PAIRS, Place, Raced, pool, race, recolour, write, write_own
from trinitylake_core import Lakehouse
from trinitylake_core.commits import commit as commit_module
from trinitylake_core.commits.commit import commit, now_millis
from trinitylake_core.errors import CommitConflict, OutcomeUnknown, TransactionExpired, TrinityLakeError
from trinitylake_core.spec import BOUNDARY_FILE, OP_COMPACT
from trinitylake_core.storage import Storage, open_storage
from trinitylake_core.storage.base import BaseStorage
from trinitylake_core.transactions.transaction import SERIALIZABLE, SNAPSHOT, Transaction

SIZES: dict[str, Any] = {
    "order": 4,
    "node_file_max_size_bytes": 6000,
    **{f"{kind}_name_max_size_bytes": 8 for kind in ("namespace", "table", "view")},
}
Told = Callable[[str, object], None]


@pytest.fixture
def disk(tmp_path: Path) -> Place:
    """An empty lakehouse on this disk."""
    place = ((tmp_path / "lake").as_uri(), FAST)
    Lakehouse.create(place[0], storage_options=place[1], **SIZES)
    return place


@pytest.fixture
def on_s3(moto_server: S3Server) -> Place:
    """An empty lakehouse on S3."""
    place = (moto_server.new_root(), moto_server.options)
    Lakehouse.create(place[0], storage_options=place[1], **SIZES)
    return place


@pytest.fixture
def copied(moto_server: S3Server, tmp_path: Path) -> Callable[[Place], Place]:
    """Return what copies a lakehouse from S3 to this disk, to look at every version of it quickly."""

    def copy(place: Place) -> Place:
        write_files(tmp_path / "copy", S3Place(moto_server, place[0]).files())
        return (tmp_path / "copy").as_uri(), FAST

    return copy


def _open(place: Place) -> Lakehouse:
    return Lakehouse.open(place[0], storage_options=place[1])


def _tell(record_property: Told, raced: Raced) -> None:
    record_property("acknowledged", len(raced.acknowledged))
    record_property("conflicts", len(raced.failed))
    record_property("compactions", len(raced.compacted.versions))
    record_property("rebased_over", raced.compacted.rebased_over)


# Everybody on the same keys.


@pytest.mark.parametrize(
    ("writers", "transactions"), [(4, 25), pytest.param(8, 100, marks=pytest.mark.slow)], ids=["short", "long"]
)
def test_history_is_what_was_acknowledged_on_disk(
    disk: Place, tmp_path: Path, writers: int, transactions: int, record_property: Told
) -> None:
    """Each acknowledged transaction is one version, and the content is theirs one after the other."""
    raced = race(write, disk, writers, tmp_path / "stop", transactions)
    _tell(record_property, raced)
    assert writers * transactions <= len(raced.ended)
    raced.prove(*disk, began=0)
    assert raced.acknowledged
    assert raced.compacted.versions


@pytest.mark.s3
@pytest.mark.parametrize(
    ("writers", "transactions"), [(3, 10), pytest.param(8, 100, marks=pytest.mark.slow)], ids=["short", "long"]
)
def test_history_is_what_was_acknowledged_on_s3(
    on_s3: Place,
    copied: Callable[[Place], Place],
    tmp_path: Path,
    writers: int,
    transactions: int,
    record_property: Told,
) -> None:
    """The same, with nothing but ``If-None-Match`` for a lock."""
    raced = race(write, on_s3, writers, tmp_path / "stop", transactions)
    _tell(record_property, raced)
    assert writers * transactions <= len(raced.ended)
    raced.prove(*copied(on_s3), began=0)
    assert raced.acknowledged
    assert raced.compacted.versions


# Maintenance and writers.


@pytest.mark.parametrize("seconds", [5, pytest.param(120, marks=pytest.mark.slow)])
def test_no_writer_fails_because_of_a_compaction(
    disk: Place, tmp_path: Path, seconds: float, record_property: Told
) -> None:
    """Four writers commit without pause, each on its own keys; compactions succeed, and no commit fails."""
    with _open(disk).transaction() as txn:
        txn.create_namespace("a")
    raced = race(write_own, disk, 4, tmp_path / "stop", seconds)
    _tell(record_property, raced)
    assert set() == raced.failed
    assert len(raced.compacted.versions) >= 3
    assert 0 == raced.compacted.restarts
    raced.prove(*disk, began=1)


# Rollbacks, restores and writers.


def _prove_recovered(raced: Raced, place: Place, record_property: Told) -> None:
    _tell(record_property, raced)
    for name in ("rollbacks", "restores", "refused"):
        record_property(name, sum(len(getattr(each, name)) for each in raced.recovered))
        assert any(getattr(each, name) for each in raced.recovered)
    raced.prove(*place, began=0)
    assert raced.acknowledged


@pytest.mark.parametrize(
    ("writers", "transactions"), [(3, 25), pytest.param(8, 100, marks=pytest.mark.slow)], ids=["short", "long"]
)
def test_rollbacks_and_restores_race_with_writers_on_disk(
    disk: Place, tmp_path: Path, writers: int, transactions: int, record_property: Told
) -> None:
    """A rollback says what its target says; a commit that is acknowledged after it holds, whatever it was based on."""
    raced = race(write, disk, writers, tmp_path / "stop", transactions, recoverers=2)
    _prove_recovered(raced, disk, record_property)


@pytest.mark.s3
@pytest.mark.slow
def test_rollbacks_and_restores_race_with_writers_on_s3(
    on_s3: Place, copied: Callable[[Place], Place], tmp_path: Path, record_property: Told
) -> None:
    """The same, with nothing but ``If-None-Match`` for a lock."""
    raced = race(write, on_s3, 4, tmp_path / "stop", 40, recoverers=2)
    _prove_recovered(raced, copied(on_s3), record_property)


# Write skew.


def _marbles(place: Place) -> Lakehouse:
    lake = _open(place)
    with lake.transaction() as txn:
        txn.create_namespace("a")
        for pair in range(PAIRS):
            for side in "lr":
                txn.create_table("a", f"m{pair}{side}", properties={"colour": "white"})
    return lake.refresh()


def _black_pairs(lake: Lakehouse) -> list[int]:
    colours = {name: lake.table("a", name).properties["colour"] for name in lake.tables("a")}
    return [pair for pair in range(PAIRS) if {"black"} == {colours[f"m{pair}{side}"] for side in "lr"}]


def test_no_write_skew_under_serializable(disk: Place, tmp_path: Path, record_property: Told) -> None:
    """In no version ever are both marbles of a pair black."""
    _marbles(disk)
    raced = race(recolour, disk, 4, tmp_path / "stop", 25, SERIALIZABLE)
    _tell(record_property, raced)
    raced.prove(*disk, began=1)
    lake = _open(disk)
    assert [] == [
        info.version for info in lake.history() if info.version and _black_pairs(lake.at(version=info.version))
    ]
    assert raced.acknowledged


@pytest.mark.parametrize("isolation", [SNAPSHOT, SERIALIZABLE])
def test_write_skew_is_possible_under_snapshot_only(disk: Place, isolation: str) -> None:
    """Two transactions each see two white marbles, and blacken one."""
    lake = _marbles(disk)
    one, two = lake.transaction(isolation=isolation), lake.transaction(isolation=isolation)
    for txn, chosen in ((one, "m0l"), (two, "m0r")):
        assert ["white", "white"] == [txn.table("a", name).properties["colour"] for name in ("m0l", "m0r")]
        txn.alter_table("a", chosen, properties={"colour": "black"})
    one.commit()
    if isolation == SNAPSHOT:
        two.commit()
        assert [0] == _black_pairs(lake.refresh())
        return
    with pytest.raises(CommitConflict, match=r"m0l") as conflict:
        two.commit()
    assert ((lake.codec.table("a", "m0l"),), one.version) == (conflict.value.keys, conflict.value.version)
    assert [] == _black_pairs(lake.refresh())


# What goes together and what does not. What the others do, they do in a process of their own.

CHANGES: dict[str, Callable[[Transaction], Any]] = {
    "create table": lambda txn: txn.create_table("ns", "new"),
    "create view": lambda txn: txn.create_view("ns", "v", sql="SELECT 1", dialect="spark"),
    "create other": lambda txn: txn.create_table("ns", "other"),
    "create namespace": lambda txn: txn.create_namespace("more"),
    "alter t": lambda txn: txn.alter_table("ns", "t", properties={"a": txn.id}),
    "alter u": lambda txn: txn.alter_table("ns", "u", properties={"a": txn.id}),
    "alter namespace": lambda txn: txn.alter_namespace("ns", {"a": txn.id}),
    "drop t": lambda txn: txn.drop_table("ns", "t"),
    "drop namespace": lambda txn: txn.drop_namespace("empty"),
    "drop cascade": lambda txn: txn.drop_namespace("ns", cascade=True),
    "create in empty": lambda txn: txn.create_table("empty", "new"),
    "view in empty": lambda txn: txn.create_view("empty", "new", sql="SELECT 1", dialect="spark"),
    "list": lambda txn: (txn.tables("ns"), txn.create_namespace("listed")),
    "look for new": lambda txn: (txn.objects("ns"), "new" in txn.tables("ns"), txn.create_namespace("looked")),
    "read t": lambda txn: (txn.table("ns", "t"), txn.create_namespace("read")),
}


def _do(place: Place, change: str) -> int:
    txn = _open(place).transaction()
    CHANGES[change](txn)
    return txn.commit()


@pytest.fixture(scope="module")
def others() -> Iterator[Callable[[Place, str], int]]:
    """Return what lets another process commit one change; it returns the version."""
    with pool(1) as processes:
        yield lambda place, change: processes.submit(_do, place, change).result(60)


@pytest.mark.parametrize(
    ("ours", "theirs", "key", "isolation"),
    [
        ("create table", "drop cascade", "ns", SNAPSHOT),
        ("create view", "drop cascade", "ns", SNAPSHOT),
        ("create in empty", "drop namespace", "empty", SNAPSHOT),
        ("drop namespace", "create in empty", "empty.new", SNAPSHOT),
        ("drop namespace", "view in empty", "empty.new", SNAPSHOT),
        ("drop cascade", "create table", "ns.new", SNAPSHOT),
        ("drop cascade", "create view", "ns.v", SNAPSHOT),
        ("drop cascade", "alter t", "ns.t", SNAPSHOT),
        ("create table", "create table", "ns.new", SNAPSHOT),
        ("create namespace", "create namespace", "more", SNAPSHOT),
        ("alter t", "alter t", "ns.t", SNAPSHOT),
        ("alter t", "drop t", "ns.t", SNAPSHOT),
        ("drop t", "alter t", "ns.t", SNAPSHOT),
        ("list", "create table", "ns.new", SERIALIZABLE),
        ("look for new", "create table", "ns.new", SERIALIZABLE),
        ("read t", "alter t", "ns.t", SERIALIZABLE),
    ],
)
def test_what_does_not_go_together(
    disk: Place, others: Callable[[Place, str], int], ours: str, theirs: str, key: str, isolation: str
) -> None:
    """The loser is told the keys and the version that won, and leaves no trace."""
    lake = _with_objects(disk)
    txn = lake.transaction(isolation=isolation)
    CHANGES[ours](txn)
    won = others(disk, theirs)
    with pytest.raises(CommitConflict) as conflict:
        txn.commit()
    assert won == conflict.value.version
    namespace, _, name = key.partition(".")
    shown = {(found.namespace, found.name or "") for found in map(lake.codec.decode, conflict.value.keys)}
    assert (namespace, name) in shown
    newest = _open(disk)
    assert (won, []) == (newest.version, list(newest.check(definitions=True)))
    assert [] == [info.version for info in newest.history() if info.txn == txn.id]


@pytest.mark.parametrize(
    ("ours", "theirs", "isolation"),
    [
        ("create table", "create other", SNAPSHOT),
        ("create table", "alter namespace", SNAPSHOT),
        ("alter namespace", "create table", SNAPSHOT),
        ("alter t", "alter u", SERIALIZABLE),
        ("list", "create table", SNAPSHOT),
        ("read t", "alter t", SNAPSHOT),
        ("read t", "alter u", SERIALIZABLE),
        ("drop namespace", "create table", SERIALIZABLE),
        ("create in empty", "drop cascade", SERIALIZABLE),
    ],
)
def test_what_goes_together(
    disk: Place, others: Callable[[Place, str], int], ours: str, theirs: str, isolation: str
) -> None:
    """Both are there, one version after the other."""
    lake = _with_objects(disk)
    txn = lake.transaction(isolation=isolation)
    CHANGES[ours](txn)
    won = others(disk, theirs)
    assert won + 1 == txn.commit()
    assert [] == list(_open(disk).check(definitions=True))


def _with_objects(place: Place) -> Lakehouse:
    lake = _open(place)
    with lake.transaction() as txn:
        txn.create_namespace("ns")
        txn.create_namespace("empty")
        txn.create_table("ns", "t")
        txn.create_table("ns", "u")
    return lake.refresh()


def test_quiet_versions_in_between_conflict_with_nothing(disk: Place) -> None:
    """A compaction and a snapshot may come in between, even under SERIALIZABLE; a rollback may not."""
    lake = _with_objects(disk)
    for disturb, goes in (
        (lambda: compacted(_open(disk)), True),
        (lambda: _open(disk).create_snapshot("between"), True),
        (lambda: _open(disk).rollback(version=1, reason="test"), False),
    ):
        txn = lake.refresh().transaction(isolation=SERIALIZABLE)
        txn.tables("ns")
        txn.alter_table("ns", "t", properties={"a": txn.id})
        disturb()
        if goes:
            txn.commit()
        else:
            with pytest.raises(CommitConflict, match="rollback"):
                txn.commit()
    assert [] == list(_open(disk).check(definitions=True))


# Retries.


def test_lost_races_are_tried_again_with_growing_jitter_and_not_for_ever(
    disk: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer that loses every race gives up after the bound, having waited a little longer each time."""
    lake = _with_objects(disk)
    rival = _open(disk)
    waits: list[tuple[float, float]] = []
    monkeypatch.setattr(commit_module.random, "uniform", lambda low, high: waits.append((low, high)) or 0.0)

    def lose(kind: str, path: str, action: Callable[[], Any]) -> Any:
        if kind == "create":
            with rival.transaction() as other:
                other.alter_table("ns", "u", properties={"a": other.id})
        return action()

    storage = lake.storage
    assert isinstance(storage, BaseStorage)
    storage.interceptor = lose
    txn = lake.transaction()
    txn.alter_table("ns", "t", properties={"a": "b"})
    before = set(_paths(disk))
    txn._write_definitions()
    with pytest.raises(CommitConflict, match="12 lost races"):
        commit(lake.files, lake.root_node, txn, attempts=12)
    assert [(0, min(0.5, 0.005 * 2**number)) for number in range(12)] == waits
    txn.abort()
    rivals = {info.path for info in _open(disk).history()} | {entry.path for entry in _open(disk).objects()}
    assert txn._written == {path for path in set(_paths(disk)) - before - rivals if "-t-" in path}
    assert 1 + 12 == _open(disk).version


def _paths(place: Place) -> list[str]:
    return [file.path for file in open_storage(*place).list()]


# Expiry and the fence.


def _expire_by_hand(place: Place, up_to: int) -> None:
    """Do what expiration does, without looking at ages: advance the boundary, then remove the roots."""
    lake = _open(place)
    storage, versions = lake.storage, lake.files.versions
    storage.replace(BOUNDARY_FILE, str(up_to).encode())
    storage.delete_many([versions.path(version) for version in range(up_to)])


def _commits(place: Place, count: int) -> None:
    lake = _open(place)
    for number in range(count):
        with lake.transaction() as txn:
            txn.alter_table("ns", "u", properties={"number": str(number)})


def _stalled(lake: Lakehouse, part: float) -> Transaction:
    """Return a transaction that began long ago: ``part`` of its time to live."""
    began = now_millis() - int(lake.definition.txn_ttl_millis * part)
    txn = Transaction(lake.files, lake.root_node, began_at_millis=began)
    txn.alter_table("ns", "t", properties={"by": txn.id})
    return txn


def _prove_fenced(
    place: Place, txn: Transaction, newest: int, told: type[TrinityLakeError] = TransactionExpired
) -> None:
    with pytest.raises(told):
        txn.commit()
    lake = _open(place)
    assert newest == lake.version
    assert "by" not in lake.table("ns", "t").properties
    assert [] == list(lake.check(definitions=True))
    assert (told is OutcomeUnknown) == (lake.files.versions.path(2) in _paths(place))


def test_a_stalled_writer_does_not_take_an_expired_name(disk: Place) -> None:
    """Version 2 was committed by others, expired and removed; its name is free, and must not be taken again."""
    txn = _stalled(_with_objects(disk), 0.6)
    _commits(disk, 4)
    _expire_by_hand(disk, 4)
    _prove_fenced(disk, txn, 5)


def test_a_writer_that_stalls_right_before_the_creation_is_not_acknowledged(disk: Place) -> None:
    """Everything expires between the last look and the creation: the outcome is unknown, and the root is no version."""
    lake = _with_objects(disk)
    txn = _stalled(lake, 0.6)
    storage = lake.storage
    assert isinstance(storage, BaseStorage)

    def stall(kind: str, path: str, action: Callable[[], Any]) -> Any:
        if kind == "create":
            _commits(disk, 4)
            _expire_by_hand(disk, 4)
        return action()

    storage.interceptor = stall
    _prove_fenced(disk, txn, 5, OutcomeUnknown)


def test_a_young_transaction_on_an_old_handle_is_fenced(tmp_path: Path) -> None:
    """A handle may stand at a version for weeks; what begins on it now begins at that version."""
    place = ((tmp_path / "lake").as_uri(), FAST)
    lake = Lakehouse.create(place[0], storage_options=place[1], txn_ttl_millis=200, **SIZES)
    assert lake.version == 0
    lake = _with_objects(place)
    _wait_until(lake.root_node.created_at_millis + 110)
    _commits(place, 4)
    _expire_by_hand(place, 4)
    txn = lake.transaction()
    txn.alter_table("ns", "t", properties={"by": txn.id})
    _prove_fenced(place, txn, 5)
    with pytest.raises(TransactionExpired):
        lake.create_snapshot("late")
    assert 5 == _open(place).version
    with lake.refresh().transaction() as again:
        again.alter_table("ns", "t", properties={"by": again.id})
    assert 6 == _open(place).version


def _wait_until(millis: int) -> None:
    while now_millis() < millis:
        time.sleep(0.01)


def test_a_transaction_past_its_time_to_live_writes_nothing(disk: Place) -> None:
    """Begun too long ago: refused before anything is written."""
    lake = _with_objects(disk)
    before = set(_paths(disk))
    with pytest.raises(TransactionExpired, match="time to live"):
        _stalled(lake, 1.1).commit()
    assert before == set(_paths(disk))


def test_a_saved_transaction_past_its_time_to_live_is_not_resumed(disk: Place) -> None:
    """Its files are left for orphan removal."""
    lake = _with_objects(disk)
    saved = _stalled(lake, 1.1).save()
    with pytest.raises(TransactionExpired):
        _open(disk).resume_transaction(saved)
    assert 1 == _open(disk).version


@pytest.mark.parametrize("gone", [{0, 1, 2, 3, 5}, {0, 2, 4}, {1, 2, 3, 4, 5}, set(range(6))])
def test_a_handle_below_the_boundary_finds_the_newest_version(tmp_path: Path, gone: set[int]) -> None:
    """Roots below the boundary vanish in any order; holes among them mislead nobody."""
    place = ((tmp_path / "lake").as_uri(), FAST)
    Lakehouse.create(place[0], storage_options=place[1], txn_ttl_millis=60, **SIZES)
    handles = [_with_objects(place)]
    for _ in range(7):
        _commits(place, 1)
        handles.append(_open(place))
    _wait_until(handles[-1].root_node.created_at_millis + 40)
    storage = handles[0].storage
    storage.replace(BOUNDARY_FILE, b"6")
    storage.delete_many([handles[0].files.versions.path(version) for version in gone])
    assert {8} == {handle.refresh().version for handle in handles}
    for hint in (b"0", b"2", b"4", b"7", b"garbage", b"4000000000"):
        storage.replace("_latest_hint.txt", hint)
        assert 8 == _open(place).version


# Lost answers.


def test_a_commit_whose_outcome_was_unknown_is_recognised_when_it_is_tried_again(disk: Place) -> None:
    """The same transaction, committed again after a failure, becomes one version, not two, and loses no file."""
    lake = _with_objects(disk)
    txn = lake.transaction()
    txn.alter_table("ns", "t", properties={"by": txn.id})
    plan = FaultPlan("lose_from", kinds={"create", "get"})
    _intercept(lake.storage, plan)
    with pytest.raises(Exception, match="unknown"):
        txn.commit()
    _intercept(lake.storage, None)
    _commits(disk, 2)
    assert 2 == txn.commit()
    newest = _open(disk)
    assert [2] == [info.version for info in newest.history() if info.txn == txn.id]
    assert txn.id == newest.table("ns", "t").properties["by"]
    assert [] == list(newest.check(definitions=True))


def test_two_processes_resume_the_same_transaction(disk: Place) -> None:
    """It becomes one version; whoever added something to it in vain is told so."""
    lake = _with_objects(disk)
    txn = lake.transaction()
    txn.create_table("ns", "saved")
    saved = txn.save()
    one, two, three = (_open(disk).resume_transaction(saved) for _ in range(3))
    three.create_table("ns", "added")
    assert (2, 2) == (one.commit(), two.commit())
    with pytest.raises(CommitConflict, match="resumed elsewhere"):
        three.commit()
    newest = _open(disk)
    assert ["saved", "t", "u"] == newest.tables("ns")
    assert [] == list(newest.check(definitions=True))
    assert 2 == newest.version


def _intercept(storage: Storage, interceptor: Any) -> None:
    assert isinstance(storage, BaseStorage)
    storage.interceptor = interceptor


def test_compaction_in_a_lost_race_keeps_what_writers_committed(disk: Place) -> None:
    """Built at one version, committed over three others."""
    lake = _with_objects(disk)
    base = lake.root_node
    _commits(disk, 3)
    before = content(_open(disk))
    root = compacted(reopened(lake), base)
    newest = _open(disk)
    assert (5, OP_COMPACT, before) == (root.version, root.operation, content(newest))
    assert [] == list(newest.check(definitions=True))

"""What a writer does that loses races, comes too late, or stands below the boundary.

The simulation tries the orders of requests; ``tests/model/processes.py`` has real processes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.clock import Clock
from tests.support.lakes import FAST, save_outlived
from trinitylake_core import Lakehouse
from trinitylake_core.clock import now_millis
from trinitylake_core.commits import commit as commit_module
from trinitylake_core.commits.commit import commit
from trinitylake_core.errors import CommitConflict, TransactionExpired
from trinitylake_core.spec import BOUNDARY_FILE
from trinitylake_core.storage import open_storage
from trinitylake_core.storage.base import BaseStorage
from trinitylake_core.transactions.transaction import Transaction

Place = tuple[str, dict[str, Any]]
SIZES: dict[str, Any] = {
    "order": 4,
    "node_file_max_size_bytes": 6000,
    **{f"{kind}_name_max_size_bytes": 8 for kind in ("namespace", "table", "view")},
}


@pytest.fixture
def disk(tmp_path: Path) -> Place:
    """An empty lakehouse on this disk."""
    place = ((tmp_path / "lake").as_uri(), FAST)
    Lakehouse.create(place[0], storage_options=place[1], **SIZES)
    return place


def _open(place: Place) -> Lakehouse:
    return Lakehouse.open(place[0], storage_options=place[1])


def _with_objects(place: Place) -> Lakehouse:
    lake = _open(place)
    with lake.transaction() as txn:
        txn.create_namespace("ns")
        txn.create_namespace("empty")
        txn.create_table("ns", "t")
        txn.create_table("ns", "u")
    return lake.refresh()


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
    txn.change.write_definitions()
    with pytest.raises(CommitConflict, match="12 lost races"):
        commit(lake.backend, lake.root_node, txn.change, attempts=12)
    assert [(0, min(0.5, 0.005 * 2**number)) for number in range(12)] == waits
    txn.abort()
    rivals = {info.path for info in _open(disk).history()} | {entry.path for entry in _open(disk).objects()}
    assert txn.change._written == {path for path in set(_paths(disk)) - before - rivals if "-t-" in path}
    assert 1 + 12 == _open(disk).version


def _paths(place: Place) -> list[str]:
    return [file.path for file in open_storage(*place).list()]


# Expiry and the fence.


def _commits(place: Place, count: int) -> None:
    lake = _open(place)
    for number in range(count):
        with lake.transaction() as txn:
            txn.alter_table("ns", "u", properties={"number": str(number)})


def _stalled(lake: Lakehouse, part: float) -> Transaction:
    """Return a transaction that began long ago: ``part`` of its time to live."""
    began = now_millis() - int(lake.definition.txn_ttl_millis * part)
    txn = Transaction(lake.backend, lake.root_node, began_at_millis=began)
    txn.alter_table("ns", "t", properties={"by": txn.id})
    return txn


def _let_pass(clock: Clock, lake: Lakehouse, part: float) -> None:
    """Set the clock ahead by a part of the time to live."""
    clock.forward(millis=int(lake.definition.txn_ttl_millis * part))


def test_a_saved_transaction_past_its_time_to_live_is_not_resumed(disk: Place) -> None:
    """Its files are left for orphan removal."""
    lake = _with_objects(disk)
    saved = save_outlived(lake, lambda txn: txn.alter_table("ns", "t", properties={"by": txn.id}))
    with pytest.raises(TransactionExpired):
        _open(disk).resume_transaction(saved)
    assert 1 == _open(disk).version


@pytest.mark.parametrize("gone", [{0, 1, 2, 3, 5}, {0, 2, 4}, {1, 2, 3, 4, 5}, set(range(6))])
def test_a_handle_below_the_boundary_finds_the_newest_version(disk: Place, gone: set[int], clock: Clock) -> None:
    """Roots below the boundary vanish in any order; holes among them mislead nobody."""
    place, handles = disk, [_with_objects(disk)]
    for _ in range(7):
        _commits(place, 1)
        handles.append(_open(place))
    _let_pass(clock, handles[0], 0.66)
    storage = handles[0].storage
    storage.replace(BOUNDARY_FILE, b"6")
    storage.delete_many([handles[0].backend.versions.path(version) for version in gone])
    assert {8} == {handle.refresh().version for handle in handles}
    for hint in (b"0", b"2", b"4", b"7", b"garbage", b"4000000000"):
        storage.replace("_latest_hint.txt", hint)
        assert 8 == _open(place).version


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

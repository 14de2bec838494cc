"""Saved transactions: whoever resumes, saves, commits and aborts one at the same time, no commit points at nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipelines import clean as clean_job
from pipelines import expire as expire_job
from tests.core.test_costs import cost
from tests.support.lakes import content, new_lake, reopened
from tests.support.surgery import files_of
from trinitylake_core import (
    CommitConflict,
    Corrupt,
    Lakehouse,
    Transaction,
    TransactionExpired,
    TransactionNotFound,
    spec,
)
from trinitylake_core.clock import now_millis
from trinitylake_core.commits.changes import SameContent, commit_summary
from trinitylake_core.commits.commit import commit
from trinitylake_core.definitions import TransactionDef, decode_transaction, encode
from trinitylake_core.locations import node_path, root_path, transaction_path

DAY = 86_400_000


@pytest.fixture
def lake(tmp_path: Path) -> Lakehouse:
    """A lakehouse with one namespace and two tables, at version 1."""
    made = new_lake(tmp_path)
    with made.transaction() as txn:
        txn.create_namespace("ns")
        txn.create_table("ns", "t")
        txn.create_table("ns", "u")
    return made.refresh()


def save(lake: Lakehouse, table: str = "saved") -> str:
    txn = reopened(lake).transaction(reason="write, audit, publish")
    txn.create_table("ns", table, properties={"by": table})
    return txn.save()


def resumed(lake: Lakehouse, saved: str) -> Transaction:
    return reopened(lake).resume_transaction(saved)


def clean(lake: Lakehouse) -> None:
    """Remove every orphan, whatever its age."""
    config = clean_job.Config(engine="local", older_than_seconds=0, allow_recent=True, now_millis=now_millis() + 5000)
    clean_job.run(reopened(lake), config)


def prove(lake: Lakehouse, *tables: str) -> Lakehouse:
    """Prove that the newest version is sound, its definitions read, and holds these tables beside t and u."""
    newest = reopened(lake)
    assert [] == list(newest.check(definitions=True))
    assert sorted([*tables, "t", "u"]) == newest.tables("ns")
    return newest


def state_of(lake: Lakehouse, saved: str) -> TransactionDef.State | None:
    path = transaction_path(saved)
    data = files_of(lake).get(path)
    return None if data is None else decode_transaction(data, path).state


def edit(lake: Lakehouse, saved: str, **fields: Any) -> None:
    """Change fields of a saved transaction behind everybody's back."""
    path = transaction_path(saved)
    definition = decode_transaction(lake.storage.read(path), path)
    for name, value in fields.items():
        setattr(definition, name, value)
    lake.storage.replace(path, encode(definition))


def disturb(lake: Lakehouse, txn: Transaction) -> int:
    """Commit something that conflicts with a transaction that creates the table ``saved``."""
    with reopened(lake).transaction() as other:
        other.create_table("ns", "saved", properties={"by": "other"})
    return other.version or 0


# -- aborting ------------------------------------------------------------------------------------------


def test_a_conflict_leaves_no_commit_of_the_same_transaction_without_its_files(lake: Lakehouse) -> None:
    """B takes out what conflicts, so that it could commit; C fails on the conflict, and `clean` runs."""
    txn = reopened(lake).transaction()
    for name in ("saved", "kept"):
        txn.create_table("ns", name)
    saved = txn.save()
    b, c = resumed(lake, saved), resumed(lake, saved)
    del b._writes._by_key[lake.codec.table("ns", "saved")]
    disturb(lake, c)
    with pytest.raises(CommitConflict, match=r"ns\.saved"):
        c.commit()
    assert state_of(lake, saved) == TransactionDef.ABORTED
    clean(lake)
    with pytest.raises((CommitConflict, TransactionNotFound)):
        b.commit()
    prove(lake, "saved")


def test_an_aborted_transaction_cannot_be_resumed_and_clean_removes_its_files(lake: Lakehouse) -> None:
    before = set(files_of(lake))
    saved = save(lake)
    resumed(lake, saved).abort()
    assert state_of(lake, saved) == TransactionDef.ABORTED
    with pytest.raises(TransactionNotFound, match=saved):
        resumed(lake, saved)
    clean(lake)
    left = set(files_of(lake))
    assert not [path for path in left - before if "-txn-" in path or "-node-" in path or "-table-" in path]
    prove(lake)


def test_an_abort_in_the_chain_conflicts_with_nothing_else(lake: Lakehouse) -> None:
    """A transaction that began before it commits over it, even under SERIALIZABLE."""
    saved = save(lake)
    other = reopened(lake).transaction(isolation="SERIALIZABLE")
    other.tables("ns")
    other.create_table("ns", "other")
    b = resumed(lake, saved)
    with pytest.raises(CommitConflict, match="aborted by another process, in version 2"):
        b.commit(before_commit=lambda: resumed(lake, saved).abort())
    assert (2, 0, TransactionDef.ABORTED) == (lake.refresh().version, lake.info().changes, state_of(lake, saved))
    assert (spec.OP_ABORT, saved) == (lake.info().operation, lake.info().txn)
    assert 3 == other.commit()
    prove(lake, "other")


def test_an_exception_in_the_block_is_what_the_caller_sees(lake: Lakehouse) -> None:
    """Even if the abort that it causes comes too late."""
    saved = save(lake)
    txn = resumed(lake, saved)
    txn.create_table("ns", "more")
    resumed(lake, saved).commit()
    with pytest.raises(ZeroDivisionError), txn:
        raise ZeroDivisionError
    prove(lake, "saved")


# -- saving again --------------------------------------------------------------------------------------


def saving_again(lake: Lakehouse, saved: str) -> Transaction:
    txn = resumed(lake, saved)
    txn.create_table("ns", "more", properties={"by": "more"})
    return txn


def test_a_save_after_an_abort_that_was_refused_replaces_nothing_later(lake: Lakehouse) -> None:
    """The abort has read the file again, and so has seen the later save; what was resumed is the earlier one."""
    saved = save(lake)
    b = resumed(lake, saved)
    b.create_table("ns", "from_b")
    saving_again(lake, saved).save()
    with pytest.raises(CommitConflict, match="saved again"):
        b.abort()
    with pytest.raises(CommitConflict, match="resume it again"):
        b.save()
    assert ["more", "saved", "t", "u"] == resumed(lake, saved).tables("ns")


def test_a_running_root_that_is_announced_and_missing_stops_no_cleaning(lake: Lakehouse) -> None:
    """But one whose name is none does: nobody knows what was meant."""
    saved = save(lake)
    edit(lake, saved, pending_running_root_node_file_path=node_path())
    clean(lake)
    assert ["saved", "t", "u"] == resumed(lake, saved).tables("ns")
    edit(lake, saved, pending_running_root_node_file_path="../elsewhere")
    with pytest.raises(Corrupt, match="may be live; nothing was deleted"):
        clean(lake)
    resumed(lake, saved).commit()
    prove(lake, "saved")


# -- taking --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("again", [False, True])
def test_what_nobody_could_resume_is_not_saved(lake: Lakehouse, again: bool) -> None:
    """The version that it began at has expired, and its files are gone: the error came when it was resumed."""
    saved = save(lake) if again else ""
    late = resumed(lake, saved) if again else reopened(lake).transaction()
    late.create_table("ns", "late")
    with reopened(lake).transaction() as txn:
        txn.create_table("ns", "later")
    expire_job.run(reopened(lake), expire_job.Config(keep_last=1, engine="local", now_millis=now_millis() + 30 * DAY))
    clean(lake)
    with pytest.raises(TransactionExpired, match=r"cannot be saved: version 1 has expired"):
        late.save()
    assert (TransactionDef.SAVED if again else TransactionDef.ABORTED) == state_of(lake, late.id)
    assert not again or "late" not in resumed(lake, saved).tables("ns")


def test_a_second_save_does_not_overwrite_a_later_one(lake: Lakehouse) -> None:
    saved = save(lake)
    b, c = resumed(lake, saved), resumed(lake, saved)
    b.create_table("ns", "from_b")
    c.create_table("ns", "from_c")
    c.save()
    with pytest.raises(CommitConflict, match="saved, taken or aborted elsewhere"), b:
        b.save()
    clean(lake)
    assert ["from_c", "saved", "t", "u"] == resumed(lake, saved).tables("ns")
    resumed(lake, saved).commit()
    prove(lake, "from_c", "saved")


def test_what_somebody_began_to_commit_cannot_be_saved_over(lake: Lakehouse) -> None:
    """B died after taking X: others may commit or abort it, as it was."""
    saved = save(lake)
    b = resumed(lake, saved)
    assert b._file is not None
    b._file.take()
    c = resumed(lake, saved)
    c.create_table("ns", "more")
    with pytest.raises(CommitConflict, match="begun to commit"):
        c.save()
    assert 2 == resumed(lake, saved).commit()
    assert 2 == b.commit()
    prove(lake, "saved")


def test_a_conflict_of_one_taker_does_not_abort_for_the_other(lake: Lakehouse) -> None:
    """C fails on a conflict after B has taken X, too: B may have taken out what conflicts."""
    saved = save(lake)
    b, c = resumed(lake, saved), resumed(lake, saved)
    assert b._file is not None
    b._file.take()
    disturb(lake, c)
    with pytest.raises(CommitConflict):
        c.commit()
    assert state_of(lake, saved) == TransactionDef.COMMITTING


# -- what is pointed to --------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["abort", "commit", "save"])
def test_a_running_root_that_is_none_is_never_deleted(lake: Lakehouse, how: str) -> None:
    """A TransactionDef that points to the newest root: resuming it is refused, and the root stays."""
    saved = save(lake)
    edit(lake, saved, running_root_node_file_path=root_path(1))
    before = files_of(lake)
    with pytest.raises(Corrupt, match="no running root"):
        getattr(resumed(lake, saved), how)()
    assert before == files_of(lake)
    prove(lake)


def test_a_node_of_the_tree_is_no_running_root(lake: Lakehouse) -> None:
    """Nor is the running root of another transaction: its own ``txn`` tells."""
    one, two = save(lake, "one"), save(lake, "two")
    path = transaction_path(two)
    theirs = decode_transaction(lake.storage.read(path), path).running_root_node_file_path
    edit(lake, one, running_root_node_file_path=theirs)
    with pytest.raises(Corrupt, match="not the running root"):
        resumed(lake, one).abort()
    edit(lake, one, running_root_node_file_path="../elsewhere")
    with pytest.raises(Corrupt):
        resumed(lake, one)
    edit(lake, one, running_root_node_file_path=node_path())
    with pytest.raises(Corrupt, match="missing"):
        resumed(lake, one)
    resumed(lake, two).commit()
    prove(lake, "two")


def test_a_file_of_another_transaction_is_refused(lake: Lakehouse) -> None:
    one, two = save(lake, "one"), save(lake, "two")
    lake.storage.replace(transaction_path(one), lake.storage.read(transaction_path(two)))
    with pytest.raises(Corrupt, match=two):
        resumed(lake, one)


# -- where it began ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["minimal", "partial"])
def test_a_transaction_saved_on_a_snapshot_handle_can_be_resumed(lake: Lakehouse, kind: str) -> None:
    lake.create_snapshot("old", version=1, kind=kind)
    txn = reopened(lake).at(snapshot="old").transaction()
    txn.create_table("ns", "saved")
    saved = txn.save()
    again = resumed(lake, saved)
    assert ["saved", "t", "u"] == again.tables("ns")
    assert 3 == again.commit()
    prove(lake, "saved")


# -- fences --------------------------------------------------------------------------------------------


def fence(lake: Lakehouse, remove: Callable[[str], bool] = lambda path: False) -> int:
    """Do what `clean` does: commit a fence that voids every file written so far, then remove some of them."""
    handle = reopened(lake)
    rows: dict[str, str | None] = {spec.VOID_BEFORE_MILLIS: str(now_millis() + DAY)}
    root = commit(handle.backend, handle.root_node, SameContent(spec.OP_CLEAN, commit_summary(), rows))
    live = set(content(handle).values())
    handle.storage.delete_many(
        [file.path for file in handle.storage.list() if remove(file.path) and file.path not in live]
    )
    return root.version


def test_a_resumed_transaction_whose_files_a_cleaning_removed_is_refused(lake: Lakehouse) -> None:
    saved = save(lake)
    b = resumed(lake, saved)
    fence(lake, lambda path: "-table-" in path)
    with pytest.raises(TransactionExpired, match="gone since version 2"):
        b.commit()
    prove(lake)


def test_two_commits_are_one_although_one_of_them_passed_a_fence(lake: Lakehouse) -> None:
    """Its definitions have other names then; what they say is the same."""
    saved = save(lake)
    b, c = resumed(lake, saved), resumed(lake, saved)
    fence(lake)
    assert (3, 3) == (b.commit(), c.commit())
    prove(lake, "saved")


# -- costs ---------------------------------------------------------------------------------------------


def test_what_saving_committing_and_aborting_cost(lake: Lakehouse) -> None:
    """Though there was a cleaning before: it is asked for once for each process."""
    fence(lake)
    handle = reopened(lake)
    handle.backend.refuse_no_compare_and_set()
    txn = handle.transaction()
    txn.create_table("ns", "saved")
    saved = txn.id
    assert {"put": 3} == _puts(handle, txn.save), "a definition, the running root, and the file that names it"
    again = handle.resume_transaction(saved)
    again.create_table("ns", "more")
    assert {"put": 4} == _puts(handle, again.save), "it is announced before, and confirmed"
    assert {"put": 1} == _puts(handle, handle.resume_transaction(save(lake, "other")).abort)
    committed = _puts(handle, handle.resume_transaction(saved).commit)
    assert {"put": 2, "create": 1, "delete": 2} == committed, "that it is taken, and the hint: no definition of its own"


def _puts(lake: Lakehouse, action: Callable[[], object]) -> dict[str, int]:
    return {kind: n for kind, n in cost(lake, action).items() if kind in {"put", "create", "delete"}}

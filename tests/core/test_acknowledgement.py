"""What a writer is told of its commit is true, and a writer deletes nothing that a version may need.

Each test is one of the schedules of a review that made a writer delete committed work, or lie about it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import pytest

from tests.core.test_boundary import begun, expired, lake
from tests.support.faults import FaultPlan, attach, detach
from tests.support.lakes import FAST, reopened
from tests.support.surgery import Surgery
from trinitylake_core import CommitConflict, Lakehouse, LakehouseReplaced, OutcomeUnknown, Transaction, spec
from trinitylake_core.locations import root_path
from trinitylake_core.storage.base import BaseStorage
from trinitylake_core.storage.failures import TransientError

__all__ = ["lake"]


def sound(lake: Lakehouse, *namespaces: str) -> None:
    """Every object of the newest version can be read, and these namespaces are in it."""
    newest = reopened(lake)
    assert [] == list(newest.check(definitions=True))
    assert set(namespaces) <= set(newest.namespaces())


def others_go_on(lake: Lakehouse, commits: int = 3) -> None:
    """Other writers build on the newest version; then all versions but the newest expire."""
    other = reopened(lake)
    first = other.version
    for number in range(commits):
        with other.transaction() as txn:
            txn.create_namespace(f"o{first}{number}")
    expired(lake, other.refresh().version)


# -- 3 and 4: another lakehouse -----------------------------------------------------------------------


@pytest.mark.parametrize("act", ["refresh", "commit"])
@pytest.mark.parametrize("versions", [1, 20])
def test_a_handle_notices_another_lakehouse_at_its_root(lake: Lakehouse, act: str, versions: int) -> None:
    """It was deleted and created anew, with another order: nothing is written to the new one."""
    txn = lake.transaction()
    txn.create_namespace("mine")
    shutil.rmtree(Surgery(lake.root, 4).directory)
    other = Lakehouse.create(lake.root, storage_options=FAST, order=16)
    for number in range(versions):
        with other.transaction() as theirs:
            theirs.create_namespace(f"their{number}")
    before = other.refresh().version
    if act == "commit" and versions == 20:
        with pytest.raises(LakehouseReplaced, match="open it again"):
            txn.commit()
    else:
        with pytest.raises(LakehouseReplaced, match="open it again"):
            lake.refresh()
    assert before == reopened(other).version
    sound(other)


# -- 5 and 7: saves, aborts and repeated commits ------------------------------------------------------


def saved_again(lake: Lakehouse) -> tuple[Lakehouse, Transaction]:
    """Return a transaction that was saved, resumed by a process of its own and changed."""
    txn = reopened(lake).transaction()
    txn.create_namespace("saved")
    mine = reopened(lake)
    again = mine.resume_transaction(txn.save())
    again.create_namespace("again")
    return mine, again


def test_an_abort_of_what_is_committed_names_the_version(lake: Lakehouse) -> None:
    _, again = saved_again(lake)
    version = reopened(lake).resume_transaction(again.id).commit()
    with pytest.raises(CommitConflict, match=f"is committed, as version {version}"):
        again.abort()
    sound(lake, "saved")


@pytest.mark.parametrize("expires", [False, True])
def test_an_abort_after_an_unknown_commit_asks_the_chain(lake: Lakehouse, *, expires: bool) -> None:
    handle, txn = begun(lake, lake.version)
    attach(handle.storage, FaultPlan("lose_from", kinds={"create", "get"}))
    with pytest.raises(OutcomeUnknown):
        txn.commit()
    detach(handle.storage)
    if expires:
        others_go_on(lake)
    with pytest.raises(OutcomeUnknown if expires else CommitConflict):
        txn.abort()
    sound(lake, "late")


def test_an_abort_beside_a_version_that_cannot_be_read_does_not_call_it_the_transaction(lake: Lakehouse) -> None:
    """It is, but nothing proves that: it may as well be another one."""
    _, again = saved_again(lake)
    version = reopened(lake).resume_transaction(again.id).commit()
    with reopened(lake).transaction() as other:
        other.create_namespace("other")
    Surgery(lake.root, 4).write(root_path(version), b"garbage")
    with pytest.raises(OutcomeUnknown, match=f"may be committed, and nothing proves that it is not: version {version}"):
        again.abort()


def test_damage_of_the_version_that_a_lost_answer_was_about_denies_no_commit(lake: Lakehouse) -> None:
    """It may be the commit itself that cannot be read."""
    txn = lake.transaction()
    txn.create_namespace("mine")
    surgery, storage = Surgery(lake.root, 4), lake.storage
    assert isinstance(storage, BaseStorage)

    def lose(kind: str, path: str, action: Callable[[], Any]) -> Any:
        done = action()
        if kind == "create":
            storage.interceptor = None
            surgery.write(path, b"garbage")
            raise TransientError("the answer was lost")
        return done

    storage.interceptor = lose
    with pytest.raises(OutcomeUnknown, match=r"an answer of the storage was lost.*cannot be read"):
        txn.commit()


# -- what stays ---------------------------------------------------------------------------------------


def test_a_refused_writer_leaves_its_files_for_clean(lake: Lakehouse) -> None:
    """Definitions of a transaction that lost a race by a conflict stay, and nothing else changes."""
    _, txn = begun(lake, lake.version)
    with reopened(lake).transaction() as other:
        other.create_namespace("late")
    before = Surgery(lake.root, 4).listing()
    with pytest.raises(CommitConflict):
        txn.commit()
    after = Surgery(lake.root, 4).listing()
    assert before.items() <= {**after, spec.HINT_FILE: before[spec.HINT_FILE]}.items()
    assert 1 == len(after.keys() - before.keys())

"""Group commit: transactions of several threads become one version, and each has its own outcome."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.core.test_costs import cost
from tests.support.lakes import FAST
from trinitylake_core import Lakehouse
from trinitylake_core.errors import CommitConflict, OutcomeUnknown, StorageError
from trinitylake_core.transactions.group import CommitGroup


@pytest.fixture
def lake(tmp_path: Path) -> Lakehouse:
    made = Lakehouse.create((tmp_path / "lake").as_uri(), storage_options=FAST)
    with made.transaction() as txn:
        txn.create_namespace("a")
    return made.refresh()


def _together(lake: Lakehouse, group: CommitGroup, *changes: Callable[[Any], Any]) -> list[int | Exception]:
    """Commit changes in threads of their own that all wait for the same turn, and return their outcomes."""
    ready = threading.Barrier(len(changes) + 1)

    def work(change: Callable[[Any], Any]) -> int | Exception:
        txn = lake.transaction(group=group, reason=change.__name__)
        change(txn)
        ready.wait()
        try:
            return txn.commit()
        except (CommitConflict, StorageError) as error:
            return error

    with ThreadPoolExecutor(len(changes)) as threads:
        futures = [threads.submit(work, change) for change in changes]
        with group._turn:  # until all of them wait
            ready.wait()
            while len(group._waiting) < len(changes):
                threading.Event().wait(0.001)
        return [future.result() for future in futures]


def _adds(name: str) -> Callable[[Any], Any]:
    def add(txn: Any) -> None:
        txn.create_table("a", name)

    add.__name__ = f"add {name}"
    return add


def test_transactions_that_do_not_conflict_become_one_version(lake: Lakehouse) -> None:
    outcomes = _together(lake, lake.group(), *(_adds(f"t{number}") for number in range(8)))
    now = lake.refresh()
    assert [2] * 8 == outcomes
    assert (2, 8) == (now.version, len(now.tables("a")))
    assert [] == list(now.check())
    summary = now.info().summary
    assert {f"add t{number}" for number in range(8)} == {each["reason"] for each in summary["members"]}
    assert summary["reason"].endswith(" and 5 more")
    assert 8 == summary["set"]


def test_one_that_conflicts_does_not_hurt_the_others(lake: Lakehouse) -> None:
    outcomes = _together(lake, lake.group(), _adds("t"), _adds("u"), _adds("t"))
    kinds = sorted(type(each).__name__ for each in outcomes)
    assert ["CommitConflict", "int", "int"] == kinds
    assert ["t", "u"] == lake.refresh().tables("a")


def test_one_whose_proof_fails_does_not_hurt_the_others(lake: Lakehouse) -> None:
    """Whatever it raises: what one commit refers to may be in a storage that is not there, or denied."""
    asked: list[Any] = []

    def proof(base: Any) -> None:
        asked.append(base)
        if len(asked) > 1:  # the first time it is asked alone
            raise StorageError("a file of this commit cannot be read")

    def unprovable(txn: Any) -> None:
        txn.create_table("a", "v")
        txn.require(proof)

    outcomes = _together(lake, lake.group(), _adds("t"), unprovable, _adds("u"))
    assert ["2", "a file of this commit cannot be read", "2"] == [str(each) for each in outcomes]
    assert ["t", "u"] == lake.refresh().tables("a")


def test_a_group_that_loses_a_race_keeps_what_does_not_conflict(lake: Lakehouse) -> None:
    other = Lakehouse.open(lake.root, storage_options=FAST)

    def adds_t_after_another_process(txn: Any) -> None:
        txn.create_table("a", "t")
        with other.transaction() as theirs:
            theirs.create_table("a", "t")

    outcomes = _together(lake, lake.group(), adds_t_after_another_process, _adds("u"))
    assert isinstance(outcomes[0], CommitConflict)
    assert 3 == outcomes[1]
    assert ["t", "u"] == lake.refresh().tables("a")


def test_members_that_began_before_the_last_group_need_no_request_to_catch_up(tmp_path: Path) -> None:
    made = Lakehouse.create((tmp_path / "lake").as_uri(), storage_options=FAST)
    with made.transaction() as txn:
        txn.create_namespace("a")
    lake = made.refresh()
    group = lake.group()
    early = lake.transaction(group=group)
    early.create_table("a", "early")
    _together(lake, group, _adds("t"), _adds("u"))
    assert {"put": 2, "create": 1, "head": 1, "get": 1} == cost(lake, early.commit)
    assert 3 == early.version


def test_an_unknown_outcome_is_that_of_every_member_and_each_finds_out(
    lake: Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trinitylake_core.commits import commit as commits

    acknowledge, group = commits.confirm_commit, lake.group()

    def lost(versions: Any, root: Any) -> None:
        acknowledge(versions, root)
        raise OutcomeUnknown("the answer was lost")

    first, second = (lake.transaction(group=group) for _ in range(2))
    first.create_table("a", "t")
    second.create_table("a", "u")
    monkeypatch.setattr(commits, "confirm_commit", lost)
    with ThreadPoolExecutor(2) as threads, group._turn:
        ended = [threads.submit(txn.commit) for txn in (first, second)]
        while len(group._waiting) < 2:
            threading.Event().wait(0.001)
        group._turn.release()
        try:
            errors = [future.exception() for future in ended]
        finally:
            group._turn.acquire()
    assert ["OutcomeUnknown"] * 2 == [type(error).__name__ for error in errors]
    monkeypatch.undo()
    assert [2, 2] == [first.commit(), second.commit()]
    assert 2 == lake.refresh().version


def test_a_thread_that_is_ended_while_it_waits_keeps_no_other_waiting(lake: Lakehouse) -> None:
    group = lake.group()

    def commit(name: str) -> int:
        with lake.transaction(group=group) as txn:
            txn.create_table("a", name)
        return txn.version or 0

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with ThreadPoolExecutor(2) as threads:
        with group._turn:
            first = threads.submit(commit, "t")
            while not group._is_led:
                threading.Event().wait(0.001)
            before = signal.signal(signal.SIGALRM, interrupt)
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            with pytest.raises(KeyboardInterrupt):
                commit("u")
            signal.signal(signal.SIGALRM, before)
            third = threads.submit(commit, "v")
        assert {2, 3} >= {first.result(20), third.result(20)}
    assert ["t", "v"] == lake.refresh().tables("a")

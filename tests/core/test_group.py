"""Group commit: transactions of several threads become one version, and each has its own outcome."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from tests.core.test_costs import cost
from tests.support.icebergs import request_key
from tests.support.lakes import FAST
from trinitylake_core import Lakehouse
from trinitylake_core.commits.changes import Fence, commit_summary
from trinitylake_core.commits.commit import commit
from trinitylake_core.errors import CommitConflict, InvalidInput, OutcomeUnknown, StorageError, TransactionExpired
from trinitylake_core.transactions import group as groups
from trinitylake_core.transactions.group import CommitGroup, Entry, _GroupChange
from trinitylake_core.transactions.requests import Repeated, RequestKey


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
        except Exception as error:  # noqa: BLE001 - each outcome is compared
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


def _fail_the_second_time(_: Any, asked: list[int]) -> None:
    asked.append(1)
    if len(asked) > 1:  # the first time it is asked alone
        raise StorageError("a file of this commit cannot be read")


def _break(txn: Any) -> None:
    """Raise what is no error of ours, where the changes of the group are put together."""
    txn.change.messages = lambda: 1 // 0


def _outlive(txn: Any) -> None:
    """Be young enough when it comes to the group, and not when the group is built."""
    txn.change.refuse_outlived = partial(_outlive_after, 1, txn.change.refuse_outlived, [])


@pytest.mark.parametrize(
    ("table", "harm", "raised"),
    [
        ("t", lambda txn: None, CommitConflict),
        ("v", lambda txn: txn.require(partial(_fail_the_second_time, asked=[])), StorageError),
        ("v", _break, ZeroDivisionError),
        ("v", _outlive, TransactionExpired),
    ],
    ids=["conflict", "proof", "fault", "too old"],
)
def test_a_member_that_fails_does_not_hurt_the_others(
    lake: Lakehouse, table: str, harm: Callable[[Any], object], raised: type[Exception]
) -> None:
    """What one commit refers to may be in a storage that is not there, or denied."""

    def fail(txn: Any) -> None:
        txn.create_table("a", table)
        harm(txn)

    outcomes = _together(lake, lake.group(), _adds("t"), fail, _adds("u"))
    assert [raised] == [type(each) for each in outcomes if each != 2]
    assert ["t", "u"] == lake.refresh().tables("a")


def test_a_thread_that_is_ended_while_it_commits_gives_each_member_an_outcome(
    lake: Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever commits for the others may be ended anywhere."""
    group = lake.group()

    def end(*_: Any) -> None:
        raise SystemExit

    monkeypatch.setattr(group, "_stand", end)
    entries = []
    for name in ("t", "u"):
        txn = lake.transaction()
        txn.create_table("a", name)
        entries.append(Entry(txn.change, "me"))
    with pytest.raises(SystemExit):
        group.commit_together(entries)
    for entry in entries:
        with pytest.raises(OutcomeUnknown, match="the thread that committed the group was ended"):
            entry.outcome()


def test_a_thread_that_is_ended_before_it_commits_keeps_no_other_waiting(
    lake: Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that it took with it are told so, and do not look for a turn that never comes."""
    group = lake.group()

    def end(*_: Any, **__: Any) -> None:
        raise SystemExit

    entries = []
    for name in ("t", "u"):
        txn = lake.transaction()
        txn.create_table("a", name)
        entries.append(Entry(txn.change, "me"))
    group._waiting += entries
    monkeypatch.setattr(group, "commit_together", end)
    with pytest.raises(SystemExit):
        group._lead(entries[0])
    assert [True, True] == [each.is_over for each in entries]
    assert not group._is_led


def _entries(lake: Lakehouse, *names: str) -> list[Entry]:
    """Return a transaction for each name, whose definitions are written, as they wait for a group."""
    found = []
    for name in names:
        txn = lake.transaction()
        txn.create_table("a", name)
        txn.change.write_definitions()
        found.append(Entry(txn.change, "me"))
    return found


def test_one_thread_commits_for_all_that_wait(lake: Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others have their outcome when they are called, and lead nobody."""
    leads, leading = [], CommitGroup._lead

    def noted(group: CommitGroup, entry: Entry) -> None:
        leads.append(entry)
        leading(group, entry)

    monkeypatch.setattr(CommitGroup, "_lead", noted)
    assert [2] * 4 == _together(lake, lake.group(), *(_adds(name) for name in "tuvw"))
    assert 1 == len(leads)


def test_of_one_request_that_comes_twice_at_once_one_is_taken(lake: Lakehouse) -> None:
    """Also where both would change other objects."""
    entries = []
    key = RequestKey.of(request_key(), "asked")
    for name in ("t", "u"):
        txn = lake.transaction(group=lake.group(), request=key)
        txn.create_table("a", name)
        txn.change.write_definitions()
        entries.append(Entry(txn.change, "me"))
    lake.group().commit_together(entries)
    assert 2 == entries[0].outcome()
    with pytest.raises(CommitConflict):
        entries[1].outcome()
    assert ["t"] == lake.refresh().tables("a")


def test_a_group_of_which_nobody_is_left_commits_nothing(lake: Lakehouse) -> None:
    group = lake.group()
    change = _GroupChange(lake.backend, group.remember)
    assert {} == cost(lake, lambda: group._commit_members(change, []))
    assert group._commit_members(change, []) is None


def test_a_retry_in_doubt_is_denied_by_nothing_but_the_history(
    lake: Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it rests on may be refused by now, because it is committed."""
    asked: list[Any] = []
    proved: list[Any] = []

    def proof(base: Any) -> None:
        proved.append(base)
        if asked:
            raise CommitConflict("what this rests on was removed")

    txn = lake.transaction(group=lake.group())
    txn.create_table("a", "t")
    txn.require(proof)
    with monkeypatch.context() as lossy:
        _unknown(lossy)
        with pytest.raises(OutcomeUnknown):
            txn.commit()
    asked.append("again")
    with pytest.raises(OutcomeUnknown, match="what this rests on was removed"):
        txn.commit()
    asked.clear()
    proved.clear()
    assert (2, 2) == (txn.commit(), lake.refresh().version)
    assert 1 == len(proved)


# -- what members stand on ---------------------------------------------------------------------------------------------


def test_a_member_is_not_proved_against_what_it_has_seen(lake: Lakehouse) -> None:
    """Beside one that began earlier it stands on the same old version."""
    group = lake.group()
    (early,) = _entries(lake, "early")
    with lake.refresh().transaction(group=group) as txn:
        txn.create_table("a", "t")
    late = lake.refresh().transaction()
    late.drop_table("a", "t")
    dropped = Entry(late.change, "me")
    group.commit_together([early, dropped])
    assert (3, 3) == (early.outcome(), dropped.outcome())
    assert ["early"] == lake.refresh().tables("a")


def test_what_members_wrote_before_a_cleaning_is_written_again(lake: Lakehouse) -> None:
    group = lake.group()
    (early,) = _entries(lake, "early")
    written = set(early.change.writes.by_key.values())
    time.sleep(0.01)
    lake.storage.replace("clock", b"")
    change = Fence(lake.storage.info("clock").modified_millis, commit_summary())
    fence = commit(lake.backend, lake.backend.newest_seen, change)
    group.remember([fence.delta()])
    group.commit_together([early])
    assert 3 == early.outcome()
    assert written.isdisjoint(early.change.writes.by_key.values())
    assert [] == list(lake.refresh().check(definitions=True))


def test_a_bounded_number_of_versions_is_remembered(lake: Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest: who stands below an older one reads it."""
    monkeypatch.setattr(groups, "_REMEMBERED", 2)
    group = lake.group()
    early = lake.transaction(group=group)
    early.create_table("a", "early")
    for number in range(4):
        with lake.refresh().transaction(group=group) as txn:
            txn.create_table("a", f"t{number}")
    assert [4, 5] == list(group._recent)
    assert 6 == early.commit()


# -- threads that are ended --------------------------------------------------------------------------------------------


class _Interrupted:
    """The lock of an entry whose thread is interrupted at the moment at which it is called."""

    def __init__(self) -> None:
        self.is_held = False

    def acquire(self, *, blocking: bool = True) -> bool:
        """Take the lock; the second time, which is that of the thread, ends in an interrupt."""
        if blocking and self.is_held:
            self.is_held = False
            raise KeyboardInterrupt
        taken = not self.is_held
        self.is_held = True
        return taken

    def release(self) -> None:
        """Give the lock back."""
        self.is_held = False


@pytest.mark.parametrize("was_called", [True, False], ids=["when it is called", "while another commits for it"])
def test_a_thread_that_is_ended_calls_the_next_if_it_was_called(lake: Lakehouse, was_called: bool) -> None:
    """Else it takes no part in what comes next: another thread commits for it."""
    group = lake.group()
    (ended, behind) = _entries(lake, "t", "u")
    ended = Entry(ended.change, "me", called=cast("threading.Lock", _Interrupted()))
    group._waiting += [ended, behind] if was_called else [behind]
    group._is_led = True
    with pytest.raises(KeyboardInterrupt):
        group._wait(ended)
    assert [behind] == group._waiting
    assert was_called == behind.called.acquire(blocking=False)


def _outlive_after(times: int, refuse: Callable[[], None], asked: list[int]) -> None:
    asked.append(1)
    refuse()
    if len(asked) > times:
        raise TransactionExpired("past its time to live")


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


def _unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every commit be made, and its answer be lost."""
    from trinitylake_core.commits import commit as commits

    acknowledge = commits.confirm_commit

    def lose(versions: Any, root: Any) -> None:
        acknowledge(versions, root)
        raise OutcomeUnknown("the answer was lost")

    monkeypatch.setattr(commits, "confirm_commit", lose)


def _with_another(lake: Lakehouse, group: CommitGroup) -> None:
    """Let a transaction wait that is committed together with the next one."""
    other = lake.transaction()
    other.create_namespace("of_another")
    group._waiting.append(Entry(other.change, "another"))


def test_the_abort_of_a_member_that_is_committed_is_refused(lake: Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """The version has an identity of its own, and the transaction is one of its members."""
    group = lake.group()
    txn = lake.transaction(group=group)
    txn.create_table("a", "t")
    _with_another(lake, group)
    with monkeypatch.context() as lossy:
        _unknown(lossy)
        with pytest.raises(OutcomeUnknown):
            txn.commit()
    with pytest.raises(CommitConflict, match="is committed, as version 2"):
        txn.abort()
    assert (2, ["t"]) == (lake.refresh().version, lake.tables("a"))


def test_the_abort_of_a_member_that_is_not_committed_keeps_a_late_group_out(
    lake: Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = lake.group()
    txn = lake.transaction(group=group)
    txn.create_table("a", "t")
    _with_another(lake, group)

    def fail(*_: Any) -> None:
        raise StorageError("the storage is out of reach")

    with monkeypatch.context() as failing:
        failing.setattr(lake.storage, "create", fail)
        with pytest.raises(StorageError):
            txn.commit()
    txn.abort()
    assert ("abort", []) == (lake.refresh().info().operation, lake.tables("a"))


def test_a_reason_that_quotes_an_id_is_no_commit_of_that_transaction(lake: Lakehouse) -> None:
    txn = lake.transaction()
    txn.create_table("a", "t")
    other = Lakehouse.open(lake.root, storage_options=FAST)
    with other.transaction(reason=f"in place of {txn.id}") as theirs:
        theirs.create_table("a", "u")
    assert 3 == txn.commit()
    assert ["t", "u"] == lake.refresh().tables("a")


def test_a_retry_after_an_unknown_outcome_keeps_its_key(lake: Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another endpoint, which is asked the same once more, finds the key among the members of the version."""
    group, key = lake.group(), RequestKey.of(request_key(), "asked")
    txn = lake.transaction(group=group, request=key)
    txn.create_table("a", "t")

    def fail(*_: Any) -> None:
        raise StorageError("the storage is out of reach")

    with monkeypatch.context() as failing:
        failing.setattr(lake.storage, "create", fail)
        with pytest.raises(StorageError):
            txn.commit()
    assert 2 == txn.commit()
    assert [key.id] == [each.txn for each in lake.refresh().info().members]
    elsewhere = Lakehouse.open(lake.root, storage_options=FAST)
    with pytest.raises(Repeated) as again:
        elsewhere.transaction(group=elsewhere.group(), request=key)
    assert (2, "asked") == (again.value.version, again.value.digest)


def test_a_key_without_a_group_is_refused(lake: Lakehouse) -> None:
    with pytest.raises(InvalidInput, match="committed by a group"):
        lake.transaction(request=RequestKey.of(request_key(), "asked"))


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

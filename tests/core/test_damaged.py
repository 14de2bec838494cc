"""The newest root is cut short or garbage: older versions are read by number, and a rollback leaves it behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.lakes import content, filled, new_lake, reopened
from tests.support.surgery import Surgery, directory_of, files_of, listing
from trinitylake_core import (
    CommitConflict,
    Corrupt,
    CorruptNode,
    Lakehouse,
    PlanOutdated,
    StorageError,
    VersionExpired,
    spec,
)
from trinitylake_core.locations import root_path
from trinitylake_core.storage import open_storage


@pytest.fixture
def lake(tmp_path: Path) -> Lakehouse:
    """Versions 0 to 8; every handle that a test opens is cold."""
    return filled(new_lake(tmp_path), tables=28)


HARMS: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "cut short": lambda data: data[: len(data) // 2],
    "garbage": lambda data: bytes(len(data)),
    "a bit flipped": lambda data: (
        data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 4]) + data[len(data) // 2 + 1 :]
    ),
    "another version": lambda data: b"",
}


@pytest.mark.parametrize("name", [spec.CREATED_AT_MILLIS, spec.OLDEST_VERSION])
def test_a_number_that_no_root_has_is_damage(lake: Lakehouse, name: str) -> None:
    """Python refuses to read thousands of digits, by an error of its own."""
    with Surgery(lake.root, lake.definition.order).node(root_path(8)) as node:
        node.system[name] = "9" * 5000
    with pytest.raises(CorruptNode, match=f"{name} is '9{{40}}', not a number"):
        list(reopened(lake).history())


def harm(lake: Lakehouse, version: int, how: str = "cut short") -> None:
    surgery = Surgery(lake.root, lake.definition.order)
    path = root_path(version)
    data = surgery.read(root_path(version - 1)) if how == "another version" else HARMS[how](surgery.read(path))
    surgery.write(path, data)


def damaged(lake: Lakehouse) -> Lakehouse:
    return Lakehouse.open(open_storage(*lake.storage.spec()), damaged=True)


def rolled_back(lake: Lakehouse, target: int) -> Lakehouse:
    damaged(lake).rollback(version=target, reason="r")
    return reopened(lake)


@pytest.mark.parametrize("how", HARMS)
def test_a_rollback_leaves_an_unreadable_newest_root_behind(lake: Lakehouse, how: str) -> None:
    """The incident from beginning to end: what fails, what can be read, the plan, the rollback, what it is then."""
    newest = lake.version
    digests = [lake.at(version=version).digest() for version in range(newest)]
    harm(lake, newest, how)
    with pytest.raises(Corrupt):
        reopened(lake)
    cold = damaged(lake)
    assert (newest - 1, [newest]) == (cold.version, [each.version for each in cold.unreadable])
    assert digests == [cold.at(version=version).digest() for version in range(newest)]
    assert list(range(newest - 1, -1, -1)) == [info.version for info in cold.history()]
    before = files_of(lake)
    planned = cold.rollback(version=newest - 2, reason="r", dry_run=True)
    assert before == files_of(lake)
    assert (newest, 2, [root_path(newest)]) == (
        planned.version, planned.versions_undone, [hole.file for hole in planned.not_compared]
    )  # fmt: skip
    assert "cannot be read" in str(planned.since[0].reason)
    done = cold.rollback(version=newest - 2, reason="incident", expected_version=planned.version)
    after = reopened(lake)
    assert (newest + 1, newest + 1, digests[newest - 2]) == (done.version_after, after.version, after.digest())
    assert [] == list(after.check(definitions=True))
    assert [root_path(newest)] * 2 == [after.info().previous_root, after.info().rollback_from_root]
    assert [newest + 1, newest, newest - 1] == [info.version for info in after.history(3)]
    assert (None, True) == (list(after.history(2))[1].operation, list(after.history(2))[1].summary["unreadable"])


def test_every_way_to_the_newest_version_passes_over_a_root_left_behind(lake: Lakehouse) -> None:
    """With any hint, from any handle, by time: the garbage is not the newest version, and never returned."""
    harm(lake, 8)
    old = [lake.at(version=version) for version in (5, 6, 7)]
    after = rolled_back(lake, 7)
    assert 9 == after.version
    for hint in ("0", "6", "7", "8", "9", "12", "rubbish"):
        lake.storage.replace(spec.HINT_FILE, hint.encode())
        assert 9 == reopened(lake).version, hint
    for handle in old:
        assert 9 == handle.refresh().version
    times = {info.version: info.created_at for info in after.history()}
    assert 7 == after.at(timestamp=times[7]).version
    assert 9 == after.at(timestamp=times[9]).version
    assert 5 == after.at(timestamp=times[5]).version


def test_a_writer_that_began_before_is_told_to_begin_again(lake: Lakehouse) -> None:
    """While nobody has rolled back it is damage; after that a conflict, whatever it wrote. Nothing is committed."""
    first, second = lake.at(version=7), lake.at(version=7)
    harm(lake, 8)
    for handle, error in ((first, CorruptNode), (second, CommitConflict)):
        if error is CommitConflict:
            rolled_back(lake, 7)
        before = content(lake.at(version=7))
        with pytest.raises(error), handle.transaction() as txn:
            txn.create_namespace("late")
        assert before == content(damaged(lake).at(version=7))
    assert 9 == reopened(lake).version


def test_a_writer_that_holds_the_unreadable_root_may_go_on(lake: Lakehouse) -> None:
    """It knows what the root said, so its commit is whole; the plan of the rollback is outdated then."""
    harm(lake, 8)
    planned = damaged(lake).rollback(version=7, reason="r", dry_run=True)
    with lake.transaction() as txn:
        txn.create_namespace("late")
    cold = reopened(lake)
    assert (9, content(lake) | {lake.codec.namespace("late"): content(cold)[lake.codec.namespace("late")]}) == (
        cold.version, content(cold)
    )  # fmt: skip
    with pytest.raises(PlanOutdated, match="version 9"):
        damaged(lake).rollback(version=7, reason="r", expected_version=planned.version)


def test_everything_that_no_version_reaches_is_void_after_it(lake: Lakehouse) -> None:
    """The unreadable root may have been a fence: a saved transaction of before must not come back."""
    saved = lake.transaction()
    saved.create_namespace("saved")
    identity = saved.save()
    harm(lake, 8)
    after = rolled_back(lake, 7)
    assert after.root_node.void_before_millis > lake.storage.info(root_path(8)).modified_millis - 1
    with pytest.raises(CommitConflict):
        after.resume_transaction(identity).commit()
    assert "saved" not in reopened(lake).namespaces()


def test_the_boundary_file_says_what_an_unreadable_root_cannot(lake: Lakehouse) -> None:
    """It was raised by an expiration whose root is garbage now: nothing below it is kept."""
    lake.storage.replace(spec.BOUNDARY_FILE, b"6")
    harm(lake, 8)
    with pytest.raises(VersionExpired, match="version 5 has expired; the oldest one kept is 6"):
        damaged(lake).rollback(version=5, reason="r")
    after = rolled_back(lake, 6)
    assert 6 == after.root_node.oldest_version


def test_without_root_and_boundary_nobody_knows_what_is_kept(lake: Lakehouse) -> None:
    harm(lake, 8)
    lake.storage.replace(spec.BOUNDARY_FILE, b"rubbish")
    with pytest.raises(Corrupt, match="it is not known which versions are kept"):
        damaged(lake).rollback(version=6, reason="r")


def test_an_answer_that_was_cut_short_on_its_way_proves_nothing(lake: Lakehouse) -> None:
    """A root is left behind only if it is unreadable as it is stored."""
    for times in (1, 2):
        storage = open_storage(*lake.storage.spec())
        left = {"reads": times}

        def cut(kind: str, path: str, action: Callable[[], object], left: dict[str, int] = left) -> object:
            found = action()
            if kind == "get" and path == root_path(8) and left["reads"] and isinstance(found, bytes):
                left["reads"] -= 1
                return found[:100]
            return found

        storage.interceptor = cut  # type: ignore[attr-defined]
        if times == 1:
            assert 8 == Lakehouse.open(storage, damaged=True).version
        else:
            with pytest.raises(StorageError, match="differently each time"):
                Lakehouse.open(storage, damaged=True)


@pytest.mark.parametrize("lost", [False, True], ids=["fails", "answer lost"])
def test_a_rollback_over_it_may_fail_at_any_request(lake: Lakehouse, lost: bool) -> None:
    """Afterwards it is the same garbage, or the rollback is done; and it can be repeated."""
    digest = lake.at(version=6).digest()
    harm(lake, 8)
    directory = directory_of(lake)
    before, at, failed = listing(directory), 0, True
    while failed:
        storage = open_storage(*lake.storage.spec())
        handle = Lakehouse.open(storage, damaged=True)
        at, left = at + 1, {"requests": at + 1}

        def fail(kind: str, path: str, action: Callable[[], object], left: dict[str, int] = left) -> object:
            left["requests"] -= 1
            if left["requests"]:
                return action()
            if lost:
                action()
            raise StorageError(f"{kind} {path} failed")

        storage.interceptor = fail  # type: ignore[attr-defined]
        try:
            handle.rollback(version=6, reason="r")
        except StorageError:
            again = damaged(lake)
            assert again.unreadable or (9, digest) == (again.version, again.digest())
            again.rollback(version=6, reason="again")
        else:
            failed = left["requests"] <= 0
        after = reopened(lake)
        assert digest == after.digest()
        assert [] == list(after.check(definitions=True))
        for name in listing(directory).keys() - before.keys():
            (directory / name).unlink()
        for name, data in before.items():
            (directory / name).write_bytes(data)
    assert at > 20


def test_a_lakehouse_definition_that_is_lost_is_left_behind_too(tmp_path: Path) -> None:
    """A large one has no copy in its root: without it nothing can be read of that version."""
    lake = filled(new_lake(tmp_path, properties={"large": "x" * 2000}), tables=8)
    digest = lake.digest()
    with lake.transaction() as txn:
        txn.drop_namespace("ns0", cascade=True)
    lake.alter({"other": "y"})
    newest = reopened(lake)
    Surgery(lake.root, lake.definition.order).remove(newest.root_node.definition_path)
    with pytest.raises(Corrupt):
        reopened(lake)
    after = rolled_back(lake, lake.version)
    assert (digest, newest.version + 1) == (after.digest(), after.version)
    assert [] == list(after.check(definitions=True))


def test_no_root_at_all_can_be_read(lake: Lakehouse) -> None:
    for version in range(9):
        harm(lake, version, "garbage")
    with pytest.raises(Corrupt, match="no root from the boundary 0 on can be read"):
        damaged(lake)

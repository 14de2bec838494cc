"""The boundary: no root below it is the newest, no commit below it is acknowledged, no hole above it is silent."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from pipelines import compaction
from tests.support.faults import FaultPlan, attach, detach
from tests.support.lakes import new_lake, reopened
from tests.support.rounds import Rounds
from tests.support.surgery import Surgery
from trinitylake_core import Lakehouse, Transaction, spec
from trinitylake_core.commits.backend import LakehouseBackend
from trinitylake_core.commits.changes import SameContent
from trinitylake_core.commits.commit import commit
from trinitylake_core.errors import (
    MAYBE_THE_STORE,
    Corrupt,
    CorruptNode,
    OutcomeUnknown,
    StorageError,
    VersionExpired,
    VersionNotFound,
)
from trinitylake_core.locations import root_path
from trinitylake_core.storage import open_storage
from trinitylake_core.storage.base import BaseStorage
from trinitylake_core.storage.failures import Outdated, TransientError
from trinitylake_core.versions import (
    Versions,
    claim_boundary,
    lower_lying_boundary,
    raise_boundary,
    settle_boundary,
)
from trinitylake_core.versions.root_files import LOST_MARK

NEWEST = 12


@pytest.fixture
def lake(tmp_path: Path) -> Lakehouse:
    """A lakehouse of 13 versions, each a namespace more; the handle stands on the newest."""
    lake = new_lake(tmp_path)
    for number in range(NEWEST):
        with lake.transaction() as txn:
            txn.create_namespace(f"n{number:02}")
    return lake.refresh()


def expired(lake: Lakehouse, up_to: int = 10) -> None:
    """Expire as the protocol says, whatever the ages: a root, the boundary, then the roots below it."""
    again = reopened(lake)
    change = SameContent(spec.OP_EXPIRE, {}, {spec.OLDEST_VERSION: str(up_to)})
    commit(again.backend, again.backend.newest_seen, change)
    raise_boundary(again.backend.versions, up_to)
    again.storage.delete_many([root_path(version) for version in range(up_to)])


def begun(lake: Lakehouse, version: int) -> tuple[Lakehouse, Any]:
    """Return a handle that was opened at an old version, and a transaction that began there."""
    versions = Versions(open_storage(*lake.storage.spec()))
    root = versions.root(version)
    handle = Lakehouse(LakehouseBackend(versions.storage, versions, root), root)
    txn = handle.transaction()
    txn.create_namespace("late")
    return handle, txn


def at_create(lake: Lakehouse, happens: Callable[[], object], then: Any = None) -> None:
    """Let something happen while a writer stands right before the creation of its root; once."""
    storage = lake.storage
    assert isinstance(storage, BaseStorage)

    def intercept(kind: str, path: str, action: Callable[[], Any]) -> Any:
        if kind == "create":
            happens()
            storage.interceptor = then
        return action()

    storage.interceptor = intercept


# -- a root below the boundary is nothing --------------------------------------------------------------


def test_an_unreadable_boundary_makes_the_outcome_unknown(lake: Lakehouse) -> None:
    """The commit may well be there, and trying again finds it."""
    txn = lake.transaction()
    txn.create_namespace("mine")
    plan = FaultPlan("fail_from", kinds={"get"})
    attach(lake.storage, plan)
    with pytest.raises(StorageError, match="whether it counts is unknown: the boundary cannot be read"):
        txn.commit()
    detach(lake.storage)
    assert NEWEST + 1 == txn.commit()
    assert [] == list(reopened(lake).check(definitions=True))


def test_a_garbage_boundary_is_told_by_the_newest_root(lake: Lakehouse) -> None:
    """Commits go on, and a writer below what the newest root says is refused all the same."""
    handle, txn = begun(lake, 2)
    at_create(handle, lambda: (expired(lake), Surgery(lake.root, 4).write(spec.BOUNDARY_FILE, b"garbage")))
    with pytest.raises(StorageError):
        txn.commit()
    with reopened(lake).transaction() as more:
        more.create_namespace("more")
    newest = reopened(lake)
    assert (NEWEST + 2, True, False) == (newest.version, "more" in newest.namespaces(), "late" in newest.namespaces())


# -- a root below the boundary is not a version -------------------------------------------------------


READS: dict[str, Callable[[Lakehouse], object]] = {
    "at": lambda lake: lake.at(version=5),
    "diff": lambda lake: list(lake.diff(5, lake.version)),
    "diff, backwards": lambda lake: list(lake.diff(lake.version, 5)),
    "snapshot": lambda lake: lake.create_snapshot("s", version=5),
    "rollback": lambda lake: lake.rollback(version=5, reason="r"),
    "restore": lambda lake: lake.restore(["n01"], version=5, reason="r"),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS.keys())
@pytest.mark.parametrize("opened", ["before", "after"])
def test_a_root_file_below_the_boundary_is_not_read_as_a_version(
    lake: Lakehouse, read: Callable[[Lakehouse], object], opened: str
) -> None:
    """An expiration that was killed has left it there, or a late writer has created it."""
    surgery = Surgery(lake.root, 4)
    late = surgery.read(root_path(5))
    expired(lake)
    surgery.write(root_path(5), late)
    with pytest.raises(VersionExpired, match="version 5 has expired; the oldest one kept is 10"):
        read(lake if opened == "before" else reopened(lake))


def test_a_version_above_a_boundary_that_no_root_reaches_is_read(lake: Lakehouse) -> None:
    """Such a boundary is the claim of an export that is not complete, and nothing has expired."""
    Surgery(lake.root, 4).write(spec.BOUNDARY_FILE, b"40\n")
    assert 5 == reopened(lake).at(version=5).version
    with pytest.raises(VersionNotFound, match="does not exist"):
        reopened(lake).at(version=NEWEST + 1)


def test_a_version_that_expires_while_it_is_read_is_not_damage(lake: Lakehouse) -> None:
    """The boundary was read before it rose, and the root after it was deleted."""
    cold, said = reopened(lake), iter([0])
    read = cold.backend.versions.data_and_boundary

    def late(version: int) -> object:
        expired(lake)
        return read(version)[0], next(said)

    cold.backend.versions.data_and_boundary = late  # type: ignore[method-assign,assignment]
    with pytest.raises(VersionExpired):
        cold.at(version=5)


def test_a_version_by_number_costs_two_gets_in_one_round_trip(lake: Lakehouse) -> None:
    """Its root, and the boundary."""
    cold = reopened(lake)
    with Rounds(cold.storage) as rounds:
        cold.at(version=5)
    assert (2, 1) == (rounds.requests, rounds.chain)


# -- holes ---------------------------------------------------------------------------------------------


def test_defect_13_a_hole_ends_no_history(lake: Lakehouse) -> None:
    """The versions before it are there, so their absence is damage, not the end."""
    Surgery(lake.root, 4).remove(root_path(6))
    seen: list[int] = []
    with pytest.raises(CorruptNode, match="version 6 is missing") as raised:
        seen.extend(info.version for info in reopened(lake).history())
    assert ("I14", root_path(6)) == (raised.value.invariant, raised.value.path)
    with pytest.raises(CorruptNode, match="version 6 is missing"):
        reopened(lake).at(version=6)
    with pytest.raises(CorruptNode, match="version 6 is missing"):
        reopened(lake).at(timestamp=lake.at(version=7).info().created_at_millis - 1)


@pytest.mark.parametrize("began", [4, 5])
def test_defect_13_no_commit_is_acknowledged_into_a_hole(lake: Lakehouse, began: int) -> None:
    """Neither by a writer that began right before it, nor by one that rebases up to it; nothing of it stays."""
    _, txn = begun(lake, began)
    surgery = Surgery(lake.root, 4)
    surgery.remove(root_path(6))
    with pytest.raises(Corrupt) as raised:
        txn.commit()
    assert "I14" == raised.value.invariant
    assert not surgery.file(root_path(6)).exists()
    newest = reopened(lake)
    assert (NEWEST, False) == (newest.version, "late" in newest.namespaces())


@pytest.mark.parametrize("version", [5, 9])
def test_no_commit_goes_into_a_hole_below_a_version_that_its_process_has_seen(lake: Lakehouse, version: int) -> None:
    """Two neighbouring roots are lost: neither the creation of the first nor the look at the second finds anything."""
    txn = reopened(lake).at(version=version).transaction()
    txn.create_namespace("late")
    surgery = Surgery(lake.root, 4)
    surgery.remove(root_path(version + 1))
    surgery.remove(root_path(version + 2))
    with pytest.raises(CorruptNode) as raised:
        txn.commit()
    assert ("I14", root_path(version + 1)) == (raised.value.invariant, raised.value.path)
    assert not surgery.file(root_path(version + 1)).exists()
    assert (NEWEST, str(NEWEST).encode()) == (reopened(lake).version, surgery.read(spec.HINT_FILE))


def _forget_predecessor(surgery: Surgery) -> None:
    """Let version 7 be that of a writer which names no predecessor, and whose clock is ahead."""
    surgery.strip(root_path(7), spec.PREVIOUS_TXN)
    surgery.system_row(root_path(7), spec.CREATED_AT_MILLIS, str(2**45))


SPOIL_FOLLOWING: dict[str, Callable[[Surgery], object]] = {
    "garbage": lambda surgery: surgery.write(root_path(7), b"garbage"),
    "marked as lost": lambda surgery: surgery.write(root_path(7), LOST_MARK + surgery.read(root_path(7))),
    "without predecessor": _forget_predecessor,
}
COMMITS: dict[str, Callable[[Lakehouse], object]] = {
    "transaction": lambda lake: _change(lake.transaction()).commit(),
    "group": lambda lake: _change(lake.transaction(group=lake.group())).commit(),
    "snapshot": lambda lake: lake.create_snapshot("late"),
    "rollback": lambda lake: lake.rollback(version=3, reason="late"),
    "compaction": lambda lake: compaction.run(lake, compaction.Config(engine="local")),
}


def _change(txn: Transaction) -> Transaction:
    txn.create_namespace("late")
    return txn


@pytest.mark.parametrize(
    ("make", "spoil"),
    [
        *((each, "garbage") for each in COMMITS),
        *(("transaction", each) for each in SPOIL_FOLLOWING if each != "garbage"),
    ],
)
def test_the_outcome_of_a_commit_into_a_hole_is_unknown_where_the_next_root_does_not_tell(
    lake: Lakehouse, make: str, spoil: str
) -> None:
    """The newest version does not have the change, so nobody may be told that it is there."""
    handle, _ = begun(lake, 5)
    surgery = Surgery(lake.root, 4)
    SPOIL_FOLLOWING[spoil](surgery)
    surgery.remove(root_path(6))
    with pytest.raises(OutcomeUnknown, match="as version 6, but whether it counts is unknown: version 7 is there"):
        COMMITS[make](handle)
    newest = reopened(lake)
    assert (NEWEST, False) == (newest.version, "late" in newest.namespaces())


def test_the_outcome_of_a_commit_is_unknown_where_nobody_can_ask_for_the_next_root(lake: Lakehouse) -> None:
    """It may have been there before. Trying again finds what was committed."""
    txn = _change(lake.transaction())
    attach(lake.storage, FaultPlan("fail_from", kinds={"head"}))
    with pytest.raises(OutcomeUnknown, match="whether it counts is unknown: whether version 14 was there before"):
        txn.commit()
    detach(lake.storage)
    assert NEWEST + 1 == txn.commit()


@pytest.mark.parametrize(("lost", "hint"), [((6, 7), b"5"), ((6, 7), None), ((6,), b"5")])
def test_a_hole_that_ends_the_search_is_found_by_a_listing(
    lake: Lakehouse, lost: tuple[int, ...], hint: bytes | None
) -> None:
    """A cold open shows version 5 of 12. A check lists the roots, and says which one is missing."""
    surgery = Surgery(lake.root, 4)
    for version in lost:
        surgery.remove(root_path(version))
    surgery.remove(spec.HINT_FILE) if hint is None else surgery.write(spec.HINT_FILE, hint)
    cold = reopened(lake)
    assert 5 == cold.version
    assert [("I14", root_path(6))] == [(found.invariant, found.file) for found in cold.check()]


def test_versions_that_others_commit_and_expire_meanwhile_are_no_hole(lake: Lakehouse) -> None:
    """What was not listed is looked for again, and what lies below the boundary by then has expired."""
    versions = reopened(lake).backend.versions
    versions.refuse_hole(4, listed=[3, 4, 6, 12])
    versions.refuse_hole(NEWEST)
    expired(lake, up_to=10)
    versions.refuse_hole(4, listed=[3, 4, 6, 12])
    versions.refuse_hole(4, listed=[3, 4, 6])  # the boundary lies beyond them all: it lists again
    Surgery(lake.root, 4).remove(root_path(11))
    with pytest.raises(CorruptNode, match="version 11 is missing, though versions are kept from 10 on"):
        versions.refuse_hole(4, listed=[3, 4, 6, 12])


def test_a_boundary_beyond_every_root_hides_no_hole(lake: Lakehouse) -> None:
    """It is the claim of an export, or a lie, and decides nothing."""
    surgery = Surgery(lake.root, 4)
    surgery.write(spec.BOUNDARY_FILE, b"40\n")
    surgery.remove(root_path(6))
    with pytest.raises(CorruptNode, match="version 6 is missing"):
        reopened(lake).backend.versions.refuse_hole(5)


def test_defect_13_a_known_version_that_is_lost_is_told(lake: Lakehouse) -> None:
    """A handle does not fall back to an older version in silence."""
    Surgery(lake.root, 4).remove(root_path(NEWEST))
    with pytest.raises(CorruptNode, match="is missing"):
        lake.refresh()


def test_a_root_in_the_place_of_another_is_found_by_whoever_rebases(lake: Lakehouse) -> None:
    """Roots name the transaction of the version that they were committed on."""
    _, txn = begun(lake, 4)
    surgery = Surgery(lake.root, 4)
    surgery.system_row(root_path(6), spec.TXN_ID, "another")
    with pytest.raises(CorruptNode, match="was not committed on top of"):
        txn.commit()


def test_a_lost_or_exchanged_version_names_the_store_as_a_possible_cause(lake: Lakehouse) -> None:
    """Two winners of one race look like tampering: the store comes first, in each message and each finding."""
    _, beside_another = begun(lake, 4)
    _, into_hole = begun(lake, 5)
    surgery = Surgery(lake.root, 4)
    here = surgery.read(root_path(6))
    surgery.system_row(root_path(6), spec.TXN_ID, "another")
    with pytest.raises(CorruptNode, match=f"on top of.*{MAYBE_THE_STORE}"):
        beside_another.commit()
    findings = [each for each in reopened(lake).at(version=7).check() if each.invariant == "I14"]
    assert findings
    assert all(each.hint.endswith(MAYBE_THE_STORE) for each in findings)
    surgery.write(root_path(6), here)
    surgery.remove(root_path(6))
    with pytest.raises(CorruptNode, match=f"was lost.*{MAYBE_THE_STORE}"):
        into_hole.commit()
    with pytest.raises(CorruptNode, match=f"is missing.*{MAYBE_THE_STORE}"):
        list(reopened(lake).history())


# -- searches have no side effects ---------------------------------------------------------------------


def test_defect_7_a_search_for_other_names_changes_nothing_for_other_threads(lake: Lakehouse) -> None:
    """While one thread looks whether the Java SDK wrote the lakehouse, another commits under our names."""
    storage, versions = lake.storage, lake.backend.versions
    assert isinstance(storage, BaseStorage)
    names: list[str] = []
    storage.replace(spec.HINT_FILE, b"400000")  # misleads: the search looks for names of the SDK, too

    def look(kind: str, path: str, action: Callable[[], Any]) -> Any:
        if threading.current_thread().name == "search":
            names.append(versions.path(NEWEST + 1))
        return action()

    storage.interceptor = look
    search = threading.Thread(target=versions.latest, name="search")
    search.start()
    search.join()
    assert len(names) > 5
    assert {root_path(NEWEST + 1)} == set(names)


# -- moving the boundary -------------------------------------------------------------------------------


@pytest.mark.parametrize("lie", [None, b"", b"garbage", b"3"])
def test_the_boundary_file_grows_over_what_lies_or_is_missing(lake: Lakehouse, lie: bytes | None) -> None:
    surgery = Surgery(lake.root, 4)
    if lie is not None:
        surgery.write(spec.BOUNDARY_FILE, lie)
    assert (5, 5) == (raise_boundary(lake.backend.versions, 5), lake.backend.versions.boundary())
    assert (5, 5) == (raise_boundary(lake.backend.versions, 4), lake.backend.versions.boundary())


@pytest.mark.parametrize("lie", [b"9999", b"7"])
def test_only_a_boundary_that_expiration_cannot_have_written_is_lowered(lake: Lakehouse, lie: bytes) -> None:
    """Its root would say so, and it does not. Where versions are missing all the same, the file stays."""
    versions = lake.backend.versions
    assert lower_lying_boundary(versions) is None
    Surgery(lake.root, 4).write(spec.BOUNDARY_FILE, lie)
    assert (0, 0) == (lower_lying_boundary(versions), versions.boundary())
    expired(lake, 10)
    assert lower_lying_boundary(versions) is None
    assert 10 == versions.boundary()
    Surgery(lake.root, 4).write(spec.BOUNDARY_FILE, b"12")
    Surgery(lake.root, 4).remove(root_path(11))
    assert (None, 12) == (lower_lying_boundary(versions), versions.boundary())


MOVES: dict[str, Callable[[Versions], object]] = {
    "claim": lambda versions: claim_boundary(versions, 20, b"3", ()) is not None,
    "settle": lambda versions: settle_boundary(versions, 20, (), grows=True, movable=lambda: True),
}


@pytest.mark.parametrize("move", MOVES.values(), ids=MOVES.keys())
def test_a_late_request_does_not_move_what_was_put_back(lake: Lakehouse, move: Callable[[Versions], object]) -> None:
    """A copy is refused, for there are roots that it does not know. Its first request had been given up as late."""
    storage, late = lake.storage, list[Callable[[], object]]()
    assert isinstance(storage, BaseStorage)
    storage.replace(spec.BOUNDARY_FILE, b"3")

    def intercept(kind: str, path: str, action: Callable[[], Any]) -> Any:
        if (kind, path) == ("put", spec.BOUNDARY_FILE) and not late:
            late.append(action)
            raise TransientError("no answer in time")
        return action()

    storage.interceptor = intercept
    assert not move(Versions(storage))
    with pytest.raises(Outdated):
        late[0]()
    assert 3 == Versions(storage).boundary_file()


def heard(storage: BaseStorage) -> list[bytes]:
    """Return what the boundary file says, each time that it is made to say something."""
    said: list[bytes] = []

    def intercept(kind: str, path: str, action: Callable[[], Any]) -> Any:
        done = action()
        if (kind, path) == ("put", spec.BOUNDARY_FILE):
            said.append(Path(urlsplit(storage.root).path, path).read_bytes())
        return done

    storage.interceptor = intercept
    return said


def test_the_boundary_file_never_says_what_it_said_before(lake: Lakehouse) -> None:
    """In bytes; whoever compares it with what it said when they looked must not be wrong."""
    storage, chance = lake.storage, random.Random(5)
    assert isinstance(storage, BaseStorage)
    storage.replace(spec.BOUNDARY_FILE, b"0")
    said, looks, claims = heard(storage), [b"0"], [b"0\n"]
    versions, known = Versions(storage), range(NEWEST + 1)
    moves: list[Callable[[int], object]] = [
        lambda to: raise_boundary(versions, to),
        lambda _: lower_lying_boundary(versions),
        lambda to: claims.append(claim_boundary(versions, to, looks[-1], known) or b"0\n"),
        lambda to: claim_boundary(versions, to, looks[-1], ()),
        lambda to: settle_boundary(
            versions, to, chance.choice([known, ()]), grows=False, movable=lambda: True, claim=claims[-1]
        ),
        lambda to: settle_boundary(
            versions, to, chance.choice([known, ()]), grows=chance.random() < 0.5, movable=lambda: True
        ),
    ]
    for _ in range(400):
        looks.append(storage.read(spec.BOUNDARY_FILE))
        to = versions.boundary_file() or 0
        chance.choice(moves)(chance.choice([to, to, NEWEST + 2, chance.randrange(NEWEST)]))
    assert len(said) > 200
    assert len({b"0", *said}) == 1 + len(said)

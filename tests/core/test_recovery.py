"""Rollback and restore: bad input changes nothing, races are noticed, and the costs are what they should be."""

from __future__ import annotations

import re
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.lakes import build, table_name
from tests.support.clock import Clock
from tests.support.lakes import FAST, compacted, content, filled, new_lake, reopened
from tests.support.surgery import Surgery, files_of
from trinitylake_core import (
    CommitConflict,
    Corrupt,
    InvalidInput,
    Lakehouse,
    NamespaceNotEmpty,
    ObjectNotFound,
    PlanOutdated,
    SnapshotNotFound,
    VersionExpired,
    VersionNotFound,
    spec,
)
from trinitylake_core.commits.changes import NewDefinition, SameContent, commit_summary
from trinitylake_core.commits.commit import commit
from trinitylake_core.definitions import LakehouseDef
from trinitylake_core.locations import root_path
from trinitylake_core.recovery.patterns import Pattern, exactly
from trinitylake_core.recovery.plan import RecoveryPlan
from trinitylake_core.recovery.restore import plan_restore
from trinitylake_core.recovery.rollback import SINCE_SHOWN, plan_rollback, prove_rollback
from trinitylake_core.recovery.target import RecoveryTarget
from trinitylake_core.versions import Root, from_millis

EXPIRED = 4
"""The oldest version that the lakehouse keeps."""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lakehouse of 14 versions, four of them expired, with snapshots, a definition gone and a namespace dropped."""
    directory = tmp_path_factory.mktemp("recovery")
    lake = filled(new_lake(directory), tables=24, changes=4)
    with lake.transaction() as txn:
        txn.alter_table("ns1", "t001", properties={"lost": "yes"})
    lost = lake.refresh().version
    with lake.transaction(reason="nightly deploy") as txn:
        txn.alter_table("ns1", "t001", properties={"lost": "no"})
        txn.drop_namespace("ns0", cascade=True)
    lake.create_snapshot("kept", version=lost - 1)
    lake.create_snapshot("spoilt", version=lost - 2, kind="partial")
    lake.create_snapshot("brief", version=lost - 1, expires_at=from_millis(4_000_000_000_000))
    lake.refresh()
    expire(lake, EXPIRED)
    surgery = Surgery(lake.root, lake.definition.order)
    broken = lake.at(version=lost).table("ns1", "t001")
    assert "yes" == broken.properties["lost"]
    surgery.remove(content(lake.at(version=lost))[lake.codec.table("ns1", "t001")])
    spoilt = lake.at(snapshot="spoilt").root_node.node.children[0]
    surgery.write(spoilt, surgery.read(spoilt)[:-100])
    assert 13 == lake.refresh().version
    assert lost == LOST
    return directory


LOST = 8
"""The version whose definition of ns1.t001 is gone."""


@pytest.fixture
def lake(prepared: Path, tmp_path: Path) -> Lakehouse:
    """A fresh copy of the prepared lakehouse."""
    shutil.copytree(prepared / "lake", tmp_path / "lake")
    return Lakehouse.open((tmp_path / "lake").as_uri(), storage_options=FAST)


@pytest.fixture
def sound(tmp_path: Path) -> Lakehouse:
    """A lakehouse without any damage, at version 7."""
    return filled(new_lake(tmp_path), tables=24, changes=4)


def expire(lake: Lakehouse, oldest: int) -> None:
    """Expire the versions below ``oldest``, as the format says: root, boundary, deletion."""
    change = SameContent(spec.OP_EXPIRE, commit_summary(), {spec.OLDEST_VERSION: str(oldest)})
    commit(lake.backend, lake.backend.versions.latest(), change)
    lake.storage.replace(spec.BOUNDARY_FILE, str(oldest).encode())
    lake.storage.delete_many([root_path(version) for version in range(oldest)])
    lake.refresh()


def drop(lake: Lakehouse, namespace: str = "ns0") -> None:
    with reopened(lake).transaction() as txn:
        txn.drop_namespace(namespace, cascade=True)


# -- bad input -----------------------------------------------------------------------------------------

ROLLBACKS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"version": 5}, InvalidInput, "a reason is required"),
    ({"version": 5, "reason": " \n"}, InvalidInput, "a reason is required"),
    ({"reason": "r"}, InvalidInput, "one of version, timestamp and snapshot"),
    ({"version": 5, "snapshot": "kept", "reason": "r"}, InvalidInput, "one of version, timestamp and snapshot"),
    ({"version": 0, "reason": "r"}, VersionExpired, "version 0 has expired; the oldest one kept is 4"),
    ({"version": EXPIRED - 1, "reason": "r"}, VersionExpired, "the oldest one kept is 4"),
    ({"version": 14, "reason": "r"}, VersionNotFound, "version 14 does not exist"),
    ({"version": -1, "reason": "r"}, VersionNotFound, "not between"),
    ({"version": 2**32, "reason": "r"}, VersionNotFound, "not between"),
    ({"version": 13, "reason": "r"}, InvalidInput, "the newest one already"),
    ({"timestamp": "2999-01-01", "reason": "r"}, InvalidInput, "lies in the future"),
    ({"timestamp": "1999-01-01", "reason": "r"}, VersionExpired, "no version at 1999-01-01T00:00:00"),
    ({"timestamp": "yesterday", "reason": "r"}, InvalidInput, "not an ISO 8601 time"),
    ({"snapshot": "nobody", "reason": "r"}, SnapshotNotFound, "there is no snapshot 'nobody'"),
    ({"snapshot": "spoilt", "reason": "r"}, Corrupt, "cannot be read"),
    ({"version": LOST, "reason": "r"}, Corrupt, "the definition of table 'ns1.t001' is missing"),
    ({"version": 5, "reason": "r", "expected_version": 99}, InvalidInput, "the newest one is 13"),
]


@pytest.mark.parametrize(("how", "error", "message"), ROLLBACKS)
@pytest.mark.parametrize("more", [{}, {"dry_run": True}, {"force": True}], ids=["plain", "dry", "force"])
def test_a_bad_rollback_says_so_and_changes_nothing(
    lake: Lakehouse, how: dict[str, Any], error: type[Exception], message: str, more: dict[str, Any]
) -> None:
    if how.get("expected_version") and more.get("force"):
        return  # whoever forces a rollback does not ask what was planned
    before = files_of(lake)
    with pytest.raises(error, match=message) as caught:
        lake.rollback(**how, **more)
    assert error is type(caught.value) or error is Corrupt
    assert before == files_of(lake)


RESTORES: list[tuple[list[str], dict[str, Any], type[Exception], str]] = [
    (["*"], {"version": 5}, InvalidInput, "a reason is required"),
    ([], {"version": 5, "reason": "r"}, InvalidInput, "say which objects"),
    (["*"], {"reason": "r"}, InvalidInput, "one of version, timestamp and snapshot"),
    (["*"], {"version": 0, "reason": "r"}, VersionExpired, "has expired"),
    (["*"], {"version": 99, "reason": "r"}, VersionNotFound, "does not exist"),
    (["*"], {"timestamp": "1999-01-01", "reason": "r"}, VersionExpired, "no version at"),
    (["*"], {"snapshot": "nobody", "reason": "r"}, SnapshotNotFound, "there is no snapshot"),
    (["ns1.t0001"], {"version": 5, "reason": "r"}, ObjectNotFound, "ns1.t0001 names nothing"),
    (["ns0.*", "nothing.*"], {"version": 5, "reason": "r"}, ObjectNotFound, r"^nothing\.\* names nothing"),
    (["ns1.t001"], {"version": LOST, "reason": "r"}, Corrupt, "the definition of table 'ns1.t001' is missing"),
]


@pytest.mark.parametrize(("only", "how", "error", "message"), RESTORES)
@pytest.mark.parametrize("dry_run", [False, True])
def test_a_bad_restore_says_so_and_changes_nothing(
    lake: Lakehouse, only: list[str], how: dict[str, Any], error: type[Exception], message: str, dry_run: bool
) -> None:
    before = files_of(lake)
    with pytest.raises(error, match=message):
        lake.restore(only, **how, dry_run=dry_run)
    assert before == files_of(lake)


def test_a_snapshot_that_expired_is_no_target(lake: Lakehouse, clock: Clock) -> None:
    assert LOST - 1 == lake.rollback(snapshot="brief", reason="r", dry_run=True).target_version
    clock.set(4_000_000_000_000)
    with pytest.raises(SnapshotNotFound, match="snapshot 'brief' expired at 2096"):
        lake.rollback(snapshot="brief", reason="r")


def test_every_missing_or_damaged_file_of_a_target_is_named(sound: Lakehouse) -> None:
    """A node, a definition, the lakehouse definition: nothing is committed over any of them."""
    compacted(sound)
    target = sound.refresh().version
    drop(sound)
    surgery = Surgery(sound.root, sound.definition.order)
    at = sound.at(version=target)
    gone = [at.root_node.node.children[0], next(at.objects()).path, at.root_node.definition_path]
    for path in gone:
        data = surgery.read(path)
        for harm in (lambda path=path: surgery.remove(path), lambda path=path: surgery.write(path, b"\x07rubbish")):
            harm()
            before = files_of(sound)
            with pytest.raises(Corrupt, match=path):
                reopened(sound).rollback(version=target, reason="r")
            assert before == files_of(sound)
            surgery.write(path, data)
    assert target + 2 == reopened(sound).rollback(version=target, reason="r").version_after


# -- what a rollback does ------------------------------------------------------------------------------


def edit(lake: Lakehouse, change: Callable[[LakehouseDef], None]) -> None:
    """Commit an edited lakehouse definition."""

    def edited(definition: LakehouseDef, _: Root) -> LakehouseDef:
        copy = LakehouseDef()
        copy.CopyFrom(definition)
        change(copy)
        return copy

    commit(
        lake.backend, lake.refresh().root_node, NewDefinition(lake.backend, spec.OP_COMMIT, commit_summary(), edited)
    )
    lake.refresh()


def test_a_dry_run_names_what_changes_and_who_committed_what(lake: Lakehouse) -> None:
    plan = lake.rollback(snapshot="kept", reason="r", dry_run=True)
    assert {"added": 9, "removed": 0, "changed": 1} == plan.counts
    assert {"ns0", "ns1"} == {change.namespace for change in plan.changes}
    assert (13, LOST - 1, 6, None) == (plan.version, plan.target_version, plan.versions_undone, plan.version_after)
    assert [13, 12, 11, 10, 9, 8] == [info.version for info in plan.since]
    assert "nightly deploy" == next(info.reason for info in plan.since if info.operation == "commit")
    assert plan.since[0].author
    assert LOST == lake.at(snapshot="kept").version + 1


# -- races ---------------------------------------------------------------------------------------------


def roll_back(
    lake: Lakehouse, target: RecoveryTarget, act: Callable[[], object], *, force: bool = False
) -> RecoveryPlan:
    """Roll back while somebody else acts, between the proof and the commit."""
    rollback = plan_rollback(lake.backend, target, "r", force=force)
    plan = prove_rollback(rollback)
    act()
    return rollback.commit(plan)


def bring_back(lake: Lakehouse, only: str, act: Callable[[], object], *, exact: bool = False) -> RecoveryPlan:
    """Restore objects from version 7 while somebody else acts, between the plan and the commit."""
    restore = plan_restore(lake.backend, [only], RecoveryTarget(7), reason="r", exact=exact)
    restore.select(restore.differences())
    plan = restore.plan()
    act()
    return restore.commit(plan)


def test_nothing_comes_back_into_a_namespace_that_somebody_drops_meanwhile(sound: Lakehouse) -> None:
    with sound.transaction() as txn:
        txn.drop_table("ns1", "t001")
    with pytest.raises(CommitConflict, match="version 9 changed"):
        bring_back(sound, "ns1.t001", lambda: drop(sound, "ns1"))


def test_a_commit_between_plan_and_act_stops_a_rollback(sound: Lakehouse) -> None:
    def commit_one() -> None:
        with reopened(sound).transaction(reason="mine") as txn:
            txn.create_namespace("new")

    with pytest.raises(PlanOutdated, match=r"version 8 \(commit by .*: mine\); read the new plan"):
        roll_back(sound, RecoveryTarget(3), commit_one)
    assert (8, "commit") == (sound.refresh().version, sound.info().operation)


def test_force_undoes_what_came_in_between(sound: Lakehouse) -> None:
    plan = roll_back(sound, RecoveryTarget(3), lambda: drop(sound), force=True)
    assert (7, 9) == (plan.version, plan.version_after)
    after = sound.refresh()
    assert after.at(version=3).digest() == after.digest()
    assert root_path(8) == after.root_node.previous_root == after.root_node.rollback_from_root


def test_what_changes_no_object_stops_no_rollback(sound: Lakehouse) -> None:
    def maintain() -> None:
        compacted(reopened(sound))
        reopened(sound).create_snapshot("nightly")
        expire(reopened(sound), 2)

    plan = roll_back(sound, RecoveryTarget(3), maintain)
    assert 11 == plan.version_after
    after = sound.refresh()
    assert (["nightly"], 2) == ([each.name for each in after.snapshots()], after.root_node.oldest_version)
    assert after.at(version=3).digest() == after.digest()
    assert [] == list(after.check(definitions=True))


def test_a_snapshot_dropped_meanwhile_is_refused(sound: Lakehouse) -> None:
    sound.create_snapshot("mine", version=3)
    with pytest.raises(SnapshotNotFound, match="dropped in the meantime"):
        roll_back(sound, RecoveryTarget(snapshot="mine"), lambda: reopened(sound).drop_snapshot("mine"))


def test_expected_version_proves_a_plan_again(sound: Lakehouse) -> None:
    planned = sound.rollback(version=3, reason="r", dry_run=True).version
    compacted(reopened(sound))
    assert 9 == sound.rollback(version=3, reason="r", expected_version=planned).version_after
    drop(sound)
    with pytest.raises(PlanOutdated, match=r"version 10 \(commit by .*version 9 \(rollback by"):
        sound.rollback(version=3, reason="r", expected_version=planned)
    assert 11 == sound.rollback(version=3, reason="r", expected_version=planned, force=True).version_after


# -- restore -------------------------------------------------------------------------------------------


def labels(lake: Lakehouse) -> set[str]:
    return {each.namespace if each.name is None else f"{each.namespace}.{each.name}" for each in lake.objects()}


def test_exact_also_drops_what_did_not_exist_then(sound: Lakehouse) -> None:
    with sound.transaction() as txn:
        txn.create_namespace("late")
        txn.create_table("late", "one")
        txn.create_table("ns0", "late")
    sound.refresh()
    assert 0 == len(sound.restore(["ns0.*", "late*"], version=7, reason="r").changes)
    with pytest.raises(NamespaceNotEmpty, match=r"cannot be dropped without 'late.one'.*add the pattern 'late\.\*'"):
        sound.restore("late", version=7, reason="r", exact=True)
    assert {"removed": 3, "added": 0, "changed": 0} == sound.restore(
        ["ns0.*", "late*"], version=7, reason="r", exact=True
    ).counts
    assert sound.at(version=7).digest() == sound.refresh().digest()


def test_brackets_in_a_pattern_mean_themselves(sound: Lakehouse) -> None:
    with sound.transaction() as txn:
        txn.create_table("ns0", "a[1]")
        txn.create_table("ns0", "a1")
    drop(sound)
    assert ["ns0", "ns0.a[1]"] == sorted(
        each.namespace if each.name is None else f"{each.namespace}.{each.name}"
        for each in sound.restore("ns0.a[1]", version=8, reason="r").changes
    )


def test_a_table_put_into_a_namespace_that_a_restore_drops_is_a_conflict(sound: Lakehouse) -> None:
    with sound.transaction() as txn:
        txn.create_namespace("late")

    def meanwhile() -> None:
        with reopened(sound).transaction() as other:
            other.create_table("late", "one")

    with pytest.raises(CommitConflict, match=r"late\.one"):
        bring_back(sound, "late", meanwhile, exact=True)


# -- snapshots -----------------------------------------------------------------------------------------


def test_a_snapshot_outlives_its_version(sound: Lakehouse) -> None:
    digest = sound.at(version=3).digest()
    for kind in ("minimal", "partial"):
        sound.create_snapshot(kind, version=3, kind=kind)
    expire(sound, 6)
    for kind in ("minimal", "partial"):
        assert digest == sound.at(snapshot=kind).digest()
        sound.rollback(snapshot=kind, reason="r")
        assert digest == sound.refresh().digest()
    assert [] == list(sound.check(definitions=True))


def test_a_name_that_is_taken_leaves_no_file_behind(sound: Lakehouse) -> None:
    sound.create_snapshot("one")
    before = files_of(sound)
    for kind in ("minimal", "partial"):
        with pytest.raises(Exception, match="already exists"):
            sound.create_snapshot("one", kind=kind)
    assert before == files_of(sound)


# -- costs ---------------------------------------------------------------------------------------------


def test_a_rollback_costs_what_it_undoes_and_a_constant(tmp_path: Path) -> None:
    """However many versions lie in between, and however large the lakehouse is."""
    spent = []
    for number, versions in enumerate((30, 300)):
        lake = filled(new_lake(tmp_path / str(number)), tables=24, changes=4)
        for turn in range(versions):
            with lake.transaction() as txn:
                txn.alter_namespace("ns0", {"turn": str(turn)})
        lake = reopened(lake)
        before = lake.storage.counts.snapshot()
        lake.rollback(version=7, reason="r")
        spent.append(lake.storage.counts - before)
        assert spent[-1].get <= SINCE_SHOWN + 14
    assert spent[0].requests() == spent[1].requests()
    assert (1, 1) == (spent[0].create, spent[0].put)


@pytest.mark.slow
def test_a_rollback_holds_few_of_the_nodes_that_it_compares(tmp_path: Path) -> None:
    """Each of 400 nodes has a change: as Python texts they are more than 60 MB."""
    lake = build((tmp_path / "lake").as_uri(), 160_000)
    with lake.refresh().transaction() as txn:
        for number in range(0, 160_000, 100):
            txn.drop_table(*table_name(number, 160_000))
    lake.refresh()
    rollback = plan_rollback(lake.backend, RecoveryTarget(version=0), "r", force=False)
    tracemalloc.start()
    try:
        changes = sum(len(part) for part in rollback.changes_to_prove())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert 1_600 == changes
    assert peak < 40_000_000


def nodes(lake: Lakehouse) -> int:
    """Return how many nodes lie below the root."""
    return len(reached(lake)) - 1


def reached(lake: Lakehouse) -> set[str]:
    found, waiting = {lake.root_node.path}, [lake.root_node.node]
    while waiting:
        children = waiting.pop().children
        found.update(children)
        waiting += [lake.nodes.read(path) for path in children]
    return found


@pytest.mark.parametrize("compact", [True, False])
def test_a_difference_opens_at_most_three_times_the_nodes_that_differ(tmp_path: Path, compact: bool) -> None:
    lake = new_lake(tmp_path, order=16, target=16384)
    with lake.transaction() as txn:
        txn.create_namespace("ns")
        for number in range(4000):
            txn.put(lake.codec.table("ns", f"t{number:05}"), f"0000/0000/0000/00000000-{number}")
    compacted(lake)
    a = lake.refresh().version
    with lake.transaction() as txn:
        for number in range(0, 4000, 101):
            txn.put(lake.codec.table("ns", f"t{number:05}"), "0000/0000/0000/00000000-changed")
    if compact:
        compacted(lake)
    b = lake.refresh().version
    # without a compaction both trees share every node but the root; what differs is what the messages are for
    differ = reached(lake.at(version=a)) ^ reached(lake.at(version=b)) if compact else paths_to(lake.at(version=a), b)
    cold = reopened(lake)
    one, two = cold.at(version=a), cold.at(version=b)
    before = cold.storage.counts.snapshot()
    assert 40 == len(list(cold.diff(one, two)))
    opened = (cold.storage.counts - before).get
    assert opened <= 3 * len(differ)
    assert opened < nodes(lake.at(version=a)) / 2


def paths_to(lake: Lakehouse, version: int) -> set[str]:
    """Return the nodes on the way to the keys that a later version has messages for."""
    found = set()
    for key in lake.at(version=version).root_node.node.pending.keys:
        node = lake.root_node.node
        while node.children and node.position(key) is None:
            path = node.children[node.child_index(key)]
            found.add(path)
            node = lake.nodes.read(path)
    return found


@pytest.fixture
def dotted(tmp_path: Path) -> Lakehouse:
    """Return a lakehouse with names of dots and stars, all dropped since version 1."""
    lake = Lakehouse.create((tmp_path / "dotted").as_uri())
    with lake.transaction() as txn:
        for namespace in ("a", "a.b", "*"):
            txn.create_namespace(namespace)
        for namespace, name in (("a", "b.c"), ("a.b", "c"), ("a", "b"), ("*", "*"), ("a", "x")):
            txn.create_table(namespace, name)
    with lake.refresh().transaction() as txn:
        for namespace in ("a", "a.b", "*"):
            txn.drop_namespace(namespace, cascade=True)
    return lake.refresh()


@pytest.mark.parametrize("pattern", ["a.b.c", "a.b"])
def test_a_name_that_may_mean_several_objects_is_refused(dotted: Lakehouse, pattern: str) -> None:
    """The message holds patterns that mean one each."""
    with pytest.raises(InvalidInput, match="is ambiguous; write one of ") as refused:
        dotted.restore(pattern, version=1, reason="r", dry_run=True)
    for each in re.findall(r"'([^']+)' \(", str(refused.value)):
        text = each.replace("\\\\", "\\")
        assert 1 <= len(dotted.restore(text, version=1, reason="r", dry_run=True).changes) <= 2
    with pytest.raises(InvalidInput, match="ends in a backslash"):
        dotted.restore("a\\", version=1, reason="r")


@given(
    st.text(st.sampled_from("ab.*?\\"), min_size=1, max_size=6),
    st.none() | st.text(st.sampled_from("ab.*?\\"), min_size=1),
)
def test_an_exact_pattern_matches_its_object_and_no_other(namespace: str, name: str | None) -> None:
    pattern = Pattern(exactly(namespace, name))
    assert pattern.is_plain
    assert pattern.matches(namespace, name)
    assert {(namespace, name)} == {(each.namespace, each.name) for each in pattern.readings()}
    assert not pattern.matches(f"{namespace}a", name)
    whole = namespace if name is None else f"{namespace}.{name}"
    others = [(whole[:at], whole[at + 1 :]) for at, each in enumerate(whole) if each == "."] + [(whole, None)]
    assert [] == [other for other in others if other != (namespace, name) and pattern.matches(*other)]

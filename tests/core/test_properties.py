"""Properties of a lakehouse that exists: set, removed, kept through lost races and rollbacks."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines import clean, expire
from tests.support.lakes import new_lake, reopened
from trinitylake_core import InvalidInput, Lakehouse, Refused, spec
from trinitylake_core.errors import InvalidDefinition

GUARD = "maintenance.delete.enabled"


@pytest.fixture
def lake(tmp_path: Path) -> Lakehouse:
    """A lakehouse with two properties and one namespace, at version 1."""
    made = new_lake(tmp_path, properties={"owner": "emea", "tier": "gold"})
    with made.transaction() as txn:
        txn.create_namespace("ns")
    return made.refresh()


def properties(lake: Lakehouse) -> dict[str, str]:
    return dict(reopened(lake).definition.properties)


def test_properties_are_set_and_removed_by_a_version_of_their_own(lake: Lakehouse) -> None:
    done = lake.alter({"owner": "apac", "tier": None, "new": "x"}, reason="moved")
    assert {"owner": ("emea", "apac"), "tier": ("gold", None), "new": (None, "x")} == done.changes
    assert {"owner": "apac", "new": "x"} == done.properties == properties(lake)
    info = reopened(lake).info()
    assert (2, spec.OP_ALTER, "moved", 0) == (info.version, info.operation, info.reason, info.changes)
    assert (1, 2) == (done.version, done.version_after)
    assert [] == list(reopened(lake).check(definitions=True))


def test_a_dry_run_and_what_changes_nothing_write_nothing(lake: Lakehouse) -> None:
    planned = lake.alter({"owner": "apac"}, dry_run=True)
    assert ({"owner": ("emea", "apac")}, None, {"owner": "apac", "tier": "gold"}) == (
        planned.changes,
        planned.version_after,
        planned.properties,
    )
    again = lake.alter({"owner": "emea", "gone": None})
    assert ({}, None, 1) == (again.changes, again.version_after, reopened(lake).version)
    with pytest.raises(InvalidInput, match="at least one property"):
        lake.alter({})
    with pytest.raises(InvalidDefinition):
        lake.alter({"owner": 7})  # type: ignore[dict-item]
    assert 1 == reopened(lake).version


def test_after_a_lost_race_both_changes_are_there(lake: Lakehouse) -> None:
    """Another `alter`, a snapshot and a commit come first; neither they nor this one notice."""
    other = reopened(lake)
    open_txn = reopened(lake).transaction(isolation="SERIALIZABLE")
    open_txn.namespaces()
    open_txn.create_namespace("late")

    def others() -> None:
        if other.refresh().version == 1:
            other.alter({"theirs": "t", "owner": "theirs"})
            other.create_snapshot("between")
            with other.transaction() as txn:
                txn.create_table("ns", "t")

    done = lake.alter({"owner": "ours"}, before_commit=others)
    assert 5 == done.version_after
    newest = reopened(lake)
    assert {"owner": "ours", "theirs": "t", "tier": "gold"} == dict(newest.definition.properties) == done.properties
    assert (["between"], ["t"]) == ([each.name for each in newest.snapshots()], newest.tables("ns"))
    assert 6 == open_txn.commit()


def test_the_delete_guard_of_a_lakehouse_that_exists_can_be_set_and_lifted(lake: Lakehouse) -> None:
    lake.alter({GUARD: "false"}, reason="audit")
    for job in (expire, clean):
        with pytest.raises(Refused, match=GUARD):
            job.run(reopened(lake), job.Config(engine="local"))
    lake.alter({GUARD: None})
    for job in (expire, clean):
        job.run(reopened(lake), job.Config(engine="local"))


@pytest.mark.parametrize("snapshots", [False, True])
def test_a_rollback_to_before_the_guard_does_not_lift_it(lake: Lakehouse, snapshots: bool) -> None:
    """Nor does one to before it was lifted set it again; other properties are rolled back."""
    lake.alter({GUARD: "false", "owner": "apac"})
    if snapshots:
        lake.create_snapshot("kept")
    lake.rollback(version=1, reason="bad deploy")
    assert {GUARD: "false", "owner": "emea", "tier": "gold"} == properties(lake)
    guarded = reopened(lake).version
    lake.alter({GUARD: None})
    lake.rollback(version=guarded, reason="again", force=True)
    assert {"owner": "emea", "tier": "gold"} == properties(lake)
    assert [] == list(reopened(lake).check(definitions=True))


def test_a_change_of_properties_does_not_make_a_plan_outdated(lake: Lakehouse) -> None:
    with lake.transaction() as txn:
        txn.create_table("ns", "t")
    planned = lake.refresh().rollback(version=1, reason="r", dry_run=True)
    lake.alter({"owner": "apac"})
    done = lake.rollback(version=1, reason="r", expected_version=planned.version)
    assert 4 == done.version_after

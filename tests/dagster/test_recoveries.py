"""Undo from the launchpad: found by author or text, shown, approved, carried out. Others: test_operations."""

from __future__ import annotations

import dagster as dg

from dagster_project.config.settings import LakehouseSettings
from tests.dagster.test_operations import failure, launched, told
from trinitylake_core import Lakehouse


def test_an_undo_finds_what_somebody_did_and_takes_back_the_plan_that_was_approved(
    local: LakehouseSettings, deployed: Lakehouse, instance: dg.DagsterInstance
) -> None:
    """By author: the dry run names the two versions and the two tables; approved by version, it commits one."""
    newest, first = deployed.version, deployed.version - 2
    wanted = {"author": "deploy-bot@*", "reason": "bad deploy"}
    plan = told(launched(local, "undo", instance, **wanted))
    assert [newest, first] == [row["version"] for row in plan["found"]]
    assert [("added", "sales.t0_1"), ("added", "sales.t0_2")] == [
        (row["change"], row["name"]) for row in plan["changes"]
    ]
    assert (newest, first - 1) == (plan["plan_version"], plan["plan_target_version"])
    assert f"expected_version: {newest}" in plan["carry_out"]
    assert newest == deployed.refresh().version
    done = told(launched(local, "undo", instance, **wanted, dry_run=False, expected_version=newest))
    assert newest + 1 == done["version_after"] == deployed.refresh().version
    assert deployed.at(version=first - 1).digest() == deployed.digest()
    assert ("rollback", "bad deploy") == (deployed.info().operation, deployed.info().reason)


def test_an_undo_stops_at_the_commits_of_others(
    local: LakehouseSettings, deployed: Lakehouse, instance: dg.DagsterInstance
) -> None:
    """The dry run shows them; without ``others`` nothing happens, and an outdated plan is refused with it, too."""
    approved = deployed.version
    with deployed.transaction(reason="meanwhile") as txn:
        txn.create_table("sales", "hers")
    wanted = {"matching": "DEPLOY", "reason": "bad deploy"}
    plan = told(launched(local, "undo", instance, **wanted))
    assert ["ada@oncall"] == [row["author"] for row in plan["of_others"]]
    assert "others: true" in plan["carry_out"]
    said = failure(launched(local, "undo", instance, **wanted, dry_run=False)).description
    assert "others committed after version" in said
    assert "others: true" in said
    late = launched(local, "undo", instance, **wanted, others=True, dry_run=False, expected_version=approved)
    assert "make a new plan with `dry_run: true`" in failure(late).description
    assert approved + 1 == deployed.refresh().version


def test_a_restore_says_first_what_to_launch_next(
    local: LakehouseSettings, deployed: Lakehouse, instance: dg.DagsterInstance
) -> None:
    """Outcome and next step come before the tables; where nothing would change there is no next step."""
    newest, wanted = deployed.version, {"version": deployed.version - 3, "reason": "bad deploy"}
    plan = told(launched(local, "restore", instance, **wanted, only=["sales.t0_1"]))
    assert ["outcome", "carry_out"] == list(plan)[:2]
    assert f"expected_version: {newest}" in plan["carry_out"]
    assert f"as they were in version {newest - 3} of" in plan["outcome"]
    nothing = told(launched(local, "restore", instance, **wanted, only=["sales.t1_1"]))
    assert "nothing to do" in nothing["outcome"]
    assert "carry_out" not in nothing

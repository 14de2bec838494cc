"""History and difference from the launchpad, as tables. The job `verify` is in test_operations."""

from __future__ import annotations

from pathlib import Path

import dagster as dg

from dagster_project.config.settings import LakehouseSettings
from tests.dagster.test_operations import launched, told
from trinitylake_core import Lakehouse


def test_a_history_is_a_table_of_what_was_asked_for(
    local: LakehouseSettings, deployed: Lakehouse, instance: dg.DagsterInstance
) -> None:
    all_of_it = told(launched(local, "history", instance))
    assert (deployed.version + 1, deployed.version) == (all_of_it["versions"], all_of_it["version"])
    assert [each.version for each in deployed.history()] == [row["version"] for row in all_of_it["history"]]
    of_the_bot = told(launched(local, "history", instance, author="deploy-bot@*", since="1h", limit=1))
    assert ["nightly deploy, step 2"] == [row["reason"] for row in of_the_bot["history"]]
    assert of_the_bot["more"]
    nothing = told(launched(local, "history", instance, operations=["rollback"]))
    assert (0, False) == (nothing["versions"], "history" in nothing)


def test_a_difference_is_counted_and_shown_as_a_table(
    local: LakehouseSettings, deployed: Lakehouse, tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    """Versions are named as on the command line; also against another lakehouse, the backup above all."""
    found = told(launched(local, "diff", instance, before="HEAD~3", limit=1))
    assert (deployed.version - 3, deployed.version) == (found["a"], found["b"])
    assert (0, 2, 0) == tuple(found[f"counts_{what}"] for what in ("added", "removed", "changed"))
    assert [("removed", "sales.t0_1")] == [(row["change"], row["name"]) for row in found["changes"]]
    assert "0 added, 2 removed, 0 changed" in found["outcome"]
    copy = (tmp_path / "copy").as_uri()
    told(launched(local, "export", instance, target=copy))
    same = told(launched(local, "diff", instance, before="HEAD", other=copy))
    assert ("no differences", f"{copy}/") == (same["outcome"], same["other"])

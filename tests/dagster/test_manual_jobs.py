"""The jobs that people launch by hand, executed by Dagster; each launchpad is checked before there is a run."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml
from dagster._utils.error import serializable_error_info_from_exc_info

from dagster_project.checks import evaluate_freeze
from dagster_project.config.settings import Backup, Export, LakehouseSettings
from dagster_project.factory import define_lakehouses
from dagster_project.metadata import reports
from dagster_project.resources import SparkResource
from pipelines import export
from pipelines.export import Unreadable
from tests.dagster.test_assets import STEP, node_file
from tests.support.lakes import compacted, reopened
from tests.support.surgery import directory_of
from trinitylake_core import Lakehouse, LakehouseFrozen
from trinitylake_core.locations import root_path


def launched(
    settings: LakehouseSettings, job: str, instance: dg.DagsterInstance, **config: Any
) -> dg.ExecuteInProcessResult:
    """Run a job as the launchpad does: what it is filled in with, and some of it changed."""
    defs = define_lakehouses((settings,), spark=SparkResource(keep_running=True))
    resolved = defs.resolve_job_def(f"sales_eu_{job}")
    step = f"{STEP}{job}"
    filled_in = resolved.run_config["ops"][step]["config"]
    run_config = {"ops": {step: {"config": {**filled_in, **config}}}}
    return resolved.execute_in_process(instance=instance, run_config=run_config, raise_on_error=False)


def values(metadata: Any) -> dict[str, Any]:
    """Return metadata as plain values, tables as rows."""
    return {
        name: [record.data for record in each.records] if isinstance(each, dg.TableMetadataValue) else each.value
        for name, each in metadata.items()
    }


def told(result: dg.ExecuteInProcessResult) -> dict[str, Any]:
    """Return the metadata of a job: of its one step, or of the one that acted after it showed the plan."""
    assert result.success
    outputs = [each for each in result.all_node_events if each.event_type_value == "STEP_OUTPUT"]
    (event,) = [each for each in outputs if each.step_output_data.output_name != "approved"]
    return values(event.step_output_data.metadata)


def failure(result: dg.ExecuteInProcessResult) -> Any:
    """Return what a failed job says, and shows."""
    assert not result.success
    (event,) = result.get_step_failure_events()
    return event.step_failure_data.user_failure_data


def refused(settings: LakehouseSettings, job: str, instance: dg.DagsterInstance, **config: Any) -> str:
    """Return what the code server says when somebody launches this: it makes no plan, so there is no run."""
    with pytest.raises(dg.DagsterInvalidConfigError) as told_what:
        launched(settings, job, instance, **config)
    assert 0 == instance.get_runs_count()
    return str(told_what.value)


def test_a_rollback_shows_its_plan_and_then_carries_it_out(
    local: LakehouseSettings, lake: Lakehouse, instance: dg.DagsterInstance
) -> None:
    """A dry run unless said otherwise; every change in a table, the log tells them; then one commit."""
    version = lake.version
    looked = launched(local, "rollback", instance, version=version - 1, reason="bad deploy")
    plan = told(looked)
    assert (version, version) == (lake.refresh().version, plan["plan_version"])
    assert [("removed", f"sales.t5_{n}") for n in range(10)] == [
        (row["change"], row["name"]) for row in plan["changes"]
    ]
    assert [version] == [row["version"] for row in plan["undone"]]
    assert f"expected_version: {version}" in plan["carry_out"]
    logged = "\n".join(entry.user_message for entry in instance.all_logs(looked.run_id))
    assert "removed table sales.t5_0" in logged

    target = {"version": version - 1, "reason": "bad deploy", "expected_version": version}
    done = told(launched(local, "rollback", instance, **target, dry_run=False))
    newest = next(lake.refresh().history(limit=1))
    assert (version + 1, "rollback", "bad deploy") == (newest.version, newest.operation, newest.reason)
    assert (version + 1, plan["changes"], "local") == (done["version_after"], done["changes"], done["engine"])
    assert lake.at(version=version - 1).digest() == lake.digest()

    outdated = failure(launched(local, "rollback", instance, **target | {"version": 0}, dry_run=False))
    assert "make a new plan with `dry_run: true`" in outdated.description


def test_a_version_that_does_not_exist_fails_with_advice(
    local: LakehouseSettings, lake: Lakehouse, instance: dg.DagsterInstance
) -> None:
    told_what = failure(launched(local, "rollback", instance, reason="x", version=999, dry_run=False))
    assert "lists the versions and snapshots that exist" in told_what.description
    assert lake.version == lake.refresh().version


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("rollback", {"version": 1}, "reason"),
    ("rollback", {"reason": "  ", "version": 1}, "reason"),
    ("rollback", {"reason": "x"}, "one of version, timestamp and snapshot"),
    (
        "rollback",
        {"reason": "x", "version": 1, "timestamp": "2026-11-20"},
        "one of version, timestamp and snapshot",
    ),
    ("rollback", {"reason": "x", "timestamp": "yesterday"}, "'yesterday' is not an ISO 8601 time"),
    ("rollback", {"reason": "x", "version": 1, "engine": "magic"}, "engine not in enum type Engine got magic"),
    ("restore", {"version": 1, "reason": "x"}, "say which objects to restore"),
    ("restore", {"only": ["sales.*"], "version": 1}, "a reason is required"),
    ("restore", {"only": ["sales.*"], "reason": "x"}, "one of version, timestamp and snapshot"),
    ("restore", {"only": ["sales.*"], "reason": "x", "source": "nowhere"}, "nowhere"),
    ("mend", {"lost": [1]}, "a reason is required"),
    ("mend", {"reason": "x", "source": "s3://elsewhere/x"}, "is not a place that lakehouses.yaml"),
    ("undo", {"reason": "x"}, "undo needs at least one of"),
    ("undo", {"author": "bot"}, "a reason is required"),
    ("undo", {"since": "15 min ago", "reason": "x"}, "is not an ISO 8601 time"),
    ("history", {"limit": 0}, "limit must be from 1 to 1000"),
    ("history", {"since": "last week"}, "is not an ISO 8601 time"),
    ("history", {"operations": ["comit"]}, "unknown comit; there are create, commit"),
    ("diff", {"before": " "}, "say which version to compare"),
    ("diff", {"limit": 100_000}, "limit must be from 1 to 1000"),
    ("export", {}, "`target` is required"),
    ("export", {"target": "nowhere"}, "nowhere"),
    ("export", {"target": "file:///elsewhere/copy"}, "is not a place that lakehouses.yaml names"),
    ("upgrade", {"target": "s3://elsewhere/copy"}, "is not a place that lakehouses.yaml names"),
    (
        "restore",
        {"only": ["*"], "reason": "x", "source": "s3://elsewhere/x"},
        "is not a place that lakehouses.yaml",
    ),
    ("diff", {"other": "s3://elsewhere/x"}, "is not a place that lakehouses.yaml names"),
    ("upgrade", {}, "`target` is required"),
    ("upgrade", {"target": "file:///x/y", "definition": {"odrer": 9}}, "unknown field odrer"),
    ("verify", {"versions": "some"}, "versions must be"),
    ("alter", {"properties": {"a": "b"}}, "a reason is required"),
    ("alter", {"properties": {"a": "b"}, "remove": ["a"], "reason": "x"}, "either a value or `remove`"),
]


def test_every_launchpad_is_checked_before_there_is_a_run(
    local: LakehouseSettings, instance: dg.DagsterInstance
) -> None:
    for job, config, said in REFUSED:
        told_what = refused(local, job, instance, **config)
        assert said in told_what, (job, config)
        assert "enum" in said or (f"sales_eu_{job}" in told_what and "Correct the run configuration" in told_what)


def test_an_export_is_a_lakehouse_of_its_own(
    local: LakehouseSettings, lake: Lakehouse, tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    """To the target that lakehouses.yaml names; repeated, it copies nothing again."""
    target = (tmp_path / "copy").as_uri() + "/"
    backed_up = local.model_copy(update={"export": local.export.model_copy(update={"target": target})})
    done = told(launched(backed_up, "export", instance))
    assert (target, lake.version, "local") == (done["target"], done["plan_version"], done["plan_engine"])
    assert lake.digest() == Lakehouse.open(target).digest()
    again = told(launched(backed_up, "export", instance))
    assert (0, 0) == (again["definitions_copied"], again["nodes_copied"])


def test_verify_lists_what_is_broken(local: LakehouseSettings, lake: Lakehouse, instance: dg.DagsterInstance) -> None:
    found = told(launched(local, "verify", instance, versions="all"))
    assert (0, lake.version + 1, "local") == (found["findings"], found["versions"], found["engine"])
    node_file(lake).write_bytes(b"garbage")
    broken = failure(launched(local, "verify", instance))
    assert "roll back to an intact version" in broken.description
    assert lake.root_node.node.children[0] in {row["file"] for row in values(broken.metadata)["violations"]}


def test_a_refusal_speaks_of_the_launchpad_and_shows_no_stack(
    local: LakehouseSettings, lake: Lakehouse, instance: dg.DagsterInstance
) -> None:
    """Its cause is no second error below it, and its options are fields."""
    planned = lake.refresh().version
    with reopened(lake).transaction() as txn:
        txn.create_namespace("another")
    result = launched(local, "rollback", instance, version=1, reason="r", expected_version=planned, dry_run=False)
    said = str(failure(result).description)
    assert (True, True, False) == ("`force: true`" in said, "a new plan with `dry_run: true`" in said, "--" in said)
    (event,) = result.get_step_failure_events()
    error = event.step_failure_data.error
    assert error is not None
    assert (None, False) == (error.cause, "rolled_back.py" in error.to_string())


def test_the_history_names_the_person_who_launched_a_job(
    local: LakehouseSettings, lake: Lakehouse, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = {"properties": {"a": "b"}, "reason": "r"}
    monkeypatch.delenv("TRINITYLAKE_AUTHOR")
    assert "`launched_by` is required" in refused(local, "alter", instance, **wanted, dry_run=False)
    told(launched(local, "alter", instance, **wanted))  # a plan is recorded nowhere
    told(launched(local, "alter", instance, **wanted, launched_by="ada", dry_run=False))
    assert "ada" == lake.refresh().info().author


def test_what_is_refused_before_a_launch_is_a_sentence_without_a_stack(
    local: LakehouseSettings, lake: Lakehouse, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The code server hands it on as it is, and so does the webserver: the field, and what is wrong with it."""
    monkeypatch.delenv("TRINITYLAKE_AUTHOR")
    try:
        launched(local, "rollback", instance, version=1, reason="r", dry_run=False)
    except dg.DagsterInvalidConfigError:
        served = serializable_error_info_from_exc_info(sys.exc_info())
    expected = "sales_eu_rollback: `launched_by` is required: who launches this, for the history."
    assert (expected, [], None) == (served.message.splitlines()[0], served.stack, served.cause)
    assert 0 == instance.get_runs_count()


def test_a_version_is_a_number_or_a_text_as_on_the_command_line(
    local: LakehouseSettings, lake: Lakehouse, instance: dg.DagsterInstance
) -> None:
    """``HEAD~1``, a snapshot, a time or an age; something else is refused before there is a run."""
    for wrong in (True, 1.5, [3], " "):
        assert "version must be a number, HEAD, HEAD~3" in refused(
            local, "rollback", instance, version=wrong, reason="r"
        )
    newest = lake.version
    lake.create_snapshot("good", version=2)
    then = lake.at(version=4).info().created_at.isoformat()
    meant: dict[int | str, int] = {"HEAD~1": newest, 3: 3, "3": 3, "good": 2, then: lake.at(timestamp=then).version}
    for version, number in meant.items():
        plan = told(launched(local, "rollback", instance, version=version, reason="r"))
        assert number == plan["plan_target_version"], version
    back = told(launched(local, "rollback", instance, timestamp="HEAD~1", reason="r"))
    assert newest == back["plan_target_version"]
    aged = failure(launched(local, "rollback", instance, timestamp="-2h", reason="r"))
    assert "the lakehouse was created later" in aged.description
    old = told(launched(local, "restore", instance, only=["sales.*"], version="HEAD~2", reason="r"))
    assert newest - 1 == old["plan_target_version"]


def test_a_lakehouse_is_frozen_and_thawed_from_the_launchpad(
    local: LakehouseSettings, lake: Lakehouse, instance: dg.DagsterInstance
) -> None:
    """Writers are refused, the check warns with the reason, and a rollback goes on."""
    runs = instance.get_runs_count()
    with pytest.raises(dg.DagsterInvalidConfigError, match="a reason is required"):
        launched(local, "freeze", instance, reason="")
    with pytest.raises(dg.DagsterInvalidConfigError, match="not a valid age"):
        launched(local, "freeze", instance, reason="r", lasts="soon")
    assert runs == instance.get_runs_count()
    done = told(launched(local, "freeze", instance, reason="incident 4711", lasts="2h"))
    assert "incident 4711" in str(done["outcome"])
    with pytest.raises(LakehouseFrozen, match="incident 4711"), reopened(lake).transaction() as txn:
        txn.create_namespace("new")
    found = evaluate_freeze(reopened(lake))
    assert (False, True) == (found.passed, "incident 4711" in str(found.description))
    told(launched(local, "rollback", instance, version=1, reason="r", dry_run=False))
    assert reopened(lake).frozen is not None
    told(launched(local, "thaw", instance, reason="over"))
    assert evaluate_freeze(reopened(lake)).passed


@pytest.mark.parametrize("damage", ["root", "node"])
def test_a_rollback_leaves_a_damaged_newest_version(
    local: LakehouseSettings, lake: Lakehouse, instance: dg.DagsterInstance, damage: str
) -> None:
    """From the launchpad alone: the plan says what it could not compare, and what to launch next; then that."""
    compacted(lake)
    lake.refresh()
    digest, version = lake.at(version=lake.version - 1).digest(), lake.version
    older = lake.at(version=version - 1).root_node.node.children
    new = [path for path in lake.root_node.node.children if path not in older]
    path = lake.root_node.path if damage == "root" else new[0]
    file = directory_of(lake) / path
    file.write_bytes(file.read_bytes()[:200])
    broken = failure(launched(local, "verify", instance))
    assert path in [row["file"] for row in values(broken.metadata)["violations"]]
    target = {"version": version - 1, "reason": "damaged"}
    plan = told(launched(local, "rollback", instance, **target))
    assert [path] == [row["file"] for row in plan["not_compared"]]
    assert f"expected_version: {version}" in plan["carry_out"]
    done = told(launched(local, "rollback", instance, **target, expected_version=version, dry_run=False))
    after = Lakehouse.open(lake.root)
    assert (version + 1, digest) == (done["version_after"], after.digest())
    assert [] == list(after.check(definitions=True))


def test_a_backup_names_the_versions_that_it_could_not_copy() -> None:
    """In the sentence that people read first, and as a field."""
    gone = [Unreadable(version, root_path(version), "Not an Arrow file", at_target=False) for version in (3, 7)]
    plan = export.Plan(9, 0, "local", 1, 1, 10, 100, 0, 0, 0, None, gone)
    shown = reports.of_report(export.Report("file:///a/", "file:///b/", dry_run=False, plan=plan))
    assert [3, 7] == [
        int(each) for each in re.findall(r"version (\d+) cannot be copied: Not an Arrow", shown["outcome"])
    ]
    assert 2 == shown["plan_unreadable"]
    whole = reports.of_report(export.Report("a", "b", dry_run=False, plan=replace(plan, unreadable=[])))
    assert (0, False) == (whole["plan_unreadable"], "cannot be copied" in whole["outcome"])


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
    local = local.model_copy(update={"export": Export(allowed=(tmp_path.as_uri(),))})
    outside = f"{tmp_path.as_uri()}-other/copy"
    assert "is not a place" in refused(local, "export", instance, target=outside)
    found = told(launched(local, "diff", instance, before="HEAD~3", limit=1))
    assert (deployed.version - 3, deployed.version) == (found["a"], found["b"])
    assert (0, 2, 0) == tuple(found[f"counts_{what}"] for what in ("added", "removed", "changed"))
    assert [("removed", "sales.t0_1")] == [(row["change"], row["name"]) for row in found["changes"]]
    assert "0 added, 2 removed, 0 changed" in found["outcome"]
    copy = (tmp_path / "copy").as_uri()
    told(launched(local, "export", instance, target=copy))
    same = told(launched(local, "diff", instance, before="HEAD", other=copy))
    assert ("no differences", f"{copy}/") == (same["outcome"], same["other"])


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


@pytest.mark.parametrize(
    ("job", "config"),
    [
        ("rollback", {"version": "HEAD~1", "launched_by": "ada"}),
        ("rollback", {"timestamp": "HEAD~2", "force": True}),
        ("rollback", {"version": 0}),
        ("restore", {"version": "HEAD~3", "only": ["sales.t0_1"], "exact": True}),
        ("undo", {"since": "HEAD~1"}),
    ],
)
def test_a_plan_shows_the_exact_configuration_that_carries_it_out(
    job: str, config: dict[str, Any], local: LakehouseSettings, deployed: Lakehouse, instance: dg.DagsterInstance
) -> None:
    """It is copied into the launchpad; a compaction in between shifts what ``HEAD~1`` means, and not what is done."""
    plan = told(launched(local, job, instance, **config, reason="bad deploy"))
    assert ["outcome", "carry_out", "configuration"] == list(plan)[:3]
    (shown,) = yaml.safe_load(plan["configuration"])["ops"].values()
    assert shown["config"].keys() <= config.keys() | {"version", "reason", "dry_run", "expected_version"}
    compacted(deployed)
    resolved = define_lakehouses((local,)).resolve_job_def(f"sales_eu_{job}")
    done = told(resolved.execute_in_process(instance=instance, run_config=yaml.safe_load(plan["configuration"])))
    target = plan["plan_target_version"]
    assert (target, "bad deploy") == (done["plan_target_version"], deployed.refresh().info().reason)
    if job != "restore":
        assert deployed.digest() == deployed.at(target).digest()


def test_what_a_plan_offers_is_taken_as_it_is_by_whomever_it_was_made(
    local: LakehouseSettings, deployed: Lakehouse, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``launched_by`` was missing, where nobody had named himself for the plan."""
    monkeypatch.delenv("TRINITYLAKE_AUTHOR")
    plan = told(launched(local, "undo", instance, last=True, reason="bad deploy"))
    offered = yaml.safe_load(plan["configuration"])["ops"][f"{STEP}undo"]["config"]
    assert "not named, by the plan of run" in offered["launched_by"]
    assert "committed" in told(launched(local, "undo", instance, **offered))["outcome"]


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


def test_mend_puts_a_damaged_file_back_from_the_backup_of_lakehouses_yaml(
    local: LakehouseSettings, lake: Lakehouse, tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    """The runbook begins with it: first the plan, then the same with ``dry_run: false``; what no copy has is named."""
    backup = Backup(target=(tmp_path / "copy").as_uri())
    backed_up = local.model_copy(update={"backup": backup})
    export.run(lake, backup.target, export.Config(history=True, engine="local"))
    damaged = node_file(lake)
    whole = damaged.read_bytes()
    damaged.write_bytes(b"garbage")
    plan = told(launched(backed_up, "mend", instance, reason="disk error"))
    assert ([lake.root_node.node.children[0]], b"garbage") == (
        [row["file"] for row in plan["put_back"]],
        damaged.read_bytes(),
    )
    done = told(launched(backed_up, "mend", instance, reason="disk error", dry_run=False))
    assert (plan["put_back"], 0, whole) == (done["put_back"], done["left"], damaged.read_bytes())
    for file in (damaged, tmp_path / "copy" / lake.root_node.node.children[0]):
        file.write_bytes(b"garbage")
    left = failure(launched(backed_up, "mend", instance, reason="disk error", dry_run=False))
    assert [lake.root_node.node.children[0]] == [row["file"] for row in values(left.metadata)["still_damaged"]]


def test_recovery_waits_for_no_maintenance(settings: LakehouseSettings) -> None:
    """No step of it takes the pool, which maintenance may hold for hours, and it leaves the queue first."""
    definitions = define_lakehouses((settings,))
    later = definitions.resolve_job_def("sales_eu_maintenance").tags.get("dagster/priority", "0")
    for name in ("mend", "rollback", "restore", "undo", "freeze", "thaw", "alter"):
        job = definitions.resolve_job_def(f"sales_eu_{name}")
        pools = {node.definition.name: node.definition.pool for node in job.graph.nodes}  # type: ignore[attr-defined]
        assert {f"{STEP}{name}": None} == pools
        assert name in {"mend", "alter"} or int(job.tags["dagster/priority"]) > int(later)

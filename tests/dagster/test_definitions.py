"""What Dagster loads: quickly, silently, touching no storage; and the names of everything in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml

from dagster_project import config, factory
from dagster_project.config.settings import LakehouseSettings
from dagster_project.factory import define_lakehouses

ROOT = Path(__file__).parent.parent.parent
TWO = """
lakehouses:
  - name: sales
    root: s3://nowhere/sales
    storage_options: {secret: {env: NOT_SET_ANYWHERE}}
    owners: ["team:data"]
    schedules: {maintenance: "0 3 * * *"}
    snapshots: {daily: {keep: 14}}
    retention: {keep_last: 50, older_than: 3d}
    backup: {target: s3://nowhere/backup-of-sales, storage_options: {secret: {env: NOT_SET_ANYWHERE}}}
    orphans: {older_than: 4d}
    export: {target: s3://nowhere/backup, storage_options: {secret: {env: NOT_SET_ANYWHERE}}}
  - name: web-logs
    root: file:///nowhere/logs
    compaction: {enabled: false}
"""
ORDER = ("lakehouse_definition", "tree_health", "tree_compaction", "root_version_snapshots")
CHECKS = (
    "lakehouse_definition:not_frozen",
    "tree_health:integrity",
    "tree_health:reachable",
    "tree_compaction:compaction_debt",
    "tree_compaction:compaction_fresh",
)
JOBS = (
    "alter", "compaction", "diff", "export", "freeze", "history", "maintenance", "mend", "restore", "rollback", "thaw",
    "undo", "upgrade", "verify",
)  # fmt: skip
LOADS = """
import json, socket, sys
from trinitylake_core.storage.base import BaseStorage

def explode(*args, **kwargs):
    raise AssertionError("storage or network was touched")

BaseStorage.__init__ = explode
socket.socket.connect = explode
from dagster_project.definitions import defs
defs.get_repository_def()
costly = {"aiobotocore", "botocore", "duckdb", "obstore", "pandas", "pyiceberg", "pyspark", "s3fs", "starlette"}
print(json.dumps(sorted(costly & sys.modules.keys())))
"""


def test_definitions_load_quickly_silently_and_touch_nothing(tmp_path: Path) -> None:
    """Warnings are errors, storage and network explode, and what takes seconds to import is not imported."""
    path = tmp_path / "lakehouses.yaml"
    path.write_text(TWO)
    env = os.environ | {config.ENV_FILE: str(path), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "error", "-c", LOADS]
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert ("", 0) == (done.stderr, done.returncode)
    assert [] == json.loads(done.stdout)


def test_dagster_finds_nothing_to_complain_about(tmp_path: Path) -> None:
    """Dagster's own validation, and no warning but its own, that the command has a newer name."""
    path = tmp_path / "lakehouses.yaml"
    path.write_text(TWO)
    env = os.environ | {config.ENV_FILE: str(path), "DAGSTER_HOME": str(tmp_path), "PYTHONWARNINGS": "default"}
    (tmp_path / "dagster.yaml").write_text((ROOT / "dagster_project/dagster.yaml").read_text())
    command = [sys.executable, "-m", "dagster", "definitions", "validate", "-w", "workspace.yaml"]
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    said = done.stdout + done.stderr
    assert (0, True) == (done.returncode, "All code locations passed validation" in said), said
    warned = [line for line in said.splitlines() if "Warning" in line]
    assert [] == [line for line in warned if "dagster" in line and "SupersessionWarning" not in line]


@pytest.mark.parametrize("file", ["dagster_project/dagster.yaml", "deploy/dagster.yaml"])
def test_lakehouses_are_polled_side_by_side(file: str) -> None:
    """One whose storage hangs would otherwise delay the polls of all others by 20 s each."""
    shown = yaml.safe_load((ROOT / file).read_text())
    assert all(shown[each]["use_threads"] and shown[each]["num_workers"] > 1 for each in ("sensors", "schedules"))


def test_ticks_of_many_lakehouses_share_a_tenth_of_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """But where a stanza says how often."""
    monkeypatch.setattr(factory, "TICK_EVERY", timedelta(seconds=90))
    known = [LakehouseSettings(name=name, root=f"file:///{name}") for name in "ab"]
    known.append(LakehouseSettings.model_validate({"name": "c", "root": "file:///c", "compaction": {"poll": "60s"}}))
    defs = define_lakehouses(tuple(known)).get_repository_def()
    every = [defs.get_sensor_def(f"{each.name}_compaction_sensor").minimum_interval_seconds for each in known]
    assert [270, 270, 60] == every


def test_the_example_in_the_repository_is_valid() -> None:
    assert ["demo"] == [each.name for each in config.load(ROOT / "lakehouses.yaml").lakehouses]


def test_the_stanzas_that_are_shown_are_valid() -> None:
    """The one that the repository's file has in comments, and that of docs/dagster.md."""
    commented = (ROOT / "lakehouses.yaml").read_text().replace("\n  # - ", "\n  - ").replace("\n  #   ", "\n    ")
    assert ["demo", "sales"] == [each.name for each in config.parse(commented, ROOT / "lakehouses.yaml").lakehouses]
    (shown,) = [part for part in (ROOT / "docs/dagster.md").read_text().split("```") if part.startswith("yaml\nlake")]
    (sales,) = config.parse(shown.removeprefix("yaml\n"), ROOT / "lakehouses.yaml").lakehouses
    assert sales.backup is not None


def test_names_of_everything() -> None:
    """Whoever changes one of these changes what other people's automations refer to."""
    repository = define_lakehouses(config.parse(TWO, Path("lakehouses.yaml")).lakehouses).get_repository_def()
    names = (*ORDER, "version_expiration", "orphan_removal")
    keys = {key.to_user_string() for key in repository.asset_graph.get_all_asset_keys()}
    everywhere = {f"lakehouse/{lake}/{name}" for lake in ("sales", "web-logs") for name in names}
    assert everywhere | {"lakehouse/sales/backup"} == keys
    jobs = {job.name for job in repository.get_all_jobs()} - {"__ASSET_JOB"}
    assert {f"{lake}_{job}" for lake in ("sales", "web_logs") for job in JOBS} == jobs
    assert ["sales_maintenance_schedule"] == [each.name for each in repository.schedule_defs]
    assert ["maintenance_repeats", "sales_compaction_sensor", "web_logs_compaction_sensor"] == [
        each.name for each in repository.sensor_defs
    ]
    checks = {check.to_user_string() for check in repository.asset_graph.asset_check_keys}
    assert {f"lakehouse/{lake}/{name}" for lake in ("sales", "web-logs") for name in CHECKS} | {
        "lakehouse/sales/root_version_snapshots:snapshots_fresh",
        "lakehouse/sales/backup:backup_verified",
    } == checks


def test_the_checks_of_integrity_and_backup_block_and_a_compaction_waits_for_neither() -> None:
    repository = define_lakehouses(config.parse(TWO, Path("lakehouses.yaml")).lakehouses).get_repository_def()
    graph = repository.asset_graph
    assert {"integrity", "backup_verified"} == {
        key.name for key in graph.asset_check_keys if graph.get_check_spec(key).blocking
    }
    selected = {
        job: {key.name for key in repository.get_job(f"sales_{job}").asset_layer.asset_graph.asset_check_keys}
        for job in ("compaction", "maintenance")
    }
    assert {"compaction_debt", "compaction_fresh"} == selected["compaction"]
    assert selected["compaction"] | {"integrity", "snapshots_fresh", "backup_verified"} == selected["maintenance"]


def test_assets_say_who_they_belong_to_and_what_they_come_from() -> None:
    defs = define_lakehouses(config.parse(TWO, Path("lakehouses.yaml")).lakehouses)
    graph = defs.get_repository_def().asset_graph
    nodes = [graph.get(dg.AssetKey(["lakehouse", "sales", name])) for name in ORDER]
    for before, after in pairwise(nodes):
        assert {before.key} == after.parent_keys
    expiration = graph.get(dg.AssetKey(["lakehouse", "sales", "version_expiration"]))
    orphans = graph.get(dg.AssetKey(["lakehouse", "sales", "orphan_removal"]))
    backup = graph.get(dg.AssetKey(["lakehouse", "sales", "backup"]))
    assert {nodes[3].key} == backup.parent_keys
    assert {nodes[1].key, backup.key} == expiration.parent_keys
    bare = graph.get(dg.AssetKey(["lakehouse", "web-logs", "version_expiration"]))
    assert {"tree_health", "root_version_snapshots"} == {key.path[-1] for key in bare.parent_keys}
    assert {nodes[1].key, expiration.key} == orphans.parent_keys
    nodes += [expiration, orphans, backup]
    assert {"sales"} == {node.group_name for node in nodes}
    assert all(node.description and list(node.owners) == ["team:data"] for node in nodes)
    assert nodes[0].is_observable
    assert all({"lakehouse_sales"} == node.pools for node in nodes[2:])
    assert not nodes[1].pools


def test_the_badge_of_spark_follows_the_settings() -> None:
    """On assets and on steps of jobs: not where lakehouses.yaml has ``engine: local``, nor where none is started."""
    badges: dict[str, set[str]] = {}
    for engine in ("local", "spark"):
        stanza = {"name": "sales", "root": "file:///x", "compaction": {"engine": engine}, "orphans": {}}
        repository = define_lakehouses([LakehouseSettings.model_validate(stanza)]).get_repository_def()
        nodes = repository.asset_graph.asset_nodes
        badges[engine] = {each.key.path[-1] for each in nodes if "spark" in each.kinds}
        for name in set(JOBS) - {"compaction", "maintenance"}:
            (first, *_) = repository.get_job(f"sales_{name}").graph.node_defs
            if first.tags.get("kind") == "spark":
                badges[engine].add(name)
    maintained = {"tree_compaction", "orphan_removal", "version_expiration"}
    launched = {"diff", "export", "mend", "restore", "rollback", "undo", "upgrade", "verify"}
    assert {"local": set(), "spark": maintained | launched} == badges


def test_maintenance_deletes_only_where_lakehouses_yaml_asks_for_it() -> None:
    repository = define_lakehouses(config.parse(TWO, Path("lakehouses.yaml")).lakehouses).get_repository_def()
    selected = {
        lake: {key.path[-1] for key in repository.get_job(f"{lake}_maintenance").asset_layer.selected_asset_keys}
        for lake in ("sales", "web_logs")
    }
    assert {"sales": {*ORDER, "backup", "version_expiration", "orphan_removal"}, "web_logs": {*ORDER}} == selected


def test_the_launchpad_is_filled_in_and_pools_and_retries_are_as_told() -> None:
    """A dry run unless said otherwise; the writing ones wait for each other; what must not be repeated is not."""
    repository = define_lakehouses(config.parse(TWO, Path("lakehouses.yaml")).lakehouses).get_repository_def()
    filled_in, pools, retried = {}, {}, {}
    for name in sorted({*JOBS} - {"compaction", "maintenance"}):
        job = repository.get_job(f"sales_{name}")
        op = {each.name: each for each in job.all_node_defs}[f"lakehouse__sales__{name}"]
        filled_in[name] = job.run_config["ops"][f"lakehouse__sales__{name}"]["config"]
        pools[name], retried[name] = op.pool, op.retry_policy is not None
        assert "sales" == job.run_tags["trinitylake/lakehouse"]
    assert {"alter", "mend", "rollback", "restore", "undo", "upgrade"} == {
        name for name, each in filled_in.items() if each.get("dry_run")
    }
    assert "s3://nowhere/backup/" == filled_in["export"]["target"] == filled_in["upgrade"]["target"]
    assert {"rollback", "restore", "undo"} == {name for name, again in retried.items() if not again}
    assert {"verify", "history", "diff", "freeze", "thaw", "mend", "rollback", "restore", "undo", "alter"} == {
        name for name, pool in pools.items() if pool != "lakehouse_sales"
    }
    groups: dict[str, set[str]] = {}
    for name in JOBS:
        groups.setdefault(repository.get_job(f"sales_{name}").tags["trinitylake/group"], set()).add(name)
    assert {
        "maintenance": {"maintenance", "compaction"},
        "recovery": {"freeze", "thaw", "mend", "rollback", "restore", "undo", "alter"},
        "reading": {"history", "diff", "verify"},
        "copies": {"export", "upgrade"},
    } == groups


def test_no_secret_is_in_what_the_webserver_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A code location serves the names of environment variables at most, never their values."""
    monkeypatch.setenv("NOT_SET_ANYWHERE", "hunter2")
    repository = define_lakehouses(config.parse(TWO, Path("lakehouses.yaml")).lakehouses).get_repository_def()
    served = [(node.key, node.metadata, node.tags, node.description) for node in repository.asset_graph.asset_nodes]
    jobs = [(job.name, job.tags, job.description, job.metadata) for job in repository.get_all_jobs()]
    assert "s3://nowhere/sales/" in str(served)
    assert "hunter2" not in str([served, jobs])


@pytest.mark.parametrize(
    ("root", "options", "said"),
    [
        ("file:///x/a", {}, None),
        ("s3://lakes/a", {}, "s3://lakes"),
        ("s3://lakes/a", {"endpoint_url": "https://user:word@s3.example.com"}, "s3.example.com"),
        ("s3://lakes/a", {"endpoint_url": {"env": "THERE"}}, "{env: THERE}"),
    ],
)
def test_runs_are_limited_by_the_storage_that_they_share(root: str, options: dict[str, Any], said: str | None) -> None:
    """One that hangs held every place in the queue. A disk of this machine is not limited."""
    stanza = {"name": "a", "root": root, "storage_options": options}
    definitions = define_lakehouses((LakehouseSettings.model_validate(stanza),))
    assert said == definitions.resolve_job_def("a_maintenance").tags.get("trinitylake/storage")
    limits = yaml.safe_load((ROOT / "deploy/dagster.yaml").read_text())["concurrency"]["runs"]
    (limit,) = [each["limit"] for each in limits["tag_concurrency_limits"] if each["key"] == "trinitylake/storage"]
    assert limit < limits["max_concurrent_runs"]

"""What Dagster loads: quickly, silently, touching no storage; and the names of everything in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import dagster as dg
import pytest

from dagster_project import config
from dagster_project.factory import merged

ROOT = Path(__file__).parent.parent.parent
TWO = """
lakehouses:
  - name: sales
    root: s3://nowhere/sales
    storage_options: {secret: {env: NOT_SET_ANYWHERE}}
    owners: ["team:data"]
    schedules: {maintenance: "0 3 * * *"}
    retention: {keep_last: 50, older_than: 3d}
    orphans: {older_than: 4d}
    export: {target: s3://nowhere/backup, storage_options: {secret: {env: NOT_SET_ANYWHERE}}}
  - name: web-logs
    root: file:///nowhere/logs
    compaction: {enabled: false}
"""
ORDER = ("lakehouse_definition", "tree_health", "tree_compaction", "root_version_snapshots")
JOBS = ("compaction", "export", "maintenance", "restore", "rollback", "upgrade", "verify")
LOADS = """
import json, resource, socket, sys, time
from trinitylake_core.storage.base import BaseStorage

def explode(*args, **kwargs):
    raise AssertionError("storage or network was touched")

BaseStorage.__init__ = explode
socket.socket.connect = explode
started = time.process_time()
from dagster_project.definitions import defs
defs.get_repository_def()
print(json.dumps({"seconds": time.process_time() - started, "spark": "pyspark" in sys.modules}))
"""


def test_definitions_load_quickly_silently_and_touch_nothing(tmp_path: Path) -> None:
    """Warnings are errors, storage and network explode, and processor time counts: others use this machine too."""
    path = tmp_path / "lakehouses.yaml"
    path.write_text(TWO)
    env = os.environ | {config.ENV_FILE: str(path), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "error", "-c", LOADS]
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert ("", 0) == (done.stderr, done.returncode)
    found = json.loads(done.stdout)
    assert found["seconds"] < 3
    assert not found["spark"]


def test_the_example_in_the_repository_is_valid() -> None:
    assert ["demo"] == [each.name for each in config.load(ROOT / "lakehouses.yaml").lakehouses]


def test_names_of_everything() -> None:
    """Whoever changes one of these changes what other people's automations refer to."""
    repository = merged(config.parse(TWO, Path("lakehouses.yaml")).lakehouses).get_repository_def()
    names = (*ORDER, "version_expiration", "orphan_removal")
    keys = {key.to_user_string() for key in repository.asset_graph.get_all_asset_keys()}
    assert {f"lakehouse/{lake}/{name}" for lake in ("sales", "web-logs") for name in names} == keys
    jobs = {job.name for job in repository.get_all_jobs()} - {"__ASSET_JOB"}
    assert {f"{lake}_{job}" for lake in ("sales", "web_logs") for job in JOBS} == jobs
    assert ["sales_maintenance_schedule"] == [each.name for each in repository.schedule_defs]
    assert ["sales_compaction_sensor"] == [each.name for each in repository.sensor_defs]
    checks = {check.to_user_string() for check in repository.asset_graph.asset_check_keys}
    assert {f"lakehouse/{lake}/tree_health:integrity" for lake in ("sales", "web-logs")} == checks


def test_assets_say_who_they_belong_to_and_what_they_come_from() -> None:
    defs = merged(config.parse(TWO, Path("lakehouses.yaml")).lakehouses)
    graph = defs.get_repository_def().asset_graph
    nodes = [graph.get(dg.AssetKey(["lakehouse", "sales", name])) for name in ORDER]
    for before, after in pairwise(nodes):
        assert {before.key} == after.parent_keys
    expiration = graph.get(dg.AssetKey(["lakehouse", "sales", "version_expiration"]))
    orphans = graph.get(dg.AssetKey(["lakehouse", "sales", "orphan_removal"]))
    assert {nodes[1].key, nodes[3].key} == expiration.parent_keys
    assert {nodes[1].key, expiration.key} == orphans.parent_keys
    nodes += [expiration, orphans]
    assert {"sales"} == {node.group_name for node in nodes}
    assert all(node.description and list(node.owners) == ["team:data"] for node in nodes)
    assert nodes[0].is_observable
    assert all({"lakehouse_sales"} == node.pools for node in nodes[2:])
    assert not nodes[1].pools


def test_maintenance_deletes_only_where_lakehouses_yaml_asks_for_it() -> None:
    repository = merged(config.parse(TWO, Path("lakehouses.yaml")).lakehouses).get_repository_def()
    selected = {
        lake: {key.path[-1] for key in repository.get_job(f"{lake}_maintenance").asset_layer.selected_asset_keys}
        for lake in ("sales", "web_logs")
    }
    assert {"sales": {*ORDER, "version_expiration", "orphan_removal"}, "web_logs": {*ORDER}} == selected


def test_the_launchpad_is_filled_in_and_pools_and_retries_are_as_told() -> None:
    """A dry run unless said otherwise; the writing ones wait for each other; what must not be repeated is not."""
    repository = merged(config.parse(TWO, Path("lakehouses.yaml")).lakehouses).get_repository_def()
    filled_in, pools, retried = {}, {}, {}
    for name in JOBS[1:2] + JOBS[3:]:
        job = repository.get_job(f"sales_{name}")
        (op,) = job.all_node_defs
        filled_in[name] = job.run_config["ops"][f"lakehouse__sales__{name}"]["config"]
        pools[name], retried[name] = op.pool, op.retry_policy is not None
        assert "sales" == job.run_tags["trinitylake/lakehouse"]
    assert {"rollback", "restore", "upgrade"} == {name for name, each in filled_in.items() if each.get("dry_run")}
    assert "s3://nowhere/backup/" == filled_in["export"]["target"] == filled_in["upgrade"]["target"]
    assert {"rollback", "restore"} == {name for name, again in retried.items() if not again}
    assert {"verify"} == {name for name, pool in pools.items() if pool != "lakehouse_sales"}


def test_no_secret_is_in_what_the_webserver_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A code location serves the names of environment variables at most, never their values."""
    monkeypatch.setenv("NOT_SET_ANYWHERE", "hunter2")
    repository = merged(config.parse(TWO, Path("lakehouses.yaml")).lakehouses).get_repository_def()
    served = [(node.key, node.metadata, node.tags, node.description) for node in repository.asset_graph.asset_nodes]
    jobs = [(job.name, job.tags, job.description, job.metadata) for job in repository.get_all_jobs()]
    assert "s3://nowhere/sales/" in str(served)
    assert "hunter2" not in str([served, jobs])

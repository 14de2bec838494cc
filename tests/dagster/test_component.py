"""The component in somebody else's project: five lines, and every asset, check and job is there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml

from dagster_project.component import Lakehouses
from dagster_project.config import ConfigError
from dagster_project.config.settings import LakehouseSettings
from dagster_project.factory import define_lakehouses
from tests.dagster.conftest import filled
from trinitylake_core import Lakehouse

CHECKOUT = Path(__file__).parent.parent.parent


def built(directory: Path, **attributes: Any) -> dg.RepositoryDefinition:
    """Return what the component makes of its attributes, beside a job of somebody else."""

    @dg.op
    def other() -> None: ...

    @dg.job
    def theirs() -> None:
        other()

    component = Lakehouses(**attributes)
    made = component.build_defs(dg.ComponentTree.for_test().load_context.for_path(directory))
    executor = dg.Definitions(jobs=[theirs], executor=dg.multiprocess_executor)
    return dg.Definitions.merge(made, executor).get_repository_def()


def test_stanzas_stand_in_defs_yaml_or_in_a_file(tmp_path: Path) -> None:
    stanza = {"name": "sales", "root": (tmp_path / "lake").as_uri(), "retention": {"keep_last": 3}}
    inline = built(tmp_path, lakehouses=[stanza])
    (tmp_path / "lakehouses.yaml").write_text(json.dumps({"lakehouses": [stanza]}))
    named = built(tmp_path, file="lakehouses.yaml")
    for repository in (inline, named):
        assert {"theirs", "sales_maintenance", "sales_rollback"} <= {job.name for job in repository.get_all_jobs()}
        assert "lakehouse/sales/version_expiration" in {
            key.to_user_string() for key in repository.asset_graph.get_all_asset_keys()
        }
    (tmp_path / "lakehouses.yaml").write_text(json.dumps({"layout": "partitions", "lakehouses": [stanza]}))
    assert "lakehouses_maintenance" in {job.name for job in built(tmp_path, file="lakehouses.yaml").get_all_jobs()}


def test_a_mistake_is_told_with_stanza_and_field(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="lakehouse 'sales': rot: unknown field"):
        built(tmp_path, lakehouses=[{"name": "sales", "root": "file:///x", "rot": 1}])
    for attributes in ({}, {"file": "x", "lakehouses": []}):
        with pytest.raises(dg.DagsterInvalidDefinitionError, match="either `file` or `lakehouses`"):
            built(tmp_path, **attributes)


@pytest.mark.slow
def test_nothing_but_the_wheel_is_needed(tmp_path: Path) -> None:
    """In an environment of its own, into which pip installs the wheel, what it depends on, and `dg`."""
    bare = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(*command: object) -> None:
        done = subprocess.run([*map(str, command)], cwd=tmp_path, env=bare, capture_output=True, text=True, check=False)
        assert 0 == done.returncode, done.stdout + done.stderr

    run(sys.executable, "-m", "venv", tmp_path / "venv")
    scripts = tmp_path / "venv" / "bin"
    run(scripts / "pip", "wheel", "--no-deps", "--wheel-dir", tmp_path / "wheels", CHECKOUT)
    (wheel,) = (tmp_path / "wheels").glob("*.whl")
    constraints = CHECKOUT / "constraints.txt"
    run(scripts / "pip", "install", "--constraint", constraints, f"{wheel}[all]", "dagster-dg-cli")
    proved(tmp_path, scripts, [])


def proved(tmp_path: Path, scripts: Path, path: list[str]) -> None:
    """Make a project as `dg` has them, with the component in it, and do with it what people do."""
    lake = filled((tmp_path / "lake").as_uri())
    project = tmp_path / "platform"
    defs = project / "src" / "platform_team" / "defs"
    defs.mkdir(parents=True)
    (project / "pyproject.toml").write_text(
        '[project]\nname = "platform_team"\nversion = "0.1.0"\n'
        '[tool.dg]\ndirectory_type = "project"\n[tool.dg.project]\nroot_module = "platform_team"\n'
    )
    (defs.parent / "__init__.py").write_text("")
    (defs.parent / "definitions.py").write_text(
        "from pathlib import Path\n\nimport dagster as dg\n\n\n"
        "@dg.definitions\ndef defs() -> dg.Definitions:\n"
        "    return dg.load_from_defs_folder(path_within_project=Path(__file__).parent)\n"
    )
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    where = os.environ | {"DAGSTER_HOME": str(tmp_path / "home"), "DAGSTER_DG_CLI_TELEMETRY": "0"}
    where |= {"PYTHONPATH": os.pathsep.join([str(project / "src"), *path])}

    def dg_command(*words: str) -> str:
        command = [str(scripts / "dg"), *words]
        done = subprocess.run(command, cwd=project, env=where, capture_output=True, text=True, timeout=600, check=False)
        assert 0 == done.returncode, done.stdout + done.stderr
        return done.stdout + done.stderr

    stanza = f"{{name: sales, root: '{lake.root}', compaction: {{engine: local, messages: 5}}}}"
    (defs / "lakehouses").mkdir()
    (defs / "lakehouses" / "defs.yaml").write_text(
        f"type: dagster_project.component.Lakehouses\nattributes:\n  lakehouses:\n    - {stanza}\n"
    )
    dg_command("check", "defs", "--use-active-venv")
    listed = dg_command("list", "defs", "--json")
    expected = define_lakehouses((LakehouseSettings.model_validate(yaml.safe_load(stanza)),)).get_repository_def()
    names = {key.to_user_string() for key in expected.asset_graph.get_all_asset_keys()}
    names |= {check.name for check in expected.asset_graph.asset_check_keys}
    names |= {job.name for job in expected.get_all_jobs() if not job.name.startswith("__")}
    names |= {each.name for each in (*expected.sensor_defs, *expected.schedule_defs)}
    assert {"lakehouse/sales/tree_compaction", "sales_rollback", "integrity", "sales_compaction_sensor"} <= names
    assert [] == sorted(name for name in names if f'"{name}"' not in listed)
    dg_command("launch", "--job", "sales_compaction")
    assert 0 == Lakehouse.open(lake.root).stats().messages

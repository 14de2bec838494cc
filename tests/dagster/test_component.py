"""The component in somebody else's project: five lines, and every asset, check and job is there."""

from __future__ import annotations

import json
import os
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dagster_project.component import Lakehouses
from dagster_project.config import ConfigError
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
def test_a_fresh_project_of_dg_maintains_a_lakehouse(tmp_path: Path) -> None:
    """With nothing of ours but the installed packages: checked, listed and launched by `dg`."""
    lake = filled((tmp_path / "lake").as_uri())
    project = tmp_path / "platform"
    defs = project / "src" / "platform_team" / "defs" / "lakehouses"
    defs.mkdir(parents=True)
    (project / "pyproject.toml").write_text(
        '[project]\nname = "platform_team"\nversion = "0.1.0"\n'
        '[tool.dg]\ndirectory_type = "project"\n[tool.dg.project]\nroot_module = "platform_team"\n'
    )
    (defs.parent.parent / "__init__.py").write_text("")
    (defs.parent.parent / "definitions.py").write_text(
        "from pathlib import Path\n\nimport dagster as dg\n\n\n"
        "@dg.definitions\ndef defs() -> dg.Definitions:\n"
        "    return dg.load_from_defs_folder(path_within_project=Path(__file__).parent)\n"
    )
    (defs / "defs.yaml").write_text(
        "type: dagster_project.component.Lakehouses\n"
        "attributes:\n"
        "  lakehouses:\n"
        f"    - {{name: sales, root: '{lake.root}', compaction: {{engine: local, messages: 5}}}}\n"
    )
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    path = os.pathsep.join([str(project / "src"), str(CHECKOUT)])
    where = os.environ | {"DAGSTER_HOME": str(tmp_path / "home"), "PYTHONPATH": path, "DAGSTER_DG_CLI_TELEMETRY": "0"}

    def dg_command(*words: str) -> str:
        command = [f"{sysconfig.get_path('scripts')}/dg", *words]
        done = subprocess.run(command, cwd=project, env=where, capture_output=True, text=True, timeout=300, check=False)
        assert 0 == done.returncode, done.stdout + done.stderr
        return done.stdout + done.stderr

    dg_command("check", "defs", "--use-active-venv")
    listed = dg_command("list", "defs", "--json")
    for name in ("lakehouse/sales/tree_compaction", "sales_rollback", "integrity", "sales_compaction_sensor"):
        assert name in listed
    dg_command("launch", "--job", "sales_compaction")
    assert 0 == Lakehouse.open(lake.root).stats().messages

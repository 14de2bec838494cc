"""A deployment whose files are those of an older release starts with this code: what files name is a promise."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
import yaml

from dagster_project import config
from tests.dagster.conftest import filled
from tests.support import postgres
from tests.support.deployment import DEPLOY, deployed

RELEASES = Path(__file__).parents[1] / "fixtures" / "deployments"
FILES = [DEPLOY, *sorted(RELEASES.iterdir())]
PROGRAM = re.compile(r"-m (\S+)")


@pytest.mark.parametrize("files", FILES, ids=[each.name for each in FILES])
def test_what_the_files_of_a_release_name_is_there(files: Path) -> None:
    """Classes of ``dagster.yaml``, programs of the units, and every field of ``lakehouses.yaml``."""
    instance = yaml.safe_load((files / "dagster.yaml").read_text(encoding="utf-8"))
    named = [instance["storage"]["custom"], *([instance["run_coordinator"]] if "run_coordinator" in instance else [])]
    for each in named:
        assert hasattr(importlib.import_module(each["module"]), each["class"])
    units = "".join(each.read_text(encoding="utf-8") for each in files.glob("*.service"))
    programs = [name for name in PROGRAM.findall(units) if name.startswith("dagster_project")]
    assert 2 == len(programs)
    for name in programs:
        assert callable(importlib.import_module(name).main)
    assert 2 == len(config.load(files / "lakehouses.yaml").lakehouses)


@pytest.mark.slow
@pytest.mark.parametrize("files", FILES[1:], ids=[each.name for each in FILES[1:]])
def test_an_older_deployment_starts_and_maintains(files: Path, tmp_path: Path) -> None:
    """With PostgreSQL, by the units of the release: everything is up, and a run commits."""
    lake = filled((tmp_path / "lake").as_uri())
    stanza = {"name": "sales", "root": lake.root, "compaction": {"engine": "local", "messages": 10_000_000}}
    with (
        postgres.run_postgres() as server,
        deployed(yaml.safe_dump({"lakehouses": [stanza]}), server, files=files) as running,
    ):
        running.start_all()
        run = running.finished(running.launch("sales_compaction"))
        running.stop_all()
    assert "SUCCESS" == run["status"]
    assert "compact" == lake.refresh().info().operation

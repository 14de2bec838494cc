"""What works without the extras, and what names the one that is missing."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCK = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name in {blocked!r} else found(name, package)
"""
WITHOUT = (
    "boto3",
    "botocore",
    "dagster",
    "fsspec",
    "matplotlib",
    "obstore",
    "pandas",
    "pydantic",
    "pyiceberg",
    "pyspark",
    "s3fs",
)
ALONE = (*WITHOUT, "click", "rich", "yaml")


def _run(program: str, blocked: tuple[str, ...], cwd: Path) -> subprocess.CompletedProcess[str]:
    text = BLOCK.format(blocked=blocked) + program
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    return subprocess.run(
        [sys.executable, "-c", text], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )


def test_the_library_needs_arrow_protobuf_and_murmur3_only(tmp_path: Path) -> None:
    program = """
from trinitylake_core import Lakehouse
lake = Lakehouse.create("file://{place}")
with lake.transaction() as txn:
    txn.create_namespace("a")
    txn.create_table("a", "b")
assert ["b"] == lake.refresh().tables("a"), [] == list(lake.check())
""".format(place=tmp_path / "lake")
    done = _run(program, ALONE, tmp_path)
    assert (0, "") == (done.returncode, done.stderr)


def test_the_command_line_works_on_a_disk_without_any_extra(tmp_path: Path) -> None:
    (tmp_path / "list.yaml").write_text("- create_namespace: a\n")
    (tmp_path / "more.jsonl").write_text('{"create_namespace": {"namespace": "b"}}\n')
    program = """
from pipelines.cli import main
for words in ("create ./lake", "apply lake list.yaml", "load lake more.jsonl", "compact lake", "ls lake", "verify lake",
              "stats lake --deep", "export lake ./copy", "expire lake --dry-run", "clean lake --dry-run", "--help"):
    assert 0 == main(words.split()), words
"""
    done = _run(program, WITHOUT, tmp_path)
    assert (0, "") == (done.returncode, done.stderr), done.stderr


@pytest.mark.parametrize(
    ("program", "extra"),
    [
        ("from pipelines.session import get_session; get_session()", "spark"),
        ("from trinitylake_core import Lakehouse; Lakehouse.open('s3://bucket/x')", "s3"),
        ("import dagster_project.definitions", "dagster"),
    ],
)
def test_a_missing_extra_is_named(tmp_path: Path, program: str, extra: str) -> None:
    done = _run(program, WITHOUT, tmp_path)
    assert 1 == done.returncode
    assert f"pip install 'trinitylake-maintenance[{extra}]" in done.stderr.splitlines()[-1]


def test_all_is_every_extra_that_is_not_for_developers() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert ["trinitylake-maintenance[s3,spark,dagster,postgres,iceberg,rest]"] == extras["all"]
    assert "trinitylake-maintenance[all]" in extras["dev"]

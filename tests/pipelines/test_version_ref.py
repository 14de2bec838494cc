"""What people write for a lakehouse, a version, a time and an engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipelines.cli.resolve_root import root_of
from tests.pipelines.conftest import Run as Ran
from tests.pipelines.conftest import as_program
from trinitylake_core import InvalidInput, Lakehouse

Run = Callable[..., Any]


@pytest.fixture
def run(run: Ran) -> Run:
    """Return a function that runs a command with ``--json`` and returns its document."""
    return lambda *words: run(*words, "--json").json


@pytest.fixture
def lake(tmp_path: Path) -> Lakehouse:
    """Return a lakehouse with versions 0 to 4, and a snapshot ``two`` of version 2 in version 4."""
    lake = Lakehouse.create((tmp_path / "data" / "lake").as_uri())
    for number in range(1, 4):
        with lake.refresh().transaction() as txn:
            txn.create_namespace(f"n{number}")
    lake.refresh().create_snapshot("two", version=2)
    return lake.refresh()


@pytest.mark.parametrize(
    ("text", "version"),
    [("3", 3), ("HEAD", 4), ("HEAD~0", 4), ("HEAD~3", 1), ("two", 2), ("-0s", 4)],
)
def test_a_version_may_be_said_in_many_ways(run: Run, lake: Lakehouse, text: str, version: int) -> None:
    found = run("ls", lake.root, "--version", text)
    assert (version, min(version, 3)) == (found["version"], len(found["objects"]))
    assert (version, version) == tuple(run("diff", lake.root, text, text)[side] for side in "ab")
    if version < 4:
        plan = run("rollback", lake.root, "--to-version", text, "--reason", "r", "--dry-run")["plan"]
        assert version == plan["target_version"]
        plan = run("restore", lake.root, "--only", "n1", "--version", text, "--reason", "r", "--dry-run")["plan"]
        assert version == plan["target_version"]
    assert [version] == run("verify", lake.root, "--version", text)["versions"]
    planned = run("export", lake.root, f"{lake.root[:-1]}-copy", "--version", text, "--dry-run")
    assert version == planned["plan"]["version"]


def test_a_root_may_be_a_path(run: Run, lake: Lakehouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path / "data")
    for text in ("lake", "./lake", "../data/lake", str(tmp_path / "data" / "lake")):
        assert lake.root == run("stats", text)["root"], text
    assert 0 == len(run("diff", "lake", "2", "2", "--other", "lake/")["changes"])
    done = run("export", "lake", "../copy", "--engine", "local")
    assert (tmp_path / "copy").as_uri() + "/" == done["target"]


LAKEHOUSES = """
lakehouses:
  - {name: sales, root: "file://{here}/data/lake", storage_options: {durable: {env: SALES_DURABLE}}}
  - {name: cloud, root: "s3://bucket/x"}
"""


def test_a_root_may_be_a_name(run: Run, lake: Lakehouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is found upwards; options come with the name, and those of the command line win."""
    (tmp_path / "lakehouses.yaml").write_text(LAKEHOUSES)
    (tmp_path / "some" / "where").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "some" / "where")
    assert "SALES_DURABLE is not set" in run("stats", "sales")["error"]["message"]
    monkeypatch.setenv("SALES_DURABLE", "false")
    assert lake.root == run("stats", "sales")["root"]
    assert {"durable": "false"} == root_of("sales")[1]
    monkeypatch.setenv("SALES_DURABLE", "nonsense")
    assert "error" in run("stats", "sales")
    assert lake.root == run("stats", "sales", "--storage-option", "durable=false")["root"]
    assert ("s3://bucket/x", {}) == root_of("cloud")
    unknown = run("stats", "sale")["error"]["message"]
    assert f"there is no lakehouse named 'sale' ({tmp_path / 'lakehouses.yaml'} lists sales, cloud)" in unknown
    monkeypatch.setenv("TRINITYLAKE_LAKEHOUSES", str(tmp_path / "other.yaml"))
    assert "cannot read" in run("stats", "sales")["error"]["message"]
    (tmp_path / "other.yaml").write_text("lakehouses: [")
    with pytest.raises(InvalidInput, match=r"other\.yaml, line 1: not YAML"):
        root_of("sales")


def test_without_a_file_of_names_a_word_is_a_directory_or_an_error(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "for a new one write './new'" in run("create", "new")["error"]["message"]
    assert 0 == run("create", "./new")["version"]
    assert 0 == run("stats", "new")["version"]


def test_little_work_starts_no_spark(run: Run, lake: Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    for words in (["compact"], ["expire"], ["clean"], ["verify"], ["stats", "--deep"]):
        assert "error" not in run(
            words[0], lake.root, *words[1:], *([] if words[0] in {"verify", "stats"} else ["--dry-run"])
        )
    # In a process of its own: in this one a session of another test may be at work. Nor where a Spark is named.
    named = as_program("verify", lake.root, "--master", "local[1]")
    assert (0, "") == (named.returncode, named.stderr)

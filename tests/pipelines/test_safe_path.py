"""Python processes that the product starts import nothing from the directory in which a command happened to run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipelines.engine import worker_pool
from pipelines.session.spark import SessionConfig, _set_environment
from tests.support.lakes import new_lake

_NOTES: str = "import pathlib\npathlib.Path({proof!r}).write_text(__name__)\nraise ImportError('not ours')\n"
_NAMES = ("pipelines", "trinitylake_core", "pyspark", "pyarrow", "json", "pickle")


@pytest.fixture
def proof(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Go to a directory with packages named like ours and others', which note that they were imported."""
    proof, here = tmp_path / "proof", tmp_path / "here"
    for name in _NAMES:
        (here / name).mkdir(parents=True)
        (here / name / "__init__.py").write_text(_NOTES.format(proof=str(proof)))
    monkeypatch.chdir(here)
    return proof


def answer_twice() -> worker_pool.Answer:
    """Return what a helper of this test does."""
    return lambda numbers: None if numbers is None else [2 * number for number in numbers]


def test_a_helper_process_imports_nothing_from_the_current_directory(proof: Path) -> None:
    helper = worker_pool.Helper(answer_twice)
    try:
        assert [2, 4] == list(helper.do([1, 2]))
    finally:
        helper.end()
    assert not proof.exists()


def test_the_python_of_spark_is_told_so_while_spark_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    with _set_environment(SessionConfig()):
        assert "1" == os.environ["PYTHONSAFEPATH"]
    assert "PYTHONSAFEPATH" not in os.environ


def test_the_services_are_told_so() -> None:
    units = sorted((Path(__file__).parents[2] / "deploy").glob("*.service"))
    assert 3 <= len(units)
    for unit in units:
        assert "Environment=PYTHONSAFEPATH=1" in unit.read_text(), unit.name


@pytest.mark.slow
@pytest.mark.spark
def test_a_task_of_spark_imports_nothing_from_the_current_directory(tmp_path: Path, proof: Path) -> None:
    lake = new_lake(tmp_path)
    with lake.transaction() as txn:
        txn.create_namespace("sales")
    program = "import sys; from pipelines.cli import main; sys.exit(main(['verify', sys.argv[1], '--engine', 'spark']))"
    done = subprocess.run([sys.executable, "-P", "-c", program, lake.root], capture_output=True, text=True, check=False)
    assert 0 == done.returncode, done.stderr
    assert not proof.exists()

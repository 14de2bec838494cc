"""What tests of jobs and of the command line share."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pipelines import cli
from tests.support.lakes import filled, new_lake
from trinitylake_core import Lakehouse


class Ran(NamedTuple):
    """What a command returned and printed."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one document on standard output."""
        return json.loads(self.out)


Run = Callable[..., Ran]
"""A command line, without the name of the program, to its exit code, standard output and standard error."""


CHECKOUT = Path(__file__).parents[2]


def as_program(
    *words: str, stdin: str = "", gigabytes: float | None = None, seconds: float = 300, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a command line as a process of its own in the current directory, in bounded time, perhaps bounded memory."""

    def limit() -> None:
        if gigabytes is not None:
            resource.setrlimit(resource.RLIMIT_AS, (int(gigabytes * 2**30),) * 2)

    return subprocess.run(
        [sys.executable, "-m", "pipelines.cli", *words],
        env={**os.environ, "PYTHONPATH": str(CHECKOUT), **environment}, input=stdin, capture_output=True,
        text=True, encoding="utf-8", errors="replace", timeout=seconds, check=False, preexec_fn=limit,
    )  # fmt: skip


@pytest.fixture
def lake(tmp_path: Path) -> Lakehouse:
    """Return a lakehouse of 40 tables in ns0 to ns2, with messages on several levels; many files have their own."""
    return filled(new_lake(tmp_path), tables=40)


@pytest.fixture
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget what the environment says of lakehouses."""
    for name in [name for name in os.environ if name.startswith("TRINITYLAKE_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], no_environment: None) -> Run:
    """Return what runs a command in this process, with no lakehouse in the environment."""

    def call(*words: str) -> Ran:
        capsys.readouterr()
        return Ran(cli.main(words), *capsys.readouterr())

    return call

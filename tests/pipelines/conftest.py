"""What tests of the command line share."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pipelines import cli

Run = Callable[..., tuple[int, str, str]]
"""A command line, without the name of the program, to its exit code, standard output and standard error."""


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return what runs a command in this process, with no root in the environment."""
    monkeypatch.delenv("TRINITYLAKE_ROOT", raising=False)

    def call(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        return (cli.main(words), *capsys.readouterr())

    return call

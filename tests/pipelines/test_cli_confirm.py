"""A person at a terminal sees the plan of what deletes or undoes, and is asked; programs are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines import cli
from pipelines.cli import output
from trinitylake_core import Lakehouse


@pytest.fixture
def lake(tmp_path: Path) -> Lakehouse:
    lake = Lakehouse.create((tmp_path / "lake").as_uri())
    with lake.transaction() as txn:
        txn.create_namespace("sales")
    return lake.refresh()


@pytest.mark.parametrize(("answer", "code", "version"), [("y", 0, 2), ("n", 2, 1), (None, 130, 1)])
def test_a_person_sees_the_plan_and_is_asked(
    lake: Lakehouse,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    answer: str | None,
    code: int,
    version: int,
) -> None:
    def asked(prompt: str = "") -> str:
        if answer is None:
            raise KeyboardInterrupt
        return answer

    monkeypatch.setattr(output, "is_terminal", lambda stream: True)
    monkeypatch.setattr("click.termui.visible_prompt_func", asked)
    words = ["rollback", lake.root, "--to-version", "0", "--reason", "r"]
    assert code == cli.main(words)
    assert "dry run, nothing was changed" in capsys.readouterr().out
    assert version == lake.refresh().version


@pytest.mark.parametrize("more", [["--yes"], ["--json"]])
def test_who_says_yes_or_wants_json_is_not_asked(
    lake: Lakehouse, monkeypatch: pytest.MonkeyPatch, more: list[str]
) -> None:
    monkeypatch.setattr(output, "is_terminal", lambda stream: True)
    monkeypatch.setattr("click.confirm", lambda *_: pytest.fail("asked"))
    assert 0 == cli.main(["rollback", lake.root, "--to-version", "0", "--reason", "r", *more])
    assert 2 == lake.refresh().version


@pytest.mark.parametrize("words", [["expire"], ["clean"], ["restore", "--only", "sales", "--version", "0", "--exact"]])
def test_no_is_no(lake: Lakehouse, monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    monkeypatch.setattr(output, "is_terminal", lambda stream: True)
    monkeypatch.setattr("click.confirm", lambda *_: False)
    more = ["--reason", "r"] if words[0] == "restore" else []
    assert 2 == cli.main([words[0], lake.root, *words[1:], *more])
    assert 1 == lake.refresh().version

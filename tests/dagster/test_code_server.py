"""The code server ends when nobody behind it answers any more, and not because somebody is busy."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dagster_project import instance
from dagster_project.processes.code_server import answers, watch


def _asked_until_given_up(*heard: tuple[bool | None, float]) -> int:
    """Return how many of these answers, each at its time, were heard before the code server was given up."""
    answers, times, ended = iter([True, *(answer for answer, _ in heard)]), iter([at for _, at in heard]), []
    watch(lambda: next(answers), lambda: ended.append(1), lambda _: None, lambda: next(times))
    assert [1] == ended
    return len(heard) - len(list(times))


def test_it_gives_up_after_three_refusals_in_a_row() -> None:
    assert 6 == _asked_until_given_up(*((each, 0.0) for each in (False, False, True, False, False, False, True)))


def test_one_that_is_busy_may_be_silent_for_a_while() -> None:
    heard = [(None, 0.0), (None, 119.0), (True, 120.0), (None, 130.0), (None, 249.0), (None, 250.0), (True, 251.0)]
    assert 6 == _asked_until_given_up(*heard)


def test_before_the_first_answer_it_waits_however_long_loading_takes() -> None:
    answered = iter([False, None, False, False, False, True, True, False, False, False])
    ended, slept = [], []
    watch(lambda: next(answered), lambda: ended.append(1), slept.append)
    assert ([1], [], 8) == (ended, list(answered), len(slept))


def test_nobody_there_is_a_refusal(tmp_path: Path) -> None:
    assert answers(str(tmp_path / "nothing.sock"), 5) is False


def test_a_probe_and_a_validation_name_the_stanza_that_is_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "lakehouses.yaml"
    file.write_text("lakehouses: [{name: a, root: file:///x/a}, {name: b, root: file:///x/b, rot: 1}]")
    monkeypatch.setenv("TRINITYLAKE_LAKEHOUSES", str(file))
    for words in (["serve", str(tmp_path / "nothing.sock"), "--probe"], ["validate"]):
        monkeypatch.setattr(sys, "argv", ["instance", *words])
        with pytest.raises(SystemExit, match="1"):
            instance.main()
        assert f"{file}: lakehouse 'b': rot: unknown field; did you mean 'root'?\n" == capsys.readouterr().out

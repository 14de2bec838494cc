"""A person at a terminal sees the plan of what deletes or undoes, and is asked; programs are not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipelines import cli, compaction, expire
from pipelines.cli import output
from pipelines.cli.command import Call
from tests.support.clock import Clock
from tests.support.lakes import filled, new_lake
from tests.support.surgery import directory_of
from trinitylake_core import Lakehouse


@pytest.fixture
def lake(tmp_path: Path) -> Lakehouse:
    lake = Lakehouse.create((tmp_path / "lake").as_uri())
    with lake.transaction() as txn:
        txn.create_namespace("sales")
    return lake.refresh()


@pytest.mark.parametrize(
    "how", [["rollback", "--to-version", "0"], ["undo", "--author", "*"]], ids=["rollback", "undo"]
)
@pytest.mark.parametrize(("answer", "code", "version"), [("y", 0, 2), ("n", 3, 1), (None, 130, 1)])
def test_a_person_sees_the_plan_and_is_asked(
    lake: Lakehouse,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    how: list[str],
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
    assert code == cli.main([how[0], lake.root, *how[1:], "--reason", "r"])
    out = capsys.readouterr().out
    assert ("dry run, nothing was changed" in out, "instead of --dry-run" in out) == (True, False)
    assert version == lake.refresh().version


@pytest.mark.parametrize("words", [["expire"], ["clean"], ["restore", "--only", "sales", "--version", "1"]])
def test_where_nothing_would_change_nobody_is_asked(
    lake: Lakehouse, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    monkeypatch.setattr(output, "is_terminal", lambda stream: True)
    monkeypatch.setattr("click.confirm", lambda *_: pytest.fail("asked"))
    more = ["--reason", "r"] if words[0] == "restore" else []
    assert 0 == cli.main([words[0], lake.root, *words[1:], *more])
    assert 1 == capsys.readouterr().out.count("nothing ")
    assert 1 == lake.refresh().version


@pytest.mark.parametrize("words", [["rollback", "--to-version", "3", "--reason", "r"], ["clean"], ["expire"]])
def test_a_confirmed_command_runs_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    """What the person was shown is not found out again: a yes costs what the dry run and acting without one cost."""
    lake, opened = filled(new_lake(tmp_path), tables=40), list[Lakehouse]()
    open_one = Call.open

    def counted(call: Call, root: str | None = None, *, damaged: bool = False) -> Lakehouse:
        opened.append(open_one(call, root, damaged=damaged))
        return opened[-1]

    def gets(*more: str) -> int:
        opened.clear()
        assert 0 == cli.main([words[0], lake.root, *words[1:], "--engine", "local", *more])
        return sum(each.storage.counts.get for each in opened)

    monkeypatch.setattr(Call, "open", counted)
    monkeypatch.setattr(output, "is_terminal", lambda stream: True)
    monkeypatch.setattr("click.confirm", lambda *_: True)
    dry = gets("--dry-run")
    confirmed = gets()
    assert dry <= confirmed <= dry + 4


def test_a_stored_plan_is_shown_and_confirmed_like_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], clock: Clock
) -> None:
    """Writing it asks nothing; carrying it out asks."""
    lake, uri = filled(new_lake(tmp_path), tables=8), (tmp_path / "plan.parquet").as_uri()
    clock.forward(millis=2 * lake.definition.txn_ttl_millis)  # else nothing expires, and nothing is asked
    answers = [True, False]
    monkeypatch.setattr(output, "is_terminal", lambda stream: True)
    monkeypatch.setattr("click.confirm", lambda *_: answers.pop())
    assert 0 == cli.main(["expire", lake.root, "--keep-last", "1", "--plan-to", uri])
    assert 2 == len(answers)
    capsys.readouterr()
    assert 3 == cli.main(["expire", lake.root, "--plan", uri])
    shown = capsys.readouterr()
    assert "would expire" in shown.out
    assert "nothing was done" in shown.err
    assert 0 == cli.main(["expire", lake.root, "--plan", uri])
    assert [] == answers


@pytest.mark.parametrize("more", [["--yes"], ["--json"]])
def test_who_says_yes_or_wants_json_is_not_asked(
    lake: Lakehouse, monkeypatch: pytest.MonkeyPatch, more: list[str]
) -> None:
    monkeypatch.setattr(output, "is_terminal", lambda stream: True)
    monkeypatch.setattr("click.confirm", lambda *_: pytest.fail("asked"))
    assert 0 == cli.main(["rollback", lake.root, "--to-version", "0", "--reason", "r", *more])
    assert 2 == lake.refresh().version


NOW = ["--older-than", "0s"]


@pytest.mark.parametrize(
    "words",
    [
        ["expire", "--keep-last", "1", *NOW],
        ["clean", "--allow-recent", *NOW],
        ["restore", "--only", "sales", "--version", "0", "--exact", "--reason", "r"],
    ],
)
def test_no_is_no(lake: Lakehouse, monkeypatch: pytest.MonkeyPatch, clock: Clock, words: list[str]) -> None:
    later = int(lake.info().created_at.timestamp() * 1000) + 2 * lake.definition.txn_ttl_millis
    if words[0] == "clean":  # the definition that a newer one has replaced
        for number in range(3):
            with lake.refresh().transaction() as txn:
                txn.alter_namespace("sales", {"number": str(number)})
        compaction.run(lake.refresh(), compaction.Config("local"))
        how = expire.Config("local", keep_last=1, older_than_seconds=0, now_millis=later)
        expire.run(lake.refresh(), how)
    clock.forward(millis=2 * lake.definition.txn_ttl_millis)
    monkeypatch.setattr(output, "is_terminal", lambda stream: True)
    monkeypatch.setattr("click.confirm", lambda *_: False)
    version = lake.refresh().version
    files = sorted(directory_of(lake).rglob("*"))
    assert 3 == cli.main([words[0], lake.root, *words[1:]])
    assert (version, files) == (lake.refresh().version, sorted(directory_of(lake).rglob("*")))


# -- snapshot drop -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("answer", "code", "left"), [(True, 0, 0), (False, 3, 1)])
def test_a_snapshot_is_dropped_after_a_yes(
    lake: Lakehouse,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    answer: bool,
    code: int,
    left: int,
) -> None:
    lake.create_snapshot("before", version=0)
    monkeypatch.setattr(output, "is_terminal", lambda stream: True)
    monkeypatch.setattr("click.confirm", lambda *_: answer)
    assert code == cli.main(["snapshot", "drop", lake.root, "before"])
    out = capsys.readouterr().out
    assert "dry run, nothing was changed: snapshot before would be dropped" in out
    assert "version 0 stays readable until it expires" in out
    assert left == len(lake.refresh().snapshots())


def test_a_dry_run_of_a_drop_says_that_an_expired_version_is_lost(
    lake: Lakehouse, capsys: pytest.CaptureFixture[str]
) -> None:
    """The snapshot is all that keeps it; no program is asked, and an unknown name is wrong input in a dry run, too."""
    lake.create_snapshot("before", version=0)
    later = int(lake.refresh().info().created_at.timestamp() * 1000) + 2 * lake.definition.txn_ttl_millis
    expire.run(lake, expire.Config("local", keep_last=1, older_than_seconds=0, now_millis=later))
    capsys.readouterr()
    version = lake.refresh().version
    assert 0 == cli.main(["snapshot", "drop", lake.root, "before", "--dry-run"])
    assert "version 0 has expired: unless another snapshot names it" in capsys.readouterr().out
    assert 0 == cli.main(["snapshot", "drop", lake.root, "before", "--dry-run", "--json"])
    assert {"root": lake.root, "dropped": "before", "version_after": None, "dry_run": True} == json.loads(
        capsys.readouterr().out
    )
    assert 2 == cli.main(["snapshot", "drop", lake.root, "after", "--dry-run"])
    assert version == lake.refresh().version
    assert 0 == cli.main(["snapshot", "drop", lake.root, "before"])
    assert [] == lake.refresh().snapshots()

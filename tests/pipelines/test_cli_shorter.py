"""What an engineer types at night: the last change, ten minutes ago, a version, a name."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from pipelines import cli, history, undo
from tests.support.lakes import new_lake
from trinitylake_core import Lakehouse
from trinitylake_core.errors import InvalidInput, VersionNotFound
from trinitylake_core.recovery.target import read_moment

REASON = ["--reason", "bad deploy", "--engine", "local"]


@pytest.fixture
def lake(tmp_path: Path, no_environment: None) -> Lakehouse:
    """Version 1 makes two tables, 2 another one, 3 drops the namespace, 4 changes nothing that anybody sees."""
    lake = new_lake(tmp_path)
    with lake.transaction(reason="begin") as txn:
        txn.create_namespace("sales")
        txn.create_table("sales", "orders", properties={"owner": "emea"})
        txn.create_table("sales", "items")
    with lake.refresh().transaction(reason="more") as txn:
        txn.create_namespace("other")
        txn.create_table("other", "t")
    with lake.refresh().transaction(reason="bad job") as txn:
        txn.drop_namespace("sales", cascade=True)
    lake.refresh().create_snapshot("after")
    return lake.refresh()


def run(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> Any:
    capsys.readouterr()
    assert code == cli.main([*words, "--json"]), words
    return json.loads(capsys.readouterr().out)


def test_the_last_change_is_undone_whoever_made_it(lake: Lakehouse, capsys: pytest.CaptureFixture[str]) -> None:
    done = run(capsys, "undo", lake.root, "--last", *REASON)
    assert [3] == [each["version"] for each in done["undone"]]
    assert ["items", "orders"] == lake.refresh().tables("sales")
    assert ["t"] == lake.tables("other")
    assert (
        "either last, or"
        in run(capsys, "undo", lake.root, "--last", "--author", "*", *REASON, code=2)["error"]["message"]
    )


@pytest.mark.parametrize("since", ["10m", "-10m", "HEAD~3"])
def test_what_was_committed_since_an_age_or_a_version_is_undone(
    lake: Lakehouse, capsys: pytest.CaptureFixture[str], since: str
) -> None:
    """An age is so long ago, with and without a minus; a version is when it was created, and counts, too."""
    done = run(capsys, "undo", lake.root, "--since", since, *REASON)
    assert [3, 2, 1] == [each["version"] for each in done["undone"]]
    assert [] == lake.refresh().namespaces()


def test_a_rollback_takes_its_version_as_a_word(
    lake: Lakehouse, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert 2 == run(capsys, "rollback", lake.root, "2", *REASON)["plan"]["target_version"]
    monkeypatch.setenv("TRINITYLAKE_ROOT", lake.root)
    assert 1 == run(capsys, "rollback", "1", *REASON)["plan"]["target_version"]
    assert 5 == run(capsys, "rollback", "HEAD~1", *REASON)["plan"]["target_version"]
    for words in (["1", "--to-version", "2"], ["prod", "--to-timestamp", "1h"]):
        assert "once" in run(capsys, "rollback", *words, *REASON, code=2)["error"]["message"]


def test_a_restore_takes_its_object_as_a_word_and_finds_the_version_before_its_last_change(
    lake: Lakehouse, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before it was dropped; of one that is there, before it was changed."""
    assert 2 == run(capsys, "restore", lake.root, "sales.orders", *REASON)["plan"]["target_version"]
    assert ["orders"] == lake.refresh().tables("sales")
    with lake.transaction() as txn:
        txn.alter_table("sales", "orders", properties={"owner": "apac"})
    assert 5 == run(capsys, "restore", lake.root, "sales.orders", *REASON)["plan"]["target_version"]
    assert "emea" == lake.refresh().table("sales", "orders").properties["owner"]
    assert 2 == run(capsys, "restore", lake.root, "sales.*", "--version", "2", *REASON)["plan"]["target_version"]
    assert ["items", "orders"] == lake.refresh().tables("sales")


def test_a_restore_of_what_never_changed_asks_for_a_version(
    lake: Lakehouse, capsys: pytest.CaptureFixture[str]
) -> None:
    error = run(capsys, "restore", lake.root, "other.t", *REASON, code=2)["error"]
    assert "no version that is kept changed or dropped other.t" in error["message"]
    twice = run(capsys, "restore", lake.root, "other.t", "--only", "x", "--version", "1", *REASON, code=2)["error"]
    assert "once: NAME or --only" in twice["message"]


def test_an_age_and_a_version_stand_where_a_time_is_asked_for(
    lake: Lakehouse, capsys: pytest.CaptureFixture[str]
) -> None:
    time.sleep(0.01)  # versions that are made within a millisecond are one apart: the newest may lie ahead of the clock
    assert lake.version == lake.at(timestamp="0s").version == lake.at(timestamp="-0s").version
    assert 3 == lake.at(timestamp="HEAD~1").version
    with pytest.raises(VersionNotFound):
        lake.at(timestamp="2h")
    with pytest.raises(VersionNotFound):
        lake.at(timestamp="HEAD~9")
    for text in ("yesterday", "3", "HEAD~", "2 h"):
        with pytest.raises(InvalidInput, match="is not an ISO 8601 time"):
            lake.at(timestamp=text)
    assert lake.info().created_at_millis == read_moment(lake.backend, "HEAD")
    found = history.run(lake, history.Config(since="HEAD~1"))
    assert [4, 3] == [each.version for each in found.versions]
    assert [4, 3] == [each["version"] for each in run(capsys, "history", lake.root, "--since", "HEAD~1")["versions"]]
    with pytest.raises(InvalidInput, match="is not an ISO 8601 time"):
        undo.Config(since="15 min ago", reason="r")


def test_a_feed_begins_behind_a_version_that_is_counted_from_the_newest(
    lake: Lakehouse, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert 0 == cli.main(["history", lake.root, "--follow", "--after", "HEAD~2", "--once"])
    assert [3, 4] == [json.loads(line)["version"] for line in capsys.readouterr().out.splitlines()]


def test_a_word_that_is_a_command_makes_no_snapshot_and_no_copy_where_root_is_left_out(
    lake: Lakehouse, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`tag list` made a snapshot that is called list, and `backup verify` a copy in a directory of that name."""
    monkeypatch.setenv("TRINITYLAKE_ROOT", lake.root)
    monkeypatch.chdir(tmp_path)
    for words in (["tag", "list"], ["tag", "ls"], ["snapshot", "ls"]):
        assert ["after"] == [each["name"] for each in run(capsys, *words)["snapshots"]]
    for words in (["tag", "history"], ["snapshot", "create", "list"], ["backup", "verify"]):
        assert f"{words[-1]!r} is a command" in run(capsys, *words, code=2)["error"]["message"]
    assert not (tmp_path / "verify").exists()
    run(capsys, "tag", lake.root, "list")
    run(capsys, "tag", "create", "monthly")
    run(capsys, "tag", "drop", "after")
    assert {"list", "monthly"} == {each.name for each in lake.refresh().snapshots()}


def test_the_last_ones_are_those_of_a_history(lake: Lakehouse, capsys: pytest.CaptureFixture[str]) -> None:
    """Of names, which are sorted, it took the first."""
    last = run(capsys, "history", lake.root, "--last", "2")["versions"]
    assert [lake.version, lake.version - 1] == [each["version"] for each in last]

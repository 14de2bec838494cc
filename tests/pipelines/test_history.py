"""The history and the difference of two versions as tables, for whoever has no terminal."""

from __future__ import annotations

import fcntl
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from pipelines import cli, diff, expire, history, load
from tests.pipelines.conftest import Run
from tests.support.clock import Clock
from tests.support.fleets import webhook
from tests.support.lakes import compacted, filled, new_lake, reopened
from tests.support.surgery import Surgery
from trinitylake_core import InvalidInput, Lakehouse, spec
from trinitylake_core.locations import root_path
from trinitylake_core.transactions.group import Entry


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lakehouse:
    """Versions 0 to 4 by two authors, then a compaction."""
    made = filled(new_lake(tmp_path), tables=8)
    monkeypatch.setattr("trinitylake_core.transactions.change.whoami", lambda: "bot@ci")
    with made.transaction(reason="Nightly deploy") as txn:
        txn.drop_table("ns0", "t000")
    compacted(made.refresh())
    return made.refresh()


def test_versions_are_chosen_by_who_when_and_why(lake: Lakehouse) -> None:
    def versions(**options: object) -> list[int]:
        return [each.version for each in history.run(lake, history.Config(**options)).versions]  # type: ignore[arg-type]

    assert [5, 4, 3, 2, 1, 0] == versions()
    assert [4] == versions(author="bot@*")
    assert [4] == versions(matching="DEPLOY")
    assert [] == versions(author="bot@*", matching="other")
    assert [5] == versions(operations=("compact",))
    times = {each.version: each.created_at for each in lake.history()}
    assert [5, 4, 3] == versions(since=times[3].isoformat())
    report = history.run(lake, history.Config(limit=2))
    assert (2, True, lake.root, 5) == (len(report.versions), report.more, report.root, report.version)
    assert not history.run(lake, history.Config(limit=6)).more


@pytest.mark.parametrize("options", [{"limit": -1}, {"since": "yesterday"}])
def test_wrong_settings_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(InvalidInput):
        history.Config(**options)  # type: ignore[arg-type]


def test_a_difference_is_counted_and_cut(lake: Lakehouse) -> None:
    old, new = reopened(lake).at(version=1), lake.at(version=4)
    report = diff.report(old, new, limit=3)
    assert ({"added": 7, "removed": 0, "changed": 0}, 3) == (report.counts, len(report.changes))
    assert (lake.root, lake.root, 1, 4) == (report.root, report.other, report.a, report.b)
    assert 7 == len(diff.report(old, new).changes)


def test_a_load_counts_what_it_loaded(tmp_path: Path) -> None:
    lake = new_lake(tmp_path)
    lines = ['{"create_namespace": {"namespace": "sales"}}', '{"create_table": {"namespace": "sales", "name": "t"}}']
    (tmp_path / "objects.jsonl").write_text("\n".join(lines))
    load.run(lake, str(tmp_path / "objects.jsonl"), load.Config(engine="local"))
    assert (spec.OP_LOAD, 2) == ((info := lake.refresh().info()).operation, info.changes)


# -- the feed ------------------------------------------------------------------------------------------


def followed(lake: Lakehouse, file: Path, *words: str) -> list[dict[str, Any]]:
    """Let ``history --follow`` append to a file until the newest version, and return its lines."""
    assert 0 == cli.main(["history", lake.root, "--follow", "--once", "--to", str(file), *words])
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def test_the_feed_has_each_version_once_with_its_objects(lake: Lakehouse, tmp_path: Path) -> None:
    """A compaction changes none, a rollback what it undid; the file knows where to go on, also with half a line."""
    file = tmp_path / "feed.jsonl"
    lines = followed(lake, file, "--after", "0")
    assert [1, 2, 3, 4, 5] == [each["version"] for each in lines]
    for each in lines:
        expected = {(one.change, one.namespace, one.name) for one in lake.diff(each["version"] - 1, each["version"])}
        assert expected == {(one["change"], one["namespace"], one["name"]) for one in each["changed"]}
    assert (("bot@ci", "Nightly deploy"), []) == ((lines[3]["author"], lines[3]["reason"]), lines[4]["changed"])
    lake.rollback(version=3, reason="undo it")
    with file.open("r+") as half:
        half.truncate(file.stat().st_size - 9)
    again = followed(lake, file)
    assert [*lines[:4], lines[4]] == again[:5]
    assert ([6], "rollback") == ([each["version"] for each in again[5:]], again[5]["operation"])
    assert [("added", "t000")] == [(each["change"], each["name"]) for each in again[5]["changed"]]
    assert again == followed(lake, file, "--after", "0")


def test_the_feed_says_which_versions_expired_or_cannot_be_read(lake: Lakehouse, tmp_path: Path, clock: Clock) -> None:
    Surgery(lake.root, lake.definition.order).write(root_path(3), b"rubbish")
    damaged = followed(lake, tmp_path / "damaged.jsonl", "--after", "1")
    assert [False, True, True, False] == [each["changed"] is None for each in damaged]
    assert ["version 3 cannot be read"] * 2 == [each["not_compared"][:24] for each in damaged[1:3]]
    with clock.another(days=30):
        expire.run(lake, expire.Config(engine="local", keep_last=1, older_than_seconds=0))
    kept = lake.refresh().stats().oldest_version
    first, *_ = followed(lake, tmp_path / "expired.jsonl", "--after", "1")
    assert (kept, f"versions 2 to {kept - 1} have expired", None) == tuple(
        first[name] for name in ("version", "not_compared", "changed")
    )


def test_a_webhook_gets_each_version_once_until_an_interrupt(
    lake: Lakehouse, capsys: pytest.CaptureFixture[str]
) -> None:
    """What it refuses is sent again before what comes after it; SIGINT ends it cleanly, behind a whole line."""

    def answer(message: dict[str, Any]) -> int:
        if message["version"] == lake.version:
            os.kill(os.getpid(), signal.SIGINT)
        return 500 if [each["version"] for each in told.messages] == [1, 2] else 200

    with webhook("/secret") as told:
        told.answer = answer
        words = ["history", lake.root, "--follow", "--after", "0", "--every", "1s", "--to", told.url]
        assert 0 == cli.main(words)
    assert [1, 2, 2, 3, 4, 5] == [each["version"] for each in told.messages]
    said = capsys.readouterr().err
    assert "warning: the webhook did not accept the line: HTTP Error 500" in said
    assert "secret" not in said
    assert "Traceback" not in said


def test_what_another_process_appends_to_is_refused(lake: Lakehouse, run: Run, tmp_path: Path) -> None:
    with (tmp_path / "locked").open("w") as locked:
        fcntl.flock(locked, fcntl.LOCK_EX)
        ran = run("history", lake.root, "--follow", "--once", "--to", str(tmp_path / "locked"))
    assert (2, True) == (ran.code, "another process appends" in ran.err)


def test_a_version_is_found_by_each_author_and_reason_of_its_members(tmp_path: Path) -> None:
    """The summary of the version names the first three; all of them made it."""
    lake = new_lake(tmp_path)
    entries = []
    for number in range(6):
        txn = lake.transaction(reason=f"reason {number}")
        txn.create_namespace(f"n{number}")
        txn.change.write_definitions()
        entries.append(Entry(txn.change, f"author{number}"))
    lake.group().commit_together(entries)
    found = history.run(lake.refresh(), history.Config(author="author5", matching="REASON 5")).versions
    assert [1] == [each.version for each in found]
    assert () == history.run(lake, history.Config(author="author5", matching="reason 4")).versions

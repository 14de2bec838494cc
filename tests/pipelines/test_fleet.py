"""The state of many lakehouses: the worst first, none holds up another, and text for monitoring systems."""

from __future__ import annotations

import json
import re
import socket
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from pipelines import compaction, export, fleet
from pipelines.cli import main
from pipelines.fleet import Config, Member, State, state_of
from pipelines.trees.policy import debt_of
from tests.support.lakes import filled, new_lake, reopened
from tests.support.surgery import directory_of
from trinitylake_core import Lakehouse


def lake(path: Path, tables: int) -> str:
    """Return the root of a lakehouse with so many buffered tables."""
    made = Lakehouse.create(path.as_uri())
    with made.transaction() as txn:
        txn.create_namespace("s")
        for number in range(tables):
            txn.create_table("s", f"t{number}", schema=pa.schema([("id", pa.int64())]))
    return made.root


def test_the_worst_come_first_and_say_why(tmp_path: Path) -> None:
    """Those that cannot be opened, then those whose backup cannot, then by debt."""
    small, large, copied = (lake(tmp_path / name, count) for name, count in (("a", 1), ("b", 9), ("c", 3)))
    target = (tmp_path / "copy").as_uri() + "/"
    export.run(Lakehouse.open(copied), target, export.Config(history=True, engine="local"))
    Lakehouse.open(copied).create_snapshot("now")
    report = fleet.run(
        [
            Member("small", small, threshold=5),
            Member("large", large, threshold=5),
            Member("copied", copied, threshold=5, backup=target),
            Member("no-backup", small, threshold=5, backup=(tmp_path / "nowhere").as_uri()),
            Member("missing", (tmp_path / "missing").as_uri()),
        ]
    )
    assert ["missing", "no-backup", "large", "copied", "small"] == [state.name for state in report.states]
    missing, no_backup, worst, third, _ = report.states
    assert "there is no lakehouse at" in str(missing.problem)
    assert "there is no lakehouse at" in str(no_backup.backup_problem)
    assert (10, 2.0, 1) == (worst.messages, worst.debt, worst.version)
    assert (1, 1, 1) == (third.backup_version, third.backup_lag, third.snapshots)
    assert (1, 1) == (report.unreachable, report.over_threshold)


def test_one_that_hangs_costs_its_deadline_and_one_with_an_odd_error_only_itself(tmp_path: Path) -> None:
    """A server that accepts nothing; and options that cannot be looked up."""
    good = lake(tmp_path / "good", 1)
    silent = socket.create_server(("127.0.0.1", 0))

    def unanswered() -> dict[str, str]:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        return {"endpoint_url": address, "key": "k", "secret": "s", "region": "us-east-1"}

    def odd() -> dict[str, str]:
        raise ZeroDivisionError("odd")

    members = [
        Member("hangs", "s3://bucket/lake", options=unanswered),
        Member("odd", good, options=odd),
        Member("good", good),
    ]
    with silent:
        report = fleet.run(members, Config(seconds=2))
    problems = {state.name: state.problem for state in report.states}
    assert (None, "ZeroDivisionError: odd") == (problems["good"], problems["odd"])
    assert "gave no answer within" in str(problems["hangs"])


def test_what_there_was_no_time_for_is_told(tmp_path: Path) -> None:
    root = lake(tmp_path / "a", 1)
    report = fleet.run([Member(f"l{n}", root) for n in range(3)], Config(at_once=1, total_seconds=0.0))
    assert all("not read" in str(state.problem) for state in report.states)


def test_the_debt_is_what_a_compaction_pays_for(tmp_path: Path) -> None:
    """As the sensor of Dagster counts it: the survey counted messages that may wait, too."""
    lake = Lakehouse.create((tmp_path / "lake").as_uri(), order=200)
    with lake.transaction() as txn:
        for number in range(600):
            txn.create_namespace(f"n{number}")
    compaction.run(lake.refresh(), compaction.Config(engine="local"))
    with lake.refresh().transaction() as txn:
        txn.create_namespace("sales")
    found = state_of(Member("a", lake.root, threshold=1))
    assert (0, 0.0) == (found.messages, found.debt)
    assert 0 == debt_of(lake.refresh().stats()) < (lake.stats().messages or 0)


def test_openmetrics_are_what_prometheus_reads() -> None:
    """Each line a name, labels and a number; every family with its type; the end is marked; nothing that is secret."""
    now = datetime(2026, 11, 22, tzinfo=UTC)
    good = State('a"b\\c', "s3://private/", version=7, committed_at=now, messages=3, debt=0.3, objects=0)
    bad = State("bad", "s3://private/", problem="key hunter2 refused")
    text = fleet.openmetrics(fleet.Report([bad, good]), now)
    lines = text.splitlines()
    assert "# EOF" == lines[-1]
    assert text.endswith("\n")
    sample = re.compile(r'trinitylake_[a-z_]+\{lakehouse="(?:[^"\\\n]|\\["\\n])*"\} -?[0-9.e+-]+')
    samples = [line for line in lines if not line.startswith("#")]
    assert samples
    assert all(sample.fullmatch(line) for line in samples)
    families = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert {line.split("{")[0] for line in samples} <= set(families)
    assert 'trinitylake_up{lakehouse="bad"} 0' in lines
    assert 'trinitylake_up{lakehouse="a\\"b\\\\c"} 1' in lines
    assert 'trinitylake_objects{lakehouse="a\\"b\\\\c"} 0' in lines
    assert not re.search("private|hunter2", text)


@pytest.mark.parametrize("given", [{}, {"retries": 9, "read_timeout": 60}])
def test_a_survey_waits_for_no_storage_long(given: dict[str, float]) -> None:
    assert (1, 6) == tuple(fleet.hurry("s3://x/", given)[name] for name in ("retries", "read_timeout"))


@pytest.fixture
def listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a lakehouses.yaml with a good lakehouse, a missing one, a variable that is not set, and a mistake."""
    lake(tmp_path / "good", 3)
    monkeypatch.delenv("TL_NOT_SET", raising=False)
    path = tmp_path / "lakehouses.yaml"
    path.write_text(
        """
lakehouses:
  - {name: good, root: "file://{here}/good", compaction: {messages: 2}}
  - {name: missing, root: "file://{here}/missing"}
  - {name: secret, root: "s3://nowhere/x", storage_options: {secret: {env: TL_NOT_SET}}}
  - {name: mistake}
"""
    )
    return path


def called(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = main(["fleet", *words, "--quiet"])
    return code, capsys.readouterr().out


def test_the_command_reads_the_file_of_dagster(listed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As a table, as JSON, and for Prometheus; exit code 1 while one cannot be opened."""
    code, text = called(capsys, str(listed))
    assert (1, True) == (code, "4 lakehouses: 3 cannot be opened, 1 need a compaction" in text)
    assert "200%" in text
    code, text = called(capsys, str(listed), "--json")
    states = {state["name"]: state for state in json.loads(text)["states"]}
    assert ["missing", "mistake", "secret", "good"] == list(states)
    assert "TL_NOT_SET is not set" in states["secret"]["problem"]
    assert "lakehouse 'mistake': root: required, but missing" in states["mistake"]["problem"]
    assert (4, 2.0) == (states["good"]["messages"], states["good"]["debt"])
    code, text = called(capsys, str(listed), "--format", "openmetrics")
    assert (1, True) == (code, text.endswith("# EOF\n"))
    assert 'trinitylake_debt_ratio{lakehouse="good"} 2.0' in text.splitlines()


def test_without_a_file_the_one_whose_names_are_known_here_is_read(
    listed: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    below = listed.parent / "good"
    monkeypatch.delenv("TRINITYLAKE_LAKEHOUSES", raising=False)
    monkeypatch.chdir(below)
    assert called(capsys, str(listed)) == called(capsys)
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert 2 == main(["fleet"])
    assert "there is no lakehouses.yaml here or above" in capsys.readouterr().err
    monkeypatch.setenv("TRINITYLAKE_LAKEHOUSES", str(listed))
    assert 1 == called(capsys)[0]


def test_the_command_reads_a_list_of_roots(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "roots.txt"
    text = f"{lake(tmp_path / 'a', 1)}\n\n# ours\n{lake(tmp_path / 'b', 2)} # the other\n"
    path.write_text(text, encoding="utf-8-sig")  # some editors begin a file with a mark
    code, text = called(capsys, str(path))
    assert (0, True) == (code, "2 lakehouses: 0 cannot be opened" in text)


@pytest.mark.parametrize("text", ["- a", "lakehouses: 3", "{", "other: 1"])
def test_a_file_without_lakehouses_is_wrong_input(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "lakehouses.yaml"
    path.write_text(text)
    assert 2 == called(capsys, str(path))[0]
    assert 2 == called(capsys, str(tmp_path / "nothing.yaml"))[0]
    assert 2 == called(capsys, str(path), "--timeout", "0")[0]


# -- how fast one grows: rates since the oldest version that is kept -----------------------------------


@pytest.fixture
def growing(tmp_path: Path) -> Lakehouse:
    return filled(new_lake(tmp_path), tables=12)


def test_a_history_of_seconds_says_nothing_about_a_day(growing: Lakehouse) -> None:
    found = fleet.growth_of(growing)
    assert (None, None) == (found.versions_per_day, found.objects_per_day)
    assert (True, True) == ((found.kept_bytes or 0) > 0, (found.waiting_bytes or 0) > 0)


def test_rates_are_those_of_the_versions_that_are_kept(growing: Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten days lie between the first version and the newest: so much of everything a day; two ``get``."""
    real = Lakehouse.stats

    def dated(handle: Lakehouse) -> object:
        found = real(handle)
        return replace(found, created_at=found.created_at + timedelta(days=10)) if found.version else found

    monkeypatch.setattr(Lakehouse, "stats", dated)
    newest, opened = growing.stats(), reopened(growing)
    before = opened.storage.counts.requests()
    found = fleet.growth_of(opened)
    assert opened.storage.counts.requests() - before <= 2
    assert newest.version / 10 == pytest.approx(found.versions_per_day, abs=0.01)
    assert (newest.objects or 0) / 10 == pytest.approx(found.objects_per_day, abs=0.01)


def test_an_oldest_root_that_cannot_be_read_leaves_the_rest(growing: Lakehouse) -> None:
    oldest = growing.at(version=growing.stats().oldest_version)
    (directory_of(growing) / oldest.root_node.path).write_bytes(b"garbage")
    found = fleet.growth_of(reopened(growing))
    assert (None, True) == (found.since, (found.waiting_bytes or 0) > 0)

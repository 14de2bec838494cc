"""The state of many lakehouses: the worst first, none holds up another, and text for monitoring systems."""

from __future__ import annotations

import os
import re
import threading
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from pipelines import export, fleet
from pipelines.fleet import Config, Member, State
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
    export.run(None, Lakehouse.open(copied), target, export.Config(history=True, engine="local"))
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
    """A root that is a pipe nobody writes to; and options that cannot be looked up."""
    good, hanging = lake(tmp_path / "good", 1), tmp_path / "hangs"
    hanging.mkdir()
    os.mkfifo(hanging / "_latest_hint.txt")

    def odd() -> dict[str, str]:
        raise ZeroDivisionError("odd")

    members = [Member("hangs", hanging.as_uri()), Member("odd", good, options=odd), Member("good", good)]
    report = fleet.run(members, Config(seconds=0.5))
    problems = {state.name: state.problem for state in report.states}
    assert (None, "ZeroDivisionError: odd") == (problems["good"], problems["odd"])
    assert "gave no answer within" in str(problems["hangs"])
    threading.Thread(target=lambda: (hanging / "_latest_hint.txt").write_bytes(b"0"), daemon=True).start()


def test_what_there_was_no_time_for_is_told(tmp_path: Path) -> None:
    root = lake(tmp_path / "a", 1)
    report = fleet.run([Member(f"l{n}", root) for n in range(3)], Config(at_once=1, total_seconds=0.0))
    assert all("not looked at" in str(state.problem) for state in report.states)


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
    assert (1, 6) == tuple(fleet.hurried("s3://x/", given)[name] for name in ("retries", "read_timeout"))

"""Reports of jobs: what matters in a few lines, and every figure with --verbose and --json."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipelines.clean import Report as Cleaned
from pipelines.cli.report import summarise
from pipelines.diff import Report as Difference
from pipelines.expire import Report as Expired
from pipelines.reach.sweep import Size, UnknownFiles
from pipelines.reports.summary import tables_of
from tests.pipelines.conftest import Run as Ran
from tests.support.clock import Clock
from trinitylake_core import Change, Lakehouse

Run = Callable[..., list[str]]
LATER = 30 * 86_400_000


@pytest.fixture
def run(run: Ran) -> Run:
    """Run a command on this machine; return its lines."""

    def call(*words: str) -> list[str]:
        ran = run(*words, "--engine", "local")
        assert 0 == ran.code, ran.err
        return ran.out.splitlines()

    return call


@pytest.fixture
def lake(tmp_path: Path, clock: Clock) -> Lakehouse:
    """Return five versions, and a clock that has gone on for a month since."""
    lake = Lakehouse.create((tmp_path / "lake").as_uri(), order=8)
    for number in range(4):
        with lake.transaction() as txn:
            txn.create_namespace(f"n{number}")
    clock.forward(millis=LATER)
    return lake


@pytest.mark.parametrize("name", ["compact", "expire", "clean", "export", "load", "upgrade"])
def test_verbose_has_every_figure_below(run: Run, lake: Lakehouse, tmp_path: Path, name: str) -> None:
    """The names of all fields that JSON has."""
    (tmp_path / "o.jsonl").write_text('{"create_namespace": {"namespace": "z"}}\n')
    more = {"load": [str(tmp_path / "o.jsonl")]}.get(name, [(tmp_path / "x").as_uri()] if name[0] in "eu" else [])
    words = [name, lake.root, *(more if name != "expire" else []), "--dry-run"]
    brief, verbose = run(*words), run(*words, "--verbose")
    assert brief[0] == verbose[0]
    document: dict[str, Any] = json.loads("".join(run(*words, "--json")))
    shown = {line.split()[0] for line in verbose if line}
    assert document.keys() - shown <= {"freed", "kept", "version_before"} | shown
    assert len(brief) < len(verbose)


def test_what_could_not_be_deleted_is_named() -> None:
    failures = {f"n{number}": "busy\x1b" for number in range(9)}
    report = Expired("file:///x/", False, 9, 10, 0, 5, 5, attempted=5, deleted=3, failed=2, bytes=10, failures=failures)
    lines = list(next(summarise(report)))
    assert "2 files could not be deleted; the next run tries again:" in lines
    assert r"  n0: busy\x1b" == lines[lines.index("2 files could not be deleted; the next run tries again:") + 1]
    assert 8 == len(lines)
    left = Cleaned("file:///x/", 9, 0, "local", False, 86400.0, attempted=4, deleted=2, already_gone=1, failed=1)
    left = replace(left, young=Size(3, 2048), foreign=UnknownFiles(0, 0, ("nested/",)))
    assert [
        "0 orphans (0 B) among 0 files",
        "2 files deleted, 0 B; 1 were gone already",
        "1 file could not be deleted; the next run tries again:",
        "kept, because they are younger than 1d: 3 files, 2.0 KiB",
        "not of this lakehouse, left alone: 0 files, 0 B: nested/",
    ] == list(left.summary())


def test_people_see_the_first_rows_of_a_table_and_how_many_more_there_are() -> None:
    """A report may hold fewer rows than it counts."""
    changes = tuple(Change("added", "table", "sales", f"t{n}", f"k{n}", None, "p") for n in range(60))
    counts = {"added": 75, "removed": 0, "changed": 0}
    report = Difference("file:///a/", "file:///a/", 1, 2, counts, changes)
    (table,) = tables_of(report)
    assert (60, ["added", "table", "sales.t0"]) == (len(table.rows), table.rows[0])
    sentences, rows = map(list, summarise(report))
    assert ["from version 1 to version 2: 75 added, 0 removed, 0 changed"] == sentences
    assert (52, "... and 25 more") == (len(rows), rows[-1])

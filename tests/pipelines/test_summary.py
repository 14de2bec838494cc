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
from pipelines.reports.summary import count, tables_of
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


def test_the_life_of_a_lakehouse_in_sentences(run: Run, lake: Lakehouse, tmp_path: Path) -> None:
    """Dry run, done, and nothing to do, of each job."""
    root, copy, up = lake.root, (tmp_path / "copy").as_uri() + "/", (tmp_path / "up").as_uri() + "/"
    source, plan = tmp_path / "o.jsonl", (tmp_path / "plan.parquet").as_uri()
    source.write_text('{"create_namespace": {"namespace": "z"}}\n')
    planned = run("compact", root, "--dry-run")
    assert ["dry run, nothing was changed: 4 messages would be pushed down, with at most 1 node"] == [
        planned[0].partition(" (")[0]
    ]
    done = run("compact", root)
    assert done[0].startswith("version 5 committed: 4 messages pushed down, 1 node written, ")
    assert (1, True) == (len(done), done[0].endswith(", proved to mean what was there before"))
    assert ["nothing to do: no message is buffered in version 5"] == run("compact", root)
    loads = ["load", root, str(source)]
    assert ["dry run, nothing was changed", "objects: 1 added, from 1 file (41 B)"] == run(*loads, "--dry-run")
    assert ["version 6 committed; it holds 5 objects", "objects: 1 added, from 1 file (41 B)"] == run(*loads)
    assert ["nothing to do", "objects: 1 skipped, from 1 file (41 B)"] == run(*loads, "--existing", "skip")
    planned = run("export", root, copy, "--dry-run")
    assert f"dry run, nothing was changed: {copy} would hold version 6" == planned[0]
    assert (2, "to copy: 6 definitions, 0 nodes, 1 root") == (len(planned), planned[1].rpartition(", ")[0])
    assert f"{copy} holds version 6" == run("export", root, copy)[0]
    assert [f"nothing to copy: {copy} holds version 6 already, 7 files"] == run("export", root, copy)
    expire = ["expire", root, "--keep-last", "2", "--older-than", "0s"]
    assert (
        "dry run, nothing was changed: versions 0 to 4 would expire, versions 5 to 6 stay"
        == run(*expire, "--dry-run")[0]
    )
    assert (
        f"plan written to {plan}, nothing was changed: versions 0 to 4 would expire, versions 5 to 6 stay"
        == (run(*expire, "--plan-to", plan)[0])
    )
    done = run(*expire)
    assert "version 7 committed: versions 0 to 4 expired, versions 5 to 6 stay" == done[0]
    assert (2, True) == (len(done), done[1].startswith("5 roots deleted, "))
    assert "nothing expires: versions 5 to 7 stay" == run(*expire)[0]
    assert "nothing to do: 0 orphans (0 B) among " == run("clean", root, "--older-than", "60d")[0][:37]
    assert [f"dry run, nothing was changed: {up} would hold version 7 of {root}, 5 objects"] == (
        run("upgrade", root, up, "--dry-run")
    )
    assert f"{up} holds version 7 of {root}, 5 objects, as version 0" == run("upgrade", root, up)[0]


def test_a_cleaning_says_what_it_leaves_alone(run: Run, lake: Lakehouse, tmp_path: Path) -> None:
    (tmp_path / "lake/README.txt").write_text("mine")
    done = run("clean", lake.root, "--dry-run")
    assert "not of this lakehouse, left alone: 1 file, 4 B: README.txt" == done[-1]


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


def test_counts_are_in_english() -> None:
    counted = [(1, "file"), (0, "file"), (1234, "entry"), (1, "entry"), (2, "key"), (None, "file")]
    assert ["1 file", "0 files", "1,234 entries", "1 entry", "2 keys", "an unknown number of files"] == [
        count(number, what) for number, what in counted
    ]


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

"""A sweep in this process: columns say what sets of paths said, in memory and from temporary files."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pipelines.files.listing import ROOT, UNKNOWN, Listed, listed
from pipelines.job import silent
from pipelines.sweep import columns, local
from pipelines.sweep.columns import Marks, marked
from pipelines.sweep.local import LocalSweep
from pipelines.sweep.model import Size
from pipelines.trees import levels, spool
from pipelines.trees.walk import FOREVER, Start, TreeSource, walk_local
from tests.support.lakes import compacted, filled, new_lake, reopened
from trinitylake_core import Lakehouse
from trinitylake_core.errors import CorruptNode
from trinitylake_core.locations import definition_path, node_path, root_path

MIB = 1 << 20
CUTOFF = 1000
BOUNDARY = 3


@pytest.fixture(params=["memory", "files"])
def limit(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Everything fits into memory, or next to nothing does."""
    if request.param == "files":
        monkeypatch.setattr(spool, "LIMIT_BYTES", 2048)
        monkeypatch.setattr(columns, "_MARKED_AT_ONCE", 10)
    return str(request.param)


def files_at_random(pick: Random, count: int) -> list[Listed]:
    """Files of all kinds and ages, some of them listed twice."""
    paths = [pick.choice([node_path(), definition_path("table", "ns", "t"), root_path(pick.randrange(9))])
             for _ in range(count)] + ["0000/0000/other", "somebody/else"]  # fmt: skip
    ages = [None, CUTOFF - 1, CUTOFF, CUTOFF + 1]
    found = [listed(path, pick.randrange(100), pick.choice(ages)) for path in paths]
    return found + [each._replace(modified_millis=pick.choice(ages)) for each in pick.sample(found, count // 4)]


def swept(files: list[Listed], monkeypatch: pytest.MonkeyPatch, lake: Lakehouse) -> LocalSweep:
    """Return a sweep that has listed files."""
    sweep = LocalSweep(lake.storage, 4, silent)

    def inventory(*_: Any) -> Iterator[Listed]:
        return iter(files)

    monkeypatch.setattr(LocalSweep, "_inventory", inventory)
    sweep.total = sweep.list_files("inventory", {})  # type: ignore[attr-defined]
    return sweep


def by_path(files: list[Listed]) -> dict[str, Listed]:
    """The oracle: a dictionary of what is listed, the younger entry of two."""
    found: dict[str, Listed] = {}
    for file in files:
        known = found.get(file.path, file)
        ages = [each.modified_millis for each in (known, file) if each.modified_millis is not None]
        age = max(ages) if len(ages) == 2 else None
        found[file.path] = known._replace(bytes=max(known.bytes, file.bytes), modified_millis=age)
    return found


@pytest.mark.parametrize("seed", range(5))
def test_what_is_listed_and_not_marked_is_told_by_age_and_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, seed: int
) -> None:
    pick, lake = Random(seed), new_lake(tmp_path)
    files = files_at_random(pick, 150)
    known = by_path(files)
    sweep = swept(files, monkeypatch, lake)
    live = set(pick.sample(sorted(known), 60))
    sweep.mark([], live)
    totals = sweep.subtract(BOUNDARY, CUTOFF)
    dead = [each for path, each in known.items() if path not in live and each.may_go(BOUNDARY)]
    orphans = {each.path: each for each in dead if each.modified_millis is not None and each.modified_millis < CUTOFF}
    assert orphans == {each.path: each for each in sweep.orphans()}
    assert (len(orphans), sum(each.bytes for each in orphans.values())) == (totals.files, totals.bytes)
    assert sum(each.modified_millis is None for each in dead) == totals.unknown_age.files
    assert len(dead) - len(orphans) - totals.unknown_age.files == totals.young.files
    assert Size(len(known), sum(each.bytes for each in known.values())) == sweep.total  # type: ignore[attr-defined]
    unknown = sorted(path for path, each in known.items() if each.kind == UNKNOWN)
    assert (len(unknown), unknown) == (sweep.unknown.files, list(sweep.unknown.some))
    later = set(pick.sample(sorted(orphans), len(orphans) // 2))
    sweep.mark([], later)
    assert later == set(sweep.reached()) or len(later) > len(sweep.reached())
    assert len(orphans) - len(later) == sweep.subtract_again().files
    assert orphans.keys() - later == {each.path for each in sweep.orphans()}
    assert (limit == "files") == sweep._files.spilled
    sweep.release()


def test_a_plan_keeps_what_is_listed_old_enough_and_not_live(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    pick = Random(limit)
    files = files_at_random(pick, 200)
    known = by_path(files)
    sweep = swept(files, monkeypatch, new_lake(tmp_path))
    planned = pick.sample(sorted(path for path in known if known[path].kind not in {UNKNOWN, ROOT}), 80)
    missing = [node_path() for _ in range(7)]
    sweep.load(listed(path, 1, 0) for path in [*planned, *missing])
    live = set(planned[:30])
    sweep.mark([], live)
    totals, gone = sweep.agree(CUTOFF)
    old = {path for path in planned[30:] if (known[path].modified_millis or 0) < CUTOFF}
    assert (7, len(old)) == (gone, totals.files)
    assert {path: known[path] for path in old} == {each.path: each for each in sweep.orphans()}
    sweep.release()


def test_marks_of_a_file_say_the_first_and_the_last_version_that_reach_it(limit: str) -> None:
    pick, marks = Random(limit), Marks()
    found: dict[str, tuple[int, int]] = {}
    for _ in range(200):
        first = pick.randrange(50)
        last = pick.choice([first, first + pick.randrange(9), FOREVER])
        paths = [f"path {pick.randrange(120)}" for _ in range(pick.randrange(6))]
        marks.add(paths, first, last)
        for path in paths:
            was = found.get(path, (first, last))
            found[path] = min(first, was[0]), max(last, was[1])
    marks.flush()
    told = {}
    for (rows,) in spool.parts(marks.spool):
        told.update({int(bits): (int(low), int(high)) for bits, low, high in zip(*marked(rows), strict=True)})
    assert {hash(path): where for path, where in found.items()} == told
    assert (limit == "files") == marks.spool.spilled
    marks.close()


def test_a_marking_that_failed_begins_again_at_its_roots(tmp_path: Path) -> None:
    """A root that was read before the failure is no reason to leave out what it reaches: that would be deleted."""
    lake = filled(new_lake(tmp_path), tables=30)
    compacted(lake)
    sweep, newest = LocalSweep(lake.storage, 4, silent), reopened(lake).version
    root = Start(root_path(newest), newest, newest)
    sweep.list_files(None, {})
    with pytest.raises(CorruptNode):
        sweep.mark([root, Start(node_path(), FOREVER, FOREVER)], set())
    sweep.mark([root], set())
    needed = [row["path"] for row in walk_local(TreeSource(lake.storage, 4), [root])]
    assert len(needed) > 5
    sweep.subtract(0, 1 << 60)
    assert set() == {each.path for each in sweep.orphans()} & set(needed)


def test_a_walk_whose_levels_are_spooled_reads_each_node_once(tmp_path: Path) -> None:
    """It tells the same of every node, the highest first, with as many requests."""
    lake = filled(new_lake(tmp_path), tables=60)
    for number in range(3):
        compacted(lake.refresh())
        with lake.refresh().transaction() as txn:
            txn.alter_table("ns1", "t001", properties={"a": str(number)})
    versions = reopened(lake).version + 1
    starts = [Start(root_path(version), version, version) for version in range(versions)]
    source, before = TreeSource(lake.storage, 4), lake.storage.counts.snapshot()
    plain = list(walk_local(source, starts))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(levels.Waiting.__init__, "__defaults__", (3,))
        spooled = list(walk_local(source, starts))
    assert 2 * len(plain) == (lake.storage.counts - before).get
    assert [row["height"] for row in plain] == [row["height"] for row in spooled]
    assert {row["path"]: row for row in plain} == {row["path"]: row for row in spooled}


def _peak(files: int) -> int:
    """Return what a sweep of so many files holds at its peak: Python's and numpy's memory, and Arrow's."""
    marks, found = Marks(), local.Spool(columns.FILES)
    tracemalloc.start()
    try:
        arrow = 0
        for start in range(0, files, 1000):
            names = [f"{number:0100}" for number in range(start, start + 1000)]
            marks.add(names, 1, 1)
            found.add(columns.batch_of([Listed(name, 1, 1, "node", None) for name in names]))
            arrow = max(arrow, pa.total_allocated_bytes())
        marks.flush()
        live = 0
        for part, rows in spool.parts(found, marks.spool):
            live += int(np.count_nonzero(marked(rows).has(part)))
            arrow = max(arrow, pa.total_allocated_bytes())
        assert files == live
        return tracemalloc.get_traced_memory()[1] + arrow
    finally:
        tracemalloc.stop()
        marks.close()
        found.close()


def test_memory_of_a_sweep_does_not_follow_the_number_of_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four times the files take at most 1 MiB more; their names alone are 3 MiB more."""
    monkeypatch.setattr(spool, "LIMIT_BYTES", 1 << 17)
    monkeypatch.setattr(columns, "_MARKED_AT_ONCE", 1 << 11)
    few, many = _peak(10_000), _peak(40_000)
    assert many - few < MIB, (few, many)

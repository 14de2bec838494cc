"""A sweep says of every listed file whether it may be deleted: an oracle of dictionaries says the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from pipelines.engine import Engine, open_engine
from pipelines.engine import local as local_engine
from pipelines.job import silent
from pipelines.reach.listing import ROOT, UNKNOWN, Listed, listed_file
from pipelines.reach.sweep import Size, Sweep
from pipelines.reach.walk import FOREVER, Start, TreeSource, walk
from tests.support.lakes import compacted, filled, new_lake, reopened
from trinitylake_core import Lakehouse
from trinitylake_core.errors import CorruptNode
from trinitylake_core.locations import definition_path, node_path, root_path

CUTOFF = 1_000_000_000_000
BOUNDARY = 3


@pytest.fixture(params=["memory", "files"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """Everything fits into memory, or next to nothing does. Tasks answer alike: test_engine, test_clean."""
    if request.param == "files":
        monkeypatch.setattr(local_engine, "MEMORY_BYTES", 4096)
    made = open_engine("local", None)
    yield made
    made.close()


def files_at_random(pick: Random, count: int) -> list[Listed]:
    """Files of all kinds and ages, some of them listed twice."""
    paths = [pick.choice([node_path(), definition_path("table", "ns", "t"), root_path(pick.randrange(9))])
             for _ in range(count)] + ["0000/0000/other", "somebody/else"]  # fmt: skip
    ages = [None, CUTOFF - 1, CUTOFF, CUTOFF + 1]
    found = [listed_file(path, pick.randrange(100), pick.choice(ages)) for path in paths]
    return found + [each._replace(modified_millis=pick.choice(ages)) for each in pick.sample(found, count // 4)]


def inventory_of(files: list[Listed], directory: Path) -> str:
    """Return the URI of an inventory that lists files."""
    path = directory / "inventory.csv"
    lines = [
        f"{each.path},{each.bytes},{'' if each.modified_millis is None else each.modified_millis}" for each in files
    ]
    path.write_text("\n".join(["path,size,modified_millis", *lines]) + "\n")
    return path.as_uri()


def by_path(files: list[Listed]) -> dict[str, Listed]:
    """The oracle: a dictionary of what is listed, the younger entry of two."""
    found: dict[str, Listed] = {}
    for file in files:
        known = found.get(file.path, file)
        ages = [each.modified_millis for each in (known, file) if each.modified_millis is not None]
        age = max(ages) if len(ages) == 2 else None
        found[file.path] = known._replace(bytes=max(known.bytes, file.bytes), modified_millis=age)
    return found


def test_a_listing_reports_progress_before_it_is_complete(tmp_path: Path) -> None:
    lake = filled(new_lake(tmp_path / "lake"), tables=8)
    seen = list[tuple[str, int]]()
    total = Sweep(local_engine.LocalEngine(), lake.storage, 4, lambda phase, done, _: seen.append((phase, done)))
    found = total.list_files(None, {})
    assert len({done for phase, done in seen if phase == "list"}) > 1
    assert seen[-1] == ("list", found.files)


@pytest.mark.parametrize("seed", range(3))
def test_what_is_listed_and_not_marked_is_told_by_age_and_kind(tmp_path: Path, engine: Engine, seed: int) -> None:
    pick, lake = Random(seed), new_lake(tmp_path / "lake")
    files = files_at_random(pick, 150)
    known = by_path(files)
    sweep = Sweep(engine, lake.storage, 4, silent)
    total = sweep.list_files(inventory_of(files, tmp_path), {})
    live = set(pick.sample(sorted(known), 60))
    sweep.mark([], live)
    totals = sweep.subtract(BOUNDARY, CUTOFF)
    dead = [each for path, each in known.items() if path not in live and sweep.may_go(each, BOUNDARY)]
    orphans = {each.path: each for each in dead if each.modified_millis is not None and each.modified_millis < CUTOFF}
    assert orphans == {each.path: each for each in sweep.orphans()}
    assert (len(orphans), sum(each.bytes for each in orphans.values())) == (totals.files, totals.bytes)
    assert sum(each.modified_millis is None for each in dead) == totals.unknown_age.files
    assert len(dead) - len(orphans) - totals.unknown_age.files == totals.young.files
    assert Size(len(known), sum(each.bytes for each in known.values())) == total
    unknown = sorted(path for path, each in known.items() if each.kind == UNKNOWN)
    assert (len(unknown), unknown) == (sweep.unknown.files, list(sweep.unknown.some))
    later = set(pick.sample(sorted(orphans), len(orphans) // 2))
    sweep.mark([], later)
    assert set(sweep.live_orphans()) <= later
    assert min(20, len(later)) == len(sweep.live_orphans())
    assert len(orphans) - len(later) == sweep.remove_live().files
    assert orphans.keys() - later == {each.path for each in sweep.orphans()}
    sweep.release()


def test_a_plan_keeps_what_is_listed_old_enough_and_not_live(tmp_path: Path, engine: Engine) -> None:
    pick = Random(7)
    files = files_at_random(pick, 200)
    known = by_path(files)
    sweep = Sweep(engine, new_lake(tmp_path / "lake").storage, 4, silent)
    sweep.list_files(inventory_of(files, tmp_path), {})
    planned = pick.sample(sorted(path for path in known if known[path].kind not in {UNKNOWN, ROOT}), 80)
    missing = [node_path() for _ in range(7)]
    sweep.load(listed_file(path, 1, 0) for path in [*planned, *missing])
    live = set(planned[:30])
    sweep.mark([], live)
    totals, gone = sweep.confirm_plan(CUTOFF)
    old = {path for path in planned[30:] if (known[path].modified_millis or CUTOFF) < CUTOFF}
    assert (7, len(old)) == (gone, totals.files)
    assert {path: known[path] for path in old} == {each.path: each for each in sweep.orphans()}
    sweep.release()


def test_what_versions_hold_alone_is_told(tmp_path: Path, engine: Engine) -> None:
    """The oracle walks each version by itself."""
    lake = filled(new_lake(tmp_path), tables=30)
    for number in range(3):
        compacted(lake.refresh())
        with lake.refresh().transaction() as txn:
            txn.alter_table("ns1", "t001", properties={"a": str(number)})
    last = reopened(lake).version
    reached = {version: _reached(lake, version) for version in range(last + 1)}
    sweep, below = Sweep(engine, lake.storage, 4, silent), last - 1
    sweep.list_files(None, {})
    sweep.mark([Start(root_path(version), version, version) for version in reached], set())
    total, alone = sweep.exclusive_sizes(below)
    kept = set().union(*(reached[version] for version in range(below, last + 1)))
    freed = set().union(*(reached[version] for version in range(below))) - kept
    sizes = {file.path: file.size for file in lake.storage.list("")}
    assert Size(len(freed), sum(sizes.get(path, 0) for path in freed)) == total
    for version in range(below):
        others = set().union(*(reached[each] for each in reached if each != version))
        mine = reached[version] - others
        assert alone.get(version, Size()) == Size(len(mine), sum(sizes.get(path, 0) for path in mine))
    told = sweep.sizes(last, 0)
    assert told["newest"].files == len(reached[last])
    assert told["history"].files == len(set().union(*reached.values()) - reached[last])
    assert 0 == told["nothing"].files
    sweep.release()


def _reached(lake: Lakehouse, version: int) -> set[str]:
    walked = walk(
        open_engine("local", None), TreeSource(lake.storage, 4), [Start(root_path(version), version, version)], silent
    )
    return {row["path"] for row in walked.ask("SELECT path FROM walked WHERE path <> ''").list()}


def test_a_marking_that_failed_begins_again_at_its_roots(tmp_path: Path, engine: Engine) -> None:
    """A root that was read before the failure is no reason to leave out what it reaches: that would be deleted."""
    lake = filled(new_lake(tmp_path), tables=30)
    compacted(lake)
    sweep, newest = Sweep(engine, lake.storage, 4, silent), reopened(lake).version
    root = Start(root_path(newest), newest, newest)
    sweep.list_files(None, {})
    with pytest.raises(CorruptNode):
        sweep.mark([root, Start(node_path(), FOREVER, FOREVER)], set())
    sweep.mark([root], set())
    needed = _reached(lake, newest)
    assert len(needed) > 5
    sweep.subtract(0, 1 << 60)
    assert set() == {each.path for each in sweep.orphans()} & needed
    sweep.release()

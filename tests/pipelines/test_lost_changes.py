"""An engine that loses, repeats or swaps one row of a job that commits or compares: nothing wrong is committed or said.

``test_lost_rows`` and ``test_lost_doubts`` are about what is deleted, copied or called sound.
"""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from pipelines import compaction, diff, load, restore, tables_health, upgrade, verify
from pipelines.integrity import checks
from tests.simulation.engines import HOWS, How
from tests.support.icebergs import rows, with_table
from tests.support.lakes import FAST, compacted, content, filled, new_lake
from tests.support.spoilt_engines import (
    KINDS,
    Kind,
    SpoiltGiven,
    SpoiltGroups,
    SpoiltMaps,
    SpoiltQueries,
    SpoiltTables,
    TwoTasks,
    every_row,
    spoil_one_by_one,
)
from tests.support.surgery import Surgery
from trinitylake_core import Lakehouse
from trinitylake_core.errors import Corrupt, StorageError
from trinitylake_core.iceberg import TrinityLakeCatalog


class MapsOfTwo(TwoTasks, SpoiltMaps):
    """Spoils what two tasks make."""


class GivenOfTwo(TwoTasks, SpoiltGiven):
    """Spoils what two tasks are given."""


class GroupsOfTwo(TwoTasks, SpoiltGroups):
    """Spoils what two tasks are given for groups, or make of them."""


_OF_TWO: Final[tuple[Kind, ...]] = (MapsOfTwo, GivenOfTwo, SpoiltTables)


def _copied(lake: Lakehouse, number: int) -> Lakehouse:
    """Return a copy of a lakehouse, for one run."""
    root = Path(lake.root.removeprefix("file://"))
    copy = root.parent / f"copy-{number}"
    shutil.copytree(root, copy)
    return Lakehouse.open(copy.as_uri(), storage_options=FAST)


def _names(lake: Lakehouse) -> set[tuple[str, str, str | None]]:
    return {(each.kind, each.namespace, each.name) for each in lake.refresh().objects()}


def _source(directory: Path) -> str:
    """Write four files, each a block: half of their tables are there already."""
    directory.mkdir()
    lines = [{"create_table": {"namespace": "ns1", "name": f"t{number:03}"}} for number in range(1, 30, 6)]
    lines += [{"create_table": {"namespace": "ns2", "name": f"new{number:02}"}} for number in range(8)]
    for number in range(4):
        text = "".join(f"{json.dumps(line)}\n" for line in lines[number::4])
        (directory / f"{number}.jsonl").write_text(text)
    return f"{directory.as_uri()}/"


@every_row
@pytest.mark.parametrize("kind", [SpoiltQueries, SpoiltTables, SpoiltGroups, GroupsOfTwo])
@pytest.mark.parametrize("how", HOWS)
def test_a_spoilt_row_loads_all_objects_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Kind, how: How, step: int
) -> None:
    """Messages wait in the tree, so that its root does not know how many objects there are."""
    lake = filled(new_lake(tmp_path), tables=30, changes=10)
    with lake.transaction() as txn:
        txn.drop_table("ns0", "t000")
    source = _source(tmp_path / "source")
    wanted = {*_names(lake), *(("table", "ns2", f"new{number:02}") for number in range(8))}
    refused = 0
    for engine in spoil_one_by_one(kind, how, step):
        copy = _copied(lake, engine.fault.number)
        monkeypatch.setattr(load, "choose_engine", lambda *_, made=engine: made)
        done = None
        try:
            done = load.run(copy, source, load.Config(engine="local", existing="skip"))
        except (StorageError, Corrupt):
            refused += 1
            assert lake.version == copy.refresh().version
        else:
            assert wanted == _names(copy), engine.fault.number
            assert (8, 5) == (done.added, done.skipped)
        shutil.rmtree(copy.root.removeprefix("file://"))
    assert done is not None
    assert refused * step > 3


@pytest.mark.parametrize("kind", _OF_TWO)
@pytest.mark.parametrize("how", HOWS)
def test_a_spoilt_row_of_ranges_of_keys_calls_no_damaged_change_sound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Kind, how: How
) -> None:
    """What the second version brought is checked in ranges: all its definitions, of which one is damaged."""
    monkeypatch.setattr(checks, "_LARGE", 2)
    lake = filled(new_lake(tmp_path, order=4), tables=30, changes=100)
    compacted(lake)
    damaged = next(each.path for each in lake.refresh().objects(kind="table") if each.name == "t010")
    Surgery(lake.root, 4).write(damaged, b"no definition")
    for engine in spoil_one_by_one(kind, how, step=1):
        monkeypatch.setattr(verify, "choose_engine_for_all", lambda *_, made=engine: made)
        sound = False
        with suppress(StorageError):
            sound = verify.run(lake.storage, verify.Config("all", engine="local", definitions=True)).ok
        assert not sound, engine.fault.number
    assert engine.fault.number > 5


@every_row
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", HOWS)
def test_a_spoilt_row_leaves_no_definition_out_of_an_upgrade(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Kind, how: How, step: int
) -> None:
    lake = filled(new_lake(tmp_path), tables=12)
    for engine in spoil_one_by_one(kind, how, step):
        monkeypatch.setattr(upgrade, "choose_engine", lambda *_, made=engine: made)
        target = (tmp_path / f"{engine.fault.number}").as_uri()
        done = None
        with suppress(StorageError):
            done = upgrade.run(lake, target, upgrade.Config(engine="local"), storage_options=FAST)
            made = Lakehouse.open(target, storage_options=FAST)
            assert [] == list(made.check(definitions=True)), engine.fault.number
    assert done is not None
    assert 15 == done.definitions_copied


@pytest.fixture
def changed(tmp_path: Path) -> tuple[Lakehouse, int]:
    """A lakehouse that was compacted, of which most tables were changed since, and the version before that."""
    lake = filled(new_lake(tmp_path), tables=40)
    before = compacted(lake).version
    with lake.refresh().transaction() as txn:
        for number in range(40):
            if number % 4:
                txn.alter_table(f"ns{number % 3}", f"t{number:03}", properties={"x": "y"})
            else:
                txn.drop_table(f"ns{number % 3}", f"t{number:03}")
    compacted(lake.refresh())
    return lake.refresh(), before


@every_row
@pytest.mark.parametrize("kind", _OF_TWO)
@pytest.mark.parametrize("how", HOWS)
def test_a_spoilt_row_leaves_no_change_out_of_a_restore_or_a_difference(
    changed: tuple[Lakehouse, int], monkeypatch: pytest.MonkeyPatch, kind: Kind, how: How, step: int
) -> None:
    lake, version = changed
    then = lake.at(version=version)
    honest = list(then.diff(then, lake))
    wanted = content(then)
    assert 40 == len(honest)
    for engine in spoil_one_by_one(kind, how, step):
        monkeypatch.setattr(diff, "choose_engine", lambda *_, made=engine: made)
        found = None
        with suppress(StorageError):
            found = list(diff.run(then, lake, diff.Config("local")))
            assert honest == found, engine.fault.number
    assert found is not None
    for engine in spoil_one_by_one(kind, how, max(step, 5)):
        monkeypatch.setattr(diff, "choose_engine", lambda *_, made=engine: made)
        copy = _copied(lake, engine.fault.number)
        config = restore.Config(only=("*", "*.*"), version=version, reason="all back", engine="local")
        done = None
        try:
            done = restore.run(copy, config)
        except StorageError:
            assert lake.version == copy.refresh().version
        else:
            assert wanted == content(copy.refresh()), engine.fault.number
        shutil.rmtree(copy.root.removeprefix("file://"))
    assert done is not None


@every_row
@pytest.mark.parametrize("kind", [SpoiltMaps, SpoiltGiven, SpoiltTables])
@pytest.mark.parametrize("how", HOWS)
def test_a_spoilt_row_leaves_no_table_out_of_a_report_of_their_health(
    catalog: TrinityLakeCatalog, monkeypatch: pytest.MonkeyPatch, kind: Kind, how: How, step: int
) -> None:
    for name in ("sales.one", "sales.two", "sales.three"):
        with_table(catalog, name, 1).append(rows(2))
    for engine in spoil_one_by_one(kind, how, step):
        monkeypatch.setattr(tables_health, "choose_engine_for_all", lambda *_, made=engine: made)
        found = None
        with suppress(StorageError):
            found = tables_health.run(catalog.lakehouse.refresh(), tables_health.Config(engine="local"))
            assert {"sales.one", "sales.two", "sales.three"} == {each.table for each in found.tables}
            assert 6 == found.data_files
    assert found is not None


@pytest.mark.parametrize("kind", [SpoiltTables, SpoiltGroups])
@pytest.mark.parametrize("how", HOWS)
def test_a_spoilt_row_compacts_all_or_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Kind, how: How
) -> None:
    """The engine is said to have lost rows, or the proof of the whole tree fails."""
    monkeypatch.setattr(compaction, "_SHARED_FROM_ROWS", 0)
    lake = filled(new_lake(tmp_path), tables=30, changes=10)
    wanted = content(lake)
    refused = 0
    for engine in spoil_one_by_one(kind, how, step=1):
        monkeypatch.setattr(compaction, "choose_engine", lambda *_, made=engine: made)
        copy = _copied(lake, engine.fault.number)
        done = None
        try:
            done = compaction.run(copy, compaction.Config(engine="local", full=True))
        except (StorageError, Corrupt):
            refused += 1
            assert lake.version == copy.refresh().version
        assert wanted == content(copy.refresh())
        assert [] == list(copy.check())
        shutil.rmtree(copy.root.removeprefix("file://"))
    assert done is not None
    assert done.version_after == lake.version + 1
    assert refused or how == "repeat"  # one that comes twice is the same twice

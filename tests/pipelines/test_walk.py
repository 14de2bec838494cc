"""A walk over the trees of many versions: every node once, with the versions that reach it, on both engines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipelines.engine import Engine, open_engine
from pipelines.engine.counting import COUNTING
from pipelines.engine.local import LocalEngine
from pipelines.job import silent
from pipelines.reach import walk as walking
from pipelines.reach.walk import FOREVER, KEYS, MESSAGES, NAMED, NODE, Start, TreeSource, Walk, walk
from tests.support.lakes import compacted, filled, new_lake, reopened
from trinitylake_core import Lakehouse
from trinitylake_core.errors import CorruptNode
from trinitylake_core.locations import root_path

ORDER = 5


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """This process, or Spark in the one test that has both; that queries mean the same on both: test_engine."""
    name = getattr(request, "param", "local")
    made = open_engine(name, request.getfixturevalue("spark") if name == "spark" else None)
    yield made
    made.close()


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lakehouse:
    """Three levels, and versions that share nodes."""
    made = filled(new_lake(tmp_path_factory.mktemp("lake"), order=ORDER), tables=40)
    compacted(made)
    with made.refresh().transaction() as txn:
        txn.alter_table("ns1", "t001", properties={"a": "b"})
    compacted(made.refresh())
    return reopened(made)


def starts(*versions: int) -> list[Start]:
    return [Start(root_path(version), version, version) for version in versions]


def rows(walked: Walk, *roles: int) -> list[dict[str, Any]]:
    wanted = ", ".join(map(str, roles))
    return walked.ask(f"SELECT * FROM walked WHERE role IN ({wanted}) ORDER BY role, path, first").list()


def leaves_of(walked: Walk) -> list[str]:
    return [row["path"] for row in rows(walked, NODE) if not row["height"]]


@pytest.mark.parametrize("engine", ["local", pytest.param("spark", marks=pytest.mark.spark)], indirect=True)
def test_nodes_that_versions_share_are_read_once(lake: Lakehouse, engine: Engine) -> None:
    seen, before = list[int](), lake.storage.counts.snapshot()
    source = TreeSource(lake.storage, ORDER)
    walked = walk(engine, source, starts(*range(lake.version + 1)), lambda _, done, __: seen.append(done))
    nodes = rows(walked, NODE)
    assert walked.nodes_read == len(nodes) == len({row["path"] for row in nodes}) == max(seen)
    assert {0, 1, 2} <= {row["height"] for row in nodes}
    assert (lake.storage.counts - before).get == (len(nodes) if engine.name == "local" else 0)


def test_each_file_says_which_versions_reach_it(lake: Lakehouse, engine: Engine) -> None:
    def reached(*versions: int) -> dict[str, tuple[int, int]]:
        walked = walk(engine, TreeSource(lake.storage, ORDER, figures=False), starts(*versions), silent)
        found: dict[str, tuple[int, int]] = {}
        for row in rows(walked, NODE, NAMED):
            first, last = found.get(row["path"], (row["first"], row["last"]))
            found[row["path"]] = min(first, row["first"]), max(last, row["last"])
        return found

    last = lake.version
    each = {version: reached(version) for version in range(last - 2, last + 1)}
    every = reached(*each)
    for path, between in every.items():
        holding = [version for version, paths in each.items() if path in paths]
        assert (min(holding), max(holding)) == between
    assert every.keys() == set().union(*each.values())


@pytest.mark.parametrize("together", [1, walking._NAMES_TOGETHER])
def test_what_leaves_of_several_versions_name_is_a_row_once(
    lake: Lakehouse, engine: Engine, monkeypatch: pytest.MonkeyPatch, together: int
) -> None:
    monkeypatch.setattr(walking, "_NAMES_TOGETHER", together)
    source = TreeSource(lake.storage, ORDER, figures=False)
    walked = walk(engine, source, starts(lake.version - 1, lake.version), silent)
    named = [row["path"] for row in walked.levels[-1].list() if row["role"] == NAMED]
    assert len({*named}) > 30
    assert together == 1 or len(named) == len({*named})


def test_roots_of_different_heights_share_one_walk(lake: Lakehouse, engine: Engine) -> None:
    last = lake.version
    walked = walk(
        engine, TreeSource(lake.storage, ORDER), [Start(root_path(0), FOREVER, FOREVER), *starts(last)], silent
    )
    apart = [walk(engine, TreeSource(lake.storage, ORDER), starts(version), silent) for version in (0, last)]
    assert {row["path"] for row in rows(walked, NODE)} == {row["path"] for each in apart for row in rows(each, NODE)}


def test_known_nodes_and_what_is_below_them_are_left_out(lake: Lakehouse, engine: Engine) -> None:
    """Two compactions in a row share all subtrees but one."""
    source, last = TreeSource(lake.storage, ORDER), lake.version
    known = walk(engine, source, starts(last - 2), silent)
    every = {row["path"] for row in rows(walk(LocalEngine(), source, starts(last), silent), NODE)}
    left = walk(engine, source, starts(last), silent, known.levels)
    assert every - {row["path"] for row in rows(known, NODE)} == {row["path"] for row in rows(left, NODE)}
    assert 0 < left.nodes_read < len(every)


def test_a_walk_without_figures_names_the_same_files(lake: Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes leaves for columns, and the messages of large nodes, deletions among them."""
    copy = reopened(lake)
    found = []
    for figures, many in ((True, 1 << 18), (False, 1 << 18), (False, 0)):
        monkeypatch.setattr(walking, "_MANY_BYTES", many)
        walked = walk(LocalEngine(), TreeSource(copy.storage, ORDER, figures=figures), starts(copy.version), silent)
        found.append([{**row, **dict.fromkeys(COUNTING)} for row in rows(walked, NODE, NAMED)])  # marks are random
        assert bool(rows(walked, KEYS, MESSAGES)) == figures
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("figures", [True, False])
def test_a_leaf_in_the_place_of_another_is_found(tmp_path: Path, figures: bool, engine: Engine) -> None:
    lake = filled(new_lake(tmp_path, order=ORDER), tables=40)
    compacted(lake)
    lake = reopened(lake)
    source = TreeSource(lake.storage, ORDER, figures=figures)
    leaves = [
        row["path"] for row in rows(walk(engine, source, starts(lake.version), silent), NODE) if not row["height"]
    ]
    lake.storage.replace(leaves[0], lake.storage.read(leaves[1]))
    with pytest.raises(CorruptNode, match="swapped"):
        walk(engine, source, starts(lake.version), silent)
    lake.storage.delete_many([leaves[0]])
    with pytest.raises(CorruptNode, match="is missing"):
        walk(engine, source, starts(lake.version), silent)


@pytest.mark.spark
def test_a_walk_that_fails_keeps_nothing_on_the_disks_of_executors(tmp_path: Path, spark: Any) -> None:
    lake = filled(new_lake(tmp_path, order=ORDER), tables=40)
    compacted(lake)
    lake = reopened(lake)
    source = TreeSource(lake.storage, ORDER)
    (leaf, *_) = (
        row["path"]
        for row in rows(walk(LocalEngine(), source, starts(lake.version), silent), NODE)
        if not row["height"]
    )
    lake.storage.delete_many([leaf])
    kept = spark.sparkContext._jsc.getPersistentRDDs
    before = set(kept())
    engine = open_engine("spark", spark)
    with pytest.raises(CorruptNode, match="is missing"):
        walk(engine, source, starts(lake.version), silent)
    engine.close()
    assert not set(kept()) - before


def test_a_walk_from_nowhere_finds_nothing(lake: Lakehouse, engine: Engine) -> None:
    walked = walk(engine, TreeSource(lake.storage, ORDER), [], silent)
    assert (0, []) == (walked.nodes_read, rows(walked, NODE, NAMED))

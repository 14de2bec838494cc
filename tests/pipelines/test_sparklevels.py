"""Going down trees on Spark: the same rows as in this process, wherever the levels of few nodes are visited."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from pipelines.job import silent
from pipelines.tasks import collect, table
from pipelines.trees import sparklevels
from pipelines.trees.sparklevels import NODES
from pipelines.trees.walk import FOREVER, Start, TreeSource, walk_local, walk_on_spark
from tests.support.lakes import compacted, filled, new_lake, reopened
from trinitylake_core import Lakehouse
from trinitylake_core.errors import CorruptNode
from trinitylake_core.locations import root_path

pytestmark = pytest.mark.spark
_PATH = sparklevels._PATH


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lakehouse:
    """Three levels of at most four children, and versions that share nodes."""
    made = filled(new_lake(tmp_path_factory.mktemp("lake")), tables=40)
    compacted(made)
    with made.refresh().transaction() as txn:
        txn.alter_table("ns1", "t001", properties={"a": "b"})
    compacted(made.refresh())
    return reopened(made)


def starts(lake: Lakehouse) -> list[Start]:
    named = [Start(root_path(version), version, version) for version in range(lake.version - 2, lake.version + 1)]
    return [Start(root_path(0), FOREVER, FOREVER), *named]


def files(rows: Any) -> Counter[tuple[str, int, int]]:
    """Return every node and every file that is named, with the versions that reach it."""
    return Counter((row["path"], row["first"], row["last"]) for row in rows)


@pytest.fixture(params=[0, 4, 128], ids=["in tasks", "in both", "in this process"])
def few(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return how many nodes a level may have that is visited in this process."""
    monkeypatch.setattr(sparklevels, "_HERE", request.param)
    return int(request.param)


def test_a_walk_on_spark_finds_what_one_in_this_process_finds(few: int, lake: Lakehouse, spark: Any) -> None:
    trees = TreeSource(lake.storage, lake.definition.order)
    here = list(walk_local(trees, starts(lake)))
    seen, before = list[int](), lake.storage.counts.snapshot()
    walk = walk_on_spark(spark, trees, starts(lake), lambda _, done, __: seen.append(done))
    read = (lake.storage.counts - before).get
    assert files(here) == files(collect(walk.nodes()))
    assert {path for row in here for path in row["files"]} == {row["path"] for row in collect(walk.named())}
    assert len(here) == walk.nodes_read == max(seen)
    assert read == walk.here[NODES]
    assert {0: 0, 128: len(here)}.get(few, read) == read
    assert few in {0, 128} or 0 < read < len(here)
    walk.release()


@pytest.mark.usefixtures("few")
def test_what_is_known_is_left_out_with_what_only_it_reaches(lake: Lakehouse, spark: Any) -> None:
    trees = TreeSource(lake.storage, lake.definition.order)
    before, newest = ([Start(root_path(version), version, version)] for version in (lake.version - 1, lake.version))
    known = {row["path"] for row in walk_local(trees, before)}
    walk = walk_on_spark(spark, trees, newest, silent, table(spark, [{"path": path} for path in sorted(known)], _PATH))
    found = {row["path"] for row in collect(walk.nodes())}
    assert {row["path"] for row in walk_local(trees, newest, known)} == found
    assert 0 < walk.nodes_read == len(found) < len(known)
    walk.release()


def test_levels_of_wide_nodes_are_not_held_in_this_process(
    lake: Lakehouse, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However few nodes there are, what is held of their children has a bound."""
    monkeypatch.setattr(sparklevels, "_HERE_CHILDREN", 2 * lake.definition.order)
    trees = TreeSource(lake.storage, lake.definition.order)
    walk = walk_on_spark(spark, trees, starts(lake)[-1:], silent)
    here = list(walk_local(trees, starts(lake)[-1:]))
    counts = Counter(row["height"] for row in here)
    few = sum(count for count in counts.values() if count <= 2)
    assert few == walk.here[NODES] < len(here) == walk.nodes_read
    walk.release()


def test_a_walk_from_nowhere_finds_nothing(lake: Lakehouse, spark: Any) -> None:
    walk = walk_on_spark(spark, TreeSource(lake.storage, lake.definition.order), [], silent)
    assert (0, []) == (walk.nodes_read, collect(walk.files()))


def test_a_walk_that_fails_keeps_nothing_on_the_disks_of_executors(tmp_path: Any, spark: Any) -> None:
    lake = filled(new_lake(tmp_path), tables=40)
    compacted(lake)
    lake = reopened(lake)
    (leaf, *_) = (row["path"] for row in walk_local(TreeSource(lake.storage, 4), starts(lake)) if not row["height"])
    lake.storage.delete_many([leaf])
    kept = spark.sparkContext._jsc.getPersistentRDDs
    before = set(kept())
    with pytest.raises(CorruptNode, match="is missing"):
        walk_on_spark(spark, TreeSource(lake.storage, 4), starts(lake), silent)
    assert not set(kept()) - before

"""Nodes above the leaves that several tasks share: the tree means what it does when one of them flushes all."""

from __future__ import annotations

import random
import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pipelines import compaction
from pipelines.engine import choice as engine_choice
from pipelines.engine.local import LocalEngine
from pipelines.engine.model import Row
from pipelines.engine.spark import SparkEngine
from pipelines.trees import subtrees
from pipelines.trees.subtrees import split_for_tasks
from tests.support.lakes import content, reopened
from tests.support.wide import change, wide
from trinitylake_core import Lakehouse
from trinitylake_core.tree.nodestore import NodeStore, NodeWriter
from trinitylake_core.tree.rewrite import Rewriter
from trinitylake_core.tree.subtree import Ref

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OBJECTS = 3_000
ORDER = 24


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Lakehouse:
    return wide(tmp_path_factory.mktemp("base"), OBJECTS, ORDER)


def _copy(lake: Lakehouse, target: Path) -> Lakehouse:
    shutil.copytree(lake.root.removeprefix("file://"), target)
    return Lakehouse.open(target.as_uri())


def _dirty(lake: Lakehouse, seed: int, deleted: float) -> Lakehouse:
    """Change tables all over the tree, and drop whole neighbourhoods: leaves get empty, pivots die."""
    chance = random.Random(seed)
    change(lake, sorted(chance.sample(range(OBJECTS), 400)))
    begin = chance.randrange(OBJECTS // 2)
    numbers = [*range(begin, begin + int(deleted * OBJECTS)), *chance.sample(range(OBJECTS), 60)] if deleted else []
    with lake.refresh().transaction() as txn:
        for number in sorted(set(numbers)):
            txn.put(lake.codec.table(f"ns{number % 4}", f"t{number:06}"), None)
        for number in chance.sample(range(OBJECTS), 150):
            for part in range(4 * (number % 3)):
                key = lake.codec.table(f"ns{number % 4}", f"t{number:06}{part}")
                txn.put(key, f"0000/0000/0000/00000000-table-{txn.id[:8]}-{number}-{part}.binpb")
    return lake.refresh()


def _in_turn(
    pieces: list[Ref],
    engine: object,
    store: NodeStore,
    frontier: list[Ref],
    stamp: int,
    tasks: int,
    progress: Any,
    paying: object,
) -> list[Row]:
    """Flush pieces as tasks do that know nothing of one another."""
    del engine, progress, paying
    pieces += frontier
    tasks_of = subtrees.assign_tasks([piece.weight() for piece in frontier], tasks)
    done: dict[int, Row] = {}
    for task in set(tasks_of):
        mine = [index for index in range(len(frontier)) if tasks_of[index] == task]
        rows = [subtrees.subtree_row(frontier[index], store.order) for index in mine]
        work = subtrees.flush_subtrees(NodeStore(store.storage, store.order, 1 << 20), rows, stamp)
        done |= dict(zip(mine, work, strict=True))
    return [done[index] for index in range(len(frontier))]


@pytest.fixture
def pieces(monkeypatch: pytest.MonkeyPatch) -> list[Ref]:
    """Compactions on Spark work here; return what becomes the list of all pieces that they hand to tasks."""
    found: list[Ref] = []
    spark = SparkEngine(lambda: None)  # type: ignore[arg-type, return-value]
    monkeypatch.setattr(engine_choice, "open_engine", lambda name, _: spark if name == "spark" else LocalEngine())
    monkeypatch.setattr(subtrees, "flush_all", partial(_in_turn, found))
    return found


@pytest.mark.parametrize(("tasks", "deleted"), [(3, 0.15), (12, 0.0), (12, 0.5), (40, 0.15)])
def test_a_node_that_was_cut_means_what_it_meant(
    base: Lakehouse, tmp_path: Path, pieces: list[Ref], tasks: int, deleted: float
) -> None:
    dirty = _dirty(_copy(base, tmp_path / "dirty"), tasks, deleted)
    cut = _copy(dirty, tmp_path / "cut")
    report = compaction.run(cut, compaction.Config(engine="spark", tasks=tasks))
    assert content(dirty) == content(reopened(cut))
    assert [] == list(reopened(cut).check())
    assert report.proved
    assert report.subtrees == len(pieces)
    leaves = [piece for piece in pieces if piece.height == 0]
    assert len(leaves) > tasks if tasks > 3 else not leaves


@pytest.mark.spark
@pytest.mark.slow
def test_leaves_go_through_spark(base: Lakehouse, tmp_path: Path, spark: SparkSession) -> None:
    lake = _dirty(_copy(base, tmp_path / "dirty"), 7, 0.15)
    before = content(lake)
    report = compaction.run(lake, compaction.Config(engine="spark", tasks=12), spark)
    assert before == content(reopened(lake))
    assert [] == list(reopened(lake).check())
    assert report.proved
    assert report.subtrees > 12


def test_no_piece_is_too_heavy_where_there_are_leaves(base: Lakehouse, tmp_path: Path) -> None:
    lake = change(_copy(base, tmp_path / "dirty"), range(0, OBJECTS, 3))
    rewriter = Rewriter(NodeWriter(lake.nodes), 1, prove=True)
    tree = rewriter.ref_of(lake.root_node.node)
    tasks = 12
    subtrees_ = rewriter.frontier(tree, tasks)
    limit = sum(ref.weight() for ref in subtrees_) / (4 * tasks)
    found = split_for_tasks(rewriter, subtrees_, tasks)
    assert 4 * len(subtrees_) < len(found)
    assert max(piece.weight() for piece in found) <= max(limit, ORDER)
    assert sum(piece.weight() for piece in found) >= 0.9 * (lake.stats().messages or 0), "the rest is on pivots"

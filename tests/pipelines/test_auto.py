"""The engine ``auto`` of a compaction: begun here, and handed to a Spark on other machines where that pays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pipelines import auto, compaction, processes
from pipelines.job import silent
from pipelines.session import LazySession, SessionConfig
from pipelines.trees import workers
from tests.support.lakes import content, filled, new_lake, reopened
from trinitylake_core import Lakehouse
from trinitylake_core.commits.commit import now_millis
from trinitylake_core.tree.nodestore import NodeWriter
from trinitylake_core.tree.rewrite import Rewriter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def side_by_side(lake: Lakehouse) -> Lakehouse:
    """Return a lakehouse whose requests go out at the same time, as on an object store."""
    root, options = lake.storage.spec()
    return Lakehouse.open(root, storage_options={**options, "max_concurrency": 2})


@pytest.mark.parametrize(
    ("config", "elsewhere"),
    [
        (SessionConfig(), False),
        (SessionConfig(mode="master", master="local[4]"), False),
        (SessionConfig(mode="master", master="spark://host:7077"), True),
        (SessionConfig(mode="connect", remote="sc://host:15002"), True),
    ],
)
def test_only_a_spark_elsewhere_may_take_over(
    config: SessionConfig, elsewhere: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipelines.session.spark.active_session", lambda: None)
    assert elsewhere == auto.may_move("auto", LazySession(config))
    assert not auto.may_move("local", LazySession(config))
    assert not auto.may_move("spark", LazySession(config))


def test_nothing_is_handed_to_nobody() -> None:
    assert not auto.may_move("auto", None)


@pytest.mark.parametrize(("taken", "rest", "enough"), [(4.9, 99.0, False), (5.0, 9.9, False), (5.0, 10.0, True)])
def test_it_is_enough_after_a_start_of_spark_where_as_much_is_left_twice(
    taken: float, rest: float, enough: bool
) -> None:
    assert enough == auto.is_enough(taken, rest)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Spark starts in so many seconds, it seems, and elsewhere; each piece is measured."""

    def start(seconds: float) -> None:
        monkeypatch.setattr(auto, "START_SECONDS", seconds)
        monkeypatch.setattr(auto, "on_other_machines", lambda _: True)
        monkeypatch.setattr(compaction, "_SHARED_FROM_NODES", 1)
        monkeypatch.setattr(processes, "START_SECONDS", 1000.0)

    return start


def test_what_was_taken_when_it_is_enough_is_done_here_and_the_rest_is_left(tmp_path: Path) -> None:
    """Where requests go out at the same time, subtrees are taken ahead, and finished after it was said to be enough."""
    lake = side_by_side(filled(new_lake(tmp_path, order=4), tables=160, changes=20))
    store = lake.files.store
    rewriter = Rewriter(NodeWriter(store), now_millis(), prove=True)
    frontier = rewriter.frontier(rewriter.ref_of(lake.root_node.node), auto.TASKS)
    rows, left = workers.flush_here(store, frontier, rewriter.stamp, silent, lambda *_: True)
    assert len(frontier) == len(rows) + len(left)
    assert len(rows) > 1
    assert len(left) > 1


@pytest.mark.spark
@pytest.mark.parametrize("ahead", [False, True])
def test_what_was_begun_here_is_finished_on_spark(
    tmp_path: Path, spark: SparkSession, impatient: Callable[[float], None], ahead: bool
) -> None:
    """Each subtree once, by the one or the other, and the proof holds over both."""
    lake = filled(new_lake(tmp_path, order=4), tables=160, changes=20)
    lake = side_by_side(lake) if ahead else lake
    before = content(lake), lake.digest()
    impatient(0.0)
    told: list[int] = []
    report = compaction.run(
        spark,
        lake,
        compaction.Config(engine="auto"),
        lambda phase, done, _: told.append(done) if "flush" in phase else None,
    )
    assert (report.proved, report.plan.engine, report.messages_after) == (True, "spark", 0)
    here = told[told.index(0) - 1]  # then Spark begins to count
    assert ((here > 1) == ahead, report.subtrees) == (True, here + told[-1])
    assert told[0] == 1
    assert lake.root_node.summary["engine"] == "spark"
    assert before == (content(reopened(lake)), lake.digest())
    assert [] == list(reopened(lake).check())


@pytest.mark.spark
def test_what_is_soon_done_stays_here(tmp_path: Path, spark: SparkSession, impatient: Callable[[float], None]) -> None:
    lake = filled(new_lake(tmp_path, order=4), tables=160, changes=20)
    impatient(1000.0)
    report = compaction.run(lambda: spark, lake, compaction.Config(engine="auto"))
    assert (report.proved, report.plan.engine, report.messages_after) == (True, "local", 0)
    assert [] == list(reopened(lake).check())

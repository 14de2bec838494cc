"""What a compaction proves: no mutation between reading and writing is committed (format, section 4)."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipelines import compaction
from tests.support.lakes import content, filled, new_lake
from tests.support.surgery import Surgery
from tests.support.sweep import DiskPlace, Files, read_files
from trinitylake_core import Lakehouse
from trinitylake_core.errors import Corrupt
from trinitylake_core.tree import leafflush
from trinitylake_core.tree.leafrun import LeafPlan, Leaves
from trinitylake_core.tree.node import Messages, Node
from trinitylake_core.tree.nodestore import NodeWriter
from trinitylake_core.tree.rewrite import Rewriter
from trinitylake_core.tree.subtree import Ref, Work

LOCAL = compaction.Config(engine="local")


@pytest.fixture(scope="module")
def half_clean(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """A lakehouse of height 3 whose messages lie on one side: most subtrees need nothing."""
    directory = tmp_path_factory.mktemp("half")
    lake = filled(new_lake(directory, order=4, target=1 << 16), tables=150, namespaces=3, changes=50)
    compaction.run(lake, LOCAL)
    with lake.refresh().transaction() as txn:
        for number in range(0, 60, 3):
            txn.drop_table("ns0", f"t{number:03}")
        for number in range(1, 22, 3):
            txn.alter_table("ns1", f"t{number:03}", properties={"a": "b"})
        for number in range(6):
            txn.create_table("ns0", f"s{number}")
    return read_files(directory / "lake")


@pytest.fixture
def place(half_clean: Files) -> Iterator[DiskPlace]:
    """The same, to be compacted."""
    made = DiskPlace()
    made.reset(half_clean)
    yield made
    made.close()


def _open(place: DiskPlace) -> Lakehouse:
    return Lakehouse.open(place.root, storage_options=dict(place.options))


def _clean(work: Work) -> list[int]:
    """Return the children of a node that a compaction does not open."""
    return [index for index, ref in enumerate(work.refs) if ref.path and not ref.pending.keys and ref.messages == 0]


def _refused(place: DiskPlace) -> None:
    """Compact, and see that nothing was committed."""
    lake = _open(place)
    before = lake.version
    with pytest.raises(Corrupt, match="proof"):
        compaction.run(lake, LOCAL)
    assert before == _open(place).version


def test_the_fixture_has_clean_and_dirty_subtrees(place: DiskPlace) -> None:
    """Without a mutation it is compacted, proved, and means the same."""
    lake = _open(place)
    before = content(lake)
    report = compaction.run(lake, LOCAL)
    assert report.proved
    nodes = len(Surgery(lake.root, 4).tree(report.version_before))
    assert 10 < report.nodes_read < nodes / 2
    assert before == content(_open(place))
    assert [] == list(_open(place).check())


def _drop(work: Work, dropped: int, kept: int) -> None:
    """Drop a subtree, with the pivot beside it moved along, so that only the objects of the subtree are gone."""
    work.refs[dropped].path = work.refs[kept].path
    work.refs[dropped].work = Work() if not work.refs[dropped].height else None


def _swap(work: Work, one: int, two: int) -> None:
    """Swap two children: nothing is lost then, but nothing is found."""
    work.refs[one], work.refs[two] = work.refs[two], work.refs[one]


@pytest.mark.parametrize("spoil", [_drop, _swap])
def test_clean_children_that_are_dropped_or_swapped_are_not_committed(
    place: DiskPlace, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Work, int, int], None]
) -> None:
    honest, done = Rewriter._work, []

    def broken(self: Rewriter, node: Node, ref: Ref) -> Work:
        work = honest(self, node, ref)
        if not done and len(_clean(work)) > 1 and len(work.refs) > 2:
            done.append(work)
            spoil(work, *_clean(work)[:2])
        return work

    monkeypatch.setattr(Rewriter, "_work", broken)
    _refused(place)
    assert done


def _first_row_lost(plan: LeafPlan) -> LeafPlan:
    return replace(plan, keys=plan.keys[1:], values=plan.values[1:], set=plan.set[1:])


def _two_rows_exchanged(leaves: Leaves) -> Leaves:
    return replace(leaves, columns=leaves.columns.take(np.array([1, 0, *range(2, len(leaves.columns))])))


@pytest.mark.parametrize("where", ["plan_merge", "laid_out", "a leaf for another"])
def test_leaves_that_lose_rows_as_columns_are_not_committed(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neighbouring leaves are rewritten together: merged, laid out, written."""
    lake = filled(new_lake(tmp_path, order=16, target=24_000), tables=300, changes=100)
    compaction.run(lake, LOCAL)
    with lake.refresh().transaction() as txn:
        for number in range(0, 300, 2):
            txn.alter_table(f"ns{number % 3}", f"t{number:03}", properties={"a": "b"})
    version = lake.refresh().version
    assert lake.root_node.node.subtree_messages, "the commit flushed all of it: nothing is left to the compaction"
    honest: Any = getattr(leafflush, where, None)
    calls = []

    def broken(*arguments: Any) -> Any:
        calls.append(1)
        return (_first_row_lost if where == "plan_merge" else _two_rows_exchanged)(honest(*arguments))

    def exchanged(*arguments: Any) -> list[Ref]:
        made: list[Ref] = written(*arguments)
        calls.append(1)
        for each in made:
            each.path = made[0].path
        return made

    written = leafflush._refs_of
    monkeypatch.setattr(leafflush, *(("_refs_of", exchanged) if honest is None else (where, broken)))
    with pytest.raises(Corrupt, match="proof"):
        compaction.run(lake, LOCAL)
    assert calls
    assert version == lake.refresh().version


# -- random mutations ----------------------------------------------------------------------------------

Mutation = Callable[[random.Random, list[Any]], None]


def _drop(chance: random.Random, rows: list[Any]) -> None:
    del rows[chance.randrange(len(rows))]


def _swap(chance: random.Random, rows: list[Any]) -> None:
    one, two = chance.sample(range(len(rows)), 2)
    rows[one], rows[two] = rows[two], rows[one]


def _duplicate(chance: random.Random, rows: list[Any]) -> None:
    rows.insert(chance.randrange(len(rows)), chance.choice(rows))


def _reorder(chance: random.Random, rows: list[Any]) -> None:
    chance.shuffle(rows)


def _replace(chance: random.Random, rows: list[Any]) -> None:
    rows[chance.randrange(len(rows))] = chance.choice(rows)


MUTATIONS: list[Mutation] = [_drop, _swap, _duplicate, _reorder, _replace]


class Saboteur:
    """Mutates one thing in one compaction: a node that was opened, one about to be written, or what is written."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.where = self.chance.choice(["opened", "sealed", "added", "pending", "together", "lost subtree"])
        self.turn = self.chance.randrange(25)
        self.done = False

    def mutate(self, *columns: list[Any]) -> None:
        """Mutate one of several columns, or all in the same way."""
        if self.done or min(map(len, columns)) < 2:
            return
        self.turn -= 1
        if self.turn >= 0:
            return
        self.done = True
        mutation = self.chance.choice(MUTATIONS)
        seed = self.chance.random()
        chosen = columns if self.where in {"together", "pending"} else [self.chance.choice(columns)]
        for column in chosen:
            mutation(random.Random(seed), column)

    def opened(self, work: Work) -> None:
        """Work on a node in memory."""
        if self.where == "opened":
            self.mutate(*filter(len, (work.keys, work.values, work.refs)))
        elif self.where == "together":
            self.mutate(work.keys, work.values, *([work.refs] if work.refs else []))
        elif self.where == "pending":
            for ref in work.refs:
                messages = ref.pending
                copied = Messages([*messages.keys], [*messages.values], [*messages.txns])
                if len(copied) > 1:
                    self.mutate(copied.keys, copied.values, copied.txns)
                    ref.pending = copied
        elif self.where == "lost subtree" and not self.done and len(work.refs) > 2:
            self.turn -= 1
            if self.turn < 0:
                self.done = True
                index = self.chance.randrange(len(work.refs) - 1)
                del work.refs[index], work.keys[index], work.values[index]

    def sealed(self, work: Work) -> None:
        """Work on a node right before it becomes a file."""
        if self.where == "sealed":
            self.mutate(*filter(len, (work.keys, work.values, work.refs)))

    def added(self, node: Node) -> None:
        """Work on what is written."""
        if self.where == "added":
            self.mutate(*filter(len, (node.keys, node.values, node.children)))

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Stand between reading and writing."""
        opened, sealed, added = Rewriter._work, Rewriter._node, NodeWriter.add

        def work(rewriter: Rewriter, node: Node, ref: Ref) -> Work:
            found = opened(rewriter, node, ref)
            self.opened(found)
            return found

        def node(rewriter: Rewriter, found: Work, height: int) -> Any:
            self.sealed(found)
            return sealed(rewriter, found, height)

        def add(writer: NodeWriter, found: Node) -> str:
            self.added(found)
            return added(writer, found)

        patch.setattr(Rewriter, "_work", work)
        patch.setattr(Rewriter, "_node", node)
        patch.setattr(NodeWriter, "add", add)


def _sabotaged(files: Files, place: DiskPlace, expected: dict[str, str], seed: int) -> bool:
    """Compact with a mutation; return whether there was one. What is committed must mean what it meant."""
    saboteur = Saboteur(seed)
    lake = _open(place)
    with pytest.MonkeyPatch.context() as patch:
        saboteur.install(patch)
        try:
            compaction.run(lake, LOCAL)
        except Exception:  # noqa: BLE001 - whatever stops it stops it: only a commit can be wrong
            assert lake.version == _open(place).version
            return saboteur.done
    fresh = _open(place)
    assert expected == content(fresh), f"seed {seed}: {saboteur.where}"
    assert [] == list(fresh.check()), f"seed {seed}: {saboteur.where}"
    place.reset(files)
    return False


@pytest.mark.parametrize("wanted", [20, pytest.param(1000, marks=pytest.mark.slow)])
def test_no_random_mutation_is_committed(half_clean: Files, place: DiskPlace, wanted: int) -> None:
    """Rows, nodes and subtrees dropped, swapped, doubled, reordered: refused, or without effect."""
    expected = content(_open(place))
    caught = seed = 0
    while caught < wanted:
        caught += _sabotaged(half_clean, place, expected, seed)
        seed += 1
        assert seed < 4 * wanted + 100, "the saboteur finds nothing to do"

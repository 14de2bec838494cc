"""Random changes, raw and by name, and compactions, against a dictionary and a reader that is not the product's."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest

from pipelines import compaction
from tests.support.lakes import new_lake, reopened, smallest_target
from tests.support.plain_tree import PlainReader, PlainVersion
from tests.support.wide import wide
from trinitylake_core import Lakehouse, Transaction
from trinitylake_core.errors import TrinityLakeError

NAMESPACES: Final = ("a", "b", "größe")
KINDS: Final = ("table", "view")


class Walk:
    """A lakehouse beside a dictionary of its keys: the path of a definition, or that of any other."""

    def __init__(self, directory: Path, order: int, seed: int, names: int, room: int) -> None:
        self.rng = random.Random(f"{order} {seed}")
        self.lake = new_lake(directory, order, smallest_target(order) + room)
        self.reader = PlainReader(directory / "lake", order)
        self.names = [f"t{number:05}" for number in range(names)]
        self.model: dict[str, str] = {}
        self.gone: list[str] = []
        """Keys that were dropped."""
        self.pivots: list[str] = []
        with self.lake.transaction() as txn:
            for namespace in NAMESPACES:
                txn.create_namespace(namespace)
            txn.create_table("a", "origin")
            txn.create_view("a", "origin", sql="SELECT 1")
        self.lake.refresh()
        self.paths = {}
        """For each kind the path of a definition that is there."""
        for entry in self.lake.objects():
            self.model[entry.key] = entry.path
            self.paths[entry.kind] = entry.path

    def pick_key(self) -> str:
        """Return a key: one that is there, a pivot, one that was dropped, or any."""
        choice = self.rng.random()
        for share, keys in ((0.3, [*self.model]), (0.6, self.pivots), (0.75, self.gone)):
            if choice < share and keys:
                return self.rng.choice(keys)
        if choice > 0.97:
            return self.lake.codec.namespace(self.rng.choice(NAMESPACES))
        encode = getattr(self.lake.codec, self.rng.choice(KINDS))
        return str(encode(self.rng.choice(NAMESPACES), self.rng.choice(self.names)))

    def commit(self, steps: int) -> None:
        """Commit steps of all kinds in one transaction, some of the same key; some are saved and resumed between."""
        txn = self.lake.transaction()
        model = dict(self.model)
        for _ in range(steps):
            self.step(txn, model)
            if self.rng.random() < 0.02:
                txn = reopened(self.lake).resume_transaction(txn.save())
        expected = {each.key: each.path for each in txn.objects()}
        assert expected == {key: path or expected[key] for key, path in model.items()}
        txn.commit()
        self.take_over(expected)

    def step(self, txn: Transaction, model: dict[str, str]) -> None:
        """Set or delete one key, or change one object by name; what is refused changes nothing."""
        key = self.pick_key()
        if self.rng.random() < 0.5:
            drops = self.rng.random() < 0.5
            kind, *_ = self.lake.codec.split(key)
            knows = self.rng.choice([None, key in self.model])
            txn.put(key, None if drops else self.paths[kind], replaces=knows)
            model.pop(key, None)
            if not drops:
                model[key] = self.paths[kind]
            return
        try:
            self.edit(txn, model, key)
        except TrinityLakeError:
            return

    def edit(self, txn: Transaction, model: dict[str, str], key: str) -> None:
        """Change one object by its name."""
        kind, namespace, name = self.lake.codec.split(key)
        what = self.rng.choice(["create", "alter", "drop", "rename"])
        if name is None:
            if what == "create":
                txn.create_namespace(namespace)
                model[key] = ""
            elif what == "alter":
                txn.alter_namespace(namespace, {"x": "y"})
                model[key] = ""
            elif what == "drop" and self.rng.random() < 0.1:
                inside = [each.key for each in txn.objects(namespace)]
                txn.drop_namespace(namespace, cascade=True)
                for each in inside:
                    del model[each]
            return
        options = {} if kind == "table" else {"sql": "SELECT 2"}
        if what == "create":
            getattr(txn, f"create_{kind}")(namespace, name, **options)
            model[key] = ""
        elif what == "alter":
            alter = txn.alter_table if kind == "table" else txn.replace_view
            alter(namespace, name, properties={"x": "y"})
            model[key] = ""
        elif what == "drop":
            getattr(txn, f"drop_{kind}")(namespace, name)
            del model[key]
        else:
            to_namespace, to_name = self.rng.choice(NAMESPACES), self.rng.choice(self.names)
            getattr(txn, f"rename_{kind}")(namespace, name, to_namespace, to_name)
            del model[key]
            model[getattr(self.lake.codec, kind)(to_namespace, to_name)] = ""

    def put_many(self, count: int) -> None:
        """Set, or delete, many keys at once, most of which may be there; then edit some of them by name."""
        kind = self.rng.choice(KINDS)
        drops = self.rng.random() < 0.3
        encode = getattr(self.lake.codec, kind)
        wanted = self.rng.sample(self.names, min(count, len(self.names)))
        namespace = self.rng.choice(NAMESPACES)
        keys = sorted(encode(namespace, name) for name in wanted)
        paths = [None if drops else self.paths[kind]] * len(keys)
        txn = self.lake.transaction()
        txn.put_many(pa.table({"key": keys, "path": pa.array(paths, pa.string())}))
        model = {key: path for key, path in self.model.items() if key not in set(keys)}
        if not drops:
            model |= dict.fromkeys(keys, self.paths[kind])
        if self.rng.random() < 0.5:
            for _ in range(3):
                self.step(txn, model)
            expected = {each.key: each.path for each in txn.objects()}
            model = {key: path or expected[key] for key, path in model.items()}
        txn.commit()
        self.take_over(model)

    def take_over(self, model: dict[str, str]) -> None:
        """Note what the newest version must say."""
        self.gone += self.model.keys() - model.keys()
        del self.gone[:-50]
        self.model = model

    def drop_pivots(self) -> None:
        """Commit the deletion of pivots, and of nothing else: of all of them, or of some."""
        share = self.rng.choice([0.1, 0.5, 1])
        doomed = [key for key in self.pivots if key in self.model and self.rng.random() < share]
        with self.lake.transaction() as txn:
            for key in doomed:
                txn.put(key, None)
        self.take_over({key: path for key, path in self.model.items() if key not in set(doomed)})

    def compact(self, *, full: bool) -> compaction.Report:
        """Compact in pieces for one or more tasks."""
        tasks = self.rng.choice([None, 1, 3, 7])
        return compaction.run(self.lake, compaction.Config("local", full=full, tasks=tasks))

    def prove(self) -> PlainVersion:
        """Prove that the newest version says what the dictionary says, and counts as the format says."""
        self.lake.refresh()
        found = self.reader.newest()
        assert self.model == found.content
        # A raw change may leave tables without their namespace (I12): that is its writer's.
        assert [] == [each for each in self.lake.check() if each.invariant != "I12"]
        bounds = found.bounds()
        assert bounds is not None
        for least, held, most in zip(bounds[0], found.held(), bounds[1], strict=True):
            assert least <= held <= most
        self.pivots = found.pivots
        return found

    def prove_settled(self) -> None:
        """Prove that after a full compaction nothing waits and nothing is uncertain, and that it is done then."""
        self.compact(full=True)
        found = self.prove()
        assert (0, (found.held(), found.held())) == (found.waiting, found.bounds())
        assert self.compact(full=True).version_after is None
        self.prove()


def walk(directory: Path, order: int, seed: int, *, steps: int, names: int, room: int, most: int) -> Counter[str]:
    """Walk at random, and prove every version."""
    taken = Walk(directory, order, seed, names, room)
    done: Counter[str] = Counter()
    for _ in range(steps):
        what = taken.rng.choice(["commit", "commit", "put many", "drop pivots", "compact", "compact fully"])
        done[what] += 1
        if what == "commit":
            taken.commit(taken.rng.choice([1, 3, 20, most]))
        elif what == "put many":
            taken.put_many(taken.rng.choice([5, most]))
        elif what == "drop pivots":
            taken.drop_pivots()
        elif what == "compact":
            taken.compact(full=False)
        else:
            taken.prove_settled()
        if what == "compact" and order <= 128:
            assert 0 == taken.prove().waiting
        taken.prove()
    return done


@pytest.mark.parametrize("order", [3, 4, 5, 8])
@pytest.mark.parametrize("room", [0, 2500])
def test_every_version_of_a_walk_is_right(tmp_path: Path, order: int, room: int) -> None:
    """Trees of up to four levels; nodes with room for a few messages, and for more."""
    assert walk(tmp_path, order, room, steps=25, names=60, room=room, most=80)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100))
def test_every_version_of_many_walks_is_right(tmp_path: Path, seed: int) -> None:
    """Every order up to 9, and those around the one from which on messages wait."""
    order = [3, 4, 5, 6, 7, 8, 9, 128, 129, 256][seed % 10]
    room = [0, 2500, 20_000][seed % 3]
    if order < 100:
        walk(tmp_path, order, seed, steps=40, names=60, room=room, most=100)
    else:
        walk(tmp_path, order, seed, steps=16, names=6000, room=4 * room, most=5000)


@pytest.mark.parametrize("engine", ["in this process", "local", pytest.param("spark", marks=pytest.mark.spark)])
@pytest.mark.parametrize(("order", "tables"), [(5, 400), (129, 3000)])
def test_a_compaction_drops_pivots_where_nothing_else_waits(
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    engine: str,
    order: int,
    tables: int,
) -> None:
    """Of the root; of each level, among them all of one node; and all that there is."""
    spark = request.getfixturevalue("spark") if engine == "spark" else None
    if engine != "in this process":
        monkeypatch.setattr(compaction, "_SHARED_FROM_ROWS", 0)
    full = compaction.Config("spark" if engine == "spark" else "local", full=True, tasks=2)
    lake = wide(tmp_path, tables, order)
    reader = PlainReader(tmp_path / "lake", order)
    for level in (0, 1, 2):
        doomed = _keys_of_nodes(lake, level)
        with lake.transaction() as txn:
            for key in doomed:
                txn.put(key, None)
        lake.refresh()
        expected = reader.newest()
        assert not expected.content.keys() & set(doomed)
        report = compaction.run(lake, full, spark)
        found = reader.newest()
        assert (expected.content, 0, (found.held(), found.held())) == (found.content, found.waiting, found.bounds())
        assert (True, 0) == (report.proved, report.messages_after)
        assert [] == [each for each in lake.check() if each.invariant != "I12"]


def _keys_of_nodes(lake: Lakehouse, level: int) -> list[str]:
    """Return the pivots of the root, those of all inner nodes, or every key."""
    if level == 2:
        return [each.key for each in lake.objects()]
    nodes = [lake.root_node.node]
    found = []
    while nodes[0].children:
        found += [key for node in nodes for key in node.keys]
        if level == 0:
            break
        nodes = [lake.nodes.read(path) for node in nodes for path in node.children]
    return found

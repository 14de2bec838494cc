"""Verification finds what is broken, in every version, with each shared node read once."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from pipelines import expire, verify
from pipelines.engine import open_engine
from pipelines.engine.local import LocalEngine, LocalRows
from pipelines.engine.model import Row
from pipelines.integrity import checks, version_content
from pipelines.integrity.checks import Checks, Shape
from pipelines.integrity.examine import (
    ASKED,
    ENTRY,
    EXISTS,
    KEPT,
    KIND,
    NEEDED,
    Examiner,
    Kept,
    hashes_of,
    row_of_root,
    visits,
)
from pipelines.integrity.findings import Found
from pipelines.integrity.version_content import GatheredContent
from pipelines.job import silent
from pipelines.reach.walk import NODE, Visitor, descend
from pipelines.stats import deep
from tests.pipelines.test_clean import later, plant
from tests.support.damage import (
    BROKEN,
    Break,
    lead_a_value_outside,
    miscount,
    misstate_the_previous_root,
    point_to_the_root,
)
from tests.support.generator import build
from tests.support.lakes import FAST, compacted, content, filled, new_lake, reopened
from tests.support.rounds import Rounds
from tests.support.spoilt_engines import TwoTasks
from tests.support.surgery import Surgery, directory_of, files_of
from trinitylake_core import Lakehouse, spec
from trinitylake_core.errors import Corrupt, VersionNotFound
from trinitylake_core.locations import node_path, root_path
from trinitylake_core.storage import open_storage
from trinitylake_core.tree import nodefile, search
from trinitylake_core.tree.node import Node

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ORDER = 4


def verified(lake: Lakehouse, versions: str | int = "all", spark: Any = None, **options: Any) -> verify.Report:
    engine = "local" if spark is None else "spark"
    return verify.run(open_storage(*lake.storage.spec()), verify.Config(versions, engine=engine, **options), spark)


FEW = 24
"""Tables that make a level less: the plan of a query of Spark doubles with each."""


def many(directory: Path, tables: int = 60) -> Lakehouse:
    """Return a lakehouse of some levels whose versions share nodes, with compactions and a rollback in its history."""
    lake = filled(new_lake(directory, order=ORDER), tables=tables)
    compacted(lake)
    for number in range(6):
        with lake.refresh().transaction() as txn:
            txn.alter_table(f"ns{number % 3}", f"t{number:03}", properties={"a": "b"})
    compacted(lake.refresh())
    lake.refresh().create_snapshot("kept", version=5)
    lake.refresh().rollback(version=8, reason="test")
    return lake.refresh()


def nodes_of(lake: Lakehouse) -> list[str]:
    """Return every node file that a kept version or snapshot reaches."""
    surgery, found = Surgery(lake.root, ORDER), set()
    waiting = [root_path(version) for version in range(lake.stats().oldest_version, lake.version + 1)]
    waiting += [info.root_path for info in lake.snapshots()]
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting += surgery.decode(path).children
    return sorted(found)


# -- sound lakehouses ----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_random_lakehouses_are_sound(tmp_path: Path, seed: int) -> None:
    report = verified(build(tmp_path, seed, steps=40).lake.refresh(), definitions=True)
    assert ([], True) == (report.findings, report.ok)


def test_each_shared_node_is_read_once(tmp_path: Path) -> None:
    lake = many(tmp_path)
    assert len(nodes_of(lake)) == verified(lake).nodes_read
    surgery = Surgery(lake.root, ORDER)
    assert len(surgery.tree(lake.version)) == verified(lake, "newest").nodes_read
    assert [3] == verified(lake, 3).versions


def test_roots_are_read_twice_and_each_lakehouse_definition_once(tmp_path: Path) -> None:
    """Once to judge its rows and once as a node; what a few of them cost more is the search for the newest one."""
    lake = many(tmp_path)
    storage = open_storage(*lake.storage.spec())
    with Rounds(storage) as rounds:
        assert verify.run(storage, verify.Config("all", engine="local")).ok
    reads = Counter(path for _, _, path in rounds.log)
    assert 1 == reads[lake.root_node.definition_path]
    roots = sum(reads[root_path(version)] for version in range(lake.version + 1))
    assert 2 * (lake.version + 1) <= roots <= 2 * (lake.version + 1) + 6


def test_one_version_is_verified_with_one_get_per_file(tmp_path: Path) -> None:
    """What it means is proved from the nodes of the walk; nothing but a few roots is read again."""
    storage = open_storage(*many(tmp_path).storage.spec())
    report = verify.run(storage, verify.Config("newest", definitions=True, engine="local"))
    assert report.ok
    assert report.nodes_read + report.definitions_read + 12 >= storage.counts.get


def test_what_one_version_lacks_is_found_without_the_others(tmp_path: Path) -> None:
    lake = many(tmp_path)
    wanted = _no_namespace(lake, Surgery(lake.root, ORDER))
    findings = verified(lake, lake.version + 1).findings
    assert [wanted] * len(lake.tables("ns1")) == [(each.invariant, each.file) for each in findings]


def test_a_version_that_never_existed_is_wrong_input(tmp_path: Path) -> None:
    with pytest.raises(VersionNotFound):
        verified(new_lake(tmp_path), 7)


def test_older_generations_are_verified_one_by_one(java_lakehouse: str) -> None:
    lake = Lakehouse.open(java_lakehouse)
    report = verified(lake, definitions=True)
    assert report.ok
    assert "one by one" in report.seconds


# -- damage --------------------------------------------------------------------------------------------


def _swapped_files(lake: Lakehouse, surgery: Surgery) -> tuple[str, str]:
    leaves = [path for path, node in surgery.tree(lake.version) if node.is_leaf]
    surgery.write(leaves[0], surgery.read(leaves[-1]))
    return "I18", leaves[0]


def _swapped_roots(_: Lakehouse, surgery: Surgery) -> tuple[str, str]:
    surgery.copy_node(root_path(4), root_path(3))
    return "I13", root_path(3)


def _no_root(_: Lakehouse, surgery: Surgery) -> tuple[str, str]:
    surgery.remove(root_path(4))
    return "I10", root_path(4)


def _no_namespace(lake: Lakehouse, _: Surgery) -> tuple[str, str]:
    with lake.transaction() as txn:
        txn._delete(lake.codec.namespace("ns1"))
    return "I12", root_path(lake.version + 1)


def _no_definition(lake: Lakehouse, surgery: Surgery) -> tuple[str, str]:
    path = min(set(content(lake.at(version=6)).values()) - set(content(lake).values()) or content(lake).values())
    surgery.remove(path)
    return "I15", path


def _no_snapshot(lake: Lakehouse, surgery: Surgery) -> tuple[str, str]:
    path = lake.snapshots()[0].root_path
    surgery.remove(path)
    return "I17", path


DAMAGE: list[Callable[[Lakehouse, Surgery], tuple[str, str]]] = [
    _swapped_files, _swapped_roots, _no_root, _no_namespace, _no_definition, _no_snapshot,
]  # fmt: skip
"""What only shows where several versions are verified, or the names of nodes."""


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda each: each.__name__[1:])
def test_damage_is_found_and_named(tmp_path: Path, damage: Callable[[Lakehouse, Surgery], tuple[str, str]]) -> None:
    lake = many(tmp_path)
    invariant, file = damage(lake, Surgery(lake.root, ORDER))
    report = verified(lake, definitions=True)
    assert (invariant, file) in {(each.invariant, each.file) for each in report.findings}
    assert not report.ok
    assert all(each.hint and each.message for each in report.findings)


def test_a_damaged_file_of_a_snapshot_concerns_the_snapshot(tmp_path: Path) -> None:
    """Its root is no version's file; nodes below it belong to versions, too, of which the last is named."""
    lake = many(tmp_path)
    surgery = Surgery(lake.root, ORDER)
    kept = lake.snapshots()[0]
    shared = surgery.decode(kept.root_path).children[0]
    before = surgery.read(shared)
    surgery.write(shared, b"garbage")
    (found,) = verified(lake).findings
    assert ([kept.version, lake.version], None) == (found.versions, found.snapshot)
    surgery.write(shared, before)
    surgery.write(kept.root_path, b"garbage")
    for versions in ("all", "newest", kept.version):
        report = verified(lake, versions)
        assert {("kept", kept.root_path)} == {(each.snapshot, each.file) for each in report.findings}
        assert ["`trinitylake mend ROOT --from BACKUP` puts its files back; or drop the snapshot"] == [
            *{each.hint for each in report.findings}
        ]
        assert "all of them in snapshots" in next(report.summary())
        assert {"snapshot kept"} == {row[2] for table in report.summary_tables() for row in table.rows}
    for version in range(lake.version + 1):
        assert (version != kept.version) is verified(lake, version).ok


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a lakehouse in which each damage has its place."""
    return directory_of(filled(new_lake(tmp_path_factory.mktemp("sound"), ORDER), tables=120, changes=8))


@pytest.mark.parametrize(("invariant", "broken"), [each[:2] for each in BROKEN], ids=[b.__name__ for _, b, _ in BROKEN])
def test_whatever_the_core_finds_is_found(
    sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, invariant: str, broken: Break
) -> None:
    """Where the core's check of the newest version names an invariant, a verification of all versions does, too.

    And so does one that checks each change in ranges of keys.
    """
    shutil.copytree(sound, tmp_path / "lake")
    lake = Lakehouse.open((tmp_path / "lake").as_uri(), storage_options=FAST)
    broken(Surgery(lake.root, ORDER), lake.version)
    report = verified(lake, definitions=True)
    shows_as = "I8" if broken is point_to_the_root else invariant  # it is met as a root first, at another height
    assert shows_as in {each.invariant for each in report.findings}
    assert all(each.file and each.hint and each.message for each in report.findings)
    _, in_ranges = _verify_in_ranges(lake, monkeypatch, at_least=1)
    assert report.findings == in_ranges.findings
    assert report.definitions_read >= in_ranges.definitions_read


def _verify_in_ranges(lake: Lakehouse, monkeypatch: pytest.MonkeyPatch, at_least: int) -> tuple[Any, verify.Report]:
    """Verify with two tasks, and changes of so many subtrees in ranges of keys; return the engine and the report."""
    engine = _NotesTables()
    monkeypatch.setattr(checks, "_LARGE", at_least)
    monkeypatch.setattr(verify, "choose_engine_for_all", lambda *_: engine)
    return engine, verified(lake, definitions=True)


def test_no_task_checks_all_of_a_large_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here the load of a lakehouse, after its first version."""
    lake = filled(new_lake(tmp_path, ORDER), tables=400, changes=400)
    compacted(lake)
    whole = verified(lake, definitions=True)
    engine, in_ranges = _verify_in_ranges(lake, monkeypatch, at_least=32)
    assert whole == replace(in_ranges, seconds=whole.seconds)
    assert whole.ok
    assert engine.most > len(whole.versions)


@pytest.mark.spark
def test_spark_finds_the_same(tmp_path: Path, spark: SparkSession) -> None:
    """The same findings from both engines, all damage at once; nothing is left in the session."""
    lake = many(tmp_path, FEW)
    kept = spark.sparkContext._jsc.getPersistentRDDs
    before = set(kept())
    surgery = Surgery(lake.root, ORDER)
    for broken in (miscount(spec.SUBTREE_KEYS, "leaf"), misstate_the_previous_root, lead_a_value_outside):
        broken(surgery, lake.version)
    for damage in (_no_snapshot, _no_definition, _no_namespace):
        damage(lake, surgery)
    one, two = verified(lake, definitions=True), verified(lake, spark=spark, definitions=True)
    assert one.findings == two.findings
    assert (one.nodes_read, one.nodes_named, one.versions) == (two.nodes_read, two.nodes_named, two.versions)
    assert (one.definitions_read, one.definitions_proved) == (two.definitions_read, two.definitions_proved)
    assert 0 < one.definitions_proved
    assert {"I9", "I11", "I12", "I14", "I17"} <= {each.invariant for each in one.findings}
    assert not set(kept()) - before


def overridden(directory: Path, tables: int = 60) -> Lakehouse:
    """Return a lakehouse in which messages above the leaves replace, remove and add what stands in leaves."""
    lake = filled(new_lake(directory, order=ORDER), tables=tables)
    compacted(lake)
    with lake.refresh().transaction() as txn:
        txn.drop_table("ns1", "t001")
        txn.alter_table("ns2", "t002", properties={"c": "d"})
        txn.create_namespace("late")
        txn.create_table("late", "one")
    return lake.refresh()


def test_of_what_leaves_say_only_what_may_be_overridden_is_kept(tmp_path: Path) -> None:
    """The sums of the rest, and what counts of what is kept, are what the version holds."""
    lake = overridden(tmp_path)
    shape = Shape.of(lake.definition)
    content = GatheredContent(shape.codec, version=lake.version)
    examiner = Examiner(shape.order, shape.codec, lake.version)
    visitor = Visitor("nodes", ASKED, KEPT, lambda *_: partial(visits, examiner=examiner))
    roots = [row_of_root(lake.root_node.path, lake.version, lake.version)]
    walked = descend(LocalEngine(), lake.storage, visitor, roots, silent)
    above = {row["path"] for row in walked.ask(f"SELECT path FROM walked WHERE role = {ENTRY} AND height > 0").list()}
    at_leaves = replace(examiner, above=np.unique(hashes_of(above)))
    leaves = walked.ask(f"SELECT path FROM walked WHERE role = {NODE} AND height = 0").list()
    kinds, kept = Counter[str](), 0
    for leaf in leaves:
        path, data = leaf["path"], lake.storage.read(leaf["path"])
        asked_of = row_of_root(path, lake.version, lake.version) | {"height": 0}
        said, now = set(_paths(examiner(asked_of, data), ENTRY)), at_leaves(asked_of, data)
        entries = set(_paths(now, ENTRY))
        settled = Counter({row[1]: row[KEPT.get_field_index("size")] for row in now if row[0] == KIND})
        assert said & above <= entries
        assert len(said) == len(entries) + settled.total()
        names = [lake.codec.parts(key)[:2] for key in said - entries]
        assert {name for kind, name in names if kind == "namespace"} == set(_paths(now, EXISTS))
        assert {name for kind, name in names if kind != "namespace"} == set(_paths(now, NEEDED))
        kinds += settled
        kept += len(entries)
    assert 0 < kept < sum(kinds.values())
    for key in above:
        if search.lookup(lake.nodes, lake.root_node.node, key) is not None:
            content.note(key)
    counts = lake.stats()
    assert (counts.namespaces, counts.tables) == tuple(
        kinds[each] + content.kinds[each] for each in ("namespace", "table")
    )


def _paths(rows: list[Kept], role: int) -> list[str]:
    return [row[1] for row in rows if row[0] == role]


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("limit", [4 << 20, 0])
def test_spark_means_the_same_whether_leaves_are_settled_where_they_are_read_or_not(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    """Malformed keys, and tables without a namespace, are among what leaves and messages above them say."""
    lake = overridden(tmp_path, FEW)
    _no_namespace(lake, Surgery(lake.root, ORDER))
    lake = reopened(lake)
    leaf = next(path for path, node in Surgery(lake.root, ORDER).tree(lake.version) if _is_table_leaf(node))
    with Surgery(lake.root, ORDER).node(leaf) as node:
        node.keys[0] = node.keys[0][:-1]
    monkeypatch.setattr(checks, "_HERE", 0)
    monkeypatch.setattr(version_content, "_ABOVE_MOST", limit)
    said = []
    for engine in ("local", "spark"):
        shape, found = Shape.of(lake.definition), Found()
        content = GatheredContent(shape.codec, version=lake.version)
        passes = Checks(open_engine(engine, spark), lake.storage, shape, found, silent)
        walked = passes.nodes([row_of_root(lake.root_node.path, lake.version, lake.version)], content)
        said.append((walked, content.kinds, content.missing_namespaces(), found.findings()))
    assert said[0] == said[1]
    assert 1 == said[0][1]["malformed"]
    assert {"I11", "I12"} <= {each.invariant for each in said[0][3][0]}


def _is_table_leaf(node: Node) -> bool:
    return node.is_leaf and node.keys[0].startswith("C")


class _NotesTables(TwoTasks):
    """Notes how many rows of this process it was given at once, at most."""

    def __init__(self) -> None:
        super().__init__()
        self.most = 0

    def table(self, rows: Iterable[Row], schema: pa.Schema) -> LocalRows:
        given = list(rows)
        self.most = max(self.most, len(given))
        return super().table(given, schema)


@pytest.mark.slow
def test_few_rows_of_what_is_visited_here_move_to_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many objects a lakehouse has; each is 2 KB of this process."""
    monkeypatch.setattr(checks, "_HERE", 128)
    lake = Lakehouse.create(tmp_path.as_uri(), storage_options=FAST)
    filled(lake, tables=10_000, changes=10_000)
    shape, found = Shape.of(lake.definition), Found()
    content = GatheredContent(shape.codec, version=lake.version, read_definitions=True)
    with closing(_NotesTables()) as engine:
        passes = Checks(engine, lake.storage, shape, found, silent)
        walked = passes.nodes([row_of_root(lake.root_node.path, lake.version, lake.version)], content)
    assert ([], 10_000) == (found.violations(), content.kinds["table"])
    assert walked > 20
    assert engine.most <= 8_192


# -- bit rot ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [20, pytest.param(1000, marks=pytest.mark.slow)])
def test_bit_rot_is_found_or_harmless(tmp_path: Path, changes: int) -> None:
    """A single changed byte of a node file is found, or the file provably says what it said before."""
    lake, draw = many(tmp_path), random.Random(changes)
    paths, surgery = nodes_of(lake), Surgery(lake.root, ORDER)
    found = 0
    for _ in range(changes):
        path = draw.choice(paths)
        before = surgery.read(path)
        data = bytearray(before)
        data[draw.randrange(len(data))] ^= draw.randrange(1, 256)
        surgery.write(path, bytes(data))
        named = {each.file for each in verified(lake).findings}
        if path in named:
            found += 1
        else:
            assert _says(bytes(data), path) == _says(before, path)
        surgery.write(path, before)
    assert found > changes // 2
    assert verified(lake).ok


def _says(data: bytes, path: str) -> object:
    try:
        node = nodefile.decode(data, path)
    except Corrupt as error:
        return str(error)
    return (node.system, node.keys, node.values, node.children, node.buffer, node.height, node.checksummed)


# -- health ----------------------------------------------------------------------------------------------


def test_deep_statistics_tell_what_files_are_there_for(tmp_path: Path) -> None:
    """Every file below the root is counted once."""
    lake = many(tmp_path)
    plant(lake, node_path(), b"x" * 77)
    plant(lake, "README.md", b"theirs")
    found = deep(reopened(lake), storage=True)
    assert found.reach is not None
    assert (1, 77) == (found.reach.nothing.files, found.reach.nothing.bytes)
    assert (1, 6) == (found.reach.foreign.files, found.reach.foreign.bytes)
    parts = (found.reach.newest, found.reach.history, found.reach.nothing)
    everything = {path: len(data) for path, data in files_of(lake).items() if path != "README.md"}
    everything.pop(spec.HINT_FILE)
    assert (len(everything), sum(everything.values())) == (sum(p.files for p in parts), sum(p.bytes for p in parts))
    assert found.oldest_version_age_seconds is not None
    expire.run(lake, expire.Config(engine="local", keep_last=1, now_millis=later() + 30 * 86_400_000))
    after = deep(reopened(lake), storage=True).reach
    assert after is not None
    assert after.nothing.files > found.reach.nothing.files


def test_it_says_how_much_knows_its_name_and_its_content(tmp_path: Path) -> None:
    """What older releases wrote is sound, and counted; a compaction names the nodes that it writes."""
    lake = many(tmp_path)
    found = verified(lake, "newest", definitions=True)
    objects = len(list(lake.objects()))
    assert (found.nodes_read, objects, objects) == (found.nodes_named, found.definitions_read, found.definitions_proved)
    surgery = Surgery(lake.root, ORDER)
    old = [path for path, _ in surgery.tree(lake.version)][:3]
    for path in old:
        surgery.strip(path, spec.SELF)
    entry = next(iter(lake.objects()))
    surgery.write(entry.path, surgery.read(entry.path)[:-19])
    again = verified(lake, "newest", definitions=True)
    assert again.ok
    assert (len(old), 1) == (again.nodes_read - again.nodes_named, again.definitions_read - again.definitions_proved)

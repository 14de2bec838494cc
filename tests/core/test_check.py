"""`check` names exactly the invariant that was broken by hand, and accuses no sound lakehouse."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.damage import BROKEN, EXTENSIONS, ORDER, Break, hang_nodes_deeper_than_any_tree
from tests.support.lakes import FAST, compacted, content, filled, new_lake, reopened
from tests.support.surgery import ABSENT, RIGHT, Surgery, set_system_row
from trinitylake_core import CorruptNode, Lakehouse, Violation, spec
from trinitylake_core.commits.changes import NewDefinition
from trinitylake_core.commits.commit import commit
from trinitylake_core.definitions import LakehouseDef, NamespaceDef, SnapshotDef, encode
from trinitylake_core.locations import definition_path, node_path, root_path
from trinitylake_core.versions import Root


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a lakehouse with four levels and messages in inner nodes, and return its directory."""
    lake = filled(new_lake(tmp_path_factory.mktemp("template"), ORDER), tables=72, changes=8)
    surgery = Surgery(lake.root, ORDER)
    below = [node for _, node in surgery.tree(lake.version)[1:]]
    assert 3 == lake.stats().height
    assert any(node.buffer.keys for node in below if not node.is_leaf)
    return surgery.directory


@pytest.fixture
def lake(template: Path, tmp_path: Path) -> Lakehouse:
    """Return a handle of a fresh copy of the template."""
    shutil.copytree(template, tmp_path / "lake")
    return Lakehouse.open((tmp_path / "lake").as_uri(), storage_options=FAST)


def found(violations: list[Violation]) -> set[str]:
    return {each.invariant for each in violations}


@pytest.mark.parametrize(("invariant", "broken", "expected"), BROKEN, ids=[f"{i}-{b.__name__}" for i, b, _ in BROKEN])
def test_each_broken_invariant_is_found_and_no_other(
    lake: Lakehouse, invariant: str, broken: Break, expected: set[str]
) -> None:
    """One file is changed behind the API's back; the finding names the invariant, a file and what to do."""
    broken(Surgery(lake.root, ORDER), lake.version)
    violations = list(lake.check(definitions=True))
    assert expected == found(violations), violations
    assert invariant in expected
    assert all(each.file and each.message and each.hint for each in violations)


def test_every_invariant_is_broken_by_some_test() -> None:
    """No number is left out but I17, which has a test of its own."""
    assert {f"I{number}" for number in range(1, 17)} == {invariant for invariant, _, _ in BROKEN}


def test_nodes_deeper_than_any_tree_are_a_finding_and_no_crash(lake: Lakehouse) -> None:
    """Without heights a chain of nodes is followed only so far; its other pointers lead nowhere."""
    hang_nodes_deeper_than_any_tree(Surgery(lake.root, ORDER), lake.version)
    violations = list(lake.check())
    assert any("nodes below the root" in each.message for each in violations)
    with pytest.raises(CorruptNode):
        reopened(lake).namespaces()


def add_snapshot(lake: Lakehouse, name: str, path: str) -> Root:
    def edit(definition: LakehouseDef, root: Root) -> LakehouseDef:
        edited = LakehouseDef()
        edited.CopyFrom(definition)
        edited.snapshots[name].CopyFrom(SnapshotDef(root_node_file_path=path, version=root.version))
        return edited

    return commit(lake.backend, lake.backend.newest_seen, NewDefinition(lake.backend, spec.OP_SNAPSHOT, {}, edit))


@pytest.mark.parametrize("broken", ["missing", "garbage", "outside"])
def test_a_snapshot_that_cannot_be_read_breaks_i17(lake: Lakehouse, broken: str) -> None:
    surgery = Surgery(lake.root, ORDER)
    path = "../root.ipc" if broken == "outside" else node_path()
    if broken != "outside":
        surgery.copy_node(root_path(lake.version), path)
    add_snapshot(lake, "daily", path)
    lake.refresh()
    if broken == "missing":
        assert [] == list(lake.check())
        surgery.remove(path)
    elif broken == "garbage":
        surgery.write(path, b"garbage")
    assert {"I17"} == found(list(lake.check()))
    assert ["snapshot 'daily'" in each.message for each in lake.check()] == [True]


# -- what is no violation ----------------------------------------------------------------------------


def test_a_lakehouse_without_our_extensions_is_sound(lake: Lakehouse) -> None:
    """Counts, heights and checksums are proved where they stand; their absence breaks nothing."""
    surgery = Surgery(lake.root, ORDER)
    before = content(lake)
    for path, _ in surgery.tree(lake.version):
        with surgery.raw(path, ABSENT) as columns:
            for row in EXTENSIONS:
                set_system_row(columns, row, None)
    again = reopened(lake)
    assert [] == list(again.check(definitions=True))
    assert before == content(again)


@pytest.mark.parametrize("checksum", [RIGHT, ABSENT])
def test_a_lakehouse_without_our_extensions_is_written_compacted_and_counted_again(
    lake: Lakehouse, checksum: str
) -> None:
    """Counts that nobody knows do not stop a writer, and a compaction makes them known."""
    surgery = Surgery(lake.root, ORDER)
    for path, _ in surgery.tree(lake.version):
        with surgery.raw(path, checksum) as columns:
            for row in EXTENSIONS:
                set_system_row(columns, row, None)
    again = reopened(lake)
    for number in range(30):
        with again.transaction() as txn:
            txn.create_view(f"ns{number % 3}", f"v{number}", sql="SELECT 1")
    again.refresh()
    assert [] == list(again.check())
    expected = content(again)
    root = compacted(again)
    assert [] == list(again.refresh().check())
    assert expected == content(again)
    assert (len(expected), 0) == (root.node.subtree_keys, root.node.subtree_messages)


def test_a_boundary_that_is_ahead_of_the_deletion_is_no_violation(lake: Lakehouse) -> None:
    """Expiration advances the boundary before it deletes, and may be killed in between."""
    surgery = Surgery(lake.root, ORDER)
    surgery.write(spec.BOUNDARY_FILE, b"6")
    assert [] == list(reopened(lake).check())
    surgery.remove(root_path(2))
    assert [] == list(reopened(lake).check())


def test_a_definition_of_another_kind_breaks_i15_where_it_cannot_be_told_apart_it_does_not(lake: Lakehouse) -> None:
    """A table's key that leads to bytes of a namespace parses when proto3 cannot tell: documented, not hidden."""
    surgery = Surgery(lake.root, ORDER)
    leaf = surgery.find(lake.version, lambda node: node.is_leaf and node.keys[0].startswith("C==="))
    with surgery.node(leaf) as node:
        node.values[0] = definition_path("namespace", "ns0")
    surgery.write(surgery.decode(leaf).values[0], encode(NamespaceDef(id="x")))
    assert set() == found(list(lake.check(definitions=True)))


def test_check_costs_one_get_a_node(lake: Lakehouse) -> None:
    """Root, definition, previous root, boundary (twice) and its root; each node once; one listing of the roots."""
    nodes = len(Surgery(lake.root, ORDER).tree(lake.version))
    before = lake.storage.counts.snapshot()
    assert [] == list(lake.check())
    spent = lake.storage.counts - before
    assert {"get": nodes - 1 + 6, "list": 1} == {k: v for k, v in spent.as_dict().items() if not k.startswith("bytes")}

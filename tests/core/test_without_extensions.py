"""Canonical lakehouses whose files have no checksum, counts, height or name: read, listed, compared and travelled."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.lakes import FAST, compacted, content, filled, new_lake
from tests.support.surgery import ABSENT, Surgery, set_system_row
from trinitylake_core import CorruptNode, Lakehouse, ObjectNotFound, ReadOnly, spec
from trinitylake_core.check import check_version
from trinitylake_core.definitions import LakehouseDef, encode
from trinitylake_core.locations import root_path

ORDER = 4
EXTENSIONS = (
    spec.HEIGHT,
    spec.SUBTREE_KEYS,
    spec.SUBTREE_MESSAGES,
    spec.CHILD_KEYS,
    spec.CHILD_MESSAGES,
    spec.OLDEST_VERSION,
    spec.SELF,
    spec.OPERATION,
    spec.SUMMARY,
    spec.LAKEHOUSE_DEF_COPY,
)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Lakehouse:
    """Make a canonical lakehouse of four levels, with buffers, a compaction and messages after it."""
    lake = filled(new_lake(tmp_path_factory.mktemp("original")), tables=90, changes=18)
    compacted(lake)
    for number in range(5):
        with lake.transaction() as txn:
            txn.drop_table(f"ns{number % 3}", f"t{number:03}")
            txn.create_view("ns1", f"v{number}", sql="SELECT 1")
    return lake.refresh()


@pytest.fixture(scope="module")
def bare(original: Lakehouse, tmp_path_factory: pytest.TempPathFactory) -> Surgery:
    """Copy the lakehouse and write each of its nodes anew, without extensions. It is not changed by any test."""
    return strip_all(original, tmp_path_factory.mktemp("bare") / "lake")


def strip_all(original: Lakehouse, directory: Path) -> Surgery:
    source = Surgery(original.root, ORDER)
    shutil.copytree(source.directory, directory)
    surgery = Surgery(directory.as_uri(), ORDER)
    for path in {path for version in range(original.version + 1) for path, _ in source.tree(version)}:
        columns = source.columns(path)
        for row in EXTENSIONS:
            set_system_row(columns, row, None)
        surgery.write_columns(path, columns, ABSENT)
    return surgery


def opened(surgery: Surgery) -> Lakehouse:
    return Lakehouse.open(surgery.directory.as_uri(), storage_options=FAST)


def test_every_version_says_what_the_canonical_one_says(bare: Surgery, original: Lakehouse) -> None:
    """Objects, digests, lookups, definitions, times."""
    lake = opened(bare)
    assert original.version == lake.version
    for version in range(lake.version + 1):
        ours, theirs = original.at(version=version), lake.at(version=version)
        assert content(ours) == content(theirs)
        assert ours.digest() == theirs.digest()
        assert ours.namespaces() == theirs.namespaces()
        assert ours.info().created_at == theirs.info().created_at
    for name in original.tables("ns1"):
        assert original.table("ns1", name) == lake.table("ns1", name)
    with pytest.raises(ObjectNotFound):
        lake.table("ns1", "t001")
    assert [info.version for info in original.history()] == [info.version for info in lake.history()]
    assert 7 == lake.at(timestamp=original.at(version=7).info().created_at).version


def test_versions_are_compared(bare: Surgery, original: Lakehouse) -> None:
    """With one another, and with the canonical lakehouse."""
    lake = opened(bare)
    for a, b in ((0, lake.version), (lake.version, 3), (5, 6), (6, 7)):
        ours = [(c.change, c.key, c.old_path, c.new_path) for c in original.diff(a, b)]
        assert ours == [(c.change, c.key, c.old_path, c.new_path) for c in lake.diff(a, b)]
    assert [] == list(lake.diff(lake, original))
    assert [] == list(original.diff(original, lake))


def test_no_invariant_is_broken(bare: Surgery) -> None:
    """Only what its layout knows is proved."""
    lake = opened(bare)
    for version in range(lake.version + 1):
        assert [] == list(check_version(lake.backend.versions, version, definitions=True))


def test_what_its_layout_knows_is_proved(original: Lakehouse, tmp_path: Path) -> None:
    """Order and ranges of keys need no extension."""
    surgery = strip_all(original, tmp_path / "lake")
    lake = opened(surgery)
    leaf = surgery.find(lake.version, lambda node: node.is_leaf and len(node.keys) > 1 and node.keys[0][0] == "C")
    columns = surgery.columns(leaf)
    first = columns[spec.KEY].index(None) + 1
    columns[spec.KEY][first : first + 2] = columns[spec.KEY][first : first + 2][::-1]
    surgery.write_columns(leaf, columns, ABSENT)
    assert {"I3"} == {each.invariant for each in lake.check()}


def test_it_can_be_written(original: Lakehouse, tmp_path: Path) -> None:
    """Extensions are optional: the next version has them."""
    lake = opened(strip_all(original, tmp_path / "lake"))
    assert not lake.read_only
    with lake.transaction() as txn:
        txn.create_namespace("new")
    assert sorted([*original.namespaces(), "new"]) == lake.refresh().namespaces()
    assert [] == list(lake.check(definitions=True))


def test_a_root_of_two_columns_is_that_of_the_java_sdk(tmp_path: Path) -> None:
    """One flat table without a NULL row; it is read, and never written."""
    lake = new_lake(tmp_path, ORDER, target=8000)
    with lake.transaction() as txn:
        txn.create_namespace("a")
        txn.create_table("a", "t")
    lake.refresh()
    expected, digest = content(lake), lake.digest()
    surgery = Surgery(lake.root, ORDER)
    system = lake.root_node.system
    flat = {"key": [*system, *expected], "value": [*system.values(), *expected.values()]}
    surgery.write_columns(root_path(1), flat, ABSENT)
    before = surgery.listing()
    again = opened(surgery)
    assert (expected, digest) == (content(again), again.digest())
    assert again.read_only
    with pytest.raises(ReadOnly, match="upgrade"):
        again.transaction()
    assert before == surgery.listing()


@pytest.mark.parametrize("columns", [("value", "key"), ("key", "pvalue"), ("key", "value", "txn")])
def test_other_columns_are_refused(tmp_path: Path, columns: tuple[str, ...]) -> None:
    lake = new_lake(tmp_path, ORDER, target=8000)
    surgery = Surgery(lake.root, ORDER)
    written = surgery.columns(root_path(0)) | {"value": surgery.columns(root_path(0))[spec.PVALUE]}
    surgery.write_columns(root_path(0), {name: written[name] for name in columns}, ABSENT)
    with pytest.raises(CorruptNode, match="neither a canonical node nor a root of the Java SDK"):
        opened(surgery)


def test_a_definition_without_numbers_means_the_defaults(tmp_path: Path) -> None:
    """proto3 does not store a zero."""
    lake = Lakehouse.create((tmp_path / "lake").as_uri(), storage_options=FAST, order=spec.DEFAULT_ORDER)
    with lake.transaction() as txn:
        txn.create_namespace("a")
        for number in range(200):
            txn.create_table("a", f"t{number}")
    compacted(lake)
    surgery = Surgery(lake.root, spec.DEFAULT_ORDER)
    surgery.write(lake.root_node.definition_path, encode(LakehouseDef(id="old")))
    for path, _ in surgery.tree(2):
        surgery.strip(path, *EXTENSIONS)
    again = opened(surgery)
    assert (128, 100, 604_800_000) == (
        again.definition.order,
        again.definition.table_name_max_size_bytes,
        again.definition.txn_ttl_millis,
    )
    assert sorted(f"t{number}" for number in range(200)) == again.tables("a")
    assert [] == list(again.check())

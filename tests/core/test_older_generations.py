"""Lakehouses of older generations, made by hand: read, listed, diffed and travelled as they are, and never written."""

from __future__ import annotations

import base64
import shutil
import uuid
from pathlib import Path

import pytest

from tests.support.lakes import FAST, compacted, content, filled, new_lake
from tests.support.surgery import ABSENT, Columns, Surgery, set_system_row
from trinitylake_core import CommitConflict, Lakehouse, ObjectNotFound, ReadOnly, spec
from trinitylake_core.check import check_version
from trinitylake_core.definitions import LakehouseDef, encode
from trinitylake_core.keys import is_object_key
from trinitylake_core.locations import optimised_path, parse, root_path

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
VARIANTS = ("value", "lakehouse", "spaces", "no n_keys", "no version", "base64", "no txn", "no extensions")
FOUND: tuple[set[str], ...] = (
    {"value"},
    {"lakehouse"},
    {"spaces"},
    {"no n_keys", "no version"},
    {"base64"},
    {"no txn"},
    set(VARIANTS),
)
"""What may be found, each on its own or together."""


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


def base64_path() -> str:
    return optimised_path(base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=") + ".ipc")


def aged(columns: Columns, variants: set[str], renamed: dict[str, str]) -> Columns:
    """Return the columns of a node as an older writer would have written them."""
    set_system_row(columns, spec.SELF, None)
    if "no extensions" in variants:
        for row in EXTENSIONS:
            set_system_row(columns, row, None)
    if "no n_keys" in variants:
        set_system_row(columns, spec.N_KEYS, None)
    if "no version" in variants:
        set_system_row(columns, spec.VERSION, None)
    if "lakehouse" in variants:
        columns[spec.KEY] = ["lakehouse" if key == spec.LAKEHOUSE_DEF else key for key in columns[spec.KEY]]
    if "spaces" in variants:
        columns[spec.KEY] = [f" {key}" if key and is_object_key(key) else key for key in columns[spec.KEY]]
    columns[spec.PNODE] = [renamed.get(path or "", path) for path in columns[spec.PNODE]]
    if "no txn" in variants:
        del columns[spec.TXN]
    if "value" in variants:
        columns = {("value" if name == spec.PVALUE else name): column for name, column in columns.items()}
    return columns


def make_older(original: Lakehouse, directory: Path, variants: set[str]) -> Surgery:
    """Copy a lakehouse and write each of its nodes anew, without checksums."""
    source = Surgery(original.root, ORDER)
    shutil.copytree(source.directory, directory)
    surgery = Surgery(directory.as_uri(), ORDER)
    nodes = {path for version in range(original.version + 1) for path, _ in source.tree(version)}
    renamed = {}
    if "base64" in variants:
        renamed = {path: base64_path() for path in nodes if (found := parse(path)) and found.kind == "node"}
    for path in nodes:
        columns = aged(source.columns(path), variants, renamed)
        surgery.remove(path)
        surgery.write_columns(renamed.get(path, path), columns, ABSENT)
    return surgery


@pytest.fixture(scope="module", params=FOUND, ids=lambda variants: "+".join(sorted(variants)))
def older(original: Lakehouse, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Surgery:
    """Return a lakehouse with one of the variants, or with all of them. It is not changed by any test."""
    return make_older(original, tmp_path_factory.mktemp("older") / "lake", request.param | {"no extensions"})


def opened(surgery: Surgery) -> Lakehouse:
    return Lakehouse.open(surgery.directory.as_uri(), storage_options=FAST)


def older_by_name_only(lake: Lakehouse) -> set[str]:
    """Return the variant of a lakehouse whose root is canonical and whose nodes have old names."""
    node = lake.root_node.node
    found = parse(node.children[0])
    old = node.canonical and spec.LAKEHOUSE_DEF in node.system and found is not None and found.legacy
    return {"base64"} if old else set()


def test_every_version_says_what_the_canonical_one_says(older: Surgery, original: Lakehouse) -> None:
    """Objects, digests, lookups, definitions, times."""
    lake = opened(older)
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


def test_versions_are_compared(older: Surgery, original: Lakehouse) -> None:
    """With one another, and with the canonical lakehouse."""
    lake = opened(older)
    for a, b in ((0, lake.version), (lake.version, 3), (5, 6), (6, 7)):
        ours = [(c.change, c.key, c.old_path, c.new_path) for c in original.diff(a, b)]
        assert ours == [(c.change, c.key, c.old_path, c.new_path) for c in lake.diff(a, b)]
    assert [] == list(lake.diff(lake, original))
    assert [] == list(original.diff(original, lake))


def test_no_invariant_is_broken(older: Surgery) -> None:
    """Only what its layout knows is proved."""
    lake = opened(older)
    for version in range(lake.version + 1):
        assert [] == list(check_version(lake.backend.versions, version, definitions=True))


def test_what_its_layout_knows_is_proved(original: Lakehouse, tmp_path: Path) -> None:
    """Order and ranges of keys are known to every generation."""
    surgery = make_older(original, tmp_path / "lake", set(VARIANTS))
    lake = opened(surgery)
    leaf = surgery.find(lake.version, lambda node: node.is_leaf and len(node.keys) > 1 and node.keys[0][0] == "C")
    columns = surgery.columns(leaf)
    first = columns[spec.KEY].index(None) + 1
    columns[spec.KEY][first : first + 2] = columns[spec.KEY][first : first + 2][::-1]
    surgery.write_columns(leaf, columns, ABSENT)
    assert {"I3"} == {each.invariant for each in lake.check()}


def test_it_is_read_only(older: Surgery) -> None:
    """A write is refused and points to upgrade. Names of nodes do not matter, what is in them does."""
    before = older.listing()
    lake = opened(older)
    if FOUND[4] == older_by_name_only(lake):
        assert not lake.read_only
        return
    assert lake.read_only
    with pytest.raises(ReadOnly, match="upgrade"):
        lake.transaction()
    assert before == older.listing()


@pytest.mark.parametrize("columns", [("key", "value"), ("key", "pvalue"), ("key", "value", "txn"), ("value", "key")])
def test_a_single_node_without_the_other_columns_is_read(tmp_path: Path, columns: tuple[str, ...]) -> None:
    """No ``pnode``: a leaf. No ``txn``: messages without a transaction. The columns in any order."""
    lake = new_lake(tmp_path, ORDER, target=8000)
    with lake.transaction() as txn:
        txn.create_namespace("a")
        txn.create_table("a", "t")
    lake.refresh()
    expected, digest = content(lake), lake.digest()
    surgery = Surgery(lake.root, ORDER)
    surgery.strip(root_path(1), *EXTENSIONS)
    written = surgery.columns(root_path(1)) | {"value": surgery.columns(root_path(1))[spec.PVALUE]}
    surgery.write_columns(root_path(1), {name: written[name] for name in columns}, ABSENT)
    again = opened(surgery)
    assert (expected, digest) == (content(again), again.digest())
    assert [] == list(again.check(definitions=True))
    assert again.read_only


def test_a_definition_without_numbers_means_the_defaults(tmp_path: Path) -> None:
    """proto3 does not store a zero; N comes from the default then."""
    lake = Lakehouse.create((tmp_path / "lake").as_uri(), storage_options=FAST, order=spec.DEFAULT_ORDER)
    with lake.transaction() as txn:
        txn.create_namespace("a")
        for number in range(200):
            txn.create_table("a", f"t{number}")
    compacted(lake)
    surgery = Surgery(lake.root, spec.DEFAULT_ORDER)
    surgery.write(lake.root_node.definition_path, encode(LakehouseDef(id="old")))
    for path, _ in surgery.tree(2):
        surgery.strip(path, *EXTENSIONS, spec.N_KEYS)
    again = opened(surgery)
    assert (128, 100, 604_800_000) == (
        again.definition.order,
        again.definition.table_name_max_size_bytes,
        again.definition.txn_ttl_millis,
    )
    assert sorted(f"t{number}" for number in range(200)) == again.tables("a")
    assert [] == list(again.check())


def test_a_transaction_begun_on_a_canonical_version_does_not_write_over_an_older_one(
    original: Lakehouse, tmp_path: Path
) -> None:
    """An empty root tells no generation apart; the root that it lost the race to does."""
    surgery = make_older(original, tmp_path / "lake", {"spaces", "no extensions"})
    lake = opened(surgery)
    txn = lake.at(version=0).transaction()
    txn.create_namespace("new")
    before = {path for path in surgery.listing() if path.startswith("_")}
    with pytest.raises((ReadOnly, CommitConflict)):
        txn.commit()
    assert before == {path for path in surgery.listing() if path.startswith("_")}

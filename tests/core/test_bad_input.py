"""Bad input gets a clear error, and nothing on the disk has changed, to the byte."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.lakes import FAST, content, filled, new_lake
from tests.support.surgery import Surgery, listing
from trinitylake_core import (
    AlreadyExists,
    Corrupt,
    CorruptDefinition,
    CorruptNode,
    InvalidDefinition,
    InvalidInput,
    InvalidName,
    Lakehouse,
    NotALakehouse,
    StorageError,
    spec,
)
from trinitylake_core.definitions import LakehouseDef, encode
from trinitylake_core.locations import root_path
from trinitylake_core.storage.root_uris import local_path

ORDER = 4


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a lakehouse of several levels and return its directory."""
    lake = filled(new_lake(tmp_path_factory.mktemp("template"), ORDER), tables=60, changes=8)
    return Surgery(lake.root, ORDER).directory


@pytest.fixture
def surgery(template: Path, tmp_path: Path) -> Surgery:
    """Return access to a fresh copy."""
    shutil.copytree(template, tmp_path / "lake")
    return Surgery((tmp_path / "lake").as_uri(), ORDER)


def opened(surgery: Surgery) -> Lakehouse:
    return Lakehouse.open(surgery.directory.as_uri(), storage_options=FAST)


def newest(surgery: Surgery) -> int:
    return int(surgery.read(spec.HINT_FILE))


# -- root URIs -------------------------------------------------------------------------------------------


def test_a_root_that_does_not_exist_is_no_lakehouse(tmp_path: Path) -> None:
    with pytest.raises(NotALakehouse, match="create"):
        Lakehouse.open((tmp_path / "absent").as_uri())
    assert [] == list(tmp_path.iterdir())


def test_a_directory_of_other_files_is_no_lakehouse(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "_root.ipc").write_text("hello")
    with pytest.raises(NotALakehouse):
        Lakehouse.open(tmp_path.as_uri())


def test_a_file_is_no_lakehouse(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("hello")
    with pytest.raises((NotALakehouse, StorageError)):
        Lakehouse.open(file.as_uri())
    with pytest.raises(StorageError):
        Lakehouse.create(file.as_uri())
    assert {"file": b"hello"} == listing(tmp_path)


def test_a_lakehouse_is_not_created_over_another(surgery: Surgery) -> None:
    before = surgery.listing()
    with pytest.raises(AlreadyExists, match="already holds a lakehouse"):
        Lakehouse.create(surgery.directory.as_uri(), order=8)
    surgery.remove(spec.HINT_FILE)
    with pytest.raises(AlreadyExists):
        Lakehouse.create(surgery.directory.as_uri(), order=8)
    del before[spec.HINT_FILE]
    assert before == surgery.listing()


def test_a_lakehouse_is_not_created_over_one_of_the_java_sdk(java_lakehouse: str) -> None:
    """The two never share a root URI."""
    directory = Path(local_path(java_lakehouse))
    before = listing(directory)
    with pytest.raises(AlreadyExists):
        Lakehouse.create(java_lakehouse)
    (directory / spec.HINT_FILE).unlink()
    with pytest.raises(AlreadyExists):
        Lakehouse.create(java_lakehouse)
    del before[spec.HINT_FILE]
    assert before == listing(directory)


def test_a_lakehouse_is_not_created_over_a_damaged_one(surgery: Surgery) -> None:
    surgery.write(root_path(newest(surgery)), b"garbage")
    before = surgery.listing()
    with pytest.raises(Corrupt):
        Lakehouse.create(surgery.directory.as_uri())
    assert before == surgery.listing()


def test_an_unknown_field_of_a_definition_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        Lakehouse.create((tmp_path / "lake").as_uri(), oder=4)
    assert [] == list(tmp_path.iterdir())


# -- names -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", " ", "a b", "a\tb", "a\0", "\x7f", "123456789", "é" * 5, "\ud800", 5])
def test_a_bad_name_is_refused_wherever_it_is_given(surgery: Surgery, name: Any) -> None:
    """Reading or writing, namespace, table or view: ``InvalidName``, which says what is wrong with it."""
    lake = opened(surgery)
    before = surgery.listing()
    txn = lake.transaction()
    for action in (
        lambda: txn.create_namespace(name),
        lambda: txn.drop_namespace(name),
        lambda: txn.create_table("ns0", name),
        lambda: txn.create_table(name, "t"),
        lambda: txn.create_view("ns0", name, sql="SELECT 1"),
        lambda: txn.alter_table("ns0", name),
        lambda: txn.drop_view("ns0", name),
        lambda: lake.namespace(name),
        lambda: lake.tables(name),
        lambda: txn.drop_table("ns0", name),
        lambda: lake.view(name, "v"),
    ):
        with pytest.raises(InvalidName):
            action()
    txn.commit()
    assert before == surgery.listing()


def test_an_unknown_kind_is_refused(surgery: Surgery) -> None:
    with pytest.raises(InvalidInput, match="kind"):
        list(opened(surgery).objects(kind="tables"))


# -- damaged lakehouses ------------------------------------------------------------------------------------


def write_version(surgery: Surgery, major: int) -> None:
    """Raise the major version in the definition, and leave the copy of it in the roots out."""
    path = surgery.decode(root_path(0)).system[spec.LAKEHOUSE_DEF]
    definition = LakehouseDef.FromString(surgery.read(path))
    definition.major_version = major
    surgery.write(path, encode(definition))
    for version in range(newest(surgery) + 1):
        surgery.system_row(root_path(version), spec.LAKEHOUSE_DEF_COPY, None)


@pytest.mark.parametrize("major", [1, 7, 2**32 - 1])
def test_an_unsupported_major_version_stops_reader_and_writer(surgery: Surgery, major: int) -> None:
    write_version(surgery, major)
    before = surgery.listing()
    for enter in (Lakehouse.open, Lakehouse.create):
        with pytest.raises((InvalidDefinition, AlreadyExists)) as raised:
            enter(surgery.directory.as_uri())
        assert enter is Lakehouse.create or "supports" in str(raised.value)
    assert before == surgery.listing()


@pytest.mark.parametrize("data", [b"", b"garbage", b"ARROW1\0\0", "cut", "halved"])
@pytest.mark.parametrize("which", ["root", "inner", "leaf"])
def test_a_damaged_node_is_a_clear_error_to_whoever_meets_it(surgery: Surgery, data: Any, which: str) -> None:
    """It names the file; a reader that does not need it is not stopped; a writer changes nothing."""
    version = newest(surgery)
    path = {"root": root_path(version), "inner": surgery.inner(version), "leaf": surgery.leaf(version)}[which]
    whole = surgery.read(path)
    surgery.write(path, {"cut": whole[:-1], "halved": whole[: len(whole) // 2]}.get(data, data))
    before = surgery.listing()
    with pytest.raises(CorruptNode) as raised:
        content(opened(surgery))
    assert path == raised.value.path
    assert path in str(raised.value)
    assert before == surgery.listing()
    if which == "root":
        with pytest.raises(CorruptNode):
            opened(surgery).transaction()
    else:
        assert content(opened(surgery).at(version=1))
        txn = opened(surgery).transaction()
        for number in range(60):
            txn.put(f"B===m{number:07}", "p")
        with contextlib.suppress(CorruptNode):
            txn.commit()
            before = surgery.listing()
            again = opened(surgery).transaction()
            again.put("B===n       ", "p")
            again.commit()
            return
        assert before == surgery.listing()


@pytest.mark.parametrize("pointer", ["../outside.binpb", "/etc/passwd", "file:///etc/passwd", "a//b"])
def test_a_definition_out_of_the_lakehouse_is_never_read(surgery: Surgery, pointer: str) -> None:
    """That of an object, and that of the lakehouse."""
    leaf = surgery.leaf(newest(surgery))
    with surgery.node(leaf) as node:
        node.values = [pointer] * len(node.values)
    lake = opened(surgery)
    entry = next(each for each in lake.objects() if each.path == pointer)
    with pytest.raises(CorruptDefinition):
        lake.definition_of(entry)
    surgery.system_row(root_path(newest(surgery)), spec.LAKEHOUSE_DEF, pointer)
    with pytest.raises(CorruptDefinition):
        opened(surgery)


@pytest.mark.parametrize("damage", ["missing", "empty", "garbage", "of another kind"])
def test_a_damaged_definition_is_a_clear_error(surgery: Surgery, damage: str) -> None:
    """Of an object: only whoever asks for that object meets it."""
    lake = opened(surgery)
    entries = list(lake.objects(kind="table"))
    victim, other = entries[0].path, entries[1].path
    if damage == "missing":
        surgery.remove(victim)
    else:
        surgery.write(victim, {"empty": b"", "garbage": b"\xff" * 30, "of another kind": b"\x12\x03abc"}[damage])
    before = surgery.listing()
    with pytest.raises(CorruptDefinition) as raised:
        lake.definition_of(entries[0])
    assert victim == raised.value.path
    assert victim in str(raised.value)
    assert lake.table(entries[1].namespace, str(entries[1].name)).id, other
    with pytest.raises(CorruptDefinition):
        lake.transaction().alter_table(entries[0].namespace, str(entries[0].name), properties={})
    assert before == surgery.listing()


@pytest.mark.parametrize("damage", [None, b"", b"\xff" * 30, encode(LakehouseDef(id="x", order=2))])
def test_a_damaged_lakehouse_definition_is_a_clear_error(surgery: Surgery, damage: bytes | None) -> None:
    """Without the copy that roots of this library carry, so that the file is needed."""
    write_version(surgery, 0)
    path = surgery.decode(root_path(0)).system[spec.LAKEHOUSE_DEF]
    if damage is None:
        surgery.remove(path)
    else:
        surgery.write(path, damage)
    before = surgery.listing()
    with pytest.raises(CorruptDefinition) as raised:
        opened(surgery)
    assert path == raised.value.path
    assert before == surgery.listing()

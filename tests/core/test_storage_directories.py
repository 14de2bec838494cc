"""Directories of a disk: how many are made, and that what is remembered may be wrong."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.support.lakes import filled, new_lake
from trinitylake_core import Lakehouse
from trinitylake_core.locations import node_path, parse
from trinitylake_core.storage import durability, open_storage
from trinitylake_core.storage.disk_directories import _LOOK_AFTER, _TRIES, Directories
from trinitylake_core.tree.leafrun import Columns
from trinitylake_core.tree.nodestore import NodeStore, NodeWriter
from trinitylake_core.tree.rewrite import Rewriter


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Directories as they are made."""
    found: list[str] = []
    mkdir = os.mkdir

    def counted(path: str, *rest: int) -> None:
        found.append(path)
        mkdir(path, *rest)

    monkeypatch.setattr(os, "mkdir", counted)
    return found


def _packed(root: str, objects: int) -> NodeWriter:
    storage = open_storage(root)
    writer = NodeWriter(NodeStore(storage, 4, 1 << 20))
    rewriter = Rewriter(writer, 1)
    keys = [f"C{number:06}" for number in range(objects)]
    rewriter.seal(rewriter.build([Columns.of(keys, ["v"] * objects)]))
    writer.flush()
    storage.barrier()
    return writer


def test_a_writer_takes_names_whose_directories_are_there(tmp_path: Path, made: list[str]) -> None:
    """As many files with names as they come need nearly a directory each while there are few."""
    first = _packed(f"file://{tmp_path}", 1500)
    files = len(first.written)
    assert files > 400
    leaf_directories = {path.rpartition("/")[0] for path in first.written}
    assert len(leaf_directories) < files * 0.75
    del made[:]
    second = _packed(f"file://{tmp_path}", 1500)
    assert len(made) < files * 0.5  # 0.30 to 0.40 were seen, and 0.86 and more by names as they come
    for path in (*first.written, *second.written):
        parsed = parse(path)  # the path of its name, as any other
        assert parsed is not None
        assert parsed.kind == "node"
        assert (tmp_path / path).is_file()


def test_a_writer_of_few_files_does_not_look_around(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = filled(new_lake(tmp_path, order=4), tables=10)

    def refused(_: str) -> None:
        raise AssertionError("a directory was listed")

    monkeypatch.setattr(os, "scandir", refused)
    with lake.refresh().transaction() as txn:
        txn.drop_table("ns0", "t000")


def test_object_stores_take_any_name() -> None:
    names = [node_path() for _ in range(3)]
    assert names[0] == open_storage("s3://bucket/anywhere").pick(iter(names).__next__)


def test_a_directory_that_is_gone_is_made_again(tmp_path: Path) -> None:
    storage = open_storage(f"file://{tmp_path}")
    paths = [storage.pick(node_path) for _ in range(3 * _LOOK_AFTER)]
    storage.write_many((path, b"x") for path in paths)
    for directory in tmp_path.iterdir():
        if directory.is_dir():
            shutil.rmtree(directory)
    storage.write_many((path, b"y") for path in paths)
    assert [b"y"] * len(paths) == [storage.read(path) for path in paths]


@pytest.mark.parametrize("sync", ["files", "auto"])
def test_a_directory_of_a_process_that_died_becomes_durable_with_the_first_file_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: str
) -> None:
    """It made the directories and synced nothing: a power failure would take the file with them."""
    (tmp_path / "a" / "b").mkdir(parents=True)
    synced: list[str] = []
    monkeypatch.setattr(durability, "sync_path", synced.append)
    storage = open_storage(tmp_path.as_uri(), {"sync": sync})
    for name in ("a/b/one", "a/b/two"):
        storage.write_many([(name, b"x")])
        storage.barrier()
    place = str(tmp_path)
    assert {place, f"{place}/a", f"{place}/a/b"} <= set(synced)
    assert 1 == synced.count(f"{place}/a"), "once is enough"


def test_looking_finds_what_others_made_and_follows_no_links(tmp_path: Path) -> None:
    added: list[str] = []
    known = Directories(str(tmp_path), added.append)
    (tmp_path / "1/2/3").mkdir(parents=True)
    (tmp_path / "1/2/link").symlink_to(tmp_path)
    first = [f"x/y/{number}/z" for number in range(_LOOK_AFTER)]
    names = iter([*first, "1/2/link/a", "1/4/4/a", "1/2/3/a", "1/2/3/b"])
    assert [*first, "1/2/3/a"] == [known.pick(names.__next__) for _ in range(_LOOK_AFTER + 1)]
    assert not added


def test_after_a_few_tries_any_name_will_do(tmp_path: Path) -> None:
    known = Directories(str(tmp_path), print)
    names = iter([f"x/y/{number}/z" for number in range(_LOOK_AFTER + _TRIES)])
    assert f"x/y/{_LOOK_AFTER + _TRIES - 1}/z" == [known.pick(names.__next__) for _ in range(_LOOK_AFTER + 1)][-1]


def test_a_new_lakehouse_is_its_owners_alone(tmp_path: Path) -> None:
    """What is below follows the umask, so that an owner opens it to a group by one mode."""
    before = os.umask(0o022)
    try:
        lake = Lakehouse.create(tmp_path / "deep" / "lake")
        (there := tmp_path / "there").mkdir(0o755)
        Lakehouse.create(there)
    finally:
        os.umask(before)
    modes = [path.stat().st_mode & 0o777 for path in (tmp_path / "deep", tmp_path / "deep" / "lake", there)]
    assert [0o755, 0o700, 0o755] == modes
    files = [path for path in (tmp_path / "deep" / "lake").rglob("*") if path.is_file()]
    assert {0o644} == {path.stat().st_mode & 0o777 for path in files}
    assert 0 == lake.version

"""A link that somebody puts in the place of a directory, at any moment: nothing behind it is deleted or written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trinitylake_core.errors import NotAFile
from trinitylake_core.storage import Storage, open_storage
from trinitylake_core.storage.base import BaseStorage

FILE = "tables/t/data/part.parquet"


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """Return a directory of somebody else, with a file of a name that is also in the lakehouse."""
    there = tmp_path / "outside"
    there.mkdir()
    (there / "part.parquet").write_bytes(b"precious")
    return there


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path / "lake"
    (made / "tables/t/data").mkdir(parents=True)
    (made / FILE).write_bytes(b"an orphan")
    return made


@pytest.fixture
def storage(root: Path) -> Storage:
    return open_storage(root.as_uri(), {"durable": False})


def swap(root: Path, target: Path) -> None:
    """Put a link in the place of the directory of the file."""
    (root / "tables/t/data").rename(root / "tables/t/before")
    (root / "tables/t/data").symlink_to(target)


def swap_before(storage: Storage, kind: str, root: Path, target: Path) -> None:
    """Let somebody swap the directory at the last moment: when the request begins, after all that was looked at."""
    assert isinstance(storage, BaseStorage)

    def at_last(request: str, path: str, action: Callable[[], Any]) -> Any:
        if request == kind and (root / "tables/t/data").is_symlink() is False:
            swap(root, target)
        return action()

    storage.interceptor = at_last


@pytest.mark.parametrize("is_inside", [False, True])
def test_nothing_behind_a_link_is_deleted(root: Path, storage: Storage, outside: Path, is_inside: bool) -> None:
    """Not even in the lakehouse itself: there it is the file of another table."""
    target = root / "tables/other" if is_inside else outside
    target.mkdir(exist_ok=True)
    (target / "part.parquet").write_bytes(b"precious")
    assert [FILE] == [each.path for each in storage.list("tables/")][:1]
    swap_before(storage, "delete", root, target)
    result = storage.delete_many([FILE])
    assert ([], [FILE]) == (list(result.deleted), list(result.failed))
    assert "link" in result.failed[FILE]
    assert b"precious" == (target / "part.parquet").read_bytes()


@pytest.mark.parametrize(
    ("kind", "write"),
    [
        ("put", lambda storage: storage.write("tables/t/data/new", b"x")),
        ("create", lambda storage: storage.create("tables/t/data/new", b"x")),
        ("put", lambda storage: storage.replace("tables/t/data/new", b"x" * 100)),
        ("put", lambda storage: storage.replace("tables/t/data/new", b"x")),
    ],
    ids=["write", "create", "replace", "replace a small one"],
)
def test_nothing_is_written_behind_a_link_that_leads_out(
    root: Path, storage: Storage, outside: Path, kind: str, write: Callable[[Storage], None]
) -> None:
    storage.write("tables/t/data/before", b"so that its directory is known")
    swap_before(storage, kind, root, outside)
    with pytest.raises(NotAFile, match="leads out"):
        write(storage)
    assert ["part.parquet"] == [each.name for each in outside.iterdir()]
    assert [] == [each.name for each in root.iterdir() if each.name.startswith("_tmp-")]


def test_no_directory_is_made_behind_a_link_that_leads_out(root: Path, storage: Storage, outside: Path) -> None:
    swap(root, outside)
    with pytest.raises(NotAFile, match="leads out"):
        storage.write("tables/t/data/below/new", b"x")
    assert ["part.parquet"] == [each.name for each in outside.iterdir()]


def test_a_pipe_is_not_waited_for_by_a_writer(root: Path, storage: Storage) -> None:
    import os

    os.mkfifo(root / "tables/t/data/pipe")
    with pytest.raises(NotAFile):
        storage.write("tables/t/data/pipe", b"x")


def test_a_link_to_another_place_in_the_lakehouse_is_written_through(root: Path, storage: Storage) -> None:
    (root / "tables/elsewhere").mkdir()
    (root / "tables/linked").symlink_to("elsewhere")
    storage.write("tables/linked/new", b"x")
    assert b"x" == (root / "tables/elsewhere/new").read_bytes()

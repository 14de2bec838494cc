"""The place of an export: what those find there who commit to the copy when an export did not end well."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipelines import clean, expire, export, verify
from tests.support.faults import FaultPlan, attach
from tests.support.lakes import FAST, new_lake
from tests.support.surgery import listing
from tests.support.sweep import in_memory
from trinitylake_core import Corrupt, Lakehouse, OutcomeUnknown, Refused, spec
from trinitylake_core.errors import StorageError
from trinitylake_core.locations import parse, root_path
from trinitylake_core.storage import FileInfo, open_storage
from trinitylake_core.storage.local import LocalStorage

VERSION = export.Config(engine="local")
HISTORY = export.Config(engine="local", history=True)
HINTS = (b"1", b"2", b"3", b"4", b"5", b"6", b"garbage")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory where there is such a thing."""
    with tempfile.TemporaryDirectory(dir=in_memory()) as directory:
        yield Path(directory)


def grown(lake: Lakehouse, *names: str) -> Lakehouse:
    """Commit a version for each new namespace."""
    for name in names:
        with lake.transaction() as txn:
            txn.create_namespace(name)
    return lake.refresh()


def opened(root: str) -> Lakehouse:
    return Lakehouse.open(root, storage_options=FAST)


def names(lake: Lakehouse) -> set[str]:
    return {each.namespace for each in lake.objects()}


@pytest.mark.parametrize("config", [VERSION, HISTORY])
def test_another_lakehouse_that_no_listing_shows_yet_is_left_alone(
    place: Path, monkeypatch: pytest.MonkeyPatch, config: export.Config
) -> None:
    """Its store lists late: no root of it is listed, and each can be read."""
    lake = grown(new_lake(place), "a", "b", "c", "d")
    other = grown(Lakehouse.create((place / "other").as_uri(), storage_options=FAST), "precious")
    before = listing(place / "other")
    honest = LocalStorage.list

    def list_late(self: LocalStorage, prefix: str = "") -> Iterator[FileInfo]:
        for file in honest(self, prefix):
            if self.root != other.root or parse(file.path) is None:
                yield file

    with monkeypatch.context() as patch:
        patch.setattr(LocalStorage, "list", list_late)
        with pytest.raises(Refused, match="its store lists late"):
            export.run(lake, other.root, config, storage_options=FAST)
    assert before == listing(place / "other")


def copy_of_one(place: Path) -> tuple[Lakehouse, Path]:
    """Return a lakehouse at version 6, and a copy of its version 1 alone."""
    lake, copy = grown(new_lake(place), "a"), place / "copy"
    export.run(lake, copy.as_uri(), VERSION, storage_options=FAST)
    return grown(lake, "b", "c", "d", "e", "f"), copy


def changes_in(lake: Lakehouse, copy: Path) -> int:
    """Return how many requests an export makes at its target, all told."""
    again = copy.with_name("counted")
    shutil.copytree(copy, again)
    storage = open_storage(again.as_uri(), FAST)
    count = attach(storage, FaultPlan("count"))
    export.run(lake, storage, VERSION)
    return count.count


def interrupted(lake: Lakehouse, start: Path, at: int) -> Path:
    """Return a copy to which an export went, up to its request ``at``, which was the last one."""
    copy = start.with_name(f"copy-{at}")
    shutil.copytree(start, copy)
    storage = open_storage(copy.as_uri(), FAST)
    attach(storage, FaultPlan("fail_permanently", at=at))
    with contextlib.suppress(StorageError):  # nobody minds if the hint is not written
        export.run(lake, storage, VERSION)
    if (boundary := copy / spec.BOUNDARY_FILE).exists():  # a disk tells times to 4 ms: what is written next is younger
        os.utime(boundary, (boundary.stat().st_atime, boundary.stat().st_mtime - 1))
    return copy


def given_back(root: str) -> None:
    """Do what the errors advise where the export will not be repeated."""
    kept = [info.version for info in opened(root).history()]
    expire.run(opened(root), expire.Config(engine="local", keep_last=100))
    assert kept == [info.version for info in opened(root).history()][-len(kept) :]


def test_whoever_commits_to_a_copy_after_an_export_was_killed_loses_nothing_and_gets_on(place: Path) -> None:
    """A root of version 6 alone above one of version 1 was met by the commit of version 5, and by stale hints."""
    lake, start = copy_of_one(place)
    stopped = set()
    for at in range(1, changes_in(lake, start)):
        copy = interrupted(lake, start, at)
        root = copy.as_uri()
        began = opened(root)
        said = names(began)
        assert [] == list(began.check(definitions=True))
        assert said in ({"a"}, names(lake)), at
        made = [f"w{number}" for number in range(8)]
        try:
            grown(began, *made)
        except OutcomeUnknown as error:
            advised = re.search(r"Repeat the export, or run `trinitylake expire` there", str(error))
            stopped.add(advised is not None)
            assert said <= names(opened(root)) <= {*said, made[0]}
            given_back(root)
            there = names(opened(root))  # the place was given back: what was unknown is committed by that
            grown(opened(root), *(name for name in made if name not in there))
        for hint in HINTS:
            (copy / spec.HINT_FILE).write_bytes(hint)
            assert said | set(made) == names(opened(root)), (at, hint)
        assert [] == list(opened(root).check(definitions=True))
    assert {True} == stopped


def test_an_export_that_was_stopped_anywhere_is_completed_by_the_next_one(place: Path) -> None:
    """Also by one of a later version, and by one whose older versions expired."""
    lake, start = copy_of_one(place)
    copies = [interrupted(lake, start, at) for at in range(1, changes_in(lake, start))]
    grown(lake, "g", "h")
    for copy in copies:
        export.run(lake, copy.as_uri(), VERSION, storage_options=FAST)
        assert {root_path(lake.version)} == {path.name for path in copy.glob("_*.ipc")}
        assert b"%d" % lake.version == (copy / spec.BOUNDARY_FILE).read_bytes()
        assert lake.digest() == opened(copy.as_uri()).digest()
        assert [] == list(opened(copy.as_uri()).check(definitions=True))


def test_an_unfinished_export_of_a_later_version_is_not_replaced_by_an_earlier_one(place: Path) -> None:
    """The one that was begun may still be at work, and would put its root above a gap."""
    lake, start = copy_of_one(place)
    (start / spec.BOUNDARY_FILE).write_bytes(b"6\n")
    with pytest.raises(Refused, match=r"begins with version 6 is not complete.*Repeat that one"):
        export.run(lake, start.as_uri(), export.Config(version=4, engine="local"), storage_options=FAST)
    assert "a" in names(opened(start.as_uri()))


def test_an_unfinished_export_hides_no_history_from_an_export_of_one_version(place: Path) -> None:
    lake, copy = grown(new_lake(place), "a", "b"), place / "copy"
    export.run(lake, copy.as_uri(), HISTORY, storage_options=FAST)
    grown(lake, "c", "d", "e")
    (copy / spec.BOUNDARY_FILE).write_bytes(b"5\n")
    with pytest.raises(Refused, match="holds 3 older versions, which an export of one version would remove"):
        export.run(lake, copy.as_uri(), VERSION, storage_options=FAST)


def test_an_export_of_one_version_removes_no_history_of_two(place: Path) -> None:
    """One older version is a history, too, where the copy ends with the version that is exported."""
    lake, copy = grown(new_lake(place), "a"), place / "copy"
    export.run(lake, copy.as_uri(), HISTORY, storage_options=FAST)
    before = listing(copy)
    with pytest.raises(Refused, match="holds 1 older version, which an export of one version would remove"):
        export.run(lake, copy.as_uri(), VERSION, storage_options=FAST)
    assert before == listing(copy)


def test_a_verification_forgets_nothing_below_a_boundary_that_decides_nothing(place: Path) -> None:
    lake = grown(new_lake(place), "a", "b")
    path = next(lake.objects()).path
    lake.storage.replace(spec.BOUNDARY_FILE, b"7\n")
    lake.storage.delete_many([path])
    found = verify.run(opened(lake.root), verify.Config(engine="local", definitions=True))
    assert ([2], [path]) == (found.versions, [each.file for each in found.findings])


def test_an_expiration_gives_a_copy_back_to_those_who_commit_to_it(place: Path) -> None:
    """The claim of an export that will never be completed is replaced by the first version that is there."""
    lake, copy = grown(new_lake(place), "a", "b"), place / "copy"
    export.run(lake, copy.as_uri(), HISTORY, storage_options=FAST)
    (copy / spec.BOUNDARY_FILE).write_bytes(b"7\n")
    assert [2] == verify.run(opened(copy.as_uri()), verify.Config(engine="local")).versions
    assert [0, 1, 2] == verify.run(opened(copy.as_uri()), verify.Config(engine="local", versions="all")).versions
    again = copy.with_name("again").as_uri()
    export.run(opened(copy.as_uri()), again, HISTORY, storage_options=FAST)
    assert [2, 1, 0] == [info.version for info in opened(again).history()]
    with pytest.raises(Corrupt, match=r"export to this place that is not complete.*`trinitylake expire`"):
        clean.run(opened(copy.as_uri()), clean.Config(engine="local"))
    given_back(copy.as_uri())
    assert b" 0" == (copy / spec.BOUNDARY_FILE).read_bytes()  # not what it said when it was claimed
    assert {"a", "b", "c"} == names(grown(opened(copy.as_uri()), "c"))


@pytest.mark.parametrize("config", [VERSION, HISTORY])
def test_a_listing_that_repeats_files_is_no_lack_of_the_engine(
    place: Path, monkeypatch: pytest.MonkeyPatch, config: export.Config
) -> None:
    """A file that is listed on two pages is one file."""
    lake = grown(new_lake(place), "a", "b")
    listed = LocalStorage.list

    def twice(storage: LocalStorage, prefix: str = "") -> Iterator[FileInfo]:
        for file in listed(storage, prefix):
            yield file
            yield file

    with monkeypatch.context() as patches:
        patches.setattr(LocalStorage, "list", twice)
        clean.run(lake, clean.Config(engine="local", older_than_seconds=0, allow_recent=True))
        first = export.run(lake, (place / "copy").as_uri(), config, storage_options=FAST)
        again = export.run(lake, (place / "copy").as_uri(), config, storage_options=FAST)
    assert first.definitions_copied > 0
    assert again.definitions_copied + again.nodes_copied == 0
    assert names(opened((place / "copy").as_uri())) == {"a", "b"}

"""The local disk: the common contract, and what only a disk can get wrong."""

from __future__ import annotations

import errno
import multiprocessing
import os
import posix
import random
import resource
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from pwd import getpwuid
from typing import Any, ClassVar

import pytest

from tests.support.faults import FaultPlan, attach
from tests.support.few_threads import few_threads
from tests.support.lakes import compacted, filled, new_lake
from tests.support.storage_suite import Place, StorageSuite
from tests.support.writers import forking
from trinitylake_core import Lakehouse
from trinitylake_core.errors import (
    AlreadyExists,
    FileMissing,
    InvalidInput,
    InvalidLocation,
    NotAFile,
    StorageDenied,
    StorageError,
    StorageFull,
    UnsafeStorage,
)
from trinitylake_core.storage import (
    FileInfo,
    Storage,
    check_conformance,
    disk_deleting,
    disk_files,
    disk_lock,
    disk_opening,
    durability,
    normalise_root,
    open_storage,
)
from trinitylake_core.storage.failures import sanitise


@pytest.fixture(autouse=True, scope="module")
def _synced() -> Iterator[None]:
    """Sync to the disk, which other tests do not."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", posix.fsync)
        patch.setattr(durability, "_syncfs", durability._find_syncfs())
        yield


@pytest.fixture
def root(tmp_path: Path) -> str:
    """A directory that does not exist yet."""
    return f"file://{tmp_path}/lake/"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """The same as a path."""
    return tmp_path / "lake"


@pytest.fixture
def storage(root: str) -> Storage:
    """The storage there."""
    return open_storage(root)


class _LocalSuite(StorageSuite):
    OPTIONS: ClassVar[dict[str, Any]] = {}

    @pytest.fixture
    def place(self, root: str) -> Place:
        """A directory that does not exist yet."""
        return root, dict(self.OPTIONS)

    @pytest.fixture
    def put_raw(self, directory: Path) -> Callable[[str, bytes], None]:
        """Plain files."""

        def put(path: str, data: bytes) -> None:
            (directory / path).parent.mkdir(parents=True, exist_ok=True)
            (directory / path).write_bytes(data)

        return put

    @pytest.fixture
    def get_raw(self, directory: Path) -> Callable[[str], bytes]:
        """Plain files."""
        return lambda path: (directory / path).read_bytes()


class TestLocalStorage(_LocalSuite):
    """As it is used by default."""


class TestLocalStorageInThreadsWithoutSync(_LocalSuite):
    """As it would be used on a network mount."""

    OPTIONS: ClassVar[dict[str, Any]] = {"durable": False, "max_concurrency": 8}


# Roots.


@pytest.mark.parametrize(
    ("uri", "normal"),
    [
        ("file:///a/b", "file:///a/b/"),
        ("file:///a//b///", "file:///a/b/"),
        ("file:/a", "file:///a/"),
        ("file://localhost/a", "file:///a/"),
        ("FILE:///", "file:///"),
        ("s3://bucket", "s3://bucket/"),
        ("s3a://bucket/a b/ü//", "s3://bucket/a b/ü/"),
        ("memory://x", "memory://x/"),
    ],
)
def test_roots_have_one_spelling(uri: str, normal: str) -> None:
    """A root always ends in a slash, and normalising twice changes nothing."""
    assert normal == normalise_root(uri)
    assert normal == normalise_root(normal)


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        ("/abs/path", "file:///abs/path"),
        ("relative/path", "has no scheme"),
        ("", "has no scheme"),
        ("C:\\lake", "has no scheme"),
        ("file://relative/path", "absolute path"),
        ("file:relative", "absolute path"),
        ("file:///a/../b", "segment"),
        ("file:///a/%2e%2e/b", "segment"),
        ("s3:///key", "names no bucket"),
        ("s3://arn:aws:s3:eu-west-1:1:accesspoint/lake/key", "write the alias of the access point"),
        ("s3a://arn:aws:s3:eu-west-1:1:accesspoint:lake/key", "write the alias of the access point"),
        ("s3:bucket/key", "lacks '//'"),
        ("s3://bucket/a//b", "segment"),
        ("s3://bucket/../b", "segment"),
        ("s3://bucket/a\nb", "control"),
    ],
)
def test_malformed_roots_are_refused_with_advice(uri: str, says: str) -> None:
    """The message says what to write instead."""
    with pytest.raises(InvalidLocation, match=says):
        open_storage(uri)


def test_credentials_in_a_root_are_refused_and_not_repeated() -> None:
    """They would end up in logs."""
    with pytest.raises(InvalidLocation, match="credentials") as caught:
        open_storage("s3://AKIDEXAMPLE:hunter2@bucket/lake")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "uri",
    [
        "sftp://user:hunter2@host/lake",
        "ftp://hunter2@host/lake",
        "s3://hunter2@bucket/lake",
        "SFTP:user:hunter2@host/lake",
        "abfs://user:hunter2@account/lake",
        "https://host/lake?X-Amz-Signature=hunter2",
        "az://container/lake?sig=hunter2",
        "sftp://user:hunter2@host/a/../b",
        "sftp://user:hun\nter2@host/",
        "gs://user%3Ahunter2@bucket/x",
        "file://user:hunter2@host/lake",
        "//user:hunter2@host/lake",
        "user:hunter2@host/lake",
    ],
)
def test_defect_15_credentials_in_any_root_are_refused_and_not_printed(uri: str) -> None:
    """Of whatever scheme, and whatever else is wrong with the root."""
    with pytest.raises(InvalidLocation) as caught:
        normalise_root(uri)
    shown = f"{caught.value!s} {caught.value!r}"
    assert "hunter2" not in shown
    assert "ter2" not in shown


def test_a_container_is_no_credential() -> None:
    """In the URIs of Azure it stands where others have the user."""
    assert "abfss://container@account.dfs.core.windows.net/lake/" == normalise_root(
        "abfss://container@account.dfs.core.windows.net/lake"
    )


def test_a_percent_encoded_root_names_the_decoded_directory(tmp_path: Path) -> None:
    """``Path.as_uri()`` works also for names with spaces."""
    place = tmp_path / "my lake ü"
    open_storage(place.as_uri()).create("root", b"x")
    assert b"x" == (place / "root").read_bytes()


def test_unknown_options_are_clear_errors(root: str) -> None:
    """A typing mistake is told at once, without the value: it may be a secret that was put in the wrong place."""
    with pytest.raises(InvalidInput, match="durble"):
        open_storage(root, {"durble": False})
    for number in ("many", float("inf")):
        with pytest.raises(InvalidInput, match=r"retries must be a number$"):
            open_storage(root, {"retries": number})
    with pytest.raises(InvalidInput, match="at least 1"):
        open_storage(root, {"max_concurrency": 0})
    with pytest.raises(InvalidInput, match=r"true or false$"):
        open_storage(root, {"durable": 3})
    with pytest.raises(InvalidInput, match=r"sync must be one of [^ ]+, [^ ]+, [^ ]+$"):
        open_storage(root, {"sync": "never"})


@pytest.mark.parametrize("root", ["memory://x", "hdfs://host/x", "ftp://host/x", "local:///tmp/x"])
def test_other_file_systems_are_refused_with_what_there_is(root: str) -> None:
    """What fsspec has elsewhere looks whether a file is there and writes then: no lock at all."""
    with pytest.raises(InvalidLocation, match=r"is not supported. A lakehouse lies on a disk .*s3://"):
        open_storage(root)


# The lock of compare-and-set.


def _hold_lock(directory: str, held: Any) -> None:
    with disk_lock.hold_lock(f"{directory}/{disk_lock.LOCK_FILE}"):
        held.send(None)
        time.sleep(60)


@pytest.mark.parametrize("signal_sent", [signal.SIGKILL, signal.SIGSTOP])
def test_the_lock_dies_with_its_process_and_never_before(
    storage: Storage, directory: Path, monkeypatch: pytest.MonkeyPatch, signal_sent: signal.Signals
) -> None:
    """A killed holder keeps nobody out; a stopped one does, and the wait for it ends with a clear error."""
    monkeypatch.setattr(disk_lock, "_PATIENCE_SECONDS", 0.02)
    directory.mkdir()
    ours, theirs = multiprocessing.Pipe(duplex=False)
    child = forking().Process(target=_hold_lock, args=(str(directory), theirs))
    child.start()
    assert ours.poll(300)
    os.kill(child.pid or 0, signal_sent)
    try:
        if signal_sent == signal.SIGKILL:
            child.join(60)
            assert storage.compare_and_set("file", b"x", storage.read_tagged("file")) is not None
        else:
            with pytest.raises(StorageError, match=r"another process holds the lock .*/_tmp-lock$"):
                storage.compare_and_set("file", b"x", storage.read_tagged("file"))
            assert not (directory / "file").exists()
    finally:
        child.kill()
        child.join()
        for end in (ours, theirs):
            end.close()


def test_a_removed_lock_file_is_made_again(storage: Storage, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who locked a file that is gone has locked nothing, and begins again."""
    state = storage.compare_and_set("file", b"1", storage.read_tagged("file"))
    assert state is not None
    real = disk_lock._try
    removed: list[str] = []

    def remove_first(descriptor: int, path: str) -> bool:
        if not removed:
            Path(path).unlink()
            removed.append(path)
        return real(descriptor, path)

    monkeypatch.setattr(disk_lock, "_try", remove_first)
    assert storage.compare_and_set("file", b"2", state) is not None
    assert removed == [str(directory / disk_lock.LOCK_FILE)]
    assert (directory / disk_lock.LOCK_FILE).exists()


def test_a_file_system_that_ignores_locks_is_found_out(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """And one that has none says so."""
    monkeypatch.setattr(disk_lock.fcntl, "flock", lambda descriptor, how: None)
    with pytest.raises(UnsafeStorage, match="ignores locks"):
        storage.prove_compare_and_set()

    def unsupported(descriptor: int, how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(disk_lock.fcntl, "flock", unsupported)
    with pytest.raises(UnsafeStorage, match="has no locks"):
        storage.compare_and_set("file", b"x", storage.read_tagged("file"))


def test_the_lock_is_no_file_of_the_lakehouse(storage: Storage, directory: Path) -> None:
    """It is not listed, makes nothing exist, and is not swept."""
    storage.prove_compare_and_set()
    assert [disk_lock.LOCK_FILE] == [path.name for path in directory.iterdir()]
    assert ([], [], False) == (list(storage.list()), list(storage.list_dirs()[1]), storage.exists())
    assert 0 == storage.remove_temporary(older_than_seconds=-1)
    assert (directory / disk_lock.LOCK_FILE).exists()


# Temporary files.


def test_temporary_files_are_not_listed_and_swept_when_old(storage: Storage, directory: Path) -> None:
    """A killed writer's leftovers are invisible, and removed once nobody can be writing them."""
    storage.create("root", b"x")
    old, young = (directory / f"_tmp-{digit * 32}" for digit in "ab")
    other = directory / "_tmp-mine.txt"
    for path in (old, young, other):
        path.write_bytes(b"half")
    os.utime(old, (time.time() - 4000,) * 2)
    assert {"root", "_tmp-mine.txt"} == {info.path for info in storage.list()}
    assert 1 == storage.remove_temporary()
    assert (False, True, True) == (old.exists(), young.exists(), other.exists())
    assert 1 == storage.remove_temporary(older_than_seconds=0)
    assert other.exists()


def test_sweeping_beside_another_sweep_leaves_nothing(
    storage: Storage, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that another process removes first ended the sweep; those behind it stayed until the next one."""
    directory.mkdir(exist_ok=True)
    for number in range(5):
        (directory / f"_tmp-{number:032x}").write_bytes(b"half")
    removing, beside = disk_files.remove_quietly, iter(range(5))

    def removed_by_both(path: str) -> None:
        removing(path)
        if next(beside) == 0:
            next(directory.glob("_tmp-*")).unlink()

    monkeypatch.setattr(disk_files, "remove_quietly", removed_by_both)
    assert 4 == storage.remove_temporary(older_than_seconds=0)
    assert [] == list(directory.glob("_tmp-*"))


def test_sweeping_where_nothing_is_removes_nothing(storage: Storage) -> None:
    """A place that does not exist is clean."""
    assert 0 == storage.remove_temporary()


@pytest.mark.parametrize("mode", ["fail", "lose", "fail_from", "fail_permanently"])
@pytest.mark.parametrize("at", [1, 2])
def test_no_temporary_file_stays_after_an_error(storage: Storage, directory: Path, mode: Any, at: int) -> None:
    """Whatever fails, the temporary file is removed."""
    storage.write_many([("other", b"x")])
    attach(storage, FaultPlan(mode, at=at, kinds={"sync", "create"}))
    with suppress(StorageError):
        storage.create("root", b"x")
    assert {"other", "root"} >= {path.name for path in directory.iterdir()}


def _create_and_die(root: str, plan: FaultPlan) -> None:
    storage = open_storage(root)
    attach(storage, plan)
    storage.write_many([("def", b"definition")])
    storage.create("root", b"content")


@pytest.mark.parametrize("mode", ["kill", "kill_after"])
@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_killed_writer_leaves_all_or_nothing(root: str, directory: Path, mode: Any, at: int) -> None:
    """Requests are put, sync, create; only after the last there is a root, and it is whole."""
    child = forking().Process(target=_create_and_die, args=(root, _Plan(mode, at)))
    child.start()
    child.join(300)
    assert -signal.SIGKILL == child.exitcode
    found = [info.path for info in open_storage(root).list()]
    assert ((mode, at) == ("kill_after", 3)) == ("root" in found)
    if "root" in found:
        assert b"content" == (directory / "root").read_bytes()
    open_storage(root).remove_temporary(older_than_seconds=0)
    assert {"def", "root"} >= {path.name for path in directory.glob("*")}


class _Plan(FaultPlan):
    """A plan that can be sent to another process."""

    def __init__(self, mode: Any, at: int) -> None:
        super().__init__(mode, at)

    def __reduce__(self) -> tuple[Any, ...]:
        return _Plan, (self.mode, self.at)


# Durability.


class _Order:
    """Records what reaches the disk in which order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
        self.events: list[str] = []
        self._directory = str(directory)
        self._lock = threading.Lock()
        monkeypatch.setattr(durability, "sync_path", self._recorded("sync", durability.sync_path))
        monkeypatch.setattr(durability, "sync_filesystem", self._recorded("syncfs", durability.sync_filesystem))
        monkeypatch.setattr(os, "link", self._recorded("link", os.link, 1))
        monkeypatch.setattr(os, "replace", self._recorded("replace", os.replace, 1))

    def _recorded(self, name: str, function: Callable[..., Any], argument: int = 0) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            result = function(*args, **options)
            path = str(args[argument]).removeprefix(self._directory).lstrip("/")
            with self._lock:
                self.events.append(f"{name} {'TEMP' if path.startswith('_tmp-') else path or '.'}")
            return result

        return call


@pytest.fixture
def order(monkeypatch: pytest.MonkeyPatch, directory: Path) -> _Order:
    """What reaches the disk in which order."""
    directory.mkdir()
    return _Order(monkeypatch, directory)


def test_a_lone_create_syncs_file_then_link_then_directory(storage: Storage, order: _Order) -> None:
    """The content is durable before the name, and the name before create returns."""
    storage.create("root", b"x")
    assert ["sync TEMP", "link root", "sync ."] == order.events


def test_many_files_share_one_barrier_with_the_create(storage: Storage, order: _Order) -> None:
    """Everything written before is durable before the root can be seen, at the price of one barrier."""
    storage.write_many((f"d{number}/f", b"x") for number in range(50))
    assert [] == order.events
    storage.create("root", b"x")
    assert ["syncfs .", "link root", "sync ."] == order.events
    storage.barrier()
    assert 3 == len(order.events)
    assert 1 == storage.counts.sync


def test_files_are_synced_one_by_one_on_request(root: str, order: _Order) -> None:
    """On a disk shared with heavy writers, only our own files are waited for, and new directories, too."""
    storage = open_storage(root, {"sync": "files"})
    storage.write_many([("d/e/f", b"x")])
    storage.barrier()
    assert ["sync d/e/f"] == order.events[:1]
    assert {"sync d/e", "sync d", "sync ."} == set(order.events[1:])


def test_too_many_files_to_remember_are_synced_together(
    storage: Storage, order: _Order, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory stays bounded."""
    monkeypatch.setattr(durability, "_REMEMBERED_FILES", 3)
    storage.write_many((f"f{number}", b"x") for number in range(5))
    storage.barrier()
    assert ["syncfs ."] == order.events


def test_what_helpers_without_barriers_wrote_is_covered_by_every_later_barrier(root: str, order: _Order) -> None:
    storage = open_storage(root)
    helper = open_storage(*storage.without_barriers().spec())
    for number in range(2):
        helper.write_many([(f"d/{number}", b"x")])
        helper.barrier()
        assert [] == order.events
        storage.barrier()
        assert ["syncfs ."] == order.events
        order.events.clear()
    helper.write_many([("d/last", b"x")])
    storage.create("root", b"points to it")
    assert ["syncfs .", "link root", "sync ."] == order.events


def test_without_a_barrier_that_reaches_them_helpers_sync_for_themselves(
    root: str, order: _Order, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_by_one = open_storage(root, {"sync": "files"})
    assert one_by_one.without_barriers() is one_by_one
    monkeypatch.setattr(durability, "_syncfs", None)
    storage = open_storage(root)
    assert storage.without_barriers() is storage
    storage.barrier()
    assert [] == order.events
    assert not open_storage(root, {"durable": False}).without_barriers().spec()[1]["durable"]


@pytest.mark.parametrize(
    ("release", "reports"),
    [
        ("5.7.19", False),
        ("4.19.0-25-amd64", False),
        ("5.8.0", True),
        ("5.10.1-x", True),
        ("6.18.44-fc", True),
        ("", False),
    ],
)
def test_defect_18_syncfs_is_used_only_where_it_reports_errors(release: str, reports: bool) -> None:
    """Before Linux 5.8 it succeeds although data was lost."""
    assert reports == durability.reports_errors(release)


def test_defect_18_without_syncfs_every_file_is_remembered(
    root: str, order: _Order, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever was asked for: nothing else would tell that data was not written."""
    monkeypatch.setattr(durability, "_syncfs", None)
    monkeypatch.setattr(durability, "_REMEMBERED_FILES", 2)
    storage = open_storage(root, {"sync": "filesystem"})
    storage.write_many((name, b"x") for name in ("a", "b", "c", "d"))
    storage.barrier()
    assert ["sync a", "sync b", "sync c", "sync d", "sync ."] == order.events


def test_durable_false_never_syncs(root: str, order: _Order) -> None:
    """For throw-away lakehouses."""
    storage = open_storage(root, {"durable": False})
    storage.write_many([("a", b"x")])
    storage.barrier()
    storage.create("root", b"x")
    storage.replace("hint", b"x")
    assert ["link root", "replace hint"] == order.events
    assert 0 == storage.counts.sync


def test_a_replace_is_durable_unless_told_otherwise(storage: Storage, order: _Order) -> None:
    """The boundary must be durable, the hint need not."""
    storage.replace("boundary", b"1")
    assert ["sync TEMP", "replace boundary", "sync ."] == order.events
    storage.replace("hint", b"1", durable=False)
    assert ["replace hint"] == order.events[3:]


class _Calls:
    """Counts what the kernel is asked to change or to wait for."""

    NAMES = ("fsync", "link", "unlink", "rename", "replace", "mkdir", "open")

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.counts: Counter[str] = Counter()
        for name in self.NAMES:
            monkeypatch.setattr(os, name, self._counted(name, getattr(os, name)))
        monkeypatch.setattr(durability, "sync_filesystem", self._counted("sync_filesystem", durability.sync_filesystem))

    def _counted(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            self.counts[name] += 1
            return function(*args, **options)

        return call


def test_a_small_commit_syncs_twice_and_makes_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Content before name, name before acknowledgement: fewer syncs would not be durable. The hint costs no file."""
    compacted(filled(new_lake(tmp_path, order=32, target=1 << 20), tables=30))
    lake = Lakehouse.open((tmp_path / "lake").as_uri())
    for number in range(2):
        with lake.transaction() as txn:
            txn.put(lake.codec.table("ns0", f"before{number}"), "a/path")
    calls = _Calls(monkeypatch)
    with lake.transaction() as txn:
        txn.put(lake.codec.table("ns0", "new"), "a/path")
    # open: the new root, it and its directory to be synced, the hint, and the root directory, below which the boundary
    # and the root of the next version are looked for
    assert {"open": 6, "fsync": 2, "link": 1, "unlink": 1} == calls.counts
    calls.counts.clear()
    with lake.transaction() as txn:
        txn.create_table("ns0", "another")
    assert (1, 1) == (calls.counts["sync_filesystem"], calls.counts["fsync"])  # both files at once, then the name


def test_a_hint_is_written_in_place_where_only_its_digits_change(storage: Storage, directory: Path) -> None:
    """The file stays the same: what changes in a directory is what the next sync has to write."""
    path = directory / "hint"
    seen = []
    for data in (b"98", b"99", b"100", b"101", b"7"):
        storage.replace("hint", data, durable=False)
        assert data == path.read_bytes()
        seen.append(path.stat().st_ino)
    assert [True, False, True, False] == [one == two for one, two in pairwise(seen)]
    before = path.stat().st_ino
    storage.replace("hint", b"8")
    assert before != path.stat().st_ino, "what must be durable is never written in place"


def test_a_copy_of_a_hint_stays_as_it_is(storage: Storage, directory: Path) -> None:
    """A backup made of hard links, and a link that leads elsewhere: neither is written through."""
    storage.replace("hint", b"1", durable=False)
    os.link(directory / "hint", directory / "backup")
    storage.replace("hint", b"2", durable=False)
    (directory / "hint").unlink()
    (directory / "hint").symlink_to(directory / "backup")
    storage.replace("hint", b"3", durable=False)
    assert (b"1", b"3") == ((directory / "backup").read_bytes(), (directory / "hint").read_bytes())
    assert not (directory / "hint").is_symlink()


def test_a_compare_and_set_is_durable(storage: Storage, order: _Order) -> None:
    """The boundary reaches the disk before anything below it is deleted."""
    assert storage.compare_and_set("boundary", b"1", storage.read_tagged("boundary")) is not None
    assert ["sync TEMP", "replace boundary", "sync ."] == order.events


def test_a_failed_sync_poisons_the_handle(storage: Storage, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failed fsync the kernel forgets the data and the next fsync lies, so nothing may be committed."""

    def broken(path: str) -> None:
        raise OSError(errno.EIO, "Input/output error", path)

    storage.write_many([("a", b"x")])
    with monkeypatch.context() as patch:
        patch.setattr(durability, "sync_path", broken)
        patch.setattr(durability, "sync_filesystem", broken)
        with pytest.raises(StorageError, match="cannot make"):
            storage.barrier()
    with pytest.raises(StorageError, match="write everything again"):
        storage.create("root", b"x")
    assert ["a"] == [path.name for path in directory.iterdir()]


def test_a_create_waits_for_a_barrier_under_way(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread's barrier may hold our files; the root must not appear before it is done."""
    entered, leave = threading.Event(), threading.Event()
    real = durability.sync_path

    def slow(path: str) -> None:
        if path.endswith("/a"):
            entered.set()
            assert leave.wait(60)
        real(path)

    monkeypatch.setattr(durability, "sync_path", slow)
    storage.write_many([("a", b"x")])
    flusher = threading.Thread(target=storage.barrier)
    creator = threading.Thread(target=storage.create, args=("root", b"x"))
    flusher.start()
    assert entered.wait(60)
    creator.start()
    time.sleep(0.1)
    assert [] == list(storage.list("root"))
    leave.set()
    flusher.join(60)
    creator.join(60)
    assert ["root"] == [info.path for info in storage.list("root")]


# What a disk can refuse.


def test_a_directory_is_not_a_file(storage: Storage, directory: Path) -> None:
    """Reading one says so."""
    (directory / "d").mkdir(parents=True)
    with pytest.raises(NotAFile, match="is a directory"):
        storage.read("d")
    with pytest.raises(NotAFile, match="is a directory"):
        storage.info("d")
    assert "is a directory" in storage.delete_many(["d"]).failed["d"]


def test_a_path_through_a_file_is_missing_for_readers(storage: Storage) -> None:
    """And cannot be written."""
    storage.create("file", b"x")
    with pytest.raises(FileMissing):
        storage.read("file/below")
    with pytest.raises(StorageError, match="a file stands"):
        storage.write_many([("file/below", b"")])


def test_a_name_too_long_is_said_to_be_so(storage: Storage) -> None:
    """255 bytes a segment is what file systems take."""
    with pytest.raises(StorageError, match="too long"):
        storage.create("x" * 256, b"")
    assert [] == list(storage.list())


@pytest.mark.parametrize(
    ("code", "kind", "says"),
    [
        (errno.EACCES, StorageDenied, "Permission denied"),
        (errno.EROFS, StorageDenied, "Read-only"),
        (errno.ENOSPC, StorageFull, "no space left"),
        (errno.EDQUOT, StorageFull, "quota is used up"),
        (errno.EIO, StorageError, "Input/output"),
    ],
)
def test_errors_of_the_disk_are_mapped(
    storage: Storage, directory: Path, monkeypatch: pytest.MonkeyPatch, code: int, kind: type[Exception], says: str
) -> None:
    """Each says what is wrong, and is not tried again."""
    storage.create("existing", b"x")

    def broken(*_args: Any) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "write", broken)
    plan = attach(storage, FaultPlan("count", kinds={"put"}))
    for call in (lambda: storage.write_many([("a", b"1")]), lambda: storage.create("b", b"1")):
        with pytest.raises(kind, match=says):
            call()
    assert 1 == plan.count
    assert not list(directory.glob("_tmp-*"))


def test_passing_troubles_are_tried_again(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stale handle on a network mount mends itself."""
    storage.create("root", b"x")
    real = os.open
    answers = [OSError(errno.ESTALE, "Stale file handle"), OSError(errno.EAGAIN, "Try again")]

    def flaky(*args: Any) -> int:
        if answers:
            raise answers.pop()
        return real(*args)

    monkeypatch.setattr(os, "open", flaky)
    assert b"x" == storage.read("root")
    assert 3 == storage.counts.get


def test_a_disk_without_links_is_unsafe(storage: Storage, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no exclusive creation of whole files without them."""

    def unsupported(*_args: Any, **_options: Any) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", unsupported)
    with pytest.raises(UnsafeStorage, match="hard links"):
        storage.create("root", b"x")
    assert [] == list(directory.iterdir())
    failed = [result for result in check_conformance(storage.root) if not result.ok]
    assert ["exclusive creation", "racing writers"] == [result.name for result in failed]


def test_a_link_whose_answer_the_server_lost_is_ours(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """NFS repeats a link and is told that it exists: two names of one file prove that it worked."""
    real = os.link

    def twice(source: str, target: str, **options: Any) -> None:
        real(source, target, **options)
        real(source, target, **options)

    monkeypatch.setattr(os, "link", twice)
    storage.create("root", b"x")
    monkeypatch.setattr(os, "link", real)
    with pytest.raises(AlreadyExists):
        storage.create("root", b"x")


def test_files_that_are_not_wanted_are_not_looked_at(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a mounted disk each look is a round trip."""
    storage.write_many([("d/wanted", b"1"), ("d/other", b"2"), ("d/e/another", b"3")])
    looked: list[str] = []
    real = disk_files.describe

    def describe(entry: os.DirEntry[str], path: str) -> FileInfo | None:
        looked.append(path)
        return real(entry, path)

    monkeypatch.setattr(disk_files, "describe", describe)
    assert ["d/wanted"] == [info.path for info in storage.list_if("d/", lambda path: path == "d/wanted")]
    assert ["d/wanted"] == looked


def test_links_are_neither_followed_nor_listed(storage: Storage, directory: Path, tmp_path: Path) -> None:
    """A link leads out of the lakehouse, or in circles."""
    storage.create("d/file", b"x")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_bytes(b"x")
    (directory / "d" / "loop").symlink_to(directory)
    (directory / "out").symlink_to(tmp_path / "outside")
    (directory / "link").symlink_to(tmp_path / "outside" / "secret")
    assert ["d/file"] == [info.path for info in storage.list()]
    assert (["d/"], []) == storage.list_dirs()


def test_deleted_and_missing_are_told_apart(storage: Storage) -> None:
    """A disk knows."""
    storage.write_many([("a", b"")])
    result = storage.delete_many(["a", "b", "c/d"])
    assert (["a"], ["b", "c/d"], {}) == (result.deleted, result.missing, result.failed)


def test_a_file_that_grows_while_it_is_read_is_read_to_its_end(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A short or a long read is no surprise."""
    storage.create("root", b"x" * 1000)
    real = os.read
    monkeypatch.setattr(os, "read", lambda descriptor, size: real(descriptor, min(size, 100)))
    assert b"x" * 1000 == storage.read("root")


def test_secrets_are_cut_out_of_texts() -> None:
    """Keys, signatures, tokens, passwords in URLs, and whatever the options hold."""
    text = "http://me:pw@host/b?X-Amz-Signature=abc&x=1 Authorization: Bearer123 AKIAIOSFODNN7EXAMPLE hunter22"
    clean = sanitise(text, ["hunter22"])
    assert not [word for word in ("me:pw", "abc", "Bearer123", "AKIA", "hunter22") if word in clean]
    assert "x=1" in clean


# -- what may be read ------------------------------------------------------------------------------------------


@pytest.fixture(params=["openat2", "name by name"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to open a file below a root: by the system call of Linux, and where there is none."""
    if request.param != "openat2":
        monkeypatch.setattr(disk_opening, "_syscall", None)


def _odd_places(directory: Path, tmp_path: Path) -> dict[str, str]:
    """Put what is no file where files are expected; return the paths, by what is there."""
    (tmp_path / "secret").write_bytes(b"secret")
    (directory / "d").mkdir(parents=True)
    os.mkfifo(directory / "pipe")
    (directory / "link").symlink_to(tmp_path / "secret")
    (directory / "up").symlink_to("..")
    (directory / "circle").symlink_to("circle")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(directory / "socket"))
    return {
        "a directory": "d",
        "a pipe": "pipe",
        "a link that leads out": "link",
        "a file behind a link that leads out": f"up/{tmp_path.name}/secret",
        "a link to itself": "circle",
        "a socket": "socket",
    }


@pytest.mark.usefixtures("way")
def test_only_regular_files_below_the_root_are_read(storage: Storage, directory: Path, tmp_path: Path) -> None:
    for path in _odd_places(directory, tmp_path).values():
        for ask in (storage.read, storage.info, lambda path: storage.read_range(path, 0, 3)):
            with pytest.raises(NotAFile):
                ask(path)


@pytest.mark.usefixtures("way")
def test_a_file_whose_name_is_too_long_is_missing(storage: Storage) -> None:
    storage.create("d/file", b"x")
    for path in ("d/" + 300 * "n", "/".join(300 * ["a-directory-in-which-another-one-lies"])):
        with pytest.raises(FileMissing):
            storage.read(path)
        with pytest.raises(FileMissing):
            storage.info(path)


@pytest.mark.usefixtures("way")
def test_a_range_beyond_the_end_is_shorter(storage: Storage) -> None:
    storage.create("d/file", b"0123456789")
    assert (b"89", b"", b"0123456789") == (
        storage.read_range("d/file", 8, 1 << 40),
        storage.read_range("d/file", 10, 1 << 40),
        storage.read_range("d/file", 0, 1 << 60),
    )


def test_a_link_that_stays_inside_is_followed(storage: Storage, directory: Path) -> None:
    storage.create("d/file", b"x")
    (directory / "copy").symlink_to("d/file")
    assert (b"x", 1) == (storage.read("copy"), storage.info("copy").size)


def test_a_directory_of_another_user_is_told_with_both_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Users of one directory with umask 022: the second one reads what to do, and where."""
    storage = open_storage(tmp_path.as_uri())
    storage.write("there", b"1")

    def refuse(kind: str, path: str, action: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", path)

    storage.interceptor = refuse  # type: ignore[attr-defined]
    owner = getpwuid(tmp_path.stat().st_uid).pw_name
    for path in ("there", "below/not/there"):
        with pytest.raises(StorageDenied) as own:
            storage.write(path, b"2")
        assert "belongs to" not in str(own.value)
        with monkeypatch.context() as patch:
            patch.setattr(os, "geteuid", lambda: 4_000_000)
            with pytest.raises(StorageDenied, match=f"{tmp_path} belongs to {owner}, and this .* user 4000000.*umask"):
                storage.write(path, b"2")


@pytest.mark.usefixtures("all_threads")
def test_many_deletions_at_once_say_what_became_of_each_file(tmp_path: Path) -> None:
    """Of 600 files in 30 directories and at the root, by several threads: deleted, gone before, not a file."""
    storage = open_storage(f"file://{tmp_path}")
    names = [f"d{number % 30}/{number}" for number in range(600)] + [f"top{number}" for number in range(40)]
    for name in names:
        storage.write(name, b"x")
    gone = [f"d{number}/gone" for number in range(30)] + ["none/gone", "gone"]
    (tmp_path / "d3" / "folder").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "kept").write_bytes(b"kept")
    (tmp_path / "link").symlink_to(tmp_path / "outside")
    asked = [*names, *gone, "d3/folder", "link/kept"]
    random.Random(5).shuffle(asked)
    before = storage.counts.snapshot()
    result = storage.delete_many(asked)
    assert sorted(names) == sorted(result.deleted)
    assert sorted(gone) == sorted(result.missing)
    assert {"d3/folder", "link/kept"} == set(result.failed)
    assert "is a directory" in result.failed["d3/folder"]
    assert "is a link" in result.failed["link/kept"]
    assert b"kept" == (tmp_path / "outside" / "kept").read_bytes()
    assert (storage.counts - before).delete == 1


@pytest.fixture
def all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Delete with as many threads as there may be, however few files there are."""
    monkeypatch.setattr(disk_deleting, "_TOGETHER", 4)


def _with_files(tmp_path: Path, number: int) -> tuple[Storage, list[str]]:
    storage = open_storage(f"file://{tmp_path}", {"durable": False})
    names = [f"d{each % 50}/e/{each}" for each in range(number)]
    for name in names:
        storage.write(name, b"x")
    return storage, names


def test_a_file_that_is_named_twice_is_deleted_once(tmp_path: Path) -> None:
    storage, names = _with_files(tmp_path, 40)
    result = storage.delete_many([*names, *names])
    assert sorted(names) == sorted(result.deleted)
    assert ([], {}) == (result.missing, result.failed)


@pytest.mark.usefixtures("all_threads")
@pytest.mark.parametrize("started", [0, 3])
def test_deletions_do_without_threads(tmp_path: Path, started: int) -> None:
    """A system may refuse to start them, and a process that ends starts none."""
    storage, names = _with_files(tmp_path, 300)
    with few_threads(started) as begun:
        result = storage.delete_many(names)
    assert sorted(names) == sorted(result.deleted)
    assert started == len(begun)


@pytest.mark.usefixtures("all_threads")
def test_deletions_share_the_last_descriptors(tmp_path: Path) -> None:
    """Threads that find none leave their files to the end, when one after the other is deleted."""
    storage, names = _with_files(tmp_path, 2000)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(_descriptors()) + 30, hard))
        with suppress(OSError):
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        os.close(taken.pop())
        os.close(taken.pop())
        result = storage.delete_many(names)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for each in taken:
            os.close(each)
    assert {} == result.failed
    assert sorted(names) == sorted(result.deleted)


def _descriptors() -> list[int]:
    return [int(each.name) for each in Path("/proc/self/fd").iterdir()]


def test_a_deletion_opens_the_root_once_and_the_directory_of_each_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, names = _with_files(tmp_path, 600)
    opened: list[str] = []
    open_directory = disk_deleting.open_directory_without_links

    def count(root: int, path: str) -> int:
        opened.append(f"{root}:{path}")
        return open_directory(root, path)

    monkeypatch.setattr(disk_deleting, "open_directory_without_links", count)
    assert 600 == len(storage.delete_many(names).deleted)
    assert (600, 1) == (len(opened), len({each.partition(":")[0] for each in opened}))


@pytest.mark.parametrize("moved", ["a", "a/b", "a/b/c"])
@pytest.mark.parametrize("is_linked_back", [False, True])
@pytest.mark.parametrize("has_openat2", [False, True])
def test_a_directory_that_is_moved_away_is_not_emptied_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moved: str, is_linked_back: bool, has_openat2: bool
) -> None:
    """Nor where it is the one above it that is moved, and a link is left in its place."""
    if not has_openat2:
        monkeypatch.setattr(disk_opening, "_syscall", None)
    storage, _ = _with_files(tmp_path / "root", 0)
    names = [f"a/b/c/{number}" for number in range(10)]
    for name in names:
        storage.write(name, b"x")
    rescued, below = tmp_path / "rescued", Path("a/b/c").relative_to(moved)
    unlink = os.unlink

    def unlink_and_move(name: str, *, dir_fd: int | None = None) -> None:
        unlink(name, dir_fd=dir_fd)
        if rescued.exists():
            return
        (tmp_path / "root" / moved).rename(rescued)
        if is_linked_back:
            (tmp_path / "root" / moved).symlink_to(rescued)

    monkeypatch.setattr(os, "unlink", unlink_and_move)
    result = storage.delete_many(names)
    assert (1, 9) == (len(result.deleted), len(result.failed if is_linked_back else result.missing))
    assert 9 == len(list((rescued / below).iterdir()))


@pytest.mark.usefixtures("all_threads")
def test_an_interrupt_in_a_thread_that_deletes_ends_the_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for what that thread had taken."""
    storage, names = _with_files(tmp_path, 300)
    unlink, here = os.unlink, threading.get_ident()

    def interrupt(name: str, *, dir_fd: int | None = None) -> None:
        if threading.get_ident() != here:
            raise KeyboardInterrupt
        time.sleep(0.001)
        unlink(name, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", interrupt)
    with pytest.raises(KeyboardInterrupt):
        storage.delete_many(names)

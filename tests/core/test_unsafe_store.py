"""``rclone serve s3`` accepts ``If-None-Match: *`` and ignores it: every write is refused there, reading works."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pipelines import compaction, upgrade
from tests.support.lakes import content, filled, new_lake
from tests.support.s3_servers import S3Server
from tests.support.sweep import Files, read_files
from trinitylake_core import Lakehouse
from trinitylake_core.errors import UnsafeStorage
from trinitylake_core.storage.contests import SCRATCH_PREFIX

pytestmark = pytest.mark.s3


class Unsafe:
    """A lakehouse on rclone, put there behind the storage's back, and what it said on a disk."""

    def __init__(self, server: S3Server, directory: Path) -> None:
        lake = filled(new_lake(directory), tables=12, namespaces=2)
        with lake.transaction() as txn:
            txn.create_table("ns0", "saved")
            self.saved = txn.save()
        lake.create_snapshot("old")
        self.lake = lake.refresh()
        self.server = server
        self.root = server.new_root()
        self.client = server.client()
        for path, data in read_files(directory / "lake").items():
            self.client.put_object(Bucket=server.bucket, Key=self.key(path), Body=data)

    def key(self, path: str) -> str:
        """Return the key of a file."""
        return self.root.removeprefix(f"s3://{self.server.bucket}/") + path

    def files(self, root: str | None = None) -> Files:
        """Return every file, behind the storage's back."""
        prefix = (root or self.root).removeprefix(f"s3://{self.server.bucket}/")
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.server.bucket, Prefix=prefix)
        keys = [item["Key"] for page in pages for item in page.get("Contents", ())]
        keys = [key for key in keys if SCRATCH_PREFIX not in key]  # rclone lists for a while what was deleted
        return {
            key[len(prefix) :]: self.client.get_object(Bucket=self.server.bucket, Key=key)["Body"].read()
            for key in keys
        }

    def open(self) -> Lakehouse:
        """Return a fresh handle."""
        return Lakehouse.open(self.root, storage_options=self.server.options)


@pytest.fixture(scope="module")
def unsafe(rclone_server: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Unsafe:
    """One for all tests: nothing they do may change it."""
    return Unsafe(rclone_server, tmp_path_factory.mktemp("unsafe"))


def test_reading_works(unsafe: Unsafe) -> None:
    """Content, definitions, history, snapshots and the check are those of the lakehouse on the disk."""
    lake, wanted = unsafe.open(), unsafe.lake
    assert (wanted.version, content(wanted)) == (lake.version, content(lake))
    assert [info.txn for info in wanted.history()] == [info.txn for info in lake.history()]
    assert wanted.tables("ns1") == lake.at(snapshot="old").tables("ns1")
    assert [] == list(lake.check(definitions=True))
    assert compaction.estimate(lake).subtrees == compaction.estimate(wanted).subtrees
    assert 2 == lake.rollback(version=2, reason="dry", dry_run=True).target_version


def _commit(lake: Lakehouse, unsafe: Unsafe) -> None:
    with lake.transaction() as txn:
        txn.create_table("ns0", "new")


def _save(lake: Lakehouse, unsafe: Unsafe) -> None:
    with lake.transaction() as txn:
        txn.create_table("ns0", "new")
        txn.save()


WRITES: dict[str, Callable[[Lakehouse, Unsafe], object]] = {
    "commit": _commit,
    "save": _save,
    "resume": lambda lake, unsafe: lake.resume_transaction(unsafe.saved).commit(),
    "compact": lambda lake, unsafe: compaction.run(lake, compaction.Config(engine="local")),
    "snapshot": lambda lake, unsafe: lake.create_snapshot("new"),
    "partial snapshot": lambda lake, unsafe: lake.create_snapshot("new", kind="partial"),
    "drop snapshot": lambda lake, unsafe: lake.drop_snapshot("old"),
    "rollback": lambda lake, unsafe: lake.rollback(version=2, reason="test"),
    "restore": lambda lake, unsafe: lake.restore(["ns0.*"], version=2, exact=True, reason="test"),
}


@pytest.mark.parametrize("write", WRITES)
def test_writing_is_refused_and_changes_nothing(unsafe: Unsafe, write: str) -> None:
    """Again and again, before anything but the proof itself is written."""
    before = unsafe.files()
    for _ in range(2):
        lake = unsafe.open()
        asked: dict[str, set[str]] = {}

        def note(kind: str, path: str, action: Callable[[], object], asked: dict[str, set[str]] = asked) -> object:
            asked.setdefault(kind, set()).add(path)
            return action()

        lake.storage.interceptor = note
        with pytest.raises(UnsafeStorage, match=r"round 1: \d of 8 racing creations of one file succeeded; one must"):
            WRITES[write](lake, unsafe)
        # By name, not by number: a creation whose answer a busy server loses is asked again.
        (created,) = asked["create"]
        assert created.startswith(SCRATCH_PREFIX)
        assert "put" not in asked
        assert {created} == asked["delete"]
    assert before == unsafe.files()


def test_nothing_is_created_there(unsafe: Unsafe) -> None:
    """Neither a new lakehouse nor an upgraded one."""
    root = unsafe.server.new_root()
    with pytest.raises(UnsafeStorage):
        Lakehouse.create(root, storage_options=unsafe.server.options)
    with pytest.raises(UnsafeStorage):
        upgrade.run(unsafe.lake, root, upgrade.Config(engine="local"), storage_options=unsafe.server.options)
    left = unsafe.files(root)
    assert [] == [path for path in left if path.startswith("_")]

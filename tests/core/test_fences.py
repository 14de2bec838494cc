"""What a fence (``clean``) means for those who commit after it: files older than it may be gone (format, section 6)."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.support.lakes import content, filled, new_lake, once, operations, reopened
from trinitylake_core import Lakehouse, spec
from trinitylake_core.commits.changes import Fence, SameContent, commit_summary
from trinitylake_core.commits.commit import commit
from trinitylake_core.versions import Root

TICK = 0.02
"""Longer than the tick of any file system's clock, in seconds."""


@pytest.fixture
def lake(tmp_path: Path) -> Lakehouse:
    return filled(new_lake(tmp_path), tables=24)


def storage_now(lake: Lakehouse) -> int:
    """Return the storage's time, once it is later than that of everything written so far."""
    time.sleep(TICK)
    lake.storage.replace("clock", b"")
    return lake.storage.info("clock").modified_millis


def fence(lake: Lakehouse, before: int | None = None) -> Root:
    """Commit a fence at the storage's time now."""
    other = reopened(lake)
    change = Fence(storage_now(lake) if before is None else before, commit_summary())
    return commit(other.backend, other.backend.newest_seen, change)


def test_a_fence_is_carried_on_and_only_grows(lake: Lakehouse) -> None:
    assert (7, 7, 9) == tuple(fence(lake, before).void_before_millis for before in (7, 5, 9))
    with lake.refresh().transaction() as txn:
        txn.create_namespace("later")
    assert (9, "commit") == (lake.refresh().root_node.void_before_millis, lake.info().operation)
    assert operations(lake)[-4:] == ["clean", "clean", "clean", "commit"]
    assert [] == list(lake.check())


def test_a_fence_changes_nothing(lake: Lakehouse) -> None:
    before, digest = content(lake), lake.digest()
    fence(lake)
    assert (before, digest) == (content(lake.refresh()), lake.digest())


def other(lake: Lakehouse) -> Root:
    again = reopened(lake)
    return commit(again.backend, again.backend.newest_seen, SameContent(spec.OP_EXPIRE, {}))


def test_a_base_that_expired_counts_as_fenced(lake: Lakehouse) -> None:
    """A file of its name may be there again by now, and tells nothing."""
    txn = lake.transaction()
    txn.create_table("ns0", "late")
    base = lake.version

    def expire_and_fence() -> None:
        fence(lake, 1)
        again = reopened(lake)
        change = SameContent(spec.OP_EXPIRE, {}, {spec.OLDEST_VERSION: str(base + 1)})
        commit(again.backend, again.backend.newest_seen, change)

    path = next(iter(txn._writes.by_key.values()))
    txn.commit(before_commit=once(expire_and_fence))
    assert path != content(reopened(lake))["C===ns0     late    "]


@pytest.mark.parametrize(("kind", "target"), [("minimal", None), ("full", "s3://bucket/copy")])
def test_a_snapshot_that_meets_a_fence_writes_its_definition_again(
    lake: Lakehouse, kind: str, target: str | None
) -> None:
    """Also that of a full copy, which has no other file here: the cleaning may be removing the first one."""
    before = len(list(lake.storage.list("_lakehouse_def_")))
    lake.create_snapshot("s", kind=kind, target_uri=target, before_commit=once(lambda: fence(lake)))
    assert before + 2 == len(list(lake.storage.list("_lakehouse_def_")))
    assert [] == list(lake.refresh().check())


def test_a_lakehouse_that_was_never_cleaned_has_no_such_row(lake: Lakehouse) -> None:
    assert (0, False) == (lake.root_node.void_before_millis, spec.VOID_BEFORE_MILLIS in lake.root_node.node.system)

"""What a fence (``clean``) means for those who commit after it: files older than it may be gone (format, section 6)."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.faults import FaultPlan, attach, detach
from tests.support.lakes import compacted, content, filled, new_lake, operations, reopened
from trinitylake_core import Lakehouse, spec
from trinitylake_core.check import check_version
from trinitylake_core.commits.changes import CompactionChange, Fence, FilesVoid, SameContent, commit_summary
from trinitylake_core.commits.commit import commit
from trinitylake_core.commits.fences import FRONT_ENDS_DIFFER_MILLIS
from trinitylake_core.errors import StorageError, TransactionExpired
from trinitylake_core.locations import parse
from trinitylake_core.tree.nodestore import NodeWriter
from trinitylake_core.tree.rewrite import Rewriter
from trinitylake_core.tree.subtree import dirty_children
from trinitylake_core.versions import Root

TICK = 0.02
"""Longer than the tick of any file system's clock, in seconds."""
CANDIDATES = {"node", "namespace", "table", "view", "lakehouse_def"}


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
    return commit(other.files, other.files.newest_seen, change)


def cleaned(lake: Lakehouse) -> None:
    """Fence, then remove every file that no version reaches, without a word to anybody: a cleaning of age zero."""
    root = fence(lake)
    at = reopened(lake)
    live = set()
    for version in range(root.version + 1):
        handle = at.at(version=version)
        live |= {handle.root_node.definition_path, *content(handle).values()}
        waiting = list(handle.root_node.node.children)
        while waiting:
            live.add(waiting[-1])
            waiting += handle.files.store.read(waiting.pop()).children
    live |= {each.root_node_file_path for each in at.definition.snapshots.values()}
    for file in [*lake.storage.list()]:
        parsed = parse(file.path)
        old = file.modified_millis < root.void_before_millis
        if parsed is not None and parsed.kind in CANDIDATES and old and file.path not in live:
            lake.storage.delete_many([file.path])


def broken(lake: Lakehouse) -> list[Any]:
    newest = reopened(lake)
    versions = range(newest.version + 1)
    return [each for version in versions for each in check_version(newest.files.versions, version, definitions=True)]


def first_time(action: Callable[[], None]) -> Callable[[], None]:
    """Return a ``before_commit`` that acts the first time it is asked."""
    calls: list[int] = []

    def hook() -> None:
        calls.append(len(calls))
        if len(calls) == 1:
            action()

    return hook


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


def test_a_commit_that_slept_while_files_were_cleaned_writes_them_again(lake: Lakehouse) -> None:
    """Its definition was gone when it woke up: defect 3 of the review, for plain commits."""
    txn = lake.transaction()
    table = txn.create_table("ns0", "late", properties={"a": "b"})
    txn.commit(before_commit=first_time(lambda: cleaned(lake)))
    newest = reopened(lake)
    assert (table.properties, []) == (newest.table("ns0", "late").properties, broken(lake))


def test_a_commit_that_meets_an_older_fence_asks_once_and_writes_nothing_again(lake: Lakehouse) -> None:
    """One ``head`` tells that the fence does not concern it; without a fence in between there is none."""
    void = storage_now(lake) - FRONT_ENDS_DIFFER_MILLIS
    with lake.refresh().transaction() as txn:  # a root that is younger
        txn.create_namespace("young")
    for number, (meet, expected) in enumerate([(lambda: fence(lake, void), 1), (lambda: other(lake), 0)]):
        before = lake.refresh().storage.counts.snapshot()
        txn = lake.transaction()
        txn.create_table("ns0", f"mine{number}")
        txn.commit(before_commit=first_time(meet))
        counts = lake.storage.counts - before
        assert (expected + 1, 2, 2) == (counts.head, counts.put, counts.create)  # one for the version after its own


def other(lake: Lakehouse) -> Root:
    again = reopened(lake)
    return commit(again.files, again.files.newest_seen, SameContent(spec.OP_EXPIRE, {}))


def test_a_commit_tried_again_after_its_outcome_was_unknown_meets_the_fence_too(lake: Lakehouse) -> None:
    """The files of the first try were cleaned before the second."""
    txn = lake.transaction()
    txn.create_table("ns0", "late")
    attach(lake.storage, FaultPlan("fail_from", kinds={"create"}))
    with pytest.raises(StorageError):
        txn.commit()
    detach(lake.storage)
    cleaned(lake)
    txn.commit()
    assert ("late" in reopened(lake).tables("ns0"), []) == (True, broken(lake))


def test_a_commit_that_was_done_is_recognised_behind_a_fence(lake: Lakehouse) -> None:
    """The answer was lost, a fence followed: what it wrote is in the chain, and is not written again."""
    txn = lake.transaction()
    txn.create_table("ns0", "late")
    attach(lake.storage, FaultPlan("lose_from", kinds={"create"}))
    version = lake.version + 1
    with pytest.raises(StorageError, match="unknown"):
        attach_reads(lake, txn.commit)
    detach(lake.storage)
    cleaned(lake)
    assert (version, []) == (txn.commit(), broken(lake))
    assert ["commit", "clean"] == operations(reopened(lake))[-2:]


def attach_reads(lake: Lakehouse, action: Callable[[], Any]) -> None:
    """Lose the answers of creations, and fail what would read them back."""
    plan = lake.storage.interceptor  # type: ignore[attr-defined]

    def both(kind: str, path: str, act: Callable[[], Any]) -> Any:
        if kind == "get" and path.startswith("_"):
            raise StorageError("injected")
        return plan(kind, path, act)

    lake.storage.interceptor = both  # type: ignore[attr-defined]
    action()


def test_a_resumed_transaction_that_passes_a_fence_writes_its_definitions_again(lake: Lakehouse) -> None:
    txn = lake.transaction()
    txn.create_table("ns0", "saved", properties={"a": "b"})
    resumed = reopened(lake).resume_transaction(txn.save())
    resumed.create_table("ns0", "more")
    old = dict(resumed._writes)
    fence(lake)
    resumed.commit()
    new = content(reopened(lake))
    assert all(path != new[key] for key, path in old.items())
    assert {"a": "b"} == dict(reopened(lake).table("ns0", "saved").properties)


def test_a_resumed_transaction_whose_definitions_are_gone_is_refused(lake: Lakehouse) -> None:
    txn = lake.transaction()
    txn.create_table("ns0", "saved")
    resumed = reopened(lake).resume_transaction(txn.save())
    cleaned(lake)  # it knows no saved transactions, as if this one's time were up
    with pytest.raises(TransactionExpired, match="gone"):
        resumed.commit()
    assert [] == broken(lake)


@pytest.mark.parametrize("when", ["after the last node", "before the commit"])
def test_a_compaction_whose_files_may_be_gone_starts_over(lake: Lakehouse, when: str) -> None:
    """Defect 3 of the review: it slept after it wrote its last node, or right before its root."""
    base = lake.root_node
    writer, node = compaction_of(lake, base)
    if when == "after the last node":
        cleaned(lake)
    hook = first_time(lambda: cleaned(lake))
    with pytest.raises(FilesVoid, match="compact again"):
        commit(lake.files, base, CompactionChange(node, commit_summary()), before_commit=hook)
    assert [] == broken(lake)
    compacted(lake.refresh())
    assert [] == broken(lake)
    assert writer.written


def compaction_of(lake: Lakehouse, base: Root) -> Any:
    writer = NodeWriter(lake.files.store)
    rewriter = Rewriter(writer, base.created_at_millis, prove=True)
    tree = rewriter.flush(rewriter.ref_of(base.node), dirty_children)
    rewriter.open(tree)
    node = rewriter.node_of(tree)
    writer.flush()
    return writer, node


@pytest.mark.parametrize("kind", ["minimal", "partial"])
def test_a_snapshot_whose_files_may_be_gone_copies_them_again(lake: Lakehouse, kind: str) -> None:
    compacted(lake)
    version = lake.refresh().version
    lake.create_snapshot("s", kind=kind, before_commit=first_time(lambda: cleaned(lake)))
    newest = reopened(lake)
    assert content(newest.at(version=version)) == content(newest.at(snapshot="s"))
    assert [] == broken(lake)


def test_a_base_that_expired_counts_as_fenced(lake: Lakehouse) -> None:
    """A file of its name may be there again by now, and tells nothing."""
    txn = lake.transaction()
    txn.create_table("ns0", "late")
    base = lake.version

    def expire_and_fence() -> None:
        fence(lake, 1)
        again = reopened(lake)
        change = SameContent(spec.OP_EXPIRE, {}, {spec.OLDEST_VERSION: str(base + 1)})
        commit(again.files, again.files.newest_seen, change)

    path = next(iter(txn._writes.values()))
    txn.commit(before_commit=first_time(expire_and_fence))
    assert path != content(reopened(lake))["C===ns0     late    "]


def test_a_lakehouse_that_was_never_cleaned_has_no_such_row(lake: Lakehouse) -> None:
    assert (0, False) == (lake.root_node.void_before_millis, spec.VOID_BEFORE_MILLIS in lake.root_node.node.system)

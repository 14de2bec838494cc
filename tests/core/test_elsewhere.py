"""Objects from another lakehouse: copied in under new names, proved, as one ordinary transaction."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipelines import clean as clean_job
from pipelines import export
from tests.support.lakes import FAST, compacted, content, filled, new_lake, reopened
from tests.support.surgery import Surgery, files_of
from trinitylake_core import (
    CommitConflict,
    Corrupt,
    InvalidInput,
    Lakehouse,
    NamespaceNotEmpty,
    ObjectNotFound,
    StorageError,
)
from trinitylake_core.definitions import encode
from trinitylake_core.recovery.restore import plan_restore
from trinitylake_core.recovery.selection import Side
from trinitylake_core.recovery.target import RecoveryTarget


@pytest.fixture
def lake(tmp_path: Path) -> Lakehouse:
    """Versions 0 to 8, exported; then a namespace is dropped, a table altered, another made; older ones expired."""
    made = filled(new_lake(tmp_path), tables=28)
    made.alter({"owner": "us"})
    export.run(made, (tmp_path / "backup").as_uri(), export.Config(engine="local"))
    with made.transaction() as txn:
        txn.drop_namespace("ns0", cascade=True)
        txn.alter_table("ns1", "t001", properties={"a": "b"})
        txn.create_table("ns1", "later")
    return made.refresh()


@pytest.fixture
def backup(lake: Lakehouse, tmp_path: Path) -> Lakehouse:
    return Lakehouse.open((tmp_path / "backup").as_uri(), storage_options=FAST)


def meaning(lake: Lakehouse) -> dict[tuple[str, str, str | None], bytes]:
    """Return what every object says, whatever its file is called."""
    return {(each.kind, each.namespace, each.name): encode(lake.definition_of(each)) for each in lake.objects()}


def test_everything_is_as_it_is_elsewhere(lake: Lakehouse, backup: Lakehouse) -> None:
    """With ``exact`` nothing else is left; what came in has files of its own, what was the same keeps its file."""
    before, theirs = content(lake), content(backup)
    there = files_of(backup)
    done = lake.restore(["*"], source=backup, exact=True, reason="expired too much")
    after = reopened(lake)
    assert meaning(backup) == meaning(after)
    assert ({"added": 11, "removed": 1, "changed": 1}, backup.root) == (done.counts, done.source)
    assert there == files_of(backup)
    for key, path in content(after).items():
        same = before.get(key) == theirs[key]
        assert same == (path == theirs[key])
        assert same or path not in before.values()
    assert [] == list(after.check(definitions=True))
    assert ("restore", backup.root) == (after.info().operation, after.info().summary["source"])
    assert lake.version + 1 == after.version


def test_names_are_encoded_anew_where_sizes_differ(lake: Lakehouse, tmp_path: Path) -> None:
    other = Lakehouse.create((tmp_path / "long").as_uri(), storage_options=FAST, table_name_max_size_bytes=40)
    with other.transaction() as txn:
        txn.create_namespace("far")
        txn.create_table("far", "short")
        txn.create_table("far", "n" * 30)
    lake.restore(["far.short"], source=other.refresh(), reason="r")
    assert ["short"] == reopened(lake).tables("far")
    before = files_of(lake)
    with pytest.raises(InvalidInput, match="nnnn"):
        lake.restore(["far.*"], source=other, reason="r")
    assert before == files_of(lake)


BAD: list[tuple[Any, type[Exception], str]] = [
    ({"only": ["ns9.*"], "reason": "r"}, ObjectNotFound, "ns9"),
    ({"only": [], "reason": "r"}, InvalidInput, "say which objects"),
    ({"only": ["*"], "reason": " "}, InvalidInput, "a reason is required"),
    ({"only": ["*"], "version": 1, "snapshot": "s", "reason": "r"}, InvalidInput, "one of version"),
]


@pytest.mark.parametrize(("how", "error", "message"), BAD)
def test_bad_input_changes_nothing(
    lake: Lakehouse, backup: Lakehouse, how: dict[str, Any], error: type[Exception], message: str
) -> None:
    before = files_of(lake)
    with pytest.raises(error, match=message):
        lake.restore(**how, source=backup)
    assert before == files_of(lake)


def test_a_namespace_is_not_dropped_from_under_what_does_not_match(lake: Lakehouse, backup: Lakehouse) -> None:
    with lake.transaction() as txn:
        txn.create_namespace("new")
        txn.create_table("new", "t")
    with pytest.raises(NamespaceNotEmpty, match=r"new\.t"):
        lake.restore(["new"], source=backup, exact=True, reason="r")


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_damaged_definition_elsewhere_is_named_and_nothing_written(
    lake: Lakehouse, backup: Lakehouse, dry_run: bool
) -> None:
    path = content(backup)[backup.codec.table("ns0", "t003")]
    surgery = Surgery(backup.root, backup.definition.order)
    data = surgery.read(path)
    before = files_of(lake)
    for harm in (lambda: surgery.remove(path), lambda: surgery.write(path, data[:-3] + b"xyz")):
        harm()
        with pytest.raises(Corrupt, match="t003"):
            lake.restore(["ns0.*"], source=backup, reason="r", dry_run=dry_run)
        assert before == files_of(lake)
        surgery.write(path, data)


def test_what_arrives_damaged_is_not_committed(lake: Lakehouse, backup: Lakehouse) -> None:
    version = lake.version

    def garble(kind: str, path: str, action: Callable[[], Any]) -> Any:
        found = action()
        return b"x" + found if kind == "get" and "table-ns0" in path else found

    lake.storage.interceptor = garble  # type: ignore[attr-defined]
    with pytest.raises(StorageError, match="does not hold what was written to it"):
        lake.restore(["ns0.*"], source=backup, reason="r")
    lake.storage.interceptor = None  # type: ignore[attr-defined]
    assert version == reopened(lake).version


def test_it_meets_others_as_every_transaction_does(lake: Lakehouse, backup: Lakehouse) -> None:
    """A conflict where they change the same object, none elsewhere; a cleaning makes it write again."""

    def bring_in(only: str, act: Callable[[Lakehouse], None]) -> None:
        source = Side(backup.backend, backup.root_node)
        restore = plan_restore(lake.backend, [only], RecoveryTarget(), reason="r", source=source)
        restore.select(restore.differences())
        plan = restore.plan()
        done: list[bool] = []

        def before_commit() -> None:
            if not done:
                done.append(True)
                act(reopened(lake))

        restore.commit(plan, before_commit)

    def same(other: Lakehouse) -> None:
        with other.transaction() as txn:
            txn.create_namespace("ns0")

    def different(other: Lakehouse) -> None:
        with other.transaction() as txn:
            txn.create_namespace("free")
        compacted(other.refresh())

    def clean(other: Lakehouse) -> None:
        time.sleep(0.05)  # a file system's clock ticks every few milliseconds
        config = clean_job.Config("local", older_than_seconds=0, allow_recent=True)
        assert clean_job.run(other, config).orphan_files

    with pytest.raises(CommitConflict):
        bring_in("ns0.*", same)
    with lake.refresh().transaction() as txn:
        txn.drop_namespace("ns0")
    bring_in("ns0.t000", different)
    bring_in("ns0.t003", clean)
    after = reopened(lake)
    assert ["t000", "t003"] == after.tables("ns0")
    assert "free" in after.namespaces()
    assert [] == list(after.check(definitions=True))


@pytest.mark.parametrize("damage", [b"rubbish", None])
@pytest.mark.parametrize("only", ["ns2.t002", "ns2.*", "*"])
def test_a_file_of_the_same_name_that_is_damaged_here_comes_back_on_request(
    lake: Lakehouse, backup: Lakehouse, damage: bytes | None, only: str
) -> None:
    """Without ``damaged`` nobody reads it. With it only what is damaged gets a new file."""
    key, surgery = lake.codec.table("ns2", "t002"), Surgery(lake.root, lake.definition.order)
    path = content(lake)[key]
    assert path == content(backup)[key]
    if damage is None:
        surgery.remove(path)
    else:
        surgery.write(path, damage)
    lake.restore([only], source=backup, reason="what differs by name")
    assert ["I15"] == [each.invariant for each in reopened(lake).check(definitions=True)]
    done = lake.restore([only, only], source=backup, reason="what is damaged", damaged=True)
    after = reopened(lake)
    assert {"added": 0, "removed": 0, "changed": 1} == done.counts
    assert meaning(backup)["table", "ns2", "t002"] == meaning(after)["table", "ns2", "t002"]
    assert [] == list(after.check(definitions=True))
    assert lake.restore([only], source=backup, reason="again", damaged=True).version_after is None


def test_a_file_that_is_damaged_in_the_backup_only_stays_as_it_is_here(lake: Lakehouse, backup: Lakehouse) -> None:
    path = content(backup)[lake.codec.table("ns2", "t002")]
    Surgery(backup.root, lake.definition.order).write(path, b"rubbish")
    assert lake.restore(["ns2.*"], source=backup, reason="r", damaged=True).version_after is None
    Surgery(lake.root, lake.definition.order).remove(path)
    with pytest.raises(Corrupt, match=path):
        lake.restore(["ns2.*"], source=backup, reason="r", damaged=True)


def test_what_is_damaged_comes_from_another_lakehouse_only(lake: Lakehouse) -> None:
    with pytest.raises(InvalidInput, match="another lakehouse"):
        lake.restore(["*"], version=1, reason="r", damaged=True)

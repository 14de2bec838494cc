"""Whether a backup could take the place of its lakehouse; and the content digest on Spark."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from pipelines import backup, expire, export, mend
from tests.support.lakes import FAST, compacted, filled, new_lake
from tests.support.surgery import Surgery
from trinitylake_core import Lakehouse, spec
from trinitylake_core.clock import now_millis
from trinitylake_core.commits.changes import NewDefinition, commit_summary
from trinitylake_core.commits.commit import commit
from trinitylake_core.definitions import LakehouseDef, altered_lakehouse
from trinitylake_core.storage import Storage, open_storage
from trinitylake_core.versions import Root

LOCAL = backup.Config(engine="local")


@pytest.fixture
def lake(tmp_path: Path) -> Lakehouse:
    """Return a lakehouse with several levels, buffers and a history."""
    return filled(new_lake(tmp_path / "source"), tables=60)


@pytest.fixture
def target(tmp_path: Path) -> Storage:
    """Return where its backup goes."""
    return open_storage((tmp_path / "copy").as_uri(), FAST)


def exported(lake: Lakehouse, target: Storage, **how: Any) -> None:
    export.run(lake, target, export.Config(engine="local", **how))


def problem(report: backup.Report) -> str:
    """Return the one problem of a backup."""
    (found,) = report.problems
    assert not report.ok
    return found


@pytest.mark.parametrize("history", [True, False])
def test_a_fresh_backup_is_good(history: bool, lake: Lakehouse, target: Storage) -> None:
    """With the whole history, and of one version without the snapshots that its definition names."""
    lake.create_snapshot("before")
    exported(lake.refresh(), target, history=history)
    found = backup.run(lake, target, LOCAL)
    assert ([], lake.version, lake.digest()) == (found.problems, found.version, found.digest)
    assert (found.source_digest, None) == (found.digest, found.unsaved_since)
    assert found.nodes_read > 5


@pytest.mark.spark
@pytest.mark.slow
def test_spark_finds_the_same(tmp_path: Path, target: Storage, spark: Any) -> None:
    lake = filled(new_lake(tmp_path / "source"), tables=16)
    exported(lake, target, history=True)
    compacted(lake)  # the backup is of the version before
    found = backup.run(lake, target, backup.Config(engine="spark"), lambda: spark)
    assert ([], "spark", lake.version - 1, lake.digest()) == (found.problems, found.engine, found.version, found.digest)
    Surgery(target.root, 4).remove(Surgery(target.root, 4).leaf(found.version or 0))
    assert "damaged" in backup.run(lake, target, spark=spark).problems[0]


def test_no_backup_at_all(lake: Lakehouse, target: Storage) -> None:
    assert "there is no backup" in problem(backup.run(lake, target, LOCAL))


def test_a_lakehouse_is_no_backup_of_itself(lake: Lakehouse, tmp_path: Path) -> None:
    """By a link, for example, it would be sound and up to date."""
    (tmp_path / "alias").symlink_to(tmp_path / "source")
    for root in (lake.root, (tmp_path / "alias" / "lake").as_uri()):
        assert "is the lakehouse itself" in problem(backup.run(lake, root, LOCAL))


def test_another_lakehouse_is_no_backup(lake: Lakehouse, tmp_path: Path) -> None:
    other = filled(new_lake(tmp_path / "other"))
    assert "holds another lakehouse" in problem(backup.run(lake, other.storage, LOCAL))


def test_a_backup_that_was_written_to(lake: Lakehouse, target: Storage) -> None:
    """It goes its own way: one version further it is newer than the lakehouse, then of the same number."""
    exported(lake, target, history=True)
    with Lakehouse.open(target).transaction() as txn:
        txn.create_namespace("mine")
    assert "newer than version" in problem(backup.run(lake, target, LOCAL))
    with lake.transaction() as txn:
        txn.create_namespace("ours")
    assert "was written to since" in problem(backup.run(lake, target, LOCAL))


@pytest.mark.parametrize("broken", ["node", "root", "definition"])
def test_a_damaged_backup_says_what_to_do(broken: str, lake: Lakehouse, target: Storage) -> None:
    exported(lake, target, history=True)
    surgery = Surgery(target.root, 4)
    path = {
        "node": surgery.leaf(lake.version),
        "root": lake.root_node.path,
        "definition": next(entry.path for entry in lake.objects(kind="table")),
    }[broken]
    surgery.write(path, b"garbage")
    found = backup.run(lake, target, LOCAL)
    assert all("export to another root URI, this one is damaged" in each for each in found.problems)
    assert found.problems
    unread = backup.run(lake, target, backup.Config(engine="local", definitions=False))
    assert (broken == "definition") == unread.ok


def test_a_backup_that_says_something_else(lake: Lakehouse, target: Storage) -> None:
    """Every invariant holds, and still a table is another one: only the digest tells."""
    exported(lake, target)
    surgery = Surgery(target.root, 4)
    one, two = [entry.path for entry in lake.objects(kind="table")][:2]
    for path, found in surgery.tree(lake.version):
        if two in [*found.values, *found.buffer.values]:
            with surgery.node(path) as node:
                node.values = [one if each == two else each for each in node.values]
                node.buffer.values[:] = [one if each == two else each for each in node.buffer.values]
    assert "has another content" in backup.run(lake, target, LOCAL).problems[0]


def test_a_backup_may_lag_behind_for_a_while(lake: Lakehouse, target: Storage) -> None:
    """What counts is when the first version was committed that it lacks; without one it is never too old."""
    exported(lake, target, history=True)
    later = now_millis() + 3_600_000
    aged = backup.Config(engine="local", max_age_seconds=1800, now_millis=later)
    assert backup.run(lake, target, aged).ok
    with lake.transaction() as txn:
        txn.create_namespace("new")
    young = backup.run(lake, target, backup.Config(engine="local", max_age_seconds=1800))
    assert ([], lake.refresh().info().created_at) == (young.problems, young.unsaved_since)
    assert "is in no backup" in problem(backup.run(lake, target, aged))


def test_a_backup_whose_version_has_expired_cannot_be_compared(lake: Lakehouse, target: Storage) -> None:
    from pipelines import expire

    exported(lake, target, history=True)
    with lake.transaction() as txn:
        txn.create_namespace("new")
    late = expire.Config(engine="local", keep_last=1, now_millis=now_millis() + 8 * 24 * 3_600_000)
    assert expire.run(lake, late).versions_expired
    assert "has expired at the lakehouse" in problem(backup.run(lake, target, LOCAL))


# -- a definition that was changed by as many bytes ------------------------------------------------------


def _changed(surgery: Surgery, path: str) -> None:
    """Change one letter of a definition's ID, so that it still parses and is as long as before."""
    data = surgery.read(path)
    surgery.write(path, data[:5] + (b"0" if data[5:6] != b"0" else b"1") + data[6:])


def test_a_definition_that_was_changed_in_the_backup_is_found_by_its_checksum(lake: Lakehouse, target: Storage) -> None:
    """It has the size that it had, so an export does not copy it again."""
    exported(lake, target)
    _changed(Surgery(target.root, 4), [entry.path for entry in lake.objects()][7])
    assert 0 == export.run(lake, target, export.Config(engine="local")).definitions_copied
    assert "I15" in problem(backup.run(lake, target, LOCAL))


def test_a_repeated_export_reads_no_definition(lake: Lakehouse, target: Storage) -> None:
    """Those that are there already are not read again: the proof reads them, at the backup."""
    exported(lake, target)
    before = target.counts.snapshot(), lake.storage.counts.snapshot()
    exported(lake, target)
    assert 20 > (target.counts - before[0]).get
    assert backup.run(Lakehouse.open(lake.storage), target, LOCAL).ok


def test_what_only_older_versions_need_is_proved_before_they_expire_here(lake: Lakehouse, target: Storage) -> None:
    """The newest version of the backup is sound: eight nodes are damaged that older ones need."""
    exported(lake, target, history=True)
    surgery = Surgery(target.root, 4)
    newest = {path for path, _ in surgery.tree(lake.version)}
    older = {path for version in range(lake.version) for path, _ in surgery.tree(version)}
    every = len(newest | older)
    assert every == backup.run(lake, target, LOCAL).nodes_read
    damaged = [path for path in sorted(older - newest) if not path.startswith("_")][:8]
    for path in damaged:
        surgery.write(path, b"garbage")
    found = backup.run(lake, target, LOCAL)
    assert not found.ok
    assert {each.file for each in found.findings} <= set(damaged), "below a damaged node nothing is seen"
    mended = mend.run(Lakehouse.open(target), mend.Config(reason="r", source=lake.root, engine="local"))
    assert set(damaged) == set(mended.files)
    assert (True, lake.version + 1) == ((again := backup.run(lake, target, LOCAL)).ok, again.versions_verified)
    clock_later = now_millis() + 30 * 86_400_000
    expire.run(lake, expire.Config("local", keep_last=1, now_millis=clock_later))
    exported(lake, target, history=True)
    assert 2 == backup.run(lake, target, LOCAL).versions_verified, "what has expired here was proved before"


def test_a_snapshot_whose_root_leads_outside_is_a_problem_and_no_error(lake: Lakehouse, target: Storage) -> None:
    """Nobody can ask either side for such a file; the check ended with an error."""
    lake.create_snapshot("monthly")

    def edit(before: LakehouseDef, _: Root) -> LakehouseDef:
        after = altered_lakehouse(before, properties={})
        after.snapshots["monthly"].root_node_file_path = "../outside"
        return after

    backend = lake.refresh().backend
    commit(backend, backend.newest(), NewDefinition(backend, spec.OP_ALTER, commit_summary(), edit))
    shutil.copytree(Surgery(lake.root, 3).directory, Surgery(target.root, 3).directory, dirs_exist_ok=True)
    found = backup.run(lake.refresh(), target, LOCAL)
    assert "'../outside'" in problem(found)
    assert not found.is_lost_here

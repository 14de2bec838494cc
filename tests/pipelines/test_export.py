"""Export: the copy is a lakehouse of its own, repeated it is a backup, and killed it goes on."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pipelines import backup, export, snapshot, verify
from pipelines.job import dry_run
from tests.support.lakes import FAST, compacted, filled, new_lake
from tests.support.s3_servers import S3Server
from tests.support.surgery import Surgery, listing
from tests.support.sweep import in_memory
from trinitylake_core import AlreadyExists, Corrupt, InvalidInput, Lakehouse, Refused, SnapshotNotFound, spec
from trinitylake_core.commits.changes import SameContent, commit_summary
from trinitylake_core.commits.commit import commit
from trinitylake_core.errors import NotALakehouse, ReadOnly, VersionExpired
from trinitylake_core.locations import root_path
from trinitylake_core.storage.base import BaseStorage
from trinitylake_core.transactions import edits

HERE = export.Config(engine="local")
HISTORY = export.Config(engine="local", history=True)


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A directory in memory where there is such a thing: these tests write many small files."""
    with tempfile.TemporaryDirectory(dir=in_memory()) as directory:
        yield Path(directory)


@pytest.fixture
def lake(tmp_path: Path) -> Lakehouse:
    """Three levels, messages in the root, a snapshot, at version 12."""
    made = filled(new_lake(tmp_path), tables=32, changes=4)
    compacted(made)
    made.create_snapshot("early", version=3)
    with made.transaction(reason="last") as txn:
        txn.alter_table("ns1", "t001", properties={"a": "b"})
    return made.refresh()


@pytest.fixture
def target(tmp_path: Path) -> str:
    return (tmp_path / "copy").as_uri()


def opened(root: str) -> Lakehouse:
    return Lakehouse.open(root, storage_options=FAST)


def run(
    lake: Lakehouse, target: str, config: export.Config = HERE, spark: Any = None, review: Any = None
) -> export.Report:
    return export.run(lake, target, config, spark, storage_options=FAST, review=review)


def files(root: str) -> dict[str, bytes]:
    return listing(Path(root.removeprefix("file://")))


def reached(lake: Lakehouse) -> set[str]:
    """Return every file of one version, by plain recursion."""
    found = {lake.root_node.definition_path}
    waiting = [lake.root_node.node]
    while waiting:
        node = waiting.pop()
        found.update(node.children, node.values, (value for value in node.buffer.values if value is not None))
        waiting += [lake.nodes.read(path) for path in node.children]
    return found


def change(lake: Lakehouse, times: int) -> None:
    for turn in range(times):
        with lake.transaction() as txn:
            txn.alter_table("ns1", "t001", properties={"turn": str(turn)})
            if turn % 10 == 0:
                txn.create_table("ns2", f"n{turn}")
    lake.refresh()


def expire(lake: Lakehouse, oldest: int) -> None:
    change_ = SameContent(spec.OP_EXPIRE, commit_summary(), {spec.OLDEST_VERSION: str(oldest)})
    commit(lake.backend, lake.refresh().root_node, change_)
    lake.storage.replace(spec.BOUNDARY_FILE, str(oldest).encode())
    lake.storage.delete_many([root_path(version) for version in range(oldest)])
    lake.refresh()


# -- a root below the boundary is not a version ------------------------------------------------------


def test_a_root_file_below_the_boundary_is_not_exported(lake: Lakehouse, target: str) -> None:
    left = Surgery(lake.root, 4).read(root_path(5))
    expire(lake, 9)
    Surgery(lake.root, 4).write(root_path(5), left)
    with pytest.raises(VersionExpired, match="version 5 has expired"):
        run(lake, target, export.Config(version=5, engine="local"))
    with pytest.raises(NotALakehouse):
        opened(target)


def test_the_root_of_a_late_writer_does_not_stand_for_a_version_that_expired(lake: Lakehouse, target: str) -> None:
    """A copy is compared with versions, not with what was put in the place of one after it had expired."""
    run(lake, target)
    copied = lake.version
    change(lake, 2)
    expire(lake, copied + 1)
    Surgery(lake.root, 4).write(root_path(copied), b"of a late writer")
    expected = "has expired at the lakehouse, so they cannot be compared; export again"
    assert expected in backup.run(lake, target, backup.Config(engine="local"), storage_options=FAST).problems[0]
    run(lake, target)
    assert backup.run(lake, target, backup.Config(engine="local"), storage_options=FAST).ok


# -- the copy ------------------------------------------------------------------------------------------


def test_without_snapshots_the_root_has_the_bytes_of_the_source(lake: Lakehouse, target: str) -> None:
    lake.drop_snapshot("early")
    lake.refresh()
    run(lake, target)
    assert files(lake.root)[root_path(lake.version)] == files(target)[root_path(lake.version)]
    assert files(target).items() - files(lake.root).items() == {(spec.BOUNDARY_FILE, str(lake.version).encode())}


def test_the_copy_of_a_history_holds_every_version_and_snapshot(lake: Lakehouse, target: str) -> None:
    expire(lake, 5)
    digests = {version: lake.at(version=version).digest() for version in range(5, lake.version + 1)}
    early = lake.at(snapshot="early").digest()
    run(lake, target, HISTORY)
    shutil.rmtree(lake.root.removeprefix("file://"))
    copy = opened(target)
    assert digests == {info.version: copy.at(version=info.version).digest() for info in copy.history()}
    assert (3, early) == (copy.at(snapshot="early").version, copy.at(snapshot="early").digest())
    for version in digests:
        assert [] == list(copy.at(version=version).check(definitions=True))


@pytest.mark.s3
def test_on_s3(lake: Lakehouse, moto_server: S3Server) -> None:
    there, back = moto_server.new_root(), moto_server.new_root()
    done = export.run(lake, there, HISTORY, storage_options=moto_server.options)
    assert (lake.version + 1, 0) == (done.roots_created, done.plan.files_there)
    middle = Lakehouse.open(there, storage_options=moto_server.options)
    assert (lake.digest(), []) == (middle.digest(), list(middle.check(definitions=True)))
    export.run(middle, back, HERE, storage_options=moto_server.options)
    copy = Lakehouse.open(back, storage_options=moto_server.options)
    assert (lake.digest(), []) == (copy.digest(), list(copy.check(definitions=True)))
    again = export.run(middle, back, HERE, storage_options=moto_server.options)
    assert (0, 0, 0) == (again.definitions_copied, again.nodes_copied, again.roots_created)


# -- repeated ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [HERE, HISTORY], ids=["version", "history"])
def test_a_dry_run_says_exactly_what_will_happen(lake: Lakehouse, target: str, config: export.Config) -> None:
    run(lake, target, config)
    change(lake, 3)
    before = files(target)
    dry = run(lake, target, export.Config(engine="local", history=config.history), review=dry_run)
    assert before == files(target)
    done = run(lake, target, config)
    plan = done.plan
    assert dry.plan == plan
    assert (plan.definitions, plan.nodes, plan.roots, plan.bytes, plan.roots_removed) == (
        done.definitions_copied,
        done.nodes_copied,
        done.roots_created,
        done.bytes_copied,
        done.roots_removed,
    )
    after = files(target)
    assert plan.bytes == sum(len(after[path]) for path in after.keys() - before.keys())


def test_a_file_that_was_cut_short_is_copied_again(lake: Lakehouse, target: str) -> None:
    run(lake, target)
    whole = files(target)
    surgery = Surgery(target, lake.definition.order)
    for path in (lake.root_node.node.children[0], next(lake.objects()).path):
        surgery.write(path, whole[path][:10])
    done = run(lake, target)
    assert (1, 1, 0) == (done.definitions_copied, done.nodes_copied, done.roots_created)
    assert whole == files(target)


def test_a_history_that_expired_at_the_source_expires_at_the_copy(lake: Lakehouse, target: str) -> None:
    """Even when the newest version of the copy is gone at the source."""
    run(lake, target, HISTORY)
    copied = lake.version
    change(lake, 3)
    expire(lake, copied + 1)
    done = run(lake, target, HISTORY)
    copy = opened(target)
    assert (13, 4, lake.digest()) == (done.roots_removed, done.roots_created, copy.digest())
    assert [info.version for info in lake.history()] == [info.version for info in copy.history()]
    assert [] == list(copy.check(definitions=True))


@pytest.mark.parametrize("config", [HERE, HISTORY], ids=["version", "history"])
def test_a_copy_that_was_written_to_is_never_replaced(lake: Lakehouse, target: str, config: export.Config) -> None:
    """Not even when the version it began with has expired at the source, which then proves nothing."""
    run(lake, target, config)
    with opened(target).transaction() as txn:
        txn.create_namespace("theirs")
    change(lake, 10)
    expire(lake, lake.version - 2)
    before = files(target)
    with pytest.raises(AlreadyExists, match="may have been written to since it was exported"):
        run(lake, target, HERE)
    assert before == files(target)
    assert "theirs" in opened(target).namespaces()


# -- refused -------------------------------------------------------------------------------------------


def other(tmp_path: Path, _: Lakehouse, target: str) -> None:
    filled(new_lake(tmp_path / "other"), tables=4)
    shutil.copytree(tmp_path / "other" / "lake", target.removeprefix("file://"))


def newer(_: Path, lake: Lakehouse, target: str) -> None:
    change(lake, 1)
    run(lake, target)


def written(_: Path, lake: Lakehouse, target: str) -> None:
    run(lake, target)
    change(opened(target), 1)
    change(lake, 1)


def history(_: Path, lake: Lakehouse, target: str) -> None:
    run(lake, target, HISTORY)
    change(lake, 1)


def single(_: Path, lake: Lakehouse, target: str) -> None:
    run(lake, target)


@pytest.mark.parametrize(
    ("prepare", "config", "error", "message"),
    [
        (other, {}, AlreadyExists, "holds another lakehouse"),
        (other, {"history": True}, AlreadyExists, "holds another lakehouse"),
        (newer, {"version": 11}, Refused, "holds version 13, newer than version 11"),
        (written, {}, AlreadyExists, "was written to since it was exported"),
        (written, {"history": True}, AlreadyExists, "was written to since it was exported"),
        (history, {}, Refused, "13 older versions, which an export of one version would remove"),
        (single, {"history": True}, Refused, "starts at version 12"),
    ],
)
@pytest.mark.parametrize("review", [None, dry_run])
def test_a_wrong_target_is_refused_and_nothing_changes(
    tmp_path: Path,
    lake: Lakehouse,
    target: str,
    prepare: Callable[[Path, Lakehouse, str], None],
    config: dict[str, Any],
    error: type[Exception],
    message: str,
    review: Any,
) -> None:
    prepare(tmp_path, lake, target)
    before = files(target), files(lake.root)
    with pytest.raises(error, match=message):
        run(lake, target, export.Config(engine="local", **config), review=review)
    assert before == (files(target), files(lake.root))


def test_wrong_input_is_refused(lake: Lakehouse, target: str, java_lakehouse: str) -> None:
    with pytest.raises(InvalidInput, match="at, below or above"):
        run(lake, lake.root)
    with pytest.raises(InvalidInput, match="do not give a version"):
        export.Config(history=True, version=3)
    with pytest.raises(ReadOnly, match="trinitylake upgrade"):
        export.run(Lakehouse.open(java_lakehouse), target, HERE)
    with pytest.raises(LookupError, match="version 99 does not exist"):
        run(lake, target, export.Config(version=99, engine="local"))
    assert not Path(target.removeprefix("file://")).exists()


def test_a_damaged_target_is_not_taken_for_a_damaged_source(lake: Lakehouse, target: str) -> None:
    run(lake, target)
    Surgery(target, lake.definition.order).write(root_path(lake.version), b"garbage")
    with pytest.raises(Corrupt, match=f"what is at {target}.* cannot be read.*another root URI"):
        run(lake, target)


def test_a_pointer_that_leads_outside_is_damage_and_not_wrong_input(lake: Lakehouse, target: str) -> None:
    with Surgery(lake.root, lake.definition.order).node(lake.root_node.path) as node:
        node.values[0] = "../elsewhere"
    with pytest.raises(Corrupt, match="may lead outside"):
        run(Lakehouse.open(lake.root), target)
    with pytest.raises(NotALakehouse):
        opened(target)


def test_a_root_that_says_that_it_has_expired_itself_is_not_copied(lake: Lakehouse, target: str) -> None:
    """Nothing would be: there is no version from that boundary on."""
    with Surgery(lake.root, lake.definition.order).node(lake.root_node.path) as node:
        node.system["oldest_version"] = "99999999999999999999"
    with pytest.raises(Corrupt, match="lies beyond"):
        run(Lakehouse.open(lake.root), target, export.Config(history=True, engine="local"))
    assert not Path(target.removeprefix("file://")).exists()


@pytest.mark.parametrize("moment", range(1, 5))
def test_a_version_that_expires_while_an_export_begins_is_not_damage(lake: Lakehouse, target: str, moment: int) -> None:
    """Before each of the first looks at the boundary: the export is refused, or copies what is there."""
    other = opened(lake.root)
    looks = 0

    def expire_at_the_moment(kind: str, path: str, action: Callable[[], Any]) -> Any:
        nonlocal looks
        looks += path == spec.BOUNDARY_FILE
        if looks == moment and path == spec.BOUNDARY_FILE:
            with other.transaction() as txn:
                txn.create_namespace("later")
            expire(other.refresh(), other.version)
        return action()

    assert isinstance(lake.storage, BaseStorage)
    lake.storage.interceptor = expire_at_the_moment
    with suppress(Refused):
        run(lake, target, HISTORY)
    lake.storage.interceptor = None
    run(lake.refresh(), target, HISTORY)
    assert opened(target).version == lake.version


def test_a_snapshot_that_is_dropped_while_its_history_is_exported_is_not_damage(
    lake: Lakehouse, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cleaning that follows removes its root. A root that is lost is damage, as ever."""
    surgery, look = Surgery(lake.root, 4), export.inspect
    path = lake.snapshots()[0].root_path
    kept = surgery.read(path)
    surgery.remove(path)
    assert ["early"] == [each.snapshot for each in run(lake, target, HISTORY).plan.damaged]
    surgery.write(path, kept)

    def dropped(*args: Any, **more: Any) -> Any:
        opened(lake.root).drop_snapshot("early")
        surgery.remove(path)
        return look(*args, **more)

    monkeypatch.setattr(export, "inspect", dropped)
    with pytest.raises(Refused, match="snapshot 'early' was dropped while the export ran; run it again"):
        run(lake, target, HISTORY)
    monkeypatch.setattr(export, "inspect", look)
    run(lake.refresh(), target, HISTORY)
    assert [] == list(opened(target).check(definitions=True))


# -- full snapshots, Spark -----------------------------------------------------------------------------


def test_a_full_snapshot_is_an_export_with_a_name(lake: Lakehouse, target: str) -> None:
    digest = lake.at(version=8).digest()
    config = export.Config(version=8, engine="local")
    done = snapshot.full(lake, "offsite", target, config, reason="audit", storage_options=FAST)
    assert done.snapshot is not None
    assert ("full", 8, opened(target).root) == (done.snapshot.kind, done.snapshot.version, done.snapshot.target_uri)
    assert digest == opened(target).digest() == lake.at(snapshot="offsite").digest()
    assert [] == list(lake.check(definitions=True))
    expire(lake, 10)
    with pytest.raises(SnapshotNotFound, match=f"open {target}"):
        lake.at(snapshot="offsite")
    before = files(target)
    with pytest.raises(AlreadyExists, match="snapshot 'offsite' already exists"):
        snapshot.full(lake, "offsite", target, HERE, storage_options=FAST)
    assert before == files(target)


@pytest.mark.spark
@pytest.mark.parametrize(
    "config", [pytest.param(HERE, id="version", marks=pytest.mark.slow), pytest.param(HISTORY, id="history")]
)
def test_spark_makes_the_same_copy(lake: Lakehouse, target: str, config: export.Config, spark: Any) -> None:
    here = run(lake, target + "-here", config)
    there = run(lake, target, export.Config(history=config.history), spark)
    assert (here.plan.definitions, here.plan.nodes, here.plan.roots, here.plan.bytes, here.plan.files_there) == (
        there.plan.definitions,
        there.plan.nodes,
        there.plan.roots,
        there.plan.bytes,
        there.plan.files_there,
    )
    assert (here.definitions_copied, here.nodes_copied, here.bytes_copied) == (
        there.definitions_copied,
        there.nodes_copied,
        there.bytes_copied,
    )
    assert files(target + "-here") == files(target)


@pytest.mark.parametrize("place", ["..", "below/it"])
def test_an_export_above_or_below_its_own_lakehouse_is_refused(tmp_path: Path, place: str) -> None:
    lake = Lakehouse.create((tmp_path / "some" / "lake").as_uri())
    target = (tmp_path / "some" / "lake" / place).resolve()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InvalidInput, match="lies at, below or above the lakehouse"):
        run(lake, target.as_uri())
    assert before == sorted(tmp_path.rglob("*"))


@pytest.mark.parametrize("place", ["", "/below/it"])
def test_an_export_to_its_own_lakehouse_by_another_name_is_refused(tmp_path: Path, place: str) -> None:
    """To an export of one version the older one of the lakehouse itself would be one to remove."""
    lake = new_lake(tmp_path)
    with lake.transaction() as txn:
        txn.create_namespace("a")
    (tmp_path / "alias").symlink_to(tmp_path / "lake")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InvalidInput, match="lies at, below or above the lakehouse"):
        run(lake.refresh(), (tmp_path / "alias").as_uri() + place)
    assert before == sorted(tmp_path.rglob("*"))


@pytest.mark.parametrize("name", ["given", "made", "count"])
def test_a_definition_may_have_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """No file is taken for one of the rows that say how many files there are."""
    monkeypatch.setattr(edits, "definition_path", lambda *_: name)
    lake = Lakehouse.create((tmp_path / "lake").as_uri(), storage_options=FAST)
    with lake.transaction() as txn:
        txn.create_namespace("a")
    copy = (tmp_path / "copy").as_uri()
    export.run(lake.refresh(), copy)
    assert verify.run(Lakehouse.open(copy), verify.Config("all", definitions=True)).ok

"""The jobs around a newest root that cannot be read: what they refuse before a rollback, and what goes on after it."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipelines import backup, clean, compaction, export, mend, stats, verify
from pipelines import expire as expire_job
from pipelines.cli import main
from pipelines.job import Cancel, dry_run
from tests.support.faults import FaultPlan, attach
from tests.support.lakes import FAST, CancelBy, compacted, filled, new_lake, reopened
from tests.support.surgery import Surgery, files_of
from trinitylake_core import Corrupt, CorruptNode, Lakehouse, spec
from trinitylake_core.clock import now_millis
from trinitylake_core.errors import StorageError
from trinitylake_core.locations import root_path
from trinitylake_core.storage import open_storage
from trinitylake_core.storage.base import BaseStorage
from trinitylake_core.versions import LOST_MARK

DAY = 86_400_000


@pytest.fixture
def lake(tmp_path: Path) -> Lakehouse:
    """Versions 0 to 8; the root of 8 is cut short."""
    made = filled(new_lake(tmp_path), tables=28)
    harm(made, 8)
    return made


def harm(lake: Lakehouse, version: int) -> None:
    surgery = Surgery(lake.root, lake.definition.order)
    surgery.write(root_path(version), surgery.read(root_path(version))[:1000])


def expire(lake: Lakehouse, keep: int = 1, cancel: Cancel | None = None, **more: object) -> expire_job.Report:
    config = expire_job.Config("local", keep_last=keep, now_millis=now_millis() + 30 * DAY, **more)  # type: ignore[arg-type]
    return expire_job.run(lake, config, cancel=cancel)


def test_nothing_is_deleted_or_rewritten_over_an_unreadable_root(lake: Lakehouse) -> None:
    """Not through a handle that was opened for looking back, nor through one that stood on a version before."""
    before = files_of(lake)
    for handle in (Lakehouse.open(lake.root, storage_options=FAST, damaged=True), lake.at(version=7)):
        with pytest.raises(Corrupt):
            expire(handle)
        with pytest.raises(Corrupt):
            clean.run(handle, clean.Config("local", older_than_seconds=0, allow_recent=True))
        with pytest.raises(Corrupt):
            compaction.run(handle, compaction.Config("local"))
        assert before == files_of(lake)


def test_maintenance_goes_on_after_the_rollback(lake: Lakehouse) -> None:
    """The garbage is a finding in the history, and cleaning waits for it, until it expires like any version."""
    Lakehouse.open(lake.root, storage_options=FAST, damaged=True).rollback(version=7, reason="r")
    after = reopened(lake)
    digest = after.digest()
    assert verify.run(after, verify.Config(engine="local", definitions=True)).ok
    found = verify.run(after, verify.Config("all", engine="local"))
    assert {root_path(8)} == {finding.file for finding in found.findings}
    with pytest.raises(Corrupt):
        clean.run(after, clean.Config("local", older_than_seconds=0, allow_recent=True))
    assert 9 == expire(after).boundary_after
    done = clean.run(after.refresh(), clean.Config("local", older_than_seconds=0, allow_recent=True), review=dry_run)
    assert 0 < done.orphan_files
    assert verify.run(after, verify.Config("all", engine="local", definitions=True)).ok
    assert digest == reopened(lake).digest()


def test_an_expiration_ends_at_any_version_around_an_unreadable_one(lake: Lakehouse) -> None:
    """Its age is that of the next one that can be read: it is kept for too long rather than removed too early."""
    Lakehouse.open(lake.root, storage_options=FAST, damaged=True).rollback(version=7, reason="r")
    after = reopened(lake)
    for keep, boundary in ((4, 6), (3, 8), (2, 10)):
        done = expire(after.refresh(), keep)
        assert boundary == done.boundary_after
        assert boundary == reopened(lake).root_node.oldest_version


def test_an_expiration_whose_root_became_unreadable_deletes_nothing(tmp_path: Path) -> None:
    """Somebody may have rolled back over it meanwhile, to a version that it would delete."""
    lake = filled(new_lake(tmp_path), tables=28)
    digest = lake.at(version=3).digest()

    def pause() -> None:
        if (
            lake.backend.newest_seen.version == 9 and lake.backend.versions.boundary() == 0
        ):  # committed, the file not yet raised
            harm(lake, 9)
            Lakehouse.open(lake.root, storage_options=FAST, damaged=True).rollback(version=3, reason="r")

    with pytest.raises(CorruptNode):
        expire(lake, cancel=CancelBy(pause))
    after = reopened(lake)
    assert (10, 0) == (after.version, after.root_node.oldest_version)
    assert [] == list(after.check(definitions=True))
    assert digest == after.digest()


def test_health_and_backup_look_past_an_unreadable_root(lake: Lakehouse, tmp_path: Path) -> None:
    """Anywhere in the history: the oldest version, one that was looked at for its age, the first after the backup."""
    copy = (tmp_path / "copy").as_uri()
    export.run(lake.at(version=6), copy, export.Config(version=6, engine="local"))
    Lakehouse.open(lake.root, storage_options=FAST, damaged=True).rollback(version=7, reason="r")
    after = reopened(lake)
    assert backup.run(after, copy, backup.Config(engine="local")).ok
    for version in (0, 7):  # the oldest one, and the first that the backup lacks
        harm(lake, version)
    assert 0 < (stats.deep(after).oldest_version_age_seconds or 0)
    assert stats.debt(after, 1, 0, now_millis() + DAY).messages
    assert backup.run(after, copy, backup.Config(engine="local")).ok


def test_the_command_line_reads_older_versions_and_rolls_back(
    lake: Lakehouse, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def cli(*words: str) -> tuple[int, str, str]:
        code = main([*words, "--storage-option", "durable=false"])
        return code, *capsys.readouterr()

    digest = lake.at(version=6).digest()
    code, _, err = cli("ls", lake.root)
    assert (4, True) == (code, f"`trinitylake rollback {lake.root} --to-version 7 --reason REASON`" in err)
    copied = cli("export", lake.root, (tmp_path / "all").as_uri(), "--history", "--engine", "local")
    assert (4, err) == (copied[0], copied[2])
    for words in (["ls"], ["show"], ["stats"]):
        code, out, err = cli(*words, lake.root, *(["ns0"] if words == ["show"] else []), "--version", "6")
        assert (0, True, True) == (code, bool(out), "warning: version 8 is left out" in err), words
    code, out, _ = cli("history", lake.root, "--json")
    versions = json.loads(out)["versions"]
    assert (0, list(range(8, -1, -1))) == (code, [each["version"] for each in versions])
    assert "the root file cannot be read" in versions[0]["reason"]
    assert 0 == cli("diff", lake.root, "3", "5")[0]
    copy = (tmp_path / "copy").as_uri()
    code, out, err = cli("export", lake.root, copy, "--version", "6", "--engine", "local")
    assert (0, digest) == (code, Lakehouse.open(copy).digest()), err
    assert 1 == cli("verify", lake.root, "--engine", "local")[0]
    back = ["rollback", lake.root, "--to-version", "6", "--reason", "incident", "--engine", "local"]
    code, out, _ = cli(*back, "--dry-run")
    assert (0, True) == (code, "compared is version 7, the newest one that can be read" in out)
    code, out, _ = cli(*back, "--expected-version", "8")
    assert (0, True) == (code, "version 9 committed" in out)
    assert digest == reopened(lake).digest()
    assert 0 == cli("verify", lake.root, "--engine", "local", "--definitions")[0]
    assert spec.OP_ROLLBACK == json.loads(cli("history", lake.root, "--json")[1])["versions"][0]["operation"]


def test_a_backup_copies_what_can_be_read_and_names_the_rest(
    lake: Lakehouse, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The oldest version, too; the copy has the same bytes, opens, and has the same history. Exit code 1, each time."""

    def cli(*words: str) -> tuple[int, str, str]:
        code = main(
            ["export", lake.root, *words, "--history", "--engine", "local", "--storage-option", "durable=false"]
        )
        return code, *capsys.readouterr()

    Lakehouse.open(lake.root, storage_options=FAST, damaged=True).rollback(version=7, reason="r")
    harm(lake, 0)
    copy = tmp_path / "copy"
    code, out, _ = cli(copy.as_uri(), "--dry-run", "--json")
    assert (1, [0, 8]) == (code, [each["version"] for each in json.loads(out)["plan"]["unreadable"]])
    code, out, err = cli(copy.as_uri())
    assert (1, True, True) == (code, "version 0 cannot be copied" in out, "version 8 cannot be copied" in out), err
    there, here = (Lakehouse.open(root, storage_options=FAST) for root in (copy.as_uri(), lake.root))
    assert here.version == there.version == 9
    for version in range(1, 8):
        assert here.at(version=version).digest() == there.at(version=version).digest()
        checked = [list(root.at(version=version).check(definitions=True)) for root in (here, there)]
        assert checked[0] == checked[1]
    assert list(here.history()) == list(there.history())
    for version in (0, 8):
        assert here.storage.read(root_path(version)) == there.storage.read(root_path(version))
    proved = backup.run(here, copy.as_uri(), backup.Config(engine="local"))
    assert {("I1", 0), ("I14", 1), ("I1", 8)} == {(each.invariant, each.first_version) for each in proved.findings}
    code, out, _ = cli(copy.as_uri())
    assert (1, True) == (code, "nothing to copy" in out)
    with here.transaction() as txn:
        txn.create_namespace("later")
    assert (1, 10) == (cli(copy.as_uri())[0], reopened(there).version)


def test_a_version_that_was_copied_before_it_was_damaged_is_said_to_be_in_the_copy(tmp_path: Path) -> None:
    lake, copy = filled(new_lake(tmp_path), tables=28), (tmp_path / "copy").as_uri()
    how = export.Config(history=True, engine="local")
    export.run(lake, copy, how, storage_options=FAST)
    digest = lake.at(version=5).digest()
    harm(lake, 5)
    with lake.transaction() as txn:
        txn.create_namespace("later")
    done = export.run(lake, copy, how, storage_options=FAST)
    assert [(5, True)] == [(each.version, each.at_target) for each in done.plan.unreadable]
    assert digest == Lakehouse.open(copy, storage_options=FAST).at(version=5).digest()


def test_a_backup_that_fails_around_an_unreadable_root_opens_and_goes_on(tmp_path: Path) -> None:
    """At each request that writes; the unreadable root is never the newest one there."""
    lake, copy = filled(new_lake(tmp_path), tables=8), tmp_path / "copy"
    how = export.Config(history=True, engine="local")
    export.run(lake, copy.as_uri(), how, storage_options=FAST)
    first = lake.version
    for name in ("a", "b"):
        with lake.transaction() as txn:
            txn.create_namespace(name)
    harm(lake, first + 2)
    Lakehouse.open(lake.root, storage_options=FAST, damaged=True).rollback(version=first + 1, reason="r")
    source, opened = reopened(lake), set()
    for at in range(1, 100):
        place = tmp_path / f"copy{at}"
        shutil.copytree(copy, place)
        target = open_storage(place.as_uri(), FAST)
        plan = attach(target, FaultPlan("fail_permanently", at, {"create", "put"}))
        try:
            export.run(source, target, how)
        except StorageError:
            there = Lakehouse.open(place.as_uri(), storage_options=FAST)
            found = {each.file for each in there.check(definitions=True)}
            assert found <= {root_path(first + 2)}, "it is the last to come, and missing until the export is repeated"
            opened.add(there.version)
        export.run(source, place.as_uri(), how, storage_options=FAST)
        assert list(source.history()) == list(Lakehouse.open(place.as_uri(), storage_options=FAST).history())
        if plan.count < at:
            break
    assert {first, first + 1} <= opened <= {first, first + 1, source.version}


def _rot_a_node(lake: Lakehouse) -> tuple[str, str]:
    with lake.transaction() as txn:
        txn.create_namespace("later")
    good, bad = lake.version, compacted(lake.refresh())
    path = min(set(bad.node.children) - set(lake.root_node.node.children))
    lake.refresh().rollback(version=good, reason="incident")
    return path, f"version {bad.version}"


def _rot_a_definition(lake: Lakehouse) -> tuple[str, str]:
    with lake.transaction() as txn:
        txn.create_table("ns0", "gone")
    (path,) = [each.path for each in lake.refresh().objects() if each.name == "gone"]
    with lake.transaction() as txn:
        txn.drop_table("ns0", "gone")
    return path, f"version {lake.version}"  # of the newest one only a message that waits names it still


def _rot_a_snapshot(lake: Lakehouse) -> tuple[str, str]:
    lake.create_snapshot("monthly", version=5)
    (snapshot,) = lake.refresh().snapshots()
    return snapshot.root_path, "snapshot monthly"


@pytest.mark.parametrize("data", [None, b"garbage"], ids=["missing", "damaged"])
@pytest.mark.parametrize("rot", [_rot_a_node, _rot_a_definition, _rot_a_snapshot])
def test_what_neither_side_has_is_named_and_the_rest_is_backed_up(
    rot: Callable[[Lakehouse], tuple[str, str]], data: bytes | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each night, until somebody gives it up: one damaged snapshot ended every backup, with nothing copied."""
    lake, copy = filled(new_lake(tmp_path), tables=28), (tmp_path / "copy").as_uri()
    path, place = rot(lake)
    surgery, lake = Surgery(lake.root, lake.definition.order), lake.refresh()
    if data is None:
        surgery.remove(path)
    else:
        surgery.write(path, data)
    words = ["export", lake.root, copy, "--history", "--engine", "local", "--storage-option", "durable=false"]
    for night in range(2):
        assert 1 == main([*words, "--json"])
        (damage,) = json.loads(capsys.readouterr().out)["plan"]["damaged"]
        assert (path, path in damage["why"] or b"garbage" == data) == (damage["file"], True)
        assert 1 == main([*words, "--dry-run"]) or rot is _rot_a_definition
        assert 1 == main(words)
        told = capsys.readouterr().out
        assert f"{place} cannot be copied whole" in told
        there = Lakehouse.open(copy, storage_options=FAST)
        assert (lake.version, lake.digest()) == (there.version, there.digest())
        for version in range(6):
            assert lake.at(version=version).digest() == there.at(version=version).digest()
        proved = backup.run(lake, copy, backup.Config(engine="local"))
        assert (False, True) == (proved.ok, proved.concerns_lost_only()), proved.problems
        with lake.transaction() as txn:
            txn.create_namespace(f"night{night}")
        lake = reopened(lake)
    if place.startswith("snapshot"):
        assert 0 == main(["snapshot", "drop", lake.root, "monthly", "--storage-option", "durable=false"])
    else:
        lost = [word for each in re.findall(r"\d+", place) for word in ("--lost", each)]
        assert 0 == main(["mend", lake.root, *lost, "--reason", "incident", "--engine", "local"])
    assert 0 == main(words)
    assert backup.run(reopened(lake), copy, backup.Config(engine="local")).ok


def test_a_snapshot_is_named_in_the_night_in_which_the_versions_that_need_the_same_are_given_up(tmp_path: Path) -> None:
    """The first export after `mend --lost` ended with 0, and the next one with 1."""
    lake, copy = filled(new_lake(tmp_path), tables=28), (tmp_path / "copy").as_uri()
    good, bad = lake.version, compacted(lake)
    lake.refresh().create_snapshot("monthly")
    path = min(set(bad.node.children) - set(lake.at(version=good).root_node.node.children))
    lake.refresh().rollback(version=good, reason="incident")
    Surgery(lake.root, lake.definition.order).remove(path)
    config = export.Config(history=True, engine="local")
    (damage,) = export.run(lake.refresh(), copy, config, storage_options=FAST).plan.damaged
    assert (path, bad.version, bad.version + 1) == (damage.file, damage.first_version, damage.last_version)
    mend.run(lake, mend.Config("incident", lost=(bad.version, bad.version + 1), engine="local"))
    for _ in range(2):
        done = export.run(lake.refresh(), copy, config, storage_options=FAST)
        assert [(path, "monthly")] == [(each.file, each.snapshot) for each in done.plan.damaged]


def test_a_definition_that_proves_itself_in_the_copy_is_never_replaced(tmp_path: Path) -> None:
    """By one that lost its end, and with it the checksum, which parses like those of 0.1.0; or by another object's."""
    lake, copy = filled(new_lake(tmp_path), tables=28), (tmp_path / "copy").as_uri()
    with lake.transaction() as txn:
        txn.alter_table("ns0", "t000", properties={"owner": "ada"})
    config = export.Config(history=True, engine="local")
    export.run(lake.refresh(), copy, config, storage_options=FAST)
    here, there = (Surgery(root, lake.definition.order) for root in (lake.root, copy))
    path, other, cut = [each.path for each in lake.objects() if each.name in {"t000", "t001", "t002"}]
    good = there.listing()
    here.write(other, here.read(path))
    here.write(cut, here.read(cut)[:-19])
    with lake.transaction() as txn:
        txn.create_namespace("later")
    done = export.run(lake.refresh(), copy, config, storage_options=FAST)
    assert ({other, cut}, True) == (set(done.plan.kept), done.plan.is_whole)
    assert [good[other], good[cut]] == [there.read(other), there.read(cut)]
    there.write(next(each.path for each in lake.objects() if each.name == "t003"), good[path])  # longer, and another's
    assert [cut] == mend.run(lake, mend.Config("incident", source=copy, engine="local")).files
    assert good[cut] == here.read(cut)


def test_an_export_beside_another_one_that_marks_a_lost_version_goes_on(tmp_path: Path) -> None:
    """It met the mark where it had just read a root, and ended with an error."""
    lake, copy = filled(new_lake(tmp_path), tables=28), (tmp_path / "copy").as_uri()
    good, bad = lake.version, compacted(lake)
    path = min(set(bad.node.children) - set(lake.at(version=good).root_node.node.children))
    lake.refresh().rollback(version=good, reason="incident")
    config = export.Config(history=True, engine="local")
    export.run(lake.refresh(), copy, config, storage_options=FAST)
    here, there = (Surgery(root, lake.definition.order) for root in (lake.root, copy))
    here.remove(path)
    there.remove(path)
    mend.run(lake, mend.Config("incident", lost=(bad.version,), engine="local"))
    place = root_path(bad.version)
    whole, target = there.read(place), open_storage(copy, FAST)

    def mark(kind: str, asked: str, action: Callable[[], Any]) -> Any:
        answer = action()
        if asked == place:
            there.write(place, LOST_MARK + whole)
        return answer

    assert isinstance(target, BaseStorage)
    target.interceptor = mark
    assert export.run(lake.refresh(), target, config).plan.is_whole
    assert LOST_MARK + whole == there.read(place)


def test_a_definition_of_the_newest_version_that_is_damaged_at_both_sides_is_no_loss_of_older_ones(
    tmp_path: Path,
) -> None:
    """Where a definition is damaged, the version that named it first is known; later ones need it, too."""
    lake, copy = filled(new_lake(tmp_path), tables=28), (tmp_path / "copy").as_uri()
    config = export.Config(history=True, engine="local")
    export.run(lake, copy, config, storage_options=FAST)
    path = min(each.path for each in lake.objects() if each.kind == "table")
    for root in (lake.root, copy):
        surgery = Surgery(root, lake.definition.order)
        surgery.write(path, bytes(len(surgery.read(path))))
    with lake.transaction() as txn:
        txn.create_namespace("later")
    export.run(lake.refresh(), copy, config, storage_options=FAST)
    proved = backup.run(lake, copy, backup.Config(engine="local"))
    assert (False, False) == (proved.ok, proved.is_lost_here), proved.problems


def test_a_storage_that_cuts_an_answer_short_gives_up_no_version(tmp_path: Path) -> None:
    """Of a node that the copy lacks: the next answer is whole, so nothing is damaged."""
    lake = filled(new_lake(tmp_path), tables=28)
    compacted(lake)
    leaf, asked = Surgery(lake.root, lake.definition.order).leaf(5), list[str]()

    def cut_the_first(_: str, path: str, action: Callable[[], Any]) -> Any:
        found = action()
        if path != leaf or not isinstance(found, bytes):
            return found
        asked.append(path)
        return found[:100] if len(asked) == 1 else found

    assert isinstance(lake.storage, BaseStorage)
    lake.storage.interceptor = cut_the_first
    with pytest.raises(StorageError, match="was read differently"):
        export.run(lake, (tmp_path / "copy").as_uri(), export.Config(history=True, engine="local"))

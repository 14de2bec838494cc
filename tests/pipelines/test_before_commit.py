"""``cancel.check``: called right before a root is created or files are deleted; raising there changes nothing more."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from pipelines import clean as clean_job
from pipelines import compaction, expire, export, load, restore, rollback, snapshot, upgrade
from tests.support.lakes import FAST, CancelBy, filled, new_lake
from trinitylake_core import Lakehouse, NotALakehouse
from trinitylake_core.clock import now_millis
from trinitylake_core.storage import open_storage

OBJECTS = Path(__file__).parent.parent / "support" / "objects.jsonl"
LATER = 10 * 24 * 3_600_000
Hook = Callable[[], None]


class Cancelled(Exception):
    """The run was cancelled."""


class Asked:
    """Lets the first so many calls pass and raises then; counts them all."""

    def __init__(self, passes: int = 0) -> None:
        self.passes = passes
        self.calls = 0

    def __call__(self) -> None:
        """Count, and pass or raise."""
        self.calls += 1
        if self.calls > self.passes:
            raise Cancelled


@pytest.fixture
def lake(tmp_path: Path) -> Lakehouse:
    """Return a lakehouse that every job would change."""
    return filled(new_lake(tmp_path), tables=24)


def _restore(lake: Lakehouse, hook: Hook) -> Any:
    how = restore.Config(only=["ns0.*"], version=3, exact=True, reason="test", engine="local")
    return restore.run(lake, how, cancel=CancelBy(hook))


def _rollback(lake: Lakehouse, hook: Hook) -> Any:
    return rollback.run(lake, rollback.Config(version=3, reason="test", engine="local"), cancel=CancelBy(hook))


def _expire(lake: Lakehouse, hook: Hook) -> Any:
    how = {"keep_last": 2, "now_millis": now_millis() + LATER}
    return expire.run(lake, expire.Config(engine="local", **how), cancel=CancelBy(hook))


def _compact(lake: Lakehouse, hook: Hook) -> Any:
    return compaction.run(lake, compaction.Config(engine="local"), cancel=CancelBy(hook))


def _snapshot(lake: Lakehouse, hook: Hook) -> Any:
    return snapshot.run(lake, {"daily": 2}, datetime(2026, 11, 20, tzinfo=UTC), cancel=CancelBy(hook))


def _load(lake: Lakehouse, hook: Hook) -> Any:
    how = load.Config(existing="skip", engine="local")
    return load.run(lake, str(OBJECTS), how, source_options={}, cancel=CancelBy(hook))


COMMITS = (_compact, _load, _rollback, _restore, _expire, _snapshot)


@pytest.mark.parametrize("job", COMMITS)
def test_what_is_cancelled_before_the_commit_does_not_commit(job: Callable[..., Any], lake: Lakehouse) -> None:
    """And the lakehouse is as sound as before; without a word against it the same job commits."""
    version, digest = lake.version, lake.digest()
    asked = Asked()
    with pytest.raises(Cancelled):
        job(lake, asked)
    newest = Lakehouse.open(lake.storage)
    assert (1, version, digest, []) == (asked.calls, newest.version, newest.digest(), list(newest.check()))
    patient = Asked(passes=9)
    job(newest, patient)
    assert (version + 1, True) == (Lakehouse.open(lake.storage).version, patient.calls >= 1)


@pytest.mark.parametrize("job", COMMITS)
def test_it_is_count_after_a_lost_race(job: Callable[..., Any], lake: Lakehouse) -> None:
    """Between two tries time passes, in which the run may be cancelled."""
    calls = []

    def lost_once() -> None:
        calls.append(len(calls))
        if len(calls) == 1:
            Lakehouse.open(lake.storage).create_snapshot("meanwhile")
        else:
            raise Cancelled

    version = lake.version
    with pytest.raises(Cancelled):
        job(lake, lost_once)
    assert ([0, 1], version + 1) == (calls, Lakehouse.open(lake.storage).version)


def test_an_expiration_that_is_cancelled_halfway_is_finished_by_the_next_one(lake: Lakehouse) -> None:
    """Before the boundary file, and before the roots: what is committed stays, no root is gone."""
    roots = len(list(lake.storage.list("_")))
    for _ in range(2):  # the first one commits, the second one advances the boundary file
        with pytest.raises(Cancelled):
            _expire(lake, Asked(passes=1))
        assert roots + 1 <= len(list(lake.storage.list("_")))
    done = _expire(lake, Asked(passes=9))
    assert done.deleted > 5
    assert [] == list(lake.refresh().check())


def test_orphans_stay_if_the_removal_is_cancelled(lake: Lakehouse) -> None:
    _compact(lake, Asked(passes=9))
    _expire(lake, Asked(passes=9))
    before = {each.path for each in lake.storage.list("")}

    def clean(hook: Hook) -> Any:
        how = clean_job.Config(engine="local", now_millis=now_millis() + LATER)
        return clean_job.run(lake, how, cancel=CancelBy(hook))

    with pytest.raises(Cancelled):
        clean(Asked())
    assert before == {each.path for each in lake.storage.list("")}
    assert clean(Asked(passes=9)).deleted > 0


def test_an_export_that_is_cancelled_leaves_no_lakehouse_or_the_old_one(lake: Lakehouse, tmp_path: Path) -> None:
    target = open_storage((tmp_path / "copy").as_uri(), FAST)

    def copy(hook: Hook) -> Any:
        return export.run(lake, target, export.Config(history=True, engine="local"), cancel=CancelBy(hook))

    with pytest.raises(Cancelled):
        copy(Asked())
    with pytest.raises(NotALakehouse):
        Lakehouse.open(target)
    copy(Asked(passes=9))
    version = lake.version
    _compact(lake, Asked(passes=9))
    with pytest.raises(Cancelled):
        copy(Asked())
    assert version == Lakehouse.open(target).version


def test_an_upgrade_that_is_cancelled_goes_on_where_it_stopped(java_lakehouse: str, tmp_path: Path) -> None:
    source, target = Lakehouse.open(java_lakehouse), open_storage((tmp_path / "new").as_uri(), FAST)

    def renew(hook: Hook) -> Any:
        return upgrade.run(source, target, upgrade.Config(history=True, engine="local"), cancel=CancelBy(hook))

    with pytest.raises(Cancelled):
        renew(Asked())
    with pytest.raises(NotALakehouse):
        Lakehouse.open(target)
    with pytest.raises(Cancelled):
        renew(Asked(passes=2))
    assert 1 == Lakehouse.open(target).version
    renew(Asked(passes=99))
    assert source.digest() == Lakehouse.open(target).digest()

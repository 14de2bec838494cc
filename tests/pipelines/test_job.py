"""What every job has: the choice of an engine, phases with their seconds, and what storages were asked."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import pytest

import pipelines
from pipelines import clean, compaction, expire, restore, rollback, undo
from pipelines.job import Cancel, Meter, Progress, Review, Session, Stopwatch, dry_run, refuse_unknown, start_spark
from tests.support.lakes import filled, new_lake
from trinitylake_core import Lakehouse
from trinitylake_core.errors import InvalidInput
from trinitylake_core.storage import open_storage

_C_contra = TypeVar("_C_contra", contravariant=True)
_R_co = TypeVar("_R_co", covariant=True)


class Job(Protocol[_C_contra, _R_co]):
    """A job on one lakehouse, as the module that contains it."""

    def run(
        self,
        lake: Lakehouse,
        config: _C_contra,
        spark: Session = None,
        *,
        review: Review[_R_co] | None = None,
        cancel: Cancel | None = None,
        progress: Progress | None = None,
    ) -> _R_co:
        """Do the work and return the report (``pipelines/job.py`` says what each argument is).

        REQUIRES: ``config`` was validated when it was made; a session is needed only where its engine is ``spark``.
        ENSURES: the report is frozen. ``review`` was called before anything was committed or deleted; where it returned
        ``False``, nothing was, and the report is the one it was called with.
        """


# The contracts of pipelines.job are held against the jobs by the type checker: a job that breaks one does not pass.
CLEAN: Final[Job[clean.Config, clean.Report]] = clean
EXPIRE: Final[Job[expire.Config, expire.Report]] = expire
RESTORE: Final[Job[restore.Config, restore.Report]] = restore
ROLLBACK: Final[Job[rollback.Config, rollback.Report]] = rollback
UNDO: Final[Job[undo.Config, undo.Report]] = undo
COMPACT: Final[Job[compaction.Config, compaction.Report]] = compaction

REVIEWED: Final[dict[str, tuple[Job[Any, Any], Any]]] = {
    "compact": (COMPACT, compaction.Config(engine="local")),
    "clean": (CLEAN, clean.Config(engine="local", older_than_seconds=0, allow_recent=True)),
    "expire": (EXPIRE, expire.Config(engine="local", keep_last=2)),
    "restore": (RESTORE, restore.Config(version=2, only=("ns0.*",), reason="test", engine="local")),
    "rollback": (ROLLBACK, rollback.Config(version=2, reason="test", engine="local")),
    "undo": (UNDO, undo.Config(matching="last", reason="test", engine="local")),
}
"""Jobs, each with what it is to do in tests."""


def test_unknown_engines_and_a_missing_session_are_refused() -> None:
    with pytest.raises(InvalidInput, match="engine must be one of spark, local, auto"):
        refuse_unknown("fast")
    with pytest.raises(InvalidInput, match="needs a Spark session"):
        start_spark(None)
    with pytest.raises(InvalidInput, match="needs a Spark session"):
        start_spark(lambda: None)  # type: ignore[arg-type, return-value]


def test_a_phase_that_comes_again_counts_as_a_whole() -> None:
    watch = Stopwatch()
    for seconds in (20.0, 30.0):
        watch._began -= seconds
        watch.lap("tasks")
    assert 50 <= watch.seconds["tasks"]


def test_a_meter_counts_from_where_it_began_over_all_storages(tmp_path: Path) -> None:
    one, two = open_storage(f"file://{tmp_path}/one"), open_storage(f"file://{tmp_path}/two")
    one.replace("a", b"before")
    meter = Meter(one, two)
    assert ({}, 0) == (meter.by_kind(), meter.requests())
    one.read("a")
    two.replace("b", b"x")
    two.read("b")
    assert ({"get": 2, "put": 1}, 3) == (meter.by_kind(), meter.requests())


def _files(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def _but_for_time(report: Any) -> Any:
    if hasattr(report, "rollback"):
        return replace(report, rollback=_but_for_time(report.rollback))
    more = {"requests": {}} if isinstance(report, clean.Report) else {}  # a dry run does not ask for the time
    return replace(report, seconds={}, **more)


@pytest.mark.parametrize("name", REVIEWED)
def test_a_review_is_called_once_with_the_report_of_a_dry_run_and_its_no_changes_nothing(
    tmp_path: Path, name: str
) -> None:
    lake = filled(new_lake(tmp_path), tables=8)
    with lake.refresh().transaction(reason="the last one") as txn:
        txn.create_namespace("extra")
    job, config = REVIEWED[name]
    before, reviewed = _files(tmp_path), list[Any]()
    dry = job.run(lake.refresh(), config, review=dry_run)
    assert before == _files(tmp_path)
    done = job.run(lake.refresh(), config, review=reviewed.append)  # which returns None
    assert (before, [done]) == (_files(tmp_path), reviewed)
    assert _but_for_time(dry) == _but_for_time(done)


def test_configs_plans_and_reports_of_all_jobs_are_frozen() -> None:
    """Nobody changes afterwards what a job was asked to do, or said that it did."""
    jobs = [importlib.import_module(f"pipelines.{each.name}") for each in pkgutil.iter_modules(pipelines.__path__)]
    found = [vars(job)[name] for job in jobs for name in ("Config", "Estimate", "Plan", "Report") if name in vars(job)]
    assert len(found) > 30
    assert [] == [str(each) for each in found if not (is_dataclass(each) and each.__dataclass_params__.frozen)]  # type: ignore[attr-defined]


ENGINES: Final = {"backup", "clean", "compaction", "diff", "expire", "export", "load", "restore", "rollback", "undo"}
"""Some of the jobs that have an engine: all others are found, too."""


def test_the_default_engine_of_every_job_is_auto_and_needs_no_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the size of the lakehouse: a caller without Spark is not told to pass a session."""
    found = {}
    for each in pkgutil.iter_modules(pipelines.__path__):
        config = getattr(importlib.import_module(f"pipelines.{each.name}"), "Config", None)
        if is_dataclass(config) and "engine" in config.__dataclass_fields__:
            found[each.name] = config.__dataclass_fields__["engine"].default
    assert ENGINES <= found.keys()
    assert {"auto"} == {*found.values()}
    lake = filled(new_lake(tmp_path), tables=20)
    monkeypatch.setattr("pipelines.engine.choice.SPARK_FROM_OBJECTS", 0)
    compaction.run(lake, compaction.Config(spark_from_nodes=0))
    assert "local" == clean.run(lake, clean.Config(older_than_seconds=0, allow_recent=True)).engine

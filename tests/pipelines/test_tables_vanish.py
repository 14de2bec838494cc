"""A table that is dropped, renamed or replaced between two requests of a job: that is its own outcome, no other's."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from pyiceberg.exceptions import NoSuchTableError

from pipelines import export, stats, tables_clean, tables_compact, tables_expire, tables_health, verify
from pipelines.tables.changing import NamedTable
from pipelines.tables.compact import model
from pipelines.tables.compact.decision import GroupRules
from pipelines.tables.compact.model import Settings
from pipelines.tables.compact.plan import plan_table
from pipelines.tables.compact.spark import SparkRewriter
from tests.support.faults import FaultPlan, attach, detach
from tests.support.icebergs import ids, new_iceberg, opened, rows, with_table
from trinitylake_core import Lakehouse
from trinitylake_core.iceberg import TrinityLakeCatalog
from trinitylake_core.table_places import Located

TABLES: Final = ("sales.a", "sales.b", "sales.c")
VICTIM: Final = "sales.b"
EAGER: Final = GroupRules(min_files=2, share=0.1)


def drop(catalog: TrinityLakeCatalog) -> None:
    catalog.drop_table(VICTIM)


def rename(catalog: TrinityLakeCatalog) -> None:
    catalog.rename_table(VICTIM, "sales.elsewhere")


def replace(catalog: TrinityLakeCatalog) -> None:
    catalog.drop_table(VICTIM)
    with_table(catalog, VICTIM, 7)


def compact(lake: Lakehouse, _target: str) -> None:
    report = tables_compact.run(lake, tables_compact.Config(rules=EAGER))
    outcomes = {each.table: each.outcome for each in report.outcomes}
    assert model.DONE == outcomes["sales.a"] == outcomes["sales.c"], report
    assert outcomes.get(VICTIM, model.LOST) in {model.DONE, model.LOST}, report


def compact_within_a_condition(lake: Lakehouse, _target: str) -> None:
    report = tables_compact.run(lake, tables_compact.Config(rules=EAGER, where="name = 'n'"))
    outcomes = {each.table: each.outcome for each in report.outcomes}
    assert model.DONE == outcomes["sales.a"] == outcomes["sales.c"], report


def expire(lake: Lakehouse, _target: str) -> None:
    report = tables_expire.run(lake, tables_expire.Config(older_than_seconds=0))
    assert {each.table for each in report.expired} >= {"sales.a", "sales.c"}, report


def clean(lake: Lakehouse, _target: str) -> None:
    tables_clean.run(lake, tables_clean.Config(older_than_seconds=0, allow_recent=True))


def health(lake: Lakehouse, _target: str) -> None:
    report = tables_health.run(lake)
    assert {each.table for each in report.tables} >= {"sales.a", "sales.c"}, report


def check_deep(lake: Lakehouse, _target: str) -> None:
    assert [] == list(verify.run(lake.storage, verify.Config(tables=1.0, deep=True)).findings)


def copy(lake: Lakehouse, target: str) -> None:
    export.run(lake, target, export.Config(tables=True))
    assert [] == list(verify.run(Lakehouse.open(target).storage, verify.Config(tables=1.0, deep=True)).findings)


def describe(lake: Lakehouse, _target: str) -> None:
    stats.deep(lake)


JOBS: Final = (compact, compact_within_a_condition, expire, clean, health, check_deep, copy, describe)


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A lakehouse with three tables of four small files, at a place that can be brought back."""
    catalog = new_iceberg(tmp_path)
    for name in TABLES:
        table = with_table(catalog, name)
        table.update_spec().add_identity("name").commit()
        for number in range(4):
            table.append(rows(number).set_column(1, "name", [["n"]]))
    shutil.copytree(tmp_path / "lake", tmp_path / "kept")
    return tmp_path


def back(directory: Path) -> str:
    """Bring the lakehouse back as it was; return its root."""
    for each in ("lake", "target"):
        shutil.rmtree(directory / each, ignore_errors=True)
    shutil.copytree(directory / "kept", directory / "lake")
    return (directory / "lake").as_uri()


def run_with(directory: Path, job: Callable[[Lakehouse, str], None], at: int, change: Callable[..., None]) -> int:
    """Run a job, with a change just before one of its requests; return how many requests it made."""
    root = back(directory)
    lake = opened(root).lakehouse
    other = opened(root)

    class Striking(FaultPlan):
        def __call__(self, kind: str, path: str, action: Callable[[], Any]) -> Any:
            if self._next() == at:
                change(other)
            return action()

        def _next(self) -> int:
            with self._lock:
                self.count += 1
                return self.count

    plan = attach(lake.storage, Striking())
    try:
        job(lake, (directory / "target").as_uri())
    finally:
        detach(lake.storage)
    after = opened(root)
    for name in ("sales.a", "sales.c"):
        assert [0, 1, 2, 3] == ids(after.load_table(name))
    for name in (VICTIM, "sales.elsewhere"):
        try:
            found = ids(after.load_table(name))
        except NoSuchTableError:
            continue
        assert found == ([7] if change is replace and at <= plan.count else [0, 1, 2, 3])
    return plan.count


@pytest.mark.parametrize("most", [2, pytest.param(None, marks=pytest.mark.slow)])
@pytest.mark.parametrize("job", JOBS)
def test_a_table_that_vanishes_harms_no_other(
    kept: Path, job: Callable[[Lakehouse, str], None], most: int | None
) -> None:
    """At some of its requests, and in `make test-all` at each."""
    requests = run_with(kept, job, 0, drop)
    cases = [(at, change) for change in (drop, rename, replace) for at in range(1, requests + 1)]
    chance = random.Random(job.__name__)
    chosen = cases if most is None else chance.sample(cases, min(most, len(cases)))
    for at, change in chosen:
        try:
            run_with(kept, job, at, change)
        except BaseException as error:
            error.add_note(f"{change.__name__} before request {at} of {requests}")
            raise


def test_spark_calls_a_table_lost_that_is_gone_before_it_begins(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = opened((kept / "lake").as_uri())
    lake = catalog.lakehouse
    policy = tables_compact.Config(rules=EAGER)
    definition = lake.table("sales", "b")
    table = plan_table(Located(lake.storage), NamedTable("sales", "b", definition), policy, 0)
    engine = SparkRewriter(lake, Settings(), None, tables_compact.NEVER_CANCELLED)
    monkeypatch.setattr(engine, "_connect", lambda: None)
    drop(catalog)
    [outcome] = engine.rewrite([table])
    assert (model.LOST, model.GONE) == (outcome.outcome, outcome.reason)

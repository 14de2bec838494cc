"""What is public shows itself in a debugger: by name and what tells it from others, on one screen, without secrets."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import trinitylake_core
from pipelines import (
    apply,
    backup,
    clean,
    compaction,
    diff,
    doctor,
    expire,
    export,
    fleet,
    history,
    load,
    register,
    restore,
    rollback,
    snapshot,
    stats,
    undo,
    upgrade,
    verify,
)
from pipelines.job import dry_run
from pipelines.session import SessionConfig
from tests.support.lakes import new_lake
from trinitylake_core import Lakehouse, Transaction

LONG = 4000
"""Characters that fill a screen."""
JOBS = (apply, backup, compaction, diff, doctor, expire, export, fleet, history, load, clean)
JOBS += (register, restore, rollback, snapshot, stats, undo, upgrade, verify)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lakehouse:
    """Return a lakehouse of 200 tables and 40 versions."""
    lake = new_lake(tmp_path_factory.mktemp("brief"), order=128, target=2**20)
    for namespace in range(20):
        with lake.transaction(reason="more") as txn:
            txn.create_namespace(f"n{namespace}")
            for table in range(10):
                txn.create_table(f"n{namespace}", f"t{table}", schema=pa.schema([("id", pa.int64())]))
                txn.create_view(f"n{namespace}", f"v{table}", sql="SELECT 1")
    lake.refresh().create_snapshot("daily")
    return lake.refresh()


def shown(value: Any, *expected: str) -> str:
    """Return how a value shows itself: by its name, with what is expected of it, on one screen."""
    text = repr(value)
    assert text.startswith(type(value).__name__), text
    assert " at 0x" not in text
    assert len(text) < LONG
    assert [] == [each for each in expected if each not in text], text
    return text


def test_a_plan_of_a_thousand_changes_shows_the_first_and_how_many_there_are(lake: Lakehouse) -> None:
    plan = lake.rollback(version=0, reason="why", dry_run=True)
    shown(plan, "operation='rollback'", "'removed': 420", "and 417 more]", "versions_undone=")
    report = rollback.run(lake, rollback.Config(version=0, reason="why", engine="local"), review=dry_run)
    shown(report, "dry_run=True", "and 417 more]")


def test_reports_of_jobs_fit_on_a_screen(lake: Lakehouse) -> None:
    shown(history.run(lake), "more=False", "and 19 more]")
    shown(compaction.run(lake, compaction.Config(engine="local"), review=dry_run), "Estimate(", "dry_run=True")
    shown(verify.run(lake, verify.Config(versions="all", engine="local")), "ok=True", "more]")
    shown(clean.run(lake, clean.Config(engine="local"), review=dry_run), "dry_run=True")
    config = expire.Config(engine="local", keep_last=1, older_than_seconds=0.0)
    shown(expire.run(lake, config, review=dry_run), "dry_run=True")
    shown(diff.report(lake.at(version=0), lake), "'added': 420", "and 417 more]")


def test_every_public_class_says_more_than_its_address() -> None:
    """Also those that no test above makes: a class of ours has its own ``__repr__``."""
    public = [getattr(trinitylake_core, name) for name in trinitylake_core.__all__]
    public += [
        getattr(job, name) for job in JOBS for name in ("Config", "Estimate", "Plan", "Report") if hasattr(job, name)
    ]
    ours = {each for each in public if isinstance(each, type) and not issubclass(each, Exception)}
    assert {Lakehouse, Transaction, compaction.Report, compaction.Config, rollback.Report} <= ours
    assert set() == {each for each in ours if each.__repr__ is object.__repr__}


def test_no_secret_is_shown() -> None:
    secret = "hunter2hunter2"
    options = {"key": "k", "secret": secret}
    configs = (
        expire.Config(plan_options=options),
        clean.Config(plan_options=options),
        restore.Config(only=("a",), version=1, reason="r", source="s3://b/l", source_options=options),
        SessionConfig(mode="connect", remote=f"sc://h:1/;token={secret}"),
    )
    assert [] == [each for each in configs if secret in repr(each)]

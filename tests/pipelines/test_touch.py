"""A version without a change: it is a mark in the history, and nothing else is written."""

from __future__ import annotations

import pytest

from pipelines import touch
from pipelines.cli import main
from pipelines.job import dry_run
from tests.support.lakes import content, operations
from tests.support.surgery import files_of
from trinitylake_core import Lakehouse, spec
from trinitylake_core.errors import InvalidInput


def test_a_version_is_committed_that_changes_nothing(lake: Lakehouse) -> None:
    with lake.transaction() as txn:
        txn.create_namespace("a")
    before = lake.refresh()
    waits = lake.transaction()  # it conflicts with no writer, whoever commits first
    waits.create_namespace("b")
    done = touch.run(before, touch.Config(reason="before the migration"))
    assert (before.version - 1, before.version, False) == (done.version, done.version_after, done.dry_run)
    waits.commit()
    after = lake.refresh()
    assert [spec.OP_ALTER, spec.OP_COMMIT] == operations(after)[-2:]
    assert "before the migration" == list(after.history())[1].summary["reason"]
    assert content(after.at(version=done.version)) == content(after.at(version=done.version_after))
    assert [] == list(after.check())


def test_a_dry_run_commits_nothing_and_a_reason_is_required(lake: Lakehouse) -> None:
    before = files_of(lake)
    planned = touch.run(lake, touch.Config(reason="r"), review=dry_run)
    assert (True, None) == (planned.dry_run, planned.version_after)
    assert before == files_of(lake)
    with pytest.raises(InvalidInput, match="a reason is required"):
        touch.Config()


def test_a_frozen_lakehouse_takes_it_and_it_costs_a_root_and_a_hint(lake: Lakehouse) -> None:
    lake.freeze(reason="an audit")
    before = lake.storage.counts.snapshot()
    touch.run(lake, touch.Config(reason="may this machine write?"))
    spent = lake.storage.counts - before
    assert (1, 1) == (spent.create, spent.put)


def test_the_command_has_a_dry_run(lake: Lakehouse, capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == main(["touch", lake.root, "--reason", "r", "--dry-run"])
    assert "would follow it" in capsys.readouterr().out
    assert lake.version == lake.refresh().version
    assert 0 == main(["touch", lake.root, "--reason", "r"])
    assert f"version {lake.version + 1} committed" in capsys.readouterr().out

"""Why an expiration lets go of nothing, or of no more: each rule, and how many versions it keeps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipelines import expire
from pipelines.cli import main
from pipelines.job import dry_run
from pipelines.reach.kept_roots import KEEP_LAST, NEWEST, OLDER_THAN, OWN_VERSION, TTL, RetentionReason, RetentionRules
from tests.support.lakes import filled, new_lake
from trinitylake_core import Lakehouse
from trinitylake_core.clock import now_millis
from trinitylake_core.durations import DAY


@pytest.fixture
def lake(tmp_path: Path) -> Lakehouse:
    """Versions 0 to 10."""
    return filled(new_lake(tmp_path), tables=36)


def dry(lake: Lakehouse, now: int, **options: object) -> expire.Report:
    config = expire.Config("local", now_millis=now, **options)  # type: ignore[arg-type]
    return expire.run(lake, config, review=dry_run)


def test_each_rule_keeps_what_it_says() -> None:
    """Against the times of all versions, one by one."""
    times = [10_000 * number for number in range(5, 40)]
    versions = range(5, 40)
    for now in (0, 50_000, 225_000, 230_001, 395_000, 10**9):
        for keep in (0, 1, 7, 100):
            rules = RetentionRules(keep_last=keep, age_seconds=100, ttl_millis=150_000)
            found = rules.reasons(lambda version: times[version - 5], versions, now)
            assert min(each.first for each in found) == rules.boundary(
                lambda version: times[version - 5], versions, now
            )
            kept = {each.rule: each.versions for each in found}
            assert min(max(keep, 1), 35) == kept[KEEP_LAST]
            assert sum(time >= now - 100_000 for time in times) == kept.get(OLDER_THAN, 0)
            assert sum(time >= now - 150_000 for time in times) == kept.get(TTL, 0)
            assert 1 == kept[NEWEST]
            assert [each.first for each in found] == sorted(each.first for each in found)
            assert all(each.first + each.versions == 40 for each in found)


def test_the_rule_that_decides_comes_first(lake: Lakehouse) -> None:
    """Young versions: the time to live, whatever else is given. Old ones: what was asked for."""
    soon = now_millis() + 1000  # each commit is a millisecond later than the one before, and may be ahead of the clock
    done = dry(lake, soon, keep_last=1, older_than_seconds=0)
    assert (0, RetentionReason(TTL, "7d", 0, 11)) == (done.versions_expired, done.kept[0])
    assert {TTL, KEEP_LAST, NEWEST} == {each.rule for each in done.kept}
    later = now_millis() + 30 * int(DAY) * 1000
    done = dry(lake, later, keep_last=4)
    assert (7, RetentionReason(KEEP_LAST, "4", 7, 4)) == (done.boundary_after, done.kept[0])
    done = dry(lake, later, older_than_seconds=60 * DAY)
    assert RetentionReason(OLDER_THAN, "60d", 0, 11) == done.kept[0]
    done = dry(lake, later, older_than_seconds=0)
    assert (10, NEWEST) == (done.boundary_after, done.kept[0].rule)


def test_a_run_that_finds_nothing_says_why_too(lake: Lakehouse) -> None:
    done = expire.run(lake, expire.Config("local", keep_last=1, older_than_seconds=0))
    assert (0, None, TTL) == (done.versions_expired, done.version_after, done.kept[0].rule)
    later = now_millis() + 30 * int(DAY) * 1000
    expired = expire.run(lake, expire.Config("local", keep_last=3, now_millis=later))
    assert (8, ()) == (expired.versions_expired, expired.kept)
    again = expire.run(lake, expire.Config("local", keep_last=3, now_millis=later))
    assert (0, OWN_VERSION) == (again.versions_expired, again.kept[0].rule)


def test_snapshots_and_transactions_that_are_alive_are_counted(lake: Lakehouse) -> None:
    lake.create_snapshot("s")
    txn = lake.transaction()
    txn.create_namespace("saved")
    txn.save()
    freed = dry(lake, now_millis() + 30 * int(DAY) * 1000, keep_last=2).freed
    assert freed is not None
    assert (1, 1) == (freed.snapshots, freed.transactions)


def test_the_command_line_says_why(lake: Lakehouse, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["expire", lake.root, "--keep-last", "1", "--older-than", "0s", "--engine", "local"]
    assert 0 == main([*words, "--dry-run"])
    out = capsys.readouterr().out
    assert "kept by" in out
    assert "txn_ttl_millis" in out
    assert 0 == main([*words, "--json"])
    kept = json.loads(capsys.readouterr().out)["kept"]
    assert {"rule": "txn_ttl_millis", "setting": "7d", "first": 0, "versions": 11} == kept[0]

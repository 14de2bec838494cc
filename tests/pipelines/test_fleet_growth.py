"""How fast a lakehouse grows: rates since the oldest version that is kept."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from pipelines import fleet
from tests.support.lakes import filled, new_lake, reopened
from tests.support.surgery import directory_of
from trinitylake_core import Lakehouse


@pytest.fixture
def lake(tmp_path: Path) -> Lakehouse:
    return filled(new_lake(tmp_path), tables=12)


def test_a_history_of_seconds_says_nothing_about_a_day(lake: Lakehouse) -> None:
    found = fleet.growth_of(lake)
    assert (None, None) == (found.versions_per_day, found.objects_per_day)
    assert (True, True) == ((found.kept_bytes or 0) > 0, (found.waiting_bytes or 0) > 0)


def test_rates_are_those_of_the_versions_that_are_kept(lake: Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten days lie between the first version and the newest: so much of everything a day; two ``get``."""
    real = Lakehouse.stats

    def dated(handle: Lakehouse) -> object:
        found = real(handle)
        return replace(found, created_at=found.created_at + timedelta(days=10)) if found.version else found

    monkeypatch.setattr(Lakehouse, "stats", dated)
    newest, opened = lake.stats(), reopened(lake)
    before = opened.storage.counts.requests()
    found = fleet.growth_of(opened)
    assert opened.storage.counts.requests() - before <= 2
    assert newest.version / 10 == pytest.approx(found.versions_per_day, abs=0.01)
    assert (newest.objects or 0) / 10 == pytest.approx(found.objects_per_day, abs=0.01)


def test_an_oldest_root_that_cannot_be_read_leaves_the_rest(lake: Lakehouse) -> None:
    oldest = lake.at(version=lake.stats().oldest_version)
    (directory_of(lake) / oldest.root_node.path).write_bytes(b"garbage")
    found = fleet.growth_of(reopened(lake))
    assert (None, True) == (found.since, (found.waiting_bytes or 0) > 0)

"""Which version is meant: exactly one of number, time and snapshot."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines import restore, rollback
from tests.support.lakes import filled, new_lake
from trinitylake_core import InvalidInput, RecoveryTarget, SnapshotNotFound, VersionNotFound
from trinitylake_core.commits.backend import LakehouseBackend


def test_each_way_of_naming_leads_to_the_same_root(tmp_path: Path) -> None:
    """A snapshot that somebody made since the handle was opened is found, too."""
    lake = filled(new_lake(tmp_path), tables=8)
    root = lake.at(version=2).root_node
    backend = LakehouseBackend(lake.storage, lake.backend.versions, lake.backend.newest_seen)
    type(lake)(backend, lake.root_node).create_snapshot("two", version=2)
    named = (RecoveryTarget(version=2), RecoveryTarget(timestamp=lake.at(version=2).info().created_at))
    assert [root.path] * 2 == [each.root(lake.backend).path for each in named]
    assert 2 == RecoveryTarget(snapshot="two").root(lake.backend).version == lake.at(snapshot="two").version
    with pytest.raises(SnapshotNotFound):
        RecoveryTarget(snapshot="none").root(lake.backend)
    with pytest.raises(VersionNotFound):
        RecoveryTarget(version=99).root(lake.backend)


def test_exactly_one_is_given() -> None:
    for target in (RecoveryTarget(), RecoveryTarget(version=0, snapshot="s")):
        with pytest.raises(InvalidInput, match="one of version, timestamp and snapshot"):
            target.refuse_ambiguous()
        with pytest.raises(InvalidInput, match="what to roll back to"):
            rollback.Config(**target.keywords(), reason="r")
        with pytest.raises(InvalidInput, match="where to restore from"):
            restore.Config(**target.keywords(), only=["*"], reason="r")

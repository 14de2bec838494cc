"""What a cleaning says where there is nothing to free yet, and how its progress is counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipelines import clean, compaction, expire
from tests.support.clock import Clock
from tests.support.lakes import new_lake
from trinitylake_core import Lakehouse

NOW: dict[str, Any] = {"older_than_seconds": 0.0, "allow_recent": True, "engine": "local"}


@pytest.fixture
def lake(tmp_path: Path) -> Lakehouse:
    """Compacted: six tables in a leaf; then two are changed, one is dropped and one is new, all of it in buffers."""
    lake = new_lake(tmp_path, txn_ttl_millis=1000)
    with lake.transaction() as txn:
        txn.create_namespace("a")
        for number in range(6):
            txn.create_table("a", f"t{number}")
    compaction.run(lake.refresh(), compaction.Config(engine="local"))
    with lake.refresh().transaction() as txn:
        txn.alter_table("a", "t0", properties={"x": "y"})
        txn.alter_table("a", "t1", properties={"x": "y"})
        txn.drop_table("a", "t2")
        txn.create_table("a", "new")
    return lake.refresh()


def test_a_cleaning_without_orphans_says_what_a_compaction_would_free(lake: Lakehouse, clock: Clock) -> None:
    """Up to as many as were replaced or dropped; compacted, and without older versions, they are freed."""
    clock.forward(millis=10_000)
    later = clock.now()
    expire.run(lake, expire.Config(keep_last=1, engine="local"))
    clean.run(lake.refresh(), clean.Config(**NOW, now_millis=later))
    done = clean.run(lake.refresh(), clean.Config(**NOW, now_millis=later))
    assert (0, 4) == (done.orphan_files, done.replaced_in_buffers)
    (hint,) = [line for line in done.summary() if "compact" in line]
    assert "would free up to 4 files" in hint
    compaction.run(lake.refresh(), compaction.Config(engine="local"))
    clock.forward(millis=10_000)
    expire.run(lake.refresh(), expire.Config(keep_last=1, engine="local"))
    freed = clean.run(lake.refresh(), clean.Config(**NOW, now_millis=clock.now()))
    assert 3 == freed.orphans["table"].files
    assert (0, []) == (freed.replaced_in_buffers, [line for line in freed.summary() if "compact" in line])

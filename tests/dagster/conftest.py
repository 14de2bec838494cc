"""Lakehouses on disk, and what Dagster makes of them: real runs, one shared Spark session."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
import pyarrow as pa
import pytest

from dagster_project.config.settings import LakehouseSettings
from dagster_project.factory import merged
from dagster_project.resources import SparkResource
from tests.support.lakes import compacted
from trinitylake_core import Lakehouse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SMALL: dict[str, Any] = {
    "order": 5,
    "node_file_max_size_bytes": 6000,
    "namespace_name_max_size_bytes": 20,
    "table_name_max_size_bytes": 20,
    "view_name_max_size_bytes": 20,
}
Settings = Callable[..., LakehouseSettings]


def filled(root: str, commits: int = 6, **more: Any) -> Lakehouse:
    """Return a lakehouse of order 5 whose tree has several levels and whose buffers hold messages."""
    lake = Lakehouse.create(root, **SMALL, **more)
    with lake.transaction() as txn:
        txn.create_namespace("sales")
    for commit in range(commits):
        with lake.transaction() as txn:
            for table in range(10):
                txn.create_table("sales", f"t{commit}_{table}", schema=pa.schema([("id", pa.int64())]))
    return lake.refresh()


@pytest.fixture
def lake(tmp_path: Path) -> Lakehouse:
    """Return a lakehouse that needs a compaction."""
    return filled((tmp_path / "lake").as_uri())


@pytest.fixture
def settings(lake: Lakehouse) -> LakehouseSettings:
    """Return the stanza of ``lake``."""
    return LakehouseSettings.model_validate(
        {
            "name": "sales-eu",
            "root": lake.root,
            "spark": {"master": "local[2]"},
            "compaction": {"messages": 5, "min_interval": "1h"},
            "schedules": {"maintenance": "0 3 * * *"},
        }
    )


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    """Return a Dagster instance that is gone afterwards."""
    with dg.DagsterInstance.ephemeral() as ephemeral:
        yield ephemeral


@pytest.fixture
def defs(settings: LakehouseSettings, spark: SparkSession) -> dg.Definitions:
    """Return the definitions of ``settings``; their runs share the Spark session of all tests."""
    return merged((settings,), spark=SparkResource(keep_running=True))


@pytest.fixture
def local(settings: LakehouseSettings) -> LakehouseSettings:
    """Return settings that need no Spark."""
    return settings.model_copy(update={"compaction": settings.compaction.model_copy(update={"engine": "local"})})


@pytest.fixture
def deployed(lake: Lakehouse, monkeypatch: pytest.MonkeyPatch) -> Lakehouse:
    """Return a lakehouse in which a bot dropped tables in two versions, with a compaction between them."""
    authors = "trinitylake_core.transactions.transaction_change.whoami"
    monkeypatch.setattr(authors, lambda: "deploy-bot@ci")
    for number in (1, 2):
        with lake.transaction(reason=f"nightly deploy, step {number}") as txn:
            txn.drop_table("sales", f"t0_{number}")
        if number == 1:
            compacted(lake.refresh())
            lake.refresh()
    monkeypatch.setattr(authors, lambda: "ada@oncall")
    return lake.refresh()

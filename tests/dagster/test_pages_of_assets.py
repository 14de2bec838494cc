"""What the page of an asset shows after a run without work, and of the engine that ran."""

from __future__ import annotations

from typing import Any

import dagster as dg
import pytest

from dagster_project import assets
from dagster_project.config.settings import LakehouseSettings
from dagster_project.factory import define_lakehouses
from tests.dagster.test_assets import run
from trinitylake_core import Lakehouse


def shown(result: dg.ExecuteInProcessResult, asset: str) -> dict[str, Any]:
    found = [each for each in result.get_asset_materialization_events() if each.asset_key.path[-1] == asset]
    (event,) = found
    return dict(event.step_materialization_data.materialization.metadata)


def test_a_compaction_without_work_leaves_the_picture_on_the_page(
    local: LakehouseSettings, lake: Lakehouse, instance: dg.DagsterInstance
) -> None:
    """And draws no row of zeros, and names no engine that did not run."""
    worked = shown(run(define_lakehouses((local,)), "compaction", instance), assets.COMPACTION)
    idle = shown(run(define_lakehouses((local,)), "compaction", instance), assets.COMPACTION)
    assert worked["picture"] == idle["picture"]
    assert worked["predicted_and_measured"] == idle["predicted_and_measured"]
    assert "nothing to do" in str(idle["outcome"].value)
    assert [] == [name for name, each in idle.items() if isinstance(each, dg.IntMetadataValue)]
    assert "engine" not in idle
    again = shown(run(define_lakehouses((local,)), "compaction", instance), assets.COMPACTION)
    assert worked["picture"] == again["picture"]


def test_the_page_says_which_engine_ran_and_why(
    local: LakehouseSettings, lake: Lakehouse, instance: dg.DagsterInstance
) -> None:
    metadata = shown(run(define_lakehouses((local,)), "compaction", instance), assets.COMPACTION)
    assert "local: it was asked for by name" == metadata["engine_chosen"].value
    assert not [name for name in metadata if name.startswith("spark_")]


@pytest.mark.spark
def test_the_page_shows_spark_where_it_ran(
    settings: LakehouseSettings, lake: Lakehouse, defs: dg.Definitions, instance: dg.DagsterInstance
) -> None:
    metadata = shown(run(defs, "compaction", instance), assets.COMPACTION)
    assert "spark: it was asked for by name" == metadata["engine_chosen"].value
    assert metadata["spark_application"].value.startswith("local-")
    assert metadata["spark_master"].value.startswith("local[")
    assert metadata["spark_tasks"].value > 0
    assert 1 == metadata["spark_executors"].value

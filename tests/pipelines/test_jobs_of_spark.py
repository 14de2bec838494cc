"""How many jobs of Spark a command takes on a small lakehouse: each has a price of its own, however little it does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from pipelines import clean, export, tables_clean, tables_health, verify
from tests.support.lakes import filled, new_lake
from tests.support.many_tables import many_tables
from tests.support.zero_age import expire_all_but_the_newest
from trinitylake_core import Lakehouse
from trinitylake_core.storage import open_storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NO_AGE: Final[dict[str, Any]] = {"older_than_seconds": 0.0, "allow_recent": True}
Command = Callable[[Lakehouse, Path, Any], object]


def _export(lake: Lakehouse, folder: Path, spark: Any) -> object:
    return export.run(lake, open_storage((folder / "copy").as_uri()), export.Config(engine="spark"), spark)


def _clean(lake: Lakehouse, folder: Path, spark: Any) -> object:
    del folder
    expire_all_but_the_newest(lake)
    report = clean.run(lake.refresh(), clean.Config(engine="spark", **_NO_AGE), spark)
    assert report.deleted
    return report


def _clean_tables(lake: Lakehouse, folder: Path, spark: Any) -> object:
    lake = many_tables(folder / "tables", 20, 2, 2).lakehouse
    expire_all_but_the_newest(lake)
    report = tables_clean.run(lake.refresh(), tables_clean.Config(engine="spark", **_NO_AGE), spark)
    assert report.deleted
    return report


def _verify(lake: Lakehouse, folder: Path, spark: Any) -> object:
    del folder
    return verify.run(lake, verify.Config(engine="spark", definitions=True), spark)


def _health(lake: Lakehouse, folder: Path, spark: Any) -> object:
    del folder
    return tables_health.run(lake, tables_health.Config(engine="spark"), spark)


@pytest.mark.spark
@pytest.mark.parametrize(
    ("command", "most"),
    [
        pytest.param(_health, 1, id="health"),
        pytest.param(_export, 10, id="export", marks=pytest.mark.slow),
        pytest.param(_verify, 7, id="verify", marks=pytest.mark.slow),
        pytest.param(_clean, 11, id="clean", marks=pytest.mark.slow),
        pytest.param(_clean_tables, 34, id="tables-clean", marks=pytest.mark.slow),
    ],
)
def test_a_command_takes_no_more_jobs_than_it_did(
    tmp_path: Path, spark: SparkSession, command: Command, most: int
) -> None:
    lake = filled(new_lake(tmp_path, order=16), tables=20)
    context = spark.sparkContext
    context.setJobGroup(str(tmp_path), "counted")
    try:
        command(lake, tmp_path, spark)
    finally:
        context.setLocalProperty("spark.jobGroup.id", "")
    jobs = len(context.statusTracker().getJobIdsForGroup(str(tmp_path)))
    assert 0 < jobs <= most

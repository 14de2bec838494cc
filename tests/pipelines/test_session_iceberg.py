"""Iceberg's runtime in a Spark session: which artifact, and what is said where there is none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dagster_project.config.settings import Spark
from pipelines import tables_compact
from pipelines.session import LazySession, SessionConfig, iceberg, missing_iceberg
from trinitylake_core import Lakehouse
from trinitylake_core.errors import InvalidInput

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize(
    ("spark", "artifact"),
    [
        ("3.5.4", "iceberg-spark-runtime-3.5_2.12:1.12.0"),
        ("4.0.1", "iceberg-spark-runtime-4.0_2.13:1.12.0"),
        ("4.1.1", "iceberg-spark-runtime-4.1_2.13:1.12.0"),
    ],
)
def test_the_artifact_is_that_of_the_installed_spark(
    monkeypatch: pytest.MonkeyPatch, spark: str, artifact: str
) -> None:
    monkeypatch.setattr(iceberg, "version", lambda _: spark)
    found = iceberg.iceberg_settings("1.12.0", {})
    assert {iceberg.PACKAGES: f"org.apache.iceberg:{artifact}", iceberg.EXTENSIONS: iceberg.EXTENSION} == found


def test_packages_and_extensions_of_the_user_stay() -> None:
    found = iceberg.iceberg_settings("1.12.0", {iceberg.PACKAGES: "a:b:1", iceberg.EXTENSIONS: "x.Y"})
    assert found[iceberg.PACKAGES].endswith(":1.12.0,a:b:1")
    assert f"{iceberg.EXTENSION},x.Y" == found[iceberg.EXTENSIONS]


def test_a_spark_without_a_runtime_is_refused_when_the_file_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iceberg, "version", lambda _: "4.2.0")
    with pytest.raises(ValueError, match=r"no runtime for Spark 4\.2, only for 3\.5, 4\.0, 4\.1"):
        Spark(iceberg="1.12.0")
    assert Spark().iceberg is None


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"iceberg": "latest"}, "is no release of Iceberg"),
        ({"iceberg": "1.12.0", "mode": "connect", "remote": "sc://h"}, "the server brings Iceberg's runtime"),
    ],
)
def test_what_cannot_be_is_refused(fields: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        SessionConfig(**fields)  # type: ignore[arg-type]


@pytest.mark.spark
def test_a_session_that_started_without_iceberg_is_told_the_two_settings(spark: SparkSession) -> None:
    with pytest.raises(InvalidInput, match=r"spark\.jars\.packages=.*iceberg-spark-runtime-.* and spark\.sql\.ext"):
        iceberg.refuse_session_without_iceberg(spark)


def test_a_session_that_does_not_run_yet_is_judged_by_its_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.session.spark.active_session", lambda: None)  # other tests may have left one
    without = missing_iceberg(LazySession(SessionConfig()))
    assert "has no Iceberg, which must be there before it starts" in (without or "")
    for config in (
        SessionConfig(iceberg="1.12.0"),
        SessionConfig(conf={iceberg.EXTENSIONS: iceberg.EXTENSION}),
        SessionConfig(mode="connect", remote="sc://host"),
    ):
        assert missing_iceberg(LazySession(config)) is None


def test_spark_by_name_is_refused_before_anything_is_read_and_auto_does_without(lake: Lakehouse) -> None:
    for spark, words in ((None, "there is no Spark session"), (LazySession(SessionConfig()), "has no Iceberg")):
        with pytest.raises(InvalidInput, match=words):
            tables_compact.run(lake, tables_compact.Config(engine="spark"), spark)
        assert () == tables_compact.run(lake, tables_compact.Config(engine="auto"), spark).planned

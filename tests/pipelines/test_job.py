"""What every job has: the choice of an engine, phases with their seconds, and what storages were asked."""

from __future__ import annotations

import pytest

from pipelines.job import SPARK_FROM_OBJECTS, Meter, Stopwatch, engine_for, refuse_unknown, started
from trinitylake_core.errors import InvalidInput
from trinitylake_core.storage import open_storage


@pytest.mark.parametrize("engine", ["spark", "local"])
def test_an_engine_that_is_asked_for_is_taken_however_much_there_is(engine: str) -> None:
    assert {engine} == {engine_for(engine, files) for files in (0, SPARK_FROM_OBJECTS)}


def test_auto_is_spark_from_so_many_files_on() -> None:
    assert ["local", "spark"] == [engine_for("auto", files) for files in (SPARK_FROM_OBJECTS - 1, SPARK_FROM_OBJECTS)]
    assert ["local", "spark"] == [engine_for("auto", files, spark_from=5) for files in (4, 5)]


def test_unknown_engines_and_a_missing_session_are_refused() -> None:
    with pytest.raises(InvalidInput, match="engine must be one of spark, local, auto"):
        refuse_unknown("fast")
    with pytest.raises(InvalidInput, match="needs a Spark session"):
        started(None)
    with pytest.raises(InvalidInput, match="needs a Spark session"):
        started(lambda: None)  # type: ignore[arg-type, return-value]


def test_phases_follow_each_other() -> None:
    watch = Stopwatch()
    watch.lap("list")
    watch.lap("mark")
    assert ["list", "mark"] == list(watch.seconds)
    assert all(0 <= seconds < 5 for seconds in watch.seconds.values())


def test_a_meter_counts_from_where_it_began_over_all_storages() -> None:
    one, two = open_storage("memory://meter/one"), open_storage("memory://meter/two")
    one.replace("a", b"before")
    meter = Meter(one, two)
    assert ({}, 0) == (meter.by_kind(), meter.requests())
    one.read("a")
    two.replace("b", b"x")
    two.read("b")
    assert ({"get": 2, "put": 1}, 3) == (meter.by_kind(), meter.requests())

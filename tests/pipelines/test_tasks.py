"""Spark tasks: rows in and out, and errors as themselves."""

import os
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Final
from zipfile import ZipFile
from zipimport import zipimporter

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from pipelines.engine import spark as tasks
from pipelines.engine.model import INT, LONG, TEXT, Row
from pipelines.engine.spark import SparkEngine, SparkRows, ddl, map_batches, rows_of
from trinitylake_core.errors import CorruptNode, InvalidInput

_SIZE: Final = pa.schema({"size": LONG})


def test_spark_sql_names_the_types_of_arrow() -> None:
    nested = pa.struct({"path": TEXT, "age": INT})
    schema = pa.schema({"key": TEXT, "size": LONG, "data": pa.binary(), "ok": pa.bool_(), "some": pa.list_(nested)})
    expected = (
        "`key` string, `size` bigint, `data` binary, `ok` boolean, `some` array<struct<`path`: string, `age`: int>>"
    )
    assert expected == ddl(schema)
    assert "`why` map<string, string>" == ddl(pa.schema({"why": pa.map_(TEXT, TEXT)}))


@pytest.mark.spark
def test_neighbours_go_to_one_task_and_come_back(spark: SparkSession) -> None:
    rows = [{"size": size} for size in range(7)]
    schema = pa.schema({"task": pa.list_(LONG)})

    def together(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pylist([{"task": [row["size"] for row in rows_of(batches)]}], schema=schema)

    def tasks_of(frame: DataFrame) -> list[list[int]]:
        return sorted(row["task"] for row in SparkRows(map_batches(frame, together, schema)).list())

    engine = SparkEngine(lambda: spark)
    assert [[0, 1, 2], [3, 4], [5, 6]] == tasks_of(engine.table(rows, _SIZE).dealt(spark, 3))
    assert [] == SparkRows(engine.table([], _SIZE).dealt(spark, 3)).list()


@pytest.mark.spark
def test_what_waits_for_a_task_raises_its_error(spark: SparkSession) -> None:
    def fail(rows: Iterator[Row]) -> Iterator[tuple[int]]:
        for row in rows:
            raise CorruptNode(f"row {row['size']} is damaged", path="node")
        yield (0,)

    engine = SparkEngine(lambda: spark)
    failing = engine.map(fail, engine.table([{"size": 1}], _SIZE), _SIZE)
    waits: tuple[Callable[[SparkRows], object], ...] = (SparkRows.list, SparkRows.one, SparkRows.count, SparkRows.keep)
    for wait in (*waits, lambda rows: list(rows.stream())):
        with pytest.raises(CorruptNode, match=r"^row 1 is damaged$"):
            wait(failing)


def test_a_worker_opens_the_null_device_once_and_a_task_has_its_standard_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of tasks run in a process, one after another."""
    monkeypatch.setattr(sys, "stderr", sys.stderr)
    silent = []
    for _ in range(3):
        with tasks._idle_afterwards():
            assert sys.stderr is sys.__stderr__
        silent.append(sys.stderr)
    assert os.devnull == silent[0].name
    assert 1 == len({id(each) for each in silent})
    silent[0].close()
    tasks._nowhere.cache_clear()


def test_no_archive_is_read_again_before_the_next_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark lets Python invalidate its caches before each task: a finder reads the directory of its archive then."""
    with ZipFile(tmp_path / "shipped.zip", "w") as archive:
        archive.writestr("shipped_once/__init__.py", "")
        archive.writestr("shipped_once/later.py", "NUMBER = 7")
    monkeypatch.syspath_prepend(str(tmp_path / "shipped.zip"))
    monkeypatch.setattr(sys, "stderr", sys.stderr)
    with tasks._idle_afterwards():
        import_module("shipped_once")
    tasks._nowhere().close()
    tasks._nowhere.cache_clear()
    assert not [each for each in sys.path_importer_cache.values() if isinstance(each, zipimporter)]
    assert 7 == import_module("shipped_once.later").NUMBER


@pytest.mark.parametrize(
    ("told", "module"),
    [
        ("An exception was thrown from the Python worker: ... ModuleNotFoundError: No module named 'mmh3'\n", "mmh3"),
        ("[PACKAGE_NOT_INSTALLED] PyArrow >= 15.0.0 must be installed; however, it was not found.", "pyarrow"),
    ],
)
def test_a_module_that_the_workers_lack_is_named_with_the_page_to_read(told: str, module: str) -> None:
    with pytest.raises(InvalidInput, match=f"has no module '{module}'.*docs/production.md"):
        tasks.refuse_missing_module(told)
    tasks.refuse_missing_module("No space left on device")
    assert (Path(tasks.__file__).parents[2] / "docs" / "production.md").is_file()

"""Compaction of tables: many tables of many small files, what it costs by each engine, and what scans gain.

    python -m benchmarks tablefiles [--tables 100] [--files 100] [--rows 1000] [--prove none hash] [--spark-tables 100]
        [--values] [--target 128MiB] [--only WAY ...]

Each table has so many small files. They are compacted as one run: in this process, once for each of the proofs; by the
engine of Spark on ``local[2]``; by plain Spark on ``local[2]``, with Iceberg's procedures called by hand for one table
after the other; and by deltalake's ``optimize.compact``, the same rows in its own tables. Then all is done again, which
shall do nothing. ``--spark-tables 0`` leaves Spark out, ``--only`` all ways but those that begin so. ``--values`` adds
a column of random numbers: 10,000 rows are 100 kB then.

Each way has a lakehouse and a process of its own. Spark's session is started before the clock, and its Java included in
CPU and memory. Memory is the most that the process and its Java have held, tables written before not included. DuckDB
and Spark read all rows of the tables before and after, as one query for each table; the pages of the disk are in
memory both times. DuckDB is given the data files, Spark the tables.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks import report
from benchmarks.observed import cpu_seconds, moved_bytes, sampled
from pipelines import tables_compact
from pipelines.job import NEVER_CANCELLED
from pipelines.session import SessionConfig, get_session
from pipelines.session.iceberg import TESTED
from pipelines.tables.compact.statements import SparkCatalog
from trinitylake_core import Lakehouse
from trinitylake_core.iceberg import TrinityLakeCatalog
from trinitylake_core.rest import endpoint
from trinitylake_core.sizes import parse_size

_TARGET: Final = "write.target-file-size-bytes"
_LOCAL: Final = "local"
_SPARK: Final = "spark local[2]"
_PLAIN: Final = "plain Spark"
_DELTA: Final = "deltalake"
_SLICE: Final = 20
"""So many files are written at once: of a large table not all rows are in memory."""


def rows_of(first: int, rows: int, *, values: bool) -> pa.Table:
    """Return rows, whose random numbers depend on the number of the first alone."""
    numbers = np.arange(first, first + rows)
    columns = {"id": pa.array(numbers), "name": pc.binary_join_element_wise("name", pc.cast(numbers, pa.string()), " ")}
    if values:
        columns["value"] = pa.array(np.random.default_rng(first).random(rows))
    return pa.table(columns)


def fill(root: str, tables: int, files: int, rows: int, *, values: bool, target: int | None) -> None:
    """Create tables, each with so many files of so many rows."""
    catalog = TrinityLakeCatalog.over(Lakehouse.create(root))
    catalog.create_namespace("bench")
    schema = rows_of(0, 1, values=values).schema
    for number in range(tables):
        table = catalog.create_table(f"bench.t{number}", schema)
        for first in range(0, files, _SLICE):
            data = rows_of(first * rows, min(_SLICE, files - first) * rows, values=values)
            with table.transaction() as change:
                change.set_properties({_TARGET: str(data.nbytes * rows // len(data) + 1)})
            table.append(data)
        with table.transaction() as change:
            if target is None:
                change.remove_properties(_TARGET)
            else:
                change.set_properties({_TARGET: str(target)})


def fill_delta(root: str, tables: int, files: int, rows: int, *, values: bool) -> None:
    """Create the same tables of deltalake, with a commit for each file."""
    from deltalake import write_deltalake

    for number in range(tables):
        for file in range(files):
            write_deltalake(f"{root}/t{number}", rows_of(file * rows, rows, values=values), mode="append")


# -- scans -----------------------------------------------------------------------------------------------


def scan_by_duckdb(root: str, tables: int) -> tuple[int, float, float]:
    """Return files, seconds of a read of all tables, and the mebibytes of the files."""
    catalog = TrinityLakeCatalog.over(Lakehouse.open(root))
    paths: list[list[str]] = []
    for number in range(tables):
        table = catalog.load_table(f"bench.t{number}")
        paths.append([each.file.file_path for each in table.scan().plan_files()])
    began = time.perf_counter()
    for some in paths:
        duckdb.execute("SELECT count(*), sum(id), max(name) FROM read_parquet($1)", [some]).fetchone()
    seconds = round(time.perf_counter() - began, 2)
    return sum(map(len, paths)), seconds, sum(map(_mebibytes, paths))


def scan_by_spark(catalog: SparkCatalog, tables: int) -> float:
    """Return the seconds of a read of all tables."""
    began = time.perf_counter()
    for number in range(tables):
        catalog.run(f"SELECT count(*), sum(id), max(name) FROM {catalog.name}.bench.t{number}")  # noqa: S608 - our names
    return round(time.perf_counter() - began, 2)


# -- the three ways --------------------------------------------------------------------------------------


def compact_by_job(root: str, engine: str, prove: str, spark: Any = None) -> dict[str, Any]:
    """Compact all tables by our job, and return what that did."""
    settings = tables_compact.Settings(prove=prove)
    done = tables_compact.run(Lakehouse.open(root), tables_compact.Config(engine=engine, settings=settings), spark)
    if done.failures:
        raise SystemExit(str(done.failures))
    requests = sum(done.requests.values())
    return {"MiB": round(done.bytes_before / 2**20, 1), "versions": done.versions, "requests": requests}


def call_procedures(catalog: SparkCatalog, root: str, tables: int) -> dict[str, Any]:
    """Compact all tables as a person would with Spark alone; nothing is proved."""
    before = Lakehouse.open(root).version
    size = 0
    for number in range(tables):
        [row] = catalog.run(f"CALL {catalog.name}.system.rewrite_data_files(table => 'bench.t{number}')")
        size += row[2]
        catalog.run(f"CALL {catalog.name}.system.rewrite_manifests(table => 'bench.t{number}')")
    return {"MiB": round(size / 2**20, 1), "versions": Lakehouse.open(root).version - before}


def measure_delta(root: str, tables: int, target: int | None) -> dict[str, Any]:
    """Return what deltalake's own compaction takes. In a process of its own."""
    from deltalake import DeltaTable

    def count_files() -> int:
        return sum(len(DeltaTable(f"{root}/t{number}").file_uris()) for number in range(tables))

    def compact() -> int:
        merged = 0
        for number in range(tables):
            found = DeltaTable(f"{root}/t{number}").optimize.compact(target_size=target)
            merged += found["numFilesRemoved"]
        return merged

    row: dict[str, Any] = {"tables": tables, "went": count_files()}
    me = os.getpid()
    began, cpu, moved = time.perf_counter(), cpu_seconds(me), moved_bytes(me)
    with sampled(me) as peaks:
        compact()
    row["s"], row["cpu_s"] = round(time.perf_counter() - began, 1), round(cpu_seconds(me) - cpu, 1)
    row |= _moved_since(me, moved)
    row["MiB_python"], row["came"] = peaks.get("driver", 0) >> 20, count_files()
    kept = [each for number in range(tables) for each in DeltaTable(f"{root}/t{number}").file_uris()]
    return row | {"MiB_made": _mebibytes(kept), "again": compact()}


def _moved_since(process: int, before: tuple[int, int]) -> dict[str, int]:
    read, written = moved_bytes(process)
    return {"MiB_read": (read - before[0]) >> 20, "MiB_written": (written - before[1]) >> 20}


def _mebibytes(paths: list[str]) -> float:
    files = [Path(each.removeprefix("file:").removeprefix("//")) for each in paths]
    return round(sum(each.stat().st_size for each in files) / 2**20, 1)


@contextmanager
def _spark_over(root: str) -> Iterator[SparkCatalog]:
    conf = {"spark.ui.enabled": "false"}
    spark = get_session(SessionConfig(master="local[2]", iceberg=TESTED, log_level="OFF", conf=conf))
    with endpoint(Lakehouse.open(root)) as at:
        yield SparkCatalog(spark, at.properties(), NEVER_CANCELLED, lambda: False)


def _measure(root: str, tables: int, act: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return what two runs of a compaction take, and DuckDB's scans around the first."""
    row: dict[str, Any] = {"tables": tables}
    row["went"], row["duckdb_before_s"], _ = scan_by_duckdb(root, tables)
    me = os.getpid()
    began, cpu, moved = time.perf_counter(), cpu_seconds(me), moved_bytes(me)
    with sampled(me) as peaks:
        row |= act()
    row["s"], row["cpu_s"] = round(time.perf_counter() - began, 1), round(cpu_seconds(me) - cpu, 1)
    row |= _moved_since(me, moved)
    row["MiB_python"], row["MiB_java"] = peaks.get("driver", 0) >> 20, peaks.get("jvm", 0) >> 20
    row["came"], row["duckdb_after_s"], row["MiB_made"] = scan_by_duckdb(root, tables)
    began, cpu, version = time.perf_counter(), cpu_seconds(me), Lakehouse.open(root).version
    act()
    row["again_s"], row["again_cpu_s"] = round(time.perf_counter() - began, 1), round(cpu_seconds(me) - cpu, 1)
    row["again_versions"] = Lakehouse.open(root).version - version
    return row


def measure(way: str, root: str, tables: int, prove: str) -> dict[str, Any]:
    """Return what a compaction takes by one of the ways. In a process of its own."""
    if way.startswith(_LOCAL):
        return _measure(root, tables, lambda: compact_by_job(root, "local", prove))
    with _spark_over(root) as catalog:
        first = scan_by_spark(catalog, tables)  # which has Java compile what it will need
        before = scan_by_spark(catalog, tables)
        if way == _PLAIN:
            row = _measure(root, tables, lambda: call_procedures(catalog, root, tables))
        else:
            spark = catalog.session
            row = _measure(root, tables, lambda: compact_by_job(root, "spark", prove, spark))
        return row | {"spark_first_s": first, "spark_before_s": before, "spark_after_s": scan_by_spark(catalog, tables)}


def _in_process(act: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a function returns in a new process: memory and CPU of one way are not those of another."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        return process.submit(act, *arguments).result()


def main(arguments: list[str]) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=100)
    parser.add_argument("--files", type=int, default=100)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--prove", nargs="+", default=["counts"])
    parser.add_argument("--spark-tables", type=int, default=100)
    parser.add_argument("--values", action="store_true")
    parser.add_argument("--target", type=parse_size)
    parser.add_argument("--only", nargs="+", default=[""])
    options = parser.parse_args(arguments)
    ways = dict.fromkeys((f"{_LOCAL}, {proof}" for proof in options.prove), options.tables) | {_DELTA: options.tables}
    if options.spark_tables:
        ways |= {_PLAIN: options.spark_tables, _SPARK: options.spark_tables}
    figures: dict[str, dict[str, Any]] = {}
    for way, tables in ways.items():
        if not way.startswith(tuple(options.only)):
            continue
        with tempfile.TemporaryDirectory() as name:
            root = (Path(name) / "lake").as_uri()
            shape = (tables, options.files, options.rows)
            if way == _DELTA:
                _in_process(partial(fill_delta, values=options.values), name, *shape)
                figures[way] = _in_process(measure_delta, name, tables, options.target)
            else:
                _in_process(partial(fill, values=options.values, target=options.target), root, *shape)
                proof = way.rpartition(", ")[2] if way.startswith(_LOCAL) else options.prove[-1]
                figures[way] = _in_process(measure, way, root, tables, proof)
        print(report.table({way: figures[way]}), flush=True)
    report.save("tablefiles", {"options": vars(options), "figures": figures})

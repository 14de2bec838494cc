"""Compaction of tables in this process: many tables of many small files, what it costs, and what scans gain.

    python -m benchmarks tablefiles [--tables 100] [--files 100] [--rows 1000] [--prove counts]

Each table has so many small files from one append. They are compacted as one run; then again, which shall do nothing.
Memory is the most that this process has held, tables written before included. DuckDB reads all data files of the
tables before and after, as one query for each table; the pages of the disk are in memory both times.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from benchmarks import report
from pipelines import tables_compact
from trinitylake_core import Lakehouse
from trinitylake_core.iceberg import TrinityLakeCatalog

_TARGET = "write.target-file-size-bytes"


def fill(catalog: TrinityLakeCatalog, tables: int, files: int, rows: int) -> None:
    """Create tables, each with so many files of so many rows."""
    catalog.create_namespace("bench")
    numbers = pa.array(range(files * rows), pa.int64())
    data = pa.table({"id": numbers, "name": pa.array([f"name {number}" for number in range(files * rows)])})
    small = {_TARGET: str(data.nbytes // files + 1)}
    for number in range(tables):
        table = catalog.create_table(f"bench.t{number}", data.schema, properties=small)
        table.append(data)
        with table.transaction() as change:
            change.remove_properties(_TARGET)


def scan(catalog: TrinityLakeCatalog, tables: int) -> dict[str, float]:
    """Return files, rows and seconds of a read of all tables by DuckDB."""
    paths = []
    for number in range(tables):
        table = catalog.load_table(f"bench.t{number}")
        paths.append([each.file.file_path for each in table.scan().plan_files()])
    began = time.perf_counter()
    rows = 0
    for some in paths:
        found = duckdb.execute("SELECT count(*), sum(id), max(name) FROM read_parquet($1)", [some]).fetchone()
        rows += 0 if found is None else found[0]
    return {"files": sum(map(len, paths)), "rows": rows, "scan_s": round(time.perf_counter() - began, 2)}


def compact(catalog: TrinityLakeCatalog, prove: str) -> dict[str, Any]:
    """Compact all tables, and return what that cost."""
    began, cpu = time.perf_counter(), time.process_time()
    settings = tables_compact.Settings(prove=prove)
    done = tables_compact.run(catalog.lakehouse, tables_compact.Config(engine="local", settings=settings))
    if done.failures:
        raise SystemExit(str(done.failures))
    return {
        "went": done.files_before,
        "came": done.files_made,
        "MiB": round(done.bytes_before / 2**20, 1),
        "versions": done.versions,
        "s": round(time.perf_counter() - began, 2),
        "cpu_s": round(time.process_time() - cpu, 2),
        "peak_MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "requests": sum(done.requests.values()),
    }


def main(arguments: list[str]) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=100)
    parser.add_argument("--files", type=int, default=100)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--prove", default="counts")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        root = (Path(name) / "lake").as_uri()
        catalog = TrinityLakeCatalog.over(Lakehouse.create(root))
        fill(catalog, options.tables, options.files, options.rows)
        figures = {"before": scan(catalog, options.tables)}
        figures["compaction"] = compact(catalog, options.prove)
        figures["after"] = scan(catalog, options.tables)
        figures["second run"] = compact(catalog, options.prove)
    for what, row in figures.items():
        print(report.table({what: row}))
    report.save("tablefiles", {"options": vars(options), "figures": figures})

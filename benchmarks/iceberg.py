"""Commits of PyIceberg tables: a lakehouse beside PyIceberg's SQL catalog on SQLite and on PostgreSQL.

    python -m benchmarks iceberg [--seconds 5] [--tables 100 1000] [--writers 1 8]

A commit sets one property of a table: it writes one file of table metadata and exchanges it in the catalog, and no
data. Each writer is a process and has tables of its own. Catalogs take turns: each measures one configuration before
the next one is measured. Ours and SQLite sync every commit to the disk, and so does PostgreSQL here; metadata files are
synced by ours only, for PyIceberg does not. Before it is measured, our catalog is compacted, as its maintenance does.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from benchmarks import report
from pipelines import compaction
from trinitylake_core import Lakehouse

SCHEMA = Schema(NestedField(1, "id", LongType()))
IMPL = "trinitylake_core.iceberg.TrinityLakeCatalog"


def write(properties: dict[str, str], writer: int, seconds: float, started: Any) -> list[float]:
    """Commit to one table after another for some seconds; return what each commit took."""
    catalog = load_catalog("bench", **properties)
    tables = [catalog.load_table(f"bench.w{writer}n{number}") for number in range(4)]
    started.wait()
    took, deadline, number = [], time.perf_counter() + seconds, 0
    while (began := time.perf_counter()) < deadline:
        with tables[number % len(tables)].transaction() as txn:
            txn.set_properties(number=str(number))
        took.append(time.perf_counter() - began)
        number += 1
    return took


def _run(out: Any, *arguments: Any) -> None:
    out.put(write(*arguments))


def measured(properties: dict[str, str], writers: int, seconds: float) -> dict[str, float]:
    """Return commits a second of all writers, and the median of one commit."""
    spawning = multiprocessing.get_context("spawn")
    started, out = spawning.Barrier(writers), spawning.Queue()
    processes = [
        spawning.Process(target=_run, args=(out, properties, number, seconds, started)) for number in range(writers)
    ]
    for each in processes:
        each.start()
    took = [each for _ in processes for each in out.get()]
    for each in processes:
        each.join()
    return {"commits/s": round(len(took) / seconds, 1), "median_ms": round(statistics.median(took) * 1000, 2)}


def filled(catalog: Catalog, tables: int, writers: int) -> None:
    """Create the tables of the writers, and register so many others, all at one metadata file."""
    catalog.create_namespace("bench")
    for writer in range(writers):
        for number in range(4):
            catalog.create_table(f"bench.w{writer}n{number}", SCHEMA)
    catalog.create_namespace("others")
    location = catalog.load_table("bench.w0n0").metadata_location
    register = _register_ours if hasattr(catalog, "lakehouse") else _register_sql
    register(catalog, location, tables)


def _register_ours(catalog: Any, location: str, tables: int) -> None:
    with catalog.transaction() as txn:
        for number in range(tables):
            txn.register_table(f"others.t{number:06}", location)
    compaction.run(catalog.lakehouse, compaction.Config(engine="local"))


def _register_sql(catalog: Any, location: str, tables: int) -> None:
    from pyiceberg.catalog.sql import IcebergTables
    from sqlalchemy import insert
    from sqlalchemy.orm import Session

    rows = [catalog._create_table_row("others", f"t{number:06}", location) for number in range(tables)]  # noqa: SLF001
    with Session(catalog.engine) as session:
        if rows:
            session.execute(insert(IcebergTables), rows)
        session.commit()


@contextmanager
def postgres() -> Iterator[str]:
    """Run the real server, which waits for the disk, and yield its URI."""
    from urllib.parse import quote

    from tests.support import postgres as server

    server._SETTINGS["fsync"] = "on"  # noqa: SLF001 - its tests turn it off
    with server.run_postgres() as found:
        where = f"{found.host}:{found.port}/{server.DATABASE}"
        yield f"postgresql+psycopg2://{server.USER}:{quote(server.PASSWORD, safe='')}@{where}"


def catalogs(folder: Path, server: str) -> dict[str, dict[str, str]]:
    """Return the properties of three empty catalogs below a folder."""
    root = (folder / "lake").as_uri()
    Lakehouse.create(root)
    warehouse = (folder / "warehouse").as_uri()
    return {
        "trinitylake": {"py-catalog-impl": IMPL, "uri": root},
        "sqlite": {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": warehouse},
        "postgresql": {"type": "sql", "uri": server, "warehouse": warehouse},
    }


def compared(server: str, tables: int, writers: int, seconds: float) -> dict[str, dict[str, Any]]:
    """Return the figures of one configuration, with the ratio of commits to ours."""
    figures: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as name:
        for who, properties in catalogs(Path(name), server).items():
            with load_catalog("bench", **properties) as catalog:
                filled(catalog, tables, writers)
                figures[f"{who}, {tables} tables, {writers} writers"] = measured(properties, writers, seconds)
                if hasattr(catalog, "destroy_tables"):
                    catalog.destroy_tables()
    own = next(iter(figures.values()))["commits/s"]
    for row in figures.values():
        row["times ours"] = round(row["commits/s"] / own, 2)
    return figures


def main(arguments: list[str]) -> None:
    """Run the benchmark and print commits, medians and ratios."""
    parser = argparse.ArgumentParser(prog="benchmarks iceberg", description=__doc__)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--tables", type=int, nargs="+", default=[100, 1000, 10_000])
    parser.add_argument("--writers", type=int, nargs="+", default=[1, 8])
    options = parser.parse_args(arguments)
    figures: dict[str, dict[str, Any]] = {}
    with postgres() as server:
        for tables in options.tables:
            for writers in options.writers:
                found = compared(server, tables, writers, options.seconds)
                print(report.table(found))
                figures |= found
    report.save("iceberg", {"options": vars(options), "figures": figures})

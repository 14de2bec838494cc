"""A catalog of many tables in ours and in DuckLake, what people compare a catalog in files with.

    python -m benchmarks catalogs [--tables 100000] [--batch 1000]

Empty tables of three columns are created, so many in a transaction; then some one by one, each a version. History is
the list of versions; expiration removes all but the newest, and the files that only they needed. DuckLake keeps its
catalog in a DuckDB file. A commit waits for the disk in both.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol

import pyarrow as pa

from benchmarks import report
from benchmarks.rivals import ducklake
from pipelines import clean, expire
from trinitylake_core import Lakehouse
from trinitylake_core.clock import now_millis

_SCHEMA: Final = pa.schema([("a", pa.int64()), ("b", pa.string()), ("c", pa.float64())])
_SINGLE: Final = 20
_LATER: Final = 60 * 86_400_000


class Catalog(Protocol):
    """Tables with names, and the versions of them all."""

    def create(self, names: list[str]) -> None:
        """Create tables in one transaction."""

    def cold(self, name: str) -> None:
        """Open the catalog, and read the columns of a table."""

    def history(self) -> int:
        """Return the number of versions, each of which is read."""

    def expire(self) -> None:
        """Let all versions but the newest expire, and delete what only they needed."""


class OursCatalog:
    """A lakehouse of one namespace."""

    def __init__(self, folder: Path) -> None:
        self._root = f"file://{folder}/ours"
        self._lake = Lakehouse.create(self._root)
        with self._lake.transaction() as txn:
            txn.create_namespace("main")

    def create(self, names: list[str]) -> None:
        """Commit a transaction."""
        with self._lake.transaction() as txn:
            for name in names:
                txn.create_table("main", name, _SCHEMA)

    def cold(self, name: str) -> None:
        """Open, and read a definition."""
        if len(Lakehouse.open(self._root).table("main", name).schema.columns) != len(_SCHEMA):
            raise AssertionError(f"{name} has other columns")

    def history(self) -> int:
        """Read every root."""
        return sum(1 for _ in self._lake.refresh().history())

    def expire(self) -> None:
        """Expire and clean, in this process."""
        lake, later = self._lake.refresh(), now_millis() + _LATER
        expire.run(lake, expire.Config("local", keep_last=1, now_millis=later))
        clean.run(lake, clean.Config("local", now_millis=later))


class DuckLakeCatalog:
    """A schema of a DuckLake."""

    def __init__(self, folder: Path) -> None:
        self._handle, self._attach = ducklake(folder)

    def create(self, names: list[str]) -> None:
        """Create tables in one transaction."""
        self._handle.execute("begin")
        for name in names:
            self._handle.execute(f"create table lake.main.{name} (a bigint, b varchar, c double)")
        self._handle.execute("commit")

    def cold(self, name: str) -> None:
        """Attach again, and describe."""
        self._handle.execute("detach lake")
        self._handle.execute(self._attach)
        if len(self._handle.execute(f"describe lake.main.{name}").fetchall()) != len(_SCHEMA):
            raise AssertionError(f"{name} has other columns")

    def history(self) -> int:
        """List the snapshots."""
        return len(self._handle.execute("select * from ducklake_snapshots('lake')").fetchall())

    def expire(self) -> None:
        """Expire and clean."""
        self._handle.execute("call ducklake_expire_snapshots('lake', older_than => now())")
        self._handle.execute("call ducklake_cleanup_old_files('lake', cleanup_all => true)")


def measured(catalog: Catalog, tables: int, batch: int) -> dict[str, Any]:
    """Return the figures of one catalog."""
    names = [f"t{number:07}" for number in range(tables)]
    cpu = time.process_time()
    created = _timed(lambda: [catalog.create(names[at : at + batch]) for at in range(0, tables, batch)])
    cpu = time.process_time() - cpu
    single = [_timed(lambda name=f"one{n}": catalog.create([name])) for n in range(_SINGLE)]  # type: ignore[misc]
    cold = [_timed(lambda name=name: catalog.cold(name)) for name in names[:: max(1, tables // 10)]]  # type: ignore[misc]
    versions = catalog.history()
    return {
        "created s": round(created, 2),
        "CPU s": round(cpu, 2),
        "one more ms": round(statistics.median(single) * 1e3, 1),
        "open, one table ms": round(statistics.median(cold) * 1e3, 1),
        "versions": versions,
        "history ms": round(_timed(catalog.history) * 1e3, 1),
        "expire s": round(_timed(catalog.expire), 2),
        "versions left": catalog.history(),
    }


def _timed(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def main(arguments: list[str]) -> None:
    """Run the benchmark and print its figures, a catalog per row."""
    parser = argparse.ArgumentParser(prog="benchmarks catalogs", description=__doc__)
    parser.add_argument("--tables", type=int, default=2_000)
    parser.add_argument("--batch", type=int, default=1_000)
    options = parser.parse_args(arguments)
    figures: dict[str, dict[str, Any]] = {}
    made: dict[str, Callable[[Path], Catalog]] = {"ours": OursCatalog, "DuckLake": DuckLakeCatalog}
    for name, catalog in made.items():
        with tempfile.TemporaryDirectory() as folder:
            figures[name] = measured(catalog(Path(folder)), options.tables, options.batch)
            print(report.table(figures), flush=True)
    report.save("catalogs", {"tables": options.tables, "load": os.getloadavg(), "figures": figures})

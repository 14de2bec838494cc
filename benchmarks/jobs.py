"""Jobs that remove files, beside those that people would run instead: the same number of files in one run.

    python -m benchmarks jobs [--files 20000] [--rounds 3] [--spark-files 20000]

So many files are needed, and as many are not.

* Files of the catalog: ``expire`` and ``clean`` of a lakehouse, beside ``VACUUM`` of deltalake (its full form, which
  lists the directory as a cleaning does, and the one that only reads the log).
* Files of tables: ``tables clean`` in this process and on Spark, beside Iceberg's ``remove_orphan_files`` on the same
  Spark (``local[2]``, started before). One table has all the files. ``--spark-files 0`` leaves all three out.

``verify`` has nothing beside it: no rival checks its catalog. Each way has files and a process of its own. CPU includes
Java. The pages of the disk are in memory.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import report
from benchmarks.observed import cpu_seconds
from pipelines import clean, compaction, expire, tables_clean
from pipelines.job import NEVER_CANCELLED
from pipelines.session import SessionConfig, get_session
from pipelines.session.iceberg import TESTED
from pipelines.tables.compact.statements import SparkCatalog
from trinitylake_core import Lakehouse
from trinitylake_core.clock import now_millis
from trinitylake_core.iceberg import TrinityLakeCatalog
from trinitylake_core.rest import endpoint

_DAY: Final = 86_400
_OLD: Final = 30 * _DAY
"""The age of all files, in seconds: older than each of them asks for."""
_LATER: Final = (_OLD + 4 * _DAY) * 1000
Act = Callable[[Path], int]
"""Removes what is not needed below a folder; returns how many files that was."""


def _make_old(folder: Path) -> None:
    """Give every file the time of long ago."""
    then = time.time() - _OLD
    for above, _, names in os.walk(folder):
        for name in names:
            os.utime(Path(above) / name, (then, then))


# -- files of a catalog ----------------------------------------------------------------------------------


def fill_lakehouse(folder: Path, files: int) -> None:
    """Make a lakehouse of so many tables whose definitions were all written twice."""
    lake = Lakehouse.create(folder.as_uri())
    schema = pa.schema([("id", pa.int64())])
    with lake.transaction() as txn:
        txn.create_namespace("a")
        for number in range(files):
            txn.create_table("a", f"t{number:06}", schema=schema)
    with lake.refresh().transaction() as txn:
        for number in range(files):
            txn.alter_table("a", f"t{number:06}", properties={"x": "1"})
    compaction.run(lake.refresh(), compaction.Config(engine="local", full=True))


def expire_and_clean(folder: Path) -> int:
    """Remove the old version, and the files that only it needed."""
    now = now_millis() + _LATER
    lake = Lakehouse.open(folder.as_uri())
    expire.run(lake, expire.Config(engine="local", keep_last=1, older_than_seconds=0, now_millis=now))
    return clean.run(lake.refresh(), clean.Config(engine="local", now_millis=now)).deleted


def fill_delta(folder: Path, files: int) -> None:
    """Make a Delta table that needs so many files, and has removed as many."""
    log = folder / "_delta_log"
    log.mkdir(parents=True)
    pq.write_table(pa.table({"id": [1]}), folder / "first")
    data = (folder / "first").read_bytes()
    (folder / "first").unlink()
    then = int((time.time() - _OLD) * 1000)
    names = [f"part-{number:05}-{uuid.uuid4()}-c000.snappy.parquet" for number in range(2 * files)]
    for name in names:
        (folder / name).write_bytes(data)
    column = {"name": "id", "type": "long", "nullable": True, "metadata": {}}
    schema = json.dumps({"type": "struct", "fields": [column]})
    table = {
        "id": str(uuid.uuid4()),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": schema,
        "partitionColumns": [],
        "configuration": {},
        "createdTime": then,
    }
    file = {"partitionValues": {}, "size": len(data), "modificationTime": then, "dataChange": True}
    adding: list[Any] = [{"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}, {"metaData": table}]
    adding += ({"add": {"path": name, **file}} for name in names)
    gone = {"deletionTimestamp": then, "dataChange": True, "size": len(data)}
    removing = [{"remove": {"path": name, **gone}} for name in names[files:]]
    for number, actions in enumerate((adding, removing)):
        lines = "".join(json.dumps(each) + "\n" for each in actions)
        (log / f"{number:020}.json").write_text(lines)
    _make_old(folder)


def vacuum(folder: Path, *, full: bool) -> int:
    """Remove the files that the Delta table does not need any more."""
    from deltalake import DeltaTable

    table = DeltaTable(str(folder))
    return len(table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False, full=full))


def vacuum_full(folder: Path) -> int:
    """Remove what no version needs, and whatever else lies there."""
    return vacuum(folder, full=True)


def vacuum_log(folder: Path) -> int:
    """Remove what the log says that is removed."""
    return vacuum(folder, full=False)


# -- files of tables -------------------------------------------------------------------------------------


def fill_table(folder: Path, files: int) -> None:
    """Make a table of so many data files, beside which as many lie that nothing refers to."""
    catalog = TrinityLakeCatalog.over(Lakehouse.create(folder.as_uri()))
    catalog.create_namespace("bench")
    data = pa.table({"id": pa.array(range(files), pa.int64())})
    table = catalog.create_table("bench.t", data.schema)
    place = Path(table.location().removeprefix("file://")) / "data"
    place.mkdir(parents=True, exist_ok=True)
    paths = []
    for number in range(2 * files):
        path = place / f"{number:05}-{uuid.uuid4()}.parquet"
        if number < files:
            pq.write_table(data.slice(number, 1), path)
            paths.append(path.as_uri())
            some = path.read_bytes()
        else:
            path.write_bytes(some)
    table.add_files(paths, check_duplicate_files=False)
    _make_old(folder)


def clean_tables(folder: Path, spark: Any = None) -> int:
    """Remove the files of tables that no version needs."""
    engine = "local" if spark is None else "spark"
    config = tables_clean.Config(engine=engine, now_millis=now_millis() + _LATER)
    return tables_clean.run(Lakehouse.open(folder.as_uri()), config, spark).deleted


@contextmanager
def open_spark(folder: Path) -> Iterator[SparkCatalog]:
    """Yield the catalog of a lakehouse in a Spark of this machine that has started."""
    conf = {"spark.ui.enabled": "false"}
    spark = get_session(SessionConfig(master="local[2]", iceberg=TESTED, log_level="OFF", conf=conf))
    with endpoint(Lakehouse.open(folder.as_uri())) as at:
        yield SparkCatalog(spark, at.properties(), NEVER_CANCELLED, lambda: False)


def remove_orphan_files(catalog: SparkCatalog) -> int:
    """Remove the files of the table that none of its snapshots needs; the default age is three days."""
    rows = catalog.run(
        f"CALL {catalog.name}.system.remove_orphan_files(table => 'bench.t', prefix_mismatch_mode => 'IGNORE')"
    )
    return len(rows)


# -- measuring -------------------------------------------------------------------------------------------


def _measure(act: Callable[[], int], files: int, way: str) -> dict[str, float]:
    began = time.perf_counter()
    cpu = cpu_seconds(os.getpid())
    removed = act()
    figures = {"cpu_s": cpu_seconds(os.getpid()) - cpu, "s": time.perf_counter() - began}
    if removed < files:
        raise SystemExit(f"{way} removed {removed:,} of {files:,} files")
    return figures


def measure(way: str, folder: Path, files: int) -> dict[str, float]:
    """Return what one way takes. In a process of its own."""
    if way in _HERE:
        _, act = _HERE[way]
        return _measure(lambda: act(folder), files, way)
    with open_spark(folder) as catalog:
        catalog.run(f"SELECT count(*) FROM {catalog.name}.bench.t.files")  # noqa: S608 - Java compiles what it needs
        if way == _ORPHANS:
            return _measure(lambda: remove_orphan_files(catalog), files, way)
        spark = catalog.session
        return _measure(lambda: clean_tables(folder, spark), files, way)


_HERE: Final[dict[str, tuple[Callable[[Path, int], None], Act]]] = {
    "expire, clean": (fill_lakehouse, expire_and_clean),
    "deltalake VACUUM FULL": (fill_delta, vacuum_full),
    "deltalake VACUUM": (fill_delta, vacuum_log),
    "tables clean, this process": (fill_table, clean_tables),
}
_ORPHANS: Final = "Iceberg remove_orphan_files"
_OF_CATALOG: Final = ("expire, clean", "deltalake VACUUM FULL", "deltalake VACUUM")
_OF_TABLES: Final = ("tables clean, this process", "tables clean, Spark", _ORPHANS)


def in_process(act: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a function returns in a new process: CPU of one way is not that of another."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        return process.submit(act, *arguments).result()


def main(arguments: list[str]) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--spark-files", type=int, default=20_000)
    options = parser.parse_args(arguments)
    ways = dict.fromkeys(_OF_CATALOG, options.files)
    if options.spark_files:
        ways |= dict.fromkeys(_OF_TABLES, options.spark_files)
    found: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
    for _ in range(options.rounds):
        for way, files in ways.items():
            fill = fill_table if way in _OF_TABLES else _HERE[way][0]
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name) / "files"
                in_process(fill, folder, files)
                found[way].append(in_process(measure, way, folder, files))
    figures = {}
    for way, files in ways.items():
        row: dict[str, Any] = {"needed": files, "not needed": files}
        for name in ("cpu_s", "s"):
            row[name] = round(statistics.median(each[name] for each in found[way]), 2)
        figures[way] = row
    print(report.table(figures), flush=True)
    asked = {"files": options.files, "rounds": options.rounds, "spark_files": options.spark_files}
    report.save("jobs", {"options": asked, "figures": figures, "commit": report.commit()})

"""PyIceberg writes three tables from four processes; a bad job ruins two of them; one rollback brings all back.

    python -m examples.iceberg

Needs the extra ``iceberg``, and DuckDB with its Iceberg extension from PyPI. The lakehouse is made afresh in a
temporary directory; the process starts neither Spark nor Dagster, which would do the same with ``engine="spark"``.
"""

from __future__ import annotations

import multiprocessing
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import duckdb
import pyarrow as pa
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table

from pipelines import compaction, rollback, verify
from pipelines.job import dry_run
from trinitylake_core import Lakehouse
from trinitylake_core.iceberg import TrinityLakeCatalog

TABLES: Final = ("sales.orders", "sales.items", "crm.customers")
WRITERS: Final = 4
APPENDS: Final = 3
SCHEMA: Final = pa.schema([("writer", pa.int64()), ("number", pa.int64())])


def opened(root: str, **properties: str) -> TrinityLakeCatalog:
    """Return the catalog over a lakehouse, as any program that uses PyIceberg opens it."""
    catalog = load_catalog(
        "lake", **{"py-catalog-impl": "trinitylake_core.iceberg.TrinityLakeCatalog", "uri": root, **properties}
    )
    if not isinstance(catalog, TrinityLakeCatalog):
        raise TypeError(f"{catalog} is another catalog")
    return catalog


def write(root: str, writer: int) -> None:
    """Append to each table a few times; others do the same at the same time."""
    catalog = opened(root)
    for number in range(APPENDS):
        for name in TABLES:
            catalog.load_table(name).append(pa.table({"writer": [writer], "number": [number]}, SCHEMA))


def write_from_several_processes(root: str) -> None:
    """Run the writers, and wait for them."""
    spawning = multiprocessing.get_context("spawn")
    writers = [spawning.Process(target=write, args=(root, number)) for number in range(WRITERS)]
    for each in writers:
        each.start()
    for each in writers:
        each.join()
    if any(each.exitcode for each in writers):
        raise RuntimeError("a writer failed")


def counted(table: Table) -> int:
    """Return how many rows PyIceberg reads."""
    return len(table.scan().to_arrow())


def read_by_duckdb(table: Table) -> int:
    """Return how many rows DuckDB reads, by its Iceberg extension and the metadata file alone."""
    with duckdb.connect() as connection:
        for name in ("avro", "iceberg"):
            connection.load_extension(str(extension(name)))
        query = "SELECT count(*) FROM iceberg_scan(?)"
        ((count,),) = connection.execute(query, [table.metadata_location]).fetchall()
    return int(count)


def extension(name: str) -> Path:
    """Return the file of a DuckDB extension that was installed from PyPI: no network is needed."""
    spec = find_spec(f"duckdb_extension_{name}")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"pip install duckdb-extension-{name}=={duckdb.__version__}")
    return next(Path(spec.origin).parent.rglob(f"{name}.duckdb_extension"))


def show(catalog: TrinityLakeCatalog) -> None:
    """Print what both engines read of each table."""
    for name in TABLES:
        if not catalog.table_exists(name):
            print(f"    {name:14} is gone")
            continue
        table = catalog.load_table(name)
        print(f"    {name:14} {counted(table):3} rows by PyIceberg, {read_by_duckdb(table):3} by DuckDB")


def run(directory: Path) -> None:
    """Tell the story in a lakehouse below a directory."""
    root = (directory / "lake").as_uri()
    lake = Lakehouse.create(root)
    catalog = opened(root)
    for name in TABLES:
        catalog.create_namespace_if_not_exists(name.partition(".")[0])
        catalog.create_table(name, SCHEMA)
    print(f"{WRITERS} processes append {APPENDS} times to each of {len(TABLES)} tables")
    write_from_several_processes(root)
    show(catalog)
    compacted = compaction.run(lake.refresh(), compaction.Config(engine="local"))
    good = lake.refresh().version
    print(f"compaction: {compacted.messages_before} messages before, {lake.stats().messages} after")

    with catalog.transaction(reason="bad job") as job:
        job.load_table("sales.orders").overwrite(pa.table({"writer": [-1], "number": [-1]}, SCHEMA))
        job.drop_table("crm.customers")
    print("a bad job overwrites one table and drops another, in one version")
    show(catalog)

    config = rollback.Config(version=good, reason="undo the bad job", engine="local")
    for each in rollback.run(lake.refresh(), config, review=dry_run).tables:
        name, made = f"{each.namespace}.{each.name}", f"{each.snapshot_at:%H:%M:%S}"
        print(f"plan: {name} goes back to snapshot {each.snapshot_id} of {made}")
    rollback.run(lake, config)
    print("rolled back: the whole lakehouse is as it was")
    show(catalog)
    found = verify.run(lake, verify.Config("all", tables=1.0, engine="local"))
    looked = f"{len(found.versions)} versions, {found.tables_checked} metadata files"
    print(f"verified: {looked}, {len(found.findings)} findings")
    past = opened(root, version=str(good + 1)).load_table("sales.orders")
    print(f"the bad version can still be looked at: sales.orders has {counted(past)} row there")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        run(Path(made))

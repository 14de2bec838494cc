"""Commit latency side by side: one small durable commit, over and over, on a catalog of many objects.

    python -m benchmarks commits [--objects 100000] [--commits 500]

Ours: one new table a transaction. deltalake: append of one row. Lance: merge_insert of one row.
SQLite: one row, synchronous=FULL. deltalake and Lance do not fsync their commits; SQLite and we do.
All take turns, so that a slow moment of the machine hits all of them.
"""

from __future__ import annotations

import argparse
import sqlite3
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from benchmarks import lakes, report
from benchmarks.lakes import table_name

Commit = Callable[[int], object]


def ours(folder: Path, objects: int, *, durable: bool = True, node_bytes: int = 1 << 20) -> Commit:
    """Return a function that commits one new table."""
    from trinitylake_core import Lakehouse

    root = f"file://{folder}/ours-{durable}-{node_bytes}"
    lakes.build(root, objects, node_file_max_size_bytes=node_bytes)
    lake = Lakehouse.open(root, storage_options={"durable": durable})

    def commit(number: int) -> None:
        with lake.transaction() as txn:
            txn.create_table(table_name(number % objects, objects)[0], f"new{number}")

    return commit


def rows(objects: int) -> pa.Table:
    """Return the catalog as a table of keys and paths."""
    names = [".".join(table_name(number, objects)) for number in range(objects)]
    return pa.table({"key": names, "path": [f"path/{name}" for name in names]})


def delta(folder: Path, objects: int) -> Commit:
    """Return a function that appends one row to a Delta table."""
    from deltalake import DeltaTable, write_deltalake

    write_deltalake(str(folder / "delta"), rows(objects))

    def commit(number: int) -> None:
        table = DeltaTable(str(folder / "delta"))
        write_deltalake(table, pa.table({"key": [f"new{number}"], "path": [f"path/{number}"]}), mode="append")

    return commit


def lance(folder: Path, objects: int) -> Commit:
    """Return a function that merges one row into a Lance dataset."""
    import lance as lance_

    dataset = lance_.write_dataset(rows(objects), str(folder / "lance"))

    def commit(number: int) -> None:
        row = pa.table({"key": [f"new{number}"], "path": [f"path/{number}"]})
        dataset.merge_insert("key").when_matched_update_all().when_not_matched_insert_all().execute(row)

    return commit


def sqlite(folder: Path, objects: int) -> Commit:
    """Return a function that inserts one row into SQLite, durably."""
    database = sqlite3.connect(folder / "sqlite.db", isolation_level=None)
    database.execute("pragma synchronous=full")
    database.execute("create table catalog (key text primary key, path text)")
    table = rows(objects)
    with database:
        database.execute("begin")
        pairs = zip(table.column("key").to_pylist(), table.column("path").to_pylist(), strict=True)
        database.executemany("insert into catalog values (?, ?)", pairs)
        database.execute("commit")

    def commit(number: int) -> None:
        database.execute("insert into catalog values (?, ?)", (f"new{number}", f"path/{number}"))

    return commit


def main(arguments: list[str]) -> None:
    """Run the benchmark and print medians and ratios."""
    parser = argparse.ArgumentParser(prog="benchmarks commits", description=__doc__)
    parser.add_argument("--objects", type=int, default=100_000)
    parser.add_argument("--commits", type=int, default=500)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        competitors: dict[str, Commit] = {
            "trinitylake, durable": ours(folder, options.objects),
            "trinitylake, durable, nodes of 128 KiB": ours(folder, options.objects, node_bytes=128 << 10),
            "trinitylake, no fsync": ours(folder, options.objects, durable=False),
            "deltalake append": delta(folder, options.objects),
            "lance merge_insert": lance(folder, options.objects),
            "sqlite, synchronous=FULL": sqlite(folder, options.objects),
        }
        times: dict[str, list[float]] = {competitor: [] for competitor in competitors}
        for number in range(options.commits):
            for competitor, commit in competitors.items():
                started = time.perf_counter()
                commit(number)
                times[competitor].append(time.perf_counter() - started)
    figures = {competitor: report.spread(each) for competitor, each in times.items()}
    own = figures["trinitylake, durable"]["median_ms"]
    for row in figures.values():
        row["times ours"] = round(row["median_ms"] / own, 2)
    print(report.table(figures))
    report.save("commits", {"objects": options.objects, "commits": options.commits, "figures": figures})

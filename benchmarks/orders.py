"""What the order of a tree costs and saves: lookup, small commit, compaction, scan, bytes, requests.

    python -m benchmarks orders [--objects 1000000] [--orders 64 128 256 512 1024 4096]

For each order a new lakehouse. Lookups are cold, on a disk and on an S3 server that answers after 30 ms. Small commits
create one table each, spread over all namespaces, and push the root's buffer down as they always do; their bytes are
all that they write, but for the definition. So many per cent changed are that part of the objects, spread evenly,
committed by one transaction and compacted. On S3 a lookup waits for one request after the other, a compaction for up to
``max_concurrency`` at a time: requests tell what it costs there.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import lakes, report
from benchmarks.peers import draw_changes
from pipelines import compaction
from tests.support.slow_s3 import run_slow_s3
from trinitylake_core import Lakehouse
from trinitylake_core.storage import open_storage
from trinitylake_core.tree.search import lookup, scan

_LOOKUPS = 300
_COMMITS = 400
_LOOKUPS_AFAR = 50
_DELAY = 0.03
_PARTS = (0.001, 0.01, 0.1, 1.0)
_ROOM = {"node_file_max_size_bytes": 4 << 20}
"""Enough for the key table of the highest order that is measured."""


def lookups_afar(folder: Path, objects: int) -> dict[str, Any]:
    """Return time and requests of a lookup in a copy on an S3 server that answers after 30 ms."""
    with tempfile.TemporaryDirectory() as logs, run_slow_s3(Path(logs)) as server:
        root = server.new_root()
        files = (path for path in folder.rglob("*") if path.is_file())
        open_storage(root, server.options).write_many(
            (str(path.relative_to(folder)), path.read_bytes()) for path in files
        )
        server.set(delay=_DELAY)
        found = lookups(root, objects, server.options, _LOOKUPS_AFAR)
    return {f"{name} at 30 ms": figure for name, figure in found.items()}


def lookups(root: str, objects: int, options: Mapping[str, Any] | None = None, times: int = _LOOKUPS) -> dict[str, Any]:
    """Return time and requests of a lookup by a handle that was opened a moment ago."""
    pick, seconds, gets, cpu = random.Random(7), [], 0, _cpu()
    for _ in range(times):
        namespace, name = lakes.table_name(pick.randrange(objects), objects)
        began = time.perf_counter()
        lake = Lakehouse.open(root, storage_options=options)
        if lookup(lake.nodes, lake.root_node.node, lake.codec.table(namespace, name)) is None:
            raise AssertionError(f"{namespace}.{name} is not there")
        seconds.append(time.perf_counter() - began)
        gets += lake.storage.counts.get
    return {"lookup ms": _ms(seconds), "CPU ms": _each(cpu, times), "lookup get": round(gets / times, 2)}


def commits(root: str, objects: int) -> dict[str, Any]:
    """Return time, bytes and files of a small durable commit."""
    lake = Lakehouse.open(root)
    pick, seconds = random.Random(8), []
    lake.transaction().commit(allow_empty=True)
    before, cpu = lake.refresh().storage.counts.snapshot(), _cpu()
    for number in range(_COMMITS):
        namespace, _ = lakes.table_name(pick.randrange(objects), objects)
        began = time.perf_counter()
        with lake.transaction() as txn:
            txn.put(lake.codec.table(namespace, f"new{number}"), f"0101/0101/0101/01010101-table-{number}.binpb")
        seconds.append(time.perf_counter() - began)
    moved = lake.storage.counts - before
    return {
        "commit ms": _ms(seconds),
        "commit CPU ms": _each(cpu, _COMMITS),
        "commit KB": round(moved.bytes_written / _COMMITS / 1e3, 1),
        "commit put": round((moved.put + moved.create) / _COMMITS, 2),
    }


def changed(folder: str, objects: int, changes: int, order: int, label: str) -> dict[str, Any]:
    """Return what changes cost in this process, committed by one transaction and compacted, on a new lakehouse.

    ``label`` begins the names. Requests and bytes are of both: the commit of many changes writes leaves, too.
    """
    lake = lakes.build(f"file://{folder}", objects, order=order, **_ROOM)
    drawn = draw_changes(lakes.rows(objects), changes, random.Random(1))
    before = lake.storage.counts.snapshot()
    cpu = _cpu()
    began = time.perf_counter()
    with lake.transaction() as txn:
        txn.put_many(drawn.table)
    compaction.run(lake.refresh(), compaction.Config(engine="local"))
    seconds = time.perf_counter() - began
    cost = lake.storage.counts - before
    return {
        f"{label}changed s": round(seconds, 2),
        f"{label}CPU s": round(_cpu() - cpu, 2),
        f"{label}requests": cost.get + cost.put + cost.create,
        f"{label}MB": round((cost.bytes_read + cost.bytes_written) / 1e6, 1),
    }


def measured(order: int, objects: int, folder: Path) -> dict[str, Any]:
    """Return all figures of one order."""
    root, rows = f"file://{folder}/{order}", lakes.rows(objects)
    began, cpu = time.perf_counter(), _cpu()
    lake = lakes.create(root, rows, order=order, **_ROOM)
    built, cpu = time.perf_counter() - began, _cpu() - cpu
    stats = lake.stats()
    row: dict[str, Any] = {"levels": (stats.height or 0) + 1, "build s": round(built, 2), "build CPU s": round(cpu, 2)}
    row["nodes"] = sum(1 for _ in folder.glob(f"{order}/*/*/*/*-node-*"))
    row["MB"] = round(sum(path.stat().st_size for path in folder.glob(f"{order}/*/*/*/*-node-*")) / 1e6, 1)
    began, cpu = time.perf_counter(), _cpu()
    found = sum(len(keys) for keys, _ in scan(lake.nodes, lake.root_node.node))
    row |= {"scan s": round(time.perf_counter() - began, 2), "scan CPU s": round(_cpu() - cpu, 2)}
    if found != objects + lakes.NAMESPACES:
        raise AssertionError(f"a scan found {found} of {objects} objects")
    row |= lookups(root, objects) | lookups_afar(folder / str(order), objects)
    print(report.table({str(order): row}), flush=True)
    row |= commits(root, objects)
    for part in _PARTS:
        label = f"{part:.1%} ".replace(".0%", "%")
        row |= changed(f"{folder}/{order}-{part}", objects, int(objects * part), order, label)
    return row


def _each(before: float, count: int) -> float:
    return round((_cpu() - before) / count * 1e3, 2)


def _ms(seconds: list[float]) -> float:
    return round(statistics.median(seconds) * 1e3, 2)


def _cpu() -> float:
    now = os.times()
    return time.process_time() + now.children_user + now.children_system


def main(arguments: list[str]) -> None:
    """Run the benchmark and print its figures, an order per row."""
    parser = argparse.ArgumentParser(prog="benchmarks orders", description=__doc__)
    parser.add_argument("--objects", type=int, default=1_000_000)
    parser.add_argument("--orders", type=int, nargs="+", default=[64, 128, 256, 512, 1024, 4096])
    options = parser.parse_args(arguments)
    figures: dict[str, dict[str, Any]] = {}
    for order in options.orders:
        with tempfile.TemporaryDirectory() as folder:
            figures[str(order)] = measured(order, options.objects, Path(folder))
            print(report.table(figures), flush=True)
    report.save("orders", {"objects": options.objects, "load": os.getloadavg(), "figures": figures})

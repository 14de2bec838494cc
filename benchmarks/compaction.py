"""Building a large tree, committing many changes, compacting it on Spark and in this process.

python -m benchmarks compaction [--objects 1000000] [--changes 100000] [--part 1.0]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from typing import Any

from benchmarks import lakes, report
from pipelines import compaction
from pipelines.session import get_session, stop_session


def measure(engine: str, objects: int, changes: int, part: float, folder: str) -> dict[str, Any]:
    """Return the figures of one engine on a new lakehouse."""
    started = time.perf_counter()
    lake = lakes.build(f"file://{folder}/{engine}-{part}", objects)
    built = time.perf_counter()
    lakes.change(lake, objects, changes, part=part)
    committed = time.perf_counter()
    session = None
    if engine == "spark":
        session = get_session()
        session.range(8).mapInArrow(lambda batches: batches, "id long").count()  # Python workers up: a warm session
    warm = time.perf_counter()
    nodes = lake.stats()
    done = compaction.run(lake, compaction.Config(engine=engine), session)
    total_nodes = done.nodes_written if part >= 1 else max(1, objects // 114)
    return {
        "build s": round(built - started, 2),
        "commit s": round(committed - built, 2),
        "compact s": round(time.perf_counter() - warm, 2),
        "nodes read": done.nodes_read,
        "nodes written": done.nodes_written,
        "of nodes": round(done.nodes_written / total_nodes, 4),
        "MB read": round(done.bytes_read / 1e6, 1),
        "MB written": round(done.bytes_written / 1e6, 1),
        "messages": nodes.messages,
        "proved": done.proved,
    }


def main(arguments: list[str]) -> None:
    """Run the benchmark and print its figures."""
    parser = argparse.ArgumentParser(prog="benchmarks compaction", description=__doc__)
    parser.add_argument("--objects", type=int, default=1_000_000)
    parser.add_argument("--changes", type=int, default=100_000)
    options = parser.parse_args(arguments)
    figures: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for part in (1.0, 0.01):
            for engine in ("spark", "local"):
                name = f"{engine}, changes in {part:.0%} of the keys"
                figures[name] = measure(engine, options.objects, options.changes, part, folder)
    stop_session()
    print(report.table(figures))
    report.save("compaction", {"objects": options.objects, "changes": options.changes, "figures": figures})

"""Retention at scale: many versions, many orphans. Seconds per phase, and the memory of driver and workers.

python -m benchmarks retention [--objects 1000000] [--versions 200,1000] [--orphans 100000]

Each measurement runs in a process of its own, whose memory, its JVM's and its Python workers' is sampled.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from typing import Any

from benchmarks import lakes, report
from benchmarks.observed import sampled
from pipelines import clean, expire, verify
from pipelines.job import dry_run
from pipelines.session import get_session, stop_session
from trinitylake_core import Lakehouse
from trinitylake_core.clock import now_millis
from trinitylake_core.locations import definition_path, node_path
from trinitylake_core.storage import open_storage

_DAY = 86_400_000
_FAST = {"durable": False}
_CHANGES = 40
_JOBS = (("verify", "spark"), ("plan", "local"), ("clean", "spark"), ("expire", "local"))


def build(root: str, objects: int, versions: int, orphaned: int) -> None:
    """Make a lakehouse of many versions, each with a few changes all over the keys, and orphans around it."""
    lakes.build(root, objects)
    lake = Lakehouse.open(root, storage_options=_FAST)
    for number in range(1, versions):
        lakes.change(lake, objects, _CHANGES, seed=number)
    storage = open_storage(root, _FAST)
    paths = (node_path() if n % 2 else definition_path("table", "gone", f"t{n}") for n in range(orphaned))
    storage.write_many((path, b"left over") for path in paths)


def one(job: str, engine: str, root: str) -> dict[str, Any]:
    """Run one job in this process and return its figures."""
    lake = Lakehouse.open(root, storage_options=_FAST)
    session = None
    if engine == "spark":
        session = get_session()
        session.range(8).mapInArrow(lambda batches: batches, "id long").count()  # Python workers up: a warm session
    begun = time.perf_counter()
    figures: dict[str, Any]
    if job == "verify":
        checked = verify.run(lake, verify.Config("all", engine=engine), session)
        figures = {"nodes read": checked.nodes_read, "findings": len(checked.findings), **_phases(checked.seconds)}
    elif job == "expire":
        config = expire.Config(engine=engine, keep_last=lake.version // 2, now_millis=now_millis() + 30 * _DAY)
        expired = expire.run(lake, config, session)
        figures = {"versions": expired.versions_expired, "deleted": expired.deleted, **_phases(expired.seconds)}
    else:
        config, review = clean.Config(engine, now_millis=now_millis() + 4 * _DAY), dry_run if job == "plan" else None
        cleaned = clean.run(lake, config, session, review=review)
        figures = {
            "orphans": cleaned.orphan_files,
            "deleted": cleaned.deleted,
            "nodes read": cleaned.nodes_read,
            **_phases(cleaned.seconds),
        }
    figures["total s"] = round(time.perf_counter() - begun, 1)
    stop_session()
    return figures


def _phases(seconds: dict[str, float]) -> dict[str, float]:
    return {f"{phase} s": round(value, 1) for phase, value in seconds.items()}


def measured(job: str, engine: str, root: str) -> dict[str, Any]:
    """Run one job in a process of its own and return its figures, its memory among them."""
    command = [sys.executable, "-m", "benchmarks", "retention", "--one", job, "--engine", engine, "--root", root]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    with sampled(process.pid) as peaks:
        told, _ = process.communicate()
    if process.returncode:
        sys.exit(f"{job} on {engine} failed")
    memory = {f"{kind} MB": round(size / 1e6) for kind, size in sorted(peaks.items())}
    return json.loads(told.splitlines()[-1]) | memory


def node_files(root: str) -> int:
    """Return how many node files there are, roots among them."""
    names = (info.path for info in open_storage(root).list())
    return sum(name.endswith(".ipc") for name in names)


def main(arguments: list[str]) -> None:
    """Run the benchmark and print its figures."""
    parser = argparse.ArgumentParser(prog="benchmarks retention", description=__doc__)
    parser.add_argument("--objects", type=int, default=1_000_000)
    parser.add_argument("--versions", default="200,1000")
    parser.add_argument("--orphans", type=int, default=100_000)
    parser.add_argument("--jobs", default=",".join(f"{job}:{engine}" for job, engine in _JOBS))
    parser.add_argument("--one")
    parser.add_argument("--engine")
    parser.add_argument("--root")
    options = parser.parse_args(arguments)
    if options.one:
        print(json.dumps(one(options.one, options.engine, options.root)))
        return
    figures: dict[str, dict[str, Any]] = {}
    for versions in map(int, options.versions.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            root = f"file://{folder}/lake"
            begun = time.perf_counter()
            build(root, options.objects, versions, options.orphans)
            print(f"{versions} versions built in {time.perf_counter() - begun:.0f} s", file=sys.stderr)
            nodes = node_files(root) - options.orphans // 2
            for job, engine in (each.split(":") for each in options.jobs.split(",")):
                found = measured(job, engine, root)
                figures[f"{job}, {engine}, {versions} versions"] = {"node files": nodes, **found}
                print(json.dumps({f"{job} {engine} {versions}": found}), file=sys.stderr)
    print(report.table(figures))
    report.save("retention", {"objects": options.objects, "orphans": options.orphans, "figures": figures})

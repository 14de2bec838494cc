"""How well the workers of a cluster share the work: a standalone cluster, and a store that answers after 100 ms.

    python -m benchmarks cluster [--workers 2 4 8] [--objects 200000] [--order 16] [--delay 0.1] [--kill] [--why]

The cluster is of this machine: workers of one core each, that mostly wait for the store, so that two physical cores do
for eight. ``at once`` says how many tasks ran at the same time on average while any did, and ``share`` is that divided
by the workers; ``of all`` counts the driver's own time, too. What is missing to 100 is in the columns after it
(``benchmarks.timeline``). ``under way`` is how many requests waited for the store at the same time on average.
``--kill`` kills an executor in the middle of each compaction, which must be done, and committed once. ``--why`` prints
the longest gaps between tasks, and the stages.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import report, timeline
from pipelines import clean, compaction, export, load, verify
from pipelines.session import lazy_session, session_parallelism
from tests.support.slow_s3 import SlowS3, run_slow_s3
from tests.support.standalone import Cluster, standalone
from trinitylake_core import Lakehouse
from trinitylake_core.storage import open_storage

_NAMESPACES = 10
_CHANGED = 11
"""Every eleventh table is changed before the compaction, in all namespaces."""
_BEFORE_KILL = 20
"""Requests of a compaction before an executor is killed."""


def _name(number: int) -> tuple[str, str]:
    return f"ns{number % _NAMESPACES}", f"t{number:07}"


def write_lines(objects: int, target: Path) -> None:
    """Write the lines of a load of tables, in a few namespaces."""
    with target.open("w") as file:
        for number in range(_NAMESPACES):
            print(json.dumps({"create_namespace": {"namespace": f"ns{number}"}}), file=file)
        for number in range(objects):
            namespace, name = _name(number)
            print(json.dumps({"create_table": {"namespace": namespace, "name": name}}), file=file)


def _change(lake: Lakehouse, objects: int) -> None:
    with lake.refresh().transaction() as txn:
        for number in range(0, objects, _CHANGED):
            txn.alter_table(*_name(number), properties={"changed": "yes"})
    lake.refresh()


def _kill_one(server: SlowS3, cluster: Cluster, done: threading.Event) -> None:
    while not done.wait(0.2):
        if server.busy()["requests"] >= _BEFORE_KILL:
            cluster.executors()[0].kill()
            return


class _Run:
    """The jobs on one cluster, and when each ran."""

    def __init__(self, server: SlowS3, cluster: Cluster, options: argparse.Namespace) -> None:
        self.server, self.cluster, self.options = server, cluster, options
        self.rows: dict[str, dict[str, Any]] = {}
        self.when: dict[str, tuple[float, float]] = {}

    def job(self, name: str, work: Callable[[], object]) -> None:
        """Run a job with the delay, and note what the server saw."""
        self.server.set(delay=self.options.delay)
        began = time.time()
        work()
        self.when[name] = began, time.time()
        busy = self.server.busy()
        self.rows[name] = {"s": round(time.time() - began, 1), "requests": int(busy["requests"])}
        self.rows[name] |= {"under way": round(busy["waited"] / (busy["seconds"] or 1))}
        self.server.set()

    def compact(self, spark: Any, lake: Lakehouse) -> None:
        """Compact; with ``--kill`` an executor dies meanwhile."""
        before, done = lake.version, threading.Event()
        killer = threading.Thread(target=_kill_one, args=(self.server, self.cluster, done))
        if self.options.kill:
            killer.start()
        report_of = compaction.run(lake, compaction.Config(engine="spark"), spark)
        done.set()
        if self.options.kill:
            killer.join()
        if not report_of.proved or lake.refresh().version != before + 1 or lake.stats().messages:
            raise AssertionError("the compaction was not committed once, as it should be")

    def timelines(self) -> dict[str, timeline.Timeline]:
        """Return what the workers did in each job. The session must have ended."""
        tasks, workers = self.cluster.tasks(), self.cluster.workers
        return {name: timeline.timeline(tasks, workers, *when) for name, when in self.when.items()}

    def figures(self) -> dict[str, dict[str, Any]]:
        """Return a row for each job. The session must have ended."""
        for name, found in self.timelines().items():
            row = self.rows[name]
            row |= {"tasks": sum(found.tasks_of.values()), "at once": round(found.at_once, 2), **found.figures()}
            if self.options.why:
                print(f"{self.cluster.workers} workers, {name}", timeline.text(found), sep="\n", flush=True)
        return {f"{self.cluster.workers} workers, {name}": row for name, row in self.rows.items()}


def ran(workers: int, options: argparse.Namespace, folder: Path) -> _Run:
    """Run the jobs on a cluster of so many workers, and return what they did."""
    lines = folder / "lines.jsonl"
    write_lines(options.objects, lines)
    with run_slow_s3(folder) as server, standalone(workers, folder) as cluster:
        lake = Lakehouse.create(server.new_root(), storage_options=server.options, order=options.order)
        copy = open_storage(server.new_root(), server.options)
        run = _Run(server, cluster, options)
        with lazy_session(cluster.session()) as spark:
            session_parallelism(spark())  # the jobs are measured, not the start of Spark
            run.job("load", lambda: load.run(lake, str(lines), load.Config(engine="spark"), spark))
            _change(lake, options.objects)
            run.job("compact", lambda: run.compact(spark, lake))
            run.job("verify", lambda: _verify(spark, lake))
            run.job("export", lambda: export.run(lake, copy, export.Config(engine="spark"), spark))
            config = clean.Config(engine="spark", older_than_seconds=0, allow_recent=True)
            run.job("clean", lambda: clean.run(lake, config, spark))
        return run


def _verify(spark: Any, lake: Lakehouse) -> None:
    done = verify.run(lake, verify.Config(engine="spark", definitions=True), spark)
    if not done.ok:
        raise AssertionError(f"broken: {done.findings[:3]}")


def main(arguments: list[str]) -> None:
    """Run the jobs on clusters of several sizes and print the figures."""
    parser = argparse.ArgumentParser(prog="benchmarks cluster", description=__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--objects", type=int, default=200_000)
    parser.add_argument("--order", type=int, default=16)
    parser.add_argument("--delay", type=float, default=0.1)
    parser.add_argument("--kill", action="store_true")
    parser.add_argument("--why", action="store_true")
    options = parser.parse_args(arguments)
    figures: dict[str, dict[str, Any]] = {}
    for workers in options.workers:
        with tempfile.TemporaryDirectory() as folder:
            figures |= ran(workers, options, Path(folder)).figures()
            print(report.table(figures), flush=True)
    report.save("cluster", {"load": os.getloadavg(), "options": vars(options), "figures": figures})

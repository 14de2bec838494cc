"""What each command asks of Spark: jobs, stages, tasks, how many at once in the stages that do the work, CPU, memory.

    python -m benchmarks tasks [--tables 20 200000] [--workers 1 2 4] [--only export clean] [--conf NAME=VALUE ...]
        [--compacted 24] [--shared 1000]

A standalone cluster of this machine, of workers with one core each; all is read from Spark's own event log. *Work* are
the stages in which Python works on files: ``at once`` says how many tasks of them ran at the same time at the most, and
``alone`` in which share of the time that any of them ran there was one only. ``later s`` is the longest of those that
began when a task of the same command had ended on their executor: the first one waits for Python, and for what it
imports. ``MB`` and ``MB Java`` are the most that the driver had during the command, of ``MB before`` when it began;
``MB live`` is what Java's heap still held after it.
``CPU most`` is that of the executor that took the most of ``CPU tasks``, and ``CPU path`` that and the driver's and
Java's: what must follow one another, whatever the machine has. Iceberg tables are made up to ``--iceberg``; the others
have no metadata. With ``--shared`` many tables have the same definition file, for sizes that a disk cannot hold; a copy
or a cleaning of such a lakehouse says nothing. ``tables compact`` has a lakehouse of its own, of ``--compacted`` tables
of twenty files of 1,000 rows; Iceberg's own stages do that work, without Python, and all of its tasks are *work*.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any, Final

import psutil

from benchmarks import lakes, observed, report
from benchmarks.cluster import write_lines
from pipelines import (
    backup,
    clean,
    compaction,
    diff,
    expire,
    export,
    load,
    rollback,
    stats,
    tables_clean,
    tables_compact,
    tables_health,
    verify,
)
from pipelines.engine import open_engine
from pipelines.job import dry_run
from pipelines.session import lazy_session, session_parallelism
from pipelines.session.iceberg import TESTED
from tests.support.many_tables import many_tables
from tests.support.standalone import Cluster, Task, standalone, task_of
from trinitylake_core import Lakehouse
from trinitylake_core.clock import now_millis
from trinitylake_core.storage import open_storage

_WORK: Final = frozenset({"MapInArrow", "MapInPandas", "ArrowEvalPython"})
"""The operators of Spark that run Python."""
_FAST: Final = {"durable": False}
COMPACTED: Final = "tables compact"
_LINES: Final = "lines.jsonl"
Row = dict[str, Any]


@dataclass(slots=True)
class Asked:
    """What was asked of Spark in a span of time.

    Attributes:
        jobs: how many there were.
        stages: how many ran.
        tasks: those that ended.
        work: those of stages in which Python works.
    """

    jobs: int = 0
    stages: int = 0
    tasks: list[Task] = field(default_factory=list)
    work: list[Task] = field(default_factory=list)

    def figures(self) -> Row:
        """Return the columns of a table."""
        took = [task.ended - task.began for task in self.work] or [0.0]
        later = [task.ended - task.began for task in later_tasks(self.work)] or [0.0]
        row: Row = {"jobs": self.jobs, "stages": self.stages, "tasks": len(self.tasks), "work": len(self.work)}
        row |= {"at once": most_at_once(self.work), "alone": round(share_alone(self.work), 2)}
        return row | {
            "longest s": round(max(took), 2),
            "later s": round(max(later), 2),
            "median s": round(median(took), 2),
        }


def asked_of_spark(events: Path, began: float = 0.0, ended: float = float("inf")) -> Asked:
    """Return what Spark was asked for between two moments, from the event logs in a folder.

    The session must have ended, or have written what is asked for.
    """
    found = Asked()
    work = set[int]()
    tasks: list[Task] = []
    for event in _events(events):
        kind = event["Event"]
        if kind == "SparkListenerJobStart":
            found.jobs += began <= event["Submission Time"] / 1000 < ended
        elif kind == "SparkListenerStageCompleted":
            stage = event["Stage Info"]
            found.stages += began <= stage.get("Submission Time", 0) / 1000 < ended
            if has_work(stage):
                work.add(stage["Stage ID"])
        elif kind == "SparkListenerTaskEnd":
            tasks.append(task_of(event))
    found.tasks = [task for task in tasks if began <= task.began < ended]
    found.work = [task for task in found.tasks if task.stage in work]
    return found


def _events(folder: Path) -> Iterator[Row]:
    wanted = ("SparkListenerJobStart", "SparkListenerStageCompleted", "SparkListenerTaskEnd")
    for file in sorted(folder.iterdir()):
        with file.open() as lines:
            for line in lines:
                if line[10:60].startswith(wanted):
                    yield json.loads(line)


def has_work(stage: Row) -> bool:
    """Whether Python works in a stage, and does not only read what a stage before kept of that."""
    return any(json.loads(rdd.get("Scope", "{}")).get("name") in _WORK for rdd in stage["RDD Info"])


def most_at_once(tasks: Sequence[Task]) -> int:
    """Return how many tasks ran at the same time at the most."""
    return max((count for _, count in _spans(tasks)), default=0)


def later_tasks(tasks: Sequence[Task]) -> list[Task]:
    """Return the tasks that are not the first ones of their executor."""
    first: dict[str, Task] = {}
    for task in sorted(tasks):
        first.setdefault(task.executor, task)
    return [task for task in tasks if first[task.executor] is not task]


def share_alone(tasks: Sequence[Task]) -> float:
    """Return in which share of the time that any task ran there was one only."""
    spans = list(_spans(tasks))
    some = sum(seconds for seconds, count in spans if count)
    alone = sum(seconds for seconds, count in spans if count == 1)
    return alone / some if some else 0.0


def _spans(tasks: Sequence[Task]) -> Iterator[tuple[float, int]]:
    """Yield lengths of time, each with the number of tasks that ran."""
    moments = sorted([(task.began, 1) for task in tasks] + [(task.ended, -1) for task in tasks])
    running = 0
    before = 0.0
    for moment, change in moments:
        yield moment - before, running
        running += change
        before = moment


# -- the commands ----------------------------------------------------------------------------------------


def _change(lake: Lakehouse, share: int) -> None:
    """Change a share of the tables, and make a version that only history needs."""
    with lake.refresh().transaction() as txn:
        for number, each in enumerate(list(lake.objects(kind="table"))):
            if number % share == 0:
                txn.alter_table(each.namespace, each.name or "", properties={"changed": "yes"})
    lake.refresh()


def _commands(folder: Path, lake: Lakehouse) -> dict[str, Callable[[Any], object]]:
    """Return each command that has an engine; those behind it see what those before it did."""
    before = lake.at(version=max(0, lake.version - 1))
    copy = open_storage((folder / "copy").as_uri())
    no_age: Row = {"older_than_seconds": 0.0, "allow_recent": True}
    later = now_millis() + 30 * 24 * 3_600_000
    expired = expire.Config(engine="spark", keep_last=1, now_millis=later)
    undone = rollback.Config(version=before.version, reason="a benchmark", engine="spark")
    return {
        "diff": lambda spark: diff.report(before, lake, diff.Config(engine="spark"), spark),
        "compact": lambda spark: compaction.run(lake, compaction.Config(engine="spark", full=True), spark),
        "verify": lambda spark: verify.run(lake, verify.Config(engine="spark", definitions=True), spark),
        "stats": lambda spark: _measure_depths(lake, spark),
        "tables health": lambda spark: tables_health.run(lake, tables_health.Config(engine="spark"), spark),
        "export": lambda spark: export.run(lake, copy, export.Config(engine="spark", history=True), spark),
        "backup": lambda spark: backup.run(lake, copy, backup.Config(engine="spark"), spark),
        "load": lambda spark: load.run(_empty_lake(folder), str(folder / _LINES), load.Config(engine="spark"), spark),
        "rollback": lambda spark: rollback.run(lake, undone, spark, review=dry_run),
        "expire (plan)": lambda spark: expire.run(lake, expired, spark, review=dry_run),
        "expire": lambda spark: expire.run(lake, expired, spark),
        "clean": lambda spark: clean.run(lake, clean.Config(engine="spark", **no_age), spark),
        "tables clean": lambda spark: tables_clean.run(lake, tables_clean.Config(engine="spark", **no_age), spark),
        COMPACTED: lambda spark: _compact_tables(folder, spark),
    }


def _empty_lake(folder: Path) -> Lakehouse:
    return Lakehouse.create((folder / "loaded").as_uri(), storage_options=_FAST)


def _measure_depths(lake: Lakehouse, spark: Any) -> None:
    with closing(open_engine("spark", spark)) as engine:
        stats.deep(lake, engine, storage=True)


def _compact_tables(folder: Path, spark: Any) -> None:
    done = tables_compact.run(Lakehouse.open(_small_files(folder)), tables_compact.Config(engine="spark"), spark)
    if done.failures or not done.files_made:
        raise SystemExit(f"not all tables were compacted: {done}")


def _small_files(folder: Path) -> str:
    return (folder / "small-files").as_uri()


def _make_lake(folder: Path, tables: int, iceberg: int, shared: int, order: int | None, compacted: int) -> str:
    """Make a lakehouse and a change of it; return its root. In a process of its own, it costs the driver no memory."""
    if compacted:
        from benchmarks.tablefiles import fill  # with DuckDB, which no driver has in its memory

        fill(_small_files(folder), compacted, 20, 1_000, values=False, target=None)
    lines = folder / _LINES
    write_lines(shared or tables, lines)
    if shared:
        return _share_definitions(folder, tables, order)
    if tables <= iceberg:
        lake = many_tables(folder, tables, 2, 2, order).lakehouse.refresh()
    else:
        lake = Lakehouse.create((folder / "lake").as_uri(), order=order, storage_options=_FAST)
        load.run(lake, str(lines), load.Config(engine="local"))
        lake = lake.refresh()
    _change(lake, 11)
    return lake.root


def _share_definitions(folder: Path, tables: int, order: int | None) -> str:
    """Make a lakehouse whose tables share the definition files of few, and a change of every hundredth."""
    few = Lakehouse.create((folder / "few").as_uri(), storage_options=_FAST)
    load.run(few, str(folder / _LINES), load.Config(engine="local"))
    entries = list(few.refresh().objects())
    paths = [each.path for each in entries if each.kind == "table"]
    of_namespace = next(each.path for each in entries if each.kind == "namespace")
    lake = lakes.build(
        (folder / "lake").as_uri(),
        tables,
        lambda name: of_namespace if isinstance(name, str) else paths[name % len(paths)],
        order=order,
    )
    lake.storage.write_many((each.path, few.storage.read(each.path)) for each in entries)
    with lake.refresh().transaction() as txn:
        for number in range(0, tables, 100):
            txn.alter_table(*lakes.table_name(number, tables), properties={"changed": "yes"})
    return lake.root


def measure_command(cluster: Cluster, spark: Any, command: Callable[[Any], object]) -> Row:
    """Run a command; return its time, and what it took of the driver's processes and the others'."""
    me = psutil.Process()
    java = _java_of_driver(me)
    for each in (me, java):
        observed.forget_peak(each.pid)
    megabytes = me.memory_info().rss / 1e6
    driver = _cpu([me])
    in_java = _cpu([java])
    of_executors = _cpu_of_executors(cluster)
    began = time.time()
    command(spark)
    ended = time.time()
    driver = _cpu([me]) - driver
    in_java = _cpu([java]) - in_java
    took = [cpu - of_executors.get(pid, 0.0) for pid, cpu in _cpu_of_executors(cluster).items()] or [0.0]
    cpu = {"driver": driver, "Java": in_java, "tasks": sum(took), "most": max(took)}
    cpu["path"] = driver + in_java + max(took)
    row: Row = {"s": round(ended - began, 1)}
    row |= {f"CPU {kind}": round(seconds, 1) for kind, seconds in cpu.items()}
    row |= {"MB before": round(megabytes), "MB": round(observed.peak(me.pid) / 1e6)}
    row |= {"MB Java": round(observed.peak(java.pid) / 1e6)}
    return row | {"MB live": round(_live_bytes(spark()) / 1e6), "when": (began, ended)}


def _live_bytes(spark: Any) -> int:
    """Return how much the heap of the driver's Java holds when it has thrown away what nobody needs."""
    java = spark.sparkContext._jvm.java.lang  # noqa: SLF001 - Spark tells it no other way
    java.System.gc()
    return int(java.management.ManagementFactory.getMemoryMXBean().getHeapMemoryUsage().getUsed())


def _java_of_driver(me: psutil.Process) -> psutil.Process:
    """Return the Java process of the session; master and workers are below this process, too."""
    (found,) = [each for each in me.children() if any(word.endswith("SparkSubmit") for word in each.cmdline())]
    return found


def _cpu_of_executors(cluster: Cluster) -> dict[int, float]:
    """Return the seconds of CPU of each executor, its Python among them, by its process."""
    return {each.pid: _cpu([each, *each.children(recursive=True)]) for each in cluster.executors()}


def _cpu(processes: Sequence[psutil.Process]) -> float:
    seconds = 0.0
    for each in processes:
        try:
            times = each.cpu_times()
        except psutil.NoSuchProcess:
            continue
        seconds += times.user + times.system + times.children_user + times.children_system
    return seconds


@contextmanager
def _warm(cluster: Cluster, conf: dict[str, str], iceberg: str | None) -> Iterator[Any]:
    """Yield a session whose executors have run Python."""
    with lazy_session(replace(cluster.session(**conf), iceberg=iceberg)) as spark:
        wide = spark().range(0, 64, 1, 2 * session_parallelism(spark()))
        wide.mapInArrow(lambda batches: batches, "id long").count()
        yield spark


def measured(tables: int, workers: int, options: argparse.Namespace) -> dict[str, Row]:
    """Return a row of figures for each command, on so many executors."""
    rows: dict[str, Row] = {}
    conf = dict(each.split("=", 1) for each in options.conf)
    with nullcontext(options.folder) if options.folder else tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with ProcessPoolExecutor(1, get_context("spawn")) as processes:
            sizes = tables, options.iceberg, options.shared, options.order, options.compacted
            root = processes.submit(_make_lake, folder, *sizes).result()
        lake = Lakehouse.open(root, storage_options=_FAST)
        with standalone(workers, folder) as cluster:
            with _warm(cluster, conf, TESTED if options.compacted else None) as spark:
                for command, run in _commands(folder, lake).items():
                    if command == COMPACTED and not options.compacted:
                        continue
                    if not options.only or command in options.only:
                        rows[command] = measure_command(cluster, spark, run)
                        print(tables, workers, command, rows[command], file=sys.stderr, flush=True)
            for command, row in rows.items():
                asked = asked_of_spark(folder / "events", *row.pop("when"))
                if command == COMPACTED:
                    asked.work = asked.tasks
                row.update(asked.figures())
            if options.events is not None:
                shutil.copytree(folder / "events", options.events, dirs_exist_ok=True)
    return {f"{tables:,}, {workers}: {command}": row for command, row in rows.items()}


def read_options(arguments: list[str]) -> argparse.Namespace:
    """Return what the arguments say."""
    parser = argparse.ArgumentParser(prog="benchmarks tasks", description=__doc__)
    parser.add_argument("--tables", type=int, nargs="+", default=[20, 200_000])
    parser.add_argument("--workers", type=int, nargs="+", default=[2], help="executors of one core each")
    parser.add_argument("--iceberg", type=int, default=1_000, help="so many tables at the most are Iceberg's")
    parser.add_argument("--shared", type=int, default=0, help="the tables share so many definition files")
    parser.add_argument("--order", type=int, help="of the lakehouse")
    parser.add_argument("--compacted", type=int, default=0, help="so many tables of small files are compacted")
    parser.add_argument("--only", nargs="+", default=[])
    parser.add_argument("--conf", nargs="+", default=[])
    parser.add_argument("--folder", type=Path, help="an empty directory for all of it, which stays")
    parser.add_argument("--events", type=Path, help="a directory for Spark's event logs")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> None:
    """Run the commands and print the figures."""
    options = read_options(arguments)
    figures: dict[str, Row] = {}
    for tables, workers in product(options.tables, options.workers):
        figures |= measured(tables, workers, options)
        print(report.table(figures), flush=True)
    said = {name: value for name, value in vars(options).items() if not isinstance(value, Path)}
    report.save("tasks", {"load": os.getloadavg(), "options": said, "figures": figures})

"""Lakehouses of a million objects and more: compaction at 1 % and 10 %, verification, expiration, cleaning.

    python -m benchmarks large [--objects 10000000] [--engine spark] [--folder DIRECTORY] [--into docs/benchmarks]

Every step is a process of its own, so that its memory is its own, too, and Spark is up before its time is taken:

* ``requests`` are those that all processes sent, counted one by one; ``of the driver`` are among them;
* ``at once`` is how many tasks of Spark ran at the same time while any did, and ``of all`` over the whole step, the
  driver's own time included; in this process and its helpers, the CPU seconds of a second;
* ``MB driver``, ``MB Java``, ``MB task`` are the peaks of the process that drives the job, of Java, and of the largest
  Python task or helper.

Changes come in transactions of 10,000, as a bulk change would, so that commits push a part of them down. Definitions
are not written: 10 million objects take about 1 GB of disk in files of 4 KB, and twice that with what compactions leave
until the step ``clean`` removes it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final

from benchmarks import lakes, largepage, observed, report, timeline
from pipelines import clean, compaction, expire, verify
from pipelines.job import Session
from pipelines.session import SessionConfig, lazy_session
from pipelines.trees.subtrees import assign_tasks, split_for_tasks
from tests.support.standalone import event_log, tasks_in
from trinitylake_core import Lakehouse
from trinitylake_core.clock import now_millis
from trinitylake_core.tree.nodestore import NodeWriter
from trinitylake_core.tree.rewrite import Rewriter

_CORES: Final = 200
_TASKS_PER_CORE: Final = 3
_A_TRANSACTION: Final = 10_000
_MONTH_MILLIS: Final = 30 * 86_400_000
Row = dict[str, Any]
Step = Callable[[argparse.Namespace, Session], Row]


def _lake(options: argparse.Namespace) -> Lakehouse:
    return Lakehouse.open((Path(options.folder) / "lake").as_uri())


def _build(options: argparse.Namespace, _: Session) -> Row:
    lake = lakes.build((Path(options.folder) / "lake").as_uri(), options.objects, order=options.order)
    return {"levels": (lake.stats().height or 0) + 1}


def _change(percent: int) -> Step:
    def step(options: argparse.Namespace, _: Session) -> Row:
        lake, left = _lake(options), options.objects * percent // 100
        while left > 0:
            lakes.change(lake, options.objects, min(left, _A_TRANSACTION), seed=percent + 100 * left)
            left -= _A_TRANSACTION
        return {"messages": lake.stats().messages, f"at {_CORES} cores": _usable_cores(lake)}

    return step


def _usable_cores(lake: Lakehouse) -> float:
    """Return how many cores a compaction could keep busy if there were 200: all its work by the heaviest task's."""
    tasks = _TASKS_PER_CORE * _CORES
    rewriter = Rewriter(NodeWriter(lake.nodes), 1)
    subtrees = rewriter.frontier(rewriter.ref_of(lake.root_node.node), tasks)
    weights = [piece.weight() for piece in split_for_tasks(rewriter, subtrees, tasks)]
    loads = [0] * min(tasks, len(weights))
    for task, weight in zip(assign_tasks(weights, len(loads)), weights, strict=True):
        loads[task] += weight
    return round(min(_CORES, sum(loads) / max(loads)), 1)


def _compact(options: argparse.Namespace, spark: Session) -> Row:
    done = compaction.run(_lake(options), compaction.Config(engine=options.engine), spark)
    if not done.proved or done.messages_after:
        raise AssertionError("the compaction is not what it should be")
    return {"messages": done.messages_before, "read": done.nodes_read, "written": done.nodes_written}


def _verify(options: argparse.Namespace, spark: Session) -> Row:
    done = verify.run(_lake(options), verify.Config(engine=options.engine), spark)
    if not done.ok:
        raise AssertionError(f"broken: {done.findings[:3]}")
    return {"read": done.nodes_read}


def _expire(options: argparse.Namespace, spark: Session) -> Row:
    config = expire.Config(engine=options.engine, keep_last=1, now_millis=now_millis() + _MONTH_MILLIS)
    return {"versions": expire.run(_lake(options), config, spark).versions_expired}


def _clean(options: argparse.Namespace, spark: Session) -> Row:
    config = clean.Config(engine=options.engine, older_than_seconds=0, allow_recent=True)
    done = clean.run(_lake(options), config, spark)
    if done.failed or not done.deleted:
        raise AssertionError(f"nothing was cleaned, or something is left: {done}")
    return {"listed": done.listed.files, "read": done.nodes_read, "deleted": done.deleted}


JOBS: Final[dict[str, Step]] = {
    "compact 1 %": _compact, "compact 10 %": _compact, "verify": _verify, "expire": _expire, "clean": _clean,
}  # fmt: skip
STEPS: Final[dict[str, Step]] = {
    "build": _build, "change 1 %": _change(1), "compact 1 %": _compact, "change 10 %": _change(10),
    "compact 10 %": _compact, "verify": _verify, "expire": _expire, "clean": _clean,
}  # fmt: skip


# -- one step, in a process of its own -----------------------------------------------------------------


def _one(name: str, options: argparse.Namespace) -> None:
    """Carry out one step and print its figures as a line of JSON."""
    events, requests = (Path(options.folder) / f"{kind} of {name}" for kind in ("events", "requests"))
    for folder in (events, requests):
        folder.mkdir(exist_ok=True)
    me, on_spark = os.getpid(), name in JOBS and options.engine == "spark"
    with observed.observed(requests), _session(options, events) if on_spark else nullcontext() as spark:
        cpu, began = observed.cpu_seconds(me), time.time()
        row = STEPS[name](options, spark)
        ended, cpu = time.time(), observed.cpu_seconds(me) - cpu
    ours, others = observed.requests(requests)
    sent = {"requests": sum((ours + others).values()), "of the driver": sum(ours.values()), "kinds": ours + others}
    took = timeline.timeline(tasks_in(events), options.cores, began, ended)
    at_once, of_all = (took.at_once, took.share_of_all * options.cores) if on_spark else (cpu / (ended - began),) * 2
    busy = {"s": round(ended - began, 1), "CPU s": round(cpu, 1)}
    print(json.dumps({**busy, "at once": round(at_once, 2), "of all": round(of_all, 2), **sent, **row}))


@contextmanager
def _session(options: argparse.Namespace, events: Path) -> Iterator[Session]:
    """Yield a session whose Python workers are up."""
    config = SessionConfig(master=f"local[{options.cores}]", conf=event_log(events))
    with lazy_session(config) as spark:
        spark().range(8).mapInArrow(lambda batches: batches, "id long").count()
        yield spark


def _measured(name: str, arguments: list[str], folder: str) -> Row:
    """Carry out a step in a process of its own; return its figures with those of its memory."""
    command = [sys.executable, "-m", "benchmarks", "large", *arguments, "--step", name, "--folder", folder]
    load = os.getloadavg()[0]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    with observed.sampled(process.pid) as peaks:
        told, _ = process.communicate()
    if process.returncode:
        sys.exit(f"{name} failed")
    names = {"driver": "MB driver", "jvm": "MB Java", "worker": "MB task"}
    memory = {names[kind]: round(peaks[kind] / 1e6) for kind in names if kind in peaks}
    return json.loads(told.splitlines()[-1]) | memory | {"load": round((load + os.getloadavg()[0]) / 2, 1)}


# -- all steps -----------------------------------------------------------------------------------------


def _arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks large", description=__doc__)
    parser.add_argument("--objects", type=int, default=10_000_000)
    parser.add_argument("--order", type=int, default=128)
    parser.add_argument("--engine", choices=["local", "spark"], default="spark")
    parser.add_argument("--cores", type=int, default=2, help="tasks of Spark at the same time")
    parser.add_argument("--folder", help="an empty folder for the lakehouse; by default a temporary one")
    parser.add_argument("--into", type=Path, help="a folder for the page of all sizes measured so far, docs/benchmarks")
    parser.add_argument("--step", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> None:
    """Run all steps, print their figures, and write the page."""
    options = _arguments(arguments)
    if options.step is not None:
        _one(options.step, options)
        return
    figures: dict[str, Row] = {}
    with tempfile.TemporaryDirectory() if options.folder is None else nullcontext(options.folder) as folder:
        for name in STEPS:
            figures[name] = _measured(name, arguments, folder)
            print(name, figures[name], flush=True)
    result = {"objects": options.objects, "order": options.order, "engine": options.engine, "cores": options.cores}
    result |= {"commit": report.commit(), "figures": figures}
    print(report.table(figures))
    report.save(f"large-{options.engine}-{options.objects}", result)
    if options.into is not None:
        (options.into / "large.md").write_text(largepage.page(report.saved("large-*")), encoding="utf-8")

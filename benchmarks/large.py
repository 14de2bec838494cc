"""A lakehouse of ten million objects: compaction at 1 % and 10 %, verification, cleaning; and one ten times as large.

    python -m benchmarks large [--objects 10000000] [--order 128] [--engine local] [--folder DIRECTORY]

Every step is a process of its own, so that its memory is its own, too: ``MB`` is the peak of the process that drives
the job, ``MB of others`` that of the largest process that it started (a task of Spark, or a helper of the local
engine; with Spark on this machine it is Java). ``computed`` are the requests that the step should take by the shape of
the tree; the rows for ten times the objects are computed in the same way. ``at 200 cores`` says how many cores a
compaction could use if there were so many: all its work by that of the heaviest task.

Definitions are not written. 10 million objects take about 400 MB, and three times that with what compactions leave.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from benchmarks import lakes, report
from pipelines import compaction, orphans, verify
from pipelines.session import SessionConfig, lazy_session
from pipelines.trees.slices import handed_over
from pipelines.trees.subtrees import assigned
from trinitylake_core import Lakehouse
from trinitylake_core.tree.nodestore import NodeWriter
from trinitylake_core.tree.rewrite import Rewriter

_CORES = 200
_TASKS_PER_CORE = 3
_TIMES = 10
_PERCENT = (1, 10)
_FILL = 0.9
"""How full the nodes of a bulk build are."""
_ROOM = {"node_file_max_size_bytes": 16 << 20}
"""Changes of one transaction stay in the root, however many."""
Step = Callable[[argparse.Namespace], dict[str, Any]]


def _lake(options: argparse.Namespace) -> Lakehouse:
    return Lakehouse.open(f"file://{options.folder}")


def _build(options: argparse.Namespace) -> dict[str, Any]:
    lake = lakes.build(f"file://{options.folder}", options.objects, order=options.order, **_ROOM)
    return {"levels": (lake.stats().height or 0) + 1}


def _compact(percent: int) -> Step:
    def step(options: argparse.Namespace) -> dict[str, Any]:
        lake = _lake(options)
        with _session(options) as spark:
            done = compaction.run(spark, lake, compaction.Config(engine=options.engine))
        if not done.proved or done.messages_after:
            raise AssertionError("the compaction is not what it should be")
        changes = options.objects * percent // 100
        return {"requests": done.nodes_read + done.nodes_written, "computed": computed(options, changes)}

    return step


def _change(percent: int) -> Step:
    def step(options: argparse.Namespace) -> dict[str, Any]:
        lake = _lake(options)
        lakes.change(lake, options.objects, options.objects * percent // 100, seed=percent)
        return {f"at {_CORES} cores": _usable_cores(lake)}

    return step


def _usable_cores(lake: Lakehouse) -> float:
    """Return how many cores a compaction could keep busy if there were 200 of them."""
    tasks = _TASKS_PER_CORE * _CORES
    rewriter = Rewriter(NodeWriter(lake.store), 1)
    subtrees = rewriter.frontier(rewriter.ref_of(lake.root_node.node), tasks)
    weights = [piece.weight() for piece in handed_over(rewriter, subtrees, tasks)]
    loads = [0] * min(tasks, len(weights))
    for task, weight in zip(assigned(weights, len(loads)), weights, strict=True):
        loads[task] += weight
    return round(min(_CORES, sum(loads) / max(loads)), 1)


def _verify(options: argparse.Namespace) -> dict[str, Any]:
    with _session(options) as spark:
        done = verify.run(spark, _lake(options), verify.Config(engine=options.engine))
    if not done.ok:
        raise AssertionError(f"broken: {done.findings[:3]}")
    return {"requests": done.nodes_read, "computed": nodes(options.objects, options.order)}


def _clean(options: argparse.Namespace) -> dict[str, Any]:
    config = orphans.Config(engine=options.engine, older_than_seconds=0, allow_recent=True)
    with _session(options) as spark:
        done = orphans.run(spark, _lake(options), config)
    return {"requests": done.nodes_read, "deleted": done.deleted}


def _session(options: argparse.Namespace) -> Any:
    return lazy_session(SessionConfig()) if options.engine == "spark" else nullcontext()


def nodes(objects: int, order: int) -> int:
    """Return how many nodes a bulk build makes of so many objects."""
    total, level = 0, objects / (order * _FILL)
    while level > 1:
        total += round(level)
        level /= order * _FILL
    return total + 1


def computed(options: argparse.Namespace, changes: int, times: int = 1) -> int:
    """Return how many nodes a compaction reads and writes, when changes hit leaves by chance."""
    reached, level = 0.0, times * options.objects / (options.order * _FILL)
    while level > 1:
        reached += level * (1 - (1 - 1 / level) ** (times * changes))
        level /= options.order * _FILL
    return 2 * (round(reached) + 1)


STEPS: dict[str, Step] = {
    "build": _build,
    **{
        f"{name} {percent} %": make(percent)
        for percent in _PERCENT
        for name, make in (("change", _change), ("compact", _compact))
    },
    "verify": _verify,
    "clean": _clean,
}


def _one(name: str, options: argparse.Namespace) -> None:
    """Carry out one step and print its figures as a line of JSON."""
    began = time.perf_counter()
    row = STEPS[name](options)
    seconds = time.perf_counter() - began
    ours, others = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    cpu = sum(each.ru_utime + each.ru_stime for each in (ours, others))
    memory = {"MB": round(ours.ru_maxrss / 1024), "MB of others": round(others.ru_maxrss / 1024)}
    print(json.dumps({"s": round(seconds, 1), "CPU s": round(cpu, 1), **memory, **row}))


def _arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks large", description=__doc__)
    parser.add_argument("--objects", type=int, default=10_000_000)
    parser.add_argument("--order", type=int, default=128)
    parser.add_argument("--engine", choices=["local", "spark"], default="local")
    parser.add_argument("--folder", help="an empty folder for the lakehouse; by default a temporary one")
    parser.add_argument("--step", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> None:
    """Run all steps and print their figures."""
    options = _arguments(arguments)
    if options.step is not None:
        _one(options.step, options)
        return
    figures: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() if options.folder is None else nullcontext(options.folder) as folder:
        for name in STEPS:
            command = [sys.executable, "-m", "benchmarks", "large", *arguments, "--step", name, "--folder", folder]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            figures[name] = json.loads(done.stdout.splitlines()[-1])
            print(name, figures[name], flush=True)
    for percent in _PERCENT:
        changes = options.objects * percent // 100
        figures[f"compact {percent} % of {_TIMES} times as many"] = {"computed": computed(options, changes, _TIMES)}
    figures[f"verify {_TIMES} times as many"] = {"computed": nodes(_TIMES * options.objects, options.order)}
    print(report.table(figures))
    report.save("large", {"load": os.getloadavg(), "options": vars(options), "figures": figures})

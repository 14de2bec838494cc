"""What authentication and encryption of what travels cost on Spark: a small job and a large one, in one run.

    python -m benchmarks private [--tables 20 5000] [--rounds 1] [--workers 1] [--exports]

A standalone cluster of this machine, once with ``spark.authenticate`` and ``spark.network.crypto.enabled`` and once
without, in turns, each in a process of its own. The command is ``verify --all`` over a lakehouse of each size, with
``--exports`` also ``export``. Figures are ratios of the medians, with to without: of the time, and of the CPU of
driver, Java and tasks.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks import report
from benchmarks.cluster import write_lines
from benchmarks.tasks import measure_command
from pipelines import export, load, verify
from pipelines.session import lazy_session, session_parallelism
from pipelines.session.authentication import AUTHENTICATE, PRIVATE
from tests.support.standalone import standalone
from trinitylake_core import Lakehouse

_KINDS: Final = ("without", "with")
_CPU: Final = ("CPU driver", "CPU Java", "CPU tasks")
_LAST: Final = "figures: "
Figures = dict[str, list[float]]


def main(arguments: list[str]) -> None:
    """Run both kinds in turns and print the ratios."""
    parser = argparse.ArgumentParser(prog="benchmarks private", description=__doc__)
    parser.add_argument("--tables", type=int, nargs="+", default=[20, 5_000])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--exports", action="store_true", help="export, too: it takes three times as long")
    parser.add_argument("--kind", choices=_KINDS, help="run one kind, once: what this command does by itself")
    options = parser.parse_args(arguments)
    if options.kind is not None:
        print(_LAST + json.dumps(_run_kind(options)), flush=True)
        return
    found: dict[str, Figures] = {kind: {} for kind in _KINDS}
    for number in range(options.rounds):
        for kind in _KINDS if number % 2 == 0 else reversed(_KINDS):
            measured = _run_apart(kind, options)
            print(f"{kind}: {measured}", flush=True)
            for name, values in measured.items():
                found[kind].setdefault(name, []).extend(values)
    rows: dict[str, dict[str, float]] = {}
    for name, values in found["with"].items():
        command, _, figure = name.partition("; ")
        ratio = median(values) / median(found["without"][name])
        rows.setdefault(command, {})[figure] = round(ratio, 2)
    print(report.table(rows))
    report.save("private", {"load": os.getloadavg(), "options": vars(options), "figures": found})


def _run_apart(kind: str, options: argparse.Namespace) -> Figures:
    command = [sys.executable, "-m", "benchmarks", "private", "--kind", kind, "--workers", str(options.workers)]
    command += ["--tables", *map(str, options.tables), *(["--exports"] if options.exports else [])]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    (last,) = (line for line in done.stdout.splitlines() if line.startswith(_LAST))
    figures: Figures = json.loads(last.removeprefix(_LAST))
    return figures


def _run_kind(options: argparse.Namespace) -> Figures:
    """Return seconds, by command and what they are seconds of."""
    found: Figures = {}
    is_private = options.kind == "with"
    conf = {} if is_private else {AUTHENTICATE: "false", "spark.network.crypto.enabled": "false"}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        private = PRIVATE if is_private else {}
        with (
            standalone(options.workers, folder, private=private) as cluster,
            lazy_session(cluster.session(**conf)) as spark,
        ):
            wide = spark().range(0, 64, 1, 2 * session_parallelism(spark()))
            wide.mapInArrow(lambda batches: batches, "id long").count()
            for tables in options.tables:
                for command, run in _commands(folder / str(tables), tables, exports=options.exports).items():
                    run(spark)  # warm
                    row = measure_command(cluster, spark, run)
                    found.setdefault(f"{tables:,}: {command}; time", []).append(row["s"])
                    cpu = sum(row[each] for each in _CPU)
                    found.setdefault(f"{tables:,}: {command}; CPU", []).append(cpu)
    return found


def _commands(folder: Path, tables: int, *, exports: bool) -> dict[str, Callable[[Any], object]]:
    folder.mkdir()
    lake = Lakehouse.create((folder / "lake").as_uri(), storage_options={"durable": False})
    lines = folder / "lines.jsonl"
    write_lines(tables, lines)
    load.run(lake, str(lines), load.Config(engine="local"))
    lake = lake.refresh()
    copies = iter(range(100))

    def copy(spark: Any) -> object:
        return export.run(lake, (folder / f"copy{next(copies)}").as_uri(), export.Config(engine="spark"), spark)

    how = verify.Config(engine="spark", versions="all", definitions=True)
    found: dict[str, Callable[[Any], object]] = {"verify --all": lambda spark: verify.run(lake, how, spark)}
    if exports:
        found["export"] = copy
    return found

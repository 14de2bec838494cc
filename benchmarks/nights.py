"""What a night costs beside what others would run: each piece of work beside its peer, in one table.

    python -m benchmarks nights [--rounds 3] [--files 30000] [--objects 1000000] [--only clean]

Ours and the peer take turns, each in a process and a folder of its own that another process has filled. CPU is that of
all threads and child processes, without PostgreSQL; time says something on an idle machine only.

* **clean**: ``expire`` and ``clean`` of so many files that are needed and as many that are not, beside ``VACUUM FULL``.
* **tables clean**: the same of files of one Iceberg table.
* **create**: all objects by one transaction, by columns of 50,000 rows.
* **changed**: so many of the objects, a third set, a third deleted, a third inserted; committed and compacted.
* **a run**: the process of a maintenance run of 100 tables in which nothing changed, beside a run that does nothing.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import yaml

from benchmarks import jobs, lakes, report
from benchmarks.observed import cpu_seconds
from benchmarks.peers import draw_changes
from benchmarks.rivals import Delta, Ours, Rival
from tests.support.deployment import DEPLOY
from tests.support.postgres import DATABASE, PASSWORD, USER, PostgresServer, run_postgres
from trinitylake_core import Lakehouse

Act = Callable[[], object]
Side = tuple[Callable[[Path], object], Callable[[Path], Act]]
"""What fills a folder, and what returns the work to be measured there; each in a process of its own."""
_TABLES: Final = 100
_LAKEHOUSE: Final = "small"
_POLICIES: Final[dict[str, Any]] = {
    "compaction": {"engine": "local"},
    "snapshots": {"daily": {"keep": 14}},
    "retention": {"keep_last": 100, "older_than": "7d"},
    "orphans": {"older_than": "3d"},
    "schedules": {"maintenance": "0 3 * * *"},
}


def fill_nothing(folder: Path) -> None:
    """Leave a folder as it is."""
    del folder


def prepare_removal(act: jobs.Act, folder: Path) -> Act:
    """Return the removal of files."""
    return partial(act, folder / "files")


def create_all(made: Callable[[Path], Rival], objects: int, folder: Path) -> None:
    """Store all objects."""
    made(folder).create(lakes.rows(objects))


def prepare_creation(made: Callable[[Path], Rival], objects: int, folder: Path) -> Act:
    """Return the creation of all objects, whose columns are there."""
    return partial(made(folder).create, lakes.rows(objects))


def prepare_changes(made: Callable[[Path], Rival], objects: int, count: int, folder: Path) -> Act:
    """Return the work of changing so many objects."""
    changes = draw_changes(lakes.rows(objects), count, random.Random(count))
    return partial(made(folder).merge, changes)


# -- runs of Dagster -------------------------------------------------------------------------------------


def fill_instance(folder: Path) -> None:
    """Make a small lakehouse, and the tables of Dagster's database."""
    lake = Lakehouse.create((folder / "lake").as_uri())
    with lake.transaction() as txn:
        txn.create_namespace("sales")
        for number in range(_TABLES):
            txn.create_table("sales", f"t{number}")
    stanza = {"name": _LAKEHOUSE, "root": lake.root, **_POLICIES}
    text = yaml.safe_dump({"layout": "partitions", "lakehouses": [stanza]})
    (folder / "lakehouses.yaml").write_text(text)
    (folder / "dagster.yaml").write_text((DEPLOY / "dagster.yaml").read_text())
    os.environ["DAGSTER_HOME"] = str(folder)
    import dagster as dg

    from dagster_project.scope import FLEET

    with dg.DagsterInstance.get() as instance:
        instance.add_dynamic_partitions(FLEET, [_LAKEHOUSE])


def prepare_run(folder: Path, *, is_empty: bool) -> Act:
    """Return a run in a process that is forked from this one, which has loaded everything, as a deployment does it."""
    os.environ |= {"DAGSTER_HOME": str(folder), "TRINITYLAKE_LAKEHOUSES": str(folder / "lakehouses.yaml")}
    import dagster as dg

    from dagster_project.definitions import defs
    from dagster_project.processes import preloaded

    del preloaded  # importing it did the work

    @dg.op
    def do_nothing() -> None:
        """Do nothing."""

    @dg.job(executor_def=dg.in_process_executor)
    def empty() -> None:
        do_nothing()

    def run_job() -> bool:
        with dg.DagsterInstance.get() as instance:
            if is_empty:
                return empty.execute_in_process(instance=instance).success
            job = defs.resolve_job_def("lakehouses_maintenance")
            return job.execute_in_process(instance=instance, partition_key=_LAKEHOUSE).success

    def fork_run() -> None:
        process = os.fork()
        if process == 0:
            is_done = False
            try:
                is_done = run_job()
            finally:
                os._exit(0 if is_done else 1)
        _, status = os.waitpid(process, 0)
        if status:
            raise SystemExit("a run failed")

    fork_run()  # the first one of a lakehouse has more to do
    return fork_run


def name_database(server: PostgresServer) -> None:
    """Let processes that are started from now on find Dagster's database."""
    names = {"HOST": server.host, "PORT": str(server.port), "DB": DATABASE, "USER": USER, "PASSWORD": PASSWORD}
    os.environ |= {f"DAGSTER_PG_{name}": value for name, value in names.items()}


# -- measuring -------------------------------------------------------------------------------------------


def measure(prepare: Callable[[Path], Act], folder: Path) -> tuple[float, float]:
    """Return the seconds of CPU and of time that a piece of work takes. In a process of its own."""
    act = prepare(folder)
    os.sync()
    began = time.perf_counter()
    cpu = cpu_seconds(os.getpid())
    act()
    return cpu_seconds(os.getpid()) - cpu, time.perf_counter() - began


def rows_of(files: int, objects: int) -> dict[str, dict[str, Side]]:
    """Return each piece of work, ours and that of the peer."""
    rows: dict[str, dict[str, Side]] = {
        f"create {objects:,}": {
            name: (fill_nothing, partial(prepare_creation, made, objects)) for name, made in _CATALOGS.items()
        },
    }
    for count in (objects // 100, objects // 10):
        rows[f"{count:,} of {objects:,} changed"] = {
            name: (partial(create_all, made, objects), partial(prepare_changes, made, objects, count))
            for name, made in _CATALOGS.items()
        }
    rows["a run in Dagster"] = {
        "ours": (fill_instance, partial(prepare_run, is_empty=False)),
        "an empty run": (fill_instance, partial(prepare_run, is_empty=True)),
    }
    vacuumed: Side = (partial(_fill, jobs.fill_delta, files), partial(prepare_removal, jobs.vacuum_full))
    removals: dict[str, tuple[Callable[[Path, int], None], jobs.Act]] = {
        "clean": (jobs.fill_lakehouse, jobs.expire_and_clean),
        "tables clean": (jobs.fill_table, jobs.clean_tables),
    }
    for name, (fill, act) in removals.items():  # the last ones, because they delete
        ours = (partial(_fill, fill, files), partial(prepare_removal, act))
        rows[f"{name}, {files:,} of {2 * files:,} files"] = {"ours": ours, "deltalake": vacuumed}
    return rows


_CATALOGS: Final[Mapping[str, Callable[[Path], Rival]]] = {"ours": Ours, "deltalake": Delta}


def _fill(fill: Callable[[Path, int], None], files: int, folder: Path) -> None:
    fill(folder / "files", files)


def play_rounds(sides: Mapping[str, Side], rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Return what each side took in each round, in turns.

    Nothing is deleted before the end: ext4 creates files slowly where many were deleted a moment ago.
    """
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    with tempfile.TemporaryDirectory() as all_folders:
        for _ in range(rounds):
            for name, (fill, prepare) in sides.items():
                folder = Path(tempfile.mkdtemp(dir=all_folders))
                jobs.in_process(fill, folder)
                found[name].append(jobs.in_process(measure, prepare, folder))
    return found


def figures_of(found: Mapping[str, list[tuple[float, float]]]) -> dict[str, Any]:
    """Return the medians of ours and of the peer, with the spread of CPU, and the ratios."""
    figures: dict[str, Any] = {}
    medians = []
    for name, rounds in found.items():
        cpu, seconds = zip(*rounds, strict=True)
        medians.append((statistics.median(cpu), statistics.median(seconds)))
        which = "ours" if name == "ours" else "peer"
        figures |= {which: name, f"{which} CPU s": f"{medians[-1][0]:.2f} ({min(cpu):.2f}-{max(cpu):.2f})"}
    del figures["ours"]
    (own_cpu, own_seconds), (cpu, seconds) = medians
    return figures | {"CPU ratio": round(own_cpu / cpu, 2), "time ratio": round(own_seconds / seconds, 2)}


def main(arguments: list[str]) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--files", type=int, default=30_000)
    parser.add_argument("--objects", type=int, default=1_000_000)
    parser.add_argument("--only", default="", help="only rows whose names contain this")
    options = parser.parse_args(arguments)
    figures = {}
    with run_postgres() as server:
        name_database(server)
        for row, sides in rows_of(options.files, options.objects).items():
            if options.only in row:
                figures[row] = figures_of(play_rounds(sides, options.rounds))
                print(report.table(figures), flush=True)
    report.save("nights", {"options": vars(options), "figures": figures, "commit": report.commit()})

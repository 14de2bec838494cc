"""A rollback of 100 changed tables on S3, 30 ms a request: alone, from Dagster, and with eight writers frozen first.

python -m benchmarks recovery [--objects 20000] [--compact]

The server is the one of the tests. All tables share one definition file, so that a million of them are made quickly;
those that change get one of their own. A rollback opens the lakehouse anew, as a command does. From Dagster it is two
runs of the job, executed in this process: the dry run, which is the plan, and the rollback, each with its events.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import lakes, report
from pipelines import compaction, rollback
from tests.support.slow_s3 import SlowS3, run_slow_s3
from trinitylake_core import Lakehouse, LakehouseFrozen, TrinityLakeError
from trinitylake_core.definitions import encode, table_def
from trinitylake_core.storage import open_storage

_DELAY = 0.03
_CHANGED = 100
_WRITERS = 8
_TABLE = "0101/0101/0101/01010101-table-shared-6fcb514b-b878-4c9d-95b7-8dc3a7ce6fd8.binpb"
Figures = dict[str, Any]


def _build(folder: Path, root: str, options: dict[str, Any], objects: int) -> None:
    """Make a lakehouse on disk, and copy its files to the server."""
    lake = lakes.build(folder.as_uri(), objects, lambda _: _TABLE)
    there = open_storage(root, options)
    there.write_many([(_TABLE, encode(table_def()))])
    paths = [path for path in folder.rglob("*") if path.is_file()]
    for start in range(0, len(paths), 1000):
        some = paths[start : start + 1000]
        there.write_many([(str(path.relative_to(folder)), path.read_bytes()) for path in some])
    assert lake.version == Lakehouse.open(there).version


def _commit_for_ever(root: str, options: dict[str, Any], counts: Any, number: int) -> None:
    lake = Lakehouse.open(root, storage_options=options)
    while True:
        try:
            with lake.refresh().transaction() as txn:
                txn.alter_namespace(f"ns{number:03}", {"turn": str(time.time())})
            counts[0] += 1
        except LakehouseFrozen:
            counts[1] += 1
            time.sleep(0.5)
        except TrinityLakeError:
            counts[2] += 1


def _write(root: str, options: dict[str, Any], counts: Any) -> None:
    for number in range(_WRITERS):
        threading.Thread(target=_commit_for_ever, args=(root, options, counts, number), daemon=True).start()
    time.sleep(3600)


@contextmanager
def _measured(figures: Figures, name: str, root: str, options: dict[str, Any]) -> Iterator[Lakehouse]:
    began = time.perf_counter()
    lake = Lakehouse.open(root, storage_options=options)
    yield lake
    figures[name] = {
        "requests": lake.storage.counts.requests(),
        "s": round(time.perf_counter() - began, 2),
    }


def _rolled_back(figures: Figures, name: str, root: str, options: dict[str, Any], version: int) -> None:
    planned: list[float] = []
    config = rollback.Config(version=version, reason="benchmark", engine="local")
    with _measured(figures, name, root, options) as lake:
        began = time.perf_counter()
        done = rollback.run(lake, config, review=lambda _: not planned.append(time.perf_counter() - began))
    figures[name] |= {"plan s": round(planned[0], 2), "changed": done.plan.counts["changed"]}


def _from_dagster(figures: Figures, root: str, server: SlowS3, version: int) -> None:
    import dagster as dg

    from dagster_project.config.settings import LakehouseSettings
    from dagster_project.factory import define_lakehouses

    secrets = {name: {"env": f"BENCHMARK_{name}"} for name in ("key", "secret")}
    os.environ |= {f"BENCHMARK_{name}": str(server.options[name]) for name in secrets}
    stanza = {"name": "bench", "root": root, "storage_options": server.options | secrets}
    job = define_lakehouses((LakehouseSettings.model_validate(stanza),)).resolve_job_def("bench_rollback")
    with dg.DagsterInstance.ephemeral() as instance:
        for name, dry in (("from Dagster, the plan", True), ("from Dagster, the rollback", False)):
            config = {"version": version, "reason": "benchmark", "dry_run": dry}
            before, began = server.busy()["requests"], time.perf_counter()
            ops = {"ops": {"lakehouse__bench__rollback": {"config": config}}}
            quiet = {"loggers": {"console": {"config": {"log_level": "ERROR"}}}}
            assert job.execute_in_process(ops | quiet, instance).success
            seconds = round(time.perf_counter() - began, 2)
            figures[name] = {"requests": int(server.busy()["requests"] - before), "s": seconds}


def _again(root: str, options: dict[str, Any], bad: int) -> None:
    Lakehouse.open(root, storage_options=options).rollback(version=bad, reason="to the bad one again", force=True)


def measure(objects: int, *, compact: bool) -> Figures:
    """Return all figures."""
    figures: Figures = {}
    with tempfile.TemporaryDirectory() as folder, run_slow_s3(Path(folder)) as server:
        root, options = server.new_root(), server.options
        _build(Path(folder) / "lake", root, options, objects)
        lake = Lakehouse.open(root, storage_options=options)
        good = lake.version
        with lake.transaction() as txn:
            for number in range(0, objects, objects // _CHANGED):
                txn.alter_table(*lakes.table_name(number, objects), properties={"a": "b"})
        if compact:
            compaction.run(lake, compaction.Config(engine="local"))
        bad = Lakehouse.open(root, storage_options=options).version
        server.set(delay=_DELAY)
        _rolled_back(figures, "rollback", root, options, good)
        _again(root, options, bad)
        _from_dagster(figures, root, server, good)
        counts = multiprocessing.get_context("spawn").Array("i", 3)
        process = multiprocessing.get_context("spawn").Process(target=_write, args=(root, options, counts), daemon=True)
        process.start()
        _again(root, options, bad)
        while counts[0] < 5 * _WRITERS:
            time.sleep(0.1)
        with _measured(figures, "freeze", root, options) as lake:
            lake.freeze(reason="benchmark")
        _rolled_back(figures, "rollback, 8 writers frozen", root, options, good)
        with _measured(figures, "thaw", root, options) as lake:
            lake.thaw()
        before = counts[0]
        time.sleep(3)
        figures["writers"] = {"commits before": before, "refused": counts[1], "commits 3 s later": counts[0] - before}
        process.kill()
    return figures


def main(arguments: Sequence[str]) -> None:
    """Run the benchmark and print its figures."""
    parser = argparse.ArgumentParser(prog="benchmarks recovery", description=__doc__)
    parser.add_argument("--objects", type=int, default=20_000)
    parser.add_argument("--compact", action="store_true", help="compact after the change")
    options = parser.parse_args(arguments)
    figures = measure(options.objects, compact=options.compact)
    for name, row in figures.items():
        print(f"{name}: {', '.join(f'{key} {value}' for key, value in row.items())}", flush=True)
    report.save("recovery", {"objects": options.objects, "compact": options.compact, "figures": figures})

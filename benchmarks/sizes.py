"""What a fleet costs by the number of its lakehouses: it should not depend on it, or grow no faster than they do.

python -m benchmarks sizes [--lakehouses 3 300 1000 3000] [--opens 5]

Tiny lakehouses on disk, ``layout: partitions``, SQLite. For each size: a process that loads the definitions, a process
that loads them and runs `history` for one lakehouse, rounds of the sensor (as many ticks as it takes to look at all
lakehouses), and the page of the asset `tree_health` in a headless Chromium. Seconds are of CPU, but for the page, of
which the seconds of the clock are shown, too; the first opening, which loads the UI itself, does not count.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import dagster as dg
import psutil
import yaml
from playwright.sync_api import Page, expect

from benchmarks import report
from benchmarks.fleet import LOAD
from dagster_project import poll
from dagster_project.config.file import Stanzas
from dagster_project.factory import fleet
from dagster_project.scope import FLEET, FLEET_SENSOR
from tests.support.browser import browser
from tests.support.fleets import SMALL
from tests.support.lakes import FAST
from tests.support.pages import PATIENCE
from tests.support.webserver import make_home, run_webserver
from trinitylake_core import Lakehouse

_ON_THIS_MACHINE: Final[dict[str, Any]] = {"compaction": {"engine": "local"}}
_DAY: Final = 86_400.0
_RUN: Final = """
import json, sys, time
import dagster as dg
from dagster_project.definitions import defs
with dg.DagsterInstance.ephemeral() as instance:
    instance.add_dynamic_partitions("lakehouses", [sys.argv[1]])
    done = defs.resolve_job_def("lakehouses_history").execute_in_process(
        {"loggers": {"console": {"config": {"log_level": "ERROR"}}}}, instance, partition_key=sys.argv[1])
    assert done.success
print(json.dumps(round(time.process_time(), 2)))
"""


def made(folder: Path, count: int) -> tuple[Path, list[str]]:
    """Create lakehouses of one namespace; return their ``lakehouses.yaml`` and their names."""
    names = [f"lake{number:04}" for number in range(count)]
    for name in names:
        lake = Lakehouse.create((folder / name).as_uri(), storage_options=FAST, **SMALL)
        with lake.transaction() as txn:
            txn.create_namespace("sales")
    stanzas = [
        {
            "name": name,
            "root": (folder / name).as_uri(),
            "storage_options": dict(FAST),
            "compaction": {"engine": "local"},
        }
        for name in names
    ]
    file = folder / "lakehouses.yaml"
    file.write_text(yaml.safe_dump({"layout": "partitions", "lakehouses": stanzas}), encoding="utf-8")
    return file, names


def processes(file: Path, name: str) -> dict[str, Any]:
    """Return what a process costs that loads the definitions, and one that also runs a job."""
    environment = {**os.environ, "TRINITYLAKE_LAKEHOUSES": str(file)}

    def output(*command: str) -> Any:
        done = subprocess.run([sys.executable, *command], env=environment, capture_output=True, check=True)
        return json.loads(done.stdout.splitlines()[-1])

    loaded = output("-c", LOAD)
    return {
        "load, CPU s": loaded["CPU s"],
        "load, MB": loaded["MB"],
        "load and run `history`, CPU s": output("-c", _RUN, name),
    }


class Rounds:
    """Ticks of the sensor of a fleet, and what the daemon does with their results."""

    def __init__(self, file: Path, instance: dg.DagsterInstance) -> None:
        self.repository = fleet(Stanzas(file)).get_repository_def()
        self.instance, self.cursor = instance, ""

    def seconds(self, count: int) -> float:
        """Look at all lakehouses once; return the CPU seconds that the ticks took."""
        begun, now = time.process_time(), time.time()
        while len(self._looked_at_since(now)) < count:
            self._tick()
        return round(time.process_time() - begun, 2)

    def later(self) -> None:
        """Make the time of the next look of every lakehouse come; none has anything new to record."""
        marks = poll.states_of(self.cursor)
        self.cursor = poll.cursor_of(
            {
                name: replace(mark, next_poll=mark.next_poll - _DAY, observed_at=time.time())
                for name, mark in marks.items()
            }
        )

    def _looked_at_since(self, now: float) -> list[str]:
        return [name for name, mark in poll.states_of(self.cursor).items() if mark.next_poll > now]

    def _tick(self) -> None:
        with dg.build_sensor_context(
            instance=self.instance, cursor=self.cursor or None, repository_def=self.repository
        ) as context:
            result = self.repository.get_sensor_def(FLEET_SENSOR)(context)
        self.cursor = result.cursor
        for request in result.dynamic_partitions_requests or []:
            self.instance.add_dynamic_partitions(FLEET, list(request.partition_keys))
        for event in result.asset_events:
            self.instance.report_runless_asset_event(event)


def rounds(file: Path, home: Path, names: list[str]) -> dict[str, Any]:
    """Return what rounds of the sensor cost; materialise `tree_health` of one lakehouse, for the page."""
    with dg.DagsterInstance.from_config(str(home)) as instance:
        each = Rounds(file, instance)
        figures: dict[str, Any] = {"first round, CPU s": each.seconds(len(names))}
        each.later()
        figures |= {"round without news, CPU s": each.seconds(len(names)), "cursor, bytes": len(each.cursor)}
        job = fleet(Stanzas(file)).resolve_job_def("lakehouses_maintenance")
        asset = dg.AssetKey([FLEET, "tree_health"])
        quiet = {"loggers": {"console": {"config": {"log_level": "ERROR"}}}}
        job.execute_in_process(quiet, instance, partition_key=names[0], asset_selection=[asset])
    return figures


def opened(file: Path, home: Path, name: str, opens: int) -> dict[str, Any]:
    """Return what it costs to open the page of an asset until the figures of a lakehouse are there."""
    with run_webserver(home, file) as server, browser() as chromium:
        server.wait()
        with chromium.new_page(base_url=server.url) as page:
            page.set_default_timeout(4 * PATIENCE)
            _open(page, name)  # loads the UI, and the code location
            clock, processor = [], []
            for _ in range(opens):
                before, begun = _processor(server.process.pid), time.monotonic()
                _open(page, name)
                clock.append(time.monotonic() - begun)
                processor.append(_processor(server.process.pid) - before)
            heap = page.evaluate("performance.memory.usedJSHeapSize")
    return {
        "page, s": round(statistics.median(clock), 2),
        "page, CPU s of the servers": round(statistics.median(processor), 2),
        "page, MB in the browser": round(heap / 1e6),
    }


def _open(page: Page, name: str) -> None:
    page.goto(f"/assets/{FLEET}/tree_health?partition={name}")
    expect(page.get_by_text("buffered_messages", exact=True).first).to_be_visible(timeout=4 * PATIENCE)


def _processor(pid: int) -> float:
    """Return the CPU seconds of a process and all below it."""
    top = psutil.Process(pid)
    times = [each.cpu_times() for each in [top, *top.children(recursive=True)]]
    return sum(each.user + each.system for each in times)


def main(arguments: list[str]) -> None:
    """Run the benchmark and print its figures."""
    parser = argparse.ArgumentParser(prog="benchmarks sizes", description=__doc__)
    parser.add_argument("--lakehouses", type=int, nargs="+", default=[3, 300, 1000, 3000])
    parser.add_argument("--opens", type=int, default=5)
    options = parser.parse_args(arguments)
    figures = {}
    for count in options.lakehouses:
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            file, names = made(folder, count)
            home = make_home(folder)
            row = processes(file, names[0]) | rounds(file, home, names)
            figures[f"{count:,}"] = row | opened(file, home, names[0], options.opens)
            print(count, json.dumps(figures[f"{count:,}"]), f"load average {os.getloadavg()[0]:.0f}", file=sys.stderr)
    print(report.table(figures))
    report.save("sizes", figures)

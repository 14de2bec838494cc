"""A fleet under the deployment of docs/production.md: the sensor must keep up, and all maintenance get done.

python -m benchmarks fleet [--lakehouses 1000] [--troubled 50] [--minutes 30] [--due 1000] [--due-in 4]
                           [--spread 30m] [--drain 60]

Tiny lakehouses on disk, ``layout: partitions``, PostgreSQL. Of the lakehouses ``4 * troubled`` cannot be opened: a
quarter hangs, a quarter is denied, a quarter is missing, a quarter is corrupt. All others get a commit every minute, so
that each is due every minute. ``--due`` of them, and all troubled ones, have the same maintenance schedule,
``--due-in`` minutes after the start. When the minutes are over, what is still in the queue gets ``--drain`` minutes.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import yaml

from benchmarks import report
from benchmarks.soak import TICKS, Load, role
from dagster_project import poll
from tests.support.deployment import Deployment, deployed
from tests.support.fleets import TROUBLES, WRONG, Silent, Webhook, lakehouses_yaml, made, troubled, webhook
from tests.support.postgres import PostgresServer, run_postgres
from tests.support.s3_servers import run_rclone
from trinitylake_core import Lakehouse

_MINUTE = 60.0
_POLICIES: dict[str, Any] = {
    "compaction": {"poll": "1m", "engine": "local"},
    "snapshots": {"daily": {"keep": 14}},
    "retention": {"keep_last": 100, "older_than": "7d"},
    "orphans": {"older_than": "3d"},
}
LOAD = """
import json, re, time
from dagster_project.definitions import defs
defs.get_repository_def().get_job("lakehouses_maintenance")
print(json.dumps({"CPU s": round(time.process_time(), 2),
                  "MB": int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) // 1000}))
"""


class Commits:
    """A commit to every lakehouse once a minute, evenly over the minute, and when each was there."""

    def __init__(self, lakes: Mapping[str, Lakehouse]) -> None:
        self.lakes, self.made, self.failed = lakes, dict[str, list[float]](), Counter[str]()
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self._work, daemon=True)

    def _work(self) -> None:
        for round_ in itertools.count():
            begun = time.monotonic()
            for number, (name, lake) in enumerate(self.lakes.items()):
                wait = begun + number * _MINUTE / len(self.lakes) - time.monotonic()
                if wait > 0 and self.stopped.wait(wait):
                    return
                try:
                    lake.refresh()
                    with lake.transaction() as txn:
                        txn.create_table("sales", f"t{round_}")
                except Exception as error:  # noqa: BLE001 - counted, and shown in the end
                    self.failed[f"{type(error).__name__}: {error}"[:200]] += 1
                self.made.setdefault(name, []).append(time.time())
            if self.stopped.wait(max(0.0, begun + _MINUTE - time.monotonic())):
                return

    def stop(self) -> None:
        """Stop, and wait for the commit that is under way."""
        self.stopped.set()
        self.thread.join()


class Processor:
    """CPU seconds by role, children that have ended included, and memory."""

    def __init__(self, deployment: Deployment, server: PostgresServer) -> None:
        self.deployment, self.server = deployment, server
        self.known: dict[tuple[str, int], float] = {}
        self.resident: dict[str, list[float]] = {}
        self.load: list[float] = []

    def take(self, _: int = 0) -> None:
        """Take one sample."""
        resident = Counter[str]()
        for name, process in self._processes():
            with suppress(psutil.Error):
                times = process.cpu_times()
                self.known[name, process.pid] = times.user + times.system
                if name in {"code server", "parent of runs"}:
                    self.known["runs", process.pid] = times.children_user + times.children_system
                resident[name] += process.memory_info().rss
        for name, value in resident.items():
            self.resident.setdefault(name, []).append(value / 1e6)
        self.load.append(os.getloadavg()[0])

    def _processes(self) -> Iterator[tuple[str, psutil.Process]]:
        for process in self.deployment.processes():
            with suppress(psutil.Error):
                name = role(process)
                if name != "runs":  # counted by their parent when they end
                    yield name, process
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.name() == "postgres" and any(str(self.server.port) == word for word in process.cmdline()):
                    yield from (("PostgreSQL", each) for each in [process, *process.children()])

    def seconds(self) -> dict[str, float]:
        """Return the CPU seconds of each role so far."""
        self.take()
        total: dict[str, float] = {}
        for (name, _), seconds in self.known.items():
            total[name] = total.get(name, 0.0) + seconds
        return total


def query(server: PostgresServer, text: str) -> list[tuple[Any, ...]]:
    """Return the rows of a query of Dagster's database."""
    with closing(server.connection()) as connection, connection.cursor() as cursor:
        cursor.execute(text)
        found: list[tuple[Any, ...]] = cursor.fetchall()
        return found


class Looks:
    """When the sensor looked at each lakehouse, from what its cursor says now and then."""

    def __init__(self, server: PostgresServer) -> None:
        self.server, self.seen = server, dict[str, set[float]]()

    def take(self, _: int = 0) -> None:
        """Read the cursor."""
        for (body,) in query(self.server, "SELECT instigator_body FROM instigators"):
            for text in re.findall(r'"(2:[A-Za-z0-9+/=]{20,})"', body):
                for name, mark in poll.states_of(text).items():
                    self.seen.setdefault(name, set()).add(mark.next_poll - _MINUTE * min(2**mark.quiet, 8))

    def figures(self, names: Iterable[str], begun: float, ended: float) -> dict[str, Any]:
        """Return how often lakehouses were looked at, and the time between two looks."""
        looks = {name: sorted(at for at in self.seen.get(name, ()) if begun <= at < ended) for name in names}
        gaps = sorted(b - a for each in looks.values() for a, b in itertools.pairwise(each))
        return {
            "lakehouses": len(looks),
            "never looked at": sum(not each for each in looks.values()),
            "looks": sum(map(len, looks.values())),
            "fewest at one": min(map(len, looks.values()), default=0),
            "seconds between two, median": _at(gaps, 0.5),
            "90 %": _at(gaps, 0.9),
            "99 %": _at(gaps, 0.99),
            "longest": _at(gaps, 1.0),
        }


def _at(ordered: list[float], share: float) -> float | None:
    return round(ordered[min(len(ordered) - 1, int(len(ordered) * share))], 1) if ordered else None


def ticks(deployment: Deployment, begun: float, ended: float) -> dict[str, dict[str, Any]]:
    """Return the ticks of each sensor and schedule: how they ended, the longest gap and duration."""
    rows = {}
    location = deployment.graphql(TICKS)["workspaceOrError"]["locationEntries"][0]["locationOrLoadError"]
    for repository in location["repositories"]:
        both = [("schedule", each) for each in repository["schedules"]]
        for kind, each in both + [("sensor", each) for each in repository["sensors"]]:
            found = [t for t in each[f"{kind}State"]["ticks"] if begun <= t["timestamp"] < ended]
            times = sorted(tick["timestamp"] for tick in found)
            took = sorted(tick["endTimestamp"] - tick["timestamp"] for tick in found if tick["endTimestamp"])
            rows[each["name"]] = dict(Counter(tick["status"] for tick in found)) | {
                "longest gap s": round(max((b - a for a, b in itertools.pairwise(times)), default=0.0), 1),
                "median s": _at(took, 0.5),
                "slowest s": _at(took, 1.0),
            }
    return rows


def runs(server: PostgresServer) -> dict[str, dict[str, Any]]:
    """Return how many runs there were of each job, good and troubled lakehouses apart, and how long they took."""
    found: dict[str, list[tuple[Any, ...]]] = {}
    rows = query(server, "SELECT pipeline_name, partition, status, create_timestamp, start_time, end_time FROM runs")
    for job, partition, *rest in rows:
        troubled_one = str(partition).rstrip("0123456789") in TROUBLES
        found.setdefault(f"{job}, troubled" if troubled_one else job, []).append((partition, *rest))
    table = {}
    for job, each in found.items():
        over = [(made.replace(tzinfo=UTC).timestamp(), begun, end) for _, _, made, begun, end in each if begun and end]
        table[job] = {"lakehouses": len({row[0] for row in each}), **Counter(row[1] for row in each)} | {
            "median s": _at(sorted(end - begun for _, begun, end in over), 0.5),
            "median wait s": _at(sorted(begun - made for made, begun, _ in over), 0.5),
            "longest wait s": _at(sorted(begun - made for made, begun, _ in over), 1.0),
            "minutes from first to last": round((max(o[2] for o in over) - min(o[1] for o in over)) / 60, 1)
            if over
            else None,
        }
    return table


def alerts(told: Webhook, names: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return how often the webhook heard of each kind of trouble, whether with cause and advice, and how soon."""
    heard, rows = told.alerts(), {}
    for kind in (*TROUBLES, "good"):
        of_kind = [name for name in names if name.startswith(kind)]
        said = [one for name in of_kind for one in heard.get(name, [])]
        rows[kind] = {
            "lakehouses": len(of_kind),
            "named": sum(name in heard for name in of_kind),
            "exactly once": sum(len(heard.get(name, [])) == 1 for name in of_kind),
            "with cause and advice": sum("\n" in one["text"] for one in said),
            "for example": said[0]["text"] if said else None,
        }
    return rows


@contextmanager
def running(options: argparse.Namespace, folder: Path) -> Iterator[tuple[Deployment, Webhook, dict[str, Any]]]:
    """Yield a deployment that is at work, what its webhook heard, and the lakehouses that can be opened."""
    due = datetime.now(UTC) + timedelta(minutes=options.due_in)
    schedule = {"maintenance": f"{due.minute} {due.hour} * * *", "spread": options.spread}
    (folder / "rclone").mkdir()
    with run_rclone(folder / "rclone") as strict, Silent() as silent, webhook() as told, run_postgres() as server:
        bad = troubled(folder, options.troubled, silent, strict)
        good = made(folder, options.lakehouses - len(bad))
        stanzas = {name: {"root": lake.root} for name, lake in good.items()} | bad
        for name in [*list(good)[: options.due], *bad]:
            stanzas[name]["schedules"] = schedule
        text = lakehouses_yaml(stanzas, _POLICIES)

        def adapted(instance: str) -> str:
            config = yaml.safe_load(instance)
            if options.concurrent:
                config["concurrency"]["runs"]["max_concurrent_runs"] = options.concurrent
            return yaml.safe_dump(config)

        with deployed(text, server, WRONG | {"MAINTENANCE_WEBHOOK": told.url}, adapted) as deployment:
            print(json.dumps({"load": _loaded(deployment)}), file=sys.stderr)
            begun = time.monotonic()
            deployment.start_all()
            print(f"up after {time.monotonic() - begun:.1f} s", file=sys.stderr)
            yield deployment, told, good | bad


def _loaded(deployment: Deployment) -> Any:
    """Return what it costs a process to load the definitions."""
    command = [sys.executable, "-c", LOAD]
    done = subprocess.run(command, env=deployment.environment("code"), capture_output=True, check=True)
    return json.loads(done.stdout)


def measured(
    options: argparse.Namespace, deployment: Deployment, told: Webhook, lakes: Mapping[str, Any]
) -> dict[str, Any]:
    """Let the fleet work, and return the figures."""
    server = deployment.server
    assert server is not None
    processor = Processor(deployment, server)
    commits = Commits({name: lake for name, lake in lakes.items() if isinstance(lake, Lakehouse)})
    sampler, cursor = Load(10.0, processor.take), Looks(server)
    looker = Load(10.0, cursor.take)
    before, begun = processor.seconds(), time.time()
    commits.thread.start()
    sampler.start()
    looker.start()
    time.sleep(options.minutes * _MINUTE)
    ended, after = time.time(), processor.seconds()
    figures = {
        "ticks": ticks(deployment, begun, ended),
        "looks at good lakehouses": cursor.figures(commits.lakes, begun + 2 * _MINUTE, ended),
        "runs when the minutes were over": runs(server),
        "alerts when the minutes were over": alerts(told, lakes),
        "CPU s a minute": {
            name: round((seconds - before.get(name, 0.0)) / options.minutes, 1) for name, seconds in after.items()
        },
    }
    report_so_far(figures)
    drained = drain(server, options.drain)
    commits.stop()
    sampler.stop()
    looker.stop()
    ended_runs = sum(row.get("SUCCESS", 0) + row.get("FAILURE", 0) for row in runs(server).values())
    return figures | {
        "runs": runs(server),
        "minutes until the queue was empty": drained,
        "CPU s per run, its process alone": round(processor.seconds().get("runs", 0.0) / max(1, ended_runs), 2),
        "MB, median and most": {
            name: [round(_at(sorted(each), share) or 0.0) for share in (0.5, 1.0)]
            for name, each in processor.resident.items()
        },
        "alerts": alerts(told, lakes),
        "messages to the webhook": len(told.received),
        "failed commits": dict(commits.failed),
        "load average": {"median": _at(sorted(processor.load), 0.5), "most": _at(sorted(processor.load), 1.0)},
        "verified": _verified(commits.lakes),
    }


def drain(server: PostgresServer, minutes: float) -> float | None:
    """Wait until no run is queued or at work; return how many minutes that took, or ``None`` if it took too long."""
    begun = time.monotonic()
    open_ones = "SELECT count(*) FROM runs WHERE status NOT IN ('SUCCESS', 'FAILURE', 'CANCELED')"
    while query(server, open_ones)[0][0]:
        if time.monotonic() - begun > minutes * _MINUTE:
            return None
        time.sleep(5.0)
    return round((time.monotonic() - begun) / _MINUTE, 1)


def _verified(lakes: Mapping[str, Lakehouse]) -> dict[str, int]:
    """Return how many lakehouses break no invariant."""
    broken = sum(bool(next(iter(lake.refresh().check()), None)) for lake in lakes.values())
    return {"lakehouses": len(lakes), "broken": broken}


def report_so_far(figures: Mapping[str, Any]) -> None:
    """Print figures: rows as tables, the rest as they are."""
    for name, value in figures.items():
        rows = isinstance(value, dict) and value and all(isinstance(each, dict) for each in value.values())
        print(f"-- {name}\n{report.table(value)}" if rows else f"-- {name}: {json.dumps(value)}", flush=True)


def main(arguments: list[str]) -> None:
    """Run the benchmark and print its figures."""
    parser = argparse.ArgumentParser(prog="benchmarks fleet", description=__doc__)
    parser.add_argument("--lakehouses", type=int, default=1000)
    parser.add_argument("--troubled", type=int, default=50, help="of each of the four kinds")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--due", type=int, default=1000, help="how many of the good ones have a maintenance schedule")
    parser.add_argument("--due-in", type=float, default=4)
    parser.add_argument("--spread", default="30m")
    parser.add_argument("--drain", type=float, default=60)
    parser.add_argument("--concurrent", type=int, default=0, help="runs at once; 0: as deploy/dagster.yaml says")
    options = parser.parse_args(arguments)
    with (
        tempfile.TemporaryDirectory() as folder,
        running(options, Path(folder)) as (deployment, told, lakes),
    ):
        figures = measured(options, deployment, told, lakes)
        with suppress(OSError):
            figures["ends of the logs"] = {name: deployment.log(name)[-300:] for name in ("code", "daemon")}
        report_so_far(figures)  # before a thousand lakehouses are removed, which takes its time
        report.save("fleet", {"options": vars(options), **figures})

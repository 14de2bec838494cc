"""The deployment of docs/production.md under load: ticks, runs, memory, processes and latency over many minutes.

python -m benchmarks soak [--minutes 15] [--lakehouses 10] [--scheduled 10] [--concurrent 2] [--storage postgres]

Each lakehouse gets commits every minute, a sensor every minute, and the first ``--scheduled`` of them a maintenance run
every minute. Runs do their work in their own process, without Spark. The webserver answers two requests a second.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import yaml

from benchmarks import report
from tests.support.deployment import FORK_SERVER, Deployment, deployed, is_run
from tests.support.postgres import run_postgres
from trinitylake_core import Lakehouse, TrinityLakeError

_SAMPLE_SECONDS = 10.0
_DRAIN_SECONDS = 120.0
_MINUTE = 60
_ROLES = {
    "code-server start": "code server (proxy)",
    "api grpc": "code server",
    "dagster-daemon": "daemon",
    "dagster-webserver": "webserver",
    "--multiprocessing-fork": "runs",
    FORK_SERVER: "parent of runs",
    "resource_tracker": "resource tracker",
}
_SMALL: dict[str, Any] = {"order": 16, "node_file_max_size_bytes": 20_000}
_QUERIES = (
    "{ runsOrError(limit: 25) { ... on Runs { results { runId jobName status startTime endTime } } } }",
    "{ assetsOrError { ... on AssetConnection { nodes { key { path } } } } }",
    """{ assetNodes { assetKey { path } groupName assetMaterializations(limit: 1) { timestamp
         metadataEntries { label ... on IntMetadataEntry { intValue } } } } }""",
    "{ instance { daemonHealth { allDaemonStatuses { daemonType healthy lastHeartbeatTime } } } }",
    """{ workspaceOrError { ... on Workspace { locationEntries { locationOrLoadError { ... on RepositoryLocation {
         repositories { sensors { name sensorState { status ticks(limit: 1) { status } } } } } } } } } }""",
    """{ runsOrError(limit: 3) { ... on Runs { results { runId eventConnection(limit: 50) {
         events { ... on MessageEvent { message timestamp } } } } } } }""",
)
TICKS = """{ workspaceOrError { ... on Workspace { locationEntries { locationOrLoadError { ... on RepositoryLocation {
  repositories { schedules { name scheduleState { ticks(limit: 5000) { status timestamp endTimestamp } } }
                 sensors { name sensorState { ticks(limit: 5000) { status timestamp endTimestamp } } } } } } } } } }"""
_RUNS = "{ runsOrError(limit: 100000) { ... on Runs { results { jobName status creationTime startTime endTime } } } }"


def stanza(name: str, root: str, *, scheduled: bool) -> dict[str, Any]:
    """Return a lakehouse whose runs never start Spark."""
    return {
        "name": name,
        "root": root,
        "schedules": {"maintenance": "* * * * *"} if scheduled else {},
        "compaction": {"messages": 20, "min_interval": "1m", "poll": "1m", "engine": "local"},
        "snapshots": {"hourly": {"keep": 2}},
    }


class Load(threading.Thread):
    """Something that is done over and over until the end; what goes wrong is counted."""

    def __init__(self, every: float, work: Callable[[int], None]) -> None:
        """Do ``work`` every so many seconds, handed how often it was done."""
        super().__init__(daemon=True)
        self.every, self.work = every, work
        self.seconds: list[float] = []
        self.failed: Counter[str] = Counter()
        self.done = threading.Event()

    def run(self) -> None:
        """Work until told to stop."""
        for number in itertools.count():
            begun = time.monotonic()
            try:
                self.work(number)
            except (OSError, AssertionError, TrinityLakeError, psutil.Error) as error:
                self.failed[f"{type(error).__name__}: {error}"[:200]] += 1
            self.seconds.append(time.monotonic() - begun)
            if self.done.wait(max(0.0, self.every - self.seconds[-1])):
                return

    def stop(self) -> None:
        """Tell it to stop, and wait for its end."""
        self.done.set()
        self.join()


def commit(lake: Lakehouse, number: int) -> None:
    """Create a few tables, and drop what was created five minutes ago: the lakehouse stays as large as it is."""
    lake.refresh()
    with lake.transaction() as txn:
        for table in range(12):
            txn.create_table("sales", f"t{number}_{table}")
            if number >= 5:
                txn.drop_table("sales", f"t{number - 5}_{table}")


def role(process: psutil.Process) -> str:
    """Return what a process is."""
    if is_run(process):
        return "runs"
    command = " ".join(process.cmdline())
    name = "java" if process.name() == "java" else "other"
    return next((known for part, known in _ROLES.items() if part in command), name)


class Samples:
    """What was seen of the processes: bytes by role, and how many there were."""

    def __init__(self, deployment: Deployment) -> None:
        """Look at the processes of a deployment."""
        self.deployment = deployment
        self.resident: dict[str, list[int]] = {}
        self.count: dict[str, list[int]] = {}
        self.threads: dict[str, list[int]] = {}
        self.files: dict[str, list[int]] = {}

    def take(self, number: int) -> None:
        """Take one sample."""
        found: dict[str, list[tuple[int, int, int]]] = {}
        for process in self.deployment.processes():
            with suppress(psutil.Error):
                figures = (process.memory_info().rss, process.num_threads(), process.num_fds())
                found.setdefault(role(process), []).append(figures)
        for name in {*found, *self.count}:
            each = found.get(name, [])
            self.count.setdefault(name, [0] * number).append(len(each))
            if each and name not in {"runs", "other", "java"}:
                for kept, values in zip(
                    (self.resident, self.threads, self.files), zip(*each, strict=True), strict=True
                ):
                    kept.setdefault(name, []).append(sum(values))

    def figures(self) -> dict[str, dict[str, Any]]:
        """Return medians of the first, the second and the last third, by role."""
        rows = {}
        for name, values in self.resident.items():
            parts = thirds(values)
            rows[name] = {
                "MB, first third": round(parts[0] / 1e6, 1),
                "second": round(parts[1] / 1e6, 1),
                "last third": round(parts[2] / 1e6, 1),
                "max MB": round(max(values) / 1e6, 1),
                "medians of twelfths": "/".join(f"{each / 1e6:.0f}" for each in parts_of(values, 12)),
                "threads first/last third": "/".join(f"{each:.0f}" for each in thirds(self.threads[name])[::2]),
                "files first/last third": "/".join(f"{each:.0f}" for each in thirds(self.files[name])[::2]),
            }
        return rows


def parts_of(values: Sequence[float], count: int) -> list[float]:
    """Return the medians of so many parts, in order: how it went over time."""
    cuts = [len(values) * part // count for part in range(count + 1)]
    return [statistics.median(values[begin:end]) for begin, end in itertools.pairwise(cuts) if begin < end]


def thirds(values: Sequence[float]) -> list[float]:
    """Return the medians of the first, the second and the last third."""
    size = max(1, len(values) // 3)
    return [statistics.median(part) for part in (values[:size], values[size:-size] or values, values[-size:])]


def ticks(answer: dict[str, Any], begun: float, ended: float) -> dict[str, dict[str, Any]]:
    """Return how many ticks there should have been and were, of each sensor and schedule, between two times."""
    location = answer["workspaceOrError"]["locationEntries"][0]["locationOrLoadError"]
    rows: dict[str, dict[str, Any]] = {}
    for repository in location["repositories"]:
        for kind in ("schedule", "sensor"):
            for each in repository[f"{kind}s"]:
                seen = [t for t in each[f"{kind}State"]["ticks"] if begun <= t["timestamp"] < ended]
                rows[each["name"]] = _counted(seen, begun, ended, exact=kind == "schedule")
    return rows


def _counted(seen: list[dict[str, Any]], begun: float, ended: float, *, exact: bool) -> dict[str, Any]:
    """Count ticks. A schedule ticks at every full minute; a sensor a minute after its last tick, or a little later."""
    times = sorted(tick["timestamp"] for tick in seen)
    minutes = set(range(math.ceil(begun / _MINUTE), math.ceil(ended / _MINUTE)))
    gaps = [later - earlier for earlier, later in itertools.pairwise([begun, *times, ended])]
    missing = len(minutes - {round(time / _MINUTE) for time in times}) if exact else sum(g >= 2 * _MINUTE for g in gaps)
    late = [tick["endTimestamp"] - tick["timestamp"] for tick in seen if tick["endTimestamp"]]
    states = Counter(tick["status"] for tick in seen)
    return {
        "expected": len(minutes) if exact else math.floor((ended - begun) / _MINUTE),
        "seen": len(seen),
        "missed": missing,
        "requested": states["SUCCESS"],
        "skipped": states["SKIPPED"],
        "failed": states["FAILURE"],
        "longest gap s": round(max(gaps[1:-1], default=0.0), 1),
        "slowest s": round(max(late, default=0.0), 1),
    }


def runs(answer: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return how many runs there were of each kind, by status, and how long they waited and took."""
    rows: dict[str, dict[str, Any]] = {}
    kinds: dict[str, list[dict[str, Any]]] = {}
    for run in answer["runsOrError"]["results"]:
        kinds.setdefault(run["jobName"].rpartition("_")[2], []).append(run)
    for kind, found in kinds.items():
        over = [run for run in found if run["startTime"] and run["endTime"]]
        waits = [run["startTime"] - run["creationTime"] for run in over]
        rows[kind] = dict(Counter(run["status"] for run in found)) | {
            "median wait s": round(statistics.median(waits), 1) if waits else "-",
            "max wait s": round(max(waits, default=0), 1),
            "median s": round(statistics.median(r["endTime"] - r["startTime"] for r in over), 1) if over else "-",
        }
    return rows


def latency(seconds: Sequence[float]) -> dict[str, float]:
    """Return median, 95th percentile and maximum in milliseconds."""
    ordered = sorted(seconds)
    at = ordered[min(len(ordered) - 1, math.ceil(len(ordered) * 0.95) - 1)]
    figures = {"median": statistics.median(ordered), "p95": at, "max": ordered[-1]}
    return {name: round(value * 1000) for name, value in figures.items()}


@contextmanager
def running(options: argparse.Namespace, folder: Path) -> Iterator[tuple[Deployment, list[Lakehouse]]]:
    """Yield a deployment at work, and its lakehouses."""
    lakes = {f"lake{number}": (folder / f"lake{number}").as_uri() for number in range(options.lakehouses)}
    for root in lakes.values():
        with Lakehouse.create(root, **_SMALL).transaction() as txn:
            txn.create_namespace("sales")
    names = enumerate(lakes.items())
    stanzas = [stanza(name, root, scheduled=number < options.scheduled) for number, (name, root) in names]
    text = yaml.safe_dump({"lakehouses": stanzas})

    def adapted(instance: str) -> str:
        config = yaml.safe_load(instance)
        config["concurrency"]["runs"]["max_concurrent_runs"] = options.concurrent
        if options.storage == "sqlite":
            del config["storage"]
        return yaml.safe_dump(config)

    server = run_postgres() if options.storage == "postgres" else nullcontext()
    with server as postgres, deployed(text, postgres, instance=adapted) as deployment:
        deployment.start_all()
        yield deployment, [Lakehouse.open(root) for root in lakes.values()]


def soak(options: argparse.Namespace, deployment: Deployment, lakes: list[Lakehouse]) -> dict[str, Any]:
    """Put the deployment under load and return the figures."""
    samples = Samples(deployment)

    def write(number: int) -> None:
        for lake in lakes:
            commit(lake, number)

    writer = Load(_MINUTE, write)
    readers = [Load(1.0, partial(_ask, deployment, first)) for first in (0, len(_QUERIES) // 2)]
    sampler = Load(_SAMPLE_SECONDS, samples.take)
    begun = time.time()
    for each in (writer, *readers, sampler):
        each.start()
    time.sleep(options.minutes * _MINUTE)
    ended = time.time()
    found = deployment.graphql(TICKS)
    queue = Counter(run["status"] for run in deployment.graphql(_RUNS)["runsOrError"]["results"])
    for each in (writer, *readers, sampler):
        each.stop()
    took = {"daemon": deployment.stop("daemon")}
    _drain(deployment)
    figures = {
        "ticks": ticks(found, begun, ended),
        "database MB": _database_megabytes(deployment),
        "runs at the end of the load": dict(queue),
        "runs": runs(deployment.graphql(_RUNS)),
        "memory": samples.figures(),
        "most processes at once": {name: max(count) for name, count in samples.count.items()},
        "GraphQL ms": latency([s for reader in readers for s in reader.seconds])
        | {"requests": sum(len(reader.seconds) for reader in readers)},
        "failed": dict(writer.failed + sampler.failed + readers[0].failed + readers[1].failed),
    }
    took |= deployment.stop_all()
    left = [f"{process.pid} {role(process)}" for process in deployment.processes()]
    return figures | {"seconds to stop": {k: round(v, 1) for k, v in took.items()}, "processes left": left}


def _ask(deployment: Deployment, first: int, number: int) -> None:
    deployment.graphql(_QUERIES[(first + number) % len(_QUERIES)])


def _database_megabytes(deployment: Deployment) -> float | None:
    if deployment.server is None:
        return None
    with closing(deployment.server.connection()) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT pg_database_size(current_database())")
        ((size,),) = cursor.fetchall()
    return round(int(size) / 1e6, 1)


def _drain(deployment: Deployment) -> None:
    """Wait until no run is at work. Without the daemon none is started any more."""
    deadline = time.monotonic() + _DRAIN_SECONDS
    busy = {"STARTING", "STARTED", "CANCELING"}
    while time.monotonic() < deadline:
        found = deployment.graphql(_RUNS)["runsOrError"]["results"]
        if not busy & {run["status"] for run in found}:
            return
        time.sleep(1.0)


def show(figures: dict[str, Any]) -> None:
    """Print the figures."""
    for name in ("ticks", "runs", "memory"):
        print(f"-- {name}\n{report.table(figures[name])}")
    for name, value in figures.items():
        if name not in {"ticks", "runs", "memory"}:
            print(f"-- {name}: {json.dumps(value)}")


def main(arguments: list[str]) -> None:
    """Run the benchmark and print its figures."""
    parser = argparse.ArgumentParser(prog="benchmarks soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=15)
    parser.add_argument("--lakehouses", type=int, default=10)
    parser.add_argument("--scheduled", type=int, default=10)
    parser.add_argument("--concurrent", type=int, default=2)
    parser.add_argument("--storage", choices=("postgres", "sqlite"), default="postgres")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder, running(options, Path(folder)) as (deployment, lakes):
        print(f"up; {options.minutes:g} minutes to go", file=sys.stderr)
        figures = soak(options, deployment, lakes)
    show(figures)
    report.save("soak", {"options": vars(options), **figures})

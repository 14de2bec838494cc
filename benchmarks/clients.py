"""What requests to S3 cost: CPU per request, requests per second, and a compaction beside one on disk.

python -m benchmarks clients [--requests 2000] [--objects 100000] [--rounds 3]

Against a server of our own in another process, which answers at once or after 30 ms. CPU is that of this process and
its helpers, user and system, so that others on the machine count little; seconds are only worth something on an idle
one. Disk and S3 take turns.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks import report
from pipelines import compaction
from tests.support.lakes import FAST
from tests.support.slow_s3 import SlowS3, run_slow_s3
from tests.support.wide import change, scattered, wide
from trinitylake_core import Lakehouse
from trinitylake_core.storage import open_storage

_BYTES: Final = 8192
_DELAY_SECONDS: Final = 0.03
_ORDER: Final = 128
_CHANGED: Final = 10
"""One object of so many is changed."""


@dataclass(frozen=True, slots=True)
class _Spent:
    cpu: float
    seconds: float


def _cpu() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def _spent(work: Callable[[], object]) -> _Spent:
    cpu, started = _cpu(), time.perf_counter()
    work()
    return _Spent(_cpu() - cpu, time.perf_counter() - started)


def main(arguments: Sequence[str]) -> None:
    """Measure, print and save."""
    options = argparse.ArgumentParser(prog="benchmarks clients")
    options.add_argument("--requests", type=int, default=2000)
    options.add_argument("--objects", type=int, default=100_000)
    options.add_argument("--rounds", type=int, default=3)
    chosen = options.parse_args(arguments)
    with tempfile.TemporaryDirectory() as scratch, run_slow_s3(Path(scratch)) as server:
        rows = _requests(server, chosen.requests, chosen.rounds)
        print(report.table(rows))
        compactions = _compactions(server, Path(scratch), chosen.objects, chosen.rounds)
        print(report.table(compactions))
    report.save("clients", {"requests": rows, "compactions": compactions})


def _requests(server: SlowS3, count: int, rounds: int) -> dict[str, dict[str, float]]:
    """Return CPU per request in ms and requests per second: medians over rounds, by kind, threads and delay."""
    found: defaultdict[str, list[_Spent]] = defaultdict(list)
    for _ in range(rounds):
        for delay in (0.0, _DELAY_SECONDS):
            server.set(delay=delay)
            for threads in (1, 32):
                number = count if threads > 1 or not delay else count // 20
                storage = open_storage(server.new_root(), {**server.options, "max_concurrency": threads})
                names = [f"file{each}" for each in range(number)]
                label = f"threads {threads}, delay {delay * 1000:.0f} ms"
                storage.write_many((name, b"x") for name in names[:threads])  # connections
                puts = _spent(lambda: storage.write_many((name, bytes(_BYTES)) for name in names))  # noqa: B023
                gets = _spent(lambda: list(storage.read_many(names)))  # noqa: B023
                for kind, spent in (("put", puts), ("get", gets)):
                    found[f"{kind}, {label}"].append(_Spent(spent.cpu / number, spent.seconds / number))
    return {
        label: {
            "ms of CPU": round(1000 * statistics.median(each.cpu for each in spents), 3),
            "requests/s": round(1 / statistics.median(each.seconds for each in spents)),
        }
        for label, spents in found.items()
    }


def _compactions(server: SlowS3, scratch: Path, objects: int, rounds: int) -> dict[str, dict[str, float]]:
    """Return CPU, seconds and requests of a compaction of a tenth of the objects, on disk and on S3."""
    lake = change(wide(scratch / "original", objects, _ORDER), scattered(objects, objects // _CHANGED))
    files = {info.path: lake.storage.read(info.path) for info in lake.storage.list()}
    server.set(delay=_DELAY_SECONDS)
    found: defaultdict[str, list[_Spent]] = defaultdict(list)
    requests: dict[str, int] = {}
    for number in range(rounds + 1):
        for where in ("disk", "S3"):
            root = (scratch / f"disk{number}").as_uri() if where == "disk" else server.new_root()
            storage = open_storage(root, FAST if where == "disk" else server.options)
            storage.write_many(files.items())
            copy = Lakehouse.open(storage)
            before = storage.counts.snapshot()
            spent = _spent(lambda: compaction.run(copy, compaction.Config(engine="local")))  # noqa: B023
            if number:  # the first round warms up
                found[where].append(spent)
            requests[where] = (storage.counts - before).requests()
    return {
        where: {
            "CPU s": round(statistics.median(each.cpu for each in spents), 2),
            "seconds": round(statistics.median(each.seconds for each in spents), 2),
            "requests": requests[where],
        }
        for where, spents in found.items()
    }

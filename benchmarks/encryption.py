"""What authentication and encryption cost Spark: a small job and a large one, with and without, in one run.

    python -m benchmarks encryption [--megabytes 200] [--rounds 3]

Executors of their own on this machine (``local-cluster``). The small job is a query of two rows; the large one is a
shuffle, so that all its bytes travel from executor to executor. CPU is that of Java and Python together.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from statistics import median
from typing import Any, Final

import psutil

from benchmarks import report
from pipelines.session import SessionConfig, lazy_session

_MASTER: Final = "local-cluster[2,1,700]"
_OPEN: Final = {"spark.authenticate": "false", "spark.network.crypto.enabled": "false"}
_SMALL: Final = {"spark.executor.memory": "600m"}
_KINDS: Final[Mapping[str, dict[str, str]]] = {
    "open": _OPEN,
    "encrypted": {},
    "encrypted, and on disk": {"spark.io.encryption.enabled": "true"},
}
_ROW_BYTES: Final = 100


def _small(spark: Any, megabytes: int) -> None:
    del megabytes
    spark.range(0, 2, 1, 2).mapInArrow(lambda batches: batches, "id long").count()


def _large(spark: Any, megabytes: int) -> None:
    rows = megabytes * 1_000_000 // _ROW_BYTES
    texts = spark.range(0, rows, 1, 4).selectExpr("id", "concat(sha2(string(id), 256), md5(string(id))) AS text")
    texts.repartition(4, "id").selectExpr("max(text)").collect()


def _cpu_seconds() -> float:
    seconds = 0.0
    for each in psutil.Process().children(recursive=True):
        try:
            times = each.cpu_times()
        except psutil.Error:  # it has ended
            continue
        seconds += times.user + times.system
    return seconds


def _measure(conf: dict[str, str], options: argparse.Namespace) -> dict[str, float]:
    row: dict[str, float] = {}
    with lazy_session(SessionConfig(mode="master", master=_MASTER, conf=_SMALL | conf)) as session:
        spark = session()
        for name, job in (("small", _small), ("large", _large)):
            job(spark, options.megabytes)  # what Java compiles is not measured
            took, cpu = [], []
            for _ in range(options.rounds):
                began, before = time.perf_counter(), _cpu_seconds()
                job(spark, options.megabytes)
                took.append(time.perf_counter() - began)
                cpu.append(_cpu_seconds() - before)
            row |= {f"{name} s": round(median(took), 2), f"{name} CPU s": round(median(cpu), 2)}
    return row


def main(arguments: list[str]) -> None:
    """Run both jobs on sessions of each kind and print their figures."""
    parser = argparse.ArgumentParser(prog="benchmarks encryption", description=__doc__)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    figures = {name: _measure(conf, options) for name, conf in _KINDS.items()}
    print(report.table(figures), flush=True)
    report.save("encryption", {"options": vars(options), "figures": figures})

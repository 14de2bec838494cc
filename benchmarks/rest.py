"""The Iceberg REST endpoint under load: commits a second and their latency, by clients, storage and groups.

    python -m benchmarks rest [--seconds 8] [--clients 1 8 64 256] [--into docs/benchmarks]
    python -m benchmarks rest --identities [--seconds 8]

Each client sets a property on a table of its own as soon as it is answered; all share one process, the endpoint has
another, and the S3 server, which answers after 30 ms, a third. On disk every commit is synced. Beside it PyIceberg's
SQL catalog on a PostgreSQL that waits for the disk, in eight processes with threads (256 are more than it admits), and
Iceberg's own REST server over the same kind of PostgreSQL, if Maven and Java are there. CPU is that of the endpoint; so
is its memory, which is read at the end.

With ``--identities`` it measures something else: commits and loads of eight clients whose tokens are of the file or of
an issuer, with and without keys that moto's STS lends, and what the issuer and the STS were asked for meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import multiprocessing
import os
import shutil
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from pyiceberg.catalog import load_catalog

from benchmarks import report
from benchmarks.iceberg import SCHEMA, postgres
from tests.support.issuer import AUDIENCE, running_issuer
from tests.support.rest_kit import class_path
from tests.support.s3_servers import KEY, SECRET, S3Server, free_port, run_moto
from tests.support.slow_s3 import run_slow_s3
from trinitylake_core import Lakehouse

_DELAY_SECONDS: Final = 0.03
_PROCESSES: Final = 8
_ADMITTED: Final = 64
"""So many clients PostgreSQL takes with its limit of 100 connections."""
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_CLIENTS_WITH_TOKENS: Final = 8
_ROUNDS: Final = 3
_WAYS: Final = {
    "static token": ("static", False),
    "RS256": ("rsa", False),
    "ES256": ("ec", False),
    "static token, lent keys": ("static", True),
    "RS256, lent keys": ("rsa", True),
}
"""Whose token clients have, and whether they ask for keys."""


@dataclass(frozen=True, slots=True)
class _Identities:
    """Who may ask an endpoint, by a file, and the STS that lends keys."""

    tokens: Path | None = None
    sts: str | None = None


@dataclass(slots=True)
class _Took:
    """What the requests of one run took, in seconds, how many were refused, and until when the last was answered."""

    seconds: list[float] = field(default_factory=list)
    refused: int = 0
    duration: float = 0.0

    def row(self) -> dict[str, Any]:
        ordered = sorted(self.seconds)
        return {
            "per second": round(len(ordered) / self.duration, 1),
            "median ms": round(statistics.median(ordered) * 1000, 1),
            "p99 ms": round(ordered[int(len(ordered) * 0.99)] * 1000, 1),
            "refused": self.refused,
        }


def _serve(root: str, options: dict[str, Any], groups: str, port: int, identities: _Identities) -> None:
    from trinitylake_core.rest import Principals, Warehouses, serve
    from trinitylake_core.rest.lending import Lender

    lake = Lakehouse.open(root, storage_options=options)
    principals = lender = None
    if identities.tokens is not None:
        principals = Principals.of_file(identities.tokens)
    if identities.sts is not None:
        lender = Lender("arn:aws:iam::123456789012:role/tables", endpoint=identities.sts)
    serve(Warehouses({"lake": lambda: lake}, {"group-commits": groups}, lender), port=port, principals=principals)


@contextmanager
def _served(
    root: str, options: dict[str, Any], groups: str, identities: _Identities = _Identities()
) -> Iterator[tuple[int, int]]:
    """Serve a lakehouse from another process; its port and its process ID."""
    port = free_port()
    arguments = (root, options, groups, port, identities)
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=arguments)
    process.start()
    try:
        asyncio.run(_until_up(port))
        assert process.pid is not None
        yield port, process.pid
    finally:
        process.terminate()
        process.join()


async def _until_up(port: int) -> None:
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.1)
        else:
            writer.close()
            return


async def _client(port: int, number: int, work: str, until: float, took: _Took, prefix: str, own: str) -> None:
    """Send one request after another over one connection, with headers of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    path, count, known = f"/v1/{prefix}namespaces/a/tables/t{number}", 0, ""
    while (began := time.perf_counter()) < until:
        if work == "commit":
            updates = [{"action": "set-properties", "updates": {"n": str(count)}}]
            body = json.dumps({"requirements": [], "updates": updates})
            kind = "content-type: application/json\r\n"
            head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\n{own}{kind}content-length: {len(body)}\r\n\r\n{body}"
        else:
            head = f"GET {path} HTTP/1.1\r\nhost: localhost\r\n{own}{known}\r\n"
        writer.write(head.encode())
        answer = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
        headers = dict(line.split(": ", 1) for line in answer[1:] if line)
        await read_body(reader, headers)
        if work == "poll" and "etag" in headers:
            known = f"if-none-match: {headers['etag']}\r\n"
        if answer[0].split()[1] in {"200", "304"}:
            took.seconds.append(time.perf_counter() - began)
        else:
            took.refused += 1
        count += 1
    writer.close()


async def read_body(reader: asyncio.StreamReader, headers: dict[str, str]) -> None:
    """Read the body of an answer, whichever way its headers announce it."""
    if headers.get("transfer-encoding") != "chunked":
        await reader.readexactly(int(headers.get("content-length", "0")))
        return
    while size := int(await reader.readline(), 16):
        await reader.readexactly(size + len("\r\n"))
    await reader.readline()


async def _loaded(port: int, clients: int, work: str, seconds: float, prefix: str, own: str) -> _Took:
    took, began = _Took(), time.perf_counter()
    until = began + seconds
    await asyncio.gather(*(_client(port, number, work, until, took, prefix, own) for number in range(clients)))
    took.duration = time.perf_counter() - began
    return took


def _spent(pid: int) -> float:
    """Return the CPU seconds of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _mebibytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) // 1024


def _measured(
    port: int, pid: int, clients: int, work: str, seconds: float, prefix: str = "lake/", own: str = ""
) -> dict[str, Any]:
    asyncio.run(_loaded(port, clients, work, 1.0, prefix, own))
    cpu = _spent(pid)
    took = asyncio.run(_loaded(port, clients, work, seconds, prefix, own))
    per_thousand = (_spent(pid) - cpu) / max(1, len(took.seconds)) * 1000
    return took.row() | {"CPU s per 1000": round(per_thousand, 2), "MiB": _mebibytes(pid)}


def _endpoint(root: str, options: dict[str, Any], where: str, clients: Sequence[int], seconds: float) -> dict[str, Any]:
    """Return the figures of one storage."""
    lake = Lakehouse.create(root, storage_options=options)
    _filled(lake, max(clients))
    rows = {}
    for groups in ("true", "false"):
        with _served(root, options, groups) as (port, pid):
            for number in clients:
                label = f"{where}, {'groups' if groups == 'true' else 'plain'}, {number}"
                rows[label] = _measured(port, pid, number, "commit", seconds)
                print(label, rows[label], flush=True)
            if groups == "true":
                for number in clients[:2]:
                    rows[f"{where}, If-None-Match, {number}"] = _measured(port, pid, number, "poll", seconds)
    return rows


def _identities(folder: Path, seconds: float) -> dict[str, Any]:
    """Return the figures of each way to have an identity: medians of rounds in which each has its turn."""
    found: dict[str, list[dict[str, Any]]] = {}
    os.environ |= {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}  # the endpoint asks the STS by these
    with run_moto(folder) as server, running_issuer() as issuer:
        root = server.new_root()
        _filled(Lakehouse.create(root, storage_options=server.options), _CLIENTS_WITH_TOKENS)
        known = {"issuer": issuer.uri, "audience": AUDIENCE, "jwks": issuer.jwks}
        digest = hashlib.sha256(b"static").hexdigest()
        etl = {"token_sha256": digest, "subjects": {"i": ["etl-client"]}, "manage": ["*"]}
        path = folder / "tokens.yaml"
        path.write_text(json.dumps({"issuers": {"i": known}, "principals": {"etl": etl}}), encoding="utf-8")
        for label, (key, is_lent) in list(_WAYS.items()) * _ROUNDS:
            own = f"authorization: Bearer {key if key == 'static' else issuer.token(key)}\r\n"
            own += "x-iceberg-access-delegation: vended-credentials\r\n" if is_lent else ""
            with _served(root, server.options, "true", _Identities(path, server.endpoint)) as (port, pid):
                for work in ("commit", "load"):
                    keys, sts = issuer.asked["keys"], _asked_of_sts(server)
                    row = _measured(port, pid, _CLIENTS_WITH_TOKENS, work, seconds, own=own)
                    row["asked of issuer"] = issuer.asked["keys"] - keys
                    row["asked of STS"] = _asked_of_sts(server) - sts
                    found.setdefault(f"{work}, {label}", []).append(row)
                    print(f"{work}, {label}", row, flush=True)
    rows: dict[str, Any] = {}
    for label, rounds in found.items():
        rows[label] = {name: statistics.median(row[name] for row in rounds) for name in rounds[0]}
    return rows


def _asked_of_sts(server: S3Server) -> int:
    """Return how often it was asked for keys: its other requests name the bucket."""
    of_store = server.requests_by_method(f"/{server.bucket}")["POST"]
    return server.requests_by_method("/")["POST"] - of_store


def _filled(lake: Lakehouse, tables: int) -> None:
    from trinitylake_core.iceberg import TrinityLakeCatalog

    with TrinityLakeCatalog.over(lake).transaction() as txn:
        txn.create_namespace("a")
        for number in range(tables):
            txn.create_table(f"a.t{number}", SCHEMA)


def _sql(properties: dict[str, str], names: list[str], seconds: float, started: Any, out: Any) -> None:
    """Commit in threads, each with a catalog and a table of its own."""
    found: list[float] = []

    def work(name: str) -> None:
        table = load_catalog("bench", **properties).load_table(name)
        started.wait()
        until, number = time.perf_counter() + seconds, 0
        while (began := time.perf_counter()) < until:
            with table.transaction() as txn:
                txn.set_properties(n=str(number))
            found.append(time.perf_counter() - began)
            number += 1

    threads = [threading.Thread(target=work, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    out.put(found)


def _postgresql(folder: Path, clients: Sequence[int], seconds: float) -> dict[str, Any]:
    """Return the figures of PyIceberg's SQL catalog."""
    rows = {}
    with postgres() as uri:
        properties = {"type": "sql", "uri": uri, "warehouse": (folder / "warehouse").as_uri()}
        catalog = load_catalog("bench", **properties)
        catalog.create_namespace("a")
        admitted = [number for number in clients if number <= _ADMITTED]
        for number in range(max(admitted)):
            catalog.create_table(f"a.t{number}", SCHEMA)
        for number in admitted:
            spawning = multiprocessing.get_context("spawn")
            started, out = spawning.Barrier(number), spawning.Queue()
            names = [f"a.t{each}" for each in range(number)]
            shares = [share for each in range(_PROCESSES) if (share := names[each::_PROCESSES])]
            processes = [spawning.Process(target=_sql, args=(properties, s, seconds, started, out)) for s in shares]
            for process in processes:
                process.start()
            took = _Took([each for _ in processes for each in out.get()], duration=seconds)
            for process in processes:
                process.join()
            rows[f"disk, PyIceberg on PostgreSQL, {number}"] = took.row()
    return rows


@contextmanager
def run_reference(folder: Path) -> Iterator[tuple[int, int]]:
    """Run Iceberg's own REST server, for tests, over PostgreSQL; its port and its process ID."""
    jars, port = class_path(folder), free_port()
    with postgres() as uri:
        server = urlsplit(uri)
        settings = {
            "URI": f"jdbc:postgresql://{server.hostname}:{server.port}{server.path}",
            "JDBC_USER": server.username or "",
            "JDBC_PASSWORD": unquote(server.password or ""),
            "JDBC_SCHEMA__VERSION": "V1",
            "WAREHOUSE": (folder / "reference").as_uri(),
            "REST_PORT": str(port),
        }
        env = os.environ | {f"CATALOG_{name}": value for name, value in settings.items()}
        command = ["java", "-cp", jars, "org.apache.iceberg.rest.RESTCatalogServer"]
        log = folder / "reference.log"
        with log.open("w") as out, subprocess.Popen(command, env=env, stdout=out, stderr=out) as process:
            try:
                asyncio.run(_until_up(port))
                yield port, process.pid
            finally:
                process.terminate()


def _iceberg(folder: Path, clients: Sequence[int], seconds: float) -> dict[str, Any]:
    """Return the figures of Iceberg's own server."""
    rows = {}
    with run_reference(folder) as (port, pid):
        catalog = load_catalog("bench", type="rest", uri=f"http://127.0.0.1:{port}")
        catalog.create_namespace("a")
        for number in range(max(clients)):
            catalog.create_table(f"a.t{number}", SCHEMA)
        for number in clients:
            label = f"disk, Iceberg's server on PostgreSQL, {number}"
            rows[label] = _measured(port, pid, number, "commit", seconds, "")
            print(label, rows[label], flush=True)
    return rows


def plot(rows: dict[str, Any], target: Path) -> None:
    """Draw the commits a second of each endpoint over the number of its clients."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    lines: dict[str, list[tuple[int, float]]] = {}
    for label, row in rows.items():
        endpoint, _, clients = label.rpartition(", ")
        if not endpoint.endswith("If-None-Match"):
            lines.setdefault(endpoint, []).append((int(clients), row["per second"]))
    drawn, all_axes = plt.subplots(1, 2, figsize=(11, 4))
    for axes, storage in zip(all_axes, ("disk", "S3"), strict=True):
        for endpoint, points in lines.items():
            if endpoint.startswith(storage):
                axes.plot(*zip(*points, strict=True), marker="o", label=endpoint.removeprefix(f"{storage}, "))
        axes.set_xscale("log")
        axes.set_ylim(bottom=0)
        axes.set_xlabel("clients")
        axes.set_title(f"commits a second, {storage}", fontsize=10)
        axes.legend(fontsize=8)
    drawn.tight_layout()
    drawn.savefig(target, dpi=110)


def main(arguments: Sequence[str]) -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(prog="benchmarks rest", description=__doc__)
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 64, 256])
    parser.add_argument("--into", type=Path, help="a folder for the plot, such as docs/benchmarks")
    parser.add_argument("--identities", action="store_true", help="tokens and lent keys, and nothing else")
    chosen = parser.parse_args(arguments)
    rows: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if chosen.identities:
            rows = _identities(folder, chosen.seconds)
            print(report.table(rows))
            report.save("identities", {"rows": rows})
            return
        rows |= _endpoint((folder / "lake").as_uri(), {}, "disk", chosen.clients, chosen.seconds)
        rows |= _postgresql(folder, chosen.clients, chosen.seconds)
        if shutil.which("mvn") and shutil.which("java"):
            rows |= _iceberg(folder, chosen.clients, chosen.seconds)
        with run_slow_s3(folder) as server:
            server.set(delay=_DELAY_SECONDS)
            rows |= _endpoint(server.new_root(), server.options, "S3", chosen.clients, chosen.seconds)
    print(report.table(rows))
    report.save("rest", {"rows": rows})
    if chosen.into is not None:
        plot(rows, chosen.into / "rest.png")

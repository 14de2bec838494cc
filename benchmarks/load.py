"""Many objects from JSON Lines into an empty lakehouse, and into what people would use instead.

    python -m benchmarks load [--objects 200000] [--posted 5000]

Iceberg's own REST server over a PostgreSQL that waits for the disk gets fewer tables, one request each over sixteen
connections; ``--posted 0`` leaves it out. It writes a metadata file a table, ours a definition.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import psutil

from benchmarks import report
from benchmarks.observed import cpu_seconds
from benchmarks.rest import read_body, run_reference
from pipelines import apply, load
from pipelines.session import get_session, stop_session
from pipelines.source import entries
from trinitylake_core import Lakehouse

_NAMESPACES = 100
_A_COMMIT = 1_000
_COLUMNS = [
    {"name": "id", "type": "bigint", "nullable": False},
    {"name": "price", "type": "decimal(10, 2)"},
    {"name": "note", "type": "varchar"},
]

_ICEBERG_SCHEMA = {
    "type": "struct",
    "schema-id": 0,
    "fields": [
        {"id": 1, "name": "id", "type": "long", "required": True},
        {"id": 2, "name": "price", "type": "decimal(10, 2)", "required": False},
        {"id": 3, "name": "note", "type": "string", "required": False},
    ],
}
_CONNECTIONS = 16


def lines(objects: int) -> Iterator[dict[str, Any]]:
    """Yield the objects: 100 namespaces, and tables of three columns, in no order of their keys."""
    for number in range(_NAMESPACES):
        yield {"create_namespace": {"namespace": f"ns{number:03}"}}
    for number in range(objects - _NAMESPACES):
        name = {"namespace": f"ns{number % _NAMESPACES:03}", "name": f"t{number:08}"}
        yield {"create_table": {**name, "schema": _COLUMNS}}


def loaded(engine: str, source: Path, root: str) -> None:
    """Load on an engine."""
    lake = Lakehouse.create(root)
    load.run(lake, str(source), load.Config(engine=engine), get_session() if engine == "spark" else None)


def committed(source: Path, root: str) -> None:
    """Commit the same objects as transactions of a thousand."""
    lake = Lakehouse.create(root)
    with source.open(encoding="utf-8") as file:
        while some := [entries.parse_change("an entry", json.loads(line)) for line in islice(file, _A_COMMIT)]:
            apply.run(lake.refresh(), some)


def into_delta(source: Path, root: str) -> None:
    """Write one row an object into a Delta table, in one commit."""
    import pyarrow as pa
    from deltalake import write_deltalake

    write_deltalake(root.removeprefix("file://"), pa.table(_rows(source)))


def into_sqlite(source: Path, root: str) -> None:
    """Insert one row an object into a SQLite table with a primary key, in one durable transaction."""
    rows = _rows(source)
    with closing(sqlite3.connect(root.removeprefix("file://") + ".db")) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("CREATE TABLE objects (key TEXT PRIMARY KEY, definition TEXT) WITHOUT ROWID")
        with connection:
            connection.executemany("INSERT INTO objects VALUES (?, ?)", zip(*rows.values(), strict=True))


def _rows(source: Path) -> dict[str, list[str]]:
    rows: dict[str, list[str]] = {"key": [], "definition": []}
    with source.open(encoding="utf-8") as file:
        for line in file:
            ((action, arguments),) = json.loads(line).items()
            rows["key"].append(f"{action}.{arguments['namespace']}.{arguments.get('name', '')}")
            rows["definition"].append(json.dumps(arguments))
    return rows


async def _post(port: int, path: str, bodies: Iterator[dict[str, Any]]) -> None:
    """Post one body after another over one connection, each to the namespace that it names."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for fields in bodies:
        namespace = fields.pop("in", None)
        body = json.dumps(fields)
        where = path if namespace is None else f"{path}/{namespace}/tables"
        kind = f"content-type: application/json\r\ncontent-length: {len(body)}"
        writer.write(f"POST {where} HTTP/1.1\r\nhost: localhost\r\n{kind}\r\n\r\n{body}".encode())
        answer = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
        headers = dict(line.split(": ", 1) for line in answer[1:] if line)
        await read_body(reader, headers)
        if answer[0].split()[1] != "200":
            raise SystemExit(f"{where}: {answer[0]}")
    writer.close()


async def _post_all(port: int, source: Path, tables: int) -> None:
    """Create namespaces, and then so many tables."""
    namespaces: list[dict[str, Any]] = []
    wanted: list[dict[str, Any]] = []
    with source.open(encoding="utf-8") as file:
        for line in islice(file, _NAMESPACES + tables):
            ((action, arguments),) = json.loads(line).items()
            if action == "create_namespace":
                namespaces.append({"namespace": [arguments["namespace"]]})
            else:
                wanted.append({"in": arguments["namespace"], "name": arguments["name"], "schema": _ICEBERG_SCHEMA})
    await _post(port, "/v1/namespaces", iter(namespaces))
    coming = iter(wanted)
    await asyncio.gather(*(_post(port, "/v1/namespaces", coming) for _ in range(_CONNECTIONS)))


def timed(objects: int, work: Callable[[], None]) -> dict[str, Any]:
    """Return how long a piece of work took, with the CPU of all processes, and the memory of this one after it."""
    begun = time.perf_counter()
    cpu = cpu_seconds(os.getpid())
    work()
    cpu = cpu_seconds(os.getpid()) - cpu
    seconds = time.perf_counter() - begun
    rate = {"s": round(seconds, 2), "CPU s": round(cpu, 2), "objects/s": round(objects / seconds)}
    return rate | {"driver MB": round(psutil.Process().memory_info().rss / 1e6)}


def main(arguments: list[str]) -> None:
    """Run the benchmark and print its figures."""
    parser = argparse.ArgumentParser(prog="benchmarks load", description=__doc__)
    parser.add_argument("--objects", type=int, default=200_000)
    parser.add_argument("--posted", type=int, default=5_000)
    given = parser.parse_args(arguments)
    objects = given.objects
    figures: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "objects.jsonl"
        with source.open("w", encoding="utf-8") as file:
            file.writelines(f"{json.dumps(line)}\n" for line in lines(objects))
        get_session().range(8).mapInArrow(lambda batches: batches, "id long").count()  # Python workers up
        ways: dict[str, Callable[[Path, str], None]] = {
            "load, spark": lambda file, root: loaded("spark", file, root),
            "load, local": lambda file, root: loaded("local", file, root),
            "transactions of 1,000": committed,
            "deltalake, one row each, no definitions": into_delta,
            "SQLite FULL, one row each, no definitions": into_sqlite,
        }
        for number, (name, work) in enumerate(ways.items()):
            place = (Path(folder) / f"place{number}").as_uri()
            figures[name] = timed(objects, lambda work=work, place=place: work(source, place))
        if given.posted:
            with run_reference(Path(folder)) as (port, _):
                post = partial(asyncio.run, _post_all(port, source, given.posted))
                figures["Iceberg's REST server on PostgreSQL, a request each"] = timed(given.posted, post)
    stop_session()
    print(report.table(figures))
    report.save("load", {"objects": objects, "figures": figures})

"""The endpoint under six attacks on its memory, threads and connections at once, beside clients of another principal.

    python -m benchmarks attacks [--seconds 20] [--clients 8] [--attacks headers bodies elements depth leave idle]
                                 [--nginx PATH] [--bare]

The endpoint is behind nginx with ``deploy/nginx.conf``; with ``--bare`` it has no proxy, and does not stand all of it.
Each client commits to a table of its own as soon as it is answered: first alone, then beside the attackers. Another
process asks for /healthz ten times a second, each time over a new connection. The attackers are one process, with the
lowest priority, because elsewhere they would have processors of their own: headers without end, bodies of which the
second half never comes, 15 MiB of ``{},{},``, 15 MiB of ``[[[[``, commits whose client leaves at once, and connections
that do nothing. Those that need a token have that of another principal. They come from 127.0.0.1, the clients from
127.0.0.2.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import multiprocessing
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from benchmarks import report
from benchmarks.iceberg import SCHEMA
from tests.support.s3_servers import free_port
from trinitylake_core import Lakehouse

_BOMB_BYTES: Final = 15 << 20
_TABLES: Final = "/v1/lake/namespaces/a/tables"
_HONEST: Final = ("127.0.0.2", 0)
"""Where clients that mean well come from: the proxy counts the connections of each address."""
_PROXY: Final = Path(__file__).parent.parent / "deploy" / "nginx.conf"


def _serve(root: str, port: int) -> None:
    from trinitylake_core.rest import Principals, Warehouses, serve
    from trinitylake_core.rest.principals import Principal, hash_token

    logging.disable()  # a line for each of their requests would be measured with them
    lake = Lakehouse.open(root)
    known = {hash_token(name): Principal(name, {"manage": ["*"]}) for name in ("attacker", "other")}
    serve(Warehouses({"lake": lambda: lake}), port=port, principals=Principals(known))


@contextmanager
def _served(root: str) -> Iterator[tuple[int, int]]:
    """Serve a lakehouse from another process; its port and its process ID."""
    port = free_port()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(root, port))
    process.start()
    try:
        asyncio.run(_until_up(port))
        assert process.pid is not None
        yield port, process.pid
    finally:
        process.terminate()
        process.join()


@contextmanager
def _proxied(port: int, program: str) -> Iterator[int]:
    """Run nginx in front of a port, with the file of a deployment but for TLS; the port of nginx."""
    own = free_port()
    text = _PROXY.read_text().replace("listen 443 ssl;", f"listen 127.0.0.1:{own};").replace(":8181;", f":{port};")
    lines = [line for line in text.splitlines() if not line.strip().startswith("ssl_")]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o711)  # the workers of nginx run as another user
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"):
            lines.insert(lines.index("http {") + 1, f"    {kind}_temp_path {folder}/{kind};")
        config = Path(folder, "nginx.conf")
        config.write_text("\n".join(lines))
        command = [program, "-p", folder, "-c", str(config), "-e", "stderr"]
        with subprocess.Popen([*command, "-g", f"daemon off; pid {folder}/pid;"]) as process:
            asyncio.run(_until_up(own))
            try:
                yield own
            finally:
                process.terminate()


async def _until_up(port: int) -> None:
    while True:
        with suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            return
        await asyncio.sleep(0.1)


def _head(principal: str, path: str, length: int) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "host: localhost", f"authorization: Bearer {principal}"]
    lines += ["content-type: application/json", f"content-length: {length}", "", ""]
    return "\r\n".join(lines).encode()


def _commit_of(principal: str, table: int, count: int) -> bytes:
    updates = [{"action": "set-properties", "updates": {"n": str(count)}}]
    body = json.dumps({"requirements": [], "updates": updates}).encode()
    return _head(principal, f"{_TABLES}/t{table}", len(body)) + body


# -- clients that mean well ----------------------------------------------------------------------------


async def _answer(reader: asyncio.StreamReader) -> int:
    """Read an answer, and return its status."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    fields = dict(line.split(": ", 1) for line in head.splitlines()[1:] if line)
    await reader.readexactly(int(fields.get("content-length", "0")))
    return int(head.split()[1])


async def _commit(port: int, table: int, until: float, statuses: Counter[str]) -> None:
    count = 0
    while time.monotonic() < until:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=_HONEST)
            while time.monotonic() < until:
                writer.write(_commit_of("other", table, count))
                statuses[str(await _answer(reader))] += 1
                count += 1
            writer.close()
        except (OSError, asyncio.IncompleteReadError) as error:
            statuses[type(error).__name__] += 1


async def _commits(port: int, clients: int, seconds: float) -> Counter[str]:
    statuses: Counter[str] = Counter()
    until = time.monotonic() + seconds
    await asyncio.gather(*(_commit(port, number, until, statuses) for number in range(clients)))
    return statuses


def _probe(port: int, out: Any, stop: Any) -> None:
    """Ask for /healthz until told to stop; put the seconds of each try, infinity for one without an answer."""

    async def ask() -> float:
        began = time.monotonic()
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=_HONEST)
            writer.write(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
            async with asyncio.timeout(30):
                await _answer(reader)
            writer.close()
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            return float("inf")
        return time.monotonic() - began

    async def ask_again_and_again() -> list[float]:
        found = [await ask()]
        out.put("begun")
        while not stop.is_set():
            found.append(await ask())
            await asyncio.sleep(0.1)
        return found

    out.put(asyncio.run(ask_again_and_again()))


# -- attackers -----------------------------------------------------------------------------------------


async def _headers_without_end(port: int) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET / HTTP/1.1\r\nhost: localhost\r\n")
    while True:
        writer.write(b"a: " + b"x" * 30_000 + b"\r\n")
        await writer.drain()


async def _half_a_body(port: int) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(_head("attacker", "/v1/lake/namespaces", _BOMB_BYTES) + b" " * (_BOMB_BYTES // 2))
    await asyncio.sleep(60)


async def _bomb(port: int, body: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(_head("attacker", "/v1/lake/namespaces", len(body)) + body)
    await _answer(reader)
    writer.close()


async def _elements(port: int) -> None:
    await _bomb(port, b'{"namespace": [' + b"{}," * (_BOMB_BYTES // 3) + b"{}]}")


async def _depth(port: int) -> None:
    await _bomb(port, b"[" * _BOMB_BYTES)


async def _leave_at_once(port: int) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(_commit_of("attacker", 0, 0))
    writer.close()
    await writer.wait_closed()


async def _do_nothing(port: int) -> None:
    reader, _ = await asyncio.open_connection("127.0.0.1", port)
    await reader.read()


_ATTACKS: Final[dict[str, tuple[Callable[[int], Awaitable[None]], int]]] = {
    "headers": (_headers_without_end, 20),
    "bodies": (_half_a_body, 100),
    "elements": (_elements, 4),
    "depth": (_depth, 4),
    "leave": (_leave_at_once, 20),
    "idle": (_do_nothing, 1500),
}
"""Each attack, and how many at a time."""


def _attack(port: int, names: Sequence[str]) -> None:
    """Attack until this process is ended."""
    os.nice(19)

    async def again_and_again(attack: Callable[[int], Awaitable[None]]) -> None:
        while True:
            with suppress(OSError, asyncio.IncompleteReadError):
                await attack(port)
            await asyncio.sleep(0.01)

    async def all_at_once() -> None:
        attacks = [_ATTACKS[name] for name in names]
        await asyncio.gather(*(again_and_again(attack) for attack, count in attacks for _ in range(count)))

    asyncio.run(all_at_once())


# -- measuring -----------------------------------------------------------------------------------------


def _measured(port: int, pid: int, clients: int, seconds: float) -> dict[str, Any]:
    spawning = multiprocessing.get_context("spawn")
    out, stop = spawning.Queue(), spawning.Event()
    probe = spawning.Process(target=_probe, args=(port, out, stop))
    probe.start()
    out.get()
    statuses = asyncio.run(_commits(port, clients, seconds))
    stop.set()
    health = sorted(out.get())
    probe.join()
    done = statuses.pop("200", 0)
    return {
        "commits per second": round(done / seconds, 1),
        "not done": dict(statuses) or "none",
        "healthz median ms": round(statistics.median(health) * 1000, 1),
        "healthz slowest ms": round(health[-1] * 1000, 1),
        "MiB at most": _status(pid, "VmHWM") // 1024,
        "threads": _status(pid, "Threads"),
    }


def _status(pid: int, name: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def main(arguments: Sequence[str]) -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(prog="benchmarks attacks", description=__doc__)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--attacks", nargs="+", choices=_ATTACKS, default=list(_ATTACKS))
    parser.add_argument("--nginx", metavar="PATH", default=shutil.which("nginx"))
    parser.add_argument("--bare", action="store_true")
    chosen = parser.parse_args(arguments)
    if not (chosen.bare or chosen.nginx):
        parser.error("nginx is not installed (apt install nginx); --bare attacks the endpoint without it")
    rows: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        lake = Lakehouse.create(Path(folder, "lake"))
        _fill(lake, chosen.clients)
        with ExitStack() as stack:
            port, pid = stack.enter_context(_served(lake.root))
            if not chosen.bare:
                port = stack.enter_context(_proxied(port, chosen.nginx))
            asyncio.run(_commits(port, chosen.clients, 2.0))
            rows["alone"] = _measured(port, pid, chosen.clients, chosen.seconds)
            attackers = multiprocessing.get_context("spawn").Process(
                target=_attack, args=(port, chosen.attacks), daemon=True
            )
            attackers.start()
            time.sleep(3)
            print("alone", rows["alone"], flush=True)
            rows["attacked"] = _measured(port, pid, chosen.clients, chosen.seconds)
            print("attacked", rows["attacked"], flush=True)
            attackers.kill()
            attackers.join()
            time.sleep(3)
            rows["after"] = _measured(port, pid, chosen.clients, chosen.seconds / 2)
    print(report.table(rows))
    report.save("attacks", {"rows": rows})


def _fill(lake: Lakehouse, tables: int) -> None:
    from trinitylake_core.iceberg import TrinityLakeCatalog

    with TrinityLakeCatalog.over(lake).transaction() as txn:
        txn.create_namespace("a")
        for number in range(tables):
            txn.create_table(f"a.t{number}", SCHEMA)

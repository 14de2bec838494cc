"""Two endpoints of one lakehouse, killed and stopped in turn: every answer has to be true.

python -m benchmarks endpoints [--minutes 10] [--clients 64] [--seed 0]

Each client sets and removes properties of a few namespaces at one endpoint or the other, with a key, and sends a
request again with the same key, to either of them, until there is an answer. Every few seconds an endpoint is killed
and started again, or stopped for a while. Afterwards each client's log is compared with the chain of versions:

* an answer was true of a version that was the newest one between question and answer, also "missing" and "removed";
* a key became one version at most, and one exactly if the answer says that something was changed;
* no version has a change that nobody asked for.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from tests.support.icebergs import request_key
from tests.support.s3_servers import free_port
from trinitylake_core import Lakehouse

_NAMESPACES: Final = ("n0", "n1", "n2", "n3")
_TIMEOUT_SECONDS: Final = 10.0
_GIVE_UP_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Asked:
    """One request of a client, and its answer; ``None`` if there never was one."""

    key: str
    namespace: str
    set_to: dict[str, str]
    removed: list[str]
    began_at: int
    ended_at: int
    answer: dict[str, list[str]] | None
    tries: int


@dataclass
class Endpoint:
    """A process that serves the lakehouse, on a port that stays its own."""

    root: str
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it answers."""
        words = ["serve", self.root, "--name", "lake", "--port", str(self.port), "--audit-log", "/dev/null", "--quiet"]
        command = [sys.executable, "-P", "-m", "pipelines.cli", *words]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(600):
            try:
                with urlopen(f"http://127.0.0.1:{self.port}/healthz", timeout=1):
                    return
            except OSError:
                time.sleep(0.1)
        raise RuntimeError("the endpoint did not start")

    def kill(self) -> None:
        """Kill it."""
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait()

    def pause(self, seconds: float) -> None:
        """Stop it for a while, with all that it was about to do."""
        if self.process is not None:
            self.process.send_signal(signal.SIGSTOP)
            time.sleep(seconds)
            self.process.send_signal(signal.SIGCONT)


class Client(threading.Thread):
    """Asks until a time, and keeps a log."""

    def __init__(self, number: int, seed: int, endpoints: Sequence[Endpoint], lake: Lakehouse, until: float) -> None:
        super().__init__(daemon=True)
        self.log: list[Asked] = []
        self._chance = random.Random(f"{seed} {number}")
        self._number = number
        self._endpoints = endpoints
        self._lake = lake
        self._until = until

    def run(self) -> None:
        """Ask one thing after another."""
        count = 0
        while time.monotonic() < self._until:
            count += 1
            self.log.append(self._ask(f"{self._number}-{count}"))

    def _ask(self, value: str) -> Asked:
        namespace = self._chance.choice(_NAMESPACES)
        name = f"p{self._chance.randrange(4)}"
        removes = self._chance.random() < 0.5
        set_to, removed = ({}, [name]) if removes else ({name: value}, [])
        key = request_key()
        body = json.dumps({"removals": removed, "updates": set_to}).encode()
        began_at = self._newest()
        deadline = time.monotonic() + _GIVE_UP_SECONDS
        tries = 0
        answer = None
        while answer is None and time.monotonic() < deadline:
            tries += 1
            answer = self._send(namespace, body, key)
            if answer is None:
                time.sleep(self._chance.uniform(0, 0.3))
        return Asked(key, namespace, set_to, removed, began_at, self._newest(), answer, tries)

    def _send(self, namespace: str, body: bytes, key: str) -> dict[str, list[str]] | None:
        port = self._chance.choice(self._endpoints).port
        url = f"http://127.0.0.1:{port}/v1/lake/namespaces/{namespace}/properties"
        headers = {"Idempotency-Key": key, "Content-Type": "application/json"}
        try:
            with urlopen(Request(url, body, headers, method="POST"), timeout=_TIMEOUT_SECONDS) as found:
                read: dict[str, list[str]] = json.loads(found.read())
                return read
        except HTTPError as error:
            error.close()
        except (URLError, OSError, http.client.HTTPException, ValueError):
            pass
        return None

    def _newest(self) -> int:
        return self._lake.backend.newest().version


def _disturb(endpoints: Sequence[Endpoint], until: float, seed: int) -> Counter[str]:
    """Kill and stop the endpoints in turn; return how often."""
    chance, done = random.Random(seed), Counter[str]()
    turn = 0
    while time.monotonic() < until:
        time.sleep(chance.uniform(1, 6))
        endpoint = endpoints[turn % len(endpoints)]
        turn += 1
        if chance.random() < 0.5:
            endpoint.kill()
            endpoint.start()
            done["kills"] += 1
        else:
            endpoint.pause(chance.uniform(0.2, 5))
            done["stops"] += 1
    return done


# -- the comparison --------------------------------------------------------------------------------------

State = dict[str, dict[str, str]]


def _read_chain(lake: Lakehouse) -> tuple[list[State], dict[str, list[int]]]:
    """Return the properties of each namespace in each version, and the versions that contain each key."""
    states: list[State] = []
    versions_by_key: dict[str, list[int]] = {}
    for version in range(lake.version + 1):
        past = lake.at(version=version)
        states.append({name: dict(past.namespace(name).properties) for name in past.namespaces()})
        for member in past.root_node.members:
            if member.txn is not None and member.request is not None:
                versions_by_key.setdefault(member.txn, []).append(version)
    return states, versions_by_key


def find_lies(log: Sequence[Asked], states: Sequence[State], versions_by_key: dict[str, list[int]]) -> Iterator[str]:
    """Yield what is not true of the answers, a sentence each."""
    keys = {each.key for each in log}
    for key in versions_by_key.keys() - keys:
        yield f"the key {key} is in version {versions_by_key[key]}, and nobody sent it"
    for each in log:
        made = versions_by_key.get(each.key, [])
        if len(made) > 1:
            yield f"the key {each.key} was carried out {len(made)} times"
        if each.answer is None:
            continue
        changed = each.answer["updated"] + each.answer["removed"]
        if changed and len(made) != 1:
            yield f"{each.key} was told that {changed} changed, and is in versions {made}"
        if not changed and made:
            yield f"{each.key} was told that nothing changed, and is in versions {made}"
        bracket = made or range(each.began_at, each.ended_at + 1)
        if not any(_is_true(each, states[version][each.namespace]) for version in bracket):
            yield f"{each} was true of none of the versions {list(bracket)}"


def _is_true(asked: Asked, properties: dict[str, str]) -> bool:
    """Whether a namespace is as the answer says."""
    is_set = all(properties.get(name) == value for name, value in asked.set_to.items())
    return is_set and not any(name in properties for name in asked.removed)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run it, and print what was found."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks endpoints")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as directory:
        root = (Path(directory) / "lake").as_uri()
        lake = Lakehouse.create(root)
        with lake.transaction() as txn:
            for name in _NAMESPACES:
                txn.create_namespace(name)
        found = _run(lake.refresh(), options)
    print(json.dumps(found))
    if found["lies"]:
        sys.exit(1)


def _run(lake: Lakehouse, options: Any) -> dict[str, Any]:
    endpoints = [Endpoint(lake.root), Endpoint(lake.root)]
    for each in endpoints:
        each.start()
    try:
        until = time.monotonic() + options.minutes * 60
        clients = [Client(number, options.seed, endpoints, lake, until) for number in range(options.clients)]
        for client in clients:
            client.start()
        disturbed = _disturb(endpoints, until, options.seed)
        for client in clients:
            client.join(_GIVE_UP_SECONDS + 2 * _TIMEOUT_SECONDS)
    finally:
        for each in endpoints:
            each.kill()
    log = [asked for client in clients for asked in client.log]
    lies = list(find_lies(log, *_read_chain(lake.refresh())))
    for lie in lies[:20]:
        print(f"NOT TRUE: {lie}")
    answered = [each for each in log if each.answer is not None]
    nothing = [each for each in answered if each.answer is not None and each.answer["missing"]]
    return {
        "minutes": options.minutes,
        "clients": options.clients,
        **disturbed,
        "requests": len(log),
        "answered": len(answered),
        "sent again": sum(each.tries > 1 for each in log),
        "nothing to do": len(nothing),
        "versions": lake.refresh().version,
        "lies": len(lies),
    }

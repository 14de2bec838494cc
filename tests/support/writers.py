"""Writers and compactors for races, each a process of its own, and the proof that the history they made is right."""

from __future__ import annotations

import multiprocessing
import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pipelines import compaction
from tests.support.lakes import content
from trinitylake_core import Lakehouse
from trinitylake_core.check import check_version
from trinitylake_core.errors import CommitConflict
from trinitylake_core.spec import OP_COMMIT, OP_COMPACT
from trinitylake_core.transactions.transaction import SERIALIZABLE, Transaction
from trinitylake_core.versions import Root

Place = tuple[str, dict[str, Any]]
NAMESPACES: Final = ("a", "b", "c")
TABLES: Final = 20
_COMPACTING_SECONDS: Final = 600.0
_COMPACTIONS: Final = 3
_PATIENCE_SECONDS: Final = 120.0
_CHECKED: Final = 150
"""So many versions of a long history are looked at whole; their messages are replayed all the same."""
_STALE: Final = 0.3
"""How often a writer does not look for what is new before it begins."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a transaction ended: the version it became, or why it failed."""

    txn: str
    version: int | None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Compacted:
    """What a compactor did: the versions it made, and over how many commits it rebased."""

    versions: tuple[int, ...]
    rebased_over: int
    restarts: int


@dataclass(frozen=True, slots=True)
class GoesOn:
    """Whether the writers must go on: the compactor has not touched its file yet."""

    awaited: Path
    deadline: float

    def __call__(self) -> bool:
        """Return whether to go on; the deadline is one of ``time.monotonic``, the same for all processes."""
        return time.monotonic() < self.deadline and not self.awaited.exists()


def forking() -> Any:
    """Return a context whose processes are forked off one that has no threads and has everything loaded."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.support.warm"])
    return context


def pool(processes: int) -> ProcessPoolExecutor:
    """Return a pool of such processes."""
    return ProcessPoolExecutor(processes, mp_context=forking())


def _ended(txn: Transaction) -> Ended:
    try:
        return Ended(txn.id, txn.commit())
    except CommitConflict as conflict:
        return Ended(txn.id, None, f"{conflict} (version {conflict.version})")


def write(place: Place, writer: int, goes_on: GoesOn, transactions: int) -> list[Ended]:
    """Commit transactions of one to five changes on keys that all writers share."""
    lake, rng = Lakehouse.open(place[0], storage_options=place[1]), random.Random(writer)
    ended: list[Ended] = []
    while len(ended) < transactions or goes_on():
        if rng.random() > _STALE:
            lake.refresh()
        txn = lake.transaction(isolation=SERIALIZABLE if rng.random() < 0.2 else None)
        for _ in range(rng.randint(1, 5)):
            _change(txn, rng)
        ended.append(_ended(txn))
    return ended


def _change(txn: Transaction, rng: random.Random) -> None:
    namespace, name, by = rng.choice(NAMESPACES), f"t{rng.randrange(TABLES):02}", {"by": txn.id}
    if namespace not in txn.namespaces():
        txn.create_namespace(namespace, by)
    elif rng.random() < 0.02:
        txn.drop_namespace(namespace, cascade=True)
    elif name not in txn.tables(namespace):
        txn.create_table(namespace, name, properties=by)
    elif rng.random() < 0.3:
        txn.drop_table(namespace, name)
    else:
        txn.alter_table(namespace, name, properties=by)


def write_own(place: Place, writer: int, goes_on: GoesOn, seconds: float) -> list[Ended]:
    """Commit without pause on keys of one's own: nothing but a fault of the protocol can make that fail."""
    lake, ended = Lakehouse.open(place[0], storage_options=place[1]), []
    deadline = time.monotonic() + seconds
    number = 0
    while time.monotonic() < deadline or goes_on():
        txn = lake.transaction()
        name = f"w{writer}n{number % 50:02}"
        if name in txn.tables("a"):
            txn.drop_table("a", name)
        else:
            txn.create_table("a", name, properties={"by": txn.id})
        ended.append(_ended(txn))
        number += 1
    return ended


def compact_until(place: Place, stop: Path, had_enough: Path) -> Compacted:
    """Compact without pause until a file appears."""
    lake = Lakehouse.open(place[0], storage_options=place[1])
    config = compaction.Config(engine="local", reason="race", restarts=50)
    deadline = time.monotonic() + _COMPACTING_SECONDS
    versions, rebased, restarts = [], 0, 0
    while not stop.exists() and time.monotonic() < deadline:
        report = compaction.run(lake, config)
        restarts += report.restarts
        rebased += report.rebased_over
        if report.version_after is None:
            time.sleep(0.005)
        else:
            versions.append(report.version_after)
        if len(versions) >= _COMPACTIONS:
            had_enough.touch()
    return Compacted(tuple(versions), rebased, restarts)


def race(work: Callable[..., list[Ended]], place: Place, writers: int, stop: Path, *rest: Any) -> Raced:
    """Let writers and one compactor race; return how everything ended.

    However slow the machine is, the writers go on until the compactor had its share of the race.
    """
    enough = stop.with_name("enough")
    goes_on = GoesOn(enough, time.monotonic() + _PATIENCE_SECONDS)
    with pool(writers + 1) as processes:
        compactor = processes.submit(compact_until, place, stop, enough)
        try:
            futures = [processes.submit(work, place, writer, goes_on, *rest) for writer in range(writers)]
            ended = [each for future in futures for each in future.result()]
        finally:
            stop.touch()
        return Raced(ended, compactor.result())


@dataclass(frozen=True, slots=True)
class Raced:
    """The outcomes of all transactions, and the compactions in the meantime."""

    ended: list[Ended]
    compacted: Compacted

    @property
    def acknowledged(self) -> dict[str, int]:
        """Version by transaction."""
        return {each.txn: each.version for each in self.ended if each.version is not None}

    @property
    def failed(self) -> set[str]:
        """The transactions that were refused."""
        return {each.txn for each in self.ended if each.version is None}

    def prove(self, uri: str, options: dict[str, Any], began: int) -> None:
        """Prove a history: all acknowledged transactions once, no others, and content as if one came after the other.

        ``began`` is the version that was the newest before the race.
        """
        lake = Lakehouse.open(uri, storage_options=options)
        roots = list(lake.files.versions.history(lake.root_node))[::-1]
        race_roots = roots[began + 1 :]
        committed = [(root.txn, root.version) for root in race_roots if root.operation == OP_COMMIT]
        assert sorted(self.acknowledged.items()) == sorted((str(txn), version) for txn, version in committed)
        made = {root.version for root in race_roots if root.operation == OP_COMPACT}
        assert set(self.compacted.versions) == made
        assert len(race_roots) == len(committed) + len(made)
        buffered = {txn for root in race_roots for txn in root.node.buffer.txns}
        assert set() == buffered & self.failed
        self._prove_contents(lake, roots)
        versions = lake.files.versions
        every = max(1, len(roots) // _CHECKED)
        found = [each for root in roots[::every] for each in check_version(versions, root.version)]
        found += check_version(versions, lake.version, definitions=True)
        assert [] == found

    def _prove_contents(self, lake: Lakehouse, roots: Sequence[Root]) -> None:
        replayed: dict[str, str] = {}
        every = max(1, len(roots) // _CHECKED)
        for root in roots:
            own = root.own_messages()
            for key, value in zip(own.keys, own.values, strict=True):
                replayed.pop(key, None)
                if value is not None:
                    replayed[key] = value
            if not root.version % every or root is roots[-1]:
                assert replayed == content(lake.at(version=root.version)), f"version {root.version}"
        for entry in lake.objects(kind="table"):
            by = lake.table(entry.namespace, str(entry.name)).properties.get("by")
            assert by not in self.failed

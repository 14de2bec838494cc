"""Writers and compactors for races, each a process of its own, and the proof that the history they made is right."""

from __future__ import annotations

import multiprocessing
import random
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pipelines import compaction
from tests.support.lakes import content
from trinitylake_core import Lakehouse
from trinitylake_core.check import check_version
from trinitylake_core.errors import CommitConflict, InvalidInput, NamespaceNotEmpty, ObjectNotFound, PlanOutdated
from trinitylake_core.spec import OP_COMMIT, OP_COMPACT, OP_RESTORE, OP_ROLLBACK
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
RECOVERY_REFUSED: Final = (CommitConflict, PlanOutdated, InvalidInput, ObjectNotFound, NamespaceNotEmpty)
"""The errors of a rollback or a restore when another writer was faster, or there is nothing to restore."""
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


@dataclass(slots=True)
class Recovered:
    """The versions that rollbacks and restores made, each with the version it brought back."""

    rollbacks: dict[int, int] = field(default_factory=dict)
    restores: dict[int, int] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)

    def note(self, done: dict[int, int], version: int | None, target: int) -> None:
        """Note the version that was made, if there was anything to do."""
        if version is not None:
            done[version] = target


@dataclass(frozen=True, slots=True)
class GoesOn:
    """Whether the writers must go on: an opponent in the race has not touched its file yet."""

    awaited: tuple[Path, ...]
    deadline: float

    def __call__(self) -> bool:
        """Return whether to go on; the deadline is one of ``time.monotonic``, the same for all processes."""
        return time.monotonic() < self.deadline and not all(path.exists() for path in self.awaited)


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


def recover_until(place: Place, stop: Path, had_enough: Path, seed: int) -> Recovered:
    """Roll back and restore to versions of the last few moments, again and again, until a file appears."""
    rng, done = random.Random(seed), Recovered()
    deadline = time.monotonic() + _COMPACTING_SECONDS
    while not stop.exists() and time.monotonic() < deadline:
        lake = Lakehouse.open(place[0], storage_options=place[1])
        version = max(0, lake.version - rng.randint(1, 20))
        try:
            _recover(lake, version, rng, done)
        except RECOVERY_REFUSED as error:
            done.refused.append(f"{type(error).__name__}: {error}")
        if done.rollbacks and done.restores and done.refused:
            had_enough.touch()
        time.sleep(0.02)
    return done


def _recover(lake: Lakehouse, version: int, rng: random.Random, done: Recovered) -> None:
    if rng.random() < 0.5:
        plan = lake.rollback(version=version, reason="race", force=rng.random() < 0.5)
        done.note(done.rollbacks, plan.version_after, version)
    else:
        namespace = rng.choice(NAMESPACES)
        only = [f"{namespace}.*"] if rng.random() < 0.5 else [namespace, f"{namespace}.*"]
        plan = lake.restore(only, version=version, reason="race", exact=rng.random() < 0.3)
        done.note(done.restores, plan.version_after, version)


def race(
    work: Callable[..., list[Ended]], place: Place, writers: int, stop: Path, *rest: Any, recoverers: int = 0
) -> Raced:
    """Let writers, one compactor, and those who roll back and restore race; return how everything ended.

    However slow the machine is, the writers go on until each of the others had its share of the race.
    """
    enough = [stop.with_name(f"enough-{number}") for number in range(recoverers + 1)]
    goes_on = GoesOn(tuple(enough), time.monotonic() + _PATIENCE_SECONDS)
    with pool(writers + recoverers + 1) as processes:
        compactor = processes.submit(compact_until, place, stop, enough[-1])
        recovering = [processes.submit(recover_until, place, stop, enough[seed], seed) for seed in range(recoverers)]
        try:
            futures = [processes.submit(work, place, writer, goes_on, *rest) for writer in range(writers)]
            ended = [each for future in futures for each in future.result()]
        finally:
            stop.touch()
        return Raced(ended, compactor.result(), [each.result() for each in recovering])


@dataclass(frozen=True, slots=True)
class Raced:
    """The outcomes of all transactions, and the compactions in the meantime."""

    ended: list[Ended]
    compacted: Compacted
    recovered: list[Recovered] = field(default_factory=list)

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
        rolled_back = {version: target for each in self.recovered for version, target in each.rollbacks.items()}
        restored = {version: target for each in self.recovered for version, target in each.restores.items()}
        assert rolled_back.keys() == {root.version for root in race_roots if root.operation == OP_ROLLBACK}
        assert restored.keys() == {root.version for root in race_roots if root.operation == OP_RESTORE}
        assert len(race_roots) == len(committed) + len(made) + len(rolled_back) + len(restored)
        buffered = {txn for root in race_roots for txn in root.node.buffer.txns}
        assert set() == buffered & self.failed
        self._prove_contents(lake, roots, rolled_back)
        versions = lake.files.versions
        every = max(1, len(roots) // _CHECKED)
        found = [each for root in roots[::every] for each in check_version(versions, root.version)]
        found += check_version(versions, lake.version, definitions=True)
        assert [] == found

    def _prove_contents(self, lake: Lakehouse, roots: Sequence[Root], rolled_back: Mapping[int, int]) -> None:
        replayed: dict[str, str] = {}
        targets = dict.fromkeys(rolled_back.values(), replayed)
        every = max(1, len(roots) // _CHECKED)
        for root in roots:
            if root.version in rolled_back:
                replayed = dict(targets[rolled_back[root.version]])
            own = root.own_messages()
            for key, value in zip(own.keys, own.values, strict=True):
                replayed.pop(key, None)
                if value is not None:
                    replayed[key] = value
            if root.version in targets:
                targets[root.version] = dict(replayed)
            if not root.version % every or root is roots[-1]:
                assert replayed == content(lake.at(version=root.version)), f"version {root.version}"
        for entry in lake.objects(kind="table"):
            by = lake.table(entry.namespace, str(entry.name)).properties.get("by")
            assert by not in self.failed

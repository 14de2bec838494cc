"""Lakehouses at random, with everything that retention meets, by a generator that knows what must be left.

What is reachable is computed here by plain recursion over the files, one root at a time, with nothing of what the
product uses to mark. Files planted as orphans, or as unknown files, are known anyway.
"""

from __future__ import annotations

import os
import random
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pipelines import expire
from tests.support.lakes import FAST, compacted, new_lake, save_outlived
from tests.support.surgery import Surgery, listing
from trinitylake_core import Lakehouse, spec
from trinitylake_core.clock import now_millis
from trinitylake_core.definitions import TransactionDef, decode_transaction
from trinitylake_core.errors import TrinityLakeError
from trinitylake_core.locations import (
    definition_path,
    lakehouse_def_path,
    node_path,
    optimised_path,
    parse,
    root_path,
    transaction_path,
)
from trinitylake_core.transactions.transaction import Transaction
from trinitylake_core.versions import from_millis

HOUR: Final = 3_600_000
DAY: Final = 24 * HOUR
ORPHAN_KINDS: Final = {"node", "transaction", "namespace", "table", "view", "definition", "lakehouse_def"}
AGES: Final = (-5 * DAY, -1, 0, 1, 2 * DAY)
"""Ages of files, relative to the safety age; the first two are old enough."""


@dataclass
class Case:
    """One lakehouse on a disk.

    Attributes:
        planted: orphans of every kind, by path.
        foreign: unknown files, which belong to other programs.
        live: IDs of saved transactions that can be resumed.
        dead: IDs of those that cannot.
        now: the time that the safety age counts from.
    """

    seed: int
    lake: Lakehouse
    directory: Path
    now: int = 0
    planted: set[str] = field(default_factory=set)
    foreign: set[str] = field(default_factory=set)
    live: list[str] = field(default_factory=list)
    dead: list[str] = field(default_factory=list)

    def boundary(self) -> int:
        """Return the boundary as its file says."""
        file = self.directory / spec.BOUNDARY_FILE
        return int(file.read_text()) if file.exists() else 0

    def roots(self) -> list[str]:
        """Return the paths of everything that keeps files alive."""
        newest = Lakehouse.open(self.lake.root, storage_options=FAST)
        found = [root_path(version) for version in range(self.boundary(), newest.version + 1)]
        found += [each.root_node_file_path for each in newest.definition.snapshots.values() if not each.target_uri]
        for transaction in self.live:
            path = transaction_path(transaction)
            found.append(decode_transaction((self.directory / path).read_bytes(), path).running_root_node_file_path)
        return found

    def reachable(self) -> set[str]:
        """Return every file that must stay, by recursion from each root on its own."""
        surgery = Surgery(self.lake.root, self.lake.definition.order)
        found = {transaction_path(transaction) for transaction in self.live}
        for root in self.roots():
            waiting = [root]
            while waiting:
                path = waiting.pop()
                node = surgery.decode(path)
                found |= {path, *node.values, *(value for value in node.buffer.values if value is not None)}
                found.add(node.system.get(spec.LAKEHOUSE_DEF, path))
                waiting += node.children
        return found

    def expected(self, age: int) -> set[str]:
        """Return the files that a cleaning with this safety age, in milliseconds, must delete: exactly these."""
        reachable, boundary, found = self.reachable(), self.boundary(), set()
        for path in listing(self.directory):
            parsed = parse(path)
            if parsed is None or path in self.foreign or path in reachable:
                continue
            below = parsed.kind == "root" and not parsed.legacy and (parsed.version or 0) < boundary
            modified = (self.directory / path).stat().st_mtime_ns // 1_000_000
            if (parsed.kind in ORPHAN_KINDS or below) and modified < self.now - age:
                found.add(path)
        return found


def build(directory: Path, seed: int, *, steps: int = 24, age: int = 3 * DAY) -> Case:
    """Return a random lakehouse: a history, then what lies around, then ages for all files."""
    draw = random.Random(seed)
    lake = new_lake(directory, order=draw.choice([3, 4, 5]))
    case = Case(seed, lake, directory / "lake")
    with lake.transaction() as txn:
        txn.create_namespace("ns0")
        txn.create_namespace("ns1")
    for _ in range(draw.randint(steps // 2, steps)):
        _step(case, draw)
    if draw.random() < 0.6:
        _expire(case, draw)
    _plant(case, draw)
    _foreign(case, draw)
    case.now = now_millis() + 2 * HOUR  # snapshots have expired by then, and never while the test reads them
    _make_old(case, draw, age)
    return case


# -- histories -----------------------------------------------------------------------------------------


def _step(case: Case, draw: random.Random) -> None:
    actions: list[tuple[int, Callable[[Case, random.Random], None]]] = [
        (10, _commit),
        (3, _compact),
        (2, _snapshot),
        (1, _drop_snapshot),
        (1, _roll_back),
        (2, _save),
        (1, _save_dead),
        (1, _resume),
    ]
    action = draw.choices([each for _, each in actions], [weight for weight, _ in actions])[0]
    case.lake.refresh()
    action(case, draw)


def _commit(case: Case, draw: random.Random) -> None:
    with case.lake.transaction() as txn:
        _change(txn, draw)


def _change(txn: Transaction, draw: random.Random) -> None:
    for _ in range(draw.randint(1, 5)):
        space, name = f"ns{draw.randrange(3)}", f"t{draw.randrange(30):03}"
        what = draw.choice(["create", "create", "create", "alter", "drop", "view", "namespace", "cascade"])
        try:
            match what:
                case "create":
                    txn.create_table(space, name)
                case "alter":
                    txn.alter_table(space, name, properties={"a": str(draw.random())})
                case "drop":
                    txn.drop_table(space, name)
                case "view":
                    txn.create_view(space, name, sql="SELECT 1")
                case "namespace":
                    txn.create_namespace(space)
                case "cascade" if draw.random() < 0.2:
                    txn.drop_namespace(space, cascade=True)
        except TrinityLakeError:
            continue


def _compact(case: Case, draw: random.Random) -> None:
    del draw
    compacted(case.lake, case.lake.root_node)


def _snapshot(case: Case, draw: random.Random) -> None:
    version = draw.randint(case.lake.stats().oldest_version, case.lake.version)
    expires = None
    if draw.random() < 0.3:  # listed, though expired by the time of the cleaning
        expires = from_millis(now_millis() + HOUR)
    kind = draw.choice(["minimal", "partial"])
    case.lake.create_snapshot(f"s{uuid.uuid4().hex[:6]}", version=version, kind=kind, expires_at=expires)


def _drop_snapshot(case: Case, draw: random.Random) -> None:
    if infos := case.lake.snapshots():
        case.lake.drop_snapshot(draw.choice(infos).name)


def _roll_back(case: Case, draw: random.Random) -> None:
    if case.lake.version > 1:
        version = draw.randint(case.lake.stats().oldest_version, case.lake.version - 1)
        case.lake.rollback(version=version, reason="generator")


def _save(case: Case, draw: random.Random) -> None:
    txn = case.lake.transaction()
    _change(txn, draw)
    case.live.append(txn.save())


def _save_dead(case: Case, draw: random.Random) -> None:
    case.dead.append(save_outlived(case.lake, lambda txn: _change(txn, draw)))


def _resume(case: Case, draw: random.Random) -> None:
    if not case.live:
        return
    transaction = draw.choice(case.live)
    txn = case.lake.resume_transaction(transaction)
    _change(txn, draw)
    if draw.random() < 0.5:
        txn.save()
        return
    with suppress(TrinityLakeError):
        if draw.random() < 0.2:
            txn.abort()
        txn.commit()
    file = case.directory / transaction_path(transaction)
    if not file.exists():  # one without changes stays as it is
        case.live.remove(transaction)
    elif decode_transaction(file.read_bytes(), file.name).state == TransactionDef.ABORTED:
        case.live.remove(transaction)
        case.dead.append(transaction)


def _expire(case: Case, draw: random.Random) -> None:
    """Expire, as far as a process that is killed at some point comes."""
    kept = draw.randint(1, case.lake.refresh().version + 1)
    before = listing(case.directory)
    config = expire.Config(engine="local", keep_last=kept, now_millis=now_millis() + 30 * DAY)
    expire.run(case.lake, config)
    case.lake.refresh()
    if draw.random() < 0.4:  # killed before all roots were deleted
        for path in sorted(before.keys() - listing(case.directory).keys()):
            if draw.random() < 0.5:
                (case.directory / path).write_bytes(before[path])


# -- what lies around ------------------------------------------------------------------------------------


def _write(case: Case, path: str, data: bytes = b"left over") -> None:
    file = case.directory / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)


def _plant(case: Case, draw: random.Random) -> None:
    names: list[Callable[[], str]] = [
        node_path,
        lakehouse_def_path,
        lambda: definition_path("namespace", "gone"),
        lambda: definition_path("table", "gone", "t-1"),
        lambda: definition_path("view", "gone", "v\n/ü"),
        lambda: optimised_path(f"gone-{uuid.uuid4()}.binpb"),
        lambda: optimised_path(f"node-{uuid.uuid4()}.arrow"),
        lambda: optimised_path("AbCdEfGhIjKlMnOpQrStUv.ipc"),
    ]
    for name in names:
        for _ in range(draw.randint(0, 2)):
            path = name()
            _write(case, path)
            case.planted.add(path)


def _foreign(case: Case, draw: random.Random) -> None:
    paths = [
        "README.md",
        "_SUCCESS",
        "_lakehouse_def_mine.binpb",
        "_00000000000000000000000000000000.ipc.bak",
        "_" + "0" * 64 + ".arrow",
        "data/part-00000.parquet",
        "0101/notes.txt",
        "0101/1010/notes.txt",
        f"0000/0000/0000/00000000-node-{uuid.uuid4()}.ipc",  # not the hash of its name
        f"{node_path()}.tmp",
        node_path().replace("node-", "Node-"),
        f"table-a-b-{uuid.uuid4()}.binpb",
        f"1111/0000/{node_path()}",
        f"backup/{node_path()}",
    ]
    for path in draw.sample(paths, draw.randint(3, len(paths))):
        if parse(path) is None or "0" * 64 in path:
            _write(case, path)
            case.foreign.add(path)
    above = draw.choice(["nested", "0101", "0101/1010", "1100/0011/1100", "_data"])
    nested = new_lake(case.directory / above)
    with nested.transaction() as txn:
        txn.create_namespace("theirs")
    compacted(nested)
    case.foreign |= {f"{above}/lake/{path}" for path in listing(case.directory / above / "lake")}


def _make_old(case: Case, draw: random.Random, age: int) -> None:
    for path in listing(case.directory):
        millis = case.now - age + draw.choices(AGES, (6, 1, 1, 1, 1))[0]
        os.utime(case.directory / path, ns=(millis * 1_000_000, millis * 1_000_000))

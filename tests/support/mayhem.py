"""Everything at once, against one lakehouse and its copies: processes fail, stall, die, and disagree about the time.

Each process lives until it is killed, and writes down what it is about to do and what it was told, line by line and
durably, so that the lines of a process that was killed count, too. :func:`judge` compares them with what the lakehouse
and its copies hold.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final

from pipelines import clean, compaction, expire, export
from trinitylake_core import Lakehouse, Transaction
from trinitylake_core.errors import OutcomeUnknown, TrinityLakeError
from trinitylake_core.storage import open_storage
from trinitylake_core.storage.base import BaseStorage
from trinitylake_core.storage.failures import TransientError

DAY: Final = 86_400_000
SHARE: Final = 0.02
"""Of all requests, so many go wrong in each way."""
FAULTS: Final = ("fail", "lose", "late", "delay")
NAMESPACE: Final = "a"
_NOW: Final = time.time_ns
COPIES: Final = 4
KILLS: Final = 0.07
"""Of all disturbances, so many kill a process."""


SEED: Final = os.environ.get("MAYHEM_SEED", "7")
"""What all chance of a mayhem begins at: it repeats the decisions of each process, though not who is faster."""


def chance_of(number: int) -> random.Random:
    """Return the chance of a process, or of one of its parts, by its number."""
    return random.Random(f"{SEED} {number}")


class Faults:
    """An interceptor: a request fails, is carried out and not answered, is carried out later, or takes long."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def __call__(self, kind: str, path: str, action: Callable[[], Any]) -> Any:
        """Carry out a request, or let it go wrong."""
        drawn = int(self._chance.random() / SHARE)
        fault = FAULTS[drawn] if drawn < len(FAULTS) else ""
        if fault == "delay":
            time.sleep(self._chance.random() * 0.3)
        if fault == "fail":
            raise TransientError(f"no answer to {kind} of {path}", undone=False)
        if fault == "late" and kind not in {"get", "head", "list", "sync"}:
            timer = threading.Timer(self._chance.random() * 2, _carry_out, [action])
            timer.daemon = True
            timer.start()
            raise TransientError(f"no answer yet to {kind} of {path}", undone=False)
        result = action()
        if fault == "lose":
            raise TransientError(f"lost the answer to {kind} of {path}", undone=False)
        return result


def _carry_out(action: Callable[[], Any]) -> None:
    with suppress(Exception):  # its client has gone on long ago
        action()


class Log:
    """What one process intended and was told, one line each."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8")

    def note(self, what: str, **about: Any) -> None:
        """Write a line durably."""
        self._file.write(json.dumps({"what": what, **about}) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


@dataclass
class Process:
    """One process of the mayhem."""

    root: str
    seed: int
    log: Log
    options: dict[str, Any]
    chance: random.Random = field(init=False)
    number: int = 0

    def __post_init__(self) -> None:
        self.chance = chance_of(self.seed)

    def open(self, root: str | None = None) -> Lakehouse:
        """Open a lakehouse whose requests go wrong now and then."""
        storage = open_storage(root or self.root, self.options)
        assert isinstance(storage, BaseStorage)
        storage.interceptor = Faults(self.chance)
        return Lakehouse.open(storage)

    # -- writing -----------------------------------------------------------------------------------------

    def changed(self, txn: Transaction) -> dict[str, Any]:
        """Create a table, or drop one of this process; return what the log says of it."""
        own = f"p{self.seed}n"
        mine = [name for name in txn.tables(NAMESPACE) if name.startswith(own)]
        if len(mine) > 20:
            txn.drop_table(NAMESPACE, name := self.chance.choice(mine))
            return {"txn": txn.id, "drop": name}
        self.number += 1
        txn.create_table(NAMESPACE, name := f"{own}{time.monotonic_ns():x}", properties={"by": txn.id})
        return {"txn": txn.id, "create": name}

    def commit(self, lake: Lakehouse, root: str) -> None:
        """Commit one change, sometimes again after an unknown outcome, and sometimes by way of a save."""
        txn = lake.transaction()
        about = {"root": root, **self.changed(txn)}
        self.log.note("intent", **about)
        if self.chance.random() < 0.2:
            saved = txn.save()
            txn = self.open(root).resume_transaction(saved)
            if self.chance.random() < 0.3:
                txn.abort()
                self.log.note("aborted", **about)
                return
        try:
            version = txn.commit()
        except OutcomeUnknown:
            if self.chance.random() < 0.5:
                raise
            if self.chance.random() < 0.3:
                txn.abort()
                self.log.note("aborted", **about)
                return
            version = txn.commit()
        self.log.note("committed", version=version, **about)

    def write(self, root: str | None = None) -> None:
        """Commit a few changes through one handle, which may be stale."""
        lake = self.open(root)
        for _ in range(self.chance.randrange(1, 6)):
            if self.chance.random() < 0.7:
                lake.refresh()
            self.commit(lake, root or self.root)

    # -- maintaining -------------------------------------------------------------------------------------

    def compact(self) -> None:
        """Push all messages down."""
        compaction.run(self.open(), compaction.Config(engine="local"))

    def expire(self, root: str | None = None) -> None:
        """Keep one version, by a clock that is far ahead."""
        config = expire.Config(engine="local", keep_last=1, now_millis=_NOW() // 1_000_000 + 30 * DAY)
        expire.run(self.open(root), config)

    def clean(self, root: str | None = None) -> None:
        """Remove every orphan, however young."""
        config = clean.Config(engine="local", older_than_seconds=0, allow_recent=True)
        clean.run(self.open(root), config)

    def copy(self) -> str:
        """Return the root of a copy."""
        return f"{self.root.rstrip('/')}-copy{self.chance.randrange(COPIES)}/"

    def export(self) -> None:
        """Export the newest version, or the history, to a copy that others may write to."""
        config = export.Config(engine="local", history=self.chance.random() < 0.5)
        export.run(self.open(), self.copy(), config, storage_options=self.options)

    def on_copy(self) -> None:
        """Write to a copy, or maintain it."""
        act = self.chance.choice((self.write, self.write, self.expire, self.clean))
        act(self.copy())

    def acts(self, role: str) -> Iterator[Callable[[], None]]:
        """Yield what a role does, for ever."""
        roles: Mapping[str, tuple[Callable[[], None], ...]] = {
            "writer": (self.write,),
            "maintainer": (self.compact, self.expire, self.clean),
            "exporter": (self.export, self.export, self.on_copy),
            "copywriter": (self.on_copy,),
        }
        while True:
            yield self.chance.choice(roles[role])


def keep_errors(log: Path) -> None:
    """Let what this process writes to its standard error go to a file beside its log."""
    with log.with_suffix(".err").open("ab") as errors:
        os.dup2(errors.fileno(), sys.stderr.fileno())


def live(root: str, role: str, seed: int, log: Path, options: dict[str, Any]) -> None:
    """Act until this process is killed. Refusals are noted; an error that is none of ours ends it, and is kept."""
    keep_errors(log)
    process = Process(root, seed, Log(log), options)
    days = process.chance.randrange(-3, 4)
    if role == "maintainer" and process.chance.random() < 0.7:
        days = 0  # whose clock is not the storage's cleans nothing
    time.time_ns = lambda: _NOW() + days * DAY * 1_000_000
    for act in process.acts(role):
        try:
            act()
        except TrinityLakeError as error:
            process.log.note("refused", act=act.__name__, error=f"{type(error).__name__}: {error}"[:600])
        else:
            process.log.note("done", act=act.__name__)


def disturb(
    start: Callable[[int, int], BaseProcess],
    count: int,
    enough: Callable[[], bool],
    *,
    stall: float,
    spared: Callable[[int], bool] = lambda number: False,
) -> str:
    """Run so many processes until it is enough, stop each now and then for up to ``stall`` seconds, and kill some.

    ``start`` starts one, by its number and the number of lives before; one that ended is started again. One that is
    ``spared`` goes on.
    """
    print(f"MAYHEM_SEED={SEED}")
    chance, kills, stops = random.Random(SEED), 0, 0
    running, asleep = [start(number, 0) for number in range(count)], dict[int, float]()
    try:
        while not enough():
            time.sleep(chance.random())
            for number in [each for each, until in asleep.items() if until < time.monotonic()]:
                _signal(running[number], signal.SIGCONT)
                del asleep[number]
            number = chance.randrange(count)
            if running[number].is_alive() and spared(number):
                continue
            if not running[number].is_alive() or chance.random() < KILLS:
                _end(running[number])
                asleep.pop(number, None)
                kills += 1
                running[number] = start(number, kills)
            elif chance.random() < 0.5 and number not in asleep:
                _signal(running[number], signal.SIGSTOP)
                asleep[number] = time.monotonic() + chance.random() * stall
                stops += 1
    finally:
        for process in running:
            _end(process)
    return f"{kills} kills, {stops} stops"


def _signal(process: BaseProcess, number: signal.Signals) -> None:
    assert process.pid is not None
    os.kill(process.pid, number)


def _end(process: BaseProcess) -> None:
    process.kill()
    process.join()


@dataclass
class Judged:
    """What the logs of all processes say, and what is wrong with it."""

    committed: int = 0
    unknown: int = 0
    aborted: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    done: dict[str, int] = field(default_factory=dict)
    versions_checked: int = 0
    wrong: list[str] = field(default_factory=list)


def judge(roots: list[str], logs: list[Path], options: dict[str, Any]) -> Judged:
    """Compare what processes were told with what is there, and check every version that is kept."""
    judged = Judged()
    lines = [json.loads(line) for log in logs for line in log.read_text(encoding="utf-8").splitlines()]
    for line in lines:
        if line["what"] == "refused":
            kind = line["error"].partition(":")[0]
            judged.refused[kind] = judged.refused.get(kind, 0) + 1
        elif line["what"] == "done":
            judged.done[line["act"]] = judged.done.get(line["act"], 0) + 1
    for root in roots:
        told = [line for line in lines if line.get("root") == root]
        if root == roots[0] or told:  # a copy of which nothing is told may not be complete
            _judge_root(root, told, options, judged)
    return judged


def _judge_root(root: str, told: list[dict[str, Any]], options: dict[str, Any], judged: Judged) -> None:
    lake = Lakehouse.open(root, storage_options=options)
    tables = {name: lake.table(NAMESPACE, name).properties.get("by") for name in lake.tables(NAMESPACE)}
    ended = {line["txn"]: line["what"] for line in told if line["what"] in {"committed", "aborted"}}
    judged.committed += sum(what == "committed" for what in ended.values())
    judged.aborted += sum(what == "aborted" for what in ended.values())
    for line in told:
        if "create" not in line or line["what"] != "intent":
            continue
        name, what = line["create"], ended.get(line["txn"], "unknown")
        judged.unknown += what == "unknown"
        drops = [ended.get(each["txn"], "unknown") for each in told if each.get("drop") == name]
        there = tables.get(name) == line["txn"]
        if what == "committed" and not there and not {"committed", "unknown"} & set(drops):
            judged.wrong.append(f"{root}: {name} was committed by {line['txn']}, and is gone")
        if what == "aborted" and there:
            judged.wrong.append(f"{root}: {name} was aborted by {line['txn']}, and is there")
        if there and "committed" in drops:
            judged.wrong.append(f"{root}: {name} was dropped, and is there")
    for info in lake.history():
        at = lake.at(version=info.version)
        judged.versions_checked += 1
        judged.wrong += [f"{root}@{info.version}: {each}" for each in at.check(definitions=True)]

"""Processes that stall and die at random, and the lines that each of them leaves behind.

Each lives until it is killed, and writes down what it is about to do and what it was told, line by line and durably, so
that the lines of a process that was killed count, too.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final

DAY: Final = 86_400_000
KILLS: Final = 0.07
"""Of all disturbances, so many kill a process."""
SEED: Final = os.environ.get("MAYHEM_SEED", "7")
"""What all chance of a mayhem begins at: it repeats the decisions of each process, though not who is faster."""


def chance_of(number: int) -> random.Random:
    """Return the chance of a process, or of one of its parts, by its number."""
    return random.Random(f"{SEED} {number}")


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


def keep_errors(log: Path) -> None:
    """Let what this process writes to its standard error go to a file beside its log."""
    with log.with_suffix(".err").open("ab") as errors:
        os.dup2(errors.fileno(), sys.stderr.fileno())


def disturb(
    start: Callable[[int, int], BaseProcess],
    count: int,
    enough: Callable[[], bool],
    *,
    stall: float,
    kills: float = KILLS,
    spared: Callable[[int], bool] = lambda number: False,
) -> str:
    """Run so many processes until it is enough, stop each now and then for up to ``stall`` seconds, and kill some.

    ``start`` starts one, by its number and the number of lives before; one that ended is started again. One that is
    ``spared`` goes on. Of all disturbances ``kills`` is the share of those that kill.
    """
    print(f"MAYHEM_SEED={SEED}")
    chance, killed, stops = random.Random(SEED), 0, 0
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
            if not running[number].is_alive() or chance.random() < kills:
                _end(running[number])
                asleep.pop(number, None)
                killed += 1
                running[number] = start(number, killed)
            elif chance.random() < 0.5 and number not in asleep:
                _signal(running[number], signal.SIGSTOP)
                asleep[number] = time.monotonic() + chance.random() * stall
                stops += 1
    finally:
        for process in running:
            _end(process)
    return f"{killed} kills, {stops} stops"


def _signal(process: BaseProcess, number: signal.Signals) -> None:
    assert process.pid is not None
    os.kill(process.pid, number)


def _end(process: BaseProcess) -> None:
    process.kill()
    process.join()

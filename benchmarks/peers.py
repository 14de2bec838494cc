"""Ours beside what people would use instead, on the same keys: ratios first, and a plot.

    python -m benchmarks peers [--scale small|full] [--rounds 5] [--into docs/benchmarks]

In each round all take turns at each piece of work, in another order than in the round before, so that a slow moment of
the machine hits all of them. Nothing is deleted before the end: after a mass deletion ext4 creates files slowly for a
minute. Before each turn the system writes what the turns before left in memory: one that waits for the disk would wait
for that, too. CPU seconds count all threads and child processes; they tell what a busy machine hides.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from benchmarks import lakes, report
from benchmarks.rivals import LMDB, BareArrow, Change, Changes, Delta, DuckLake, Lance, Ours, Rival, SQLite

RIVALS: Final[dict[str, Callable[[Path], Rival]]] = {
    "ours": Ours, "deltalake": Delta, "Lance": Lance, "DuckLake": DuckLake, "SQLite FULL": SQLite, "LMDB": LMDB,
    "bare pyarrow": BareArrow,
}  # fmt: skip
OBJECTS: Final = {"small": 100_000, "full": 1_000_000}
_COMMITS: Final = 30
_LOOKUPS: Final = 30
_WARM: Final = 300
_WORK: Final = {
    "bulk create": "s", "small commit": "ms", "0.1 % merged": "s", "1 % merged": "s", "10 % merged": "s",
    "cold lookup": "ms", "warm lookup": "ms", "scan": "s",
}  # fmt: skip
_MERGED: Final = {"0.1 % merged": 1000, "1 % merged": 100, "10 % merged": 10}
"""Which part of the rows is changed, one after the other in the same catalog."""
_SLOW_WARM: Final = {"deltalake": 10, "DuckLake": 10, "Lance": 30}
"""How many warm lookups are enough for those of milliseconds."""

Times = dict[str, dict[str, list[tuple[float, float]]]]
"""Seconds and CPU seconds by work and rival, once a round."""


class Round:
    """One round: every rival with a new catalog."""

    def __init__(self, folder: Path, rows: pa.Table, number: int) -> None:
        self.rivals = {name: made(_folder(folder, name)) for name, made in RIVALS.items()}
        self.rows = rows
        self.pick = random.Random(number)
        keys = rows.column("key")
        self.some = [str(keys[self.pick.randrange(len(keys))]) for _ in range(max(_LOOKUPS, _WARM))]

    def play(self, times: Times) -> None:
        """Do all work, rivals in turns."""
        rows, some = self.rows, self.some
        self._turn(times, "bulk create", 1, lambda rival, _: rival.create(rows))
        lance = self.rivals["Lance"]
        if isinstance(lance, Lance):
            lance.index()
        self._turn(times, "cold lookup", _LOOKUPS, lambda rival, number: _found(rival.cold(some[number])))
        self._turn(times, "warm lookup", _WARM, lambda rival, number: _found(rival.warm(some[number])))
        self._turn(times, "scan", 1, lambda rival, _: _whole(rival.scan(), len(rows)))
        fresh = [f"{key[:-8]}~{number:07}" for number, key in enumerate(some)]
        self._turn(times, "small commit", _COMMITS, lambda rival, number: rival.commit(fresh[number], "a/path"))
        for work, part in _MERGED.items():
            changes = draw_changes(rows, len(rows) // part, self.pick)
            self._turn(times, work, 1, lambda rival, _, merged=changes: rival.merge(merged))

    def _turn(self, times: Times, work: str, repeats: int, action: Callable[[Rival, int], None]) -> None:
        names = list(self.rivals)
        self.pick.shuffle(names)
        for name in names:
            count = repeats
            if work == "warm lookup":
                count = min(repeats, _SLOW_WARM.get(name, repeats))
                for number in range(count):
                    action(self.rivals[name], number)
            os.sync()
            cpu, each = _cpu(), []
            for number in range(count):
                start = time.perf_counter()
                action(self.rivals[name], number)
                each.append(time.perf_counter() - start)
            seconds = statistics.median(each)
            times.setdefault(work, {}).setdefault(name, []).append((seconds, (_cpu() - cpu) / count))


def draw_changes(rows: pa.Table, count: int, pick: random.Random) -> Changes:
    """Return changes of so many of the rows: a third sets, a third deletes, a third inserts."""
    numbers = sorted(pick.sample(range(len(rows)), count))
    keys = rows.column("key").take(pa.array(numbers)).to_pylist()
    kinds: list[Callable[[str], Change]] = [
        lambda key: (key, f"new/{key[-30:].strip()}"),
        lambda key: (key, None),
        lambda key: (f"{key[:-1]}x", f"new/{key[-30:].strip()}"),
    ]
    changes = dict(kinds[number % 3](key) for number, key in enumerate(keys))
    return Changes.of(sorted(changes.items()))


def _folder(folder: Path, name: str) -> Path:
    place = folder / name.replace(" ", "-")
    place.mkdir(parents=True)
    return place


def _found(path: str | None) -> None:
    if path is None:
        raise AssertionError("a lookup found nothing")


def _whole(found: int, expected: int) -> None:
    if found != expected:
        raise AssertionError(f"a scan found {found} of {expected} rows")


def _cpu() -> float:
    now = os.times()
    return time.process_time() + now.children_user + now.children_system


def figures_of(times: Times) -> dict[str, dict[str, dict[str, float]]]:
    """Return by work and rival: median, least and most of the rounds, CPU, and how often ours fits into it."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for work in _WORK:
        own, own_cpu = (statistics.median(each) for each in zip(*times[work]["ours"], strict=True))
        for name in RIVALS:
            seconds, cpu = zip(*times[work][name], strict=True)
            found.setdefault(work, {})[name] = {
                "ratio": own / statistics.median(seconds),
                "cpu ratio": own_cpu / max(statistics.median(cpu), 1e-9),
                "median": statistics.median(seconds),
                "least": min(seconds),
                "most": max(seconds),
                "cpu": statistics.median(cpu),
            }
    return found


def page(figures: dict[str, dict[str, dict[str, float]]], facts: dict[str, Any]) -> str:
    """Return the tables in Markdown: ratios of CPU time, then the times."""
    names = list(RIVALS)
    head = f"| | {' | '.join(names)} |\n|---|{'---|' * len(names)}\n"
    units = "Median (least–most) of the rounds, in seconds; commits and lookups in milliseconds."
    times = f"## Times\n\n{units}\n\n{head}{_cells(figures, names, _time)}"
    cpu_ratios = _cells(figures, names, lambda row, _: f"{row['cpu ratio']:.3g}")
    return (
        "# Benchmarks\n\nThe catalog of a lakehouse beside what people might use instead: the same keys and paths as "
        "rows of a table of Delta (deltalake), Lance or DuckLake, in a database file (SQLite, LMDB), or in plain "
        "Arrow files.\n\n"
        f"`python -m benchmarks peers --scale {facts['scale']}` wrote this page.\n\n"
        f"* {facts['objects']:,} objects, {facts['rounds']} rounds in which the systems take turns; "
        f"commit `{facts['commit']}`\n"
        f"* {facts['machine']}; load average before {facts['before']}, after {facts['after']}\n\n"
        "Where the load average is above the number of cores, other programs made the times too long; CPU time suffers "
        "less.\n\n"
        "## Ratios\n\nOur CPU time, of all threads and processes, divided by that of the other: below 1 ours takes "
        f"less.\n\n{head}{cpu_ratios}\n"
        f"![the others as multiples of ours](peers.png)\n\n{times}{_NOTES}"
    )


_NOTES: Final = """
* **bulk create**: all rows, sorted, in memory as Arrow columns, into an empty catalog, by one transaction; no
  definition files. Each path ends in a random UUID, as paths of definitions do.
* **small commit**: rows committed one at a time. deltalake and Lance do not wait for the disk; bare pyarrow syncs one
  file and links it.
* **0.1, 1 and 10 % merged**: a third of the changes sets, a third deletes, a third inserts; ours commits by one
  transaction, and compacts. Keys and paths are made before the clock starts.
* Ours is an ordinary lakehouse: made by `create`, of the default order, with counts of its objects.
* **cold lookup**: opens the catalog, and looks up one key. LMDB stays open: a process cannot open it twice. Lance has
  an index on the key. DuckLake attaches its catalog, a DuckDB file, again.
* **warm lookup**: in an open catalog, keys that were looked up before.
* **scan**: reads all rows into memory.
* **bare pyarrow** is not a catalog: it writes and reads files like ours, without checksums, proofs and order.

Other sizes: [growth](growth.md). Other orders: [orders](sizes.md#orders).
"""


def _cells(
    figures: dict[str, dict[str, dict[str, float]]], names: list[str], cell: Callable[[dict[str, float], str], str]
) -> str:
    return "".join(
        f"| {work} | {' | '.join(cell(row[name], _WORK[work]) for name in names)} |\n" for work, row in figures.items()
    )


def _time(row: dict[str, float], unit: str) -> str:
    scale = 1e3 if unit == "ms" else 1
    return f"{row['median'] * scale:.3g} ({row['least'] * scale:.3g}–{row['most'] * scale:.3g})"


def plot(figures: dict[str, dict[str, dict[str, float]]], target: Path) -> None:
    """Draw time and CPU of each rival as multiples of ours."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    drawn, both = plt.subplots(2, 1, figsize=(10, 8), sharex=True)
    others = [name for name in RIVALS if name != "ours"]
    width = 0.8 / len(others)
    for axes, ratio, what in zip(both, ("ratio", "cpu ratio"), ("time", "CPU"), strict=True):
        for index, name in enumerate(others):
            places = [work + (index - len(others) / 2 + 0.5) * width for work in range(len(figures))]
            heights = [1 / row[name][ratio] for row in figures.values()]
            axes.bar(places, [height - 1 for height in heights], width, bottom=1, label=name)
        axes.axhline(1, color="black", linewidth=1)
        axes.set_yscale("log")
        axes.set_ylabel(f"{what} as a multiple of ours")
    both[0].set_title("above the line ours is faster", fontsize=10)
    both[0].legend()
    both[1].set_xticks(range(len(figures)), list(figures))
    drawn.tight_layout()
    drawn.savefig(target, dpi=110)


def main(arguments: list[str]) -> None:
    """Run the rounds, print the page and write it."""
    parser = argparse.ArgumentParser(prog="benchmarks peers", description=__doc__)
    parser.add_argument("--scale", choices=list(OBJECTS), default="small")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--into", type=Path, help="a folder for the page and the plot, such as docs/benchmarks")
    options = parser.parse_args(arguments)
    rows, times, before = lakes.rows(OBJECTS[options.scale]), Times(), os.getloadavg()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.rounds):
            Round(Path(folder) / str(number), rows, number).play(times)
            print(f"round {number + 1} of {options.rounds}", flush=True)
    machine = report.machine()
    facts = {
        "scale": options.scale, "objects": OBJECTS[options.scale], "rounds": options.rounds, "commit": report.commit(),
        "machine": f"{machine['cpus']} cores, Python {machine['python']}, {machine['system']}",
        "before": report.format_load(before), "after": report.format_load(os.getloadavg()),
    }  # fmt: skip
    figures = figures_of(times)
    text = page(figures, facts)
    print(text)
    report.save("peers", {"facts": facts, "figures": figures})
    if options.into is not None:
        options.into.mkdir(parents=True, exist_ok=True)
        (options.into / "index.md").write_text(text, encoding="utf-8")
        plot(figures, options.into / "peers.png")


if __name__ == "__main__":
    main([])

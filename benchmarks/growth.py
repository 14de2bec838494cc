"""How operations grow with the number of objects: lookup, small commit, and a compaction of as many changes each time.

    python -m benchmarks growth [--objects 10000 100000 1000000] [--into docs/benchmarks]

What is expected follows the height of the tree: a lookup reads one node per level, a commit writes the root and now and
then a node per level, and a compaction rewrites the path to each change, of which the upper nodes are shared. CPU
seconds are plotted, which a busy machine does not change much.
"""

from __future__ import annotations

import argparse
import math
import os
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import lakes, orders, report

_CHANGES = 1_000
_ORDER = 128
_FILL = 0.9
_PLOTTED = {
    "lookup": ("CPU ms", "cold lookup, ms"),
    "commit": ("commit CPU ms", "small commit, ms"),
    "compaction": ("CPU s", f"compaction of {_CHANGES:,} changes, s"),
}


def measured(objects: int, folder: Path) -> dict[str, Any]:
    """Return the figures of one size."""
    root = f"file://{folder}/{objects}"
    lake = lakes.build(root, objects, order=_ORDER)
    row: dict[str, Any] = {"levels": (lake.stats().height or 0) + 1}
    row |= orders.lookups(root, objects) | orders.commits(root, objects)
    return row | orders.compacted(f"{folder}/compact-{objects}", objects, _CHANGES, _ORDER, "")


def expected(objects: int) -> dict[str, float]:
    """Return what an operation should cost, in any unit: nodes that it reads or writes."""
    width = _ORDER * _FILL
    levels = 1 + math.log(objects / width, width)
    reached = sum(min(_CHANGES, objects / width ** (level + 1)) for level in range(math.ceil(levels)))
    return {"lookup": levels, "commit": levels, "compaction": max(1.0, reached)}


def plot(figures: dict[int, dict[str, Any]], target: Path) -> None:
    """Draw each operation, and what is expected through its first point."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    drawn, all_axes = plt.subplots(1, len(_PLOTTED), figsize=(13, 4))
    sizes = list(figures)
    for axes, (name, (column, label)) in zip(all_axes, _PLOTTED.items(), strict=True):
        found = [figures[size][column] for size in sizes]
        scale = found[0] / expected(sizes[0])[name]
        axes.plot(sizes, found, marker="o", label="measured")
        axes.plot(sizes, [expected(size)[name] * scale for size in sizes], linestyle="--", label="expected")
        axes.set_xscale("log")
        axes.set_ylim(bottom=0)
        axes.set_xlabel("objects")
        axes.set_title(f"{label} of CPU", fontsize=10)
        axes.legend()
    drawn.tight_layout()
    drawn.savefig(target, dpi=110)


def main(arguments: list[str]) -> None:
    """Run the benchmark, print its figures, and draw them."""
    parser = argparse.ArgumentParser(prog="benchmarks growth", description=__doc__)
    parser.add_argument("--objects", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--into", type=Path, help="a folder for the plot, such as docs/benchmarks")
    options = parser.parse_args(arguments)
    figures: dict[int, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for objects in options.objects:
            figures[objects] = measured(objects, Path(folder))
            print(report.table({f"{size:,}": row for size, row in figures.items()}), flush=True)
    report.save("growth", {"load": os.getloadavg(), "figures": figures})
    if options.into is not None:
        options.into.mkdir(parents=True, exist_ok=True)
        plot(figures, options.into / "growth.png")

"""The page of what large lakehouses take (``benchmarks.large``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

_SHOWN: Final = ("build", "change 1 %", "compact 1 %", "change 10 %", "compact 10 %", "verify", "expire", "clean")
_COLUMNS: Final = ("s", "CPU s", "requests")
_MEMORY: Final = ("MB driver", "MB Java", "MB task")

Result = Mapping[str, Any]


def page(results: Sequence[Result]) -> str:
    """Return what was measured in Markdown: a table for each engine, of the largest lakehouse."""
    largest: dict[str, Result] = {}
    for each in sorted(results, key=lambda each: (each["engine"] != "spark", each["objects"])):
        largest[each["engine"]] = each
    return "\n".join([_HEAD, *map(_measured, largest.values())]) + _NOTES


def _measured(result: Result) -> str:
    figures = result["figures"]
    rows = [[step, *(f"{figures[step][name]:,}" for name in _COLUMNS), _memory(figures[step])] for step in _SHOWN]
    loads = [figures[step]["load"] for step in _SHOWN]
    where = f"`local[{result['cores']}]`" if result["engine"] == "spark" else "no Spark"
    load = f"load {min(loads)} to {max(loads)}"
    head = (
        f"## {result['objects']:,} objects, {where}\n\nOrder {result['order']}, commit {result['commit']}, {load}.\n\n"
    )
    return head + _table(["", *_COLUMNS, "MB"], rows)


def _memory(figures: Mapping[str, Any]) -> str:
    return ", ".join(f"{figures[name]:,}" for name in _MEMORY if figures.get(name) is not None)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


_HEAD: Final = """# Large lakehouses

What compaction, verification, expiration and cleaning take in a large lakehouse on a local disk;
`python -m benchmarks large --objects 10000000 --into docs/benchmarks` wrote this page.
"""
_NOTES: Final = """
* **s**: seconds of the clock, the start of Spark not included. Where the **load** average is above the number of cores,
  others worked on the machine, and times are too long; CPU suffers less.
* **requests**: those of all processes.
* **MB**: peaks of the process that drives the job, of Java if there is any (driver and tasks of `local[n]` in one, with
  Spark's default of 1 GB), and of the largest Python task or helper; a megabyte is 1,000,000 bytes.
* **change**: transactions of 10,000 changes, spread over all keys; commits push a part of them down.
* **clean**: after `expire` has left one version.
"""

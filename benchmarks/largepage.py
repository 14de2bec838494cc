"""The page of what large lakehouses take (``benchmarks.large``), with the requests that one expects.

What is computed follows from the shape of a tree that was built in bulk: changes hit its leaves by chance, a compaction
reads and writes every node above a leaf that is hit, a verification reads every node, and a cleaning reads every node
that is kept, lists every directory twice, and deletes 1,000 files at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

_FILL: Final = 0.9
"""How full the nodes of a bulk build are."""
_DIRECTORIES: Final = 1 + 16 + 16**2 + 16**3
"""Below the root of a lakehouse with many files (format, section 2)."""
_A_DELETE: Final = 1_000
_COMPACTIONS: Final = {"compact 1 %": 0.01, "compact 10 %": 0.1}
_COMPUTED: Final = (*_COMPACTIONS, "verify", "clean")
_SHOWN: Final = ("build", "change 1 %", "compact 1 %", "change 10 %", "compact 10 %", "verify", "expire", "clean")
_COLUMNS: Final = ("s", "load", "CPU s", "requests", "computed", "MB driver", "MB Java", "MB task")

Result = Mapping[str, Any]


def levels(objects: int, order: int) -> list[float]:
    """Return how many nodes a bulk build makes, from the leaves up to the children of the root."""
    found, level = [], objects / (order * _FILL)
    while level > 1:
        found.append(level)
        level /= order * _FILL
    return found


def nodes(objects: int, order: int) -> int:
    """Return how many nodes a bulk build makes of so many objects, the root among them."""
    return round(sum(levels(objects, order))) + 1


def rewritten(objects: int, order: int, messages: float) -> int:
    """Return how many nodes a compaction rewrites, when its messages hit leaves by chance."""
    return round(sum(level * (1 - (1 - 1 / level) ** messages) for level in levels(objects, order))) + 1


def computed(step: str, objects: int, order: int, left: Mapping[str, float]) -> int:
    """Return how many requests a step should take; ``left`` says how many messages of a change wait for compactions."""
    hit = {name: rewritten(objects, order, share * objects * left[name]) for name, share in _COMPACTIONS.items()}
    if step in hit:
        return 2 * hit[step]
    if step == "verify":
        return nodes(objects, order)
    return nodes(objects, order) + 2 * _DIRECTORIES + sum(hit.values()) // _A_DELETE


def _left(result: Result) -> dict[str, float]:
    """Return which share of the changes before each compaction was still in buffers above the leaves."""
    figures, objects = result["figures"], result["objects"]
    return {step: figures[step]["messages"] / (share * objects) for step, share in _COMPACTIONS.items()}


def page(results: Sequence[Result]) -> str:
    """Return what was measured in Markdown: a table for each size and engine."""
    ordered = sorted(results, key=lambda each: (each["engine"] != "spark", each["objects"]))
    return "\n".join([_HEAD, *map(_measured, ordered)]) + _NOTES


def _measured(result: Result) -> str:
    objects, order, left = result["objects"], result["order"], _left(result)
    columns = [
        name for name in _COLUMNS if name == "computed" or any(name in row for row in result["figures"].values())
    ]
    rows = []
    for step in _SHOWN:
        row = dict(result["figures"][step])
        if step in _COMPUTED:
            row["computed"] = computed(step, objects, order, left)
        rows.append([step, *(_cell(row.get(name)) for name in columns)])
    where = f"`local[{result['cores']}]`" if result["engine"] == "spark" else "no Spark"
    head = f"## {objects:,} objects, {where}\n\nOrder {order}, commit {result['commit']}.\n\n"
    return head + _table(["", *columns], rows)


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:,}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


_HEAD: Final = """# Large lakehouses

What compaction, verification, expiration and cleaning take with a million objects and more, on a local disk;
`python -m benchmarks large --objects 10000000 --into docs/benchmarks` wrote this page from all sizes measured so far.
"""
_NOTES: Final = """
* **s**: seconds of the clock, the start of Spark not included; **load**: the load average during the run. Where that is
  above the number of cores, others worked on the machine, and times are too long; CPU suffers less.
* **requests**: all that were sent, by all processes, counted one by one; **computed** by the shape of the tree.
* **MB**: peaks of the process that drives the job, of Java (driver and tasks of `local[n]` in one, with Spark's default
  of 1 GB), and of the largest Python task or helper; a megabyte is 1,000,000 bytes.
* **change**: transactions of 10,000 changes, spread over all keys; commits push a part of them down.
* **clean**: after `expire` has left one version; it deletes what the compactions replaced.
"""

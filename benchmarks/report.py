"""Figures of a benchmark: medians, tenths and ratios. Absolute times depend on the machine; ratios hold."""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def machine() -> dict[str, Any]:
    """Return what the figures were taken on."""
    return {"cpus": os.cpu_count(), "python": platform.python_version(), "system": platform.platform()}


def spread(seconds: Sequence[float]) -> dict[str, float]:
    """Return the medians of all, of the first and of the last tenth, in milliseconds."""
    tenth = max(1, len(seconds) // 10)
    parts = {"median_ms": seconds, "first_tenth_ms": seconds[:tenth], "last_tenth_ms": seconds[-tenth:]}
    return {name: round(statistics.median(part) * 1000, 3) for name, part in parts.items()}


def table(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """Return rows of figures as aligned text."""
    columns = list(dict.fromkeys(column for row in rows.values() for column in row))
    cells = [["", *columns], *([name, *(str(row.get(c, "-")) for c in columns)] for name, row in rows.items())]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns) + 1)]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in cells)


def save(name: str, figures: Mapping[str, Any]) -> None:
    """Write figures to ``benchmarks/results`` and print where."""
    target = Path(__file__).parent / "results" / f"{name}.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps({"machine": machine(), **figures}, indent=1))
    print(f"written to {target}", file=sys.stderr)

"""Figures of a benchmark: medians, tenths and ratios. Absolute times depend on the machine; ratios hold."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

_RESULTS: Final = Path(__file__).parent / "results"


def machine() -> dict[str, Any]:
    """Return what the figures were taken on."""
    return {"cpus": os.cpu_count(), "python": platform.python_version(), "system": platform.platform()}


def format_load(load: Sequence[float]) -> str:
    """Return load averages as text."""
    return " ".join(f"{each:.1f}" for each in load)


def commit() -> str:
    """Return the commit that the figures are of."""
    found = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],  # noqa: S607 - whatever git there is
        capture_output=True, text=True, check=False, cwd=Path(__file__).parent,
    )  # fmt: skip
    return found.stdout.strip() or "unknown"


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


def saved(pattern: str) -> list[dict[str, Any]]:
    """Return the figures that were written under names that match a pattern, in the order of the names."""
    return [json.loads(file.read_text()) for file in sorted(_RESULTS.glob(f"{pattern}.json"))]


def save(name: str, figures: Mapping[str, Any]) -> None:
    """Write figures to ``benchmarks/results`` and print where."""
    target = _RESULTS / f"{name}.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps({"machine": machine(), **figures}, indent=1))
    print(f"written to {target}", file=sys.stderr)

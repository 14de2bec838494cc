"""Run benchmarks: ``python -m benchmarks [NAME [OPTIONS]]``; without a name, all but those that take long."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

_HELPERS = {"__init__", "__main__", "lakes", "observed", "report", "rivals", "timeline"}
_ON_REQUEST = {
    "attacks",
    "catalogs",
    "cluster",
    "endpoints",
    "fleet",
    "fleet_nights",
    "incidents",
    "large",
    "nights",
    "private",
    "recovery",
    "sizes",
    "soak",
    "spark_night",
    "tasks",
}
"""Take long, or a lot of disk: only when they are named."""


def main() -> None:
    """Run the benchmark that is named, or all."""
    names = sorted(path.stem for path in Path(__file__).parent.glob("*.py") if path.stem not in _HELPERS)
    chosen, options = (sys.argv[1:2], sys.argv[2:]) if len(sys.argv) > 1 else (sorted({*names} - _ON_REQUEST), [])
    if not set(chosen) <= set(names):
        sys.exit(f"there is no benchmark {chosen[0]!r}; there are {', '.join(names)}")
    for name in chosen:
        print(f"== {name}")
        importlib.import_module(f"benchmarks.{name}").main(options)


if __name__ == "__main__":
    main()

"""``python -m tests.model``: the judge, for as long as you like."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from tests.model.older import Older
from tests.model.processes import run_all
from tests.model.runner import SIZES, Budget, Found, again, describe, run, summary


def main() -> int:
    """Run the judge; exit code 1 if it found something."""
    parser = argparse.ArgumentParser(prog="python -m tests.model", description=__doc__)
    parser.add_argument("--minutes", type=float, default=2)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--operations", type=int, default=300, help="in each world")
    parser.add_argument("--worlds", type=int, help="no more than so many")
    parser.add_argument("--tested", action="store_true", help="worlds of the sizes of `make test`")
    parser.add_argument("--first", action="store_true", help="stop at the first finding")
    parser.add_argument("--shorten", type=float, default=60, help="seconds for making a finding shorter; 0: keep it")
    parser.add_argument("--keep", type=Path, help="directory for the lists of operations that found something")
    parser.add_argument("--again", type=Path, nargs="*", help="do such lists again")
    parser.add_argument("--processes", action="store_true", help="several processes, which are killed and stopped")
    parser.add_argument(
        "--storage", nargs="*", choices=("memory", "disk", "s3", "lossy"), default=["memory"], help="of these"
    )
    parser.add_argument("--each", type=float, default=60, help="seconds for each lakehouse of several processes")
    parser.add_argument("--older", help="a revision, such as v0.1.0: its command line runs all commands")
    parser.add_argument("--spark", type=float, default=0.05, help="share of small worlds whose jobs run on Spark")
    options = parser.parse_args()
    if options.again:
        sentences = [again((one := Found.load(path)).size, one.steps) for path in options.again]
        for path, sentence in zip(options.again, sentences, strict=True):
            print(f"{path.name}: {sentence or 'nothing is found'}")
        return int(any(sentences))
    print(f"seed {options.seed}", flush=True)
    if options.processes:
        return int(bool(run_all(60 * options.minutes, options.each, options.seed, options.storage)))
    budget = Budget(
        60 * options.minutes,
        options.seed,
        options.operations,
        options.shorten,
        worlds=options.worlds,
        first=options.first,
        sizes=SIZES if options.tested else (),
        older=Older(options.older) if options.older else None,
        spark=options.spark,
    )
    began = time.monotonic()
    spent, found = run(budget, lambda line: print(line, flush=True), options.keep)
    if budget.older is not None:
        budget.older.close()
    print(summary(spent))
    print(describe(spent, time.monotonic() - began))
    print(f"{len(found)} findings")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())

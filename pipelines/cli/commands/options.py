"""Options that several commands share."""

from __future__ import annotations

from typing import Final

from pipelines.cli.command import option
from trinitylake_core.keys import KINDS

AT: Final = (
    option(
        "--version",
        metavar="V",
        group="at",
        help="read this version: a number, HEAD, HEAD~3, a snapshot, a time, or an age such as -2h",
    ),
    option(
        "--timestamp",
        metavar="T",
        group="at",
        help="read the version that was the newest at time T: ISO 8601, UTC, or an age such as 2h",
    ),
    option("--snapshot", metavar="NAME", group="at", help="read the version that this snapshot names"),
)
KIND: Final = option("--kind", choices=KINDS, help="only objects of this kind")
WITHIN: Final = option("--namespace", "within", metavar="NS", help="the namespace; OBJECT is then only the name in it")
FORMAT: Final = option(
    "--format",
    choices=("table", "csv", "json"),
    default="table",
    help="table (default), csv (a header and a line per row, for programs), or json, the same as --json",
)
LIMIT: Final = option("--limit", "-n", type=int, metavar="N", help="at most N rows; reads no more than they need")
ENGINE: Final = option(
    "--engine",
    choices=("spark", "local", "auto"),
    help="spark, local (this process; never starts Spark) or auto (Spark on a cluster if the work is large, else "
    "local; --verbose prints why). Default: spark where --master or --remote is given, else auto",
)
DRY_RUN: Final = option("--dry-run", is_flag=True, help="print the plan; change nothing")
YES: Final = option("--yes", is_flag=True, help="carry it out without asking; only a person at a terminal is asked")
VERBOSE: Final = option("--verbose", is_flag=True, help="print every figure, as --json does")
REASON: Final = option("--reason", metavar="TEXT", help="why; recorded in the history")
SPARK: Final = (
    option(
        "--master",
        metavar="URL",
        group="spark",
        help="Spark master, such as local[4] or spark://host:7077 (default: $TRINITYLAKE_SPARK_MASTER, or local[*])",
    ),
    option(
        "--remote",
        metavar="URL",
        group="spark",
        help="Spark Connect server, sc://host:15002 (default: $TRINITYLAKE_SPARK_REMOTE)",
    ),
    option(
        "--spark-conf",
        multiple=True,
        metavar="KEY=VALUE",
        help="a Spark setting, which must not be secret; may be repeated",
    ),
)

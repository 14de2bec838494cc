"""The command that merges small files of Iceberg tables."""

from __future__ import annotations

import os
from typing import Final

from pipelines import tables_compact as compacting
from pipelines.cli.command import Call, Result, age, command, option, size
from pipelines.cli.commands.options import REASON, SPARK
from pipelines.cli.commands.retention import PATTERN, PLANNED, delete
from pipelines.job import ENGINES
from pipelines.tables.compact import model
from pipelines.tables.compact.decision import DELETES, MIN_FILES, GroupRules
from trinitylake_core.errors import InvalidInput

_WHICH: Final = (
    option(
        "--min-files",
        type=int,
        default=MIN_FILES,
        metavar="N",
        help=f"rewrite partitions with so many small files (default {MIN_FILES})",
    ),
    option(
        "--deletes",
        type=float,
        default=DELETES,
        metavar="SHARE",
        help=f"or with this share of deleted rows, 0 to 1 (default {DELETES:g})",
    ),
    size(
        "--target",
        "target_bytes",
        help="size of data files, for tables without write.target-file-size-bytes (default 512MiB)",
    ),
    option(
        "--where",
        metavar="CONDITION",
        help="only partitions that lie wholly within it: \"day < current_date() - 7 and region = 'eu'\"",
    ),
    option(
        "--manifests",
        type=int,
        metavar="N",
        help="tables with so many manifests of data files get fewer (default: they are left alone)",
    ),
    age("--settled", "settled_seconds", default=0.0, help="only partitions to which nothing was added for so long"),
)
"""Which partitions are rewritten."""
_TOKEN_VARIABLE: Final = "TRINITYLAKE_ENDPOINT_TOKEN"  # noqa: S105 - the name of a variable
_HOW: Final = (
    option(
        "--strategy",
        choices=model.STRATEGIES,
        default=model.BINPACK,
        help="binpack (default), sort by the table's sort order, or zorder, which needs Spark",
    ),
    option(
        "--prove",
        choices=model.PROOFS,
        default=model.COUNTS,
        help="prove the rows by counts, nulls and bounds in manifests (default), by a hash of the rows, or not",
    ),
    size("--budget", "budget_bytes", help="rewrite at most so much, the best gain for its cost first (default: all)"),
    age("--budget-time", "budget_seconds", help="begin no table after so long, and stop those under way"),
    option(
        "--engine",
        choices=ENGINES,
        help="local (this process), spark (Iceberg's procedures), or auto: local for all that it can rewrite. Default: "
        "spark where --master or --remote is given, else auto",
    ),
    option("--iceberg", metavar="RELEASE", help="the release of Iceberg that Spark loads from Maven Central: 1.12.0"),
    option(
        "--endpoint",
        metavar="URL",
        help="a running `trinitylake serve`, as Spark reaches it: for a Spark Connect server, which cannot reach this "
        f"process, or one that lends keys for one table. Its token: ${_TOKEN_VARIABLE}",
    ),
    option("--warehouse", metavar="NAME", help="the name of the lakehouse at the endpoint"),
    *SPARK,
)
"""How they are rewritten, whatever the table."""


@command(
    "tables compact",
    "trinitylake tables compact file:///data/lake 'sales.*' --budget 50GiB --dry-run",
    arguments=PATTERN,
    options=(*_WHICH, *_HOW, REASON, *PLANNED),
    details="""\
A partition is also rewritten if nearly all of its files become one. None is if fewer than a quarter of its files would
go. Only MANAGED tables are rewritten, and self-optimizing.enabled=false leaves one alone.

That the rows stay is proved before the new files count. A rollback brings the old files back, until `tables expire`
and `tables clean` remove them: run those later. Tables of format version 3, and partitions with delete files or more
than 256 MiB, need Spark, with Iceberg's runtime. If a table cannot be rewritten, or loses to its writers, it is named,
the others are done, and the exit code is 4.""",
)
def tables_compact(call: Call) -> Result:
    """Merge small files of tables."""
    options = call.options
    rules = GroupRules(
        min_files=options.min_files,
        deletes=options.deletes,
        target=options.target_bytes,
        settled_seconds=options.settled_seconds,
    )
    settings = compacting.Settings(
        strategy=options.strategy,
        prove=options.prove,
        seconds=options.budget_seconds,
        endpoint=_named_endpoint(options.endpoint, options.warehouse),
    )
    config = call.config(compacting.Config, rules=rules, settings=settings)
    return delete(call, compacting, config, call.spark)


def _named_endpoint(uri: str | None, warehouse: str | None) -> model.NamedEndpoint | None:
    """Return the endpoint that Spark is told of; ``None``: one in this process. Raises ``InvalidInput``."""
    if uri is None and warehouse is None:
        return None
    if not uri or not warehouse:
        raise InvalidInput("--endpoint and --warehouse belong together: the address, and the lakehouse there")
    return model.NamedEndpoint(uri, warehouse, os.environ.get(_TOKEN_VARIABLE, ""))

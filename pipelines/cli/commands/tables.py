"""Commands about Iceberg tables and their files: tables health, tables compact, tables expire, tables clean."""

from __future__ import annotations

import os
from typing import Final

from pipelines import tables_clean as cleaning
from pipelines import tables_compact as compacting
from pipelines import tables_expire as expiring
from pipelines import tables_health as looking
from pipelines.cli.command import DONE, Call, Result, age, command, option, report_result, size
from pipelines.cli.commands.options import ENGINE, REASON, SPARK, VERBOSE
from pipelines.cli.commands.planned import PLANNED, SOME_FAILED, cleaning_options, run_planned
from pipelines.job import ENGINES
from pipelines.tables.compact import model
from pipelines.tables.compact.decision import DELETES, MIN_FILES, GroupRules
from trinitylake_core.errors import InvalidInput

PATTERN: Final = {"PATTERN": "NAMESPACE.TABLE; * for any text, ? for one character (default: all)"}


@command(
    "tables health",
    "trinitylake tables health file:///data/lake 'sales.*'",
    arguments=PATTERN,
    options=(VERBOSE, ENGINE, *SPARK),
    details="Reads metadata, manifest lists and manifests of the newest version, and no data file. Small files are\n"
    "those that Iceberg's rewrite_data_files takes: below 75 % of the table's target size.",
)
def tables_health(call: Call) -> Result:
    """Show files, bytes and snapshots of tables."""
    done = looking.run(call.open(), call.config(looking.Config), call.spark, progress=call.progress)
    return report_result(call, done, code=SOME_FAILED if done.failures else DONE)


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
than 512 MiB, need Spark, with Iceberg's runtime. If a table cannot be rewritten, or loses to its writers, it is named,
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
    return run_planned(call, compacting, config, call.spark)


def _named_endpoint(uri: str | None, warehouse: str | None) -> model.NamedEndpoint | None:
    """Return the endpoint that Spark is told of; ``None``: one in this process. Raises ``InvalidInput``."""
    if uri is None and warehouse is None:
        return None
    if not uri or not warehouse:
        raise InvalidInput("--endpoint and --warehouse belong together: the address, and the lakehouse there")
    return model.NamedEndpoint(uri, warehouse, os.environ.get(_TOKEN_VARIABLE, ""))


@command(
    "tables expire",
    "trinitylake tables expire file:///data/lake 'sales.*' --older-than 5d --dry-run",
    arguments=PATTERN,
    options=(
        age(
            "--older-than",
            "older_than_seconds",
            default=expiring.MAX_AGE_SECONDS,
            help="keep snapshots up to this age (default 5d)",
        ),
        option("--keep-last", type=int, default=1, metavar="N", help="keep the newest N of each branch (default 1)"),
        age("--refs-older-than", "max_ref_age_seconds", help="keep tags and branches up to this age (default: all)"),
        REASON,
        *PLANNED,
    ),
    details="The properties of a table decide (history.expire.*); the options are for tables without them.\n"
    "Many tables are one version, and no file is deleted: a rollback brings the snapshots back. `tables clean`\n"
    "removes the files.",
)
def tables_expire(call: Call) -> Result:
    """Expire snapshots of tables."""
    return run_planned(call, expiring, call.config(expiring.Config))


@command(
    "tables clean",
    "trinitylake tables clean file:///data/lake --dry-run",
    arguments=PATTERN,
    options=cleaning_options(
        "writers",
        option(
            "--apart",
            multiple=True,
            metavar="DIRECTORY",
            help="tables with metadata here share no file with others, so clean even if they cannot be read",
        ),
    ),
    details="Removes files below tables/ that no retained version, snapshot or saved transaction needs, also those of\n"
    "dropped tables and of commits that failed. PATTERN names directories by the name that the table had when it\n"
    "was created. Nothing is removed from a directory in doubt, and nothing at all while metadata or manifests of\n"
    "a table cannot be read; --verbose lists the doubts, and the exit code is 4. Commits with files older than\n"
    "the cleaning are refused: their writers write them again.",
)
def tables_clean(call: Call) -> Result:
    """Remove files of tables."""
    return run_planned(call, cleaning, call.config(cleaning.Config), call.spark, failed=_left_in_doubt)


def _left_in_doubt(done: cleaning.Report) -> bool:
    return bool(done.failures) or not all(each.is_wanted for each in done.doubts)

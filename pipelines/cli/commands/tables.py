"""Commands about Iceberg tables and their files: tables health, tables expire, tables clean."""

from __future__ import annotations

from pipelines import tables_clean as cleaning
from pipelines import tables_expire as expiring
from pipelines import tables_health as looking
from pipelines.cli.command import DONE, Call, Result, command, option, reported
from pipelines.cli.commands.options import DRY_RUN, ENGINE, SPARK, VERBOSE, YES
from pipelines.cli.commands.retention import PLANS, SOME_FAILED, age_of, deleting
from trinitylake_core.durations import parse_age

PATTERN = {"PATTERN": "NAMESPACE.TABLE; * for any text, ? for one character (default: all)"}


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
    config = looking.Config(pattern=call.options.pattern, engine=call.options.engine)
    done = looking.run(call.open(), config, call.spark, progress=call.progress)
    return reported(call, done, code=SOME_FAILED if done.failures else DONE)


@command(
    "tables expire",
    "trinitylake tables expire file:///data/lake 'sales.*' --older-than 5d --dry-run",
    arguments=PATTERN,
    options=(
        option("--older-than", metavar="AGE", help="keep snapshots up to this age (default 5d)"),
        option("--keep-last", type=int, default=1, metavar="N", help="keep the newest N of each branch (default 1)"),
        option("--refs-older-than", metavar="AGE", help="keep tags and branches up to this age (default: all)"),
        DRY_RUN,
        VERBOSE,
        YES,
        *PLANS,
    ),
    details="The properties of a table decide (history.expire.*); the options are for tables without them.\n"
    "Many tables are one version, and no file is deleted: a rollback brings the snapshots back. `tables clean`\n"
    "removes the files.",
)
def tables_expire(call: Call) -> Result:
    """Expire snapshots of tables."""
    options, age = call.options, age_of(call)
    config = expiring.Config(
        pattern=options.pattern,
        older_than_seconds=expiring.MAX_AGE_SECONDS if age is None else age,
        keep_last=options.keep_last,
        max_ref_age_seconds=None if options.refs_older_than is None else parse_age(options.refs_older_than),
        plan_to=options.plan_to,
        plan=options.plan,
    )
    return deleting(call, expiring, config)


@command(
    "tables clean",
    "trinitylake tables clean file:///data/lake --dry-run",
    arguments=PATTERN,
    options=(
        option("--older-than", metavar="AGE", help="safety age: keep younger files (default 3d)"),
        option("--allow-recent", is_flag=True, help="allow a safety age below 24h; writers under way may start over"),
        DRY_RUN,
        VERBOSE,
        YES,
        *PLANS,
        ENGINE,
        *SPARK,
    ),
    details="Removes files below tables/ that no retained version, snapshot or saved transaction needs, also those of\n"
    "dropped tables and of commits that failed. PATTERN names directories by the name that the table had when it\n"
    "was created. Nothing is removed from a directory in doubt; --verbose lists these. Commits with files\n"
    "older than the cleaning are refused: their writers write them again.",
)
def tables_clean(call: Call) -> Result:
    """Remove files of tables."""
    options, age = call.options, age_of(call)
    config = cleaning.Config(
        engine=options.engine,
        older_than_seconds=cleaning.SAFETY_AGE_SECONDS if age is None else age,
        allow_recent=options.allow_recent,
        plan_to=options.plan_to,
        plan=options.plan,
        pattern=options.pattern,
    )
    return deleting(call, cleaning, config, call.spark)

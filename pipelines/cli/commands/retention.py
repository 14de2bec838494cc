"""Commands that delete and verify: expire, clean, verify, and those about Iceberg tables and their files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from pipelines import clean as clean_job
from pipelines import expire as expire_job
from pipelines import mend as mending
from pipelines import tables_clean as cleaning
from pipelines import tables_expire as expiring
from pipelines import tables_health as looking
from pipelines import verify as verifying
from pipelines.cli.command import (
    DONE,
    FOUND_PROBLEMS,
    Call,
    Option,
    Result,
    age,
    command,
    in_order,
    option,
    report_result,
)
from pipelines.cli.commands.options import DRY_RUN, ENGINE, REASON, SPARK, VERBOSE, YES
from pipelines.cli.report import summarise
from pipelines.source import version_ref
from trinitylake_core.errors import InvalidInput
from trinitylake_core.storage import open_storage

SOME_FAILED = 4
PLANNED = (
    DRY_RUN,
    VERBOSE,
    YES,
    option("--plan-to", metavar="URI", help="write the plan to this Parquet file; change nothing"),
    option("--plan", metavar="URI", help="carry out this plan, if it is still valid"),
)


def _cleaning_options(under_way: str, *more: Option) -> tuple[Option, ...]:
    """Return the options of a cleaning, with what may have to start over while it runs."""
    return (
        age(
            "--older-than",
            "older_than_seconds",
            default=clean_job.SAFETY_AGE_SECONDS,
            help="safety age: keep younger files (default 3d)",
        ),
        option(
            "--allow-recent", is_flag=True, help=f"allow a safety age below 24h; {under_way} under way may start over"
        ),
        *PLANNED,
        *more,
        REASON,
        ENGINE,
        *SPARK,
    )


def _has_failures(done: Any) -> bool:
    return bool(done.failures)


def delete(call: Call, job: Any, config: Any, *spark: Any, failed: Callable[[Any], bool] = _has_failures) -> Result:
    """Run a job that shows its plan first; the exit code is 4 if it ``failed`` at something."""

    def show(done: Any) -> Result:
        return report_result(call, done, code=SOME_FAILED if failed(done) else DONE)

    done = job.run(
        call.open(),
        config,
        *spark,
        review=call.review(show),
        progress=call.progress,
    )
    return show(done)


@command(
    "expire",
    "trinitylake expire file:///data/lake --keep-last 100 --older-than 7d --dry-run",
    options=(
        option("--keep-last", type=int, metavar="N", help="keep the newest N versions"),
        age("--older-than", "older_than_seconds", help="keep versions up to this age: 90s, 12h, 3d"),
        *PLANNED,
        REASON,
        ENGINE,
        *SPARK,
    ),
    details="A version expires if none of the given rules keeps it (default: --keep-last 100 --older-than 7d).\n"
    "The newest version is always kept, and so is every version younger than txn_ttl_millis. Snapshots are kept\n"
    "until their own expiry. `clean` removes the files that no version needs any more.",
)
def expire(call: Call) -> Result:
    """Expire versions."""
    version_ref.warn_of_future(call.open)
    return delete(call, expire_job, call.config(expire_job.Config), call.spark)


@command(
    "clean",
    "trinitylake clean file:///data/lake --dry-run",
    options=_cleaning_options(
        "jobs",
        option(
            "--inventory",
            metavar="URI",
            help="take the file listing from this Parquet or CSV file: path, size, modified",
        ),
    ),
    details="Removes only files whose names the format defines; unknown files and nested lakehouses are reported and\n"
    "left alone. If any file that decides what to keep cannot be read, nothing is removed.",
)
def clean(call: Call) -> Result:
    """Remove orphans."""
    return delete(call, clean_job, call.config(clean_job.Config), call.spark)


_VERIFY_OPTIONS: Final = (
    option(
        "--version",
        metavar="V",
        group="which",
        help=f"check this version: {version_ref.MEANING} (default: the newest)",
    ),
    option("--all", is_flag=True, group="which", help="check all retained versions and all snapshots"),
    option("--definitions", is_flag=True, help="also read and parse every definition"),
    option("--tables", is_flag=True, help="also check that the metadata file of each Iceberg table exists"),
    option("--deep", is_flag=True, help="with --tables: read all metadata, and ask for every data file"),
    option(
        "--sample",
        "--table-sample",
        "sample",
        type=float,
        metavar="SHARE",
        help="with --tables: check a share of them, 0 to 1",
    ),
    ENGINE,
    *SPARK,
)


@command(
    "verify",
    "trinitylake verify file:///data/lake --all --definitions",
    options=_VERIFY_OPTIONS,
)
def verify(call: Call) -> Result:
    """Check one version, or all."""
    version_ref.warn_of_future(call.open)
    options = call.options
    if (options.sample is not None or options.deep) and not options.tables:
        raise InvalidInput("--sample and --deep are about the files of tables, so they need --tables")
    share_of_tables = None
    if options.tables:
        share_of_tables = 1.0 if options.sample is None else options.sample
    versions = _versions_to_verify(call)
    config = call.config(verifying.Config, versions=versions, tables=share_of_tables)
    storage = open_storage(call.root, call.options_for(call.root))
    done = verifying.run(storage, config, call.spark, progress=call.progress)
    if done.ok:
        code = DONE
    else:
        code = FOUND_PROBLEMS
    if done.unseen and not done.findings:
        code = SOME_FAILED
    return Result(_facts_of(done), in_order(*summarise(done)), code)


def _facts_of(done: verifying.Report) -> dict[str, Any]:
    """Return what is printed as JSON of a verification."""
    facts = {name: getattr(done, name) for name in _OF_VERIFICATION}
    for kind in ("findings", "unseen"):
        facts[kind] = [{name: getattr(each, name) for name in _OF_FINDING} for each in getattr(done, kind)]
    return facts


def _versions_to_verify(call: Call) -> str | int:
    options = call.options
    if options.all:
        return verifying.ALL
    if options.version is None:
        return verifying.NEWEST
    number = version_ref.plain_number(options.version)
    if number is not None:
        return number  # without a request: also where the newest version cannot be opened
    return version_ref.at(call.open(damaged=True), options.version).version


_OF_FINDING: Final = ("invariant", "file", "message", "hint", "versions")
_OF_VERIFICATION: Final = (
    *(
        "root",
        "versions",
        "ok",
        "findings",
        "unseen",
        "nodes_read",
        "nodes_named",
        "definitions_read",
        "definitions_proved",
    ),
    *("tables_checked", "tables_unknown", "table_files", "lost"),
)
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
    return delete(call, expiring, call.config(expiring.Config))


@command(
    "tables clean",
    "trinitylake tables clean file:///data/lake --dry-run",
    arguments=PATTERN,
    options=_cleaning_options(
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
    return delete(call, cleaning, call.config(cleaning.Config), call.spark, failed=_left_in_doubt)


def _left_in_doubt(done: cleaning.Report) -> bool:
    return bool(done.failures) or not all(each.is_wanted for each in done.doubts)


# -- a clock that was wrong ----------------------------------------------------------------------------


_MENDING: Final = (
    option("--from", "source", metavar="BACKUP", help="put missing and damaged files back from this backup"),
    option(
        "--from-storage-option",
        multiple=True,
        metavar="KEY=VALUE",
        help="an option for the storage of BACKUP (default: the options for ROOT)",
    ),
    option("--lost", type=int, multiple=True, metavar="V", help="mark version V as lost; may be repeated"),
    REASON,
    DRY_RUN,
    YES,
    ENGINE,
    *SPARK,
)


@command(
    "mend",
    "trinitylake mend file:///data/lake --from file:///backup/lake --reason 'incident 4715: disk error'",
    options=_MENDING,
    details="""\
With --from: verifies every version, and puts back what is missing or damaged, if the bytes in the backup prove what
they are. Nothing that can be read is replaced. Exit code 1 if something stays damaged.
With --lost: marks a version whose files nobody has any more. Then `clean`, `export` and `verify --all` go on without
it, and what only that version reaches is kept no longer. To mark the newest version, roll back first.
Without both: corrects the fence of a cleaning that lies in the future because a clock was wrong; until then commits of
tables are refused. Nothing is deleted. What writers have written and not yet committed, they write again. Correct the
clock first: this is refused while the clocks of the storage and of this machine differ by more than 15 minutes.""",
)
def mend(call: Call) -> Result:
    """Put damaged files back, mark lost versions, or correct a fence that lies in the future."""
    options = call.options
    there = None
    if options.source is not None:
        there = call.options_of(options.source, options.from_storage_option)
    config = call.config(mending.Config, source_options=there)
    of_files = config.source is not None or bool(config.lost)
    lake = call.open(damaged=of_files)
    done = call.carry_out(mending.run, lake, config, show=_show_mended)
    return _show_mended(done)


def _show_mended(done: mending.Report) -> Result:
    lines = list(done.summary())
    code = DONE
    if done.left:
        code = FOUND_PROBLEMS
    return Result(done, lines, code)

"""Commands that delete and verify: expire, clean, verify, and mend."""

from __future__ import annotations

from typing import Any, Final

from pipelines import clean as clean_job
from pipelines import expire as expire_job
from pipelines import mend as mending
from pipelines import verify as verifying
from pipelines.cli.command import DONE, FOUND_PROBLEMS, Call, Result, age, command, in_order, option
from pipelines.cli.commands.options import DRY_RUN, ENGINE, REASON, SPARK, YES
from pipelines.cli.commands.planned import PLANNED, SOME_FAILED, cleaning_options, run_planned
from pipelines.cli.report import summarise
from pipelines.source import version_ref
from trinitylake_core.errors import InvalidInput
from trinitylake_core.storage import open_storage


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
    return run_planned(call, expire_job, call.config(expire_job.Config), call.spark)


@command(
    "clean",
    "trinitylake clean file:///data/lake --dry-run",
    options=cleaning_options(
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
    return run_planned(call, clean_job, call.config(clean_job.Config), call.spark)


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
    "root",
    "versions",
    "ok",
    "findings",
    "unseen",
    "nodes_read",
    "nodes_named",
    "definitions_read",
    "definitions_proved",
    "tables_checked",
    "tables_unknown",
    "table_files",
    "lost",
)
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

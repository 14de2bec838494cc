"""Commands that delete and verify: expire, clean, verify."""

from __future__ import annotations

from typing import Any, Final

from pipelines import expiration, orphans, version_ref
from pipelines import verify as verifying
from pipelines.cli.command import DONE, FOUND_PROBLEMS, Call, Result, command, in_order, option, reported
from pipelines.cli.commands.options import DRY_RUN, ENGINE, REASON, SPARK, VERBOSE, YES
from pipelines.cli.report import summarised
from trinitylake_core.durations import parse_age
from trinitylake_core.errors import InvalidInput
from trinitylake_core.storage import open_storage

SOME_FAILED = 4
PLANS = (
    option("--plan-to", metavar="URI", help="write the plan to this Parquet file; change nothing"),
    option("--plan", metavar="URI", help="carry out this plan, if it is still valid"),
)


def age_of(call: Call) -> float | None:
    """Return the age that `--older-than` gives, in seconds."""
    text = call.options.older_than
    return None if text is None else parse_age(text)


def deleting(call: Call, job: Any, config: Any, *engine: Any) -> Result:
    """Run a job that shows its plan first; the exit code shows whether it failed at something."""

    def result(done: Any) -> Result:
        return reported(call, done, code=SOME_FAILED if done.failures else DONE)

    return result(job.run(call.open(), config, *engine, review=call.review(result), progress=call.progress))


@command(
    "expire",
    "trinitylake expire file:///data/lake --keep-last 100 --older-than 7d --dry-run",
    options=(
        option("--keep-last", type=int, metavar="N", help="keep the newest N versions"),
        option("--older-than", metavar="AGE", help="keep versions up to this age: 90s, 12h, 3d"),
        DRY_RUN,
        VERBOSE,
        YES,
        *PLANS,
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
    options = call.options
    config = expiration.Config(
        engine=options.engine,
        keep_last=options.keep_last,
        older_than_seconds=age_of(call),
        reason=options.reason,
        plan_to=options.plan_to,
        plan=options.plan,
    )
    return deleting(call, expiration, config, call.spark)


@command(
    "clean",
    "trinitylake clean file:///data/lake --dry-run",
    options=(
        option("--older-than", metavar="AGE", help="safety age: keep younger files (default 3d)"),
        option("--allow-recent", is_flag=True, help="allow a safety age below 24h; jobs under way may start over"),
        DRY_RUN,
        VERBOSE,
        YES,
        *PLANS,
        option(
            "--inventory",
            metavar="URI",
            help="take the file listing from this Parquet or CSV file: path, size, modified",
        ),
        ENGINE,
        *SPARK,
    ),
    details="Removes only files whose names the format defines; unknown files and nested lakehouses are reported and\n"
    "left alone. If any file that decides what to keep cannot be read, nothing is removed.",
)
def clean(call: Call) -> Result:
    """Remove orphans."""
    options = call.options
    age = age_of(call)
    config = orphans.Config(
        engine=options.engine,
        older_than_seconds=orphans.SAFETY_AGE_SECONDS if age is None else age,
        allow_recent=options.allow_recent,
        inventory=options.inventory,
        plan_to=options.plan_to,
        plan=options.plan,
    )
    return deleting(call, orphans, config, call.spark)


@command(
    "verify",
    "trinitylake verify file:///data/lake --all --definitions",
    options=(
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
    ),
)
def verify(call: Call) -> Result:
    """Check one version, or all."""
    version_ref.warn_of_future(call.open)
    options = call.options
    chosen = _version(call) if options.version is not None else verifying.ALL if options.all else verifying.NEWEST
    if (options.sample is not None or options.deep) and not options.tables:
        raise InvalidInput("--sample and --deep are about the files of tables, so they need --tables")
    tables = None if not options.tables else 1.0 if options.sample is None else options.sample
    config = verifying.Config(
        chosen, definitions=options.definitions, engine=options.engine, tables=tables, deep=options.deep
    )
    storage = open_storage(call.root, call.options_for(call.root))
    return _verified(verifying.run(storage, config, call.spark, progress=call.progress))


def _version(call: Call) -> int:
    text = str(call.options.version)
    plain = version_ref.plain_number(text)
    return version_ref.at(call.open(damaged=True), text).version if plain is None else plain


def _verified(done: verifying.Report) -> Result:
    findings = [
        {
            "invariant": each.invariant,
            "file": each.file,
            "message": each.message,
            "hint": each.hint,
            "versions": each.versions,
        }
        for each in done.findings
    ]
    data: dict[str, Any] = {"root": done.root, "versions": done.versions, "ok": done.ok, "findings": findings}
    data |= {name: getattr(done, name) for name in _CARRIED}
    return Result(data, in_order(*summarised(done)), DONE if done.ok else FOUND_PROBLEMS)


_CARRIED: Final = (
    "nodes_read",
    "nodes_named",
    "definitions_read",
    "definitions_proved",
    "tables_checked",
    "tables_unknown",
    "table_files",
)

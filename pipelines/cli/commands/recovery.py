"""Commands of the on-call engineer: freeze, thaw, rollback, restore, undo, export, snapshot."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any, Final

from pipelines import export as exporting
from pipelines import restore as restoring
from pipelines import rollback as rolling_back
from pipelines import snapshot as snapshots
from pipelines import undo as undoing
from pipelines.cli import report
from pipelines.cli.command import (
    DONE,
    FOUND_PROBLEMS,
    ROOT_VARIABLE,
    Call,
    Result,
    age,
    command,
    in_order,
    option,
    report_result,
)
from pipelines.cli.commands.options import DRY_RUN, ENGINE, FORMAT, REASON, SPARK, VERBOSE, YES
from pipelines.cli.report import summarise
from pipelines.reports.summary import count, utc
from pipelines.source import version_ref
from trinitylake_core import Lakehouse, RecoveryTarget, clock, spec
from trinitylake_core.errors import InvalidInput, SnapshotNotFound
from trinitylake_core.snapshots import KINDS

TARGET_OPTION = option(
    "--target-storage-option",
    multiple=True,
    metavar="KEY=VALUE",
    help="an option for the storage of the target (default: the options for ROOT)",
)
EXPECTED_VERSION = option(
    "--expected-version",
    type=int,
    metavar="V",
    help="the version at which --dry-run made its plan; stop if objects changed after it",
)

# -- freeze and thaw -----------------------------------------------------------------------------------


@command(
    "freeze",
    "trinitylake freeze file:///data/lake --reason 'incident 4711' --for 2h",
    options=(
        REASON,
        age("--for", "lasts", help="it ends by itself after 30m, 2h, ... (default: when it is thawed)"),
    ),
    details="""\
The first step before a rollback where writers commit all the time: they can repeat what was refused when the lakehouse
is thawed. Maintenance, `rollback`, `undo` and `restore` go on. Freezing again changes the reason and the end. The clock
of the storage decides when it ends; --for is refused where that of this machine differs by more than 15 minutes.""",
)
def freeze(call: Call) -> Result:
    """Freeze the lakehouse."""
    lake = call.open()
    seconds = call.options.lasts
    done = lake.freeze(reason=call.options.reason, lasts=None if seconds is None else timedelta(seconds=seconds))
    end = "it is thawed" if done.until is None else utc(done.until)
    line = f"frozen until {end}: commits and loads are refused; maintenance and recovery go on"
    return Result(asdict(done), [line], committed=lake.catch_up().version)


def _from_now(seconds: float | None) -> datetime | None:
    if seconds is None:
        return None
    return clock.utc_now() + timedelta(seconds=seconds)


@command(
    "thaw",
    "trinitylake thaw file:///data/lake --reason 'incident 4711 is over'",
    options=(REASON,),
    details="From the next version on. Anyone who may commit may thaw.",
)
def thaw(call: Call) -> Result:
    """Thaw the lakehouse."""
    done = call.open().thaw(reason=call.options.reason)
    if done.version_after is None:
        first = "it is not frozen"
    else:
        first = f"version {done.version_after} committed: thawed"
    return Result({"version": done.version, "version_after": done.version_after, "reason": done.reason}, [first])


_NO_TABLES = option(
    "--no-tables",
    "tables",
    is_flag=True,
    callback=lambda _, __, given: None if given else 1.0,
    help="do not prove that the metadata files of Iceberg tables still exist",
)


# -- rollback and restore ------------------------------------------------------------------------------


_ROLLBACK_OPTIONS: Final = (
    option("--to-version", metavar="V", group="to", help=f"the version to go back to: {version_ref.MEANING}"),
    option("--to-timestamp", metavar="T", group="to", help="the version that was the newest at time T, ISO 8601, UTC"),
    option("--to-snapshot", metavar="NAME", group="to", help="the version that this snapshot names"),
    REASON,
    DRY_RUN,
    YES,
    option("--force", is_flag=True, help="also undo what is committed while this runs"),
    EXPECTED_VERSION,
    _NO_TABLES,
    ENGINE,
    *SPARK,
)


@command(
    "rollback",
    "trinitylake rollback file:///data/lake --to-version 41 --reason 'bad deploy, ticket 4711' --dry-run",
    options=_ROLLBACK_OPTIONS,
    arguments={"VERSION": "the same as --to-version"},
    details="""\
Commits a new version with the content of the older one. The files of the target that the newest version does not
use are read first; if one is missing or damaged, it is named and nothing is changed. `verify --version V --definitions`
reads every file. Undone versions stay readable, and a rollback can be rolled back.""",
)
def rollback(call: Call) -> Result:
    """Roll back."""
    options = call.options
    lake = call.open(damaged=True)
    version = options.to_version
    if options.version is not None:
        if version is not None or options.to_timestamp is not None or options.to_snapshot is not None:
            raise _say_once("what to roll back to", "VERSION, --to-version, --to-timestamp or --to-snapshot")
        version = options.version
    target = version_ref.target(lake, version, options.to_timestamp, options.to_snapshot)
    config = call.config(rolling_back.Config, **target.keywords())

    def show(done: rolling_back.Report) -> Result:
        return Result(done, in_order(*summarise(done), _next_step(call, done)))

    return show(call.carry_out(rolling_back.run, lake, config, show=show))


def _next_step(call: Call, done: rolling_back.Report | restoring.Report) -> Iterator[str]:
    """Say how exactly this plan is carried out, if there is anything to carry out."""
    if not call.options.dry_run:
        return
    if done.plan.changes or done.plan.operation == spec.OP_ROLLBACK:
        yield f"to carry out exactly this plan, use --expected-version {done.version_before} instead of --dry-run"


_RESTORE_OPTIONS: Final = (
    option(
        "--only",
        multiple=True,
        metavar="PATTERN",
        help="the objects: sales.orders, 'sales.*', or sales for the namespace itself; a backslash takes the next "
        "character as it is, 'a\\.b.c' is c in a.b; may be repeated",
    ),
    option("--version", metavar="V", group="from", help=f"as they were at this version: {version_ref.MEANING}"),
    option(
        "--timestamp", metavar="T", group="from", help="as they were at time T: ISO 8601, UTC, or an age such as 2h"
    ),
    option("--snapshot", metavar="NAME", group="from", help="as they were in this snapshot"),
    option(
        "--from",
        "source",
        metavar="ROOT2",
        help="as they are in this lakehouse, such as a backup; the version is one of its own (default: its newest)",
    ),
    option(
        "--from-storage-option",
        multiple=True,
        metavar="KEY=VALUE",
        help="an option for the storage of ROOT2 (default: the options for ROOT)",
    ),
    REASON,
    DRY_RUN,
    YES,
    option("--exact", is_flag=True, help="also drop matching objects that did not exist then"),
    option(
        "--damaged",
        is_flag=True,
        help="with --from: also bring back matching objects whose definition file is missing or damaged; reads the "
        "definition of each",
    ),
    EXPECTED_VERSION,
    _NO_TABLES,
    ENGINE,
    *SPARK,
)


@command(
    "restore",
    "trinitylake restore file:///data/lake --only 'sales.*' --version 41 --reason 'dropped by mistake' --dry-run",
    options=_RESTORE_OPTIONS,
    arguments={"NAME": "the objects, as --only takes them; without a version they are as before their last change"},
    details="""\
One ordinary transaction: objects that do not match are left alone, and writers that change them meanwhile are
not affected. A namespace that restored objects need is restored with them. With --from their definitions are
copied from another lakehouse, read back and compared; the data of tables is not copied.""",
)
def restore(call: Call) -> Result:
    """Restore objects."""
    options = call.options
    if options.name is not None and options.only:
        raise _say_once("which objects to restore", "NAME or --only")
    lake = call.open()
    source_options = None
    if options.source is not None:
        source_options = call.options_of(options.source, options.from_storage_option)
    config = call.config(
        restoring.Config,
        only=options.only if options.name is None else (options.name,),
        source_options=source_options,
        **_restore_target(call, lake, source_options).keywords(),
    )

    def show(done: restoring.Report) -> Result:
        more = []
        nothing_differs = done.version_after is None and not done.plan.changes
        if nothing_differs and options.source and not options.damaged:
            more.append("--damaged also reads their definition files")
        return Result(done, in_order(*summarise(done, *more), _next_step(call, done)))

    return show(call.carry_out(restoring.run, lake, config, show=show))


def _restore_target(call: Call, lake: Lakehouse, source_options: Mapping[str, Any] | None) -> RecoveryTarget:
    """Return the version to restore from: without one, where objects are named, that before their last change."""
    options = call.options
    # References such as HEAD~3 or the name of a snapshot mean versions of the lakehouse that objects come from.
    is_reference = options.version is not None and version_ref.plain_number(options.version) is None
    versions_of = lake
    if options.source is not None and is_reference:
        versions_of = Lakehouse.open(options.source, storage_options=source_options)
    target = version_ref.target(versions_of, options.version, options.timestamp, options.snapshot)
    if target.is_given or options.name is None or options.source is not None:
        return target
    return RecoveryTarget(version=restoring.find_version_before_change(lake, [options.name]))


def _say_once(what: str, ways: str) -> InvalidInput:
    hint = ""
    if os.environ.get(ROOT_VARIABLE):
        hint = f"; {ROOT_VARIABLE} is set, so a word that is no path and no URI is not taken for ROOT"
    return InvalidInput(f"say {what} once: {ways}{hint}")


# -- undo ----------------------------------------------------------------------------------------------


@command(
    "undo",
    "trinitylake undo file:///data/lake --author 'deploy-bot@*' --reason 'bad deploy, ticket 4711' --dry-run",
    options=(
        option("--last", is_flag=True, help="the newest version that changed objects, whoever committed it"),
        option(
            "--since",
            metavar="T",
            help="what was committed at T or later: ISO 8601, UTC, an age such as 10m, or a version such as HEAD~3",
        ),
        option("--author", metavar="PATTERN", help="whose commits, with * and ?"),
        option("--matching", metavar="TEXT", help="commits with this text in their reason"),
        option("--others", is_flag=True, help="also undo what others committed after it"),
        REASON,
        DRY_RUN,
        YES,
        option("--force", is_flag=True, help="also undo what is committed while this runs"),
        EXPECTED_VERSION,
        ENGINE,
        *SPARK,
    ),
    details="""\
--since alone takes everything from then on; --author and --matching take the newest commits in a row that match. It
rolls back to the version before the first of them, and proves what `rollback` proves. It is refused if that would also
undo what others committed later, unless --others is given. `restore` brings back single objects.""",
)
def undo(call: Call) -> Result:
    """Undo."""
    config = call.config(undoing.Config)

    def show(done: undoing.Report) -> Result:
        return Result(done, in_order(*summarise(done), _next_step(call, done.rollback)))

    return show(call.carry_out(undoing.run, call.open(damaged=True), config, show=show))


# -- export --------------------------------------------------------------------------------------------


_EXPORT_OPTIONS: Final = (
    option("--version", metavar="V", help=f"the version to export: {version_ref.MEANING} (default: the newest)"),
    option("--history", is_flag=True, help="export all retained versions and all snapshots"),
    option("--tables", is_flag=True, help="also copy the files of MANAGED Iceberg tables: metadata and data"),
    DRY_RUN,
    VERBOSE,
    ENGINE,
    TARGET_OPTION,
    *SPARK,
)


@command(
    "export",
    "trinitylake export file:///data/lake s3://backup/lake --history",
    options=_EXPORT_OPTIONS,
    arguments={"TARGET": "root URI of the copy: empty, or an older export of the same lakehouse"},
    details="""\
The copy is a lakehouse of its own. Only new files are copied, and each is read back and compared; an interrupted
export continues where it stopped. Without --history the copy holds one version, which replaces an older one
only when it is complete. Of tables it copies the definitions, with --tables also metadata and data of MANAGED tables
below the root. A version whose root cannot be read, or a table that lacks files, is named, the rest is copied, and the
exit code is 1.""",
)
def export(call: Call) -> Result:
    """Export a lakehouse."""
    options = call.options
    # Where a version is named, the newest one may be damaged.
    lake = call.open(damaged=options.version is not None)
    config = call.config(exporting.Config, version=version_ref.number(lake, options.version))
    target_options = call.options_of(options.target, options.target_storage_option)
    done = call.carry_out(exporting.run, lake, options.target, config, storage_options=target_options)
    more = []
    if not options.tables:
        tables = lake.at(version=done.plan.version).info().tables
        if tables:
            left = count(tables, "table")
            more.append(f"only definitions are copied, not the data and metadata files of {left}")
    return report_result(call, done, *more, code=DONE if done.plan.is_whole else FOUND_PROBLEMS)


@command(
    "snapshot create",
    "trinitylake snapshot create file:///data/lake before-migration --expires-in 30d",
    options=(
        option("--version", metavar="V", help=f"the version to name: {version_ref.MEANING} (default: the newest)"),
        option(
            "--kind",
            choices=KINDS,
            default="minimal",
            help="what to copy: the root (minimal, default), all nodes (partial), or all files, to TARGET (full)",
        ),
        option("--target", metavar="URI", help="root URI of a full copy"),
        age("--expires-in", help="age at which the snapshot may be removed: 12h, 30d (default: never)"),
        REASON,
        ENGINE,
        TARGET_OPTION,
        *SPARK,
    ),
    arguments={"NAME": "1 to 255 characters without spaces"},
)
def snapshot_create(call: Call) -> Result:
    """Create a snapshot."""
    options = call.options
    if options.kind == "full" and options.target is None:
        raise InvalidInput("--kind full needs --target, the root URI of the copy")
    if options.kind != "full" and options.target is not None:
        raise InvalidInput("--target is only for --kind full")
    lake = call.open()
    version = version_ref.number(lake, options.version)
    expires_at = _from_now(options.expires_in)
    if options.kind != "full":
        made = lake.create_snapshot(
            options.name,
            version=version,
            kind=options.kind,
            expires_at=expires_at,
            reason=options.reason,
        )
        return Result(made, report.fields(made), committed=lake.catch_up().version)
    done = snapshots.full(
        lake,
        options.name,
        options.target,
        exporting.Config(version=version, engine=options.engine),
        call.spark,
        expires_at=expires_at,
        reason=options.reason,
        storage_options=call.options_of(options.target, options.target_storage_option),
        progress=call.progress,
    )
    committed = lake.catch_up().version if done.snapshot else None
    return Result(done, report.fields(done), committed=committed)


@command(
    "snapshot list",
    "trinitylake snapshot list file:///data/lake",
    options=(FORMAT,),
)
def snapshot_list(call: Call) -> Result:
    """List snapshots."""
    lake = call.open()
    found = lake.snapshots()
    rows = []
    for each in found:
        expires = None
        if each.expires_at is not None:
            expires = utc(each.expires_at)
            if each.expired:
                expires += " (expired)"
        rows.append([each.name, each.version, each.kind, each.created_at, expires, each.target_uri])
    table = report.table(["name", "version", "kind", "created", "expires", "copy"], rows)
    data = {"root": lake.root, "version": lake.version, "snapshots": found}
    return Result(data, [table] if found else ["no snapshots"], table=table)


@command(
    "snapshot drop",
    "trinitylake snapshot drop file:///data/lake before-migration",
    options=(REASON, DRY_RUN, YES),
)
def snapshot_drop(call: Call) -> Result:
    """Drop a snapshot."""
    options = call.options
    name = options.name
    lake = call.open()

    def show(version: int | None) -> Result:
        if version is None:
            first = f"dry run, nothing was changed: snapshot {report.plain(name)} would be dropped"
            lines = [first, *_describe_drop(lake, name)]
        else:
            lines = [f"version {version} committed: snapshot {report.plain(name)} dropped"]
        return Result({"root": lake.root, "dropped": name, "version_after": version, "dry_run": version is None}, lines)

    review = call.review(show)
    if review is not None and not review(None):
        return show(None)
    lake.drop_snapshot(name, reason=options.reason)
    return show(lake.catch_up().version)


def _describe_drop(lake: Lakehouse, name: str) -> Iterator[str]:
    """Say what goes with a snapshot. Raises ``SnapshotNotFound``."""
    found = next((each for each in lake.snapshots() if each.name == name), None)
    if found is None:
        raise SnapshotNotFound(f"there is no snapshot {name!r}; `trinitylake snapshot list` names those that exist")
    yield f"it names version {found.version}, since {utc(found.created_at)}"
    if found.target_uri is not None:
        yield f"its copy at {report.plain(found.target_uri)} stays"
    if found.version >= lake.root_node.oldest_version:
        yield f"version {found.version} stays readable until it expires"
    else:
        yield f"version {found.version} has expired: unless another snapshot names it, it can never be read here again"

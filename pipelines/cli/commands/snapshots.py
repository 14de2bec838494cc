"""Commands about snapshots: snapshot create, snapshot list, snapshot drop."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from pipelines import export as exporting
from pipelines import snapshot as snapshots
from pipelines import version_ref
from pipelines.cli import report
from pipelines.cli.command import Call, Result, command, option
from pipelines.cli.commands.options import DRY_RUN, ENGINE, FORMAT, REASON, SPARK, YES
from pipelines.cli.commands.recovery import TARGET_OPTION, target_options
from pipelines.summary import utc
from trinitylake_core import Lakehouse, SnapshotInfo
from trinitylake_core.durations import parse_age
from trinitylake_core.errors import InvalidInput, SnapshotNotFound
from trinitylake_core.snapshots import KINDS


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
        option(
            "--expires-in", metavar="AGE", help="age at which the snapshot may be removed: 12h, 30d (default: never)"
        ),
        REASON,
        ENGINE,
        TARGET_OPTION,
        *SPARK,
    ),
    arguments={"NAME": "1 to 255 characters without spaces"},
)
def snapshot_create(call: Call) -> Result:
    """Create a snapshot."""
    options, lake, name = call.options, call.open(), call.options.name
    version, expires = version_ref.number(lake, options.version), None
    if options.expires_in is not None:
        expires = datetime.now(UTC) + timedelta(seconds=parse_age(options.expires_in))
    if options.kind != "full":
        if options.target is not None:
            raise InvalidInput("--target is only for --kind full")
        made = lake.create_snapshot(name, version=version, kind=options.kind, expires_at=expires, reason=options.reason)
        return Result(made, report.fields(made), committed=lake.catch_up().version)
    if options.target is None:
        raise InvalidInput("--kind full needs --target, the root URI of the copy")
    done = snapshots.full(
        lake,
        name,
        options.target,
        exporting.Config(version=version, engine=options.engine),
        call.spark,
        expires_at=expires,
        reason=options.reason,
        storage_options=target_options(call, options.target),
        progress=call.progress,
    )
    return Result(done, report.fields(done), committed=lake.catch_up().version if done.snapshot else None)


@command(
    "snapshot list",
    "trinitylake snapshot list file:///data/lake",
    options=(FORMAT,),
)
def snapshot_list(call: Call) -> Result:
    """List snapshots."""
    lake = call.open()
    found = lake.snapshots()
    header = ["name", "version", "kind", "created", "expires", "copy"]
    table = report.table(header, map(_snapshot_cells, found))
    data = {"root": lake.root, "version": lake.version, "snapshots": found}
    return Result(data, [table] if found else ["no snapshots"], table=table)


def _snapshot_cells(info: SnapshotInfo) -> list[Any]:
    expires = None if info.expires_at is None else f"{utc(info.expires_at)}{' (expired)' * info.expired}"
    return [info.name, info.version, info.kind, info.created_at, expires, info.target_uri]


@command(
    "snapshot drop",
    "trinitylake snapshot drop file:///data/lake before-migration",
    options=(REASON, DRY_RUN, YES),
)
def snapshot_drop(call: Call) -> Result:
    """Drop a snapshot."""
    options, lake, name = call.options, call.open(), call.options.name
    shown = report.plain(name)

    def result(version: int | None) -> Result:
        if version is None:
            lines = [f"dry run, nothing was changed: snapshot {shown} would be dropped", *_dropped(lake, name)]
        else:
            lines = [f"version {version} committed: snapshot {shown} dropped"]
        return Result({"root": lake.root, "dropped": name, "version_after": version, "dry_run": version is None}, lines)

    review = call.review(result)
    if review is not None and not review(None):
        return result(None)
    lake.drop_snapshot(name, reason=options.reason)
    return result(lake.catch_up().version)


def _dropped(lake: Lakehouse, name: str) -> Iterator[str]:
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

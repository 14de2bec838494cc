"""The command that shows many lakehouses at once: fleet."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from pipelines import fleet as surveys
from pipelines.cli import report
from pipelines.cli.command import DONE, FOUND_PROBLEMS, Call, Result, command, option
from pipelines.cli.resolve_root import find_file
from pipelines.fleet import Config, Member, State
from pipelines.reports.summary import utc
from trinitylake_core.errors import InvalidInput
from trinitylake_core.storage import normalise_root

_FORMATS = ("table", "csv", "json", "openmetrics")
_HEADER = ["lakehouse", "debt", "messages", "objects", "version", "committed"]
_HEADER += ["snapshots", "backup", "grows", "problem"]
_SPARE = ("grows", "snapshots", "committed", "objects")


@command(
    "fleet",
    "trinitylake fleet lakehouses.yaml --format openmetrics",
    options=(
        option(
            "--format",
            choices=_FORMATS,
            default="table",
            help="table (default), csv, json, or openmetrics: text that Prometheus reads",
        ),
        option(
            "--timeout", type=int, metavar="SECONDS", default=20, help="how long one lakehouse may take (default 20)"
        ),
    ),
    arguments={
        "FILE": "a lakehouses.yaml, or a text file with one root URI per line; by default the lakehouses.yaml "
        "that is found here or above"
    },
    details="""\
First come lakehouses that cannot be opened, then those whose backup cannot, then the others by debt: their buffered
messages, divided by the number from which a compaction pays. A storage that gives no answer delays no other lakehouse.
The growth is judged from the versions that are kept.""",
)
def fleet(call: Call) -> Result:
    """Survey a fleet."""
    options = call.options
    if options.timeout < 1:
        raise InvalidInput(f"--timeout must be at least 1 second: {options.timeout}")
    if options.file is None:
        path = find_file()
    else:
        path = Path(options.file)
    if path is None:
        raise InvalidInput("there is no lakehouses.yaml here or above; name a file: trinitylake fleet FILE")
    members = list(_read_members(path, call))
    how = Config(seconds=float(options.timeout))
    done = surveys.run(members, how)
    if done.unreachable:
        code = FOUND_PROBLEMS
    else:
        code = DONE
    if options.format == "openmetrics":
        return Result(done, surveys.openmetrics(done).splitlines(), code)
    shown = report.TextTable(_HEADER, map(_row, done.states), spare=_SPARE)
    rows = report.TextTable(_HEADER, map(_row, done.states))
    return Result(done, [shown, "", *done.summary()], code, rows)


def _read_members(path: Path, call: Call) -> Iterator[Member]:
    """Yield the lakehouses that a file lists."""
    if path.suffix in {".yaml", ".yml", ".json"}:
        yield from surveys.members_of(path, call.options_for)
        return
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"cannot read {path}: {error}") from None
    for line in lines:
        root, _, _ = line.partition("#")
        root = root.strip()
        if root:
            yield Member(root, normalise_root(root), partial(call.options_for, root))


def _row(state: State) -> list[Any]:
    """Return the cells of a lakehouse, in the order of ``_HEADER``."""
    return [
        state.name,
        None if state.debt is None else f"{state.debt:.0%}",
        state.messages,
        state.objects,
        state.version,
        None if state.committed_at is None else utc(state.committed_at),
        state.snapshots,
        _describe_backup(state),
        _describe_growth(state),
        _describe_problem(state),
    ]


def _describe_backup(state: State) -> str | None:
    if state.backup_lag is None:
        return None
    if state.backup_lag == 0:
        return "current"
    return f"-{state.backup_lag}"


def _describe_growth(state: State) -> str | None:
    per_day = state.growth.objects_per_day
    if per_day is None:
        return None
    return f"{per_day:+,.0f}/day"


def _describe_problem(state: State) -> str:
    if state.problem:
        return state.problem
    if state.backup_problem is not None:
        return f"backup: {state.backup_problem}"
    return ""

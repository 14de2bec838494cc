"""The command that shows many lakehouses at once: fleet."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from pipelines import fleet as surveys
from pipelines.cli import report
from pipelines.cli.command import DONE, FOUND_PROBLEMS, Call, Result, command, option
from pipelines.cli.resolve_root import found_file
from pipelines.fleet import Config, Member, State
from pipelines.summary import utc
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
Those that cannot be opened come first, then those whose backup cannot, then the others by debt: buffered messages as a
share of the threshold from which a compaction pays. A lakehouse whose storage gives no answer costs its timeout, and
holds up no other one. The growth is judged from the versions that are kept. --json adds root URIs and everything else
that is known.""",
)
def fleet(call: Call) -> Result:
    """Survey a fleet."""
    options = call.options
    if options.timeout < 1:
        raise InvalidInput(f"--timeout must be at least 1 second: {options.timeout}")
    path = found_file() if options.file is None else Path(options.file)
    if path is None:
        raise InvalidInput("there is no lakehouses.yaml here or above; name a file: trinitylake fleet FILE")
    members = list(_members(path, call))
    done = surveys.run(members, Config(seconds=float(options.timeout)))
    code = FOUND_PROBLEMS if done.unreachable else DONE
    if options.format == "openmetrics":
        return Result(done, surveys.openmetrics(done).splitlines(), code)
    table, again = (report.Table(_HEADER, map(_cells, done.states), spare=_SPARE) for _ in range(2))
    return Result(done, [table, "", *done.summary()], code, again)


def _members(path: Path, call: Call) -> Iterator[Member]:
    """Yield the lakehouses that a file lists."""
    if path.suffix in {".yaml", ".yml", ".json"}:
        yield from surveys.members_of(path, call.options_for)
        return
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"cannot read {path}: {error}") from None
    for line in lines:
        root = line.partition("#")[0].strip()
        if root:
            yield Member(root, normalise_root(root), partial(call.options_for, root))


def _cells(state: State) -> list[Any]:
    debt = None if state.debt is None else f"{state.debt:.0%}"
    behind = None if state.backup_lag is None else f"-{state.backup_lag}" if state.backup_lag else "current"
    problem = state.problem or (None if state.backup_problem is None else f"backup: {state.backup_problem}")
    committed = None if state.committed_at is None else utc(state.committed_at)
    per_day = state.growth.objects_per_day
    grows = None if per_day is None else f"{per_day:+,.0f}/day"
    shown = [state.messages, state.objects, state.version, committed, state.snapshots, behind, grows, problem or ""]
    return [state.name, debt, *shown]

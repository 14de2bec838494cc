"""The first commands of somebody new: try, ui."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pipelines.cli import report
from pipelines.cli.command import Call, Result, command, in_order, option
from pipelines.cli.commands.options import DRY_RUN
from pipelines.cli.dagster_home import (
    HOME_VARIABLE,
    choose_home,
    list_mistakes,
    require_dagster,
    start_command,
    write_settings,
)
from pipelines.cli.output import say
from pipelines.cli.resolve_root import find_file
from pipelines.source.lakehouses import VARIABLE, raw_stanzas, read
from trinitylake_core.errors import InvalidInput

_PORT_MAX: Final = 65_535


@command(
    "try",
    "trinitylake try ./first-lakehouse",
    arguments={"DIR": "a directory that is not there yet, or empty"},
    details="""\
Makes two Iceberg tables with rows, drops them by mistake, brings them back with one command, and proves it. Then it
writes lakehouses.yaml and the settings of Dagster, and prints what PyIceberg, DuckDB and Spark are told to read the
tables. It takes seconds, and needs neither Spark nor Java; delete the directory when you are done.""",
)
def try_(call: Call) -> Result:
    """Try everything once, in a directory."""
    from pipelines import trial

    directory = Path(call.options.dir).expanduser().absolute()
    done = trial.run(directory)
    home = choose_home({}, directory)
    write_settings(home)
    rows = [[each.title, each.outcome, f"{each.seconds:.1f} s"] for each in done.steps]
    place = shlex.quote(str(directory))
    following = [
        f"cd {place}",
        "trinitylake history first                            # who did what",
        "trinitylake undo first --last --reason 'as it was'   # the undo, undone",
        "trinitylake ui                                       # the same in Dagster",
        "trinitylake serve first --name first                 # for every other engine, until Ctrl-C:",
    ]
    lines = in_order(
        [f"{done.root} holds two Iceberg tables, version {done.version}"],
        report.table(["step", "outcome", "took"], rows),
        following,
        trial.engine_lines(),
    )
    data = {
        "root": done.root,
        "directory": done.directory,
        "version_after": done.version,
        "rows": done.rows,
        "rows_over_rest": done.rows_over_rest,
        "dagster_home": str(home),
        "steps": done.steps,
    }
    return Result(data, lines)


@command(
    "ui",
    "trinitylake ui --port 3000",
    options=(
        option("--host", default="127.0.0.1", metavar="ADDRESS", help="where to listen (default 127.0.0.1)"),
        option("--port", type=int, default=3000, metavar="PORT", help="the port (default 3000)"),
        DRY_RUN,
    ),
    arguments={"FILE": "a lakehouses.yaml; by default the one that is found here or above"},
    details="""\
Dagster and its daemon run until Ctrl-C, for every lakehouse in the file. Runs and their logs are kept in $DAGSTER_HOME,
by default .dagster beside that file. Where there is no dagster.yaml, one is written: runs that died are ended and give
back their pool, one run at a time writes to a lakehouse, and no telemetry is sent. Whoever reaches the port may do
everything.""",
)
def ui(call: Call) -> Result:
    """Start Dagster."""
    options = call.options
    if not 0 < options.port <= _PORT_MAX:
        raise InvalidInput(f"{options.port} is no port: those are 1 to {_PORT_MAX}")
    path = _existing_file(options.file)
    raw_stanzas(read(path), path)  # a file without lakehouses would start a Dagster that shows nothing but its error
    require_dagster()
    path = path.absolute()
    home = choose_home(os.environ, path.parent)
    words = start_command(options.host, options.port)
    data = {"dagster_home": str(home), "lakehouses": str(path), "command": words, "dry_run": options.dry_run}
    environment = {**os.environ, HOME_VARIABLE: str(home), VARIABLE: str(path)}
    for mistake in list_mistakes(environment):  # it concerns its lakehouse alone: the others are shown
        say(mistake)
    if options.dry_run:
        shown = f"{HOME_VARIABLE}={shlex.quote(str(home))} {VARIABLE}={shlex.quote(str(path))} {shlex.join(words)}"
        return Result(data, ["dry run, nothing was started and nothing written", shown])
    if write_settings(home):
        say(f"{home / 'dagster.yaml'} written")
    say(f"Dagster is starting at http://{options.host}:{options.port}; Ctrl-C stops it")
    code = _run_until_ended(words, environment)
    return Result(data, [f"Dagster ended with exit code {code}"], code)


def _existing_file(given: str | None) -> Path:
    """Return the file of lakehouses that was given, or else the one here or above. Raises ``InvalidInput``: none."""
    if given is None:
        path = find_file()
    else:
        path = Path(given)
    if path is None:
        where = "here or above"
    elif path.is_file():
        return path
    else:
        where = f"at {path}"
    raise InvalidInput(f"there is no lakehouses.yaml {where}; `trinitylake try DIR` makes one, with a lakehouse")


def _run_until_ended(words: list[str], environment: Mapping[str, str]) -> int:
    """Run a program, and pass SIGTERM on; return its exit code. Ctrl-C reaches it from the terminal itself."""
    interrupting = signal.getsignal(signal.SIGINT)
    if interrupting is signal.SIG_IGN:
        # A script that starts this with & makes it ignore SIGINT. Dagster would inherit that, treat SIGTERM the same
        # way, and could not be stopped.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(words, env=environment)  # noqa: S603 - the command line is ours
    signal.signal(signal.SIGINT, interrupting)
    before = signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    try:
        while True:
            try:
                code = process.wait()
            except KeyboardInterrupt:  # it ends by the same signal, and what it does until then is shown
                continue
            # Stopped by a signal is how this is meant to end.
            return 0 if code in {-signal.SIGINT, -signal.SIGTERM} else code
    finally:
        signal.signal(signal.SIGTERM, before)

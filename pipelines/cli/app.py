"""The command line: ``trinitylake <command> ROOT [options]``.

    exit code   0  done
                1  the check found problems
                2  wrong usage or input
                3  a conflict, or an operation that was refused, also by the person who was asked
                4  the storage failed, or data is too damaged to be read
              130  interrupted
              141  what reads standard output went away

With ``--json`` standard output is exactly one JSON document, also when the command fails:
``{"error": {"type": ..., "message": ...}}``. Logs and progress go to standard error.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, Final

import click

from pipelines.cli import output
from pipelines.cli.command import Answer, Call, Command, Line, Result, key_value
from pipelines.cli.program import complete, overview, run, sentence
from pipelines.cli.progress import PrintedProgress, printed
from pipelines.cli.report import plain
from pipelines.cli.resolve_root import environment_options, place_of, root_of, storage_options
from trinitylake_core.errors import (
    AlreadyExists,
    Corrupt,
    InvalidInput,
    NamespaceNotEmpty,
    NotFound,
    ReadOnly,
    Refused,
    StorageError,
    TrinityLakeError,
)

DEBUG: Final = "TRINITYLAKE_DEBUG"
WRONG_INPUT: Final = 2
REFUSED: Final = 3
FAILED: Final = 4
INTERRUPTED: Final = 130
READER_GONE: Final = 141
_EXIT_CODES: Final[tuple[tuple[type[BaseException], int], ...]] = (
    (InvalidInput, WRONG_INPUT),
    (NotFound, WRONG_INPUT),
    (AlreadyExists, WRONG_INPUT),
    (NamespaceNotEmpty, WRONG_INPUT),
    (ReadOnly, WRONG_INPUT),  # it can never work on this root
    (Refused, REFUSED),
    (Corrupt, FAILED),
    (StorageError, FAILED),
    (TrinityLakeError, FAILED),
    (output.OutputFailed, FAILED),
)
_MESSAGE_MAX: Final = 4_000
_SECRET_MIN_LENGTH: Final = 8
_PLACES: Final = frozenset({"dst", "other", "source", "src", "target"})
"""Arguments and options that name another place: by URI, by path, or by a name in ``lakehouses.yaml``."""
_PAGED: Final = frozenset({"diff", "history", "ls"})


class Declined(Refused):
    """The person at the terminal did not want the plan to be carried out."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. ``argv`` is without the name of the program."""
    if argv is None and (completed := complete()) is not None:
        return completed
    words = list(sys.argv[1:] if argv is None else argv)
    debug = os.environ.get(DEBUG, "") not in {"", "0"}
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s", stream=sys.stderr)
    output.prepare()
    try:
        return _main(words, debug=debug)
    except BrokenPipeError:  # `trinitylake ls … | head`
        output.forget_stdout()
        return READER_GONE


def _main(words: list[str], *, debug: bool) -> int:
    secrets: list[str] = []

    def carry_out(command: Command, options: SimpleNamespace, root: str) -> int:
        return _run(command, options, root, secrets, debug=debug)

    try:
        if sys.stdout is None:
            raise output.OutputFailed("standard output is closed; nothing was done")
        if not set(words) - {"--json", "--quiet"}:
            output.say(overview())
            return WRONG_INPUT
        return run(words, carry_out)
    except Answer as answer:
        if answer.data is not None and _wants_json(words):
            output.write_document(answer.data)
        else:
            output.print_lines([str(answer)])
        return 0
    except BrokenPipeError:
        raise
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the last place to report it
        return _failed(error, secrets, as_json=_wants_json(words), debug=debug)


def _wants_json(words: Sequence[str]) -> bool:
    return bool({"--json", "--format=json"} & set(words)) or ("--format", "json") in pairwise(words)


def _run(command: Command, options: SimpleNamespace, root: str, secrets: list[str], *, debug: bool) -> int:
    root, of_name = root_of(root) if root else (root, {})
    named: dict[str, Mapping[str, Any]] = {}
    for name in _PLACES & vars(options).keys():
        if (value := getattr(options, name)) is not None:
            place, its_options = place_of(value)
            named |= {place: its_options} if its_options else {}
            setattr(options, name, place)
    everywhere, given = environment_options(os.environ), of_name | storage_options(options.storage_option)
    if everywhere or given:
        from trinitylake_core.storage.failures import secrets_of

        found = [*secrets_of(everywhere), *secrets_of(given)]
        secrets += (each for each in found if len(each) >= _SECRET_MIN_LENGTH)
    for each in getattr(options, "spark_conf", ()):
        key_value("--spark-conf", each)
    logging.getLogger("pipelines.engine_choice").setLevel(logging.INFO if getattr(options, "verbose", False) else 0)
    progress = printed(sys.stderr) if sys.stderr is not None and not options.quiet else None
    with ExitStack() as stack:
        shown, log_level = progress or (lambda *_: None), "WARN" if debug else "OFF"
        call = Call(options, root, given, shown, stack, None, log_level, everywhere, named)
        if progress is not None:
            stack.callback(progress.close)
        if options.json:
            return output.json_of(lambda: command.run(call), _committed)
        person = output.is_terminal(sys.stdin) and output.is_terminal(sys.stdout)
        if command.confirmed and person and not options.yes and getattr(options, "plan_to", None) is None:
            call.ask = partial(_ask, progress=progress)
        result = command.run(call)
        try:
            if getattr(options, "format", "") == "csv":
                output.print_csv(result, progress)
            else:
                output.print_lines(result.lines, progress, paged=command.name in _PAGED)
        except output.OutputFailed as error:
            raise output.OutputFailed(f"{error}{_committed(result)}") from error
        return result.code


def _committed(result: Result) -> str:
    """Return a text with the version that a command committed and could not print; empty if it committed none."""
    data = result.data if result.committed is None else {"version_after": result.committed}
    for inner in (data, getattr(data, "rollback", None), getattr(data, "registered", None)):
        fields = inner if isinstance(inner, Mapping) else {"version_after": getattr(inner, "version_after", None)}
        if (version := fields.get("version_after")) is not None:
            return f"; version {version} was committed"
    return ""


def _ask(lines: Iterable[Line], progress: PrintedProgress | None) -> bool:
    """Show a person what would be deleted or undone, and ask. Raises ``Declined`` if the answer is no."""
    output.print_lines(lines, progress)
    try:
        if click.confirm("Go on?"):
            return True
    except click.Abort:
        raise KeyboardInterrupt from None
    raise Declined("nothing was done")


# -- what went wrong -------------------------------------------------------------------------------------


def _failed(error: BaseException, secrets: Sequence[str], *, as_json: bool, debug: bool) -> int:
    """Report an error, and return its exit code."""
    if isinstance(error, UnicodeEncodeError) and "surrogates" in error.reason:
        error = InvalidInput(f"{str(error.object)[:100]!r} holds bytes that are not UTF-8")
    message, code = _described(error)
    if isinstance(error, Declined):
        output.say(message)
        return code
    if not isinstance(error, click.UsageError):
        from trinitylake_core.storage.failures import sanitise

        message = sanitise(message, secrets)
        if debug:
            output.say(sanitise("".join(traceback.format_exception(error)), secrets).rstrip())
    output.say("\n".join(map(plain, f"error: {message}".split("\n"))))
    if isinstance(error, output.OutputFailed):
        output.forget_stdout()
    elif as_json:
        kind = InvalidInput if isinstance(error, click.UsageError) else type(error)
        output.write_document({"error": {"type": kind.__name__, "message": message}})
    return code


def _described(error: BaseException) -> tuple[str, int]:
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", INTERRUPTED
    if isinstance(error, click.UsageError):
        return sentence(error), WRONG_INPUT
    if isinstance(error, RecursionError):
        return "the input is nested too deeply", WRONG_INPUT
    for kind, code in _EXIT_CODES:
        if isinstance(error, kind):
            return _short(str(error)), code
    if isinstance(error, OSError):  # a library of this machine, such as that of hdfs://, or a file
        return _first_line(error), FAILED
    if type(error).__module__.partition(".")[0] in {"pyspark", "py4j"}:
        return f"Spark failed: {_first_line(error)}; {DEBUG}=1 shows the whole error", FAILED
    report = f"unexpected {type(error).__name__}: {_first_line(error)}. This is a bug in trinitylake: please report it"
    return f"{report} with the output of the same command under {DEBUG}=1", FAILED


def _short(message: str) -> str:
    """Return a message that a person can read: input that it repeats may be large."""
    return (
        message if len(message) <= _MESSAGE_MAX else f"{message[: _MESSAGE_MAX // 2]} … {message[-_MESSAGE_MAX // 4 :]}"
    )


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else "(no message)"

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
from pipelines.cli.patience import watch_silence
from pipelines.cli.program import complete, overview, run, sentence
from pipelines.cli.progress import PrintedProgress, make_progress
from pipelines.cli.report import plain
from pipelines.cli.resolve_root import environment_options, root_of, storage_options
from trinitylake_core.errors import (
    AlreadyExists,
    InvalidInput,
    NamespaceNotEmpty,
    NotFound,
    ReadOnly,
    Refused,
    TrinityLakeError,
)

DEBUG: Final = "TRINITYLAKE_DEBUG"
WRONG_INPUT: Final = 2
REFUSED: Final = 3
FAILED: Final = 4
INTERRUPTED: Final = 130
READER_GONE: Final = 141
_EXIT_CODES: Final = {
    WRONG_INPUT: (InvalidInput, NotFound, AlreadyExists, NamespaceNotEmpty, ReadOnly),  # the last works on no such root
    REFUSED: (Refused,),
    FAILED: (TrinityLakeError, output.OutputFailed),
}
_MESSAGE_MAX: Final = 4_000
_SECRET_MIN_LENGTH: Final = 8
_PLACES: Final = frozenset({"dst", "other", "source", "src", "target"})
"""Arguments and options that name another place: by URI, by path, or by a name in ``lakehouses.yaml``."""
_PAGED: Final = frozenset({"diff", "history", "ls"})


class Declined(Refused):
    """The person at the terminal did not want the plan to be carried out."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. ``argv`` is without the name of the program."""
    if argv is None:
        completed = complete()
        if completed is not None:
            return completed
        argv = sys.argv[1:]
    debug = os.environ.get(DEBUG, "") not in {"", "0"}
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s", stream=sys.stderr)
    output.prepare()
    try:
        return _main(list(argv), debug=debug)
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
        return _report_failure(error, secrets, as_json=_wants_json(words), debug=debug)


def _wants_json(words: Sequence[str]) -> bool:
    """Whether JSON is wanted, also by words that cannot be parsed."""
    if "--json" in words or "--format=json" in words:
        return True
    return ("--format", "json") in pairwise(words)


def _run(command: Command, options: SimpleNamespace, root: str, secrets: list[str], *, debug: bool) -> int:
    """Carry out a command, and print its result. What is secret in its options is added to ``secrets``."""
    of_root: dict[str, Any] = {}
    if root:
        root, of_root = root_of(root)
    named = _resolve_places(options)
    everywhere = environment_options(os.environ)
    given = of_root | storage_options(options.storage_option)
    _note_secrets(secrets, everywhere, given, *named.values())
    for each in getattr(options, "spark_conf", ()):
        key_value("--spark-conf", each)  # a wrong one is refused even where no Spark is started
    tells_engine = getattr(options, "verbose", False)
    logging.getLogger("pipelines.engine.choice").setLevel(logging.INFO if tells_engine else logging.NOTSET)
    progress = None
    if sys.stderr is not None and not options.quiet:
        progress = make_progress(sys.stderr)
    with ExitStack() as stack:
        if progress is not None:
            stack.callback(progress.close)
        stack.enter_context(watch_silence(partial(_say_beside, progress)))
        call = Call(
            options,
            root,
            given,
            progress or _show_no_progress,
            stack,
            log_level="WARN" if debug else "OFF",
            environment_options=everywhere,
            named=named,
        )
        if options.json:
            return output.json_of(lambda: command.run(call), _describe_commit)
        if command.asks_first and _may_ask(options):
            call.ask = partial(_ask, progress=progress)
        result = command.run(call)
        _print_result(command, options, result, progress)
        return result.code


def _say_beside(progress: PrintedProgress | None, text: str) -> None:
    """Say something on standard error, where bars may be drawn."""
    if progress is not None:
        progress.close()
    output.say(text)


def _resolve_places(options: SimpleNamespace) -> dict[str, Mapping[str, Any]]:
    """Replace the names of other places by their URIs, and return the storage options of those that have some."""
    named: dict[str, Mapping[str, Any]] = {}
    for name in _PLACES:
        value = getattr(options, name, None)
        if value is None:
            continue
        place, its_options = root_of(value, may_be_new=True)
        setattr(options, name, place)
        if its_options:
            named[place] = its_options
    return named


def _note_secrets(secrets: list[str], *options: Mapping[str, Any]) -> None:
    """Note what no message may show. A short one would hide every other word that contains it."""
    if not any(options):
        return  # a listing must not wait for the import
    from trinitylake_core.storage.failures import secrets_of

    for each in options:
        secrets += [secret for secret in secrets_of(each) if len(secret) >= _SECRET_MIN_LENGTH]


def _show_no_progress(phase: str, done: int, total: int | None) -> None:
    del phase, done, total


def _may_ask(options: SimpleNamespace) -> bool:
    """Whether there is a person to ask, who has not agreed yet."""
    if options.yes or getattr(options, "plan_to", None) is not None:
        return False
    return output.is_terminal(sys.stdin) and output.is_terminal(sys.stdout)


def _print_result(
    command: Command,
    options: SimpleNamespace,
    result: Result,
    progress: PrintedProgress | None,
) -> None:
    try:
        if getattr(options, "format", "") == "csv":
            output.print_csv(result, progress)
        else:
            output.print_lines(result.lines, progress, paged=command.name in _PAGED)
    except output.OutputFailed as error:
        raise output.OutputFailed(f"{error}{_describe_commit(result)}") from error


def _describe_commit(result: Result) -> str:
    """Return a text with the version that a command committed and could not print; empty if it committed none."""
    version = result.committed
    if version is None:
        for data in (result.data, getattr(result.data, "rollback", None), getattr(result.data, "registered", None)):
            if isinstance(data, Mapping):
                version = data.get("version_after")
            else:
                version = getattr(data, "version_after", None)
            if version is not None:
                break
    if version is None:
        return ""
    return f"; version {version} was committed"


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


def _report_failure(error: BaseException, secrets: Sequence[str], *, as_json: bool, debug: bool) -> int:
    """Report an error, and return its exit code."""
    if isinstance(error, UnicodeEncodeError) and "surrogates" in error.reason:
        error = InvalidInput(f"{str(error.object)[:100]!r} holds bytes that are not UTF-8")
    message, code = _describe(error)
    if isinstance(error, Declined):
        output.say(message)
        return code
    if not isinstance(error, click.UsageError):  # click's quote the command line, and no secret is in one
        from trinitylake_core.storage.failures import sanitise

        message = sanitise(message, secrets)
        if debug:
            trace = "".join(traceback.format_exception(error))
            output.say(sanitise(trace, secrets).rstrip())
    lines = f"error: {message}".split("\n")
    output.say("\n".join(map(plain, lines)))
    if isinstance(error, output.OutputFailed):
        output.forget_stdout()
    elif as_json:
        kind = type(error)
        if isinstance(error, click.UsageError):
            kind = InvalidInput
        output.write_document({"error": {"type": kind.__name__, "message": message}})
    return code


def _describe(error: BaseException) -> tuple[str, int]:
    """Return the sentence for an error, and its exit code."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", INTERRUPTED
    if isinstance(error, click.UsageError):
        return sentence(error), WRONG_INPUT
    if isinstance(error, RecursionError):
        return "the input is nested too deeply", WRONG_INPUT
    for code, kinds in _EXIT_CODES.items():
        if isinstance(error, kinds):
            return _shorten(str(error)), code
    first_line = _first_line(error)
    if isinstance(error, OSError):  # a library of this machine, or a file
        from pipelines.engine.local import find_full_disk

        full = find_full_disk(error)
        return first_line if full is None else str(full), FAILED
    package, _, _ = type(error).__module__.partition(".")
    if package in {"pyspark", "py4j"}:
        return f"Spark failed: {first_line}; {DEBUG}=1 shows the whole error", FAILED
    report = f"unexpected {type(error).__name__}: {first_line}. This is a bug in trinitylake: please report it"
    return f"{report} with the output of the same command under {DEBUG}=1", FAILED


def _shorten(message: str) -> str:
    """Return a message that a person can read: input that it repeats may be large."""
    if len(message) <= _MESSAGE_MAX:
        return message
    begin = message[: _MESSAGE_MAX // 2]
    end = message[-_MESSAGE_MAX // 4 :]
    return f"{begin} … {end}"


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    if not lines:
        return "(no message)"
    return lines[0][:300]

"""The command line: ``trinitylake <command> ROOT [options]``.

    exit code   0  done
                1  the check found problems
                2  wrong usage or input
                3  a conflict, or a refused operation
                4  the storage failed, or data is too damaged to be read

With ``--json`` standard output is exactly one JSON document, also when the command fails:
``{"error": {"type": ..., "message": ...}}``. Logs and progress go to standard error.
"""

from __future__ import annotations

import io
import logging
import os
import sys
import tempfile
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from typing import Any, Final, TextIO

from pipelines.cli import report
from pipelines.cli.arguments import Arguments, UsageError, overview, parse
from pipelines.cli.commands import Result
from pipelines.cli.commands.command import Call
from pipelines.cli.progress import PrintedProgress
from pipelines.cli.storage_options import environment_options, storage_options
from pipelines.job import silent
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
from trinitylake_core.storage.failures import sanitise, secrets_of

DEBUG: Final = "TRINITYLAKE_DEBUG"
WRONG_INPUT: Final = 2
REFUSED: Final = 3
FAILED: Final = 4
INTERRUPTED: Final = 130
READER_GONE: Final = 141
_EXIT_CODES: Final[tuple[tuple[type[TrinityLakeError], int], ...]] = (
    (InvalidInput, WRONG_INPUT),
    (NotFound, WRONG_INPUT),
    (AlreadyExists, WRONG_INPUT),
    (NamespaceNotEmpty, WRONG_INPUT),
    (ReadOnly, WRONG_INPUT),  # it can never work on this root
    (Refused, REFUSED),
    (Corrupt, FAILED),
    (StorageError, FAILED),
)
_SECRET_MIN_LENGTH: Final = 8
_SPOOL_BYTES: Final = 8 << 20


class OutputFailed(Exception):
    """Standard output takes nothing more: the disk behind it is full, or nobody opened it."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. ``argv`` is without the name of the program."""
    words = list(sys.argv[1:] if argv is None else argv)
    debug = os.environ.get(DEBUG, "") not in {"", "0"}
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s", stream=sys.stderr)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        return _main(words, debug=debug)
    except BrokenPipeError:  # `trinitylake ls … | head`
        _forget_stdout()
        return READER_GONE


def _main(words: list[str], *, debug: bool) -> int:
    secrets: list[str] = []
    try:
        if sys.stdout is None:
            raise OutputFailed("standard output is closed; nothing was done")
        arguments = parse(words, os.environ)
        if isinstance(arguments, str):
            _print([arguments])
            return 0
        if arguments.command is None:
            _say(overview())
            return WRONG_INPUT
        everywhere, given = environment_options(os.environ), storage_options(arguments.options.storage_option)
        found = [*secrets_of(everywhere), *secrets_of(given)]
        secrets += (each for each in found if len(each) >= _SECRET_MIN_LENGTH)
        return _run(arguments, given, everywhere, debug=debug)
    except BrokenPipeError:
        raise
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the last place to report it
        return _failed(error, secrets, as_json="--json" in words, debug=debug)


def _run(arguments: Arguments, given: Mapping[str, Any], everywhere: Mapping[str, Any], *, debug: bool) -> int:
    parsed, command = arguments.options, arguments.command
    if command is None:
        raise UsageError("no command")
    progress = PrintedProgress(sys.stderr) if sys.stderr is not None and not parsed.quiet else None
    with ExitStack() as stack:
        log_level = "WARN" if debug else "OFF"
        call = Call(parsed, arguments.root, given, progress or silent, stack, log_level, everywhere)
        if progress is not None:
            stack.callback(progress.close)
        if parsed.json:
            return _json(command.run, call)
        result = command.run(call)
        _print(result.lines, progress)
        return result.code


# -- what comes out --------------------------------------------------------------------------------------


def _print(lines: Iterable[str], progress: PrintedProgress | None = None) -> None:
    for line in lines:
        if progress is not None:
            progress.close()
        _write(f"{line}\n")
    _flush()


def _write(text: str) -> None:
    try:
        sys.stdout.write(text)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputFailed(f"cannot write to standard output: {error.strerror}") from error


def _flush() -> None:
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputFailed(f"cannot write to standard output: {error.strerror}") from error


def _say(text: str) -> None:
    if sys.stderr is not None:
        with suppress(OSError, ValueError):
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()


def _json(run: Any, call: Call) -> int:
    """Run a command and print its result when it is complete: half a JSON document is of no use."""
    with tempfile.SpooledTemporaryFile(_SPOOL_BYTES, "w+", encoding="utf-8", errors="surrogatepass") as spool:
        with _stdout_kept_clean():
            result: Result = run(call)
            report.write_json(result.data, spool.write, ascii_only=_ascii_only(sys.__stdout__))
        spool.seek(0)
        while block := spool.read(1 << 20):
            _write(block)
    _flush()
    return result.code


def _ascii_only(stream: TextIO | None) -> bool:
    return (getattr(stream, "encoding", None) or "utf-8").lower().replace("-", "") != "utf8"


@contextmanager
def _stdout_kept_clean() -> Iterator[None]:
    """Redirect to standard error whatever is printed meanwhile, also by Spark's Java and its Python workers."""
    sys.stdout.flush()
    saved = None
    with suppress(OSError, ValueError, AttributeError):
        if sys.stdout.fileno() == 1:
            saved = os.dup(1)
            os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        if saved is not None:
            os.dup2(saved, 1)
            os.close(saved)


def _forget_stdout() -> None:
    """Redirect standard output to the null device: the interpreter still has to flush it, but its reader is gone."""
    with suppress(OSError, ValueError, AttributeError):
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, sys.stdout.fileno())
        os.close(nothing)


# -- what went wrong -------------------------------------------------------------------------------------


def _failed(error: BaseException, secrets: Sequence[str], *, as_json: bool, debug: bool) -> int:
    """Report an error, and return its exit code."""
    message, code = _described(error)
    message = sanitise(message, secrets)
    if debug and not isinstance(error, UsageError):
        _say(sanitise("".join(traceback.format_exception(error)), secrets).rstrip())
    _say(f"error: {message}")
    if isinstance(error, OutputFailed):
        _forget_stdout()
    elif as_json:
        kind = InvalidInput if isinstance(error, UsageError) else type(error)
        document = {"error": {"type": kind.__name__, "message": message}}
        report.write_json(document, sys.stdout.write, ascii_only=_ascii_only(sys.stdout))
        sys.stdout.flush()
    return code


def _described(error: BaseException) -> tuple[str, int]:
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", INTERRUPTED
    if isinstance(error, OutputFailed):
        return str(error), FAILED
    for kind, code in _EXIT_CODES:
        if isinstance(error, kind):
            return str(error), code
    if isinstance(error, TrinityLakeError):
        return str(error), FAILED
    if type(error).__module__.partition(".")[0] in {"pyspark", "py4j"}:
        return f"Spark failed: {_first_line(error)}; {DEBUG}=1 shows the whole error", FAILED
    report = f"unexpected {type(error).__name__}: {_first_line(error)}. This is a bug in trinitylake: please report it"
    return f"{report} with the output of the same command under {DEBUG}=1", FAILED


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else "(no message)"

"""Standard output and standard error: what a command may find wrong with them, and how a result gets out."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from io import StringIO
from itertools import chain, islice
from typing import Any, Final, TextIO

from pipelines.cli import report
from pipelines.cli.command import Line, Result
from pipelines.cli.progress import PrintedProgress
from trinitylake_core.errors import InvalidInput

_SPOOL_BYTES: Final = 8 << 20
_BEGIN_FORMULAS: Final = ("=", "+", "-", "@", "\t", "\r")
_NUMBER: Final = re.compile(r"-?\d+(\.\d+)?(e[+-]?\d+)?")


class OutputFailed(Exception):
    """Standard output takes nothing more: the disk behind it is full, or it is closed."""


def prepare() -> None:
    """Make both streams write every text in every locale."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def print_lines(lines: Iterable[Line], progress: PrintedProgress | None = None, *, paged: bool = False) -> None:
    """Print a result: on a terminal as it fits, in the pager if it may be long; elsewhere line by line."""
    if is_terminal(sys.stdout):
        from pipelines.cli import terminal

        if paged and is_terminal(sys.stdin):
            shown = terminal.lines(lines)
            first = list(islice(shown, 1))
            if progress is not None:
                progress.mute()
            terminal.page(chain(first, shown))
            return
        lines = terminal.lines(lines)
    for part in lines:
        for line in part if isinstance(part, report.TextTable) else [part]:
            if progress is not None:
                progress.close()
            write(f"{line}\n")
    flush()


def print_csv(result: Result, progress: PrintedProgress | None) -> None:
    """Print the table of a result for programs, in UTF-8. Raises ``InvalidInput`` where it has none."""
    import csv

    if result.table is None:
        raise InvalidInput("this has no rows and columns for --format csv; --format json shows all of it")
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(encoding="utf-8")  # a character that is written otherwise makes it another name
    for row in result.table.csv():
        if progress is not None:
            progress.close()
        line = StringIO()
        csv.writer(line, lineterminator="\n").writerow(map(_as_text, row))
        write(line.getvalue())
    flush()


def _as_text(cell: str) -> str:
    """Return a cell that no spreadsheet takes for a formula: a quote before its first character makes it a text.

    Names and reasons are written by others, and a formula can send what stands beside it to a server of theirs.
    """
    if cell.startswith(_BEGIN_FORMULAS) and not _NUMBER.fullmatch(cell):
        return f"'{cell}"
    return cell


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a person reads or writes this stream."""
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # closed
        return False


def write(text: str) -> None:
    """Write to standard output. Raises ``OutputFailed``; ``BrokenPipeError`` where the reader is gone."""
    try:
        sys.stdout.write(text)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputFailed(f"cannot write to standard output: {error.strerror}") from error


def flush() -> None:
    """Hand standard output over. Raises as ``write`` does."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputFailed(f"cannot write to standard output: {error.strerror}") from error


def say(text: str) -> None:
    """Write a line to standard error, if it is there."""
    if sys.stderr is not None:
        with suppress(OSError, ValueError):
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()


def write_document(value: Any) -> None:
    """Write one JSON document, also where standard output has been redirected."""
    report.write_json(value, sys.stdout.write, ascii_only=_ascii_only(sys.stdout))
    sys.stdout.flush()


def json_of(run: Callable[[], Result], said_of: Callable[[Result], str]) -> int:
    """Run a command and print its result when it is complete: half a JSON document is of no use.

    Raises:
        OutputFailed: it cannot be printed; ``said_of`` it is added to the message.
    """
    import tempfile  # brings compression and randomness along, for which no list on a terminal must wait

    with tempfile.SpooledTemporaryFile(_SPOOL_BYTES, "w+", encoding="utf-8", errors="surrogatepass") as spool:
        with _stdout_kept_clean():
            result = run()
            report.write_json(result.data, spool.write, ascii_only=_ascii_only(sys.__stdout__))
        spool.seek(0)
        try:
            while block := spool.read(1 << 20):
                write(block)
            flush()
        except OutputFailed as error:
            raise OutputFailed(f"{error}{said_of(result)}") from error
    return result.code


def _ascii_only(stream: TextIO | None) -> bool:
    return (getattr(stream, "encoding", None) or "utf-8").lower().replace("-", "") != "utf8"


@contextmanager
def _stdout_kept_clean() -> Iterator[None]:
    """Redirect to standard error all that is printed inside, also by Spark's Java and its Python workers."""
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


def forget_stdout() -> None:
    """Redirect standard output to the null device: the interpreter still has to flush it, but its reader is gone."""
    with suppress(OSError, ValueError, AttributeError):
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, sys.stdout.fileno())
        os.close(nothing)

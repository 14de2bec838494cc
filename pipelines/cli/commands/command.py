"""What a command is: a synopsis, options, and a function from a call to a result.

``trinitylake --help`` reads this module and the table of contents, nothing else: what opens lakehouses or starts
Spark is imported by the call that needs it.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import click

from pipelines.cli.report import Table
from pipelines.cli.storage_options import applicable
from trinitylake_core.errors import InvalidInput

if TYPE_CHECKING:
    from pipelines.job import Progress
    from pipelines.session import LazySession, SessionConfig
    from trinitylake_core import Lakehouse

DONE: Final = 0
FOUND_PROBLEMS: Final = 1
ROOT: Final = "ROOT"
_POSITIONAL: Final = re.compile(r"\[?([A-Z]+)\]?")


Line: TypeAlias = "str | Table"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Result:
    """What a command returns: ``data`` for ``--json``, ``lines`` for people, the exit code, and ``table`` for CSV.

    All may hold iterators; only one of the three is read.
    """

    data: Any
    lines: Iterable[Line] = ()
    code: int = DONE
    table: Table | None = None


class Option(click.Option):
    """An option of a command. Options with the same ``group`` exclude each other."""

    def __init__(self, names: Sequence[str], group: str | None = None, **settings: Any) -> None:
        super().__init__(names, **settings)
        self.group = group


class Choice(click.Choice[str]):
    """One of some words."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the word. Fails with a message that lists the others."""
        if value not in self.choices:
            self.fail(f"invalid choice: {value!r} (choose from {', '.join(self.choices)})", param, ctx)
        return str(value)


class WholeNumber(click.ParamType[int, Any]):
    """A whole number."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number."""
        try:
            return int(value)
        except ValueError:
            self.fail(f"invalid int value: {value!r}", param, ctx)


def option(*names: str, group: str | None = None, choices: Iterable[str] | None = None, **settings: Any) -> Option:
    """Return an option; ``settings`` are those of ``click.Option``."""
    if choices is not None:
        settings["type"] = Choice(tuple(choices))
    elif settings.get("type") is int:
        settings["type"] = WholeNumber()
    return Option(names, group, **settings)


@dataclass(slots=True)
class Call:
    """One call of a command: the options as parsed, and what every command needs."""

    options: SimpleNamespace
    root: str
    storage_options: Mapping[str, Any]
    """Those of the command line, which are for ROOT."""
    progress: Progress
    stack: ExitStack
    log_level: str = "OFF"
    environment_options: Mapping[str, Any] = field(default_factory=dict)
    """Storage options of the environment, for whatever they fit."""
    _session: LazySession | None = field(default=None)

    def open(self, root: str | None = None, *, damaged: bool = False) -> Lakehouse:
        """Return the newest version of the lakehouse, or of another one.

        With ``damaged`` it is the newest that can be read, and those after it are named on stderr.
        """
        from trinitylake_core import Lakehouse

        where = self.root if root is None else root
        lake = Lakehouse.open(where, storage_options=self.options_for(where), damaged=damaged)
        for each in lake.unreadable:
            sys.stderr.write(f"warning: version {each.version} is left out: {each.reason}\n")
        return lake

    def options_for(self, uri: str, root: str | None = None) -> dict[str, Any]:
        """Return the storage options for a URI: those of the lakehouse, as far as they apply to it."""
        from trinitylake_core.storage import options_for

        given = options_for(uri, root or self.root or uri, self.storage_options)
        return applicable(self.environment_options, uri) | given

    def at(self) -> Lakehouse:
        """Return the version that the options of ``AT`` choose, the newest one without them."""
        from pipelines.cli.commands import which

        options = self.options
        if options.version is None and options.timestamp is None and options.snapshot is None:
            return self.open()
        lake = self.open(damaged=True)
        return lake.at(**which.target(lake, options.version, options.timestamp, options.snapshot).keywords())

    @property
    def spark(self) -> LazySession:
        """The Spark session that the options of ``SPARK`` choose: read, and started, when it is first called for."""
        from pipelines.session import lazy_session

        if self._session is None:
            self._session = self.stack.enter_context(lazy_session(self._session_config))
        return self._session

    def _session_config(self) -> SessionConfig:
        from pipelines.session import SessionConfig

        options = self.options
        conf = dict(key_value("--spark-conf", each) for each in options.spark_conf)
        remote, master = options.remote, options.master
        if not (remote or master):
            remote, master = (os.environ.get(f"TRINITYLAKE_SPARK_{name}") for name in ("REMOTE", "MASTER"))
        mode = "connect" if remote else "local" if not master or _is_local(master) else "master"
        return SessionConfig(
            mode=mode,
            master=master or "local[*]",
            remote=remote,
            app_name=f"trinitylake {options.command}",
            conf=conf,
            log_level=self.log_level,
        )


def _is_local(master: str) -> bool:
    return master.startswith("local") and not master.startswith("local-cluster")


@dataclass(frozen=True, slots=True)
class Command:
    """A command of ``trinitylake``.

    Attributes:
        synopsis: name and arguments, such as ``snapshot create ROOT NAME``. Arguments are in capitals, optional
            ones in brackets.
        help: what the command does, in one line.
        example: an example of its use.
        run: the function that carries it out.
        options: its options, besides those that all commands have.
        arguments: the meaning of its arguments, by name.
        details: the rest of its help text.
    """

    synopsis: str
    help: str
    example: str
    run: Callable[[Call], Result]
    options: tuple[Option, ...] = ()
    arguments: Mapping[str, str] = field(default_factory=dict)
    details: str = ""

    @property
    def name(self) -> str:
        """The words that call the command."""
        return name_in(self.synopsis)

    @property
    def confirmed(self) -> bool:
        """Whether a person at a terminal is shown the plan and asked before it is carried out."""
        return any(each.name == "yes" for each in self.options)

    @property
    def positionals(self) -> list[tuple[str, bool]]:
        """Its arguments, and whether each is required."""
        words = ((word, _POSITIONAL.fullmatch(word)) for word in self.synopsis.split())
        return [(match[1], word == match[1]) for word, match in words if match is not None]


def name_in(synopsis: str) -> str:
    """Return the words of a synopsis that call the command: ``snapshot create`` of ``snapshot create ROOT NAME``."""
    return " ".join(word for word in synopsis.split() if not _POSITIONAL.fullmatch(word))


COMMANDS: Final[dict[str, Command]] = {}
"""What has been loaded so far; ``index`` knows the others."""


def command(
    synopsis: str,
    summary: str,
    example: str,
    *,
    options: Iterable[Option] = (),
    arguments: Mapping[str, str] | None = None,
    details: str = "",
) -> Callable[[Callable[[Call], Result]], Callable[[Call], Result]]:
    """Register a function as a command; the arguments are those of :class:`Command`."""

    def register(run: Callable[[Call], Result]) -> Callable[[Call], Result]:
        made = Command(synopsis, summary, example, run, tuple(options), arguments or {}, details)
        COMMANDS[made.name] = made
        return run

    return register


def key_value(what: str, text: str) -> tuple[str, str]:
    """Return the two sides of ``KEY=VALUE``. Raises ``InvalidInput``, which does not show the value."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise InvalidInput(f"{what} takes KEY=VALUE; {'the key is missing' if equals else 'there is no ='}")
    return key, value


def limited(rows: Iterator[T], limit: int | None) -> Iterator[T]:
    """Return the first rows, as many as ``--limit`` says. Raises ``InvalidInput``."""
    if limit is not None and limit < 0:
        raise InvalidInput(f"--limit must not be negative: {limit}")
    return islice(rows, limit)


def in_order(*parts: Iterable[Line]) -> Iterator[Line]:
    """Yield the lines of several parts, with an empty line between those that are not empty. Tables stay tables."""
    started = False
    for part in parts:
        whole: Iterable[Line] = ([part] if part else ()) if isinstance(part, Table) else part
        for index, line in enumerate(whole):
            if index == 0 and started:
                yield ""
            yield line
            started = True

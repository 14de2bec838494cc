"""What a command is for click: arguments, options, and a function from a call to a result.

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
from dataclasses import fields as fields_of
from itertools import islice
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import click
from click.core import ParameterSource

from pipelines.cli.contents import ENTRIES
from pipelines.cli.report import Table, fields, summarised
from pipelines.cli.resolve_root import applicable, storage_options
from trinitylake_core.durations import parse_age
from trinitylake_core.errors import InvalidInput

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from click.shell_completion import CompletionItem

    from pipelines.job import Progress, Review
    from pipelines.session import LazySession, SessionConfig
    from pipelines.summary import Summarised
    from trinitylake_core import Lakehouse

PROGRAM: Final = "trinitylake"
ROOT: Final = "ROOT"
ROOT_VARIABLE: Final = "TRINITYLAKE_ROOT"
DONE: Final = 0
FOUND_PROBLEMS: Final = 1
_LIKE_A_ROOT: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/|/|\.{1,2}(?:/|$)")
_NEGATIVE: Final = re.compile(r"-[0-9]")
_MARK: Final = "\0"
"""Put before a word such as ``-2h``, which is no option. No command line can hold it."""
_ROOT_HELP: Final = (
    f"root: a URI (s3://...), a path, or a name from lakehouses.yaml; may be omitted if {ROOT_VARIABLE} is set"
)

Line: TypeAlias = "str | Table"
T = TypeVar("T")
R = TypeVar("R")
C = TypeVar("C", bound="DataclassInstance")


@dataclass(frozen=True, slots=True)
class Result:
    """What a command returns: ``data`` for ``--json``, ``lines`` for people, the exit code, and ``table`` for CSV.

    All may hold iterators; only one of the three is read. ``committed`` is the version that the command committed, if
    ``data`` has no ``version_after``.
    """

    data: Any
    lines: Iterable[Line] = ()
    code: int = DONE
    table: Table | None = None
    committed: int | None = None


class Answer(Exception):
    """The words ask for a text, which is the message; ``data`` is what they get with ``--json``, if there is any."""

    def __init__(self, text: str, data: Mapping[str, Any] | None = None) -> None:
        super().__init__(text)
        self.data = data


# -- options -------------------------------------------------------------------------------------------


class Argument(click.Argument):
    """An argument of a command."""

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the candidates, where ROOT may be left out also those of the argument behind it."""
        from pipelines.cli.completion import candidates, root_left_out

        names = [self.name or ""]
        if names[0] == ROOT.lower() and isinstance(ctx.command, Command) and root_left_out(ctx):
            names += (each.lower() for each, _ in ctx.command.entry.arguments[1:2])
        return [found for name in names for found in candidates(ctx, name, incomplete)]


class Option(click.Option):
    """An option of a command. Options with the same ``group`` exclude each other; the settings are those of click."""

    def __init__(
        self, *names: str, group: str | None = None, choices: Iterable[str] | None = None, **settings: Any
    ) -> None:
        super().__init__(names, **settings if choices is None else settings | {"type": click.Choice(tuple(choices))})
        self.group = group

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the candidates: choices, or names that a lakehouse or ``lakehouses.yaml`` knows."""
        from pipelines.cli.completion import candidates

        return super().shell_complete(ctx, incomplete) or candidates(ctx, self.name or "", incomplete)


option = Option


def age(*names: str, default: float | None = None, **settings: Any) -> Option:
    """Return an option for an age such as ``12h``; its value is in seconds."""

    def seconds(_: click.Context, __: click.Parameter, given: str | None) -> float | None:
        return default if given is None else parse_age(given)

    return Option(*names, metavar="AGE", callback=seconds, **settings)


def answering(names: Sequence[str], answer: Callable[[click.Context], Answer], meaning: str) -> Option:
    """Return a flag that ends the command line with an answer."""

    def give(context: click.Context, _: click.Parameter, asked: Any) -> None:
        if asked and not context.resilient_parsing:
            raise answer(context)

    return Option(*names, is_flag=True, is_eager=True, expose_value=False, help=meaning, callback=give)


def _remember(context: click.Context, parameter: click.Parameter, given: Any) -> bool:
    """Note a flag for the command, wherever it stands: ``trinitylake --json ls`` is ``trinitylake ls --json``."""
    key = f"{PROGRAM}.{parameter.name}"
    context.meta[key] = given or context.meta.get(key, False)
    return bool(context.meta[key])


JSON: Final = option(
    "--json", is_flag=True, callback=_remember, help="print exactly one JSON document on standard output"
)
QUIET: Final = option("--quiet", is_flag=True, callback=_remember, help="do not print progress")
HELP: Final = answering(["-h", "--help"], lambda context: Answer(context.get_help().rstrip()), "show this text")
_STORAGE_OPTION: Final = option(
    "--storage-option",
    multiple=True,
    metavar="KEY=VALUE",
    help="a storage option; VALUE may be env:NAME for an environment variable; may be repeated",
)
COMMON: Final = (JSON, _STORAGE_OPTION, QUIET, HELP)
"""The options of every command."""

# -- calls ---------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Call:
    """One call of a command: the options as parsed, and what every command needs."""

    options: SimpleNamespace
    root: str
    storage_options: Mapping[str, Any]
    """Those of the command line, which are for ROOT."""
    progress: Progress
    stack: ExitStack
    ask: Callable[[Iterable[Line]], bool] | None = None
    """Shows a person the plan and asks; ``None`` where a program calls, or the person has agreed."""
    log_level: str = "OFF"
    environment_options: Mapping[str, Any] = field(default_factory=dict)
    """Storage options of the environment, for every root that takes them."""
    named: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Storage options in ``lakehouses.yaml`` for other places that the command line calls by name."""
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

        given = self.named.get(uri) or options_for(uri, root or self.root or uri, self.storage_options)
        return {**applicable(self.environment_options, uri), **given}

    def options_of(self, place: str, given: Sequence[str], root: str | None = None) -> dict[str, Any]:
        """Return the storage options for another place: those given for it, or else those of the lakehouse."""
        return storage_options(given) if given else self.options_for(place, root)

    def at(self) -> Lakehouse:
        """Return the version that the options of ``AT`` choose, the newest one without them."""
        from pipelines import version_ref

        options = self.options
        if options.version is None and options.timestamp is None and options.snapshot is None:
            return self.open()
        lake = self.open(damaged=True)
        return lake.at(**version_ref.target(lake, options.version, options.timestamp, options.snapshot).keywords())

    def review(self, result: Callable[[R], Result] | None = None) -> Review[R] | None:
        """Return the review of a job: that of a dry run, the person at the terminal, or none.

        Args:
            result: what a person is shown of the plan; without it, no person is asked.
        """
        from pipelines.job import dry_run

        ask = self.ask
        if self.options.dry_run:
            return dry_run
        if ask is None or result is None:
            return None

        def agreed(planned: R) -> bool:
            first = next(iter(planned.summary())) if hasattr(planned, "summary") else ""
            return first.startswith("nothing ") or ask(result(planned).lines)

        return agreed

    def config(self, kind: type[C], **given: Any) -> C:
        """Return the configuration of a job: the options with the names of its fields, and what is given."""
        names = {each.name for each in fields_of(kind)} & vars(self.options).keys() - given.keys()
        return kind(**{name: getattr(self.options, name) for name in names}, **given)

    def carry_out(self, run: Callable[..., R], *what: Any, show: Callable[[R], Result] | None = None, **more: Any) -> R:
        """Return the report of a job that may use Spark; ``show`` as ``result`` of :meth:`review`."""
        return run(*what, self.spark, review=self.review(show), progress=self.progress, **more)

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
        local = not master or (master.startswith("local") and not master.startswith("local-cluster"))
        mode = "connect" if remote else "local" if local else "master"
        return SessionConfig(
            mode=mode,
            master=master or "local[*]",
            remote=remote,
            app_name=f"trinitylake {options.command}",
            conf=conf,
            log_level=self.log_level,
        )


# -- commands ------------------------------------------------------------------------------------------


class Command(click.Command):
    """A command of ``trinitylake``.

    Args:
        name: its name in the table of contents.
        run: the function that carries it out.
        example: an example of its use.
        options: its options, besides those that all commands have.
        meanings: the meaning of its arguments, by name.
        details: the rest of its help text.
    """

    def __init__(
        self,
        name: str,
        run: Callable[[Call], Result],
        example: str,
        options: Iterable[Option] = (),
        meanings: Mapping[str, str] | None = None,
        details: str = "",
    ) -> None:
        self.entry = ENTRIES[name]
        self.run, self.example, self.options, self.details = run, example, tuple(options), details
        self.meanings = {ROOT: _ROOT_HELP, **(meanings or {})}
        arguments = (Argument([each.lower()], required=False) for each, _ in self.entry.arguments)
        params = [*self.options, *COMMON, *arguments]
        super().__init__(name, params=params, add_help_option=False, short_help=self.entry.summary)

    @property
    def confirmed(self) -> bool:
        """Whether a person at a terminal is shown the plan and asked before it is carried out."""
        return any(each.name == "yes" for each in self.options)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse options and arguments. ROOT may come from the environment; options of a group exclude each other."""
        valued = {name for each in self.params for name in each.opts if not getattr(each, "is_flag", False)}
        before = ["", *args]
        marked = (
            f"{_MARK}{word}" if _NEGATIVE.match(word) and before[number] not in valued else word
            for number, word in enumerate(args)
        )
        rest = super().parse_args(ctx, list(marked))
        if not ctx.resilient_parsing:
            first: dict[str, str] = {}
            for each in self.options:
                if each.group and ctx.get_parameter_source(each.name or "") is ParameterSource.COMMANDLINE:
                    if each.group in first:
                        raise click.UsageError(f"{each.opts[0]} is not allowed with {first[each.group]}", ctx)
                    first[each.group] = each.opts[0]
            self._assign(ctx)
            _choose(ctx)
        return rest

    def _assign(self, ctx: click.Context) -> None:
        """Assign the words to the arguments: ROOT may be left out."""
        names = self.entry.arguments
        given = (ctx.params.pop(name.lower()) for name, _ in names)
        words = [word.removeprefix(_MARK) for word in given if word is not None]
        root = os.environ.get(ROOT_VARIABLE)
        if root and names and names[0][0] == ROOT:  # left out by the number of words, or else by the look of the first
            few = len(words) < sum(required for _, required in names)
            if few or (len(words) < len(names) and _LIKE_A_ROOT.match(words[0]) is None):
                words = [root, *words]
        for name, required in names[len(words) :]:
            if required:
                hint = f"; pass it, or set {ROOT_VARIABLE}" if name == ROOT else ""
                raise click.UsageError(f"{name} is missing{hint}", ctx)
        ctx.params |= {name.lower(): None for name, _ in names}
        ctx.params |= {name.lower(): word for (name, _), word in zip(names, words, strict=False)}

    def invoke(self, ctx: click.Context) -> int:
        """Carry the command out, and return its exit code. ``ctx.obj`` does it, for it reports errors, too."""
        carry_out: Callable[[Command, SimpleNamespace, str], int] = ctx.obj
        return carry_out(self, SimpleNamespace(**ctx.params, command=self.name), ctx.params.get(ROOT.lower()) or "")

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write usage, summary, arguments, details, options and an example."""
        summary = self.entry.summary
        formatter.write_usage(PROGRAM, f"{self.entry.synopsis} [options]", prefix="usage: ")
        formatter.write(f"\n{summary[0].upper()}{summary[1:]}.\n")
        if meanings := [(name, self.meanings.get(name, "")) for name, _ in self.entry.arguments]:
            formatter.write("\n")
            with formatter.indentation():
                formatter.write_dl(meanings)
        formatter.write(f"\n{self.details}\n" if self.details else "")
        self.format_options(ctx, formatter)
        formatter.write(f"\nexample:\n  {self.example}\n")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options."""
        with formatter.section("options"):
            records = (each.get_help_record(ctx) for each in (*self.options, *COMMON))
            formatter.write_dl([each for each in records if each is not None])


def command(
    name: str,
    example: str,
    *,
    options: Iterable[Option] = (),
    arguments: Mapping[str, str] | None = None,
    details: str = "",
) -> Callable[[Callable[[Call], Result]], Command]:
    """Make a command of a function; the other arguments are those of :class:`Command`."""
    return lambda run: Command(name, run, example, options, arguments, details)


def _choose(ctx: click.Context) -> None:
    """Settle what ``--format``, ``--json`` and ``--engine`` mean together with other options."""
    if ctx.params["json"] and ctx.params.get("format") == "csv":
        raise click.UsageError("--format csv is not allowed with --json", ctx)
    ctx.params["json"] |= ctx.params.get("format") == "json"
    engine, of_spark = ctx.params.get("engine", ""), [each for each in ("master", "remote") if ctx.params.get(each)]
    if engine is None:
        ctx.params["engine"] = engine = "spark" if of_spark else "auto"
    if engine == "local" and of_spark:
        raise click.UsageError(f"--engine local never starts Spark: leave out --engine or --{of_spark[0]}", ctx)
    if engine == "spark":
        from pipelines.session import check_pyspark

        check_pyspark()


def reported(call: Call, done: Summarised, *more: str, code: int = DONE) -> Result:
    """Return a report of a job as a result; with ``--verbose`` every field stands below its sentences."""
    return Result(done, in_order(*summarised(done, *more), fields(done) if call.options.verbose else ()), code)


def key_value(what: str, text: str) -> tuple[str, str]:
    """Return the two sides of ``KEY=VALUE``. Raises ``InvalidInput``, which does not show the value."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise InvalidInput(f"{what} takes KEY=VALUE; {'the key is missing' if equals else 'there is no ='}")
    return key, value


def limited(rows: Iterator[T], limit: int | None) -> Iterator[T]:
    """Return the first rows, ``--limit`` of them. Raises ``InvalidInput``."""
    if limit is not None and limit < 0:
        raise InvalidInput(f"--limit must not be negative: {limit}")
    return islice(rows, None if limit is None else min(limit, sys.maxsize))


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


def or_else(lines: Iterator[Line], nothing: str) -> Iterator[Line]:
    """Yield lines; if there are none, what to print instead."""
    first = next(lines, None)
    yield nothing if first is None else first
    yield from lines

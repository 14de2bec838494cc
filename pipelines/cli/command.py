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
from itertools import islice, zip_longest
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import click
from click.core import ParameterSource

from pipelines.cli.contents import ALIASES, ENTRIES, OPTION_ALIASES
from pipelines.cli.report import TextTable, fields, summarise
from pipelines.cli.resolve_root import applicable, storage_options
from trinitylake_core.durations import parse_age
from trinitylake_core.errors import InvalidInput
from trinitylake_core.sizes import parse_size

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from click.shell_completion import CompletionItem

    from pipelines.job import Progress, Review
    from pipelines.reports.summary import Summarised
    from pipelines.session import LazySession, SessionConfig
    from trinitylake_core import Lakehouse
    from trinitylake_core.storage import Options

PROGRAM: Final = "trinitylake"
ROOT: Final = "ROOT"
ROOT_VARIABLE: Final = "TRINITYLAKE_ROOT"
DONE: Final = 0
FOUND_PROBLEMS: Final = 1
_LIKE_A_ROOT: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/|/|\.{1,2}(?:/|$)")
_NEW_NAMES: Final = frozenset({"NAME", "TARGET"})
"""Arguments that are whatever name people choose."""
_NEGATIVE: Final = re.compile(r"-[0-9]")
_MARK: Final = "\0"
"""Put before a word such as ``-2h``, which is no option. No command line can hold it."""
_ROOT_HELP: Final = (
    f"root: a URI (s3://...), a path, or a name from lakehouses.yaml; may be omitted if {ROOT_VARIABLE} is set, or "
    "lakehouses.yaml has one"
)

Line: TypeAlias = "str | TextTable"
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
    table: TextTable | None = None
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
            names += [name.lower() for name, _ in ctx.command.entry.arguments[1:2]]
        found = []
        for name in names:
            found += candidates(ctx, name, incomplete)
        return found


class Option(click.Option):
    """An option of a command. Options with the same ``group`` exclude each other; the settings are those of click."""

    def __init__(
        self,
        *names: str,
        group: str | None = None,
        choices: Iterable[str] | None = None,
        **settings: Any,
    ) -> None:
        if choices is not None:
            settings["type"] = click.Choice(tuple(choices))
        super().__init__(names, **settings)
        self.group = group

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the candidates: choices, or names that a lakehouse or ``lakehouses.yaml`` knows."""
        from pipelines.cli.completion import candidates

        return super().shell_complete(ctx, incomplete) or candidates(ctx, self.name or "", incomplete)


option = Option


def age(*names: str, default: float | None = None, **settings: Any) -> Option:
    """Return an option for an age such as ``12h``; its value is in seconds."""

    def parse_seconds(_: click.Context, __: click.Parameter, given: str | None) -> float | None:
        if given is None:
            return default
        return parse_age(given)

    return Option(*names, metavar="AGE", callback=parse_seconds, **settings)


def size(*names: str, **settings: Any) -> Option:
    """Return an option for a size such as ``256MiB``; its value is in bytes."""

    def parse_bytes(_: click.Context, __: click.Parameter, given: str | None) -> int | None:
        return None if given is None else parse_size(given)

    return Option(*names, metavar="SIZE", callback=parse_bytes, **settings)


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
    help="a storage option; VALUE may be env:NAME for an environment variable, file:PATH for a file; may be repeated",
)
COMMON: Final = (JSON, _STORAGE_OPTION, QUIET, HELP)
"""The options of every command."""

# -- calls ---------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Call:
    """One call of a command: the options as parsed, and what every command needs."""

    options: SimpleNamespace
    root: str
    storage_options: Options
    """Those of the command line, which are for ROOT."""
    progress: Progress
    stack: ExitStack
    ask: Callable[[Iterable[Line]], bool] | None = None
    """Shows a person the plan and asks; ``None`` where a program calls, or the person has agreed."""
    log_level: str = "OFF"
    environment_options: Options = field(default_factory=dict)
    """Storage options of the environment, for every root that takes them."""
    named: Mapping[str, Options] = field(default_factory=dict)
    """Storage options in ``lakehouses.yaml`` for other places that the command line calls by name."""
    _session: LazySession | None = field(default=None)

    def open(self, root: str | None = None, *, damaged: bool = False) -> Lakehouse:
        """Return the newest version of the lakehouse, or of another one.

        With ``damaged`` it is the newest that can be read, and those after it are named on stderr.
        """
        from trinitylake_core import Lakehouse

        if root is None:
            where = self.root
        else:
            where = root
        lake = Lakehouse.open(where, storage_options=self.options_for(where), damaged=damaged)
        for each in lake.unreadable:
            sys.stderr.write(f"warning: version {each.version} is left out: {each.reason}\n")
        return lake

    def options_for(self, uri: str, root: str | None = None) -> dict[str, Any]:
        """Return the storage options for a URI: those of the lakehouse, as far as they apply to it."""
        from trinitylake_core.storage import options_for

        options = applicable(self.environment_options, uri)
        own = self.named.get(uri)
        if own:
            options.update(own)
        else:
            lakehouse = root or self.root or uri
            options.update(options_for(uri, lakehouse, self.storage_options))
        return options

    def options_of(self, place: str, given: Sequence[str], root: str | None = None) -> dict[str, Any]:
        """Return the storage options for another place: those given for it, or else those of the lakehouse."""
        if given:
            return storage_options(given)
        return self.options_for(place, root)

    def at(self) -> Lakehouse:
        """Return the version that the options of ``AT`` choose, the newest one without them."""
        from pipelines.source import version_ref

        options = self.options
        if options.version is None and options.timestamp is None and options.snapshot is None:
            return self.open()
        # Older versions stay readable where the newest one is damaged.
        lake = self.open(damaged=True)
        target = version_ref.target(lake, options.version, options.timestamp, options.snapshot)
        return lake.at(**target.keywords())

    def review(self, result: Callable[[R], Result] | None = None) -> Review[R] | None:
        """Return the review of a job: that of a dry run, the person at the terminal, or none.

        Args:
            result: what a person is shown of the plan; without it, no person is asked.
        """
        from pipelines.job import dry_run

        if self.options.dry_run:
            return dry_run
        ask = self.ask
        if ask is None or result is None:
            return None

        def ask_person(planned: R) -> bool:
            if _says_nothing_to_do(planned):
                return True
            return ask(result(planned).lines)

        return ask_person

    def config(self, kind: type[C], **given: Any) -> C:
        """Return the configuration of a job: the options with the names of its fields, and what is given."""
        fields_given = dict(given)
        for field_of_kind in fields_of(kind):
            name = field_of_kind.name
            if name not in given and hasattr(self.options, name):
                fields_given[name] = getattr(self.options, name)
        return kind(**fields_given)

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
        remote = options.remote
        master = options.master
        if not remote and not master:
            remote = os.environ.get("TRINITYLAKE_SPARK_REMOTE")
            master = os.environ.get("TRINITYLAKE_SPARK_MASTER")
        if remote:
            mode = "connect"
        elif not master or _is_in_this_process(master):
            mode = "local"
        else:
            mode = "master"
        return SessionConfig(
            mode=mode,
            master=master or "local[*]",
            remote=remote,
            app_name=f"trinitylake {options.command}",
            conf=dict(key_value("--spark-conf", each) for each in options.spark_conf),
            secret=os.environ.get("TRINITYLAKE_SPARK_SECRET") if mode == "master" else None,
            log_level=self.log_level,
            iceberg=getattr(options, "iceberg", None),
        )


def _only_lakehouse(words: Sequence[str]) -> list[str]:
    """Return the name of the only lakehouse in ``lakehouses.yaml``, unless the first word looks like a root itself."""
    from pipelines.cli.resolve_root import names

    found = names()
    if len(found) != 1 or (words and (words[0] in found or _LIKE_A_ROOT.match(words[0]))):
        return []
    return found


def _says_nothing_to_do(planned: Any) -> bool:
    """Whether a plan is empty, so that there is nothing to ask a person."""
    if not hasattr(planned, "summary"):
        return False
    first = next(iter(planned.summary()))
    return str(first).startswith("nothing ")


def _is_in_this_process(master: str) -> bool:
    return master.startswith("local") and not master.startswith("local-cluster")


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
        self.run = run
        self.example = example
        self.options = tuple(options)
        self.details = details
        self.meanings = {ROOT: _ROOT_HELP, **(meanings or {})}
        # ROOT may be left out, so `_assign` decides what is missing, not click.
        arguments = [Argument([argument.lower()], required=False) for argument, _ in self.entry.arguments]
        super().__init__(
            name,
            params=[*self.options, *COMMON, *arguments],
            add_help_option=False,
            short_help=self.entry.summary,
        )

    @property
    def asks_first(self) -> bool:
        """Whether a person at a terminal is shown the plan and asked before it is carried out."""
        return any(each.name == "yes" for each in self.options)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse options and arguments. ROOT may come from the environment; options of a group exclude each other."""
        rest = super().parse_args(ctx, self._settle_words(args))
        if not ctx.resilient_parsing:
            self._refuse_two_of_a_group(ctx)
            self._assign(ctx)
            _choose(ctx)
        return rest

    def _settle_words(self, args: Iterable[str]) -> list[str]:
        """Return the words, each option by the name that it has here.

        Words such as ``-2h`` are marked: click would take them for options. The value of an option stays as it is, and
        so does what stands behind ``--``.
        """
        options = [each for each in self.params if isinstance(each, click.Option)]
        known = {name for each in options for name in each.opts}
        valued = {name for each in options if not each.is_flag for name in each.opts}
        settled: list[str] = []
        words = iter(args)
        for word in words:
            if word == "--":
                return [*settled, word, *words]
            name, equals, value = word.partition("=")
            meant = OPTION_ALIASES.get(name)
            own = f"{meant}{equals}{value}" if meant in known and name not in known else word
            settled.append(f"{_MARK}{own}" if _NEGATIVE.match(own) else own)
            if own in valued:
                settled += islice(words, 1)
        return settled

    def _refuse_two_of_a_group(self, ctx: click.Context) -> None:
        first: dict[str, str] = {}
        for each in self.options:
            if not each.group or ctx.get_parameter_source(each.name or "") is not ParameterSource.COMMANDLINE:
                continue
            other = first.setdefault(each.group, each.opts[0])
            if other != each.opts[0]:
                raise click.UsageError(f"{each.opts[0]} is not allowed with {other}", ctx)

    def _assign(self, ctx: click.Context) -> None:
        """Assign the words to the arguments: ROOT may be left out."""
        arguments = self.entry.arguments
        words = []
        for name, _ in arguments:
            word = ctx.params.pop(name.lower())
            if word is not None:
                words.append(word.removeprefix(_MARK))
        root = os.environ.get(ROOT_VARIABLE)
        given = len(words)
        if root and self._leaves_root_out(words):
            words = [root, *words]
        elif not root and arguments[:1] == [(ROOT, True)] and self._lacks_one(words):
            words = [*_only_lakehouse(words), *words]
        if len(words) > given and len(arguments) > 1 < len(words):
            self._refuse_command_word(ctx, words)
        for name, required in arguments[len(words) :]:
            if required:
                if name == ROOT:
                    hint = f"; pass it, or set {ROOT_VARIABLE}"
                else:
                    hint = f": `{self.entry.synopsis}`"
                raise click.UsageError(f"{name} is missing{hint}", ctx)
        for (name, _), given in zip_longest(arguments, words):
            ctx.params[name.lower()] = given

    def _refuse_command_word(self, ctx: click.Context, words: Sequence[str]) -> None:
        """Refuse a name that is a command, where nobody has named ROOT: ``tag history`` would make a snapshot."""
        name, is_required = self.entry.arguments[1]
        word = words[1]
        is_command = word in ENTRIES or word in ALIASES
        if is_command and is_required and name in _NEW_NAMES:
            raise click.UsageError(f"{word!r} is a command; if {name} is called so, name ROOT, too", ctx)

    def _lacks_one(self, words: Sequence[str]) -> bool:
        """Whether there is one word less than the command needs."""
        return len(words) + 1 == sum(required for _, required in self.entry.arguments)

    def _leaves_root_out(self, words: Sequence[str]) -> bool:
        """Whether ROOT is not among the words: by their number, or else by the look of the first."""
        arguments = self.entry.arguments
        if not arguments or arguments[0][0] != ROOT:
            return False
        needed = sum(required for _, required in arguments)
        if len(words) < needed:
            return True
        return len(words) < len(arguments) and _LIKE_A_ROOT.match(words[0]) is None

    def invoke(self, ctx: click.Context) -> int:
        """Carry the command out, and return its exit code. ``ctx.obj`` does it, for it reports errors, too."""
        carry_out: Callable[[Command, SimpleNamespace, str], int] = ctx.obj
        options = SimpleNamespace(**ctx.params, command=self.name)
        root = ctx.params.get(ROOT.lower()) or ""
        return carry_out(self, options, root)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write usage, summary, arguments, details, options and an example."""
        summary = self.entry.summary
        formatter.write_usage(PROGRAM, f"{self.entry.synopsis} [options]", prefix="usage: ")
        formatter.write(f"\n{summary[0].upper()}{summary[1:]}.\n")
        meanings = [(name, self.meanings.get(name, "")) for name, _ in self.entry.arguments]
        if meanings:
            formatter.write("\n")
            with formatter.indentation():
                formatter.write_dl(meanings)
        if self.details:
            formatter.write(f"\n{self.details}\n")
        self.format_options(ctx, formatter)
        formatter.write(f"\nexample:\n  {self.example}\n")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options."""
        records = []
        for each in (*self.options, *COMMON):
            record = each.get_help_record(ctx)
            if record is not None:
                records.append(record)
        with formatter.section("options"):
            formatter.write_dl(records)


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
    params = ctx.params
    if params["json"] and params.get("format") == "csv":
        raise click.UsageError("--format csv is not allowed with --json", ctx)
    if params.get("format") == "json":
        params["json"] = True
    if "engine" not in params:
        return
    of_spark = [name for name in ("master", "remote") if params.get(name)]
    if params["engine"] is None:
        params["engine"] = "spark" if of_spark else "auto"
    if params["engine"] == "local" and of_spark:
        raise click.UsageError(f"--engine local never starts Spark: leave out --engine or --{of_spark[0]}", ctx)
    if params["engine"] == "spark":
        from pipelines.session import check_pyspark

        check_pyspark()


def report_result(call: Call, done: Summarised, *more: str, code: int = DONE) -> Result:
    """Return a report of a job as a result; with ``--verbose`` every field stands below its sentences."""
    parts = [*summarise(done, *more)]
    if call.options.verbose:
        parts.append(fields(done))
    return Result(done, in_order(*parts), code)


def key_value(what: str, text: str) -> tuple[str, str]:
    """Return the two sides of ``KEY=VALUE``. Raises ``InvalidInput``, which does not show the value."""
    key, equals, value = text.partition("=")
    if not key:
        raise InvalidInput(f"{what} takes KEY=VALUE; the key is missing")
    if not equals:
        raise InvalidInput(f"{what} takes KEY=VALUE; there is no =")
    return key, value


def take_first(rows: Iterator[T], limit: int | None) -> Iterator[T]:
    """Return the first rows, ``--limit`` of them. Raises ``InvalidInput``."""
    if limit is None:
        return rows
    if limit < 0:
        raise InvalidInput(f"--limit must not be negative: {limit}")
    return islice(rows, min(limit, sys.maxsize))


def in_order(*parts: Iterable[Line]) -> Iterator[Line]:
    """Yield the lines of several parts, with an empty line between those that are not empty. Tables stay tables."""
    has_begun = False
    for part in parts:
        lines = part
        if isinstance(part, TextTable):
            lines = [part] if part else []  # what prints it lays it out
        is_first = True
        for line in lines:
            if is_first and has_begun:
                yield ""
            yield line
            is_first = False
            has_begun = True


def or_else(lines: Iterator[Line], nothing: str) -> Iterator[Line]:
    """Yield lines; if there are none, what to print instead."""
    first = next(lines, None)
    if first is None:
        yield nothing
        return
    yield first
    yield from lines

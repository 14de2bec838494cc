"""From the words of a command line to a command and its options, by click.

Click parses options, completes and wraps help texts. What it has no notion of is here: ROOT may come from the
environment, so that the words without ``--`` are assigned to arguments after all options are known.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Final, TypeAlias

import click

from pipelines.cli.commands import index
from pipelines.cli.commands.command import ROOT, Command, Option, option
from pipelines.cli.usage import ROOT_VARIABLE, UsageError, assigned, message_of, unknown

PROGRAM: Final = "trinitylake"
COMPLETE_VARIABLE: Final = "_TRINITYLAKE_COMPLETE"
Run: TypeAlias = Callable[[Command, SimpleNamespace, str], int]
"""Carries out a command with its options and its ROOT, and returns the exit code."""

_WORDS: Final = "words"
_HELP: Final = ["-h", "--help"]
_NEGATIVE: Final = re.compile(r"-[0-9]")
_MARK: Final = "\0"
"""Put before a word such as ``-2h``, which is no option. No command line can hold it."""
_ROOT_HELP: Final = (
    f"root: a URI (s3://...), a path, or a name from lakehouses.yaml; may be omitted if {ROOT_VARIABLE} is set"
)
_EVERYWHERE: Final = ("json", "quiet")
"""Options that may also stand before the command."""
_ENVIRONMENT: Final = """
environment:
  TRINITYLAKE_ROOT             ROOT, if it is omitted
  TRINITYLAKE_LAKEHOUSES       lakehouses.yaml (default: the nearest one upwards)
  TRINITYLAKE_STORAGE_OPTIONS  storage options, as a JSON object
  TRINITYLAKE_SPARK_MASTER     default of --master
  TRINITYLAKE_SPARK_REMOTE     default of --remote
  TRINITYLAKE_DEBUG            1: show tracebacks and Spark's log
  PAGER, NO_COLOR              what shows long lists on a terminal; no colours there

exit codes:
  0 done   1 the check found problems   2 wrong usage or input
  3 a conflict or a refused operation   4 the storage failed, or data is damaged
"""


JSON_VERSION: Final = 1
"""Version of the contract on ``--json`` (``docs/json.md``): raised when a field goes, or changes its type."""


class Answer(Exception):
    """The words ask for a text, which is the message; ``data`` is what they get with ``--json``, if there is any."""

    def __init__(self, text: str, data: Mapping[str, Any] | None = None) -> None:
        super().__init__(text)
        self.data = data


def run(words: Sequence[str], carry_out: Run) -> int:
    """Parse a command line and carry it out. Returns the exit code.

    Raises:
        Answer: the words ask for a text: ``--help``, ``--version``.
        UsageError: they are not a valid command line; the message says what would be.
    """
    given = [*words[1:], "--help"] if words and words[0] == "help" else list(words)
    try:
        with program().make_context(PROGRAM, given, obj=carry_out) as context:
            return int(context.command.invoke(context))
    except click.UsageError as error:
        command = error.cmd.name if isinstance(error.cmd, _Leaf) else None
        raise UsageError(message_of(error, given, command)) from None


def program() -> click.Group:
    """Return the whole command line."""
    return _Group("")


def overview() -> str:
    """Return the help text of ``trinitylake`` itself."""
    top = program()
    return top.get_help(click.Context(top, info_name=PROGRAM, max_content_width=120))


def _answers(give: Callable[[click.Context], Answer]) -> Callable[[click.Context, click.Parameter, Any], None]:
    def answer(context: click.Context, _: click.Parameter, asked: Any) -> None:
        if asked and not context.resilient_parsing:
            raise give(context)

    return answer


def _asking(names: Sequence[str], give: Callable[[click.Context], Answer], meaning: str) -> click.Option:
    callback = _answers(give)
    return click.Option(names, is_flag=True, is_eager=True, expose_value=False, help=meaning, callback=callback)


def _common() -> list[click.Parameter]:
    return [
        option("--json", is_flag=True, help="print exactly one JSON document on standard output"),
        option(
            "--storage-option",
            multiple=True,
            metavar="KEY=VALUE",
            help="a storage option; VALUE may be env:NAME for an environment variable; may be repeated",
        ),
        option("--quiet", is_flag=True, help="do not print progress"),
        _asking(_HELP, lambda context: Answer(context.get_help().rstrip()), "show this text"),
    ]


class _Group(click.Group):
    """All commands whose names begin with the same words; with none, the whole program."""

    def __init__(self, prefix: str) -> None:
        params = [each for each in _common() if each.name != "storage_option"]
        if not prefix:
            params.append(_asking(["--version"], _version_answer, "show the version, and with --json that of the JSON"))
        super().__init__(
            prefix or PROGRAM, params=params, add_help_option=False, invoke_without_command=True, callback=self._alone
        )
        self.prefix = f"{prefix} " if prefix else ""
        self.context_settings = {"max_content_width": 120}
        self.help = f"Commands that begin with `{prefix}`." if prefix else "Maintenance of TrinityLake lakehouses."

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the next words of all commands, in the order of the overview."""
        rest = [name.removeprefix(self.prefix) for name in index.names() if name.startswith(self.prefix)]
        return list(dict.fromkeys(name.split()[0] for name in rest))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command by its next word, or the group of those that begin with it."""
        name = f"{self.prefix}{cmd_name}"
        found = index.find(name)
        if found is not None:
            return _Leaf(found)
        return _Group(name) if any(each.startswith(f"{name} ") for each in index.names()) else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the next word names. Raises ``UsageError`` with the one that may be meant."""
        found = self.get_command(ctx, args[0])
        if found is None and self.prefix:
            raise UsageError(self._needs(ctx))
        if found is None and not ctx.resilient_parsing:
            raise UsageError(unknown(args[0], [*self.list_commands(ctx), *index.ALIASES]))
        return args[0], found, args[1:]

    def _needs(self, context: click.Context) -> str:
        return f"{self.prefix}needs one of: {', '.join(self.list_commands(context))}"

    def _alone(self, **_: Any) -> None:
        context = click.get_current_context()
        if context.invoked_subcommand is None:
            raise UsageError(
                self._needs(context) if self.prefix else "say which command; `trinitylake --help` lists them"
            )

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write usage, every command with its summary, and an example or the environment."""
        formatter.write_usage(PROGRAM, f"{self.prefix}<command> ROOT [options]", prefix="usage: ")
        formatter.write(f"\n{self.help}\n")
        example = ""
        for title, section in index.sections().items():
            rows = [row for row in section if row[0].startswith(self.prefix)]
            if rows:
                example = example or rows[0][0]
                with formatter.section(title if not self.prefix else "commands"):
                    formatter.write_dl(rows, col_max=32)
        if self.prefix:
            shown = index.find(" ".join(example.split()[:2]))
            formatter.write(f"\nexample:\n  {shown.example}\n" if shown is not None else "")
        else:
            formatter.write("\n`trinitylake <command> --help` shows the options of a command, with an example.\n")
            formatter.write(_ENVIRONMENT)


class _Leaf(click.Command):
    """One command."""

    def __init__(self, command: Command) -> None:
        params: list[click.Parameter] = [*command.options, *_common()]
        params.append(click.Argument([_WORDS], nargs=-1, type=click.UNPROCESSED))
        super().__init__(command.name, params=params, add_help_option=False, short_help=command.help)
        self.command = command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the options, refuse those that exclude each other, and assign the words to the arguments."""
        valued = {
            name for each in self.params if isinstance(each, click.Option) and not each.is_flag for name in each.opts
        }
        before = ["", *args]
        marked = [
            f"{_MARK}{word}" if _NEGATIVE.match(word) and before[number] not in valued else word
            for number, word in enumerate(args)
        ]
        rest = super().parse_args(ctx, marked)
        if not ctx.resilient_parsing:
            self._finish(ctx)
        return rest

    def _finish(self, ctx: click.Context) -> None:
        self._refuse_excluding(ctx)
        for name in _EVERYWHERE:
            ctx.params[name] = ctx.params[name] or any(each.params.get(name) for each in _parents(ctx))
        if ctx.params["json"] and ctx.params.get("format") == "csv":
            raise click.UsageError("argument --format: csv is not allowed with argument --json", ctx)
        ctx.params["json"] |= ctx.params.get("format") == "json"
        if ctx.params.get("engine", "") is None:
            ctx.params["engine"] = "spark" if ctx.params.get("master") or ctx.params.get("remote") else "auto"
        words = [word.removeprefix(_MARK) for word in ctx.params.pop(_WORDS)]
        try:
            values = assigned(self.command, words, os.environ.get(ROOT_VARIABLE))
        except UsageError as error:
            raise click.UsageError(str(error), ctx) from None
        ctx.params |= {name.lower(): value for name, value in values.items()}
        ctx.meta[ROOT] = values.get(ROOT) or ""

    def _refuse_excluding(self, ctx: click.Context) -> None:
        first: dict[str, str] = {}
        for each in self.params:
            source = ctx.get_parameter_source(each.name or "")
            if isinstance(each, Option) and each.group and source is click.core.ParameterSource.COMMANDLINE:
                if each.group in first:
                    message = f"argument {each.opts[0]}: not allowed with argument {first[each.group]}"
                    raise click.UsageError(message, ctx)
                first[each.group] = each.opts[0]

    def invoke(self, ctx: click.Context) -> int:
        """Carry the command out."""
        carry_out: Run = ctx.obj
        return carry_out(self.command, SimpleNamespace(**ctx.params, command=self.command.name), ctx.meta[ROOT])

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write usage, summary, arguments, details, options and an example."""
        command = self.command
        formatter.write_usage(PROGRAM, f"{command.synopsis} [options]", prefix="usage: ")
        formatter.write(f"\n{command.help[0].upper()}{command.help[1:]}.\n")
        meanings = [(name, _meaning(command, name)) for name, _ in command.positionals]
        if meanings:
            formatter.write("\n")
            with formatter.indentation():
                formatter.write_dl(meanings)
        formatter.write(f"\n{command.details}\n" if command.details else "")
        with formatter.section("options"):
            options = (each.get_help_record(ctx) for each in self.params if isinstance(each, click.Option))
            formatter.write_dl([each for each in options if each is not None])
        formatter.write(f"\nexample:\n  {command.example}\n")


def _meaning(command: Command, name: str) -> str:
    return command.arguments.get(name, _ROOT_HELP if name == ROOT else "")


def _parents(context: click.Context) -> list[click.Context]:
    return [] if context.parent is None else [context.parent, *_parents(context.parent)]


def _version_answer(_: click.Context) -> Answer:
    from importlib import metadata  # takes longer to load than everything else that a help text needs

    try:
        found = metadata.version("trinitylake-maintenance")
    except metadata.PackageNotFoundError:
        found = "(not installed)"
    return Answer(f"{PROGRAM} {found}", {"version": found, "json": JSON_VERSION})

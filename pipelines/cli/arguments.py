"""Parses the words of a command line into a command and its options."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Final, NoReturn

from pipelines.cli.commands import COMMANDS, Command
from pipelines.cli.commands.command import ROOT, Option, option
from trinitylake_core.errors import InvalidInput

ROOT_VARIABLE: Final = "TRINITYLAKE_ROOT"
_LIKE_A_ROOT: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/|/|\.{1,2}(?:/|$)")
_ROOT_HELP: Final = f"root URI, file:///... or s3://...; may be omitted if {ROOT_VARIABLE} is set"
_COMMON: Final = (
    option("--json", action="store_true", help="print exactly one JSON document on standard output"),
    option(
        "--storage-option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a storage option; VALUE may be env:NAME for an environment variable; may be repeated",
    ),
    option("--quiet", action="store_true", help="do not print progress"),
)
_BEFORE_THE_COMMAND: Final = frozenset({"--json", "--quiet"})
_ENVIRONMENT: Final = """\
environment:
  TRINITYLAKE_ROOT             root URI, if ROOT is omitted
  TRINITYLAKE_STORAGE_OPTIONS  storage options, as a JSON object
  TRINITYLAKE_SPARK_MASTER     default of --master
  TRINITYLAKE_SPARK_REMOTE     default of --remote
  TRINITYLAKE_DEBUG            1: show tracebacks and Spark's log

exit codes:
  0 done   1 the check found problems   2 wrong usage or input
  3 a conflict or a refused operation   4 the storage failed, or data is damaged"""


class UsageError(InvalidInput):
    """The words are not a valid command line."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """A parsed command line. ``command`` is ``None`` if there were no words."""

    command: Command | None
    options: argparse.Namespace
    root: str = ""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def parse(words: Sequence[str], environment: Mapping[str, str]) -> Arguments | str:
    """Return the parsed command line, or the text that it asks for (``--help``, ``--version``).

    Raises:
        UsageError: it is not valid; the message says what would be.
    """
    leading = [word for word in words[: _leading(words)] if word in _BEFORE_THE_COMMAND]
    rest = list(words[len(leading) :])
    if not rest:
        return Arguments(None, argparse.Namespace(storage_option=[]))
    if rest[0] in {"-h", "--help", "help"}:
        if len(rest) == 2 and rest[1] not in COMMANDS and _group(rest[1]):
            return group_help(rest[1])
        return overview() if len(rest) == 1 else help_of(_command(rest[1:]))
    if rest[0] == "--version":
        return f"trinitylake {_version()}"
    if len(rest) > 1 and rest[1] in {"-h", "--help"} and rest[0] not in COMMANDS and _group(rest[0]):
        return group_help(rest[0])
    command = _command(rest)
    own = leading + rest[len(command.name.split()) :]
    if any(word in {"-h", "--help"} for word in own[: own.index("--") if "--" in own else None]):
        return help_of(command)
    return _parsed(command, own, environment)


def overview() -> str:
    """Return the help text of ``trinitylake`` itself."""
    width = max(len(command.synopsis) for command in COMMANDS.values())
    lines = [f"  {each.synopsis:<{width}}  {each.help}" for each in COMMANDS.values()]
    head = "usage: trinitylake <command> ROOT [options]\n\nMaintenance of TrinityLake lakehouses.\n\ncommands:\n"
    tail = "\n\n`trinitylake <command> --help` shows the options of a command, with an example.\n\n"
    return head + "\n".join(lines) + tail + _ENVIRONMENT


def group_help(word: str) -> str:
    """Return the help text of commands that begin with one word, such as ``snapshot``."""
    group = _group(word)
    width = max(len(each.synopsis) for each in group)
    lines = [f"  {each.synopsis:<{width}}  {each.help}" for each in group]
    head = f"usage: trinitylake {word} <command> ROOT [options]\n\ncommands:\n"
    return head + "\n".join(lines) + f"\n\nexample:\n  {group[0].example}"


def _group(word: str) -> list[Command]:
    return [each for name, each in COMMANDS.items() if name.split()[0] == word]


def help_of(command: Command) -> str:
    """Return the help text of a command."""
    return _parser(command).format_help().rstrip()


def _leading(words: Sequence[str]) -> int:
    return next((index for index, word in enumerate(words) if word not in _BEFORE_THE_COMMAND), len(words))


def _command(words: Sequence[str]) -> Command:
    for count in (2, 1):
        found = COMMANDS.get(" ".join(words[:count]))
        if found is not None:
            return found
    if group := _group(words[0]):
        raise UsageError(f"{words[0]} needs one of: {', '.join(each.name.split()[1] for each in group)}")
    close = difflib.get_close_matches(words[0], COMMANDS, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"the commands are: {', '.join(COMMANDS)}"
    raise UsageError(f"unknown command {words[0]!r}; {hint}")


def _parsed(command: Command, words: Sequence[str], environment: Mapping[str, str]) -> Arguments:
    try:
        options = _parser(command).parse_intermixed_args(words)
        values = _assigned(command, options.positionals, environment.get(ROOT_VARIABLE))
    except UsageError as error:
        raise UsageError(f"{error} (see `trinitylake {command.name} --help`)") from None
    for name, value in values.items():
        setattr(options, name.lower(), value)
    options.command = command.name
    return Arguments(command, options, values.get(ROOT) or "")


def _parser(command: Command) -> argparse.ArgumentParser:
    parser = _Parser(
        prog=f"trinitylake {command.name}",
        usage=f"trinitylake {command.synopsis} [options]",
        description=_description(command),
        epilog=f"example:\n  {command.example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    groups: dict[str, argparse._MutuallyExclusiveGroup] = {}
    for each in (*command.options, *_COMMON):
        _add(parser, each, groups)
    parser.add_argument("positionals", nargs="*", help=argparse.SUPPRESS)
    return parser


def _add(parser: argparse.ArgumentParser, each: Option, groups: dict[str, argparse._MutuallyExclusiveGroup]) -> None:
    if each.group is None:
        parser.add_argument(*each.names, **each.settings)
        return
    if each.group not in groups:
        groups[each.group] = parser.add_mutually_exclusive_group()
    groups[each.group].add_argument(*each.names, **each.settings)


def _description(command: Command) -> str:
    first = f"{command.help[0].upper()}{command.help[1:]}."
    meanings = [
        (name, command.arguments.get(name, _ROOT_HELP if name == ROOT else "")) for name, _ in command.positionals
    ]
    width = max((len(name) for name, _ in meanings), default=0)
    arguments = "\n".join(f"  {name:<{width}}  {meaning}".rstrip() for name, meaning in meanings)
    return "\n\n".join(part for part in (first, arguments, command.details) if part)


def _assigned(command: Command, words: Sequence[str], root: str | None) -> dict[str, str | None]:
    """Return the arguments by name. ``root`` stands in for ROOT where the words leave it out."""
    names = command.positionals
    if root and names and names[0][0] == ROOT and _leaves_out_root(names, words):
        words = [root, *words]
    if len(words) > len(names):
        raise UsageError(f"unexpected argument {words[len(names)]!r}")
    for name, required in names[len(words) :]:
        if required:
            hint = f"; pass it, or set {ROOT_VARIABLE}" if name == ROOT else ""
            raise UsageError(f"{name} is missing{hint}")
    return {name: words[index] if index < len(words) else None for index, (name, _) in enumerate(names)}


def _leaves_out_root(names: Sequence[tuple[str, bool]], words: Sequence[str]) -> bool:
    """Whether the words begin behind ROOT: by their number, and where that leaves a choice, by their look."""
    if len(words) < sum(required for _, required in names):
        return True
    return len(words) < len(names) and _LIKE_A_ROOT.match(words[0]) is None


def _version() -> str:
    try:
        return metadata.version("trinitylake-maintenance")
    except metadata.PackageNotFoundError:
        return "(not installed)"

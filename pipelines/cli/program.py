"""The whole command line for click: groups of commands, each loaded when it is called, their help and completion."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module
from keyword import iskeyword
from typing import TYPE_CHECKING, Any, Final

import click

from pipelines.cli.command import HELP, JSON, PROGRAM, QUIET, Answer, Call, Command, Result, answering, command
from pipelines.cli.contents import ALIASES, ENTRIES, sections_beginning_with
from trinitylake_core.errors import InvalidInput

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_COMPLETE_VARIABLE: Final = "_TRINITYLAKE_COMPLETE"
JSON_VERSION: Final = 1
"""Version of the contract on ``--json`` (``docs/reference/json.md``): raised when a field goes, or changes its type."""
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
  130 interrupted   141 what reads standard output went away
"""


class Group(click.Group):
    """The commands whose names begin with the same words; without a prefix, the whole program."""

    def __init__(self, prefix: str = "") -> None:
        params: list[click.Parameter] = [JSON, QUIET, HELP]
        if not prefix:
            params.append(_VERSION)
        super().__init__(
            prefix.strip() or PROGRAM,
            params=params,
            add_help_option=False,
            invoke_without_command=True,
            callback=self._refuse_alone,
        )
        self.prefix = prefix
        self.has_options = True
        self.context_settings = {"max_content_width": 120}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the next words of all commands, in the order of the overview."""
        words = []
        for name in ENTRIES:
            if name.startswith(self.prefix):
                word = name.removeprefix(self.prefix).split()[0]
                if word not in words:
                    words.append(word)
        return words

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command by its next word, or the group of those that begin with it."""
        name = f"{self.prefix}{cmd_name}"
        name = ALIASES.get(name, name)
        if name in ENTRIES:
            # A shell that completes a word without options needs the arguments alone, and waits for no module.
            if ctx.resilient_parsing and not self.has_options:
                return Outline(name)
            return load(name)
        if any(True for _ in sections_beginning_with(f"{name} ")):
            return Group(f"{name} ")
        return None

    def resolve_command(
        self,
        ctx: click.Context,
        args: list[str],
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the next word names. Raises ``UsageError`` with the one that may be meant."""
        self.has_options = any(word.startswith("-") for word in args)
        word, *rest = args
        if rest and f"{self.prefix}{word} {rest[0]}" in ALIASES:
            word, *rest = f"{word} {rest[0]}", *rest[1:]
        found = self.get_command(ctx, word)
        if found is None and not ctx.resilient_parsing:
            raise self._name_unknown(ctx, word)
        return word, found, rest

    def _name_unknown(self, ctx: click.Context, word: str) -> click.UsageError:
        from pipelines.cli.other_words import commands_meant, describe

        known = self.list_commands(ctx)
        others = [] if self.prefix else [*ALIASES, "--version"]
        error = click.exceptions.NoSuchCommand(word, possibilities=[*known, *others])
        unknown = f"no such command {self.prefix + word!r}"
        meant = commands_meant(f"{self.prefix}{word}")
        if meant:
            return click.UsageError(f"{unknown}; did you mean {describe(meant)}?")
        if error.possibilities:  # those that are spelt nearly so
            return click.UsageError(f"{unknown}; did you mean {self.prefix + error.possibilities[0]!r}?")
        if self.prefix:
            return self._needs(ctx)
        return click.UsageError(f"{unknown}; the commands are: {', '.join(known)}")

    def _refuse_alone(self, **_: Any) -> None:
        context = click.get_current_context()
        if context.invoked_subcommand is None:
            raise self._needs(context)

    def _needs(self, ctx: click.Context) -> click.UsageError:
        if self.prefix:
            from pipelines.cli.other_words import command_meant

            meant = command_meant(self.prefix.strip(), "")
            needs = f"{self.prefix}needs one of: {', '.join(self.list_commands(ctx))}"
            return click.UsageError(needs if meant is None else f"{needs}; {meant}")
        return click.UsageError("say which command; `trinitylake --help` lists them")

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write usage, every command with its summary, and an example or the environment."""
        formatter.write_usage(PROGRAM, f"{self.prefix}<command> ROOT [options]", prefix="usage: ")
        what = "Maintenance of TrinityLake lakehouses."
        if self.prefix:
            what = f"Commands that begin with `{self.name}`."
        formatter.write(f"\n{what}\n")
        for title, entries in sections_beginning_with(self.prefix):
            with formatter.section("commands" if self.prefix else title):
                formatter.write_dl([(each.synopsis, each.summary) for each in entries], col_max=32)
        if self.prefix:
            first = next(name for name in ENTRIES if name.startswith(self.prefix))
            formatter.write(f"\nexample:\n  {load(first).example}\n")
        else:
            formatter.write("\n`trinitylake <command> --help` shows the options of a command, with an example.\n")
            formatter.write(_ENVIRONMENT)


class Outline(Command):
    """A command that a shell completes: its module, which opens lakehouses, is imported for its options alone."""

    def __init__(self, name: str) -> None:
        super().__init__(name, lambda _: Result(None), "")

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the candidates for an option."""
        return load(self.name or "").shell_complete(ctx, incomplete)


def load(name: str) -> Command:
    """Return a command by its name; its module is imported now."""
    module = ENTRIES[name].module
    place = __name__ if module == "program" else f"pipelines.cli.commands.{module}"
    attribute = name.replace(" ", "_")
    if iskeyword(attribute):  # no function can be called `try`
        attribute += "_"
    found: Command = getattr(import_module(place), attribute)
    return found


def overview() -> str:
    """Return the help text of ``trinitylake`` itself."""
    top = Group()
    return top.get_help(click.Context(top, info_name=PROGRAM, max_content_width=120))


def run(words: Sequence[str], carry_out: Any) -> int:
    """Parse a command line, let ``carry_out`` run the command, and return the exit code.

    Args:
        words: the command line without the name of the program.
        carry_out: called with the command, its options and its ROOT; returns the exit code.

    Raises:
        Answer: the words ask for a text: ``--help``, ``--version``.
        UsageError: they are not a valid command line.
    """
    given = list(words)
    if given[:1] == ["help"]:
        given = [*given[1:], "--help"]
    if given[:1] == ["version"] and all(word.startswith("-") for word in given[1:]):  # `version ROOT` means another
        given[0] = "--version"
    with Group().make_context(PROGRAM, given, obj=carry_out) as context:
        return int(context.command.invoke(context))


def sentence(error: click.UsageError) -> str:
    """Return the error of a command line, and the command for help."""
    close = getattr(error, "possibilities", None)
    if isinstance(error, click.NoSuchOption):
        meant = _find_option(error)
        close = close if meant is None else [meant]
    if close:
        text = f"{error.message[:-1]}; did you mean {close[0]!r}?"
    else:
        text = error.format_message()
    elsewhere = _find_elsewhere(error)
    if elsewhere is not None:
        text = f"{error.message.rstrip('.')}; {elsewhere}"
    if text[1:2].islower():  # a word, not an option or an acronym
        text = text[0].lower() + text[1:]
    text = text.rstrip(".")
    if isinstance(error.cmd, Command):
        text += f" (see `{PROGRAM} {error.cmd.name} --help`)"
    return text


def _find_elsewhere(error: click.UsageError) -> str | None:
    """Return what another command does that was asked of this one."""
    from pipelines.cli.other_words import command_meant

    name = None if error.cmd is None else error.cmd.name
    if name is None:
        return None
    if isinstance(error, click.NoSuchOption):
        return command_meant(name, error.option_name)
    if "extra argument" in error.message:
        return command_meant(name, "")
    return None


def _find_option(error: click.NoSuchOption) -> str | None:
    """Return the option that is meant by one that does not exist, if that can be told without its spelling."""
    from pipelines.cli.other_words import option_meant

    if error.cmd is None:
        return None
    known = [name for parameter in error.cmd.params for name in parameter.opts]
    return option_meant(error.option_name, known)


def _version(_: click.Context) -> Answer:
    from importlib import metadata  # takes longer to load than everything else that a help text needs

    try:
        found = metadata.version("trinitylake-maintenance")
    except metadata.PackageNotFoundError:
        found = "(not installed)"
    return Answer(f"{PROGRAM} {found}", {"version": found, "json": JSON_VERSION})


_VERSION: Final = answering(["--version"], _version, "show the version, and with --json that of the JSON")


# -- completion ----------------------------------------------------------------------------------------


def complete() -> int | None:
    """Answer a shell that asks for completions, and return the exit code; ``None`` if none asks."""
    asked = os.environ.get(_COMPLETE_VARIABLE)
    if asked is None:
        return None
    from pipelines.cli.completion import answer

    return answer(Group(), PROGRAM, _COMPLETE_VARIABLE, asked)


@command(
    "completion",
    "trinitylake completion bash >> ~/.bashrc",
    arguments={"SHELL": "bash, zsh, fish"},
    details="""\
  bash  trinitylake completion bash >> ~/.bashrc
  zsh   trinitylake completion zsh >> ~/.zshrc
  fish  trinitylake completion fish > ~/.config/fish/completions/trinitylake.fish

Open a new terminal afterwards.""",
)
def completion(call: Call) -> Result:
    """Print a completion script."""
    from pipelines.cli.completion import SHELLS, script

    shell = call.options.shell
    found = script(Group(), PROGRAM, _COMPLETE_VARIABLE, shell)
    if found is None:
        raise InvalidInput(f"SHELL must be one of {', '.join(SHELLS)}, not {shell!r}")
    return Result({"shell": shell, "script": found}, [found.strip()])

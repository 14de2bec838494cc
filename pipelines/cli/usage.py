"""What the words of a command line that are no options mean, and what to say when it is not valid."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import click

from pipelines.cli.commands.command import ROOT, Command
from trinitylake_core.errors import InvalidInput

_LIKE_A_ROOT: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/|/|\.{1,2}(?:/|$)")
ROOT_VARIABLE: Final = "TRINITYLAKE_ROOT"


class UsageError(InvalidInput):
    """The words are not a valid command line."""


def unknown(word: str, known: Sequence[str]) -> str:
    """Return what to say about a command that does not exist, with the one that may be meant."""
    import difflib

    close = difflib.get_close_matches(word, known, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"the commands are: {', '.join(known)}"
    return f"unknown command {word!r}; {hint}"


def message_of(error: click.UsageError, words: Sequence[str], command: str | None = None) -> str:
    """Return one sentence without click's preface, with the place where help is."""
    text = error.message
    if isinstance(error, click.NoSuchOption):
        at = next((number for number, word in enumerate(words) if word.startswith(error.option_name)), len(words))
        following = [word for word in words[at + 1 : at + 2] if not word.startswith("-")]
        text = f"unrecognized arguments: {' '.join([error.option_name, *following])}"
        text += f"; did you mean {error.possibilities[0]}?" if error.possibilities else ""
    elif isinstance(error, click.BadParameter) and error.param is not None:
        text = f"argument {error.param.opts[0]}: {error.message}"
    elif type(error) is not click.UsageError:
        text = error.message[:1].lower() + error.message[1:].rstrip(".")
    if command is not None:
        text += f" (see `trinitylake {command} --help`)"
    return text


def assigned(command: Command, words: Sequence[str], root: str | None) -> dict[str, str | None]:
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
    return {name: words[position] if position < len(words) else None for position, (name, _) in enumerate(names)}


def _leaves_out_root(names: Sequence[tuple[str, bool]], words: Sequence[str]) -> bool:
    """Whether the words begin behind ROOT: by their number, and where that leaves a choice, by their look."""
    if len(words) < sum(required for _, required in names):
        return True
    return len(words) < len(names) and _LIKE_A_ROOT.match(words[0]) is None

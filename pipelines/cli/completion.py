"""Completion in a shell: the names of lakehouses, versions and objects, and files where a path may stand."""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, ClassVar, Final

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    add_completion_class,
    get_completion_class,
    shell_complete,
    split_arg_string,
)

from trinitylake_core.errors import TrinityLakeError

if TYPE_CHECKING:
    from trinitylake_core import Lakehouse

ROOT_VARIABLE: Final = "TRINITYLAKE_ROOT"
SHELLS: Final = ("bash", "zsh", "fish")
_SECONDS: Final = 2.0
"""How long a person waits for names; a storage that takes longer completes none."""
_MOST: Final = 200
_MEANS_SOMETHING: Final = re.compile(r"[^\w./:@%+,~-]|^~|(?<=:)~")
_FILE: Final = CompletionItem("", type="file")
_DIRECTORY: Final = CompletionItem("", type="dir")


def answer(cli: click.Command, program: str, variable: str, asked: str) -> int:
    """Print the candidates that a shell asks for, and return the exit code."""
    logging.disable()  # nothing but candidates may reach the terminal
    return shell_complete(cli, {}, program, variable, asked)


def script(cli: click.Command, program: str, variable: str, shell: str) -> str | None:
    """Return the script that makes a shell ask, ``None`` for a shell that is not known."""
    found = get_completion_class(shell) if shell in SHELLS else None
    return None if found is None else found(cli, {}, program, variable).source()


class _Bash(BashComplete):
    """Completion in Bash, which splits words at colons, also those in ``s3://bucket/lake``.

    So the words are taken from the line, and of a candidate only what comes after the last colon is handed back. Where
    there is no candidate Bash completes names of files, as everywhere.
    """

    source_template: ClassVar[str] = """\
%(complete_func)s() {
    local IFS=$'\\n' type value
    while IFS=',' read -r type value; do
        if [[ $type == dir || $type == file ]]; then
            [[ $type == dir ]] && COMPREPLY+=($(compgen -d -- "$2")) || COMPREPLY+=($(compgen -f -- "$2"))
            compopt -o filenames 2>/dev/null
        elif [[ -n $type ]]; then
            COMPREPLY+=("$value")
        fi
    done < <(env COMP_LINE="${COMP_LINE:0:COMP_POINT}" %(complete_var)s=bash_complete "$1")
}
complete -o nosort -o bashdefault -o default -F %(complete_func)s %(prog_name)s
"""

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words of the line before the cursor, without the program, and the one that is not complete."""
        words = split_arg_string(os.environ["COMP_LINE"] + "\0")
        return words[1:-1], words[-1].removesuffix("\0")

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem]:
        """Return the candidates, each without what stands before the last colon of the word.

        What Bash is given becomes a part of the line as it is, so it is written as a person would have to type it:
        others choose the names of objects, and ``$(...)`` in one of them would be run.
        """
        before = incomplete[: incomplete.rfind(":") + 1]
        found = []
        for each in super().get_completions(args, incomplete):
            rest = each.value.removeprefix(before)
            found.append(CompletionItem(_typed_in_bash(rest), type=each.type, help=each.help))
        return found


add_completion_class(_Bash)


def _typed_in_bash(name: str) -> str:
    """Return a name as one word of a command line, with a backslash before each character that means something."""
    return _MEANS_SOMETHING.sub(r"\\\g<0>", name)


def candidates(context: click.Context, name: str, incomplete: str) -> list[CompletionItem]:
    """Return the candidates for an argument or an option of a command, by its name; none for free text."""
    of_lakehouse = _NAMES.get(name)
    if name == "name" and context.command.name == "snapshot drop":
        of_lakehouse = _snapshots
    if name == "name" and context.command.name == "restore":
        of_lakehouse = _objects
    if of_lakehouse is not None:
        found = _find_in_time(lambda: _of_lakehouse(context, of_lakehouse, incomplete))
        if name in _VERSIONS:
            found = [each for each in _NEWEST if each.startswith(incomplete)] + found
        return [CompletionItem(each) for each in found]
    if name in _PLACES:
        from pipelines.cli.resolve_root import names

        known = [each for each in names() if each.startswith(incomplete)]
        return [*map(CompletionItem, known), _DIRECTORY]
    if name in _FILES:
        return [_FILE]
    return []


def root_left_out(context: click.Context) -> bool:
    """Whether the first word of a command may stand behind ROOT, which the environment has."""
    return bool(os.environ.get(ROOT_VARIABLE)) and context.params.get("root") is None


def _of_lakehouse(
    context: click.Context, find: Callable[[Lakehouse, str], Iterator[str]], incomplete: str
) -> Iterator[str]:
    from pipelines.cli.resolve_root import applicable, environment_options, root_of, storage_options
    from trinitylake_core import Lakehouse

    given = context.params
    # click gives up before the arguments where the last word is an option without its value
    roots = [given.get("root"), given.get("src"), *context.args[:1], os.environ.get(ROOT_VARIABLE)]
    for root in filter(None, roots):
        with suppress(TrinityLakeError, OSError):
            uri, of_name = root_of(root)
            options = applicable(environment_options(os.environ), uri)
            options |= of_name
            options |= storage_options(given.get("storage_option") or ())
            lake = Lakehouse.open(uri, storage_options=options)
            for name in find(lake, incomplete):
                # A shell gets one candidate a line, so a name of two lines would be two names.
                if name.startswith(incomplete) and name.isprintable():
                    yield name
            return


def _find_in_time(find: Callable[[], Iterator[str]]) -> list[str]:
    """Return the names that are found within two seconds. The thread may still run: this process ends now."""
    found: list[str] = []

    def collect() -> None:
        for name in islice(find(), _MOST):
            found.append(name)  # noqa: PERF402 - one by one: what is there after two seconds is shown

    thread = threading.Thread(target=collect, daemon=True)
    thread.start()
    thread.join(_SECONDS)
    return [*found]


def _snapshots(lake: Lakehouse, _: str) -> Iterator[str]:
    for each in lake.snapshots():
        yield each.name


def _namespaces(lake: Lakehouse, _: str) -> Iterator[str]:
    yield from lake.namespaces()


def _objects(lake: Lakehouse, incomplete: str) -> Iterator[str]:
    """Yield namespaces; behind the dot of one, its tables and views."""
    from pipelines.reports.summary import qualify_name

    for namespace in lake.namespaces():
        below = f"{namespace}."
        if incomplete.startswith(below):
            for each in lake.objects(namespace):
                if each.name:
                    yield qualify_name(each.namespace, each.name)
        elif namespace.startswith(incomplete):
            yield namespace
            yield below  # a second one, so that the shell adds no space


_NEWEST: Final = ("HEAD", "HEAD~1")
_VERSIONS: Final = ("a", "b", "to_version", "version")
_NAMES: Final = {
    **dict.fromkeys((*_VERSIONS, "snapshot", "to_snapshot"), _snapshots),
    **dict.fromkeys(("changed", "object", "only", "pattern"), _objects),
    **dict.fromkeys(("to_namespace", "within"), _namespaces),
}
_PLACES: Final = frozenset({"also", "dst", "other", "root", "src", "target"})
_FILES: Final = frozenset(
    {"audit_log", "certfile", "file", "inventory", "keyfile", "plan", "plan_to", "source", "to", "tokens"}
)

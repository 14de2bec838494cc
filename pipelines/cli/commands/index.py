"""The table of contents of the command line: what ``trinitylake --help`` shows without loading a single command.

A command is a decorated function in a module of this folder, and has one line here; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Final

from pipelines.cli.commands.command import COMMANDS, Command, name_in

SECTIONS: Final[dict[str, tuple[tuple[str, str, str], ...]]] = {
    "look": (
        ("ls ROOT [PATTERN]", "list namespaces, tables and views", "reading"),
        ("show ROOT [OBJECT]", "show the definition of the lakehouse, a namespace, a table or a view", "reading"),
        (
            "history ROOT",
            "list the versions, newest first, each with its time, operation, author and reason",
            "versions",
        ),
        ("diff ROOT A B", "list what was added, removed and changed from version A to version B", "versions"),
        ("stats ROOT", "show the figures of the root: objects, height, buffered messages; reads one file", "reading"),
        ("tree ROOT", "show the levels of the tree: nodes, keys, messages, fill, bytes", "reading"),
        ("fleet [FILE]", "show many lakehouses, the worst first; exit code 1 if one cannot be opened", "fleets"),
    ),
    "change": (
        ("create ROOT", "create an empty lakehouse", "changing"),
        ("apply ROOT FILE", "make the changes in a YAML or JSON list, as one transaction", "changing"),
        ("load ROOT SOURCE", "create many objects at once, from JSON Lines", "jobs"),
        (
            "alter ROOT [OBJECT]",
            "set or remove properties of the lakehouse, a namespace, a table or a view",
            "altering",
        ),
        ("rename ROOT OBJECT NAME", "rename a table or a view, or move it to another namespace", "altering"),
        (
            "upgrade SRC DST",
            "rewrite a lakehouse of any generation in the canonical format at another root URI",
            "jobs",
        ),
    ),
    "maintain": (
        ("compact ROOT", "push all buffered messages down the tree", "jobs"),
        ("verify ROOT", "check every invariant of the format; exit code 1 if one is broken", "retention"),
        ("expire ROOT", "remove old versions that no retention rule keeps", "retention"),
        ("clean ROOT", "remove files that no version, snapshot or saved transaction needs", "retention"),
        ("doctor ROOT", "test whether a storage is fit for a lakehouse; exit code 1 if it is not", "jobs"),
    ),
    "recover": (
        ("rollback ROOT", "return the whole catalog to an older version", "recovery"),
        ("undo ROOT", "find what somebody did, by time, author or reason, and roll back to before it", "undoing"),
        ("restore ROOT", "bring selected objects back as they were at a version", "recovery"),
        ("snapshot create ROOT NAME", "name a version, so that it stays readable after it expires", "snapshots"),
        ("snapshot list ROOT", "list the snapshots, oldest first", "snapshots"),
        ("snapshot drop ROOT NAME", "drop a snapshot; `clean` removes its files later", "snapshots"),
        (
            "export ROOT TARGET",
            "copy one version or all retained versions to another root URI; repeated, an incremental backup",
            "recovery",
        ),
    ),
    "this terminal": (("completion SHELL", "print the script that completes commands and options", "terminal"),),
}
"""Synopsis, summary and module of every command, in the order of the overview."""
ALIASES: Final = {"log": "history"}
_MODULES: Final = {name_in(synopsis): module for section in SECTIONS.values() for synopsis, _, module in section}


def sections() -> dict[str, list[tuple[str, str]]]:
    """Return synopsis and summary of all commands, by section."""
    found = {title: [(synopsis, summary) for synopsis, summary, _ in rows] for title, rows in SECTIONS.items()}
    others = [(each.synopsis, each.help) for name, each in COMMANDS.items() if name not in _MODULES]
    return found | ({"others": others} if others else {})


def names() -> Iterator[str]:
    """Yield the name of every command, such as ``snapshot create``."""
    yield from _MODULES
    yield from (name for name in COMMANDS if name not in _MODULES)


def find(name: str) -> Command | None:
    """Return a command by its name or alias; its module is loaded now."""
    name = ALIASES.get(name, name)
    if name not in COMMANDS and name in _MODULES:
        import_module(f"pipelines.cli.commands.{_MODULES[name]}")
    return COMMANDS.get(name)


def load_all() -> dict[str, Command]:
    """Return all commands by their names; all modules are loaded now."""
    for name in _MODULES:
        find(name)
    return COMMANDS

"""The table of contents of the command line: what ``trinitylake --help`` shows without loading a single command."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

_POSITIONAL: Final = re.compile(r"\[?([A-Z]+)\]?")


class CommandEntry(NamedTuple):
    """A command in the table of contents.

    Attributes:
        synopsis: name and arguments, such as ``snapshot create ROOT NAME``. Arguments are in capitals, optional
            ones in brackets.
        summary: what the command does, in one line.
    """

    synopsis: str
    summary: str

    @property
    def name(self) -> str:
        """The words that call the command."""
        return " ".join(word for word in self.synopsis.split() if not _POSITIONAL.fullmatch(word))

    @property
    def module(self) -> str:
        """The name of the module that contains it."""
        for module, names in _MODULES.items():
            if self.name in names.split(", "):
                return module
        raise LookupError(f"no module has the command {self.name}")

    @property
    def arguments(self) -> list[tuple[str, bool]]:
        """Its arguments, and whether each is required."""
        found = []
        for word in self.synopsis.split():
            match = _POSITIONAL.fullmatch(word)
            if match is not None:
                name = match[1]
                found.append((name, word == name))
        return found


_TABLE: Final = """\
look:
  ls ROOT [PATTERN] | list namespaces, tables and views
  show ROOT [OBJECT] | show the definition of the lakehouse, a namespace, a table or a view
  history ROOT [OBJECT] | list the versions, newest first, each with its time, operation, author and reason
  diff ROOT A B | list what was added, removed and changed from version A to version B
  stats ROOT | show the figures of the root: objects, height, buffered messages; reads one file
  tree ROOT | show the levels of the tree: nodes, keys, messages, fill, bytes
  fleet [FILE] | show many lakehouses, the worst first; exit code 1 if one cannot be opened
change:
  create ROOT | create an empty lakehouse
  apply ROOT FILE | make the changes in a YAML or JSON list, as one transaction
  load ROOT SOURCE | create many objects at once, from JSON Lines
  alter ROOT [OBJECT] | set or remove properties of the lakehouse, a namespace, a table or a view
  rename ROOT OBJECT NAME | rename a table or a view, or move it to another namespace
  serve ROOT | serve the Iceberg REST catalog API, so that every engine is a client
  upgrade SRC DST | rewrite a lakehouse of any generation in the canonical format at another root URI
maintain:
  compact ROOT | push all buffered messages down the tree
  verify ROOT | check every invariant of the format; exit code 1 if one is broken
  expire ROOT | remove old versions that no retention rule keeps
  clean ROOT | remove files that no version, snapshot or saved transaction needs
  tables health ROOT [PATTERN] | show files, bytes and snapshots of Iceberg tables
  tables compact ROOT [PATTERN] | merge small files of Iceberg tables; the rows stay, and no file is deleted
  tables expire ROOT [PATTERN] | remove old snapshots of Iceberg tables; no file is deleted
  tables clean ROOT [PATTERN] | remove files of Iceberg tables that no version, snapshot or saved transaction needs
  mend ROOT | put damaged files back from a backup, mark lost versions, or correct a fence in the future
  doctor ROOT | test whether a storage is fit for a lakehouse; exit code 1 if it is not
recover:
  freeze ROOT | refuse commits and loads of all writers, until it is thawed or a time is over
  thaw ROOT | accept commits and loads again
  rollback ROOT [VERSION] | return the whole catalog to an older version
  undo ROOT | find what somebody did, by time, author or reason, and roll back to before it
  restore ROOT [NAME] | bring selected objects back as they were at a version
  snapshot create ROOT NAME | name a version, so that it stays readable after it expires
  snapshot list ROOT | list the snapshots, oldest first
  snapshot drop ROOT NAME | drop a snapshot; `clean` removes its files later
  export ROOT TARGET | copy one version or all retained versions to another root URI; repeated, an incremental backup
begin:
  try DIR | make a lakehouse with Iceberg tables, a mistake and its undo, in an empty directory
  ui [FILE] | start Dagster on this machine for the lakehouses in lakehouses.yaml
this terminal:
  completion SHELL | print the script that completes commands, options and names
"""
_MODULES: Final = {
    "reading": "ls, show, stats, tree",
    "versions": "history, diff",
    "fleets": "fleet",
    "changing": "create, apply, alter, rename",
    "jobs": "load, upgrade, compact, doctor",
    "serving": "serve",
    "retention": "verify, expire, clean, mend",
    "tables": "tables health, tables compact, tables expire, tables clean",
    "recovery": "freeze, thaw, rollback, undo, restore, snapshot create, snapshot list, snapshot drop, export",
    "trying": "try, ui",
    "program": "completion",
}
"""The commands that each module contains."""


def _read_sections() -> Iterator[tuple[str, tuple[CommandEntry, ...]]]:
    for section in re.split(r"\n(?=\S)", _TABLE.rstrip()):
        title, *lines = section.split("\n")
        entries = []
        for line in lines:
            synopsis, summary = line.strip().split(" | ")
            entries.append(CommandEntry(synopsis, summary))
        yield title.removesuffix(":"), tuple(entries)


SECTIONS: Final = dict(_read_sections())
"""Every command, in the order of the overview."""
_ALIASES: Final = """\
log: history
versions: history
list: ls
describe: show
describe namespace: show
describe table: show
describe view: show
cat: show
info: stats
check: verify
fsck: verify
init: create
mv: rename
backup: export
lock: freeze
unlock: thaw
tag: snapshot create
tag create: snapshot create
tag list: snapshot list
tag ls: snapshot list
tag drop: snapshot drop
tag rm: snapshot drop
tag delete: snapshot drop
untag: snapshot drop
snapshots: snapshot list
snapshot ls: snapshot list
snapshot rm: snapshot drop
"""
_OPTION_ALIASES: Final = """\
--at: --version
--as-of: --version
--to: --to-version
--version: --to-version
--message: --reason
-m: --reason
--keep: --keep-last
--preview: --dry-run
-n: --dry-run
-l: --long
-y: --yes
"""


def read_aliases(table: str) -> dict[str, str]:
    """Return what stands in front of the colons of a text, and what stands behind them."""
    return dict(line.split(": ") for line in table.splitlines())


ALIASES: Final = read_aliases(_ALIASES)
"""Words that call a command of another name: those that mean one thing alone, and take its arguments."""
OPTION_ALIASES: Final = read_aliases(_OPTION_ALIASES)
"""Likewise options, of commands that have the one and not the other."""
ENTRIES: Final = {each.name: each for section in SECTIONS.values() for each in section}


def sections_beginning_with(prefix: str) -> Iterator[tuple[str, list[CommandEntry]]]:
    """Yield the sections that have commands whose names begin so, with these commands."""
    for title, section in SECTIONS.items():
        found = [each for each in section if each.name.startswith(prefix)]
        if found:
            yield title, found

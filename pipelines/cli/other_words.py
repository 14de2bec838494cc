"""What people type that no command or option is called, and the one that they mean; read when a word is unknown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from pipelines.cli.contents import ENTRIES, read_aliases

_COMMANDS: Final = """\
ls: dir, find, grep, search, namespaces, views, objects, catalog, tables ls, tables list
ls: exists, get
show: desc, get, inspect, schema, definition, tables show, tables info, tables describe, tables get
history: commits, timeline, changelog, audit, reflog
stats: summary, size, status, count
tree: du
diff: changes, compare
fleet: lakehouses, status, all, debug
create: new
apply: add, drop, rm, remove, delete, create-table, create-namespace, drop-table, drop-namespace, execute, commit
load: import, ingest, register
alter: set, config, configure, properties, accept, mark
rename: move
mend: fix, repair-clock, fix-clock, fix-fence
serve: sql, query, server, rest, start, endpoint
upgrade: migrate, convert
compact: optimize, optimise, maintain, maintenance, flush, merge
verify: validate, lint, health
expire: prune, retention, expire-snapshots
clean: vacuum, gc, cleanup, purge, sweep, orphans, remove-orphan-files
doctor: ping, test, diagnose, debug, touch, ping-write, write-test, can-write
freeze: pause, readonly, read-only
thaw: unfreeze, resume
rollback: reset, revert, checkout, back, time-travel, rollback-to-snapshot, rollback-to-timestamp
undo: revert
restore: recover, undelete, undrop, repair
snapshot create: bookmark, snapshot tag, snapshot add, snapshot new
snapshot list: tags, snapshot show
snapshot drop: snapshot delete, snapshot remove
export: copy, clone, dump, mirror, sync, replicate
try: demo, quickstart, example, tutorial
ui: dagster, web, dashboard, dev
completion: completions, autocomplete
tables health: tables stats, tables status, tables history, tables snapshots, tables check, tables size, health
tables health: du
tables compact: optimize, optimise, merge, binpack, tables optimize, tables rewrite, tables merge, tables binpack
tables compact: compact-tables, compact-table, rewrite, binpack
tables compact: rewrite-data-files, rewrite-manifests, tables rewrite-data-files, tables rewrite-manifests
tables expire: expire-tables
tables clean: clean-tables
tables expire: expire-snapshots, tables expire-snapshots, tables prune
tables clean: remove-orphan-files, tables vacuum, tables gc, tables purge, tables orphans, tables remove-orphan-files
"""
_OPTIONS: Final = """\
--to-version: --ref, --target, -v
--version: --from-version, --rev, --revision, --to-version, --ref
--reason: --comment, --why, -r
--limit: -n, --max, --count, --num
--since: --from, --after, --newer-than
--dry-run: --plan, --what-if, --noop, --check
--yes: --confirm, --no-input, --assume-yes
--keep-last: --retain, --retain-last, --min-snapshots, --min-versions
--older-than: --age, --min-age, --max-age, --retention, --retain, --ttl, --before
--only: --table, --tables, --name, --pattern
--long: --details, --verbose, -v
--verbose: -v, --details
--format: -o, --output, -f, --csv
--json: --output, -o
--quiet: -q, --silent
--master: --spark, --spark-master
--set: --property, --properties
--property: --set, -p
--target: --target-size, --file-size, --target-file-size
--kind: --type, -t
--isolation: --isolation-level
--all: -a
--expected-version: --expect, --if-version
"""

_ELSEWHERE: Final = read_aliases("""\
rollback --table: `restore ROOT NAME` brings back single objects, a rollback the whole catalog
rollback --only: `restore ROOT NAME` brings back single objects, a rollback the whole catalog
rollback --hard: a rollback adds a version and loses none, `rollback ROOT 3 --reason WHY`
undo --table: `restore ROOT NAME` brings back single objects, an undo the whole catalog
ls --last: `ls` lists by name, and --limit takes the first; `history ROOT --last N` lists what came last
diff --since: `diff ROOT -1d HEAD` compares with a day ago, `history ROOT --since 1d` lists the versions
verify -v: --json prints every figure
verify --verbose: --json prints every figure
tables: `ls ROOT --kind table` lists tables
create: `create ROOT` makes a lakehouse; `apply ROOT FILE` makes namespaces, tables and views in it
-c: TRINITYLAKE_LAKEHOUSES names another lakehouses.yaml
--config: TRINITYLAKE_LAKEHOUSES names another lakehouses.yaml
--profile: a lakehouse is named behind the command, `history NAME`
--root: a lakehouse is named behind the command, `history ROOT`
--namespace: a pattern names one, `ls ROOT sales --kind table`
--watch: `history ROOT --follow` prints each version as it is committed
""")
"""What does what was asked of a command that does not do it, by the command and the option; or by the option alone.

A command alone stands for one word too many."""


def command_meant(command: str, option: str) -> str | None:
    """Return what to type instead of an option, or of a word, that a command does not have."""
    return _ELSEWHERE.get(f"{command} {option}".rstrip(), _ELSEWHERE.get(option))


def _read(table: str) -> dict[str, list[str]]:
    words_of: dict[str, list[str]] = {}
    for line in table.splitlines():
        name, words = line.split(": ")
        words_of.setdefault(name, []).extend(words.split(", "))
    return words_of


COMMANDS: Final = _read(_COMMANDS)
"""Other words for each command; those of a group stand behind its name: ``tables ls``."""
OPTIONS: Final = _read(_OPTIONS)
"""Other words for each option."""


def commands_meant(word: str) -> list[str]:
    """Return the commands that an unknown one may mean."""
    return [name for name, words in COMMANDS.items() if word in words]


def describe(commands: Iterable[str]) -> str:
    """Return commands in quotes, each with its arguments and what it does."""
    return " or ".join(f"{ENTRIES[name].synopsis!r} ({ENTRIES[name].summary})" for name in commands)


def option_meant(word: str, known: Sequence[str]) -> str | None:
    """Return the option of a command that an unknown one may mean: by its meaning, or because it begins so."""
    for name, words in OPTIONS.items():
        if word in words and name in known:
            return name
    return next((name for name in known if len(word) > len("--") and name.startswith(word)), None)

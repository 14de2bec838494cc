"""Commands that show and compare versions: history, diff."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from itertools import chain, pairwise
from typing import Any, Final

from pipelines import diff as diffing
from pipelines.cli import report
from pipelines.cli.command import Call, Result, command, in_order, option, or_else, take_first
from pipelines.cli.commands import following
from pipelines.cli.commands.objects import keys_of, list_readings
from pipelines.cli.commands.options import ENGINE, FORMAT, SPARK
from pipelines.reports.summary import ByteCount, at_most, qualify_name
from pipelines.source import version_ref
from trinitylake_core import Change, Lakehouse, ObjectEntry, VersionInfo, spec
from trinitylake_core.definitions import ObjectDef, describe_difference, to_dict
from trinitylake_core.errors import InvalidInput, ObjectNotFound
from trinitylake_core.recovery.target import read_moment
from trinitylake_core.tree.search import lookup
from trinitylake_core.versions import Root, version_info

_SAME = "no differences"
_HEADER = ("version", "created", "operation", "changes", "objects", "messages", "root", "author", "reason")

# -- history -------------------------------------------------------------------------------------------


_HISTORY_OPTIONS: Final = (
    option("--limit", "-n", "--last", type=int, metavar="N", help="print at most N versions"),
    FORMAT,
    option(
        "--since", metavar="T", help="only versions created at T or later: ISO 8601, UTC, an age such as 1d, or HEAD~3"
    ),
    option(
        "--operation",
        multiple=True,
        metavar="OP",
        choices=spec.OPERATIONS,
        help=f"only versions made by this operation ({', '.join(spec.OPERATIONS)}); may be repeated",
    ),
    option("--object", "changed", metavar="NAME", help="only versions that changed this object"),
    *following.OPTIONS,
)


@command(
    "history",
    "trinitylake history file:///data/lake --since 2026-11-20 --object sales.orders",
    options=_HISTORY_OPTIONS,
    arguments={"OBJECT": "the same as --object"},
    details="""\
With --follow it prints later versions as they are committed, oldest first: one JSON document a line, with the objects
that the version changed. With --to FILE it goes on after the last version in the file; elsewhere --after says where.
A version that expired before it was read is named in not_compared of the next one. Ctrl-C or SIGTERM ends it after a
whole line.""",
)
def history(call: Call) -> Result:
    """List versions, or follow them."""
    options = call.options
    if options.object is not None:
        if options.changed is not None:
            raise InvalidInput("say once which object: OBJECT or --object")
        options.changed = options.object
    if options.follow:
        return following.follow(call)
    if options.once or options.to or options.after is not None:
        raise InvalidInput("--after, --to and --once need --follow")
    lake = call.open(damaged=True)
    name = options.changed
    chosen = take_first(_choose_versions(lake, call), options.limit)
    if name is not None:
        chosen = _refuse_unknown_object(lake, name, chosen)
    # Of lines, rows and data only one is read, so they can share the iterator.
    table = report.table(_HEADER, map(_history_row, chosen), spare=("root", "messages", "objects", "changes"))
    documents = ({**asdict(each), "author": each.author, "reason": each.reason} for each in chosen)
    if name is None:
        nothing = "no version matches"
    else:
        nothing = f"no retained version that matches changed it: {name}"
    return Result({"root": lake.root, "versions": documents}, or_else(in_order(table), nothing), table=table)


def _history_row(each: VersionInfo) -> list[Any]:
    return [
        each.version,
        each.created_at,
        each.operation,
        each.changes,
        at_most(each.objects, each.uncertain),
        each.messages,
        ByteCount(each.root_bytes),
        each.author,
        each.reason,
    ]


def _refuse_unknown_object(lake: Lakehouse, name: str, chosen: Iterator[VersionInfo]) -> Iterator[VersionInfo]:
    """Yield versions. Raises ``ObjectNotFound`` if there are none, and no version knows the object: a typing error."""
    first = next(chosen, None)
    if first is not None:
        yield first
        yield from chosen
    elif not _is_known(lake, name):
        raise ObjectNotFound(f"version {lake.version} has no object {name!r}, and no retained version changed it")


def _is_known(lake: Lakehouse, name: str) -> bool:
    for key in keys_of(lake, list_readings(name)):
        if lookup(lake.nodes, lake.root_node.node, key) is not None:
            return True
    roots = lake.backend.versions.history(lake.root_node)
    return next(_roots_that_changed(lake, roots, name), None) is not None


def _choose_versions(lake: Lakehouse, call: Call) -> Iterator[VersionInfo]:
    """Yield the versions that the options choose, newest first."""
    options = call.options
    since = 0 if options.since is None else read_moment(lake.backend, options.since)
    if not options.operation:
        yield from lake.unreadable
    roots = lake.backend.versions.history(lake.root_node)
    if options.changed is not None:
        roots = _roots_that_changed(lake, roots, options.changed)
    for root in roots:
        if root.created_at_millis < since:
            return
        call.progress("versions", lake.version - root.version, None)
        if not options.operation or root.operation in options.operation:
            yield version_info(root)


def _roots_that_changed(lake: Lakehouse, roots: Iterator[Root], name: str) -> Iterator[Root]:
    """Yield the roots that changed an object, as far as they and their predecessors are retained."""
    keys = list(keys_of(lake, list_readings(name)))
    for root, before in pairwise(chain(roots, [None])):
        if root is not None and _has_changed(lake, keys, root, before):
            yield root


def _has_changed(lake: Lakehouse, keys: list[str], root: Root, before: Root | None) -> bool:
    """Whether a version changed one of several keys, or may have done so."""
    if root.unreadable is not None:
        return True  # it may have
    if before is not None and before.unreadable is not None:
        return True
    if root.operation in spec.QUIET_OPERATIONS:
        return False
    has_all_messages = root.operation in spec.TRANSACTIONAL_OPERATIONS and not root.is_bulk
    if root.version > 0 and has_all_messages:
        own = root.own_messages().keys
        return not set(keys).isdisjoint(own)
    if root.version > 0 and before is None:
        return False  # its predecessor has expired: a change can no longer be found
    now = [lookup(lake.nodes, root.node, key) for key in keys]
    if before is None:
        return any(path is not None for path in now)
    return now != [lookup(lake.nodes, before.node, key) for key in keys]


# -- diff ----------------------------------------------------------------------------------------------


@command(
    "diff",
    "trinitylake diff file:///data/lake HEAD~1 HEAD --definitions",
    options=(
        option("--definitions", is_flag=True, help="show what changed inside objects: columns, properties, SQL"),
        option("--other", metavar="ROOT2", help="root URI of the lakehouse of version B, if it is another one"),
        FORMAT,
        ENGINE,
        *SPARK,
    ),
    arguments={"A": f"version: {version_ref.MEANING}", "B": "version, likewise"},
    details="Reads only nodes that the two versions do not share.",
)
def diff(call: Call) -> Result:
    """Compare two versions."""
    options = call.options
    lake = other = call.open(damaged=True)
    if options.other is not None:
        other = call.open(options.other, damaged=True)
    old = version_ref.at(lake, options.a, "A")
    new = version_ref.at(other, options.b, "B")
    found = diffing.run(old, new, diffing.Config(options.engine), call.spark, progress=call.progress)
    data = {"root": old.root, "other": new.root, "a": old.version, "b": new.version}
    if options.definitions:
        return _show_definitions(old, new, found, data)
    # Of lines, rows and data only one is read, so they can share the iterator.
    shown = report.table(
        ["change", "kind", "name"],
        ([each.change, each.kind, qualify_name(each.namespace, each.name)] for each in found),
    )
    rows = report.table(
        ["change", "kind", "namespace", "name"],
        ([each.change, each.kind, each.namespace, each.name] for each in found),
    )
    return Result({**data, "changes": found}, or_else(in_order(shown), _SAME), table=rows)


def _show_definitions(old: Lakehouse, new: Lakehouse, found: Iterator[Change], data: dict[str, Any]) -> Result:
    """Return what changed inside objects. One or two ``get`` for each."""
    documents = (_read_definitions(old, new, change) for change in found)
    lines = chain.from_iterable(map(_change_lines, documents))
    return Result({**data, "changes": documents}, or_else(lines, _SAME))


def _read_definitions(old: Lakehouse, new: Lakehouse, change: Change) -> dict[str, Any]:
    """Return a change with the differences of its definitions, or with the one definition that there is."""
    found: dict[str, Any] = asdict(change)
    before = _read_definition(old, change, change.old_path)
    after = _read_definition(new, change, change.new_path)
    if before is not None and after is not None:
        found["differences"] = describe_difference(before, after)
    else:
        found["definition"] = to_dict(before or after)  # type: ignore[arg-type]  # one of the two is there
    return found


def _read_definition(lake: Lakehouse, change: Change, path: str | None) -> ObjectDef | None:
    if path is None:
        return None
    return lake.definition_of(ObjectEntry(change.kind, change.namespace, change.name, "", path))


def _change_lines(change: dict[str, Any]) -> Iterator[str]:
    name = report.plain(qualify_name(change["namespace"], change["name"]))
    yield f"{change['change']} {change['kind']} {name}"
    if "definition" in change:
        yield from report.fields(change["definition"], "    ")
        return
    for each in change["differences"]:
        sides = [report.plain(each[side]) for side in ("old", "new") if side in each]
        values = " -> ".join(sides)
        named = report.plain(each["name"])
        yield f"    {each['change']} {each['what']} {named}: {values}"

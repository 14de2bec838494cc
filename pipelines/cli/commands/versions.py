"""Commands that show and compare versions: history, diff."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from itertools import chain, pairwise
from typing import Any

from pipelines import diff as diffing
from pipelines import version_ref
from pipelines.cli import report
from pipelines.cli.command import Call, Result, command, in_order, limited, option, or_else
from pipelines.cli.commands import following
from pipelines.cli.commands.objects import keys_of, readings
from pipelines.cli.commands.options import ENGINE, FORMAT, SPARK
from pipelines.summary import Size, qualified
from trinitylake_core import Change, Lakehouse, ObjectEntry, VersionInfo, spec
from trinitylake_core.definitions import describe_difference, to_dict
from trinitylake_core.errors import InvalidInput, ObjectNotFound
from trinitylake_core.tree.search import lookup
from trinitylake_core.versions import Root, to_millis, version_info

_SAME = "no differences"

# -- history -------------------------------------------------------------------------------------------


@command(
    "history",
    "trinitylake history file:///data/lake --since 2026-11-20 --object sales.orders",
    options=(
        option("--limit", type=int, metavar="N", help="print at most N versions"),
        FORMAT,
        option("--since", metavar="T", help="only versions created at T or later: ISO 8601, UTC, or an age such as 1d"),
        option(
            "--operation",
            multiple=True,
            metavar="OP",
            choices=spec.OPERATIONS,
            help=f"only versions made by this operation ({', '.join(spec.OPERATIONS)}); may be repeated",
        ),
        option("--object", "changed", metavar="NAME", help="only versions that changed this object"),
        *following.OPTIONS,
    ),
    details="""\
With --follow it prints later versions as they are committed, oldest first: one JSON document a line, with the objects
that the version changed. A file that --to names knows where to go on; elsewhere --after does. A version that expired
before it was read is named in not_compared of the next one. Ctrl-C or SIGTERM ends it after a whole line.""",
)
def history(call: Call) -> Result:
    """List versions, or follow them."""
    if call.options.follow:
        return following.follow(call)
    if call.options.once or call.options.to or call.options.after is not None:
        raise InvalidInput("--after, --to and --once need --follow")
    lake = call.open(damaged=True)
    chosen = _refuse_unknown(lake, call, limited(_chosen(lake, call), call.options.limit))
    header = ["version", "created", "operation", "changes", "objects", "messages", "root", "author", "reason"]
    cells = (
        [
            *(each.version, each.created_at, each.operation, each.changes, each.objects, each.messages),
            *(Size(each.root_bytes), each.author, each.reason),
        ]
        for each in chosen
    )
    table = report.table(header, cells, spare=("root", "messages", "objects", "changes"))
    name = call.options.changed
    nothing = "no version matches" if name is None else f"no retained version that matches changed it: {name}"
    lines = or_else(in_order(table), nothing)
    versions = ({**asdict(each), "author": each.author, "reason": each.reason} for each in chosen)
    return Result({"root": lake.root, "versions": versions}, lines, table=table)


def _refuse_unknown(lake: Lakehouse, call: Call, chosen: Iterator[VersionInfo]) -> Iterator[VersionInfo]:
    """Yield versions. Raises ``ObjectNotFound`` if there are none, and no version knows the object: a typing error."""
    first = next(chosen, None)
    name = call.options.changed
    if first is None and name is not None and not _known(lake, name):
        raise ObjectNotFound(f"version {lake.version} has no object {name!r}, and no retained version changed it")
    yield from () if first is None else chain([first], chosen)


def _known(lake: Lakehouse, name: str) -> bool:
    keys = keys_of(lake, readings(name))
    if any(lookup(lake.nodes, lake.root_node.node, key) is not None for key in keys):
        return True
    return next(_changing(lake, lake.backend.versions.history(lake.root_node), name), None) is not None


def _chosen(lake: Lakehouse, call: Call) -> Iterator[VersionInfo]:
    options = call.options
    after = version_ref.moment(options.since)
    since = to_millis(after) if after is not None else None
    if not options.operation:
        yield from lake.unreadable
    roots = lake.backend.versions.history(lake.root_node)
    if options.changed is not None:
        roots = _changing(lake, roots, options.changed)
    for root in roots:
        if since is not None and root.created_at_millis < since:
            return
        call.progress("versions", lake.version - root.version, None)
        if not options.operation or root.operation in options.operation:
            yield version_info(root)


def _changing(lake: Lakehouse, roots: Iterator[Root], text: str) -> Iterator[Root]:
    """Yield the roots that changed an object, as far as they and their predecessors are retained."""
    keys = list(keys_of(lake, readings(text)))
    for root, before in pairwise(chain(roots, [None])):
        if root is not None and _changed(lake, keys, root, before):
            yield root


def _changed(lake: Lakehouse, keys: list[str], root: Root, before: Root | None) -> bool:
    if root.unreadable is not None or (before is not None and before.unreadable is not None):
        return True  # it may have changed: one of the two is unreadable
    if root.operation in spec.QUIET_OPERATIONS:
        return False
    if root.operation in spec.TRANSACTIONAL_OPERATIONS and root.version > 0:
        own = set(root.own_messages().keys)
        return any(key in own for key in keys)
    if before is None and root.version > 0:
        return False  # its predecessor has expired: a change can no longer be found
    then = [lookup(lake.nodes, before.node, key) if before is not None else None for key in keys]
    return then != [lookup(lake.nodes, root.node, key) for key in keys]


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
    options, lake = call.options, call.open(damaged=True)
    other = lake if options.other is None else call.open(options.other, damaged=True)
    old, new = version_ref.at(lake, options.a, "A"), version_ref.at(other, options.b, "B")
    found = diffing.run(old, new, diffing.Config(options.engine), call.spark, progress=call.progress)
    data = {"root": old.root, "other": new.root, "a": old.version, "b": new.version}
    if not options.definitions:
        rows = ([each.change, each.kind, qualified(each.namespace, each.name)] for each in found)
        lines = or_else(in_order(report.table(["change", "kind", "name"], rows)), _SAME)
        apart = ([each.change, each.kind, each.namespace, each.name] for each in found)
        table = report.table(["change", "kind", "namespace", "name"], apart)
        return Result({**data, "changes": found}, lines, table=table)
    details = (_with_definitions(old, new, each) for each in found)
    inside = (line for each in details for line in _change_lines(each))
    return Result({**data, "changes": details}, or_else(inside, _SAME))


def _with_definitions(old: Lakehouse, new: Lakehouse, change: Change) -> dict[str, Any]:
    before, after = (
        None if path is None else lake.definition_of(ObjectEntry(change.kind, change.namespace, change.name, "", path))
        for lake, path in ((old, change.old_path), (new, change.new_path))
    )
    found: dict[str, Any] = asdict(change)
    if before is not None and after is not None:
        found["differences"] = describe_difference(before, after)
    else:
        found["definition"] = to_dict(before or after)  # type: ignore[arg-type]  # one of the two is there
    return found


def _change_lines(change: dict[str, Any]) -> Iterator[str]:
    yield f"{change['change']} {change['kind']} {report.plain(qualified(change['namespace'], change['name']))}"
    if "definition" in change:
        yield from report.fields(change["definition"], "    ")
        return
    for each in change["differences"]:
        sides = [report.plain(each[side]) for side in ("old", "new") if side in each]
        yield f"    {each['change']} {each['what']} {report.plain(each['name'])}: {' -> '.join(sides)}"

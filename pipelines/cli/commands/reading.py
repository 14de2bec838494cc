"""Commands that show what one version of a lakehouse holds: ls, show, stats, tree."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from pipelines.cli import report
from pipelines.cli.command import Call, Line, Result, command, in_order, limited, option, or_else
from pipelines.cli.commands.objects import find_object
from pipelines.cli.commands.options import AT, ENGINE, FORMAT, KIND, LIMIT, SPARK, WITHIN
from pipelines.summary import Size, qualified
from trinitylake_core import Lakehouse, ObjectEntry
from trinitylake_core.definitions import TableDef, to_dict
from trinitylake_core.errors import ObjectNotFound
from trinitylake_core.keys import KINDS, NAMESPACE, TABLE
from trinitylake_core.recovery.patterns import NOT_PLAIN, Pattern
from trinitylake_core.recovery.selection import matching
from trinitylake_core.tables import SNAPSHOT_BYTES, SNAPSHOT_ID, SNAPSHOT_ROWS

if TYPE_CHECKING:
    from pipelines.job import Progress
    from trinitylake_core.tree.node import Node


@command(
    "ls",
    "trinitylake ls file:///data/lake 'sales.*' --kind table --limit 100",
    options=(
        KIND,
        LIMIT,
        option("--long", is_flag=True, help="also rows, bytes and snapshot of Iceberg tables; reads each definition"),
        FORMAT,
        *AT,
    ),
    arguments={
        "PATTERN": "sales for what is in this namespace; sales.orders, 'sales.*', '*.orders' for objects by name, as "
        "restore --only takes them"
    },
    details="With --limit, or a pattern whose beginning is given, only a part of the tree is read.",
)
def ls(call: Call) -> Result:
    """List objects in key order: namespaces, then tables, then views."""
    lake, text, kind = call.at(), call.options.pattern, call.options.kind
    found = lake.objects(kind=kind) if text is None else _within(lake, text, kind)
    entries = limited(found, call.options.limit)
    if call.options.long:
        return _long(lake, entries)
    table = report.table(["kind", "name"], ([each.kind, qualified(each.namespace, each.name)] for each in entries))
    rows = report.table(["kind", "namespace", "name"], ([each.kind, each.namespace, each.name] for each in entries))
    data = {"root": lake.root, "version": lake.version, "objects": entries}
    return Result(data, or_else(in_order(table), "no objects"), table=rows)


def _long(lake: Lakehouse, entries: Iterator[ObjectEntry]) -> Result:
    """Return objects with what definitions of Iceberg tables hold of their data. One ``get`` each, in parallel."""
    known = lake.storage.map(entries, lambda each: {**asdict(each), **_data_of(lake, each)})
    texts = (
        (each, qualified(each["namespace"], each["name"]), each["bytes"] and Size(each["bytes"])) for each in known
    )
    shown = ([each["kind"], name, each["rows"], size, each["snapshot"]] for each, name, size in texts)
    table = report.table(["kind", "name", "rows", "bytes", "snapshot"], shown)
    exact = report.table(list(_LONG), ([each[name] for name in _LONG] for each in known))
    data = {"root": lake.root, "version": lake.version, "objects": known}
    return Result(data, or_else(in_order(table), "no objects"), table=exact)


_HEAVIEST = 10
_LONG = ("kind", "namespace", "name", "rows", "bytes", "snapshot")
_FACTS = {"rows": SNAPSHOT_ROWS, "bytes": SNAPSHOT_BYTES, "snapshot": SNAPSHOT_ID}


def _data_of(lake: Lakehouse, entry: ObjectEntry) -> dict[str, int | None]:
    """Return rows, bytes and snapshot of an Iceberg table, ``None`` where its definition does not have them."""
    definition = lake.definition_of(entry) if entry.kind == TABLE else None
    facts = definition.format_properties if isinstance(definition, TableDef) else {}
    texts = ((name, facts.get(key, "")) for name, key in _FACTS.items())
    return {name: int(text) if text.lstrip("-").isdecimal() else None for name, text in texts}


def _within(lake: Lakehouse, text: str, kind: str | None) -> Iterator[ObjectEntry]:
    """Return the objects in a namespace, or those that match a pattern. Raises ``ObjectNotFound`` if there is none."""
    if not NOT_PLAIN.isdisjoint(text):
        return _matching(lake, text, kind)
    itself = list(lake.objects(text, NAMESPACE))
    if not itself and "." in text:
        return _matching(lake, text, kind)
    if not itself:
        raise ObjectNotFound(f"there is no namespace {text!r} in version {lake.version}")
    if kind == NAMESPACE:
        return iter(itself)
    return (each for each in lake.objects(text, kind) if each.kind != NAMESPACE)


def _matching(lake: Lakehouse, text: str, kind: str | None) -> Iterator[ObjectEntry]:
    kinds = KINDS if kind is None else (kind,)
    found = matching(lake.nodes, lake.root_node.node, lake.codec, Pattern(text), kinds)
    first = next(found, None)
    if first is None:
        raise ObjectNotFound(f"{text!r} names no {kind or 'object'} in version {lake.version}")
    return chain([first], found)


@command(
    "show",
    "trinitylake show file:///data/lake sales.orders",
    options=(KIND, WITHIN, *AT),
    arguments={"OBJECT": "sales, or sales.orders (default: the lakehouse itself)"},
    details="Names may contain dots: every way to split OBJECT is tried; if several objects match, they are listed.",
)
def show(call: Call) -> Result:
    """Show one definition."""
    lake, name = call.at(), call.options.object
    data: dict[str, Any] = {"root": lake.root, "version": lake.version}
    if name is None:
        data |= {"created_at": lake.info().created_at, "read_only": lake.read_only}
        definition = to_dict(lake.definition)
    else:
        entry = find_object(lake, name, kind=call.options.kind, namespace=call.options.within)
        data |= asdict(entry)
        definition = to_dict(lake.definition_of(entry))
    return Result({**data, "definition": definition}, in_order(report.fields(data), _definition(definition)))


def _definition(definition: dict[str, Any]) -> Iterator[Line]:
    """Yield a definition, the columns of a schema as a table."""
    columns = definition.get("schema", {}).get("columns", [])
    rest = {name: value for name, value in definition.items() if name != "schema" or not columns}
    rows = ([each["id"], each["name"], _type(each), each["nullable"]] for each in columns)
    return in_order(report.fields(rest), report.table(["id", "column", "type", "nullable"], rows) if columns else ())


def _type(column: dict[str, Any]) -> str:
    sizes = [column["properties"][name] for name in ("precision", "scale", "length") if name in column["properties"]]
    name = str(column["type"])
    if name == "STRUCT":
        inside = ", ".join(f"{each['name']} {_type(each)}" for each in column["struct_fields"])
        return f"STRUCT<{inside}>"
    if name == "LIST":
        return f"LIST<{_type(column['list_element'])}>"
    if name == "MAP":
        return f"MAP<{_type(column['map_key'])}, {_type(column['map_value'])}>"
    return f"{name}({', '.join(sizes)})" if sizes else name


@command(
    "stats",
    "trinitylake stats file:///data/lake --json",
    options=(
        option("--deep", is_flag=True, help="read every node: fill, reads per lookup, cost of a compaction"),
        option(
            "--storage",
            is_flag=True,
            help="with --deep: list all files; show the bytes of the newest version, of history only, and of orphans",
        ),
        option("--tables", is_flag=True, help="what Iceberg tables weigh, and the heaviest; reads each definition"),
        ENGINE,
        *AT,
        *SPARK,
    ),
)
def stats(call: Call) -> Result:
    """Show the figures of one root.

    One ``get``; with ``--tables`` those of the nodes that contain tables, and one for each definition.
    """
    from pipelines import stats as health  # what lists and shows must not wait for it
    from pipelines.engine_choice import choose_engine_for_all

    lake = call.at()
    found = {"root": lake.root, **asdict(lake.stats()), "read_only": lake.read_only}
    if call.options.deep or call.options.storage:
        engine = choose_engine_for_all(call.options.engine, call.spark, lake.root_node)
        deep = health.deep(lake, engine, call.progress, storage=call.options.storage)
        found |= {name: value for name, value in asdict(deep).items() if name != "summary"}
    if call.options.tables:
        found["weights"] = _weights(lake)
    return Result(found, report.fields(found))


def _weights(lake: Lakehouse) -> dict[str, Any]:
    """Return the sums of what the definitions of Iceberg tables say of their data, and the heaviest tables."""
    known = lake.storage.map(lake.objects(kind=TABLE), lambda each: (each, _data_of(lake, each)))
    weighed = [(facts["bytes"], facts["rows"], f"{each.namespace}.{each.name}") for each, facts in known]
    heavy = sorted((each for each in weighed if each[0] is not None), key=lambda each: (-(each[0] or 0), each[2]))
    return {
        "tables": len(heavy),
        "unknown": len(weighed) - len(heavy),
        "rows": sum(rows or 0 for _, rows, _ in heavy),
        "bytes": sum(size or 0 for size, _, _ in heavy),
        "heaviest": [{"table": name, "rows": rows, "bytes": size} for size, rows, name in heavy[:_HEAVIEST]],
    }


@dataclass(frozen=True, slots=True)
class Level:
    """The nodes at one depth. ``key_fill`` is the used share of their key tables, ``dirty`` counts those with messages.

    ``bytes`` is the size of their files, ``fill`` their size in memory as a share of the target size of a node file.
    """

    depth: int
    height: int | None
    nodes: int
    keys: int
    messages: int
    dirty: int
    key_fill: float
    fill: float
    bytes: int


@command(
    "tree",
    "trinitylake tree file:///data/lake --depth 2",
    options=(option("--depth", type=int, metavar="N", help="read at most N levels below the root"), FORMAT, *AT),
    details="Reads every node down to the requested depth.",
)
def tree(call: Call) -> Result:
    """Show the tree level by level."""
    lake = call.at()
    levels = list(_levels(lake, call.options.depth, call.progress))
    data = {"root": lake.root, "version": lake.version, "order": lake.definition.order, "levels": levels}
    header = [name.replace("_", " ") for name in Level.__slots__]
    shown: dict[str, Callable[[Any], Any]] = {"key_fill": "{:.0%}".format, "fill": "{:.0%}".format, "bytes": Size}
    rows = [
        [shown[name](value) if name in shown else value for name, value in asdict(level).items()] for level in levels
    ]
    facts = {"version": lake.version, "order": lake.definition.order}
    exact = report.table(header, (list(asdict(level).values()) for level in levels))
    return Result(data, in_order(report.fields(facts), report.table(header, rows)), table=exact)


def _levels(lake: Lakehouse, depth: int | None, progress: Progress) -> Iterator[Level]:
    nodes: Iterator[Node] = iter([lake.root_node.node])
    for level in range(1 << 16):
        found, below = _level(lake, level, nodes, progress)
        yield found
        if not below or level == depth:
            return
        nodes = lake.nodes.read_many(below)


def _level(lake: Lakehouse, depth: int, nodes: Iterator[Node], progress: Progress) -> tuple[Level, list[str]]:
    definition, below, height = lake.definition, [], None
    count = keys = messages = dirty = size = memory = 0
    for node in nodes:
        count, height = count + 1, node.height
        keys, messages, dirty = keys + len(node.keys), messages + len(node.buffer), dirty + bool(len(node.buffer))
        size, memory = size + node.nbytes, memory + node.estimated_bytes()
        below += node.children
        progress(f"level {depth}", count, None)
    fill = round(memory / (count * definition.node_file_max_size_bytes), 4)
    key_fill = round(keys / (count * max(1, definition.order - 1)), 4)
    return Level(depth, height, count, keys, messages, dirty, key_fill, fill, size), below

"""Commands that show what one version of a lakehouse holds: ls, show, stats, tree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import chain, count
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from pipelines.cli import report
from pipelines.cli.command import Call, Line, Result, command, in_order, option, or_else, take_first
from pipelines.cli.commands.objects import find_object
from pipelines.cli.commands.options import AT, ENGINE, FORMAT, KIND, LIMIT, SPARK, WITHIN
from pipelines.reports.summary import ByteCount, at_most, qualify_name
from trinitylake_core import Lakehouse, ObjectEntry
from trinitylake_core.definitions import TableDef, to_dict
from trinitylake_core.errors import ObjectNotFound
from trinitylake_core.keys import KINDS, NAMESPACE, TABLE
from trinitylake_core.recovery.patterns import NOT_PLAIN, Pattern
from trinitylake_core.recovery.selection import matching
from trinitylake_core.tables import SNAPSHOT_BYTES, SNAPSHOT_ID, SNAPSHOT_ROWS, whole_number

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
    lake = call.at()
    kind = call.options.kind
    if call.options.pattern is None:
        found = lake.objects(kind=kind)
    else:
        found = _find_objects(lake, call.options.pattern, kind)
    entries = take_first(found, call.options.limit)
    if call.options.long:
        return _list_long(lake, entries)
    # Of lines, rows and data only one is read, so they can share the iterator.
    shown = report.table(["kind", "name"], map(_name_row, entries))
    columns = "kind", "namespace", "name"
    rows = report.table(list(columns), map(attrgetter(*columns), entries))
    data = {"root": lake.root, "version": lake.version, "objects": entries}
    return Result(data, or_else(in_order(shown), "no objects"), table=rows)


def _name_row(entry: ObjectEntry) -> list[str]:
    return [entry.kind, qualify_name(entry.namespace, entry.name)]


def _list_long(lake: Lakehouse, entries: Iterator[ObjectEntry]) -> Result:
    """Return objects with what definitions of Iceberg tables hold of their data. One ``get`` each, in parallel."""
    known = lake.storage.map(entries, lambda each: {**asdict(each), **_read_facts(lake, each)})
    shown = report.table(["kind", "name", "rows", "bytes", "snapshot"], map(_long_row, known))
    rows = report.table(list(_LONG), ([each[name] for name in _LONG] for each in known))
    data = {"root": lake.root, "version": lake.version, "objects": known}
    return Result(data, or_else(in_order(shown), "no objects"), table=rows)


def _long_row(known: dict[str, Any]) -> list[Any]:
    name = qualify_name(known["namespace"], known["name"])
    size = known["bytes"]
    if size is not None:
        size = ByteCount(size)
    return [known["kind"], name, known["rows"], size, known["snapshot"]]


_HEAVIEST = 10
_COUNTED: Final = ("objects", "namespaces", "tables", "views")
_LONG = ("kind", "namespace", "name", "rows", "bytes", "snapshot")
_FACTS = {"rows": SNAPSHOT_ROWS, "bytes": SNAPSHOT_BYTES, "snapshot": SNAPSHOT_ID}


def _read_facts(lake: Lakehouse, entry: ObjectEntry) -> dict[str, int | None]:
    """Return rows, bytes and snapshot of an Iceberg table, ``None`` where its definition does not have them."""
    facts: dict[str, int | None] = dict.fromkeys(_FACTS)
    if entry.kind != TABLE:
        return facts
    definition = lake.definition_of(entry)
    if isinstance(definition, TableDef):
        for name, key in _FACTS.items():
            facts[name] = whole_number(definition.format_properties.get(key, ""))
    return facts


def _find_objects(lake: Lakehouse, text: str, kind: str | None) -> Iterator[ObjectEntry]:
    """Return the objects in a namespace, or those that match a pattern. Raises ``ObjectNotFound`` if there is none."""
    if not NOT_PLAIN.isdisjoint(text):
        return _find_matching(lake, text, kind)
    namespace = list(lake.objects(text, NAMESPACE))
    if not namespace and "." in text:
        return _find_matching(lake, text, kind)
    if not namespace:
        raise ObjectNotFound(f"there is no namespace {text!r} in version {lake.version}")
    if kind == NAMESPACE:
        return iter(namespace)
    return (each for each in lake.objects(text, kind) if each.kind != NAMESPACE)


def _find_matching(lake: Lakehouse, text: str, kind: str | None) -> Iterator[ObjectEntry]:
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
    lake = call.at()
    name = call.options.object
    data: dict[str, Any] = {"root": lake.root, "version": lake.version}
    if name is None:
        data["created_at"] = lake.info().created_at
        data["read_only"] = lake.read_only
        definition = to_dict(lake.definition)
    else:
        entry = find_object(lake, name, kind=call.options.kind, namespace=call.options.within)
        data |= asdict(entry)
        definition = to_dict(lake.definition_of(entry))
    lines = in_order(report.fields(data), _definition_lines(definition))
    return Result({**data, "definition": definition}, lines)


def _definition_lines(definition: dict[str, Any]) -> Iterator[Line]:
    """Yield a definition, the columns of a schema as a table."""
    columns = definition.get("schema", {}).get("columns", [])
    if not columns:
        return in_order(report.fields(definition))
    rest = {name: value for name, value in definition.items() if name != "schema"}
    rows = [[each["id"], each["name"], _type_name(each), each["nullable"]] for each in columns]
    return in_order(report.fields(rest), report.table(["id", "column", "type", "nullable"], rows))


def _type_name(column: dict[str, Any]) -> str:
    name = str(column["type"])
    if name == "STRUCT":
        fields = [f"{each['name']} {_type_name(each)}" for each in column["struct_fields"]]
        return f"STRUCT<{', '.join(fields)}>"
    if name == "LIST":
        return f"LIST<{_type_name(column['list_element'])}>"
    if name == "MAP":
        return f"MAP<{_type_name(column['map_key'])}, {_type_name(column['map_value'])}>"
    properties = column["properties"]
    sizes = [properties[size] for size in ("precision", "scale", "length") if size in properties]
    if not sizes:
        return name
    return f"{name}({', '.join(sizes)})"


@command(
    "stats",
    "trinitylake stats file:///data/lake --json",
    options=(
        option("--exact", is_flag=True, help="look up what waits, so that every count is exact"),
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

    Counts are exact, or "at most": then messages wait of which it is not known what they create or delete.

    One ``get``; with ``--exact`` one for each node that messages wait for; with ``--tables`` those of the nodes that
    contain tables, and one for each definition.
    """
    from pipelines import stats as health  # what lists and shows must not wait for it
    from pipelines.engine.choice import choose_engine_for_all

    lake = call.at()
    options = call.options
    figures = lake.stats()
    if options.exact:
        counts = lake.count_objects()
        figures = replace(figures, objects=counts.total, **counts._asdict(), uncertain=0)
    found = {"root": lake.root, **asdict(figures), "read_only": lake.read_only}
    if options.deep or options.storage:
        engine = choose_engine_for_all(options.engine, call.spark, lake.root_node)
        deep = asdict(health.deep(lake, engine, call.progress, storage=options.storage))
        deep.pop("summary", None)
        found |= deep
    if options.tables:
        found["weights"] = _weigh_tables(lake)
    return Result(found, report.fields(_show_counts(found, figures.uncertain)))


def _show_counts(found: dict[str, Any], uncertain: int | None) -> dict[str, Any]:
    """Return figures of a version with its counts as they are read: exact ones without a word."""
    shown = dict(found)
    if not uncertain:
        del shown["uncertain"]
    for name in _COUNTED:
        shown[name] = at_most(found[name], uncertain)
    return shown


def _weigh_tables(lake: Lakehouse) -> dict[str, Any]:
    """Return the sums of what the definitions of Iceberg tables say of their data, and the heaviest tables."""
    unknown = 0
    weighed: list[dict[str, Any]] = []
    tables = lake.objects(kind=TABLE)
    for entry, facts in lake.storage.map(tables, lambda each: (each, _read_facts(lake, each))):
        if facts["bytes"] is None:
            unknown += 1
        else:
            name = f"{entry.namespace}.{entry.name}"
            weighed.append({"table": name, "rows": facts["rows"], "bytes": facts["bytes"]})
    heaviest_first = sorted(weighed, key=lambda each: (-each["bytes"], each["table"]))
    return {
        "tables": len(weighed),
        "unknown": unknown,
        "rows": sum(each["rows"] or 0 for each in weighed),
        "bytes": sum(each["bytes"] for each in weighed),
        "heaviest": heaviest_first[:_HEAVIEST],
    }


@dataclass(frozen=True, slots=True)
class TreeLevel:
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

    def cells(self) -> list[Any]:
        """Return the values."""
        return list(asdict(self).values())

    def cells_for_people(self) -> list[Any]:
        """Return the values, shares in per cent and bytes with their unit."""
        cells = asdict(self)
        cells["key_fill"] = f"{self.key_fill:.0%}"
        cells["fill"] = f"{self.fill:.0%}"
        cells["bytes"] = ByteCount(self.bytes)
        return list(cells.values())


_TREE_OPTIONS: Final = (
    option("--depth", type=int, metavar="N", help="read at most N levels below the root"),
    FORMAT,
    *AT,
)


@command(
    "tree",
    "trinitylake tree file:///data/lake --depth 2",
    options=_TREE_OPTIONS,
    details="Reads every node down to the requested depth.",
)
def tree(call: Call) -> Result:
    """Show the tree level by level."""
    lake = call.at()
    options = call.options
    levels = list(_read_levels(lake, options.depth, call.progress))
    facts = {"version": lake.version, "order": lake.definition.order}
    data = {"root": lake.root, **facts, "levels": levels}
    header = [name.replace("_", " ") for name in TreeLevel.__slots__]
    rounded = [level.cells_for_people() for level in levels]
    lines = in_order(report.fields(facts), report.table(header, rounded))
    exact = [level.cells() for level in levels]
    return Result(data, lines, table=report.table(header, exact))


def _read_levels(lake: Lakehouse, depth: int | None, progress: Progress) -> Iterator[TreeLevel]:
    nodes: Iterator[Node] = iter([lake.root_node.node])
    for level in count():
        found, below = _read_level(lake, level, nodes, progress)
        yield found
        if not below or level == depth:
            return
        nodes = lake.nodes.read_many(below)


def _read_level(lake: Lakehouse, depth: int, nodes: Iterator[Node], progress: Progress) -> tuple[TreeLevel, list[str]]:
    """Return the figures of a level, and the nodes below it."""
    below: list[str] = []
    height = None
    found = Counter[str]()
    for node in nodes:
        height = node.height
        messages = len(node.buffer)
        found["nodes"] += 1
        found["keys"] += len(node.keys)
        found["messages"] += messages
        found["dirty"] += messages > 0
        found["bytes"] += node.nbytes
        found["memory"] += node.estimated_bytes()
        below += node.children
        progress(f"level {depth}", found["nodes"], None)
    keys_max = found["nodes"] * max(1, lake.definition.order - 1)
    memory_max = found["nodes"] * lake.definition.node_file_max_size_bytes
    level = TreeLevel(
        depth=depth,
        height=height,
        nodes=found["nodes"],
        keys=found["keys"],
        messages=found["messages"],
        dirty=found["dirty"],
        key_fill=round(found["keys"] / keys_max, 4),
        fill=round(found["memory"] / memory_max, 4),
        bytes=found["bytes"],
    )
    return level, below

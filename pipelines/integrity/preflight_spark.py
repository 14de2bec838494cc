"""The pre-flight on Spark: nodes level by level, then every definition; nothing of its size on the driver."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from pipelines.job import Progress
from pipelines.tasks import (
    INT,
    LONG,
    READ_AHEAD,
    TEXT,
    Batches,
    Row,
    collect,
    collect_one,
    map_batches,
    map_rows,
    on_disk,
    slots,
    spread,
    table,
    tasks_for,
)
from trinitylake_core import Violation
from trinitylake_core.catalog import codec_of
from trinitylake_core.check import check_definitions, check_node, violation
from trinitylake_core.commit import Files
from trinitylake_core.errors import Corrupt, FileMissing, InvalidLocation, InvalidName
from trinitylake_core.keys import NAMESPACE, KeyCodec
from trinitylake_core.locations import validate_path
from trinitylake_core.node import Node
from trinitylake_core.nodefile import decode
from trinitylake_core.storage import Storage
from trinitylake_core.versions import Root

if TYPE_CHECKING:  # the command line must not wait for pyspark where no Spark runs
    from pyspark.sql import DataFrame, SparkSession

SHOWN: Final = 10
"""How many findings a pre-flight looks for before it gives up."""
_PROBLEM: Final = pa.struct({"invariant": TEXT, "file": TEXT, "message": TEXT})
_CHILD: Final = pa.struct({"path": TEXT, "height": INT, "low": TEXT, "high": TEXT, "keys": LONG, "messages": LONG})
_ENTRY: Final = pa.struct({"key": TEXT, "value": TEXT, "age": INT})
_LEVEL: Final = pa.schema(
    {"bytes": LONG, "children": pa.list_(_CHILD), "entries": pa.list_(_ENTRY), "problems": pa.list_(_PROBLEM)}
)
_FOUND: Final = pa.schema(
    {"what": TEXT, "invariant": TEXT, "file": TEXT, "message": TEXT, "count": LONG, "bytes": LONG}
)
_DEFINITION: Final = pa.schema({"kind": TEXT, "name": TEXT, "path": TEXT})
_PROBLEM_FOUND, _EXISTS, _NEEDED, _COUNTED = "problem", "exists", "needed", "counted"


@dataclass(slots=True)
class Checked:
    """What a pre-flight read."""

    engine: str = "local"
    nodes: int = 0
    definitions: int = 0
    bytes: int = 0
    requests: int = 0


def in_parts(named: Sequence[tuple[str, str, str]]) -> Iterator[Sequence[tuple[str, str, str]]]:
    """Return definitions in pieces that may be read at once."""
    return (named[start : start + READ_AHEAD] for start in range(0, len(named), READ_AHEAD))


def check_on_spark(
    spark: SparkSession, files: Files, root: Root, checked: Checked, progress: Progress
) -> list[Violation]:
    """Return what is wrong with a version, the first few findings. One ``get`` a node and one a definition."""
    from pyspark.sql import functions as f

    definition = files.definition(root)
    order, most = definition.order, slots(spark)
    top = _node_row(root.node, root.path, (None, None), 0, order)
    level = table(spark, [top], _LEVEL)
    levels, found, waiting = [level], [_violation(each) for each in top["problems"]], len(root.node.children)
    for depth in range(1, (root.node.height or 0) + 1):
        tasks = max(1, min(most, -(-waiting // READ_AHEAD)))
        children = level.select(f.explode("children").alias("child")).select("child.*").repartition(tasks)
        work = partial(_check_level, order=order, depth=depth)
        level = on_disk(map_rows(children, work, _LEVEL, files.storage, weight=_weight))
        levels.append(level)
        count, waiting, problems = _summed(level, checked)
        checked.nodes += count
        progress("check nodes", checked.nodes, None)
        found += problems
        if len(found) >= SHOWN:
            break
    found = found or _reached_twice(levels)
    if not found:
        found = _entries_on_spark(files, codec_of(definition), levels, checked)
        progress("check definitions", checked.definitions, None)
    for each in levels:
        each.unpersist()
    return found[:SHOWN]


def _summed(level: DataFrame, checked: Checked) -> tuple[int, int, list[Violation]]:
    """Read a level, in one job; return how many nodes it has, how many children, and the first problems."""
    from pyspark.sql import functions as f

    broken = f.when(f.size("problems") > 0, f.col("problems"))
    sums = collect_one(
        level.agg(
            f.count("*").alias("nodes"),
            f.sum("bytes").alias("bytes"),
            f.sum(f.size("children")).alias("children"),
            f.slice(f.flatten(f.collect_list(broken)), 1, SHOWN).alias("problems"),
        )
    )
    checked.bytes, checked.requests = checked.bytes + (sums["bytes"] or 0), checked.requests + sums["nodes"]
    return sums["nodes"], sums["children"] or 0, [_violation(each) for each in sums["problems"]]


def _reached_twice(levels: Sequence[DataFrame]) -> list[Violation]:
    from pyspark.sql import functions as f

    every = [level.select(f.explode("children").alias("child")).select("child.path") for level in levels]
    paths = reduce(lambda one, two: one.unionByName(two), every)
    twice = paths.groupBy("path").count().where(f.col("count") > 1).limit(SHOWN)
    return [violation("I10", row["path"], "reached a second time") for row in collect(twice)]


def _violation(row: Mapping[str, Any]) -> Violation:
    return violation(row["invariant"], row["file"], row["message"])


def _entries_on_spark(files: Files, codec: KeyCodec, levels: Sequence[DataFrame], checked: Checked) -> list[Violation]:
    """Check what every key means: of a key's messages and row, the one nearest to the root counts."""
    from pyspark.sql import functions as f

    every = [level.select(f.explode("entries").alias("entry")).select("entry.*") for level in levels]
    newest = reduce(lambda one, two: one.unionByName(two), every).groupBy("key")
    meant = newest.agg(f.min_by("value", "age").alias("value")).where(f.col("value").isNotNull())
    seen = on_disk(map_batches(meant, partial(_check_entries, codec=codec), _FOUND, files.storage))
    found = _counted(seen, checked)
    needed = seen.where(f.col("what") == _NEEDED)
    orphans = needed.join(seen.where(f.col("what") == _EXISTS).select("file"), "file", "left_anti").limit(SHOWN)
    found += [violation("I12", files.storage.root, row["message"]) for row in collect(orphans)]
    seen.unpersist()
    return found


def _counted(seen: DataFrame, checked: Checked) -> list[Violation]:
    """Read the definitions, in one job; return the first problems."""
    from pyspark.sql import functions as f

    problem = f.when(f.col("what") == _PROBLEM_FOUND, f.struct("invariant", "file", "message"))
    sums = collect_one(
        seen.agg(
            f.sum("count").alias("count"),
            f.sum("bytes").alias("bytes"),
            f.slice(f.collect_list(problem), 1, SHOWN).alias("problems"),
        )
    )
    checked.definitions, checked.bytes = sums["count"] or 0, checked.bytes + (sums["bytes"] or 0)
    checked.requests += checked.definitions
    return [_violation(each) for each in sums["problems"]]


def definitions_on_spark(
    spark: SparkSession, files: Files, named: Sequence[tuple[str, str, str]], checked: Checked
) -> list[Violation]:
    """Return what is wrong with definitions (kind, label, path), the first few findings. One ``get`` each."""
    rows = [dict(zip(_DEFINITION.names, each, strict=True)) for each in named]
    frame = spread(spark, rows, _DEFINITION, tasks_for(spark, len(rows)))
    return _counted(map_batches(frame, _check_definitions, _FOUND, files.storage), checked)


# -- in tasks ------------------------------------------------------------------------------------------


def _check_level(rows: Iterator[Row], storage: Storage, *, order: int, depth: int) -> Iterator[Row]:
    while part := list(islice(rows, READ_AHEAD)):
        contents = storage.read_many([row["path"] for row in part])
        for row, (_, data) in zip(part, contents, strict=True):
            yield _checked(row, data, order, depth)


def _weight(row: Mapping[str, Any]) -> int:
    return 1 + len(row["children"]) + len(row["entries"])


def _checked(row: Mapping[str, Any], data: bytes | FileMissing, order: int, depth: int) -> dict[str, Any]:
    path = row["path"]
    if isinstance(data, FileMissing):
        return _unreadable(violation("I10", path, "the file is missing, but the tree points to it"))
    try:
        node = decode(data, path, order)
    except Corrupt as error:
        return _unreadable(violation(error.invariant, path, str(error)))
    found = _node_row(node, path, (row["low"], row["high"]), depth, order)
    if node.height != row["height"]:
        message = f"height {node.height} where {row['height']} is expected: the pointer to it leads astray"
        return _unreadable(violation("I8", path, message))
    for name, stated, expected in (
        ("keys", node.subtree_keys, row["keys"]),
        ("messages", node.subtree_messages, row["messages"]),
    ):
        if stated is not None and expected is not None and stated != expected:
            found["problems"].append(
                _problem(violation("I9", path, f"holds {stated} {name}, its parent says {expected}"))
            )
    return found


def _unreadable(what: Violation) -> dict[str, Any]:
    return {"bytes": 0, "children": [], "entries": [], "problems": [_problem(what)]}


def _problem(what: Violation) -> dict[str, str]:
    return {"invariant": what.invariant, "file": what.file, "message": what.message}


def _node_row(node: Node, path: str, bounds: tuple[str | None, str | None], depth: int, order: int) -> dict[str, Any]:
    """Return what a level keeps of a node. The buffer is younger than the table, a parent younger than a child."""
    problems = [_problem(each) for each in check_node(node, path, order, bounds, top=depth == 0)]
    for stated, own, children, name in (
        (node.subtree_keys, len(node.keys), node.child_keys, "keys"),
        (node.subtree_messages, len(node.buffer), node.child_messages, "messages"),
    ):
        if stated is not None and (children is not None or node.is_leaf) and stated != own + sum(children or ()):
            problems.append(_problem(violation("I9", path, f"subtree_{name} says {stated}, the subtree holds others")))
    entries = [
        {"key": key, "value": value, "age": 2 * depth + 1} for key, value in zip(node.keys, node.values, strict=True)
    ]
    pending = node.pending
    entries += [
        {"key": key, "value": value, "age": 2 * depth} for key, value in zip(pending.keys, pending.values, strict=True)
    ]
    return {
        "bytes": node.nbytes if depth else 0,
        "children": [_child(node, index, bounds) for index in range(len(node.children))],
        "entries": entries,
        "problems": problems,
    }


def _child(node: Node, index: int, bounds: tuple[str | None, str | None]) -> dict[str, Any]:
    low, high = node.bounds(index)
    keys, messages = (
        counts[index] if counts is not None and index < len(counts) else None
        for counts in (node.child_keys, node.child_messages)
    )
    return {
        "path": node.children[index],
        "height": (node.height or 0) - 1,
        "low": low or bounds[0],
        "high": high or bounds[1],
        "keys": keys,
        "messages": messages,
    }


def _check_entries(batches: Batches, storage: Storage, *, codec: KeyCodec) -> Batches:
    exists: set[str] = set()
    needed: dict[str, str] = {}
    for batch in batches:
        rows = zip(batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True)
        named, found = _named(codec, rows)
        for kind, name, _ in named:
            if kind == NAMESPACE:
                exists.add(name)
        for kind, namespace, name, _ in found.uses:
            needed.setdefault(namespace, f"{kind} {name!r} lies in a namespace that does not exist")
        yield from _checked_definitions(storage, named, found.problems)
    names = [_row(_EXISTS, file=name) for name in exists]
    names += [_row(_NEEDED, file=name, message=message) for name, message in needed.items()]
    yield pa.RecordBatch.from_pylist(names, schema=_FOUND)


@dataclass(slots=True)
class _Names:
    problems: list[Violation] = field(default_factory=list)
    uses: list[tuple[str, str, str, str]] = field(default_factory=list)


def _named(codec: KeyCodec, rows: Iterable[tuple[str, str]]) -> tuple[list[tuple[str, str, str]], _Names]:
    """Return kind, name and path of the definitions to read, and what keys and paths are wrong."""
    named: list[tuple[str, str, str]] = []
    found = _Names()
    for key, path in rows:
        try:
            name = codec.decode(key)
            named.append((name.kind, str(name), validate_path(path)))
        except (InvalidName, InvalidLocation) as error:
            found.problems.append(violation("I11", path, str(error)))
            continue
        if name.kind != NAMESPACE:
            found.uses.append((name.kind, name.namespace, str(name), path))
    return named, found


def _check_definitions(batches: Batches, storage: Storage) -> Batches:
    for batch in batches:
        columns = (batch.column(name).to_pylist() for name in _DEFINITION.names)
        yield from _checked_definitions(storage, list(zip(*columns, strict=True)), [])


def _checked_definitions(
    storage: Storage, named: Sequence[tuple[str, str, str]], problems: Sequence[Violation]
) -> Iterator[pa.RecordBatch]:
    before = storage.counts.snapshot()
    found = [*problems, *(each for part in in_parts(named) for each in check_definitions(storage, part))]
    rows = [_row(_PROBLEM_FOUND, each.invariant, each.file, each.message) for each in found]
    counted = _row(_COUNTED, count=len(named), size=(storage.counts - before).bytes_read)
    yield pa.RecordBatch.from_pylist([*rows, counted], schema=_FOUND)


def _row(
    what: str, invariant: str = "", file: str = "", message: str = "", count: int = 0, size: int = 0
) -> dict[str, Any]:
    return {"what": what, "invariant": invariant, "file": file, "message": message, "count": count, "bytes": size}

"""Going down the trees of many versions, level by level: every node is visited once, however many versions share it.

A node has the same height in whatever tree it stands: level ``h`` visits all distinct nodes of height ``h`` that the
levels above pointed to. What is to be done at a node is a function (:class:`Visitor`). Of what several parents say
about a child the tightest counts. On Spark a level is a DataFrame on the disks of the executors, and nothing of the
size of the lakehouse is on the driver; in this process it is a dictionary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa

from pipelines.job import Progress
from pipelines.tasks import READ_AHEAD, Row, collect_one, map_rows, on_disk, slots, table, tasks_for
from trinitylake_core.errors import FileMissing
from trinitylake_core.storage import Storage

if TYPE_CHECKING:  # the command line must not wait for pyspark where no Spark runs
    from pyspark.sql import DataFrame

ROOT: Final = -1
"""The height that is asked of a root: any."""
_LOWEST: Final = frozenset({"first", "hi", "keys_min", "messages_min", "parent"})
"""Columns of which the least is the tightest; of all others it is the greatest."""
_NODES_PER_TASK: Final = 32
Visit: TypeAlias = Callable[[Row, bytes | FileMissing], dict[str, Any]]


def as_they_are(rows: Iterator[Row]) -> Iterator[Row]:
    """Return the rows of roots unchanged."""
    return rows


@dataclass(frozen=True, slots=True)
class Visitor:
    """What is done at each node of a walk. It is sent to the tasks: it holds neither a storage nor a session.

    Attributes:
        phase: what the walk is called in progress.
        asked: what is known of a node before it is read: ``path``, ``height``, ``first`` and ``last`` of the versions
            that reach it, and whatever else its parents say.
        visited: what is left of it: ``path`` (``None`` = not a node of its own), ``height``, ``children``, and more.
            Children are rows of ``asked``, or paths about which nothing more is said.
        visit: makes what is kept from what was asked and what was read. A height that it does not know is -1.
        weight: how heavy a row is that is handed on.
        roots: what becomes of the rows of roots on Spark, given by version.
        summed: numbers in what is kept that Spark sums up over all nodes.
    """

    phase: str
    asked: pa.Schema
    visited: pa.Schema
    visit: Visit
    weight: Callable[[Row], int]
    roots: Callable[[Iterator[Row]], Iterator[Row]] = as_they_are
    summed: tuple[str, ...] = ()

    @property
    def says_more(self) -> bool:
        """Whether children are rows of ``asked``."""
        return bool(pa.types.is_struct(self.visited.field("children").type.value_type))

    def children(self, row: Row) -> Iterable[Row]:
        """Return what a row says about the children of its node."""
        if self.says_more:
            return row["children"]  # type: ignore[no-any-return]
        inherited = {"height": row["height"] - 1, "first": row["first"], "last": row["last"]}
        return [{"path": path, **inherited} for path in row["children"]]


def tightest(one: Row, two: Row) -> Row:
    """Return the tightest of what two parents say about one child; ``None`` says nothing."""
    return {name: _tighter(name, value, two[name]) for name, value in one.items()}


def _tighter(name: str, one: Any, two: Any) -> Any:
    if one is None or two is None:
        return two if one is None else one
    return min(one, two) if name in _LOWEST else max(one, two)


def visits(rows: Iterable[Row], storage: Storage, visit: Visit) -> Iterator[dict[str, Any]]:
    """Yield what a visitor keeps of nodes. One ``get`` each, read ahead."""
    remaining = iter(rows)
    while part := list(islice(remaining, READ_AHEAD)):
        for row, (_, data) in zip(part, storage.read_many([row["path"] for row in part]), strict=True):
            yield visit(row, data)


# -- in this process -------------------------------------------------------------------------------------


def walk_here(
    storage: Storage,
    visitor: Visitor,
    roots: Iterable[Row],
    known: Container[str] = frozenset(),
    visited: Sequence[Row] = (),
) -> Iterator[Row]:
    """Yield what a visitor keeps of all nodes reachable from roots, highest first. Whoever stops asking stops the walk.

    ``known`` nodes, and what only they reach, are left out. ``visited`` are rows of nodes that need not be read.
    """
    waiting: dict[int, dict[str, Row]] = {}
    level = [row for row in roots if row["path"] not in known]
    rows: Iterator[Row] = iter(visited)
    while True:
        for row in rows:
            _note_children(waiting, visitor, row)
            yield row
        if not level:
            height = max(waiting, default=ROOT)
            if height < 0:
                return
            level = [row for row in waiting.pop(height).values() if row["path"] not in known]
        rows, level = visits(level, storage, visitor.visit), []


def _note_children(waiting: dict[int, dict[str, Row]], visitor: Visitor, row: Row) -> None:
    for child in visitor.children(row):
        level = waiting.setdefault(child["height"], {})
        other = level.get(child["path"])
        level[child["path"]] = child if other is None else tightest(other, child)


# -- on Spark --------------------------------------------------------------------------------------------


@dataclass(slots=True)
class SparkLevels:
    """A walk on Spark: one DataFrame of kept rows a level, on disk, roots first. :meth:`release` gives it back."""

    storage: Storage
    visitor: Visitor
    progress: Progress
    levels: list[DataFrame] = field(default_factory=list)
    nodes_read: int = 0
    sums: Counter[str] = field(default_factory=Counter)

    def walk(
        self,
        roots: DataFrame,
        known: DataFrame | None = None,
        visited: Sequence[Row] = (),
        go_on: Callable[[DataFrame], bool] | None = None,
    ) -> None:
        """Visit roots and all nodes reachable from them, one Spark job per level.

        Args:
            roots: rows of ``asked``.
            known: nodes (a column ``path``) that are left out, with what only they reach.
            visited: rows of roots that need not be read, in the place of ``roots``.
            go_on: called with each level; returns whether to visit the next one.
        """
        spark = roots.sparkSession
        if visited:
            self.levels.append(table(spark, visited, self.visitor.visited))
            height, children = max(row["height"] for row in visited), sum(len(row["children"]) for row in visited)
        else:
            tasks = slots(spark)
            ordered = _without(roots, known).repartitionByRange(tasks, "first").sortWithinPartitions("first")
            height, children = self._visit(ordered, top=True)
        while (go_on is None or go_on(self.levels[-1])) and height > 0:
            height -= 1
            tasks = tasks_for(spark, children, _NODES_PER_TASK)
            _, children = self._visit(_without(self._asked(height), known).repartition(tasks), top=False)

    def _visit(self, asked: DataFrame, *, top: bool) -> tuple[int, int]:
        """Visit a level; return how high its highest node is, and how many children its rows have."""
        from pyspark.sql import functions as f

        visitor = self.visitor
        work = partial(_visited, visit=visitor.visit, finish=visitor.roots if top else as_they_are)
        level = on_disk(map_rows(asked, work, visitor.visited, self.storage, weight=visitor.weight))
        self.levels.append(level)
        sums = {"nodes": f.count("path"), "height": f.max("height"), "children": f.sum(f.size("children"))}
        sums |= {name: f.sum(name) for name in visitor.summed}
        found = collect_one(level.agg(*(column.alias(name) for name, column in sums.items())))
        self.nodes_read += found["nodes"]
        self.sums.update({name: found[name] or 0 for name in visitor.summed})
        self.progress(visitor.phase, self.nodes_read, None)
        return found["height"] or 0, found["children"] or 0

    def _asked(self, height: int) -> DataFrame:
        """Return what all levels say about the nodes of a height, the tightest of it."""
        from pyspark.sql import functions as f

        above = self.rows().where(f.col("height") == height + 1)
        if self.visitor.says_more:
            children = above.select(f.inline("children"))
        else:
            children = above.select(
                f.explode("children").alias("path"), (f.col("height") - 1).alias("height"), "first", "last"
            )
        names = self.visitor.asked.names
        rest = [(f.min(name) if name in _LOWEST else f.max(name)).alias(name) for name in names if name not in _KEY]
        return children.groupBy(*_KEY).agg(*rest).select(names)

    def rows(self) -> DataFrame:
        """Return what is kept of all nodes."""
        return reduce(lambda one, two: one.unionByName(two), self.levels)

    def release(self) -> None:
        """Drop the levels from the disks."""
        for level in self.levels:
            level.unpersist()


_KEY: Final = ("path", "height")


def _without(asked: DataFrame, known: DataFrame | None) -> DataFrame:
    return asked if known is None else asked.join(known, "path", "left_anti")


def _visited(
    rows: Iterator[Row], storage: Storage, *, visit: Visit, finish: Callable[[Iterator[Row]], Iterator[Row]]
) -> Iterator[Row]:
    return finish(visits(rows, storage, visit))

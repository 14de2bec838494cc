"""Going down the trees of many versions on Spark: a DataFrame a level, and the few nodes at the top in this process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from pipelines.engine.model import TEXT, Row
from pipelines.engine.spark import collect, collect_one, map_rows, on_disk, slots, spread, table, tasks_for
from pipelines.job import Progress
from pipelines.trees.levels import LOWEST, Visit, Visitor, Waiting, visits
from trinitylake_core.storage import Storage

if TYPE_CHECKING:  # the command line must not wait for pyspark where no Spark runs
    from pyspark.sql import DataFrame, SparkSession

NODES: Final = "nodes"
_NODES_PER_TASK: Final = 32
_HERE: Final = 128
"""Levels of so many nodes are visited in this process: four times as many as are read at once."""
_HERE_CHILDREN: Final = 1 << 15
"""What is said of so many children is held in memory at most."""
_KEY: Final = ("path", "height")
_PATH: Final = pa.schema({"path": TEXT})


def _always(told: Sequence[Row]) -> bool:
    del told
    return True


@dataclass(slots=True)
class SparkLevels:
    """A walk on Spark: one DataFrame of kept rows a level, on disk, roots first. :meth:`release` gives it back.

    Levels of few nodes are visited in this process: as a Spark job they would be a task or two, which all others wait
    for.

    Attributes:
        spark: the session.
        storage: that of the trees.
        visitor: what is done at each node.
        progress: called with each level.
        levels: what is kept.
        nodes_read: how many nodes were read, and likewise
        sums: what was summed up over them.
        at_leaves: called before leaves are visited in tasks, when everything above them is kept; returns what is done
            at them in the place of what the visitor does, if it is something else.
        here: of both, what was read in this process: :data:`NODES`, and the names of what was summed up.
    """

    spark: SparkSession
    storage: Storage
    visitor: Visitor
    progress: Progress
    levels: list[DataFrame] = field(default_factory=list)
    nodes_read: int = 0
    sums: Counter[str] = field(default_factory=Counter)
    here: Counter[str] = field(default_factory=Counter)
    at_leaves: Callable[[SparkLevels], Visit | None] | None = None

    def walk(
        self,
        roots: Sequence[Row],
        known: DataFrame | None = None,
        visited: Sequence[Row] = (),
        go_on: Callable[[Sequence[Row]], bool] | None = None,
    ) -> None:
        """Visit roots and all nodes reachable from them: at the top in this process, then one Spark job per level.

        Args:
            roots: rows of ``asked``.
            known: nodes (a column ``path``) that are left out, with what only they reach.
            visited: rows of roots that need not be read, in the place of ``roots``.
            go_on: called with what each level tells (``Visitor.told``); returns whether to visit the next one.

        A walk that fails gives back what it kept.
        """
        try:
            self._walk(roots, known, visited, go_on or _always)
        except BaseException:
            self.release()
            raise

    def _walk(
        self,
        roots: Sequence[Row],
        known: DataFrame | None,
        visited: Sequence[Row],
        go_on: Callable[[Sequence[Row]], bool],
    ) -> None:
        level = self._walk_top(roots, known, visited, go_on)
        if level is None:
            return
        top = not self.levels
        asked = self._by_version(level, known) if top else self._dealt(level, known)
        height, children, told = self._visit(asked, None if top else level[0]["height"])
        while go_on(told) and height > 0:
            height -= 1
            tasks = tasks_for(self.spark, children, _NODES_PER_TASK)
            _, children, told = self._visit(_without(self._asked(height), known).repartition(tasks), height)

    # -- in this process ------------------------------------------------------------------------------

    def _walk_top(
        self, roots: Sequence[Row], known: DataFrame | None, visited: Sequence[Row], go_on: Callable[[list[Row]], bool]
    ) -> list[Row] | None:
        """Visit levels of few nodes from the top on; return the first one that has many, ``None`` if there is none."""
        few = min(_HERE, _HERE_CHILDREN // self.visitor.fanout)
        level = sorted(roots, key=lambda row: row["first"]) or None
        with closing(Waiting(self.visitor, _HERE_CHILDREN)) as waiting:
            if visited:
                level = self._kept(list(visited), waiting, go_on)
            while level is not None and len(level) <= few:
                unread = self._unknown(level, known)
                rows: list[Row] = list(visits(unread, self.storage, self.visitor.visit))
                self._count_here(rows)
                level = self._kept(rows, waiting, go_on)
        return level

    def _kept(self, rows: list[Row], waiting: Waiting, go_on: Callable[[list[Row]], bool]) -> list[Row] | None:
        """Keep a level that was visited here; return the next one, ``None`` where the walk ends."""
        self.levels.append(table(self.spark, rows, self.visitor.visited))
        for row in rows:
            waiting.note(row)
        told = [each for row in rows for each in row[self.visitor.told]] if self.visitor.told else []
        return waiting.highest() if go_on(told) else None

    def _count_here(self, rows: Sequence[Row]) -> None:
        found = {name: sum(row[name] or 0 for row in rows) for name in self.visitor.summed}
        found[NODES] = sum(row["path"] is not None for row in rows)
        self.here.update(found)
        self._count(found)

    def _count(self, found: dict[str, int]) -> None:
        self.nodes_read += found[NODES]
        self.sums.update({name: found[name] or 0 for name in self.visitor.summed})
        self.progress(self.visitor.phase, self.nodes_read, None)

    def _unknown(self, level: list[Row], known: DataFrame | None) -> list[Row]:
        if known is None:
            return level
        asked = table(self.spark, [{"path": row["path"]} for row in level], _PATH)
        found = {row["path"] for row in collect(asked.join(known, "path", "left_semi"))}
        return [row for row in level if row["path"] not in found]

    # -- in tasks -------------------------------------------------------------------------------------

    def _by_version(self, roots: list[Row], known: DataFrame | None) -> DataFrame:
        frame = _without(table(self.spark, roots, self.visitor.asked), known)
        return frame.repartitionByRange(slots(self.spark), "first").sortWithinPartitions("first")

    def _dealt(self, level: list[Row], known: DataFrame | None) -> DataFrame:
        tasks = tasks_for(self.spark, len(level), _NODES_PER_TASK)
        if known is None:
            return spread(self.spark, level, self.visitor.asked, tasks)
        return _without(table(self.spark, level, self.visitor.asked), known).repartition(tasks)

    def _visit(self, asked: DataFrame, height: int | None) -> tuple[int, int, list[dict[str, Any]]]:
        """Visit a level of a height, or roots of any (``None``).

        Return the height, of roots that of the highest, how many children the rows have, and what they tell.
        """
        from pyspark.sql import functions as f

        visitor = self.visitor
        visit = (self.at_leaves(self) if height == 0 and self.at_leaves else None) or visitor.visit
        work = partial(visits, visit=visit)
        level = on_disk(map_rows(asked, work, visitor.visited, self.storage, weight=visitor.weight))
        self.levels.append(level)
        sums = {NODES: f.count("path"), "height": f.max("height"), "children": f.sum(f.size("children"))}
        sums |= {name: f.sum(name) for name in visitor.summed}
        if visitor.told:
            sums["told"] = f.sum(f.size(visitor.told))
        found = collect_one(level.agg(*(column.alias(name) for name, column in sums.items())))
        self._count(found)
        told = collect(level.select(f.inline(visitor.told))) if visitor.told and found["told"] else []
        return (found["height"] or 0) if height is None else height, found["children"] or 0, told

    def _asked(self, height: int) -> DataFrame:
        """Return the rows of the nodes of a height from all levels, with the tightest bounds."""
        from pyspark.sql import functions as f

        above = self.rows().where(f.col("height") == height + 1)
        if self.visitor.says_more:
            children = above.select(f.inline("children"))
        else:
            children = above.select(
                f.explode("children").alias("path"), (f.col("height") - 1).alias("height"), "first", "last"
            )
        names = self.visitor.asked.names
        rest = [(f.min(name) if name in LOWEST else f.max(name)).alias(name) for name in names if name not in _KEY]
        return children.groupBy(*_KEY).agg(*rest).select(names)

    def rows(self) -> DataFrame:
        """Return the rows that are kept of all nodes."""
        levels = self.levels or [table(self.spark, [], self.visitor.visited)]
        return reduce(lambda one, two: one.unionByName(two), levels)

    def release(self) -> None:
        """Drop the levels from the disks."""
        for level in self.levels:
            level.unpersist()


def _without(asked: DataFrame, known: DataFrame | None) -> DataFrame:
    return asked if known is None else asked.join(known, "path", "left_anti")

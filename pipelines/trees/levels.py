"""Going down the trees of many versions, level by level: every node is visited once, however many versions share it.

A node has the same height in every tree that contains it: level ``h`` visits all distinct nodes of height ``h`` that
the levels above pointed to. The work at a node is a function (:class:`Visitor`). Where several parents record
different bounds of a child, the tightest ones count. On Spark a level is a DataFrame on the disks of the executors, and
nothing of the size of the lakehouse is on the driver. In this process it is a dictionary, and a temporary file where it
is large.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Final, TypeAlias

import pyarrow as pa

from pipelines.engine.model import READ_AHEAD, Row
from pipelines.trees.spool import PARTS, PartFile
from trinitylake_core.errors import FileMissing
from trinitylake_core.storage import Storage

ROOT: Final = -1
"""The height that is asked of a root: any."""
MOST: Final = 4_096
"""So many nodes of one height wait in memory: as rows, a kilobyte each."""
LOWEST: Final = frozenset({"first", "hi", "keys_min", "messages_min", "parent"})
"""Columns of which the least is the tightest; of all others it is the greatest."""
Visit: TypeAlias = Callable[[Row, bytes | FileMissing], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Visitor:
    """What is done at each node of a walk. It is sent to the tasks: it holds neither a storage nor a session.

    Attributes:
        phase: what the walk is called in progress.
        asked: the schema of the row of a node before it is read: ``path``, ``height``, ``first`` and ``last`` of the
            versions that reach it, and the other values that its parents record.
        visited: what is left of it: ``path`` (``None`` = not a node of its own), ``height``, ``children``, and more.
            Children are rows of ``asked``, or paths about which nothing more is said.
        visit: makes what is kept from what was asked and what was read. A height that it does not know is -1.
        weight: how heavy a row is that is handed on.
        fanout: how many children a node has at the most.
        summed: numbers in what is kept that are summed up over all nodes.
        told: the column of what is kept, a list of structs, that comes to the driver after each level.
    """

    phase: str
    asked: pa.Schema
    visited: pa.Schema
    visit: Visit
    weight: Callable[[Row], int]
    fanout: int
    summed: tuple[str, ...] = ()
    told: str | None = None

    @property
    def says_more(self) -> bool:
        """Whether children are rows of ``asked``."""
        return bool(pa.types.is_struct(self.visited.field("children").type.value_type))

    def children(self, row: Row) -> Iterable[Row]:
        """Return the rows of the children of the node of a row."""
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
    return min(one, two) if name in LOWEST else max(one, two)


def visits(rows: Iterable[Row], storage: Storage, visit: Visit) -> Iterator[dict[str, Any]]:
    """Yield what a visitor keeps of nodes. One ``get`` each, read ahead."""
    remaining = iter(rows)
    while part := list(islice(remaining, READ_AHEAD)):
        for row, (_, data) in zip(part, storage.read_many([row["path"] for row in part]), strict=True):
            yield visit(row, data)


class Waiting:
    """What rows said about nodes that were not visited yet, by height.

    Of each height ``most`` are held. The others wait in a temporary file, as JSON, in parts by their paths.
    """

    def __init__(self, visitor: Visitor, most: int = MOST) -> None:
        self._visitor = visitor
        self._most = most
        self._levels: dict[int, dict[str, Row]] = {}
        self._files: dict[int, PartFile] = {}

    def note(self, row: Row) -> None:
        """Take what a row says about the children of its node. Raises ``StorageError`` if there is no room for it."""
        for child in self._visitor.children(row):
            height = child["height"]
            level = self._levels.setdefault(height, {})
            _add(level, child)
            if len(level) > self._most:
                self._write(height)

    def _write(self, height: int) -> PartFile:
        """Move what is held of a height to its file."""
        names = self._visitor.asked.names
        dealt: list[list[list[Any]]] = [[] for _ in range(PARTS)]
        for path, row in self._levels.pop(height, {}).items():
            dealt[hash(path) % PARTS].append([row[name] for name in names])
        file = self._files.setdefault(height, PartFile())
        for number, rows in enumerate(dealt):
            if rows:
                file.add(number, json.dumps(rows).encode())
        return file

    def levels(self) -> Iterator[list[Row]]:
        """Take out all rows, the highest first, also rows added during the walk; rows from a file come in parts."""
        while (height := self._highest()) >= 0:
            if height in self._files:
                yield from self._read(height)
            else:
                yield list(self._levels.pop(height).values())

    def highest(self) -> list[Row] | None:
        """Take out the highest level, all of it; ``None`` if nothing waits."""
        height = self._highest()
        if height in self._files:
            return [row for part in self._read(height) for row in part]
        return None if height < 0 else list(self._levels.pop(height).values())

    def _highest(self) -> int:
        return max([*self._levels, *self._files], default=ROOT)

    def _read(self, height: int) -> Iterator[list[Row]]:
        file, names = self._write(height), self._visitor.asked.names
        for number in range(PARTS):
            found: dict[str, Row] = {}
            for piece in file.pieces(number):
                for values in json.loads(piece):
                    _add(found, dict(zip(names, values, strict=True)))
            yield list(found.values())
        self._files.pop(height).close()

    def close(self) -> None:
        """Let go of everything."""
        for file in self._files.values():
            file.close()


def _add(level: dict[str, Row], row: Row) -> None:
    other = level.get(row["path"])
    level[row["path"]] = row if other is None else tightest(other, row)


def walk_here(
    storage: Storage,
    visitor: Visitor,
    roots: Iterable[Row],
    known: Container[str] = frozenset(),
    visited: Sequence[Row] = (),
) -> Iterator[Row]:
    """Yield the rows that a visitor keeps of all nodes reachable from roots, highest first. Closing it ends the walk.

    ``known`` nodes, and what only they reach, are left out. ``visited`` are rows of nodes that need not be read.
    Memory does not grow with the trees: see :class:`Waiting`.

    Raises:
        StorageError: the storage failed, or there is no room for temporary files.
    """
    with closing(Waiting(visitor)) as waiting:
        for row in visited:
            waiting.note(row)
            yield row
        for level in chain([roots], waiting.levels()):
            unread = [row for row in level if row["path"] not in known]
            for row in visits(unread, storage, visitor.visit):
                waiting.note(row)
                yield row

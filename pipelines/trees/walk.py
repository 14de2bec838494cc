"""Which files the trees of many versions reach, and how large their nodes are.

Going down level by level, every node is visited once, however many versions share it: a node has the same height in
every tree that contains it, so level ``h`` visits all distinct nodes of height ``h`` that the levels above pointed to.
Each file carries the first and the last of the walked versions that reach it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import islice
from typing import Any, Final

import pyarrow as pa

from pipelines.engine.model import INT, LONG, READ_AHEAD, TEXT, Engine, Kept, Row, Rows, Work
from pipelines.job import Progress
from pipelines.trees.levels import ROOT
from trinitylake_core import spec
from trinitylake_core.errors import CorruptNode, FileMissing
from trinitylake_core.storage import Storage
from trinitylake_core.tree.leaffile import decode_columns, decode_head
from trinitylake_core.tree.nodefile import decode
from trinitylake_core.tree.search import MAX_HEIGHT

FOREVER: Final = 1 << 40
"""The version number of roots that are always kept: those of snapshots and saved transactions."""
_ASKED: Final = pa.schema({"path": TEXT, "height": INT, "first": LONG, "last": LONG})
NODE: Final = 0
CHILD: Final = 1
NAMED: Final = 2
KEYS: Final = 3
MESSAGES: Final = 4
TEXT_BYTES: Final = 5
_WALKED: Final = pa.schema({"role": INT, "path": TEXT, "height": INT, "first": LONG, "last": LONG, "size": LONG})
"""A node and its bytes, an edge to a child, a definition that a node names, or a figure of a node."""
_NODES_PER_TASK: Final = 32
_MANY_BYTES: Final = 1 << 18
"""A node file of this size holds many messages; then they are better not turned into objects."""


@dataclass(frozen=True, slots=True)
class Start:
    """A root to walk from: its path, and the first and last version it stands for."""

    path: str
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class TreeSource:
    """What a walk reads from: the storage, the order of its trees, and what is wanted of their nodes.

    Attributes:
        files: whether to collect the definition paths that nodes and roots name.
        figures: whether to count keys, messages and the size of text in nodes; without, a leaf costs half.
    """

    storage: Storage
    order: int
    files: bool = True
    figures: bool = True


def _visits(
    rows: Iterator[Row], storage: Storage, *, order: int, files: bool, figures: bool
) -> Iterator[tuple[Any, ...]]:
    """Yield what a walk keeps of nodes. One ``get`` each, read ahead."""
    while some := list(islice(rows, READ_AHEAD)):
        for asked, (_, data) in zip(some, storage.read_many([row["path"] for row in some]), strict=True):
            yield from _visit(asked, data, order=order, files=files, figures=figures)


def _visit(
    asked: Row, data: bytes | FileMissing, *, order: int, files: bool, figures: bool
) -> Iterator[tuple[Any, ...]]:
    """Yield what a walk keeps of one node: itself, its children, and what it names.

    Raises:
        CorruptNode: missing, damaged, or of another height than its parents or its own children say. A walk that others
            act on must not guess: what hangs below a node that counts as a leaf would be deleted.
    """
    path, wanted, first, last = asked["path"], asked["height"], asked["first"], asked["last"]
    if isinstance(data, FileMissing):
        raise CorruptNode(f"node file {path!r} is missing, but a tree points to it", path=path, invariant="I10")
    plain = decode_columns(data, path, order) if wanted == 0 and not figures else None
    if plain is not None:
        yield NODE, path, 0, first, last, len(data)
        for each in plain.values.to_pylist() if files else ():
            yield NAMED, each, None, first, last, None
        return
    many = not figures and len(data) > _MANY_BYTES
    node, waiting = decode_head(data, path, order) if many else (decode(data, path, order), None)
    if node.height is None or node.height > MAX_HEIGHT:
        raise CorruptNode(f"node file {path!r} does not say its height", path=path, invariant="I8")
    if wanted not in {ROOT, node.height}:
        message = f"node file {path!r} has height {node.height} where {wanted} is expected"
        raise CorruptNode(message, path=path, invariant="I8")
    if (node.height > 0) != bool(node.children):
        message = f"node file {path!r} says it has height {node.height}, and has {len(node.children)} children"
        raise CorruptNode(message, path=path, invariant="I8")
    yield NODE, path, node.height, first, last, node.nbytes
    if figures:
        counted = {KEYS: len(node.keys), MESSAGES: len(node.buffer), TEXT_BYTES: node.estimated_bytes()}
        yield from ((role, path, node.height, first, last, size) for role, size in counted.items())
    for child in node.children:
        yield CHILD, child, node.height - 1, first, last, None
    if files:
        values = node.buffer.values if waiting is None else waiting.drop_null().to_pylist()
        named = [*node.values, *(value for value in values if value is not None)]
        named += [node.system[row] for row in (spec.LAKEHOUSE_DEF, spec.LAKEHOUSE_DEF_A) if row in node.system]
        for each in named:
            yield NAMED, each, None, first, last, None


@dataclass(slots=True)
class Walk:
    """What a walk kept: tables of nodes, of edges to their children, and of the files that they name.

    Attributes:
        levels: a table for each level, with the key ``path``: every path in it is that of a file that is reached.
    """

    engine: Engine
    levels: list[Rows] = field(default_factory=list)
    nodes_read: int = 0

    def ask(self, query: str) -> Rows:
        """Return the result of a query of the table ``walked``: role, path, height, first, last, size."""
        tables = {f"level{number}": level for number, level in enumerate(self.levels)}
        every = " UNION ALL ".join(f"SELECT * FROM {name}" for name in tables)
        return self.engine.sql(query, walked=self.engine.sql(every, **tables))

    def drop(self) -> None:
        """Release the disk and memory of the tables."""
        for level in self.levels:
            level.drop()
        self.levels = []


def walk(
    engine: Engine, trees: TreeSource, starts: Sequence[Start], progress: Progress, known: Sequence[Rows] = ()
) -> Walk:
    """Walk from roots to all nodes reachable from them, and return what it kept. One ``get`` per node.

    Nodes in the tables ``known``, kept by their key ``path``, and what only they reach, are left out. A walk that fails
    keeps nothing. Raises ``CorruptNode`` for the first damaged node.
    """
    found = Walk(engine)
    try:
        _walk(found, trees, starts, progress, known)
    except BaseException:
        found.drop()
        raise
    return found


def _walk(found: Walk, trees: TreeSource, starts: Sequence[Start], progress: Progress, known: Sequence[Rows]) -> None:
    engine = found.engine
    visit = partial(_visits, order=trees.order, files=trees.files, figures=trees.figures)
    rows = [{**asdict(each), "height": ROOT} for each in sorted(starts, key=lambda each: each.first)]
    pending = _without(engine, engine.table(rows, _ASKED), known)

    def progressed(rows: int) -> None:
        del rows
        progress("walk", found.nodes_read, None)

    height = _visit_level(found, trees, visit, pending, progressed)
    for below in range(height - 1, -1, -1):
        pending = _without(engine, found.ask(_children(below)), known).keep(repeatable=True)
        if pending.count():
            _visit_level(found, trees, visit, pending, progressed)
        pending.drop()


def _visit_level(found: Walk, trees: TreeSource, visit: Work, pending: Rows, progressed: Kept) -> int:
    """Visit nodes and keep what is left of them; return the greatest height among them."""
    level = found.engine.map(visit, pending, _WALKED, trees.storage, each=_NODES_PER_TASK)
    found.levels.append(level := level.keep("path", repeatable=True, progress=progressed))
    query = f"SELECT max(height) AS height, count(*) AS nodes FROM level WHERE role = {NODE}"
    sums = found.engine.sql(query, level=level).one()
    found.nodes_read += sums["nodes"]
    progressed(0)
    return sums["height"] or 0


def _children(height: int) -> str:
    return f"""SELECT path, height, min(first) AS first, max(last) AS last FROM walked
        WHERE role = {CHILD} AND height = {height} GROUP BY path, height"""


def _without(engine: Engine, asked: Rows, known: Sequence[Rows]) -> Rows:
    if not known:
        return asked
    tables = {f"known{number}": rows for number, rows in enumerate(known)}
    absent = (f"NOT EXISTS (SELECT 1 FROM {name} k WHERE k.path = a.path)" for name in tables)
    return engine.sql(f"SELECT a.* FROM asked a WHERE {' AND '.join(absent)}", asked=asked, **tables)

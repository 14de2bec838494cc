"""Going down the trees of many versions, level by level: every node is visited once, however many versions share it.

A node has the same height in every tree that contains it, so level ``h`` visits all distinct nodes of height ``h`` that
the levels above pointed to. Where several parents record different values of a child, the tightest ones count. The work
at a node is a :class:`Visitor`: :func:`walk` asks which files the trees reach and how large their nodes are, and a
verification what is wrong with them. Each file carries the first and the last of the walked versions that reach it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import islice
from operator import attrgetter, itemgetter
from typing import Final

import pyarrow as pa

from pipelines.engine.counting import (
    MARK,
    Counts,
    GivenRows,
    ask_of_given,
    keep_mapped,
    refuse_other_names,
    refuse_other_sum,
    sum_counts,
    with_counts,
)
from pipelines.engine.local import LocalEngine
from pipelines.engine.model import INT, LONG, READ_AHEAD, TEXT, Engine, FoundRow, MadeRow, Row, Rows, Work, not_among
from pipelines.job import Progress
from trinitylake_core import spec
from trinitylake_core.errors import CorruptNode, FileMissing, StorageError
from trinitylake_core.locations import parse
from trinitylake_core.storage import Storage
from trinitylake_core.tree.leafbatch import decode_many
from trinitylake_core.tree.node import Node
from trinitylake_core.tree.nodefile import decode, decode_head
from trinitylake_core.tree.search import MAX_HEIGHT

ROOT: Final = -1
"""The height that is asked of a root: any."""
LOWEST: Final = frozenset({"first", "hi", "keys_min", "messages_min", "parent"})
"""Columns of which the least is the tightest; of all others it is the greatest."""
FOREVER: Final = 1 << 40
"""The version number of roots that are always kept: those of snapshots and saved transactions."""
IN_SNAPSHOT: Final = FOREVER + 1
"""From here on the first version that reaches a file stands for a snapshot."""
OF_NO_VERSION: Final = -1
"""The last version that reaches a file, where none is known to."""
_ASKED: Final = pa.schema({"path": TEXT, "height": INT, "first": LONG, "last": LONG})
NODE: Final = 0
CHILD: Final = 1
NAMED: Final = 2
KEYS: Final = 3
MESSAGES: Final = 4
TEXT_BYTES: Final = 5
FROM_COPY: Final = 6
LOST: Final = 7
_WALKED: Final = pa.schema({"role": INT, "path": TEXT, "height": INT, "first": LONG, "last": LONG, "size": LONG})
"""A node and its bytes, an edge to a child and its place, a definition that a node names, a figure of a node, a node
that only the copy has, or one that neither has."""
_NODES_PER_TASK: Final = 32
_NAMES_TOGETHER: Final = 1 << 17
"""Names in leaves that are put together: versions share nearly all names, and few leaves."""
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
        copy: where a node is read that cannot be read here; it is kept as :data:`FROM_COPY`, too. One that cannot be
            read there either is kept as :data:`LOST`, and what only it reaches is left out.
        needed: with a copy: the version of which no node may be lost. REQUIRES: no walked version is younger.
    """

    storage: Storage
    order: int
    files: bool = True
    figures: bool = True
    copy: Storage | None = None
    needed: int = 0


def _visits(
    rows: Iterator[Row],
    storage: Storage,
    copy: Storage | None = None,
    *,
    order: int,
    files: bool,
    figures: bool,
    needed: int = 0,
) -> Iterator[MadeRow]:
    """Yield what a walk keeps of nodes. One ``get`` each, read ahead.

    What neighbouring leaves name is yielded once, with the first and the last version of these leaves.
    """
    leaves: list[tuple[int, int, list[str]]] = []
    names = 0
    while some := list(islice(rows, READ_AHEAD)):
        for asked, (path, data) in zip(some, storage.read_many([row["path"] for row in some]), strict=True):
            leaf = None if figures or asked["height"] != 0 or isinstance(data, FileMissing) else data
            plain = None if leaf is None else decode_many([leaf], [path], order)
            if leaf is None or plain is None:
                try:
                    visited = list(_visit(asked, data, files=files, figures=figures))
                except CorruptNode as damage:
                    if copy is None:
                        raise
                    visited = _visit_damaged(asked, storage, copy, damage, needed, files=files, figures=figures)
                yield from visited
                continue
            yield NODE, path, 0, asked["first"], asked["last"], len(leaf)
            if files:
                leaves.append((asked["first"], asked["last"], plain[0].values.to_pylist()))
                names += len(plain[0])
            if names > _NAMES_TOGETHER:
                yield from _name_once(leaves)
                leaves, names = [], 0
    yield from _name_once(leaves)


def _name_once(leaves: Sequence[tuple[int, int, Sequence[str]]]) -> Iterator[MadeRow]:
    """Yield each name in leaves once, with the first and the last version of those that contain it."""
    firsts, lasts = dict[str, int](), dict[str, int]()
    for first, _, names in sorted(leaves, key=itemgetter(0), reverse=True):
        firsts.update(dict.fromkeys(names, first))
    for _, last, names in sorted(leaves, key=itemgetter(1)):
        lasts.update(dict.fromkeys(names, last))
    return ((NAMED, name, None, first, lasts[name], None) for name, first in firsts.items())


def _visit_damaged(
    asked: Row, storage: Storage, copy: Storage, damage: CorruptNode, needed: int, *, files: bool, figures: bool
) -> list[MadeRow]:
    """Return what a walk keeps of a damaged node: by its copy, or that it is lost. A ``get`` there, and one here.

    Raises the ``damage`` where no copy has a node of the version that is ``needed``. Raises ``StorageError``: the node
    can be read now, so an answer was cut short.
    """
    path = asked["path"]
    place = path, None, asked["first"], asked["last"], None
    with suppress(CorruptNode):
        visited = list(_visit(asked, copy.read_or_missing(path), files=files, figures=figures))
        return [*visited, (FROM_COPY, *place)]
    if asked["last"] >= needed:
        raise damage
    try:
        list(_visit(asked, storage.read_or_missing(path), files=files, figures=figures))
    except CorruptNode:
        return [(LOST, *place)]
    raise StorageError(f"{path} was read differently each time, as if the storage cut answers short; try again")


def _visit(asked: Row, data: bytes | FileMissing, *, files: bool, figures: bool) -> Iterator[MadeRow]:
    """Yield what a walk keeps of one node: itself, its children, and what it names.

    Raises:
        CorruptNode: missing, damaged, or of another height than its parents or children record. A walk that others
            act on must not guess: what hangs below a node that counts as a leaf would be deleted.
    """
    path = asked["path"]
    first = asked["first"]
    last = asked["last"]
    if isinstance(data, FileMissing):
        raise CorruptNode(f"node file {path!r} is missing, but a tree points to it", path=path, invariant="I10")
    if figures or len(data) <= _MANY_BYTES:
        node = decode(data, path)
        waiting = None
    else:
        node, waiting = decode_head(data, path)
    height = _height_of(node, path, asked["height"])
    yield NODE, path, height, first, last, node.nbytes
    if figures:
        yield KEYS, path, height, first, last, len(node.keys)
        yield MESSAGES, path, height, first, last, len(node.buffer)
        yield TEXT_BYTES, path, height, first, last, node.estimated_bytes()
    for place, child in enumerate(node.children):
        yield CHILD, child, height - 1, first, last, place
    if files:
        for each in _files_named(node, path, waiting):
            yield NAMED, each, None, first, last, None


def _height_of(node: Node, path: str, wanted: int) -> int:
    """Return the height of a node; raise ``CorruptNode`` if it cannot be that, or is not the ``wanted`` one."""
    height = node.height
    if height is None or height > MAX_HEIGHT:
        raise CorruptNode(f"node file {path!r} does not say its height", path=path, invariant="I8")
    if wanted not in {ROOT, height}:
        message = f"node file {path!r} has height {height} where {wanted} is expected"
        raise CorruptNode(message, path=path, invariant="I8")
    has_children = bool(node.children)
    if has_children != (height > 0):
        message = f"node file {path!r} says it has height {height}, and has {len(node.children)} children"
        raise CorruptNode(message, path=path, invariant="I8")
    return height


def _files_named(node: Node, path: str, waiting: pa.StringArray | None) -> list[str]:
    """Return the files that a node names; ``waiting`` are the values of its messages, if they were left as a column.

    Raises:
        CorruptNode: a root that names no lakehouse definition: it may name one in a way that is not known here.
    """
    named = list(node.values)
    if waiting is None:
        named += [value for value in node.buffer.values if value is not None]
    else:
        named += waiting.drop_null().to_pylist()
    definition = node.system.get(spec.LAKEHOUSE_DEF)
    if definition is not None:
        named.append(definition)
    elif _is_root_of_version(path):
        message = f"root {path!r} does not name a lakehouse definition"
        raise CorruptNode(message, path=path, invariant="I13")
    return named


def _is_root_of_version(path: str) -> bool:
    parsed = parse(path)
    return parsed is not None and parsed.kind == "root"


@dataclass(frozen=True, slots=True)
class Visitor:
    """What is done at each node of a walk.

    Attributes:
        phase: what the walk is called in progress.
        asked: the schema of the row of a node before it is read: path, height, first and last version, and the other
            values that its parents record.
        kept: the schema of what is left of it: rows with a role, among them a :data:`NODE` with its height, and for
            each child a :data:`CHILD` with the columns of ``row_of_root``.
        choose: called before each level with what is kept of the levels above, and its height (:data:`ROOT` for the
            roots, of any height); returns what is done with its nodes.
        key: the columns by which the kept rows are looked up, the one that is joined first.
    """

    phase: str
    asked: pa.Schema
    kept: pa.Schema
    choose: Callable[[Walk, int], Work]
    key: str = ""

    def children(self, height: int, *, in_place: bool = False) -> str:
        """Return the query of the distinct children of a height, with the tightest of what their parents record.

        ``marks`` is the sum of the marks of what the parents record. ``in_place``: those of one place in their parents,
        which name nearly the same, follow one another.
        """
        rest = [name for name in self.asked.names if name not in {"path", "height"}]
        tightest = [f"{'min' if name in LOWEST else 'max'}({name}) AS {name}" for name in rest]
        if in_place:
            order = "ORDER BY min(size)"
        else:
            order = ""
        return f"""SELECT path, height, {", ".join(tightest)}, sum({MARK}) AS marks FROM walked
            WHERE role = {CHILD} AND height = {height} GROUP BY path, height {order}"""


@dataclass(slots=True)
class Walk:
    """What a walk kept, in tables.

    Attributes:
        levels: a table for each level.
        nodes_read: how many nodes were read, each once.
        from_copy: how many of them only the copy has.
        lost: how many nodes neither has.
        counts: those of each level.
        copy: the storage of a copy, where nodes are read that cannot be read in ``storage``.
    """

    engine: Engine
    storage: Storage
    visitor: Visitor
    progress: Progress
    levels: list[Rows] = field(default_factory=list)
    nodes_read: int = 0
    from_copy: int = 0
    lost: int = 0
    counts: list[Counts] = field(default_factory=list)
    copy: Storage | None = None

    def ask(self, query: str, **tables: Rows) -> Rows:
        """Return the result of a query of the table ``walked``, the kept rows, and of others."""
        return self.engine.sql(query, walked=self.levels, **tables)

    def sum_up(self, columns: str) -> FoundRow:
        """Return sums of all kept rows, as columns of a query. Raises ``StorageError``: the engine lost rows."""
        sums = self.ask(f"SELECT {columns}, coalesce(sum({MARK}), 0) AS marks FROM walked").one()
        refuse_other_sum("rows of nodes", self.sum_of_marks(), sums.pop("marks"))
        return sums

    def sum_of_marks(self) -> int:
        """Return the sum of the marks of all kept rows."""
        return sum(level.marks for level in self.counts)

    def drop(self) -> None:
        """Release the disk and memory of the tables."""
        for level in self.levels:
            level.drop()
        self.levels = []


def walk(
    engine: Engine, trees: TreeSource, starts: Sequence[Start], progress: Progress, known: Sequence[Rows] = ()
) -> Walk:
    """Walk from roots to all nodes reachable from them, and return what it kept. One ``get`` per node.

    Nodes in the tables ``known``, kept by ``path``, and what only they reach, are left out. Every path in the
    levels is that of a file that is reached, or ``NULL``. Raises as :func:`descend`, and ``CorruptNode`` for the first
    damaged node.
    """
    visit = partial(_visits, order=trees.order, files=trees.files, figures=trees.figures, needed=trees.needed)
    rows = []
    for each in sorted(starts, key=attrgetter("first")):
        row = asdict(each)
        row["height"] = ROOT
        rows.append(row)
    visitor = Visitor("walk", _ASKED, _WALKED, lambda *_: visit, "path, role")
    return descend(engine, trees.storage, visitor, rows, progress, known=known, copy=trees.copy)


def descend(
    engine: Engine,
    storage: Storage,
    visitor: Visitor,
    roots: Sequence[Row],
    progress: Progress,
    *,
    known: Sequence[Rows] = (),
    few: int = 0,
    copy: Storage | None = None,
) -> Walk:
    """Visit all nodes reachable from roots, and return what the visitor kept. A walk that fails keeps nothing.

    Raises ``StorageError`` where the engine lost rows.

    Args:
        engine: where nodes are visited, and where the tables are.
        storage: that of the trees.
        visitor: what is done at each node.
        roots: rows of ``visitor.row_of_root``.
        progress: called with the number of nodes read.
        known: tables kept by ``path``: nodes that are left out, with what only they reach.
        few: so many nodes of a level at the top are visited in this process: as a Spark job they would be a task or
            two, which all others wait for. Not together with ``known``.
        copy: a second storage for the visitor's work, if it takes one.
    """
    found = Walk(engine, storage, visitor, progress, copy=copy)
    with closing(LocalEngine()) as top:
        if few and engine.tasks() > 1:
            found.engine = top
        try:
            _descend(found, engine, roots, known, few)
            _move(found, engine)
        except BaseException:
            found.drop()
            raise
    return found


def _descend(found: Walk, engine: Engine, roots: Sequence[Row], known: Sequence[Rows], few: int) -> None:
    starts, asked = _roots_to_visit(found, roots, known)
    height = _visit_level(found, _place_pending(found, engine, starts, asked, few), asked, ROOT)
    starts.drop()
    for below in range(height - 1, -1, -1):
        children = found.ask(found.visitor.children(below, in_place=found.engine.tasks() == 1))  # tasks are dealt nodes
        pending = _leave_out(found.engine, children, known).keep(repeatable=True)
        try:
            asked = _refuse_lost_children(found, below, pending, known)
            if asked.rows:
                _visit_level(found, _place_pending(found, engine, pending, asked, few), asked, below)
        finally:
            pending.drop()


def _roots_to_visit(found: Walk, roots: Sequence[Row], known: Sequence[Rows]) -> tuple[Rows, GivenRows]:
    """Return the roots that are not among the known nodes, each once, and what they ask of a visit."""
    once = _each_root_once(roots)
    engine = found.engine
    columns = found.visitor.asked
    given = engine.table(once, columns)
    if not known:
        asked = ask_of_given(once, "path")
        return given, asked
    starts = _leave_out(engine, given, known)
    kept = starts.keep(repeatable=True)
    # A table of their own: a row that the engine loses of one of both is in the other one.
    again = _leave_out(engine, engine.table(once, columns), known)
    query = f"SELECT {', '.join(columns.names)} FROM again n"
    asked = refuse_other_names(engine, "roots", kept, ", ".join(columns.names), query, again=again)
    return kept, asked


def _each_root_once(roots: Sequence[Row]) -> list[Row]:
    """Return roots, of which one may stand for a version and for a snapshot, each with the versions of both."""
    once: dict[str, Row] = {}
    for row in roots:
        path = row["path"]
        same = once.get(path, row)
        first = min(row["first"], same["first"])
        last = max(row["last"], same["last"])
        once[path] = {**row, "first": first, "last": last}
    return list(once.values())


def _refuse_lost_children(found: Walk, height: int, pending: Rows, known: Sequence[Rows]) -> GivenRows:
    """Refuse to visit other children, or with other expectations, than those that parents record and nobody knows.

    What hangs below a child that is not among them would be deleted. Each mark of what is recorded is in the sum of
    one child. Returns what the children ask of a visit. One query.
    """
    recorded = found.ask(f"SELECT path, {MARK} FROM walked WHERE role = {CHILD} AND height = {height}")
    every = f"""SELECT 1 AS children, crc32(p.path) AS keys, p.marks AS kept, 0 AS recorded FROM pending p
        UNION ALL SELECT 0 AS children, 0 AS keys, 0 AS kept, r.{MARK} AS recorded FROM recorded r"""
    query = f"""SELECT coalesce(sum(children), 0) AS children, coalesce(sum(keys), 0) AS keys,
        coalesce(sum(kept), 0) AS kept, coalesce(sum(recorded), 0) AS recorded FROM ({every}) e"""
    unknown = _leave_out(found.engine, recorded, known)
    sums = found.engine.sql(query, pending=pending, recorded=unknown).one()
    children = sums["children"]
    refuse_other_sum("children of nodes", sums["recorded"], sums["kept"])
    pending.learn_count(children)
    return GivenRows(children, sums["keys"])


def _place_pending(found: Walk, engine: Engine, pending: Rows, asked: GivenRows, few: int) -> Rows:
    """Return nodes where they are visited: more than a few of them in the engine, and so is the rest of the walk."""
    if found.engine is engine or asked.rows <= few:
        return pending
    rows = pending.list()
    _move(found, engine)
    return engine.table(rows, found.visitor.asked)


def _visit_level(found: Walk, pending: Rows, asked: GivenRows, height: int) -> int:
    """Visit nodes of a height and keep what is left of them; return the greatest height among them.

    Raises ``StorageError``: the engine lost rows.
    """

    def report_nodes(_: int) -> None:
        found.progress(found.visitor.phase, found.nodes_read, None)

    visitor = found.visitor
    storages = [each for each in (found.storage, found.copy) if each is not None]
    columns = [f"max(CASE WHEN role = {NODE} THEN height END) AS height"]
    for name, role in (("nodes", NODE), ("of_copy", FROM_COPY), ("lost", LOST)):
        columns.append(f"coalesce(sum(CASE WHEN role = {role} THEN 1 ELSE 0 END), 0) AS {name}")
    level, counts, sums = keep_mapped(
        found.engine,
        "nodes",
        visitor.choose(found, height),
        pending,
        "path",
        asked,
        visitor.kept,
        *storages,
        by=visitor.key,
        more=columns,
        progress=report_nodes,
        each=_NODES_PER_TASK,
    )
    found.levels.append(level)
    found.counts.append(counts)
    found.from_copy += sums["of_copy"]
    found.lost += sums["lost"]
    found.nodes_read += sums["nodes"]
    report_nodes(0)
    return sums["height"] or 0


def _move(found: Walk, engine: Engine) -> None:
    """Move what is kept to another engine. Raises ``StorageError``: one of both lost rows."""
    if found.engine is engine:
        return
    moved: list[Rows] = []
    for level, before in zip(found.levels, found.counts, strict=True):
        table = engine.table(level.list(), with_counts(found.visitor.kept))
        kept = table.keep(found.visitor.key, repeatable=True)
        counts, _ = sum_counts(engine, kept)
        refuse_other_sum("rows of nodes", before, counts)
        moved.append(kept)
    found.engine = engine
    found.levels = moved


def _leave_out(engine: Engine, asked: Rows, known: Sequence[Rows]) -> Rows:
    if not known:
        return asked
    unknown, tables = not_among("a.path", "known", known)
    return engine.sql(f"SELECT a.* FROM asked a WHERE {unknown}", asked=asked, **tables)

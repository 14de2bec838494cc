"""Which files that trees at one root URI reach are to be copied to another: walk, list both sides, compare.

A file counts as there when it has the size that it has at the source: files are immutable.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import pyarrow as pa

from pipelines.engine.model import LONG, TEXT, Engine, Row, Rows
from pipelines.files.copying import BATCH, NEW, copy_new
from pipelines.job import Progress
from pipelines.trees.walk import NAMED, Start, TreeSource, walk
from pipelines.trees.walk import NODE as WALKED_NODE
from trinitylake_core.catalog import decode_definition
from trinitylake_core.definitions import decode_lakehouse
from trinitylake_core.errors import CorruptDefinition, FileMissing, InvalidLocation
from trinitylake_core.keys import KINDS
from trinitylake_core.locations import parse, validate_path
from trinitylake_core.storage import Storage
from trinitylake_core.tree.nodefile import decode

_PREFIXES: Final = (*(f"{number:04b}/" for number in range(16)), "_lakehouse_def_")
"""Where all files but roots lie whose names this library chose."""
_SHOWN: Final = 10
_PREFIX: Final = pa.schema({"prefix": TEXT})
_PATH: Final = pa.schema({"path": TEXT})
_LISTING: Final = pa.schema({"path": TEXT, "size": LONG})
_LOOKED_UP: Final = pa.schema({"path": TEXT, "size": LONG, "there": LONG})
DEFINITION: Final = "definition"
NODE: Final = "node"
_TO_COPY: Final = "(there IS NULL OR there <> size)"
_OWN_NAME: Final = " OR ".join(f"substr(path, 1, {len(each)}) = {each!r}" for each in _PREFIXES)


@dataclass(frozen=True, slots=True)
class FilesToCopy:
    """Which files to copy, in a table of an engine.

    Attributes:
        definitions: how many definitions, ``nodes`` how many nodes, of ``bytes`` together.
        there: how many files are at the target.
        requests: those that tasks made so far, 0 where the work was done in this process.
    """

    definitions: int
    nodes: int
    bytes: int
    there: int
    requests: int
    _compared: Rows
    _plan: CopyPlan

    def copy(self, kind: str) -> tuple[int, int, int]:
        """Copy the files of a kind; return files, bytes, and requests of tasks."""
        count = self.definitions if kind == DEFINITION else self.nodes
        return self._plan.copy(self._compared, kind, count)


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """What roots of a source reach, compared with what the target holds; both in tables of ``engine``."""

    engine: Engine
    source: Storage
    target: Storage
    order: int
    progress: Progress

    def compare(self, starts: Sequence[Start], left_out: AbstractSet[str]) -> FilesToCopy:
        """Return the files to copy. One ``get`` per node, and a listing of both sides.

        Raises:
            Corrupt: a node is missing or damaged, or a definition missing.
        """
        walked = walk(self.engine, TreeSource(self.source, self.order, figures=False), starts, self.progress)
        sides = [self._listing(each).keep("path") for each in (self.source, self.target)]
        reached = self._reached(walked.ask, starts, left_out).keep()
        listed = self.engine.sql(
            """SELECT r.path, r.kind, coalesce(r.walked, h.size) AS size, t.size AS there
            FROM reached r LEFT JOIN here h ON h.path = r.path LEFT JOIN target t ON t.path = r.path""",
            reached=reached,
            here=sides[0],
            target=sides[1],
        ).keep()
        walked.drop()
        others = self.engine.sql(
            f"SELECT path FROM listed WHERE size IS NULL OR NOT ({_OWN_NAME})", listed=listed
        ).keep()
        looked_up = self.engine.map(_look_up, others, _LOOKED_UP, self.source, self.target).keep("path")
        compared = self.engine.sql(
            """SELECT l.path, l.kind, coalesce(l.size, o.size) AS size, coalesce(l.there, o.there) AS there
            FROM listed l LEFT JOIN others o ON o.path = l.path""",
            listed=listed,
            others=looked_up,
        )
        self._refuse_missing(compared)
        query = f"""SELECT kind, count(*) AS files, sum(CASE WHEN {_TO_COPY} THEN 1 ELSE 0 END) AS missing,
            sum(CASE WHEN {_TO_COPY} THEN size ELSE 0 END) AS bytes FROM compared GROUP BY kind"""
        sums = {row["kind"]: row for row in self.engine.sql(query, compared=compared).list()}
        in_tasks = walked.nodes_read + 2 * len(_PREFIXES) + 2 * others.count()
        return FilesToCopy(
            definitions=sums[DEFINITION]["missing"] if DEFINITION in sums else 0,
            nodes=sums[NODE]["missing"] if NODE in sums else 0,
            bytes=sum(row["bytes"] for row in sums.values()),
            there=sum(row["files"] - row["missing"] for row in sums.values()),
            requests=self.engine.not_counted(in_tasks),
            _compared=compared,
            _plan=self,
        )

    def _listing(self, storage: Storage) -> Rows:
        prefixes = self.engine.table([{"prefix": each} for each in _PREFIXES], _PREFIX)
        return self.engine.map(_list_prefixes, prefixes, _LISTING, storage, each=1)

    def _reached(self, ask: Any, starts: Sequence[Start], left_out: AbstractSet[str]) -> Rows:
        """Return every file that is reached, but for roots and what is left out: path, kind, the size of nodes."""
        absent = left_out | {each.path for each in starts if _is_root(each.path)}
        query = f"""SELECT path, CASE WHEN max(size) IS NULL THEN {DEFINITION!r} ELSE {NODE!r} END AS kind,
            max(size) AS walked FROM walked WHERE role IN ({WALKED_NODE}, {NAMED}) GROUP BY path"""
        table = self.engine.table([{"path": path} for path in sorted(absent)], _PATH).keep("path")
        return self.engine.sql(
            "SELECT e.* FROM every e WHERE NOT EXISTS (SELECT 1 FROM absent a WHERE a.path = e.path)",
            every=ask(query),
            absent=table,
        )

    def _refuse_missing(self, compared: Rows) -> None:
        lost = self.engine.sql("SELECT path FROM compared WHERE size IS NULL", compared=compared)
        count = lost.count()
        if not count:
            return
        some = self.engine.sql(f"SELECT path FROM lost ORDER BY path LIMIT {_SHOWN}", lost=lost).list()
        named = ", ".join(row["path"] for row in some)
        more = f" and {count - _SHOWN} more" if count > _SHOWN else ""
        raise CorruptDefinition(
            f"definitions are missing at {self.source.root}: {named}{more}; nothing was changed",
            path=some[0]["path"],
            invariant="I15",
        )

    def copy(self, compared: Rows, kind: str, count: int) -> tuple[int, int, int]:
        """Copy the ``count`` files of a kind that are not at the target; return files, bytes, requests of tasks."""
        self.progress(f"copy {kind}s", 0, count)
        if not count:
            return 0, 0, 0
        files = self.engine.sql(f"SELECT path FROM compared WHERE kind = {kind!r} AND {_TO_COPY}", compared=compared)
        work = partial(copy_new, check=partial(_check, self.order))
        done = self.engine.map(work, files, NEW, self.source, self.target, each=BATCH).list()
        sums = [sum(row[name] for row in done) for name in NEW.names]
        return sums[0], sums[1], self.engine.not_counted(sums[2])


def _is_root(path: str) -> bool:
    parsed = parse(path)
    return parsed is not None and parsed.kind == "root"


def _list_prefixes(rows: Iterator[Row], storage: Storage) -> Iterator[tuple[str, int]]:
    def files(prefix: str) -> list[tuple[str, int]]:
        return [(file.path, file.size) for file in storage.list(prefix)]

    for found in storage.map((row["prefix"] for row in rows), files):
        yield from found


def _look_up(rows: Iterator[Row], source: Storage, target: Storage) -> Iterator[tuple[str, int | None, int | None]]:
    """Yield path and sizes at both sides of files that no listing showed: others chose their names."""
    paths = [row["path"] for row in rows]
    here, there = dict(looked_up(source, paths)), dict(looked_up(target, paths))
    for path in paths:
        yield path, here.get(path), there.get(path)


def looked_up(storage: Storage, paths: list[str]) -> Iterator[tuple[str, int]]:
    """Yield path and size of files that no listing showed, if they are there. One ``head`` each, in parallel.

    Raises:
        CorruptDefinition: what a tree names as the path of a definition leads outside the lakehouse.
    """

    def size(path: str) -> int | None:
        try:
            return storage.info(validate_path(path)).size
        except FileMissing:
            return None
        except InvalidLocation as error:
            raise CorruptDefinition(f"{error}; nothing was changed", path=path, invariant="I11") from None

    for path, found in zip(paths, storage.map(paths, size), strict=True):
        if found is not None:
            yield path, found


def _check(order: int, path: str, data: bytes) -> None:
    """Raise ``Corrupt`` if a file does not fit its name: the checksum of a node, the form of a definition."""
    parsed = parse(path)
    kind = None if parsed is None else parsed.kind
    if kind == "node":
        decode(data, path, order)
    elif kind == "lakehouse_def":
        decode_lakehouse(data, path)
    elif kind in KINDS:
        decode_definition(str(kind), data, path)

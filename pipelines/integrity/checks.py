"""The three passes of a verification, in this process or on Spark. Both call the same functions on the same rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from pipelines.integrity.contents import Contents, Piece, pieces
from pipelines.integrity.examine import EXPECTED, Row, examined, merged
from pipelines.integrity.findings import NODES_NAMED, VIOLATION, Found, counted, found_row
from pipelines.job import Progress
from pipelines.tasks import (
    INT,
    LONG,
    READ_AHEAD,
    TEXT,
    collect,
    collect_one,
    in_order,
    map_rows,
    on_disk,
    slots,
    spread,
    table,
)
from trinitylake_core.catalog import codec_of
from trinitylake_core.check import Violation, check_root, violation
from trinitylake_core.definitions import LakehouseDef
from trinitylake_core.errors import Corrupt, InvalidDefinition
from trinitylake_core.storage import Storage
from trinitylake_core.versions import Root, Versions

if TYPE_CHECKING:  # the command line must not wait for pyspark where no Spark runs
    from pyspark.sql import DataFrame, SparkSession

_FOUND: Final = pa.schema([*((name, TEXT) for name in VIOLATION), ("first", LONG), ("last", LONG)])
_EXAMINED: Final = pa.schema(
    {"height": INT, "children": pa.list_(pa.struct(list(EXPECTED))), "found": pa.list_(pa.struct(list(_FOUND)))}
)
_VERSION: Final = pa.schema({"version": LONG})
_PIECE: Final = pa.schema({"version": LONG, "before": LONG, "lo": TEXT, "hi": TEXT})
_OTHER: Final = "other"
"""Stands in the place of an invariant for a version that must be verified on its own."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What shapes keys and nodes: the same in all versions, but for a lakehouse that was rebuilt."""

    order: int
    target_bytes: int
    sizes: tuple[int, int, int]

    @classmethod
    def of(cls, definition: LakehouseDef) -> Shape:
        """Return the shape in a lakehouse definition."""
        names = ("namespace", "table", "view")
        sizes = tuple(getattr(definition, f"{name}_name_max_size_bytes") for name in names)
        return cls(definition.order, definition.node_file_max_size_bytes, (sizes[0], sizes[1], sizes[2]))

    def definition(self) -> LakehouseDef:
        """Return a definition of this shape."""
        one, two, three = self.sizes
        return LakehouseDef(
            order=self.order, namespace_name_max_size_bytes=one, table_name_max_size_bytes=two,
            view_name_max_size_bytes=three,
        )  # fmt: skip


# -- one row at a time -----------------------------------------------------------------------------------


def root_pass(versions: Versions, version: int, shape: Shape) -> Iterator[Row]:
    """Yield what is wrong with a root, its link and its lakehouse definition. Three ``get``.

    A row whose invariant is ``other`` says that the version has another shape.
    """
    try:
        root = versions.try_root(version)
        if root is None:  # the pass over the nodes tells
            return
        definition = versions.definition_file(root)
    except (Corrupt, InvalidDefinition) as error:
        invariant = error.invariant if isinstance(error, Corrupt) else "I13"
        path = getattr(error, "path", None) or versions.path(version)
        if not isinstance(error, Corrupt) or path != versions.path(version):
            invariant = "I13"
        yield found_row(violation(invariant, path, str(error)), version, version)
        return
    if not root.node.canonical or root.node.height is None or Shape.of(definition) != shape:
        yield found_row(Violation(_OTHER, "", "", ""), version, version)
        return
    try:
        found = list(check_root(versions, root))
    except Corrupt as error:
        found = [violation("I14", root.path, f"the history cannot be followed: {error}")]
    for each in found:
        yield found_row(each, version, version)


def node_pass(storage: Storage, shape: Shape, rows: Iterable[Row]) -> Iterator[Row]:
    """Yield for each node its height, what is expected of its children, and findings. One ``get`` each, ahead."""
    codec, remaining = codec_of(shape.definition()), iter(rows)
    while part := list(islice(remaining, READ_AHEAD)):
        named = 0
        for row, (_, data) in zip(part, storage.read_many([row["path"] for row in part]), strict=True):
            node, found, children = examined(row, data, shape.order, codec)
            named += node is not None and node.named
            if row is part[-1]:
                found.append(counted(NODES_NAMED, named))
            yield {
                "height": -1 if node is None or node.height is None else node.height,
                "children": children,
                "found": [found_row(each, row["first"], row["last"]) for each in found],
            }


# -- engines ---------------------------------------------------------------------------------------------


@dataclass(slots=True)
class LocalChecks:
    """All passes in this process."""

    storage: Storage
    shape: Shape
    found: Found
    progress: Progress
    _versions: Versions = field(init=False)

    def __post_init__(self) -> None:
        self._versions = Versions(self.storage)

    def roots(self, versions: Sequence[int]) -> list[int]:
        """Check roots; return the versions of another shape."""
        others = []
        for done, version in enumerate(versions):
            self.progress("roots", done, len(versions))
            for row in root_pass(self._versions, version, self.shape):
                if row["invariant"] == _OTHER:
                    others.append(version)
                else:
                    self.found.rows([row])
        return others

    def nodes(self, starts: Sequence[Row]) -> int:
        """Check nodes level by level; return how many were read."""
        waiting: dict[int, dict[str, Row]] = {}
        count = self._level(starts, waiting)
        for height in range(max(waiting, default=-1), -1, -1):
            count += self._level(list(waiting.pop(height, {}).values()), waiting)
            self.progress("nodes", count, None)
        return count

    def _level(self, rows: Sequence[Row], waiting: dict[int, dict[str, Row]]) -> int:
        for result in node_pass(self.storage, self.shape, rows):
            self.found.rows(result["found"])
            for child in result["children"]:
                level = waiting.setdefault(child["height"], {})
                known = level.get(child["path"])
                level[child["path"]] = child if known is None else merged(known, child)
        return len(rows)

    def contents(self, versions: Sequence[int], *, definitions: bool) -> None:
        """Check what versions mean."""
        contents = contents_of(self.storage, self.shape, definitions=definitions)
        work = pieces(versions, oldest_root(self._versions, versions))
        for done, piece in enumerate(work):
            self.progress("contents", done, len(work))
            for each in contents.prove(piece):
                self.found.add(each, piece.version)


class SparkChecks:
    """All passes in Spark tasks; findings alone come to the driver."""

    def __init__(self, spark: SparkSession, storage: Storage, shape: Shape, found: Found, progress: Progress) -> None:
        self._spark = spark
        self._storage = storage
        self._shape = shape
        self._found = found
        self._progress = progress
        self._tasks = slots(spark)

    def roots(self, versions: Sequence[int]) -> list[int]:
        """Check roots; return the versions of another shape."""
        rows = [{"version": version} for version in versions]
        frame = spread(self._spark, rows, _VERSION, self._tasks, in_order(len(rows), self._tasks))
        found = collect(map_rows(frame, partial(_check_roots, shape=self._shape), _FOUND, self._storage))
        self._progress("roots", len(versions), len(versions))
        self._found.rows([row for row in found if row["invariant"] != _OTHER])
        return [row["first"] for row in found if row["invariant"] == _OTHER]

    def nodes(self, starts: Sequence[Row]) -> int:
        """Check nodes, one Spark job a level; return how many were read."""
        from pyspark.sql import functions as f

        levels: list[DataFrame] = []
        height, count = None, 0
        expected = table(self._spark, starts, EXPECTED)
        work = partial(_check_nodes, shape=self._shape)
        while True:
            frame = self._by_version(expected) if height is None else expected.repartition(self._tasks)
            levels.append(on_disk(map_rows(frame, work, _EXAMINED, self._storage, weight=_weight)))
            sums = collect_one(levels[-1].agg(f.count("*").alias("nodes"), f.max("height").alias("height")))
            self._found.rows(collect(levels[-1].select(f.inline("found"))))
            count += int(sums["nodes"])
            self._progress("nodes", count, None)
            height = (sums["height"] or 0) if height is None else height - 1
            if height <= 0:
                break
            expected = _tightest(levels, height - 1)
        for level in levels:
            level.unpersist()
        return count

    def _by_version(self, roots: DataFrame) -> DataFrame:
        """Give each task consecutive roots: what one of them proves, the next one need not."""
        return roots.repartitionByRange(self._tasks, "first").sortWithinPartitions("first")

    def contents(self, versions: Sequence[int], *, definitions: bool) -> None:
        """Check what versions mean."""
        work = pieces(versions, oldest_root(Versions(self._storage), versions))
        rows = [asdict(piece) for piece in work]
        frame = spread(self._spark, rows, _PIECE, self._tasks, in_order(len(rows), self._tasks))
        prove = partial(_check_contents, shape=self._shape, definitions=definitions)
        self._found.rows(collect(map_rows(frame, prove, _FOUND, self._storage)))
        self._progress("contents", len(work), len(work))


def contents_of(storage: Storage, shape: Shape, *, definitions: bool) -> Contents:
    """Return what proves contents."""
    return Contents(storage, shape.order, shape.target_bytes, definitions=definitions, namespaces=True)


def oldest_root(versions: Versions, chosen: Sequence[int]) -> Root | None:
    """Return the root of the oldest version, if it can be read. One ``get``."""
    try:
        return versions.try_root(chosen[0]) if chosen else None
    except Corrupt:
        return None


def _tightest(levels: Sequence[DataFrame], height: int) -> DataFrame:
    """Return the tightest expectations of all nodes of a height."""
    from pyspark.sql import functions as f

    union = levels[0].select(f.inline("children"))
    for level in levels[1:]:
        union = union.unionByName(level.select(f.inline("children")))
    lowest = ("first", "hi", "keys_min", "messages_min", "parent")
    some = [
        (f.min(name) if name in lowest else f.max(name)).alias(name)
        for name in EXPECTED.names
        if name not in {"path", "height"}
    ]
    found = union.where(f.col("height") == height).groupBy("path", "height").agg(*some)
    return found.select(EXPECTED.names)


def _check_roots(rows: Iterator[Row], storage: Storage, *, shape: Shape) -> Iterator[Row]:
    versions = Versions(storage)
    for row in rows:
        yield from root_pass(versions, row["version"], shape)


def _check_nodes(rows: Iterator[Row], storage: Storage, *, shape: Shape) -> Iterator[Row]:
    return node_pass(storage, shape, rows)


def _weight(result: Row) -> int:
    return 1 + len(result["children"]) + len(result["found"])


def _check_contents(rows: Iterator[Row], storage: Storage, *, shape: Shape, definitions: bool) -> Iterator[Row]:
    contents = contents_of(storage, shape, definitions=definitions)
    for row in rows:
        piece = Piece(row["version"], row["before"], row["lo"], row["hi"])
        for each in contents.prove(piece):
            yield found_row(each, piece.version, piece.version)

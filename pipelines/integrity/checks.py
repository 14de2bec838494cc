"""The three passes of a verification, in this process or on Spark. Both call the same functions on the same rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from pipelines.integrity.contents import Contents, Piece, pieces
from pipelines.integrity.examine import EXPECTED, Row, examined, merged
from pipelines.integrity.findings import VIOLATION, Found, found_row
from pipelines.job import Progress
from pipelines.session import session_parallelism, ship_packages
from pipelines.tasks import by_weight, on_disk, own_errors
from trinitylake_core.catalog import codec_of
from trinitylake_core.check import Violation, check_root, violation
from trinitylake_core.definitions import LakehouseDef
from trinitylake_core.errors import Corrupt, InvalidDefinition
from trinitylake_core.storage import Storage, open_storage
from trinitylake_core.versions import Root, Versions

if TYPE_CHECKING:  # the command line must not wait for pyspark where no Spark runs
    from pyspark.sql import DataFrame, SparkSession

_READ_AHEAD: Final = 256
_TASKS_PER_CORE: Final = 3
_FOUND_DDL: Final = "invariant string, file string, message string, hint string, first bigint, last bigint"
_FOUND: Final = pa.schema([*((name, pa.string()) for name in VIOLATION), ("first", pa.int64()), ("last", pa.int64())])
_ARROW: Final = {"string": pa.string(), "bigint": pa.int64(), "int": pa.int32()}
_CHILD: Final = pa.struct([(name, _ARROW[kind]) for name, kind in EXPECTED])
_CHILD_DDL: Final = ", ".join(f"{name}: {kind}" for name, kind in EXPECTED)
_START_DDL: Final = ", ".join(f"{name} {kind}" for name, kind in EXPECTED)
_EXAMINED_DDL: Final = (
    f"height int, children array<struct<{_CHILD_DDL}>>, "
    "found array<struct<invariant: string, file: string, message: string, hint: string, first: bigint, last: bigint>>"
)
_EXAMINED: Final = pa.schema(
    [("height", pa.int32()), ("children", pa.list_(_CHILD)), ("found", pa.list_(pa.struct(list(_FOUND))))]
)
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


def node_pass(storage: Storage, shape: Shape, rows: Sequence[Row]) -> Iterator[Row]:
    """Yield for each node its height, what is expected of its children, and findings. One ``get`` each, ahead."""
    codec = codec_of(shape.definition())
    for begin in range(0, len(rows), _READ_AHEAD):
        part = rows[begin : begin + _READ_AHEAD]
        for row, (_, data) in zip(part, storage.read_many([row["path"] for row in part]), strict=True):
            node, found, children = examined(row, data, shape.order, codec)
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
        ship_packages(spark)
        self._spark = spark
        self._storage = storage
        self._shape = shape
        self._found = found
        self._progress = progress
        self._tasks = _TASKS_PER_CORE * session_parallelism(spark)
        root, options = storage.spec()
        self._spec = (root, dict(options))

    def roots(self, versions: Sequence[int]) -> list[int]:
        """Check roots; return the versions of another shape."""
        rows = [(index * self._tasks // max(1, len(versions)), version) for index, version in enumerate(versions)]
        frame = self._spark.createDataFrame(rows, "task int, version bigint").repartitionById(self._tasks, "task")
        found = self._collected(frame.mapInArrow(_roots_task(self._spec, self._shape), _FOUND_DDL))
        self._progress("roots", len(versions), len(versions))
        self._found.rows([row for row in found if row["invariant"] != _OTHER])
        return [row["first"] for row in found if row["invariant"] == _OTHER]

    def nodes(self, starts: Sequence[Row]) -> int:
        """Check nodes, one Spark job a level; return how many were read."""
        from pyspark.sql import functions as f

        rows = [tuple(each[name] for name, _ in EXPECTED) for each in starts]
        levels: list[DataFrame] = []
        height, count = None, 0
        expected = self._spark.createDataFrame(rows, _START_DDL)
        while True:
            spread = self._by_version(expected) if height is None else expected.repartition(self._tasks)
            level = spread.mapInArrow(_nodes_task(self._spec, self._shape), _EXAMINED_DDL)
            levels.append(on_disk(level))
            with own_errors():
                told = levels[-1].agg(f.count("*"), f.max("height")).first()
            self._found.rows(self._collected(levels[-1].select(f.inline("found"))))
            count += 0 if told is None else told[0]
            self._progress("nodes", count, None)
            height = (0 if told is None or told[1] is None else told[1]) if height is None else height - 1
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
        rows = [
            (index * self._tasks // max(1, len(work)), each.version, each.before, each.lo, each.hi)
            for index, each in enumerate(work)
        ]
        ddl = "task int, version bigint, before bigint, lo string, hi string"
        frame = self._spark.createDataFrame(rows, ddl).repartitionById(self._tasks, "task")
        task = _contents_task(self._spec, self._shape, definitions=definitions)
        self._found.rows(self._collected(frame.mapInArrow(task, _FOUND_DDL)))
        self._progress("contents", len(work), len(work))

    def _collected(self, frame: DataFrame) -> list[dict[str, Any]]:
        with own_errors():
            return [row.asDict() for row in frame.collect()]


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
        for name, _ in EXPECTED
        if name not in {"path", "height"}
    ]
    found = union.where(f.col("height") == height).groupBy("path", "height").agg(*some)
    return found.select([name for name, _ in EXPECTED])


Task = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def _roots_task(where: tuple[str, Mapping[str, Any]], shape: Shape) -> Task:
    def check(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        versions = Versions(open_storage(*where))
        for batch in batches:
            rows = [row for each in batch.column("version").to_pylist() for row in root_pass(versions, each, shape)]
            yield pa.RecordBatch.from_pylist(rows, schema=_FOUND)

    return check


def _nodes_task(where: tuple[str, Mapping[str, Any]], shape: Shape) -> Task:
    def check(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        storage = open_storage(*where)
        for batch in batches:
            for begin in range(0, batch.num_rows, _READ_AHEAD):
                rows = batch.slice(begin, _READ_AHEAD).to_pylist()
                for results in by_weight(node_pass(storage, shape, rows), _weight):
                    yield pa.RecordBatch.from_pylist(results, schema=_EXAMINED)

    return check


def _weight(result: Row) -> int:
    return 1 + len(result["children"]) + len(result["found"])


def _contents_task(where: tuple[str, Mapping[str, Any]], shape: Shape, *, definitions: bool) -> Task:
    def check(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        contents = contents_of(open_storage(*where), shape, definitions=definitions)
        for batch in batches:
            for row in batch.select(["version", "before", "lo", "hi"]).to_pylist():
                found = [found_row(each, row["version"], row["version"]) for each in contents.prove(Piece(**row))]
                yield pa.RecordBatch.from_pylist(found, schema=_FOUND)

    return check

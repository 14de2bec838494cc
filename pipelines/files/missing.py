"""Which files that trees at one root URI reach are missing at another: walk, list both sides, compare.

Exports copy it. A file counts as there when it has the size that it has at the source: files are immutable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from pipelines.files.copying import copy_new, copy_new_on_spark
from pipelines.job import Progress
from pipelines.tasks import LONG, TEXT, Batches, collect, map_batches, on_disk, rows_of, spread
from pipelines.trees.sparklevels import NODES
from pipelines.trees.walk import SparkWalk, Start, TreeSource, walk_local, walk_on_spark
from trinitylake_core.catalog import decode_definition
from trinitylake_core.definitions import decode_lakehouse
from trinitylake_core.errors import CorruptDefinition, FileMissing, InvalidLocation
from trinitylake_core.keys import KINDS
from trinitylake_core.locations import parse, validate_path
from trinitylake_core.storage import Storage
from trinitylake_core.tree.nodefile import decode

if TYPE_CHECKING:  # the command line must not wait for pyspark where no Spark runs
    from pyspark.sql import DataFrame, SparkSession

_PREFIXES: Final = (*(f"{number:04b}/" for number in range(16)), "_lakehouse_def_")
"""Where all files but roots lie whose names this library chose."""
_NAMED: Final = 10
_LOOKED_UP: Final = 10_000
_PREFIX: Final = pa.schema({"prefix": TEXT})
_LISTING: Final = pa.schema({"path": TEXT, "size": LONG})
DEFINITION: Final = "definition"
NODE: Final = "node"


@dataclass(slots=True)
class Missing:
    """Which files to copy: lists in this process, frames on Spark.

    ``copy`` copies those of a kind and returns files, bytes and requests of tasks; ``release`` gives all back.
    ``requests`` are those that tasks made so far.
    """

    definitions: int
    nodes: int
    bytes: int
    there: int
    copy: Callable[[str], tuple[int, int, int]]
    release: Callable[[], None]
    requests: int = 0


class Comparison:
    """What roots of a source reach, compared with what the target holds."""

    def __init__(
        self,
        source: Storage,
        target: Storage,
        order: int,
        starts: Sequence[Start],
        left_out: AbstractSet[str],
        progress: Progress,
    ) -> None:
        self._source = source
        self._target = target
        self._order = order
        self._starts = starts
        self._left_out = left_out
        self._progress = progress

    def here(self) -> Missing:
        """Compare in this process."""
        nodes: dict[str, int] = {}
        definitions: set[str] = set()
        for row in walk_local(TreeSource(self._source, self._order), self._starts):
            nodes[row["path"]] = row["bytes"]
            definitions.update(row["files"])
            self._progress("walk", len(nodes), None)
        nodes = {path: size for path, size in nodes.items() if not _is_root(path)}
        definitions -= self._left_out
        here, there = _listed(self._source, self._target)
        unknown = [path for path in definitions if path not in here]
        here |= dict(looked_up(self._source, unknown))
        _refuse_missing(self._source.root, [path for path in unknown if path not in here])
        there |= dict(looked_up(self._target, [path for path in (*nodes, *unknown) if not path.startswith(_PREFIXES)]))
        sizes = {NODE: nodes, DEFINITION: {path: here[path] for path in definitions}}
        missing = {
            kind: sorted(path for path, size in each.items() if there.get(path) != size) for kind, each in sizes.items()
        }

        def copy(kind: str) -> tuple[int, int, int]:
            self._progress(f"copy {kind}s", 0, len(missing[kind]))
            done = copy_new(self._source, self._target, missing[kind], partial(_check, self._order))
            return done.copied, done.bytes, 0

        return Missing(
            definitions=len(missing[DEFINITION]),
            nodes=len(missing[NODE]),
            bytes=sum(sizes[kind][path] for kind, paths in missing.items() for path in paths),
            there=sum(len(sizes[kind]) - len(paths) for kind, paths in missing.items()),
            copy=copy,
            release=lambda: None,
        )

    def on_spark(self, spark: SparkSession) -> Missing:
        """Compare on Spark, nothing of the size of the lakehouse on the driver."""
        from pyspark.sql import functions as f

        trees = TreeSource(self._source, self._order)
        walk = walk_on_spark(spark, trees, self._starts, self._progress)
        frame = on_disk(self._compared(spark, walk))
        missing = f.col("there").isNull() | f.col("size").isNull() | (f.col("there") != f.col("size"))
        rows = frame.groupBy("kind").agg(
            f.count("*").alias("files"),
            f.sum(missing.cast("int")).alias("missing"),
            f.sum(f.col("size").isNull().cast("int")).alias("unknown"),
            f.sum(f.when(missing, f.col("size"))).alias("bytes"),
        )
        sums = {row["kind"]: row for row in collect(rows)}
        known = self._unknown(frame) if any(row["unknown"] for row in sums.values()) else {}
        counts = {kind: sums[kind]["missing"] if kind in sums else 0 for kind in (DEFINITION, NODE)}

        def copy(kind: str) -> tuple[int, int, int]:
            self._progress(f"copy {kind}s", 0, counts[kind])
            if not counts[kind]:
                return 0, 0, 0
            paths = frame.where((f.col("kind") == kind) & missing)
            check = partial(_check, self._order)
            done = copy_new_on_spark(spark, self._source, self._target, paths, counts[kind], check)
            return done.copied, done.bytes, done.requests

        def release() -> None:
            frame.unpersist()
            walk.release()

        return Missing(
            definitions=counts[DEFINITION],
            nodes=counts[NODE],
            bytes=sum(row["bytes"] or 0 for row in sums.values()) + sum(known.values()),
            there=sum(row["files"] - row["missing"] for row in sums.values()),
            copy=copy,
            release=release,
            requests=walk.nodes_read - walk.here[NODES] + 2 * len(_PREFIXES),
        )

    def _unknown(self, frame: DataFrame) -> dict[str, int]:
        """Return the sizes of files that no listing showed: others chose their names. Raises where one is missing."""
        paths = [row["path"] for row in collect(frame.where("size is null").select("path").limit(_LOOKED_UP))]
        known = dict(looked_up(self._source, paths))
        _refuse_missing(self._source.root, [path for path in paths if path not in known])
        return known

    def _compared(self, spark: SparkSession, walk: SparkWalk) -> DataFrame:
        """Return every file that is reached: path, kind, its size at the source and at the target."""
        from pyspark.sql import functions as f

        roots = f.col("path").rlike(r"^_[01]+\.ipc$")
        files = walk.named().select("path").distinct()
        if self._left_out:
            files = files.where(~f.col("path").isin(sorted(self._left_out)))
        reached = walk.nodes().where(~roots).select("path", f.lit(NODE).alias("kind"), f.col("bytes").alias("walked"))
        named = files.select("path", f.lit(DEFINITION).alias("kind"), f.lit(None).cast("bigint").alias("walked"))
        here = _listing(spark, self._source)
        there = _listing(spark, self._target).withColumnRenamed("size", "there")
        joined = reached.unionByName(named).join(here, "path", "left").join(there, "path", "left")
        return joined.select("path", "kind", f.coalesce("walked", "size").alias("size"), "there")


def _is_root(path: str) -> bool:
    parsed = parse(path)
    return parsed is not None and parsed.kind == "root"


def _listed(*storages: Storage) -> list[dict[str, int]]:
    """Return path and size of the files at each root, all listed at the same time."""

    def sizes(storage: Storage, prefix: str) -> dict[str, int]:
        return {file.path: file.size for file in storage.list(prefix)}

    begun = [[each.submit(partial(sizes, each, prefix)) for prefix in _PREFIXES] for each in storages]
    return [{path: size for files in each for path, size in files.result().items()} for each in begun]


def _listing(spark: SparkSession, storage: Storage) -> DataFrame:
    prefixes = spread(spark, [{"prefix": prefix} for prefix in _PREFIXES], _PREFIX, len(_PREFIXES))
    return map_batches(prefixes, _list_prefixes, _LISTING, storage)


def _list_prefixes(batches: Batches, storage: Storage) -> Batches:
    for row in rows_of(batches):
        found = [(file.path, file.size) for file in storage.list(row["prefix"])]
        paths, sizes = zip(*found, strict=True) if found else ((), ())
        yield pa.RecordBatch.from_arrays([pa.array(paths, TEXT), pa.array(sizes, LONG)], schema=_LISTING)


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


def _refuse_missing(root: str, paths: list[str]) -> None:
    if paths:
        named = ", ".join(sorted(paths)[:_NAMED])
        more = f" and {len(paths) - _NAMED} more" if len(paths) > _NAMED else ""
        raise CorruptDefinition(
            f"definitions are missing at {root}: {named}{more}; nothing was changed", path=paths[0], invariant="I15"
        )


def _check(order: int, path: str, data: bytes) -> None:
    """Raise ``Corrupt`` if a file is not what its name says: the checksum of a node, the form of a definition."""
    parsed = parse(path)
    kind = None if parsed is None else parsed.kind
    if kind == "node":
        decode(data, path, order)
    elif kind == "lakehouse_def":
        decode_lakehouse(data, path)
    elif kind in KINDS:
        decode_definition(str(kind), data, path)

"""Which files the trees of many versions reach, and how large their nodes are.

Each file carries the first and the last of the walked versions that reach it.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from pipelines.job import Progress
from pipelines.tasks import INT, LONG, TEXT, Row
from pipelines.trees.levels import ROOT, Visitor, walk_here
from pipelines.trees.runs import in_runs
from pipelines.trees.sparklevels import SparkLevels
from trinitylake_core import spec
from trinitylake_core.errors import CorruptNode, FileMissing
from trinitylake_core.storage import Storage
from trinitylake_core.tree.leaffile import decode_columns, decode_head
from trinitylake_core.tree.nodefile import decode
from trinitylake_core.tree.search import MAX_HEIGHT

if TYPE_CHECKING:  # the command line must not wait for pyspark where no Spark runs
    from pyspark.sql import DataFrame, SparkSession

FOREVER: Final = 1 << 40
"""The version number of what is kept whatever happens: snapshots and saved transactions."""
_ASKED: Final = pa.schema({"path": TEXT, "height": INT, "first": LONG, "last": LONG})
_NODE: Final = pa.schema(
    {
        "path": TEXT, "height": INT, "first": LONG, "last": LONG, "keys": INT, "messages": INT, "bytes": LONG,
        "text_bytes": LONG, "children": pa.list_(TEXT), "files": pa.list_(TEXT),
    }
)  # fmt: skip
_MANY_BYTES: Final = 1 << 18
"""A node file of this size holds many messages; then they are better not turned into objects."""
_NO_FIGURES: Final = {"messages": 0, "text_bytes": 0}


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
        figures: whether to tell the size of text in leaves; else it is 0 there, at half the cost per leaf, and the text
            of many messages in one node is left out.
    """

    storage: Storage
    order: int
    files: bool = True
    figures: bool = True


def _visit(asked: Row, data: bytes | FileMissing, *, order: int, files: bool, figures: bool) -> dict[str, Any]:
    """Return what a walk keeps of one node.

    Raises:
        CorruptNode: missing, damaged, or of another height than its parents or its own children say. A walk that others
            act on must not guess: what hangs below a node that counts as a leaf would be deleted.
    """
    path, wanted = asked["path"], asked["height"]
    if isinstance(data, FileMissing):
        raise CorruptNode(f"node file {path!r} is missing, but a tree points to it", path=path, invariant="I10")
    plain = decode_columns(data, path, order) if wanted == 0 and not figures else None
    if plain is not None:
        values = plain.values.to_pylist() if files else []
        return {**asked, **_NO_FIGURES, "keys": len(plain), "bytes": len(data), "children": [], "files": values}
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
    named: list[str] = []
    if files:
        values = node.buffer.values if waiting is None else waiting.drop_null().to_pylist()
        named = [*node.values, *(value for value in values if value is not None)]
        named += [node.system[row] for row in (spec.LAKEHOUSE_DEF, spec.LAKEHOUSE_DEF_A) if row in node.system]
    return {
        "path": path,
        "height": node.height,
        "first": asked["first"],
        "last": asked["last"],
        "keys": len(node.keys),
        "messages": len(node.buffer if waiting is None else waiting),
        "bytes": node.nbytes,
        "text_bytes": node.estimated_bytes(),
        "children": node.children,
        "files": named,
    }


def _weight(row: Row) -> int:
    return 1 + len(row["children"]) + len(row["files"])


def _visitor(trees: TreeSource) -> Visitor:
    visit = partial(_visit, order=trees.order, files=trees.files, figures=trees.figures)
    return Visitor("walk", _ASKED, _NODE, visit, _weight, trees.order, in_runs)


def _asked(starts: Iterable[Start]) -> list[dict[str, Any]]:
    return [{**asdict(start), "height": ROOT} for start in starts]


def walk_local(trees: TreeSource, starts: Iterable[Start], known: Container[str] = frozenset()) -> Iterator[Row]:
    """Yield the rows of all nodes reachable from roots, highest first, in this process. One ``get`` per node.

    ``known`` nodes, and what only they reach, are left out. Raises ``CorruptNode`` for the first damaged node.
    """
    return walk_here(trees.storage, _visitor(trees), _asked(starts), known)


class SparkWalk(SparkLevels):
    """A walk on Spark, as tables of files."""

    def nodes(self) -> DataFrame:
        """Return all nodes once: path, height, first, last, keys, messages, bytes; not what they hold."""
        return self.rows().where("path IS NOT NULL")

    def named(self) -> DataFrame:
        """Return the files that nodes name: path, and versions that name it; a file more than once."""
        from pyspark.sql import functions as f

        return self.rows().select(f.explode("files").alias("path"), "first", "last")

    def files(self) -> DataFrame:
        """Return every reachable file once: path, and the first and last version that reaches it."""
        from pyspark.sql import functions as f

        every = self.nodes().select("path", "first", "last").unionByName(self.named())
        return every.groupBy("path").agg(f.min("first").alias("first"), f.max("last").alias("last"))


def walk_on_spark(
    spark: SparkSession,
    trees: TreeSource,
    starts: Sequence[Start],
    progress: Progress,
    known: DataFrame | None = None,
) -> SparkWalk:
    """Walk from roots, levels of many nodes as Spark jobs. ``known`` nodes (column ``path``) are left out, as above."""
    walk = SparkWalk(spark, trees.storage, _visitor(trees), progress)
    walk.walk(_asked(starts), known)
    return walk

"""The digest of a version on an engine, made of ranges of keys.

On Spark a task takes some neighbouring ones, and this process takes all keys at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import pairwise
from typing import Final

import pyarrow as pa

from pipelines.engine import Engine, Row
from pipelines.engine.counting import map_counted
from pipelines.engine.model import TEXT
from pipelines.job import Progress, silent
from trinitylake_core import Lakehouse
from trinitylake_core.catalog import content_hash
from trinitylake_core.keys import KeyRange
from trinitylake_core.storage import Storage
from trinitylake_core.tree.search import scan

_MODULUS: Final = 2**128
_LAST: Final = "\U0010ffff"
"""Behind every key."""
_RANGES: Final = 1_024
"""So many ranges at the most are dealt to tasks."""
_RANGE: Final = pa.schema({"lo": TEXT, "hi": TEXT})
_SUM: Final = pa.schema({"sum": TEXT})


def digest(engine: Engine, lake: Lakehouse, progress: Progress = silent) -> str:
    """Return the digest of the version of a handle, as :meth:`Lakehouse.digest`.

    Reads every node; on Spark those between two ranges that different tasks take twice. Raises ``StorageError`` where
    the engine lost a range.
    """
    progress("digest", 0, None)
    work = partial(_sums, version=lake.version)
    ranges = _ranges(engine, lake)
    total = 0
    for row in map_counted(engine, "ranges of keys", work, ranges, _RANGE, _SUM, lake.storage, each=1):
        total += int(row["sum"], 16)
    return format(total % _MODULUS, "032x")


def _ranges(engine: Engine, lake: Lakehouse) -> list[Row]:
    """Return ranges of keys that cover a version."""
    if engine.tasks() > 1:
        cuts = _cuts(lake)
    else:
        cuts = []
    ranges: list[Row] = []
    for lo, hi in pairwise(["", *cuts, _LAST]):
        ranges.append({"lo": lo, "hi": hi})
    return ranges


def _cuts(lake: Lakehouse) -> list[str]:
    """Return keys that cut the tree evenly: pivots of the root and, if these are few, of its children.

    At most one ``get`` for each child of the root.
    """
    root = lake.root_node.node
    if root.is_leaf:
        return []
    pivots = list(root.keys)
    if len(pivots) < _RANGES and (root.height or 0) > 1:
        for child in lake.nodes.read_many(root.children):
            pivots += child.keys
    pivots.sort()
    step = max(1, -(-len(pivots) // _RANGES))
    return pivots[::step]


def _entries(lake: Lakehouse, ranges: Iterable[Row]) -> Iterator[tuple[str, str]]:
    """Yield the keys and paths of ranges of keys; a scan also yields what is on the bounds."""
    for row in ranges:
        lo = row["lo"]
        hi = row["hi"]
        for keys, paths in scan(lake.nodes, lake.root_node.node, KeyRange(lo, hi)):
            for key, path in zip(keys, paths, strict=True):
                if lo <= key < hi:
                    yield key, path


def _sums(rows: Iterator[Row], storage: Storage, *, version: int) -> Iterator[tuple[str]]:
    lake = Lakehouse.open(storage).at(version=version)
    total = 0
    for key, path in _entries(lake, rows):
        kind, namespace, name = lake.codec.split(key)
        total += content_hash(kind, namespace, name, path)
    yield (format(total % _MODULUS, "x"),)
